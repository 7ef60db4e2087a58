"""List many names in parallel, by ranges of names.

A store lists a range in order, one round trip a page. So a long listing is divided, and its parts
are listed at the same time: by the threads of `list_pages`, or by the workers of a cluster. A page
from somewhere in a range shows how dense names are there. `cut_listing` halves the range that seems
to hold most, again and again.
"""

import functools
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from transforms.storage import Bounds, Entry, Storage

PARTS = 2048
"""Largest number of parts into which a listing is divided for a cluster."""

_FEW_NAMES = 50_000  # one worker lists them within a second or so
_THREADS = 8
_PARTS_OF_ONE_PROCESS = 3 * _THREADS
_FEW_PAGES = 8  # listed one after the other
_PAGE_NAMES = 1000
_COMPARED_CHARS = 12  # after what the ends of a range have in common
_MOST_MISSES = 60  # some five a character
_MOST_ASKED = 8  # requests a part
_AFTER_SLASH = chr(ord("/") + 1)


class Page(NamedTuple):
    """A part of a listing.

    Attributes:
        entries: names in their order.
        token: key of the next page; empty for the last one.
    """

    entries: Sequence[Entry]
    token: str


FetchPage = Callable[[str, str, str], Page]
"""(start, end, token) -> the next names from `start` on, before `end`; an empty one is no bound."""

Peek = Callable[[str, str], Sequence[str]]
"""(start, end) -> the first names of a range, at most a page of them."""


def list_pages(fetch: FetchPage, bounds: Bounds, *, divide: bool = True) -> Iterator[Entry]:
    """Yield every name between the first and the last bound once, in any order.

    A long listing without known names in it is divided after its first pages. At most 8 pages are
    requested or held at once.

    Args:
        fetch: request for a page.
        bounds: names in order at which the listing is divided.
        divide: whether a listing without such names may be divided, too.
    """
    seen = ""
    if len(bounds) == 2:
        (start, end), token, pages = bounds, "", 0
        while pages < _FEW_PAGES or not divide:
            page = fetch(start, end, token)
            yield from page.entries
            seen = page.entries[-1].name if page.entries else seen
            token, pages = page.token, pages + 1
            if not token:
                return
        bounds = [seen, *_cuts_of_one_process(fetch, page, end), end]
    waiting = deque((low, high, "") for low, high in pairwise(bounds))
    running: dict[Future[Page], tuple[str, str]] = {}
    with ThreadPoolExecutor(_THREADS, "list-names") as pool:
        while waiting or running:
            while waiting and len(running) < _THREADS:
                asked = waiting.popleft()
                running[pool.submit(fetch, *asked)] = asked[:2]
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            low, high = running.pop(future)
            page = future.result()
            if page.token:
                waiting.appendleft((low, high, page.token))
            yield from (entry for entry in page.entries if entry.name != seen)


def _cuts_of_one_process(fetch: FetchPage, page: Page, end: str) -> list[str]:
    def peek(start: str, end: str) -> list[str]:
        return [entry.name for entry in fetch(start, end, "").entries]

    names = [entry.name for entry in page.entries]
    return cut_listing(peek, names, _PARTS_OF_ONE_PROCESS, _FEW_PAGES * len(names), end)


@dataclass(order=True, frozen=True)
class _Stretch:
    """Names from `start` to before `end`, more than a page; sorts by which to halve first.

    Attributes:
        rank: minus the estimated number of names, halved for every miss.
        start: first bound.
        misses: halvings in a row that left less than a page on one side.
        last: last known name.
        end: last bound; empty for none.
    """

    rank: float
    start: str
    misses: int = field(compare=False)
    last: str = field(compare=False)
    end: str = field(compare=False)


def find_cuts(storage: Storage, parts: int = PARTS) -> list[str]:
    """Return names, sorted, that divide a root's listing into at most so many parts.

    Each costs two requests, and some more where names lie in folders. A root of less than a
    thousand names costs one request and is not divided.
    """
    peek = functools.partial(_first_names, storage)
    first = peek("", "")
    return cut_listing(peek, first, parts, _FEW_NAMES) if len(first) == _PAGE_NAMES else []


def cut_listing(
    peek: Peek, first: Sequence[str], parts: int, few_names: int, end: str = ""
) -> list[str]:
    """Return names, sorted, that divide a listing.

    Args:
        peek: function that returns the first names of a range.
        first: first page of the listing; other pages are as long.
        parts: largest number of parts.
        few_names: size of a range that is not divided.
        end: last bound of the listing; empty for none.
    """
    found = _Cutting(peek, len(first), few_names)
    found.look("", first, end)
    with ThreadPoolExecutor(_THREADS, "cut-listing") as pool:
        while found.heap and len(found.cuts) + 1 < parts and found.requests < _MOST_ASKED * parts:
            count = min(len(found.heap), _THREADS, parts - 1 - len(found.cuts))
            found.halve([heapq.heappop(found.heap) for _ in range(count)], pool)
    return sorted(found.cuts)


