"""Samples from arrays: the items along the first axis, as ranges of their files."""

import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.columns import is_beyond_float32
from beam_tfrec.schemas.example import MAX_EXAMPLE_BYTES
from beam_tfrec.schemas.faults import Rejected, fault_line
from beam_tfrec.schemas.fields import ArrayFields
from beam_tfrec.schemas.layouts.arrays import found_in
from beam_tfrec.schemas.samples import Blob, Sample, pack
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.schemas.tensors import (
    BFLOAT16,
    HEAD_BYTES,
    NPY_TEXT_TYPES,
    TEXT,
    NpyHeader,
    parse_npy_header,
)
from beam_tfrec.transforms.shuffle.elements import is_in_process
from beam_tfrec.transforms.sources.list_blobs import (
    HIDDEN,
    ListedFile,
    ListFiles,
    SourcePieces,
    is_file,
    is_folder,
    why_skipped,
)
from beam_tfrec.transforms.sources.read_blobs import (
    NPY,
    NPZ,
    UNPACKED,
    Member,
    read_blob,
    read_members,
)
from beam_tfrec.transforms.sources.read_samples import Item, SplitSource
from beam_tfrec.transforms.storage import (
    Access,
    Entry,
    Storage,
    find_uri,
    join_uri,
    open_storage,
    open_stored,
)

STAGE = "read_arrays"

MAX_PIECE_ROWS = 16_384
MAX_PIECE_SIDE_BYTES = 16 << 20

USUAL_NAMES = ("x", "images", "image")
"""Names of image arrays, where an archive has several arrays and none is asked for."""


class StoredArray(msgspec.Struct, frozen=True, array_like=True):
    """An array and where it lies.

    Attributes:
        folder: URI of the folder that its file is in.
        entry: its file, as listed.
        header: of the array; where its values lie in the file or, if packed, in the member.
        packed: name of the compressed member that it is; empty for none.
    """

    folder: str
    entry: Entry
    header: NpyHeader
    packed: str = ""

    @property
    def rows(self) -> int:
        """The length of its first axis; one value alone is one row."""
        return self.header.shape[0] if self.header.shape else 1

    @property
    def where(self) -> str:
        """The name of the file, and of the member in it, for messages."""
        where = join_uri(self.folder, self.entry.name)
        return f"{where}:{self.packed}" if self.packed else where

    def part(self, start: int, rows: int) -> "StoredArray":
        """Return the array of some of its rows, at most so many."""
        shape = (min(rows, self.rows - start), *self.header.shape[1:])
        begin = self.header.start + start * self.header.item_bytes
        header = msgspec.structs.replace(self.header, start=begin, shape=shape)
        return msgspec.structs.replace(self, header=header)

    def blob(self, root: str, row: int, rows: int = 1) -> Blob:
        """Return some of its rows as a blob of a root."""
        file, item_bytes = self.entry, self.header.item_bytes
        place = (self.header.start + row * item_bytes, rows * item_bytes, self.packed)
        return Blob(root, file.name, file.size_bytes, file.pin, file.crc32c, *place)


class ArrayPiece(msgspec.Struct, frozen=True, array_like=True):
    """Some rows of an image array, and what belongs to them; before planning, all of a file.

    Attributes:
        root: name of the root that its file is in.
        images: the rows; a file that is one sample is one row.
        prefix: of the rows' keys, whose numbers follow; the whole key of such a file.
        sides: the rows of arrays that belong to it, by their names.
        start: number of the first row in the file.
        position: of the first row among those of the source.
    """

    root: str
    images: StoredArray
    prefix: str
    sides: dict[str, StoredArray]
    start: int = 0
    position: int = 0


@dataclass(frozen=True)
class ArrayReader:
    """Reads a piece of an array as the samples that its rows are.

    Attributes:
        splitting: which split a sample belongs to.
        sources: by root.
        access: how stores are reached.
    """

    splitting: Splitting
    sources: Mapping[str, "ArraySource"]
    access: Access

    def __call__(self, piece: ArrayPiece) -> Iterator[Item]:
        """Yield the samples of a piece, pinned, and what they hold."""
        source = self.sources[piece.root]
        UNPACKED.enter(self.access.spool_dir)
        try:
            values = {name: read_rows(side, self.access) for name, side in piece.sides.items()}
        finally:
            UNPACKED.leave()
        images, header = piece.images, piece.images.header
        classes: dict[str, set[str]] = {}
        found: frozenset[str] = frozenset()  # the same of all rows
        for row in range(images.rows):
            features: dict[str, Any] = {name: column[row] for name, column in values.items()}
            fields = ArrayFields(
                shape=header.shape[1:],
                dtype=header.dtype,
                big_endian=header.big_endian,
                label=features.pop(source.label, None),
                features=features,
            )
            key = f"{piece.prefix}{'' if source.one_sample_per_file else piece.start + row}"
            texts = {name: str(value) for name, value in features.items()}
            split = self.splitting.split_for(piece.root, key, texts)
            if fault := _fault_of(fields, header.item_bytes):
                code, detail = fault
                yield Rejected(
                    code=code,
                    stage=STAGE,
                    split=split,
                    key=key,
                    file_name=images.entry.name,
                    detail=detail,
                )
                continue
            names = [fields.label] if isinstance(fields.label, str) else []
            classes.setdefault(split, set()).update(names)
            found = found or found_in(fields)
            blobs = (images.blob(piece.root, row),)
            yield Sample(split, key, piece.position + row, blobs, pack(fields))
        for split, of_split in classes.items():
            yield SplitSource(split, class_names=sorted(of_split), found=sorted(found))


