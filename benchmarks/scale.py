"""What global steps take at a billion and five billion images, measured on made-up values.

`python benchmarks/scale.py` runs each step that holds more than a shard, by its own function, on a
part of what it would get, in a process of its own; seconds and memory are given a unit and for the
whole. No image, bucket or cluster is needed, and 2 GB of memory. `workload_of` is what
docs/costs.md prices.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import msgspec

from schemas.layouts.detection import DetectionLayout
from schemas.manifest import JobPlan, PlannedSplit, to_json
from schemas.samples import Blob, Sample
from schemas.shards import COUNTED, ShardInfo
from schemas.workload import Reads, Workload
from transforms.coders import StructCoder
from transforms.commit import make_manifest
from transforms.metadata_files import documents
from transforms.pin_blobs import _JoinBatch, _Pin
from transforms.plan_shards import BucketBatch, make_bucket_batches, rank_bucket
from transforms.shard_table import Sharding, add_tallies, make_shard_table
from transforms.sources.split_sources import SplitSource
from transforms.storage import Entry
from transforms.storage.listing_cuts import PARTS, cut_listing

IMAGE_BYTES = 160_000
SHARD_BYTES = 150_000_000
RECORD_EXTRA_BYTES = 450
"""Of a record, beside its image: seven boxes and what belongs to them."""

SHUFFLED_BYTES = 820
"""Of an image through the three group-bys and its listing's, see `tests/test_sample_cost.py`."""

CPU_S = 0.001
"""Of an image, an assumption: 0.4 ms are measured from a disk, the rest is for store and Beam."""

FILES_A_SHARD = 4
WORKERS = 100
GROUPS = 16_384
"""Buckets of the order, and partitions of a join, on a cluster."""

_HELD = 4  # samples of a batch
_SHARDS = 50_000
_PAGE_NAMES = 1000


