"""The index of a shard: one row per record, as Parquet, and as text for NVIDIA DALI."""

import io
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from beam_tfrec.schemas.tfrecord import FRAME_BYTES, is_array_record

_SEAL = b"beam-tfrec-crc32c:"
_BLANK_SEAL = _SEAL + b"0" * 8
"""Placeholder of an index's own CRC-32C while it is computed."""


class Source(msgspec.Struct, frozen=True, gc=False):
    """A source file of a record: name below its root, size in bytes, pin, SHA-256 in hex.

    The pin is the file's modification time or generation when it was read.
    """

    name: str
    size: int
    pin: str
    sha256: str


class IndexRow(msgspec.Struct, frozen=True, gc=False):
    """Index row of one record.

    Attributes:
        key: key of the sample.
        offset: offset of the record's frame in the shard file, in bytes. In an ArrayRecord file,
            its number in the file, from 0, by which readers of that format read it.
        size: size of the record with its 16 bytes of framing; in ArrayRecord without framing.
        sources: source files of the record.
        labels: class labels of the record.
        image_height: height of the first image, or of the plain pixels, in px; None without these.
        image_width: width of it, in px.
        objects: number of objects; None if the layout has no objects.
        crc32c: CRC-32C of the record without framing; None before format version 4.
    """

    key: str
    offset: int
    size: int
    sources: list[Source]
    labels: list[int]
    image_height: int | None = None
    image_width: int | None = None
    objects: int | None = None
    crc32c: int | None = None


def _columns(struct: type, types: Mapping[Any, pa.DataType]) -> list[pa.Field]:
    """Return a column for each field of a struct; a field with a default may be null."""
    fields = msgspec.structs.fields(struct)
    return [pa.field(f.name, types[f.type], nullable=not f.required) for f in fields]


_TYPES = {
    str: pa.string(),
    int: pa.int64(),
    int | None: pa.int64(),
    list[int]: pa.list_(pa.int64()),
}
_SOURCES = pa.list_(pa.struct(_columns(Source, _TYPES)))
INDEX_SCHEMA = pa.schema(_columns(IndexRow, {**_TYPES, list[Source]: _SOURCES}))
"""Columns of an index in Parquet."""


class ReadyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of an index row that is known before its record has a place in a shard.

    A copied record keeps it from its source. It is part of the plan, so it has no pins. For a row
    of a table without images, most of it is empty.

    Attributes:
        crc32c: CRC-32C of the record without framing.
        sources: name, size in bytes and SHA-256 in hex of each source file.
        labels: class labels of the record.
        image_height: as in `IndexRow`.
        image_width: as in `IndexRow`.
        objects: as in `IndexRow`.
    """

    crc32c: int
    sources: list[tuple[str, int, str]]
    labels: list[int]
    image_height: int | None = None
    image_width: int | None = None
    objects: int | None = None

    def at(self, key: str, offset: int, size: int) -> IndexRow:
        """Return the row of the copy."""
        sources = [Source(name, size, "", sha256) for name, size, sha256 in self.sources]
        facts = self.image_height, self.image_width, self.objects, self.crc32c
        return IndexRow(key, offset, size, sources, self.labels, *facts)


def ready_row(row: IndexRow, crc32c: int) -> ReadyRow:
    """Return what a copy of a record keeps of its row."""
    sources = [(source.name, source.size, source.sha256) for source in row.sources]
    facts = row.image_height, row.image_width, row.objects
    return ReadyRow(crc32c, sources, row.labels, *facts)


def index_to_parquet(rows: Sequence[IndexRow]) -> bytes:
    """Return the rows as a Parquet file; equal rows and pyarrow versions give equal bytes.

    The file holds its own CRC-32C. The manifest cannot hold it, since an index has modification
    times of local sources, and the manifest must not depend on these.
    """
    out = io.BytesIO()
    table = table_of_rows(rows).replace_schema_metadata({"seal": _BLANK_SEAL})
    pq.write_table(table, out, compression="zstd")
    return _sealed(out.getvalue())


def table_of_rows(rows: Sequence[IndexRow]) -> pa.Table:
    """Return the rows as a table with `INDEX_SCHEMA`."""
    columns = {name: [*map(operator.attrgetter(name), rows)] for name in INDEX_SCHEMA.names}
    columns["sources"] = msgspec.to_builtins(columns["sources"])
    return pa.Table.from_pydict(columns, schema=INDEX_SCHEMA)


def index_to_text(rows: Sequence[IndexRow]) -> bytes:
    """Return the format of DALI's `tfrecord2idx`: a line `offset size` per record.

    >>> index_to_text([IndexRow("1", 0, 20, [], []), IndexRow("2", 20, 36, [], [])])
    b'0 20\\n20 36\\n'
    """
    return "".join(f"{row.offset} {row.size}\n" for row in rows).encode()


def is_index_as_written(data: bytes) -> bool:
    """Return whether a Parquet index still matches the CRC-32C that it holds."""
    at = data.rfind(_SEAL)
    return at >= 0 and _sealed(data[:at] + _BLANK_SEAL + data[at + len(_BLANK_SEAL) :]) == data


def index_columns(data: bytes, names: Sequence[str], records: int | None = None) -> pa.Table:
    """Return columns of a Parquet index; optional columns that an older index lacks are left out.

    Args:
        data: content of the index.
        names: names of the columns.
        records: expected number of records; None to skip this check.

    Raises:
        ValueError: when the data is not an index, or has another number of records.
        MemoryError: when memory is too small; the index may be fine.
    """
    try:
        # Not `pq.read_table`: its threads stay alive, and sometimes abort Python on exit.
        file = pq.ParquetFile(pa.BufferReader(data))
        if records not in (None, file.metadata.num_rows):  # before memory is taken for all rows
            raise ValueError(f"index must have {records} records, got {file.metadata.num_rows}")
        stored = set(file.schema_arrow.names)
        fields = [INDEX_SCHEMA.field(name) for name in names]
        fields = [field for field in fields if field.name in stored or not field.nullable]
        table = file.read([field.name for field in fields], use_threads=False)
        table.validate(full=True)
        table = table.combine_chunks()
        columns = [table[field.name].combine_chunks() for field in fields]
    except MemoryError:  # pyarrow's MemoryError is also an ArrowException
        raise
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError(f"index must be a Parquet file of records, got {error}") from error
    for field, column in zip(fields, columns, strict=True):
        if column.type != field.type or (not field.nullable and _has_null(column)):
            what = f"index must have {field.name} in every row, as {field.type}"
            raise ValueError(f"{what}, got {column.type}")
    if records not in (None, table.num_rows):
        raise ValueError(f"index must have {records} records, got {table.num_rows}")
    return table


def index_from_parquet(data: bytes) -> list[IndexRow]:
    """Return the rows of a Parquet index.

    Raises:
        ValueError: when the data is not an index.
        MemoryError: when memory is too small; the index may be fine.
    """
    table = index_columns(data, INDEX_SCHEMA.names)
    stored = {name: _values(table[name].combine_chunks()) for name in table.column_names}
    columns = [stored.get(name, [None] * table.num_rows) for name in INDEX_SCHEMA.names]
    return [IndexRow(*row) for row in zip(*columns, strict=True)]


def index_of_shard(data: bytes, name: str, shard_bytes: int) -> list[IndexRow]:
    """Return the rows of a Parquet index that is undamaged and describes a whole shard.

    Args:
        data: content of the index.
        name: name of the index.
        shard_bytes: size of the shard.

    Raises:
        ValueError: when the data is damaged, or describes another shard.
        MemoryError: when memory is too small; the index may be fine.
    """
    rows = index_from_parquet(data)
    if _SEAL in data and not is_index_as_written(data):
        raise ValueError("its bytes do not match its own CRC-32C")
    sizes = [row.size for row in rows]
    if is_array_record(name):
        if [row.offset for row in rows] != [*range(len(rows))]:
            raise ValueError("its offsets are not the numbers of its records")
    elif sum(sizes) != shard_bytes or min(sizes, default=FRAME_BYTES) < FRAME_BYTES:
        raise ValueError(f"its records do not fill the shard's {shard_bytes} bytes")
    return rows


def _values(column: pa.Array) -> list:
    """Return a column's values; `to_pylist` of nested columns takes ten times as long."""
    if pa.types.is_list(column.type):
        values, ends = _values(column.values), column.offsets.to_pylist()
        return [values[start:end] for start, end in itertools.pairwise(ends)]
    if pa.types.is_struct(column.type):
        fields = [_values(column.field(place)) for place in range(column.type.num_fields)]
        return [Source(*source) for source in zip(*fields, strict=True)]
    flat: list = column.to_pylist()
    return flat


def same_but_pins(rows: Sequence[IndexRow], others: Sequence[IndexRow]) -> bool:
    """Return whether two indexes describe the same records; pins of sources may differ."""
    return [_without_pins(row) for row in rows] == [_without_pins(row) for row in others]


def _without_pins(row: IndexRow) -> IndexRow:
    sources = [msgspec.structs.replace(source, pin="") for source in row.sources]
    return msgspec.structs.replace(row, sources=sources)


def _sealed(blank: bytes) -> bytes:
    at = blank.rindex(_BLANK_SEAL) + len(_SEAL)
    return blank[:at] + b"%08x" % google_crc32c.value(blank) + blank[at + 8 :]


def _has_null(column: pa.Array) -> bool:
    inner = column.flatten() if pa.types.is_nested(column.type) else []
    inner = [inner] if isinstance(inner, pa.Array) else inner
    return bool(column.null_count) or any(map(_has_null, inner))
