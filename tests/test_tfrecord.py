"""TFRecord framing: bytes as TensorFlow writes them, and damage that is found."""

from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from schemas.tfrecord import FrameError, check_frame, frame_bytes, frame_record, masked_crc

# Each record in the parts that it is given in.
RECORDS = [
    [b"12345"],
    [b"12", b"", b"345"],
    [b""],
    [],
    [bytes(range(256)) * 300, b"\xff" * 4096],
    [b"\0"] * 1000,
]


def test_parts_are_handed_on_uncopied() -> None:
    parts = [b"12", b"345"]
    framed = frame_record(parts)
    assert framed[1] is parts[0] and framed[2] is parts[1]
    assert [len(part) for part in framed] == [12, 2, 3, 4]


def test_the_file_equals_tensorflow_s(tmp_path: Path) -> None:
    import tensorflow as tf

    theirs = tmp_path / "theirs.tfrec"
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for parts in RECORDS:
            writer.write(b"".join(parts))
    ours = b"".join(part for parts in RECORDS for part in frame_record(parts))
    assert theirs.read_bytes() == ours


FRAMED = [b"12345", b"", bytes(range(256)) * 3, b"x"]
FRAMED_FILE = b"".join(part for record in FRAMED for part in frame_record([record]))
OFFSETS = [0, 21, 37, 37 + 768 + 16]


def check(data: bytes, at: int, end: int) -> None:
    check_frame(data, at, end, np.frombuffer(data, np.uint8))


def header(length: int) -> bytes:
    """Return a frame's header whose checksum is right."""
    encoded = length.to_bytes(8, "little")
    return encoded + masked_crc(google_crc32c.value(encoded)).to_bytes(4, "little")


def test_a_frame_is_read_where_it_is() -> None:
    ends = [*OFFSETS[1:], len(FRAMED_FILE)]
    for start, end, record in zip(OFFSETS, ends, FRAMED, strict=True):
        check(b"before" + FRAMED_FILE, start + 6, end + 6)
        size = frame_bytes(FRAMED_FILE, start, len(FRAMED_FILE) - start)
        assert size == end - start == len(record) + 16


def test_every_bit_is_covered() -> None:
    for start, end in zip(OFFSETS, [*OFFSETS[1:], len(FRAMED_FILE)], strict=True):
        for bit in range(8 * start, 8 * end):
            flipped = bytearray(FRAMED_FILE)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(FrameError) as caught:
                check(bytes(flipped), start, end)
            in_header = bit // 8 - start < 12
            assert caught.value.code == ("E-VER-FRAME" if in_header else "E-VER-CRC")


NO_FRAMES = {
    "no header": (b"123", 0, 3, "3 bytes, of 12 of a frame's header"),
    "the length's checksum": (bytes(16), 0, 16, "a length of 0 bytes, of which the checksum is an"),
    "a length beyond the end": (header(2**62) + bytes(84), 0, 96, "a record of 46116860184273"),
    "a length beyond all files": (header(2**64 - 1) + bytes(4), 0, 16, "a record of 184467440737"),
    "a shorter record": (FRAMED_FILE, 0, 22, "a frame of 21 bytes, not of 22"),
    "a longer record": (FRAMED_FILE, 0, 20, "a record of 5 bytes, 4 are left for it"),
}


@pytest.mark.parametrize(("data", "at", "end", "error"), NO_FRAMES.values(), ids=NO_FRAMES)
def test_what_is_no_frame(data: bytes, at: int, end: int, error: str) -> None:
    with pytest.raises(FrameError) as caught:
        check(data, at, end)
    assert str(caught.value).startswith(error)
    assert caught.value.code == "E-VER-FRAME"
