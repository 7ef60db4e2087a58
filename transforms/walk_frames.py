"""Walk through a TFRecord file of any origin: every frame with both checksums, a piece at a time.

No length is believed: it is compared with what is left of the file, and a record beyond
`MAX_RECORD_BYTES` is checksummed in pieces and not kept. Where a frame's header is damaged the walk
goes on if an index says where the next frame begins.
Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

import bisect
import itertools
import posixpath
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from beam_tfrec.schemas.tfrecord import (
    FRAME_BYTES,
    HEADER_BYTES,
    FrameError,
    length_crc,
    masked_crc,
    read_frame,
)
from beam_tfrec.transforms.storage import Entry, Storage

SUFFIXES = (".tfrec", ".tfrecord", ".tfrecords")
"""Suffixes of TFRecord files; a dash and more may follow, and `.gz`."""
MAX_RECORD_BYTES = 512 << 20
"""A larger record is checksummed, but its bytes are not returned."""
UNKNOWN_SIZE = 2**63
"""Size of a file whose end is not known."""

_PIECE_BYTES = 2 << 20
_INFLATED_BYTES = 1 << 20
_ZLIB_METHOD = 8
_ANY_HEADER = 32 + zlib.MAX_WBITS  # of gzip or zlib
_LENGTH = struct.Struct("<QI")
_CRC = struct.Struct("<I")

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


def is_record_file(name: str) -> bool:
    """Return whether a file is named like TFRecords: those of TFDS end in `-00000-of-00016`.

    >>> is_record_file("a.tfrecord-00000-of-00002"), is_record_file("out")
    (True, False)
    """
    stem = posixpath.basename(name).removesuffix(".gz")
    return any(stem.endswith(suffix) or f"{suffix}-" in stem for suffix in SUFFIXES)


def read_record(storage: Storage, file: Entry | None, offset: int, size: int) -> bytes:
    """Return the bytes of the record whose frame an index describes.

    Raises:
        ValueError: if it is not there, damaged or too large.
        RuntimeError: `E-IO-…` if the store fails.
    """
    if file is None or file.kind != "file":
        raise ValueError("the file is not there")
    end = offset + size
    if offset < 0 or size < FRAME_BYTES or end > file.size_bytes:
        raise ValueError(f"the file has {file.size_bytes} bytes, the record ends at {end}")
    if size > MAX_RECORD_BYTES + FRAME_BYTES:
        raise ValueError("too large to be shown")
    frame = storage.read(file.name, file, (offset, end))
    try:
        return read_frame(frame, 0, size)
    except FrameError as error:
        raise ValueError(f"damaged, {error}") from None


def walk_frames(
    pieces: Iterable[bytes], size_bytes: int, starts: Sequence[int] = ()
) -> Iterator[Record | BadFrame]:
    """Yield every record, and every frame that is none.

    Args:
        pieces: bytes of the file, in their order.
        size_bytes: size of the file, or `UNKNOWN_SIZE`.
        starts: offsets of its frames by an index, ascending, to go on at after a damaged one.
    """
    file = _Forward(iter(pieces))
    offset = number = 0
    while head := file.read(offset, HEADER_BYTES):
        found, following = _read_frame(file, head, size_bytes, offset, number)
        if following is None:
            place = bisect.bisect_right(starts, offset)
            if place == len(starts) or starts[place] >= size_bytes:
                assert isinstance(found, BadFrame)
                left = f"the last {size_bytes - offset} bytes of the file were not read"
                if size_bytes == UNKNOWN_SIZE:
                    left = "what follows was not read"
                yield found._replace(what=f"{found.what}; {left}")
                break
            following, number = starts[place], place - 1
        yield found
        offset, number = following, number + 1


def read_pieces(read: ReadSpan, size_bytes: int) -> Iterator[bytes]:
    """Return a file's bytes in pieces."""
    starts = range(0, size_bytes, _PIECE_BYTES)
    pieces = (read(start, min(start + _PIECE_BYTES, size_bytes)) for start in starts)
    return itertools.takewhile(len, pieces)


