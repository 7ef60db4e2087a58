"""Tables as files: which there are, in which format, and how they are divided."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.columns import Named, format_of, matches, root_and_pattern, what_is_named
from transforms.sources.read_table import TableFile, number_tables, stat_tables
from transforms.sources.table_rows import (
    divide_file,
    is_automl_row,
    lines_of,
    open_piece,
)
from transforms.storage import DEFAULT_ACCESS, Entry, open_storage


def table(path: Path) -> TableFile:
    (found,) = stat_tables(("train", [str(path)]), DEFAULT_ACCESS)
    return found


def pieces(path: Path) -> list[tuple]:
    storage = open_storage(str(path.parent))
    return [
        (piece.row_group, piece.first_row, open_piece(piece, storage).columns)
        for piece in divide_file(table(path), storage)
    ]


def fault(path: Path) -> str:
    with pytest.raises(RuntimeError) as raised:
        pieces(path)
    return str(raised.value).replace(f"{path.parent}/", "")


# --- names ---


def test_formats_are_told_by_names() -> None:
    names = [
        "a.csv",
        "b/c.TSV",
        "x.jsonl",
        "y.parquet",
        "z.json",
        ".csv",
        "csv",
        "a.csv/b",
        "a.csv.gz",
    ]

    assert [format_of(name) for name in names] == [
        *("csv", "tsv", "jsonl", "parquet", "", "csv", "", "", "")
    ]


@pytest.mark.parametrize(
    ("uri", "named", "root", "pattern"),
    [
        ("a.csv", Named.FILE, "a.csv", ""),
        ("gs://b/t", Named.FOLDER, "gs://b/t", ""),
        ("t/", Named.FOLDER, "t", ""),
        ("*.csv", Named.GLOB, ".", "*.csv"),
        ("/*.csv", Named.GLOB, "/", "*.csv"),
        ("gs://b/t/2024-??/part-[0].csv", Named.GLOB, "gs://b/t", "2024-??/part-[0].csv"),
        ("t/a[1].csv", Named.FILE, "t/a[1].csv", ""),
    ],
)
def test_what_a_path_names(uri: str, named: Named, root: str, pattern: str) -> None:
    assert what_is_named(uri) is named
    assert root_and_pattern(uri) == (root, pattern)


@pytest.mark.parametrize(
    ("name", "pattern", "does"),
    [
        ("a.csv", "", True),
        ("a.csv", "*.csv", True),
        ("a/b.csv", "*.csv", False),
        ("a/b.csv", "**", True),
        ("a/[b].csv", "?/[b].csv", True),
        ("a/b.csv", "?/[b].csv", False),
        ("b.csv", "**/*.csv", True),
        ("a/b/c.csv", "**/*.csv", True),
        ("ab.csv", "a**/*.csv", False),
        ("a\nb.csv", "a*.csv", True),
        ("a/b.csv", "a?b.csv", False),
        ("a/b.CSV", "*/*.csv", False),
    ],
)
def test_globs(name: str, pattern: str, does: bool) -> None:
    assert matches(name, pattern) is does


def test_files_are_numbered_by_name_and_others_come_last() -> None:
    entries = [Entry("b.csv", 1, ""), Entry("a.txt", 1, ""), Entry("a/c.csv", 1, "")]

    assert [(file.place, file.prefix) for file in number_tables(("val", "root"), entries)] == [
        (0, "a/c.csv:"),
        (1, "b.csv:"),
        (2, "a.txt:"),
    ]


def test_files_given_by_name_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("x/b.csv", "y/a.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("n\n")
    uris = [str(tmp_path / "x/b.csv"), str(tmp_path / "y/a.csv")]

    found = stat_tables(("train", uris), DEFAULT_ACCESS)

    assert [(file.entry.name, file.place, file.prefix) for file in found] == [
        ("a.csv", 0, "a.csv:"),
        ("b.csv", 1, "b.csv:"),
    ]
    assert [file.prefix for file in stat_tables(("train", uris[:1]), DEFAULT_ACCESS)] == [""]
    assert found == stat_tables(("train", uris[::-1]), DEFAULT_ACCESS)


# --- lines ---


@given(st.text("ab\n", max_size=60).map(str.encode), st.integers(0, 5))
def test_lines_are_those_of_the_whole_file(data: bytes, max_bytes: int) -> None:
    expected = [line if len(line) <= max_bytes else None for line in io.BytesIO(data).readlines()]

    assert [*lines_of(io.BytesIO(data), max_bytes)] == expected


# --- files ---


def test_csv_with_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b c\r\n1,2\r\n3,4")

    assert pieces(path) == [(-1, 0, ("a", "b c"))]


def test_a_quoted_header_of_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,"b\nc"\n1,2\n')

    assert pieces(path) == [(-1, 0, ("a", "b\nc"))]


def test_parquet_by_row_groups(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": range(5)}), path, row_group_size=2)

    assert pieces(path) == [
        (0, 0, ()),
        (1, 2, ()),
        (2, 4, ()),
    ]


AUTOML = {
    "all": (["TRAIN", "gs://b/x.jpg", "cat", "dog"], True),
    "another word": (["TRAINING", "gs://b/x.jpg"], True),
    "no set": (["gs://b/x.jpg", "cat"], True),
    "an empty set": (["", "gs://b/x.jpg"], True),
    "a header": (["split", "uri", "label"], False),
    "a path": (["TRAIN", "x.jpg"], False),
    "nothing": ([], False),
    "one cell": (["test"], False),
}


@pytest.mark.parametrize(("row", "is_one"), AUTOML.values(), ids=AUTOML)
def test_automl_is_known_by_its_first_row(row: list[str], is_one: bool) -> None:
    assert is_automl_row(row) is is_one


NO_HEADER = "E-TAB-FORMAT a.csv: its first line is no header of a csv file ("
FAULTS = {
    "empty": (b"", "E-TAB-FORMAT a.csv: has no header: its first line is empty; name its"),
    "blank": (b"\na,b\n", "E-TAB-FORMAT a.csv: has no header: its first line is empty; name its"),
    "UTF-16": (
        "a,b\n".encode("utf-16"),
        NO_HEADER,
    ),
    "Latin-1": (b"caf\xe9\n", NO_HEADER),
    "a quote": (b'a,"b\n1,2\n', NO_HEADER),
    "old Mac": (b"a,b\r1,2\r", NO_HEADER),
    "no name": (b"a,,b\n", "E-TAB-HEADER a.csv: column 2 of 3 has no name; name it in the first"),
    "semicolons": (
        b"a;b\n",
        "E-TAB-HEADER a.csv: has one column, 'a;b': ';' where a comma should part columns; write",
    ),
    "one twice": (
        b"a,b,a\n",
        "E-TAB-HEADER a.csv: column 3 is called 'a' like column 1; give each column a name of",
    ),
}


@pytest.mark.parametrize(("data", "line"), FAULTS.values(), ids=FAULTS)
def test_files_that_are_no_csv(data: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(data)

    assert fault(tmp_path / "a.csv").startswith(line)


def test_what_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and something else")

    assert fault(tmp_path / "a.parquet").startswith(
        "E-TAB-FORMAT a.parquet: is no Parquet file (Parquet magic bytes not found in footer"
    )


def test_parquet_columns_of_one_name(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    twice = pyarrow.Table.from_arrays([[1], [2]], names=["a", "a"])
    pyarrow.parquet.write_table(twice, tmp_path / "a.parquet")

    assert fault(tmp_path / "a.parquet").startswith(
        "E-TAB-HEADER a.parquet: column 2 is called 'a'"
    )
