"""Walk through a TFRecord file of any origin: every frame with both checksums, a piece at a time.

No length is believed: it is compared with what is left of the file, and a record beyond
`MAX_RECORD_BYTES` is checksummed in pieces and not kept. Where a frame's header is damaged the walk
goes on if it can know where the next one begins: by the data's checksum, or by an index.
Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

import bisect
import functools
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import google_crc32c

from schemas.tfrecord import FRAME_BYTES, HEADER_BYTES, masked_crc
from transforms.storage import Entry, Storage

MAX_RECORD_BYTES = 512 << 20
"""A larger record is checksummed, but its bytes are not returned."""
UNKNOWN_SIZE = 2**63
"""Of a file that is known to end only where it does."""

_PIECE_BYTES = 2 << 20
_INFLATED_BYTES = 1 << 20
_ZLIB_METHOD = 8
_ANY_HEADER = 32 + zlib.MAX_WBITS  # of gzip or zlib
_GUESSED_BYTES = 64 << 20  # a length whose checksum is wrong is tried up to here
_CUT_OFF = "the file ends within the record"
_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")

Buffer = Any
"""Bytes, or a view of some that checksums take."""

ReadSpan = Callable[[int, int], bytes]
"""Returns a file's bytes from the first number to before the second, fewer where it ends."""


class Record(NamedTuple):
    """A whole record.

    Attributes:
        number: its place in the file, from 0.
        offset: of its frame, in bytes.
        size: of the record without framing, in bytes.
        data: its bytes; None of one that is larger than `MAX_RECORD_BYTES`.
    """

    number: int
    offset: int
    size: int
    data: bytes | None


class BadFrame(NamedTuple):
    """A frame that is damaged.

    Attributes:
        number: its place in the file, from 0.
        offset: where it begins, in bytes.
        code: `E-VER-FRAME` where its header is damaged or its end missing, else `E-VER-CRC`.
        what: is wrong.
    """

    number: int
    offset: int
    code: str
    what: str


def walk_frames(
    read: ReadSpan,
    size_bytes: int,
    seen: Callable[[Buffer], object] | None = None,
    starts: Sequence[int] = (),
) -> Iterator[Record | BadFrame]:
    """Yield every record, and every frame that is none.

    Args:
        read: reads the file.
        size_bytes: of the file, or `UNKNOWN_SIZE`.
        seen: gets all bytes of the file in their order and in buffers, as for a checksum.
        starts: offsets of its frames by an index, ascending, to go on at after a damaged one.
    """
    window = _Window(read, size_bytes, seen)
    offset = number = 0
    while window.has(offset, 1):
        found, following = _read_frame(window, offset, number)
        if following is None:
            place = bisect.bisect_right(starts, offset)
            if place == len(starts) or starts[place] >= size_bytes:
                yield _with_rest(found, window)
                break
            following, number = starts[place], place - 1
        yield found
        offset, number = following, number + 1
    window.finish()


class OpenedRecords(NamedTuple):
    """The frames of a file, compressed or not.

    Attributes:
        read: reads bytes of the frames.
        size_bytes: their size, or `UNKNOWN_SIZE`.
        compression: `GZIP` or `ZLIB`; empty for none.
    """

    read: ReadSpan
    size_bytes: int
    compression: str


def open_records(storage: Storage, file: Entry) -> OpenedRecords:
    """Return a TFRecord file's frames; a compressed file is inflated while it is read."""

    def read(start: int, end: int) -> bytes:
        return storage.read(file.name, file, (start, end))

    compression = _compression(read(0, min(HEADER_BYTES, file.size_bytes)))
    if not compression:
        return OpenedRecords(read, file.size_bytes, "")
    return OpenedRecords(_Inflated(read, file.size_bytes).read, UNKNOWN_SIZE, compression)


def _compression(head: bytes) -> str:
    """Return how a file that begins so is compressed; not at all if it begins with a frame."""
    size, crc = head[:8], int.from_bytes(head[8:], "little")
    if len(head) == HEADER_BYTES and crc == _length_crc(int.from_bytes(size, "little")):
        return ""
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    is_deflate = len(head) > 1 and head[0] & 15 == _ZLIB_METHOD and head[0] >> 4 <= 7
    return "ZLIB" if is_deflate and int.from_bytes(head[:2], "big") % 31 == 0 else ""


class _Inflated:
    """The content of a compressed file. It holds one piece, which only moves forward."""

    def __init__(self, read: ReadSpan, size_bytes: int) -> None:
        self._pieces = _inflate(read, size_bytes)
        self._base = 0
        self._held = bytearray()

    def read(self, start: int, end: int) -> bytes:
        """Return a span of the content, fewer bytes where it ends."""
        self._drop(start)
        while self._base + len(self._held) < end and (piece := next(self._pieces, b"")):
            self._held += piece
            self._drop(start)
        return bytes(self._held[: end - start]) if start == self._base else b""

    def _drop(self, start: int) -> None:
        dropped = min(start - self._base, len(self._held))
        del self._held[:dropped]
        self._base += dropped


def _inflate(read: ReadSpan, size_bytes: int) -> Iterator[bytes]:
    """Yield the content of a compressed file, whose members may be several.

    Raises:
        zlib.error: if it is damaged or cut off.
    """
    inflate = zlib.decompressobj(_ANY_HEADER)
    for start in range(0, size_bytes, _INFLATED_BYTES):
        data = read(start, min(start + _INFLATED_BYTES, size_bytes))
        while data:
            if inflate.eof:
                inflate = zlib.decompressobj(_ANY_HEADER)
            if piece := inflate.decompress(data, _INFLATED_BYTES):
                yield piece
            data = inflate.unconsumed_tail or inflate.unused_data
    while not inflate.eof:
        if not (piece := inflate.decompress(b"", _INFLATED_BYTES)):
            raise zlib.error("the stream is cut off")
        yield piece


