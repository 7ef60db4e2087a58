"""Listing by ranges of names: every name once, in few requests, many of them at a time."""

import bisect
import hashlib
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.gcs_stand_in import GcsStandIn, Kind
from transforms.sources.list_blobs import ListBlobs
from transforms.storage import Entry, open_storage
from transforms.storage.listing import Page, cut_listing, find_cuts, list_pages, name_between


class Listing:
    """A store's names, given out in pages, and what was asked of it.

    A page is late until as many are asked for at once as are awaited. So there is time to ask for
    them on a busy machine, too.
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

    def peek(self, start: str, end: str) -> list[str]:
        with self._lock:
            self.requests += 1
        first = bisect.bisect_left(self.names, start)
        stop = bisect.bisect_left(self.names, end) if end else len(self.names)
        return self.names[first : min(first + self._page_names, stop)]

    def fetch(self, start: str, end: str, token: str) -> Page:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            if self.most_at_once >= self._awaited:
                self._has_met.set()
        self._has_met.wait(0.02)
        names = self.peek(max(start, token), end)
        with self._lock:
            self._at_once -= 1
        entries = [Entry(name, 1, "") for name in names]
        following = bisect.bisect_right(self.names, names[-1]) if names else len(self.names)
        more = following < len(self.names) and (not end or self.names[following] < end)
        return Page(entries, self.names[following] if more else "")

    def listed(self, bounds: Sequence[str] = ("", "")) -> list[str]:
        return [entry.name for entry in list_pages(self.fetch, bounds)]

    def sizes(self, cuts: Sequence[str]) -> list[int]:
        places = [0, *(bisect.bisect_left(self.names, cut) for cut in cuts), len(self.names)]
        return [b - a for a, b in pairwise(places)]


NAMES = st.text(st.sampled_from("019abz/.\u00e9\U0001f600"), min_size=1, max_size=6)


@settings(deadline=None)  # threads may wait for a busy machine
@given(st.sets(NAMES, max_size=200), st.sets(NAMES, max_size=4))
@example({"a"}, set())
@example({f"{n}{m}" for n in range(10) for m in range(100)}, set())
@example({"z" * 12 + f"{number:04}" for number in range(100)}, set())  # at the alphabet's end
def test_every_name_comes_once(names: set[str], cuts: set[str]) -> None:
    listing = Listing(list(names), page_names=2)

    assert sorted(listing.listed(["", *sorted(cuts), ""])) == sorted(names)
    assert listing.most_at_once <= 8


@settings(deadline=None)
@given(st.sets(NAMES, max_size=100), NAMES, NAMES)
def test_bounds_are_half_open(names: set[str], low: str, high: str) -> None:
    listed = Listing(list(names), page_names=3).listed([low, high])

    assert sorted(listed) == sorted(name for name in names if low <= name < high)


NUMBERED = [f"train2017/{number:012}.jpg" for number in range(100_000)]
FLAT = {
    "numbered": NUMBERED,
    "hashed": [hashlib.md5(name.encode()).hexdigest() for name in NUMBERED],
    "nested": [f"n{int(n[-10:-4]) % 97:08}/n{n[-12:-4]}.JPEG" for n in NUMBERED],
}


@pytest.mark.parametrize("names", FLAT.values(), ids=FLAT)
def test_a_range_that_lasts_is_cut_and_listed_by_all_threads(names: list[str]) -> None:
    listing = Listing(names, page_names=100, awaited=8)

    assert sorted(listing.listed()) == listing.names

    assert listing.most_at_once == 8
    assert listing.requests <= 1.25 * 1000


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
def test_the_middle_follows_from_the_digits(low: str, high: str, middle: str | None) -> None:
    assert name_between(low, high, set("0123456789")) == middle


# --- cuts for many workers ---

PAGE = 10


def folders(count: int, files: Callable[[int], int]) -> list[str]:
    return [
        f"n{7919 * n % 9973:05}/{place:08}.jpg" for n in range(count) for place in range(files(n))
    ]


LISTINGS = {
    "flat": [f"{n:012}.jpg" for n in range(60_000)],
    "hashed": [f"{n * 2**32 // 60_000:08x}.jpg" for n in range(60_000)],
    "classes": folders(60, lambda n: 1000),
    "one large class": folders(20, lambda n: 58_100 if n == 7 else 100),
    "deep": [f"data/images/part-{n // 5000:05}/{n % 5000:06}.jpg" for n in range(60_000)],
}


@pytest.mark.parametrize("names", LISTINGS.values(), ids=LISTINGS)
def test_workers_get_parts_of_similar_size(names: list[str]) -> None:
    listing = Listing(names, PAGE)

    cuts = cut_listing(listing.peek, listing.peek("", ""), 64, 100)

    sizes = listing.sizes(cuts)
    assert 20 <= len(cuts) < 64
    assert min(sizes) > 0
    assert max(sizes) <= 0.14 * len(names)
    assert listing.requests <= 8 * 64 + 16


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> GcsStandIn:
    with GcsStandIn() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


def test_a_bucket_is_divided_with_two_requests_a_part(stand_in: GcsStandIn) -> None:
    names = [f"{n:07}.jpg" for n in range(300_000)]
    stand_in.put_virtual("b", [f"photos/{name}" for name in names], 1)

    cuts = find_cuts(open_storage("gs://b/photos"), parts=8)

    assert len(cuts) == 7
    assert max(Listing(names, 1).sizes(cuts)) <= 100_000
    assert stand_in.count(Kind.LIST) <= 2 * 8 * 2


@pytest.mark.parametrize(("runner", "parts"), [("FnApiRunner", 1), ("BundleBasedDirectRunner", 2)])
def test_on_a_cluster_a_large_root_is_divided_and_all_of_it_listed(
    runner: str, parts: int, stand_in: GcsStandIn
) -> None:
    names = [f"{n:06}.jpg" for n in range(5000)]
    stand_in.put_virtual("b", names, 1)

    with beam.Pipeline(runner=runner) as pipeline:
        found = pipeline | ListBlobs({"train": "gs://b"}) | beam.Map(lambda listed: listed[0][1])
        assert_that(found, equal_to(names))

    ends = {request.query.get("endOffset", "") for request in stand_in.requests}
    assert (len(ends) > 1) == (parts > 1)
