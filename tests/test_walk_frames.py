"""Frames of whole, damaged and cut-off files, and of files with false lengths."""

import struct
import tracemalloc
from collections.abc import Sequence

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.schemas.tfrecord import frame_record, masked_crc
from beam_tfrec.transforms import walk_frames as module
from beam_tfrec.transforms.walk_frames import UNKNOWN_SIZE, BadFrame, Record, walk_frames

ABC = b"".join(b"".join(frame_record([data])) for data in (b"abc", b"", b"defgh"))
"""Three records, at bytes 0, 19 and 35; 56 bytes."""
STARTS = [0, 19, 35]
RECORDS = [
    Record(number, offset, len(data), data, google_crc32c.value(data))
    for number, offset, data in ((0, 0, b"abc"), (1, 19, b""), (2, 35, b"defgh"))
]


def walked(
    data: bytes, starts: Sequence[int] = (), *, known: bool = True, piece_bytes: int = 8
) -> list:
    size_bytes = len(data) if known else UNKNOWN_SIZE
    pieces = (data[start : start + piece_bytes] for start in range(0, len(data), piece_bytes))
    return list(walk_frames(pieces, size_bytes, starts))


def test_after_a_damaged_length_the_index_gives_the_next_record() -> None:
    data = bytes([ABC[0] ^ 1]) + ABC[1:]  # 3 becomes 2
    (alone,) = walked(data)
    assert alone == BadFrame(
        0,
        0,
        "E-VER-FRAME",
        "the length 2 has the checksum 0e4999b0, not 340b2778; the rest of the file was not read",
    )
    first, *others = walked(data, STARTS)
    assert first == alone._replace(what=alone.what.partition(";")[0])
    assert others == RECORDS[1:]


@pytest.mark.parametrize("size", [81, 2**31, 2**62, 2**64 - 1])
@pytest.mark.parametrize("known", [True, False])
def test_a_false_length_allocates_no_memory(size: int, known: bool) -> None:
    length = struct.pack("<Q", size)
    header = length + struct.pack("<I", masked_crc(google_crc32c.value(length)))
    data = header.ljust(96, b"\0")
    tracemalloc.start()
    (found,) = walked(data, known=known)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, BadFrame)
    assert found[:3] == (0, 0, "E-VER-FRAME")
    assert peak < 1 << 20


@pytest.mark.parametrize("damaged", [False, True])
def test_a_record_beyond_the_limit_is_checksummed_in_pieces(
    damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RECORD_BYTES", 10)
    data = bytearray(b"".join(frame_record([bytes(range(100))])) + ABC)
    data[50] ^= damaged
    first, *others = walked(bytes(data))
    assert others == [Record(of.number + 1, of.offset + 116, *of[2:]) for of in RECORDS]
    assert first[:3] == ((0, 0, "E-VER-CRC") if damaged else (0, 0, 100))
    crc32c = google_crc32c.value(bytes(range(100)))
    assert damaged or first == Record(0, 0, 100, None, crc32c)


@given(st.lists(st.binary(max_size=40)), st.integers(1, 64), st.booleans())
def test_any_records_in_pieces_of_any_size(
    records: list[bytes], piece_bytes: int, known: bool
) -> None:
    data = b"".join(part for record in records for part in frame_record([record]))
    found = walked(data, known=known, piece_bytes=piece_bytes)
    assert [record.data for record in found if isinstance(record, Record)] == records
    assert len(found) == len(records)
