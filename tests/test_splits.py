"""Splits given by sources, said by a field, or drawn by a hash; folders of photos as groups."""

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import folder
from pipelines.flags import parse_splits
from pipelines.folder import FolderConfig
from schemas.splits import HASH, USUAL_SPLITS, Splitting
from tests.coco_command import committed_by, examples, run_pipeline, value
from tests.conftest import jpeg_bytes

SHARES = {"train": Fraction(80), "val": Fraction(10), "test": Fraction(10)}
BY_HASH = Splitting(HASH, SHARES)
GROUPED = Splitting(HASH, SHARES, group_by="scene")


def test_golden_split_of_fixed_keys() -> None:
    drawn: dict[str, list[int]] = {split: [] for split in SHARES}
    for key in range(60):
        drawn[BY_HASH.split_of(str(key))].append(key)
    assert drawn["val"] == [12, 16, 19, 40, 42, 47, 51]
    assert drawn["test"] == [2, 5, 7, 9, 17, 18, 21, 28, 32, 48, 56, 59]


@pytest.mark.parametrize("text", ["train=80,val=10,test=10", "train=0.8,val=.1,test=1/10"])
def test_equal_shares_draw_equal_splits(text: str) -> None:
    """No float is rounded."""
    splitting = Splitting(HASH, parse_splits(text)[0])
    keys = [str(key) for key in range(10_000)]
    assert [*map(splitting.split_of, keys)] == [*map(BY_HASH.split_of, keys)]
    assert splitting.options() == {
        "split_by": "hash",
        "splits": "train=4/5,val=1/10,test=1/10",
        "group_by": "",
        "split_seed": "0",
    }


@given(st.dictionaries(st.text(min_size=1), st.sampled_from("abcde")), st.integers(0, 3))
def test_keys_and_groups_decide_alone(scene_of: dict[str, str], seed: int) -> None:
    """Adding keys never moves one, and no group is in two splits."""
    by_key = Splitting(HASH, SHARES, seed=seed)
    for key, scene in scene_of.items():
        assert by_key.split_for("given", key) == by_key.split_of(key)
        assert GROUPED.split_for("", key, {"scene": scene}) == GROUPED.split_of(scene)


def test_a_given_split_stays() -> None:
    assert Splitting().split_for("val", "7") == "val"
    assert (Splitting().splits(["val"]), Splitting().options()) == (("val",), {})


@pytest.mark.parametrize("text", ["test", "TEST", " Test "])
@pytest.mark.parametrize("names", [(), ("a", "test")])
def test_a_field_says_the_split(text: str, names: tuple[str, ...]) -> None:
    splitting = Splitting("part", names=names)
    assert splitting.split_for("train", "7", {"part": text}) == "test"
    assert splitting.splits(["train"]) == (names or USUAL_SPLITS)
    assert splitting.optional_splits == (() if names else USUAL_SPLITS)


NO_VALUE = "has no value, and decides its split; give every sample one, or split without it"
SHARES_NEEDED = "splits must have shares with split_by hash, and with it alone, got split_by"
SUCH_AS = "give such as --split_by hash --splits train=90,val=10"
FORM = "splits must be SPLIT=SHARE for all, or SPLIT for all, with commas between, got"


@pytest.mark.parametrize(
    ("splitting", "fields", "what"),
    [
        (
            Splitting("part", names=("a", "b")),
            {"part": "train"},
            "part is 'train', which is none of a, b; correct it, or name all splits with --splits",
        ),
        (Splitting("part"), {}, f"part {NO_VALUE}"),
        (GROUPED, {"scene": " "}, f"scene {NO_VALUE}"),
    ],
)
def test_a_field_that_says_nothing_stops(
    splitting: Splitting, fields: dict[str, str], what: str
) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(f'E-SRC-SPLIT sample 7: {what}')}$"):
        splitting.split_for("train", "7", fields)


