"""What a serialized Example or SequenceExample holds, and what is none."""

import struct

import pytest
from hypothesis import given

from schemas.example import encode_example, encode_sequence_example, varint
from schemas.features import Kind
from schemas.parse_example import parse_example, parse_sequence_example
from tests.test_example import FEATURES, LITERAL, MESSAGES, many, tensorflow_example
from tests.test_sequence_example import STEPS


def plain(features: dict) -> dict:
    """Return features to compare: floats by their bits, as NaN differs from itself."""
    return {
        key: (kind, [struct.pack("<f", v) if kind is Kind.FLOAT else v for v in values])
        for key, (kind, values) in features.items()
    }


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(*parts: bytes, key: bytes = b"a") -> bytes:
    """Return an Example of one feature, given in parts."""
    return message(1, message(1, message(1, key) + b"".join(message(2, part) for part in parts)))


FLOATS = message(2, b"\x0d" + struct.pack("<f", 1.5))
INT64S = message(3, b"\x08\xac\x02" + message(1, b"\x01\x02"))
A_300_1_2 = {"a": (Kind.INT64, [300, 1, 2])}
# Remark, message, features: what our encoder never writes, but other writers may.
OTHER_WRITERS = {
    "nothing at all": (b"", {}),
    "a feature without a list": (example(b""), {"a": (None, [])}),
    "an entry without a value": (example(), {"a": (None, [])}),
    "an entry without a key": (
        message(1, message(1, message(2, INT64S))),
        {"": (Kind.INT64, [300, 1, 2])},
    ),
    "features in two messages": (
        example(INT64S) + example(FLOATS, key=b"b"),
        A_300_1_2 | {"b": (Kind.FLOAT, [1.5])},
    ),
    "unpacked numbers": (example(INT64S), A_300_1_2),
    "a feature in two parts": (example(INT64S, INT64S), {"a": (Kind.INT64, [300, 1, 2] * 2)}),
    "a list of another kind replaces the first": (
        example(INT64S + FLOATS),
        {"a": (Kind.FLOAT, [1.5])},
    ),
    "the last of equal keys counts": (
        example(INT64S) + example(FLOATS),
        {"a": (Kind.FLOAT, [1.5])},
    ),
    "unknown fields of Example and Feature": (
        example(INT64S + message(9, b"x")) + message(9, b"x"),
        A_300_1_2,
    ),
    "padded varints": (
        example(message(3, message(1, b"\xac\x82\x80\x00"))),
        {"a": (Kind.INT64, [300])},
    ),
    "keys in any order": (
        example(INT64S, key=b"b") + example(INT64S),
        A_300_1_2 | {"b": (Kind.INT64, [300, 1, 2])},
    ),
}


@pytest.mark.parametrize(("data", "features"), OTHER_WRITERS.values(), ids=OTHER_WRITERS)
def test_other_writers_examples_are_read(data: bytes, features: dict) -> None:
    found = parse_example(data)
    assert found == features
    assert list(found) == sorted(found)


@pytest.mark.parametrize(("features", "data"), MESSAGES.values(), ids=MESSAGES)
def test_messages_by_hand(features: dict, data: str) -> None:
    assert parse_example(bytes.fromhex(data)) == features


@many(300)
@given(FEATURES)
def test_what_the_encoder_writes_is_read(features: dict) -> None:
    found = plain(parse_example(encode_example(features)))
    assert found == plain(parse_example(tensorflow_example(features).SerializeToString()))
    assert {key: (kind, len(values)) for key, (kind, values) in found.items()} == {
        key: (kind, len(values)) for key, (kind, values) in features.items()
    }


def test_a_sequence_example_has_context_and_steps() -> None:
    context, lists = parse_sequence_example(encode_sequence_example(LITERAL, STEPS))
    assert context == parse_example(encode_example(LITERAL))
    assert lists["tokens"] == [(Kind.INT64, [n]) for n in (1, 300, -1, 0)]
    assert lists["nothing"] == []
    assert parse_sequence_example(encode_example(LITERAL)) == (context, {})


WRONG = {
    "a tag that is cut off": b"\x8a",
    "a length that is cut off": b"\x0a\x8a",
    "a length beyond the end": b"\x0a\x05",
    "a length of 2^62": b"\x0a" + varint(2**62),
    "field number 0": b"\x0a\x02\x00\x00",
    "a wire type that does not exist": b"\x0a\x01\x0e",
    "the end of no group": b"\x0c",
    "a group without end": b"\x23\x20",
    "half a number": b"\x0d\x00\x00",
    "a key that is not UTF-8": example(INT64S, key=b"a\xff"),
    "half a float": example(message(2, message(1, b"123"))),
    "half an integer": example(message(3, message(1, b"\x01\x80"))),
    "an endless integer": example(message(3, message(1, b"\x80" * 10 + b"\x01"))),
    "groups in one another": b"\x23" * 101 + b"\x24" * 101,
    "bytes after the message": encode_example(LITERAL) + b"\x00",
    "a message that is cut off": encode_example(LITERAL)[:-1],
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    expected = f"^protobuf cannot parse its {len(data)} bytes$"
    with pytest.raises(ValueError, match=expected):
        parse_example(data)
    with pytest.raises(ValueError, match=expected):
        parse_sequence_example(data)
