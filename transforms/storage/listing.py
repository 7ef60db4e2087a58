"""List many names in parallel, by ranges of names.

A store lists a range in order, one round trip a page. Three things make it faster:

- Names that are known before, from annotations, are bounds of ranges.
- `list_in_ranges` lists ranges with some threads. It cuts a range that lasts in the middle, as far
  as the names seen so far tell where that is. An empty half costs one request.
- `find_cuts` divides a listing of unknown names for many workers. A page from somewhere in it tells
  how dense names are there. It halves the range that seems to hold most, again and again.
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
"""Parts into which a listing is divided, at most."""

_PAGES_BEFORE_A_CUT = 8
_SPARE_REQUESTS = 32  # for empty halves
_SPARE_A_PAGE = 0.1  # and this many more for each page with names
_COMPARED_CHARS = 12  # after what the ends of a range have in common

_PAGE_NAMES = 1000
_FEW_NAMES = 50_000  # one worker lists them within a second or so
_MOST_MISSES = 60  # some five a character
_THREADS = 8
_AFTER_SLASH = chr(ord("/") + 1)
_MOST_ASKED = 8  # requests a part


class Page(NamedTuple):
    """A part of a listing.

    Attributes:
        entries: in the order of their names.
        token: asks for the next page; empty for the last one.
    """

    entries: Sequence[Entry]
    token: str


FetchPage = Callable[[str, str, str], Page]
"""(start, end, token) -> the next names from `start` on, before `end`; an empty one is no bound."""

Peek = Callable[[str, str], Sequence[str]]
"""(start, end) -> the first names of a range, at most a page of them."""


@dataclass(eq=False)
class _Range:
    """Names from `start` to before `asked_end`; those before `end` are wanted."""

    start: str
    end: str
    asked_end: str = field(init=False)
    token: str = ""
    pages: int = 0
    last: str = ""

    def __post_init__(self) -> None:
        self.asked_end = self.end

    def take(self, page: Page) -> tuple[Sequence[Entry], bool]:
        """Return the wanted entries of a page, and whether there are more."""
        entries, more = page.entries, bool(page.token)
        if self.end != self.asked_end and entries and entries[-1].name >= self.end:
            entries = [entry for entry in entries if entry.name < self.end]
            more = False
        self.token = page.token
        self.pages += 1
        self.last = entries[-1].name if entries else self.last
        return entries, more

    def cut(self, alphabet: set[str]) -> "_Range | None":
        """Give away the upper half of what is left; None where its start is unknown."""
        middle = name_between(max(self.last, self.start), self.end, alphabet)
        if middle is None:
            return None
        upper = _Range(middle, self.end)
        self.end = middle
        return upper


def list_in_ranges(fetch: FetchPage, bounds: Bounds, threads: int) -> Iterator[Entry]:
    """Yield every name between the first and the last bound once, in any order.

    At most `threads` pages are requested or held at once.
    """
    waiting = deque(_Range(start, end) for start, end in pairwise(bounds))
    running: dict[Future[Page], _Range] = {}
    alphabet: set[str] = set()
    spare: float = _SPARE_REQUESTS
    with ThreadPoolExecutor(threads, "list-names") as pool:
        while waiting or running:
            while (
                spare >= 1
                and len(running) + len(waiting) < threads
                and (upper := _cut([*waiting, *running.values()], alphabet))
            ):
                waiting.append(upper)
            while waiting and len(running) < threads:
                part = waiting.popleft()
                ask = functools.partial(fetch, part.start, part.asked_end, part.token)
                running[pool.submit(ask)] = part
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            part = running.pop(future)
            entries, more = part.take(future.result())
            spare += _SPARE_A_PAGE if entries else -1
            if more:
                waiting.appendleft(part)
            for entry in entries[::499]:
                alphabet.update(entry.name)
            yield from entries


def _cut(parts: Sequence[_Range], alphabet: set[str]) -> _Range | None:
    """Return the upper half of the range that has lasted longest."""
    lasting = [part for part in parts if part.pages >= _PAGES_BEFORE_A_CUT]
    for part in sorted(lasting, key=lambda part: part.pages, reverse=True):
        if upper := part.cut(alphabet):
            return upper
    return None


@dataclass(order=True, frozen=True)
class _Stretch:
    """Names from `start` to before `end`, more than a page; sorts by which to halve first.

    Attributes:
        rank: minus the estimated number of names, halved for every miss.
        start: the first bound.
        misses: how often in a row halving left less than a page on one side.
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

    Each costs two requests, and some more where names lie in folders. A root of less than a
    thousand names costs one request and is not divided.
    """
    return cut_listing(functools.partial(_first_names, storage), parts, _PAGE_NAMES, _FEW_NAMES)


def cut_listing(peek: Peek, parts: int, page_names: int, few_names: int) -> list[str]:
    """Return names, sorted, that divide a listing.

    Args:
        peek: gives the first names of a range.
        parts: how many parts there may be.
        page_names: how many names `peek` gives where there are more.
        few_names: a range that seems to hold fewer is not divided.
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
        requests: made so far.
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
        if len(names) < self._page_names or misses >= _MOST_MISSES:
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
