"""Listing by ranges of names: every name once, in few requests, many of them at a time."""

import bisect
import hashlib
import itertools
import string
import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transforms.storage import Entry
from transforms.storage.name_ranges import Page, _cut, _Range, list_in_ranges, name_between


class Listing:
    """A store's names, given out in pages, and what was asked of it.

    A page is late until as many are asked for at once as are awaited: on a busy machine, too, there
    is time to ask for them.
    """

    def __init__(self, names: Sequence[str], page_names: int, awaited: int = 0) -> None:
        self.names = sorted(names)
        self.requests = 0
        self.most_at_once = 0
        self._page_names = page_names
        self._awaited = awaited
        self._has_met = threading.Event()
        self._at_once = 0
        self._lock = threading.Lock()

    def fetch(self, start: str, end: str, token: str) -> Page:
        with self._lock:
            self.requests += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            if self.most_at_once >= self._awaited:
                self._has_met.set()
        self._has_met.wait(0.02)
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
    listing = Listing(names, page_names=100, awaited=8)

    assert sorted(listing.listed()) == listing.names

    assert listing.most_at_once == 8
    assert listing.requests <= 1.2 * 1000


def test_known_names_divide_it_from_the_first_request_on() -> None:
    listing = Listing(NUMBERED, page_names=1000, awaited=5)

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
    assert not list_threads()


def list_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("list-names")]


def test_a_slow_consumer_has_as_many_pages_waiting_as_there_are_threads() -> None:
    listing = Listing(NUMBERED, page_names=1000)
    entries = list_in_ranges(listing.fetch, ["", *NUMBERED[5_000::5_000], ""], 4)

    next(entries)
    assert 1 <= len(list_threads()) <= 4
    time.sleep(0.05)  # for what else might be asked

    assert listing.requests == 4
    entries.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("page_names", [1, 2, 3])
def test_a_range_that_is_cut_at_a_name_gives_that_name_away(page_names: int) -> None:
    names = [
        "".join(digits) for n in (1, 2, 3) for digits in itertools.product("0123456789", repeat=n)
    ]

    assert sorted(Listing(names, page_names).listed()) == sorted(names)


def test_names_at_the_alphabet_s_end_are_listed_without_cuts() -> None:
    """Between "zzzzzzzzzzzz1" and the end of all names nothing is told by twelve characters."""
    listing = Listing(["z" * 12 + f"{number:04}" for number in range(100)], page_names=1)

    assert listing.listed() == listing.names
    assert listing.requests == 100


class Endless:
    """Names that come a page each, all below those that cuts ask for, so that halves are empty."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.halves = 0

    def fetch(self, start: str, end: str, token: str) -> Page:
        if start:
            self.halves += 1
            return Page([], "")
        time.sleep(0.001)  # longer than a half takes
        number = int(token or 0) + 1
        name = "0" * 12 + f"{number:04}{string.ascii_letters}"
        return Page([Entry(name, 1, "")], str(number) if number < self.pages else "")


def test_halves_of_nothing_are_few() -> None:
    """So many that a skewed listing is divided all the same: 32, and one more each ten pages."""
    endless = Endless(95)

    assert len(list(list_in_ranges(endless.fetch, ("", ""), 2))) == 95
    assert endless.halves == 32 + 9


def test_a_range_is_cut_while_its_page_is_on_the_way() -> None:
    endless, asked = Endless(12), threading.Event()

    def fetch(start: str, end: str, token: str) -> Page:
        if token == "10":
            assert asked.wait(10)
        if endless.halves > 8:
            asked.set()
        return endless.fetch(start, end, token)

    assert len(list(list_in_ranges(fetch, ("", ""), 2))) == 12


def test_the_range_that_has_lasted_longest_is_cut_and_none_that_has_not_lasted() -> None:
    old, older, new = (_Range("1", "5", pages=pages) for pages in (8, 9, 7))

    upper = _cut([old, older, new], set("12345"))

    assert (old.end, older.end, new.end) == ("5", "3", "5")
    assert upper is not None
    assert (upper.start, upper.end) == ("3", "5")
    assert _cut([old], set("12345")) is not None
    assert _cut([new], set("12345")) is None


@given(NAMES | st.just(""), NAMES | st.just(""), st.sets(st.sampled_from("019abz/.\u00e9")))
@example("9", "\u00e9", {"/", "\u00e9", "\U0001f600"})  # the middle would be the upper one
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
        ("099999999999", "100000000002", "1"),  # twelve characters are compared
    ],
)
def test_the_middle_is_told_by_the_digits(low: str, high: str, middle: str | None) -> None:
    assert name_between(low, high, set("0123456789")) == middle
