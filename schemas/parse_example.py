"""What the bytes of a `tf.train.Example` or `SequenceExample` hold, without TensorFlow or protobuf.

Every message is taken that protobuf's C parser takes, with the same values: fields in any order and
in several parts, lists packed or not, the last of equal map keys, unknown fields passed over (in a
map's entry too, as C++ does; Python's upb takes the whole entry for unknown then). All else is a
`ValueError` that names the byte. Nothing is believed of a length but what is there, so memory is
bounded by the message's size. Most messages are written as `schemas.example` writes them:
`_plain_entry` reads such an entry at once, and leaves any other to the walk through its fields.
Source of the format: https://protobuf.dev/programming-guides/encoding/.
"""

import array
import sys
from collections.abc import Iterator
from typing import NamedTuple

from schemas.features import Kind

_INT64_MASK = 0xFFFF_FFFF_FFFF_FFFF
_MAX_LENGTH = 2**31 - 1  # protobuf's limit, of each length too
_MAX_VARINT_BYTES = 10
_MAX_TAG_BYTES = 5
_MAX_DEPTH = 100  # of messages and groups in one another
_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_FIRST, _SECOND, _THIRD = (number << 3 | _BYTES for number in (1, 2, 3))
_ONE_FLOAT, _ONE_INT64 = 1 << 3 | _FIXED32, 1 << 3 | _VARINT
_KINDS = {_FIRST: Kind.BYTES, _SECOND: Kind.FLOAT, _THIRD: Kind.INT64}

List = list[bytes] | array.array
"""Bytes as a list, numbers as an array of type code `f` or `q`, of which numpy makes a view."""


class Values(NamedTuple):
    """What a `tf.train.Feature` holds.

    Attributes:
        kind: of its list; None of a feature that has none.
        values: the list's; empty without a kind.
    """

    kind: Kind | None
    values: List


NO_VALUES = Values(None, [])


class Sequences(NamedTuple):
    """What a `tf.train.SequenceExample` holds.

    Attributes:
        context: per key the values of the whole.
        feature_lists: per key the values of every step.
    """

    context: dict[str, Values]
    feature_lists: dict[str, list[Values]]


def parse_example(data: bytes, start: int = 0, end: int | None = None) -> dict[str, Values]:
    """Return the features of a serialized `tf.train.Example`.

    Args:
        data: bytes that hold it.
        start: where it begins.
        end: where it ends; None for the end of `data`.

    Raises:
        ValueError: when protobuf would refuse it, with the byte's offset from `start`.

    >>> parse_example(bytes.fromhex("0a0c0a0a0a016112051a030a0101"))
    {'a': Values(kind=<Kind.INT64: 'int64'>, values=array('q', [1]))}
    """
    end = len(data) if end is None else end
    features: dict[str, Values] = {}
    try:
        for tag, first, last in _fields(data, start, end, _MAX_DEPTH):
            if tag == _FIRST:
                _read_features(data, first, last, features, _MAX_DEPTH - 1)
    except _MalformedError as error:
        raise error.told(start) from None
    return features


def parse_sequence_example(data: bytes, start: int = 0, end: int | None = None) -> Sequences:
    """Return context and steps of a serialized `tf.train.SequenceExample`.

    Args:
        data: bytes that hold it.
        start: where it begins.
        end: where it ends; None for the end of `data`.

    Raises:
        ValueError: when protobuf would refuse it, with the byte's offset from `start`.
    """
    end = len(data) if end is None else end
    found = Sequences({}, {})
    try:
        for tag, first, last in _fields(data, start, end, _MAX_DEPTH):
            if tag == _FIRST:
                _read_features(data, first, last, found.context, _MAX_DEPTH - 1)
            elif tag == _SECOND:
                _read_feature_lists(data, first, last, found.feature_lists, _MAX_DEPTH - 1)
    except _MalformedError as error:
        raise error.told(start) from None
    return found


