"""Frames that are read: whole, damaged, or nothing of the kind."""

import google_crc32c
import numpy as np
import pytest

from schemas.tfrecord import FrameError, check_frame, frame_bytes, frame_record, masked_crc

RECORDS = [b"12345", b"", bytes(range(256)) * 3, b"x"]
FILE = b"".join(part for record in RECORDS for part in frame_record([record]))
OFFSETS = [0, 21, 37, 37 + 768 + 16]


def check(data: bytes, at: int, end: int) -> None:
    check_frame(data, at, end, np.frombuffer(data, np.uint8))


def header(length: int) -> bytes:
    """Return a frame's header whose checksum is right."""
    encoded = length.to_bytes(8, "little")
    return encoded + masked_crc(google_crc32c.value(encoded)).to_bytes(4, "little")


def test_a_frame_is_read_where_it_is() -> None:
    ends = [*OFFSETS[1:], len(FILE)]
    for start, end, record in zip(OFFSETS, ends, RECORDS, strict=True):
        check(b"before" + FILE, start + 6, end + 6)
        assert frame_bytes(FILE, start, len(FILE) - start) == end - start == len(record) + 16


def test_every_bit_is_covered() -> None:
    for start, end in zip(OFFSETS, [*OFFSETS[1:], len(FILE)], strict=True):
        for bit in range(8 * start, 8 * end):
            flipped = bytearray(FILE)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(FrameError) as caught:
                check(bytes(flipped), start, end)
            in_header = bit // 8 - start < 12
            assert caught.value.code == ("E-VER-FRAME" if in_header else "E-VER-CRC")


WRONG = {
    "no header": (b"123", 0, 3, "3 bytes, of 12 of a frame's header"),
    "the length's checksum": (bytes(16), 0, 16, "a length of 0 bytes, of which the checksum is an"),
    "a length beyond the end": (
        header(2**62) + bytes(84),
        0,
        96,
        "a record of 4611686018427387904",
    ),
    "a length beyond all files": (header(2**64 - 1) + bytes(4), 0, 16, "a record of 184467440737"),
    "a shorter record": (FILE, 0, 22, "a frame of 21 bytes, not of 22"),
    "a longer record": (FILE, 0, 20, "a record of 5 bytes, 4 are left for it"),
}


@pytest.mark.parametrize(("data", "at", "end", "error"), WRONG.values(), ids=WRONG)
def test_what_is_no_frame(data: bytes, at: int, end: int, error: str) -> None:
    with pytest.raises(FrameError) as caught:
        check(data, at, end)
    assert str(caught.value).startswith(error)
    assert caught.value.code == "E-VER-FRAME"
