import io
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transforms.shard_index import (
    IndexRow,
    Source,
    index_from_parquet,
    index_to_parquet,
    same_but_pins,
)

SHA = "ab" * 32
ROWS = [
    IndexRow(
        "30", 0, 120, [Source("a.jpg", 100, "1700000000000000001", SHA)], [1, 90, 1], 480, 640, 3
    ),
    IndexRow("4", 120, 64, [Source("b/caf\u00e9.jpg", 44, "7", SHA)], []),  # no objects
    IndexRow("pair", 184, 90, [Source("l.png", 1, "8", SHA), Source("h.png", 2, "9", SHA)], [2]),
    IndexRow("table row", 274, 20, [], [0]),  # made of no blob
]

sources = st.builds(
    Source, st.text(), st.integers(0, 2**62), st.text(max_size=20), st.text("0123456789abcdef")
)
rows = st.builds(
    IndexRow,
    st.text(),
    st.integers(0, 2**62),
    st.integers(16, 2**31),
    st.lists(sources, max_size=3),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5),
)


def test_a_plain_parquet_reader_sees_every_column() -> None:
    table = pq.read_table(io.BytesIO(index_to_parquet(ROWS)))

    assert table.to_pydict() == {
        "key": ["30", "4", "pair", "table row"],
        "offset": [0, 120, 184, 274],
        "size": [120, 64, 90, 20],
        "sources": [
            [{"name": "a.jpg", "size": 100, "pin": "1700000000000000001", "sha256": SHA}],
            [{"name": "b/caf\u00e9.jpg", "size": 44, "pin": "7", "sha256": SHA}],
            [
                {"name": "l.png", "size": 1, "pin": "8", "sha256": SHA},
                {"name": "h.png", "size": 2, "pin": "9", "sha256": SHA},
            ],
            [],
        ],
        "labels": [[1, 90, 1], [], [2], [0]],
        "image_height": [480, None, None, None],
        "image_width": [640, None, None, None],
        "objects": [3, None, None, None],
    }
    assert [str(column.type) for column in table.schema] == [
        "string",
        "int64",
        "int64",
        "list<element: struct<name: string not null, size: int64 not null,"
        " pin: string not null, sha256: string not null>>",
        "list<element: int64>",
        *["int64"] * 3,
    ]


@settings(deadline=None)  # the first call warms up
@given(st.lists(rows, max_size=5))
def test_parquet_gives_back_the_rows(written: list[IndexRow]) -> None:
    assert index_from_parquet(index_to_parquet(written)) == written


@pytest.mark.parametrize(
    "data", [b"no Parquet at all", b"PAR1" + bytes(20) + b"PAR1", index_to_parquet(ROWS)[:-5]]
)
def test_what_is_no_index_is_refused(data: bytes) -> None:
    other = io.BytesIO()
    pq.write_table(pa.table({"label": [1, 2]}), other)  # Parquet, but of something else
    for refused in (data, other.getvalue()):
        with pytest.raises(ValueError, match=r"^index must be a Parquet file of records, got "):
            index_from_parquet(refused)


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


OUT_OF_MEMORY = """
import resource
from pathlib import Path

from transforms.shard_index import IndexRow, index_from_parquet, index_to_parquet

data = index_to_parquet([IndexRow("a" * 100 * 2**20, 0, 16, [], [])])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = used + 50 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    index_from_parquet(data)
except MemoryError:
    print("out of memory")
"""


def test_an_index_that_does_not_fit_into_memory_is_not_called_garbage() -> None:
    run = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},  # holds on to nothing
        capture_output=True,
        text=True,
    )
    assert (run.stdout, run.stderr) == ("out of memory\n", "")
