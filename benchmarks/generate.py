"""Draw a COCO-like data set: `images/*.jpg` and `instances.json`; equal seeds give equal bytes.

    python benchmarks/generate.py --out DIR --images 5000

The photos are smooth colour fields under film grain, JPEG quality 92, 640x480 to 640x640 pixels,
159 kB on average: 5,000 come to 793 MB. They compress like photographs and decode like them. Every
photo and its annotations depend on (seed, index) alone, so that two data sets of one seed share
their beginning, and an interrupted run continues where it stopped. JPEG bytes also depend on
Pillow's version.

Needs numpy and Pillow, nothing of beam-tfrec.
"""

import argparse
import io
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

FORMAT = 1
"""Raised whenever the same parameters draw other bytes: older caches are then refused."""

JPEG_QUALITY = 92
LONG_SIDE_PX = 640
SHORT_SIDE_PX = (480, 640)
GRAIN = (2.5, 19.0)
"""Range of the grain's standard deviation, in gray levels: it sets the files' sizes."""
GRAIN_PLANE_PX = 2048
SPARSE_BYTES = (80_000, 240_000)

EMPTY_EVERY = 122
"""One image in this many has no annotation: 41 of 5,000."""
BOXES_PER_IMAGE = 7.08
BOXES_MAX = 60
CROWD_SHARE = 0.01
SECOND_POLYGON_SHARE = 0.1
VERTICES = (6, 36)
EDGE_PX = 1.0

# COCO's ids, with their gaps: a category's id is not its place in the file.
CATEGORIES = (
    "1 person,2 bicycle,3 car,4 motorcycle,5 airplane,6 bus,7 train,8 truck,9 boat,"
    "10 traffic light,11 fire hydrant,13 stop sign,14 parking meter,15 bench,16 bird,17 cat,"
    "18 dog,19 horse,20 sheep,21 cow,22 elephant,23 bear,24 zebra,25 giraffe,27 backpack,"
    "28 umbrella,31 handbag,32 tie,33 suitcase,34 frisbee,35 skis,36 snowboard,37 sports ball,"
    "38 kite,39 baseball bat,40 baseball glove,41 skateboard,42 surfboard,43 tennis racket,"
    "44 bottle,46 wine glass,47 cup,48 fork,49 knife,50 spoon,51 bowl,52 banana,53 apple,"
    "54 sandwich,55 orange,56 broccoli,57 carrot,58 hot dog,59 pizza,60 donut,61 cake,62 chair,"
    "63 couch,64 potted plant,65 bed,67 dining table,70 toilet,72 tv,73 laptop,74 mouse,75 remote,"
    "76 keyboard,77 cell phone,78 microwave,79 oven,80 toaster,81 sink,82 refrigerator,84 book,"
    "85 clock,86 vase,87 scissors,88 teddy bear,89 hair drier,90 toothbrush"
)


@dataclass(frozen=True)
class Recipe:
    """Parameters that decide the bytes of a data set.

    Attributes:
        images: number of photos.
        scale: pixels, and so bytes, of a photo as a multiple of the usual.
        seed: seed of everything drawn.
        photos: `jpeg`; `sparse` for sparse files of a photo's size; `none` for annotations only.
        distinct: photos that are drawn, 0 for all; the others are copies with other comments,
            and so with other bytes and hashes.
    """

    images: int
    scale: float = 1.0
    seed: int = 0
    photos: str = "jpeg"
    distinct: int = 0

    def __post_init__(self) -> None:
        if self.images < 1:
            raise ValueError(f"images must be at least 1, got {self.images}")
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {self.scale}")
        if self.distinct < 0:
            raise ValueError(f"distinct must be 0 or above, got {self.distinct}")

    def stamp(self) -> str:
        """Return the contents of `generation.json`, which is written last."""
        values = {"format": FORMAT, **asdict(self)}
        if not self.distinct:
            del values["distinct"]
        return json.dumps(values, indent=2) + "\n"

    def drawn_as(self, index: int) -> int:
        """Return the index of the photo with the same pixels."""
        return index % self.distinct if self.distinct else index


