import pytest

from beam_tfrec.schemas.manifest import SharedContents
from beam_tfrec.transforms import find_duplicates as module
from beam_tfrec.transforms.find_duplicates import (
    Duplicate,
    Duplicates,
    RecordOf,
    add_duplicates,
    find_duplicates,
)

A, B, C = (bytes([place]) * 32 for place in (0xA, 0xB, 0xC))
RECORDS = [
    ("train", A, "a.jpg", "1"),
    ("val", A, "b.jpg", "2"),
    ("train", A, "a2.jpg", "3"),
    ("train", B, "c.jpg", "4"),
    ("train", B, "c.jpg", "5"),
    ("val", C, "d.jpg", "6"),
    ("test", C, "e.jpg", "7"),
    ("train", C, "f.jpg", "8"),
]
A1, A3, A2 = RecordOf("a.jpg", "1"), RecordOf("a2.jpg", "3"), RecordOf("b.jpg", "2")
C6, C7, C8 = RecordOf("d.jpg", "6"), RecordOf("e.jpg", "7"), RecordOf("f.jpg", "8")
FOUND = Duplicates(
    pairs=[
        SharedContents(("test", "train"), 1, C.hex(), ("e.jpg", "f.jpg")),
        SharedContents(("test", "val"), 1, C.hex(), ("e.jpg", "d.jpg")),
        SharedContents(("train", "val"), 2, A.hex(), ("a.jpg", "b.jpg")),
    ],
    lines=[
        Duplicate(A.hex(), {"train": 2, "val": 1}, {"train": [A1, A3], "val": [A2]}),
        Duplicate(
            C.hex(), {"test": 1, "train": 1, "val": 1}, {"test": [C7], "train": [C8], "val": [C6]}
        ),
    ],
)


def test_equal_file_names_are_shown_with_their_keys() -> None:
    found = find_duplicates([("train", A, "z.npz", "0"), ("val", A, "z.npz", "1")])
    assert found.pairs[0].names == ("z.npz (key 0)", "z.npz (key 1)")


@pytest.mark.parametrize("partitions", [1, 20])
def test_contents_of_several_splits_are_found(partitions: int) -> None:
    """A is in two splits and C in three; B is in one split twice, which does not count."""
    parts: dict[int, list] = {}
    for record in reversed(RECORDS):
        parts.setdefault(record[1][0] % partitions, []).append(record)
    assert add_duplicates(map(find_duplicates, parts.values())) == FOUND


def test_lines_are_bounded_and_counts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 3)
    monkeypatch.setattr(module, "MAX_SAMPLES", 2)
    records = [
        (split, bytes([content]) * 32, f"{split}{copy}.jpg", str(copy))
        for content in range(20)
        for split in ("train", "val")
        for copy in range(5)
    ]
    parts = [find_duplicates(r for r in records if r[1][0] % 4 == part) for part in range(4)]
    found = add_duplicates(reversed(parts))
    assert [line.sha256[:2] for line in found.lines] == ["00", "01", "02"]
    assert [(pair.contents, pair.sha256[:2]) for pair in found.pairs] == [(20, "00")]
    assert found.lines[0].records == {"train": 5, "val": 5}
    assert [record.key for record in found.lines[0].samples["val"]] == ["0", "1"]
