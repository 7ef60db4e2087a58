"""Rows of tables and the samples that they become."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.columns import FLOAT, INT, TEXT, ColumnFacts
from schemas.faults import Rejected
from schemas.fields import labels_of, row_bytes, row_of
from schemas.samples import Blob, Sample
from schemas.splits import HASH, Splitting
from transforms.sources.read_samples import SplitSource
from transforms.sources.read_table import TableFile, TableReader, name_in_root
from transforms.sources.table_rows import BadRow, Row, TablePiece, divide_file, open_piece
from transforms.storage import DEFAULT_ACCESS, open_storage

GIVEN = Splitting()


def piece_list(path: Path, place: int = 0, prefix: str = "") -> list[TablePiece]:
    storage = open_storage(str(path.parent))
    entry = storage.stat(path.name)
    assert entry is not None
    return [*divide_file(TableFile("train", str(path.parent), entry, place, prefix), storage)]


def rows(path: Path, data: bytes, **limit: int) -> list[Row | BadRow]:
    path.write_bytes(data)
    storage = open_storage(str(path.parent))
    return [row for piece in piece_list(path) for row in open_piece(piece, storage, **limit).rows]


def read(path: Path, data: str, **reader: Any) -> list[Sample | Rejected | SplitSource]:
    path.write_text(data)
    read_piece = TableReader(reader.pop("splitting", GIVEN), DEFAULT_ACCESS, **reader)
    return [item for piece in piece_list(path) for item in read_piece(piece)]


def samples(path: Path, data: str, **reader: Any) -> list[Sample]:
    return [item for item in read(path, data, **reader) if isinstance(item, Sample)]


def rejects(path: Path, data: str, **reader: Any) -> list[tuple[str, str, str]]:
    found = [item for item in read(path, data, **reader) if isinstance(item, Rejected)]
    return [(item.key, item.code, item.detail) for item in found]


# --- rows ---


TOO_LARGE = "E-ROW-TOO-LARGE"
IN_20_BYTES = "more than 20 bytes; --max_cell_bytes sets the limit"


def codes(found: list[Row | BadRow]) -> list[tuple[int, int, str]]:
    return [(row.number, row.line, getattr(row, "code", "")) for row in found]


@pytest.mark.parametrize(
    ("name", "header", "row", "long_row"),
    [
        ("t.tsv", b"a\tb\n", b"1\t2", b'1\t"' + b"x" * 30),
        ("t.jsonl", b"", b'{"a":1,"b":2}', b'{"a":"' + b"x" * 30 + b'"}'),
    ],
)
def test_a_line_that_is_too_large_is_one_reject(
    name: str, header: bytes, row: bytes, long_row: bytes, tmp_path: Path
) -> None:
    data = header + b"\n".join([row, long_row, row, b""])

    before, large, after = rows(tmp_path / name, data, max_cell_bytes=20)

    first = 1 + bool(header)
    assert codes([before, after]) == [(0, first, ""), (2, first + 2, "")]
    assert large == BadRow(1, first + 1, TOO_LARGE, f"the row has {IN_20_BYTES}")


ENDLESS = "the quotes that open in line 3 or below it are never closed; close them, or double those"
LARGE = "the row of line 3 has more than 20 bytes; close its quotes, or raise --max_cell_bytes"


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b'a,b\n1,2\n1,"2\n3,4\n', ENDLESS),
        (b"a,b\n1,2\n" + b"x" * 30 + b",1\n", LARGE),
        (b'a,b\n1,2\n1,"' + b"xxx,\n" * 9 + b'"\n', LARGE),  # a cell of many short lines
    ],
)
def test_rows_of_csv_whose_end_is_not_known_stop_the_run(
    data: bytes, line: str, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError) as raised:
        rows(tmp_path / "t.csv", data, max_cell_bytes=20)

    assert f"E-TAB-FORMAT {tmp_path}/t.csv: {line}" in str(raised.value)


def test_times_in_nanoseconds_are_those_in_microseconds(tmp_path: Path) -> None:
    second = 1_577_934_245_000_000_000
    data = parquet(
        tmp_path / "t.parquet",
        ts=pa.array([second, second + 1000, None, second + 1], pa.timestamp("ns")),
        tz=pa.array([second, None, None, None], pa.timestamp("ns", "Europe/Berlin")),
        time=pa.array([1_000_001_000, None, None, None], pa.time64("ns")),
    )

    first, second_row, third, bad = rows(tmp_path / "t.parquet", data)

    assert first == Row(
        0,
        0,
        {
            **{"ts": "2020-01-02T03:04:05", "tz": "2020-01-02T04:04:05+01:00"},
            "time": "00:00:01.000001",
        },
    )
    assert isinstance(second_row, Row)
    assert second_row.cells["ts"] == "2020-01-02T03:04:05.000001"
    assert third == Row(2, 0, {"ts": None, "tz": None, "time": None})
    assert isinstance(bad, BadRow)
    assert (bad.number, bad.code) == (3, "E-ROW-TYPE")


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_cell_of_parquet_that_is_too_large(use_dictionary: bool, tmp_path: Path) -> None:
    columns = {
        "text": ["a", "x" * 21, "x" * 20, None, "b", "c"],
        "data": [b"a", b"b", b"c", b"y" * 21, None, b"d"],
        "list": [[1], [2], [], None, [1] * 100, [3]],
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, use_dictionary=use_dictionary)

    found = rows(path, path.read_bytes(), max_cell_bytes=20)

    assert codes(found) == [
        (0, 0, ""),
        (1, 0, TOO_LARGE),
        (2, 0, ""),
        (3, 0, TOO_LARGE),
        (4, 0, TOO_LARGE),
        (5, 0, ""),
    ]
    assert found[1] == BadRow(1, 0, TOO_LARGE, f"a cell has {IN_20_BYTES}")
    assert found[2] == Row(2, 0, {"text": "x" * 20, "data": b"c", "list": []})


def test_rows_of_csv(tmp_path: Path) -> None:
    data = b'a,b\r\n1,"x\r\ny"\r\n\r\n,"a ""b"""\r\n'

    assert rows(tmp_path / "t.csv", data) == [
        Row(0, 2, {"a": "1", "b": "x\r\ny"}),
        Row(2, 5, {"a": None, "b": 'a "b"'}),  # a blank line is none, and is counted
    ]


