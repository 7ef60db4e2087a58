"""Near copies: how many are found, how many pairs are false, and the time of clustering.

`python benchmarks/similar.py PHOTOS` blends crops of the photos below a folder to 20,000 pictures,
and plants four copies of each twentieth one in another split. It runs `beam-tfrec similar` with
distances of 4, 6 and 8 bits, and prints which copies share a cluster with their original, and the
share of true pairs among the pairs in clusters. Then it clusters 100,000, 400,000 and a million
hashes: those of the pictures with 20 bits changed, and 5 % with planted neighbours.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, ImageOps

from beam_tfrec.transforms.similar import HashedImage, find_links, make_table

SIZE_PX = (320, 240)
COPIED_EVERY = 20
DISTANCES = (4, 6, 8)


def draw(photos: list[Image.Image], folder: Path, number: int) -> None:
    """Write pictures below `train`, and copies of some of them below `test`."""
    rng = random.Random(7)

    def crop(photo: Image.Image) -> Image.Image:
        width, height = photo.size
        part = rng.uniform(0.35, 0.9)
        size = int(width * part), int(height * part)
        left, top = (rng.randrange(a - b + 1) for a, b in zip(photo.size, size, strict=True))
        found = photo.crop((left, top, left + size[0], top + size[1])).resize(SIZE_PX)
        return ImageOps.mirror(found) if rng.random() < 0.5 else found

    for split in ("train", "test"):
        (folder / split / "a").mkdir(parents=True)
    width, height = SIZE_PX
    for index in range(number):
        one, other = rng.sample(photos, 2)
        picture = Image.blend(crop(one), crop(other), rng.uniform(0.3, 0.7))
        picture.save(folder / f"train/a/{index:05}.jpg", quality=92)
        if index % COPIED_EVERY:
            continue
        part = rng.uniform(0.5, 1.5)
        edge = int(width * 0.02), int(height * 0.02), width, height
        copies = {
            "resized": (picture.resize((int(width * part), int(height * part))), 90),
            "jpeg": (picture, rng.randint(40, 95)),
            "cropped": (picture.crop(edge), 92),
            "mirrored": (ImageOps.mirror(picture), 92),
        }
        for kind, (copy, quality) in copies.items():
            copy.save(folder / f"test/a/{index:05}_{kind}.jpg", quality=quality)


def score(table: Path) -> str:
    """Return the shares of found copies by kind, and the precision of pairs in clusters."""
    rows = pq.read_table(table, columns=["split", "key", "cluster"]).to_pylist()
    cluster_of = dict[tuple[str, str], str]()
    members = defaultdict[str, Counter[str]](Counter)
    for row in rows:
        name, _, kind = Path(row["key"]).stem.partition("_")
        cluster_of[name, kind] = row["cluster"]
        members[row["cluster"]][name] += 1
    found, planted = Counter[str](), Counter[str]()
    for (name, kind), cluster in cluster_of.items():
        if kind:
            planted[kind] += 1
            found[kind] += cluster == cluster_of[name, ""]
    pairs = sum(sum(of.values()) * (sum(of.values()) - 1) for of in members.values())
    true = sum(count * (count - 1) for of in members.values() for count in of.values())
    shares = ", ".join(f"{kind} {found[kind] / planted[kind]:.1%}" for kind in planted)
    return f"{shares}; precision {true / max(pairs, 1):.2%}"


def flipped(rng: np.random.Generator, number: int, bits: int) -> NDArray[np.uint64]:
    """Return masks of up to `bits` bits each."""
    masks = np.zeros(number, np.uint64)
    for _ in range(bits):
        masks ^= np.uint64(1) << rng.integers(0, 64, number).astype(np.uint64)
    return masks


def cluster(table: Path, number: int) -> str:
    """Cluster so many hashes; return the missed neighbours, CPU seconds and peak memory."""
    columns = pq.read_table(table, columns=["phash", "dhash"])
    real = [np.array([int(text, 16) for text in c.to_pylist()], np.uint64) for c in columns]
    rng = np.random.default_rng(1)
    places = rng.integers(0, len(real[0]), number)
    shown = [values[places] ^ flipped(rng, number, 20) for values in real]
    planted, half = number // 20, number // 2
    for values in shown:
        values[:planted] = values[half : half + planted] ^ flipped(rng, planted, 3)
    mirrored = [rng.integers(0, 2**64, number, dtype=np.uint64) for _ in shown]
    hashes = np.stack([*shown, *mirrored], axis=1)
    links = {tuple(pair) for pair in np.sort(find_links(hashes, 6)[:, 2:], axis=1).tolist()}
    missed = sum((index, half + index) not in links for index in range(planted))
    rows = [
        HashedImage("train", str(index), of.astype(">u8").tobytes(), (640, 480))
        for index, of in enumerate(hashes)
    ]
    began = time.process_time()
    make_table(rows, 6, 1000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    seconds = time.process_time() - began
    return f"{number:,} hashes: {missed} of {planted:,} missed, {seconds:.1f} s CPU, {peak} MB"


def main() -> None:
    """Run the measurements; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--hashes", type=int, nargs="*", default=[100_000, 400_000, 1_000_000])
    given = parser.parse_args()
    files = [*given.photos.rglob("*.jpg"), *given.photos.rglob("*.png")]
    photos = [Image.open(file).convert("RGB") for file in sorted(files)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        draw(photos, folder, given.pictures)
        for distance in DISTANCES:
            table = folder / f"{distance}.parquet"
            command = [sys.executable, "-m", "beam_tfrec.pipelines.similar", "folder"]
            command += ["--images", f"train={folder}/train", f"test={folder}/test"]
            command += ["--output", f"{table}", "--distance", f"{distance}"]
            subprocess.run(command, check=True, capture_output=True)
            print(f"{len(photos)} photos, {distance} bits: {score(table)}", flush=True)
        for number in given.hashes:
            print(cluster(table, number), flush=True)


if __name__ == "__main__":
    main()
