"""The bytes of a `tf.train.Example`, without TensorFlow and without copying large values.

Byte-equal to TensorFlow's `SerializeToString(deterministic=True)`: the map of features is written
in the order of its keys' UTF-8 bytes, packed lists as protobuf packs them. Source of the format:
tensorflow/core/example/{example,feature}.proto, https://protobuf.dev/programming-guides/encoding/.
"""

import array
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from schemas.features import Kind

MAX_EXAMPLE_BYTES = 2**31 - 1
"""Protobuf's limit: a larger message serialises without an error and cannot be parsed."""

FeatureValues = Mapping[str, tuple[Kind, Sequence]]
"""Per feature key its kind and its values: bytes, numbers rounded to float32, or int64."""

_UNCOPIED_BYTES = 4096  # below it, a copy costs less than one more part to hand on
_LIST_TAGS = {Kind.BYTES: b"\x0a", Kind.FLOAT: b"\x12", Kind.INT64: b"\x1a"}


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
        At least one part; bytes values of 4 kB and more stand among them as they were given.

    Raises:
        OverflowError: when an integer does not fit int64.
        TypeError: when a value does not fit its kind.
    """
    fields: list[bytes] = []
    for key in sorted(features):  # code points sort as their UTF-8 does
        kind, values = features[key]
        _append_map_entry(fields, key, kind, values)
    parts = _join_small(fields)
    header = b"\x0a" + _varint(sum(map(len, parts)))
    if parts and len(parts[0]) < _UNCOPIED_BYTES:
        return [header + parts[0], *parts[1:]]
    return [header, *parts]


def _append_map_entry(fields: list[bytes], key: str, kind: Kind, values: Sequence) -> None:
    """Append one entry of `map<string, Feature>`: outer lengths first, as the wire wants them."""
    list_parts = _LIST_ENCODERS[kind](values)
    list_bytes = sum(map(len, list_parts))
    list_header = _LIST_TAGS[kind] + _varint(list_bytes)
    feature_bytes = len(list_header) + list_bytes
    entry_header = _key_field(key) + b"\x12" + _varint(feature_bytes) + list_header
    fields.append(b"\x0a" + _varint(len(entry_header) + list_bytes) + entry_header)
    fields.extend(list_parts)


def _bytes_list(values: Iterable[bytes]) -> list[bytes]:
    parts: list[bytes] = []
    for value in values:
        if not isinstance(value, bytes):
            raise TypeError(f"bytes features take bytes, got {type(value).__name__}")
        parts += (b"\x0a" + _varint(len(value)), value)
    return parts


def _float_list(values: Sequence[float]) -> list[bytes]:
    if not len(values):
        return []
    packed = array.array("f", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return [b"\x0a" + _varint(4 * len(packed)), packed.tobytes()]


def _int64_list(values: Sequence[int]) -> list[bytes]:
    if not len(values):
        return []
    if min(values) >= 0 and max(values) < 128:  # then each varint is the number itself
        packed = bytes(values)
    else:
        packed = b"".join(map(_int64_varint, values))
    return [b"\x0a" + _varint(len(packed)), packed]


_LIST_ENCODERS: dict[Kind, Callable[[Sequence], list[bytes]]] = {
    Kind.BYTES: _bytes_list,
    Kind.FLOAT: _float_list,
    Kind.INT64: _int64_list,
}


def _int64_varint(value: int) -> bytes:
    if not -(2**63) <= value < 2**63:
        raise OverflowError(f"int64 features take -2^63 to 2^63-1, got {value}")
    return _varint(value & 0xFFFF_FFFF_FFFF_FFFF)  # two's complement, ten bytes when negative


def _varint(value: int) -> bytes:
    """Return the base-128 varint of a non-negative integer.

    >>> _varint(300).hex()
    'ac02'
    """
    if value < 128:
        return _SMALL_VARINTS[value]
    groups = bytearray()
    while value >= 128:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


_SMALL_VARINTS = [bytes([value]) for value in range(128)]


@functools.lru_cache(maxsize=4096)
def _key_field(key: str) -> bytes:
    name = key.encode()
    return b"\x0a" + _varint(len(name)) + name


def _join_small(fields: list[bytes]) -> list[bytes]:
    """Return the same bytes in few parts: runs of small fields joined, large ones untouched."""
    if all(len(field) < _UNCOPIED_BYTES for field in fields):
        return [b"".join(fields)]
    parts: list[bytes] = []
    start = 0
    for place, field in enumerate(fields):
        if len(field) >= _UNCOPIED_BYTES:
            parts += (b"".join(fields[start:place]), field)
            start = place + 1
    parts.append(b"".join(fields[start:]))
    return parts
