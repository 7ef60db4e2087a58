"""Read photos from a bucket that delays each answer, and write shards to it.

    .venv/bin/python benchmarks/latency.py                       30 ms, three rounds
    .venv/bin/python benchmarks/latency.py --delay 100 --rounds 5

The photos are those of bench.py, drawn if need be, served under several names each. The bucket is
`benchmarks/bucket`, built with Go (otherwise only tests of other engines need Go): the tests'
stand-in, in Python, would take more CPU than the measured program. It runs on the same machine; its
CPU is counted apart. Rates are marginal: the additional images of a longer run by its additional
time, so that start-up does not count. The cost of the transfer is the command's cost beyond that
for the same photos on this disk. Linux only; prints Markdown.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from contenders import HERE, OUR_PYTHON, PROJECT
from measure import run_measured
from rounds import draw

sys.path.insert(0, str(PROJECT))

from beam_tfrec.transforms.gate import DEFAULT_REMOTE_READERS
from beam_tfrec.transforms.storage import Entry, Storage, open_storage

IN = "gs://in"
PHOTOS = 5_000
SHORT, LONG = 2_000, 10_000
SHORT_HERE, LONG_HERE = 1_000, 5_000
IMAGES_PER_SHARD = 312
SEQUENTIAL = 200
LIMIT_S = 600
CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MEMORY_LIMITS = ("16MiB", "64MiB", "256MiB")
UPLOAD_MB_PER_S = 150


class Bucket(NamedTuple):
    """A server of buckets: its address and its process."""

    url: str
    pid: int

    def cpu_s(self) -> float:
        """Return the CPU time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * CLOCK_TICK_S


class Took(NamedTuple):
    """Cost of some images: seconds by the clock, of our CPU and of the server's; peak in MB."""

    wall_s: float
    cpu_s: float
    server_cpu_s: float
    peak_mb: float = 0.0


def build_bucket() -> Path:
    """Return the server's program, built if its source has changed."""
    if not shutil.which("go"):
        raise SystemExit("the bucket is built from source: install Go 1.24 or newer")
    program = PROJECT / ".tools/bucket"
    subprocess.run(["go", "build", "-o", program, "."], cwd=HERE / "bucket", check=True)
    return program


@contextmanager
def serving(photos: Path, delay_ms: float, upload_mb_per_s: float = 0) -> Iterator[Bucket]:
    """Serve the photos as `gs://in/0/…`, `gs://in/1/…`, and an empty `gs://out`."""
    flags = [f"-delay={delay_ms}ms", f"-upload={upload_mb_per_s}", f"-copies={LONG // PHOTOS}"]
    command = [build_bucket(), *flags, f"in={photos / 'images'}", "out="]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        os.environ["STORAGE_EMULATOR_HOST"] = server.stdout.readline().strip()
        try:
            yield Bucket(os.environ["STORAGE_EMULATOR_HOST"], server.pid)
        finally:
            server.kill()


def write_annotations(photos: Path, count: int, path: Path, *, here: bool = False) -> None:
    """Write the photos' annotations for this many names, in the bucket or in the local folder."""
    given = json.loads((photos / "instances.json").read_bytes())
    by_image: dict[int, list[dict]] = {}
    for annotation in given["annotations"]:
        by_image.setdefault(annotation["image_id"], []).append(annotation)
    images: list[dict] = []
    annotations: list[dict] = []
    for number in range(count):
        copy, place = divmod(number, len(given["images"]))
        image = given["images"][place]
        name = image["file_name"] if here else f"{copy}/{image['file_name']}"
        images.append({**image, "id": number, "file_name": name})
        for found in by_image.get(image["id"], []):
            annotations.append({**found, "id": len(annotations), "image_id": number})
    path.write_text(json.dumps({**given, "images": images, "annotations": annotations}))


def read_all(storage: Storage, entries: Sequence[Entry], threads: int, bucket: Bucket) -> Took:
    """Read with this many threads, and build nothing."""

    def read(part: Sequence[Entry]) -> None:
        for entry in part:
            storage.read(entry.name, entry)

    started = Took(time.perf_counter(), time.process_time(), bucket.cpu_s())
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, [entries[first::threads] for first in range(threads)]))
    ended = Took(time.perf_counter(), time.process_time(), bucket.cpu_s())
    return Took(*(after - before for before, after in zip(started[:3], ended[:3], strict=True)))