ONE = {"a": Fraction(1)}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"by": ""}, "split_by must not be empty, got '': give given, hash or a field"),
    ({"by": HASH}, f"{SHARES_NEEDED} 'hash' and shares of none: {SUCH_AS}"),
    ({"by": "part", "shares": ONE}, f"{SHARES_NEEDED} 'part' and shares of ['a']: {SUCH_AS}"),
    ({"by": HASH, "shares": {"a": Fraction(0)}}, "splits must have positive shares, got a=0: "),
    ({"names": ("a",)}, "splits without shares need split_by FIELD, got 'given': name the field"),
    ({"seed": 3}, "group_by and split_seed need split_by hash, got 'given': leave them out"),
    ({"by": HASH, "shares": ONE, "seed": 10**64}, "split_seed must be at most 64 digits, got 1000"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_a_splitting_without_effect_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Splitting(**arguments)


@pytest.mark.parametrize("text", ["train=90,val", "train=many", "train,,val", "a=1,a=2"])
def test_splits_that_cannot_be_read_are_refused(text: str) -> None:
    message = f"{FORM} {text!r}: give such as train=90,val=10"
    if text == "a=1,a=2":
        message = "splits must name each split once, got 'a' twice: remove one"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_splits(text)


# --- folders of classes ---

DRAWN = ("--split_by", "hash", "--splits", "train=80,val=10,test=10", "--group_by", "folder")


def put_photos(root: Path, *names: str) -> Path:
    for color, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg_bytes(color=color))
    return root


def split_of_each(out: Path) -> dict[str, str]:
    """Return the split of every photo, by its name."""
    return {
        value(example, "image/filename")[0].decode(): split
        for split in SHARES
        for example in examples(out, f"{split}-")
    }


def test_folders_keep_their_photos_together(tmp_path: Path) -> None:
    """Whatever the class: the same scene may have cats and dogs."""
    names = [f"{c}/s{s}/{shot}.jpg" for s in range(12) for c in ("cat", "dog") for shot in (0, 1)]
    sources = ("--images", put_photos(tmp_path / "images", *names))
    flags = (*DRAWN, "--split_seed", 1, "--allow_empty")
    committed_by(folder.run, tmp_path / "out", *sources, *flags)
    splits: dict[str, set[str]] = {}
    for name, split in split_of_each(tmp_path / "out").items():
        splits.setdefault(name.split("/")[1], set()).add(split)
    assert len(splits) == 12
    assert all(len(drawn) == 1 for drawn in splits.values())
    assert len({split for drawn in splits.values() for split in drawn}) > 1

    put_photos(tmp_path / "images", "cat/stray.jpg")
    run = run_pipeline(folder.run, *sources, *flags, "--output", tmp_path / "other")
    assert run.fault == f"E-SRC-SPLIT cat/stray.jpg: folder {NO_VALUE}"


def test_folders_say_the_split(tmp_path: Path) -> None:
    names = {"cat/train/1.jpg": "train", "dog/train/1.jpg": "train", "cat/Test/1.jpg": "test"}
    flags = ("--images", put_photos(tmp_path / "images", *names), "--split_by", "folder")
    manifest = committed_by(folder.run, tmp_path / "out", *flags)
    assert sorted(manifest["splits"]) == ["test", "train"]
    assert split_of_each(tmp_path / "out") == names
    again = run_pipeline(folder.run, *flags, "--output", tmp_path / "out")
    assert again.out.startswith("already complete")


@pytest.mark.parametrize(
    ("images", "splitting", "message"),
    [
        (
            {"train": "a"},
            Splitting("part"),
            "split_by must name a field that these samples have, got 'part': give folder, or leave",
        ),
        ({"train": "a", "val": "b"}, BY_HASH, "divides one source, got sources of train and val"),
    ],
)
def test_other_fields_and_several_folders_are_refused(
    images: dict[str, str], splitting: Splitting, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FolderConfig(output="out", images=images, splitting=splitting)
