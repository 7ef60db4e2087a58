"""Time `verify` against TensorFlow's reading of the same shards, in turns, in one process.

Shards of random bytes in detection Examples, 160 kB each, from the page cache. TensorFlow reads
with `TFRecordDataset` and `tf.io.parse_example` in batches of 32. It checks the frames' two
checksums and the features, but no checksum of the file, no index and no order. Both use one thread
first, then two. `--deep` adds SHA-256 of shards and images to ours.
"""

import argparse
import hashlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import google_crc32c
import numpy
import tensorflow as tf

from beam_tfrec.schemas.example import encode_example_parts
from beam_tfrec.schemas.features import Kind, parse_spec
from beam_tfrec.schemas.layouts.detection import DETECTION
from beam_tfrec.schemas.manifest import FORMAT_VERSION, JobPlan, Label, Manifest, ShardEntry
from beam_tfrec.schemas.tfrecord import frame_record
from beam_tfrec.transforms.shard_index import IndexRow
from beam_tfrec.transforms.storage import Storage, open_storage
from beam_tfrec.transforms.verify import Findings, ShardRules
from beam_tfrec.transforms.verify.data_set import verify_bytes
from beam_tfrec.transforms.walk_frames import read_pieces

IMAGE_BYTES = 160_000
OBJECTS = 7
SHARDS = 4


def make_shard(folder: Path, number: int, records: int) -> tuple[ShardEntry, list[IndexRow]]:
    """Write a shard; return its entry of a manifest and its index."""
    random = numpy.random.default_rng(number)
    rows, pieces, at = [], [], 0
    for record in range(records):
        image = random.bytes(IMAGE_BYTES)
        digest = hashlib.sha256(image).hexdigest()
        floats, ids = random.random(OBJECTS).tolist(), [int(n) for n in range(1, OBJECTS + 1)]
        values = {
            "image/encoded": (Kind.BYTES, [image]),
            "image/key/sha256": (Kind.BYTES, [digest.encode()]),
        }
        for feature in DETECTION.features:
            if feature.key in values:
                continue
            one: list = {Kind.BYTES: [b"text"], Kind.FLOAT: floats, Kind.INT64: ids}[feature.kind]
            if feature.repeated and feature.kind is Kind.BYTES:
                one = one * OBJECTS
            values[feature.key] = (feature.kind, one if feature.repeated else one[:1])
        frame = b"".join(frame_record(encode_example_parts(values)))
        rows.append(IndexRow(str(record), at, len(frame), [], ids))
        pieces.append(frame)
        at += len(frame)
    data, name = b"".join(pieces), f"train-{number:05}.tfrec"
    (folder / name).write_bytes(data)
    crc = f"{google_crc32c.value(data):08x}"
    sha256 = hashlib.sha256(data).hexdigest()
    return ShardEntry(name, "train", records, records, len(data), crc, sha256), rows


def rules_for(root: Path, deep: bool) -> ShardRules:
    """Return the rules that the shards must keep."""
    labels = [Label(number, str(number)) for number in range(1, OBJECTS + 1)]
    plan = JobPlan(FORMAT_VERSION, {"order": "all=input"}, labels, {}, "")
    features = [*DETECTION.features]
    manifest = Manifest(layout="detection", plan=plan, splits={}, shards=[], features=features)
    return ShardRules(str(root), manifest, 0, deep)


def verify_one(
    made: tuple[ShardEntry, list[IndexRow]], rules: ShardRules, storage: Storage
) -> Findings:
    """Verify a shard's bytes."""
    entry, rows = made
    file = storage.stat(entry.file)
    assert file is not None
    report = verify_bytes(entry, rows, rules, read_pieces(storage, file), file.size_bytes)
    assert not report.counts, report.lines()
    return report


def tensorflow_reads(files: list[str], threads: int) -> int:
    """Return the number of records that TensorFlow reads and parses."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    records = tf.data.TFRecordDataset(files, num_parallel_reads=threads if threads > 1 else None)
    spec = parse_spec(DETECTION)
    batches = records.batch(32).map(
        lambda batch: tf.io.parse_example(batch, spec), num_parallel_calls=threads
    )
    counted = 0
    for batch in batches.with_options(options):
        counted += int(batch["image/height"].shape[0])
    return counted


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return seconds by the clock and of CPU."""
    clock, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deep", action="store_true")
    flags = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    tf.config.threading.set_intra_op_parallelism_threads(1)
    try:
        per_shard = flags.megabytes * 1_000_000 // IMAGE_BYTES // SHARDS
        made = [make_shard(folder, number, per_shard) for number in range(SHARDS)]
        compare(folder, made, flags.rounds, flags.deep)
    finally:
        shutil.rmtree(folder)


def compare(
    folder: Path, made: list[tuple[ShardEntry, list[IndexRow]]], rounds: int, deep: bool
) -> None:
    """Print the times of both, and their ratio within each round."""
    total = sum(entry.bytes for entry, _ in made)
    files = [str(folder / entry.file) for entry, _ in made]
    one = partial(verify_one, rules=rules_for(folder, deep), storage=open_storage(str(folder)))
    for threads in (1, 2):
        ratios: dict[str, list[float]] = {"clock": [], "CPU": []}
        speeds: dict[str, list[float]] = {"ours": [], "ours CPU": [], "TensorFlow": []}
        for place in range(rounds + 1):
            with ThreadPoolExecutor(threads) as pool:
                wall, cpu = timed(lambda pool=pool: list(pool.map(one, made)))
            tf_wall, tf_cpu = timed(lambda threads=threads: tensorflow_reads(files, threads))
            if not place:  # warms page cache and TensorFlow's graph
                continue
            ratios["clock"].append(tf_wall / wall)
            ratios["CPU"].append(tf_cpu / cpu)
            speeds["ours"].append(total / wall / 1e9)
            speeds["ours CPU"].append(total / cpu / 1e9)
            speeds["TensorFlow"].append(total / tf_wall / 1e9)
        said = ", ".join(f"{name} {statistics.median(v):.2f} GB/s" for name, v in speeds.items())
        print(f"{threads} thread{'s' if threads > 1 else ''}, {total / 1e6:.0f} MB: {said}")
        for name, found in ratios.items():
            listed = ", ".join(f"{ratio:.2f}" for ratio in found)
            print(f"  TensorFlow / ours, {name}: {statistics.median(found):.2f} ({listed})")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
