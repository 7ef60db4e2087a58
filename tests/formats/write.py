"""Write the boxes of a COCO file in other formats, with the formats' own tools.

    python write.py FOLDER

The folder has `photos/` and `instances.json`, whose image ids are the names of photos without
extensions. Everything is written next to them.
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import webdataset
import yaml
from datasets import ClassLabel, Dataset, Features, Image, List, Value
from globox import AnnotationSet
from pascal_voc_writer import Writer

Boxes = list[dict[str, Any]]


def write_voc(image: dict[str, Any], boxes: Boxes, names: dict[int, str], folder: Path) -> None:
    """Write VOC's pixels, which count from 1."""
    file = Writer(image["file_name"], image["width"], image["height"])
    for box in boxes:
        x, y, width, height = box["bbox"]
        corners = (x + 1, y + 1, x + width, y + height)
        file.addObject(names[box["category_id"]], *(round(number, 2) for number in corners))
    file.save(folder / f"{image['id']}.xml")


def write_globox(names: dict[int, str], folder: Path) -> None:
    """Write YOLO's label files and data.yaml, XML with pixels from 0, and Open Images' tables."""
    found = AnnotationSet.from_coco(folder / "instances.json")
    numbers = {name: place for place, name in enumerate(names.values())}
    found.save_yolo_v5(folder / "labels", label_to_id=numbers)
    (folder / "images").symlink_to("photos")
    data = {"train": "images", "names": list(names.values())}
    (folder / "data.yaml").write_text(yaml.safe_dump(data))
    found.save_pascal_voc(folder / "voc_from_0")
    by_id = AnnotationSet(one.with_image_id(Path(one.image_id).stem) for one in found)
    by_id.save_openimage(folder / "boxes.csv")
    with (folder / "classes.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows((name, name) for name in names.values())


def columns(image: dict[str, Any], boxes: Boxes, names: dict[int, str]) -> dict[str, list[Any]]:
    """Return the values that records have for objects."""
    by_key: dict[str, list[Any]] = {
        "class/label": [box["category_id"] for box in boxes],
        "class/text": [names[box["category_id"]] for box in boxes],
        "is_crowd": [box["iscrowd"] for box in boxes],
        "area": [box["bbox"][2] * box["bbox"][3] for box in boxes],
    }
    for axis, side, place in (("x", "width", 0), ("y", "height", 1)):
        size = image[side]
        by_key[f"bbox/{axis}min"] = [box["bbox"][place] / size for box in boxes]
        by_key[f"bbox/{axis}max"] = [sum(box["bbox"][place::2]) / size for box in boxes]
    return {f"image/object/{key}": values for key, values in by_key.items()}


def write_webdataset(coco: dict[str, Any], names: dict[int, str], folder: Path) -> None:
    """Write tar files of photos, with the values of records in JSON."""
    with webdataset.ShardWriter(f"{folder}/tars/%03d.tar", maxcount=20, verbose=0) as tars:
        for image in coco["images"]:
            photo = (folder / "photos" / image["file_name"]).read_bytes()
            values = columns(image, coco["boxes"][image["id"]], names)
            values["image/source_id"] = image["id"]
            tars.write({"__key__": image["id"], "jpg": photo, "json": values})


def write_parquet(coco: dict[str, Any], names: dict[int, str], folder: Path) -> None:
    """Write a table of photos and objects, as data sets of Hugging Face have them."""
    numbers = list(names)
    label = ClassLabel(names=list(names.values()))
    objects = {"bbox": List(List(Value("float32"), 4)), "category": List(label)}
    features = Features(image_id=Value("string"), image=Image(), objects=objects)
    rows = []
    for image in coco["images"]:
        name, boxes = image["file_name"], coco["boxes"][image["id"]]
        found = {
            "bbox": [box["bbox"] for box in boxes],
            "category": [numbers.index(box["category_id"]) for box in boxes],
        }
        photo = {"bytes": (folder / "photos" / name).read_bytes(), "path": name}
        rows.append({"image_id": image["id"], "image": photo, "objects": found})
    Dataset.from_list(rows, features=features).to_parquet(folder / "photos.parquet")


def main(folder: Path) -> None:
    """Write all formats into a folder."""
    coco = json.loads((folder / "instances.json").read_text())
    names = {one["id"]: one["name"] for one in coco["categories"]}
    coco["boxes"] = {image["id"]: [] for image in coco["images"]}
    for box in coco["annotations"]:
        coco["boxes"][box["image_id"]].append(box)
    (folder / "voc").mkdir()
    (folder / "tars").mkdir()
    for image in coco["images"]:
        write_voc(image, coco["boxes"][image["id"]], names, folder / "voc")
    write_globox(names, folder)
    write_webdataset(coco, names, folder)
    write_parquet(coco, names, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
