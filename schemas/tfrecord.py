"""TFRecord framing: `uint64 length | masked crc | data | masked crc`, little endian.

Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence

import google_crc32c

FRAME_BYTES = 16
"""What framing adds to a record: length and two checksums."""

HEADER_BYTES = 12
"""Of them, those before the record."""

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


class FrameError(ValueError):
    """A frame that is none; the text says what is wrong with it.

    Attributes:
        code: `E-VER-FRAME` when nobody knows where the record ends, `E-VER-CRC` when its bytes are
            not those written.
        at: where the frame begins, in the buffer or the file.
    """

    def __init__(self, code: str, at: int, what: str) -> None:
        """Take code, place and text."""
        super().__init__(what)
        self.code = code
        self.at = at


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
    header = data[at : at + HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        what = f"{len(header)} bytes, of {HEADER_BYTES} of a frame's header"
        raise FrameError("E-VER-FRAME", at, what)
    (length,), (crc,) = _LENGTH.unpack(header[:8]), _CRC.unpack(header[8:])
    if masked_crc(google_crc32c.value(header[:8])) != crc:
        what = f"a length of {length} bytes, of which the checksum is another"
        raise FrameError("E-VER-FRAME", at, what)
    if length + FRAME_BYTES > left_bytes:
        what = f"a record of {length} bytes, {max(left_bytes - FRAME_BYTES, 0)} are left for it"
        raise FrameError("E-VER-FRAME", at, what)
    return length + FRAME_BYTES


def read_frame(data: bytes, at: int, end: int) -> bytes:
    """Return the record whose frame is a part of a buffer, after a look at both checksums.

    Args:
        data: bytes that hold the frame.
        at: where it begins.
        end: where it must end.

    Raises:
        FrameError: when it is damaged, or ends elsewhere.

    >>> read_frame(b"".join(frame_record([b"12345"])), 0, 21)
    b'12345'
    """
    size = frame_bytes(data, at, end - at)
    if size != end - at:
        raise FrameError("E-VER-FRAME", at, f"a frame of {size} bytes, not of {end - at}")
    record = data[at + HEADER_BYTES : end - 4]
    (crc,) = _CRC.unpack(data[end - 4 : end])
    found = masked_crc(google_crc32c.value(record))
    if found != crc:
        what = f"the checksum of its {len(record)} bytes is {found:08x}, stored is {crc:08x}"
        raise FrameError("E-VER-CRC", at, what)
    return record


def scan_records(chunks: Iterable[bytes], file_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of every record of a file, in their order.

    No more is held than a record and a chunk, whatever lengths the file claims.

    Args:
        chunks: of the file, from its beginning to its end.
        file_bytes: size of the file.

    Raises:
        FrameError: at the first damage, with its offset in the file.

    >>> list(scan_records([b"".join(frame_record([b"12"]) + frame_record([b"345"]))], 37))
    [(0, b'12'), (18, b'345')]
    """
    source = iter(chunks)
    buffer, at, begins = b"", 0, 0  # `begins`: of the buffer, in the file
    while begins + at < file_bytes:
        left = file_bytes - begins - at
        try:
            if len(buffer) - at < HEADER_BYTES:
                begins, buffer, at = begins + at, _filled(source, buffer[at:], HEADER_BYTES), 0
            size = frame_bytes(buffer, at, left)
            if len(buffer) - at < size:
                begins, buffer, at = begins + at, _filled(source, buffer[at:], size), 0
            if len(buffer) - at < size:
                what = f"a record of {size - FRAME_BYTES} bytes, and the file has ended"
                raise FrameError("E-VER-FRAME", at, what)
            record = read_frame(buffer, at, at + size)
        except FrameError as error:
            raise FrameError(error.code, begins + error.at, str(error)) from None
        yield begins + at, record
        at += size


def _filled(source: Iterator[bytes], begun: bytes, size: int) -> bytes:
    """Return bytes with as many chunks behind them as it takes to have so many, if there are."""
    parts, have = [begun], len(begun)
    while have < size and (chunk := next(source, b"")):
        parts.append(chunk)
        have += len(chunk)
    return b"".join(parts)


def masked_crc(crc: int) -> int:
    """Return the CRC-32C as TFRecords store it, rotated and offset.

    >>> hex(masked_crc(0))
    '0xa282ead8'
    """
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFF_FFFF
