"""Runs with panoptic images that are missing, or of another kind."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.coco_command import run_coco
from tests.turned_images import png_of


def small_set(folder: Path) -> list[object]:
    """Write two photos of 7 x 5 pixels, the second with a panoptic image; return the flags."""
    for name in ("images", "panoptic"):
        (folder / name).mkdir(parents=True)
    ids = np.zeros((5, 7), np.int64)
    ids[1:3, 2:6], ids[3:] = 70_000, 9
    for name in ("a.png", "b.png"):
        (folder / "images" / name).write_bytes(png_of(ids.astype(np.uint8)))
    colours = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8)
    (folder / "panoptic" / "p.png").write_bytes(png_of(colours))
    names = enumerate(("a.png", "b.png"), start=1)
    images = [{"id": n, "file_name": name, "width": 7, "height": 5} for n, name in names]
    dog = {"id": 70_000, "category_id": 18, "bbox": [2, 1, 4, 2], "area": 8, "iscrowd": 0}
    sky = {"id": 9, "category_id": 187, "bbox": [0, 3, 7, 2], "area": 14, "iscrowd": 0}
    annotation = {"image_id": 2, "file_name": "p.png", "segments_info": [sky, dog]}
    categories = [{"id": 18, "name": "dog", "isthing": 1}, {"id": 187, "name": "sky", "isthing": 0}]
    spec = {"images": images, "annotations": [annotation], "categories": categories}
    (folder / "panoptic.json").write_text(json.dumps(spec))
    sources = ["--images", folder / "images", "--annotations", folder / "panoptic.json"]
    return [*sources, "--panoptic_images", folder / "panoptic", "--num_shards", 1]


@pytest.mark.thorough
def test_a_missing_panoptic_image_rejects_its_sample(tmp_path: Path) -> None:
    sources, out = small_set(tmp_path), tmp_path / "out"
    spec = json.loads((tmp_path / "panoptic.json").read_text())
    first = spec["annotations"][0] | {"image_id": 1, "file_name": "q.png"}
    spec["annotations"].append(first)
    (tmp_path / "panoptic.json").write_text(json.dumps(spec))
    assert run_coco(*sources, "--max_rejected", 1, "--output", out).code == 0
    (line,) = (out / "rejected.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert (reject["code"], reject["key"], reject["file_name"]) == ("E-IMG-MISSING", "1", "q.png")
    (tmp_path / "panoptic" / "p.png").rename(tmp_path / "panoptic" / "r.png")
    run = run_coco(*sources, "--max_rejected", 2, "--output", tmp_path / "none")
    assert run.ended == (3, "E-SET-MISSING")
    assert "images of train/panoptic: 2 of 2" in run.fault and "--panoptic_images" in run.fault
