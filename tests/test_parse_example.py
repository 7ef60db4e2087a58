"""The parser of Examples against protobuf's own: the same verdict and the same values."""

import array
import re
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from schemas.example import encode_example, varint
from schemas.features import Kind
from schemas.parse_example import (
    NO_VALUES,
    Values,
    parse_example,
    parse_sequence_example,
)
from schemas.sequence_example import encode_sequence_example
from tests.test_example import FEATURES, LITERAL, MESSAGES, many
from tests.test_sequence_example import STEPS

KIND_OF = {
    None: None,
    Kind.BYTES: "bytes_list",
    Kind.FLOAT: "float_list",
    Kind.INT64: "int64_list",
}
ASIDE = {"upb sets aside": ("", [])}
"""Of a message of which upb keeps a map's entry among unknown fields, since the entry has some."""


def plain(kind: str | None, values: Sequence) -> tuple[str | None, list]:
    """Return values to compare: a float as its bits, which no copy through Python changes."""
    if kind == "float_list":
        return kind, [struct.pack("<f", value) for value in values]
    return kind, list(values)


def their_feature(feature: Any) -> tuple[str | None, list]:
    kind = feature.WhichOneof("kind")
    return plain(kind, [] if kind is None else getattr(feature, kind).value)


def is_set_aside(map_holder: Any) -> bool:
    """Return whether upb keeps an entry of a map among unknown fields; C++ and Java do not."""
    return any(f.field_number == 1 and f.wire_type == 2 for f in UnknownFieldSet(map_holder))


def their_features(features: Any) -> dict:
    if is_set_aside(features):
        return ASIDE
    return {key: their_feature(feature) for key, feature in features.feature.items()}


def our_features(features: dict[str, Values]) -> dict:
    return {key: plain(KIND_OF[kind], values) for key, (kind, values) in features.items()}


def check_against_protobuf(data: bytes) -> None:
    import tensorflow as tf

    try:
        theirs = their_features(tf.train.Example.FromString(data).features)
    except DecodeError:
        with pytest.raises(ValueError, match=r"^byte [0-9]+: "):
            parse_example(data)
        return
    ours = our_features(parse_example(data))
    assert theirs in (ours, ASIDE)


def check_sequence_against_protobuf(data: bytes) -> None:
    import tensorflow as tf

    try:
        theirs = tf.train.SequenceExample.FromString(data)
    except DecodeError:
        with pytest.raises(ValueError, match=r"^byte [0-9]+: "):
            parse_sequence_example(data)
        return
    context, lists = parse_sequence_example(data)
    assert their_features(theirs.context) in (our_features(context), ASIDE)
    if not is_set_aside(theirs.feature_lists):
        their_lists = {
            key: [their_feature(feature) for feature in steps.feature]
            for key, steps in theirs.feature_lists.feature_list.items()
        }
        our_lists = {
            key: [plain(KIND_OF[kind], values) for kind, values in steps]
            for key, steps in lists.items()
        }
        assert our_lists == their_lists


# --- messages that no encoder writes, and some that are none ---


def padded(value: int, padding: int) -> bytes:
    """Return a varint with bytes that add nothing."""
    data = bytearray(varint(value))
    for _ in range(padding):
        data[-1] |= 0x80
        data.append(0)
    return bytes(data)


PADDINGS = st.sampled_from([0] * 12 + [1, 3, 4, 8])
NUMBERS = st.one_of(
    st.integers(0, 127), st.integers(0, 2**64 - 1), st.sampled_from([128, 2**31, 2**32, 2**63])
)
VARINTS = st.builds(padded, NUMBERS, PADDINGS.map(lambda size: min(size, 1)))
FIELD_NUMBERS = st.sampled_from([1, 2, 3, 4, 15, 16, 2**29 - 1])


def field(number: int, wire: int, content: bytes) -> bytes:
    return varint(number << 3 | wire) + content


def message(number: int, content: bytes, padding: int = 0) -> bytes:
    return padded(number << 3 | 2, min(padding, 4)) + padded(len(content), padding) + content


