"""What a shard and its index hold: Examples, frames and rows, without TensorFlow."""

import hashlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from beam_tfrec.schemas.example import FeatureListValues, FeatureValues, encode_example, varint
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.parse_example import parse_record, read_sequence
from beam_tfrec.schemas.tfrecord import FrameError, frame_record, masked_crc, read_frame
from beam_tfrec.transforms.shard_index import (
    IndexRow,
    Source,
    index_from_parquet,
    index_to_parquet,
    same_but_pins,
)
from tests.conftest import draw


def from_tensorflow(features: FeatureValues, feature_lists: FeatureListValues | None) -> bytes:
    """Return the record as TensorFlow writes it."""
    import tensorflow as tf

    def feature(kind: Kind, values: Sequence) -> tf.train.Feature:
        if kind is Kind.BYTES:
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if kind is Kind.FLOAT:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    by_key = {key: feature(kind, values) for key, (kind, values) in features.items()}
    context = tf.train.Features(feature=by_key)
    if feature_lists is None:
        return tf.train.Example(features=context).SerializeToString(deterministic=True)
    steps_by_key = {
        key: tf.train.FeatureList(feature=[feature(kind, values) for values in steps])
        for key, (kind, steps) in feature_lists.items()
    }
    lists = tf.train.FeatureLists(feature_list=steps_by_key)
    record = tf.train.SequenceExample(context=context, feature_lists=lists)
    return record.SerializeToString(deterministic=True)


LITERAL: FeatureValues = {
    "image/width": (Kind.INT64, [640]),
    "image/encoded": (Kind.BYTES, [b"\xff\xd8" + bytes(5000) + b"\xff\xd9"]),
    "image/object/class/label": (Kind.INT64, [1, 90, -1, 2**63 - 1, -(2**63)]),
    "image/object/class/text": (Kind.BYTES, [b"person", "Fußgänger".encode(), b""]),
    "image/object/area": (Kind.FLOAT, [0.1, 1e39, float("-inf"), 1e-45, -0.0]),
    "image/caption": (Kind.BYTES, []),
}


STEPS: FeatureListValues = {
    "tokens": (Kind.INT64, [[1], [300], [-1], [0]]),
    "frames": (Kind.BYTES, [[b"\xff\xd8" + bytes(5000)], [b"small"], [b"", b"x"], []]),
    "scores": (Kind.FLOAT, [[0.1, 1e39], [], [-0.0]]),
    "nothing": (Kind.INT64, []),
}


@pytest.mark.parametrize(
    ("steps", "size", "digest"),
    [
        (None, 5244, "ff3fa1c034947b53f46c8f6bc1ffd3af0564c6d9a917923a145395387ba0aaaf"),
        (STEPS, 10399, "4e88dbf64eed12ee68f910d8f06b9f71bdf2645f6af114afe2579ab2eb9d3ce6"),
    ],
)
def test_the_bytes_never_change(steps: FeatureListValues | None, size: int, digest: str) -> None:
    encoded = encode_example(LITERAL, steps)
    assert (len(encoded), hashlib.sha256(encoded).hexdigest()) == (size, digest)


def test_a_key_is_before_those_that_continue_it() -> None:
    """Python's protobuf 6 writes it after them. The bytes are by hand, from the specification."""
    keys: FeatureValues = dict.fromkeys(["ab", "", "a"], (Kind.INT64, []))
    message = "0a1b0a060a0012021a000a070a016112021a000a080a02616212021a00"
    assert encode_example(keys).hex() == message


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
    # No key continues another, see above. UTF-16 would sort the last key before that before it.
    (KEYS | st.sampled_from(["image/encoded", "k" * 126, "k" * 127, "\uffff", "\U0001f600"])).map(
        "{}$".format
    ),
    st.one_of(
        st.tuples(st.just(Kind.BYTES), st.lists(BYTES, max_size=4)),
        st.tuples(st.just(Kind.FLOAT), value_lists(FLOATS)),
        st.tuples(st.just(Kind.INT64), value_lists(NUMBERS)),
    ),
    max_size=6,
)


