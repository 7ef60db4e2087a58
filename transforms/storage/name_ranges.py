"""List many names in parallel: by ranges, each a page at a time, halved where one lasts.

A store lists a range of names in order, so that one page after the other costs a round trip each.
Where names are known beforehand they are the bounds of ranges; where they are not, a range that
lasts longer than others is cut in the middle, as far as the names that came tell where that is.
Half of nothing costs one request, and the next cut is nearer.
"""

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from transforms.storage import Bounds, Entry

_PAGES_BEFORE_A_CUT = 8
_SPARE_REQUESTS = 32  # for halves of nothing
_SPARE_A_PAGE = 0.1  # and so many more for each page with names
_COMPARED_CHARS = 12  # behind what the ends of a range have in common


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


@dataclass(eq=False)
class _Range:
    """Names from `start` to before `asked_end`, of which those before `end` are wanted."""

    start: str
    end: str
    asked_end: str = field(init=False)
    token: str = ""
    pages: int = 0
    last: str = ""

    def __post_init__(self) -> None:
        self.asked_end = self.end

    def take(self, page: Page) -> tuple[Sequence[Entry], bool]:
        """Return a page's entries that are wanted, and whether there are more."""
        entries, more = page.entries, bool(page.token)
        if self.end != self.asked_end and entries and entries[-1].name >= self.end:
            entries = [entry for entry in entries if entry.name < self.end]
            more = False
        self.token = page.token
        self.pages += 1
        self.last = entries[-1].name if entries else self.last
        return entries, more

    def cut(self, alphabet: set[str]) -> "_Range | None":
        """Give the upper half of what is left away; None where it cannot be told."""
        middle = name_between(max(self.last, self.start), self.end, alphabet)
        if middle is None:
            return None
        upper = _Range(middle, self.end)
        self.end = middle
        return upper


def list_in_ranges(fetch: FetchPage, bounds: Bounds, threads: int) -> Iterator[Entry]:
    """Yield every name between the first and the last bound once, in any order.

    At most `threads` pages are asked for or held at once.
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
    base = len(digits)
    common = _common_length(low, high)
    low_number = _number(low[common:], digits)
    high_number = _number(high[common:], digits) if high else base**_COMPARED_CHARS
    number = (low_number + high_number) // 2
    tail = ""
    for _ in range(_COMPARED_CHARS):
        number, digit = divmod(number, base)
        tail = digits[digit] + tail
    middle = low[:common] + tail.rstrip(digits[0])
    return middle if low < middle and (not high or middle < high) else None


def number_of(names: Sequence[str], alphabet: set[str]) -> list[int]:
    """Return names as numbers whose digits are the alphabet's characters, for their distances.

    What all have in common is left out. The last one is larger than any where it is empty.

    >>> number_of(["img_00", "img_05", "img_10"], set("0123456789"))[1] // 10**10
    5
    """
    digits = sorted(alphabet)
    *names, end = names
    common = min((_common_length(name, end or names[-1]) for name in names), default=0)
    common = 0 if not end else common
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
