"""Parse the rows of CSV, TSV, JSON Lines and Parquet files.

One worker reads a text file as a stream. A Parquet file is divided into its row groups.
"""

import codecs
import contextlib
import csv
import functools
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import msgspec

from beam_tfrec.schemas.annotations.side_files import repeats_a_key
from beam_tfrec.schemas.columns import PARQUET, Cell
from beam_tfrec.schemas.faults import Reason, run_fault
from beam_tfrec.transforms.sources.hugging_face import NO_FEATURES, StoredFeatures, features_of
from beam_tfrec.transforms.storage import (
    Access,
    Entry,
    Storage,
    join_uri,
    open_storage,
    open_stored,
    open_unbuffered,
)

PIECE_BYTES = 8 << 20
DEFAULT_MAX_CELL_BYTES = 100_000_000
"""Maximum size of a cell in Parquet, and of a row in other formats; also BigQuery's row limit."""

_PARQUET_BUFFER_BYTES = 64 << 10
_IMAGES_BATCH_BYTES = 1 << 20  # small enough for the processor's caches: a quarter less time
_PARQUET_BATCH_ROWS = 64  # few, since each row may get a copy of one large dictionary value
_SCALARS = frozenset([bool, int, float, str, bytes, type(None)])
"""Types of Parquet values that are not converted. A row of only these is already flat."""

_SCHEMES = ("gs://", "s3://", "az://", "file://")

csv.field_size_limit(sys.maxsize)  # `max_cell_bytes` is the limit here


class TableFile(msgspec.Struct, frozen=True, array_like=True):
    """A table's file, or neighbouring row groups of a Parquet file.

    Attributes:
        split: split that the user gave the file for.
        root: URI of the folder.
        entry: name below the folder, size and pin.
        format: `csv`, `tsv`, `jsonl` or `parquet`; empty for a file that is only counted.
        prefix: text before the row number in rows' keys; empty for the only file of a split.
        place: index of the file among the split's files, or in the listing, sorted by name.
        row_group: number of the first row group; -1 for a whole file.
        first_row: number of the first row in the file.
        row_groups: number of row groups.
    """

    split: str
    root: str
    entry: Entry
    format: str
    prefix: str = ""
    place: int = 0
    row_group: int = -1
    first_row: int = 0
    row_groups: int = 1

    @property
    def where(self) -> str:
        """URI of the file, for messages."""
        return join_uri(self.root, self.entry.name)


Row = tuple[int, int, dict[str, Cell] | Reason]
"""A row: its number, its line, and its cells by column, or the fault of a row that cannot be read.

Numbers begin at 0 in each file, and blank lines count. Lines begin at 1; Parquet has line 0. An
empty cell is None or not in the mapping.
"""


class OpenTable(NamedTuple):
    """An opened piece of a table.

    Attributes:
        columns: names of a CSV or TSV file's columns, in order; empty for other formats.
        has_text_cells: whether all cells are text without a type, as in CSV.
        rows: all rows, in order; iteration reads some megabytes at a time.
        features: what a Parquet file's schema says of its columns.
    """

    columns: tuple[str, ...]
    has_text_cells: bool
    rows: Iterator[Row]
    features: StoredFeatures = NO_FEATURES


def read_features(file: TableFile, access: Access) -> StoredFeatures:
    """Return what a Parquet file's schema says; `E-TAB-FORMAT` if it is not Parquet."""
    return features_of(_open_parquet(file, open_storage(file.root, access)).schema_arrow)


def divide_file(file: TableFile, access: Access, piece_bytes: int = 0) -> Iterator[TableFile]:
    """Yield the row groups of a Parquet file in order, or a file of another format as it is.

    A piece has at least `piece_bytes`, of one or more row groups.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is not Parquet; `E-TAB-HEADER` when columns have
            no names or equal names.
    """
    if file.format != PARQUET:
        yield file
        return
    parquet = _open_parquet(file, open_storage(file.root, access))
    _check_names(parquet.schema_arrow.names, file.where)
    first = rows = rows_before = held_bytes = 0
    for group in range(parquet.metadata.num_row_groups):
        found = parquet.metadata.row_group(group)
        rows, held_bytes = rows + found.num_rows, held_bytes + found.total_byte_size
        if held_bytes >= piece_bytes or group + 1 == parquet.metadata.num_row_groups:
            yield msgspec.structs.replace(
                file, row_group=first, first_row=rows_before, row_groups=group + 1 - first
            )
            first, rows_before, held_bytes = group + 1, rows, 0


