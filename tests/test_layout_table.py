"""The `table` layout: features from columns, labels and images, and what it refuses."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.schemas.columns import ColumnType, parse_type
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.fields import fields_of_row
from beam_tfrec.schemas.layouts import Unfit, labels_by_category
from beam_tfrec.schemas.layouts.table import TableLayout
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Blob, Sample
from tests.conftest import draw

LABELS = labels_by_category([Label(0, "cat"), Label(1, "n01", text="a dog")])


def sample(cells: dict[str, Any], *blobs: Blob) -> Sample:
    fields, payload = fields_of_row(cells)
    return Sample("train", "0", 0, blobs, fields, payload=payload)


def types(**named: str) -> dict[str, ColumnType]:
    return {name: parse_type(name, text) for name, text in named.items()}


def built(layout: TableLayout, cells: dict[str, Any]) -> dict[str, list]:
    found = layout.build(sample(cells), (), LABELS)
    return {key: [*values] for key, (_, values) in found.features.items()}


def test_every_column_is_a_feature_under_its_name() -> None:
    layout = TableLayout().resolved(["bytes home town", "float? weight", "int64[] ids"])
    features = [(f.key, f.kind, f.repeated, f.optional, f.doc) for f in layout.spec.features]
    assert features == [
        ("home town", Kind.BYTES, False, False, "column home town"),
        ("ids", Kind.INT64, True, False, "column ids"),
        ("weight", Kind.FLOAT, False, True, "column weight"),
    ]
    whole = built(layout, {"home town": "x", "weight": 1, "ids": [7]})
    assert whole == {"home town": [b"x"], "weight": [1.0], "ids": [7]}
    assert built(layout, {"home town": "x"}) == {"home town": [b"x"], "ids": []}


def test_given_types_win() -> None:
    given_types = types(age="float", zip="bytes?", tags="int64[]")
    found = ["int64? age", "int64 zip", "int64? tags", "int64 b"]
    layout = TableLayout(given_types).resolved(found)
    assert {name: str(found) for name, found in layout.columns.items()} == {
        "age": "float?",  # one of its cells is missing
        "zip": "bytes?",
        "tags": "int64[]",
        "b": "int64",
    }


def test_a_single_label() -> None:
    layout = TableLayout(label_columns=("l",)).resolved(["bytes? l", "int64 a"])
    values = {"image/class/label": [1], "image/class/text": [b"a dog"], "a": [1]}
    assert [(f.key, f.repeated) for f in layout.spec.features] == [(key, False) for key in values]
    assert built(layout, {"l": "n01", "a": 1}) == values
    with pytest.raises(Unfit) as unfit:
        built(layout, {"a": 1})
    assert unfit.value == Unfit("E-SRC-LABEL", "column 'l' names no class")


@pytest.mark.parametrize(
    ("columns", "found", "cells"),
    [
        (("l",), ["bytes[]? l"], {"l": ["n01", "cat", "n01"]}),
        (("k", "l"), ["bytes? k", "bytes l"], {"k": "n01", "l": "cat"}),
    ],
)
def test_several_labels(columns: tuple, found: list[str], cells: dict) -> None:
    layout = TableLayout(label_columns=columns).resolved(found)
    assert all(feature.repeated for feature in layout.spec.features)
    assert built(layout, cells) == {
        "image/class/label": [1, 0],
        "image/class/text": [b"a dog", b"cat"],
    }
    assert built(layout, {}) == {"image/class/label": [], "image/class/text": []}


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(width=32) | st.booleans()
FITTING = {  # any of these fits its type
    "bytes": st.text(max_size=5) | st.binary(max_size=5) | NUMBERS,
    "int64": st.integers(-(2**63), 2**63 - 1).map(str) | st.sampled_from([7, True, " 7", "TRUE"]),
    "float": NUMBERS.map(str) | NUMBERS | st.sampled_from(["1e5", ".5", "+5", "-inf", "nan "]),
}
ODD = st.sampled_from(["1e39", "-1e999", "1_0", "٣", "", 2**63, 1e39, str(2**63), 1.5, [], ["x"]])


@st.composite
def tables(draw_from: st.DrawFn) -> tuple[list[str], list[dict[str, Any]]]:
    """Draw the types of columns, and rows with missing and few odd cells."""
    found = {name: draw_from(st.sampled_from([*FITTING])) for name in ("b", "a/b", "é")}
    others = draw_from(st.sampled_from([st.none(), st.none() | ODD]))
    cells = {name: FITTING[kind] | others for name, kind in found.items()}
    rows = draw_from(st.lists(st.fixed_dictionaries(cells), min_size=1, max_size=6))
    return [f"{kind}? {name}" for name, kind in found.items()], rows


def example_of(layout: TableLayout, row: Sample) -> bytes | None:
    try:
        found = layout.build(row, (), {})
        return encode_example(found.features)
    except (OverflowError, Unfit):
        return None


@draw(1_000)
@given(tables())
def test_columns_give_the_bytes_of_rows(table: tuple[list[str], list[dict[str, Any]]]) -> None:
    found, rows = table
    layout = TableLayout().resolved(found)
    samples = [sample({n: c for n, c in row.items() if c is not None}) for row in rows]
    one_by_one = [example_of(layout, row) for row in samples]
    if None in one_by_one:
        with pytest.raises((ValueError, OverflowError)):
            layout.examples(samples)
    else:
        assert layout.examples(samples) == one_by_one


@pytest.mark.parametrize(
    ("layout", "found", "are_joined"),
    [
        (TableLayout(), "bytes a", True),
        (TableLayout(), "bytes image_raw", False),  # the index has the size of its picture
        (TableLayout(), "bytes[] a", False),
        (TableLayout(label_columns=("a",)), "bytes a", False),
        (TableLayout(sequence_columns=("a",)), "bytes[] a", False),
    ],
)
def test_only_plain_columns_are_joined(layout: TableLayout, found: str, are_joined: bool) -> None:
    examples = layout.resolved([found]).examples([sample({})])
    assert examples == ([encode_example({})] if are_joined else None)


def test_estimated_size_covers_row_and_images() -> None:
    row = sample({"a": "x" * 1000}, Blob("r", "n", 5000))
    assert TableLayout().record_bytes(row) == 64 + 1006 + 300 + 5000
    planned = msgspec.structs.replace(row, payload=b"")
    assert TableLayout().record_bytes(planned) == TableLayout().record_bytes(row)


COLUMNS = "types, label_column and sequence must name columns,"
REFUSED = [
    (TableLayout(), (), "types must name the columns when no row has any, got none: give"),
    (TableLayout(types(b="int64")), ("int64 a",), f"{COLUMNS} got 'b': give one of a"),
    (TableLayout(label_columns=("l",)), ("int64 a",), f"{COLUMNS} got 'l': give one of a"),
    (TableLayout(with_image=True), ("int64 image/height",), "column names must be like"),
    (TableLayout(), ("int64 a//b",), "column names must be like a or a/b, and no keys of"),
    (TableLayout(sequence_columns=("c",)), ("int64[] b",), f"{COLUMNS} got 'c': give one of b"),
    (TableLayout(sequence_columns=("c",)), ("float c",), "sequence must name columns of lists, go"),
]


@pytest.mark.parametrize(("layout", "found", "message"), REFUSED)
def test_bad_tables_are_refused(layout: TableLayout, found: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        layout.resolved(found)
