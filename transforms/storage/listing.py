"""List ranges of names at the same time, a page a request."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

from transforms.storage import Entry

_THREADS = 16

Bounds = tuple[str, str]
"""The first name of a range, and the first one after it; an empty one is no bound."""


class Page(NamedTuple):
    """A part of a listing.

    Attributes:
        entries: names in their order.
        token: key of the next page; empty for the last one.
    """

    entries: Sequence[Entry]
    token: str


FetchPage = Callable[[Bounds, str], Page]
"""(bounds, token) -> the next names within the bounds."""


def list_pages(fetch: FetchPage, ranges: Sequence[Bounds]) -> Iterator[Entry]:
    """Yield every name of the ranges once, in any order.

    At most 16 pages are requested or held at once.

    Args:
        fetch: request for a page.
        ranges: bounds of names; they must not overlap.
    """
    waiting = deque((bounds, "") for bounds in ranges)
    running: dict[Future[Page], Bounds] = {}
    with ThreadPoolExecutor(min(_THREADS, len(ranges)), "list-names") as pool:
        while waiting or running:
            while waiting and len(running) < _THREADS:
                bounds, token = waiting.popleft()
                running[pool.submit(fetch, bounds, token)] = bounds
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            bounds, page = running.pop(future), future.result()
            if page.token:
                waiting.appendleft((bounds, page.token))
            yield from page.entries
