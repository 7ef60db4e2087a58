"""Files joined by name."""

from beam_tfrec.transforms.sources.join_files import JoinedFiles, Row, join_files
from beam_tfrec.transforms.sources.listing import ListedFile
from beam_tfrec.transforms.storage import Entry


def file(name: str, root: str = "train/low") -> ListedFile:
    return ListedFile(root, Entry(name, 1, "1"))


def test_files_and_rows_of_equal_name_are_joined_in_order() -> None:
    rows: tuple[Row, ...] = (("boxes", 3, ["x"]), ("boxes", 2, ["y"]))
    parts = [
        JoinedFiles("train", "b", second=(file("b.png"),)),
        JoinedFiles("train", "a", second=(file("a.png"),)),
        JoinedFiles("train", "a", first=(file("a.png"),)),
        JoinedFiles("train", "a", second=(file("a.jpg"),)),
        JoinedFiles("train", "x", others=(file("x"),)),
        JoinedFiles("train", "a", rows=rows[:1]),
        JoinedFiles("train", "a", rows=rows[1:]),
        JoinedFiles("train", "only a name"),
    ]
    assert [*join_files("train", parts)] == [
        JoinedFiles(
            "train",
            "a",
            (file("a.png"),),
            (file("a.jpg"), file("a.png")),
            rows=rows[::-1],
        ),
        JoinedFiles("train", "b", second=(file("b.png"),)),
        JoinedFiles("train", "only a name"),
        JoinedFiles("train", "x", others=(file("x"),)),
    ]
