"""Make the pictures of a report: records are read and drawn side by side, few of them at a time."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple, TypeVar

from schemas.faults import find_fault
from transforms.gate import usable_cores
from transforms.report.contents import ShownPicture
from transforms.report.draw_pictures import MAX_PICTURES_OF_A_RECORD, Drawn

REMOTE_READERS = 16
"""Requests at a time to a store that is not local, whose replies take long."""

MAX_JPEG_BYTES = 3_000_000
"""Of all pictures: as text in a page that is a third more, which leaves 1 MB of 5 for the rest."""

MAX_NOTES = 10
"""Of what could not be shown; more are counted."""

_AHEAD = 2  # tasks that wait or are done, a thread: what is done is small

T = TypeVar("T")
V = TypeVar("V")


class Pictures(NamedTuple):
    """The pictures of a report.

    Attributes:
        pictures: in the order of the records that were picked.
        notes: what could not be shown, a line each.
        named: what records call their classes, by label id.
    """

    pictures: list[ShownPicture]
    notes: list[str]
    named: dict[int, str]


def num_threads(*, local: bool) -> int:
    """Return how many records are worked on at once: decoding takes a core, waiting takes none."""
    return max(usable_cores(), 1 if local else REMOTE_READERS)


def most_bytes_each(records: int, pictures_each: int) -> int:
    """Return how large each JPEG may be."""
    return MAX_JPEG_BYTES // max(1, records * min(pictures_each, MAX_PICTURES_OF_A_RECORD))


def make_pictures(items: Iterable[T], draw: Callable[[T], Drawn], threads: int) -> Pictures:
    """Return what `draw` makes of records; a store that fails ends it with a note.

    Args:
        items: records, or where they are.
        draw: makes pictures of one, in a thread.
        threads: how many.

    Raises:
        MemoryError: and whatever else says nothing of a record.
    """
    made = Pictures([], [], {})
    unsaid = 0
    try:
        for drawn in in_order(draw, items, threads):
            made.pictures.extend(drawn.pictures)
            room = MAX_NOTES - len(made.notes)
            made.notes.extend(drawn.notes[:room])
            unsaid += len(drawn.notes[room:])
            for label, text in drawn.named.items():
                made.named.setdefault(label, text)
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None:
            raise
        made.notes.append(f"pictures are missing: {fault[1]}")
    if unsaid:
        made.notes.append(f"{unsaid} more like these are not told")
    return made


def in_order(work: Callable[[T], V], items: Iterable[T], threads: int) -> Iterator[V]:
    """Yield what threads make of items, in their order, few of them ahead."""
    with ThreadPoolExecutor(threads, "report") as pool:
        waiting = iter(items)
        running = [pool.submit(work, item) for item in islice(waiting, _AHEAD * threads)]
        try:
            while running:
                made = running.pop(0).result()
                running += [pool.submit(work, item) for item in islice(waiting, 1)]
                yield made
        finally:
            for future in running:
                future.cancel()
