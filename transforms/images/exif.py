"""Read the few EXIF fields that matter to a data set, and never fail on a bad block."""

import struct
from collections.abc import Iterator

_ORIENTATION = 0x0112
_EXIF_DIRECTORY = 0x8769
_GPS_DIRECTORY = 0x8825
# Body and lens (EXIF 2.32), and the tag of the same meaning that DNG keeps in the first directory.
_SERIAL_NUMBERS = frozenset({0xA431, 0xA435, 0xC62F})

_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
# How many of an entry's four value bytes hold its number: BYTE, SHORT, LONG.
_NUMBER_BYTES = {1: 1, 3: 2, 4: 4}


def read_exif(tiff: bytes) -> tuple[int, list[str]]:
    """Return the orientation (1 to 8) and the traits of an EXIF block.

    Layout: TIFF 6.0 section 2, EXIF 2.32 section 4.6. Of a malformed block it returns what could
    be read: no decoder needs EXIF for the pixels, and cameras write much of it wrongly.

    Args:
        tiff: the block from its byte order mark on, without the `Exif` prefix of JPEG.

    >>> block = bytes.fromhex("4d4d002a 00000008 0001 0112 0003 00000001 0006 0000")
    >>> read_exif(block)
    (6, ['exif_orientation'])
    >>> read_exif(block[:-1])
    (1, [])
    """
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return 1, []
    first = _directory(tiff, order, struct.unpack_from(order + "L", tiff, 4)[0])
    orientation = _orientation(order, *first.get(_ORIENTATION, (0, 0, b"")))
    tags = set(first)
    if _EXIF_DIRECTORY in first:
        (offset,) = struct.unpack(order + "L", first[_EXIF_DIRECTORY][2])
        tags.update(_directory(tiff, order, offset))
    found = {
        "exif_gps": _GPS_DIRECTORY in first,
        "exif_orientation": orientation != 1,
        "exif_serial": not _SERIAL_NUMBERS.isdisjoint(tags),
    }
    return orientation, [trait for trait, holds in found.items() if holds]


def upright_exif(tiff: bytes) -> bytes:
    """Return an EXIF block whose orientation, where it has one, is 1; all else stays in its place.

    >>> block = bytes.fromhex("4d4d002a 00000008 0001 0112 0003 00000001 0006 0000")
    >>> upright_exif(block)[-4:].hex()
    '00010000'
    """
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return tiff
    upright = bytearray(tiff)
    first = struct.unpack_from(order + "L", tiff, 4)[0] + 2
    for entry in range(first, first + 12 * _whole_entries(tiff, order, first - 2), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, entry)
        if tag == _ORIENTATION and kind in _NUMBER_BYTES:
            one = (1).to_bytes(_NUMBER_BYTES[kind], "little" if order == "<" else "big")
            upright[entry + 8 : entry + 12] = one.ljust(4, b"\0")
    return bytes(upright)


def orientation_block(orientation: int) -> bytes:
    """Return an EXIF block that says nothing but an orientation; empty for the usual one."""
    if orientation == 1:
        return b""
    entry = struct.pack(">HHLHH", _ORIENTATION, 3, 1, orientation, 0)
    return b"MM\0*" + struct.pack(">LH", 8, 1) + entry + bytes(4)


def _whole_entries(tiff: bytes, order: str, offset: int) -> int:
    """Return how many entries of a directory are whole."""
    if offset + 2 > len(tiff):
        return 0
    (count,) = struct.unpack_from(order + "H", tiff, offset)
    return min(count, (len(tiff) - offset - 2) // 12)


def _directory(tiff: bytes, order: str, offset: int) -> dict[int, tuple[int, int, bytes]]:
    """Return type, count and value bytes by tag, of the directory's entries that are whole."""
    whole = _whole_entries(tiff, order, offset)
    entries: Iterator[tuple[int, int, int, bytes]] = struct.iter_unpack(
        order + "HHL4s", tiff[offset + 2 : offset + 2 + 12 * whole]
    )
    return {tag: (kind, count, value) for tag, kind, count, value in entries}


def _orientation(order: str, kind: int, count: int, value: bytes) -> int:
    if count != 1 or kind not in _NUMBER_BYTES:
        return 1
    number_bytes = value[: _NUMBER_BYTES[kind]]
    number = int.from_bytes(number_bytes, "little" if order == "<" else "big")
    return number if 1 <= number <= 8 else 1
