"""Read the rows of one piece of a table; a row that cannot be read becomes a `BadRow`."""

import csv
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from schemas.annotations.json_sections import STRING, lone_surrogate_at
from schemas.columns import Cell
from transforms.sources.table_pieces import (
    DEFAULT_MAX_CELL_BYTES,
    PIECE_BYTES,
    LongLine,
    TablePiece,
    csv_dialect,
    keep_line_end,
    lines_of,
    open_parquet,
    shorten,
    table_fault,
)
from transforms.storage import Storage
from transforms.storage.stored_file import read_chunks

_PARQUET_BATCH_ROWS = 4096  # at most, since a dictionary is copied for each batch
_BOMB_RATIO = 500  # pages that grow more are not unpacked where they exceed the limit
_MAX_DEPTH = 64
_PLAIN = frozenset([bool, int, float, str, bytes, type(None)])
_AUTOML_SETS = {"training": "train"}


class Row(NamedTuple):
    """A row that could be read.

    Attributes:
        number: in its file, from 0, blank lines counted.
        line: in its file, from 1; 0 in Parquet.
        cells: by column; those that are missing may be None or not there.
    """

    number: int
    line: int
    cells: dict[str, Cell]


class BadRow(NamedTuple):
    """A row that could not be read: its number, a code of scope SAMPLE, and what is wrong."""

    number: int
    line: int
    code: str
    detail: str


def rows_of(
    piece: TablePiece, storage: Storage, max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES
) -> Iterator[Row | BadRow]:
    """Yield the rows of a piece, in their order; its file is read some megabytes at a time.

    Args:
        piece: of a table.
        storage: of its root.
        max_cell_bytes: a row with a larger cell is a `BadRow`; in a file of lines, a larger row.

    Raises:
        RuntimeError: `E-TAB-FORMAT` where the rest of the file cannot be split into rows.
    """
    if piece.format == "parquet":
        return _parquet_rows(piece, storage, max_cell_bytes)
    entry = piece.file.entry
    chunks = read_chunks(storage, entry, piece.start, piece.end, PIECE_BYTES)
    may_quote = piece.format in ("csv", "automl")
    lines = lines_of(
        chunks, piece.file.where, max_cell_bytes, shorten if may_quote else keep_line_end
    )
    if piece.format == "jsonl":
        return _json_rows(lines, piece, max_cell_bytes)
    return _csv_rows(lines, piece, max_cell_bytes)


def _too_large(number: int, line: int, max_bytes: int, what: str = "the row") -> BadRow:
    detail = f"{what} has more than {max_bytes} bytes; --max_cell_bytes sets the limit"
    return BadRow(number, line, "E-ROW-TOO-LARGE", detail)


def _json_rows(lines: Iterable[bytes], piece: TablePiece, max_bytes: int) -> Iterator[Row | BadRow]:
    decode = msgspec.json.Decoder().decode
    for place, line in enumerate(lines):
        where = piece.first_row + place, piece.first_line + place
        if type(line) is LongLine:
            yield _too_large(*where, max_bytes)
            continue
        try:
            value = decode(line)
        except UnicodeDecodeError as error:
            yield BadRow(*where, "E-ROW-TEXT", f"no UTF-8 at byte {error.start} of a text")
            continue
        except (msgspec.DecodeError, RecursionError) as error:
            if line.strip():
                at = lone_surrogate_at(line)
                half = f"half of a surrogate pair at byte {at}"
                yield BadRow(*where, "E-ROW-JSON", f"no JSON: {error if at is None else half}")
            continue
        if not isinstance(value, dict):
            yield BadRow(*where, "E-ROW-JSON", f"no object but {type(value).__name__}")
            continue
        if line.count(b":") > len(value) and _count_given_keys(line) > _count_keys(value):
            yield BadRow(*where, "E-ROW-JSON", "a key is there twice")
            continue
        yield _flat(*where, value)


def _count_given_keys(line: bytes) -> int:
    """Return how many keys the objects of a JSON text have, those that are there twice included."""
    return STRING.sub(b"", line).count(b":")


def _count_keys(value: Any) -> int:
    if type(value) is dict:
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if type(value) is list else 0


def _flat(number: int, line: int, cells: dict[str, Any]) -> Row | BadRow:
    """Return a row, the members of its objects as columns `object.member`."""
    if not any(type(value) is dict for value in cells.values()):
        return Row(number, line, cells)
    flat: dict[str, Any] = {}
    try:
        _flatten(cells, "", flat, 0)
    except ValueError as error:
        return BadRow(number, line, "E-ROW-TYPE", str(error))
    return Row(number, line, flat)


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


