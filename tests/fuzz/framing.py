"""TFRecord framing: what is framed, a reader that shares no code with us reads back.

The product has no reader of TFRecords yet, so the framing is held against the one of benchmarks/,
which counts records by their lengths; checksums come from a table in Python instead of C.
"""

import struct
from collections.abc import Iterator

from benchmarks.records import masked_crc32c
from schemas.tfrecord import FRAME_BYTES, frame_record
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target


def run(data: bytes) -> None:
    """Frame records of parts cut by the bytes; read them back; flip one bit, which must show."""
    choices = Choices(data)
    flipped_bit = choices.below(256) << 8 | choices.below(256)
    records: list[list[bytes]] = []
    for _ in range(choices.below(6)):
        records.append([choices.piece() for _ in range(choices.below(4))])
    framed = b"".join(part for parts in records for part in frame_record(parts))
    joined = [b"".join(parts) for parts in records]
    assert read(framed) == joined
    assert len(framed) == sum(len(record) + FRAME_BYTES for record in joined)
    if framed:
        place, bit = divmod(flipped_bit % (8 * len(framed)), 8)
        spoilt = bytearray(framed)
        spoilt[place] ^= 1 << bit
        assert read(bytes(spoilt)) is None


def read(data: bytes) -> list[bytes] | None:
    """Return the records of a file, None when a checksum or length is wrong."""
    records, position = [], 0
    while position < len(data):
        length = data[position : position + 8]
        if data[position + 8 : position + 12] != _checksum(length):
            return None
        start = position + 12
        end = start + int.from_bytes(length, "little")
        position = end + 4
        if position > len(data) or data[end:position] != _checksum(data[start:end]):
            return None
        records.append(data[start:end])
    return records


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))


def seeds() -> Iterator[bytes]:
    yield b""
    yield bytes([0, 0, 1, 1, 5]) + b"12345"
    yield bytes([0, 9, 3, 0, 2, 0, 3]) + b"abc" + bytes([3, 1]) + b"a" + bytes([2]) + b"bc\1\2\3"


TARGETS = (Target("framing", run, seeds, "", 600),)
