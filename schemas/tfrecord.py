"""TFRecord framing: `uint64 length | masked crc | data | masked crc`, little endian.

Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

import struct
from collections.abc import Sequence

import google_crc32c

FRAME_BYTES = 16
"""What framing adds to a record: length and two checksums."""

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


def frame_record(parts: Sequence[bytes]) -> list[bytes]:
    """Return a record's framing around its parts, which stay uncopied.

    >>> b"".join(frame_record([b"12", b"345"])).hex()
    '0500000000000000eab2043e31323334357a1cede8'
    """
    length = _LENGTH.pack(sum(map(len, parts)))
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    header = length + _CRC.pack(masked_crc(google_crc32c.value(length)))
    return [header, *parts, _CRC.pack(masked_crc(crc))]


def masked_crc(crc: int) -> int:
    """Return the CRC-32C as TFRecords store it, rotated and offset.

    >>> hex(masked_crc(0))
    '0xa282ead8'
    """
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFF_FFFF