class _MalformedError(Exception):
    """What is wrong, and where in the buffer."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(at, what)
        self._at = at
        self._what = what

    def told(self, start: int) -> ValueError:
        return ValueError(f"byte {self._at - start}: {self._what}")


def _read_features(data: bytes, at: int, end: int, into: dict[str, Values], depth: int) -> None:
    """Read a `tf.train.Features`; of equal keys the last one counts."""
    while at < end:
        if entry := _plain_entry(data, at, end):
            key, into[key], at = entry
            continue
        tag, first, at = _field(data, at, end, depth)
        if tag == _FIRST:
            key, parts = _map_entry(data, first, at, depth - 1)
            feature = _Feature()
            for part in parts:
                feature.read(data, *part, depth - 2)
            into[key] = feature.values()


def _read_feature_lists(
    data: bytes, at: int, end: int, into: dict[str, list[Values]], depth: int
) -> None:
    """Read a `tf.train.FeatureLists`; of equal keys the last one counts."""
    for tag, first, last in _fields(data, at, end, depth):
        if tag == _FIRST:
            key, parts = _map_entry(data, first, last, depth - 1)
            into[key] = [
                _one_feature(data, begin, stop, depth - 3)
                for part in parts
                for tag, begin, stop in _fields(data, *part, depth - 2)
                if tag == _FIRST
            ]


def _map_entry(data: bytes, at: int, end: int, depth: int) -> tuple[str, list[tuple[int, int]]]:
    """Return the key of a map's entry and where the parts of its value are."""
    key = ""
    parts: list[tuple[int, int]] = []
    for tag, first, last in _fields(data, at, end, depth):
        if tag == _FIRST:
            key = _text(data, first, last)
        elif tag == _SECOND:
            parts.append((first, last))
    return key, parts


def _one_feature(data: bytes, at: int, end: int, depth: int) -> Values:
    feature = _Feature()
    feature.read(data, at, end, depth)
    return feature.values()


class _Feature:
    """A `tf.train.Feature` in the making: a list of another kind replaces what came before."""

    def __init__(self) -> None:
        self._tag = 0
        self._values: List = []

    def values(self) -> Values:
        return Values(_KINDS[self._tag], self._values) if self._tag else NO_VALUES

    def read(self, data: bytes, at: int, end: int, depth: int) -> None:
        for tag, first, last in _fields(data, at, end, depth):
            if tag not in _KINDS:
                continue
            if tag != self._tag:
                self._tag = tag
                self._values = _empty(tag)
            _read_list(data, first, last, tag, self._values, depth - 1)


def _empty(tag: int) -> List:
    return [] if tag == _FIRST else array.array("f" if tag == _SECOND else "q")


def _read_list(data: bytes, at: int, end: int, list_tag: int, into: List, depth: int) -> None:
    """Read a `tf.train.BytesList`, `FloatList` or `Int64List`."""
    for tag, first, last in _fields(data, at, end, depth):
        if isinstance(into, list):
            if tag == _FIRST:
                into.append(bytes(data[first:last]))
        elif list_tag == _SECOND:
            if tag in (_FIRST, _ONE_FLOAT):
                _read_floats(data, first, last, into)
        elif tag in (_FIRST, _ONE_INT64):
            _read_int64s(data, first, last, into)


def _read_floats(data: bytes, at: int, end: int, into: array.array) -> None:
    if (end - at) % 4:
        raise _MalformedError(at, f"{end - at} bytes of floats, which have 4 each")
    if sys.byteorder == "big":
        swapped = array.array("f", data[at:end])
        swapped.byteswap()
        into.extend(swapped)
    else:
        into.frombytes(data[at:end])


def _read_int64s(data: bytes, at: int, end: int, into: array.array) -> None:
    packed = bytes(data[at:end])
    if packed.isascii():  # then each varint is the number itself
        into.extend(packed)
        return
    value = shift = 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            value &= _INT64_MASK
            into.append(value - (value >> 63 << 64))
            value = shift = 0
            continue
        shift += 7
        if shift == 7 * _MAX_VARINT_BYTES:
            raise _MalformedError(at, "a list with an integer of more than 10 bytes")
    if shift:
        raise _MalformedError(at, "a list of integers whose last is cut off")


def _plain_entry(data: bytes, at: int, end: int) -> tuple[str, Values, int] | None:
    """Return key, values and end of a map's entry as encoders write it, None for any other.

    That is: one key, then one value of one list, which is packed where it is of numbers, and every
    length as short as it may be. None says nothing about what else it is.
    """
    try:
        if data[at] != _FIRST:
            return None
        at += 1
        if (size := data[at]) >= 0x80:
            size, at = _short_varint(data, at)
        at += 1
        if (entry_end := at + size) > end or data[at] != _FIRST:
            return None
        key_at = at + 2
        at = key_at + data[at + 1]  # a longer key than 127 bytes ends somewhere that is no value
        if data[key_at - 1] >= 0x80 or data[at] != _SECOND:
            return None
        key = str(data[key_at:at], "utf-8")
        for _ in range(2):  # the feature, and its list
            tag = data[at]
            at += 1
            if (size := data[at]) >= 0x80:
                size, at = _short_varint(data, at)
            at += 1
            if at + size != entry_end:
                return None
        if tag == _FIRST:
            return _plain_bytes(data, at, entry_end, key)
        return _plain_numbers(data, at, entry_end, key, tag)
    except (IndexError, UnicodeDecodeError):
        return None


