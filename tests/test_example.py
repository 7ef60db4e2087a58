"""`tf.train.Example` without TensorFlow: its bytes."""

import hashlib
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from schemas.example import FeatureValues, encode_example, encode_example_parts
from schemas.features import Kind
from tests.drawn_examples import draw


def tensorflow_example(features: FeatureValues) -> Any:
    import tensorflow as tf

    def feature(kind: Kind, values: Sequence) -> tf.train.Feature:
        if kind is Kind.BYTES:
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if kind is Kind.FLOAT:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    by_key = {key: feature(kind, values) for key, (kind, values) in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=by_key))


LITERAL: FeatureValues = {
    "image/width": (Kind.INT64, [640]),
    "image/encoded": (Kind.BYTES, [b"\xff\xd8" + bytes(5000) + b"\xff\xd9"]),
    "image/object/class/label": (Kind.INT64, [1, 90, -1, 2**63 - 1, -(2**63)]),
    "image/object/class/text": (Kind.BYTES, [b"person", "Fußgänger".encode(), b""]),
    "image/object/area": (Kind.FLOAT, [0.1, 1e39, float("-inf"), 1e-45, -0.0]),
    "image/caption": (Kind.BYTES, []),
}


def test_the_bytes_of_an_example_are_these_for_ever() -> None:
    encoded = encode_example(LITERAL)
    assert (len(encoded), hashlib.sha256(encoded).hexdigest()) == (
        5244,
        "ff3fa1c034947b53f46c8f6bc1ffd3af0564c6d9a917923a145395387ba0aaaf",
    )


# Remark, features, the message in hex: by hand from the encoding's specification.
MESSAGES = {
    "no features": ({}, "0a00"),
    "no bytes": ({"a": (Kind.BYTES, [])}, "0a090a070a016112020a00"),
    "an empty string is a value": ({"a": (Kind.BYTES, [b""])}, "0a0b0a090a016112040a020a00"),
    "an empty key": ({"": (Kind.INT64, [])}, "0a080a060a0012021a00"),
    "128 takes two": ({"a": (Kind.INT64, [128])}, "0a0d0a0b0a016112061a040a028001"),
    "-1 takes ten": ({"a": (Kind.INT64, [-1])}, "0a150a130a0161120e1a0c0a0affffffffffffffffff01"),
    "one is a float32": ({"a": (Kind.FLOAT, [1])}, "0a0f0a0d0a0161120812060a040000803f"),
    "astral keys after the rest of Unicode": (  # UTF-16 would sort them before
        {"\U00010000": (Kind.INT64, []), "\uffff": (Kind.INT64, [])},
        "0a170a090a03efbfbf12021a000a0a0a04f090808012021a00",
    ),
    "a key before those that continue it": (  # Python's protobuf 6 writes it after them
        {"ab": (Kind.INT64, []), "": (Kind.INT64, []), "a": (Kind.INT64, [])},
        "0a1b0a060a0012021a000a070a016112021a000a080a02616212021a00",
    ),
}


@pytest.mark.parametrize(("features", "message"), MESSAGES.values(), ids=MESSAGES)
def test_messages_by_hand(features: FeatureValues, message: str) -> None:
    assert encode_example(features).hex() == message


SIZES = [0, 1, 127, 128, 4094, 4095, 4096, 4097, 16_383, 16_384, 131_073]
BYTES = st.one_of(
    st.binary(max_size=12), st.sampled_from([bytes([size % 256]) * size for size in SIZES])
)
NUMBERS = st.one_of(
    st.integers(0, 127),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([128, 16_383, 16_384, 2**31, 2**32, 2**62, 2**63 - 1, -1, -(2**63)]),
    st.booleans(),
)
FLOATS = st.one_of(
    st.floats(),
    st.floats(width=32),
    st.sampled_from([3.4028235e38, 3.4028236e38, 1e300, -1e300, 1e-45, 7e-46, 1e-320]),
    st.integers(-(2**70), 2**70),
)


def value_lists(values: st.SearchStrategy) -> st.SearchStrategy:
    """Return lists up to some hundred values long, the long ones by repetition."""
    repeated = st.tuples(st.lists(values, min_size=1, max_size=4), st.sampled_from([32, 33, 128]))
    return st.one_of(st.lists(values, max_size=5), repeated.map(lambda pair: pair[0] * pair[1]))