def _with_rest(found: Record | BadFrame, window: "_Window") -> Record | BadFrame:
    assert isinstance(found, BadFrame)
    if window.size_bytes == UNKNOWN_SIZE:
        return found._replace(what=f"{found.what}; what follows was not read")
    left = window.size_bytes - found.offset
    return found._replace(what=f"{found.what}; the last {left} bytes of the file were not read")


class _Window:
    """A piece of a file that only moves on; each byte of the file is shown once on the way."""

    def __init__(
        self, read: ReadSpan, size_bytes: int, seen: Callable[[Buffer], object] | None
    ) -> None:
        self.size_bytes = size_bytes
        self.piece = b""
        self._read = read
        self._seen = seen
        self._base = 0
        self._shown = 0

    def has(self, offset: int, wanted: int) -> bool:
        """Move on to hold so many bytes from an offset, and return whether there are as many."""
        if offset + wanted > self._base + len(self.piece):
            self._show_to(offset)
            end = min(offset + max(wanted, _PIECE_BYTES), self.size_bytes)
            self._base, self.piece = offset, b""  # first, so that the new piece takes its memory
            self.piece = self._read(offset, end) if offset < end else b""
            self._show(self.piece, offset)
        return offset + wanted <= self._base + len(self.piece)

    def place(self, offset: int) -> int:
        """Return where an offset is in the piece."""
        return offset - self._base

    def left(self, offset: int) -> int:
        """Return how many bytes there are from an offset on, or at least are at hand."""
        if self.size_bytes == UNKNOWN_SIZE:
            return self._base + len(self.piece) - offset
        return self.size_bytes - offset

    def finish(self) -> None:
        """Show what is left."""
        if self.size_bytes != UNKNOWN_SIZE:
            self._show_to(self.size_bytes)

    def _show_to(self, offset: int) -> None:
        """Show all bytes before an offset, also those that no frame holds."""
        while self._seen is not None and self._shown < offset:
            end = min(self._shown + _PIECE_BYTES, self.size_bytes)
            if not (passed := self._read(self._shown, end)):
                break
            self._show(passed, self._shown)

    def _show(self, piece: bytes, offset: int) -> None:
        """Show what is new in a piece, whose first bytes may have been in the one before."""
        if self._seen is not None and self._shown < offset + len(piece):
            import numpy as np  # late: files without checksums of their own do without

            # NumPy's slice copies nothing, and checksums take it.
            self._seen(np.frombuffer(piece, np.uint8)[self._shown - offset :])
            self._shown = offset + len(piece)


def _read_frame(window: _Window, offset: int, number: int) -> tuple[Record | BadFrame, int | None]:
    """Return what is at an offset, and where the next frame begins, None if that is not known."""
    if not window.has(offset, HEADER_BYTES):
        what = f"the file ends within a frame's header, after {window.left(offset)} bytes of it"
        return BadFrame(number, offset, "E-VER-FRAME", what), None
    size, crc = _LENGTH.unpack_from(window.piece, window.place(offset))
    end = offset + FRAME_BYTES + size
    is_there = end <= window.size_bytes
    if crc != (wanted_crc := _length_crc(size)):
        what = f"the length {size} has the checksum {crc:08x}, not {wanted_crc:08x}"
        is_whole = is_there and size <= _GUESSED_BYTES and window.has(offset, end - offset)
        is_right = is_whole and not _data(window, offset, size)[1]
        return BadFrame(number, offset, "E-VER-FRAME", what), end if is_right else None
    if not is_there or (size <= MAX_RECORD_BYTES and not window.has(offset, end - offset)):
        left = max(window.left(offset) - HEADER_BYTES, 0)
        what = f"a record of {size} bytes is cut off: {left} bytes are left for it and its checksum"
        return BadFrame(number, offset, "E-VER-FRAME", what), None
    if size > MAX_RECORD_BYTES:
        data, wrong = None, _wrong_in_pieces(window, offset + HEADER_BYTES, size)
    else:
        data, wrong = _data(window, offset, size)
    if wrong:
        code = "E-VER-FRAME" if wrong == _CUT_OFF else "E-VER-CRC"
        return BadFrame(number, offset, code, wrong), end
    return Record(number, offset, size, data), end


@functools.lru_cache(maxsize=4096)
def _length_crc(size: int) -> int:
    """Return the checksum of a frame's length; those of a table's rows are often equal."""
    return masked_crc(google_crc32c.value(size.to_bytes(8, "little")))


def _data(window: _Window, offset: int, size: int) -> tuple[bytes, str]:
    """Return a record that is at hand, and what is wrong with its checksum, empty for nothing."""
    start = window.place(offset) + HEADER_BYTES
    data = window.piece[start : start + size]
    return data, _wrong_checksum(google_crc32c.value(data), window.piece, start + size)


def _wrong_in_pieces(window: _Window, at: int, size: int) -> str:
    """Return what is wrong with the checksum of a record that is too large to be kept."""
    crc, end = 0, at + size
    while at < end:
        wanted = min(_PIECE_BYTES, end - at)
        if not window.has(at, wanted):
            return _CUT_OFF
        place = window.place(at)
        crc = google_crc32c.extend(crc, window.piece[place : place + wanted])
        at += wanted
    if not window.has(end, _CRC.size):
        return _CUT_OFF
    return _wrong_checksum(crc, window.piece, window.place(end))


def _wrong_checksum(crc: int, piece: bytes, place: int) -> str:
    (given,) = _CRC.unpack_from(piece, place)
    wanted = masked_crc(crc)
    return (
        "" if given == wanted else f"its data's checksum is {wanted:08x}, the frame's {given:08x}"
    )