class _Decoded:
    """Lines as text, with a note of a row that is too large or no UTF-8."""

    def __init__(self, lines: Iterable[bytes], max_row_bytes: int) -> None:
        self.has_ended = False
        self._lines = iter(lines)
        self._max_row_bytes = max_row_bytes
        self.begin_row()

    def begin_row(self) -> None:
        """Forget what was noted of the row before."""
        self.has_other_bytes = self.is_too_large = False
        self._row_bytes = 0

    def __iter__(self) -> "_Decoded":
        return self

    def __next__(self) -> str:
        try:
            line = next(self._lines)
        except StopIteration:
            self.has_ended = True
            raise
        if type(line) is LongLine or self._row_bytes + len(line) > self._max_row_bytes:
            self.is_too_large = True
            line = shorten(line)
        self._row_bytes += len(line)
        if self._row_bytes > 2 * self._max_row_bytes:  # although shortened: no quote in reach
            self.has_ended = True
            raise csv.Error
        try:
            return line.decode()
        except UnicodeDecodeError:
            self.has_other_bytes = True
            return line.decode(errors="replace")


def _csv_rows(lines: Iterable[bytes], piece: TablePiece, max_bytes: int) -> Iterator[Row | BadRow]:
    text = _Decoded(lines, max_bytes)
    reader = csv.reader(text, **csv_dialect(piece.format))
    number = piece.first_row - 1
    while True:
        number += 1
        line = piece.first_line + reader.line_num
        text.begin_row()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if text.has_ended:
                what = f"the quotes that open in line {line} or behind it are never closed"
                remedy = "close them, or double those that belong to a cell"
                raise table_fault("E-TAB-FORMAT", piece.file.where, what, remedy) from None
            yield BadRow(number, line, "E-ROW-CSV", str(error))
            continue
        if text.is_too_large:
            yield _too_large(number, line, max_bytes)
        elif text.has_other_bytes:
            yield BadRow(number, line, "E-ROW-TEXT", "no UTF-8")
        elif cells:
            yield _csv_row(number, line, cells, piece)


def _csv_row(number: int, line: int, cells: list[str], piece: TablePiece) -> Row | BadRow:
    if piece.format == "automl":
        return _automl_row(number, line, cells)
    columns = piece.columns
    if len(cells) != len(columns):
        detail = f"{len(cells)} cells, the header has {len(columns)}"
        return BadRow(number, line, "E-ROW-CSV", detail)
    return Row(
        number, line, {name: cell or None for name, cell in zip(columns, cells, strict=True)}
    )


def _automl_row(number: int, line: int, cells: list[str]) -> Row | BadRow:
    """Return a row of AutoML Vision's table: a set, which may be left out, a URI, and labels."""
    found = [cell.strip() for cell in cells]
    if "://" in found[0]:
        found.insert(0, "")
    if len(found) < 2 or "://" not in found[1]:
        return BadRow(number, line, "E-ROW-CSV", "neither SET,URI,LABEL… nor URI,LABEL…")
    split, uri, *labels = found
    labels = [label for label in labels if label]
    split = split.lower()
    return Row(
        number,
        line,
        {
            "split": _AUTOML_SETS.get(split, split) or None,
            "uri": uri,
            "label": labels if len(labels) > 1 else labels[0] if labels else None,
        },
    )


