"""Payloads travel apart, and come back to their samples."""

import random
import zlib
from collections.abc import Callable, Sequence

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from schemas.samples import Blob, Order, Sample, add_content_digests
from schemas.shards import ShardPlan
from transforms.payloads import DetachPayloads, Payload, attach_payloads, detach_payload
from transforms.plan_shards import (
    PlanShards,
    ShardRun,
    find_shard,
    find_start,
    make_bucket_batches,
    make_shard_plan,
    make_starts,
    rank_bucket,
)
from transforms.shard_table import Shard, Sharding, make_shard_table


def sample(key: str, payload: bytes = b"", split: str = "train", position: int = 0) -> Sample:
    blob = Blob(split, f"{key}.jpg", 1000, "pin")
    return Sample(split, key, position, (blob,), b"fields", (position,), payload)


def numbered(total: int, split: str = "train") -> list[Sample]:
    """Return samples, two of three with payloads."""
    return [
        sample(str(place), b"polygons of %d" % place * (place % 3), split, place)
        for place in range(total)
    ]


def kilobyte(_: Sample) -> int:
    return 1000


def plan(
    samples: Sequence[Sample], payloads: Sequence[Payload], sharding: Sharding
) -> list[ShardPlan]:
    """Plan shards as the pipeline does, in plain Python."""
    batches = dict(make_bucket_batches(samples, sharding, kilobyte, 16))
    table = make_shard_table([(b, batch.tally) for b, batch in batches.items()], sharding)
    runs: list[tuple[Shard, ShardRun]] = []
    for bucket, batch in batches.items():
        runs += rank_bucket((bucket, [batch]), table, sharding)
    starts = make_starts([start for run in runs for start in find_start(run, sharding)])
    for payload in payloads:
        if shard := find_shard(payload, starts, sharding):
            runs.insert(0, (shard, ShardRun(0, [], {payload.key: payload.compressed})))
    by_shard: dict[Shard, list[ShardRun]] = {}
    for shard, run in runs:
        by_shard.setdefault(shard, []).append(run)
    return [make_shard_plan((shard, by_shard[shard]), table) for shard in sorted(by_shard)]


def detached(samples: Sequence[Sample]) -> tuple[list[Sample], list[Payload]]:
    parts = [detach_payload(one) for one in samples]
    return [light for light, _ in parts], [payload for _, payload in parts if payload]


@given(st.binary(), st.booleans())
def test_attaching_undoes_detaching(data: bytes, with_position: bool) -> None:
    whole = sample("7", data)
    (light,), payloads = detached([whole])

    found = {payload.key: payload.compressed for payload in payloads}
    others = {"8": b"of a rejected sample"}
    assert attach_payloads([light], found | others, "train-00000-of-00001") == [whole]
    assert light.payload == b""
    samples = light, whole, sample("7", data + b"x")
    digests = [add_content_digests([one], with_position=with_position) for one in samples]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("payloads", "planned"),
    [
        ({}, b"polygons"),  # missing
        ({"7": zlib.compress(b"other polygons")}, b"polygons"),
        ({"7": zlib.compress(b"polygons")}, b""),  # of a sample that had none
    ],
)
def test_another_payload_than_planned_stops_the_run(
    payloads: dict[str, bytes], planned: bytes
) -> None:
    light, _ = detach_payload(sample("7", planned))
    with pytest.raises(RuntimeError) as raised:
        attach_payloads([light], payloads, "train-00001-of-00002")
    assert str(raised.value) == (
        "E-SRC-CHANGED train-00001-of-00002: the payload of key '7' is not what was planned;"
        " run again when the source is at rest"
    )


@given(st.data(), st.integers(1, 60), st.integers(0, 40), st.sampled_from(Order))
def test_detached_payloads_come_back_as_if_they_had_stayed(
    data: st.DataObject, train: int, val: int, order: Order
) -> None:
    samples = numbered(train) + numbered(val, "val")
    kept = data.draw(st.lists(st.sampled_from(samples), min_size=1, unique_by=id))
    smallest = min(sum(s.split == split for s in kept) for split in {s.split for s in kept})
    num_shards = data.draw(st.integers(1, smallest))
    sharding = Sharding({"": num_shards}, order={"": order}, seed=data.draw(st.integers(-3, 3)))
    light, _ = detached(kept)
    _, payloads = detached(samples)  # also of samples that were rejected since

    assert plan(light, data.draw(st.permutations(payloads)), sharding) == plan(kept, [], sharding)


@pytest.mark.parametrize(
    "sharding",
    [Sharding({"": 7}, seed=3), Sharding(records_per_shard=40, order={"": Order.INPUT})],
)
def test_the_pipeline_brings_payloads_to_their_samples(
    test_pipeline: Callable[[], beam.Pipeline], sharding: Sharding
) -> None:
    samples = numbered(300) + numbered(40, "val")
    random.Random(1).shuffle(samples)
    kept = {(one.split, one.key) for one in samples[:200]}
    with test_pipeline() as pipeline:
        created = pipeline | beam.Create(samples, reshuffle=False).with_output_types(Sample)
        parts = created | DetachPayloads()
        keep = beam.Filter(lambda one: (one.split, one.key) in kept).with_output_types(Sample)
        planning = PlanShards(sharding, kilobyte, payloads=parts.payloads)
        planned = parts.samples | keep | planning
        assert_that(planned.shards, equal_to(plan(samples[:200], [], sharding)))
