"""Whole runs with each layout, choice of features and numbering of classes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_tfrec.pipelines import coco
from tests.coco_command import MakeCoco, command, run_coco
from tests.conftest import TEST_DATA


def test_features_without_a_file_end_the_run_early(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(3), tmp_path / "out"
    run = run_coco(*command(sources, out), "--features", "boxes,captions")
    assert run.ended == (2, "E-ARG")
    assert run.fault.startswith(
        "E-ARG layout detection: features name captions, but no annotation file holds captions,"
        " only boxes"
    )
    assert run.fault.endswith("; add such a file, or leave captions out")
    assert [path for path in out.rglob("*") if path.is_file()] == []


FILL_LONGEST = ["--resize", "max:9", "--resize_mode", "fill"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--features", "boxes,mask"], "features must be boxes, "),
        (["--features", ""], "argument --features: must not be empty"),
        (["--features", "masks"], "features masks describe objects and need boxes"),
        (
            ["--layout", "keras", "--features", "boxes,masks"],
            "features must be boxes",
        ),
        (["--layout", "tfds", "--category_ids", "original"], "category_ids of layout tfds must be"),
        (["--layout", "keras", "--string_ids"], "string_ids needs layout detection, got keras"),
        (["--resize", "big"], "resize must be N, WxH or max:N in px, got 'big'"),
        (["--resize", "0"], "resize must be N, WxH or max:N in px, got '0'"),
        (["--resize", "99999"], "resize must be 1 to 65500 px, got 99999"),
        (["--resize_mode", "fill"], "resize_mode must come with a box, got fill with resize None"),
        (FILL_LONGEST, "resize_mode must come with a box, got fill with resize max:9"),
        (["--reencode", "jpeg", "--quality", "101"], "quality must be 1 to 100, got 101"),
        (["--quality", "90"], "quality must not be alone, got 90"),
        (["--reencode", "png", "--quality", "90"], "quality must come with JPEGs, got 90 with"),
    ],
)
def test_flags_that_do_not_fit_together(flags: list[str], message: str) -> None:
    argv = ["--images", "photos", "--annotations", "a.json", "--output", "out", *flags]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        coco.COMMAND.configure(argv)


@pytest.mark.thorough
def test_tfds_loads_the_directory(tfds: Any, tmp_path: Path) -> None:
    """Every value equals the annotation file's, computed as TFDS's own builder does."""
    roots = {split: TEST_DATA / f"coco_{split}" for split in ("train", "val")}
    files = {split: root / "annotations" / "instances.json" for split, root in roots.items()}
    run = run_coco(
        *("--images", *(f"{split}={root / 'images'}" for split, root in roots.items())),
        *("--annotations", *(f"{split}={path}" for split, path in files.items())),
        *("--output", tmp_path / "out", "--layout", "tfds", "--num_shards", "2"),
    )
    assert run.code == 0, run.err
    builder = tfds.builder_from_directory(tmp_path / "out")
    label = builder.info.features["objects"]["label"]
    for split, path in files.items():
        spec = json.loads(path.read_bytes())
        names = {category["id"]: category["name"] for category in spec["categories"]}
        images = {image["id"]: image for image in spec["images"]}
        found = {int(of["image/id"]): of for of in tfds.as_numpy(builder.as_dataset(split=split))}
        assert sorted(found) == sorted(images)
        for image_id, example in found.items():
            image = images[image_id]
            assert example["image/filename"] == image["file_name"].encode()
            assert example["image"].shape == (image["height"], image["width"], 3)
            theirs = [a for a in spec["annotations"] if a["image_id"] == image_id]
            theirs.sort(key=lambda annotation: annotation["id"])
            ours = example["objects"]
            assert ours["id"].tolist() == [a["id"] for a in theirs]
            assert ours["area"].tolist() == [int(a["area"]) for a in theirs]
            assert ours["is_crowd"].tolist() == [bool(a["iscrowd"]) for a in theirs]
            found_names = [label.int2str(number) for number in ours["label"]]
            assert found_names == [names[a["category_id"]] for a in theirs]
            boxes = np.array([a["bbox"] for a in theirs]).reshape(-1, 4)
            scale = np.array([image["height"], image["width"]] * 2)
            corners = np.concatenate([boxes[:, 1::-1], boxes[:, 1::-1] + boxes[:, :1:-1]], axis=1)
            np.testing.assert_allclose(ours["bbox"], corners / scale, atol=1e-6)
