"""Files of tables and their rows.

A file of lines is read as a stream by one worker; a Parquet file is divided into its row groups.
"""

import codecs
import contextlib
import csv
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import msgspec

from beam_tfrec.schemas.columns import Cell
from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.transforms.storage import (
    Access,
    Entry,
    Storage,
    join_uri,
    open_storage,
    open_stored,
)

PIECE_BYTES = 8 << 20
DEFAULT_MAX_CELL_BYTES = 100_000_000
"""Largest cell of Parquet, and largest row of a file of lines; BigQuery accepts no larger row."""

_PARQUET_BUFFER_BYTES = 64 << 10
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_PARQUET_BATCH_ROWS = 64  # at most, since all of them may hold one large value of a dictionary
_KEPT = frozenset([bool, int, float, str, bytes, type(None), dict, tuple])
"""Types of Parquet's values that stay; no feature can hold the last two."""

_DECODE_JSON: Callable[[bytes], Any] = msgspec.json.Decoder().decode

_SCHEMES = ("gs://", "s3://", "az://", "file://")

csv.field_size_limit(sys.maxsize)  # the readers of rows have a limit of their own


class TableFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a table; once it is divided, one of the row groups of a Parquet file.

    Attributes:
        split: that it is given for.
        root: URI of its folder.
        entry: its name below that, size and pin.
        format: `csv`, `tsv`, `jsonl` or `parquet`; empty for a file that is counted and left out.
        prefix: of its rows' keys where these are numbers; empty for the only file of a split.
        place: among the files of its split, or in the listing, in the order of names.
        row_group: number of the row group; -1 for a whole file.
        first_row: number of its first row in the file.
    """

    split: str
    root: str
    entry: Entry
    format: str
    prefix: str = ""
    place: int = 0
    row_group: int = -1
    first_row: int = 0

    @property
    def where(self) -> str:
        """Its URI, for messages."""
        return join_uri(self.root, self.entry.name)


class BadRow(NamedTuple):
    """Why a row could not be read: a code of scope SAMPLE, and what is wrong."""

    code: str
    detail: str


Row = tuple[int, int, dict[str, Cell] | BadRow]
"""A row's number in its file, from 0, blank lines counted; its line, from 1, 0 in Parquet; and its
cells by column. Missing cells are None or not there."""


class OpenTable(NamedTuple):
    """A piece of a table that can be read.

    Attributes:
        columns: names of the columns of a CSV file, in their order; none for other formats.
        has_text_cells: whether all cells are text, and none is None; its form decides the type.
        rows: all rows, in their order; the file is read some megabytes at a time.
    """

    columns: tuple[str, ...]
    has_text_cells: bool
    rows: Iterator[Row]


def divide_file(file: TableFile, access: Access) -> Iterator[TableFile]:
    """Yield the pieces of a file, in their order: the row groups of a Parquet file.

    Raises:
        RuntimeError: `E-TAB-FORMAT`, `E-TAB-HEADER` for a Parquet file that is none, or whose
            columns have no different names.
    """
    if file.format != "parquet":
        yield file
        return
    parquet = _open_parquet(file, open_storage(file.root, access))
    _check_names(parquet.schema_arrow.names, file.where)
    rows = 0
    for group in range(parquet.metadata.num_row_groups):
        yield msgspec.structs.replace(file, row_group=group, first_row=rows)
        rows += parquet.metadata.row_group(group).num_rows


def open_table(
    file: TableFile, access: Access, max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES
) -> OpenTable:
    """Return a piece of a table, opened for reading.

    Args:
        file: or a row group of it.
        access: how its store is reached.
        max_cell_bytes: a row with a larger cell is a `BadRow`; in a file of lines, a larger row.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is not what it is called, or its rest cannot be
            split into rows; `E-TAB-HEADER` when its columns have no different names.
    """
    storage = open_storage(file.root, access)
    if file.format == "parquet":
        return OpenTable((), False, _parquet_rows(file, storage, max_cell_bytes))
    lines = lines_of(open_stored(storage, file.entry, PIECE_BYTES), max_cell_bytes)
    if file.format == "jsonl":
        return OpenTable((), False, _json_rows(lines, max_cell_bytes))
    return _open_csv(lines, file, max_cell_bytes)


def lines_of(file: IO[bytes], max_bytes: int) -> Iterator[bytes | None]:
    r"""Yield the lines of a file with their ends; None for each of more than `max_bytes`.

    A byte order mark at the beginning is passed over.

    >>> import io
    >>> [*lines_of(io.BytesIO(b"a\nbbbb\nc"), 3)]
    [b'a\n', None, b'c']
    """
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    while line := file.readline(max_bytes + 1):
        is_too_large = len(line) > max_bytes
        while is_too_large and line and not line.endswith(b"\n"):
            line = file.readline(PIECE_BYTES)
        yield None if is_too_large else line


def _open_csv(lines: Iterator[bytes | None], file: TableFile, max_bytes: int) -> OpenTable:
    rows = _csv_rows(lines, file, max_bytes)
    _, _, first = next(rows, (0, 1, list[str]()))
    if isinstance(first, BadRow):
        what = f"its first line is no header of a {file.format} file ({first.detail})"
        remedy = "write the file anew, in UTF-8"
        raise RuntimeError(fault_line("E-TAB-FORMAT", file.where, what, remedy))
    header_rows, columns = 1, tuple(first)
    read_cells: Callable[[list[str]], Any] = functools.partial(_csv_row, columns=columns)
    if any(
        cell.strip().startswith(_SCHEMES) for cell in first[:2]
    ):  # AutoML Vision's table, which has no header
        rows = itertools.chain([(0, 1, first)], rows)
        header_rows, columns, read_cells = 0, ("split", "uri", "label"), _automl_row
    separator = "tab" if file.format == "tsv" else "comma"
    if len(columns) == 1 and (others := [other for other in ";\t|" if other in columns[0]]):
        what = f"has one column, {columns[0]!r}: {others[0]!r} where a {separator} should be"
        remedy = "write the file anew, or take that out of the column's name"
        raise RuntimeError(fault_line("E-TAB-HEADER", file.where, what, remedy))
    _check_names(columns or [""], file.where)
    found = (
        (number - header_rows, line, cells if isinstance(cells, BadRow) else read_cells(cells))
        for number, line, cells in rows
        if cells
    )
    return OpenTable(columns, header_rows == 1, found)


def _check_names(names: Sequence[str], where: str) -> None:
    for place, name in enumerate(names, start=1):
        if not name.strip() or names.index(name) + 1 < place:
            what = f"column {place} of {len(names)} has no name of its own, but {name!r}"
            remedy = "name each column in the first line"
            raise RuntimeError(fault_line("E-TAB-HEADER", where, what, remedy))


def _too_large(max_bytes: int, what: str = "the row") -> BadRow:
    detail = f"{what} has more than {max_bytes} bytes; --max_cell_bytes sets the limit"
    return BadRow("E-ROW-TOO-LARGE", detail)


def _json_rows(lines: Iterable[bytes | None], max_bytes: int) -> Iterator[Row]:
    for number, line in enumerate(lines):
        if line is None or line.strip():
            yield number, number + 1, _json_row(line) if line else _too_large(max_bytes)


def _json_row(line: bytes) -> dict[str, Cell] | BadRow:
    try:
        value = _DECODE_JSON(line)
        if not isinstance(value, dict):
            return BadRow("E-ROW-JSON", f"no object but {type(value).__name__}")
        if line.count(b":") > len(value) and _STRING.sub(b"", line).count(b":") > _count_keys(
            value
        ):
            return BadRow("E-ROW-JSON", "a key is there twice")
    except UnicodeDecodeError as error:
        return BadRow("E-ROW-TEXT", f"no UTF-8 at byte {error.start} of a text")
    except (msgspec.DecodeError, RecursionError) as error:
        return BadRow("E-ROW-JSON", f"no JSON: {error}")
    return _flat(value)


def _count_keys(value: Any) -> int:
    if type(value) is dict:
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if type(value) is list else 0


def _flat(cells: dict[str, Any]) -> dict[str, Cell] | BadRow:
    """Return a row's cells, the members of its objects as columns `object.member`."""
    if not any(type(value) is dict for value in cells.values()):
        return cells
    flat: dict[str, Any] = {}
    waiting = [*reversed(cells.items())]
    while waiting:
        name, value = waiting.pop()
        if type(value) is dict:
            members = reversed(value.items())
            waiting.extend((f"{name}.{member}", inside) for member, inside in members)
        elif name in flat:
            return BadRow("E-ROW-TYPE", f"column {name!r} is there twice")
        else:
            flat[name] = value
    return flat


