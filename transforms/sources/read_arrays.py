"""Samples from arrays: the items along the first axis, as ranges of their files."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
import msgspec

from schemas.columns import is_beyond_float32
from schemas.example import MAX_EXAMPLE_BYTES
from schemas.faults import Rejected, fault_line
from schemas.fields import ArrayFields
from schemas.layouts.arrays import found_in
from schemas.samples import Blob, Sample, pack
from schemas.splits import Splitting
from schemas.tensors import NPY_TEXT_TYPES
from transforms import coders
from transforms.batches import is_in_process
from transforms.blobs import PinTally
from transforms.sources.array_files import (
    ArraySource,
    OpenedFile,
    StoredArray,
    check_side,
    is_read,
    open_file,
    open_side,
    read_rows,
)
from transforms.sources.listed_files import ListedFile, ListFiles
from transforms.sources.npz import NPY
from transforms.sources.split_sources import Item, SourceNote
from transforms.storage import DEFAULT_ACCESS, Access, find_uri

STAGE = "read_arrays"
MAX_PIECE_ROWS = 65_536
_MAX_PIECE_SIDE_BYTES = 16 << 20


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


coders.register(ArrayPiece, OpenedFile)


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
            yield SourceNote(split, frozenset(names), found)


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
        header = file.images.header
        if source.dtype is not None and header.dtype != source.dtype:
            what = f"values of {header.dtype}, and --dtype {source.dtype}"
            remedy = "leave --dtype out: it says what two bytes without a type are"
            raise RuntimeError(fault_line("E-ARR-TYPE", file.images.where, what, remedy))
        if header.dtype in NPY_TEXT_TYPES:
            remedy = "name the image array with --image_array"
            raise RuntimeError(fault_line("E-ARR-TYPE", file.images.where, "text", remedy))
        if not header.shape and not source.one_sample_per_file:
            what = "an array of no axes, and so of no items"
            remedy = "give --one_sample_per_file if it is one"
            raise RuntimeError(fault_line("E-ARR-TYPE", file.images.where, what, remedy))
        # A header of a few bytes may tell of any number of them.
        if file.images.rows and not header.item_bytes and not source.one_sample_per_file:
            what, remedy = f"items of no values, its shape is {header.shape}", "save it again"
            raise RuntimeError(fault_line("E-ARR-TYPE", file.images.where, what, remedy))


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


class PlannedArrays(NamedTuple):
    """What `PlanArrays` returns.

    Attributes:
        pieces: of all sources' arrays.
        tallies: the digest of every folder's listing; None where all sources are files.
    """

    pieces: beam.PCollection[ArrayPiece]
    tallies: beam.PCollection[tuple[str, PinTally]] | None


@dataclass(eq=False)
class PlanArrays(beam.PTransform):
    """Root -> the pieces of sources' arrays, in any order; only headers are read.

    Attributes:
        sources: by the name of the root that each is.
        access: how stores are reached.
    """

    sources: Mapping[str, ArraySource]
    access: Access = DEFAULT_ACCESS

    def expand(self, root: beam.pvalue.PBegin) -> PlannedArrays:
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
        return PlannedArrays(pieces, tallies)


def _find_file(
    root: str, sources: Mapping[str, ArraySource], access: Access
) -> Iterator[ListedFile]:
    if sources[root].is_file:
        _, entry = find_uri(sources[root].uri, access)
        yield ListedFile(root, entry)


def _open_file(
    file: ListedFile, sources: Mapping[str, ArraySource], access: Access
) -> Iterator[tuple[str, OpenedFile]]:
    for opened in open_file(file.entry, sources[file.root], access):
        yield file.root, opened


def _plan_pieces(
    group: tuple[str, Iterable[OpenedFile]], sources: Mapping[str, ArraySource], access: Access
) -> Iterator[ArrayPiece]:
    root, files = group
    yield from plan_pieces(root, files, sources[root], access)
