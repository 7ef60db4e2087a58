"""Compare shards with the output of Model Garden's script and decoder for the same COCO files.

Runs in its own environment (`requirements.lock`), where nothing of this project is installed:

    python compare.py --shards OUT/*.tfrec --images DIR --instances FILE [--captions FILE]
                      [--panoptic FILE --panoptic_images DIR] [--masks]

Prints a line per difference, then the number of Examples that were compared. Documented corrections
are not differences: `image/format` is the true one, objects are in the order of their annotations'
ids, and boxes over the edge are clipped, while the script leaves them out.
"""

import argparse
import importlib
import importlib.metadata
import io
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

_OBJECT = "image/object/"
_MASK = "image/object/mask"
_PNGS = (
    "image/segmentation/class/encoded",
    "image/panoptic/category_mask",
    "image/panoptic/instance_mask",
)
_ROUNDING = 6e-8  # half a float32 step below 1: clipped boxes are rounded for the script
_OWN_KEYS = {  # the script does not write these
    "image/object/polygon",
    "image/object/polygon_count",
    "image/object/polygon_length",
    "image/license",
}


def import_alone(name: str) -> Any:
    """Import a module of Model Garden without its packages' own imports, which need all of it."""
    folder = Path(
        str(importlib.metadata.distribution("tf-models-official").locate_file("official"))
    )
    *packages, _ = name.split(".")
    for depth in range(1, len(packages) + 1):
        package = ".".join(packages[:depth])
        if package not in sys.modules:
            module = types.ModuleType(package)
            module.__path__ = [str(folder.joinpath(*packages[1:depth]))]
            sys.modules[package] = module
    return importlib.import_module(name)


def load(path: str) -> Any:
    """Return the content of a JSON file."""
    return json.loads(Path(path).read_text()) if path else {}


def by_image(entries: list[dict]) -> dict[int, list[dict]]:
    """Return annotations per image id, in the file's order."""
    grouped: dict[int, list[dict]] = {}
    for entry in entries:
        grouped.setdefault(entry["image_id"], []).append(entry)
    return grouped


def their_examples(args: argparse.Namespace, script: Any) -> Iterator[tuple[str, Any]]:
    """Yield (image id, Example) as the script makes them; objects and captions sorted by id.

    The script keeps the file's order and leaves out a box over the edge, so it is given sorted
    annotations, and those boxes as they are clipped.
    """
    instances, captions, panoptic = map(load, (args.instances, args.captions, args.panoptic))
    objects = by_image(instances.get("annotations", []))
    texts = by_image(captions.get("annotations", []))
    segments = {entry["image_id"]: entry for entry in panoptic.get("annotations", [])}
    names = {entry["id"]: entry["name"] for entry in instances.get("categories", [])}
    things = {entry["id"]: entry["isthing"] == 1 for entry in panoptic.get("categories", [])}
    for image in (instances or captions)["images"]:
        found = sorted(objects.get(image["id"], []), key=lambda entry: entry["id"])
        example, skipped = script.create_tf_example(
            image,
            [args.images],
            args.panoptic_images,
            [clipped(entry, image) for entry in found],
            names,
            sorted(texts.get(image["id"], []), key=lambda entry: entry["id"]),
            segments.get(image["id"]),
            things,
            include_panoptic_masks=True,
            include_masks=args.masks,
        )
        assert not skipped, (image["id"], skipped)
        yield str(image["id"]), example


def clipped(entry: dict, image: dict) -> dict:
    """Return an annotation with its box cut at the image's edges."""
    x, y, width, height = entry["bbox"]
    if x + width <= image["width"] and y + height <= image["height"] and x >= 0 and y >= 0:
        return entry
    right, bottom = min(x + width, image["width"]), min(y + height, image["height"])
    left, top = max(x, 0), max(y, 0)
    return {**entry, "bbox": [left, top, right - left, bottom - top]}


def values_of(example: Any) -> dict[str, list]:
    """Return the values of every feature that has some."""
    features = example.features.feature
    values = {key: list(getattr(f, f.WhichOneof("kind")).value) for key, f in features.items()}
    return {key: list(found) for key, found in values.items() if found}


def pixels(png: bytes) -> np.ndarray:
    """Return the pixels of a PNG."""
    return np.asarray(Image.open(io.BytesIO(png)))


def differences(ours: dict[str, list], theirs: dict[str, list]) -> Iterator[str]:
    """Yield the keys with values that differ beyond the documented corrections."""
    theirs = {**theirs, "image/format": [b"jpeg"]}
    for key in sorted(ours.keys() | theirs.keys()):
        if key in _OWN_KEYS or key.startswith("image/object/keypoint/"):
            continue
        mine, other = ours.get(key, []), theirs.get(key, [])
        if key == _MASK or key in _PNGS:
            same = len(mine) == len(other) and all(
                np.array_equal(pixels(a), pixels(b)) for a, b in zip(mine, other, strict=True)
            )
        elif key.startswith(f"{_OBJECT}bbox/"):  # their clipped boxes are rounded
            same = (
                np.allclose(mine, other, rtol=0, atol=_ROUNDING)
                if mine and other
                else mine == other
            )
        else:
            same = mine == other
        if not same:
            yield f"{key}: {str(mine)[:80]} is not {str(other)[:80]}"


def same_decoded(decode: Any, ours: bytes, theirs: bytes) -> Iterator[str]:
    """Yield the differences of the two Examples after their decoder."""
    mine, other = decode(ours), decode(theirs)
    for key in sorted(other):
        if key.endswith("_png"):
            continue
        a, b = np.asarray(mine[key].numpy()), np.asarray(other[key].numpy())
        same = a.shape == b.shape and a.dtype.kind == b.dtype.kind
        if same and a.dtype.kind == "f":
            same = np.allclose(a, b, rtol=0, atol=_ROUNDING)
        elif same:
            same = bool((a == b).all())
        if not same:
            yield f"decoded {key}: shape {a.shape} is not {b.shape}, or its values"


def main() -> int:
    """Compare everything; return 0 if all is equal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", nargs="+", required=True)
    for name in ("images", "instances", "captions", "panoptic", "panoptic_images"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--masks", action="store_true")
    args = parser.parse_args()
    script = import_alone("official.vision.data.create_coco_tf_record")
    script.FLAGS(["compare"])
    decoder = import_alone("official.vision.dataloaders.tf_example_decoder")
    decode = decoder.TfExampleDecoder(include_mask=args.masks).decode
    ours = {}
    for record in tf.data.TFRecordDataset(sorted(args.shards)):
        example = tf.train.Example.FromString(record.numpy())
        ours[values_of(example)["image/source_id"][0].decode()] = example
    compared = wrong = 0
    for image_id, theirs in their_examples(args, script):
        mine = ours.pop(image_id, None)
        found = ["not in the shards"]
        if mine is not None:
            found = [*differences(values_of(mine), values_of(theirs))]
            found += same_decoded(decode, mine.SerializeToString(), theirs.SerializeToString())
        for what in found:
            print(f"image {image_id}: {what}")
        compared, wrong = compared + 1, wrong + bool(found)
    for image_id in ours:
        print(f"image {image_id}: only in the shards")
    print(f"{compared} Examples compared, {wrong + len(ours)} differ")
    return bool(wrong or ours)


if __name__ == "__main__":
    sys.exit(main())
