"""Splits given by sources, named by a field, or drawn by a hash, for COCO and for folders."""

import re
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from beam_tfrec.pipelines import folder
from beam_tfrec.pipelines.flags import parse_splits
from beam_tfrec.pipelines.folder import FolderConfig
from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import HASH, USUAL_SPLITS, DigestTable, Splitting
from beam_tfrec.transforms.sources.read_coco import CocoRules
from beam_tfrec.transforms.sources.read_samples import SplitTally
from beam_tfrec.transforms.sources.split_tables import read_groups
from beam_tfrec.transforms.storage import DEFAULT_ACCESS
from tests.coco_command import (
    MakeCoco,
    committed,
    committed_by,
    examples,
    manifest_of,
    read_records,
    run_pipeline,
    shard_paths,
    source_ids,
    value,
)
from tests.coco_texts import annotation, coco, image, read_counted
from tests.conftest import jpeg_bytes

SHARES = {"train": Fraction(80), "val": Fraction(10), "test": Fraction(10)}
BY_HASH = Splitting(HASH, SHARES)
GROUPED = Splitting(HASH, SHARES, group_by="scene")


def test_golden_split_of_fixed_keys() -> None:
    drawn: dict[str, list[int]] = {split: [] for split in SHARES}
    for key in range(60):
        drawn[BY_HASH.draw(str(key))].append(key)
    assert drawn["val"] == [12, 16, 19, 40, 42, 47, 51]
    assert drawn["test"] == [2, 5, 7, 9, 17, 18, 21, 28, 32, 48, 56, 59]


@pytest.mark.parametrize("text", ["train=80,val=10,test=10", "train=0.8,val=.1,test=1/10"])
def test_equal_shares_draw_equal_splits(text: str) -> None:
    """Shares are exact fractions, not rounded floats."""
    splitting = Splitting(HASH, parse_splits(text)[0])
    keys = [str(key) for key in range(10_000)]
    assert [*map(splitting.draw, keys)] == [*map(BY_HASH.draw, keys)]
    assert splitting.options() == {
        "split_by": "hash",
        "splits": "train=4/5,val=1/10,test=1/10",
        "group_by": "",
        "split_seed": "0",
    }


@pytest.mark.parametrize("text", ["test", "TEST", " Test "])
@pytest.mark.parametrize("names", [(), ("a", "test")])
def test_a_field_names_the_split(text: str, names: tuple[str, ...]) -> None:
    splitting = Splitting("part", names=names)
    assert splitting.split_of("train", "7", {"part": text}) == "test"
    assert splitting.splits(["train"]) == (names or USUAL_SPLITS)
    assert splitting.optional_splits == (() if names else USUAL_SPLITS)


NO_VALUE = "decides its split and has no value; give every sample one, or split without it"
DRAWN_NEEDED = "splits with shares need split_by hash or stratified, got"
FORM = "splits must be SPLIT=SHARE for all, or SPLIT for all, with commas between, got"


@pytest.mark.parametrize(
    ("splitting", "fields", "what"),
    [
        (
            Splitting("part", names=("a", "b")),
            {"part": "train"},
            "part is 'train', not one of a, b; correct it, or name all splits with --splits",
        ),
        (Splitting("part"), {}, f"part {NO_VALUE}"),
        (
            Splitting("stratifed"),
            {},
            "stratifed decides its split and has no value; did you mean stratified?",
        ),
        (GROUPED, {"scene": " "}, f"scene {NO_VALUE}"),
    ],
)
def test_a_field_that_names_no_split_stops_the_run(
    splitting: Splitting, fields: dict[str, str], what: str
) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(f'E-SRC-SPLIT sample 7: {what}')}$"):
        splitting.split_of("train", "7", fields)


ONE = {"a": Fraction(1)}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"by": ""}, "split_by must not be empty, got '': give hash, stratified or a field"),
    ({"by": HASH}, "splits must have shares with split_by hash or stratified, got none: give such"),
    ({"by": "part", "shares": ONE}, f"{DRAWN_NEEDED} 'part': add --split_by hash"),
    ({"by": "stratifed", "shares": ONE}, f"{DRAWN_NEEDED} 'stratifed': did you mean stratified?"),
    ({"shares": parse_splits("fold*5")[0]}, f"{DRAWN_NEEDED} 'given': add --split_by hash"),
    ({"by": HASH, "shares": {"a": Fraction(0)}}, "splits must have positive shares, got a=0: "),
    ({"names": ("a",)}, "splits without shares need split_by FIELD, got 'given': name it"),
    ({"seed": 3}, "group_by and split_seed need split_by hash or stratified, got 'given': leave"),
    ({"stratify_by": "a"}, "stratify_by needs split_by stratified, got 'given': omit it"),
    ({"by": HASH, "shares": ONE, "seed": 10**64}, "split_seed must have at most 64 digits, got 1"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED)
