"""Find names that divide a listing of which nothing is known, for many workers to share it.

A page from somewhere in the listing tells how dense names are there, and whether there are more.
Stretches that hold most by that are halved, as often as workers need parts. It takes some requests
a part, and no more than the parts' own listing where these are small.
"""

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from transforms.storage import Entry, Storage
from transforms.storage.name_ranges import name_between, number_of

PARTS = 2048
"""Into which a listing is divided at most."""

_PAGE_NAMES = 1000
_FEW_NAMES = 50_000  # of a stretch that one worker lists within a second or so
_MOST_MISSES = 60  # some five a character
_THREADS = 8
_BEHIND_SLASH = chr(ord("/") + 1)
_MOST_ASKED = 8  # requests a part

Peek = Callable[[str, str], Sequence[str]]
"""(start, end) -> the first names of a stretch, at most a page of them."""


@dataclass(order=True, frozen=True)
class _Stretch:
    """Names from `start` to before `end`, more than a page, in the order in which to halve them.

    Attributes:
        rank: less than zero: the guessed number of names, less for every miss, negative.
        start: the first bound.
        misses: how often in a row halving found no page of names on one side.
        last: the last name that is known.
        end: the last bound; empty for none.
    """

    rank: float
    start: str
    misses: int = field(compare=False)
    last: str = field(compare=False)
    end: str = field(compare=False)


def find_cuts(storage: Storage, parts: int = PARTS) -> list[str]:
    """Return names, sorted, that divide a root's listing into at most so many parts.

    Each costs two requests, and some more where names lie in folders; a root of less than a
    thousand names costs one, and is not divided.
    """
    return cut_listing(functools.partial(_first_names, storage), parts, _PAGE_NAMES, _FEW_NAMES)


def cut_listing(peek: Peek, parts: int, page_names: int, few_names: int) -> list[str]:
    """Return names that divide a listing.

    Args:
        peek: gives the first names of a stretch.
        parts: how many stretches there may be.
        page_names: how many names it gives where there are more.
        few_names: a stretch of fewer is not divided, as far as can be guessed.
    """
    found = _Cutting(peek, page_names, few_names)
    found.look("", peek("", ""), "")
    with ThreadPoolExecutor(_THREADS, "cut-listing") as pool:
        while found.heap and len(found.cuts) + 1 < parts and found.requests < _MOST_ASKED * parts:
            count = min(len(found.heap), _THREADS, parts - 1 - len(found.cuts))
            found.halve([heapq.heappop(found.heap) for _ in range(count)], pool)
    return sorted(found.cuts)


class _Cutting:
    """Cuts while they are found.

    Attributes:
        cuts: in any order.
        heap: stretches that may be halved.
        requests: that were made.
    """

    def __init__(self, peek: Peek, page_names: int, few_names: int) -> None:
        self.cuts: list[str] = []
        self.heap: list[_Stretch] = []
        self.requests = 1
        self._alphabet: set[str] = set()
        self._peek = peek
        self._page_names = page_names
        self._few_names = few_names

    def look(self, start: str, names: Sequence[str], end: str, misses: int = 0) -> None:
        """Keep a stretch, of which a page is known, if it is to be halved."""
        self._alphabet.update(itertools.chain.from_iterable(names[:: max(len(names) // 3, 1)]))
        if len(names) >= self._page_names and misses < _MOST_MISSES:
            weight = _guess(names, end, self._alphabet)
            if weight >= self._few_names:
                heapq.heappush(
                    self.heap, _Stretch(-weight / 2**misses, start, misses, names[-1], end)
                )

    def halve(self, stretches: Sequence[_Stretch], pool: ThreadPoolExecutor) -> None:
        """Halve stretches, where there are names on both sides."""
        middles = [self._middle(stretch) for stretch in stretches]
        known = [(s, middle) for s, middle in zip(stretches, middles, strict=True) if middle]
        lower = pool.map(lambda found: self._peek(found[0].last, found[1]), known)
        upper = pool.map(lambda found: self._peek(found[1], found[0].end), known)
        self.requests += 2 * len(known)
        for (stretch, middle), below, above in zip(known, lower, upper, strict=True):
            if len(below) < self._page_names:  # what is there is no part of its own
                self.look(stretch.start, above, stretch.end, stretch.misses + 1)
            elif len(above) < self._page_names:
                self.look(stretch.start, below, middle, stretch.misses + 1)
            else:
                self.cuts.append(middle)
                self.look(stretch.start, below, middle)
                self.look(middle, above, stretch.end)

    def _middle(self, stretch: _Stretch) -> str | None:
        # Where halves are empty, the names may end with a folder.
        folder = _behind_folder(stretch.last, stretch.end) if stretch.misses % 2 else None
        return folder or name_between(stretch.last, stretch.end, self._alphabet)


def _behind_folder(name: str, end: str) -> str | None:
    """Return the first string behind a folder that a name is in, and `end` is not.

    >>> _behind_folder("a/b/1.jpg", "a/c/1.jpg"), _behind_folder("1.jpg", "")
    ('a/b0', None)
    """
    folders = name.split("/")[:-1]
    for depth in range(1, len(folders) + 1):
        behind = "/".join(folders[:depth]) + _BEHIND_SLASH
        if not end or behind < end:
            return behind
    return None


def _guess(names: Sequence[str], end: str, alphabet: set[str]) -> float:
    """Return how many names a stretch may hold, were all of it as dense as its first page."""
    first, last, behind = number_of([names[0], names[-1], end], alphabet)
    return len(names) * (behind - first) / max(last - first, 1)


def _first_names(storage: Storage, start: str, end: str) -> list[str]:
    page: Sequence[Entry] = list(itertools.islice(storage.list(bounds=(start, end)), _PAGE_NAMES))
    return [entry.name for entry in page]
