"""Listing by ranges of names: every name once, in few requests, many of them at a time."""

import bisect
import hashlib
import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transforms.storage import Entry
from transforms.storage.name_ranges import Page, list_in_ranges, name_between


class Listing:
    """A store's names, given out in pages, and what was asked of it."""

    def __init__(self, names: Sequence[str], page_names: int, latency_s: float = 0.0) -> None:
        self.names = sorted(names)
        self.requests = 0
        self.most_at_once = 0
        self._page_names = page_names
        self._latency_s = latency_s
        self._at_once = 0
        self._lock = threading.Lock()

    def fetch(self, start: str, end: str, token: str) -> Page:
        with self._lock:
            self.requests += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self._latency_s)
        first = bisect.bisect_left(self.names, max(start, token))
        behind = bisect.bisect_left(self.names, end) if end else len(self.names)
        last = min(first + self._page_names, behind)
        entries = [Entry(name, 1, "") for name in self.names[first:last]]
        with self._lock:
            self._at_once -= 1
        return Page(entries, self.names[last] if last < behind else "")

    def listed(self, bounds: Sequence[str] = ("", ""), threads: int = 8) -> list[str]:
        return [entry.name for entry in list_in_ranges(self.fetch, bounds, threads)]


NAMES = st.text(st.sampled_from("019abz/.\u00e9\U0001f600"), min_size=1, max_size=6)


@settings(deadline=None)  # threads may wait for a busy machine
@given(st.sets(NAMES, max_size=200), st.sets(NAMES, max_size=4), st.integers(1, 4))
@example({"a"}, set(), 1)
def test_every_name_comes_once(names: set[str], cuts: set[str], threads: int) -> None:
    listing = Listing(list(names), page_names=2)

    assert sorted(listing.listed(["", *sorted(cuts), ""], threads)) == sorted(names)
    assert listing.most_at_once <= threads


@settings(deadline=None)
@given(st.sets(NAMES, max_size=100), NAMES, NAMES)
def test_bounds_are_half_open(names: set[str], low: str, high: str) -> None:
    listed = Listing(list(names), page_names=3).listed([low, high])

    assert sorted(listed) == sorted(name for name in names if low <= name < high)


def test_an_error_ends_the_listing() -> None:
    def fetch(start: str, end: str, token: str) -> Page:
        raise RuntimeError("E-IO-AUTH")

    with pytest.raises(RuntimeError, match="E-IO-AUTH"):
        list(list_in_ranges(fetch, ("", "m", ""), 4))


def test_pages_without_names_are_passed_over() -> None:
    """A store may give one with a token, for instance after many deletions."""
    pages = {"": Page([], "1"), "1": Page([Entry("a", 1, "")], "2"), "2": Page([], "")}

    listed = list_in_ranges(lambda start, end, token: pages[token], ("", ""), 4)

    assert [entry.name for entry in listed] == ["a"]


NUMBERED = [f"train2017/{number:012}.jpg" for number in range(100_000)]
HASHED = [hashlib.md5(name.encode()).hexdigest() for name in NUMBERED]
NESTED = [f"n{int(n[-10:-4]) % 97:08}/n{n[-12:-4]}.JPEG" for n in NUMBERED]


@pytest.mark.parametrize("names", [NUMBERED, HASHED, NESTED], ids=["numbered", "hashed", "nested"])
def test_a_flat_folder_is_cut_while_it_is_listed(names: list[str]) -> None:
    listing = Listing(names, page_names=100, latency_s=0.001)

    assert sorted(listing.listed()) == listing.names

    assert listing.most_at_once == 8
    assert listing.requests <= 1.1 * 1000 + 60


def test_known_names_divide_it_from_the_first_request_on() -> None:
    listing = Listing(NUMBERED, page_names=1000, latency_s=0.001)

    listing.listed(["", *NUMBERED[20_000::20_000], ""])

    assert listing.most_at_once >= 5
    assert listing.requests <= 160


def test_a_short_listing_costs_a_request_a_page() -> None:
    listing = Listing(NUMBERED[:7_500], page_names=1000)

    assert len(listing.listed()) == 7_500
    assert listing.requests == 8


def test_a_consumer_that_leaves_ends_the_listing() -> None:
    listing = Listing(NUMBERED, page_names=1000)
    entries = list_in_ranges(listing.fetch, ("", ""), 4)

    next(entries)
    entries.close()  # type: ignore[attr-defined]

    assert listing.requests <= 4
    assert not [t for t in threading.enumerate() if t.name.startswith("list-names")]


@given(NAMES | st.just(""), NAMES | st.just(""), st.sets(st.sampled_from("019abz/.\u00e9")))
def test_what_is_between_two_names_is_between_them(low: str, high: str, alphabet: set[str]) -> None:
    middle = name_between(low, high, alphabet)

    assert middle is None or (low < middle and (not high or middle < high))


@pytest.mark.parametrize(
    ("low", "high", "middle"),
    [
        ("0100", "0900", "05"),
        ("", "", "5"),
        ("8", "", "9"),
        ("img_100", "img_300", "img_2"),
        ("5", "5\0", None),  # nothing is between them
    ],
)
def test_the_middle_is_told_by_the_digits(low: str, high: str, middle: str | None) -> None:
    assert name_between(low, high, set("0123456789")) == middle