def _parquet_rows(piece: TablePiece, storage: Storage, max_bytes: int) -> Iterator[Row | BadRow]:
    import pyarrow

    number = piece.first_row
    parquet = open_parquet(storage, piece.file.entry, piece.file.where)
    group = parquet.metadata.row_group(piece.start)
    chunks = [group.column(place) for place in range(group.num_columns)]
    texts = [chunk for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"]
    if bomb := next((chunk for chunk in texts if _is_bomb(chunk, max_bytes)), None):
        what = f"row group {piece.start} ({bomb.total_compressed_size} bytes, packed)"
        for place in range(group.num_rows):
            yield _too_large(number + place, 0, max_bytes, what)
        return
    dictionaries = [chunk.path_in_schema for chunk in texts if chunk.has_dictionary_page]
    parquet = open_parquet(storage, piece.file.entry, piece.file.where, dictionaries)
    rows = PIECE_BYTES * group.num_rows // max(group.total_byte_size, 1)
    batches = parquet.iter_batches(
        max(1, min(rows, _PARQUET_BATCH_ROWS)), row_groups=[piece.start], use_threads=False
    )
    while True:
        try:
            batch = next(batches, None)
        except (pyarrow.ArrowException, OSError) as error:
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise  # the machine's, not the file's
            what = f"row group {piece.start} cannot be read ({str(error).splitlines()[0][:120]})"
            raise table_fault("E-TAB-FORMAT", piece.file.where, what, "write it anew") from None
        if batch is None:
            return
        for cells in _cells_within(batch, max_bytes):
            if cells is None:
                yield _too_large(number, 0, max_bytes, "a cell")
            elif isinstance(cells, ValueError | OverflowError):
                code = "E-ROW-TEXT" if isinstance(cells, UnicodeDecodeError) else "E-ROW-TYPE"
                yield BadRow(number, 0, code, f"a value that cannot be read: {cells}")
            else:
                yield _flat(number, 0, {name: _plain(value) for name, value in cells.items()})
            number += 1


def _is_bomb(chunk: Any, max_bytes: int) -> bool:
    """Return whether a column's pages, which are unpacked whole, grow beyond reason."""
    unpacked = chunk.total_uncompressed_size
    return unpacked > max_bytes and unpacked > _BOMB_RATIO * chunk.total_compressed_size


def _cells_within(
    batch: Any, max_bytes: int
) -> Iterator[dict[str, Any] | ValueError | OverflowError | None]:
    """Yield the cells of every row, or None where one is too large, a few megabytes at a time."""
    rows = batch.num_rows
    if sum(map(_unpacked_bytes, batch.columns)) <= min(PIECE_BYTES, max_bytes):
        yield from _cells_of(_unpacked(batch))
    elif rows > 1:
        yield from _cells_within(batch.slice(0, rows // 2), max_bytes)
        yield from _cells_within(batch.slice(rows // 2), max_bytes)
    elif max(map(_unpacked_bytes, batch.columns)) > max_bytes:
        yield None
    else:
        yield from _cells_of(_unpacked(batch))


def _unpacked_bytes(column: Any) -> int:
    """Return how many bytes an Arrow column's values have."""
    import pyarrow.compute
    import pyarrow.types as arrow

    is_dictionary = arrow.is_dictionary(column.type)
    kind = column.type.value_type if is_dictionary else column.type
    if kind not in (pyarrow.string(), pyarrow.binary()):
        return column.nbytes
    lengths = pyarrow.compute.binary_length(column.dictionary if is_dictionary else column)
    return pyarrow.compute.sum(
        lengths.take(column.indices) if is_dictionary else lengths, min_count=0
    ).as_py()


def _unpacked(batch: Any) -> Any:
    """Return an Arrow batch with values where it has indices of a dictionary."""
    import pyarrow
    import pyarrow.types as arrow

    columns = [
        column.dictionary_decode() if arrow.is_dictionary(column.type) else column
        for column in batch.columns
    ]
    return pyarrow.record_batch(columns, names=batch.schema.names)


def _cells_of(batch: Any) -> Iterator[dict[str, Any] | ValueError | OverflowError]:
    """Yield the cells of every row of an Arrow batch, or why Python has no such values."""
    if any("[ns" in str(column.type) for column in batch.columns):
        rows = (batch.slice(place, 1) for place in range(batch.num_rows))
        yield from map(_cells_of_row, rows)
        return
    try:
        yield from batch.to_pylist()
    except (ValueError, OverflowError):  # no UTF-8, or a date that Python has not
        for place in range(batch.num_rows):
            yield _cells_of_row(batch.slice(place, 1))


def _cells_of_row(row: Any) -> dict[str, Any] | ValueError | OverflowError:
    try:
        return {
            name: _value_of(column[0])
            for name, column in zip(row.schema.names, row.columns, strict=True)
        }
    except (ValueError, OverflowError) as error:
        return error


def _value_of(scalar: Any) -> Any:
    """Return an Arrow scalar's value; times in nanoseconds as text, since Python has none."""
    import pyarrow.types as arrow

    kind = scalar.type
    if not scalar.is_valid or "[ns" not in str(kind):
        return scalar.as_py()
    if arrow.is_struct(kind):
        return {name: _value_of(member) for name, member in scalar.items()}
    if arrow.is_dictionary(kind):
        return _value_of(scalar.value)
    if arrow.is_timestamp(kind) or arrow.is_time(kind) or arrow.is_duration(kind):
        return _time_of_ns(scalar.value, kind)
    return [_value_of(member) for member in scalar.values]


def _time_of_ns(value_ns: int, kind: Any) -> Any:
    """Return a time, as text where it has more digits than Python's times do."""
    import pyarrow
    import pyarrow.types as arrow

    value_us, rest_ns = divmod(value_ns, 1000)
    if arrow.is_duration(kind):
        in_us = pyarrow.duration("us")
    else:
        in_us = pyarrow.time64("us") if arrow.is_time(kind) else pyarrow.timestamp("us", kind.tz)
    time = pyarrow.scalar(value_us, in_us).as_py()
    if not rest_ns:
        return time
    if arrow.is_duration(kind):
        raise ValueError(f"a duration of {value_ns} ns, no whole number of microseconds")
    text = time.isoformat(timespec="microseconds")
    end = text.index(".") + 7
    return f"{text[:end]}{rest_ns:03}{text[end:]}"


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
