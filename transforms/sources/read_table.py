"""Samples from the rows of tables, with what is seen of their columns."""

import functools
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import apache_beam as beam

from beam_tfrec.schemas.annotations.coco_file import blob_name
from beam_tfrec.schemas.columns import (
    BIG_INT,
    TEXT,
    Cell,
    ColumnFacts,
    format_of,
    kind_of_text,
    kind_of_value,
    matches,
    text_of,
)
from beam_tfrec.schemas.faults import Rejected, fault_line
from beam_tfrec.schemas.fields import fields_of_row, labels_of
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.shuffle.elements import is_in_process
from beam_tfrec.transforms.sources.list_blobs import (
    HIDDEN,
    ListedFile,
    ListFiles,
    SourcePieces,
    why_skipped,
)
from beam_tfrec.transforms.sources.read_samples import Item, SplitSource
from beam_tfrec.transforms.sources.table_rows import (
    DEFAULT_MAX_CELL_BYTES,
    BadRow,
    OpenTable,
    Row,
    TableFile,
    divide_file,
    open_table,
)
from beam_tfrec.transforms.storage import Access, find_uri, is_local, split_uri

STAGE = "read_table"

_ROW_BITS = 40  # of a position: a trillion rows a file, eight million files


@dataclass(frozen=True)
class TableReader:
    """Reads a piece of a table as the samples of its rows.

    Attributes:
        splitting: which split a row belongs to.
        access: how stores are reached.
        image_column: names each row's image; empty for none.
        image_roots: URI per given split that images lie below.
        label_columns: name each row's classes.
        key_column: gives the rows' keys; empty for their numbers.
        sequence_columns: whose lists are steps, and may hold lists.
        max_cell_bytes: a row with a larger cell is rejected.
    """

    splitting: Splitting
    access: Access
    image_column: str = ""
    image_roots: Mapping[str, str] = field(default_factory=dict)
    label_columns: tuple[str, ...] = ()
    key_column: str = ""
    sequence_columns: tuple[str, ...] = ()
    max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES

    def __call__(self, file: TableFile) -> Iterator[Item]:
        """Yield the sample of every row, or why there is none, and what its columns hold.

        Raises:
            RuntimeError: `E-TAB-HEADER` when a column is not there that an option names,
                `E-SRC-SPLIT` when a row does not say its split.
        """
        if not file.format:
            split = self.splitting.split_of_other(file.split, file.entry.name)
            yield SplitSource(split, listed=1, skipped={"not_called_a_table": 1})
            return
        table = open_table(file, self.access, self.max_cell_bytes)
        wanted = {self.image_column, self.key_column, *self.splitting.fields.values()}
        missing = wanted.union(self.label_columns).difference(table.columns, {""})
        if table.columns and missing:
            what = f"has no column {min(missing)!r}"
            remedy = f"name one of {', '.join(table.columns[:20])}"
            raise RuntimeError(fault_line("E-TAB-HEADER", file.where, what, remedy))
        notes: dict[str, _ColumnNotes] = {}
        for row in table.rows:
            yield self._read_row(row, file, table, notes)
        for split, found in notes.items():
            yield found.note(split)

    def _read_row(
        self, row: Row, file: TableFile, table: OpenTable, notes: dict[str, "_ColumnNotes"]
    ) -> Sample | Rejected:
        """Return the sample of a row, or why there is none; notes grow by what it holds."""
        number, _, cells = row
        # A row without a key of its own must not have that of another row: --exclude goes by it.
        prefix = f"{file.entry.name}:" if self.key_column else file.prefix
        key, split = f"{prefix}{number}", file.split if self.splitting.is_given else ""
        code = "E-ROW-KEY"
        try:
            if isinstance(cells, BadRow):
                code = cells.code
                raise ValueError(cells.detail)
            if self.key_column:
                key = self._key_of(cells)
            split = split or self._drawn_split(cells, key, file, row)
            code = "E-ROW-PATH"
            blobs = self._blobs_of(cells, file.split)
            code = "E-ROW-TYPE"
            for name in self._used_up:
                cells.pop(name, None)
            seen = notes.get(split) or _ColumnNotes({*table.columns} - self._used_up)
            if table.has_text_cells:
                kept = cells
                unsure = (name for name in cells if not seen.kinds[name] & TEXT)
                kinds = {name: kind_of_text(cells[name]) for name in unsure}
            else:
                kept, kinds = _typed(cells, self.sequence_columns)
            names = labels_of(kept, self.label_columns)
        except ValueError as error:
            split = split or self.splitting.split_of_other(file.split, key)
            detail = f"{file.entry.name} {_place_of(row)}: {error}"
            return Rejected(code=code, stage=STAGE, split=split, key=key, detail=detail)
        notes[split] = seen
        seen.add(kept, kinds, names)
        fields, payload = fields_of_row(kept, self.sequence_columns)
        return Sample(split, key, file.place << _ROW_BITS | number, blobs, fields, payload=payload)

    @functools.cached_property
    def _used_up(self) -> frozenset[str]:
        """Columns that say where a sample goes and what is read for it, and are no features."""
        used = {self.image_column, self.splitting.fields.get("split_by", "")}
        return frozenset(used - {""})

    def _key_of(self, cells: Mapping[str, Cell]) -> str:
        cell = cells.get(self.key_column)
        if isinstance(cell, bool) or not isinstance(cell, int | str) or cell == "":
            raise ValueError(f"column {self.key_column!r} gives no key: {_what_is(cell)}")
        return str(cell)

    def _drawn_split(self, cells: Mapping[str, Cell], key: str, file: TableFile, row: Row) -> str:
        fields = {
            name: text_of(cells[name])
            for name in self.splitting.fields.values()
            if cells.get(name) is not None and not isinstance(cells[name], list)
        }
        return self.splitting.split_for(file.split, key, fields, f"{file.where} {_place_of(row)}")

    def _blobs_of(self, cells: Mapping[str, Cell], given: str) -> tuple[Blob, ...]:
        """Return the images that a row names: one, or none where there are no images."""
        if not self.image_column:
            return ()
        cell = cells.get(self.image_column)
        if not isinstance(cell, str) or not cell:
            raise ValueError(f"column {self.image_column!r} names no image: {_what_is(cell)}")
        return (Blob(given, name_in_root(cell, self.image_roots[given])),)


