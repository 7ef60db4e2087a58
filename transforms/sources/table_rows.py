"""Read the rows of one piece of a table; a row that cannot be read becomes a `BadRow`."""

import codecs
import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec

from schemas.annotations.json_sections import STRING, lone_surrogate_at
from schemas.columns import Cell, format_of
from schemas.faults import fault_line
from transforms.sources.elements import is_in_process
from transforms.storage import Access, Entry, Storage, join_uri, open_storage
from transforms.storage.stored_file import open_stored, read_chunks

_PARQUET_BATCH_ROWS = 4096  # at most, since a dictionary is copied for each batch

_BOMB_RATIO = 500  # pages that grow more are not unpacked where they exceed the limit

_MAX_DEPTH = 64

_PLAIN = frozenset([bool, int, float, str, bytes, type(None)])


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


DEFAULT_MAX_CELL_BYTES = 100_000_000
"""Largest cell, and largest row of a file of lines.

BigQuery accepts no larger row, so tables that it loads or exports keep all of theirs. An image or a
clip that somebody stores in a cell seldom has a tenth of it.
"""


class TablePiece(msgspec.Struct, frozen=True, array_like=True):
    """Whole rows of a file.

    Attributes:
        file: that they lie in.
        format: `csv`, `tsv`, `automl`, `jsonl`, `parquet`; empty for a file that is not called like
            a table, which is to be counted and left out.
        start: first byte; in Parquet first row group.
        end: after the last one.
        first_row: number of the first row in the file.
        first_line: number of its line, from 1; 0 in Parquet.
        columns: of CSV files, in their order.
    """

    file: TableFile
    format: str
    start: int
    end: int
    first_row: int = 0
    first_line: int = 0
    columns: tuple[str, ...] = ()

    @property
    def has_text_cells(self) -> bool:
        """Whether all cells are text, whose looks tell what they are."""
        return self.format in ("csv", "tsv")


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
            "split": "train" if split == "training" else split or None,
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


PIECE_BYTES = 8 << 20

_PARQUET_BUFFER_BYTES = 64 << 10

AUTOML_COLUMNS = ("split", "uri", "label")
"""What the columns of AutoML Vision's table are called, whose files have no header."""

_AUTOML_SETS = {"", "train", "training", "validation", "test", "unassigned"}

_SCHEMES = ("gs://", "s3://", "az://", "file://")

_REWRITE = "write the file anew, in UTF-8"

_RUN = re.compile(rb'([^"\n])[^"\n]*([^"\n])')

_QUOTES = re.compile(rb'"{3,}')


csv.field_size_limit(sys.maxsize)  # the readers of rows have a limit of their own


class LongLine(bytes):
    """A line that is larger than the limit, shortened by `shorten`."""


def shorten(line: bytes) -> bytes:
    r"""Return a short line in which a CSV row ends where it does in this one.

    Only quotes, and what stands next to them, decide whether a row goes on in the next line.

    >>> shorten(b'1,some text,"with ""quotes"", and\n')
    b'1,"w ""qs"",d\n'
    """
    runs_short = _RUN.sub(rb"\1\2", line)
    return _QUOTES.sub(lambda found: found[0][: 2 - len(found[0]) % 2], runs_short)


def keep_line_end(line: bytes) -> bytes:
    r"""Return the end of a line of a format in which every line is a row.

    >>> keep_line_end(b"{}\n"), keep_line_end(b"{}")
    (b'\n', b'')
    """
    return line[len(line.removesuffix(b"\n")) :]