def test_rows_of_tsv_know_no_quotes(tmp_path: Path) -> None:
    assert rows(tmp_path / "t.tsv", b'a\tb\n"x\t5" tape\n') == [
        Row(0, 2, {"a": '"x', "b": '5" tape'})
    ]


def test_bad_rows_of_csv(tmp_path: Path) -> None:
    data = b'a,b\n1\n1,2,3\n"x"y,2\ncaf\xe9,2\n"caf\xe9\n",2\n1,2\n'

    assert rows(tmp_path / "t.csv", data) == [
        BadRow(0, 2, "E-ROW-CSV", "1 cells, the header has 2"),
        BadRow(1, 3, "E-ROW-CSV", "3 cells, the header has 2"),
        BadRow(2, 4, "E-ROW-CSV", "',' expected after '\"'"),
        BadRow(3, 5, "E-ROW-TEXT", "no UTF-8"),
        BadRow(4, 6, "E-ROW-TEXT", "no UTF-8"),
        Row(5, 8, {"a": "1", "b": "2"}),
    ]


def test_rows_of_json_lines(tmp_path: Path) -> None:
    data = b'{"a": 1, "b": null}\n\n {"a": [1.5, true]} \n{"p": {"x": 1, "q": {"y": ":\\":"}}}'

    assert rows(tmp_path / "t.jsonl", data) == [
        Row(0, 1, {"a": 1, "b": None}),
        Row(2, 3, {"a": [1.5, True]}),
        Row(3, 4, {"p.x": 1, "p.q.y": ':":'}),
    ]


BAD_JSON = [
    (b"{", "E-ROW-JSON", "no JSON: Input data was truncated"),
    (b"[1]", "E-ROW-JSON", "no object but list"),
    (b"null", "E-ROW-JSON", "no object but NoneType"),
    (b'{"a": NaN}', "E-ROW-JSON", "no JSON: JSON is malformed: invalid character (byte 6)"),
    (
        b'{"a": 1} {"a": 2}',
        "E-ROW-JSON",
        "no JSON: JSON is malformed: trailing characters (byte 10)",
    ),
    (b'{"a": "\xff"}', "E-ROW-TEXT", "no UTF-8 at byte 0 of a text"),
    (b'{"a": 1, "a": 2}', "E-ROW-JSON", "a key is there twice"),
    (b'{"a": [{"b": "x:y", "b": ":"}]}', "E-ROW-JSON", "a key is there twice"),
    (b'{"a.b": 1, "a": {"b": 2}}', "E-ROW-TYPE", "column 'a.b' is there twice"),
    (b'{"a":' * 70 + b"1" + b"}" * 70, "E-ROW-TYPE", "objects in more than 64 others"),
]


