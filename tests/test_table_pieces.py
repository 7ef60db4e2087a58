"""Tables as files: which there are, in which format, and how they are divided."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.columns import Named, format_of, matches, root_and_pattern, what_is_named
from transforms.sources import table_rows
from transforms.sources.read_table import TableFile, number_tables, stat_tables
from transforms.sources.table_rows import (
    divide_file,
    divide_lines,
    first_piece,
    is_automl_row,
    lines_of,
)
from transforms.storage import DEFAULT_ACCESS, Entry, open_storage


def table(path: Path) -> TableFile:
    (found,) = stat_tables("train", [str(path)], DEFAULT_ACCESS)
    return found


def pieces(path: Path) -> list[tuple]:
    storage = open_storage(str(path.parent))
    return [
        (piece.format, piece.start, piece.end, piece.first_row, piece.first_line, piece.columns)
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

    assert [(file.place, file.prefix) for file in number_tables("val", "root", entries)] == [
        (0, "a/c.csv:"),
        (1, "b.csv:"),
        (2, "a.txt:"),
    ]


def test_files_given_by_name_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("x/b.csv", "y/a.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("n\n")
    uris = [str(tmp_path / "x/b.csv"), str(tmp_path / "y/a.csv")]

    found = stat_tables("train", uris, DEFAULT_ACCESS)

    assert [(file.entry.name, file.place, file.prefix) for file in found] == [
        ("a.csv", 0, "a.csv:"),
        ("b.csv", 1, "b.csv:"),
    ]
    assert [file.prefix for file in stat_tables("train", uris[:1], DEFAULT_ACCESS)] == [""]
    assert found == stat_tables("train", uris[::-1], DEFAULT_ACCESS)


# --- lines ---


@given(st.binary(max_size=60).map(lambda data: data.replace(b"\x07", b"\n")), st.integers(1, 9))
def test_lines_are_those_of_the_whole_file(data: bytes, chunk_bytes: int) -> None:
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]

    assert [*lines_of(chunks, 60)] == io.BytesIO(data).readlines()


@given(st.text("ab\n", max_size=60).map(str.encode), st.integers(1, 9), st.integers(0, 5))
def test_pieces_are_all_lines_once(data: bytes, chunk_bytes: int, start: int) -> None:
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]

    found = divide_lines(iter(chunks), start, may_quote=True)
    texts = [data[begin - start : end - start] for begin, end, _ in found]

    assert b"".join(texts) == data
    assert all(text.endswith(b"\n") for text in texts[:-1])
    assert [lines for _, _, lines in found] == [
        data[: begin - start].count(b"\n") for begin, _, _ in found
    ]


def test_a_quote_anywhere_leaves_a_file_whole() -> None:
    chunks = [b"a\nb\n", b'"c"\n', b"d\n"]

    assert divide_lines(iter(chunks), 3, may_quote=True) == [(3, 13, 0)]
    assert len(divide_lines(iter(chunks), 3, may_quote=False)) == 3


# --- files ---


def test_csv_with_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b c\r\n1,2\r\n3,4")

    columns = ("a", "b c")
    assert pieces(path) == [("csv", 10, 15, 0, 2, columns), ("csv", 15, 18, 1, 3, columns)]


def test_a_quoted_header_of_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,"b\nc"\n1,2\n')

    assert pieces(path) == [("csv", 8, 12, 0, 3, ("a", "b\nc"))]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\n{}\n")

    assert pieces(path) == [("jsonl", 3, 9, 0, 1, ())]


def test_a_file_that_is_no_table_is_a_piece_to_be_counted(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("x")

    assert pieces(tmp_path / "readme.txt") == [("", 0, 0, 0, 0, ())]


def test_parquet_by_row_groups(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": range(5)}), path, row_group_size=2)

    assert pieces(path) == [
        ("parquet", 0, 1, 0, 0, ()),
        ("parquet", 1, 2, 2, 0, ()),
        ("parquet", 2, 3, 4, 0, ()),
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


def test_the_first_piece_reads_no_more_than_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_rows, "PIECE_BYTES", 8)
    (tmp_path / "a.csv").write_bytes(b"a,b\n" + b"1,2\n" * 9)

    piece = first_piece(table(tmp_path / "a.csv"), open_storage(str(tmp_path)))

    assert piece is not None
    assert (piece.start, piece.end, piece.columns) == (4, 12, ("a", "b"))