def test_splittings_without_effect_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Splitting(**arguments)


def test_folds_are_equal_shares() -> None:
    assert parse_splits("fold*12")[0] == {f"fold{n}": 1 for n in range(12)}
    assert parse_splits("test=2, fold*2 ")[0] == {"test": 2, "fold0": 1, "fold1": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fold*1", "folds must be 2 to 1,000, got 1: give"),
        ("fold*1001", "folds must be 2 to 1,000, got 1001: give"),
        ("train=90,val", f"{FORM} 'train=90,val': give such as train=90,val=10"),
        ("train=many", f"{FORM} 'train=many': give such"),
        ("train,,val", f"{FORM} 'train,,val': give such"),
        ("a=1,a=2", "splits must name each split once, got 'a' twice: remove one"),
    ],
)
def test_splits_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        parse_splits(text)


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


def test_folders_name_the_split(tmp_path: Path) -> None:
    names = {"cat/train/1.jpg": "train", "dog/train/1.jpg": "train", "cat/Test/1.jpg": "test"}
    flags = ("--images", put_photos(tmp_path / "images", *names), "--split_by", "folder")
    manifest = committed_by(folder.run, tmp_path / "out", *flags)
    assert sorted(manifest["splits"]) == ["test", "train"]
    assert split_of_each(tmp_path / "out") == names
    again = run_pipeline(folder.run, *flags, "--output", tmp_path / "out")
    assert again.out.startswith("already complete")
    named = (*flags, "--splits", "train,val,test")
    empty = run_pipeline(folder.run, *named, "--output", tmp_path / "named")
    assert (empty.code, empty.fault) == (
        3,
        "E-SET-EMPTY split val: folder gives it no sample; correct --splits, or give --allow_empty",
    )
    manifest = committed_by(folder.run, tmp_path / "named", *named, "--allow_empty")
    assert manifest["splits"]["val"]["records"] == 0