def messages(number: int, contents: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(message, st.just(number), contents, PADDINGS)


UNKNOWN = st.recursive(
    st.one_of(
        st.builds(field, FIELD_NUMBERS, st.just(0), VARINTS),
        st.builds(field, FIELD_NUMBERS, st.just(1), st.binary(min_size=8, max_size=8)),
        st.builds(field, FIELD_NUMBERS, st.just(5), st.binary(min_size=4, max_size=4)),
        st.builds(message, st.sampled_from([4, 9]), st.binary(max_size=6)),
    ),
    lambda fields: st.builds(
        lambda number, content: field(number, 3, b"".join(content)) + field(number, 4, b""),
        FIELD_NUMBERS,
        st.lists(fields, max_size=2),
    ),
    max_leaves=4,
)


def several(*fields: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Return fields in any order and number, now and then an unknown one among them."""
    known = st.one_of(*fields)
    mostly_known = st.one_of(*[known] * 8, UNKNOWN)
    return st.lists(mostly_known, max_size=4).map(b"".join)


BYTES_LISTS = several(messages(1, st.binary(max_size=4)))
FLOAT_LISTS = several(
    messages(1, st.integers(0, 3).flatmap(lambda n: st.binary(min_size=4 * n, max_size=4 * n))),
    st.builds(field, st.just(1), st.just(5), st.binary(min_size=4, max_size=4)),
)
INT64_LISTS = several(
    messages(1, st.lists(VARINTS, max_size=4).map(b"".join)),
    st.builds(field, st.just(1), st.just(0), VARINTS),
)
ONE_FEATURE = several(messages(1, BYTES_LISTS), messages(2, FLOAT_LISTS), messages(3, INT64_LISTS))
MAP_KEYS = st.sampled_from([b"", b"a", b"b", "ü".encode(), b"k" * 127, b"k" * 128, b"\xff"])


def examples() -> st.SearchStrategy[bytes]:
    entries = several(messages(1, MAP_KEYS), messages(2, ONE_FEATURE))
    return several(messages(1, several(messages(1, entries))))


def sequence_examples() -> st.SearchStrategy[bytes]:
    entries = several(messages(1, MAP_KEYS), messages(2, ONE_FEATURE))
    steps = several(messages(1, MAP_KEYS), messages(2, several(messages(1, ONE_FEATURE))))
    return several(
        messages(1, several(messages(1, entries))), messages(2, several(messages(1, steps)))
    )


BYTE = st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x0A, 0x0B, 0x0C, 0x12, 0x80, 0xFF]))


def spoilt(data: bytes, places: list[tuple[int, int, int]]) -> bytes:
    """Return bytes of which some are changed, left out or doubled."""
    for place, how, byte in places:
        at = place % (len(data) + 1)
        middle = [bytes([byte]), b"", data[at : at + byte % 16] * 2][how]
        data = data[:at] + middle + data[at + (byte % 16 if how == 2 else 1) :]
    return data


PLACES = st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 2), BYTE), min_size=1, max_size=3)


@many(600)
@given(examples())
def test_any_order_and_any_parts_are_read_as_protobuf_reads_them(data: bytes) -> None:
    check_against_protobuf(data)


@many(600)
@given(st.one_of(examples(), FEATURES.map(encode_example)), PLACES)
def test_damaged_messages_have_protobuf_s_verdict(
    data: bytes, places: list[tuple[int, int, int]]
) -> None:
    check_against_protobuf(spoilt(data, places))


@many(600)
@given(FEATURES)
def test_what_the_encoder_writes_is_read(features: dict) -> None:
    check_against_protobuf(encode_example(features))


@many(400)
@given(sequence_examples(), PLACES | st.just([]))
def test_sequence_examples_are_read_as_protobuf_reads_them(
    data: bytes, places: list[tuple[int, int, int]]
) -> None:
    check_sequence_against_protobuf(spoilt(data, places))


@pytest.mark.slow
@many(20_000)
@given(st.one_of(examples(), FEATURES.map(encode_example)), PLACES | st.just([]))
def test_very_many_messages_have_protobuf_s_verdict(
    data: bytes, places: list[tuple[int, int, int]]
) -> None:
    check_against_protobuf(spoilt(data, places))


# --- by hand ---


def test_the_literal_example_is_read() -> None:
    data = encode_example(LITERAL)
    check_against_protobuf(data)
    parsed = parse_example(b"before" + data + b"behind", 6, 6 + len(data))
    assert our_features(parsed) == our_features(parse_example(data))
    assert parsed["image/width"] == (Kind.INT64, array.array("q", [640]))
    assert parsed["image/caption"] == (Kind.BYTES, [])
    assert [values.kind for values in parsed.values()] == [
        LITERAL[key][0] for key in sorted(LITERAL)
    ]


def test_the_literal_sequence_example_is_read() -> None:
    data = encode_sequence_example(LITERAL, STEPS)
    check_sequence_against_protobuf(data)
    context, lists = parse_sequence_example(b"-" + data, 1)
    assert our_features(context) == our_features(parse_example(encode_example(LITERAL)))
    assert lists["tokens"] == [(Kind.INT64, array.array("q", [n])) for n in (1, 300, -1, 0)]
    assert lists["nothing"] == []


@pytest.mark.parametrize(("features", "data"), MESSAGES.values(), ids=MESSAGES)
def test_messages_by_hand(features: dict, data: str) -> None:
    found = parse_example(bytes.fromhex(data))
    assert {key: (kind, list(values)) for key, (kind, values) in found.items()} == features


# Remark, message in hex, features.
ODD = {
    "nothing at all": ("", {}),
    "a feature without a list": ("0a070a050a01611200", {"a": NO_VALUES}),
    "an entry without a value": ("0a050a030a0161", {"a": NO_VALUES}),
    "an entry without a key": ("0a060a0412021a00", {"": Values(Kind.INT64, array.array("q"))}),
    "two messages of features": (
        "0a090a070a016112021a00" + "0a090a070a016212021200",
        {
            "a": Values(Kind.INT64, array.array("q")),
            "b": Values(Kind.FLOAT, array.array("f")),
        },
    ),
    "a list in two parts": (
        "0a130a110a0161120c1a030a01011a050a03020304",
        {"a": Values(Kind.INT64, array.array("q", [1, 2, 3, 4]))},
    ),
}


def nested(*parts: bytes, key: bytes = b"a") -> bytes:
    """Return an Example of one feature, in parts."""
    return message(1, message(1, message(1, key) + b"".join(message(2, part) for part in parts)))


FLOATS = message(2, field(1, 5, struct.pack("<f", 1.5)))
INT64S = message(3, field(1, 0, varint(300)) + message(1, b"\x01\x02"))
ODD |= {
    "unpacked, then packed": (
        nested(INT64S).hex(),
        {"a": Values(Kind.INT64, array.array("q", [300, 1, 2]))},
    ),
    "parts of a feature": (
        nested(INT64S, INT64S).hex(),
        {"a": Values(Kind.INT64, array.array("q", [300, 1, 2] * 2))},
    ),
    "a list of another kind begins anew": (
        nested(INT64S + FLOATS).hex(),
        {"a": Values(Kind.FLOAT, array.array("f", [1.5]))},
    ),
    "and once more": (
        nested(INT64S + FLOATS + INT64S).hex(),
        {"a": Values(Kind.INT64, array.array("q", [300, 1, 2]))},
    ),
    "the last of equal keys": (
        (nested(INT64S) + nested(FLOATS)).hex(),
        {"a": Values(Kind.FLOAT, array.array("f", [1.5]))},
    ),
}


@pytest.mark.parametrize(("data", "features"), ODD.values(), ids=ODD)
def test_odd_messages_by_hand(data: str, features: dict[str, Values]) -> None:
    assert parse_example(bytes.fromhex(data)) == features
    check_against_protobuf(bytes.fromhex(data))


WRONG = {
    "a tag that is cut off": ("8a", "byte 0: an integer that is cut off"),
    "a length that is cut off": ("0a8a", "byte 1: an integer that is cut off"),
    "a length beyond the end": ("0a05", "byte 1: a length of 5 bytes, 0 are left"),
    "a length of 2^62": ("0a808080808080808040", "byte 1: a length of 4611686018427387904 bytes"),
    "field number 0": ("0a020000", "byte 2: field number 0, which there is not"),
    "wire type 6": ("0a010e", "byte 2: a field of wire type 6, which there is not"),
    "wire type 7": ("0f", "byte 0: a field of wire type 7, which there is not"),
    "the end of no group": ("0c", "byte 0: the end of a group that has not begun"),
    "the end of another": ("2334", "byte 1: the end of a group that has not begun"),
    "a group without end": ("2320", "byte 2: an integer that is cut off"),
    "a group of nothing": ("23", "byte 1: an integer that is cut off"),
    "half a number": ("0d0000", "byte 1: a number of 4 bytes, 2 are left"),
    "a key that is no UTF-8": (nested(key=b"a\xff").hex(), "byte 7: a key that is no UTF-8"),
    "half a float": (
        nested(message(2, message(1, b"123"))).hex(),
        "byte 13: 3 bytes of floats, which have 4 each",
    ),
    "half an integer": (
        nested(message(3, message(1, b"\x01\x80"))).hex(),
        "byte 13: a list of integers whose last is cut off",
    ),
    "an endless integer": (
        nested(message(3, message(1, b"\x80" * 10 + b"\x01"))).hex(),
        "byte 13: a list with an integer of more than 10 bytes",
    ),
    "groups in one another": ("23" * 101 + "24" * 101, "byte 101: more than 100 messages in one"),
}


@pytest.mark.parametrize(("data", "error"), WRONG.values(), ids=WRONG)
def test_what_is_no_message_is_refused(data: str, error: str) -> None:
    check_against_protobuf(bytes.fromhex(data))
    with pytest.raises(ValueError, match="^" + re.escape(error)):
        parse_example(b"..." + bytes.fromhex(data), 3)


@pytest.mark.parametrize("depth", [95, 96, 97, 98, 99, 100, 101])
@pytest.mark.parametrize("messages_above", range(5))
def test_messages_in_one_another_are_counted_as_protobuf_does(
    depth: int, messages_above: int
) -> None:
    data = b"\x23" * depth + b"\x24" * depth
    for number in (1, 2, 1, 1)[4 - messages_above :]:
        data = message(number, data)
    check_against_protobuf(data)
