"""Table files, their rows, and the samples made from them."""

import datetime
import decimal
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.schemas.columns import FLOAT, INT, TEXT, ColumnFacts, format_of
from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.fields import row_bytes, row_of
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.sources import read_table
from beam_tfrec.transforms.sources.read_samples import SplitTally
from beam_tfrec.transforms.sources.table_rows import Row, divide_file, lines_of, open_table
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, open_storage

GIVEN = Splitting()


def pieces_of(path: Path, data: str | bytes, **file: Any) -> list[read_table.TableFile]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    entry = open_storage(str(path.parent)).stat(path.name)
    assert entry is not None
    table = read_table.TableFile("train", str(path.parent), entry, format_of(path.name), **file)
    return [*divide_file(table, DEFAULT_ACCESS)]


def rows(path: Path, data: bytes, **limit: int) -> list[Row]:
    opened = (open_table(piece, DEFAULT_ACCESS, **limit) for piece in pieces_of(path, data))
    return [row for table in opened for row in table.rows]


def read(path: Path, data: str | bytes, **reader: Any) -> list[Sample | Rejected | SplitTally]:
    read_piece = read_table.TableReader(reader.pop("splitting", GIVEN), DEFAULT_ACCESS, **reader)
    return [item for piece in pieces_of(path, data) for item in read_piece(piece)]


def samples(path: Path, data: str, **reader: Any) -> list[Sample]:
    return [item for item in read(path, data, **reader) if isinstance(item, Sample)]


def rejects(path: Path, data: str | bytes, **reader: Any) -> list[tuple[str, str, str]]:
    found = [item for item in read(path, data, **reader) if isinstance(item, Rejected)]
    return [(item.key, item.code, item.detail) for item in found]


def parquet(columns: dict[str, Any] | pa.Table, **options: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file, **options)
    return file.getvalue()


def test_files_are_sorted_and_prefix_the_keys(tmp_path: Path) -> None:
    uris = [str(tmp_path / name) for name in ("x/b.csv", "y/a.csv")]
    for uri in uris:
        Path(uri).parent.mkdir()
        Path(uri).touch()
    one, two = ([*read_table.find_tables(("train", uris[:n]), DEFAULT_ACCESS)] for n in (1, 2))
    assert [file.prefix for file in one] == [""]
    assert [(file.root, file.prefix, file.place) for file in two] == [
        (f"{tmp_path}/y", "a.csv:", 0),
        (f"{tmp_path}/x", "b.csv:", 1),
    ]


@given(st.text("ab\n", max_size=60).map(str.encode), st.integers(0, 5))
def test_lines_equal_readlines_except_long_ones(data: bytes, max_bytes: int) -> None:
    expected = [line if len(line) <= max_bytes else None for line in io.BytesIO(data).readlines()]
    assert [*lines_of(io.BytesIO(data), max_bytes)] == expected


NO_HEADER = "E-TAB-FORMAT a.csv: its first line is not a header of a csv file ("
EMPTY = "E-TAB-HEADER a.csv: its first line is empty; write the columns' names there"
ENDLESS = "E-TAB-FORMAT a.csv: quotes that open in line {} or below are never closed; close"
LARGE = "E-TAB-FORMAT a.csv: the row of line 3 has more than 20 bytes; close its quotes, or raise"
DAMAGED = parquet({"s": ["abc" * 100] * 100})
BAD_FILES = [
    ("a.csv", b"", EMPTY),
    ("a.csv", b"\na,b\n", EMPTY),
    ("a.csv", "a,b\n".encode("utf-16"), NO_HEADER),
    ("a.csv", b"caf\xe9\n", f"{NO_HEADER}not UTF-8)"),
    ("a.csv", b"a,b\r1,2\r", NO_HEADER),  # line ends of old Macs
    ("a.csv", b"a,,b\n", "E-TAB-HEADER a.csv: column 2 of 3 has no name or a repeated one: ''"),
    ("a.csv", b"a;b\n", "E-TAB-HEADER a.csv: has one column, 'a;b', with ';' instead of a comma"),
    ("a.csv", b"a,b,a\n", "E-TAB-HEADER a.csv: column 3 of 3 has no name or a repeated one: 'a'"),
    ("a.csv", b'a,"b\n1,2\n', ENDLESS.format(1)),
    ("a.csv", b'a,b\n1,2\n1,"2\n3,4\n', ENDLESS.format(3)),
    ("a.csv", b"a,b\n1,2\n" + b"x" * 30 + b",1\n", LARGE),
    ("a.csv", b'a,b\n1,2\n1,"' + b"xxx,\n" * 9 + b'"\n', LARGE),  # a cell of many short lines
    ("a.parquet", b"PAR1 and more", "E-TAB-FORMAT a.parquet: cannot be read as Parquet (Parquet m"),
    (
        "a.parquet",
        parquet(pa.Table.from_arrays([[1], [2]], names=["a", "a"])),
        "E-TAB-HEADER a.parquet: column 2 of 2 has no name or a repeated one: 'a'",
    ),
    (
        "a.parquet",
        DAMAGED[:4] + b"\xff" * 56 + DAMAGED[60:],
        "E-TAB-FORMAT a.parquet: cannot be read",
    ),
]


