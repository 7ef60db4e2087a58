"""Choose some of many by a digest of their names: the same ones each time, wherever they stand."""

import hashlib
import heapq
import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from transforms.storage import Entry

SAMPLES = 100
MAX_LISTED = 100_000
LISTING_S = 20.0
_PERSON = b"tfrec-doctor"

T = TypeVar("T")


class Chosen(Generic[T]):
    """The items whose names have the smallest digests, of all that came by; O(1) memory."""

    def __init__(self, count: int = SAMPLES) -> None:
        """Take how many are kept."""
        self._count = count
        self._kept: list[tuple[int, int, T]] = []  # a heap of the smallest, the largest first
        self.seen = 0

    def add(self, name: str, item: T) -> None:
        """Let one come by."""
        self.seen += 1
        digest = hashlib.blake2b(name.encode(), digest_size=8, person=_PERSON).digest()
        ranked = -int.from_bytes(digest, "big"), self.seen, item
        if len(self._kept) < self._count:
            heapq.heappush(self._kept, ranked)
        else:
            heapq.heappushpop(self._kept, ranked)

    @property
    def items(self) -> list[T]:
        """Those that are kept, in the order of their digests."""
        return [item for _, _, item in sorted(self._kept, key=lambda kept: -kept[0])]


class Listed:
    """Files of a root as they come by, until they are too many or take too long.

    Attributes:
        count: how many came.
        bytes: their sizes together.
        is_all: whether there were no more.
    """

    def __init__(self) -> None:
        """Start at none."""
        self.count = self.bytes = 0
        self.is_all = False

    def files(
        self,
        entries: Iterable[Entry],
        most: int = MAX_LISTED,
        longest_s: float = LISTING_S,
    ) -> Iterator[Entry]:
        """Yield the files among the entries of a listing."""
        started_s = time.monotonic()
        for entry in entries:
            if self.count >= most or time.monotonic() - started_s > longest_s:
                return
            if entry.kind == "file":
                self.count += 1
                self.bytes += entry.size_bytes
                yield entry
        self.is_all = True
