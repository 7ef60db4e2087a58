"""Read a TFRecord or ArrayRecord file of any origin in pieces, and check all checksums.

The length in a frame's header is compared with the rest of the file before it is used. A record
above `MAX_RECORD_BYTES` is checksummed in pieces and not kept. After a damaged header, reading
continues only if an index has the offset of the next frame.

Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

import bisect
import posixpath
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from beam_tfrec.schemas import shards, tfrecord
from beam_tfrec.transforms.storage import Entry, Storage, open_unbuffered
from beam_tfrec.transforms.storage.array_record import copied_array_record, open_array_record

MAX_RECORD_BYTES = 512 << 20
"""Maximum size of a record that is returned; larger ones are only checksummed."""
UNKNOWN_SIZE = 2**63
"""Size of a compressed file's content, which is unknown until its end."""

_PIECE_BYTES = 2 << 20
_INFLATED_BYTES = 1 << 20
_ANY_HEADER = 32 + zlib.MAX_WBITS  # accepts gzip and zlib


class Record(NamedTuple):
    """An undamaged record.

    Attributes:
        number: index of the record in the file, from 0.
        offset: offset of its frame, in bytes; in an ArrayRecord file, its number.
        size: size of the record without framing, in bytes.
        data: the record's bytes; None if there are more than `MAX_RECORD_BYTES`.
        crc32c: CRC-32C of the record.
    """

    number: int
    offset: int
    size: int
    data: bytes | None
    crc32c: int


class BadFrame(NamedTuple):
    """A damaged frame.

    Attributes:
        number: index of the frame in the file, from 0.
        offset: offset of the frame, in bytes.
        code: `E-VER-FRAME` for a damaged header or a missing end, else `E-VER-CRC`.
        what: description of the damage.
        is_last: whether the file ends within the frame, so that no other record is lost.
    """

    number: int
    offset: int
    code: str
    what: str
    is_last: bool = False


def is_record_file(name: str) -> bool:
    """Return whether a name is that of a record file; TFDS appends `-00000-of-00016`, gzip `.gz`.

    >>> [is_record_file(name) for name in ("a.tfrecord-00000-of-00002", "A.TFREC.GZ", "out")]
    [True, True, False]
    """
    stem = posixpath.basename(name).lower().removesuffix(".gz")
    return any(stem.endswith(suffix) or f"{suffix}-" in stem for suffix in shards.RECORD_SUFFIXES)


def read_record(storage: Storage, file: Entry | None, offset: int, size: int) -> bytes:
    """Read one record at an offset from an index.

    Args:
        storage: storage of the file.
        file: listed file; None if it is missing.
        offset: offset of the record's frame.
        size: size of the record with framing.

    For an ArrayRecord file, they are its number and its own size.

    Raises:
        ValueError: if the record is missing, damaged or too large.
        RuntimeError: `E-IO-…` if the store fails.
    """
    if file is None or file.kind != "file":
        raise ValueError("the file is not there")
    if tfrecord.is_array_record(file.name):
        return open_array_record(storage, file).read(offset)
    end = offset + size
    if offset < 0 or size < tfrecord.FRAME_BYTES or end > file.size_bytes:
        raise ValueError(f"the file has {file.size_bytes} bytes, the record ends at {end}")
    if size > MAX_RECORD_BYTES + tfrecord.FRAME_BYTES:
        raise ValueError("too large to be shown")
    frame = storage.read(file.name, file, (offset, end))
    try:
        return tfrecord.read_frame(frame, 0, size)
    except tfrecord.FrameError as error:
        raise ValueError(f"damaged, {error}") from None


def walk_frames(
    pieces: Iterable[bytes], size_bytes: int, starts: Sequence[int] = ()
) -> Iterator[Record | BadFrame]:
    """Yield every record and every damaged frame, in the file's order.

    Where compressed data is damaged, the last frame says so.

    Args:
        pieces: consecutive pieces of the file.
        size_bytes: size of the file, or `UNKNOWN_SIZE`.
        starts: offsets of all frames from an index, ascending, to continue after a damaged one.
    """
    file = _Forward(iter(pieces))
    offset = number = 0
    try:
        while head := file.read(offset, tfrecord.HEADER_BYTES):
            frame, following = _read_frame(file, head, size_bytes, offset, number)
            if following is None:
                next_number = bisect.bisect_right(starts, offset)
                if next_number == len(starts) or starts[next_number] >= size_bytes:
                    assert isinstance(frame, BadFrame)
                    yield frame._replace(what=f"{frame.what}; the rest of the file was not read")
                    break
                following, number = starts[next_number], next_number - 1
            yield frame
            offset, number = following, number + 1
    except zlib.error as error:
        what = f"the compressed data is damaged from here on ({error})"
        yield BadFrame(number, offset, "E-VER-FRAME", what)


