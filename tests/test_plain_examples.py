"""What is recognized at a glance is what the whole parser finds right; else nothing is said."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.example import encode_example
from schemas.example_rules import ExampleRules, make_rules
from schemas.features import Kind
from schemas.manifest import FeatureEntry, Label

FEATURES = [
    FeatureEntry("a/image", "bytes", False, "", "image"),
    FeatureEntry("b/texts", "bytes", True, "", "text"),
    FeatureEntry("c/float", "float", False, "", "plain"),
    FeatureEntry("d/floats", "float", True, "", "plain"),
    FeatureEntry("e/int", "int64", False, "", "plain"),
    FeatureEntry("f/ints", "int64", True, "", "plain"),
    FeatureEntry("g/labels", "int64", True, "", "class_label"),
]
RULES = make_rules(FEATURES, [Label(1, "one"), Label(90, "other")])
SLOWLY = ExampleRules(RULES.context, RULES.steps, RULES.labels, RULES.images)
VALUES: dict[str, tuple[Kind, Sequence[Any]]] = {
    "a/image": (Kind.BYTES, [b"x" * 300]),
    "b/texts": (Kind.BYTES, [b"", b"y" * 200]),
    "c/float": (Kind.FLOAT, [0.5]),
    "d/floats": (Kind.FLOAT, [0.5] * 40),
    "e/int": (Kind.INT64, [640]),
    "f/ints": (Kind.INT64, [1, 2, 3]),
    "g/labels": (Kind.INT64, [1, 90]),
}


def glance(data: bytes) -> list[str]:
    """Return what is wrong, and see to it that it is what the parser alone says."""
    found = list(RULES.find_wrong(data))
    assert found == list(SLOWLY.find_wrong(data))
    return found


def test_the_usual_record_needs_no_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_example(VALUES)
    assert glance(data) == []
    monkeypatch.setattr("schemas.example_rules.parse_example", None)
    assert list(RULES.find_wrong(data)) == []
    empty = {"b/texts", "d/floats", "f/ints", "g/labels"}
    none = {key: (kind, [] if key in empty else v) for key, (kind, v) in VALUES.items()}
    assert list(RULES.find_wrong(encode_example(none))) == []


ODD = {
    "two of one": {"a/image": (Kind.BYTES, [b"x", b"y"])},
    "none of one": {"e/int": (Kind.INT64, [])},
    "two floats": {"c/float": (Kind.FLOAT, [0.5, 1.0])},
    "two large integers": {"e/int": (Kind.INT64, [640, 480])},
    "another kind": {"e/int": (Kind.FLOAT, [1.0])},
    "an unknown label": {"g/labels": (Kind.INT64, [1, 2])},
    "a large label": {"g/labels": (Kind.INT64, [900])},
    "a negative label": {"g/labels": (Kind.INT64, [-1])},
    "one more key": {"h": (Kind.INT64, [1])},
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_what_is_wrong_is_said(change: dict[str, tuple[Kind, Sequence[Any]]]) -> None:
    assert len(glance(encode_example(VALUES | change))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"e/int": (Kind.INT64, [-1])},
        {"f/ints": (Kind.INT64, [-1, 2**62, 5])},
        {"d/floats": (Kind.FLOAT, [])},
    ],
)
def test_what_takes_a_closer_look_is_right(
    change: dict[str, tuple[Kind, Sequence[Any]]],
) -> None:
    assert glance(encode_example(VALUES | change)) == []


@pytest.mark.parametrize("key", VALUES)
def test_a_missing_key_is_said(key: str) -> None:
    data = encode_example({k: v for k, v in VALUES.items() if k != key})
    assert glance(data) == [f"feature {key!r} is not there"]


def test_every_byte_changed_and_every_cut_is_judged_as_by_the_parser() -> None:
    small = VALUES | {"a/image": (Kind.BYTES, [b"x" * 130]), "d/floats": (Kind.FLOAT, [0.5])}
    data = encode_example(small)
    for at in range(len(data)):
        glance(data[:at])
        for by in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            glance(data[:at] + bytes([data[at] ^ by]) + data[at + 1 :])


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 2), st.binary(max_size=3)), max_size=4
    )
)
def test_any_change_is_judged_as_by_the_parser(changes: list[tuple[int, int, bytes]]) -> None:
    data = encode_example(VALUES)
    for at, left_out, put_in in changes:
        at %= len(data) + 1
        data = data[:at] + put_in + data[at + left_out :]
    glance(data)
