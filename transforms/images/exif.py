"""Read orientation, GPS and serial numbers from EXIF, without failing on a bad block."""

import struct
from collections.abc import Iterator

ORIENTATION = 0x0112
"""Tag of the orientation."""
_EXIF_DIRECTORY = 0x8769
_GPS_DIRECTORY = 0x8825
# Serial numbers of body and lens (EXIF 2.32), and DNG's tag in the first directory.
_SERIAL_NUMBERS = frozenset({0xA431, 0xA435, 0xC62F})

_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_NUMBERS = {1: "B", 3: "H", 4: "L"}  # formats of `struct` by type: BYTE, SHORT, LONG


def read_exif(tiff: bytes) -> tuple[int, list[str]]:
    """Return the orientation (1 to 8) and the traits of an EXIF block.

    A malformed block gives the fields that can be read: decoders do not need EXIF, and cameras
    write much of it wrongly. Format: TIFF 6.0 section 2, EXIF 2.32 section 4.6.

    Args:
        tiff: block that starts with its byte order mark, without JPEG's `Exif` prefix.

    >>> block = bytes.fromhex("4d4d002a 00000008 0001 0112 0003 00000001 0006 0000")
    >>> read_exif(block)
    (6, ['exif_orientation'])
    >>> read_exif(block[:-1])
    (1, [])
    """
    order, orientation = _BYTE_ORDERS.get(tiff[:4], ""), 1
    # The last of equal tags wins.
    by_tag = {entry[1]: entry for entry in _entries(tiff)}
    place, _, kind, values = by_tag.get(ORIENTATION, (0, 0, 0, 0))
    if values == 1 and kind in _NUMBERS:
        (orientation,) = struct.unpack_from(order + _NUMBERS[kind], tiff, place + 8)
    tags = set(by_tag)
    if _EXIF_DIRECTORY in by_tag:
        tags.update(tag for _, tag, *_ in _entries(tiff, by_tag[_EXIF_DIRECTORY][0] + 8))
    orientation = orientation if 1 <= orientation <= 8 else 1
    traits = {
        "exif_gps": _GPS_DIRECTORY in tags,
        "exif_orientation": orientation != 1,
        "exif_serial": not _SERIAL_NUMBERS.isdisjoint(tags),
    }
    return orientation, [trait for trait, holds in traits.items() if holds]


def upright_exif(tiff: bytes) -> bytes:
    """Return a copy of an EXIF block with orientation 1, if it has one.

    >>> block = bytes.fromhex("4d4d002a 00000008 0001 0112 0003 00000001 0006 0000")
    >>> upright_exif(block)[-4:].hex()
    '00010000'
    """
    upright = bytearray(tiff)
    for place, tag, kind, _ in _entries(tiff):
        if tag == ORIENTATION and kind in _NUMBERS:
            one = struct.pack(_BYTE_ORDERS[tiff[:4]] + _NUMBERS[kind], 1)
            upright[place + 8 : place + 12] = one.ljust(4, b"\0")
    return bytes(upright)


def _entries(tiff: bytes, pointer: int = 4) -> Iterator[tuple[int, int, int, int]]:
    """Yield offset, tag, type and number of values of the complete entries of a directory.

    Args:
        tiff: the block.
        pointer: where the directory's offset stands; by default that of the first one.
    """
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None or len(tiff) < pointer + 4:
        return
    (offset,) = struct.unpack_from(order + "L", tiff, pointer)
    if offset + 2 > len(tiff):
        return
    (count,) = struct.unpack_from(order + "H", tiff, offset)
    whole = min(count, (len(tiff) - offset - 2) // 12)
    for place in range(offset + 2, offset + 2 + 12 * whole, 12):
        yield place, *struct.unpack_from(order + "HHL", tiff, place)