def _csv_rows(
    lines: Iterator[bytes | None], file: TableFile, max_bytes: int
) -> Iterator[tuple[int, int, list[str] | BadRow]]:
    """Yield the number, the first line and the texts of each row of a file; none of a blank line.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when it is not known where a row ends.
    """
    first_line, row_bytes = 1, 0
    bad: BadRow | None = None

    def texts() -> Iterator[str]:
        nonlocal row_bytes, bad
        for line in lines:
            row_bytes += len(line or b"")
            if line is None or row_bytes > max_bytes:
                if file.format != "tsv":  # a quote in it may decide where the row ends
                    what = f"the row of line {first_line} has more than {max_bytes} bytes"
                    remedy = "close its quotes, or raise --max_cell_bytes"
                    raise RuntimeError(fault_line("E-TAB-FORMAT", file.where, what, remedy))
                bad, line = _too_large(max_bytes), b"\n"
            try:
                yield line.decode()
            except UnicodeDecodeError:
                bad = BadRow("E-ROW-TEXT", "no UTF-8")
                yield line.decode(errors="replace")

    has_no_quotes: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    reader = csv.reader(texts(), strict=True, **(has_no_quotes if file.format == "tsv" else {}))
    for number in itertools.count():
        first_line, row_bytes, bad = reader.line_num + 1, 0, None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if str(error) == "unexpected end of data":
                what = f"the quotes that open in line {first_line} or below it are never closed"
                remedy = "close them, or double those that belong to a cell"
                raise RuntimeError(fault_line("E-TAB-FORMAT", file.where, what, remedy)) from None
            bad = BadRow("E-ROW-CSV", str(error))
        yield number, first_line, bad or cells


