"""Read images from a bucket that takes its time over each request: the pipeline against one reader.

`.venv/bin/python benchmarks/latency.py [LATENCY_MS]` serves small photos from the tests' stand-in
of Cloud Storage, in a process of its own, which answers each request after 30 ms. One after the
other, a reader gets some 30 a second. The pipeline's rate is marginal: the images of a longer run
beyond those of a shorter one, by the time beyond, so that start-up does not count. The stand-in
takes CPU of the same machine, and holds the interpreter's lock: it may well be the limit.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.conftest import coco_dict, jpeg_bytes
from tests.gcs_stand_in import GcsStandIn
from transforms.storage import open_storage

SHORT, LONG = 2_000, 8_000
SEQUENTIAL = 100
IMAGE_BYTES = 20_000
ROUNDS = 3


def serve(images: int, latency_s: float, sender: Connection) -> None:
    """Serve images until told to stop."""
    with GcsStandIn() as gcs:
        data = jpeg_bytes(quality=90)
        padded = data + bytes(IMAGE_BYTES - len(data))
        for number in range(images):
            gcs.put("in", f"photos/a{number:03}.jpg", padded)
        for count in (SHORT, LONG):
            gcs.put("in", f"{count}.json", json.dumps(coco_dict(count)).encode())
        gcs.latency_s = latency_s
        sender.send(gcs.url)
        sender.recv()


@contextmanager
def serving(images: int, latency_s: float) -> Iterator[str]:
    """Serve from another process; gives the address."""
    context = get_context("spawn")
    receiver, sender = context.Pipe()
    server = context.Process(target=serve, args=(images, latency_s, sender))
    server.start()
    yield receiver.recv()
    receiver.send(None)
    server.join()


def sequential_s() -> float:
    """Return what one reader takes an image."""
    storage = open_storage("gs://in/photos")
    names = [f"a{number:03}.jpg" for number in range(SEQUENTIAL)]
    entries = [storage.stat(name) for name in names]
    started_s = time.perf_counter()
    for entry in entries:
        assert entry is not None
        storage.read(entry.name, entry)
    return (time.perf_counter() - started_s) / SEQUENTIAL


def run_s(count: int, folder: Path) -> float:
    """Return what the command takes for so many images, listed among all."""
    command = [
        *(sys.executable, "-m", "pipelines.coco", "--images", "gs://in/photos"),
        *("--annotations", f"gs://in/{count}.json", "--output", str(folder / f"out-{count}")),
        *("--num_shards", str(count // 250)),
    ]
    started_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started_s


def main() -> None:
    """Measure and print."""
    latency_ms = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    with serving(LONG, latency_ms / 1000) as url:
        os.environ["STORAGE_EMULATOR_HOST"] = url
        for _ in range(ROUNDS):
            one_s = sequential_s()
            with tempfile.TemporaryDirectory() as folder:
                short_s, long_s = run_s(SHORT, Path(folder)), run_s(LONG, Path(folder))
            each_s = (long_s - short_s) / (LONG - SHORT)
            print(
                f"one reader {1 / one_s:.0f} images/s; {SHORT} images in {short_s:.2f} s,"
                f" {LONG} in {long_s:.2f} s: {1 / each_s:.0f} images/s, {one_s / each_s:.1f} x;"
                f" start-up and all {SHORT * one_s / short_s:.1f} x and"
                f" {LONG * one_s / long_s:.1f} x"
            )


if __name__ == "__main__":
    main()