@pytest.mark.parametrize(("line", "code", "detail"), BAD_JSON)
def test_bad_json_lines(line: bytes, code: str, detail: str, tmp_path: Path) -> None:
    found = rows(tmp_path / "t.jsonl", b"{}\n" + line + b'\n{"a": 1}\n')

    assert found == [Row(0, 1, {}), BadRow(1, 2, code, detail), Row(2, 3, {"a": 1})]


def test_rows_of_parquet(tmp_path: Path) -> None:
    import datetime
    import decimal

    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    cells: dict[str, list] = {
        "i": [1, None],
        "f": [0.5, 1.5],
        "s": ["a", ""],
        "b": [b"\xff", None],
        "l": [["x"], None],
        "d": [datetime.date(2020, 1, 2), None],
        "n": [decimal.Decimal("1.50"), None],
        "o": [{"x": 1, "y": {"z": [2]}}, {"x": None, "y": None}],
    }
    pyarrow.parquet.write_table(pyarrow.table(cells), path, row_group_size=1)
    storage = open_storage(str(tmp_path))

    assert [row for piece in piece_list(path) for row in open_piece(piece, storage).rows] == [
        Row(
            0,
            0,
            {
                **{"i": 1, "f": 0.5, "s": "a", "b": b"\xff", "l": ["x"]},
                **{"d": "2020-01-02", "n": "1.50", "o.x": 1, "o.y.z": [2]},
            },
        ),
        Row(
            1,
            0,
            {
                **{"i": None, "f": 1.5, "s": "", "b": None, "l": None},
                **{"d": None, "n": None, "o.x": None, "o.y": None},
            },
        ),
    ]


def test_parquet_that_is_damaged_inside(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"s": ["abc" * 100] * 100}), path)
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)
    storage = open_storage(str(tmp_path))

    with pytest.raises(
        RuntimeError, match=r"^E-TAB-FORMAT .*t.parquet: row group 0 cannot be read"
    ):
        [row for piece in piece_list(path) for row in open_piece(piece, storage).rows]


def parquet(path: Path, **columns: Any) -> bytes:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path.read_bytes()


LOSSY = "Casting from duration[ns] to duration[us] would lose data: 1001"


def test_parquet_values_that_python_lacks_are_rejects(tmp_path: Path) -> None:
    import pyarrow as pa

    offsets, text = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffz")
    data = parquet(
        tmp_path / "t.parquet",
        at=pa.array([0, 0], pa.timestamp("us")),
        s=pa.StringArray.from_buffers(2, offsets, text),
    )
    far = parquet(
        tmp_path / "t.parquet",
        at=pa.array([2**62, 0], pa.timestamp("us")),
        took=pa.array([0, 1001], pa.duration("ns")),
    )

    what = "a value that cannot be read: "
    assert rows(tmp_path / "t.parquet", data) == [
        BadRow(
            0,
            0,
            "E-ROW-TEXT",
            f"{what}'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        Row(1, 0, {"at": "1970-01-01T00:00:00", "s": "z"}),
    ]
    assert rows(tmp_path / "t.parquet", far) == [
        BadRow(0, 0, "E-ROW-TYPE", f"{what}date value out of range"),
        BadRow(
            1,
            0,
            "E-ROW-TYPE",
            f"{what}{LOSSY}",
        ),
    ]


def test_a_map_is_a_list_of_no_values(tmp_path: Path) -> None:
    import pyarrow as pa

    parquet(tmp_path / "t.parquet", m=pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())))
    (piece,) = piece_list(tmp_path / "t.parquet")

    (reject,) = TableReader(GIVEN, DEFAULT_ACCESS)(piece)
    assert isinstance(reject, Rejected)
    assert reject.detail == "t.parquet row 0: column 'm' holds a value of the type tuple"


def test_rows_of_automl(tmp_path: Path) -> None:
    data = (
        b"TRAIN,gs://b/1.jpg,cat\nTRAINING,gs://b/2.jpg,cat,dog,\ngs://b/3.jpg\n"
        b",gs://b/4.jpg, cat \nVALIDATION,x.jpg,cat\n"
    )

    assert rows(tmp_path / "t.csv", data) == [
        Row(0, 1, {"split": "train", "uri": "gs://b/1.jpg", "label": "cat"}),
        Row(1, 2, {"split": "train", "uri": "gs://b/2.jpg", "label": ["cat", "dog"]}),
        Row(2, 3, {"split": None, "uri": "gs://b/3.jpg", "label": None}),
        Row(3, 4, {"split": None, "uri": "gs://b/4.jpg", "label": "cat"}),
        BadRow(4, 5, "E-ROW-CSV", "neither SET,URI,LABEL… nor URI,LABEL…"),
    ]


