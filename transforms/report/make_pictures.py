"""Read the sample records of a report and draw their pictures, several at a time.

A record that cannot be read or shown becomes a note. A store that fails ends the pictures, not the
report.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from schemas.faults import at_record, find_fault
from schemas.features import Roles
from schemas.tfrecord import FRAME_BYTES
from transforms.gate import usable_cores
from transforms.report.contents import ShownPicture
from transforms.report.draw_pictures import MAX_PICTURES_OF_A_RECORD, Drawn, draw_record
from transforms.report.index_sums import PickedRecord
from transforms.report.outlines import Legend
from transforms.storage import Entry, Storage, is_local
from transforms.walk_frames import BadFrame, walk_frames

MAX_RECORD_BYTES = 64 << 20
"""Larger records are not read for a picture."""

MAX_JPEG_BYTES = 2_500_000
"""Size of all pictures together; in base64 that is 3.4 MB of a page of 5."""

MAX_NOTES = 10

_REMOTE_READERS = 16
_AHEAD = 4  # tasks a thread

T = TypeVar("T")
V = TypeVar("V")


class Sample(NamedTuple):
    """A record to show, and where it is.

    Attributes:
        picked: the record, with the name of its file as the report shows it.
        storage: holds the file.
        file: entry of the file; None if it is missing.
        roles: of the record's features.
    """

    picked: PickedRecord
    storage: Storage
    file: Entry | None
    roles: Roles


class Pictures(NamedTuple):
    """The pictures of a report, and notes on those that could not be shown."""

    pictures: list[ShownPicture]
    notes: list[str]


def pictures_each(roles: Roles) -> int:
    """Return how many pictures a record with these features has at most."""
    return min(max(1, len(roles.images) + len(roles.pixels)), MAX_PICTURES_OF_A_RECORD)


def make_pictures(samples: Sequence[Sample], legend: Legend) -> Pictures:
    """Return the pictures of records, in their order."""
    made = Pictures([], [])
    if not samples:
        return made
    pictures = sum(pictures_each(sample.roles) for sample in samples)
    most_bytes = MAX_JPEG_BYTES // pictures

    def draw(sample: Sample) -> Drawn:
        return _draw(sample, legend, most_bytes)

    try:
        for drawn in in_order(draw, samples, samples[0].storage.root):
            made.pictures.extend(drawn.pictures)
            made.notes.extend(drawn.notes)
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None:
            raise
        made.notes.append(f"pictures are missing: {fault[1]}")
    return Pictures(made.pictures, first_notes(made.notes))


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the first notes, and how many there are besides."""
    more = len(notes) - MAX_NOTES
    return [*notes[:MAX_NOTES], *([f"and {more} more notes like these"] if more > 0 else [])]


def in_order(work: Callable[[T], V], items: Sequence[T], root: str) -> Iterator[V]:
    """Yield what threads make of items, in the items' order; memory holds a few results."""
    threads = max(usable_cores(), 1 if is_local(root) else _REMOTE_READERS)
    at_once = _AHEAD * threads
    with ThreadPoolExecutor(threads, "report") as pool:
        for start in range(0, len(items), at_once):
            yield from pool.map(work, items[start : start + at_once])


def _draw(sample: Sample, legend: Legend, most_bytes: int) -> Drawn:
    picked = sample.picked
    where = at_record(picked.file, picked.number, picked.offset, picked.key or None)
    try:
        data = _read(sample)
    except ValueError as error:
        return Drawn((), (f"{where} is not shown: {error}",))
    return draw_record(data, picked, sample.roles, legend, most_bytes)


def _read(sample: Sample) -> bytes:
    """Return a record's bytes.

    Raises:
        ValueError: when it is not there, too large or damaged.
        RuntimeError: `E-IO-…` when the store fails.
    """
    picked, file = sample.picked, sample.file
    end = picked.offset + picked.size
    if file is None or file.kind != "file":
        raise ValueError("the file is not there")
    if picked.size > MAX_RECORD_BYTES:
        raise ValueError(f"its {picked.size} bytes are too many")
    if picked.offset < 0 or picked.size < FRAME_BYTES or end > file.size_bytes:
        raise ValueError(f"the file has {file.size_bytes} bytes, the record ends at {end}")
    try:
        frame = sample.storage.read(file.name, file, (picked.offset, end))
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None or not fault[0].startswith("E-SRC-"):
            raise
        raise ValueError("the file changed meanwhile") from None
    found = next(walk_frames(lambda start, end: frame[start:end], len(frame)), None)
    if isinstance(found, BadFrame):
        raise ValueError(f"damaged, {found.what}")
    if found is None or found.data is None or found.size + FRAME_BYTES != picked.size:
        raise ValueError("damaged, its frame has another size")
    return found.data
