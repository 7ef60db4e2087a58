"""Files in class folders as samples."""

from fractions import Fraction

import pytest

from schemas.faults import Rejected
from schemas.fields import ClassFields
from schemas.samples import Blob, Sample, pack
from schemas.splits import GIVEN, HASH, Splitting
from transforms.sources.list_blobs import ListedFile, why_skipped
from transforms.sources.read_folder import FolderReader
from transforms.sources.read_samples import Item, SplitCounter, SplitSource
from transforms.storage import Entry

AS_GIVEN = Splitting(GIVEN)
BY_HASH = Splitting(HASH, {"train": Fraction(1), "val": Fraction(1)})


def read(name: str, splitting: Splitting = AS_GIVEN, kind: str = "file") -> list[Item]:
    entry = Entry(name, 0 if kind != "file" else 9, "5", 77, kind)
    return [*FolderReader(splitting)(ListedFile("train", entry, 4))]


def sample(name: str, class_name: str, split: str = "train") -> Sample:
    blob = Blob("train", name, 9, "5", 77)
    return Sample(split, name, 4, (blob,), pack(ClassFields(class_name)))


def note(class_name: str, split: str = "train") -> SplitSource:
    return SplitSource(split, class_names=[class_name])


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("cat/1.jpg", "cat"),
        ("cat/deep/er/1.jpg", "cat"),  # any depth
        ("a[1]*?/b{2}.webp", "a[1]*?"),  # nothing is a pattern; the content decides the rest
        ("Straße/犬.gif", "Straße"),
    ],
)
def test_a_file_is_a_sample_of_its_first_folder(name: str, class_name: str) -> None:
    assert read(name) == [sample(name, class_name), note(class_name)]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".DS_Store", "hidden"),
        ("cat/.1.jpg", "hidden"),
        ("cat/._1.jpg", "hidden"),
        ("labels.csv", "not_called_an_image"),
        ("cat/Thumbs.db", "not_called_an_image"),
        ("cat/1.jpg.txt", "not_called_an_image"),
        ("cat.jpg/readme", "not_called_an_image"),
        ("cat/1.", "not_called_an_image"),
        ("cat/1.jpg", ""),
        ("cat/1.JPG", ""),
        ("cat/1..jpg", ""),
    ],
)
def test_skipped_names(name: str, why: str) -> None:
    assert why_skipped(name) == why


def test_a_file_outside_class_folders_is_rejected() -> None:
    assert read("1.jpg") == [
        Rejected(
            code="E-SRC-LABEL",
            stage="read_folder",
            split="train",
            key="1.jpg",
            file_name="1.jpg",
            detail="not in a folder that names its class",
        )
    ]


@pytest.mark.parametrize(
    ("kind", "code", "detail"),
    [
        ("FIFO", "E-IMG-NOT-A-FILE", "a FIFO"),
        ("dangling link", "E-IMG-MISSING", "a link to nothing"),
    ],
)
def test_other_file_types_are_rejected_and_name_their_class(
    kind: str, code: str, detail: str
) -> None:
    rejected, of_class = read("cat/1.jpg", kind=kind)
    assert isinstance(rejected, Rejected)
    assert (rejected.code, rejected.key, rejected.detail) == (code, "cat/1.jpg", detail)
    assert of_class == note("cat")


@pytest.mark.parametrize("name", ["bad\\xff", "cat/bad\\xff"])
def test_a_folder_that_cannot_be_listed_is_rejected(name: str) -> None:
    (rejected,) = read(name, kind="directory whose name is no UTF-8")
    assert isinstance(rejected, Rejected)
    assert (rejected.code, rejected.key) == ("E-SRC-LABEL", name)
    assert rejected.detail == "a directory whose name is no UTF-8: its files cannot be listed"


@pytest.mark.parametrize(("name", "split"), [("cat/0.jpg", "val"), ("cat/1.jpg", "train")])
def test_a_hash_of_the_name_draws_the_split(name: str, split: str) -> None:
    assert BY_HASH.split_of(name) == split
    assert read(name, BY_HASH) == [sample(name, "cat", split), note("cat", split)]


def test_folders_below_the_class_stay_together() -> None:
    by_folder = Splitting(HASH, BY_HASH.shares, group_by="folder")
    for number in range(9):
        (found, _) = read(f"cat/scene7/{number}.jpg", by_folder)
        assert found.split == by_folder.split_of("scene7")


def test_the_counter_adds_up_skipped_files() -> None:
    counter = SplitCounter({})
    names = ["cat/1.jpg", "dog/1.jpg", "cat/a.txt", "b.txt", ".c"]
    admitted = [*counter.admit(item for name in names for item in read(name))]
    (source,) = counter.split_sources()
    assert [found.key for found in admitted] == ["cat/1.jpg", "dog/1.jpg"]
    assert (source.listed, source.class_names) == (5, ["cat", "dog"])
    assert source.skipped == {"hidden": 1, "not_called_an_image": 2}