# --- samples ---


def test_a_row_becomes_a_sample_and_its_columns_are_noted(tmp_path: Path) -> None:
    *found, note = read(tmp_path / "t.csv", "a,b,c\n1,x,\n2.5,,\n")

    assert [
        (s.split, s.key, s.position, s.blobs, row_of(s)) for s in found if isinstance(s, Sample)
    ]
    assert [row_of(s) for s in found if isinstance(s, Sample)] == [
        {"a": "1", "b": "x"},
        {"a": "2.5"},
    ]
    assert note == SplitSource(
        "train",
        columns=[
            ColumnFacts("a", INT | FLOAT, 2),
            ColumnFacts("b", TEXT, 1),
            ColumnFacts("c", 0, 0),
        ],
        rows=2,
    )


def test_positions_follow_files_and_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n2\n")
    reader = TableReader(GIVEN, DEFAULT_ACCESS)
    found = [
        (item.position, item.key)
        for piece in piece_list(tmp_path / "t.csv", place=3, prefix="t.csv:")
        for item in reader(piece)
        if isinstance(item, Sample)
    ]

    assert found == [((3 << 40) + 0, "t.csv:0"), ((3 << 40) + 1, "t.csv:1")]


def test_large_rows_are_payloads(tmp_path: Path) -> None:
    small, large = samples(tmp_path / "t.csv", f"a,b\n1,x\n2,{'y' * 300}\n")

    assert (small.payload, bool(large.payload), len(large.fields) < 10) == (b"", True, True)
    assert row_of(large) == {"a": "2", "b": "y" * 300}
    assert row_bytes(large) == len(large.payload)


def test_numbers_that_messagepack_lacks_are_text(tmp_path: Path) -> None:
    (found,) = samples(tmp_path / "t.jsonl", f'{{"a": {2**64}, "b": [{-(2**64)}, 7, 2.5]}}\n')

    assert row_of(found) == {"a": str(2**64), "b": [str(-(2**64)), 7, 2.5]}


def test_keys_from_a_column(tmp_path: Path) -> None:
    data = '{"k": "a/b"}\n{"k": 7}\n{"k": ""}\n{"k": null}\n{}\n{"k": 1.5}\n{"k": true}\n'

    assert [s.key for s in samples(tmp_path / "t.jsonl", data, key_column="k")] == ["a/b", "7"]
    assert rejects(tmp_path / "t.jsonl", data, key_column="k") == [
        ("t.jsonl:2", "E-ROW-KEY", "t.jsonl line 3: column 'k' gives no key: no value"),
        ("t.jsonl:3", "E-ROW-KEY", "t.jsonl line 4: column 'k' gives no key: no value"),
        ("t.jsonl:4", "E-ROW-KEY", "t.jsonl line 5: column 'k' gives no key: no value"),
        ("t.jsonl:5", "E-ROW-KEY", "t.jsonl line 6: column 'k' gives no key: a float"),
        ("t.jsonl:6", "E-ROW-KEY", "t.jsonl line 7: column 'k' gives no key: a bool"),
    ]


def test_values_that_no_feature_can_hold(tmp_path: Path) -> None:
    data = '{"a": [[1]]}\n{"a": [null]}\n{"a": [{"b": 1}]}\n'

    assert rejects(tmp_path / "t.jsonl", data) == [
        ("0", "E-ROW-TYPE", "t.jsonl line 1: column 'a' holds a list of lists"),
        ("1", "E-ROW-TYPE", "t.jsonl line 2: column 'a' holds a list that holds null"),
        ("2", "E-ROW-TYPE", "t.jsonl line 3: column 'a' holds a value of the type dict"),
    ]


