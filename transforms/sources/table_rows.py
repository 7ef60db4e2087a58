"""Files of tables and their rows.

A file of lines is read as a stream by one worker; a Parquet file is divided into its row groups.
"""

import codecs
import csv
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import msgspec

from schemas.columns import Cell, format_of
from schemas.faults import fault_line
from transforms.storage import Access, Entry, Storage, join_uri, open_storage, open_stored

PIECE_BYTES = 8 << 20
DEFAULT_MAX_CELL_BYTES = 100_000_000
"""Largest cell of Parquet, and largest row of a file of lines; BigQuery accepts no larger row."""
AUTOML_COLUMNS = ("split", "uri", "label")
"""Columns of AutoML Vision's table, whose files have no header."""

_AUTOML_SETS = {"", "train", "training", "validation", "test", "unassigned"}
_SCHEMES = ("gs://", "s3://", "az://", "file://")
_REWRITE = "write the file anew, in UTF-8"
_PARQUET_BUFFER_BYTES = 64 << 10
_PARQUET_BATCH_ROWS = 4096  # at most, since a dictionary is copied for each batch
_MAX_DEPTH = 64
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_PLAIN = frozenset([bool, int, float, str, bytes, type(None)])

csv.field_size_limit(sys.maxsize)  # the readers of rows have a limit of their own


class TableFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a table.

    Attributes:
        split: that it is given for.
        root: URI of its folder.
        entry: its name below that, size and pin.
        place: among the files of its split, in the order of their names.
        prefix: of its rows' keys where these are numbers; empty for the only file of a split.
        is_table: whether it is meant as one; else it is counted and left out.
    """

    split: str
    root: str
    entry: Entry
    place: int = 0
    prefix: str = ""
    is_table: bool = True

    @property
    def where(self) -> str:
        """Its URI, for messages."""
        return join_uri(self.root, self.entry.name)

    @property
    def format(self) -> str:
        """`csv`, `tsv`, `jsonl` or `parquet`, by its name; empty for what is left out."""
        return format_of(self.entry.name) if self.is_table else ""


class TablePiece(msgspec.Struct, frozen=True, array_like=True):
    """A file of lines, or a row group of a Parquet file.

    Attributes:
        file: the file.
        row_group: number of the row group; -1 for a whole file.
        first_row: number of its first row in the file.
    """

    file: TableFile
    row_group: int = -1
    first_row: int = 0


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


def table_fault(code: str, where: str, what: str, remedy: str) -> RuntimeError:
    """Return the fault of a table as a whole."""
    return RuntimeError(fault_line(code, where, what, remedy))


def divide_file(file: TableFile, access: Access) -> Iterator[TablePiece]:
    """Yield the pieces of a file, in their order.

    Raises:
        RuntimeError: `E-TAB-FORMAT`, `E-TAB-HEADER` for a Parquet file that is none, or whose
            columns have no different names.
    """
    if file.format != "parquet":
        yield TablePiece(file)
        return
    parquet = _open_parquet(open_storage(file.root, access), file.entry, file.where)
    _checked_columns(parquet.schema_arrow.names, file.where)
    rows = 0
    for group in range(parquet.metadata.num_row_groups):
        yield TablePiece(file, group, rows)
        rows += parquet.metadata.row_group(group).num_rows


def open_piece(
    piece: TablePiece, access: Access, max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES
) -> OpenTable:
    """Return a piece of a table, opened for reading.

    Args:
        piece: of a table.
        access: how its store is reached.
        max_cell_bytes: a row with a larger cell is a `BadRow`; in a file of lines, a larger row.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is not what it is called, or its rest cannot be
            split into rows; `E-TAB-HEADER` when its columns have no different names.
    """
    storage = open_storage(piece.file.root, access)
    if piece.file.format == "parquet":
        return OpenTable((), False, _parquet_rows(piece, storage, max_cell_bytes))
    if piece.file.format == "jsonl":
        lines = lines_of(_open_text(piece.file, storage), max_cell_bytes)
        return OpenTable((), False, _json_rows(lines, max_cell_bytes))
    return _open_csv(piece.file, storage, max_cell_bytes)


def is_automl_row(row: Sequence[str]) -> bool:
    """Return whether a first row is one of AutoML Vision's table, which has no header.

    >>> is_automl_row(["TRAIN", "gs://b/x.jpg", "cat"]), is_automl_row(["split", "uri", "label"])
    (True, False)
    """
    has_set = len(row) > 1 and row[0].strip().lower() in _AUTOML_SETS
    return bool(row) and row[has_set].strip().startswith(_SCHEMES)


def lines_of(file: IO[bytes], max_bytes: int) -> Iterator[bytes | None]:
    r"""Yield the lines of a file with their ends; None for each of more than `max_bytes`.

    >>> import io
    >>> [*lines_of(io.BytesIO(b"a\nbbbb\nc"), 3)]
    [b'a\n', None, b'c']
    """
    while line := file.readline(max_bytes + 1):
        is_too_large = len(line) > max_bytes
        while is_too_large and line and not line.endswith(b"\n"):
            line = file.readline(PIECE_BYTES)
        yield None if is_too_large else line


def _open_text(file: TableFile, storage: Storage) -> IO[bytes]:
    """Return a file of lines, after its byte order mark."""
    stream = open_stored(storage, file.entry, PIECE_BYTES)
    if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        stream.seek(0)
    return stream


def _open_csv(file: TableFile, storage: Storage, max_bytes: int) -> OpenTable:
    lines = lines_of(_open_text(file, storage), max_bytes)
    rows = _csv_rows(lines, file, max_bytes)
    _, _, first = next(rows, (0, 1, list[str]()))
    if isinstance(first, BadRow):
        what = f"its first line is no header of a {file.format} file ({first.detail})"
        raise table_fault("E-TAB-FORMAT", file.where, what, _REWRITE)
    if not "".join(first).strip():
        what = "has no header: its first line is empty"
        raise table_fault("E-TAB-FORMAT", file.where, what, "name its columns there")
    if is_automl_row(first):
        rows = itertools.chain([(0, 1, first)], rows)
        return OpenTable(AUTOML_COLUMNS, False, _cells_of_csv(rows, _automl_row, 0))
    _refuse_other_separators(first, file.format, file.where)
    columns = _checked_columns(first, file.where)
    return OpenTable(columns, True, _cells_of_csv(rows, functools.partial(_csv_row, columns), 1))


def _checked_columns(names: Sequence[str], where: str) -> tuple[str, ...]:
    for place, name in enumerate(names, start=1):
        if not name.strip():
            what = f"column {place} of {len(names)} has no name"
            raise table_fault("E-TAB-HEADER", where, what, "name it in the first line")
        if names.index(name) + 1 < place:
            what = f"column {place} is called {name!r} like column {names.index(name) + 1}"
            raise table_fault("E-TAB-HEADER", where, what, "give each column a name of its own")
    return tuple(names)


def _refuse_other_separators(names: Sequence[str], name_says: str, where: str) -> None:
    """Refuse a header whose one name holds what another program separates columns by."""
    expected = "a tab" if name_says == "tsv" else "a comma"
    if len(names) == 1 and (found := [sep for sep in ";\t|" if sep in names[0]]):
        what = f"has one column, {names[0]!r}: {found[0]!r} where {expected} should part columns"
        remedy = "write the file anew, or take that out of the column's name"
        raise table_fault("E-TAB-HEADER", where, what, remedy)


def _too_large(max_bytes: int, what: str = "the row") -> BadRow:
    detail = f"{what} has more than {max_bytes} bytes; --max_cell_bytes sets the limit"
    return BadRow("E-ROW-TOO-LARGE", detail)


def _json_rows(lines: Iterable[bytes | None], max_bytes: int) -> Iterator[Row]:
    decode = msgspec.json.Decoder().decode
    for number, line in enumerate(lines):
        if line is None:
            yield number, number + 1, _too_large(max_bytes)
        elif line.strip():
            yield number, number + 1, _json_row(line, decode)


def _json_row(line: bytes, decode: Callable[[bytes], Any]) -> dict[str, Cell] | BadRow:
    try:
        value = decode(line)
    except UnicodeDecodeError as error:
        return BadRow("E-ROW-TEXT", f"no UTF-8 at byte {error.start} of a text")
    except (msgspec.DecodeError, RecursionError) as error:
        return BadRow("E-ROW-JSON", f"no JSON: {error}")
    if not isinstance(value, dict):
        return BadRow("E-ROW-JSON", f"no object but {type(value).__name__}")
    if line.count(b":") > len(value) and _STRING.sub(b"", line).count(b":") > _count_keys(value):
        return BadRow("E-ROW-JSON", "a key is there twice")
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
    try:
        _flatten(cells, "", flat, 0)
    except ValueError as error:
        return BadRow("E-ROW-TYPE", str(error))
    return flat


def _flatten(cells: dict[str, Any], prefix: str, into: dict[str, Any], depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"objects in more than {_MAX_DEPTH} others")
    for name, value in cells.items():
        if type(value) is dict:
            _flatten(value, f"{prefix}{name}.", into, depth + 1)
            continue
        if prefix + name in into:
            raise ValueError(f"column {prefix + name!r} is there twice")
        into[prefix + name] = value


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
                    raise table_fault("E-TAB-FORMAT", file.where, what, remedy)
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
                raise table_fault("E-TAB-FORMAT", file.where, what, remedy) from None
            bad = BadRow("E-ROW-CSV", str(error))
        yield number, first_line, bad or cells


def _cells_of_csv(
    rows: Iterable[tuple[int, int, list[str] | BadRow]],
    read_cells: Callable[[list[str]], dict[str, Cell] | BadRow],
    header_rows: int,
) -> Iterator[Row]:
    for number, line, cells in rows:
        if cells:  # else the line is blank
            read = cells if isinstance(cells, BadRow) else read_cells(cells)
            yield number - header_rows, line, read


def _csv_row(columns: tuple[str, ...], cells: list[str]) -> dict[str, Cell] | BadRow:
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


def _open_parquet(
    storage: Storage, entry: Entry, where: str, dictionaries: Sequence[str] = ()
) -> Any:
    """Return pyarrow's `ParquetFile`; columns of `dictionaries` stay packed.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is none.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        stored = open_stored(storage, entry, _PARQUET_BUFFER_BYTES, sys.maxsize)
        return pyarrow.parquet.ParquetFile(stored, read_dictionary=[*dictionaries])
    except (pyarrow.ArrowException, OSError) as error:
        raise _parquet_fault(error, where, "is no Parquet file", "give a Parquet file") from None


