"""The fields of a protobuf message, one after the other, whatever message it is.

Source of the format: https://protobuf.dev/programming-guides/encoding/; where it leaves something
open, such as integers longer than they must be, this takes what protobuf's upb takes.
"""

from collections.abc import Iterator

MAX_LENGTH = 2**31 - 1
"""Protobuf's limit of a message, and of each length in it."""

MAX_VARINT_BYTES = 10
MAX_DEPTH = 100
"""Of messages and groups in one another."""

VARINT, FIXED64, LENGTH_DELIMITED, _GROUP, _END_GROUP, FIXED32 = range(6)
"""Wire types: the lower three bits of a tag."""

_MAX_TAG_BYTES = 5


class MalformedError(Exception):
    """What is wrong with a message, and where in the buffer."""

    def __init__(self, at: int, what: str) -> None:
        """Take place and text."""
        super().__init__(at, what)
        self._at = at
        self._what = what

    def told(self, start: int) -> ValueError:
        """Return the error, its place counted from the message's beginning."""
        return ValueError(f"byte {self._at - start}: {self._what}")


def fields(data: bytes, at: int, end: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message, one after the other; see `field`."""
    while at < end:
        tag, first, last = field(data, at, end, depth)
        yield tag, first, last
        at = last


def field(data: bytes, at: int, end: int, depth: int) -> tuple[int, int, int]:
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
        raise MalformedError(at, "the end of a group that has not begun")
    return _value(data, first, end, tag)


def _value(data: bytes, at: int, end: int, tag: int) -> tuple[int, int, int]:
    """Return the field of a tag, as `field` does, that is no group."""
    wire = tag & 7
    if wire == VARINT:
        return tag, at, _varint(data, at, end, MAX_VARINT_BYTES)[1]
    if wire == LENGTH_DELIMITED:
        size, first = _varint(data, at, end, MAX_VARINT_BYTES)
        if size > min(MAX_LENGTH, end - first):
            raise MalformedError(at, f"a length of {size} bytes, {end - first} are left")
        return tag, first, first + size
    if wire not in (FIXED32, FIXED64):
        raise MalformedError(at - 1, f"a field of wire type {wire}, which there is not")
    last = at + (4 if wire == FIXED32 else 8)
    if last > end:
        raise MalformedError(at, f"a number of {last - at} bytes, {end - at} are left")
    return tag, at, last


def _skip_group(data: bytes, at: int, end: int, tag: int, depth: int) -> int:
    """Return where a group ends that has just begun."""
    open_groups = [tag >> 3]
    while open_groups:
        if len(open_groups) > depth:
            raise MalformedError(at, f"more than {MAX_DEPTH} messages in one another")
        tag, first = _tag(data, at, end)
        if tag & 7 == _GROUP:
            open_groups.append(tag >> 3)
            at = first
        elif tag & 7 == _END_GROUP:
            if open_groups.pop() != tag >> 3:
                raise MalformedError(at, "the end of a group that has not begun")
            at = first
        else:
            at = _value(data, first, end, tag)[2]
    return at


def _tag(data: bytes, at: int, end: int) -> tuple[int, int]:
    tag, first = _varint(data, at, end, _MAX_TAG_BYTES)
    if not 8 <= tag < 2**32:
        raise MalformedError(at, f"field number {tag >> 3}, which there is not")
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
        raise MalformedError(at, f"an integer of more than {max_bytes} bytes")
    raise MalformedError(at, "an integer that is cut off")
