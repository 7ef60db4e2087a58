"""Which listed files a source reads, and how many bytes these have."""

import pytest

from beam_tfrec.transforms.sources.listing import ListedFile
from beam_tfrec.transforms.sources.read_sidecar import SideNames
from beam_tfrec.transforms.storage import Entry


def file(name: str, size: int = 1, kind: str = "file", root: str = "train") -> ListedFile:
    return ListedFile(root, Entry(name, size, "", kind=kind))


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
    assert SideNames({"train/annotations": glob} if glob else {}).reads(listed) is is_read


def test_a_folder_that_cannot_be_listed_counts_as_an_annotation_file() -> None:
    folder = file("\\xff", kind="directory whose name is not UTF-8", root=JSON)
    (named,) = SideNames({"train/annotations": "a/*.json"})(folder)
    assert (named.name, named.second) == ("\\xff", (folder,))