def walk_records(
    name: str, pieces: Iterable[bytes], size_bytes: int, starts: Sequence[int] = ()
) -> Iterator[Record | BadFrame]:
    """Yield the records of a file as `walk_frames` does; its name says its format.

    An ArrayRecord file is copied to a temporary file before the first record.
    """
    if tfrecord.is_array_record(name):
        return _walk_array_record(pieces)
    return walk_frames(pieces, size_bytes, starts)


def _walk_array_record(pieces: Iterable[bytes]) -> Iterator[Record | BadFrame]:
    try:
        with copied_array_record(pieces) as file:
            for number in range(len(file)):
                try:
                    data = file.read(number)
                except tfrecord.FrameError as error:
                    yield BadFrame(number, number, error.code, str(error))
                else:
                    yield Record(number, number, len(data), data, google_crc32c.value(data))
    except tfrecord.FrameError as error:
        yield BadFrame(0, 0, error.code, str(error))


def read_pieces(storage: Storage, file: Entry) -> Iterator[bytes]:
    """Read a listed file in pieces of 2 MiB."""
    stream = open_unbuffered(storage, file)
    yield from iter(lambda: stream.read(_PIECE_BYTES), b"")


def open_records(
    storage: Storage, file: Entry, starts: Sequence[int] = ()
) -> tuple[Iterator[Record | BadFrame], str]:
    """Return the records of a file as `walk_records` yields them, and the file's compression.

    The compression is `GZIP` or `ZLIB`, or empty. A compressed file is decompressed while it is
    read.
    """
    pieces, size_bytes, compression = read_pieces(storage, file), file.size_bytes, ""
    if not tfrecord.is_array_record(file.name):
        head = storage.read(file.name, file, (0, min(tfrecord.HEADER_BYTES, size_bytes)))
        compression = _compression(head)
    if compression:
        pieces, size_bytes = _inflate(pieces), UNKNOWN_SIZE
    return walk_records(file.name, pieces, size_bytes, starts), compression


def _compression(head: bytes) -> str:
    """Return the compression of a file by its first bytes; empty if they are a frame's header."""
    if len(head) == tfrecord.HEADER_BYTES:
        size, crc = tfrecord.HEADER.unpack(head)
        if crc == tfrecord.length_crc(size):
            return ""
    if head.startswith(b"\x1f\x8b"):
        return "GZIP"
    is_deflate = len(head) > 1 and head[0] & 15 == zlib.DEFLATED and head[0] >> 4 <= 7
    return "ZLIB" if is_deflate and int.from_bytes(head[:2], "big") % 31 == 0 else ""


def _inflate(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of a compressed file, which may have several gzip members.

    Raises:
        zlib.error: if the file is damaged or truncated.
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
            raise zlib.error("the stream is truncated")
        yield piece


class _Forward:
    """A buffer over consecutive pieces of a file; it only moves forward."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._base, self._held = pieces, 0, b""

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes at an offset: fewer at the file's end, none before the buffer."""
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
    """Read the frame at an offset, and return it with the next frame's offset; None if unknown."""

    def bad(what: str, code: str = "E-VER-FRAME", *, is_last: bool = False) -> BadFrame:
        return BadFrame(number, offset, code, what, is_last)

    if len(head) < tfrecord.HEADER_BYTES:
        what = f"the file ends within a frame's header, after {len(head)} bytes of it"
        return bad(what, is_last=True), None
    size, crc = tfrecord.HEADER.unpack(head)
    if crc != (wanted_crc := tfrecord.length_crc(size)):
        what = f"the length {size} has the checksum {crc:08x}, not {wanted_crc:08x}"
        return bad(what), None
    at, data_end = offset + tfrecord.HEADER_BYTES, offset + tfrecord.HEADER_BYTES + size
    fits, data_crc = offset + tfrecord.FRAME_BYTES + size <= size_bytes, 0
    kept: list[bytes] | None = [] if size <= MAX_RECORD_BYTES else None
    while fits and at < data_end and (piece := file.read(at, min(_PIECE_BYTES, data_end - at))):
        data_crc = google_crc32c.extend(data_crc, piece)
        at += len(piece)
        if kept is not None:
            kept.append(piece)
    checksum = file.read(at, tfrecord.CRC_BYTES) if fits and at == data_end else b""
    if len(checksum) < tfrecord.CRC_BYTES:
        what = f"the file ends within a record of {size} bytes or its checksum"
        return bad(what, is_last=True), None
    following, given = data_end + tfrecord.CRC_BYTES, int.from_bytes(checksum, "little")
    if given != (wanted := tfrecord.masked_crc(data_crc)):
        what = f"its data's checksum is {wanted:08x}, the frame's {given:08x}"
        return bad(what, "E-VER-CRC"), following
    data = None if kept is None else b"".join(kept)
    return Record(number, offset, size, data, data_crc), following
