"""Samples from the rows of tables, with what is seen of their columns."""

import functools
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import apache_beam as beam

from schemas.annotations.file_names import blob_name
from schemas.columns import (
    BIG_INT,
    TEXT,
    Cell,
    ColumnFacts,
    Named,
    is_called_a_table,
    kind_of_text,
    kind_of_value,
    matches,
    root_and_pattern,
    text_of,
    what_is_named,
)
from schemas.faults import Rejected, fault_line
from schemas.fields import fields_of_row, labels_of
from schemas.samples import Blob, Sample
from schemas.splits import Splitting
from transforms.sources.listed_files import ListedFile, is_file
from transforms.sources.read_samples import Item, SourceNote
from transforms.sources.table_rows import (
    DEFAULT_MAX_CELL_BYTES,
    BadRow,
    Row,
    TableFile,
    TablePiece,
    first_piece,
    rows_of,
    table_fault,
)
from transforms.storage import (
    Access,
    Entry,
    find_uri,
    is_local,
    join_uri,
    list_uri,
    open_storage,
    split_uri,
)

STAGE = "read_table"

NOT_A_TABLE = "not_called_a_table"
"""Why a file in a folder of tables is left out."""

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

    def __call__(self, piece: TablePiece) -> Iterator[Item]:
        """Yield the sample of every row, or why there is none, and what its columns hold."""
        if not piece.format:
            split = self.splitting.split_of_other(piece.file.split, piece.file.entry.name)
            yield SourceNote(split, skipped=NOT_A_TABLE)
            return
        self._check_header(piece)
        notes: dict[str, ColumnNotes] = {}
        for row in rows_of(piece, open_storage(piece.file.root, self.access), self.max_cell_bytes):
            yield self.read_row(row, piece, notes)
        for split, found in notes.items():
            yield found.note(split)

    def _check_header(self, piece: TablePiece) -> None:
        """Refuse a file that lacks a named column.

        Raises:
            RuntimeError: `E-TAB-HEADER`.
        """
        needed = {
            "image_column": (self.image_column,),
            "key_column": (self.key_column,),
            "label_column": self.label_columns,
            **{option: (name,) for option, name in self.splitting.fields.items()},
        }
        for option, names in needed.items():
            check_columns(piece, option, names)

    def read_row(
        self, row: Row | BadRow, piece: TablePiece, notes: dict[str, "ColumnNotes"]
    ) -> Sample | Rejected:
        """Return the sample of a row, or why there is none; notes grow by what it holds."""
        # A row without a key of its own must not have that of another row: --exclude goes by it.
        prefix = f"{piece.file.entry.name}:" if self.key_column else piece.file.prefix
        number_key = f"{prefix}{row.number}"
        if isinstance(row, BadRow):
            split = self.splitting.split_of_other(piece.file.split, number_key)
            return _rejected(split, number_key, piece, row, row.code, row.detail)
        cells = row.cells
        try:
            key = self.key_of(cells) if self.key_column else number_key
        except ValueError as error:
            split = self.splitting.split_of_other(piece.file.split, number_key)
            return _rejected(split, number_key, piece, row, "E-ROW-KEY", str(error))
        split = self.split_of(cells, key, piece.file.split, f"{piece.file.where} {place_of(row)}")
        try:
            blobs = self.blobs_of(cells, piece.file.split)
        except ValueError as error:
            return _rejected(split, key, piece, row, "E-ROW-PATH", str(error))
        kept = {
            name: cell
            for name, cell in cells.items()
            if cell is not None and name not in self.used_up
        }
        seen = notes.get(split) or ColumnNotes()
        try:
            if piece.has_text_cells:
                kinds = _kinds_of_text(kept, seen)
            else:
                kinds = _kinds(kept, self.sequence_columns)
            names = labels_of(kept, self.label_columns)
        except ValueError as error:
            return _rejected(split, key, piece, row, "E-ROW-TYPE", str(error))
        notes[split] = seen
        seen.add(kept, cells.keys() - self.used_up, kinds, names)
        fields, payload = fields_of_row(packable(kept, kinds), self.sequence_columns)
        return Sample(split, key, position_of(row, piece), blobs, fields, payload=payload)

    @functools.cached_property
    def used_up(self) -> frozenset[str]:
        """Columns that say where a sample goes and what is read for it, and are no features."""
        used = {self.image_column, self.splitting.fields.get("split_by", "")}
        return frozenset(used - {""})

    def key_of(self, cells: Mapping[str, Cell]) -> str:
        """Return what the column of keys says.

        Raises:
            ValueError: when it says nothing that could be a key.
        """
        cell = cells.get(self.key_column)
        if isinstance(cell, bool) or not isinstance(cell, (int, str)) or cell == "":
            what = "no value" if cell in (None, "") else f"a {type(cell).__name__}"
            raise ValueError(f"column {self.key_column!r} gives no key: {what}")
        return str(cell)

    def split_of(self, cells: Mapping[str, Cell], key: str, given: str, where: str) -> str:
        """Return the split of a row of a table that is given for one; `where` is for messages.

        Raises:
            RuntimeError: `E-SRC-SPLIT` when its column says none.
        """
        if self.splitting.is_given:
            return given
        fields = {
            name: text_of(cells[name])
            for name in self.splitting.fields.values()
            if cells.get(name) is not None and not isinstance(cells[name], list)
        }
        return self.splitting.split_for(given, key, fields, where)

    def blobs_of(self, cells: Mapping[str, Cell], given: str) -> tuple[Blob, ...]:
        """Return the images that a row names: one, or none where there are no images.

        Raises:
            ValueError: when it names none below the root.
        """
        if not self.image_column:
            return ()
        cell = cells.get(self.image_column)
        if not isinstance(cell, str) or not cell:
            what = "no value" if cell in (None, "") else f"a {type(cell).__name__}"
            raise ValueError(f"column {self.image_column!r} names no image: {what}")
        return (Blob(given, name_in_root(cell, self.image_roots[given])),)


