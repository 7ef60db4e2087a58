"""TFRecord framing: `uint64 length | masked crc | data | masked crc`, little endian.

Source of the format: tensorflow/core/lib/io/record_writer.h. A file's name says whether it is an
ArrayRecord file instead, whose framing only its library knows.
"""

import posixpath
import struct
from collections.abc import Sequence

import google_crc32c

FRAME_BYTES = 16
"""Bytes that framing adds to a record: its length and two checksums."""

HEADER_BYTES = 12
"""Bytes of the frame before the record: its length and the length's checksum."""

CRC_BYTES = 4
"""Bytes of the frame after the record: its checksum."""

ARRAY_RECORD_SUFFIX = ".array_record"
"""Suffix of ArrayRecord files; TFDS appends `-00000-of-00016`."""

HEADER = struct.Struct("<QI")
"""Header of a frame: the record's length, and the checksum of that."""

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8


def is_array_record(name: str) -> bool:
    """Return whether a name or path is that of an ArrayRecord file, or of such a file's index.

    >>> [is_array_record(f"a.{end}") for end in ("ARRAY_RECORD", "array_record-0-of-1", "tfrec")]
    [True, True, False]
    """
    return ARRAY_RECORD_SUFFIX in posixpath.basename(name).lower()


def framing_bytes(name: str) -> int:
    """Return the bytes of a record's framing in a file's index; none for ArrayRecord files."""
    return 0 if is_array_record(name) else FRAME_BYTES


def frame_record(parts: Sequence[bytes]) -> list[bytes]:
    """Return a framed record as a list of parts; the given parts are not copied.

    >>> b"".join(frame_record([b"12", b"345"])).hex()
    '0500000000000000eab2043e31323334357a1cede8'
    """
    size = sum(map(len, parts))
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return [HEADER.pack(size, length_crc(size)), *parts, _CRC.pack(masked_crc(crc))]


def unmasked_crc(frame_end: bytes) -> int:
    """Return a record's CRC-32C from the last four bytes of its frame.

    >>> f"{unmasked_crc(frame_record([b'123456789'])[-1]):08x}"
    'e3069283'
    """
    rotated = (_CRC.unpack(frame_end)[0] - _MASK_DELTA) & 0xFFFF_FFFF
    return (rotated >> 17) | (rotated << 15 & 0xFFFF_FFFF)


class FrameError(ValueError):
    """A damaged frame; the text says what is wrong with it.

    Attributes:
        code: `E-VER-FRAME` when the record's end is unknown, `E-VER-CRC` when its bytes differ
            from those written.
    """

    def __init__(self, code: str, what: str) -> None:
        """Store the code; the text is the exception's own."""
        super().__init__(what)
        self.code = code


def read_frame(data: bytes, at: int, end: int) -> bytes:
    """Return the record of a frame after checking both checksums.

    Args:
        data: bytes that hold the frame.
        at: offset of the frame.
        end: offset at which the frame must end, at least 16 bytes later.

    Raises:
        FrameError: when the frame is damaged, or ends elsewhere.
    """
    length, given_crc = HEADER.unpack_from(data, at)
    if length_crc(length) != given_crc:
        what = f"the checksum of its length, {length} bytes, does not match"
        raise FrameError("E-VER-FRAME", what)
    if length + FRAME_BYTES != end - at:
        what = f"a frame of {length + FRAME_BYTES} bytes instead of {end - at}"
        raise FrameError("E-VER-FRAME", what)
    record = data[at + HEADER_BYTES : end - _CRC.size]
    (crc,) = _CRC.unpack_from(data, end - _CRC.size)
    if (found := masked_crc(google_crc32c.value(record))) != crc:
        what = f"the checksum of its {len(record)} bytes is {found:08x}, the stored one {crc:08x}"
        raise FrameError("E-VER-CRC", what)
    return record


def length_crc(length: int) -> int:
    """Return the masked checksum of a record's length."""
    return masked_crc(google_crc32c.value(_LENGTH.pack(length)))


def masked_crc(crc: int) -> int:
    """Return a CRC-32C in the form that TFRecord files store: rotated and offset.

    >>> hex(masked_crc(0))
    '0xa282ead8'
    """
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFF_FFFF