def image_id(index: int) -> int:
    """Return the id of an image: ascending with gaps, as in COCO.

    >>> [image_id(index) for index in range(4)]
    [9, 13, 18, 23]
    """
    return 9 + index * 4849 // 1000


def size_px(rng: np.random.Generator, scale: float) -> tuple[int, int]:
    """Draw the width and height of a photo, landscape or portrait."""
    long_side = round(LONG_SIDE_PX * scale**0.5)
    short_side = round(int(rng.integers(SHORT_SIDE_PX[0], SHORT_SIDE_PX[1] + 1)) * scale**0.5)
    return (long_side, short_side) if rng.random() < 0.75 else (short_side, long_side)


def photo(index: int, recipe: Recipe) -> bytes:
    """Return the JPEG bytes of one photo."""
    rng = np.random.default_rng([recipe.seed, index])
    width, height = size_px(rng, recipe.scale)
    pixels = _field(rng, width, height, 6) * 3 // 4 + _field(rng, width, height, 48) // 4
    pixels += _grain(rng, width, height, recipe.seed)[:, :, None]
    stream = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(
        stream, "JPEG", quality=JPEG_QUALITY
    )
    return stream.getvalue()


def with_comment(jpeg: bytes, comment: bytes) -> bytes:
    """Return a JPEG with a comment after its first segment; the pixels stay.

    >>> with_comment(bytes.fromhex("ffd8ffe00004aabbffd9"), b"7").hex()
    'ffd8ffe00004aabbfffe000337ffd9'
    """
    end = 4 + int.from_bytes(jpeg[4:6], "big")
    segment = b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment
    return jpeg[:end] + segment + jpeg[end:]