class OpenedRecords(NamedTuple):
    """The frames of a file, compressed or not.

    Attributes:
        pieces: bytes of the frames.
        size_bytes: their size, or `UNKNOWN_SIZE`.
        compression: `GZIP` or `ZLIB`; empty for none.
    """

    pieces: Iterator[bytes]
    size_bytes: int
    compression: str


def open_records(storage: Storage, file: Entry) -> OpenedRecords:
    """Return a TFRecord file's frames; a compressed file is inflated while it is read."""

    def read(start: int, end: int) -> bytes:
        return storage.read(file.name, file, (start, end))

    compression = _compression(read(0, min(HEADER_BYTES, file.size_bytes)))
    pieces = read_pieces(read, file.size_bytes)
    if compression:
        return OpenedRecords(_inflate(pieces), UNKNOWN_SIZE, compression)
    return OpenedRecords(pieces, file.size_bytes, "")


def _compression(head: bytes) -> str:
    """Return how a file that begins so is compressed; not at all if it begins with a frame."""
    size, crc = head[:8], int.from_bytes(head[8:], "little")
    if len(head) == HEADER_BYTES and crc == length_crc(int.from_bytes(size, "little")):
        return ""
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    is_deflate = len(head) > 1 and head[0] & 15 == _ZLIB_METHOD and head[0] >> 4 <= 7
    return "ZLIB" if is_deflate and int.from_bytes(head[:2], "big") % 31 == 0 else ""


def _inflate(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of a compressed file, whose members may be several.

    Raises:
        zlib.error: if it is damaged or cut off.
    """
    inflate = zlib.decompressobj(_ANY_HEADER)
    for data in pieces:
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


class _Forward:
    """A part of a file that is held; it only moves forward."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._base, self._held = pieces, 0, b""

    @property
    def end(self) -> int:
        """Where the part ends."""
        return self._base + len(self._held)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes from an offset: fewer where the file ends, none before the part."""
        start = offset - self._base
        if start < 0:
            return b""
        while start + size > len(self._held) and (piece := next(self._pieces, b"")):
            dropped = min(start, len(self._held))
            self._held = self._held[dropped:] + piece
            self._base += dropped
            start -= dropped
        return self._held[start : start + size]


def _read_frame(
    file: _Forward, head: bytes, size_bytes: int, offset: int, number: int
) -> tuple[Record | BadFrame, int | None]:
    """Return what is at an offset, and where the next frame begins, None if that is not known."""

    def bad(what: str, code: str = "E-VER-FRAME") -> BadFrame:
        return BadFrame(number, offset, code, what)

    if len(head) < HEADER_BYTES:
        return bad(f"the file ends within a frame's header, after {len(head)} bytes of it"), None
    size, crc = _LENGTH.unpack(head)
    if crc != (wanted_crc := length_crc(size)):
        what = f"the length {size} has the checksum {crc:08x}, not {wanted_crc:08x}"
        return bad(what), None
    at, data_end = offset + HEADER_BYTES, offset + HEADER_BYTES + size
    is_kept, fits = size <= MAX_RECORD_BYTES, offset + FRAME_BYTES + size <= size_bytes
    kept, data_crc = list[bytes](), 0
    while fits and at < data_end and (piece := file.read(at, min(_PIECE_BYTES, data_end - at))):
        data_crc = google_crc32c.extend(data_crc, piece)
        at += len(piece)
        if is_kept:
            kept.append(piece)
    checksum = file.read(at, _CRC.size) if fits and at == data_end else b""
    if len(checksum) < _CRC.size:
        file_end = file.end if size_bytes == UNKNOWN_SIZE else size_bytes
        left = max(file_end - offset - HEADER_BYTES, 0)
        what = f"a record of {size} bytes is cut off: {left} bytes are left for it and its checksum"
        return bad(what), None
    following = data_end + _CRC.size
    (given,) = _CRC.unpack(checksum)
    if given != (wanted := masked_crc(data_crc)):
        what = f"its data's checksum is {wanted:08x}, the frame's {given:08x}"
        return bad(what, "E-VER-CRC"), following
    return Record(number, offset, size, b"".join(kept) if is_kept else None), following
