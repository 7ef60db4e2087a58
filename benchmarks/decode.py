"""Cost of the modes that decode, against Pillow alone; and the speed of two cores against one.

    .venv/bin/python -m benchmarks.decode               both; some three minutes on two idle cores
    .venv/bin/python -m benchmarks.decode --images 200  only per image: ours in turn with Pillow

Per image: CPU time of one thread, our code from bytes in memory to checked, converted and built
ones, in turn with the calls of Pillow, or of pycocotools and Pillow, that an expert would write.
Then the whole command, on one core (`taskset -c 0`) and on two, over a few and over more photos:
only the time of the additional photos counts, without start-up and planning.
"""

import argparse
import io
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin
from pycocotools import mask as coco_mask

from beam_tfrec.schemas.geometry.boxes import Resize
from beam_tfrec.schemas.layouts import Labels, Layout
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.transforms.build_records import check_all, convert_all
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.conversion import DEFAULT_QUALITY, NO_CONVERSION, Conversion
from beam_tfrec.transforms.sources.read_coco import CocoReader, CocoRules

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
AT_MOST_OF_PILLOW, AT_LEAST_OF_CORES = 1.15, 1.85
SIDE_PX, QUALITY = 512, 90
JFIF_END = 20  # of the photos that `generate.py` draws
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # turned by 90°


@dataclass(frozen=True)
class Photo:
    """A photo's bytes, its sample, and its objects' outlines from COCO's file."""

    data: bytes
    sample: Sample
    size_px: tuple[int, int]
    polygons: list[list[list[float]]]


@dataclass(frozen=True)
class Mode:
    """A task for our code, the same for Pillow, and the pipeline's flags."""

    pillow: Callable[[Photo], object]
    flags: tuple[str, ...]
    check: Check = Check.HEADER
    conversion: Conversion = NO_CONVERSION
    layout: Layout | None = None
    labels: Labels = field(default_factory=lambda: {n: Label(n, str(n)) for n in range(1, 91)})

    def ours(self, photo: Photo) -> object:
        """Process an image's bytes as a reader of the pipeline does."""
        images = check_all(photo.sample, [photo.data], self.check, self.conversion)
        if self.conversion.changes or self.conversion.turns:
            images = convert_all(photo.sample, images, self.conversion)
        return self.layout.build(photo.sample, images, self.labels) if self.layout else images


def decode(photo: Photo) -> None:
    """Decode a photo."""
    with Image.open(io.BytesIO(photo.data)) as image:
        image.load()


def resize(photo: Photo) -> bytes:
    """Resize it to the given longer side."""
    with Image.open(io.BytesIO(photo.data)) as image:
        scale = SIDE_PX / max(image.size)
        size_px = round(image.width * scale), round(image.height * scale)
        resized = image.resize(size_px, Image.Resampling.BILINEAR)
    out = io.BytesIO()
    resized.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def turn(photo: Photo) -> bytes:
    """Turn it by its EXIF orientation."""
    with Image.open(io.BytesIO(photo.data)) as image:
        turned = ImageOps.exif_transpose(image)
        subsampling = JpegImagePlugin.get_sampling(image)
    out = io.BytesIO()
    turned.save(
        out,
        "JPEG",
        quality=DEFAULT_QUALITY,
        subsampling=subsampling,
        exif=turned.getexif().tobytes(),
    )
    return out.getvalue()


def draw_masks(photo: Photo) -> list[bytes]:
    """Draw its objects' masks as PNGs."""
    width, height = photo.size_px
    pngs = []
    for polygons in photo.polygons:
        mask = coco_mask.decode(coco_mask.merge(coco_mask.frPyObjects(polygons, height, width)))
        out = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(mask)).save(out, "PNG")
        pngs.append(out.getvalue())
    return pngs


RESIZED = ("--resize", str(SIDE_PX), "--quality", str(QUALITY))
MODES = {
    "--check decode": Mode(decode, ("--check", "decode"), check=Check.DECODE),
    f"--resize {SIDE_PX}": Mode(
        resize, RESIZED, conversion=Conversion(Resize(SIDE_PX, SIDE_PX), quality=QUALITY)
    ),
    "--orientation upright": Mode(
        turn, ("--orientation", "upright"), conversion=Conversion(turns=True)
    ),
    "--features boxes,masks": Mode(
        draw_masks,
        ("--features", "boxes,masks"),
        layout=DetectionLayout(features=("boxes", "masks")),
    ),
}


def drawn(data_dir: Path, images: int) -> Path:
    """Draw photos once, and copies with an EXIF orientation; later calls find them."""
    folder = data_dir / f"photos-{images}"
    script = [sys.executable, str(HERE / "generate.py"), "--out", str(folder)]
    subprocess.run([*script, "--images", str(images)], check=True, stdout=sys.stderr)
    turned = folder / "turned"
    turned.mkdir(exist_ok=True)
    for path in (folder / "images").iterdir():
        if not (turned / path.name).exists():
            (turned / path.name).write_bytes(with_orientation(path.read_bytes()))
    return folder


