"""What is read of sources, by the storage class that a store bills it as."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from schemas.workload import Reads
from transforms.storage import Entry

K = TypeVar("K", str, tuple[str, str])


class ReadCounts:
    """Files that are read, while they are counted."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: dict[str, list[int]] = {}

    def add(self, entry: Entry) -> None:
        """Count one reading of a listed file."""
        counts = self._counts.get(entry.storage_class)
        if counts is None:
            counts = self._counts[entry.storage_class] = [0, 0]
        counts[0] += 1
        counts[1] += entry.size_bytes

    def reads(self) -> dict[str, Reads]:
        """Return the counts by storage class, in the classes' order.

        >>> counts = ReadCounts()
        >>> counts.add(Entry("a", 3, "", storage_class="NEARLINE"))
        >>> counts.reads()
        {'NEARLINE': Reads(files=1, bytes=3)}
        """
        return {name: Reads(*counts) for name, counts in sorted(self._counts.items())}


def add_reads(parts: Iterable[Mapping[K, Reads]]) -> dict[K, Reads]:
    """Return the sum of what parts read, under each of their keys, in the keys' order."""
    total: dict[K, Reads] = {}
    for part in parts:
        for key, reads in part.items():
            there = total.get(key, Reads())
            total[key] = Reads(there.files + reads.files, there.bytes + reads.bytes)
    return dict(sorted(total.items()))
