import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_tfrec.transforms.shard_index import (
    IndexRow,
    Source,
    index_from_parquet,
    index_to_parquet,
    same_but_pins,
)

SHA = "ab" * 32
ROWS = [
    IndexRow(
        "30",
        0,
        120,
        [Source("a.jpg", 100, "1700000000000000001", SHA)],
        [1, 90, 1],
        480,
        640,
        3,
        2**32 - 1,
    ),
    IndexRow("4", 120, 64, [Source("b/caf\u00e9.jpg", 44, "7", SHA)], []),  # no objects
    IndexRow("pair", 184, 90, [Source("l.png", 1, "8", SHA), Source("h.png", 2, "9", SHA)], [2]),
    IndexRow("table row", 274, 20, [], [0]),  # without source files
]


def test_a_plain_parquet_reader_sees_every_column() -> None:
    table = pq.read_table(io.BytesIO(index_to_parquet(ROWS)))
    assert table.to_pylist() == [msgspec.to_builtins(row) for row in ROWS]
    assert [f"{column.name}: {column.type}" for column in table.schema] == [
        "key: string",
        "offset: int64",
        "size: int64",
        "sources: list<element: struct<name: string not null, size: int64 not null,"
        " pin: string not null, sha256: string not null>>",
        "labels: list<element: int64>",
        *("image_height: int64", "image_width: int64", "objects: int64", "crc32c: int64"),
    ]


@pytest.mark.parametrize("names", [[], ["image_height"], ["image_width", "objects", "crc32c"]])
def test_optional_columns_may_be_missing(names: list[str]) -> None:
    older = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(index_to_parquet(ROWS))).drop_columns(names), older)
    expected = [msgspec.structs.replace(row, **dict.fromkeys(names)) for row in ROWS]
    assert index_from_parquet(older.getvalue()) == expected


def test_other_files_are_refused() -> None:
    other = io.BytesIO()
    pq.write_table(pa.table({"label": [1, 2]}), other)
    for data in (b"no Parquet", index_to_parquet(ROWS)[:-5], other.getvalue()):
        with pytest.raises(ValueError, match=r"^index must be a Parquet file of records, got "):
            index_from_parquet(data)


ROW, SOURCE = ROWS[0], ROWS[0].sources[0]
changed = msgspec.structs.replace


@pytest.mark.parametrize(
    ("others", "same"),
    [
        ([ROW], True),
        ([changed(ROW, sources=[changed(SOURCE, pin="touched")])], True),
        ([changed(ROW, sources=[changed(SOURCE, sha256="cd" * 32)])], False),
        ([changed(ROW, key="31")], False),
        ([changed(ROW, objects=2)], False),
        (ROWS[:2], False),
    ],
)
def test_only_pins_may_differ(others: list[IndexRow], same: bool) -> None:
    assert same_but_pins([ROW], others) is same
