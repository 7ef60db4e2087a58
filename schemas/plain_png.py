"""PNG files of plain pixels, by the standard library alone: to look at, not to be small."""

import struct
import zlib
from collections.abc import Sequence

_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
_BITS = {"uint8": 8, "uint16": 16}
_MAX_SIDE = 2**31 - 1


def can_be_png(dtype: str, shape: Sequence[int]) -> bool:
    """Return whether values of this type and shape are pixels: height, width, 1 to 4 channels.

    >>> can_be_png("uint8", (2, 3)), can_be_png("uint8", (2, 3, 5)), can_be_png("int64", (2, 3))
    (True, False, False)
    """
    sides, channels = shape[:2], tuple(shape[2:]) or (1,)
    is_picture = len(sides) == 2 and len(channels) == 1 and channels[0] in _COLOUR_TYPES
    return dtype in _BITS and is_picture and all(0 < side <= _MAX_SIDE for side in sides)


def plain_png(dtype: str, shape: Sequence[int], content: bytes) -> bytes:
    """Return pixels as a PNG.

    Args:
        dtype: uint8 or uint16.
        shape: height and width, and channels where there are several.
        content: the values, little-endian, in C order.
    """
    height, width, channels = (*shape, 1)[:3]
    bits = _BITS[dtype]
    if bits == 16:  # PNG is big-endian
        swapped = bytearray(content)
        swapped[::2], swapped[1::2] = content[1::2], content[::2]
        content = bytes(swapped)
    row_bytes = width * channels * bits // 8
    rows = (content[at : at + row_bytes] for at in range(0, len(content), row_bytes))
    header = struct.pack(">IIBBBBB", width, height, bits, _COLOUR_TYPES[channels], 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 1)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", pixels)
        + _chunk(b"IEND", b"")
    )


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
