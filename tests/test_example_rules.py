"""Rules that each record must follow, from the manifest."""

from typing import Any

import pytest

from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.example_rules import ExampleRules
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind

FEATURES = [
    Feature("a/image", Kind.BYTES, False, "d", Content.IMAGE),
    Feature("b/texts", Kind.BYTES, True, "d", Content.TEXT),
    Feature("c/float", Kind.FLOAT, False, "d", Content.PLAIN),
    Feature("d/floats", Kind.FLOAT, True, "d", Content.PLAIN),
    Feature("e/int", Kind.INT64, False, "d", Content.PLAIN),
    Feature("f/ints", Kind.INT64, True, "d", Content.PLAIN),
    Feature("g/labels", Kind.INT64, True, "d", Content.CLASS_LABEL),
    Feature("h/optional", Kind.INT64, False, "d", Content.PLAIN, optional=True),
]
LABELS = frozenset({1, 90})
RULES = ExampleRules(FeatureSpec("table", tuple(FEATURES)), LABELS)
VALUES: dict[str, tuple[Kind, list[Any]]] = {
    "a/image": (Kind.BYTES, [b"x" * 300]),
    "b/texts": (Kind.BYTES, [b"", b"y" * 200]),
    "c/float": (Kind.FLOAT, [0.5]),
    "d/floats": (Kind.FLOAT, [0.5] * 40),
    "e/int": (Kind.INT64, [640]),
    "f/ints": (Kind.INT64, [1, -2, 2**62]),
    "g/labels": (Kind.INT64, [1, 90]),
    "h/optional": (Kind.INT64, [0]),
}
BYTES, INT, NOT_INT = Kind.BYTES, Kind.INT64, "'f/ints' is of bytes, not of int64"
# Changed values, or None for a missing key; labels of the index; what is wrong.
CASES: dict[str, tuple[dict[str, Any], list[int] | None, list[str]]] = {
    "all is right": ({}, [1, 90], []),
    "a record that the index lacks": ({}, None, []),
    "empty lists": ({"b/texts": (BYTES, []), "f/ints": (INT, [])}, [1, 90], []),
    "an optional feature": ({"h/optional": None}, [1, 90], []),
    "a missing feature": ({"e/int": None}, None, ["'e/int' is missing"]),
    "one more key": ({"z": (INT, [1])}, None, ["'z' is not in the manifest"]),
    "a missing integer": ({"e/int": (INT, [])}, None, ["'e/int' has 0 values, not one"]),
    "another kind": ({"e/int": (Kind.FLOAT, [1])}, None, ["'e/int' is of float, not of int64"]),
    "an empty list of another kind": ({"f/ints": (BYTES, [])}, None, [NOT_INT]),
    "an unknown label": (
        {"g/labels": (INT, [90, -1])},
        *(None, ["'g/labels' has the label -1, which is not in the label map"]),
    ),
    "other labels than the index": (
        {},
        *([90, 1], ["'g/labels' has the labels [1 90], the index says [90 1]"]),
    ),
}


@pytest.mark.parametrize(("changes", "row_labels", "wrong"), CASES.values(), ids=CASES)
def test_wrong_features_are_reported(
    changes: dict[str, Any], row_labels: list[int] | None, wrong: list[str]
) -> None:
    values = {key: values for key, values in (VALUES | changes).items() if values is not None}
    found = RULES.find_wrong(encode_example(values), row_labels=row_labels)
    assert found == [f"feature {what}" for what in wrong]


def test_damaged_examples_are_reported() -> None:
    data = encode_example(VALUES)
    for changed in (data[:-1], data + b"\x00", b"\x0a\x05"):
        what = f"not an Example: protobuf cannot parse its {len(changed)} bytes"
        assert RULES.find_wrong(changed) == [what]


def test_steps_of_a_sequence_example_are_checked() -> None:
    features = (
        Feature("id", Kind.INT64, False, "d"),
        Feature("one", Kind.FLOAT, False, "d", per_step=True),
        Feature("some", Kind.INT64, True, "d", Content.CLASS_LABEL, per_step=True),
    )
    rules = ExampleRules(FeatureSpec("mine", features), LABELS)
    context = {"id": (Kind.INT64, [1])}
    right = {"one": (Kind.FLOAT, [[0.5], [1.0]]), "some": (Kind.INT64, [[], [1, 90]])}
    wrong = {"one": (Kind.FLOAT, [[0.5], [1.0, 2.0]]), "more": (Kind.INT64, [[7]])}
    assert rules.find_wrong(encode_example(context, right)) == []
    assert rules.find_wrong(encode_example(context, wrong)) == [
        "feature 'one' has 2 values, not one",
        "feature 'some' is missing",
        "feature 'more' is not in the manifest",
    ]
