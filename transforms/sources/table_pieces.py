"""Files of tables as pieces of whole rows, which workers read in parallel.

Lines are counted once, ahead of being read: then every row has its number, and a file can be
divided wherever a line ends. A CSV file with a quote anywhere is one piece, since a line may end
inside of quotes; it is read as a stream all the same.
"""

import codecs
import csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
import msgspec

from schemas.columns import format_of
from schemas.faults import fault_line
from transforms import coders
from transforms.batches import is_in_process
from transforms.sources.table_files import TableFile
from transforms.storage import Access, Entry, Storage, open_storage
from transforms.storage.stored_file import open_stored, read_chunks

PIECE_BYTES = 8 << 20
_PARQUET_BUFFER_BYTES = 64 << 10
DEFAULT_MAX_CELL_BYTES = 100_000_000
"""Largest cell, and largest row of a file of lines.

BigQuery accepts no larger row, so tables that it loads or exports keep all of theirs. An image or a
clip that somebody stores in a cell seldom has a tenth of it.
"""

AUTOML_COLUMNS = ("split", "uri", "label")
"""What the columns of AutoML Vision's table are called, whose files have no header."""

_AUTOML_SETS = {"", "train", "training", "validation", "test", "unassigned"}
_SCHEMES = ("gs://", "s3://", "az://", "file://")
_REWRITE = "write the file anew, in UTF-8"
_RUN = re.compile(rb'([^"\n])[^"\n]*([^"\n])')
_QUOTES = re.compile(rb'"{3,}')


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


coders.register(TablePiece)
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
