"""Which listed files a source reads, and how many bytes these have."""

import functools
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from beam_tfrec.transforms.sources import list_blobs, read_arrays
from beam_tfrec.transforms.sources.list_blobs import MAX_IMAGE_BYTES, ListedFile, ListFiles, is_file
from beam_tfrec.transforms.sources.read_sidecar import SideNames
from beam_tfrec.transforms.sources.read_table import is_table
from beam_tfrec.transforms.storage import Entry


def file(name: str, size: int = 1, kind: str = "file", root: str = "train") -> ListedFile:
    return ListedFile(root, Entry(name, size, "", kind=kind))


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
def test_images_of_a_folder_are_read(listed: ListedFile, is_read: bool) -> None:
    assert list_blobs.is_read(listed) is is_read


@pytest.mark.parametrize("ending", ["npy", "npz", "csv", "parquet"])
def test_arrays_and_tables_are_read(ending: str) -> None:
    is_table_here = functools.partial(is_table, folders={"train": ("", "")})
    reads = is_table_here if ending in ("csv", "parquet") else read_arrays.is_read
    assert reads(file(f"a.{ending}", 2**40))
    for other in (file("a.txt"), file(f".a.{ending}"), file(f"a.{ending}", kind="directory")):
        assert not reads(other)


JSON = "train/annotations"


@pytest.mark.parametrize(
    ("listed", "glob", "is_read"),
    [
        (file("a/1.jpg"), "", True),
        (file("a/1.json"), "", False),  # under the root of images
        (file("a/1.json", root=JSON), "", True),
        (file("a/b\nc.JSON", root=JSON), "", True),
        (file("a/1.JSON", root=JSON), "a/*.json", False),  # globs heed case
        (file("a/1.json", root=JSON), "a/*.json", True),
        (file("a/b/1.json", root=JSON), "a/*.json", False),
        (file("b/1.json", root=JSON), "a/*.json", False),
        (file("a/1.jpg", root=JSON), "", False),
        (file("a/1.txt"), "", False),
        (file("a", kind="directory"), "", False),
        (file("a.jpg", kind="fifo"), "", False),
    ],
)
def test_images_and_their_json_files_are_read(listed: ListedFile, glob: str, is_read: bool) -> None:
    assert SideNames({"train": glob}).reads(listed) is is_read


def test_a_folder_that_cannot_be_listed_counts_as_an_annotation_file() -> None:
    folder = file("\\xff", kind="directory whose name is no UTF-8", root=JSON)
    (named,) = SideNames({"train": "a/*.json"})(folder)
    assert (named.name, named.side) == ("\\xff", 1)


def test_a_listing_counts_what_its_reader_reads(
    tmp_path: Path, test_pipeline: Callable[[], beam.Pipeline]
) -> None:
    for name, size in (("cat/1.jpg", 10), ("cat/2.jpg", 20), ("cat/notes.txt", 300)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))

    with test_pipeline() as pipeline:
        folders = pipeline | "All" >> ListFiles({"train": str(tmp_path)})
        images = pipeline | "Images" >> ListFiles(
            {"train": str(tmp_path)}, is_read=list_blobs.is_read
        )
        for label, listed, reads in (("all", folders, (3, 330)), ("images", images, (2, 30))):
            found = listed.tallies | f"Reads of {label}" >> beam.MapTuple(
                lambda root, tally: (root, (tally.read_files, tally.read_bytes))
            )
            assert_that(found, equal_to([("train", reads)]), label=label)
    assert is_file(file("a")) and not is_file(file("a", kind="directory"))