def run(annotations: Path, bucket: Bucket, output: str, *flags: str, images: str = IN) -> Took:
    """Run the command on as many images as the annotation file's name says."""
    num_shards = -(-int(annotations.stem) // IMAGES_PER_SHARD)
    command = [
        *(str(OUR_PYTHON), "-m", "beam_tfrec.pipelines.coco", "--images", images, "--annotations"),
        *(str(annotations), "--output", output, "--no_report"),
        *("--num_shards", str(num_shards), *flags),
    ]
    before_s = bucket.cpu_s()
    found = run_measured(command, PROJECT, LIMIT_S)
    if found.exit_code:
        raise SystemExit(f"exit {found.exit_code}: {found.last_line}")
    shutil.rmtree(output, ignore_errors=True)
    return Took(found.wall_s, found.cpu_s, bucket.cpu_s() - before_s, found.peak_mb)


def row(name: str, one_s: float, images: int, took: Took) -> None:
    """Print a row of the first table."""
    each_us = (1e6 * seconds / images for seconds in (took.cpu_s, took.server_cpu_s))
    rate = images / took.wall_s
    peak = f"{took.peak_mb:.0f}" if took.peak_mb else ""
    cpu, server = (f"{us:.0f}" for us in each_us)
    print(f"| {name} | {rate:,.0f} | {rate * one_s:.0f} | {cpu} | {server} | {peak} |", flush=True)


def beyond(short: Took, long: Took) -> Took:
    """Return the additional cost of the longer run."""
    return Took(*(b - a for a, b in zip(short[:3], long[:3], strict=True)), long.peak_mb)


def measure_reads(photos: Path, folder: Path, bucket: Bucket, rounds: int) -> None:
    """Print rates of reading alone and of the command, and the cost of the transfer."""
    here = {"images": str(photos / "images")}
    storage = open_storage(IN)
    entries = list(storage.list())
    print("| | images/s | x one reader | our CPU, us | the server's | peak MB |")
    print("|---|---|---|---|---|---|")
    for _ in range(rounds):
        sequential = read_all(storage, entries[:SEQUENTIAL], 1, bucket)
        one_s = sequential.wall_s / SEQUENTIAL
        row("one reader", one_s, SEQUENTIAL, sequential)
        threads = DEFAULT_REMOTE_READERS
        row(f"{threads} readers", one_s, LONG, read_all(storage, entries, threads, bucket))
        out = str(folder / "out")
        far = beyond(*(run(folder / f"{count}.json", bucket, out) for count in (SHORT, LONG)))
        row("the command, marginal", one_s, LONG - SHORT, far)
        near = beyond(
            *(
                run(folder / f"here/{count}.json", bucket, out, **here)
                for count in (SHORT_HERE, LONG_HERE)
            )
        )
        row("from this disk, marginal", one_s, LONG_HERE - SHORT_HERE, near)
        transfer_s = far.cpu_s / (LONG - SHORT) - near.cpu_s / (LONG_HERE - SHORT_HERE)
        print(f"| the transfer, marginal | | | {1e6 * transfer_s:.0f} | | |", flush=True)


def measure_memory(folder: Path, bucket: Bucket) -> None:
    """Print the peak for each limit of bytes in flight."""
    for limit in MEMORY_LIMITS:
        out = str(folder / "out")
        took = run(folder / f"{LONG}.json", bucket, out, "--bytes_in_flight", limit)
        print(f"--bytes_in_flight {limit}: peak {took.peak_mb:.0f} MB")


def measure_uploads(photos: Path, folder: Path, delay_ms: float, rounds: int) -> None:
    """Print the time that a slow upload of every shard adds to building them."""
    num_shards = -(-LONG // IMAGES_PER_SHARD)
    shards_bytes = sum(p.stat().st_size for p in (photos / "images").iterdir()) * LONG / PHOTOS
    alone_s = shards_bytes / (UPLOAD_MB_PER_S * 1e6)
    for number in range(rounds):
        with serving(photos, delay_ms, UPLOAD_MB_PER_S) as bucket:
            annotations = folder / f"{LONG}.json"
            built = run(annotations, bucket, str(folder / "out"))
            both = run(annotations, bucket, f"gs://out/{number}")
        print(
            f"built on this disk {built.wall_s:.1f} s; {num_shards} uploads at {UPLOAD_MB_PER_S}"
            f" MB/s, one after the other, {alone_s:.1f} s; both {both.wall_s:.1f} s, of the sum"
            f" {both.wall_s / (built.wall_s + alone_s):.2f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delay", type=float, default=30, help="ms before each answer")
    parser.add_argument("--rounds", type=int, default=3, help="(default 3)")
    parser.add_argument("--photos", type=Path, default=HERE / f"data/photos-{PHOTOS}")
    args = parser.parse_args()
    if not args.photos.exists():
        draw(args.photos.parent, PHOTOS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "here").mkdir()
        for count in (SHORT, LONG):
            write_annotations(args.photos, count, folder / f"{count}.json")
        for count in (SHORT_HERE, LONG_HERE):
            write_annotations(args.photos, count, folder / f"here/{count}.json", here=True)
        with serving(args.photos, args.delay) as bucket:
            measure_reads(args.photos, folder, bucket, args.rounds)
            measure_memory(folder, bucket)
        measure_uploads(args.photos, folder, args.delay, args.rounds)


if __name__ == "__main__":
    main()