def open_table(
    file: TableFile,
    access: Access,
    max_cell_bytes: int = DEFAULT_MAX_CELL_BYTES,
    whole: Collection[str] = (),
) -> OpenTable:
    """Open a piece of a table for reading.

    Args:
        file: file, or row groups of a Parquet file.
        access: credentials and limits for stores.
        max_cell_bytes: limit of a cell in Parquet, and of a row in other formats. A larger one is
            a fault.
        whole: columns of Parquet whose cells stay objects; images are read piece by piece.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the content does not match the extension, or cannot be
            split into rows; `E-TAB-HEADER` when columns have no names or equal names.
    """
    storage = open_storage(file.root, access)
    if file.format == PARQUET:
        parquet = _open_parquet(file, storage, PIECE_BYTES if whole else 0)
        rows = _parquet_rows(parquet, file, max_cell_bytes, whole)
        return OpenTable((), False, rows, features_of(parquet.schema_arrow))
    lines = lines_of(open_stored(storage, file.entry, PIECE_BYTES), max_cell_bytes)
    if file.format == "jsonl":
        return OpenTable((), False, _json_rows(lines, max_cell_bytes))
    return _open_csv(lines, file, max_cell_bytes)


def lines_of(file: IO[bytes], max_bytes: int) -> Iterator[bytes | None]:
    r"""Yield the lines of a file with their line ends; None for a line above `max_bytes`.

    A byte order mark at the start is skipped.

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
    if isinstance(first, tuple):
        what = f"its first line is not a header of a {file.format} file ({first[1]})"
        raise run_fault("E-TAB-FORMAT", file.where, what, "write the file again, in UTF-8")
    header_rows, columns = 1, tuple(first)
    read_cells: Callable[[list[str]], Any] = functools.partial(_csv_row, columns=columns)
    # A table of AutoML Vision has no header.
    if any(cell.strip().startswith(_SCHEMES) for cell in first[:2]):
        rows = itertools.chain([(0, 1, first)], rows)
        header_rows, columns, read_cells = 0, ("split", "uri", "label"), _automl_row
    separator = "tab" if file.format == "tsv" else "comma"
    if len(columns) == 1 and (others := [other for other in ";\t|" if other in columns[0]]):
        what = f"has one column, {columns[0]!r}, with {others[0]!r} instead of a {separator}"
        remedy = f"write the file with a {separator}, or change the column's name"
        raise run_fault("E-TAB-HEADER", file.where, what, remedy)
    if not any(columns):
        what, remedy = "its first line is empty", "write the columns' names there"
        raise run_fault("E-TAB-HEADER", file.where, what, remedy)
    _check_names(columns, file.where)
    found = (
        (number - header_rows, line, cells if isinstance(cells, tuple) else read_cells(cells))
        for number, line, cells in rows
        if cells
    )
    return OpenTable(columns, header_rows == 1, found)


def require_columns(where: str, needed: Iterable[str], there: Sequence[str]) -> None:
    """Refuse a table without a needed column (`E-TAB-HEADER`)."""
    if missing := {*needed}.difference(there):
        remedy = f"give another table or name; this one has {', '.join(there[:20])}"
        raise run_fault("E-TAB-HEADER", where, f"has no column {min(missing)!r}", remedy)


def _check_names(names: Sequence[str], where: str) -> None:
    for number, name in enumerate(names, start=1):
        if not name.strip() or names.index(name) + 1 < number:
            what = f"column {number} of {len(names)} has no name or a repeated one: {name!r}"
            raise run_fault("E-TAB-HEADER", where, what, "give each column its own name")


def _too_large(max_bytes: int, what: str = "the row") -> Reason:
    detail = f"{what} has more than {max_bytes} bytes; --max_cell_bytes sets the limit"
    return ("E-ROW-TOO-LARGE", detail)


def _json_rows(lines: Iterable[bytes | None], max_bytes: int) -> Iterator[Row]:
    for number, line in enumerate(lines):
        if line is None or line.strip():
            yield number, number + 1, _json_row(line) if line else _too_large(max_bytes)


def _json_row(line: bytes) -> dict[str, Cell] | Reason:
    try:
        value = msgspec.json.decode(line)
        if not isinstance(value, dict):
            return ("E-ROW-JSON", f"not an object but of type {type(value).__name__}")
        if line.count(b":") > len(value) and repeats_a_key(line, value):
            return ("E-ROW-JSON", "a key is there twice")
    except UnicodeDecodeError as error:
        return ("E-ROW-TEXT", f"not UTF-8 at byte {error.start} of a text")
    except (msgspec.DecodeError, RecursionError) as error:
        return ("E-ROW-JSON", f"not JSON: {error}")
    return _flat(value)


def _flat(cells: dict[str, Any], whole: Collection[str] = ()) -> dict[str, Cell] | Reason:
    """Return a row's cells, with members of objects not in `whole` as columns `object.member`."""
    flat: dict[str, Any] = {}
    waiting = [*reversed(cells.items())]
    while waiting:
        name, value = waiting.pop()
        if type(value) is dict and name not in whole:
            members = reversed(value.items())
            waiting.extend((f"{name}.{member}", inside) for member, inside in members)
        elif name in flat:
            return ("E-ROW-TYPE", f"column {name!r} is there twice")
        else:
            flat[name] = value
    return flat