def _field(rng: np.random.Generator, width: int, height: int, cells: int) -> np.ndarray:
    """Draw `cells` random colours across and stretch them smoothly over the photo."""
    colours = rng.integers(0, 256, (cells * 3 // 4, cells, 3), dtype=np.uint8)
    stretched = Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(stretched).astype(np.int16)


def _grain(rng: np.random.Generator, width: int, height: int, seed: int) -> np.ndarray:
    """Cut a random window out of the noise plane, at a random strength."""
    plane = _noise_plane(seed)
    left = int(rng.integers(0, GRAIN_PLANE_PX - width))
    top = int(rng.integers(0, GRAIN_PLANE_PX - height))
    strength = int(rng.uniform(*GRAIN) * 8)
    return plane[top : top + height, left : left + width] * np.int16(strength) >> 8


@cache
def _noise_plane(seed: int) -> np.ndarray:
    """Return one plane of Gaussian noise in 1/32 of its deviation; one per photo is too slow."""
    rng = np.random.default_rng([seed, 1 << 32])
    return (rng.standard_normal((GRAIN_PLANE_PX, GRAIN_PLANE_PX)) * 32).astype(np.int16)


def entries(index: int, recipe: Recipe) -> tuple[str, list[str]]:
    """Return the JSON of one image and of its annotations."""
    of_photo = np.random.default_rng([recipe.seed, recipe.drawn_as(index)])
    width, height = size_px(of_photo, recipe.scale)
    key = image_id(index)
    image = {
        "license": index % 8 + 1,
        "file_name": f"{key:012}.jpg",
        "coco_url": f"http://images.example.org/train2017/{key:012}.jpg",
        "height": height,
        "width": width,
        "date_captured": f"2013-11-{index % 28 + 1:02} {index % 24:02}:{index % 60:02}:01",
        "flickr_url": f"http://photos{index % 9}.example.org/{key * 7919}_{key * 104729:x}_z.jpg",
        "id": key,
    }
    rng = np.random.default_rng([recipe.seed, index, 1])
    boxes = 0
    if index % EMPTY_EVERY != EMPTY_EVERY // 2:
        boxes = min(int(rng.geometric(1 / BOXES_PER_IMAGE)), BOXES_MAX)
    ids = [int(line.split()[0]) for line in CATEGORIES.split(",")]
    annotations = [
        {
            **_outline(rng, width, height),
            "image_id": key,
            "category_id": ids[int(len(ids) * rng.random() ** 2)],
            "id": index * (BOXES_MAX + 4) + number + 1,
        }
        for number in range(boxes)
    ]
    return json.dumps(image), [json.dumps(annotation) for annotation in annotations]


def _outline(rng: np.random.Generator, width: int, height: int) -> dict:
    """Draw an object inside the image: its segmentation, area, crowd flag and box."""
    box_width, box_height = np.exp(rng.uniform(np.log(8), np.log([width * 0.8, height * 0.8])))
    left = rng.uniform(EDGE_PX, width - EDGE_PX - box_width)
    top = rng.uniform(EDGE_PX, height - EDGE_PX - box_height)
    if rng.random() < CROWD_SHARE:
        return _crowd(int(left), int(top), int(box_width), int(box_height), width, height)
    shapes = 1 + (rng.random() < SECOND_POLYGON_SHARE)
    polygons = [_polygon(rng, left, top, box_width, box_height) for _ in range(shapes)]
    return {
        "segmentation": [polygon.ravel().tolist() for polygon in polygons],
        "area": float(sum(_area(polygon) for polygon in polygons)),
        "iscrowd": 0,
        "bbox": _bounds(polygons),
    }


def _polygon(
    rng: np.random.Generator, left: float, top: float, width: float, height: float
) -> np.ndarray:
    """Draw a star-shaped polygon that touches all four sides of its box; x, y rows, 0.01 px."""
    corners = int(rng.integers(*VERTICES))
    angles = np.sort(rng.random(corners)) * 2 * np.pi
    radii = rng.uniform(0.5, 1.0, corners)
    points = np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)
    low = points.min(axis=0)
    unit = (points - low) / (points.max(axis=0) - low)
    return np.round(unit * [width, height] + [left, top], 2)


def _area(polygon: np.ndarray) -> float:
    """Return a polygon's area in px² by the shoelace formula."""
    x, y = polygon.T
    return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2


def _bounds(polygons: list[np.ndarray]) -> list[float]:
    """Return the box `[x, y, width, height]` around polygons, in px."""
    points = np.concatenate(polygons)
    low, high = points.min(axis=0), points.max(axis=0)
    return np.round(np.concatenate([low, high - low]), 2).tolist()


def _crowd(left: int, top: int, box_width: int, box_height: int, width: int, height: int) -> dict:
    """Return a crowd: a filled box as an uncompressed run-length mask, columns first."""
    columns = min(box_width, 40)
    gap = height - box_height
    before = left * height + top
    runs = [before, box_height, *([gap, box_height] * (columns - 1))]
    return {
        "segmentation": {"counts": [*runs, width * height - sum(runs)], "size": [height, width]},
        "area": columns * box_height,
        "iscrowd": 1,
        "bbox": [left, top, columns, box_height],
    }


def generate(recipe: Recipe, out: Path, processes: int = 2) -> bool:
    """Draw a data set into `out`, unless it exists; return whether anything was drawn.

    Raises:
        ValueError: `out` holds a data set of other parameters.
    """
    stamp, begun = out / "generation.json", out / "generation.begun.json"
    for mark in (stamp, begun):
        if mark.exists() and mark.read_text() != recipe.stamp():
            raise ValueError(f"{out} holds other data ({mark.name}): delete it or choose another")
    if stamp.exists():
        return False
    (out / "images").mkdir(parents=True, exist_ok=True)
    begun.write_text(recipe.stamp())
    images: list[str] = []
    annotations: list[str] = []
    for image, of_image in _draw(recipe, out / "images", processes):
        images.append(image)
        annotations.extend(of_image)
    # In COCO's files the annotations of one image are not neighbours.
    order = np.random.default_rng([recipe.seed, 2 << 32]).permutation(len(annotations))
    _write_json(out / "instances.json", images, (annotations[place] for place in order))
    begun.rename(stamp)
    return True


def _draw(recipe: Recipe, folder: Path, processes: int) -> Iterator[tuple[str, list[str]]]:
    jobs = ((index, recipe, folder) for index in range(recipe.images))
    if processes == 1:
        yield from map(_draw_one, jobs)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap(_draw_one, jobs, chunksize=32)


def _draw_one(job: tuple[int, Recipe, Path]) -> tuple[str, list[str]]:
    index, recipe, folder = job
    path = folder / f"{image_id(index):012}.jpg"
    if recipe.photos != "none" and not path.exists():
        # Renamed when whole, so that an interrupted run leaves no half photo.
        unfinished = path.with_suffix(".part")
        if recipe.photos == "sparse":
            unfinished.touch()
            rng = np.random.default_rng([recipe.seed, index, 2])
            os.truncate(unfinished, int(rng.integers(*SPARSE_BYTES)))
        else:
            unfinished.write_bytes(_photo_or_copy(index, recipe, folder))
        unfinished.rename(path)
    return entries(index, recipe)


def _photo_or_copy(index: int, recipe: Recipe, folder: Path) -> bytes:
    """Draw a photo, or copy the one with the same pixels."""
    original = recipe.drawn_as(index)
    if original == index:
        return photo(index, recipe)
    path = folder / f"{image_id(original):012}.jpg"
    jpeg = path.read_bytes() if path.exists() else photo(original, recipe)
    return with_comment(jpeg, b"copy %d" % (index // recipe.distinct))


def _write_json(path: Path, images: list[str], annotations: Iterator[str]) -> None:
    licenses = [{"url": "", "id": number, "name": f"Licence {number}"} for number in range(1, 9)]
    categories = [
        {"supercategory": "thing", "id": int(number), "name": name}
        for number, name in (line.split(" ", 1) for line in CATEGORIES.split(","))
    ]
    with path.open("w", encoding="utf-8", buffering=1 << 20) as stream:
        info = {"description": "Drawn by benchmarks/generate.py", "version": "1.0", "year": 2017}
        stream.write(f'{{"info": {json.dumps(info)}, "licenses": {json.dumps(licenses)}, ')
        stream.write('"images": [' + ", ".join(images) + '], "annotations": [')
        separator = ""
        for annotation in annotations:
            stream.write(separator + annotation)
            separator = ", "
        stream.write(f'], "categories": {json.dumps(categories)}}}')


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to draw into")
    parser.add_argument("--images", type=int, required=True, help="number of photos")
    parser.add_argument("--scale", type=float, default=1.0, help="bytes a photo, times (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of everything drawn (default 0)")
    parser.add_argument("--processes", type=int, default=2, help="drawing processes (default 2)")
    parser.add_argument("--distinct", type=int, default=0, help="photos to draw; copy these after")
    parser.add_argument("--annotations-only", action="store_true", help="draw no photos")
    parser.add_argument(
        "--sparse-images",
        action="store_true",
        help="with --annotations-only: sparse files of a photo's size, for a listing to find",
    )
    args = parser.parse_args(argv)
    if args.sparse_images and not args.annotations_only:
        parser.error("--sparse-images needs --annotations-only")
    photos = "jpeg"
    if args.annotations_only:
        photos = "sparse" if args.sparse_images else "none"
    try:
        recipe = Recipe(args.images, args.scale, args.seed, photos, args.distinct)
        drawn = generate(recipe, args.out, args.processes)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{args.out}: {args.images:,} images, {'drawn' if drawn else 'already there'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
