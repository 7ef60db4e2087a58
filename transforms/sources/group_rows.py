"""Groups of a table's rows as samples: the rows of one sequence, wherever in its files they lie.

Rows are read piece by piece, travel to their group, and become its sample there, in their order.
What cannot be said to be of a group comes out as it would from a table without groups.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec

from schemas.columns import LIST, NESTED, Cell, kind_of_text, kind_of_value
from schemas.example import MAX_EXAMPLE_BYTES
from schemas.faults import Rejected
from schemas.layouts import Unfit
from schemas.row_fields import LARGE_ROW_BYTES, fields_of_row, labels_of
from schemas.samples import Sample, pack
from transforms.run_spool import RunSpool, payload_bytes
from transforms.sources.read_table import (
    NOT_A_TABLE,
    STAGE,
    ColumnNotes,
    TableReader,
    check_columns,
    packable,
    place_of,
    position_of,
)
from transforms.sources.split_sources import Item, SourceNote
from transforms.sources.table_pieces import TablePiece
from transforms.sources.table_rows import BadRow, Row

_GROUP, _ROW, _FILE = "group", "row", "file"  # a row without a group, or a file left out, is alone
_GroupKey = tuple[str, str, str]
"""One of these, the split that the table is given for, and a key."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,3})?")


class RowCells(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The cells of a row, and what they are.

    Attributes:
        columns: names of all its columns.
        kinds: bits of each, a byte a column; 0 where a cell is missing.
        cells: in the order of the columns.
    """

    columns: tuple[str, ...]
    kinds: bytes
    cells: list[Any]


class GroupedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the `fields` of a row carry on its way to its group.

    Attributes:
        place: where it was read, for messages.
        cells: of the row; None where they are its payload, or there are none.
        code: a SAMPLE code where the row is bad; empty for a good one.
        detail: what is wrong then.
    """

    place: str
    cells: RowCells | None = None
    code: str = ""
    detail: str = ""


_FIELDS = msgspec.msgpack.Decoder(GroupedRow)
_CELLS = msgspec.msgpack.Decoder(RowCells)


class OpenedRow(NamedTuple):
    """A row in its group.

    Attributes:
        place: where it was read, for messages.
        position: among all rows of its split.
        cells: by column; those that are missing may be None or not there.
        kinds: what the cells are, by column.
        fault: what is wrong with it; None for a good one.
    """

    place: str
    position: int
    cells: Mapping[str, Cell]
    kinds: Mapping[str, int]
    fault: Unfit | None = None


class JoinedRows(NamedTuple):
    """The cells of a group's one sample, and what they are, by column; missing ones are left out.

    Attributes:
        cells: those of sequences are lists with an item a row, which may be a list.
        kinds: what they are.
        named: all columns, those of missing cells too.
    """

    cells: dict[str, Cell]
    kinds: dict[str, int]
    named: frozenset[str]


def order_rows(rows: Sequence[OpenedRow], column: str) -> list[OpenedRow] | Unfit:
    """Return the rows of a group in their order: by files and rows, or by a column before that.

    Numbers are in the order of their values, also where they are text; other text in that of its
    characters.
    """
    in_place = sorted(rows, key=lambda row: row.position)
    if not column:
        return in_place
    for row in in_place:
        if not _has_order(cell := row.cells.get(column)):
            what = "no value" if cell in (None, "") else _shown(cell)
            return Unfit("E-ROW-GROUP", f"{row.place}: column {column!r} gives no order: {what}")
    cells = [row.cells[column] for row in in_place]
    numbers = [_number_of(cell) for cell in cells]
    if None not in numbers:
        keys: list[Any] = numbers
    elif all(isinstance(cell, str) for cell in cells):
        keys = cells
    else:
        row = in_place[numbers.index(None)]
        what = f"{_shown(row.cells[column])}, where others are numbers"
        return Unfit("E-ROW-GROUP", f"{row.place}: column {column!r} gives no order: {what}")
    by_key = sorted(range(len(keys)), key=keys.__getitem__)
    return [in_place[place] for place in by_key]


def join_rows(
    rows: Sequence[OpenedRow], sequence_columns: Sequence[str], order_column: str = ""
) -> JoinedRows | Unfit:
    """Return the cells of a group's sample, or why its rows are not of one.

    Args:
        rows: in their order.
        sequence_columns: of which each row is a step; all others are the same in all rows.
        order_column: which is neither, unless it is of a sequence too.
    """
    named = frozenset(name for row in rows for name in row.cells)
    cells: dict[str, Cell] = {}
    kinds: dict[str, int] = {}
    for name in sorted(named):
        if name in sequence_columns:
            items = [row.cells.get(name) for row in rows]
            if any(item is not None for item in items):
                cells[name] = [[] if item is None else item for item in items]
                kinds[name] = _kinds_of_steps(items, [row.kinds.get(name, 0) for row in rows])
        elif name != order_column:
            if other := _first_other(rows, name):
                return _disagreement(rows[0], other, name)
            if rows[0].cells.get(name) is not None:
                cells[name], kinds[name] = rows[0].cells[name], rows[0].kinds[name]
    return JoinedRows(cells, kinds, named)


@dataclass(frozen=True)
class RowReader:
    """Reads a piece of a table as rows on their way to their groups.

    Attributes:
        table: how rows are read; its column of keys is that of the groups.
        order_column: by which the rows of a group are ordered; empty for their own order.
        spool: where large rows wait, of a run in this process; None to let them travel.
    """

    table: TableReader
    order_column: str = ""
    spool: RunSpool | None = None

    def __call__(self, piece: TablePiece) -> Iterator[tuple[_GroupKey, Sample]]:
        """Yield every row with what it comes together with."""
        given, name = piece.file.split, piece.file.entry.name
        if not piece.format:
            yield (_FILE, given, name), Sample(given, name, 0, (), b"")
            return
        self.table.check_header(piece, "group_rows")
        check_columns(piece, "order_rows", [self.order_column])
        for row in self.table.rows_of(piece):
            kind, key, fields, payload = self._read_row(row, piece)
            sample = Sample(given, key, position_of(row, piece), (), fields, payload=payload)
            yield (
                (kind, given, key),
                sample if self.spool is None else self.spool.take(sample),
            )

    def _read_row(self, row: Row | BadRow, piece: TablePiece) -> tuple[str, str, bytes, bytes]:
        """Return what a row comes together with, its key, and its fields and payload."""
        place = f"{piece.file.entry.name} {place_of(row)}"
        alone = _ROW, f"{piece.file.entry.name}:{row.number}"
        if isinstance(row, BadRow):
            return *alone, pack(GroupedRow(place, code=row.code, detail=row.detail)), b""
        try:
            key = self.table.key_of(row.cells)
        except ValueError as error:
            return *alone, pack(GroupedRow(place, code="E-ROW-KEY", detail=str(error))), b""
        return _GROUP, key, *_fields_of(row.cells, place, are_text=piece.has_text_cells)


@dataclass(frozen=True)
class GroupReader:
    """Reads what has come together as the sample of a group, or why there is none.

    Attributes:
        table: how rows are read; its column of keys is that of the groups.
        order_column: by which the rows of a group are ordered; empty for their own order.
        spool: where large rows wait.
    """

    table: TableReader
    order_column: str = ""
    spool: RunSpool | None = None

    def __call__(self, together: tuple[_GroupKey, Iterable[Sample]]) -> Iterator[Item]:
        """Yield the sample of a group and what its columns hold, or a reject."""
        (kind, given, key), samples = together
        if kind == _FILE:
            split = self.table.splitting.split_of_other(given, key)
            yield SourceNote(split, skipped=NOT_A_TABLE)
        elif kind == _ROW:
            split = self.table.splitting.split_of_other(given, key)
            for sample in samples:
                row = _FIELDS.decode(sample.fields)
                yield _rejected(split, key, Unfit(row.code, f"{row.place}: {row.detail}"))
        else:
            yield from self._read_group(given, key, samples)

    def _read_group(self, given: str, key: str, samples: Iterable[Sample]) -> Iterator[Item]:
        first, kept = _keep_readable(samples)
        opened = self._open(first)
        split = self.table.split_of(opened.cells, key, given, f"group {key!r} at {opened.place}")
        if not kept:
            detail = f"more than {MAX_EXAMPLE_BYTES} bytes in its rows, the first of them"
            yield _rejected(split, key, Unfit("E-EX-TOO-LARGE", f"{detail} {opened.place}"))
            return
        joined = self._join([self._open(sample) for sample in kept])
        if isinstance(joined, Unfit):
            yield _rejected(split, key, joined)
            return
        try:
            blobs = self.table.blobs_of(joined.cells, given)
        except ValueError as error:
            yield _rejected(split, key, Unfit("E-ROW-PATH", f"{opened.place}: {error}"))
            return
        used_up = self.table.used_up
        cells = {name: cell for name, cell in joined.cells.items() if name not in used_up}
        kinds = {name: joined.kinds[name] for name in cells}
        try:
            names = labels_of(cells, self.table.label_columns)
        except ValueError as error:
            yield _rejected(split, key, Unfit("E-ROW-TYPE", f"{opened.place}: {error}"))
            return
        notes = ColumnNotes()
        notes.add(cells, {*joined.named} - used_up - self._order_alone, kinds, names)
        yield notes.note(split)
        fields, payload = fields_of_row(cells, self.table.sequence_columns)
        yield Sample(split, key, first.position, blobs, fields, payload=payload)

    def _join(self, rows: Sequence[OpenedRow]) -> JoinedRows | Unfit:
        for row in sorted(rows, key=lambda row: row.position):
            if row.fault:
                return row.fault
        in_order = order_rows(rows, self.order_column)
        if isinstance(in_order, Unfit):
            return in_order
        return join_rows(in_order, self.table.sequence_columns, self.order_column)

    @property
    def _order_alone(self) -> set[str]:
        """The column of the order where it is no feature."""
        return {self.order_column} - {*self.table.sequence_columns}

    def _open(self, sample: Sample) -> OpenedRow:
        if self.spool is not None:
            sample = self.spool.give(sample)
        row = _FIELDS.decode(sample.fields)
        opened = row.cells or _CELLS.decode(sample.payload)
        cells = dict(zip(opened.columns, opened.cells, strict=True))
        kinds = dict(zip(opened.columns, opened.kinds, strict=True))
        fault = Unfit(row.code, f"{row.place}: {row.detail}") if row.code else None
        return OpenedRow(row.place, sample.position, cells, kinds, fault)


def _fields_of(cells: Mapping[str, Cell], place: str, *, are_text: bool) -> tuple[bytes, bytes]:
    """Return (fields, payload) of a row; what no feature can hold makes it a bad one."""
    kinds: dict[str, int] = {}
    detail = ""
    for name, cell in cells.items():
        try:
            kinds[name] = kind_of_text(cell) if are_text and cell else kind_of_value(cell)
        except ValueError as error:
            detail = detail or f"column {name!r} holds {error}"
    good = packable({name: cells[name] for name in kinds}, kinds)
    code = "E-ROW-TYPE" if detail else ""
    opened = RowCells(tuple(good), bytes(kinds.values()), [*good.values()])
    packed = pack(opened)
    if len(packed) <= LARGE_ROW_BYTES:
        return pack(GroupedRow(place, opened, code, detail)), b""
    return pack(GroupedRow(place, None, code, detail)), packed


def _keep_readable(samples: Iterable[Sample]) -> tuple[Sample, list[Sample]]:
    """Return the first row of a group and all of them, or none where no record could hold them."""
    kept: list[Sample] = []
    first: Sample | None = None
    total_bytes = 0
    for sample in samples:
        if first is None or sample.position < first.position:
            first = sample
        total_bytes += len(sample.fields) + len(sample.payload) + payload_bytes(sample)
        kept.append(sample)
        if total_bytes > MAX_EXAMPLE_BYTES:
            kept.clear()
    assert first is not None, "a group without rows"
    return first, kept if total_bytes <= MAX_EXAMPLE_BYTES else []


def _kinds_of_steps(items: Sequence[Cell], kinds: Sequence[int]) -> int:
    """Return what a list is whose items are the cells of rows."""
    found = LIST
    for item, kind in zip(items, kinds, strict=True):
        found |= kind
        if item is None or kind & LIST:
            found |= NESTED
    return found


def _first_other(rows: Sequence[OpenedRow], name: str) -> OpenedRow | None:
    """Return the first row whose cell is not that of the first one, to the bit and the type."""
    cell = rows[0].cells.get(name)
    packed = pack(cell)
    return next((row for row in rows if pack(row.cells.get(name)) != packed), None)


def _disagreement(row: OpenedRow, other: OpenedRow, name: str) -> Unfit:
    one, two = (_shown(each.cells.get(name)) for each in (row, other))
    what = f"column {name!r} is no sequence and holds {one}, but {two} in {other.place}"
    return Unfit("E-ROW-GROUP", f"{row.place}: {what}")


def _has_order(cell: Cell) -> bool:
    is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
    return (is_number and not math.isnan(cell)) or (isinstance(cell, str) and cell != "")


def _number_of(cell: Cell) -> int | float | Decimal | None:
    """Return what a cell counts, None for text that counts nothing."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _shown(cell: Cell) -> str:
    if cell is None:
        return "nothing"
    shown = repr(cell)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _rejected(split: str, key: str, unfit: Unfit) -> Rejected:
    return Rejected(code=unfit.code, stage=STAGE, split=split, key=key, detail=unfit.detail)


@dataclass(eq=False)
class GroupRows(beam.PTransform):
    """Pieces of tables -> what `GroupReader` reads: rows by what they come together with.

    Attributes:
        read: reads a piece.
    """

    read: RowReader

    def expand(
        self, pieces: beam.PCollection[TablePiece]
    ) -> beam.PCollection[tuple[_GroupKey, Iterable[Sample]]]:
        """Read every row and bring groups together."""
        rows = pieces | "ReadRows" >> beam.FlatMap(self.read).with_output_types(
            tuple[_GroupKey, Sample]
        )
        return rows | "Together" >> beam.GroupByKey()
