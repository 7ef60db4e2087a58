"""Samples from arrays in `.npy` and `.npz` files: one sample per item along the first axis.

`PlanArrays` reads headers (`open_file`) and divides arrays into pieces (`plan_pieces`).
`ArrayReader` makes the samples of a piece. A sample's blob is the range of its values in the file.

A *side array* holds the label or a feature of each image.
"""

import functools
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.columns import is_beyond_float32
from beam_tfrec.schemas.example import MAX_EXAMPLE_BYTES
from beam_tfrec.schemas.faults import Reason, run_fault
from beam_tfrec.schemas.fields import ArrayFields, NamedTensor, TensorFields
from beam_tfrec.schemas.layouts.arrays import found_in
from beam_tfrec.schemas.samples import NPZ, Sample, pack
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.schemas.tensors import BFLOAT16, NPY_TEXT_TYPES, TEXT
from beam_tfrec.transforms.shuffle.elements import spread
from beam_tfrec.transforms.sources import listing
from beam_tfrec.transforms.sources.read_blobs import (
    NPY,
    UNPACKED,
    StoredArray,
    open_array,
    read_blob,
    read_members,
)
from beam_tfrec.transforms.sources.read_samples import Item, SplitTally
from beam_tfrec.transforms.storage import Access, Entry, find_uri, join_uri, open_storage

STAGE = "read_arrays"

MAX_PIECE_BYTES = 16 << 20
"""Largest size of a side array's part in a piece."""

MIN_ROW_BYTES = 1024
"""Size that every row has at least in this sum, so that a piece has at most 16,384 rows."""

USUAL_NAMES = ("x", "images", "image")
"""Names of the image array in an archive with several arrays, without `--image_array`."""


class ArrayPiece(msgspec.Struct, frozen=True, array_like=True):
    """Rows of an image array with the same rows of its side arrays.

    `open_file` makes one piece per file, and `plan_pieces` divides it.

    Attributes:
        root: name of the file's root.
        prefix: start of the samples' keys, before the row number; the whole key with
            `--one_sample_per_file`.
        arrays: rows of the arrays, by name; the images have no name. With `--one_sample_per_file`,
            an image is a single row.
        start: number of the first row in the file.
        position: number of the first row in the source.
    """

    root: str
    prefix: str
    arrays: dict[str, StoredArray]
    start: int = 0
    position: int = 0

    @property
    def images(self) -> StoredArray:
        """Rows of the image array."""
        return self.arrays[""]


@dataclass(frozen=True)
class ArrayReader:
    """Makes the samples of a piece.

    Attributes:
        splitting: rule that decides the split of a sample.
        sources: sources by root name.
        access: credentials and limits for stores.
    """

    splitting: Splitting
    sources: Mapping[str, "ArraySource"]
    access: Access

    def __call__(self, piece: ArrayPiece) -> Iterator[Item]:
        """Yield the pinned samples of a piece, and notes of classes and features."""
        source = self.sources[piece.root]
        UNPACKED.enter(self.access.spool_dir)
        try:
            values = {
                name: read_rows(side, self.access)
                for name, side in piece.arrays.items()
                if name not in ("", *source.tensors)
            }
        finally:
            UNPACKED.leave()
        images = piece.images
        arrays = [images, *(piece.arrays[name] for name in source.tensors[1:])]
        headers = [stored.header for stored in arrays]
        items = [NamedTensor(of.shape[1:], of.dtype, of.big_endian) for of in headers]
        classes: dict[str, set[str]] = {}
        found: frozenset[str] = frozenset()  # equal for all rows
        for row in range(images.rows):
            features: dict[str, Any] = {name: column[row] for name, column in values.items()}
            row_key = f"{piece.prefix}{'' if source.one_sample_per_file else piece.start + row}"
            given_key = str(features.pop(source.key)) if source.key else row_key
            key = given_key or f"{images.entry.name}:{row_key}"  # never another row's key
            label = features.pop(source.label, None)
            fields = ArrayFields(*items[0], label, features)
            if items[1:]:
                fields = TensorFields(*items[0], label, features, tuple(items[1:]))
            texts = {name: str(value) for name, value in features.items()}
            split = self.splitting.split_of(piece.root, key, texts)
            blobs = tuple(stored.blob(piece.root, row) for stored in arrays)
            sample = Sample(split, key, piece.position + row, blobs, pack(fields))
            fault = _fault_of(fields, sum(blob.read_bytes for blob in blobs))
            if not given_key:
                fault = "E-ROW-KEY", f"{source.key} is an empty text"
            if fault:
                yield sample.reject(STAGE, *fault)
                continue
            names = [fields.label] if isinstance(fields.label, str) else []
            classes.setdefault(split, set()).update(names)
            found = found or found_in(fields, source.tensors)
            yield sample
        for split, of_split in classes.items():
            yield SplitTally(split, class_names=sorted(of_split), found=sorted(found))


