"""TFRecord framing: `uint64 length | masked crc | data | masked crc`, little endian.

Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

import struct
from collections.abc import Sequence
from typing import Any

import google_crc32c

FRAME_BYTES = 16
"""What framing adds to a record: length and two checksums."""

HEADER_BYTES, CHECKSUM_BYTES = 12, 4
"""Of them, those before the record, and those after it."""

_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
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


class FrameError(ValueError):
    """A frame that is none; the text says what is wrong with it.

    Attributes:
        code: `E-VER-FRAME` when the record's end is unknown, `E-VER-CRC` when its bytes are
            not those written.
    """

    def __init__(self, code: str, what: str) -> None:
        """Take code and text."""
        super().__init__(what)
        self.code = code


def frame_bytes(data: bytes, at: int, left_bytes: int) -> int:
    """Return how long the frame is whose header begins at a place, framing included.

    The length is not believed for its checksum alone, which anybody can write.

    Args:
        data: bytes that hold its header, if there are so many.
        at: where the frame begins in them.
        left_bytes: of the file, from there on.

    Raises:
        FrameError: when there is no frame, or it is longer than what is left of the file.
    """
    if len(data) - at < HEADER_BYTES:
        what = f"{max(len(data) - at, 0)} bytes, of {HEADER_BYTES} of a frame's header"
        raise FrameError("E-VER-FRAME", what)
    length, crc = _HEADER.unpack_from(data, at)
    if masked_crc(google_crc32c.value(data[at : at + _LENGTH.size])) != crc:
        what = f"a length of {length} bytes, of which the checksum is another"
        raise FrameError("E-VER-FRAME", what)
    if length + FRAME_BYTES > left_bytes:
        what = f"a record of {length} bytes, {max(left_bytes - FRAME_BYTES, 0)} are left for it"
        raise FrameError("E-VER-FRAME", what)
    return length + FRAME_BYTES


def check_frame(data: bytes, at: int, end: int, uncopied: Any) -> None:
    """Make sure that a part of a buffer is a frame, by both checksums.

    Args:
        data: bytes that hold the frame.
        at: where it begins.
        end: where it must end.
        uncopied: the same bytes as a read-only buffer whose slices are no copies, NumPy's array.

    Raises:
        FrameError: when it is damaged, or ends elsewhere.
    """
    size = frame_bytes(data, at, end - at)
    if size != end - at:
        raise FrameError("E-VER-FRAME", f"a frame of {size} bytes, not of {end - at}")
    (crc,) = _CRC.unpack_from(data, end - CHECKSUM_BYTES)
    record = uncopied[at + HEADER_BYTES : end - CHECKSUM_BYTES]
    found = masked_crc(google_crc32c.value(record))
    if found != crc:
        what = f"the checksum of its {len(record)} bytes is {found:08x}, stored is {crc:08x}"
        raise FrameError("E-VER-CRC", what)


def masked_crc(crc: int) -> int:
    """Return the CRC-32C as TFRecords store it, rotated and offset.

    >>> hex(masked_crc(0))
    '0xa282ead8'
    """
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFF_FFFF
