import re
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.flags import parse_splits
from schemas.splits import HASH, USUAL_SPLITS, Splitting

SHARES = {"train": Fraction(80), "val": Fraction(10), "test": Fraction(10)}
BY_HASH = Splitting(HASH, SHARES)


def test_golden_split_of_fixed_keys() -> None:
    drawn: dict[str, list[int]] = {split: [] for split in SHARES}
    for key in range(60):
        drawn[BY_HASH.split_of(str(key))].append(key)
    assert drawn["val"] == [12, 16, 19, 40, 42, 47, 51]
    assert drawn["test"] == [2, 5, 7, 9, 17, 18, 21, 28, 32, 48, 56, 59]


@pytest.mark.parametrize("text", ["train=80,val=10,test=10", "train=0.8,val=.1,test=1/10"])
def test_shares_are_exact(text: str) -> None:
    """No float is rounded: equal shares draw equal splits and have equal options."""
    shares, _ = parse_splits(text)
    splitting = Splitting(HASH, shares)
    keys = [str(key) for key in range(10_000)]
    assert [*map(splitting.split_of, keys)] == [*map(BY_HASH.split_of, keys)]
    assert splitting.options() == {
        "split_by": "hash",
        "splits": "train=4/5,val=1/10,test=1/10",
        "group_by": "",
        "split_seed": "0",
    }


def test_shares_are_achieved() -> None:
    """Of 100,000 keys within five standard deviations."""
    drawn = Counter(BY_HASH.split_of(f"class/{key}.jpg") for key in range(100_000))
    for split, share in {"train": 0.8, "val": 0.1, "test": 0.1}.items():
        assert abs(drawn[split] - 100_000 * share) < 5 * (100_000 * share * (1 - share)) ** 0.5


@given(st.sets(st.text(min_size=1)), st.sets(st.text(min_size=1)), st.integers(0, 3))
def test_adding_keys_never_moves_one(old: set[str], new: set[str], seed: int) -> None:
    before = Splitting(HASH, SHARES, seed=seed)
    first = {key: before.split_for("given", key) for key in old}
    after = Splitting(HASH, SHARES, seed=seed)
    assert {key: after.split_for("given", key) for key in sorted(old | new) if key in old} == first


@given(st.dictionaries(st.text(min_size=1), st.sampled_from(["a", "b", "c", "d", "e"])))
def test_groups_never_straddle(scene_of: dict[str, str]) -> None:
    splitting = Splitting(HASH, SHARES, group_by="scene")
    drawn: dict[str, set[str]] = {}
    for key, scene in scene_of.items():
        drawn.setdefault(scene, set()).add(splitting.split_for("", key, {"scene": scene}))
    assert all(len(splits) == 1 for splits in drawn.values())


def test_a_given_split_stays() -> None:
    assert Splitting().split_for("val", "7") == "val"
    assert Splitting().splits(["val"]) == ("val",)
    assert Splitting().options() == {}


@pytest.mark.parametrize("value", ["test", "TEST", " Test "])
def test_a_field_says_the_split(value: str) -> None:
    assert Splitting("part").split_for("train", "7", {"part": value}) == "test"
    assert Splitting("part", names=("a", "test")).split_for("train", "7", {"part": value}) == "test"
    assert Splitting("part").splits(["train"]) == USUAL_SPLITS
    assert Splitting("part", names=("a", "test")).splits(["train"]) == ("a", "test")
    assert Splitting("part").optional_splits == USUAL_SPLITS
    assert Splitting("part", names=("a", "test")).optional_splits == ()


@pytest.mark.parametrize(
    ("splitting", "fields", "line"),
    [
        (
            Splitting("part"),
            {"part": "holdout"},
            "E-SRC-SPLIT sample 7: part is 'holdout', which is none of test, train, val, valid,"
            " validation; correct it, or name all splits with --splits",
        ),
        (
            Splitting("part", names=("a",)),
            {"part": "train"},
            "E-SRC-SPLIT sample 7: part is 'train', which is none of a; correct it, or name all"
            " splits with --splits",
        ),
        (
            Splitting("part"),
            {},
            "E-SRC-SPLIT sample 7: part has no value, and decides its split; give every sample one,"
            " or split without it",
        ),
        (
            Splitting(HASH, SHARES, group_by="scene"),
            {"scene": " "},
            "E-SRC-SPLIT sample 7: scene has no value, and decides its split; give every sample"
            " one, or split without it",
        ),
    ],
)
def test_a_field_that_says_nothing_stops(
    splitting: Splitting, fields: dict[str, str], line: str
) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(line)}$"):
        splitting.split_for("train", "7", fields)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": ""}, "split_by must not be empty, got '': give given, hash or a field"),
        (
            {"by": HASH},
            "splits must have shares with split_by hash, and with it alone, got split_by 'hash' and"
            " shares of none: give such as --split_by hash --splits train=90,val=10",
        ),
        (
            {"by": "part", "shares": {"a": Fraction(1)}},
            "splits must have shares with split_by hash, and with it alone, got split_by 'part' and"
            " shares of ['a']: give such as --split_by hash --splits train=90,val=10",
        ),
        (
            {"by": HASH, "shares": {"a": Fraction(0)}},
            "splits must have positive shares, got a=0: raise it",
        ),
        (
            {"names": ("a",)},
            "splits without shares need split_by FIELD, got 'given': name the field, or leave them"
            " out",
        ),
        (
            {"by": "part", "group_by": "scene"},
            "group_by and split_seed need split_by hash, got 'part': leave them out",
        ),
        ({"seed": 3}, "group_by and split_seed need split_by hash, got 'given': leave them out"),
        (
            {"by": HASH, "shares": {"a": Fraction(1)}, "seed": 10**64},
            f"split_seed must be at most 64 digits, got {10**64}: give a smaller one",
        ),
    ],
)
def test_a_splitting_without_effect_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Splitting(**arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "train=90,val",
            "splits must be SPLIT=SHARE for all, or SPLIT for all, with commas between, got"
            " 'train=90,val': give such as train=90,val=10",
        ),
        (
            "train=many",
            "splits must be SPLIT=SHARE for all, or SPLIT for all, with commas between, got"
            " 'train=many': give such as train=90,val=10",
        ),
        (
            "train,,val",
            "splits must be SPLIT=SHARE for all, or SPLIT for all, with commas between, got"
            " 'train,,val': give such as train=90,val=10",
        ),
        ("a=1,a=2", "splits must name each split once, got 'a' twice: remove one"),
    ],
)
def test_splits_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_splits(text)