class _ColumnNotes:
    """What rows have shown of a split's columns."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.kinds: dict[str, int] = dict.fromkeys(columns, 0)
        self._cells: Counter[str] = Counter()
        self._rows = 0
        self._class_names: set[str] = set()

    def add(self, kept: Mapping[str, Cell], kinds: Mapping[str, int], names: Iterable[str]) -> None:
        """Add a row: its cells, what they and missing ones are, and its classes."""
        self._rows += 1
        for name in kept:  # twice as fast as Counter.update
            self._cells[name] += 1
        for name, kind in kinds.items():
            self.kinds[name] = self.kinds.get(name, 0) | kind
        self._class_names.update(names)

    def note(self, split: str) -> SplitSource:
        """Return what was seen."""
        kinds = sorted(self.kinds.items())
        facts = [ColumnFacts(name, of_cells, self._cells[name]) for name, of_cells in kinds]
        names = sorted(self._class_names)
        return SplitSource(split, class_names=names, columns=facts, rows=self._rows)


def name_in_root(cell: str, root: str) -> str:
    """Return an image's name below its root: a relative path is one, a full one must lie below.

    >>> name_in_root("gs://b/photos/1.jpg", "gs://b/photos"), name_in_root("./2.jpg", "gs://b")
    ('1.jpg', '2.jpg')

    Raises:
        ValueError: when it lies elsewhere, or could be no file's.
    """
    prefixes = [f"{root.rstrip('/')}/"]
    if is_local(root):
        path = posixpath.abspath(root.removeprefix("file://") or "/").rstrip("/")
        prefixes = [f"file://{path}/", f"{path}/"]
    prefix = next((prefix for prefix in prefixes if cell.startswith(prefix)), "")
    if not prefix and (cell.startswith("/") or "://" in cell):
        raise ValueError(f"{cell!r} does not lie below {root}: give --image_root")
    try:
        return blob_name(cell.removeprefix(prefix))
    except ValueError as error:
        raise ValueError(f"{cell!r} {error}") from None


def find_tables(given: tuple[str, Sequence[str]], access: Access) -> Iterator[TableFile]:
    """Yield the files of a split that are given by name, in the order of their names.

    Raises:
        RuntimeError: `E-ARG` when one of them is not there.
    """
    split, uris = given
    for place, uri in enumerate(sorted(uris, key=lambda uri: split_uri(uri)[1])):
        storage, entry = find_uri(uri, access)
        prefix = f"{entry.name}:" if len(uris) > 1 else ""
        yield TableFile(split, storage.root, entry, format_of(uri), prefix, place)


def pick_table(listed: ListedFile, folders: Mapping[str, tuple[str, str]]) -> Iterator[TableFile]:
    """Yield a listed file that is meant, as a table or to be counted.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when it is called a table, and is no file.
    """
    entry, name = listed.entry, listed.entry.name
    uri, pattern = folders[listed.root]
    if entry.kind == "directory" or not matches(name, pattern):
        return
    called = "" if why_skipped(name) == HIDDEN else format_of(name)
    place = max(listed.position, 0)
    file = TableFile(listed.root.rpartition("/")[0], uri, entry, called, f"{name}:", place)
    if entry.kind == "file":
        yield file
    elif called:
        what, remedy = f"a {entry.kind}", "mend it, or take it away"
        raise RuntimeError(fault_line("E-TAB-FORMAT", file.where, what, remedy))


def is_table(listed: ListedFile, folders: Mapping[str, tuple[str, str]]) -> bool:
    """Return whether a listed file is one that is read as a table."""
    return any(file.format for file in pick_table(listed, folders))


def _typed(
    cells: Mapping[str, Cell], sequence_columns: Sequence[str]
) -> tuple[dict[str, Cell], dict[str, int]]:
    """Return the typed cells that are there, as MessagePack has them, and what all of them are."""
    kept: dict[str, Cell] = {}
    kinds: dict[str, int] = {}
    for name, cell in cells.items():
        try:
            kind = kind_of_value(cell, may_nest=name in sequence_columns)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"column {name!r} holds {error}") from None
        kinds[name] = kind
        if cell is not None:
            kept[name] = _without_big(cell) if kind & BIG_INT else cell
    return kept, kinds


def _without_big(cell: Cell) -> Cell:
    """Return a cell with whole numbers beyond int64 as text."""
    if isinstance(cell, list):
        return [_without_big(value) for value in cell]
    return str(cell) if isinstance(cell, int) and kind_of_value(cell) == BIG_INT else cell


def _place_of(row: Row) -> str:
    number, line, _ = row
    return f"line {line}" if line else f"row {number}"


def _what_is(cell: Cell) -> str:
    return "no value" if cell in (None, "") else f"a {type(cell).__name__}"


@dataclass(eq=False)
class PlanTables(beam.PTransform):
    """Root -> the pieces of all tables, in any order, for workers to read in parallel.

    Attributes:
        files: URIs per split whose tables are given as files.
        folders: URIs of folders and globs of the names in them, by the names of their roots.
        access: how stores are reached.
        in_order: whether positions matter.
    """

    files: Mapping[str, Sequence[str]]
    folders: Mapping[str, tuple[str, str]]
    access: Access
    in_order: bool = False

    def expand(self, root: beam.pvalue.PBegin) -> SourcePieces:
        """Find and divide the files, one by one on a cluster."""
        files = (
            root
            | "GivenFiles" >> beam.Create(sorted(self.files.items()))
            | "FindFiles" >> beam.FlatMap(find_tables, self.access)
        )
        tallies = None
        if self.folders:
            uris = {name: uri for name, (uri, _) in self.folders.items()}
            is_read = functools.partial(is_table, folders=self.folders)
            listing = ListFiles(uris, self.access, self.in_order, is_read)
            listed = root | "ListFiles" >> listing
            tallies = listed.tallies
            picked = listed.pieces | "PickFiles" >> beam.FlatMap(pick_table, self.folders)
            files = (files, picked) | "AllFiles" >> beam.Flatten()
        pieces = files | "Divide" >> beam.FlatMap(divide_file, self.access)
        if not is_in_process(root.pipeline):
            pieces |= "Spread" >> beam.Reshuffle()
        return SourcePieces(pieces, tallies)
