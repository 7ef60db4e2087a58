"""Measure `beam_tfrec.load` against a `tf.data` pipeline tuned by hand, over the same shards.

Both give batches of parsed features with encoded images, in one process, in turns:

    python benchmarks/load.py out train [rounds] [epochs]

The other reads all files at once, in any order, as TensorFlow's guide has it; ours keeps an order.
"""

import glob
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import beam_tfrec
from beam_tfrec.readers.data_sets import find_data_sets
from beam_tfrec.schemas.features import parse_spec

BATCH = 64


def tuned(out: str, split: str) -> tf.data.Dataset:
    """Return the pipeline of a careful user: parallel reads, whole batches parsed, prefetch."""
    features = parse_spec(find_data_sets(out).spec, ragged=True)
    files = tf.data.Dataset.from_tensor_slices(sorted(glob.glob(f"{out}/{split}-*.tfrec")))
    records = files.interleave(
        tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False
    )
    batches = records.batch(BATCH)
    parsed = batches.map(
        lambda batch: tf.io.parse_example(batch, features), tf.data.AUTOTUNE, deterministic=False
    )
    return parsed.prefetch(tf.data.AUTOTUNE)


def ours(out: str, split: str) -> tf.data.Dataset:
    """Return the pipeline of `beam_tfrec.load`, with its checks and its order."""
    return beam_tfrec.load(out, split, batch_size=BATCH, decode_images=False)


class Taken(NamedTuple):
    """Cost of reading: seconds by the clock, and of CPU in all threads."""

    wall_s: float
    cpu_s: float


def measure(
    make: Callable[[str, str], tf.data.Dataset], out: str, split: str, epochs: int
) -> Taken:
    """Make a dataset and read it several times."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in make(out, split).repeat(epochs):
        pass
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def main(out: str, split: str, rounds: int = 15, epochs: int = 4) -> None:
    """Print the medians, and their ratios."""
    records = sum(shard.entry.records for shard in find_data_sets(out).shards(split)) * epochs
    rows: dict[str, list[Taken]] = {"ours": [], "tuned": []}
    for number in range(rounds + 1):
        pairs = [("ours", ours), ("tuned", tuned)]
        for name, make in pairs if number % 2 else reversed(pairs):
            taken = measure(make, out, split, epochs)
            if number:  # the first round warms page cache and TensorFlow
                rows[name].append(taken)
    medians = {
        name: Taken(*map(statistics.median, zip(*taken, strict=True)))
        for name, taken in rows.items()
    }
    for name, median in medians.items():
        speed = records / median.wall_s
        print(f"{name:6} {median.wall_s:6.2f} s {speed:8,.0f} records/s {median.cpu_s:6.2f} CPU s")
    wall = medians["tuned"].wall_s / medians["ours"].wall_s
    print(f"ours is {wall:.2f} x as fast (at least 0.95)")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
