"""A data set of pictures on their side, kept and turned, by the command."""

import hashlib
import json
from pathlib import Path

import numpy as np

from tests.coco_command import examples, run_coco, shard_paths, value
from tests.turned_images import as_stored, as_viewed, every_pixel_another, oriented, png_of

WIDTH_PX, HEIGHT_PX = 7, 5

# File name, EXIF orientation, whether the JSON has the size of the upright picture.
SET = [
    ("plain.png", 1, False),
    ("stored.png", 6, False),
    ("viewed.png", 6, True),
    ("mirrored.png", 2, False),
]
BBOX = [1.0, 2.0, 3.0, 2.0]


def write_set(folder: Path) -> list[object]:
    """Write a set of four small pictures; return the flags that name it."""
    images = folder / "images"
    images.mkdir(parents=True)
    listed = []
    for number, (name, orientation, upright) in enumerate(SET, start=1):
        pixels = every_pixel_another(WIDTH_PX, HEIGHT_PX) + 40 * number
        data = png_of(pixels)
        (images / name).write_bytes(oriented(data, orientation) if orientation != 1 else data)
        size = (HEIGHT_PX, WIDTH_PX) if upright else (WIDTH_PX, HEIGHT_PX)
        listed.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
    objects = [
        {"id": number, "image_id": number, "category_id": 1, "bbox": BBOX, "area": 6.0}
        | {"iscrowd": 0, "segmentation": []}
        for number in range(1, len(SET) + 1)
    ]
    categories = [{"id": 1, "name": "person"}]
    spec = {"images": listed, "annotations": objects, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(spec))
    return ["--images", images, "--annotations", folder / "instances.json", "--num_shards", 1]


def pixels_in_boxes(out: Path) -> dict[str, set[int]]:
    """Return the pixels in the one box of each image, by file name."""
    found = {}
    for example in examples(out):
        pixels = as_stored(value(example, "image/encoded")[0])
        assert value(example, "image/height") + value(example, "image/width") == list(pixels.shape)
        edges = [
            value(example, f"image/object/bbox/{e}")[0] for e in ("ymin", "ymax", "xmin", "xmax")
        ]
        top, low, left, right = np.round(np.multiply(edges, np.repeat(pixels.shape, 2))).astype(int)
        name = value(example, "image/filename")[0].decode()
        found[name] = set(pixels[top:low, left:right].flat)
    return found


def summary_of(out: Path) -> dict:
    return json.loads((out / "manifest.json").read_bytes())["splits"]["train"]


def test_orientation_has_its_effect(tmp_path: Path) -> None:
    sources = write_set(tmp_path)
    for orientation in ("keep", "upright"):
        run = run_coco(*sources, "--output", tmp_path / orientation, "--orientation", orientation)
        assert run.code == 0, run.err
    assert run_coco(*sources, "--output", tmp_path / "default").code == 0
    kept, turned = tmp_path / "keep", tmp_path / "upright"
    assert summary_of(kept)["repairs"] == {"boxes_turned": 1, "frame_assumed": 1}
    assert summary_of(kept)["traits"] == {"exif_orientation": 3, "gray": 4}
    assert summary_of(turned)["repairs"] == {
        "boxes_turned": 2,
        "frame_assumed": 1,
        "image_turned": 3,
    }
    assert summary_of(turned)["traits"] == {"gray": 4}
    assert pixels_in_boxes(turned) == pixels_in_boxes(kept)
    assert len(pixels_in_boxes(kept)["stored.png"]) == 6
    for example in examples(turned):
        path = tmp_path / "images" / value(example, "image/filename")[0].decode()
        (data,), (sha256,) = (value(example, f"image/{k}") for k in ("encoded", "key/sha256"))
        np.testing.assert_array_equal(as_stored(data), as_viewed(path.read_bytes()))
        assert sha256.decode() == hashlib.sha256(data).hexdigest()
    assert shard_paths(kept)[0].read_bytes() == shard_paths(tmp_path / "default")[0].read_bytes()
    assert shard_paths(kept)[0].read_bytes() != shard_paths(turned)[0].read_bytes()
