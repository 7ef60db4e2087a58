"""Batches that wait in a spool are grouped as those that travel."""

from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import pytest

from schemas.samples import Blob, Sample
from schemas.shards import ShardPlan
from transforms.plan_shards import PlanShards
from transforms.shard_table import (
    Sharding,
)
from transforms.sources.elements import StructCoder, spool_for


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
