"""Types of columns: kinds of cells, the type that follows from all cells, and their values."""

import re

import pytest

from beam_tfrec.schemas.columns import (
    BIG_INT,
    BOOL,
    FLOAT,
    INT,
    LIST,
    TEXT,
    ColumnFacts,
    ColumnType,
    columns_of_found,
    found_of_columns,
    is_table_file,
    kind_of_text,
    kind_of_value,
    matches,
    parse_type,
    root_and_pattern,
    type_of,
    values_of,
)
from beam_tfrec.schemas.features import Kind


@pytest.mark.parametrize("text", ["", "int", "int32", "int64?[]", "bytes[][]", "Float"])
def test_unknown_types_are_refused(text: str) -> None:
    message = (
        rf"^types must be int64, float or bytes, .* got {re.escape(repr(text))} of 'age': give"
    )
    with pytest.raises(ValueError, match=message):
        parse_type("age", text)


TEXTS = {
    "0": INT,
    "1" * 5000: BIG_INT,
    "9223372036854775807": INT,
    "-9223372036854775808": INT,
    "00.5": TEXT,
    "1.": FLOAT,
    "-1.5e-3": FLOAT,
    "-Infinity": FLOAT,
    "yes": TEXT,
    "1\n2": TEXT,
    "-0": INT,
    "1" * 19 + ".5e3": FLOAT,
}


@pytest.mark.parametrize(("text", "kind"), TEXTS.items())
def test_kind_of_text(text: str, kind: int) -> None:
    assert kind_of_text(text) == kind


VALUES = [
    (None, 0),
    (True, BOOL),
    (0, INT),
    (2**63, BIG_INT),
    (1.0, FLOAT),
    (b"\xff", TEXT),
    ([], LIST),
    ([1, 2.5], LIST | INT | FLOAT),
]


@pytest.mark.parametrize(("value", "kind"), VALUES)
def test_kind_of_value(value: object, kind: int) -> None:
    assert kind_of_value(value) == kind


RULES = [
    (INT, "int64"),
    (BIG_INT, "bytes"),  # ids beyond int64 would lose their digits as floats
    (TEXT | BOOL | FLOAT, "bytes"),
    (LIST, "bytes[]"),  # only empty lists
    (LIST | TEXT, "bytes[]"),
]


@pytest.mark.parametrize(("kinds", "wanted"), RULES)
def test_types_follow_from_all_cells(kinds: int, wanted: str) -> None:
    assert str(type_of(ColumnFacts("a", kinds, 5), rows=5)) == wanted
    assert str(type_of(ColumnFacts("a", kinds, 4), rows=5)) == f"{wanted}?"


def test_a_plan_keeps_the_types_of_columns_with_any_name() -> None:
    facts = [ColumnFacts("home town?", TEXT, 2), ColumnFacts(" x[] ", LIST | INT, 3)]
    found = found_of_columns(facts, rows=3)
    assert found == ["int64[]  x[] ", "bytes? home town?"]
    assert columns_of_found(found) == {
        " x[] ": ColumnType(Kind.INT64, repeated=True),
        "home town?": ColumnType(Kind.BYTES, optional=True),
    }


CELLS = [
    ("7", "int64", [7]),
    ("true", "int64", [1]),
    (True, "int64", [1]),
    (7, "float", [7.0]),
    (7, "bytes", [b"7"]),
    ("é", "bytes", ["é".encode()]),
    (b"\xff\0", "bytes", [b"\xff\0"]),
    (None, "int64", None),
    ([], "float[]", []),
    ([1, "2", True], "int64[]", [1, 2, 1]),
    ("x", "bytes[]", [b"x"]),
]


@pytest.mark.parametrize(("cell", "wanted", "values"), CELLS)
def test_cells_become_values(cell: object, wanted: str, values: list | None) -> None:
    found = values_of(cell, parse_type("a", wanted))
    assert found == values
    assert found is None or [*map(type, found)] == [*map(type, values or [])]


MISFITS = [
    ("1.0", "int64", "'1.0', not a whole number"),
    ("x" * 70, "int64", f"'{'x' * 59}…, not a whole number"),
    (b"7", "int64", "b'7', not a whole number"),
    ("9223372036854775808", "int64", "'9223372036854775808', beyond int64"),
    (-(2**63) - 1, "int64", "-9223372036854775809, beyond int64"),
    ([1, 2], "int64", "a list of 2"),
    (["a"], "float[]", "'a', not a number"),
    (3.5e38, "float", "3.5e+38, beyond float32"),
    ("1e39", "float", "'1e39', beyond float32"),
    ("-1e400", "float", "'-1e400', beyond float32"),
    ("1" * 400, "float", f"'{'1' * 59}…, beyond float32"),
]


@pytest.mark.parametrize(("cell", "wanted", "what"), MISFITS)
def test_cells_that_do_not_fit_are_refused(cell: object, wanted: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(what)}$"):
        values_of(cell, parse_type("a", wanted))


@pytest.mark.parametrize(
    ("uri", "is_file", "root", "pattern"),
    [
        ("a[1].csv", True, "a[1].csv", ""),
        ("gs://b/t", False, "gs://b/t", ""),
        ("/", False, "/", ""),
        ("*.csv", False, ".", "*.csv"),
        ("/*.csv", False, "/", "*.csv"),
        ("gs://b/t/2024-??/part-[0].csv", False, "gs://b/t", "2024-??/part-[0].csv"),
    ],
)
def test_paths_have_a_root_and_a_pattern(uri: str, is_file: bool, root: str, pattern: str) -> None:
    assert is_table_file(uri) is is_file
    assert root_and_pattern(uri) == (root, pattern)


@pytest.mark.parametrize(
    ("name", "pattern", "does"),
    [
        ("a.csv", "", True),
        ("a/b.csv", "**", True),
        ("a/[b].csv", "?/[b].csv", True),
        ("a/b.csv", "?/[b].csv", False),
        ("a/b/c.csv", "**/*.csv", True),
        ("ab.csv", "a**/*.csv", False),
        ("a\nb.csv", "a*.csv", True),
        ("a/b.csv", "a?b.csv", False),
        ("a/b.CSV", "*/*.csv", False),
    ],
)
def test_globs(name: str, pattern: str, does: bool) -> None:
    assert matches(name, pattern) is does