@dataclass(frozen=True)
class ArraySource:
    """Where the arrays of a split lie.

    Attributes:
        uri: of a `.npy` or `.npz` file, or of a folder of them.
        image: name of the image array; empty for the only one, or one of `USUAL_NAMES`.
        label: name of the label array, or URI of its `.npy` file; empty for none.
        features: names of other arrays.
        dtype: what values of two bytes without a type are; None for no such values.
        one_sample_per_file: each file of a folder is a sample, and not an array of several.
    """

    uri: str
    image: str = ""
    label: str = ""
    features: tuple[str, ...] = ()
    dtype: str | None = None
    one_sample_per_file: bool = False

    @property
    def is_file(self) -> bool:
        """Whether it is one file."""
        return self.uri.endswith((NPY, NPZ))

    @property
    def folder(self) -> str:
        """URI of the folder that the names of its files are relative to."""
        return self.uri.rpartition("/")[0] or "." if self.is_file else self.uri

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of what belongs to the image array, its label first."""
        return (*filter(None, [self.label]), *self.features)

    @property
    def files(self) -> list[str]:
        """URIs of single files that it is known to be read from."""
        all_apart = self.uri.endswith(NPY)
        apart = [self.side_uri(n) for n in self.sides if all_apart or n.endswith(NPY)]
        return [*dict.fromkeys([self.uri, *apart] if self.is_file else apart)]

    def side_uri(self, name: str) -> str:
        """Return the URI of an array's `.npy` file next to the images."""
        return name if name.endswith(NPY) else join_uri(self.folder, f"{name}{NPY}")


def open_file(
    file: ListedFile, sources: Mapping[str, ArraySource], access: Access
) -> Iterator[ArrayPiece]:
    """Yield a source's file as one piece with the arrays inside; none if it holds no images.

    Raises:
        RuntimeError: `E-ARR-…` when it cannot be read, `E-ARG` when an array is not there, or a
            storage fault.
    """
    source, entry = sources[file.root], file.entry
    name = entry.name
    if not (source.is_file or _is_meant(file, source.folder)):
        return
    where = join_uri(source.folder, name)
    sides: dict[str, StoredArray] = {}
    if name.endswith(NPY):
        apart = {source.side_uri(side) for side in source.sides}
        is_image = not source.image or name.removesuffix(NPY) == source.image
        if not source.is_file and (where in apart or not is_image):
            return
        images = _open_npy(source, open_storage(source.folder, access), entry)
    else:
        members = read_members(open_storage(source.folder, access), entry)
        names = _names_in(members, source, where)
        sides = {n: _array_of(source, source.folder, entry, members[n], n) for n in names}
        images = sides.pop(names[0])
    prefix = "" if source.is_file or (source.image and name.endswith(NPY)) else f"{name}:"
    if source.one_sample_per_file:
        shape = (1, *images.header.shape)
        header = msgspec.structs.replace(images.header, shape=shape)
        images, prefix = msgspec.structs.replace(images, header=header), name
    yield ArrayPiece(file.root, images, prefix, sides)


