"""Listing by ranges of names: every name once, in few requests, many of them at a time."""

import bisect
import threading
from collections.abc import Sequence
from itertools import pairwise

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_tfrec.transforms.sources.listing import ListFiles
from beam_tfrec.transforms.storage import Entry, open_storage
from beam_tfrec.transforms.storage.gcs import Bounds, Page, list_pages
from tests.gcs_stand_in import GcsStandIn, Kind


class Listing:
    """A store's names in pages; each page waits until `awaited` requests run at once."""

    def __init__(self, names: Sequence[str], awaited: int = 0) -> None:
        self.names = sorted(names)
        self.most_at_once = 0
        self._awaited = awaited
        self._has_met = threading.Event()
        self._at_once = 0
        self._lock = threading.Lock()

    def fetch(self, bounds: Bounds, token: str) -> Page:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            if self.most_at_once >= self._awaited:
                self._has_met.set()
        self._has_met.wait(5)
        with self._lock:
            self._at_once -= 1
        start, end = bounds
        found = self.names[bisect.bisect_left(self.names, max(start, token)) :]
        found = [name for name in found if not end or name < end]
        return [Entry(name, 1, "") for name in found[:2]], (found[2:3] or [""])[0]


NAMES = st.text(st.sampled_from("019abz/.\u00e9\U0001f600"), min_size=1, max_size=6)


@settings(deadline=None)  # threads may wait for a busy machine
@given(st.sets(NAMES, max_size=200), st.sets(NAMES, max_size=20))
def test_every_name_comes_once_by_at_most_sixteen_requests(names: set[str], cuts: set[str]) -> None:
    listing = Listing(list(names), awaited=min(16, len(cuts) + 1))
    ranges = list(pairwise(["", *sorted(cuts), ""]))
    listed = [entry.name for entry in list_pages(listing.fetch, ranges)]
    assert sorted(listed) == listing.names
    assert listing.most_at_once == min(16, len(ranges))


BUCKETS = {  # names, and the requests that list them: one finds the folders
    "flat": ([f"{n:05}.jpg" for n in range(2500)], 1 + 3),
    "many folders": ([f"n{n % 40:03}/{n:05}.jpg" for n in range(2500)], 1 + 21),
    "files too": ([*map(str, range(500)), *(f"x{n % 3}/{n}" for n in range(2000))], 1 + 4),
    "folders after a page": ([*(f"{n:04}" for n in range(1200)), "x/1", "y/1"], 1 + 2),
    "deep": ([f"data/images/{n % 7}/{n:05}.jpg" for n in range(2500)], 1 + 1 + 3),
    "odd": (["/a", "a", "a/", "a//b", "a/b", "a0", "aa/c", "\u00e9/a", "\U0001f600/b"], 1 + 6),
    "nothing": ([], 1 + 1),
}


@pytest.mark.parametrize(("names", "requests"), BUCKETS.values(), ids=BUCKETS)
def test_a_bucket_is_divided_at_its_folders(
    names: list[str], requests: int, stand_in: GcsStandIn
) -> None:
    stand_in.put_all("b", ["photos", *(f"photos/{name}" for name in names), "photos2"])
    storage = open_storage("gs://b/photos")
    assert sorted(entry.name for entry in storage.list()) == sorted(names)
    assert stand_in.count(Kind.LIST) == requests


@pytest.mark.parametrize("runner", ["FnApiRunner", "BundleBasedDirectRunner"])
def test_each_runner_lists_all_names(runner: str, stand_in: GcsStandIn) -> None:
    names = BUCKETS["many folders"][0][:400]
    stand_in.put_all("b", names)
    with beam.Pipeline(runner=runner) as pipeline:
        listed = pipeline | ListFiles({"train": "gs://b"})
        found = listed.pieces | beam.Map(lambda file: file.entry.name)
        assert_that(found, equal_to(names))
