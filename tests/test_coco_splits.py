"""COCO images drawn into splits: `--split_by hash`, `--group_by`, a field."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.faults import Rejected
from schemas.samples import Sample
from schemas.splits import HASH, Splitting
from tests.coco_command import (
    MakeCoco,
    command,
    committed,
    manifest_of,
    read_records,
    run_coco,
    shard_paths,
    source_ids,
)
from tests.coco_texts import annotation, coco, image, read_counted
from tests.drawn_examples import draw
from tests.test_coco_samples import FILES, RULES
from transforms.sources.read_coco import CocoRules
from transforms.sources.read_samples import SplitSource

BY_HASH = ("--split_by", "hash", "--splits", "train=60,val=20,test=20")
SPLITS = ("train", "val", "test")
SPLITTING = Splitting(HASH, {"train": Fraction(60), "val": Fraction(20), "test": Fraction(20)})


def drawn(key: object) -> str:
    return SPLITTING.split_of(str(key))


def records(out: Path, split: str = "") -> list[bytes]:
    return sorted(record for path in shard_paths(out, split) for record in read_records(path))


def with_scenes(spec: dict) -> None:
    """Scenes of three images; 4 and 4.0 are one."""
    for place, entry in enumerate(spec["images"]):
        entry["scene"] = place // 3 if place % 2 else float(place // 3)


def test_the_splits_together_are_the_undivided_data_set(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    sources = make_coco(40, edit=with_scenes)
    committed(sources, tmp_path / "whole")
    manifest = committed(sources, tmp_path / "out", *BY_HASH, "--group_by", "scene")
    assert records(tmp_path / "out") == records(tmp_path / "whole")
    for split in SPLITS:
        expected = {key for key in range(1, 41) if drawn((key - 1) // 3) == split}
        assert set(source_ids(tmp_path / "out", split)) == expected
        summary = manifest["splits"][split]
        assert summary["listed"] == summary["records"] == len(expected)
        assert summary["annotations"]["listed"] == 2 * len(expected)
        assert summary["share"] == len(expected) / 40
    assert "share" not in manifest_of(tmp_path / "whole")["splits"]["train"]


def test_a_field_says_the_split(make_coco: MakeCoco, tmp_path: Path) -> None:
    def say(spec: dict) -> None:
        for place, entry in enumerate(spec["images"]):
            entry["part"] = "TEST" if place < 4 else "train"

    sources, flags = make_coco(10, edit=say), ("--split_by", "part")
    manifest = committed(sources, tmp_path / "out", *flags)
    assert sorted(manifest["splits"]) == ["test", "train"]
    assert sorted(source_ids(tmp_path / "out", "test")) == [1, 2, 3, 4]
    again = run_coco(*command(sources, tmp_path / "out", *flags))
    assert again.out.startswith("already complete")

    named = (*flags, "--splits", "train,val,test")
    empty = run_coco(*command(sources, tmp_path / "named", *named))
    assert empty.code == 3
    assert empty.fault == (
        "E-SET-EMPTY split val: no sample is of it by part; give a larger share, correct --splits,"
        " or give --allow_empty"
    )
    committed(sources, tmp_path / "named", *named, "--allow_empty")
    assert manifest_of(tmp_path / "named")["splits"]["val"]["records"] == 0


def read_drawn(data: bytes, splitting: Splitting) -> list[Any]:
    rules = CocoRules(drop_orphans=True)
    return read_counted([("f.json", data)], "dev", rules, splitting=splitting)


@pytest.mark.parametrize(
    ("scene", "line"),
    [
        (
            None,
            "E-SRC-SPLIT image 3 (c.jpg): scene has no value, and decides its split; give every"
            " sample one, or split without it",
        ),
        (
            ["a"],
            "E-ANN-TYPE f.json: Expected `int | float | str | null`, got `array` - at"
            " `$.images[1].scene`; write text or a number, or split by another field",
        ),
    ],
)
def test_a_bad_group_value_stops_the_run(scene: Any, line: str) -> None:
    data = coco([image(scene=7), image(3, "c.jpg", scene=scene)], [])
    with pytest.raises(RuntimeError) as raised:
        read_drawn(data, Splitting(HASH, SPLITTING.shares, group_by="scene"))
    assert str(raised.value) == line


def test_orphans_have_a_split() -> None:
    orphans = [annotation(1000 + key, image_id=key) for key in range(90, 110)]
    data = coco([image(part="val")], orphans)
    found = _of(read_drawn(data, SPLITTING), Rejected)
    assert [reject.split for reject in found] == [*map(drawn, range(90, 110))]
    found = _of(read_drawn(data, Splitting("part")), Rejected)
    assert [reject.split for reject in found] == ["val"] * 20


@draw(300)
@given(FILES, RULES, st.booleans(), st.sampled_from(["", "group", "field"]), st.randoms())
def test_sums_hold_per_split_and_add_up_in_any_order(
    files: tuple, rules: dict, per_annotation: bool, by: str, random: Random
) -> None:
    """Whatever the files hold: splits divide what one split would have, to the last count."""
    kinds = files[:2] if per_annotation else files
    if files[0] == files[1]:
        return
    sources = [("f.json", data) for data in kinds]
    taken = CocoRules(
        **rules,
        drop_orphans=True,
        per_annotation=per_annotation,
    )
    splitting = SPLITTING
    if by == "group":
        splitting = Splitting(HASH, SPLITTING.shares, group_by="license")
    elif by == "field":
        splitting = Splitting("file_name", names=("1.jpg", "2.jpg", "3.jpg"))
    panoptic = not per_annotation
    whole = read_counted(sources, "dev", taken, panoptic=panoptic)
    excluding = {"dev": {"1": ""}}
    left = read_counted(sources, "dev", taken, excluding, panoptic=panoptic)
    random.shuffle(sources)
    assert read_counted(sources, "dev", taken, excluding, panoptic=panoptic) == left
    parts = read_counted(sources, "dev", taken, panoptic=panoptic, splitting=splitting)
    assert _without_splits(parts) == _without_splits(whole)
    totals: Counter[str] = Counter()
    for file in _of(parts, SplitSource):
        totals += _counts(file)
    assert totals == _counts(_of(whole, SplitSource)[0])


def _of(items: Sequence[Any], kind: type) -> list[Any]:
    return [item for item in items if isinstance(item, kind)]


def _without_splits(items: Sequence[Any]) -> list[Any]:
    others = [item for item in items if not isinstance(item, SplitSource)]
    return [msgspec.structs.replace(item, split="dev") for item in others]


def _counts(file: SplitSource) -> Counter[str]:
    counts = Counter(
        images=file.images or 0,
        annotations=file.annotations,
        listed=file.listed,
        repeated=file.repeated_annotation_ids,
        without=file.images_without_samples,
    )
    for group in ("repairs", "skipped", "skipped_annotations"):
        counts.update({f"{group} {name}": n for name, n in getattr(file, group).items()})
    return +counts


def test_the_first_file_with_the_field_decides() -> None:
    files = [coco([image()], []), coco([image(scene="s1")], [], [])]
    sources = [(f"f{n}.json", data) for n, data in enumerate(files)]
    splitting = Splitting("scene", names=("s0", "s1"))
    items = read_counted(sources, "dev", CocoRules(), splitting=splitting)
    assert [item.split for item in items if isinstance(item, Sample)] == ["s1"]
