"""Stratified splits: shares of each class, groups, and the same result in any order."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.pipelines import folder
from beam_tfrec.pipelines.coco import CocoConfig
from beam_tfrec.pipelines.examples import WriteExamples
from beam_tfrec.pipelines.pairs import PairsConfig
from beam_tfrec.pipelines.records import RecordsConfig
from beam_tfrec.schemas.layouts.records import RecordsLayout, RecordType
from beam_tfrec.schemas.splits import NEW, STRATIFIED, Splitting, stratify
from beam_tfrec.transforms.sources.split_tables import EarlierShard, Listed, assign_splits
from tests.coco_command import committed_by, run_pipeline
from tests.conftest import draw
from tests.oracle import CASES, DATA
from tests.test_splits import SHARES, put_photos, split_of_each

FLAGS = ("--split_by", "stratified", "--splits", "train=80,val=10,test=10")


class Item(NamedTuple):
    """A sample: the name of its group or key, its classes, and its split in an earlier set."""

    unit: str
    classes: tuple[int, ...]
    earlier: int = NEW


def divide(items: Sequence[Item], shares: Sequence[Fraction] = (*SHARES.values(),)) -> list[int]:
    """Return the split of each sample."""
    names = [hashlib.blake2b(item.unit.encode(), digest_size=16).digest() for item in items]
    owners = [place for place, item in enumerate(items) for _ in item.classes]
    classes = [name for item in items for name in item.classes]
    digests = np.array(names, "S16")
    units, splits = stratify(
        digests,
        np.array(owners, np.int64),
        np.array(classes, np.int64),
        shares,
        np.array([item.earlier for item in items], np.int64),
    )
    return splits[np.searchsorted(units, digests)].tolist()


weights = st.lists(st.fractions(Fraction(1, 9), 9), min_size=1, max_size=5)


@draw(100)
@given(st.lists(st.integers(-1, 4), max_size=60), weights, st.randoms())
def test_classes_have_exact_shares(
    classes: list[int], shares: list[Fraction], random: Random
) -> None:
    """To within one sample. Samples without a class (-1) are a class; the order has no effect."""
    items = [Item(str(n), (name,) * (name >= 0)) for n, name in enumerate(classes)]
    splits = divide(items, shares)
    found = Counter(zip(classes, splits, strict=True))
    for name, total in Counter(classes).items():
        for split, share in enumerate(shares):
            assert abs(found[name, split] - total * share / sum(shares)) < 1
    order = random.sample(range(len(items)), len(items))
    assert divide([items[n] for n in order], shares) == [splits[n] for n in order]


@draw(100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=30), weights)
def test_groups_stay_together(groups: list[tuple[int, int]], shares: list[Fraction]) -> None:
    """If each has one class, a class's error is below the size of its largest group."""
    items = [Item(str(n), (name,)) for n, (name, size) in enumerate(groups) for _ in range(size)]
    splits = dict(zip(items, divide(items, shares), strict=True))
    assert divide(items, shares) == [splits[item] for item in items]
    for name in {name for name, _ in groups}:
        sizes = [size for of, size in groups if of == name]
        for split, share in enumerate(shares):
            there = sum(
                s
                for n, (of, s) in enumerate(groups)
                if of == name and splits[Item(str(n), (name,))] == split
            )
            assert abs(there - sum(sizes) * share / sum(shares)) < max(sizes)


def test_earlier_samples_keep_their_split() -> None:
    """The new ones fill up what each split lacks of all samples; also one earlier group's."""
    old = [Item(str(n), (n % 2,), earlier=0) for n in range(20)]
    new = [Item(str(n), (n % 2,)) for n in range(20, 40)]
    splits = divide([*old, *new], [Fraction(1), Fraction(1)])
    assert splits == [0] * 20 + [1] * 20
    assert divide([Item("a", (), earlier=1), Item("a", ())]) == [1, 1]