@dataclass(frozen=True)
class ArraySource:
    """Arrays of a split, as the user gives them.

    Attributes:
        uri: URI of a `.npy` or `.npz` file, or of a folder of such files.
        image: name of the image array; empty for the only array, or one of `USUAL_NAMES`.
        label: name of the label array, or URI of its `.npy` file; empty for none.
        features: names of the feature arrays.
        tensors: names of the arrays of items, the image array first; empty for it alone.
        key: name of the array of keys; empty for row numbers.
        dtype: type of two-byte values without a named type (`|V2`); None if there are none.
        one_sample_per_file: whether each file is one sample instead of an array of samples.
    """

    uri: str
    image: str = ""
    label: str = ""
    features: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    key: str = ""
    dtype: str | None = None
    one_sample_per_file: bool = False

    @property
    def is_file(self) -> bool:
        """Whether the source is a single file."""
        return self.uri.endswith((NPY, NPZ))

    @property
    def folder(self) -> str:
        """URI of the folder with the source's files."""
        return self.uri.rpartition("/")[0] or "." if self.is_file else self.uri

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the side arrays, the label first."""
        return (*filter(None, [self.label, self.key]), *self.features, *self.tensors[1:])

    @property
    def files(self) -> list[str]:
        """URIs of the files that are known without listing a folder."""
        all_separate = self.uri.endswith(NPY)
        separate = [self.side_uri(n) for n in self.sides if all_separate or n.endswith(NPY)]
        return [*dict.fromkeys([self.uri, *separate] if self.is_file else separate)]

    def side_uri(self, name: str) -> str:
        """Return the URI of a side array's `.npy` file in the folder of the images."""
        return name if name.endswith(NPY) else join_uri(self.folder, f"{name}{NPY}")


def choose_files(
    root: str, entries: Iterable[Entry], sources: Mapping[str, ArraySource]
) -> Iterator[listing.ListedFile]:
    """Yield the array files of a folder that are not hidden.

    Raises:
        RuntimeError: `E-ARR-HEADER` for an entry that looks like an array file but cannot be read.
            Skipping it would lose data silently.
    """
    for entry in entries:
        name = entry.name
        if entry.kind == "directory" or listing.why_skipped(name) == listing.HIDDEN:
            continue
        if entry.kind == "file" and name.endswith((NPY, NPZ)):
            yield listing.ListedFile(root, entry)
        elif listing.is_folder(entry) or name.lower().endswith((NPY, NPZ)):
            where = join_uri(sources[root].folder, name)
            read = "only files that end in .npy or .npz (in lower case) are read"
            remedy = "rename it, repair it, or remove it from the folder"
            raise run_fault("E-ARR-HEADER", where, f"a {entry.kind}, but {read}", remedy)


def open_file(
    file: listing.ListedFile, sources: Mapping[str, ArraySource], access: Access
) -> Iterator[ArrayPiece]:
    """Yield a file as one piece, with the side arrays in the same file.

    Yields nothing for files without images, such as the `.npy` file of a side array.

    Raises:
        RuntimeError: `E-ARR-…` when the file cannot be read, `E-ARG` when an array is missing, or
            a storage fault.
    """
    source, entry = sources[file.root], file.entry
    name = entry.name
    where = join_uri(source.folder, name)
    if name.endswith(NPY):
        side_uris = {source.side_uri(side) for side in source.sides}
        is_image = not source.image or name.removesuffix(NPY) == source.image
        if not source.is_file and (where in side_uris or not is_image):
            return
    storage = open_storage(source.folder, access)
    members = read_members(storage, entry)
    names = [""] if name.endswith(NPY) else _names_in(members, source, where)
    arrays = {n: open_array(storage, entry, members[n], source.dtype, n) for n in names}
    arrays[""] = arrays.pop(names[0])
    prefix = "" if source.is_file or (source.image and name.endswith(NPY)) else f"{name}:"
    if source.one_sample_per_file:
        one = msgspec.structs.replace(arrays[""].header, shape=(1, *arrays[""].header.shape))
        arrays[""] = msgspec.structs.replace(arrays[""], header=one)
        prefix = name
    yield ArrayPiece(file.root, prefix, arrays)


