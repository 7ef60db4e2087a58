"""Frames that are read: whole, damaged, or nothing of the kind."""

import resource
import subprocess
import sys
from pathlib import Path

import google_crc32c
import pytest

from schemas.tfrecord import (
    FRAME_BYTES,
    FrameError,
    frame_bytes,
    frame_record,
    masked_crc,
    read_frame,
    scan_records,
)

RECORDS = [b"12345", b"", bytes(range(256)) * 3, b"x"]
FILE = b"".join(part for record in RECORDS for part in frame_record([record]))
OFFSETS = [0, 21, 37, 37 + 768 + 16]


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def header(length: int) -> bytes:
    """Return a frame's header whose checksum is right."""
    encoded = length.to_bytes(8, "little")
    return encoded + masked_crc(google_crc32c.value(encoded)).to_bytes(4, "little")


@pytest.mark.parametrize("chunk_bytes", [1, 5, 12, 16, 100, len(FILE)])
def test_a_file_is_scanned(chunk_bytes: int) -> None:
    found = list(scan_records(chunks(FILE, chunk_bytes), len(FILE)))
    assert found == list(zip(OFFSETS, RECORDS, strict=True))


def test_a_frame_is_read_where_it_is() -> None:
    ends = [*OFFSETS[1:], len(FILE)]
    for start, end, record in zip(OFFSETS, ends, RECORDS, strict=True):
        assert read_frame(b"before" + FILE, start + 6, end + 6) == record
        assert frame_bytes(FILE, start, len(FILE) - start) == end - start == len(record) + 16


def test_an_empty_file_has_no_records() -> None:
    assert list(scan_records([], 0)) == []


def test_every_bit_is_covered() -> None:
    for bit in range(8 * len(FILE)):
        flipped = bytearray(FILE)
        flipped[bit // 8] ^= 1 << bit % 8
        number = max(n for n, offset in enumerate(OFFSETS) if offset <= bit // 8)
        found = []
        with pytest.raises(FrameError) as caught:
            for record in scan_records([bytes(flipped)], len(FILE)):
                found.append(record)
        assert found == list(zip(OFFSETS, RECORDS, strict=True))[:number]
        assert caught.value.at == OFFSETS[number]
        in_header = bit // 8 - OFFSETS[number] < 12
        assert caught.value.code == ("E-VER-FRAME" if in_header else "E-VER-CRC")


def test_every_truncation_is_found() -> None:
    for size in range(len(FILE)):
        scan = scan_records([FILE[:size]], size)
        if size in OFFSETS:  # a file that ends between two records is whole, for all it says
            assert len(list(scan)) == OFFSETS.index(size)
            continue
        with pytest.raises(FrameError) as caught:
            list(scan)
        assert caught.value.code == "E-VER-FRAME"
        assert caught.value.at == max(offset for offset in OFFSETS if offset <= size)


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
        read_frame(data, at, end)
    assert str(caught.value).startswith(error)
    assert (caught.value.code, caught.value.at) == ("E-VER-FRAME", at)


def test_a_file_that_is_shorter_than_told() -> None:
    with pytest.raises(FrameError, match=r"^a record of 1 bytes, and the file has ended$"):
        list(scan_records([FILE[:-1]], len(FILE)))


def test_a_claim_of_2_to_the_62_takes_no_memory(tmp_path: Path) -> None:
    """96 bytes kill other readers: the length has a right checksum."""
    (tmp_path / "a.tfrec").write_bytes(header(2**62) + bytes(84))
    program = f"""
import resource, sys
from schemas.tfrecord import FrameError, scan_records
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = open({str(tmp_path / "a.tfrec")!r}, "rb").read()
try:
    list(scan_records([data], len(data)))
except FrameError as error:
    print(error.code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    limit = 2 << 30
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    code, grown_kb = run.stdout.split()
    assert code == "E-VER-FRAME"
    assert int(grown_kb) < 64_000


def test_a_scan_holds_one_record_and_a_chunk() -> None:
    """The largest buffer is a record of three chunks and what came with its last."""
    record = b"".join(frame_record([bytes(3000)]))
    data = record * 50
    held = []

    def source():  # type: ignore[no-untyped-def]
        for chunk in chunks(data, 1000):
            held.append(len(chunk))
            yield chunk

    taken_at = [len(held) for _ in scan_records(source(), len(data))]
    # After each record no more chunks were taken than reach to its end.
    assert all(1000 * taken < (n + 1) * len(record) + 1000 for n, taken in enumerate(taken_at))
    assert FRAME_BYTES == 16
