"""Label files: what they say, and what a run does with classes that they lack."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.faults import find_fault
from schemas.labels import read_label_file, refuse_unlisted
from schemas.manifest import Label

CAT, DOG = Label(0, "cat"), Label(1, "dog")
TENCH = Label(1, "n01440764", text="tench, Tinca tinca")

# The file, the number of its first line, the labels.
FILES = {
    "names": (b"cat\ndog\n", 0, [CAT, DOG]),
    "from 1": (b"cat\ndog\n", 1, [Label(1, "cat"), Label(2, "dog")]),
    "empty lines at the end": (b"cat\ndog\n\n \n", 0, [CAT, DOG]),
    "lines of Windows": (b"cat\r\ndog\r\n", 0, [CAT, DOG]),
    "byte order mark": (b"\xef\xbb\xbfcat\ndog\n", 0, [CAT, DOG]),
    "space around": (b"  cat\ndog  \n", 0, [CAT, DOG]),
    "what only looks like a line's end": ("a\u2028b\n".encode(), 0, [Label(0, "a\u2028b")]),
    "synset": (b"n01440764 tench, Tinca tinca\n", 1, [TENCH]),
    "synset and tab": (b"n01440764\ttench, Tinca tinca\n", 1, [TENCH]),
    "nearly a synset": (b"n0144076 tench\n", 1, [Label(1, "n0144076 tench")]),
    "name and tab": (
        b"polar bear\tUrsus maritimus\n",
        0,
        [Label(0, "polar bear", text="Ursus maritimus")],
    ),
}


@pytest.mark.parametrize(("data", "first_id", "labels"), FILES.values(), ids=FILES)
def test_read_label_file(data: bytes, first_id: int, labels: list[Label]) -> None:
    assert read_label_file(data, first_id, "a.txt") == labels


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "no classes; give one a line"),
        (b"cat\n\ndog\n", "line 2 is empty; remove it, or name a class there"),
        (b"cat\ndog\ncat\n", "'cat' is in lines 1 and 3; give each class one line"),
        (b"cat\n\xff\n", "no UTF-8 at byte 4; save it as UTF-8"),
    ],
)
def test_bad_label_files(data: bytes, line: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        read_label_file(data, 0, "gs://b/a.txt")
    assert str(raised.value) == f"E-ANN-LABELS gs://b/a.txt: {line}"


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused_in_one_line(data: bytes) -> None:
    try:
        labels = read_label_file(data, 0, "a.txt")
    except RuntimeError as error:
        assert find_fault(str(error)) == ("E-ANN-LABELS", str(error))
    else:
        assert [label.id for label in labels] == [*range(len(labels))]
        assert len({label.name for label in labels}) == len(labels) > 0


@pytest.mark.parametrize(
    ("names", "others"), [(["dog", "cow"], ""), (["emu", "cow", "fox"], ", nor are 2 others")]
)
def test_classes_that_the_file_lacks(names: list[str], others: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        refuse_unlisted([CAT, DOG], names, "a.txt")
    assert str(raised.value) == (
        f"E-ANN-LABELS a.txt: class 'cow' of the sources is not there{others};"
        " add it at the end, or leave its samples out of the sources"
    )
