"""TFRecord framing: the bytes equal TensorFlow's, and damage is found."""

from pathlib import Path

import google_crc32c
import pytest

from beam_tfrec.schemas.tfrecord import FrameError, frame_record, masked_crc, read_frame

# Records, each as a list of its parts.
RECORDS = [
    [b"12345"],
    [b"12", b"", b"345"],
    [b""],
    [],
    [bytes(range(256)) * 300, b"\xff" * 4096],
    [b"\0"] * 1000,
]


def test_the_file_equals_that_of_tensorflow(tmp_path: Path) -> None:
    import tensorflow as tf

    theirs = tmp_path / "theirs.tfrec"
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for parts in RECORDS:
            writer.write(b"".join(parts))
    ours = b"".join(part for parts in RECORDS for part in frame_record(parts))
    assert theirs.read_bytes() == ours


FRAMED = [b"12345", b"", bytes(range(256)) * 3, b"x"]
FRAMED_FILE = b"".join(part for record in FRAMED for part in frame_record([record]))


def header(length: int) -> bytes:
    """Return a frame's header with a valid checksum."""
    encoded = length.to_bytes(8, "little")
    return encoded + masked_crc(google_crc32c.value(encoded)).to_bytes(4, "little")


NO_FRAMES = [
    (bytes(16), 16, "the checksum of its length, 0 bytes, does not match"),
    (header(2**64 - 1) + bytes(4), 16, "a frame of 18446744073709551631 bytes instead of 16"),
    (FRAMED_FILE, 22, "a frame of 21 bytes instead of 22"),
    (FRAMED_FILE, 20, "a frame of 21 bytes instead of 20"),
]


@pytest.mark.parametrize(("data", "end", "error"), NO_FRAMES)
def test_other_bytes_are_refused(data: bytes, end: int, error: str) -> None:
    with pytest.raises(FrameError, match=f"^{error}$") as caught:
        read_frame(data, 0, end)
    assert caught.value.code == "E-VER-FRAME"
