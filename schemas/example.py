"""Serialize a `tf.train.Example` without TensorFlow and without copying large values.

The bytes equal those of TensorFlow's `SerializeToString(deterministic=True)`: features are sorted
by the UTF-8 bytes of their keys, and lists of numbers are packed. There is one exception: `image`
comes before `image/filename`, as in C++ and pure Python. Python's upb 6.33 sorts it after
(github.com/protocolbuffers/protobuf/pull/26621). Source of the format:
tensorflow/core/example/{example,feature}.proto, https://protobuf.dev/programming-guides/encoding/.
"""

import array
import functools
import itertools
import operator
import struct
import sys
from collections.abc import Mapping, Sequence

from beam_tfrec.schemas.features import Kind

MAX_EXAMPLE_BYTES = 2**31 - 1
"""Protobuf's limit. A larger message serializes without an error, but cannot be parsed."""

FeatureValues = Mapping[str, tuple[Kind, Sequence]]
"""Kind and values of each feature, by key. Values are bytes, floats or integers."""

FeatureListValues = Mapping[str, tuple[Kind, Sequence[Sequence]]]
"""Kind and values of each feature list, by key: one list of values per step."""

_UNCOPIED_BYTES = 4096  # copying a smaller value costs less than handing on one more part

_BYTES, _FLOATS, _INT64S = b"\x0a", b"\x12", b"\x1a"  # tags of the lists of a Feature
_FLOAT, _INT64 = Kind.FLOAT, Kind.INT64  # looking up an Enum's member is slow


def encode_example(
    features: FeatureValues, feature_lists: FeatureListValues | None = None
) -> bytes:
    """Return a serialized `tf.train.Example`, or a `SequenceExample` if there are feature lists.

    >>> encode_example({"a": (Kind.INT64, [1])}).hex()
    '0a0c0a0a0a016112051a030a0101'
    >>> encode_example({}, {"a": (Kind.INT64, [[1], []])}).hex()
    '0a0012120a100a0161120b0a051a030a01010a021a00'
    """
    return b"".join(encode_example_parts(features, feature_lists))


def encode_example_parts(
    features: FeatureValues, feature_lists: FeatureListValues | None = None
) -> list[bytes]:
    """Return a record in parts; their concatenation is the message.

    Args:
        features: the features, or for a SequenceExample those of its context. Floats are rounded
            once to float32; numbers beyond its range become infinite.
        feature_lists: the feature lists of a SequenceExample; None for an Example.

    Returns:
        At least one part. Bytes of 4 kB or more are a part of their own, uncopied. A list of
        numbers that takes 4 kB or more when packed is a part of its own, too.

    Raises:
        OverflowError: when an integer does not fit int64.
        TypeError: when a value does not fit its kind.
    """
    entries: list[bytes] = []
    for key in sorted(features):  # code points sort as their UTF-8 does
        kind, values = features[key]
        entries += _feature(key, kind, values)
    pieces = _field(b"\x0a", entries)  # an Example's features, and a SequenceExample's context
    if feature_lists is not None:
        entries = []
        for key in sorted(feature_lists):
            kind, steps = feature_lists[key]
            content = [piece for values in steps for piece in _feature(None, kind, values)]
            entries += _field(b"\x0a", [_key_field(key), *_field(b"\x12", content)])
        pieces += _field(b"\x12", entries)
    parts: list[bytes] = []
    for is_large, group in itertools.groupby(pieces, lambda one: len(one) >= _UNCOPIED_BYTES):
        alike = [*group]
        parts += alike if is_large else [b"".join(alike)]
    return parts


def encode_column(key: str, kind: Kind, values: Sequence) -> list[bytes]:
    """Return a Feature with its key for each value of a column, for `join_columns`.

    Raises:
        OverflowError: when an integer does not fit int64, or a float does not fit float32.
    """
    tag = _BYTES
    if kind is _FLOAT:
        tag, packed = _FLOATS, struct.pack(f"<{len(values)}f", *values)
        values = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    elif kind is _INT64:
        tag, values = _INT64S, [*map(_int64_varint, values)]
    heads = {size: _value_head(key, tag, size) for size in {*map(len, values)}}
    return [heads[len(value)] + value for value in values]