def check_columns(piece: TablePiece, option: str, names: Sequence[str]) -> None:
    """Refuse a file whose header lacks columns that an option names.

    Raises:
        RuntimeError: `E-TAB-HEADER`.
    """
    for name in names:
        if name and piece.columns and name not in piece.columns:
            what = f"has no column {name!r}, which {option} names"
            remedy = f"name one of {', '.join(piece.columns[:20])}"
            raise table_fault("E-TAB-HEADER", piece.file.where, what, remedy)


def position_of(row: Row | BadRow, piece: TablePiece) -> int:
    """Return a row's place among all rows of its split."""
    return piece.file.place << _ROW_BITS | row.number


def name_in_root(cell: str, root: str) -> str:
    """Return an image's name below its root: a relative path is one, a full one must lie below.

    >>> name_in_root("gs://b/photos/1.jpg", "gs://b/photos"), name_in_root("./2.jpg", "gs://b")
    ('1.jpg', '2.jpg')

    Raises:
        ValueError: when it lies elsewhere, or could be no file's.
    """
    for prefix in _prefixes(root):
        if cell.startswith(prefix):
            cell = cell[len(prefix) :]
            break
    try:
        return blob_name(cell)
    except ValueError as error:
        raise ValueError(f"{cell!r} {error}") from None


def find_image_root(
    split: str,
    uris: Sequence[str],
    column: str,
    access: Access,
    max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES,
) -> str:
    """Return the bucket of the image that a split's first row names; empty for a relative path.

    Args:
        split: of the tables.
        uris: of them.
        column: that names images.
        access: how stores are reached.
        max_cell_bytes: larger cells are passed over.

    Raises:
        RuntimeError: where the first table is none.
    """
    for file in _tables_of(split, uris, access):
        storage = open_storage(file.root, access)
        piece = first_piece(file, storage)
        for row in () if piece is None else rows_of(piece, storage, max_cell_bytes):
            cell = row.cells.get(column) if isinstance(row, Row) else None
            if isinstance(cell, str):
                scheme, colon, path = cell.partition("://")
                return "" if is_local(cell) else f"{scheme}{colon}{path.partition('/')[0]}"
    return ""