class _Cutting:
    """Cuts while they are found.

    Attributes:
        cuts: names found, in any order.
        heap: stretches that may be halved.
        requests: number of requests so far.
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
        """Queue a stretch for halving, unless its first page shows that it holds few names."""
        self._alphabet.update(itertools.chain.from_iterable(names[:: max(len(names) // 3, 1)]))
        if not names or len(names) < self._page_names or misses >= _MOST_MISSES:
            return
        weight = _guess(names, end, self._alphabet)
        if weight >= self._few_names:
            stretch = _Stretch(-weight / 2**misses, start, misses, names[-1], end)
            heapq.heappush(self.heap, stretch)

    def halve(self, stretches: Sequence[_Stretch], pool: ThreadPoolExecutor) -> None:
        """Cut stretches in the middle, where there is a page of names on both sides."""
        middles = [self._middle(stretch) for stretch in stretches]
        known = [(s, middle) for s, middle in zip(stretches, middles, strict=True) if middle]
        lower = pool.map(lambda found: self._peek(found[0].last, found[1]), known)
        upper = pool.map(lambda found: self._peek(found[1], found[0].end), known)
        self.requests += 2 * len(known)
        for (stretch, middle), below, above in zip(known, lower, upper, strict=True):
            if len(below) < self._page_names:  # too few for a part of their own
                self.look(stretch.start, above, stretch.end, stretch.misses + 1)
            elif len(above) < self._page_names:
                self.look(stretch.start, below, middle, stretch.misses + 1)
            else:
                self.cuts.append(middle)
                self.look(stretch.start, below, middle)
                self.look(middle, above, stretch.end)

    def _middle(self, stretch: _Stretch) -> str | None:
        # Where halves are empty, the names may end with a folder.
        folder = _after_folder(stretch.last, stretch.end) if stretch.misses % 2 else None
        return folder or name_between(stretch.last, stretch.end, self._alphabet)


def _after_folder(name: str, end: str) -> str | None:
    """Return the first string after all names of a folder that holds `name`, and not `end`.

    >>> _after_folder("a/b/1.jpg", "a/c/1.jpg"), _after_folder("1.jpg", "")
    ('a/b0', None)
    """
    folders = name.split("/")[:-1]
    for depth in range(1, len(folders) + 1):
        after = "/".join(folders[:depth]) + _AFTER_SLASH
        if not end or after < end:
            return after
    return None


def _guess(names: Sequence[str], end: str, alphabet: set[str]) -> float:
    """Return how many names a stretch would hold, were all of it as dense as its first page."""
    first, last, after = _numbers([names[0], names[-1]], end, alphabet)
    return len(names) * (after - first) / max(last - first, 1)


def _first_names(storage: Storage, start: str, end: str) -> list[str]:
    page = itertools.islice(storage.list(bounds=(start, end)), _PAGE_NAMES)
    return [entry.name for entry in page]


def name_between(low: str, high: str, alphabet: set[str]) -> str | None:
    """Return a string about halfway between two; None where they are too near to each other.

    They are taken for numbers whose digits are the alphabet's characters.

    Args:
        low: the smaller one.
        high: the larger one; empty for larger than any.
        alphabet: characters that strings consist of.

    >>> name_between("img_0100", "img_0900", set("0123456789"))
    'img_05'
    """
    if not alphabet:
        return None
    digits = sorted(alphabet)
    common = _common_length(low, high) if high else 0
    number = sum(_numbers([low], high, alphabet)) // 2
    tail = ""
    for _ in range(_COMPARED_CHARS):
        number, digit = divmod(number, len(digits))
        tail = digits[digit] + tail
    middle = low[:common] + tail.rstrip(digits[0])
    return middle if low < middle and (not high or middle < high) else None


def _numbers(names: Sequence[str], end: str, alphabet: set[str]) -> list[int]:
    """Return names and `end` as numbers whose digits are the alphabet's characters.

    What all have in common is left out. An empty `end` is larger than any name.
    """
    digits = sorted(alphabet)
    common = min(_common_length(name, end) for name in names)
    numbers = [_number(name[common:], digits) for name in names]
    return [*numbers, _number(end[common:], digits) if end else len(digits) ** _COMPARED_CHARS]


def _common_length(low: str, high: str) -> int:
    differing = (place for place, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    return next(differing, min(len(low), len(high)))


def _number(tail: str, digits: Sequence[str]) -> int:
    number = 0
    for char in tail[:_COMPARED_CHARS].ljust(_COMPARED_CHARS, digits[0]):
        number = number * len(digits) + sum(digit < char for digit in digits)
    return number
