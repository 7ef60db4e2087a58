"""What the bytes of a `tf.train.Example` or `SequenceExample` hold, without TensorFlow or protobuf.

Every message is taken that protobuf's C parser takes, with the same values: fields in any order and
in several parts, lists packed or not, the last of equal map keys, unknown fields passed over (in a
map's entry too, as C++ does; Python's upb takes the whole entry for unknown then). All else is a
`ValueError` that names the byte. Nothing is believed of a length but what is there, so memory is
bounded by the message's size. Most messages are written as `schemas.example` writes them:
`_plain_entry` reads such an entry at once, and leaves any other to the walk through its fields.
"""

import array
import functools
import sys
from typing import NamedTuple

from schemas.features import Kind
from schemas.wire_fields import (
    FIXED32,
    LENGTH_DELIMITED,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_VARINT_BYTES,
    VARINT,
    MalformedError,
    field,
    fields,
)

_INT64_MASK = 0xFFFF_FFFF_FFFF_FFFF
_FIRST, _SECOND, _THIRD = (number << 3 | LENGTH_DELIMITED for number in (1, 2, 3))
_ONE_FLOAT, _ONE_INT64 = 1 << 3 | FIXED32, 1 << 3 | VARINT
_HEADER_BYTES = (
    10  # of an entry, its key, value, list and the list's content: a tag and a length each
)
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

_values = functools.partial(tuple.__new__, Values)  # in half the time of the class's own


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
        if (first := _only_field(data, start, end)) is not None:
            _read_features(data, first, end, features, MAX_DEPTH - 1)
            return features
        for tag, first, last in fields(data, start, end, MAX_DEPTH):
            if tag == _FIRST:
                _read_features(data, first, last, features, MAX_DEPTH - 1)
    except MalformedError as error:
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
        for tag, first, last in fields(data, start, end, MAX_DEPTH):
            if tag == _FIRST:
                _read_features(data, first, last, found.context, MAX_DEPTH - 1)
            elif tag == _SECOND:
                _read_feature_lists(data, first, last, found.feature_lists, MAX_DEPTH - 1)
    except MalformedError as error:
        raise error.told(start) from None
    return found


def _read_features(data: bytes, at: int, end: int, into: dict[str, Values], depth: int) -> None:
    """Read a `tf.train.Features`; of equal keys the last one counts."""
    while at < end:
        try:
            entry = _plain_entry(data, at, end)
        except IndexError:  # lengths that lead out of the buffer: the walk tells where
            entry = None
        if entry is not None:
            key, into[key], at = entry
            continue
        tag, first, at = field(data, at, end, depth)
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
    for tag, first, last in fields(data, at, end, depth):
        if tag == _FIRST:
            key, parts = _map_entry(data, first, last, depth - 1)
            into[key] = [
                _one_feature(data, begin, stop, depth - 3)
                for part in parts
                for tag, begin, stop in fields(data, *part, depth - 2)
                if tag == _FIRST
            ]


def _map_entry(data: bytes, at: int, end: int, depth: int) -> tuple[str, list[tuple[int, int]]]:
    """Return the key of a map's entry and where the parts of its value are."""
    key = ""
    parts: list[tuple[int, int]] = []
    for tag, first, last in fields(data, at, end, depth):
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
        for tag, first, last in fields(data, at, end, depth):
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
    for tag, first, last in fields(data, at, end, depth):
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
        raise MalformedError(at, f"{end - at} bytes of floats, which have 4 each")
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
    if len(packed) == 2 and packed[1] < 0x80:  # such as the width of an image
        into.append(packed[0] & 0x7F | packed[1] << 7)
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
        if shift == 7 * MAX_VARINT_BYTES:
            raise MalformedError(at, "a list with an integer of more than 10 bytes")
    if shift:
        raise MalformedError(at, "a list of integers whose last is cut off")


def _only_field(data: bytes, at: int, end: int) -> int | None:
    """Return where the value begins of a message's first field, if there is nothing behind it."""
    try:
        if at < end and data[at] == _FIRST:
            last = at + 1
            if (size := data[last]) >= 0x80:
                size, last = _short_varint(data, last)
            return last + 1 if last + 1 + size == end else None
    except IndexError:
        pass
    return None


def _plain_entry(data: bytes, at: int, end: int) -> tuple[str, Values, int] | None:
    """Return key, values and end of a map's entry as encoders write it, None for any other.

    That is: one key, then one value of one list, which is packed where it is of numbers, and every
    length as short as it may be. None says nothing about what else it is.
    """
    if at + _HEADER_BYTES > end or data[at + 1] >= 0x80:
        return _long_plain_entry(data, at, end)
    first = at + _HEADER_BYTES + data[at + 3]
    known = _plain_header(data[at:first])
    if known is None:
        return _long_plain_entry(data, at, end)
    key, kind, size = known
    stop = first + size
    if stop > end:
        return None
    if kind is None:
        return _plain_bytes(data, first - 2, stop, key)
    content = data[first:stop]
    if kind is Kind.BYTES:
        return key, _values((kind, [content])), stop
    if kind is Kind.FLOAT:
        return key, _values((kind, array.array("f", content))), stop
    if content.isascii():  # then each varint is the number itself
        return key, _values((kind, array.array("q", tuple(content)))), stop
    values = array.array("q")
    _read_int64s(data, first, stop, values)
    return key, _values((kind, values)), stop


@functools.lru_cache(maxsize=4096)
def _plain_header(header: bytes) -> tuple[str, Kind | None, int] | None:
    """Return key, kind and bytes of the content whose entry begins so, None for no plain beginning.

    Headers repeat from record to record. All lengths are below 128, one byte each. Several values
    that are bytes have no kind; theirs are the bytes behind the first one's tag and length.
    """
    size = len(header) - _HEADER_BYTES
    if size < 0 or header[0] != _FIRST or header[2] != _FIRST or header[3] != size:
        return None
    value_tag, value_bytes, list_tag, list_bytes, tag, content_bytes = header[-6:]
    if value_tag != _SECOND or list_tag not in _KINDS or not 2 <= list_bytes < 0x80:
        return None
    if value_bytes != list_bytes + 2 or header[1] != size + 6 + list_bytes or header[1] >= 0x80:
        return None
    kind: Kind | None = _KINDS[list_tag]
    if tag != _FIRST or content_bytes != list_bytes - 2:
        if kind is not Kind.BYTES:
            return None
        kind = None
    if kind is Kind.FLOAT and (content_bytes % 4 or sys.byteorder == "big"):
        return None
    try:
        return str(header[4:-6], "utf-8"), kind, list_bytes - 2
    except UnicodeDecodeError:
        return None


def _long_plain_entry(data: bytes, at: int, end: int) -> tuple[str, Values, int] | None:
    """Return what `_plain_entry` does, of entries with lengths of several bytes too."""
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
    return MAX_LENGTH, at


def _text(data: bytes, at: int, end: int) -> str:
    try:
        return str(data[at:end], "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError(at + error.start, "a key that is no UTF-8") from None
