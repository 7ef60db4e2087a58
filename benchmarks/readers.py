"""Read records: in order, at random from the page cache, and from a bucket with a delay.

`.venv/bin/python benchmarks/readers.py [LATENCY_MS [IMAGE_BYTES]]` writes shards of random bytes of
160 kB as photos, of detection records and of records of two features, and reads them with
`beam_tfrec.open` and, where it is installed (`pip install tfrecord`), with PyTorch's `tfrecord`
package, which needs no PyTorch. Contenders alternate, in one process each round; figures are
medians, ratios are taken within a round, by the clock and by CPU time, which says more on a shared
machine. The bucket is the tests' stand-in, in its own process on the same machine, with a delay of
30 ms for each answer: it takes as much CPU as we do, and may well be the limit.
"""

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import beam_tfrec
from beam_tfrec.schemas.example import FeatureValues, encode_example
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from tests.gcs_stand_in import GcsStandIn
from tests.small_data_sets import write_data_set

SHARDS, RECORDS_PER_SHARD = 8, 250
IMAGE_BYTES = 160_000
OBJECTS = 7
BATCH = 256
ROUNDS = 5
BUCKET_READS = 3_000
EDGES = ("xmin", "xmax", "ymin", "ymax")
IMAGE = Feature("image/encoded", Kind.BYTES, False, "a photo", Content.IMAGE)
CLASSIFICATION = FeatureSpec(
    "classification", (IMAGE, Feature("image/class/label", Kind.INT64, False, "an id"))
)
DETECTION = FeatureSpec(
    "detection",
    (
        IMAGE,
        Feature("image/height", Kind.INT64, False, "px"),
        Feature("image/width", Kind.INT64, False, "px"),
        Feature("image/filename", Kind.BYTES, False, "a name"),
        Feature("image/source_id", Kind.BYTES, False, "an id"),
        Feature("image/key/sha256", Kind.BYTES, False, "hex"),
        Feature("image/format", Kind.BYTES, False, "jpeg"),
        *(Feature(f"image/object/bbox/{edge}", Kind.FLOAT, True, "edges") for edge in EDGES),
        Feature("image/object/class/text", Kind.BYTES, True, "names"),
        Feature("image/object/class/label", Kind.INT64, True, "ids"),
        Feature("image/object/is_crowd", Kind.INT64, True, "0 or 1"),
        Feature("image/object/area", Kind.FLOAT, True, "px"),
    ),
)


def values_of(spec: FeatureSpec, draw: random.Random, image_bytes: int) -> FeatureValues:
    """Return values of every feature."""
    some = {Kind.BYTES: b"some text", Kind.FLOAT: 0.5, Kind.INT64: 640}
    values = {
        f.key: (f.kind, [some[f.kind]] * (OBJECTS if f.repeated else 1)) for f in spec.features
    }
    return {**values, IMAGE.key: (Kind.BYTES, [draw.randbytes(image_bytes)])}


def write_records(folder: Path, spec: FeatureSpec, image_bytes: int = IMAGE_BYTES) -> Path:
    """Write a data set of random bytes."""
    draw = random.Random(0)
    shards = [
        {
            f"{shard}-{n}": encode_example(values_of(spec, draw, image_bytes))
            for n in range(RECORDS_PER_SHARD)
        }
        for shard in range(SHARDS)
    ]
    return write_data_set(folder / spec.name, spec, {"train": shards})


def ours_in_order(output: Path) -> int:
    """Read all records with `beam_tfrec.open`."""
    return sum(1 for _ in beam_tfrec.open(str(output), "train"))


def theirs_in_order(output: Path) -> int:
    """Read all records with the `tfrecord` package."""
    from tfrecord.reader import tfrecord_loader

    paths = sorted(output.glob("*.tfrec"))
    return sum(1 for path in paths for _ in tfrecord_loader(str(path), None, None))


def one_by_one(output: Path) -> int:
    """Read records at random, each alone."""
    records = beam_tfrec.open(str(output), "train")
    order = random.Random(1).sample(range(len(records)), len(records))
    return sum(1 for place in order if records[place])


