"""Files of tables as pieces of whole rows, which workers read in parallel.

Lines are counted once, ahead of being read: then every row has its number, and a file can be
divided wherever a line ends. A CSV file with a quote anywhere is one piece, since a line may end
inside of quotes; it is read as a stream all the same.
"""

import codecs
import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
import msgspec

from schemas.faults import fault_line
from schemas.table_names import format_of
from transforms import coders
from transforms.batches import is_in_process
from transforms.sources.table_files import TableFile
from transforms.storage import Access, Entry, Storage, open_storage
from transforms.storage.stored_file import open_stored, read_chunks

PIECE_BYTES = 8 << 20
_PARQUET_BUFFER_BYTES = 64 << 10
MAX_CELL_BYTES = 256 << 20
AUTOML_COLUMNS = ("split", "uri", "label")
"""What the columns of AutoML Vision's table are called, whose files have no header."""

_AUTOML_SETS = {"", "train", "training", "validation", "test", "unassigned"}
_SCHEMES = ("gs://", "s3://", "az://", "file://")
_REWRITE = "write the file anew, in UTF-8"


class TablePiece(msgspec.Struct, frozen=True, array_like=True):
    """Whole rows of a file.

    Attributes:
        file: that they lie in.
        format: `csv`, `tsv`, `automl`, `jsonl`, `parquet`; empty for a file that is not called like
            a table, which is to be counted and left out.
        start: first byte; in Parquet first row group.
        end: behind the last one.
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
csv.field_size_limit(MAX_CELL_BYTES)


def lines_of(chunks: Iterator[bytes], where: str) -> Iterator[bytes]:
    """Yield lines with their ends.

    Raises:
        RuntimeError: `E-TAB-FORMAT` where a line has no end in reach.
    """
    rest: list[bytes] = []
    for chunk in chunks:
        first, newline, others = chunk.partition(b"\n")
        rest.append(first + newline)
        if not newline:
            if sum(map(len, rest)) > MAX_CELL_BYTES:
                what = f"a line of more than {MAX_CELL_BYTES} bytes"
                raise table_fault("E-TAB-FORMAT", where, what, "give a table with a row a line")
            continue
        yield b"".join(rest)
        *lines, last = io.BytesIO(others).readlines() or [b""]
        yield from lines
        rest = [last]
        if last.endswith(b"\n"):
            yield last
            rest = []
    if last_line := b"".join(rest):
        yield last_line


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
        for line in lines_of(iter([data]), where):
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
    """Return what Python's csv module is told of a format; a TSV file knows no quotes."""
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


def open_parquet(storage: Storage, entry: Entry, where: str):  # type: ignore[no-untyped-def]
    """Return pyarrow's `ParquetFile`.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is none.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        stored = open_stored(storage, entry, _PARQUET_BUFFER_BYTES, sys.maxsize)
        return pyarrow.parquet.ParquetFile(stored)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
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