def lines_of(
    chunks: Iterator[bytes],
    where: str,
    max_bytes: int,
    shorten: Callable[[bytes], bytes] = shorten,
) -> Iterator[bytes]:
    """Yield lines with their ends, those of more than `max_bytes` as a `LongLine`.

    Args:
        chunks: of a file.
        where: the file is, for messages.
        max_bytes: of a line.
        shorten: what is done to longer lines, part by part.

    Raises:
        RuntimeError: `E-TAB-FORMAT` where a shortened line is too large, too.
    """

    def line(parts: list[bytes], line_bytes: int) -> bytes:
        if line_bytes <= max_bytes:
            return b"".join(parts)
        return LongLine(b"".join(map(shorten, parts)))

    rest: list[bytes] = []
    rest_bytes = 0
    for chunk in chunks:
        first, newline, others = chunk.partition(b"\n")
        rest.append(first + newline)
        rest_bytes += len(rest[-1])
        if rest_bytes > max_bytes:
            rest = [shorten(part) for part in rest]
            if sum(map(len, rest)) > max_bytes:
                what = f"a line of more than {max_bytes} bytes, most of them quotes"
                raise table_fault("E-TAB-FORMAT", where, what, "give a table with a row a line")
        if not newline:
            continue
        yield line(rest, rest_bytes)
        *lines, last = io.BytesIO(others).readlines() or [b""]
        if len(others) <= max_bytes:
            yield from lines
        else:
            yield from (line([whole], len(whole)) for whole in lines)
        rest, rest_bytes = [last], len(last)
        if last.endswith(b"\n"):
            yield line(rest, rest_bytes)
            rest, rest_bytes = [], 0
    if rest_bytes:
        yield line(rest, rest_bytes)


def table_fault(code: str, where: str, what: str, remedy: str) -> RuntimeError:
    """Return the fault of a table as a whole."""
    return RuntimeError(fault_line(code, where, what, remedy))


def divide_file(file: TableFile, storage: Storage) -> Iterator[TablePiece]:
    """Yield the pieces of a file, in their order; none of a file without rows.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is not what it is called, `E-TAB-HEADER` when
            its columns have no names, or not different ones.
    """
    name_says = format_of(file.entry.name)
    if not name_says or not file.is_table:
        yield TablePiece(file, "", 0, 0)
        return
    if name_says == "parquet":
        yield from _divide_parquet(file, storage)
        return
    head = read_head(file, storage)
    may_quote = head.format in ("csv", "automl")
    chunks = read_chunks(storage, file.entry, head.start, file.entry.size_bytes, PIECE_BYTES)
    for begin, end, lines in divide_lines(chunks, head.start, may_quote=may_quote):
        yield _piece(file, head, begin, end, lines)


def first_piece(file: TableFile, storage: Storage) -> TablePiece | None:
    """Return a piece that begins with the first row, and may end inside of another."""
    if format_of(file.entry.name) == "parquet":
        return next(_divide_parquet(file, storage), None)
    head = read_head(file, storage)
    end = min(head.start + PIECE_BYTES, file.entry.size_bytes)
    return _piece(file, head, head.start, end, 0)


class Head(NamedTuple):
    """What a file of lines begins with: its format, where rows begin, and its columns if named."""

    format: str
    start: int
    lines: int
    columns: tuple[str, ...]


def read_head(file: TableFile, storage: Storage) -> Head:
    """Return what a file of lines begins with.

    Raises:
        RuntimeError: `E-TAB-FORMAT`, `E-TAB-HEADER`.
    """
    name_says = format_of(file.entry.name)
    chunks = read_chunks(storage, file.entry, 0, file.entry.size_bytes, PIECE_BYTES)
    data = next(chunks, b"")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise table_fault("E-TAB-FORMAT", file.where, "is in UTF-16", _REWRITE)
    start = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    if name_says == "jsonl":
        return Head(name_says, start, 0, ())
    first, lines, header_bytes = _first_record(data[start:], name_says, file.where)
    if is_automl_row(first):
        return Head("automl", start, 0, AUTOML_COLUMNS)
    _refuse_other_separators(first, name_says, file.where)
    return Head(name_says, start + header_bytes, lines, _checked_columns(first, file.where))


def _piece(file: TableFile, head: Head, start: int, end: int, row: int) -> TablePiece:
    return TablePiece(file, head.format, start, end, row, head.lines + row + 1, head.columns)


