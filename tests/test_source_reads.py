"""What readers take from a listing, counted by storage class."""

from collections.abc import Callable, Iterator
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from schemas.workload import Reads
from tests.gcs_stand_in import GcsStandIn
from transforms.blobs import MAX_IMAGE_BYTES
from transforms.source_reads import ReadCounts, add_reads
from transforms.sources import array_files, read_folder
from transforms.sources.listed_files import ListedFile, ListFiles, is_file
from transforms.sources.side_files import SideNames
from transforms.sources.table_files import is_table
from transforms.storage import Entry


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    with GcsStandIn() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


def file(name: str, size: int = 1, kind: str = "file", root: str = "train") -> ListedFile:
    return ListedFile(root, Entry(name, size, "", kind=kind))


def test_counts_add_up_by_class() -> None:
    counts = ReadCounts()
    for entry in (
        Entry("a", 3, "", storage_class="STANDARD"),
        Entry("b", 4, "", storage_class="NEARLINE"),
        Entry("c", 5, "", storage_class="STANDARD"),
    ):
        counts.add(entry)

    assert counts.reads() == {"NEARLINE": Reads(1, 4), "STANDARD": Reads(2, 8)}
    assert add_reads([counts.reads(), {"NEARLINE": Reads(1, 1)}, {}]) == {
        "NEARLINE": Reads(2, 5),
        "STANDARD": Reads(2, 8),
    }


@pytest.mark.parametrize(
    ("listed", "is_read"),
    [
        (file("cat/1.jpg"), True),
        (file("cat/1.jpg", MAX_IMAGE_BYTES + 1), False),
        (file("cat/1.jpg", 0), False),
        (file("cat/notes.txt"), False),
        (file("cat/.hidden.jpg"), False),
        (file("cat/1.jpg", kind="fifo"), False),
    ],
)
def test_a_folder_s_images_are_read(listed: ListedFile, is_read: bool) -> None:
    assert read_folder.is_read(listed) is is_read


@pytest.mark.parametrize(
    ("listed", "is_read"),
    [
        (file("a/1.jpg"), True),
        (file("a/1.json"), False),  # under the root of images
        (file("a/1.json", root="train/annotations"), True),
        (file("a/1.jpg", root="train/annotations"), False),
        (file("a/1.txt"), False),
        (file("a", kind="directory"), False),
        (file("a.jpg", kind="fifo"), False),
    ],
)
def test_images_and_their_json_files_are_read(listed: ListedFile, is_read: bool) -> None:
    names = SideNames({"train": "**.json"})

    assert names.reads(listed) is is_read


@pytest.mark.parametrize(
    ("listed", "is_read"),
    [
        (file("a.npy", 2**40), True),
        (file("a.npz"), True),
        (file("a.txt"), False),
        (file(".a.npy"), False),
    ],
)
def test_arrays_are_read(listed: ListedFile, is_read: bool) -> None:
    assert array_files.is_read(listed) is is_read


@pytest.mark.parametrize(
    ("listed", "is_read"),
    [
        (file("a.csv", 2**40), True),
        (file("a.txt"), False),
        (file("a.csv", kind="directory"), False),
    ],
)
def test_tables_are_read(listed: ListedFile, is_read: bool) -> None:
    assert is_table(listed, {"train": ""}) is is_read


def test_tables_that_a_glob_does_not_mean_are_not_read() -> None:
    assert is_table(file("a.csv"), {"train": "a*.csv"})
    assert not is_table(file("b.csv"), {"train": "a*.csv"})


def test_a_listing_tells_what_its_reader_reads(
    stand_in: GcsStandIn, test_pipeline: Callable[[], beam.Pipeline]
) -> None:
    stand_in.put("b", "cat/1.jpg", b"1" * 10, storageClass="NEARLINE")
    stand_in.put("b", "cat/2.jpg", b"2" * 20)
    stand_in.put("b", "cat/notes.txt", b"3" * 300)

    with test_pipeline() as pipeline:
        roots = {"train": "gs://b", "val": "gs://b/dog"}
        listed = pipeline | ListFiles(roots, is_read=read_folder.is_read)
        reads = listed.tallies | beam.MapTuple(lambda root, tally: (root, tally.reads))
        expected = {"NEARLINE": Reads(1, 10), "STANDARD": Reads(1, 20)}
        assert_that(reads, equal_to([("train", expected), ("val", {})]))


def test_every_file_is_read_unless_a_reader_says_otherwise(
    tmp_path: Path, test_pipeline: Callable[[], beam.Pipeline]
) -> None:
    (tmp_path / "notes.txt").write_bytes(b"123")
    (tmp_path / "folder").mkdir()

    with test_pipeline() as pipeline:
        listed = pipeline | ListFiles({"train": str(tmp_path)})
        reads = listed.tallies | beam.MapTuple(lambda root, tally: (root, tally.reads))
        assert_that(reads, equal_to([("train", {"": Reads(1, 3)})]))
    assert is_file(file("a")) and not is_file(file("a", kind="directory"))
