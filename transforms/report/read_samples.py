"""Read the records that were picked for a report: by ranges of shards, each frame checked.

What is wrong with one record is said of it, and the others are read. Only a store that fails as a
whole, or refuses, ends the reading.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from schemas.faults import find_fault
from schemas.tfrecord import FRAME_BYTES
from transforms.report.pick_samples import PickedRecord
from transforms.storage import Entry, Storage
from transforms.walk_frames import BadFrame, ReadSpan, walk_frames

MAX_RECORD_BYTES = 64 << 20
"""A larger record is not read for a picture."""


class ReadRecord(NamedTuple):
    """A record that was picked.

    Attributes:
        picked: where it is, and what for.
        data: its bytes; empty where it could not be read.
        wrong: what is wrong with it; empty for nothing.
    """

    picked: PickedRecord
    data: bytes
    wrong: str = ""


def read_record(storage: Storage, file: Entry | None, picked: PickedRecord) -> ReadRecord:
    """Return a record of a file that is not compressed.

    Raises:
        RuntimeError: `E-IO-…` where the store fails, whatever is asked of it.
    """
    if wrong := _not_to_be_read(file, picked):
        return ReadRecord(picked, b"", wrong)
    start, end = picked.offset, picked.offset + picked.size
    try:
        return _record_in(storage.read(picked.file, file, (start, end)), picked)
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None or not fault[0].startswith("E-SRC-"):
            raise
        return ReadRecord(picked, b"", "the file is no longer what it was")


def read_compressed(read: ReadSpan, picks: Iterable[PickedRecord]) -> Iterator[ReadRecord]:
    """Yield the records of a file that can be read in its order alone, in that order.

    Args:
        read: reads what is in the file, each span behind the one before.
        picks: of this file.
    """
    ended = ""
    for picked in sorted(picks, key=lambda found: found.offset):
        if not ended and picked.size <= MAX_RECORD_BYTES:
            try:
                yield _record_in(read(picked.offset, picked.offset + picked.size), picked)
                continue
            except zlib.error as error:
                ended = f"its compressed data is damaged before it ({error})"
        yield ReadRecord(picked, b"", ended or _too_large(picked))


def _not_to_be_read(file: Entry | None, picked: PickedRecord) -> str:
    if file is None or file.kind != "file":
        return "the file is not there"
    if picked.size > MAX_RECORD_BYTES:
        return _too_large(picked)
    if picked.offset < 0 or picked.size < FRAME_BYTES:
        return f"there is no record of {picked.size} bytes at byte {picked.offset}"
    if picked.offset + picked.size > file.size_bytes:
        return f"the file ends before it, after {file.size_bytes} bytes"
    return ""


def _too_large(picked: PickedRecord) -> str:
    return f"its {picked.size} bytes are too many to be shown"


def _record_in(frame: bytes, picked: PickedRecord) -> ReadRecord:
    """Return the record of a frame, whose checksums and length must be right."""
    found = next(walk_frames(lambda start, end: frame[start:end], len(frame)), None)
    if isinstance(found, BadFrame):
        return ReadRecord(picked, b"", f"damaged, {found.what}")
    if found is None or found.data is None or found.size + FRAME_BYTES != picked.size:
        return ReadRecord(picked, b"", "damaged, its frame is of another size")
    return ReadRecord(picked, found.data)