def test_golden_splits_of_fixed_keys() -> None:
    items = [Item(str(n), tuple(c for c in range(5) if n % (c + 2) == 0)) for n in range(40)]
    splits = divide(items)
    assert [n for n, split in enumerate(splits) if split == 1] == [4, 6, 11, 15]
    assert [n for n, split in enumerate(splits) if split == 2] == [7, 22, 24]


def classes_of_each(out: Path) -> Counter[tuple[str, str]]:
    found = split_of_each(out).items()
    return Counter((split, name.partition("/")[0]) for name, split in found)


def test_classes_of_folders_are_divided(tmp_path: Path) -> None:
    """A damaged photo counts in the split that it was assigned to, and --exclude moves no other."""
    names = [f"{name}/s{n % 3}/{n}.jpg" for name in ("cat", "dog") for n in range(10)]
    images = put_photos(tmp_path / "images", *names)
    photo = images / "cat/s0/0.jpg"
    photo.write_bytes(photo.read_bytes()[:-100])
    out = tmp_path / "out"
    flags = ("--images", images, *FLAGS, "--max_rejected", "1")
    manifest = committed_by(folder.run, out, *flags)
    splits = manifest["splits"]
    listed = {name: of["listed"] for name, of in splits.items()}
    assert listed == {"train": 16, "val": 2, "test": 2}
    assert all(of["share"] == round(of["records"] / 19, 6) for of in splits.values())
    assert manifest["plan"]["options"]["stratify_by"] == "class"
    rejected = [name for name, of in splits.items() if of["records"] < of["listed"]]
    there = classes_of_each(out)
    counted = {(split, name): n for split in splits for name, n in splits[split]["classes"].items()}
    assert there == +Counter(counted)
    there[rejected[0], "cat"] += 1
    each = {"train": 8, "val": 1, "test": 1}
    assert there == {(split, name): each[split] for split in each for name in ("cat", "dog")}
    exclude = tmp_path / "rejected.jsonl"
    exclude.write_bytes((out / "rejected.jsonl").read_bytes())
    again = tmp_path / "again"
    committed_by(folder.run, again, "--images", images, *FLAGS, "--exclude", exclude)
    assert split_of_each(again) == split_of_each(out)


@pytest.mark.thorough
def test_later_samples_fill_up_the_splits(tmp_path: Path) -> None:
    """The samples of both days together have the shares, and none is written twice."""
    names = [f"{name}/s{n % 3}/{n}.jpg" for name in ("cat", "dog") for n in range(30)]
    first = ["cat/s0/0.jpg", "dog/s0/0.jpg", *(name for name in names if "s1" in name)]
    images = put_photos(tmp_path / "images", *first)
    flags = ("--images", images, *FLAGS)
    committed_by(folder.run, tmp_path / "one", *flags)
    put_photos(images, *names)
    committed_by(folder.run, tmp_path / "two", *flags, "--since", tmp_path / "one")
    one, two = split_of_each(tmp_path / "one"), split_of_each(tmp_path / "two")
    assert {*one} == {*first}
    assert {*two} == {*names} - {*first}
    found = classes_of_each(tmp_path / "one") + classes_of_each(tmp_path / "two")
    each = {"train": 24, "val": 3, "test": 3}
    assert found == {(split, name): each[split] for split in each for name in ("cat", "dog")}


@pytest.mark.thorough
def test_later_samples_follow_their_groups(tmp_path: Path) -> None:
    names = [f"{name}/s{n % 8}/{n}.jpg" for name in ("cat", "dog") for n in range(40)]
    images = put_photos(tmp_path / "images", *names[::5])
    flags = ("--images", images, *FLAGS, "--group_by", "folder")
    committed_by(folder.run, tmp_path / "one", *flags)
    put_photos(images, *names)
    later = (*flags, "--since", tmp_path / "one")
    committed_by(folder.run, tmp_path / "two", *later)
    both = split_of_each(tmp_path / "one") | split_of_each(tmp_path / "two")
    assert sorted(both) == sorted(names)
    groups = {(name.split("/")[1], split) for name, split in both.items()}
    assert len(groups) == 8
    (images / names[0]).unlink()
    run = run_pipeline(folder.run, *later, "--output", tmp_path / "three")
    what = "the sources lack or reject 1 sample of earlier data sets, so groups are unknown"
    assert (run.code, run.fault.partition(";")[0]) == (2, f"E-ARG --since: {what}")


