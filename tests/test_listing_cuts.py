"""Listings are divided where nothing is known of their names."""

import bisect
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gcs_stand_in import GcsStandIn, Kind
from transforms.list_blobs import ListBlobs, list_ranges
from transforms.storage import DEFAULT_ACCESS, open_storage
from transforms.storage.listing_cuts import _behind_folder, cut_listing, find_cuts

PAGE = 10


class Names:
    """A store's names in order, and how often it was asked for them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = sorted(names)
        self.requests = 0
        self._lock = threading.Lock()

    def peek(self, start: str, end: str) -> Sequence[str]:
        with self._lock:
            self.requests += 1
        first = bisect.bisect_left(self.names, start)
        behind = bisect.bisect_left(self.names, end) if end else len(self.names)
        return self.names[first : min(first + PAGE, behind)]

    def sizes(self, cuts: Sequence[str]) -> list[int]:
        places = [0, *(bisect.bisect_left(self.names, cut) for cut in cuts), len(self.names)]
        return [b - a for a, b in pairwise(places)]


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
def test_workers_get_parts_of_about_a_size(names: list[str]) -> None:
    listing = Names(names)

    cuts = cut_listing(listing.peek, 64, PAGE, 100)

    sizes = listing.sizes(cuts)
    assert 20 <= len(cuts) < 64
    assert min(sizes) > 0
    assert max(sizes) <= 0.14 * len(names)
    assert listing.requests <= 8 * 64 + 16


def test_a_short_listing_is_asked_for_once_and_stays_whole() -> None:
    listing = Names(LISTINGS["flat"][: PAGE - 1])

    assert cut_listing(listing.peek, 64, PAGE, 1) == []
    assert listing.requests == 1


def test_few_names_are_not_divided() -> None:
    listing = Names(LISTINGS["hashed"])

    assert cut_listing(listing.peek, 64, PAGE, 10**9) == []
    assert listing.requests == 1


@settings(deadline=None, max_examples=50)
@given(
    st.sets(st.text(st.sampled_from("019abz/.\u00e9\U0001f600"), min_size=1, max_size=6)),
    st.integers(1, 9),
)
def test_any_names_are_divided_in_order(names: set[str], parts: int) -> None:
    listing = Names(list(names))

    cuts = cut_listing(listing.peek, parts, 2, 1)

    assert cuts == sorted(set(cuts))
    assert len(cuts) < parts
    assert sum(listing.sizes(cuts)) == len(names)


@pytest.mark.parametrize(
    ("name", "end", "behind"),
    [
        ("a/1.jpg", "", "a0"),
        ("a/b/1.jpg", "a/c", "a/b0"),
        ("a/b/1.jpg", "b", "a0"),
        ("a/1.jpg", "a/2.jpg", None),  # in the same folder
        ("1.jpg", "", None),
    ],
)
def test_the_end_of_a_folder(name: str, end: str, behind: str | None) -> None:
    assert _behind_folder(name, end) == behind


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> GcsStandIn:
    with GcsStandIn() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


def test_a_bucket_is_divided_by_a_page_a_question(stand_in: GcsStandIn) -> None:
    names = [f"photos/{n:07}.jpg" for n in range(300_000)]
    stand_in.put_virtual("b", names, 1)

    cuts = find_cuts(open_storage("gs://b/photos"), parts=8)

    assert len(cuts) == 7
    sizes = Names([name.removeprefix("photos/") for name in names]).sizes(cuts)
    assert max(sizes) <= 100_000
    assert stand_in.count(Kind.LIST) <= 2 * 8 * 2


def test_unknown_roots_alone_are_looked_at(stand_in: GcsStandIn) -> None:
    asked: list[str] = []

    def cut(storage: object) -> list[str]:
        asked.append(storage.root)
        return ["m"]

    roots = {"known": "gs://b/known", "local": "/photos", "unknown": "gs://b/unknown"}
    assert list_ranges(roots, {"known": ["k"]}, DEFAULT_ACCESS, cut) == [
        ("known", ["", "k", ""]),
        ("local", ["", ""]),
        ("unknown", ["", "m", ""]),
    ]
    assert asked == ["gs://b/unknown"]
    assert stand_in.requests == []


@pytest.mark.parametrize(("runner", "parts"), [("FnApiRunner", 1), ("BundleBasedDirectRunner", 2)])
def test_on_a_cluster_a_large_root_is_divided_and_all_of_it_listed(
    runner: str, parts: int, stand_in: GcsStandIn
) -> None:
    names = [f"{n:06}.jpg" for n in range(5000)]
    stand_in.put_virtual("b", names, 1)

    with beam.Pipeline(runner=runner) as pipeline:
        listing = pipeline | ListBlobs({"train": "gs://b"})
        firsts = listing | beam.Map(lambda listed: listed[0][1]) | beam.combiners.Count.Globally()
        assert_that(firsts, equal_to([5000]))
        distinct = listing | "Names" >> beam.Map(lambda listed: listed[0][1]) | beam.Distinct()
        assert_that(
            distinct | "CountNames" >> beam.combiners.Count.Globally(),
            equal_to([5000]),
            label="distinct",
        )

    ends = {request.query.get("endOffset", "") for request in stand_in.requests}
    assert (len(ends) > 1) == (parts > 1)
