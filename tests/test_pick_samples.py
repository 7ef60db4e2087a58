import random
from collections import Counter

import pytest

from schemas.statistics import SPLIT_LABEL, SampledRecord
from transforms.report import pick_samples as module
from transforms.report.pick_samples import (
    MAX_PICTURES,
    MOST_OF_A_CLASS,
    MOST_OF_A_SPLIT,
    Candidate,
    Candidates,
    PickedRecord,
    fewest,
    pick_samples,
    spaced_classes,
)


def candidate(
    digest: int, label: int = SPLIT_LABEL, number: int = 0, split: str = "train", shard: int = 0
) -> Candidate:
    sample = SampledRecord(digest, label, number, 100 * number, 100, f"k{number}")
    return Candidate(split, f"{split}-{shard}", sample)


def drawn_by_shards(shards: int, classes: int, each: int = 4) -> list[Candidate]:
    """Return what shards have drawn, of classes that all their records hold."""
    choose = random.Random(0)
    return [
        candidate(choose.getrandbits(63), label, choose.randrange(500), shard=shard)
        for shard in range(shards)
        for label in (SPLIT_LABEL, *range(classes))
        for _ in range(24 if label == SPLIT_LABEL else each)
    ]


def test_a_record_that_is_drawn_twice_is_shown_once() -> None:
    given = [candidate(5, 7, number=3), candidate(9, number=3), candidate(6, 2, number=3)]
    assert pick_samples(given, {7: 1, 2: 1}) == [
        PickedRecord("train", "train-0", 3, 300, 100, "k3", True, (2, 7))
    ]


def test_equal_offsets_of_other_shards_and_splits_are_other_records() -> None:
    given = [candidate(1), candidate(2, shard=1), candidate(3, split="val")]
    assert [p.file for p in pick_samples(given, {})] == ["train-0", "train-1", "val-0"]


def test_the_smallest_digests_are_shown_whatever_the_order_of_shards() -> None:
    given = drawn_by_shards(5, 3)
    shuffled = random.Random(1).sample(given, len(given))
    picked = pick_samples(given, dict.fromkeys(range(3), 10))
    assert picked == pick_samples(shuffled, dict.fromkeys(range(3), 10))
    of_split = sorted(c.sample.digest for c in given if c.sample.label == SPLIT_LABEL)
    shown = [p for p in picked if p.for_split]
    assert len(shown) == MOST_OF_A_SPLIT
    assert {p.offset for p in shown} == {
        c.sample.offset for c in given if c.sample.digest <= of_split[MOST_OF_A_SPLIT - 1]
        and c.sample.label == SPLIT_LABEL
    }  # fmt: skip


@pytest.mark.parametrize(
    ("classes", "each"),
    [
        (0, 0),
        (1, MOST_OF_A_CLASS),
        (20, 5),  # a record may be drawn twice for one
        (100, 1),  # and some of them a second one
        (1203, 0),
    ],
)
def test_pictures_are_few_and_classes_have_equal_shares(classes: int, each: int) -> None:
    given = drawn_by_shards(3, classes, each=MOST_OF_A_CLASS)
    picked = pick_samples(given, {label: 1203 - label for label in range(classes)})
    assert len(picked) <= MAX_PICTURES
    shown = Counter(label for p in picked for label in p.for_classes)
    assert sum(p.for_split for p in picked) == MOST_OF_A_SPLIT
    if classes:
        assert min(shown[label] for label in range(classes)) >= each
        assert max(shown.values()) <= MOST_OF_A_CLASS
    if classes > 100:
        assert len(picked) == MAX_PICTURES


def test_of_a_long_tail_any_part_is_shown() -> None:
    """1,203 classes: the most frequent, the rarest, and of each tenth of the others as many."""
    records = {label: 1 + 100_000 // (label + 1) for label in range(1203)}
    given = drawn_by_shards(2, 1203, each=1)
    picked = pick_samples(given, records)
    shown = {label for p in picked for label in p.for_classes}
    assert {0, 1202} <= shown
    tenths = Counter(label * 10 // 1203 for label in shown)
    assert len(tenths) == 10 and min(tenths.values()) >= 14


def test_splits_have_equal_parts() -> None:
    given = [
        candidate(number, number=number, split=split)
        for split in ("a", "b", "c", "d", "e")
        for number in range(24)
    ]
    given += [candidate(n, n, number=n) for n in range(100)]
    picked = pick_samples(given, {}, most=60)
    of_splits = Counter(p.split for p in picked if p.for_split)
    assert of_splits == {"a": 4, "b": 4, "c": 4, "d": 4, "e": 4}
    assert len(picked) == 60


def test_more_splits_than_pictures() -> None:
    given = [candidate(n, split=f"s{n:03}") for n in range(50)]
    assert len(pick_samples(given, {}, most=10)) == 10


def test_letting_most_go_changes_nothing() -> None:
    given = drawn_by_shards(6, 30)
    kept = fewest(given)
    assert len(kept) == MOST_OF_A_SPLIT + 30 * MOST_OF_A_CLASS < len(given)
    counts = dict.fromkeys(range(30), 5)
    assert pick_samples(kept, counts) == pick_samples(given, counts)
    assert fewest([*fewest(given[:300]), *given[300:]]) == kept


def test_candidates_of_many_classes_are_seldom_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    """To sort those of 20,000 classes again for each of 600 shards took 165 s."""
    sizes: list[int] = []

    def noted(candidates: list[Candidate]) -> list[Candidate]:
        sizes.append(len(candidates))
        return fewest(candidates)

    monkeypatch.setattr(module, "_KEPT_CANDIDATES", 100)
    monkeypatch.setattr(module, "fewest", noted)
    given = drawn_by_shards(400, 60, each=1)
    kept = Candidates()
    for shard in range(400):
        own = [found.sample for found in given if found.file == f"train-{shard}"]
        kept.add("train", f"train-{shard}", own)
    assert sum(sizes) <= 3 * len(given)
    counts = dict.fromkeys(range(60), 5)
    assert pick_samples(kept.kept, counts) == pick_samples(given, counts)
    assert len(kept.kept) <= 2 * (MOST_OF_A_SPLIT + 60 * MOST_OF_A_CLASS) + 84


@pytest.mark.parametrize(
    ("most", "spaced"),
    [(0, []), (1, [5]), (2, [5, 1]), (3, [5, 3, 1]), (5, [5, 4, 3, 2, 1]), (9, [5, 4, 3, 2, 1])],
)
def test_spaced_classes(most: int, spaced: list[int]) -> None:
    assert spaced_classes({n: n * 10 for n in (1, 2, 3, 4, 5)}, most) == spaced