KEYS = st.text(st.characters(exclude_characters="$", exclude_categories=["Cs"]), max_size=6)
FEATURES = st.dictionaries(
    # No key continues another: see "a key before those that continue it".
    (KEYS | st.sampled_from(["image/encoded", "k" * 126, "k" * 127, "\U0001f600"])).map(
        "{}$".format
    ),
    st.one_of(
        st.tuples(st.just(Kind.BYTES), st.lists(BYTES, max_size=4)),
        st.tuples(st.just(Kind.FLOAT), value_lists(FLOATS)),
        st.tuples(st.just(Kind.INT64), value_lists(NUMBERS)),
    ),
    max_size=6,
)


def check_against_tensorflow(features: FeatureValues) -> None:
    expected = tensorflow_example(features).SerializeToString(deterministic=True)
    assert encode_example(features) == expected
    assert b"".join(encode_example_parts(features)) == expected


def many(examples: int) -> Callable:
    return draw(examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@many(2_000)
@given(FEATURES)
def test_random_examples_equal_tensorflow_s(features: FeatureValues) -> None:
    check_against_tensorflow(features)


@many(200)
@given(st.dictionaries(st.text("ab/", max_size=4), st.tuples(st.just(Kind.INT64), st.just([7]))))
def test_keys_that_continue_others_parse_alike(features: FeatureValues) -> None:
    import tensorflow as tf

    parsed = tf.train.Example.FromString(encode_example(features))
    assert parsed == tensorflow_example(features)


# Sequences of numbers, not the bytes of their buffers.
SEQUENCES = {
    "integers of NumPy": (Kind.INT64, np.array([1, 300, -1]), [1, 300, -1]),
    "a list of them": (Kind.INT64, [np.int64(2**63 - 1), np.int8(-1)], [2**63 - 1, -1]),
    "a buffer": (Kind.INT64, memoryview(b"\x01\x02"), [1, 2]),
    "floats of NumPy": (Kind.FLOAT, np.array([0.1, 1e300]), [0.1, 1e300]),
    "bytes, as protobuf takes them": (Kind.FLOAT, b"abcd", [97.0, 98.0, 99.0, 100.0]),
    "bytes of NumPy": (Kind.BYTES, (np.bytes_(b"ab"),), [b"ab"]),
}


@pytest.mark.parametrize(("kind", "values", "as_list"), SEQUENCES.values(), ids=SEQUENCES)
def test_other_sequences_encode_as_their_lists(kind: Kind, values: Sequence, as_list: list) -> None:
    assert encode_example({"a": (kind, values)}) == encode_example({"a": (kind, as_list)})


@pytest.mark.parametrize("size_bytes", [4096, 200_000])
def test_large_values_are_handed_on_uncopied(size_bytes: int) -> None:
    first, second = bytes(size_bytes), b"\1" * size_bytes
    features = {"a": (Kind.BYTES, [first, b"small", second]), "b": (Kind.INT64, [1])}
    parts = encode_example_parts(features)
    assert [part is first or part is second for part in parts] == [False, True, False, True, False]


WRONG = {
    "above int64": (Kind.INT64, [2**63], OverflowError, "take -2^63 to 2^63-1, got 9223372036854"),
    "above int64 among small": (Kind.INT64, [1, 2**64], OverflowError, "got 18446744073709551616"),
    "a NumPy integer above int64": (Kind.INT64, [np.uint64(2**63)], OverflowError, "got 92233720"),
    "a small float": (Kind.INT64, [1.0], TypeError, "'float' object cannot be interpreted as an"),
    "NaN": (Kind.INT64, [float("nan")], TypeError, "'float' object cannot be interpreted as an"),
    "text for a number": (Kind.INT64, ["1"], TypeError, "'>=' not supported between"),
    "text for bytes": (Kind.BYTES, ["a"], TypeError, "bytes features take bytes, got str"),
    "a buffer for bytes": (Kind.BYTES, [bytearray(2)], TypeError, "take bytes, got bytearray"),
    "text for a float": (Kind.FLOAT, ["1.0"], TypeError, "must be real number, not str"),
    "an integer above float64": (Kind.FLOAT, [10**400], OverflowError, "too large to convert"),
}


@pytest.mark.parametrize(("kind", "values", "error", "message"), WRONG.values(), ids=WRONG)
def test_values_that_do_not_fit_their_kind(
    kind: Kind, values: Sequence, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        encode_example({"a": (kind, values)})


@given(st.floats(width=64))
def test_a_float_is_rounded_once(value: float) -> None:
    with np.errstate(over="ignore"):
        expected = np.float32(value)
    stored = struct.unpack("<f", encode_example({"a": (Kind.FLOAT, [value])})[-4:])[0]
    np.testing.assert_array_equal(np.float32(stored), expected)