def _plain_bytes(data: bytes, at: int, end: int, key: str) -> tuple[str, Values, int] | None:
    values: list[bytes] = []
    while at < end:
        if data[at] != _FIRST:
            return None
        at += 1
        if (size := data[at]) >= 0x80:
            size, at = _short_varint(data, at)
        first = at + 1
        at = first + size
        if at > end:
            return None
        values.append(bytes(data[first:at]))
    return key, Values(Kind.BYTES, values), end


def _plain_numbers(
    data: bytes, at: int, end: int, key: str, tag: int
) -> tuple[str, Values, int] | None:
    values = array.array("f" if tag == _SECOND else "q")
    if tag not in _KINDS:
        return None
    if at == end:
        return key, Values(_KINDS[tag], values), end
    if data[at] != _FIRST:
        return None
    at += 1
    if (size := data[at]) >= 0x80:
        size, at = _short_varint(data, at)
    at += 1
    if at + size != end:
        return None
    if tag == _SECOND:
        _read_floats(data, at, end, values)
    else:
        _read_int64s(data, at, end, values)
    return key, Values(_KINDS[tag], values), end


def _short_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the place of its last byte; of a longer one than four bytes, nonsense."""
    value = data[at] & 0x7F
    for shift in (7, 14, 21):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return _MAX_LENGTH, at


def _fields(data: bytes, at: int, end: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message, one after the other; see `_field`."""
    while at < end:
        tag, first, last = _field(data, at, end, depth)
        yield tag, first, last
        at = last


def _field(data: bytes, at: int, end: int, depth: int) -> tuple[int, int, int]:
    """Return a field's tag, and where its value begins and ends, which is where the next one is.

    Args:
        data: bytes of the message, and others.
        at: where the field begins.
        end: where the message ends.
        depth: how many messages and groups may still be in one another.
    """
    tag, first = _tag(data, at, end)
    wire = tag & 7
    if wire == _GROUP:
        return tag, first, _skip_group(data, first, end, tag, depth)
    if wire == _END_GROUP:
        raise _MalformedError(at, "the end of a group that has not begun")
    return _value(data, first, end, tag)


def _value(data: bytes, at: int, end: int, tag: int) -> tuple[int, int, int]:
    """Return the field of a tag, as `_field` does, that is no group."""
    wire = tag & 7
    if wire == _VARINT:
        return tag, at, _varint(data, at, end, _MAX_VARINT_BYTES)[1]
    if wire == _BYTES:
        size, first = _varint(data, at, end, _MAX_VARINT_BYTES)
        if size > min(_MAX_LENGTH, end - first):
            raise _MalformedError(at, f"a length of {size} bytes, {end - first} are left")
        return tag, first, first + size
    if wire not in (_FIXED32, _FIXED64):
        raise _MalformedError(at - 1, f"a field of wire type {wire}, which there is not")
    last = at + (4 if wire == _FIXED32 else 8)
    if last > end:
        raise _MalformedError(at, f"a number of {last - at} bytes, {end - at} are left")
    return tag, at, last


def _skip_group(data: bytes, at: int, end: int, tag: int, depth: int) -> int:
    """Return where a group ends that has just begun."""
    open_groups = [tag >> 3]
    while open_groups:
        if len(open_groups) > depth:
            raise _MalformedError(at, f"more than {_MAX_DEPTH} messages in one another")
        tag, first = _tag(data, at, end)
        if tag & 7 == _GROUP:
            open_groups.append(tag >> 3)
            at = first
        elif tag & 7 == _END_GROUP:
            if open_groups.pop() != tag >> 3:
                raise _MalformedError(at, "the end of a group that has not begun")
            at = first
        else:
            at = _value(data, first, end, tag)[2]
    return at


def _tag(data: bytes, at: int, end: int) -> tuple[int, int]:
    tag, first = _varint(data, at, end, _MAX_TAG_BYTES)
    if not 8 <= tag < 2**32:
        raise _MalformedError(at, f"field number {tag >> 3}, which there is not")
    return tag, first


def _varint(data: bytes, at: int, end: int, max_bytes: int) -> tuple[int, int]:
    """Return a varint and where it ends."""
    value = 0
    for place in range(at, min(at + max_bytes, end)):
        byte = data[place]
        value |= (byte & 0x7F) << 7 * (place - at)
        if byte < 0x80:
            return value, place + 1
    if at + max_bytes <= end:
        raise _MalformedError(at, f"an integer of more than {max_bytes} bytes")
    raise _MalformedError(at, "an integer that is cut off")


def _text(data: bytes, at: int, end: int) -> str:
    try:
        return str(data[at:end], "utf-8")
    except UnicodeDecodeError as error:
        raise _MalformedError(at + error.start, "a key that is no UTF-8") from None
