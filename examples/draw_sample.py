"""Draw a small COCO data set: pictures of shapes in two splits, with the faults of real data.

`python examples/draw_sample.py OUT` makes OUT/{train,val}/ and OUT/{train,val}.json. These hold 200
pictures with boxes, polygons and a crowd. Each split has a PNG named .jpg, a box over the edge and
a box outside. In `train` one picture is truncated, one is an HTML page, and one is missing.
"""

import argparse
import json
import math
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

SPLITS = {"train": 160, "val": 40}
CATEGORIES = ["circle", "square", "triangle"]
WIDTH, HEIGHT = 320, 240
Polygon = list[tuple[float, float]]


def main() -> None:
    """Draw both splits, unless they exist."""
    parser = argparse.ArgumentParser(description="Draw a small COCO data set.")
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    if (out / "val.json").exists():  # written last
        print(f"sample data set in {out}: exists already")
        return
    for split, count in SPLITS.items():
        draw_split(out, split, count)
    print(f"sample data set in {out}: {sum(SPLITS.values())} pictures")


def draw_split(out: Path, split: str, count: int) -> None:
    """Draw a split's pictures into OUT/SPLIT and write OUT/SPLIT.json."""
    rng = random.Random(split)
    folder = out / split
    folder.mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number in range(1, count + 1):
        name = f"{number:06}.jpg"
        picture = background(rng)
        for _ in range(rng.randint(0, 6)):
            label = rng.randrange(len(CATEGORIES))
            polygon = draw_shape(picture, label, rng)
            annotations.append(annotate(len(annotations) + 1, number, label + 1, polygon))
        kind = "PNG" if number == 7 else "JPEG"
        picture.filter(ImageFilter.GaussianBlur(0.6)).save(folder / name, kind)
        images.append({"id": number, "file_name": name, "width": WIDTH, "height": HEIGHT})
    spoil(folder, annotations, split)
    categories = [{"id": i, "name": name} for i, name in enumerate(CATEGORIES, start=1)]
    spec = {"images": images, "annotations": annotations, "categories": categories}
    (out / f"{split}.json").write_text(json.dumps(spec))


def background(rng: random.Random) -> Image.Image:
    """Return a soft gradient with some grain."""
    low, high = (tuple(rng.randint(40, 200) for _ in range(3)) for _ in range(2))
    ramp = Image.linear_gradient("L").resize((WIDTH, HEIGHT)).rotate(rng.choice([0, 180]))
    picture = Image.composite(
        Image.new("RGB", (WIDTH, HEIGHT), low), Image.new("RGB", (WIDTH, HEIGHT), high), ramp
    )
    grain = Image.frombytes("L", (WIDTH, HEIGHT), rng.randbytes(WIDTH * HEIGHT))
    return Image.blend(picture, grain.convert("RGB"), 0.08)


def draw_shape(picture: Image.Image, label: int, rng: random.Random) -> Polygon:
    """Draw one shape inside the picture and return its outline."""
    radius = rng.uniform(10, 45)
    x, y = rng.uniform(radius, WIDTH - radius), rng.uniform(radius, HEIGHT - radius)
    corners = [24, 4, 3][label]
    turn = rng.uniform(0, math.tau)
    outline = [
        (x + radius * math.cos(turn + math.tau * k / corners),
         y + radius * math.sin(turn + math.tau * k / corners))
        for k in range(corners)
    ]  # fmt: skip
    color = tuple(rng.randint(0, 255) for _ in range(3))
    ImageDraw.Draw(picture).polygon(outline, fill=color, outline=(20, 20, 20))
    return outline


def annotate(number: int, image: int, category: int, polygon: Polygon) -> dict:
    """Return the COCO annotation of an outline."""
    xs, ys = zip(*polygon, strict=True)
    x, y, width, height = min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)
    corners = zip(polygon, polygon[1:] + polygon[:1], strict=True)
    area = abs(sum(ax * by - bx * ay for (ax, ay), (bx, by) in corners)) / 2
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "segmentation": [[round(v, 2) for point in polygon for v in point]],
        "bbox": [round(v, 2) for v in (x, y, width, height)],
        "area": round(area, 2),
        "iscrowd": 0,
    }


def spoil(folder: Path, annotations: list[dict], split: str) -> None:
    """Add a crowd, boxes over the edge and outside, and in `train` broken files."""
    first, second, third = annotations[:3]
    first |= {"iscrowd": 1, "segmentation": {"size": [HEIGHT, WIDTH], "counts": [WIDTH * HEIGHT]}}
    second["bbox"][0] = WIDTH - second["bbox"][2] / 2
    third["bbox"][1] = HEIGHT + 5.0
    if split == "train":
        broken = folder / "000020.jpg"
        broken.write_bytes(broken.read_bytes()[:-2000])
        (folder / "000021.jpg").write_text("<html><body>404 Not Found</body></html>")
        (folder / "000022.jpg").unlink()


if __name__ == "__main__":
    main()
