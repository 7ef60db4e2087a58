"""Recognize Examples as `schemas.example` writes them, with all features they must have.

A quick answer to the usual case: what is recognized is right, of anything else nothing is said, and
`parse_example` must look. No value is copied or made a number of.
"""

from collections.abc import Sequence
from typing import NamedTuple

from schemas.example import varint
from schemas.features import Kind

_TAGS = {Kind.BYTES: 0x0A, Kind.FLOAT: 0x12, Kind.INT64: 0x1A}
_FIRST = 0x0A
_LAST_BYTE_OF_VARINT = 0x80


class PlainEntry(NamedTuple):
    """What the map's entry of a feature is to be.

    Attributes:
        head: its bytes between its length and that of its value.
        tag: of the list of its kind.
        kind: of its values.
        repeated: whether there may be any number of them, instead of one.
        labels: ids that they may be; None where they may be any.
        is_in_index: whether they are what an index has as the record's labels.
    """

    head: bytes
    tag: int
    kind: Kind
    repeated: bool
    labels: frozenset[int] | None
    is_in_index: bool = False


def plain_entry(
    key: str,
    kind: Kind,
    *,
    repeated: bool,
    labels: frozenset[int] | None = None,
    is_in_index: bool = False,
) -> PlainEntry:
    """Return what the entry of a feature is to be."""
    name = key.encode()
    head = b"\x0a" + varint(len(name)) + name + b"\x12"
    return PlainEntry(head, _TAGS[kind], kind, repeated, labels, is_in_index)


def is_plain(
    data: bytes, entries: Sequence[PlainEntry], row_labels: Sequence[int] | None = None
) -> bool:
    """Return whether bytes are certainly an Example of exactly these features.

    Args:
        data: the bytes.
        entries: of the features, by key.
        row_labels: what an index has as the record's labels; None where nobody asks.

    >>> entry = plain_entry("a", Kind.INT64, repeated=False)
    >>> is_plain(bytes.fromhex("0a0c0a0a0a016112051a030a0101"), [entry])
    True
    """
    try:
        if data[0] != _FIRST:
            return False
        packed = None if row_labels is None else bytes(row_labels)
        size, at = _length(data, 1)
        return at + size == len(data) and _are_entries(data, at, entries, packed)
    except (IndexError, ValueError):  # of a label that is no byte
        return False


def _are_entries(
    data: bytes, at: int, entries: Sequence[PlainEntry], row_labels: bytes | None
) -> bool:
    """Return whether bytes from a place on are these entries.

    Lengths of one byte are read in place: a call for each would take as long as all else.
    """
    for head, tag, kind, repeated, labels, is_in_index in entries:
        if data[at] != _FIRST:
            return False
        size, at = (data[at + 1], at + 2) if data[at + 1] < 128 else _length(data, at + 1)
        end = at + size
        if not data.startswith(head, at):
            return False
        at += len(head)
        size, at = (data[at], at + 1) if data[at] < 128 else _length(data, at)
        if at + size != end or data[at] != tag:
            return False
        size, at = (data[at + 1], at + 2) if data[at + 1] < 128 else _length(data, at + 1)
        if at + size != end or end > len(data):
            return False
        if kind is Kind.BYTES:
            if not _are_bytes(data, at, end, repeated):
                return False
        elif size or not repeated:
            if data[at] != _FIRST:
                return False
            size, at = (data[at + 1], at + 2) if data[at + 1] < 128 else _length(data, at + 1)
            if at + size != end:
                return False
            if kind is Kind.FLOAT:
                if size % 4 or not (repeated or size == 4):
                    return False
            elif not _are_int64s(data[at:end], repeated, labels):
                return False
        if is_in_index and row_labels is not None and data[at:end] != row_labels:
            return False
        at = end
    return at == len(data)


def _are_bytes(data: bytes, at: int, end: int, repeated: bool) -> bool:
    """Return whether a list of bytes is one, and of one value where it is not repeated."""
    count = 0
    while at < end:
        if data[at] != _FIRST:
            return False
        size, at = (data[at + 1], at + 2) if data[at + 1] < 128 else _length(data, at + 1)
        at += size
        count += 1
    return at == end and (repeated or count == 1)


def _are_int64s(packed: bytes, repeated: bool, labels: frozenset[int] | None) -> bool:
    """Return whether bytes are integers: of one byte each, or one of several bytes."""
    if packed.isascii():
        return (repeated or len(packed) == 1) and (labels is None or labels.issuperset(packed))
    is_one = 1 < len(packed) <= 9 and packed[-1] < 128 and min(packed[:-1]) >= 128
    return is_one and labels is None


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length of up to five bytes, and where it ends."""
    value = shift = 0
    for place in range(at, at + 5):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < _LAST_BYTE_OF_VARINT:
            return value, place + 1
        shift += 7
    raise IndexError("a length of more bytes")
