"""Files joined by name."""

from beam_tfrec.transforms.sources.join_files import (
    OTHER_SIDE,
    JoinedFiles,
    NamedFile,
    join_files,
)
from beam_tfrec.transforms.sources.list_blobs import ListedFile
from beam_tfrec.transforms.storage import Entry


def file(name: str, root: str = "train/low") -> ListedFile:
    return ListedFile(root, Entry(name, 1, "1"))


def named(name: str, side: int, file_name: str = "", source: str = "train") -> NamedFile:
    return NamedFile(source, name, side, file(file_name or f"{name}.png"))


def test_files_of_equal_name_are_joined_in_order() -> None:
    files = [named("b", 1), named("a", 1, "a.png"), named("a", 0), named("a", 1, "a.jpg")]
    others = [named("train/x", OTHER_SIDE, "x")]
    assert join_files("train", [*files, *others]) == [
        JoinedFiles("train", "a", [file("a.png")], [file("a.jpg"), file("a.png")]),
        JoinedFiles("train", "b", [], [file("b.png")]),
        JoinedFiles("train", "train/x", [], [], [file("x")]),
    ]
