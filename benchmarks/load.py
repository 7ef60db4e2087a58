"""Measure `readers.load` against a `tf.data` pipeline tuned by hand, over the same shards.

Both give batches of parsed features with images as they are encoded, in one process, in turns:

    python benchmarks/load.py out train [rounds] [epochs]

The other reads all files at once, in any order, as TensorFlow's guide has it; ours keeps an order.
"""

import glob
import os
import statistics
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import readers
from readers.data_sets import find_data_sets
from schemas.features import RepeatedAs, parse_spec

BATCH = 64


def tuned(out: str, split: str) -> tf.data.Dataset:
    """Return what a careful user writes: parallel reads, whole batches parsed, read ahead."""
    features = parse_spec(find_data_sets(out).spec, RepeatedAs.RAGGED)
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
    """Return what `readers.load` does, with its checks and its order."""
    return readers.load(out, split, batch_size=BATCH, decode_images=False)


def seconds(
    make: Callable[[str, str], tf.data.Dataset], out: str, split: str, epochs: int
) -> float:
    """Return how long it takes to make a dataset and read it several times over."""
    begin = time.perf_counter()
    for _ in make(out, split).repeat(epochs):
        pass
    return time.perf_counter() - begin


def main(out: str, split: str, rounds: int = 15, epochs: int = 4) -> None:
    """Print the medians, and their ratio."""
    records = sum(shard.entry.records for shard in find_data_sets(out).shards(split)) * epochs
    taken: dict[str, list[float]] = {"ours": [], "tuned": []}
    for number in range(rounds + 1):
        pairs = [("ours", ours), ("tuned", tuned)]
        for name, make in pairs if number % 2 else reversed(pairs):
            wall = seconds(make, out, split, epochs)
            if number:  # the first round warms page cache and TensorFlow
                taken[name].append(wall)
    medians = {name: statistics.median(walls) for name, walls in taken.items()}
    for name, wall in medians.items():
        print(f"{name:6} {wall:6.2f} s  {records / wall:9,.0f} records/s")
    ratios = [other / mine for mine, other in zip(taken["ours"], taken["tuned"], strict=True)]
    print(f"ours is {medians['tuned'] / medians['ours']:.2f} x as fast, by medians;", end=" ")
    print(f"{statistics.median(ratios):.2f} x by the median of rounds")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