def divide_lines(
    chunks: Iterator[bytes], start: int, *, may_quote: bool
) -> list[tuple[int, int, int]]:
    r"""Return where pieces begin and end, and how many lines there are before each.

    One piece where a quote may hold the end of a line.

    >>> divide_lines(iter([b"a\nb", b"b\nc"]), 10, may_quote=False)
    [(10, 12, 0), (12, 15, 1), (15, 16, 2)]
    """
    pieces: list[tuple[int, int, int]] = []
    begin = at = start
    lines_before = lines = 0
    quoted = False
    for chunk in chunks:
        last_end = chunk.rfind(b"\n") + 1
        quoted = quoted or (may_quote and b'"' in chunk)
        if last_end:
            lines += chunk.count(b"\n")
            pieces.append((begin, at + last_end, lines_before))
            begin, lines_before = at + last_end, lines
        at += len(chunk)
    if begin < at:
        pieces.append((begin, at, lines_before))
    return [(start, at, 0)] if quoted and pieces else pieces


def is_automl_row(row: Sequence[str]) -> bool:
    """Return whether a first row is one of AutoML Vision's table, which has no header.

    >>> is_automl_row(["TRAIN", "gs://b/x.jpg", "cat"]), is_automl_row(["split", "uri", "label"])
    (True, False)
    """
    has_set = len(row) > 1 and row[0].strip().lower() in _AUTOML_SETS
    return bool(row) and row[has_set].strip().startswith(_SCHEMES)


def _first_record(data: bytes, name_says: str, where: str) -> tuple[list[str], int, int]:
    """Return the cells of the first row, its number of lines, and where the second one begins."""
    taken: list[bytes] = []

    def decoded() -> Iterator[str]:
        for line in lines_of(iter([data]), where, PIECE_BYTES):
            taken.append(line)
            yield line.decode()

    try:
        first = next(csv.reader(decoded(), **csv_dialect(name_says)), [])
    except (csv.Error, UnicodeDecodeError) as error:
        what = f"its first line is no header of a {name_says} file ({error})"
        raise table_fault("E-TAB-FORMAT", where, what, _REWRITE) from None
    if not "".join(first).strip():
        what = "has no header: its first line is empty"
        raise table_fault("E-TAB-FORMAT", where, what, "name its columns there")
    return first, len(taken), sum(map(len, taken))


def csv_dialect(found: str) -> dict:
    """Return the options of Python's csv module for a format; TSV files have no quotes."""
    if found == "tsv":
        return {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "strict": True}
    return {"strict": True}


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


def _divide_parquet(file: TableFile, storage: Storage) -> Iterator[TablePiece]:
    rows = 0
    parquet = open_parquet(storage, file.entry, file.where)
    _checked_columns(parquet.schema_arrow.names, file.where)
    for group in range(parquet.metadata.num_row_groups):
        yield TablePiece(file, "parquet", group, group + 1, rows)
        rows += parquet.metadata.row_group(group).num_rows


def open_parquet(  # type: ignore[no-untyped-def]
    storage: Storage, entry: Entry, where: str, dictionaries: Sequence[str] = ()
):
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
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise  # the machine's, not the file's
        what = f"is no Parquet file ({str(error).splitlines()[0][:120]})"
        raise table_fault("E-TAB-FORMAT", where, what, "give a Parquet file") from None


@dataclass(eq=False)
class DivideTables(beam.PTransform):
    """Table files -> pieces of whole rows, for workers to read in parallel.

    Attributes:
        access: how stores are reached.
    """

    access: Access

    def expand(self, files: beam.PCollection[TableFile]) -> beam.PCollection[TablePiece]:
        """Divide every file, one by one on a cluster."""
        in_process = is_in_process(files.pipeline)
        if not in_process:
            files |= "OneByOne" >> beam.Reshuffle()
        pieces = files | "Divide" >> beam.FlatMap(_divide, self.access)
        return pieces if in_process else pieces | "Spread" >> beam.Reshuffle()


def _divide(file: TableFile, access: Access) -> Iterator[TablePiece]:
    return divide_file(file, open_storage(file.root, access))