def _tables_of(split: str, uris: Sequence[str], access: Access) -> list[TableFile]:
    """Return a split's tables as they are now, in the order of their names."""
    if what_is_named(uris[0]) is Named.FILE:
        return stat_tables(split, uris, access)
    root, pattern = root_and_pattern(uris[0])
    entries = (
        entry
        for entry in list_uri(root, access)
        if entry.kind == "file" and is_called_a_table(entry.name) and matches(entry.name, pattern)
    )
    return number_tables(split, root, entries)


@functools.lru_cache(maxsize=64)
def _prefixes(root: str) -> tuple[str, ...]:
    """Return what full paths below a root may begin with."""
    if not is_local(root):
        return (f"{root.rstrip('/')}/",)
    path = root.removeprefix("file://").rstrip("/")
    absolute = posixpath.abspath(path or "/").rstrip("/")
    return (f"file://{absolute}/", f"{absolute}/")


class ColumnNotes:
    """What rows have shown of a split's columns."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self._cells: dict[str, int] = {}
        self._rows = 0
        self._class_names: set[str] = set()

    def add(
        self, kept: Mapping[str, Cell], named: set[str], kinds: Mapping[str, int], names: tuple
    ) -> None:
        """Add a row: its cells, the names of all its columns, and its classes."""
        self._rows += 1
        for name, kind in kinds.items():
            self.kinds[name] = self.kinds.get(name, 0) | kind
            self._cells[name] = self._cells.get(name, 0) + 1
        if len(kept) < len(named):
            for name in named - kept.keys():
                self.kinds.setdefault(name, 0)
        self._class_names.update(names)

    def note(self, split: str) -> SourceNote:
        """Return what was seen."""
        facts = [
            ColumnFacts(name, kinds, self._cells.get(name, 0)) for name, kinds in self.kinds.items()
        ]
        return SourceNote(
            split, class_names=frozenset(self._class_names), columns=tuple(facts), rows=self._rows
        )


def _kinds_of_text(kept: Mapping[str, Cell], seen: ColumnNotes) -> dict[str, int]:
    """Return what the text cells of a row are; a column is looked at until one is no number."""
    return {
        name: TEXT if seen.kinds.get(name, 0) & TEXT else kind_of_text(cell)
        for name, cell in kept.items()
    }


def _kinds(kept: Mapping[str, Cell], sequence_columns: Sequence[str]) -> dict[str, int]:
    """Return what the typed cells of a row are."""
    kinds: dict[str, int] = {}
    for name, cell in kept.items():
        try:
            kinds[name] = kind_of_value(cell, may_nest=name in sequence_columns)
        except ValueError as error:
            raise ValueError(f"column {name!r} holds {error}") from None
    return kinds


def packable(kept: dict[str, Cell], kinds: Mapping[str, int]) -> dict[str, Cell]:
    """Return cells as MessagePack has them: whole numbers beyond int64 go as text."""
    big = [name for name, kind in kinds.items() if kind & BIG_INT]
    return kept | {name: _without_big(kept[name]) for name in big}


def _without_big(cell: Cell) -> Cell:
    if isinstance(cell, list):
        return [_without_big(value) for value in cell]
    return str(cell) if isinstance(cell, int) and kind_of_value(cell) == BIG_INT else cell


def place_of(row: Row | BadRow) -> str:
    """Return where a row is in its file, for messages."""
    return f"line {row.line}" if row.line else f"row {row.number}"


def _rejected(
    split: str, key: str, piece: TablePiece, row: Row | BadRow, code: str, detail: str
) -> Rejected:
    detail = f"{piece.file.entry.name} {place_of(row)}: {detail}"
    return Rejected(code=code, stage=STAGE, split=split, key=key, detail=detail)


def stat_tables(split: str, uris: Sequence[str], access: Access) -> list[TableFile]:
    """Return the files of a split that are given by name, in the order of their names.

    Raises:
        RuntimeError: `E-ARG` when one of them is not there.
    """
    by_name = sorted((*reversed(split_uri(uri)), uri) for uri in uris)
    return [
        TableFile(split, root, find_uri(uri, access)[1], place, f"{name}:" if len(uris) > 1 else "")
        for place, (name, root, uri) in enumerate(by_name)
    ]


def number_tables(split: str, root: str, entries: Iterable[Entry]) -> list[TableFile]:
    """Return a folder's files, those that are tables with their place in the order of names."""
    in_order = sorted(entries, key=lambda entry: (not is_called_a_table(entry.name), entry.name))
    return [
        TableFile(split, root, entry, place, f"{entry.name}:", is_called_a_table(entry.name))
        for place, entry in enumerate(in_order)
    ]