def with_orientation(jpeg: bytes) -> bytes:
    """Return a photo with an EXIF orientation of a quarter turn."""
    segment = b"\xff\xe1" + (len(EXIF) + 2).to_bytes(2, "big") + EXIF
    return jpeg[:JFIF_END] + segment + jpeg[JFIF_END:]


def read_photos(folder: Path, images: Path) -> list[Photo]:
    """Read photos that have polygons only, since other masks are drawn in another way."""
    data = (folder / "instances.json").read_bytes()
    coco, photos = json.loads(data), []
    outlines: dict[int, list] = {}
    for annotation in sorted(coco["annotations"], key=lambda found: found["id"]):
        outlines.setdefault(annotation["image_id"], []).append(annotation["segmentation"])
    names = {str(image["id"]): image["file_name"] for image in coco["images"]}
    rules = CocoRules(segmentations=True)
    for sample in CocoReader(rules).read("train", [("instances.json", data)]):
        if not isinstance(sample, Sample):
            continue
        polygons = outlines.get(int(sample.key), [])
        if all(isinstance(outline, list) for outline in polygons):
            photo = (images / names[sample.key]).read_bytes()
            photos.append(Photo(photo, sample, Image.open(io.BytesIO(photo)).size, polygons))
    return photos


def cpu_ms(work: Callable[[Photo], object], photos: list[Photo]) -> float:
    """Return the milliseconds of CPU that this thread takes for an image."""
    began = time.thread_time()
    for photo in photos:
        work(photo)
    return (time.thread_time() - began) / len(photos) * 1e3


def per_image(folder: Path, rounds: int) -> None:
    """Print a row for each mode: medians, and the ratio within rounds."""
    print("| | ours, CPU ms an image | Pillow | ours / Pillow | at most 1.15 |")
    print("|---|---|---|---|---|")
    for name, mode in MODES.items():
        images = folder / ("turned" if mode.pillow is turn else "images")
        photos = read_photos(folder, images)
        times = [(cpu_ms(mode.ours, photos), cpu_ms(mode.pillow, photos)) for _ in range(rounds)]
        ratios = [ours / theirs for ours, theirs in times]
        ours, theirs = map(statistics.median, zip(*times, strict=True))
        ratio = statistics.median(ratios)
        met = "met" if ratio <= AT_MOST_OF_PILLOW else "missed"
        print(
            f"| `{name}` | {ours:.2f} | {theirs:.2f} | {ratio:.2f} ({min(ratios):.2f} to"
            f" {max(ratios):.2f}) | {met} |",
            flush=True,
        )


def wall_s(folder: Path, mode: Mode, one_core: bool) -> float:
    """Return the seconds of the whole command."""
    out = folder.parent / "decode-out"
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "beam_tfrec.pipelines.coco",
        "--no_report",
        "--num_shards",
        "16",
    ]
    command += ["--images", str(folder / ("turned" if mode.pillow is turn else "images"))]
    command += ["--annotations", str(folder / "instances.json"), "--output", str(out), *mode.flags]
    began = time.perf_counter()
    subprocess.run(
        [*(["taskset", "-c", "0"] if one_core else []), *command],
        cwd=PROJECT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    took_s = time.perf_counter() - began
    shutil.rmtree(out)
    return took_s


def two_cores(few: Path, more: Path, further: int, rounds: int) -> None:
    """Print a row for each mode and round: the command on one core and on two."""
    print(f"| | 1 core: few, more | 2 cores | images/s of {further:,} more: 1, 2 | 2 / 1, all |")
    print("|---|---|---|---|---|")
    for _ in range(rounds):
        for name, mode in MODES.items():
            (one_few, two_few), (one_more, two_more) = (
                [wall_s(folder, mode, one_core) for one_core in (True, False)]
                for folder in (few, more)
            )
            one, two = one_more - one_few, two_more - two_few
            met = "met" if one / two >= AT_LEAST_OF_CORES else "missed"
            print(
                f"| `{name}` | {one_few:.1f}, {one_more:.1f} s | {two_few:.1f}, {two_more:.1f} s"
                f" | {further / one:,.0f}, {further / two:,.0f}: {one / two:.2f} x"
                f" (at least {AT_LEAST_OF_CORES}: {met}) | {one_more / two_more:.2f} x |",
                flush=True,
            )


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, help="measure this many, without the command")
    parser.add_argument("--few", type=int, default=1000, help="photos of a short run (1,000)")
    parser.add_argument("--more", type=int, default=3000, help="photos of a long run (3,000)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds per image (default 7)")
    parser.add_argument("--runs", type=int, default=1, help="rounds of commands (default 1)")
    parser.add_argument("--data-dir", type=Path, default=HERE / "data", help="for photos, outputs")
    args = parser.parse_args(argv)
    data_dir = args.data_dir.resolve()
    per_image(drawn(data_dir, args.images or 100), args.rounds)
    if args.images is None:
        few, more = drawn(data_dir, args.few), drawn(data_dir, args.more)
        print()
        two_cores(few, more, args.more - args.few, args.runs)


if __name__ == "__main__":
    main()
