"""The index of a shard: one row a record, as Parquet, and in the text form that DALI reads."""

import io
import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from schemas.tfrecord import FRAME_BYTES

_SOURCE = pa.struct(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("pin", pa.string(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
    ]
)
INDEX_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("sources", pa.list_(_SOURCE), nullable=False),
        pa.field("labels", pa.list_(pa.int64()), nullable=False),
        pa.field("image_height", pa.int64()),
        pa.field("image_width", pa.int64()),
        pa.field("objects", pa.int64()),
    ]
)


_SEAL = b"beam-tfrec-crc32c:"
_BLANK_SEAL = _SEAL + b"0" * 8
"""What an index says of itself while its CRC-32C is computed, which then stands there."""


class Source(msgspec.Struct, frozen=True, gc=False):
    """A blob of a record: name under its root, bytes, pin when read, hex SHA-256."""

    name: str
    size: int
    pin: str
    sha256: str


class IndexRow(msgspec.Struct, frozen=True, gc=False):
    """One record.

    Attributes:
        key: the sample's key.
        offset: of the record's frame in the file, in bytes.
        size: of the record with its 16 bytes of framing.
        sources: what it was made from.
        labels: its class labels.
        image_height: of its first picture, in px; None where it has none, as in what follows.
        image_width: likewise.
        objects: their number.
    """

    key: str
    offset: int
    size: int
    sources: list[Source]
    labels: list[int]
    image_height: int | None = None
    image_width: int | None = None
    objects: int | None = None


def index_to_parquet(rows: Sequence[IndexRow]) -> bytes:
    """Return the rows as a Parquet file, its bytes equal for equal rows and pyarrow.

    The file holds its own CRC-32C. The manifest cannot hold it: an index has the times of local
    sources, and a manifest is the same for the same data.
    """
    out = io.BytesIO()
    table = table_of_rows(rows).replace_schema_metadata({"seal": _BLANK_SEAL})
    pq.write_table(table, out, compression="zstd")
    return _sealed(out.getvalue())


def table_of_rows(rows: Sequence[IndexRow]) -> pa.Table:
    """Return the rows as columns."""
    columns = {
        "key": [row.key for row in rows],
        "offset": [row.offset for row in rows],
        "size": [row.size for row in rows],
        "sources": _sources_column(rows),
        "labels": [row.labels for row in rows],
        "image_height": [row.image_height for row in rows],
        "image_width": [row.image_width for row in rows],
        "objects": [row.objects for row in rows],
    }
    return pa.table(columns, schema=INDEX_SCHEMA)


def is_index_as_written(data: bytes) -> bool:
    """Return whether a Parquet index still matches the CRC-32C that it holds."""
    at = data.rfind(_SEAL)
    return at >= 0 and _sealed(data[:at] + _BLANK_SEAL + data[at + len(_BLANK_SEAL) :]) == data


def _sealed(blank: bytes) -> bytes:
    at = blank.rindex(_BLANK_SEAL) + len(_SEAL)
    return blank[:at] + b"%08x" % google_crc32c.value(blank) + blank[at + 8 :]


def _sources_column(rows: Sequence[IndexRow]) -> pa.ListArray:
    """Return the column by its parts: of dictionaries it would take five times as long."""
    sources = [source for row in rows for source in row.sources]
    parts = [
        pa.array(list(map(operator.attrgetter(field.name), sources)), field.type)
        for field in _SOURCE
    ]
    starts = list(itertools.accumulate((len(row.sources) for row in rows), initial=0))
    return pa.ListArray.from_arrays(
        pa.array(starts, pa.int32()),
        pa.StructArray.from_arrays(parts, fields=list(_SOURCE)),
        type=INDEX_SCHEMA.field("sources").type,
    )


def index_from_parquet(data: bytes) -> list[IndexRow]:
    """Return the rows of a Parquet index.

    Raises:
        ValueError: when it is none.
        MemoryError: when it does not fit, which says nothing about the file.
    """
    try:
        # Not `pq.read_table`: its threads outlive it, and now and then abort Python as it ends.
        file = pq.ParquetFile(pa.BufferReader(data))
        names = set(file.schema_arrow.names)  # before format version 3 it had fewer columns
        columns = [name for name in INDEX_SCHEMA.names if name in names]
        table = file.read(columns, use_threads=False)
        table.validate(full=True)
        return _rows(table)
    except MemoryError:  # pyarrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(f"index must be a Parquet file of records, got {error}") from error


def _rows(table: pa.Table) -> list[IndexRow]:
    """Return a table's rows, made column by column: a dictionary a row takes five times as long."""
    required = [field for field in INDEX_SCHEMA if not field.nullable]
    columns = [table[field.name].combine_chunks() for field in required]
    for column, field in zip(columns, required, strict=True):
        _require_values(column, field)
    keys, offsets, sizes, sources, labels = columns
    parts = [sources.values.field(field.name) for field in _SOURCE]
    for part, field in zip(parts, _SOURCE, strict=True):
        _require_values(part, field)
    found = list(map(Source, *map(_listed, parts)))
    return list(
        map(
            IndexRow,
            *map(_listed, (keys, offsets, sizes)),
            _in_lists(sources, found),
            _in_lists(labels, _listed(labels.values)),
            *(_optional(table, field) for field in INDEX_SCHEMA if field.nullable),
        )
    )


def _optional(table: pa.Table, field: pa.Field) -> list[int | None]:
    """Return a column that may have nulls; nothing but None before format version 3."""
    if field.name not in table.column_names:
        return [None] * table.num_rows
    column = table[field.name].combine_chunks()
    if column.type != field.type:
        raise ValueError(f"index must have a {field.name} of {field.type}, got {column.type}")
    return column.to_pylist() if column.null_count else _listed(column)


