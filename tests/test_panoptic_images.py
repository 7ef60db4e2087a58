"""The roots of panoptic images: flags, folders, and by what a finished run knows itself."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from pipelines.coco import configure
from schemas.geometry.turns import turn_array
from tests.coco_command import MakeCoco, examples, run_coco, value
from tests.small_images import png
from tests.turned_images import as_stored, oriented, png_of


def test_panoptic_images_are_roots_of_their_own() -> None:
    images = ["--images", "/i", "val=gs://b/i", "--annotations", "/a.json", "val=/b.json"]
    run, _ = configure([*images, "--panoptic_images", "val=gs://b/p", "--output", "/o"])
    config = run.config
    assert config.panoptic_images == {"val": "gs://b/p"}
    assert config.roots == {"train": "/i", "val": "gs://b/i", "val/panoptic": "gs://b/p"}
    assert config.root_places == (frozenset({"train", "val"}), frozenset({"val/panoptic"}))
    assert "gs://b/p" in run.uris()
    bare, _ = configure([*images, "--panoptic_images", "/p", "--output", "/o"])
    assert bare.config.panoptic_images == {"train": "/p"}


def test_without_panoptic_images_there_is_one_root_a_split() -> None:
    run, _ = configure(["--images", "/i", "--annotations", "/a.json", "--output", "/o"])
    assert run.config.roots == {"train": "/i"}
    assert run.config.root_places == (frozenset({"train"}),)
    assert "panoptic_codec" not in run.config.options()


def test_panoptic_images_are_of_a_split_that_there_is() -> None:
    arguments = ["--images", "/i", "--annotations", "/a.json", "--output", "/o"]
    what = r"panoptic_images must name splits of --images, got \['val'\]: give \['train'\]"
    with pytest.raises(ValueError, match=what):
        configure([*arguments, "--panoptic_images", "val=/p"])


def test_a_missing_folder_is_refused_before_anything_is_made(
    tmp_path: Path, make_coco: MakeCoco
) -> None:
    images, annotations = make_coco(1)
    out = tmp_path / "out"
    sources = ["--images", images, "--annotations", annotations, "--output", out]
    run = run_coco(*sources, "--panoptic_images", tmp_path / "nowhere")
    assert run.code == 2 and "nowhere" in run.fault
    assert not list(out.glob("*")) if out.exists() else True


KEYS = {
    "semantic": "image/segmentation/class/encoded",
    "category": "image/panoptic/category_mask",
    "instance": "image/panoptic/instance_mask",
}


def real_sources(folder: Path) -> list[object]:
    files = [folder / "annotations" / name for name in ("instances.json", "panoptic.json")]
    panoptic = folder / "annotations" / "panoptic"
    return ["--images", folder / "images", "--annotations", *files, "--panoptic_images", panoptic]


def test_real_panoptic_images_are_written(tmp_path: Path, shared_data: Path) -> None:
    """The digest is of what Model Garden's script gave, tf-models-official 2.20.0."""
    out, folder = tmp_path / "out", shared_data / "coco_train"
    run = run_coco(*real_sources(folder), "--num_shards", 2, "--output", out)
    assert run.code == 0, run.err
    spec = json.loads((folder / "annotations" / "panoptic.json").read_bytes())
    with_masks = {
        value(example, "image/source_id")[0].decode(): example
        for example in examples(out)
        if value(example, KEYS["semantic"])
    }
    assert len(examples(out)) == 33 and len(with_masks) == 26
    digest = hashlib.sha256()
    for annotation in sorted(spec["annotations"], key=lambda entry: entry["file_name"]):
        example = with_masks[str(annotation["image_id"])]
        for key in KEYS.values():
            digest.update(as_stored(value(example, key)[0]).tobytes())
    assert digest.hexdigest() == "1b3671d8a1fd57263307cfc921e570054ac8b4f7e4ad1f2bff5ccbede2d75896"
    summary = json.loads((out / "manifest.json").read_bytes())["splits"]["train"]
    assert summary["annotations"]["listed"] == 246 + 26
    assert (
        "already complete"
        in run_coco(*real_sources(folder), "--num_shards", 2, "--output", out).out
    )