def _csv_rows(
    lines: Iterator[bytes | None], file: TableFile, max_bytes: int
) -> Iterator[tuple[int, int, list[str] | Reason]]:
    """Yield number, first line and cells of each row; a blank line has no cells.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the end of a row cannot be found.
    """
    first_line, row_bytes = 1, 0
    bad: Reason | None = None

    def texts() -> Iterator[str]:
        nonlocal row_bytes, bad
        for line in lines:
            row_bytes += len(line or b"")
            if line is None or row_bytes > max_bytes:
                if file.format != "tsv":  # quotes in the skipped part may contain line ends
                    what = f"the row of line {first_line} has more than {max_bytes} bytes"
                    remedy = "close its quotes, or raise --max_cell_bytes"
                    raise run_fault("E-TAB-FORMAT", file.where, what, remedy)
                bad, line = _too_large(max_bytes), b"\n"
            try:
                yield line.decode()
            except UnicodeDecodeError:
                bad = ("E-ROW-TEXT", "not UTF-8")
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
                what = f"quotes that open in line {first_line} or below are never closed"
                remedy = "close them, or double quotes that are part of a cell"
                raise run_fault("E-TAB-FORMAT", file.where, what, remedy) from None
            bad = ("E-ROW-CSV", str(error))
        yield number, first_line, bad or cells


def _csv_row(cells: list[str], columns: Sequence[str]) -> dict[str, Cell] | Reason:
    if len(cells) != len(columns):
        return ("E-ROW-CSV", f"{len(cells)} cells, the header has {len(columns)}")
    row = dict(zip(columns, cells, strict=True))
    return row if all(cells) else {name: cell for name, cell in row.items() if cell}


def _automl_row(cells: list[str]) -> dict[str, Cell] | Reason:
    """Return a row of an AutoML Vision table: an optional set, a URI, and labels."""
    values = [cell.strip() for cell in cells]
    if "://" in values[0]:
        values.insert(0, "")
    if len(values) < 2 or "://" not in values[1]:
        return ("E-ROW-CSV", "neither SET,URI,LABEL… nor URI,LABEL…")
    split, uri, *labels = values
    split = split.lower()
    split = "train" if split == "training" else split
    labels = [label for label in labels if label]
    label = labels if len(labels) > 1 else labels[0] if labels else None
    return {"split": split or None, "uri": uri, "label": label}