def in_batches(root: str, count: int = 0) -> int:
    """Read records at random, a batch at a time."""
    records = beam_tfrec.open(root, "train")
    draw = random.Random(1)
    order = [draw.randrange(len(records)) for _ in range(count or len(records))]
    for start in range(0, len(order), BATCH):
        records.__getitems__(order[start : start + BATCH])
    return len(order)


class Rate(NamedTuple):
    """Records per second by the clock, and per second of CPU."""

    per_s: float
    per_cpu_s: float


def rate_of(read: Callable[[], int]) -> Rate:
    """Read, and return the rate."""
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    count = read()
    cpu_s = time.process_time() - started_cpu_s
    return Rate(count / (time.perf_counter() - started_s), count / cpu_s)


def median_of(rates: list[Rate]) -> str:
    """Return the medians as text."""
    per_s, per_cpu_s = (statistics.median(values) for values in zip(*rates, strict=True))
    return f"{per_s:,.0f} records/s, {1e6 / per_cpu_s:.0f} us of CPU each"


def compare(output: Path) -> None:
    """Print medians and ratios of all contenders."""
    contenders: dict[str, Callable[[], int]] = {
        "in order": lambda: ours_in_order(output),
        "at random, one by one": lambda: one_by_one(output),
        f"at random, {BATCH} at once": lambda: in_batches(str(output)),
    }
    try:
        import tfrecord  # noqa: F401

        contenders["in order, tfrecord package"] = lambda: theirs_in_order(output)
    except ImportError:
        print("no tfrecord package: ours alone", file=sys.stderr)
    rates: dict[str, list[Rate]] = {name: [] for name in contenders}
    for number in range(ROUNDS + 1):
        names = list(contenders)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rate = rate_of(contenders[name])
            if number:  # the first round fills the page cache
                rates[name].append(rate)
    for name, found in rates.items():
        print(f"{output.name}, {name}: {median_of(found)}")
    theirs = rates.get("in order, tfrecord package")
    if theirs:
        for place, what in enumerate(("the clock", "CPU time")):
            ratios = [a[place] / b[place] for a, b in zip(rates["in order"], theirs, strict=True)]
            ratio = statistics.median(ratios)
            print(f"{output.name}, in order, ours / theirs by {what}: {ratio:.2f}")


def serve(output: str, latency_s: float, sender: Connection) -> None:
    """Serve a data set until another process sends a stop."""
    with GcsStandIn() as gcs:
        gcs.make_bucket("b")
        for path in Path(output).rglob("*.*"):
            gcs.put("b", f"out/{path.relative_to(output)}", path.read_bytes())
        gcs.latency_s = latency_s
        sender.send(gcs.url)
        sender.recv()


@contextmanager
def serving(output: Path, latency_s: float) -> Iterator[str]:
    """Serve from another process; yield the address."""
    context = get_context("spawn")
    receiver, sender = context.Pipe()
    server = context.Process(target=serve, args=(str(output), latency_s, sender))
    server.start()
    yield receiver.recv()
    receiver.send(None)
    server.join()


def main() -> None:
    """Measure and print."""
    latency_ms = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    image_bytes = int(sys.argv[2]) if len(sys.argv) > 2 else IMAGE_BYTES
    with tempfile.TemporaryDirectory() as folder:
        for spec in (CLASSIFICATION, DETECTION):
            compare(write_records(Path(folder), spec, image_bytes))
        with serving(Path(folder) / DETECTION.name, latency_ms / 1000) as url:
            os.environ["STORAGE_EMULATOR_HOST"] = url
            for name, read in {
                f"at random, {BATCH} at once": lambda: in_batches("gs://b/out", BUCKET_READS),
                "in order": lambda: sum(1 for _ in beam_tfrec.open("gs://b/out", "train")),
            }.items():
                found = [rate_of(read) for _ in range(ROUNDS)]
                print(f"a bucket with {latency_ms:g} ms, {name}: {median_of(found)}")


if __name__ == "__main__":
    main()