def plan_pieces(
    group: tuple[str, Iterable[ArrayPiece]], sources: Mapping[str, ArraySource], access: Access
) -> Iterator[ArrayPiece]:
    """Divide a source's files into pieces, in the order of their names.

    Args:
        group: root name of the source, and its files as `open_file` yields them.
        sources: sources by root name.
        access: credentials and limits for stores.

    Raises:
        RuntimeError: `E-ARR-COUNT` when a side array has not one row per image; `E-ARG` when its
            file is missing, or a folder has both kinds of files; another `E-ARR-…` when an array
            cannot be used.
    """
    source = sources[group[0]]
    files = sorted(group[1], key=lambda file: file.images.entry.name)
    if len({file.images.entry.name.rpartition(".")[2] for file in files}) > 1:
        what, remedy = "it holds both .npy and .npz files", "give a folder with one kind only"
        raise run_fault("E-ARG", source.uri, what, remedy)
    for file in files:
        for name, stored in file.arrays.items():
            _check_array(stored, source, file.images.rows, name)
    separate: dict[str, StoredArray] = {}
    for name in source.sides if files else ():
        if name not in files[0].arrays:
            storage, entry = find_uri(source.side_uri(name), access)
            member = read_members(storage, entry)[""]
            separate[name] = open_array(storage, entry, member, source.dtype)
            rows = sum(file.images.rows for file in files)
            _check_array(separate[name], source, rows, name)
    held = [array for of in (separate, *(file.arrays for file in files)) for array in of.values()]
    if source.tensors and source.dtype not in (None, *(array.header.dtype for array in held)):
        what = f"no array has two-byte values without a type, but --dtype is {source.dtype}"
        raise run_fault("E-ARR-TYPE", source.uri, what, "remove --dtype")
    position = 0
    for file in files:
        rows = file.images.rows
        arrays = file.arrays | {n: side.part(position, rows) for n, side in separate.items()}
        read = [arrays[name] for name in source.sides if name not in source.tensors]
        widest = max([MIN_ROW_BYTES, *(side.header.item_bytes for side in read)])
        at_once = max(1, MAX_PIECE_BYTES // widest)
        for start in range(0, rows, at_once):
            parts = {name: stored.part(start, at_once) for name, stored in arrays.items()}
            at = position + start
            yield msgspec.structs.replace(file, arrays=parts, start=start, position=at)
        position += rows


def read_rows(stored: StoredArray, access: Access) -> list[int | float | str]:
    """Read a side array, and return one number or text per row.

    Raises:
        RuntimeError: `E-ARR-TYPE` when text cannot be decoded, or a storage fault.
    """
    header, width = stored.header, stored.header.value_bytes
    data = read_blob(open_storage(stored.folder, access), stored.blob("", 0, stored.rows))
    if header.dtype in NPY_TEXT_TYPES:
        codec = "utf-32-be" if header.big_endian else "utf-32-le"
        codec = codec if header.dtype == TEXT else "utf-8"
        texts = (data[row * width : (row + 1) * width] for row in range(stored.rows))
        try:
            return [text.decode(codec).rstrip("\0") for text in texts]
        except ValueError as error:
            what, remedy = f"text that cannot be decoded ({error})", "save it as Unicode text"
            raise run_fault("E-ARR-TYPE", stored.where, what, remedy) from None
    import numpy  # late: the import takes 0.1 s

    dtype = numpy.dtype(header.dtype).newbyteorder(">" if header.big_endian else "<")
    values = numpy.frombuffer(data, dtype)
    return (values.astype("uint8") if header.dtype == "bool" else values).tolist()


def _check_array(stored: StoredArray, source: ArraySource, rows: int, name: str) -> None:
    """Check the type and the number of rows of an array; images have no name."""
    header, shape = stored.header, stored.header.shape
    has_items = shape and (header.item_bytes or not rows)
    code, what = "E-ARR-TYPE", ""
    if name and name not in source.tensors:
        is_label = name in (source.label, source.key)
        is_float = header.dtype == BFLOAT16 or (is_label and header.dtype.startswith("float"))
        if is_float or math.prod(shape[1:]) != 1:
            number = "whole number" if is_label else "number"
            what = f"{header.dtype} of shape {shape}, instead of one {number} or text per row"
            remedy = "convert it, or give labels that are not whole numbers as --feature_arrays"
    elif source.dtype is not None and header.dtype != source.dtype and not source.tensors:
        what = f"values of {header.dtype}, but --dtype is {source.dtype}"
        remedy = "remove --dtype, which is only for two-byte values without a type"
    elif header.dtype in NPY_TEXT_TYPES:
        what, remedy = "text", "name the image array with --image_array"
    elif not (has_items or source.one_sample_per_file):  # rows of 0 bytes could be endless
        what = f"no items with values along the first axis, its shape is {shape}"
        remedy = "give --one_sample_per_file if it is one sample, or save it again"
    if not what and stored.rows != rows:
        code, what = "E-ARR-COUNT", f"{stored.rows} rows, the images have {rows}"
        remedy = "give the array of these images"
    if what:
        raise run_fault(code, stored.where, what, remedy)


def _fault_of(fields: ArrayFields, item_bytes: int) -> Reason | None:
    """Return (code, detail) of a row that does not fit into an Example, else None."""
    if fields.label == "":
        return "E-SRC-LABEL", "its label is an empty text"
    for name, value in fields.features.items():
        if isinstance(value, float) and is_beyond_float32(value):
            return "E-ROW-TYPE", f"{name}: {value!r}, beyond float32"
    if item_bytes > MAX_EXAMPLE_BYTES:
        return "E-EX-TOO-LARGE", f"{item_bytes} bytes, the limit is {MAX_EXAMPLE_BYTES}"
    return None


def _find_file(root: str, sources: Mapping[str, ArraySource], access: Access) -> listing.ListedFile:
    return listing.ListedFile(root, find_uri(sources[root].uri, access)[1])


def _names_in(members: Collection[str], source: ArraySource, where: str) -> list[str]:
    """Return the names of an archive's image array and of its side arrays, in this order."""
    sides = [side for side in source.sides if not side.endswith(NPY)]
    others = [name for name in members if name not in sides]
    usual = [name for name in USUAL_NAMES if name in others]
    images = [source.image] if source.image else others if len(others) == 1 else usual
    if len(images) != 1 or not {*images, *sides}.issubset(members):
        wanted = ", ".join([source.image or "one array of images", *sides])
        what = f"it needs {wanted}; it has {', '.join([*members][:20]) or 'no arrays'}"
        raise run_fault("E-ARG", where, what, "correct the names, or give --image_array")
    return [*images, *sides]


@dataclass(eq=False)
class PlanArrays(beam.PTransform):
    """Pipeline root -> pieces of arrays, in any order; only headers are read.

    Attributes:
        sources: sources by root name.
        access: credentials and limits for stores.
    """

    sources: Mapping[str, ArraySource]
    access: Access

    def expand(self, root: beam.pvalue.PBegin) -> listing.SourcePieces:
        """List folders, read headers and divide arrays."""
        folders = {name: s.uri for name, s in self.sources.items() if not s.is_file}
        choose = functools.partial(choose_files, sources=self.sources)
        given = root | "Sources" >> beam.Create(sorted(self.sources.keys() - folders))
        found = given | "FindFiles" >> beam.Map(_find_file, self.sources, self.access)
        listed = root | "ListFiles" >> listing.ListFiles(folders, self.access, select=choose)
        pieces = (
            (found, listed.pieces)
            | "AllFiles" >> beam.Flatten()
            | "OpenFiles" >> beam.FlatMap(open_file, self.sources, self.access)
            | "GroupSources" >> beam.GroupBy(operator.attrgetter("root"))
            | "PlanPieces" >> beam.FlatMap(plan_pieces, self.sources, self.access)
        )
        return listing.SourcePieces(spread(pieces), listed.root_tallies)