def shards_of(images: int) -> int:
    """Return how many shards so many images make.

    >>> shards_of(1_000_000_000)
    1069667
    """
    return -(-images * (IMAGE_BYTES + RECORD_EXTRA_BYTES) // SHARD_BYTES)


def workload_of(images: int) -> Workload:
    """Return what a run of so many images does, in one region."""
    return Workload(
        samples=images,
        listed_names=images,
        written_files=shards_of(images) * FILES_A_SHARD,
        written_bytes=images * (IMAGE_BYTES + RECORD_EXTRA_BYTES),
        shuffled_bytes=images * SHUFFLED_BYTES,
        cpu_s=images * CPU_S,
        output="gs://out/set",
        reads={("gs://in/photos", "STANDARD"): Reads(images, images * IMAGE_BYTES)},
        region="us-central1",
        workers=WORKERS,
    )


def make_sample(number: int) -> Sample:
    """Return a pinned sample of seven boxes, as large as COCO's."""
    blob = Blob("train", f"{number:012}.jpg", IMAGE_BYTES, "1700000000123456789", 2**32 - 1)
    return Sample("train", str(number), number, (blob,), bytes(300), tuple(range(900_100, 900_107)))


def make_info(index: int, shards: int) -> ShardInfo:
    """Return what is made of a shard, without rejects."""
    return ShardInfo(
        plan="ab" * 32,
        split="train",
        index=index,
        num_shards=shards,
        file=f"train-{index:07}-of-{shards:07}-934.tfrec",
        planned=934,
        records=934,
        bytes=SHARD_BYTES + index,
        crc32c=f"{index:08x}",
        sha256=f"{index:064x}",
        annotations_listed=6538,
        annotations_written=6530,
        repairs={"box_clipped": 3},
        traits={"gray": 3, "progressive": 40},
        rejected=[],
    )


def rank_group(samples: int) -> float:
    """Rank a bucket of so many samples; return seconds."""
    sharding = Sharding()
    coder = StructCoder(BucketBatch)
    encoded = []
    for first in range(0, samples, _HELD):
        held = map(make_sample, range(first, first + _HELD))
        ((_, batch),) = make_bucket_batches(held, sharding, lambda sample: IMAGE_BYTES, 1)
        encoded.append(coder.encode(batch))
    tally = add_tallies(coder.decode(batch).tally for batch in encoded)
    table = make_shard_table([(("train", 0), tally)], sharding)
    started_s = time.perf_counter()
    batches = map(coder.decode, encoded)
    for _ in rank_bucket(("train", 0), batches, table, sharding):
        pass
    return time.perf_counter() - started_s


def join_group(samples: int) -> float:
    """Join a partition of so many samples and as many listed names; return seconds."""
    coder = StructCoder(_JoinBatch)
    encoded = []
    for first in range(0, samples, _HELD):
        numbers = range(first, first + _HELD)
        entries = [
            Entry(f"{n:012}.jpg", IMAGE_BYTES, "1700000000123456", n, "file", "STANDARD")
            for n in numbers
        ]
        encoded.append(coder.encode(_JoinBatch(samples=list(map(make_sample, numbers)))))
        encoded.append(coder.encode(_JoinBatch(entries=entries)))
    started_s = time.perf_counter()
    pin = _Pin(0)
    pin.start_bundle()
    for _ in pin.process((("train", 0), map(coder.decode, encoded))):
        pass
    return time.perf_counter() - started_s


def commit_shards(shards: int) -> float:
    """Make manifest and documents of so many shards from their encoded infos; return seconds."""
    coder = StructCoder(ShardInfo)
    encoded = [coder.encode(make_info(index, shards)) for index in range(shards)]
    images = 934 * shards
    file = SplitSource("train", "x", images=images, annotations=6530 * shards)
    plan = JobPlan(2, {"shard_names": COUNTED}, [], {"train": PlannedSplit(images, shards)}, "0")
    started_s = time.perf_counter()
    infos = [coder.decode(info) for info in encoded]
    manifest = make_manifest(infos, plan, [file], [], DetectionLayout().resolved(["boxes"]))
    texts = [to_json(manifest), *documents(manifest).values()]
    assert all(texts)
    return time.perf_counter() - started_s


def manifest_bytes_a_shard() -> float:
    """Return how much longer a shard makes the manifest."""
    plan = JobPlan(2, {}, [], {"train": PlannedSplit(934, 1)}, "0")
    sizes = []
    for shards in (1000, 2000):
        infos = [make_info(index, 1_069_667) for index in range(shards)]
        file = SplitSource("train", "x", images=934 * shards, annotations=6530 * shards)
        of_shards = msgspec.structs.replace(
            plan, splits={"train": PlannedSplit(934 * shards, shards)}
        )
        sizes.append(len(to_json(make_manifest(infos, of_shards, [file], [], DetectionLayout()))))
    return (sizes[1] - sizes[0]) / 1000


def listing_parts(images: int, name_of: Callable[[int], str]) -> tuple[int, int, int]:
    """Return (parts, requests to find them, names of the largest) of a listing, names in order."""
    requests = 0

    def rank(name: str) -> int:
        low, high = 0, images
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if name_of(middle) < name else (low, middle)
        return low

    def peek(start: str, end: str) -> Sequence[str]:
        nonlocal requests
        requests += 1
        behind = rank(end) if end else images
        first = rank(start)
        return [name_of(n) for n in range(first, min(first + _PAGE_NAMES, behind))]

    cuts = cut_listing(peek, PARTS, _PAGE_NAMES, 50_000)
    places = [0, *map(rank, cuts), images]
    return len(cuts) + 1, requests, max(b - a for a, b in pairwise(places))


def measured(step: Callable[[int], float], size: int) -> tuple[float, float]:
    """Return seconds and bytes of memory that a step takes, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_measure, (step, size))


def _measure(step: Callable[[int], float], size: int) -> tuple[float, float]:
    step(64)  # what is imported and built once
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    elapsed_s = step(size)
    return elapsed_s, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) * 1024


def _group_rows(images: Iterable[int]) -> None:
    for name, step in (("rank a bucket", rank_group), ("join a partition", join_group)):
        for groups in (4096, GROUPS):
            for count in images:
                size = 61_036
                elapsed_s, held = measured(step, size)
                factor = count / groups / size
                print(
                    f"| {name}, {groups:,} groups | {count:,} | {elapsed_s * factor:.1f}"
                    f" | {held * factor / 1e6:,.0f} |"
                )


def main() -> None:
    """Print the tables."""
    sizes = (1_000_000_000, 5_000_000_000)
    print("| step | images | s | MB |\n|---|---|---|---|")
    _group_rows(sizes)
    elapsed_s, held = measured(commit_shards, _SHARDS)
    for images in sizes:
        factor = shards_of(images) / _SHARDS
        print(f"| commit | {images:,} | {elapsed_s * factor:.0f} | {held * factor / 1e6:,.0f} |")
    print("\n| listing | images | parts | requests | largest part |\n|---|---|---|---|---|")
    for images in sizes:
        classes = images // 1000
        for name, name_of in (
            ("numbered", lambda n: f"{n:012}.jpg"),
            ("1,000 folders", lambda n, size=classes: f"n{n // size:08}/{n % size:08}.jpg"),
        ):
            parts, requests, largest = listing_parts(images, name_of)
            print(f"| {name} | {images:,} | {parts:,} | {requests:,} | {largest:,} |")
    print(f"\nmanifest: {manifest_bytes_a_shard():.0f} bytes a shard")


if __name__ == "__main__":
    main()
