"""Whole runs with each layout, choice of features and numbering of classes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
