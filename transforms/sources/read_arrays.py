"""Samples from arrays: the items along the first axis, as ranges of their files."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from schemas.columns import is_beyond_float32
from schemas.example import MAX_EXAMPLE_BYTES
from schemas.faults import Rejected, fault_line
from schemas.fields import ArrayFields
from schemas.layouts.arrays import found_in
from schemas.samples import Blob, Sample, pack
from schemas.splits import Splitting
from schemas.tensors import BFLOAT16, HEAD_BYTES, NPY_TEXT_TYPES, TEXT, NpyHeader, parse_npy_header
from transforms.sources.elements import is_in_process
from transforms.sources.list_blobs import (
    HIDDEN,
    ListedFile,
    ListFiles,
    SourcePieces,
    is_file,
    is_folder,
    why_skipped,
)
from transforms.sources.read_blobs import (
    NPY,
    NPZ,
    SAVE_AGAIN,
    find_member,
    list_members,
    read_packed,
)
from transforms.sources.read_samples import Item, SplitSource
from transforms.storage import (
    DEFAULT_ACCESS,
    Access,
    Entry,
    find_uri,
    join_uri,
    open_storage,
    open_stored,
)

STAGE = "read_arrays"

MAX_PIECE_ROWS = 65_536

_MAX_PIECE_SIDE_BYTES = 16 << 20

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


class ArrayPiece(msgspec.Struct, frozen=True, array_like=True):
    """Some rows of an image array, and what belongs to them.

    Attributes:
        root: name of the root that its file is in.
        images: the array.
        key: of its only sample; empty where its rows are samples.
        prefix: of its rows' keys; the row's number follows.
        start: first row.
        rows: their number.
        position: of the first row among those of the source.
        sides: arrays that belong to it, by their names, and which of their rows is the first's.
    """

    root: str
    images: StoredArray
    key: str
    prefix: str
    start: int
    rows: int
    position: int
    sides: dict[str, tuple[StoredArray, int]]


class OpenedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a source, its headers read.

    Attributes:
        images: its image array.
        sides: of an archive, what belongs to it.
    """

    images: StoredArray
    sides: tuple[StoredArray, ...] = ()


@dataclass(frozen=True)
class ArrayReader:
    """Reads a piece of an array as the samples that its rows are.

    Attributes:
        splitting: which split a sample belongs to.
        labels: name of the label array by root.
        access: how stores are reached.
    """

    splitting: Splitting
    labels: Mapping[str, str]
    access: Access = DEFAULT_ACCESS

    def __call__(self, piece: ArrayPiece) -> Iterator[Item]:
        """Yield the samples of a piece, pinned, and what they hold."""
        label = self.labels.get(piece.root, "")
        values = {
            name: read_rows(side, start, piece.rows, self.access)
            for name, (side, start) in piece.sides.items()
        }
        header = piece.images.header
        shape = header.shape if piece.key else header.shape[1:]
        classes: dict[str, set[str]] = {}
        found: frozenset[str] = frozenset()  # the same of all rows
        for row in range(piece.rows):
            features = {name: column[row] for name, column in values.items()}
            given = _label(features.pop(label, None), piece, label)
            fields = ArrayFields(
                shape=shape,
                dtype=header.dtype,
                big_endian=header.big_endian,
                label=given,
                features=features,
            )
            key = piece.key or f"{piece.prefix}{piece.start + row}"
            texts = {name: str(value) for name, value in features.items()}
            split = self.splitting.split_for(piece.root, key, texts)
            if fault := _fault_of(fields):
                yield _rejected(piece, split, key, *fault)
                continue
            yield _sample(piece, row, split, key, fields)
            classes.setdefault(split, set()).update([given] if isinstance(given, str) else [])
            found = found or found_in(fields)
        for split, names in classes.items():
            yield SplitSource(split, class_names=sorted(names), found=sorted(found))


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
        own = [self.uri] if self.is_file else []
        beside = [self.side_uri(name) for name in self.sides] if self.uri.endswith(NPY) else []
        given = [self.label] if self.label.endswith(NPY) else []
        return [*dict.fromkeys([*own, *beside, *given])]

    def side_uri(self, name: str) -> str:
        """Return the URI of an array's `.npy` file next to the images."""
        return name if name.endswith(NPY) else join_uri(self.folder, f"{name}{NPY}")


