"""Batches that wait in a spool are grouped as those that travel."""

import pickle
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.samples import Blob, Sample, pack_each
from schemas.shards import ShardPlan
from transforms.coders import StructCoder
from transforms.group_batches import SpooledBatches
from transforms.pipeline_spool import spool_for
from transforms.plan_shards import BucketBatch, PlanShards
from transforms.shard_table import (
    Sharding,
    Tally,
)


def batch(first: int, number: int) -> BucketBatch:
    samples = [Sample("train", f"é{n}", n, (), b"x" * n) for n in range(first, first + number)]
    return BucketBatch(pack_each(samples), bytes(8 * number), Tally(number, 7, "ab"))


@given(st.lists(st.integers(0, 50), max_size=8))
def test_reading_undoes_putting(sizes: list[int]) -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    spool = spool_for(pipeline)
    assert spool is not None
    coder = StructCoder(BucketBatch)
    batches = [batch(place, size) for place, size in enumerate(sizes)]
    places = tuple(spool.put(coder.encode(one)) for one in batches)

    spooled = SpooledBatches(places, coder, spool)

    assert list(spooled) == batches
    assert list(pickle.loads(pickle.dumps(spooled))) == batches
    assert sum(map(len, places)) == 20 * len(sizes)


@pytest.mark.parametrize("number", [1, 3000])
def test_plans_are_the_same_with_and_without_a_spool(
    test_pipeline: Callable[[], beam.Pipeline], tmp_path: Path, number: int
) -> None:
    plans = {}
    for spooled in (False, True):
        folder = tmp_path / str(spooled)
        folder.mkdir()
        with test_pipeline() as pipeline:
            spool = spool_for(pipeline) if spooled else None
            created = pipeline | beam.Create(numbered(number), reshuffle=False)
            planning = PlanShards(Sharding(), hundred_bytes, spool=spool)
            planned = created | planning
            planned.shards | beam.Map(_note, folder)
        plans[spooled] = {path.name: path.read_bytes() for path in folder.iterdir()}

    assert plans[True] == plans[False]
    shards = map(StructCoder(ShardPlan).decode, plans[True].values())
    assert sum(len(shard.samples) for shard in shards) == number


def _note(shard: ShardPlan, folder: Path) -> None:
    (folder / shard.name).write_bytes(StructCoder(ShardPlan).encode(shard))


def numbered(number: int) -> list[Sample]:
    blobs = [(Blob("train", f"{n}.jpg", n, "pin"),) for n in range(number)]
    return [Sample("train", str(n), n, blobs[n], b"fields") for n in range(number)]


def hundred_bytes(_: Sample) -> int:
    return 100