@dataclass(eq=False)
class ListTables(beam.PTransform):
    """Root -> the table files that are given by name, as they are now.

    Attributes:
        files: URIs per split.
        access: how stores are reached.
    """

    files: Mapping[str, Sequence[str]]
    access: Access

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[TableFile]:
        """Look at every file."""
        return (
            root
            | "Once" >> beam.Impulse()
            | "Stat" >> beam.FlatMap(_stat_tables, self.files, self.access)
        )


def _stat_tables(
    _: bytes, files: Mapping[str, Sequence[str]], access: Access
) -> Iterator[TableFile]:
    for split, uris in sorted(files.items()):
        yield from stat_tables(split, uris, access)


@dataclass(eq=False)
class PickTables(beam.PTransform):
    """Listed files -> the files of tables, and those in between that are not called so.

    Attributes:
        roots: URI per name of a root.
        patterns: glob per name of a root; empty for all that is there.
        splits: split per name of a root.
    """

    roots: Mapping[str, str]
    patterns: Mapping[str, str]
    splits: Mapping[str, str]

    def expand(self, listed: beam.PCollection[ListedFile]) -> beam.PCollection[TableFile]:
        """Look at every name."""
        return (
            listed
            | "Pick" >> beam.Filter(_is_picked, self.patterns, self.roots)
            | "ByRoot" >> beam.Map(_by_root)
            | "GroupRoots" >> beam.GroupByKey()
            | "Number" >> beam.FlatMap(_number, self.roots, self.splits)
        )


def is_table(listed: ListedFile, patterns: Mapping[str, str]) -> bool:
    """Return whether a listed file is one that is read as a table."""
    name = listed.entry.name
    is_meant = is_called_a_table(name) and matches(name, patterns[listed.root])
    return is_file(listed) and is_meant


def _is_picked(listed: ListedFile, patterns: Mapping[str, str], roots: Mapping[str, str]) -> bool:
    """Return whether a name is meant; what is called a table, and is none, is not passed over."""
    entry = listed.entry
    if entry.kind == "directory" or not matches(entry.name, patterns[listed.root]):
        return False
    if entry.kind != "file" and is_called_a_table(entry.name):
        where = join_uri(roots[listed.root], entry.name)
        raise RuntimeError(
            fault_line("E-TAB-FORMAT", where, f"a {entry.kind}", "mend it, or take it away")
        )
    return entry.kind == "file"


def _by_root(listed: ListedFile) -> tuple[str, Entry]:
    return listed.root, listed.entry


def _number(
    of_root: tuple[str, Iterable[Entry]], roots: Mapping[str, str], splits: Mapping[str, str]
) -> list[TableFile]:
    root, entries = of_root
    return number_tables(splits[root], roots[root], entries)
