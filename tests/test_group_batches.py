"""Batches that wait in a spool are grouped as those that travel."""

import pickle
from collections.abc import Callable, Iterable
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from schemas.samples import Blob, Sample, pack_each
from schemas.shards import ShardPlan
from transforms.coders import StructCoder
from transforms.group_batches import GroupBatches, SpooledBatches
from transforms.pipeline_spool import spool_for
from transforms.plan_shards import BucketBatch, PlanShards, ShardRun
from transforms.run_spool import RunSpool
from transforms.shard_table import (
    Bucket,
    Shard,
    Sharding,
    Tally,
)


def batch(first: int, number: int) -> BucketBatch:
    samples = [Sample("train", f"é{n}", n, (), b"x" * n) for n in range(first, first + number)]
    return BucketBatch(pack_each(samples), bytes(8 * number), Tally(number, 7, "ab"))


KEYED = [(("train", 0), batch(0, 3)), (("val", 2), batch(3, 0)), (("train", 0), batch(5, 1))]
OTHERS = [(("val", 2), batch(8, 2))]


@pytest.mark.parametrize("spooled", [False, True])
def test_batches_are_grouped(test_pipeline: Callable[[], beam.Pipeline], spooled: bool) -> None:
    with test_pipeline() as pipeline:
        spool = spool_for(pipeline) if spooled else None
        created = pipeline | beam.Create(KEYED, reshuffle=False)
        keyed = created | beam.Map(_as_it_is).with_output_types(tuple[Bucket, BucketBatch])
        others = pipeline | "Others" >> beam.Create(OTHERS, reshuffle=False)
        others |= "Typed" >> beam.Map(_as_it_is).with_output_types(tuple[Bucket, BucketBatch])
        grouped = (keyed, others) | GroupBatches(BucketBatch, spool)
        found = grouped | beam.Map(_in_order)

        expected = [
            (("train", 0), [batch(0, 3), batch(5, 1)]),
            (("val", 2), [batch(8, 2), batch(3, 0)]),
        ]
        assert_that(found, equal_to(expected))


def test_building_the_graph_warns_of_nothing(
    test_pipeline: Callable[[], beam.Pipeline], caplog: pytest.LogCaptureFixture
) -> None:
    with test_pipeline() as pipeline:
        created = pipeline | beam.Create(KEYED, reshuffle=False)
        _ = (created,) | GroupBatches(BucketBatch)

    assert not caplog.records


def _as_it_is(keyed: tuple[Bucket, BucketBatch]) -> tuple[Bucket, BucketBatch]:
    return keyed


def _in_order(
    grouped: tuple[Bucket, Iterable[BucketBatch]],
) -> tuple[Bucket, list[BucketBatch]]:
    bucket, batches = grouped
    assert list(batches) == list(batches)  # Beam iterates them too, to know their size
    return bucket, sorted(batches, key=len_of)


def len_of(of: BucketBatch) -> int:
    return -len(of.samples)


def test_only_places_meet_at_the_group_by(test_pipeline: Callable[[], beam.Pipeline]) -> None:
    pipeline = test_pipeline()
    keyed = pipeline | beam.Create(KEYED, reshuffle=False)
    keyed |= beam.Map(_as_it_is).with_output_types(tuple[Bucket, BucketBatch])
    (keyed,) | GroupBatches(BucketBatch, spool_for(pipeline))

    proto = pipeline.to_runner_api()
    (group,) = [t for t in proto.components.transforms.values() if "group_by_key" in t.spec.urn]
    (name,) = group.inputs.values()
    coder = proto.components.coders[proto.components.pcollections[name].coder_id]
    _, value = (proto.components.coders[part] for part in coder.component_coder_ids)
    assert value.spec.urn == "beam:coder:bytes:v1"


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


def test_runs_of_shards_can_wait_too() -> None:
    pipeline = beam.Pipeline(runner="FnApiRunner")
    spool = spool_for(pipeline)
    assert spool is not None
    coder = StructCoder(ShardRun)
    run = ShardRun(7, pack_each([Sample("train", "1", 0, (), b"")]), {"2": b"payload"})

    shard: Shard = ("train", 1)
    assert (shard, *SpooledBatches((spool.put(coder.encode(run)),), coder, spool)) == (shard, run)


def test_spools_are_told_apart() -> None:
    first, second = (beam.Pipeline(runner="FnApiRunner") for _ in range(2))
    one, two = spool_for(first), spool_for(second)
    assert isinstance(one, RunSpool)
    assert isinstance(two, RunSpool)

    places = one.put(b"one"), two.put(b"two")

    assert places[0][:16] == places[1][:16]
    assert (one.get(places[0]), two.get(places[1])) == (b"one", b"two")