def plan_pieces(
    root: str, files: Iterable[OpenedFile], source: ArraySource, access: Access = DEFAULT_ACCESS
) -> Iterator[ArrayPiece]:
    """Yield the pieces of a source's arrays, in the order of its files' names.

    Raises:
        RuntimeError: `E-ARR-COUNT` when labels or features are more or fewer than the images.
    """
    opened = sorted(files, key=lambda file: file.images.entry.name)
    _check_kinds(opened, source)
    lengths = [1 if source.one_sample_per_file else file.images.rows for file in opened]
    beside = _open_beside(opened, source, access)
    for side in beside.values():
        check_side(side, sum(lengths))
    position = 0
    for file, rows in zip(opened, lengths, strict=True):
        inside = [name for name in source.sides if name not in beside]
        own = dict(zip(inside, file.sides, strict=True))
        for side in own.values():
            check_side(side, rows)
        sides = {name: (side, 0) for name, side in own.items()}
        sides |= {name: (side, position) for name, side in beside.items()}
        yield from _pieces_of(root, file, source, position, sides)
        position += rows


def open_file(
    entry: Entry, source: ArraySource, access: Access = DEFAULT_ACCESS
) -> Iterator[OpenedFile]:
    """Yield the arrays of a source's file; none where it holds no image array.

    Raises:
        RuntimeError: `E-ARR-…` when it cannot be read, `E-ARG` when an array is not there, or a
            storage fault.
    """
    if not (source.is_file or _is_meant(entry, source.folder)):
        return
    if entry.name.endswith(NPY):
        stem = entry.name.removesuffix(NPY)
        beside = {source.side_uri(name) for name in source.sides}
        is_image = stem == source.image if source.image else True
        if source.is_file or (is_image and join_uri(source.folder, entry.name) not in beside):
            yield OpenedFile(_open_npy(source.folder, entry, source.dtype, access))
        return
    inside = [name for name in source.sides if not name.endswith(NPY)]
    names = list_members(open_storage(source.folder, access), entry)
    image = _image_of(names, source, join_uri(source.folder, entry.name))
    for name in inside:
        if name not in names:
            where = f"{join_uri(source.folder, entry.name)}:{name}"
            raise RuntimeError(
                fault_line("E-ARG", where, "no such array", "name one that is there")
            )
    found = [_open_member(source, entry, name, access) for name in (image, *inside)]
    yield OpenedFile(found[0], tuple(found[1:]))


def open_side(source: ArraySource, name: str, access: Access = DEFAULT_ACCESS) -> StoredArray:
    """Return an array that lies in a file of its own.

    Raises:
        RuntimeError: `E-ARG` when there is no such file, `E-ARR-…` when it cannot be read.
    """
    uri = source.side_uri(name)
    storage, entry = find_uri(uri, access)
    return _open_npy(storage.root, entry, source.dtype, access)


def read_rows(
    stored: StoredArray, start: int, rows: int, access: Access = DEFAULT_ACCESS
) -> list[int | float | str]:
    """Return values of an array of single values, numbers or text.

    Raises:
        RuntimeError: `E-ARR-TYPE` when text cannot be decoded, or a storage fault.
    """
    header = stored.header
    begin = header.start + start * header.item_bytes
    end = begin + rows * header.item_bytes
    storage = open_storage(stored.folder, access)
    if stored.packed:
        data = read_packed(storage, stored.entry, stored.packed, (begin, end))
    else:
        with open_stored(storage, stored.entry, 1) as file:
            file.seek(begin)
            data = file.read(end - begin)
    try:
        return _values(header, data, rows)
    except ValueError as error:
        raise _type_fault(stored.where, f"text that cannot be decoded ({error})") from None


