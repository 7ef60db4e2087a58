"""List sources, every name once and in few requests, and pin samples' blobs to the listed files."""

import bisect
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise

import apache_beam as beam
import msgspec
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given, settings
from hypothesis import strategies as st

from beam_tfrec.schemas.faults import RejectBudget, Rejected
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.transforms.pin_blobs import PinBlobs, refuse_mostly_missing
from beam_tfrec.transforms.sources.listing import (
    MAX_IMAGE_BYTES,
    ListedFile,
    ListFiles,
    RootTally,
    add_root_tallies,
    listing_digest,
    pin_sample,
)
from beam_tfrec.transforms.storage import Entry, open_storage
from beam_tfrec.transforms.storage.gcs import Bounds, Page, list_pages
from tests.gcs_stand_in import GcsStandIn, Kind


def sample(key: str, name: str, root: str = "train") -> Sample:
    return Sample(root, key, 7, (Blob(root, name),), b"fields", (1, 2))


def rejected(key: str, name: str, code: str, detail: str) -> Rejected:
    return Rejected(
        code=code,
        stage="pin_blobs",
        split="train",
        key=key,
        annotation_ids=(1, 2),
        file_name=name,
        detail=detail,
    )


def test_pinning_changes_only_the_blobs() -> None:
    whole = Sample(
        "train", "1", 7, (Blob("train", "a.jpg"),), b"f", (1,), b"payload", b"digest", b"place"
    )
    assert all(msgspec.structs.asdict(whole).values())  # a new field must be set here too
    for entry in (Entry("a.jpg", 1, "17", crc32c=0), Entry("a.jpg", MAX_IMAGE_BYTES, "")):
        pinned = (Blob("train", "a.jpg", entry.size_bytes, entry.pin, entry.crc32c),)
        assert pin_sample(whole, entry) == msgspec.structs.replace(whole, blobs=pinned)


@pytest.mark.parametrize(
    ("entry", "code", "detail"),
    [
        (None, "E-IMG-MISSING", "not in the listing"),
        (Entry("a.jpg", 0, "", kind="dangling link"), "E-IMG-MISSING", "a link to nothing"),
        (Entry("a.jpg", 0, "", kind="directory"), "E-IMG-NOT-A-FILE", "a directory"),
        (Entry("a.jpg", 0, "1"), "E-IMG-EMPTY", "0 bytes"),
        (
            Entry("a.jpg", 268_435_457, "1"),
            "E-IMG-TOO-LARGE",
            "268435457 bytes, the limit is 268435456",
        ),
    ],
)
def test_unusable_files_are_rejects(entry: Entry | None, code: str, detail: str) -> None:
    assert pin_sample(sample("1", "a.jpg"), entry) == rejected("1", "a.jpg", code, detail)


ENTRY = Entry("a.jpg", 100, "pin", None, "file")
WITH_CRC = Entry("a.jpg", 100, "pin", 7, "file")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (ENTRY, ENTRY, True),
        (ENTRY, msgspec.structs.replace(ENTRY, name="b.jpg"), False),
        (ENTRY, msgspec.structs.replace(ENTRY, size_bytes=101), False),
        (ENTRY, msgspec.structs.replace(ENTRY, pin="touched"), False),
        (ENTRY, msgspec.structs.replace(ENTRY, kind="fifo"), False),
        (ENTRY, WITH_CRC, False),
        (WITH_CRC, msgspec.structs.replace(WITH_CRC, pin="copied"), True),  # equal contents
        (WITH_CRC, msgspec.structs.replace(WITH_CRC, crc32c=8), False),
    ],
)
def test_listing_digest_depends_on_names_and_contents(one: Entry, other: Entry, same: bool) -> None:
    assert (listing_digest([one]) == listing_digest([other])) is same


def test_listing_digest_is_the_same_in_every_run() -> None:
    """A resumed run compares it with the digest of the run before."""
    digest = "ca7babc771f2e46e412036509a8deac1c9fe1e945fd87143567f980712cf27"
    assert f"{listing_digest([ENTRY, WITH_CRC]):x}" == digest


def test_tallies_add_up() -> None:
    tallies = [
        RootTally(3, 2, 1, f"{2**256 - 1:x}", "b", "z", 1, 10),
        RootTally(4, 0, 2, "3", "", "y", 4, 25),
        RootTally(5, 1, 0, "0", "a", ""),
        RootTally(),
    ]
    total = RootTally(12, 3, 3, "2", "a", "y", 5, 35)  # digests add modulo 2^256
    assert add_root_tallies(tallies) == add_root_tallies(tallies[::-1]) == total
    assert add_root_tallies([add_root_tallies(tallies[:2]), *tallies[2:]]) == total


