from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import google_crc32c
import pytest
from apache_beam.testing.util import assert_that, equal_to

from schemas.tfrecord import FRAME_BYTES, frame_record, masked_crc

# Each record in the parts that it is given in.
RECORDS = [
    [b"12345"],
    [b"12", b"", b"345"],
    [b""],
    [],
    [bytes(range(256)) * 300, b"\xff" * 4096],
    [b"\0"] * 1000,
]


def record_file(folder: Path) -> Path:
    path = folder / "a.tfrec"
    path.write_bytes(b"".join(part for parts in RECORDS for part in frame_record(parts)))
    return path


def test_a_record_has_these_bytes() -> None:
    assert b"".join(frame_record([b"12345"])) == bytes.fromhex(
        "0500000000000000 eab2043e 3132333435 7a1cede8"
    )


def test_parts_are_handed_on_uncopied() -> None:
    parts = [b"12", b"345"]
    framed = frame_record(parts)
    assert framed[1] is parts[0] and framed[2] is parts[1]
    assert [len(part) for part in framed] == [12, 2, 3, 4]


@pytest.mark.parametrize("parts", RECORDS, ids=[0, 1, 2, 3, 4, 5])
def test_framing_adds_sixteen_bytes(parts: list[bytes]) -> None:
    framed = b"".join(frame_record(parts))
    assert len(framed) == FRAME_BYTES + len(b"".join(parts)) == 16 + len(b"".join(parts))


def test_the_file_equals_tensorflow_s(tmp_path: Path) -> None:
    import tensorflow as tf

    theirs = tmp_path / "theirs.tfrec"
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for parts in RECORDS:
            writer.write(b"".join(parts))
    assert record_file(tmp_path).read_bytes() == theirs.read_bytes()


def test_tensorflow_reads_the_file(tmp_path: Path) -> None:
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(str(record_file(tmp_path)))
    assert list(dataset.as_numpy_iterator()) == [b"".join(parts) for parts in RECORDS]


def test_beam_reads_the_file(tmp_path: Path, test_pipeline: Callable[[], beam.Pipeline]) -> None:
    with test_pipeline() as pipeline:
        read = pipeline | beam.io.ReadFromTFRecord(str(record_file(tmp_path)))
        assert_that(read, equal_to([b"".join(parts) for parts in RECORDS]))


# CRC-32C and what TFRecords make of it: ((crc >> 15 | crc << 17) + 0xa282ead8) mod 2^32.
@pytest.mark.parametrize(
    ("crc", "masked"),
    [
        (0, 0xA282EAD8),
        (0xFFFFFFFF, 0xA282EAD7),  # the sum overflows
        (0x00008000, 0xA282EAD9),
        (0x00000001, 0xA284EAD8),
        (0xE3069283, 0xC78AB0E5),  # of b"123456789", the check value of RFC 3720
    ],
)
def test_masked_checksums(crc: int, masked: int) -> None:
    assert masked_crc(crc) == masked


def test_checksums_run_in_c() -> None:
    assert google_crc32c.implementation == "c"  # the others run at 9-420 MB/s
