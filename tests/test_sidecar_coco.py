"""LabelMe's and SA-1B's folders made from COCO's annotations give COCO's records, byte for byte."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pycocotools import mask as coco_mask

from pipelines import coco, sidecar
from schemas.annotations.side_files import CLASS_NAME
from tests.coco_command import committed_by, read_records, shard_paths

FEATURES = ("--features", "boxes,masks,polygons", "--num_shards", 3)


def instances_of(shared_data: Path) -> dict[str, Any]:
    """Return COCO's instances with file names as ids, and classes numbered as their names sort."""
    spec = json.loads((shared_data / "coco_val/annotations/instances.json").read_bytes())
    names = {image["id"]: image["file_name"] for image in spec["images"]}
    for image in spec["images"]:
        image["id"] = image["file_name"]
    used = {annotation["category_id"] for annotation in spec["annotations"]}
    classes = {one["id"]: one["name"] for one in spec["categories"] if one["id"] in used}
    numbers = {name: number for number, name in enumerate(sorted(classes.values()), start=1)}
    for annotation in spec["annotations"]:
        annotation["image_id"] = names[annotation["image_id"]]
        annotation["category_id"] = numbers[classes[annotation["category_id"]]]
    spec["categories"] = [{"id": number, "name": name} for name, number in numbers.items()]
    return spec


def of_image(spec: dict[str, Any], image: dict[str, Any]) -> list[dict[str, Any]]:
    found = [one for one in spec["annotations"] if one["image_id"] == image["id"]]
    return sorted(found, key=lambda one: one["id"])


def write_labelme(spec: dict[str, Any], folder: Path) -> None:
    """Write a file an image; a COCO object of several polygons becomes a group of shapes."""
    names = {one["id"]: one["name"] for one in spec["categories"]}
    for image in spec["images"]:
        shapes = [
            {
                "label": names[annotation["category_id"]],
                "shape_type": "polygon",
                "group_id": annotation["id"],
                "points": [*map(list, zip(polygon[0::2], polygon[1::2], strict=True))],
            }
            for annotation in of_image(spec, image)
            for polygon in annotation["segmentation"]
        ]
        size = {"imageWidth": image["width"], "imageHeight": image["height"]}
        path = folder / Path(image["file_name"]).with_suffix(".json")
        path.write_text(json.dumps({"version": "5.2.1", "shapes": shapes, **size}))


def write_sa1b(spec: dict[str, Any], folder: Path) -> None:
    for image in spec["images"]:
        annotations = [
            {key: annotation[key] for key in ("id", "bbox", "area", "segmentation")}
            | {"predicted_iou": 0.9, "stability_score": 0.9, "point_coords": [[1.0, 2.0]]}
            for annotation in of_image(spec, image)
        ]
        head = {key: image[key] for key in ("width", "height", "file_name")} | {"image_id": 1}
        path = folder / Path(image["file_name"]).with_suffix(".json")
        path.write_text(json.dumps({"image": head, "annotations": annotations}))


def as_labelme_has_it(spec: dict[str, Any]) -> dict[str, Any]:
    """Keep what LabelMe can say: polygons, and the boxes around them."""
    spec["annotations"] = [one for one in spec["annotations"] if not one["iscrowd"]]
    for annotation in spec["annotations"]:
        xs = [x for polygon in annotation["segmentation"] for x in polygon[0::2]]
        ys = [y for polygon in annotation["segmentation"] for y in polygon[1::2]]
        annotation["bbox"] = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
        del annotation["area"]
    return spec


def as_sa1b_has_it(spec: dict[str, Any]) -> dict[str, Any]:
    """Keep what SA-1B can say: compressed run lengths without a class."""
    sizes = {image["id"]: (image["height"], image["width"]) for image in spec["images"]}
    spec["annotations"] = [one for one in spec["annotations"] if not one["iscrowd"]]
    for annotation in spec["annotations"]:
        height, width = sizes[annotation["image_id"]]
        parts = coco_mask.frPyObjects(annotation["segmentation"], height, width)
        merged = coco_mask.merge(parts)
        counts = merged["counts"].decode()
        annotation["segmentation"] = {"size": [height, width], "counts": counts}
        annotation["category_id"] = 1
    spec["categories"] = [{"id": 1, "name": CLASS_NAME}]
    return spec


@pytest.mark.parametrize(
    ("reduce", "write"), [(as_labelme_has_it, write_labelme), (as_sa1b_has_it, write_sa1b)]
)
def test_records_are_those_of_coco(
    reduce: Callable[[dict], dict],
    write: Callable[[dict, Path], None],
    shared_data: Path,
    tmp_path: Path,
) -> None:
    spec = reduce(instances_of(shared_data))
    images, folder, instances = shared_data / "coco_val/images", tmp_path / "json", tmp_path / "i"
    folder.mkdir()
    write(spec, folder)
    instances.write_text(json.dumps(spec))
    of_coco = ["--images", images, "--annotations", instances, "--string_ids", *FEATURES]
    of_files = ["--images", images, "--annotations", folder, *FEATURES]
    wanted = committed_by(coco.run, tmp_path / "coco", *of_coco)
    got = committed_by(sidecar.run, tmp_path / "out", *of_files)
    summaries = [manifest["splits"]["train"]["annotations"] for manifest in (wanted, got)]
    assert summaries[0] == summaries[1]
    assert summaries[1]["written"] == len(spec["annotations"]) > 150
    labels = [
        [(label["id"], label["name"]) for label in manifest["plan"]["labels"]]
        for manifest in (wanted, got)
    ]
    assert labels[0] == labels[1]
    records = [
        [record for path in shard_paths(tmp_path / out) for record in read_records(path)]
        for out in ("coco", "out")
    ]
    assert records[0] == records[1]
    assert len(records[1]) == 25