def _parquet_fault(error: Exception, where: str, what: str, remedy: str) -> Exception:
    """Return the fault of a file that pyarrow cannot read, or the error if it is the machine's."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
        return error
    why = str(error).splitlines()[0][:120]
    return table_fault("E-TAB-FORMAT", where, f"{what} ({why})", remedy)


def _parquet_rows(piece: TablePiece, storage: Storage, max_bytes: int) -> Iterator[Row]:
    number = piece.first_row
    for batch in _batches_of(piece, storage):
        unpacked = _unpacked_bytes(batch)
        rows_at_once = max(1, PIECE_BYTES * batch.num_rows // max(unpacked, 1))
        for start in range(0, batch.num_rows, rows_at_once):
            for cells in _cells_of(batch.slice(start, rows_at_once)):
                limit = max_bytes if unpacked > max_bytes else None
                yield number, 0, _parquet_row(cells, limit)
                number += 1


def _batches_of(piece: TablePiece, storage: Storage) -> Iterator[Any]:
    """Yield the Arrow batches of a row group, whose texts stay in dictionaries if they were.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is damaged.
    """
    import pyarrow

    entry, where = piece.file.entry, piece.file.where
    group = _open_parquet(storage, entry, where).metadata.row_group(piece.row_group)
    chunks = [group.column(place) for place in range(group.num_columns)]
    packed = [
        chunk.path_in_schema
        for chunk in chunks
        if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
    ]
    rows = PIECE_BYTES * group.num_rows // max(group.total_byte_size, 1)
    batches = _open_parquet(storage, entry, where, packed).iter_batches(
        max(1, min(rows, _PARQUET_BATCH_ROWS)), row_groups=[piece.row_group], use_threads=False
    )
    try:
        yield from batches
    except (pyarrow.ArrowException, OSError) as error:
        what = f"row group {piece.row_group} cannot be read"
        raise _parquet_fault(error, where, what, "write it anew") from None


def _unpacked_bytes(batch: Any) -> int:
    """Return at most how many bytes a batch has with texts in place of a dictionary's indices."""
    import pyarrow.compute
    import pyarrow.types as arrow

    longest = [
        pyarrow.compute.max(pyarrow.compute.binary_length(column.dictionary)).as_py() or 0
        for column in batch.columns
        if arrow.is_dictionary(column.type)
    ]
    return batch.nbytes + sum(longest) * batch.num_rows


def _parquet_row(
    cells: dict[str, Any] | Exception, max_cell_bytes: int | None
) -> dict[str, Cell] | BadRow:
    if isinstance(cells, Exception):
        code = "E-ROW-TEXT" if isinstance(cells, UnicodeDecodeError) else "E-ROW-TYPE"
        return BadRow(code, f"a value that cannot be read: {cells}")
    if max_cell_bytes is not None and max(map(_cell_bytes, cells.values())) > max_cell_bytes:
        return _too_large(max_cell_bytes, "a cell")
    return _flat({name: _plain(value) for name, value in cells.items()})


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
    """Return a batch without dictionaries, whose times are Python's, which have no nanoseconds.

    Raises:
        ValueError: when that would round one.
    """
    import pyarrow
    import pyarrow.types as arrow

    columns = []
    for column in batch.columns:
        kind = column.type
        if arrow.is_dictionary(kind):
            column = column.dictionary_decode()
        elif arrow.is_timestamp(kind):
            column = column.cast(pyarrow.timestamp("us", kind.tz))
        elif arrow.is_time64(kind):
            column = column.cast(pyarrow.time64("us"))
        elif arrow.is_duration(kind):
            column = column.cast(pyarrow.duration("us"))
        columns.append(column)
    return pyarrow.record_batch(columns, names=batch.schema.names)


def _plain(value: Any) -> Any:
    """Return a Parquet value as JSON could have it: times, dates and decimals are text."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_plain(member) for member in value]
    if kind is dict:
        return {name: _plain(member) for name, member in value.items()}
    if kind is tuple:  # an entry of a map: what no feature can hold
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
