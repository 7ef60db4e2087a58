"""The bytes of a `tf.train.Example`, without TensorFlow and without copying large values.

Byte-equal to TensorFlow's `SerializeToString(deterministic=True)`: the map of features is written
in the order of its keys' UTF-8 bytes, packed lists as protobuf packs them. One exception: `image`
stands before `image/filename`, as C++ and pure Python sort them, and not behind it, as Python's
upb 6.33 does (github.com/protocolbuffers/protobuf/pull/26621). Source of the format:
tensorflow/core/example/{example,feature}.proto, https://protobuf.dev/programming-guides/encoding/.
"""

import array
import functools
import operator
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence

from schemas.features import Kind

MAX_EXAMPLE_BYTES = 2**31 - 1
"""Protobuf's limit: a larger message serialises without an error and cannot be parsed."""

FeatureValues = Mapping[str, tuple[Kind, Sequence]]
"""Per feature key its kind and its values: bytes, numbers rounded to float32, or int64."""

UNCOPIED_BYTES = 4096  # below it, a copy costs less than one more part to hand on

_BYTES, _FLOATS, _INT64S = b"\x0a", b"\x12", b"\x1a"  # tags of the lists of a Feature
_FLOAT, _INT64 = Kind.FLOAT, Kind.INT64  # an Enum's members are slow to find


def encode_example(features: FeatureValues) -> bytes:
    """Return a serialized `tf.train.Example`.

    >>> encode_example({"a": (Kind.INT64, [1])}).hex()
    '0a0c0a0a0a016112051a030a0101'
    """
    return b"".join(encode_example_parts(features))


def encode_example_parts(features: FeatureValues) -> list[bytes]:
    """Return a serialized `tf.train.Example` in parts; their concatenation is the message.

    Args:
        features: the values of every feature. Floats are rounded once to float32, beyond its range
            to an infinity.

    Returns:
        At least one part; values of 4 kB and more stand among them as they were given or packed.

    Raises:
        OverflowError: when an integer does not fit int64.
        TypeError: when a value does not fit its kind.
    """
    pieces: list[bytes] = []
    large: list[int] = []  # places of those that stay uncopied
    for key in sorted(features):  # code points sort as their UTF-8 does
        kind, values = features[key]
        if kind is _FLOAT:
            tag, value = _FLOATS, packed_floats(values)
        elif kind is _INT64:
            tag, value = _INT64S, packed_int64s(values)
        elif len(values) == 1 and type(values[0]) is bytes:
            tag, value = _BYTES, values[0]
        else:
            content = bytes_list(values)
            size = sum(map(len, content))
            pieces.append(_known_list_head(key, _BYTES, size))
            if size >= UNCOPIED_BYTES:
                first = len(pieces)
                large += [first + n for n, p in enumerate(content) if len(p) >= UNCOPIED_BYTES]
            pieces += content
            continue
        if len(value) < UNCOPIED_BYTES:
            pieces += (_small_head(key, tag, len(value)), value)
        else:
            pieces += (_head(key, tag, len(value)), value)
            large.append(len(pieces) - 1)
    parts = _joined_but(large, pieces)
    parts[0] = b"\x0a" + varint(sum(map(len, parts))) + parts[0]
    return parts


def _joined_but(large: Iterable[int], pieces: Sequence[bytes]) -> list[bytes]:
    """Return pieces with all joined that are between those at the given places."""
    parts: list[bytes] = []
    begin = 0
    for place in large:
        parts += (b"".join(pieces[begin:place]), pieces[place])
        begin = place + 1
    return [*parts, b"".join(pieces[begin:])]


def bytes_list(values: Sequence[bytes]) -> list[bytes]:
    """Return the content of a `tf.train.BytesList` in parts, the values among them as given."""
    for value in values:
        if not isinstance(value, bytes):
            raise TypeError(f"bytes features take bytes, got {type(value).__name__}")
    parts = [b""] * (2 * len(values))
    parts[::2] = [_VALUE_HEADS[n] if n < 128 else _value_head(n) for n in map(len, values)]
    parts[1::2] = values
    return parts


def packed_list(packed: bytes) -> bytes:
    """Return the content of a `tf.train.FloatList` or `Int64List` of packed values."""
    return _value_head(len(packed)) + packed if packed else b""


def packed_floats(values: Sequence[float]) -> bytes:
    """Return values as float32, little endian; those beyond its range as infinities."""
    try:
        return _floats_struct(len(values)).pack(*values)
    except (OverflowError, struct.error):
        packed = array.array("f", iter(values))  # without `iter` bytes would be taken for floats
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


@functools.lru_cache(maxsize=256)
def _floats_struct(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}f")


def packed_int64s(values: Sequence[int]) -> bytes:
    """Return values as varints."""
    if len(values) == 1:
        return _int64_varint(values[0])
    try:  # an array's buffer would be taken for the numbers without `iter`
        packed = bytes(values if type(values) is list else iter(values))
    except ValueError:  # beyond a byte
        return b"".join(map(_int64_varint, values))
    # Below 128 each varint is the number itself.
    return packed if packed.isascii() else b"".join(map(_int64_varint, values))