def check_side(side: StoredArray, rows: int) -> None:
    """Refuse an array that is not one value for each of so many rows.

    Raises:
        RuntimeError: `E-ARR-TYPE` or `E-ARR-COUNT`.
    """
    shape = side.header.shape
    if side.header.dtype == BFLOAT16 or math.prod(shape[1:]) != 1:
        what = f"{side.header.dtype} of shape {shape}, and not one number or text a row"
        raise _type_fault(side.where, what)
    if side.rows != rows:
        what = f"{side.rows} rows, the images have {rows}"
        remedy = "give the array that belongs to them"
        raise RuntimeError(fault_line("E-ARR-COUNT", side.where, what, remedy))


def is_read(file: ListedFile) -> bool:
    """Return whether a listed file is one of arrays, by its name."""
    name = file.entry.name
    return is_file(file) and name.endswith((NPY, NPZ)) and why_skipped(name) != HIDDEN


def _pieces_of(
    root: str,
    file: OpenedFile,
    source: ArraySource,
    position: int,
    sides: dict[str, tuple[StoredArray, int]],
) -> Iterator[ArrayPiece]:
    name = file.images.entry.name
    key = name if source.one_sample_per_file else ""
    is_alone = source.is_file or (source.image and name.endswith(NPY))
    rows = 1 if key else file.images.rows
    widest = max([side.header.item_bytes for side, _ in sides.values()], default=0)
    at_once = max(1, min(MAX_PIECE_ROWS, _MAX_PIECE_SIDE_BYTES // max(widest, 1)))
    for start in range(0, rows, at_once):
        yield ArrayPiece(
            root=root,
            images=file.images,
            key=key,
            prefix="" if is_alone else f"{name}:",
            start=start,
            rows=min(at_once, rows - start),
            position=position + start,
            sides={name: (side, first + start) for name, (side, first) in sides.items()},
        )


def _open_beside(
    opened: list[OpenedFile], source: ArraySource, access: Access
) -> dict[str, StoredArray]:
    """Return the arrays that lie in files of their own, for all rows of all files."""
    in_files = all(file.images.entry.name.endswith(NPY) for file in opened)
    names = [name for name in source.sides if in_files or name.endswith(NPY)]
    return {name: open_side(source, name, access) for name in names} if opened else {}


def _check_kinds(opened: list[OpenedFile], source: ArraySource) -> None:
    kinds = {file.images.entry.name.rpartition(".")[2] for file in opened}
    if len(kinds) > 1:
        what = "it holds both .npy and .npz files"
        raise RuntimeError(fault_line("E-ARG", source.uri, what, "give a folder of one kind"))
    for file in opened:
        if fault := _fault_of_images(file.images, source):
            what, remedy = fault
            raise RuntimeError(fault_line("E-ARR-TYPE", file.images.where, what, remedy))


def _fault_of_images(images: StoredArray, source: ArraySource) -> tuple[str, str] | None:
    """Return what is wrong with an image array, and what to do."""
    header = images.header
    if source.dtype is not None and header.dtype != source.dtype:
        what = f"values of {header.dtype}, and --dtype {source.dtype}"
        return what, "leave --dtype out: it says what two bytes without a type are"
    if header.dtype in NPY_TEXT_TYPES:
        return "text", "name the image array with --image_array"
    if source.one_sample_per_file:
        return None
    if not header.shape:
        what = "an array of no axes, and so of no items"
        return what, "give --one_sample_per_file if it is one"
    if images.rows and not header.item_bytes:  # a header of a few bytes may name any number of rows
        return f"items of no values, its shape is {header.shape}", "save it again"
    return None


def _sample(
    piece: ArrayPiece, row: int, split: str, key: str, fields: ArrayFields
) -> Sample | Rejected:
    entry, header = piece.images.entry, piece.images.header
    item_bytes = header.end - header.start if piece.key else header.item_bytes
    if item_bytes > MAX_EXAMPLE_BYTES:
        detail = f"{item_bytes} bytes, the limit is {MAX_EXAMPLE_BYTES}"
        return _rejected(piece, split, key, "E-EX-TOO-LARGE", detail)
    blob = Blob(
        piece.root,
        entry.name,
        entry.size_bytes,
        entry.pin,
        entry.crc32c,
        header.start + (piece.start + row) * item_bytes,
        item_bytes,
        piece.images.packed,
    )
    return Sample(split, key, piece.position + row, (blob,), pack(fields))


def _rejected(piece: ArrayPiece, split: str, key: str, code: str, detail: str) -> Rejected:
    name = piece.images.entry.name
    return Rejected(code=code, stage=STAGE, split=split, key=key, file_name=name, detail=detail)


def _fault_of(fields: ArrayFields) -> tuple[str, str] | None:
    """Return (code, detail) of a row whose label or features no Example can hold."""
    if fields.label == "":
        return "E-SRC-LABEL", "its label is an empty text"
    for name, value in fields.features.items():
        if isinstance(value, float) and is_beyond_float32(value):
            return "E-ROW-TYPE", f"{name}: {value!r}, beyond float32"
    return None


def _label(value: int | float | str | None, piece: ArrayPiece, name: str) -> int | str | None:
    if isinstance(value, float):
        what = f"a label of {value}, and not a whole number or text"
        remedy = "convert it, or name it with --feature_arrays"
        raise RuntimeError(fault_line("E-ARR-TYPE", piece.sides[name][0].where, what, remedy))
    return value


def _find_file(
    root: str, sources: Mapping[str, ArraySource], access: Access
) -> Iterator[ListedFile]:
    if sources[root].is_file:
        _, entry = find_uri(sources[root].uri, access)
        yield ListedFile(root, entry)


def _open_file(
    file: ListedFile, sources: Mapping[str, ArraySource], access: Access
) -> list[tuple[str, OpenedFile]]:
    found = open_file(file.entry, sources[file.root], access)
    return [(file.root, opened) for opened in found]


def _plan_pieces(
    group: tuple[str, Iterable[OpenedFile]], sources: Mapping[str, ArraySource], access: Access
) -> Iterator[ArrayPiece]:
    root, files = group
    return plan_pieces(root, files, sources[root], access)


def _is_meant(entry: Entry, folder: str) -> bool:
    """Return whether what a folder holds is meant as a file of arrays, by its name.

    Raises:
        RuntimeError: when it is, and cannot be read as one: none may be missed.
    """
    name = entry.name
    if entry.kind == "directory" or why_skipped(name) == HIDDEN:
        return False
    if not (is_folder(entry) or name.lower().endswith((NPY, NPZ))):
        return False
    if entry.kind != "file":
        what, remedy = f"a {entry.kind}", "take it out of the folder, or mend it"
        raise RuntimeError(fault_line("E-ARR-HEADER", join_uri(folder, name), what, remedy))
    if not name.endswith((NPY, NPZ)):
        what, remedy = "its name does not end in .npy or .npz, in small letters", "rename it"
        raise RuntimeError(fault_line("E-ARG", join_uri(folder, name), what, remedy))
    return True


def _image_of(names: Sequence[str], source: ArraySource, where: str) -> str:
    """Return the name of an archive's image array."""
    wanted = [source.image] if source.image else []
    others = [name for name in names if name not in source.sides]
    wanted = wanted or (others if len(others) == 1 else [n for n in USUAL_NAMES if n in others])
    if len(wanted) != 1 or wanted[0] not in names:
        what = f"{'no' if source.image else 'no one'} array {source.image or 'of images'} among"
        what = f"{what} {', '.join(names[:20]) or 'none'}"
        raise RuntimeError(fault_line("E-ARG", where, what, "name it with --image_array"))
    return wanted[0]


def _open_npy(folder: str, entry: Entry, dtype: str | None, access: Access) -> StoredArray:
    with open_stored(open_storage(folder, access), entry, 1) as file:
        head = file.read(HEAD_BYTES)
    where = join_uri(folder, entry.name)
    return StoredArray(folder, entry, _header(head, entry.size_bytes, dtype, where))


def _open_member(source: ArraySource, entry: Entry, name: str, access: Access) -> StoredArray:
    where = f"{join_uri(source.folder, entry.name)}:{name}"
    storage = open_storage(source.folder, access)
    member = find_member(storage, entry, name)
    header = _header(member.head, member.end - member.start, source.dtype, where)
    if member.packed and header.end != member.end:  # all of which would be unpacked
        what = f"{member.end} bytes unpacked, its header says {header.end}"
        raise RuntimeError(fault_line("E-ARR-HEADER", where, what, SAVE_AGAIN))
    moved = msgspec.structs.replace(header, start=header.start + member.start)
    return StoredArray(source.folder, entry, moved, member.packed)


def _header(head: bytes, size_bytes: int, dtype: str | None, where: str) -> NpyHeader:
    try:
        header = parse_npy_header(head, dtype)
    except ValueError as error:
        what, _, remedy = str(error).rpartition(": ")
        code = "E-ARR-HEADER" if what.startswith("a .npy file") else "E-ARR-TYPE"
        raise RuntimeError(fault_line(code, where, what, remedy)) from None
    if header.end > size_bytes:
        what = f"{size_bytes} bytes, its header says {header.end}"
        raise RuntimeError(fault_line("E-ARR-HEADER", where, what, "copy the file again"))
    return header


def _values(header: NpyHeader, data: bytes, rows: int) -> list[int | float | str]:
    import numpy  # which costs a tenth of a second

    if header.dtype in NPY_TEXT_TYPES:
        width, codec = header.value_bytes, "utf-8"
        if header.dtype == TEXT:
            codec = "utf-32-be" if header.big_endian else "utf-32-le"
        texts = (data[row * width : (row + 1) * width] for row in range(rows))
        return [text.decode(codec).rstrip("\0") for text in texts]
    values = numpy.frombuffer(data, header.dtype)
    if header.big_endian:
        values = values.view(values.dtype.newbyteorder(">"))
    return (values.astype("uint8") if header.dtype == "bool" else values).tolist()


def _type_fault(where: str, what: str) -> RuntimeError:
    remedy = "convert it, one number or text a row"
    return RuntimeError(fault_line("E-ARR-TYPE", where, what, remedy))


@dataclass(eq=False)
class PlanArrays(beam.PTransform):
    """Root -> the pieces of sources' arrays, in any order; only headers are read.

    Attributes:
        sources: by the name of the root that each is.
        access: how stores are reached.
    """

    sources: Mapping[str, ArraySource]
    access: Access = DEFAULT_ACCESS

    def expand(self, root: beam.pvalue.PBegin) -> SourcePieces:
        """List folders, open files and divide arrays."""
        folders = {name: s.uri for name, s in self.sources.items() if not s.is_file}
        files = (
            root
            | "Sources" >> beam.Create(sorted(self.sources))
            | "FindFiles" >> beam.FlatMap(_find_file, self.sources, self.access)
        )
        tallies = None
        if folders:
            listed = root | "ListFiles" >> ListFiles(folders, self.access, is_read=is_read)
            tallies = listed.tallies
            files = (files, listed.files) | "AllFiles" >> beam.Flatten()
        if not is_in_process(root.pipeline):
            files |= "SpreadFiles" >> beam.Reshuffle()
        pieces = (
            files
            | "OpenFiles" >> beam.FlatMap(_open_file, self.sources, self.access)
            | "GroupSources" >> beam.GroupByKey()
            | "PlanPieces" >> beam.FlatMap(_plan_pieces, self.sources, self.access)
        )
        if not is_in_process(root.pipeline):
            pieces |= "SpreadPieces" >> beam.Reshuffle()
        return SourcePieces(pieces, tallies)