FEATURE_LISTS = st.dictionaries(
    (KEYS | st.sampled_from(["image/encoded", "k" * 127])).map("{}$".format),
    st.one_of(
        st.tuples(st.just(Kind.BYTES), st.lists(st.lists(BYTES, max_size=3), max_size=4)),
        st.tuples(st.just(Kind.FLOAT), st.lists(value_lists(FLOATS), max_size=4)),
        st.tuples(st.just(Kind.INT64), st.lists(value_lists(NUMBERS), max_size=4)),
        st.tuples(st.just(Kind.INT64), st.integers(0, 3000).map(lambda n: [[n % 200]] * n)),
    ),
    max_size=4,
)


@draw(1_500, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(FEATURES, st.none() | FEATURE_LISTS)
def test_random_records_equal_those_of_tensorflow(
    features: FeatureValues, feature_lists: FeatureListValues | None
) -> None:
    assert encode_example(features, feature_lists) == from_tensorflow(features, feature_lists)


WRONG = {
    "above int64": (Kind.INT64, [2**63], OverflowError, "take -2^63 to 2^63-1, got 9223372036854"),
    "a NumPy integer above int64": (Kind.INT64, [np.uint64(2**63)], OverflowError, "got 92233720"),
    "text for a number": (Kind.INT64, ["1"], TypeError, "'>=' not supported between"),
    "text for bytes": (Kind.BYTES, ["a"], TypeError, "bytes features take bytes, got str"),
    "text for a float": (Kind.FLOAT, ["1.0"], TypeError, "must be real number, not str"),
    "an integer above float64": (Kind.FLOAT, [10**400], OverflowError, "too large to convert"),
}


@pytest.mark.parametrize(("kind", "values", "error", "message"), WRONG.values(), ids=WRONG)
def test_values_of_a_wrong_kind_are_refused(
    kind: Kind, values: Sequence, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        encode_example({"a": (kind, values)})


# --- reading ---


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(*parts: bytes, key: bytes = b"a") -> bytes:
    """Return an Example of one feature, given in parts."""
    return message(1, message(1, message(1, key) + b"".join(message(2, part) for part in parts)))


INT64S = message(3, b"\x08\xac\x02" + message(1, b"\x01\x02"))
A_300_1_2 = {"a": (Kind.INT64, [300, 1, 2])}
# Messages that our encoder never writes, but other writers may, and their features.
OTHER_WRITERS = {
    "nothing at all": (b"", {}),
    "unpacked numbers": (example(INT64S), A_300_1_2),
    "a feature in two parts": (example(INT64S, INT64S), {"a": (Kind.INT64, [300, 1, 2] * 2)}),
    "unknown fields of Example and Feature": (
        example(INT64S + message(9, b"x")) + message(9, b"x"),
        A_300_1_2,
    ),
}


@pytest.mark.parametrize(("data", "features"), OTHER_WRITERS.values(), ids=OTHER_WRITERS)
def test_examples_of_other_writers_are_read(data: bytes, features: dict) -> None:
    assert parse_record(data) == (features, {})


NO_MESSAGES = {
    "a length beyond the end": b"\x0a\x05",
    "a wire type that does not exist": b"\x0a\x01\x0e",
    "a key that is not UTF-8": example(INT64S, key=b"a\xff"),
    "bytes after the message": encode_example(LITERAL) + b"\x00",
    "a message that is cut off": encode_example(LITERAL)[:-1],
}


@pytest.mark.parametrize("data", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_damaged_messages_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=f"^protobuf cannot parse its {len(data)} bytes$"):
        read_sequence(data)
    assert parse_record(data) is None


# --- frames of records ---


# Records, each as a list of its parts.
RECORDS = [[b"12", b"", b"345"], [], [bytes(range(256)) * 300, b"\xff" * 4096], [b"\0"] * 1000]


def test_the_file_equals_that_of_tensorflow(tmp_path: Path) -> None:
    import tensorflow as tf

    theirs = tmp_path / "theirs.tfrec"
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for parts in RECORDS:
            writer.write(b"".join(parts))
    ours = b"".join(part for parts in RECORDS for part in frame_record(parts))
    assert theirs.read_bytes() == ours


HUGE = b"\xff" * 8  # a length, with a valid checksum
HEADER = HUGE + masked_crc(google_crc32c.value(HUGE)).to_bytes(4, "little")
FRAMES = 2 * b"".join(frame_record([b"12345"]))
NO_FRAMES = [
    (bytes(16), 16, "the checksum of its length, 0 bytes, does not match"),
    (HEADER + bytes(4), 16, "a frame of 18446744073709551631 bytes instead of 16"),
    (FRAMES, 22, "a frame of 21 bytes instead of 22"),
    (FRAMES, 20, "a frame of 21 bytes instead of 20"),
]


@pytest.mark.parametrize(("data", "end", "error"), NO_FRAMES)
def test_other_bytes_are_refused(data: bytes, end: int, error: str) -> None:
    with pytest.raises(FrameError, match=f"^{error}$") as caught:
        read_frame(data, 0, end)
    assert caught.value.code == "E-VER-FRAME"


# --- indexes of shards ---


SHA = "ab" * 32
ROWS = [
    IndexRow(
        "30",
        0,
        120,
        [Source("a.jpg", 100, "1700000000000000001", SHA)],
        [1, 90, 1],
        480,
        640,
        3,
        2**32 - 1,
    ),
    IndexRow("4", 120, 64, [Source("b/caf\u00e9.jpg", 44, "7", SHA)], []),  # no objects
    IndexRow("pair", 184, 90, [Source("l.png", 1, "8", SHA), Source("h.png", 2, "9", SHA)], [2]),
    IndexRow("table row", 274, 20, [], [0]),  # without source files
]


def test_a_plain_parquet_reader_sees_every_column() -> None:
    table = pq.read_table(io.BytesIO(index_to_parquet(ROWS)))
    assert table.to_pylist() == [msgspec.to_builtins(row) for row in ROWS]
    assert [f"{column.name}: {column.type}" for column in table.schema] == [
        "key: string",
        "offset: int64",
        "size: int64",
        "sources: list<element: struct<name: string not null, size: int64 not null,"
        " pin: string not null, sha256: string not null>>",
        "labels: list<element: int64>",
        *("image_height: int64", "image_width: int64", "objects: int64", "crc32c: int64"),
    ]


@pytest.mark.parametrize("names", [[], ["image_height"], ["image_width", "objects", "crc32c"]])
def test_optional_columns_may_be_missing(names: list[str]) -> None:
    older = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(index_to_parquet(ROWS))).drop_columns(names), older)
    expected = [msgspec.structs.replace(row, **dict.fromkeys(names)) for row in ROWS]
    assert index_from_parquet(older.getvalue()) == expected


def test_other_files_are_refused() -> None:
    other = io.BytesIO()
    pq.write_table(pa.table({"label": [1, 2]}), other)
    for data in (b"no Parquet", index_to_parquet(ROWS)[:-5], other.getvalue()):
        with pytest.raises(ValueError, match=r"^index must be a Parquet file of records, got "):
            index_from_parquet(data)


ROW, SOURCE = ROWS[0], ROWS[0].sources[0]
changed = msgspec.structs.replace


@pytest.mark.parametrize(
    ("others", "same"),
    [
        ([ROW], True),
        ([changed(ROW, sources=[changed(SOURCE, pin="touched")])], True),
        ([changed(ROW, sources=[changed(SOURCE, sha256="cd" * 32)])], False),
        ([changed(ROW, key="31")], False),
        ([changed(ROW, objects=2)], False),
        (ROWS[:2], False),
    ],
)
def test_only_pins_may_differ(others: list[IndexRow], same: bool) -> None:
    assert same_but_pins([ROW], others) is same