def small_set(folder: Path, orientation: int = 1, *, in_upright: bool = False) -> list[object]:
    """Write two photos of 7 x 5 pixels, the second with a panoptic image; return the flags."""
    for name in ("images", "panoptic"):
        (folder / name).mkdir(parents=True)
    ids = np.zeros((5, 7), np.int64)
    ids[1:3, 2:6], ids[3:] = 70_000, 9
    photo = png_of(np.where(ids == 70_000, 250, 0).astype(np.uint8))
    photo = photo if orientation == 1 else oriented(photo, orientation)
    ids = turn_array(ids, orientation) if in_upright else ids
    height, width = ids.shape
    for name in ("a.png", "b.png"):
        (folder / "images" / name).write_bytes(photo)
    colours = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8)
    (folder / "panoptic" / "p.png").write_bytes(png_of(colours))
    images = [
        {"id": number, "file_name": name, "width": width, "height": height}
        for number, name in enumerate(("a.png", "b.png"), start=1)
    ]
    dog = {"id": 70_000, "category_id": 18, "bbox": [2, 1, 4, 2], "area": 8, "iscrowd": 0}
    sky = {"id": 9, "category_id": 187, "bbox": [0, 3, 7, 2], "area": 14, "iscrowd": 0}
    annotation = {"image_id": 2, "file_name": "p.png", "segments_info": [sky, dog]}
    categories = [
        {"id": 18, "name": "dog", "isthing": 1},
        {"id": 187, "name": "sky", "isthing": 0},
    ]
    spec = {"images": images, "annotations": [annotation], "categories": categories}
    (folder / "panoptic.json").write_text(json.dumps(spec))
    sources = ["--images", folder / "images", "--annotations", folder / "panoptic.json"]
    return [*sources, "--panoptic_images", folder / "panoptic", "--num_shards", 1]


def test_a_finished_run_looks_at_panoptic_images_too(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*small_set(tmp_path), "--output", out]
    assert run_coco(*command).code == 0
    assert "already complete" in run_coco(*command).out
    (tmp_path / "panoptic" / "b.png").write_bytes(png())
    assert "already complete" not in run_coco(*command).out
    plan = json.loads((out / "manifest.json").read_bytes())["plan"]
    assert plan["options"]["panoptic_codec"].startswith("zlib ")


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


def test_a_panoptic_image_of_another_size_is_named(tmp_path: Path) -> None:
    sources, out = small_set(tmp_path), tmp_path / "out"
    (tmp_path / "panoptic" / "p.png").write_bytes(png_of(np.zeros((4, 7, 3), np.uint8)))
    assert run_coco(*sources, "--max_rejected", 1, "--output", out).code == 0
    (line,) = (out / "rejected.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert (reject["code"], reject["file_name"]) == ("E-IMG-SIZE", "p.png")
    assert reject["detail"] == "7 x 4, its photo is 7 x 5"


def test_a_panoptic_image_of_another_kind_is_dropped(tmp_path: Path) -> None:
    """Its colours are no segment ids: its masks would be empty."""
    sources, out = small_set(tmp_path), tmp_path / "out"
    (tmp_path / "panoptic" / "p.png").write_bytes(png_of(np.full((5, 7, 3), 200, np.uint8)))
    run = run_coco(*sources, "--output", out)
    assert run.code == 4
    assert "1 of 1 annotations of train dropped (1 E-SEG-EMPTY), 0 accepted" in run.err
    assert "none of its 2 segments has a pixel in p.png" in run.err
    assert run_coco(*sources, "--output", out, "--max_dropped", 1).code == 0
    assert [value(example, KEYS["category"]) for example in examples(out)] == [[], []]
    split = json.loads((out / "manifest.json").read_bytes())["splits"]["train"]
    assert split["annotations"]["dropped"] == {"E-SEG-EMPTY": 1}
    assert split["annotations"]["written"] == 0 and split["repairs"] == {}


@pytest.mark.parametrize("orientation", ["keep", "upright"])
@pytest.mark.parametrize("in_upright", [False, True])
def test_panoptic_masks_turn_with_their_photo(
    orientation: str, in_upright: bool, tmp_path: Path
) -> None:
    sources, out = small_set(tmp_path, 6, in_upright=in_upright), tmp_path / "out"
    run = run_coco(*sources, "--orientation", orientation, "--output", out)
    assert run.code == 0, run.err
    masks = {}
    for example in examples(out):
        photo = as_stored(value(example, "image/encoded")[0])
        if value(example, KEYS["category"]):
            masks = {name: as_stored(value(example, key)[0]) for name, key in KEYS.items()}
            np.testing.assert_array_equal(masks["category"] == 18, photo == 250)
            np.testing.assert_array_equal(masks["instance"] == 2, photo == 250)
    assert {name: set(mask.flat) for name, mask in masks.items()} == {
        "semantic": {0, 1, 97},
        "category": {0, 18, 187},
        "instance": {0, 2},
    }
    repairs = json.loads((out / "manifest.json").read_bytes())["splits"]["train"]["repairs"]
    turned = {"image_turned": 2 if in_upright else 3} if orientation == "upright" else {}
    boxes = {"boxes_turned": 2} if in_upright == (orientation == "keep") else {}
    assert repairs == turned | boxes