def _head(key: str, list_tag: bytes, value_bytes: int) -> bytes:
    """Return a map entry up to its one value, which packed numbers are, too."""
    has_value = value_bytes or list_tag == _BYTES  # an empty text is one, no numbers are none
    value_head = _value_head(value_bytes) if has_value else b""
    return _list_head(key, list_tag, len(value_head) + value_bytes) + value_head


def _list_head(key: str, list_tag: bytes, list_bytes: int) -> bytes:
    """Return a map entry up to its list: the outer lengths stand first on the wire."""
    list_header = list_tag + varint(list_bytes)
    feature_header = b"\x12" + varint(len(list_header) + list_bytes) + list_header
    entry = _key_field(key) + feature_header
    return b"\x0a" + varint(len(entry) + list_bytes) + entry


@functools.lru_cache(maxsize=4096)
def _key_field(key: str) -> bytes:
    name = key.encode()
    return b"\x0a" + varint(len(name)) + name


# Keys and small lengths repeat from record to record; an image's seldom does.
_small_head = functools.lru_cache(maxsize=65_536)(_head)
_known_list_head = functools.lru_cache(maxsize=4096)(_list_head)


def _value_head(value_bytes: int) -> bytes:
    return _VALUE_HEADS[value_bytes] if value_bytes < 128 else b"\x0a" + varint(value_bytes)


def _int64_varint(value: int) -> bytes:
    if value >= 0 and value < 128:
        return _SMALL_VARINTS[operator.index(value)]
    number = operator.index(value)  # NumPy's integers too
    if not -(2**63) <= number < 2**63:
        raise OverflowError(f"int64 features take -2^63 to 2^63-1, got {number}")
    return varint(number & 0xFFFF_FFFF_FFFF_FFFF)  # two's complement, ten bytes when negative


def varint(value: int) -> bytes:
    """Return the base-128 varint of a non-negative integer.

    >>> varint(300).hex()
    'ac02'
    """
    if value < 128:
        return _SMALL_VARINTS[value]
    groups = _CONTINUED[value & 0x7F]
    value >>= 7
    while value >= 128:
        groups += _CONTINUED[value & 0x7F]
        value >>= 7
    return groups + _SMALL_VARINTS[value]


_SMALL_VARINTS = [bytes([value]) for value in range(128)]
_CONTINUED = [bytes([value | 0x80]) for value in range(128)]  # further groups follow
_VALUE_HEADS = [b"\x0a" + size for size in _SMALL_VARINTS]


FeatureListValues = Mapping[str, tuple[Kind, Sequence[Sequence]]]
"""Per feature list's key the kind of its values and, step by step, these."""


def encode_sequence_example(context: FeatureValues, feature_lists: FeatureListValues) -> bytes:
    """Return a serialized `tf.train.SequenceExample`.

    >>> encode_sequence_example({}, {"a": (Kind.INT64, [[1], []])}).hex()
    '0a0012120a100a0161120b0a051a030a01010a021a00'
    """
    return b"".join(encode_sequence_example_parts(context, feature_lists))


def encode_sequence_example_parts(
    context: FeatureValues, feature_lists: FeatureListValues
) -> list[bytes]:
    """Return a serialized `tf.train.SequenceExample` in parts; together they are the message.

    Args:
        context: the values of every feature of the whole.
        feature_lists: the values of every step of the others. Floats and integers are as in
            `encode_example_parts`.

    Returns:
        At least two parts; bytes values of 4 kB and more stand among them as they were given.

    Raises:
        OverflowError: when an integer does not fit int64.
        TypeError: when a value does not fit its kind.
    """
    entries: list[bytes] = []
    for key in sorted(feature_lists):
        kind, steps = feature_lists[key]
        entries += _entry(key, _steps(kind, steps))
    # The context has the field number and the type of an Example's features.
    parts = [b"\x12" + varint(sum(map(len, entries))), *entries]
    large = [place for place, part in enumerate(parts) if len(part) >= UNCOPIED_BYTES]
    return [*encode_example_parts(context), *_joined_but(large, parts)]


def _steps(kind: Kind, steps: Sequence[Sequence]) -> list[bytes]:
    """Return the content of a `tf.train.FeatureList` in parts."""
    parts: list[bytes] = []
    for values in steps:
        if kind is _FLOAT:
            tag, content = _FLOATS, [packed_list(packed_floats(values))]
        elif kind is _INT64:
            tag, content = _INT64S, [packed_list(packed_int64s(values))]
        else:
            tag, content = _BYTES, bytes_list(values)
        parts += (_step_header(tag, sum(map(len, content))), *content)
    return parts


@functools.lru_cache(maxsize=4096)
def _step_header(list_tag: bytes, list_bytes: int) -> bytes:
    """Return a step's Feature up to its values."""
    list_header = list_tag + varint(list_bytes)
    return b"\x0a" + varint(len(list_header) + list_bytes) + list_header


def _entry(key: str, steps: Sequence[bytes]) -> list[bytes]:
    """Return a map's entry in parts: the outer lengths stand first on the wire."""
    steps_bytes = sum(map(len, steps))
    entry = _key_field(key) + b"\x12" + varint(steps_bytes)
    return [b"\x0a" + varint(len(entry) + steps_bytes) + entry, *steps]