def _csv_row(cells: list[str], columns: Sequence[str]) -> dict[str, Cell] | BadRow:
    if len(cells) != len(columns):
        return BadRow("E-ROW-CSV", f"{len(cells)} cells, the header has {len(columns)}")
    return {name: cell for name, cell in zip(columns, cells, strict=True) if cell}


def _automl_row(cells: list[str]) -> dict[str, Cell] | BadRow:
    """Return a row of AutoML Vision's table: a set, which may be left out, a URI, and labels."""
    found = [cell.strip() for cell in cells]
    if "://" in found[0]:
        found.insert(0, "")
    if len(found) < 2 or "://" not in found[1]:
        return BadRow("E-ROW-CSV", "neither SET,URI,LABEL… nor URI,LABEL…")
    split, uri, *labels = found
    split = split.lower()
    split = "train" if split == "training" else split
    labels = [label for label in labels if label]
    label = labels if len(labels) > 1 else labels[0] if labels else None
    return {"split": split or None, "uri": uri, "label": label}


@contextlib.contextmanager
def _parquet_faults(file: TableFile) -> Iterator[None]:
    """Raise what pyarrow says of a file as its fault, but not the machine's errors."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise
        what = f"cannot be read as Parquet ({str(error).splitlines()[0][:120]})"
        remedy = "give a Parquet file, or write it anew"
        raise RuntimeError(fault_line("E-TAB-FORMAT", file.where, what, remedy)) from None


def _open_parquet(file: TableFile, storage: Storage) -> Any:
    """Return pyarrow's `ParquetFile`."""
    import pyarrow.parquet

    stored = open_stored(storage, file.entry, _PARQUET_BUFFER_BYTES, sys.maxsize)
    with _parquet_faults(file):
        return pyarrow.parquet.ParquetFile(stored)


def _parquet_rows(file: TableFile, storage: Storage, max_bytes: int) -> Iterator[Row]:
    """Yield the rows of a row group.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is damaged.
    """
    parquet = _open_parquet(file, storage)
    group = parquet.metadata.row_group(file.row_group)
    rows = PIECE_BYTES * group.num_rows // max(group.total_byte_size, 1)
    batches = parquet.iter_batches(
        max(1, min(rows, _PARQUET_BATCH_ROWS)), row_groups=[file.row_group], use_threads=False
    )
    number = itertools.count(file.first_row)
    with _parquet_faults(file):
        for batch in batches:
            limit = max_bytes if batch.nbytes > max_bytes else sys.maxsize
            for cells in _cells_of(batch):
                yield next(number), 0, _parquet_row(cells, limit)


def _parquet_row(cells: dict[str, Any] | Exception, max_bytes: int) -> dict[str, Cell] | BadRow:
    if isinstance(cells, Exception):
        code = "E-ROW-TEXT" if isinstance(cells, UnicodeDecodeError) else "E-ROW-TYPE"
        return BadRow(code, f"a value that cannot be read: {cells}")
    flat = _flat(cells)
    if isinstance(flat, BadRow):
        return flat
    if max_bytes < sys.maxsize and max(map(_cell_bytes, flat.values())) > max_bytes:
        return _too_large(max_bytes, "a cell")
    return {name: _plain(value) for name, value in flat.items()}


def _cell_bytes(value: Any) -> int:
    """Return about how many bytes a cell takes."""
    if isinstance(value, str | bytes):
        return len(value if isinstance(value, bytes) else value.encode())
    return sum(map(_cell_bytes, value)) if isinstance(value, list) else 8


def _cells_of(batch: Any) -> Iterator[dict[str, Any] | Exception]:
    """Yield the cells of every row of an Arrow batch, or why Python has no such values."""
    try:
        yield from _unpacked(batch).to_pylist()
    except (ValueError, OverflowError) as error:  # no UTF-8, or a date that Python has not
        if batch.num_rows == 1:
            yield error
            return
        for place in range(batch.num_rows):
            yield from _cells_of(batch.slice(place, 1))


def _unpacked(batch: Any) -> Any:
    """Return the table of a batch, its times in microseconds, as Python has them.

    Raises:
        ValueError: when that would round one.
    """
    import pyarrow

    us = {make("ns"): make("us") for make in (pyarrow.time64, pyarrow.duration)}
    fields = []
    for field in batch.schema:
        kind = us.get(field.type, field.type)
        if pyarrow.types.is_timestamp(kind):
            kind = pyarrow.timestamp("us", kind.tz)
        fields.append(field.with_type(kind))
    return pyarrow.Table.from_batches([batch]).cast(pyarrow.schema(fields))


def _plain(value: Any) -> Any:
    """Return a Parquet value as JSON could have it: times, dates and decimals are text."""
    if type(value) in _KEPT:
        return value
    if type(value) is list:
        return [_plain(member) for member in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
