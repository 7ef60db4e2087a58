"""Sources of each kind, drawn with `examples/draw_sample.py`, for clones without real photos."""

import random
from pathlib import Path

from PIL import Image

from examples.draw_sample import CATEGORIES, background, draw_shape, draw_split

SCALE = 4


def draw_coco(folder: Path, pictures: int) -> tuple[Path, Path]:
    """Draw pictures with boxes, and return their folder and annotation file."""
    draw_split(folder, "val", pictures)  # the split without broken files
    return folder / "val", folder / "val.json"


def draw_classes(folder: Path, of_each: int) -> Path:
    """Draw pictures of one shape each, in one folder a shape, and return the root."""
    rng = random.Random(0)
    for label, name in enumerate(CATEGORIES):
        (folder / name).mkdir(parents=True)
        for number in range(of_each):
            picture = background(rng)
            draw_shape(picture, label, rng)
            picture.save(folder / name / f"{number:03}.jpg")
    return folder


def draw_pairs(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Draw pictures, and each at a quarter of its size; return the folders of low and high ones."""
    rng = random.Random(0)
    low, high = folder / "low", folder / "high"
    low.mkdir(parents=True)
    high.mkdir()
    for number in range(pairs):
        picture = background(rng)
        draw_shape(picture, number % len(CATEGORIES), rng)
        picture.save(high / f"{number:03}.png")
        size = (picture.width // SCALE, picture.height // SCALE)
        picture.resize(size, Image.Resampling.BICUBIC).save(low / f"{number:03}.png")
    return low, high