def test_an_image_is_a_blob_and_no_feature(tmp_path: Path) -> None:
    data = "f,a\nx/1.jpg,7\n,8\n../2.jpg,9\ngs://other/3.jpg,9\ngs://b/r/4.jpg,9\n"
    reader = {"image_column": "f", "image_roots": {"train": "gs://b/r"}}

    assert [(s.blobs, row_of(s)) for s in samples(tmp_path / "t.csv", data, **reader)] == [
        ((Blob("train", "x/1.jpg"),), {"a": "7"}),
        ((Blob("train", "4.jpg"),), {"a": "9"}),
    ]
    assert rejects(tmp_path / "t.csv", data, **reader) == [
        ("1", "E-ROW-PATH", "t.csv line 3: column 'f' names no image: no value"),
        ("2", "E-ROW-PATH", "t.csv line 4: '../2.jpg' climbs out of the image root"),
        (
            "3",
            "E-ROW-PATH",
            "t.csv line 5: 'gs://other/3.jpg' does not lie below gs://b/r: give --image_root",
        ),
    ]


@pytest.mark.parametrize(
    ("cell", "root", "name"),
    [
        ("/data/photos/1.jpg", "/data/photos", "1.jpg"),
        ("file:///data/photos/1.jpg", "/data/photos/", "1.jpg"),
        ("/1.jpg", "/", "1.jpg"),
        ("gs://b/a b[1].jpg", "gs://b", "a b[1].jpg"),
        ("s3://b/x/1.jpg", "s3://b/x/", "1.jpg"),
    ],
)
def test_full_paths_lie_below_the_root(cell: str, root: str, name: str) -> None:
    assert name_in_root(cell, root) == name


@pytest.mark.parametrize(
    ("cell", "root"),
    [("/data/photos2/1.jpg", "/data/photos"), ("gs://b2/1.jpg", "gs://b"), ("gs://b/", "gs://b")],
)
def test_paths_elsewhere_are_refused(cell: str, root: str) -> None:
    with pytest.raises(
        ValueError, match=f"does not lie below {root}: give --image_root|names no file"
    ):
        name_in_root(cell, root)


def test_classes_are_noted(tmp_path: Path) -> None:
    data = '{"l": "cat", "m": ["b", "a"]}\n{"l": 7}\n{"l": null, "m": []}\n{"l": " "}\n'
    *_, note = read(tmp_path / "t.jsonl", data, label_columns=("l", "m"))

    assert isinstance(note, SplitSource)
    assert note.class_names == ["7", "a", "b", "cat"]
    assert labels_of({"l": "cat", "m": ["b", "cat"]}, ("m", "l")) == ("b", "cat")


def test_splits_by_a_column_that_is_no_feature_then(tmp_path: Path) -> None:
    items = read(tmp_path / "t.csv", "part,a\nTRAIN,1\ntest,2\n", splitting=Splitting("part"))

    assert [(i.split, row_of(i)) for i in items if isinstance(i, Sample)] == [
        ("train", {"a": "1"}),
        ("test", {"a": "2"}),
    ]
    assert [i.split for i in items if isinstance(i, SplitSource)] == ["train", "test"]


def test_a_row_without_its_split_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^E-SRC-SPLIT .*t.csv line 3: part has no value"):
        read(tmp_path / "t.csv", "part,a\nTRAIN,1\n,2\n", splitting=Splitting("part"))


def test_splits_by_hash_of_the_key_or_of_a_group(tmp_path: Path) -> None:
    shares: Any = {"train": 1, "val": 1}
    data = "k,g\n" + "".join(f"{n},{n % 3}\n" for n in range(30))
    by_key = samples(tmp_path / "t.csv", data, splitting=Splitting(HASH, shares), key_column="k")
    by_group = samples(tmp_path / "t.csv", data, splitting=Splitting(HASH, shares, "g"))

    assert {s.split for s in by_key} == {"train", "val"}
    assert all(s.split == Splitting(HASH, shares).split_of(s.key) for s in by_key)
    splits = {(row_of(s)["g"], s.split) for s in by_group}
    assert len(splits) == 3


@pytest.mark.parametrize(
    ("reader", "line"),
    [
        ({"key_column": "id"}, "has no column 'id', which key_column names; name one of a, b"),
        ({"label_columns": ("a", "c")}, "has no column 'c', which label_column names;"),
        ({"splitting": Splitting("part")}, "has no column 'part', which split_by names;"),
        (
            {"image_column": "f", "image_roots": {"train": "/"}},
            "has no column 'f', which image_column names;",
        ),
    ],
)
def test_columns_that_are_not_in_a_header(reader: dict, line: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        read(tmp_path / "t.csv", "a,b\n1,2\n", **reader)

    assert str(raised.value).startswith("E-TAB-HEADER ")
    assert line in str(raised.value)