@pytest.mark.parametrize(("name", "data", "line"), BAD_FILES)
def test_other_files_are_refused(name: str, data: bytes, line: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        rows(tmp_path / name, data, max_cell_bytes=20)
    assert str(raised.value).replace(f"{tmp_path}/", "").startswith(line)


TOO_LARGE = "E-ROW-TOO-LARGE"
IN_40_BYTES = "more than 40 bytes; --max_cell_bytes sets the limit"
LARGE_ROW = (TOO_LARGE, f"the row has {IN_40_BYTES}")
ROWS = [
    # A blank line is not a row, but takes a number.
    (
        "t.csv",
        b'\xef\xbb\xbfa,"b\nc"\r\n1,"x\r\ny"\r\n\r\n,"a ""b"""\r\n',
        [(0, 3, {"a": "1", "b\nc": "x\r\ny"}), (2, 6, {"b\nc": 'a "b"'})],
    ),
    (
        "t.csv",
        b'a,b\n1\n1,2,3\n"x"y,2\ncaf\xe9,2\n"caf\xe9\n",2\n1,2\n',
        [
            (0, 2, ("E-ROW-CSV", "1 cells, the header has 2")),
            (1, 3, ("E-ROW-CSV", "3 cells, the header has 2")),
            (2, 4, ("E-ROW-CSV", "',' expected after '\"'")),
            (3, 5, ("E-ROW-TEXT", "not UTF-8")),
            (4, 6, ("E-ROW-TEXT", "not UTF-8")),
            (5, 8, {"a": "1", "b": "2"}),
        ],
    ),
    (
        "t.tsv",
        b'a\tb\n"x\t5" tape\n1\t"' + b"x" * 50 + b"\n1\t2\n",
        [(0, 2, {"a": '"x', "b": '5" tape'}), (1, 3, LARGE_ROW), (2, 4, {"a": "1", "b": "2"})],
    ),
    (
        "t.csv",  # in AutoML's form
        b"TRAIN,gs://b/1.jpg,cat\nTRAINING,gs://b/2.jpg,cat,dog,\ngs://b/3.jpg\n"
        b",gs://b/4.jpg, cat \nVALIDATION,x.jpg,cat\n",
        [
            (0, 1, {"split": "train", "uri": "gs://b/1.jpg", "label": "cat"}),
            (1, 2, {"split": "train", "uri": "gs://b/2.jpg", "label": ["cat", "dog"]}),
            (2, 3, {"split": None, "uri": "gs://b/3.jpg", "label": None}),
            (3, 4, {"split": None, "uri": "gs://b/4.jpg", "label": "cat"}),
            (4, 5, ("E-ROW-CSV", "neither SET,URI,LABEL… nor URI,LABEL…")),
        ],
    ),
    *(
        ("t.csv", f"{first}\n".encode(), [(0, 1, {"split": None, "uri": "gs://b/x", "label": of})])
        for first, of in ((",gs://b/x", None), ("gs://b/x,cat", "cat"))
    ),
    ("t.csv", b"split,uri,label\n", []),
    ("t.csv", b"TRAIN,x.jpg\n", []),
    (
        "t.jsonl",
        b'{"a": 1, "b": null}\n\n {"a": [1.5, true]} \n{"p":{"x":1,"q":{"y":":\\":"}}}\n'
        b'{"a":"' + b"x" * 50 + b'"}\n{}',
        [
            (0, 1, {"a": 1, "b": None}),
            (2, 3, {"a": [1.5, True]}),
            (3, 4, {"p.x": 1, "p.q.y": ':":'}),
            (4, 5, LARGE_ROW),
            (5, 6, {}),
        ],
    ),
]


@pytest.mark.parametrize(("name", "data", "expected"), ROWS)
def test_rows_of_text(name: str, data: bytes, expected: list[Row], tmp_path: Path) -> None:
    assert rows(tmp_path / name, data, max_cell_bytes=40) == expected


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
BAD_JSON = [
    (b"{", "E-ROW-JSON", "not JSON: Input data was truncated"),
    (b"[1]", "E-ROW-JSON", "not an object but of type list"),
    (b'{"a": NaN}', "E-ROW-JSON", "not JSON: JSON is malformed: invalid character (byte 6)"),
    (b"{} {}", "E-ROW-JSON", "not JSON: JSON is malformed: trailing characters (byte 4)"),
    (b'{"a": "\xff"}', "E-ROW-TEXT", "not UTF-8 at byte 0 of a text"),
    (b'{"a": 1, "a": 2}', "E-ROW-JSON", "a key is there twice"),
    (b'{"a": [{"b": "x:y", "b": ":"}]}', "E-ROW-JSON", "a key is there twice"),
    (b'{"a.b": 1, "a": {"b": 2}}', "E-ROW-TYPE", "column 'a.b' is there twice"),
    (DEEP, "E-ROW-JSON", "not JSON: maximum recursion depth exceeded while deserializing"),
]


@pytest.mark.parametrize(("line", "code", "detail"), BAD_JSON)
def test_bad_json_lines(line: bytes, code: str, detail: str, tmp_path: Path) -> None:
    before, (number, of_line, bad), after = rows(tmp_path / "t.jsonl", b"{}\n" + line + b"\n{}")
    assert (before, after) == ((0, 1, {}), (2, 3, {}))
    assert (number, of_line) == (1, 2) and isinstance(bad, tuple)
    assert bad[0] == code and bad[1].startswith(detail)


def test_rows_of_parquet_by_row_groups(tmp_path: Path) -> None:
    cells = {
        "i": [1, None],
        "f": [0.5, 1.5],
        "s": ["a", ""],
        "b": [b"\xff", None],
        "l": [["x"], None],
        "d": [datetime.date(2020, 1, 2), None],
        "n": [decimal.Decimal("1.50"), None],
        "o": [{"x": 1, "y": {"z": [2]}}, {"x": None, "y": None}],
        "c": pa.array(["u", "v"]).dictionary_encode(),
    }
    data = parquet(cells, row_group_size=1)
    first = {"i": 1, "f": 0.5, "s": "a", "b": b"\xff", "l": ["x"], "d": "2020-01-02", "n": "1.50"}
    none = dict.fromkeys([*"ibldn", "o.x", "o.y"])
    pieces = pieces_of(tmp_path / "t.parquet", data)
    assert [(piece.row_group, piece.first_row) for piece in pieces] == [(0, 0), (1, 1)]
    assert rows(tmp_path / "t.parquet", data) == [
        (0, 0, {**first, "c": "u", "o.x": 1, "o.y.z": [2]}),
        (1, 0, {**none, "c": "v", "f": 1.5, "s": ""}),
    ]


SECOND = 1_577_934_245_000_000_000
UNREADABLE = "a value that cannot be read: "
LATIN = f"{UNREADABLE}'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"
LOSSY = f"{UNREADABLE}Casting from duration[ns] to duration[us] would lose data: 1001"
OFFSETS = pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0")
VALUES = [
    # Times in nanoseconds are read as microseconds.
    (pa.array([SECOND, SECOND + 1000], pa.timestamp("ns")), "2020-01-02T03:04:05", None),
    (pa.array([SECOND], pa.timestamp("ns", "Europe/Berlin")), "2020-01-02T04:04:05+01:00", None),
    (pa.array([1_000_001_000], pa.time64("ns")), "00:00:01.000001", None),
    (pa.array([0, 2**62], pa.timestamp("us")), "1970-01-01T00:00:00", "date value out of range"),
    (pa.array([0, 1001], pa.duration("ns")), "0:00:00", LOSSY),
    (pa.StringArray.from_buffers(2, OFFSETS, pa.py_buffer(b"z\xff")), "z", LATIN),
]


@pytest.mark.parametrize(("column", "first", "fault"), VALUES)
def test_parquet_values_that_python_lacks_are_rejects(
    column: pa.Array, first: str, fault: str | None, tmp_path: Path
) -> None:
    found = rows(tmp_path / "t.parquet", parquet({"a": column}))
    assert found[0] == (0, 0, {"a": first})
    if fault:
        code = "E-ROW-TEXT" if fault == LATIN else "E-ROW-TYPE"
        assert found[1] == (1, 0, (code, f"{UNREADABLE}{fault.removeprefix(UNREADABLE)}"))


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_large_cells_of_parquet_are_rejects(use_dictionary: bool, tmp_path: Path) -> None:
    columns = {
        "text": ["a", "x" * 41, "x" * 40, None, "b", "c"],
        "data": [b"a", b"b", b"c", b"y" * 41, None, b"d"],
        "list": [[1], [2], [], None, [1] * 100, [3]],
    }
    data = parquet(columns, use_dictionary=use_dictionary)
    found = rows(tmp_path / "t.parquet", data, max_cell_bytes=40)
    large = (TOO_LARGE, f"a cell has {IN_40_BYTES}")
    assert [number for number, _, cells in found if cells == large] == [1, 3, 4]
    assert found[2] == (2, 0, {"text": "x" * 40, "data": b"c", "list": []})
    assert len(found) == 6


@pytest.mark.parametrize(
    ("name", "data"),
    [("t.csv", "a,b,c\n1,x,\n2.5,,\n"), ("t.jsonl", '{"a":1,"b":"x","c":null}\n{"a":2.5}\n')],
)
def test_a_row_becomes_a_sample_and_its_columns_are_noted(
    name: str, data: str, tmp_path: Path
) -> None:
    first, second, note = read(tmp_path / name, data)
    assert isinstance(first, Sample) and isinstance(second, Sample)
    assert (row_of(first)["b"], [*row_of(first)], [*row_of(second)]) == ("x", ["a", "b"], ["a"])
    facts = [ColumnFacts("a", INT | FLOAT, 2), ColumnFacts("b", TEXT, 1), ColumnFacts("c", 0, 0)]
    assert note == SplitTally("train", columns=facts, rows=2)


def test_large_rows_are_payloads(tmp_path: Path) -> None:
    small, large = samples(tmp_path / "t.csv", f"a,b\n1,x\n2,{'y' * 300}\n")
    assert (small.payload, bool(large.payload), len(large.fields) < 10) == (b"", True, True)
    assert row_of(large) == {"a": "2", "b": "y" * 300}
    assert row_bytes(large) == len(large.payload)


def test_numbers_beyond_64_bits_become_text(tmp_path: Path) -> None:
    (found,) = samples(tmp_path / "t.jsonl", f'{{"a": {2**64}, "b": [{-(2**64)}, 7, 2.5]}}\n')
    assert row_of(found) == {"a": str(2**64), "b": [str(-(2**64)), 7, 2.5]}


def test_keys_from_a_column(tmp_path: Path) -> None:
    data = '{"k": "a/b"}\n{"k": 7}\n{"k": ""}\n{"k": null}\n{}\n{"k": 1.5}\n{"k": true}\n'
    what = ("no value", "no value", "no value", "a float", "a bool")
    assert [s.key for s in samples(tmp_path / "t.jsonl", data, key_column="k")] == ["a/b", "7"]
    assert rejects(tmp_path / "t.jsonl", data, key_column="k") == [
        (f"t.jsonl:{row}", "E-ROW-KEY", f"t.jsonl line {row + 1}: column 'k' gives no key: {found}")
        for row, found in enumerate(what, start=2)
    ]


STEPS = {"sequence_columns": ("a",)}


def test_values_that_no_feature_can_hold_are_rejects(tmp_path: Path) -> None:
    data = '{"a": [[1]]}\n{"a": [null]}\n{"a": [{"b": 1}]}\n'
    what = ("a list of lists", "a list that holds null", "a value of the type dict")
    assert rejects(tmp_path / "t.jsonl", data) == [
        (f"{row}", "E-ROW-TYPE", f"t.jsonl line {row + 1}: column 'a' holds {found}")
        for row, found in enumerate(what)
    ]
    data = '{"a": [[null]]}\n{"a": [[[1]]]}\n'
    assert [detail for _, _, detail in rejects(tmp_path / "t.jsonl", data, **STEPS)] == [
        "t.jsonl line 1: column 'a' holds a list that holds null",
        "t.jsonl line 2: column 'a' holds a list of lists",
    ]
    a_map = parquet({"m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    detail = "t.parquet row 0: column 'm' holds a value of the type tuple"
    assert rejects(tmp_path / "t.parquet", a_map) == [("0", "E-ROW-TYPE", detail)]


def test_an_image_column_becomes_a_blob(tmp_path: Path) -> None:
    data = "f,a\nx/1.jpg,7\n,8\n../2.jpg,9\ngs://other/3.jpg,9\ngs://b/r/4.jpg,9\n"
    reader = {"image_column": "f", "image_roots": {"train": "gs://b/r"}}
    elsewhere = "'gs://other/3.jpg' does not lie below gs://b/r: give --image_root"
    *found, note = read(tmp_path / "t.csv", data, **reader)
    assert [(s.blobs, row_of(s)) for s in found if isinstance(s, Sample)] == [
        ((Blob("train", "x/1.jpg"),), {"a": "7"}),
        ((Blob("train", "4.jpg"),), {"a": "9"}),
    ]
    assert note == SplitTally("train", columns=[ColumnFacts("a", INT, 2)], rows=2)
    assert rejects(tmp_path / "t.csv", data, **reader) == [
        ("1", "E-ROW-PATH", "t.csv line 3: column 'f' names no image: no value"),
        ("2", "E-ROW-PATH", "t.csv line 4: '../2.jpg' has a folder '..'"),
        ("3", "E-ROW-PATH", f"t.csv line 5: {elsewhere}"),
    ]


@pytest.mark.parametrize(
    ("cell", "root", "name"),
    [
        ("/data/photos/1.jpg", "/data/photos", "1.jpg"),
        ("file:///data/photos/1.jpg", "/data/photos/", "1.jpg"),
        ("/1.jpg", "/", "1.jpg"),
        ("gs://b/a b[1].jpg", "gs://b", "a b[1].jpg"),
        ("s3://b/x/1.jpg", "s3://b/x/", "1.jpg"),
        ("/data/photos2/1.jpg", "/data/photos", None),
        ("gs://b2/1.jpg", "gs://b", None),
        ("gs://b/", "gs://b", None),
    ],
)
def test_full_paths_must_lie_below_the_root(cell: str, root: str, name: str | None) -> None:
    if name:
        assert read_table.name_in_root(cell, root) == name
        return
    what = f"does not lie below {root}: give --image_root|names no file"
    with pytest.raises(ValueError, match=what):
        read_table.name_in_root(cell, root)


def test_classes_are_noted(tmp_path: Path) -> None:
    data = '{"l": "cat", "m": ["b", "a"]}\n{"l": 7}\n{"l": null, "m": []}\n{"l": " "}\n'
    *_, note = read(tmp_path / "t.jsonl", data, label_columns=("l", "m"))
    assert isinstance(note, SplitTally)
    assert note.class_names == ["7", "a", "b", "cat"]


def test_a_column_of_splits_is_not_a_feature(tmp_path: Path) -> None:
    items = read(tmp_path / "t.csv", "part,a\nTRAIN,1\ntest,2\n", splitting=Splitting("part"))
    assert [(i.split, row_of(i)) for i in items if isinstance(i, Sample)] == [
        ("train", {"a": "1"}),
        ("test", {"a": "2"}),
    ]
    columns = [ColumnFacts("a", INT, 1)]
    notes = [i for i in items if isinstance(i, SplitTally)]
    assert notes == [SplitTally(split, columns=columns, rows=1) for split in ("train", "test")]


@pytest.mark.parametrize(
    ("reader", "line"),
    [
        ({"key_column": "id"}, "has no column 'id'; give another table or name; this one has part"),
        ({"label_columns": ("b", "c")}, "has no column 'c'; "),
        ({"splitting": Splitting("a")}, "has no column 'a'; "),
        ({"image_column": "f"}, "has no column 'f'; "),
        ({"splitting": Splitting("part")}, "line 3: part decides its split and has no value"),
    ],
)
def test_missing_columns_and_splits_are_refused(reader: dict, line: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        read(tmp_path / "t.csv", "part,b\nTRAIN,2\n,2\n", **reader)
    code = "E-SRC-SPLIT" if line.startswith("line") else "E-TAB-HEADER"
    assert str(raised.value).startswith(f"{code} {tmp_path}/t.csv")
    assert line in str(raised.value)