def _require_values(column: pa.Array, field: pa.Field) -> None:
    has_null = column.null_count or (pa.types.is_list(column.type) and column.values.null_count)
    if column.type != field.type or has_null:
        raise ValueError(f"index must have a {field.name} of every record, got {column.type}")


def _listed(column: pa.Array) -> list[Any]:
    """Return texts or numbers as a list, in a fraction of the time of `to_pylist`."""
    return column.to_numpy(zero_copy_only=False).tolist()


def _in_lists(column: pa.ListArray, values: list[Any]) -> list[list[Any]]:
    """Return the values of a column of lists, list by list."""
    return [values[first:end] for first, end in itertools.pairwise(_listed(column.offsets))]


class FirstSource(NamedTuple):
    """What a record was made from: its key, and the name and hex SHA-256 of its first source."""

    key: str
    name: str
    sha256: str


def first_sources_from_parquet(data: bytes) -> list[FirstSource]:
    """Return the first sources of the records of a Parquet index that have any, in their order.

    By columns, and without what pyarrow would import for more: some 5 ms for 5,000.

    Raises:
        ValueError: when it is no index.
        MemoryError: when it does not fit, which says nothing about the file.
    """
    try:
        columns = pq.ParquetFile(pa.BufferReader(data))
        table = columns.read(["key", "sources"], use_threads=False)
        keys, sources = table["key"].to_pylist(), table["sources"].combine_chunks()
        names = sources.values.field("name").to_pylist()
        sha256s = sources.values.field("sha256").to_pylist()
        places = itertools.pairwise(sources.offsets.to_pylist())
        return [
            FirstSource(key, names[first], sha256s[first])
            for key, (first, end) in zip(keys, places, strict=True)
            if first < end
        ]
    except MemoryError:  # pyarrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(f"index must be a Parquet file of records, got {error}") from error


def offsets_from_parquet(data: bytes, records: int, file_bytes: int) -> Any:
    """Return the offsets of a shard's records, and last the end of its last record.

    By two columns, some milliseconds; no row is made.

    Args:
        data: of the Parquet index.
        records: of the shard, as the manifest says.
        file_bytes: size of the shard, as the manifest says.

    Returns:
        A NumPy array int64 [records + 1], in bytes from the beginning of the file.

    Raises:
        ValueError: when it is no index, or one of other records.
    """
    import numpy as np

    table = _columns(data, ["offset", "size"], records)
    offsets, sizes = (table[name].to_numpy() for name in ("offset", "size"))
    ends = np.append(offsets, file_bytes)
    if ends[0] != 0 or (sizes < FRAME_BYTES).any() or (ends[1:] - ends[:-1] != sizes).any():
        raise ValueError(f"index must be of records that fill {file_bytes} bytes, got others")
    return ends


def keys_from_parquet(data: bytes, records: int) -> list[str]:
    """Return the keys of a shard's records in their order.

    Raises:
        ValueError: when it is no index, or one of another number of records.
    """
    keys = _columns(data, ["key"], records)["key"].to_pylist()
    if not all(isinstance(key, str) for key in keys):
        raise ValueError("index must have a key of every record, got none of some")
    return keys


def report_columns_from_parquet(data: bytes) -> pa.Table:
    """Return what a report aggregates of an index: all columns but the sources.

    Before format version 3 an index has no sizes of pictures and no numbers of objects.

    Raises:
        ValueError: when it is no index.
        MemoryError: when it does not fit, which says nothing about the file.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        names = [name for name in INDEX_SCHEMA.names if name != "sources"]
        table = file.read(
            [name for name in names if name in file.schema_arrow.names], use_threads=False
        )
        table.validate(full=True)
        schema = pa.schema([INDEX_SCHEMA.field(name) for name in table.column_names])
        if not {"key", "offset", "size", "labels"} <= set(table.column_names):
            raise ValueError(f"index must have keys, offsets, sizes and labels, got {table.schema}")
        if table.schema.types != schema.types:
            raise ValueError(f"index must have columns of {schema}, got {table.schema}")
        return table.combine_chunks()
    except MemoryError:  # pyarrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"index must be a Parquet file of records, got {error}") from error


def _columns(data: bytes, names: list[str], records: int) -> pa.Table:
    """Return columns of a Parquet index that are as we write them, but in their values."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows != records:
            raise ValueError(f"index must be of {records} records, got {file.metadata.num_rows}")
        table = file.read(names, use_threads=False)
        table.validate(full=True)
    except MemoryError:  # pyarrow's is an ArrowException too
        raise
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(f"index must be a Parquet file of records, got {error}") from error
    if table.num_rows != records or table.column_names != names:
        raise ValueError(f"index must be of {records} records, got {table.num_rows}")
    for name in names:
        column = table[name]
        if column.type != INDEX_SCHEMA.field(name).type or column.null_count:
            raise ValueError(f"index must have a {name} of every record, got {column.type}")
    return table


def index_to_text(rows: Sequence[IndexRow]) -> bytes:
    """Return DALI's `tfrecord2idx` form: a line `offset size` a record.

    >>> index_to_text([IndexRow("1", 0, 20, [], []), IndexRow("2", 20, 36, [], [])])
    b'0 20\\n20 36\\n'
    """
    return "".join(f"{row.offset} {row.size}\n" for row in rows).encode()


def same_but_pins(rows: Sequence[IndexRow], others: Sequence[IndexRow]) -> bool:
    """Return whether two indexes tell of the same records, whenever their sources were touched."""
    return [_without_pins(row) for row in rows] == [_without_pins(row) for row in others]


def _without_pins(row: IndexRow) -> IndexRow:
    sources = [msgspec.structs.replace(source, pin="") for source in row.sources]
    return msgspec.structs.replace(row, sources=sources)