IMAGES = {"train": "photos"}
BY_CLASS = Splitting(STRATIFIED, SHARES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PairsConfig(output="o", low=IMAGES, high={"train": "h"}, splitting=BY_CLASS),
            "split_by stratified needs classes, layout pairs has none: give --stratify",
        ),
        (
            lambda: RecordsConfig(
                output="o",
                records={"train": ["r"]},
                layout=RecordsLayout(RecordType.BYTES),
                splitting=BY_CLASS,
            ),
            "split_by needs features, got 'stratified': leave it out",
        ),
        (
            lambda: CocoConfig(
                output="o",
                images=IMAGES,
                annotations={"train": ["a.json"]},
                splitting=replace(BY_CLASS, group_by="scene", stratify_by="country"),
            ),
            "group_by and stratify_by must name one field of images at most, got scene and country",
        ),
        (lambda: WriteExamples("o", splitting=BY_CLASS), "split_by of WriteExamples must not be "),
        (
            lambda: WriteExamples("o", splitting=replace(BY_CLASS, group_by="g.csv")),
            "group_by must name a feature, got 'g.csv': write groups into one",
        ),
    ],
)
def test_sources_without_classes_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make()


def test_an_earlier_group_in_two_splits_is_refused() -> None:
    """Such as after a photo's group was corrected."""
    keys = [bytes([number]) * 16 for number in range(3)]
    earlier = [EarlierShard(split, keys[split]) for split in (0, 1)]
    counts = np.ones(3, np.int32).tobytes()
    listed = Listed(keys[0] + keys[0] + keys[1], bytes(24), counts, b"".join(keys))
    with pytest.raises(RuntimeError, match=r"^E-ARG --since: the earlier data sets have a"):
        assign_splits(replace(BY_CLASS, group_by="scene"), [listed], earlier)


def test_samples_without_any_class_are_refused() -> None:
    listed = Listed(bytes(16), b"", bytes(4))
    message = "^E-ARG the source: has no sample with a class, which split_by stratified needs; give"
    with pytest.raises(RuntimeError, match=message):
        assign_splits(BY_CLASS, [listed])
    assert [len(column) for column in assign_splits(BY_CLASS, [])] == [0, 0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "flags", "records"),
    [
        ("coco keras", (), 35),
        ("coco tfds, panoptic", ("--stratify_by", "width"), 6),
        ("table of Parquet, images and boxes in cells", (), 5),
        ("sidecar, fields", ("--stratify_by", "imageWidth"), 7),
        ("voc", (), 5),
        ("yolo", (), 5),
        ("openimages", (), 5),
        ("arrays of .npz, raw", ("--group_by", "MADE/groups.csv"), 12),
    ],
)
def test_each_source_is_divided(
    name: str, flags: Sequence[str], records: int, oracle_sources: Path, tmp_path: Path
) -> None:
    case, out = CASES[name], tmp_path / "out"
    given = " ".join([case.flags, *flags]).replace("val=", "").replace("--num_shards 2", "")
    words = given.replace("DATA/", f"{DATA}/").replace("MADE/", f"{oracle_sources}/").split()
    divide = ("--split_by", "stratified", "--splits", "fold*2", "--allow_empty")
    manifest = committed_by(case.run, out, *words, *divide)
    counts = [split["records"] for split in manifest["splits"].values()]
    assert sum(counts) == records
    assert not (out / "_staged").exists()