def plan_pieces(
    group: tuple[str, Iterable[ArrayPiece]],
    sources: Mapping[str, ArraySource],
    access: Access,
) -> Iterator[ArrayPiece]:
    """Yield the pieces of a source's files, in the order of their names.

    Raises:
        RuntimeError: `E-ARR-COUNT` when labels or features are more or fewer than the images,
            `E-ARG` when there is no such file, another `E-ARR-…` when it cannot be read.
    """
    source = sources[group[0]]
    files = sorted(group[1], key=lambda file: file.images.entry.name)
    if len({file.images.entry.name.rpartition(".")[2] for file in files}) > 1:
        what = "it holds both .npy and .npz files"
        raise RuntimeError(fault_line("E-ARG", source.uri, what, "give a folder of one kind"))
    for file in files:
        _check_images(file.images, source)
    apart: dict[str, StoredArray] = {}
    for name in source.sides if files else ():
        if name not in files[0].sides:
            storage, entry = find_uri(source.side_uri(name), access)
            apart[name] = _open_npy(source, storage, entry)
            _check_side(source, name, apart[name], sum(file.images.rows for file in files))
    position = 0
    for file in files:
        rows = file.images.rows
        for name, side in file.sides.items():
            _check_side(source, name, side, rows)
        sides = file.sides | {name: side.part(position, rows) for name, side in apart.items()}
        widest = max((side.header.item_bytes for side in sides.values()), default=0)
        at_once = max(1, min(MAX_PIECE_ROWS, MAX_PIECE_SIDE_BYTES // max(widest, 1)))
        for start in range(0, rows, at_once):
            yield msgspec.structs.replace(
                file,
                images=file.images.part(start, at_once),
                sides={name: side.part(start, at_once) for name, side in sides.items()},
                start=start,
                position=position + start,
            )
        position += rows


def read_rows(stored: StoredArray, access: Access) -> list[int | float | str]:
    """Return the values of an array of single values, numbers or text.

    Raises:
        RuntimeError: `E-ARR-TYPE` when text cannot be decoded, or a storage fault.
    """
    header, width = stored.header, stored.header.value_bytes
    blob = stored.blob("", 0, stored.rows)
    data = read_blob(open_storage(stored.folder, access), blob)
    if header.dtype in NPY_TEXT_TYPES:
        codec = "utf-32-be" if header.big_endian else "utf-32-le"
        codec = codec if header.dtype == TEXT else "utf-8"
        texts = (data[row * width : (row + 1) * width] for row in range(stored.rows))
        try:
            return [text.decode(codec).rstrip("\0") for text in texts]
        except ValueError as error:
            what, remedy = f"text that cannot be decoded ({error})", "convert it"
            raise RuntimeError(fault_line("E-ARR-TYPE", stored.where, what, remedy)) from None
    import numpy  # which costs a tenth of a second

    dtype = numpy.dtype(header.dtype).newbyteorder(">" if header.big_endian else "<")
    values = numpy.frombuffer(data, dtype)
    return (values.astype("uint8") if header.dtype == "bool" else values).tolist()


def is_read(file: ListedFile) -> bool:
    """Return whether a listed file is one of arrays, by its name."""
    name = file.entry.name
    return is_file(file) and name.endswith((NPY, NPZ)) and why_skipped(name) != HIDDEN


def _check_side(source: ArraySource, name: str, side: StoredArray, rows: int) -> None:
    """Refuse an array that is not one value for each of so many rows.

    Raises:
        RuntimeError: `E-ARR-TYPE` or `E-ARR-COUNT`.
    """
    dtype, shape = side.header.dtype, side.header.shape
    number = "whole number" if name == source.label else "number"
    is_real_label = name == source.label and dtype.startswith("float")
    if dtype == BFLOAT16 or math.prod(shape[1:]) != 1 or is_real_label:
        what = f"{dtype} of shape {shape}, and not one {number} or text a row"
        remedy = "convert it, or give labels that are no whole numbers as --feature_arrays"
        raise RuntimeError(fault_line("E-ARR-TYPE", side.where, what, remedy))
    if side.rows != rows:
        what = f"{side.rows} rows, the images have {rows}"
        remedy = "give the array that belongs to them"
        raise RuntimeError(fault_line("E-ARR-COUNT", side.where, what, remedy))


def _check_images(images: StoredArray, source: ArraySource) -> None:
    """Refuse an array that holds no images.

    Raises:
        RuntimeError: `E-ARR-TYPE`.
    """
    header = images.header
    has_items = header.shape and (header.item_bytes or not images.rows)
    if source.dtype is not None and header.dtype != source.dtype:
        what = f"values of {header.dtype}, and --dtype {source.dtype}"
        remedy = "leave --dtype out: it says what two bytes without a type are"
    elif header.dtype in NPY_TEXT_TYPES:
        what, remedy = "text", "name the image array with --image_array"
    elif not (has_items or source.one_sample_per_file):  # a short header may name endless rows
        what = f"no items with values along a first axis, its shape is {header.shape}"
        remedy = "give --one_sample_per_file if it is one sample, or save it again"
    else:
        return
    raise RuntimeError(fault_line("E-ARR-TYPE", images.where, what, remedy))


def _fault_of(fields: ArrayFields, item_bytes: int) -> tuple[str, str] | None:
    """Return (code, detail) of a row that no Example can hold."""
    if fields.label == "":
        return "E-SRC-LABEL", "its label is an empty text"
    for name, value in fields.features.items():
        if isinstance(value, float) and is_beyond_float32(value):
            return "E-ROW-TYPE", f"{name}: {value!r}, beyond float32"
    if item_bytes > MAX_EXAMPLE_BYTES:
        return "E-EX-TOO-LARGE", f"{item_bytes} bytes, the limit is {MAX_EXAMPLE_BYTES}"
    return None


def _find_file(root: str, sources: Mapping[str, ArraySource], access: Access) -> ListedFile:
    return ListedFile(root, find_uri(sources[root].uri, access)[1])


def _is_meant(file: ListedFile, folder: str) -> bool:
    """Return whether what a folder holds is meant as a file of arrays, by its name.

    Raises:
        RuntimeError: when it is, and cannot be read as one: none may be missed.
    """
    entry, name = file.entry, file.entry.name
    is_called = is_folder(entry) or name.lower().endswith((NPY, NPZ))
    if is_read(file) or entry.kind == "directory" or why_skipped(name) == HIDDEN or not is_called:
        return is_read(file)
    what = f"a {entry.kind}, not a file that ends in .npy or .npz, in small letters"
    where, remedy = join_uri(folder, name), "rename it, mend it, or take it out of the folder"
    raise RuntimeError(fault_line("E-ARR-HEADER", where, what, remedy))


def _names_in(members: Collection[str], source: ArraySource, where: str) -> list[str]:
    """Return the names of the image array in an archive, and of those that belong to it."""
    sides = [side for side in source.sides if not side.endswith(NPY)]
    others = [name for name in members if name not in sides]
    usual = [name for name in USUAL_NAMES if name in others]
    images = [source.image] if source.image else others if len(others) == 1 else usual
    if len(images) != 1 or not {*images, *sides}.issubset(members):
        wanted = ", ".join([source.image or "one of images", *sides])
        what = f"wanted are the arrays {wanted}, it has {', '.join([*members][:20]) or 'none'}"
        remedy = "name them with --image_array and --label_array"
        raise RuntimeError(fault_line("E-ARG", where, what, remedy))
    return [*images, *sides]


def _open_npy(source: ArraySource, storage: Storage, entry: Entry) -> StoredArray:
    with open_stored(storage, entry, 1) as file:
        member = Member("", 0, entry.size_bytes, file.read(HEAD_BYTES))
    return _array_of(source, storage.root, entry, member)


def _array_of(
    source: ArraySource, folder: str, entry: Entry, member: Member, name: str = ""
) -> StoredArray:
    """Return the array of a file, or of the named member of an archive."""
    where = join_uri(folder, entry.name) + (f":{name}" if name else "")
    try:
        header = parse_npy_header(member.head, source.dtype)
    except ValueError as error:
        what, _, remedy = str(error).rpartition(": ")
        code = "E-ARR-HEADER" if what.startswith("a .npy file") else "E-ARR-TYPE"
        raise RuntimeError(fault_line(code, where, what, remedy)) from None
    size_bytes = member.end - member.start
    # All of a packed member would be unpacked.
    if header.end > size_bytes or (member.packed and header.end != size_bytes):
        what = f"{size_bytes} bytes, its header says {header.end}"
        remedy = "copy the file again, or save it again"
        raise RuntimeError(fault_line("E-ARR-HEADER", where, what, remedy))
    moved = msgspec.structs.replace(header, start=header.start + member.start)
    return StoredArray(folder, entry, moved, member.packed)


@dataclass(eq=False)
class PlanArrays(beam.PTransform):
    """Root -> the pieces of sources' arrays, in any order; only headers are read.

    Attributes:
        sources: by the name of the root that each is.
        access: how stores are reached.
    """

    sources: Mapping[str, ArraySource]
    access: Access

    def expand(self, root: beam.pvalue.PBegin) -> SourcePieces:
        """List folders, open files and divide arrays."""
        folders = {name: s.uri for name, s in self.sources.items() if not s.is_file}
        files = (
            root
            | "Sources" >> beam.Create(sorted(self.sources.keys() - folders))
            | "FindFiles" >> beam.Map(_find_file, self.sources, self.access)
        )
        tallies = None
        if folders:
            listed = root | "ListFiles" >> ListFiles(folders, self.access, is_read=is_read)
            tallies = listed.tallies
            files = (files, listed.pieces) | "AllFiles" >> beam.Flatten()
        pieces = (
            files
            | "OpenFiles" >> beam.FlatMap(open_file, self.sources, self.access)
            | "BySource" >> beam.WithKeys(operator.attrgetter("root"))
            | "GroupSources" >> beam.GroupByKey()
            | "PlanPieces" >> beam.FlatMap(plan_pieces, self.sources, self.access)
        )
        if not is_in_process(root.pipeline):
            pieces |= "SpreadPieces" >> beam.Reshuffle()
        return SourcePieces(pieces, tallies)