def join_columns(columns: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return an Example for each row of columns, which are sorted by key.

    >>> join_columns([encode_column("a", Kind.INT64, [1])])[0].hex()
    '0a0c0a0a0a016112051a030a0101'
    """
    return [b"\x0a" + varint(len(row)) + row for row in map(b"".join, zip(*columns, strict=True))]


def _field(tag: bytes, parts: Sequence[bytes]) -> list[bytes]:
    """Return a field of a message in parts: tag and length, then the given parts."""
    return [tag + varint(sum(map(len, parts))), *parts]


def _feature(key: str | None, kind: Kind, values: Sequence) -> Sequence[bytes]:
    """Return a Feature in parts: as a map entry if it has a key, else as a step."""
    if kind is _FLOAT:
        tag, value = _FLOATS, _packed_floats(values)
    elif kind is _INT64:
        tag, value = _INT64S, b"".join(map(_int64_varint, values))
    elif len(values) == 1 and type(values[0]) is bytes:
        tag, value = _BYTES, values[0]
    else:
        content = _bytes_list(values)
        return [_head(key, _BYTES, sum(map(len, content))), *content]
    return _value_head(key, tag, len(value)), value


@functools.lru_cache(maxsize=16_384)  # keys and small lengths repeat, lengths of images seldom do
def _value_head(key: str | None, list_tag: bytes, value_bytes: int) -> bytes:
    """Return the bytes of a Feature before its only value; packed numbers count as one value."""
    has_value = value_bytes or list_tag == _BYTES  # an empty text is a value, an empty pack is not
    value_head = b"\x0a" + varint(value_bytes) if has_value else b""
    return _head(key, list_tag, len(value_head) + value_bytes) + value_head


@functools.lru_cache(maxsize=4096)
def _head(key: str | None, list_tag: bytes, list_bytes: int) -> bytes:
    """Return the bytes of a Feature before its list's content: tags and all outer lengths."""
    list_head = list_tag + varint(list_bytes)
    feature_head = varint(len(list_head) + list_bytes) + list_head
    if key is None:
        return b"\x0a" + feature_head
    entry_head = _key_field(key) + b"\x12" + feature_head
    return b"\x0a" + varint(len(entry_head) + list_bytes) + entry_head


def _key_field(key: str) -> bytes:
    name = key.encode()
    return b"\x0a" + varint(len(name)) + name


def _bytes_list(values: Sequence[bytes]) -> list[bytes]:
    """Return the content of a `tf.train.BytesList` in parts; values are not copied."""
    for value in values:
        if not isinstance(value, bytes):
            raise TypeError(f"bytes features take bytes, got {type(value).__name__}")
    heads = (b"\x0a" + varint(len(value)) for value in values)
    return [part for pair in zip(heads, values, strict=True) for part in pair]


def _packed_floats(values: Sequence[float]) -> bytes:
    """Return values as float32, little endian; values beyond its range become infinite."""
    try:
        return struct.pack(f"<{len(values)}f", *values)
    except (OverflowError, struct.error):
        packed = array.array("f", iter(values))  # without `iter`, bytes would be read as floats
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _int64_varint(value: int) -> bytes:
    if value >= 0 and value < 128:
        return _SMALL_VARINTS[value]
    number = operator.index(value)  # NumPy's integers too
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"int64 features take -2^63 to 2^63-1, got {number}")
    return varint(number & 0xFFFF_FFFF_FFFF_FFFF)  # two's complement, ten bytes when negative


def varint(value: int) -> bytes:
    """Return the base-128 varint of a non-negative integer.

    >>> varint(300).hex()
    'ac02'
    """
    groups = b""
    while value >= 128:
        groups += _CONTINUED[value & 0x7F]
        value >>= 7
    return groups + _SMALL_VARINTS[value]


_SMALL_VARINTS = [bytes([value]) for value in range(128)]
_CONTINUED = [bytes([value | 0x80]) for value in range(128)]