@pytest.mark.parametrize(
    ("images", "splitting", "message"),
    [
        ({"train": "a"}, Splitting("part"), "or name a field (folder), got 'part': leave it out"),
        ({"train": "a"}, Splitting("hsh"), "field (folder), got 'hsh': did you mean hash?"),
        ({"train": "a", "val": "b"}, BY_HASH, "divides one source, got train and val: give one"),
    ],
)
def test_other_fields_and_several_folders_are_refused(
    images: dict[str, str], splitting: Splitting, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        FolderConfig(output="out", images=images, splitting=splitting)


def test_a_table_keeps_groups_together(tmp_path: Path) -> None:
    """A key without a row is drawn alone, and a group as if its name were the key."""
    names = [f"cat/{n}.jpg" for n in range(12)]
    groups = dict(zip(names[:9], "abcabcabc", strict=True))
    rows = [f"{name},{group}" for name, group in groups.items()]
    table = tmp_path / "groups.CSV"
    table.write_text("\n".join(["key,cluster", *rows, "cat/gone.jpg,a", rows[0]]))
    out, images = tmp_path / "out", put_photos(tmp_path / "images", *names)
    flags = ("--images", images, *DRAWN[:4], "--allow_empty", "--group_by", table)
    ended = run_pipeline(folder.run, *flags, "--output", out)
    assert "1 key of the table of --group_by without a sample" in ended.err
    assert split_of_each(out) == {name: BY_HASH.draw(groups.get(name, name)) for name in names}
    options = manifest_of(out)["plan"]["options"]
    assert options["group_by"].startswith(f"table {table.stat().st_size}:")
    assert run_pipeline(folder.run, *flags, "--output", out).out.startswith("already complete")
    table.write_text(f"key,cluster\n{rows[0]}\n")
    ended = run_pipeline(folder.run, *flags, "--output", out)
    assert ended.ended == (5, "E-OUT-PLAN")
    table.unlink()
    assert run_pipeline(folder.run, *flags, "--output", out).ended == (2, "E-ARG")


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"id": ["a"], "group": ["b"]}, "E-TAB-HEADER g.parquet: has the columns 'id', 'group'; "),
        ({"key": ["a"], "cluster": ["b"], "group": ["b"]}, "E-TAB-HEADER g.parquet: has the col"),
        ({"key": ["a"], "group": [0.5]}, "E-TAB-HEADER g.parquet: column 'group' holds floating-"),
        ({"key": [["a"]], "group": [1]}, "E-TAB-HEADER g.parquet: Unsupported cast from list"),
        ({"key": ["a", None], "group": [1, 2]}, "E-SRC-SPLIT g.parquet: row 1 has no key; "),
        ({"key": ["a"], "group": [""]}, "E-SRC-SPLIT g.parquet: row 0 has no group; "),
        (
            {"key": [1, 2, 1], "group": ["a", "a", "b"]},
            "E-SRC-SPLIT g.parquet: key '1' is in the groups 'a' and 'b'; give each key one group",
        ),
        ({"key": [], "group": []}, "E-TAB-FORMAT g.parquet: has 0 rows, not 1 to 10000000; "),
        (None, "E-TAB-FORMAT g.parquet: Could not open Parquet input source"),
    ],
)
def test_a_table_without_one_group_for_each_key_is_refused(
    columns: Mapping[str, list] | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if columns is None:
        Path("g.parquet").write_text("key,group\na,1\n")
    else:
        arrays = {
            name: pa.array(of) if of else pa.array(of, pa.string()) for name, of in columns.items()
        }
        parquet.write_table(pa.table(arrays), "g.parquet")
    with pytest.raises(RuntimeError, match=f"^{re.escape(fault)}"):
        read_groups(Splitting(HASH, SHARES, "g.parquet"), DEFAULT_ACCESS)


@given(
    st.lists(st.binary(min_size=16, max_size=16), unique=True), st.binary(min_size=16, max_size=16)
)
def test_digests_are_found(digests: list[bytes], other: bytes) -> None:
    """Also those that end in zeros, which NumPy would cut off."""
    held = sorted({*digests, bytes(16), b"a".ljust(16, b"\0")})
    table = DigestTable(np.array(held, "S16"), np.arange(len(held)))
    assert [table.find(digest).tolist() for digest in held] == [[n] for n in range(len(held))]
    assert table.find(other).tolist() == [n for n, digest in enumerate(held) if digest == other]


def records(out: Path, split: str = "") -> list[bytes]:
    return sorted(record for path in shard_paths(out, split) for record in read_records(path))


def with_scenes(spec: dict) -> None:
    """Put three images in each scene; 4 and 4.0 are the same scene."""
    for place, entry in enumerate(spec["images"]):
        entry["scene"] = place // 3 if place % 2 else float(place // 3)


@pytest.mark.thorough
def test_the_splits_together_are_the_undivided_data_set(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    sources = make_coco(40, edit=with_scenes)
    committed(sources, tmp_path / "whole")
    manifest = committed(sources, tmp_path / "out", *DRAWN[:4], "--group_by", "scene")
    assert records(tmp_path / "out") == records(tmp_path / "whole")
    for split in SHARES:
        expected = {key for key in range(1, 41) if BY_HASH.draw(str((key - 1) // 3)) == split}
        assert set(source_ids(tmp_path / "out", split)) == expected
        summary = manifest["splits"][split]
        assert summary["listed"] == summary["records"] == len(expected)
        assert summary["annotations"]["listed"] == 2 * len(expected)
        assert summary["share"] == len(expected) / 40
    assert "share" not in manifest_of(tmp_path / "whole")["splits"]["train"]


def read_drawn(*files: bytes, splitting: Splitting) -> list[Any]:
    named = [(f"f{n}.json", data) for n, data in enumerate(files)]
    return read_counted(named, "dev", CocoRules(drop_orphans=True), splitting=splitting)


@pytest.mark.parametrize(
    ("scene", "line"),
    [
        (
            None,
            "E-SRC-SPLIT image 3 (c.jpg): scene decides its split and has no value; give every"
            " sample one, or split without it",
        ),
        (
            ["a"],
            "E-ANN-TYPE f0.json: Expected `int | float | str | null`, got `array` - at"
            " `$.images[1].scene`; write text or a number, or split by another field",
        ),
    ],
)
def test_a_bad_group_value_stops_the_run(scene: Any, line: str) -> None:
    data = coco([image(scene=7), image(3, "c.jpg", scene=scene)], [])
    with pytest.raises(RuntimeError) as raised:
        read_drawn(data, splitting=GROUPED)
    assert str(raised.value) == line


def test_orphans_have_a_split() -> None:
    orphans = [annotation(1000 + key, image_id=key) for key in range(90, 110)]
    data = coco([image(part="val")], orphans)
    for splitting, splits in (
        (BY_HASH, [BY_HASH.draw(str(key)) for key in range(90, 110)]),
        (Splitting("part"), ["val"] * 20),
    ):
        items = read_drawn(data, splitting=splitting)
        assert [item.split for item in items if isinstance(item, Rejected)] == splits


def test_the_first_file_with_the_field_decides() -> None:
    files = [coco([image()], []), coco([image(scene="s1")], [], [])]
    items = read_drawn(*files, splitting=Splitting("scene", names=("s0", "s1")))
    assert [item.split for item in items if isinstance(item, Sample)] == ["s1"]
    assert not any(item.sources for item in items if isinstance(item, SplitTally))  # are of both
