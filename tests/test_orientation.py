"""A data set of pictures on their side, kept and turned, by the command."""

import hashlib
from pathlib import Path

import numpy as np

from tests.coco_command import committed, examples, shard_paths, value, write_coco
from tests.turned_images import as_stored, as_viewed, every_pixel_another, oriented, png_of

WIDTH_PX, HEIGHT_PX = 7, 5

# File name, EXIF orientation, whether the JSON has the size of the upright picture.
SET = [
    ("plain.png", 1, False),
    ("stored.png", 6, False),
    ("viewed.png", 6, True),
    ("mirrored.png", 2, False),
]
OBJECT = {"category_id": 1, "bbox": [1.0, 2.0, 3.0, 2.0], "area": 6.0, "iscrowd": 0}


def write_set(folder: Path) -> tuple[Path, Path]:
    """Write a set of four small pictures; return its images and its annotation file."""
    images = folder / "images"
    images.mkdir(parents=True)
    listed = []
    for number, (name, orientation, upright) in enumerate(SET, start=1):
        data = png_of(every_pixel_another(WIDTH_PX, HEIGHT_PX) + 40 * number)
        (images / name).write_bytes(oriented(data, orientation) if orientation != 1 else data)
        size = (HEIGHT_PX, WIDTH_PX) if upright else (WIDTH_PX, HEIGHT_PX)
        listed.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
    objects = [{"id": image["id"], "image_id": image["id"], **OBJECT} for image in listed]
    categories = [{"id": 1, "name": "person"}]
    spec = {"images": listed, "annotations": objects, "categories": categories}
    return images, write_coco(folder, spec)


def pixels_in_boxes(out: Path) -> dict[str, set[int]]:
    """Return the pixels in the one box of each image, by file name."""
    found = {}
    for example in examples(out):
        pixels = as_stored(value(example, "image/encoded")[0])
        assert value(example, "image/height") + value(example, "image/width") == list(pixels.shape)
        keys = (f"image/object/bbox/{edge}" for edge in ("ymin", "ymax", "xmin", "xmax"))
        edges = [value(example, key)[0] for key in keys]
        top, low, left, right = np.round(np.multiply(edges, np.repeat(pixels.shape, 2))).astype(int)
        name = value(example, "image/filename")[0].decode()
        found[name] = set(pixels[top:low, left:right].flat)
    return found


def test_orientation_has_its_effect(tmp_path: Path) -> None:
    sources, kept, turned = write_set(tmp_path), tmp_path / "keep", tmp_path / "upright"
    of_kept = committed(sources, kept, "--orientation", "keep")["splits"]["train"]
    of_turned = committed(sources, turned, "--orientation", "upright")["splits"]["train"]
    committed(sources, tmp_path / "default")
    repairs = {"boxes_turned": 1, "frame_assumed": 1}
    assert of_kept["repairs"] == repairs
    assert of_kept["traits"] == {"exif_orientation": 3, "gray": 4}
    assert of_turned["repairs"] == repairs | {"boxes_turned": 2, "image_turned": 3}
    assert of_turned["traits"] == {"gray": 4}
    assert pixels_in_boxes(turned) == pixels_in_boxes(kept)
    assert len(pixels_in_boxes(kept)["stored.png"]) == 6
    for example in examples(turned):
        path = sources[0] / value(example, "image/filename")[0].decode()
        (data,), (sha256,) = (value(example, f"image/{k}") for k in ("encoded", "key/sha256"))
        np.testing.assert_array_equal(as_stored(data), as_viewed(path.read_bytes()))
        assert sha256.decode() == hashlib.sha256(data).hexdigest()
    by_default, (shard,) = shard_paths(tmp_path / "default"), shard_paths(kept)
    assert [path.read_bytes() for path in by_default] == [shard.read_bytes()]
