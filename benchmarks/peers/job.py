"""The job that every peer does: photos and a COCO file in, 16 shuffled shards out.

Each peer is called as `PEER.py IMAGES_DIR ANNOTATIONS_FILE OUT_DIR`. This module has what
their published recipes share; the reading, the encoding and the writing are each peer's own.
"""

import argparse
import json
import random
from pathlib import Path

SHARDS = 16
SEED = 0


def arguments() -> argparse.ArgumentParser:
    """Return the parser of a peer's command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("annotations", type=Path)
    parser.add_argument("out", type=Path)
    return parser


def load_rows(annotations: Path) -> tuple[list[dict], dict[int, str]]:
    """Read a COCO file as recipes do; return shuffled images, each with `objects`, and the names.

    Images without annotations are returned too, with empty `objects`. The polygons
    are dropped: no peer writes them, and Beam would pickle them.
    """
    with annotations.open(encoding="utf-8") as stream:
        coco = json.load(stream)
    rows = {image["id"]: {**image, "objects": []} for image in coco["images"]}
    for annotation in coco["annotations"]:
        del annotation["segmentation"]
        rows[annotation["image_id"]]["objects"].append(annotation)
    shuffled = list(rows.values())
    random.Random(SEED).shuffle(shuffled)
    return shuffled, {category["id"]: category["name"] for category in coco["categories"]}


def object_columns(row: dict, names: dict[int, str]) -> dict[str, list]:
    """Return the object features of a detection Example: boxes as fractions, classes, areas."""
    width, height, objects = row["width"], row["height"], row["objects"]
    boxes = [annotation["bbox"] for annotation in objects]
    return {
        "bbox/xmin": [x / width for x, _, _, _ in boxes],
        "bbox/xmax": [(x + w) / width for x, _, w, _ in boxes],
        "bbox/ymin": [y / height for _, y, _, _ in boxes],
        "bbox/ymax": [(y + h) / height for _, y, _, h in boxes],
        "class/text": [names[annotation["category_id"]].encode() for annotation in objects],
        "class/label": [annotation["category_id"] for annotation in objects],
        "is_crowd": [annotation["iscrowd"] for annotation in objects],
        "area": [annotation["area"] for annotation in objects],
    }


def object_text(row: dict, names: dict[int, str]) -> bytes:
    """Return the same features as JSON, for formats without lists of any length."""
    columns = object_columns(row, names)
    columns["class/text"] = [name.decode() for name in columns["class/text"]]
    return json.dumps(columns).encode()