FOLDER = "give the folder that file names are relative to (of a table: --image_root)"
LISTED = [  # first missing name, first listed one, and what the message advises
    ("30.jpg", "train2017/30.jpg", "add /train2017 to the folder that you gave"),
    ("a/1.jpg", "coco/train/a/1.jpg", "add /coco/train to the folder that you gave"),
    (
        "a/1.jpg",
        "a/1.JPG",
        "rename the files as the annotations name them: upper and lower case differ",
    ),
    ("a\\1.jpg", "a/7.jpg", "write / instead of each backslash in the file names"),
    ("a/1.jpg", "b/7.jpg", FOLDER),
    ("train/1.jpg", "abc/1.jpg", FOLDER),
    ("c/1.jpg", "abc/1.jpg", FOLDER),
    ("t.jpg", "v.jpg", "the first lies in the folder of test: give each split its own"),
]
MISSING = [
    *(
        (
            "train",
            RootTally(5, 5, 1, "0", first, name),
            f"5 of 5 images are missing, the first is"
            f" {first!r}; listed names look like {name!r}; {remedy}",
        )
        for first, name, remedy in LISTED
    ),
    (
        "val/panoptic",
        RootTally(5, 5, 0, "0", "a.jpg", ""),
        f"5 of 5 images are missing, the first is 'a.jpg'; no file is listed; {FOLDER}, with"
        " --panoptic_images",
    ),
    (
        "train",
        RootTally(5, 3, 0, "0", "a.jpg", ""),
        "3 of 5 images are missing, the first is 'a.jpg'; samples name all listed files;"
        " add the missing ones, or accept them with --max_rejected 3",
    ),
]


@pytest.mark.parametrize(("root", "tally", "what"), MISSING)
def test_run_stops_if_most_images_are_missing(root: str, tally: RootTally, what: str) -> None:
    half = [RootTally(), RootTally(named=9), RootTally(2, 1), RootTally(5, 2)]
    refuse_mostly_missing([("train", one) for one in half])
    with pytest.raises(RuntimeError) as raised:
        test = RootTally(named=9, unreferenced=1, first_unreferenced="t.jpg")
        refuse_mostly_missing([("test", test), (root, tally)])
    assert str(raised.value) == f"E-SET-MISSING images of {root}: {what}"


@pytest.mark.parametrize(
    ("unreferenced", "allowed", "stops"),
    [(0, 9, False), (0, 8, True), (1, 9, True)],  # other files hint at a wrong root
)
def test_missing_images_can_be_accepted_without_other_files(
    unreferenced: int, allowed: int, stops: bool
) -> None:
    tally = RootTally(10, 9, unreferenced, "0", "a.jpg", "b.jpg" if unreferenced else "")
    with pytest.raises(RuntimeError, match=r"^E-SET-MISSING") if stops else nullcontext():
        refuse_mostly_missing([("train", tally)], RejectBudget(allowed))


def test_samples_are_joined_with_the_listing(test_pipeline: Callable[[], beam.Pipeline]) -> None:
    entries = [
        Entry("a.jpg", 10, "pin a"),
        Entry("empty.jpg", 0, "pin e"),
        Entry("folder", 0, "", kind="directory"),  # not counted as an unreferenced file
        Entry("spare 2.jpg", 30, "pin s"),
        Entry("spare 1.jpg", 30, "pin s"),
    ]
    samples = [
        sample("1", "a.jpg"),
        sample("2", "a.jpg"),  # one blob serves two samples
        sample("3", "empty.jpg"),
        sample("4", "not there.jpg"),
        sample("5", "also not there.jpg"),
    ]
    pinned_a = (Blob("train", "a.jpg", 10, "pin a"),)
    expected = {
        "samples": [msgspec.structs.replace(each, blobs=pinned_a) for each in samples[:2]],
        "rejected": [
            rejected("3", "empty.jpg", "E-IMG-EMPTY", "0 bytes"),
            rejected("4", "not there.jpg", "E-IMG-MISSING", "not in the listing"),
            rejected("5", "also not there.jpg", "E-IMG-MISSING", "not in the listing"),
        ],
        "root_tallies": [("train", RootTally(5, 2, 2, "0", "also not there.jpg", "spare 1.jpg"))],
    }
    with test_pipeline() as pipeline:
        files = [ListedFile("train", entry) for entry in entries]
        listing = pipeline | "Listing" >> beam.Create(files).with_output_types(ListedFile)
        created = pipeline | "Samples" >> beam.Create(samples).with_output_types(Sample)
        pinned = created | PinBlobs(listing)
        for name, elements in expected.items():
            assert_that(getattr(pinned, name), equal_to(elements), label=name)


# --- listing a bucket by ranges of names ---


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