@contextlib.contextmanager
def _parquet_faults(file: TableFile) -> Iterator[None]:
    """Raise pyarrow's errors as faults of the file, except for errors of the machine."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
            raise
        what = f"cannot be read as Parquet ({str(error).splitlines()[0][:120]})"
        remedy = "give a Parquet file, or write it again"
        raise run_fault("E-TAB-FORMAT", file.where, what, remedy) from None


def _open_parquet(file: TableFile, storage: Storage, buffer_bytes: int = 0) -> Any:
    """Return pyarrow's `ParquetFile`, which reads a row group's column at once, or in pieces."""
    import pyarrow.parquet

    stored: IO[bytes] = open_unbuffered(storage, file.entry)
    if not buffer_bytes:
        stored = open_stored(storage, file.entry, _PARQUET_BUFFER_BYTES, sys.maxsize)
    with _parquet_faults(file):
        return pyarrow.parquet.ParquetFile(stored, buffer_size=buffer_bytes)


def _parquet_rows(
    parquet: Any, file: TableFile, max_bytes: int, whole: Collection[str]
) -> Iterator[Row]:
    """Yield the rows of row groups.

    Raises:
        RuntimeError: `E-TAB-FORMAT` when the file is damaged.
    """
    numbers = range(file.row_group, file.row_group + file.row_groups)
    groups = [parquet.metadata.row_group(number) for number in numbers]
    held_bytes = max(of.total_byte_size // max(of.num_rows, 1) for of in groups)  # by a row
    rows = (_IMAGES_BATCH_BYTES if whole else PIECE_BYTES) // max(held_bytes, 1)
    batches = parquet.iter_batches(
        max(1, min(rows, _PARQUET_BATCH_ROWS)), row_groups=[*numbers], use_threads=False
    )
    number, schema = itertools.count(file.first_row), _in_microseconds(parquet.schema_arrow)
    with _parquet_faults(file):
        for batch in batches:
            limit = max_bytes if batch.nbytes > max_bytes else sys.maxsize
            for cells in _cells_of(batch, schema):
                yield next(number), 0, _parquet_row(cells, limit, whole)


def _parquet_row(
    cells: dict[str, Any] | Exception, max_bytes: int, whole: Collection[str]
) -> dict[str, Cell] | Reason:
    if isinstance(cells, Exception):
        code = "E-ROW-TEXT" if isinstance(cells, UnicodeDecodeError) else "E-ROW-TYPE"
        return (code, f"a value that cannot be read: {cells}")
    is_flat = _SCALARS.issuperset(map(type, cells.values()))
    flat = cells if is_flat else _flat(cells, whole)
    if isinstance(flat, tuple):
        return flat
    if max_bytes < sys.maxsize and max(map(_cell_bytes, flat.values())) > max_bytes:
        return _too_large(max_bytes, "a cell")
    return flat if is_flat else {name: _plain(value) for name, value in flat.items()}


def _cell_bytes(value: Any) -> int:
    """Return the approximate size of a cell in bytes."""
    if isinstance(value, str | bytes):
        return len(value if isinstance(value, bytes) else value.encode())
    members = value.values() if isinstance(value, dict) else value
    return sum(map(_cell_bytes, members)) if isinstance(value, list | dict) else 8


def _cells_of(batch: Any, schema: Any) -> Iterator[dict[str, Any] | Exception]:
    """Yield the cells of each row of an Arrow batch, or the error of their conversion to Python."""
    try:
        yield from (batch if batch.schema == schema else batch.cast(schema)).to_pylist()
    except (ValueError, OverflowError) as error:  # not UTF-8, or a date out of Python's range
        if batch.num_rows == 1:
            yield error
            return
        for row in range(batch.num_rows):
            yield from _cells_of(batch.slice(row, 1), schema)


def _in_microseconds(schema: Any) -> Any:
    """Return a schema with times in microseconds, which is Python's resolution.

    A cast to it raises `ValueError` when a time has a fraction of a microsecond.
    """
    import pyarrow

    us = {make("ns"): make("us") for make in (pyarrow.time64, pyarrow.duration)}
    fields = []
    for field in schema:
        kind = us.get(field.type, field.type)
        if pyarrow.types.is_timestamp(kind):
            kind = pyarrow.timestamp("us", kind.tz)
        fields.append(field.with_type(kind))
    return pyarrow.schema(fields)


def _plain(value: Any) -> Any:
    """Return a Parquet value with times, dates and decimals as text.

    A dict or a tuple makes the row a reject later.
    """
    if type(value) in _SCALARS or isinstance(value, dict | tuple):
        return value
    if type(value) is list:
        return [_plain(member) for member in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
