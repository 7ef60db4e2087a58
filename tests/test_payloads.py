import random
import zlib
from collections.abc import Callable, Sequence

import apache_beam as beam
import msgspec
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from schemas.samples import Blob, Sample, content_digest, digest_payload
from schemas.shards import ShardPlan
from transforms.payloads import (
    DetachPayloads,
    Payload,
    attach_payloads,
    detach_payload,
    make_boundaries,
)
from transforms.plan_shards import (
    Order,
    PlanShards,
    ShardRun,
    find_boundary,
    find_shard,
    make_bucket_batches,
    make_shard_plan,
    rank_bucket,
)
from transforms.shard_table import Shard, Sharding, make_shard_table

SHUFFLED, INPUT = Order.SHUFFLED, Order.INPUT


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
    samples: Sequence[Sample],
    payloads: Sequence[Payload],
    sharding: Sharding,
    num_buckets: int = 16,
) -> list[ShardPlan]:
    """Plan shards as the pipeline does, in plain Python."""
    batches = dict(make_bucket_batches(samples, sharding, kilobyte, num_buckets))
    table = make_shard_table([(b, batch.tally) for b, batch in batches.items()], sharding)
    runs: list[tuple[Shard, ShardRun]] = []
    for bucket, batch in batches.items():
        runs += rank_bucket(bucket, [batch], table, sharding)
    found = [boundary for run in runs if (boundary := find_boundary(*run, sharding))]
    boundaries = make_boundaries(found)
    by_shard: dict[Shard, list[ShardRun]] = {}
    for payload in payloads:
        shard = find_shard(payload, boundaries, sharding)
        if shard is not None:
            by_shard.setdefault(shard, []).append(
                ShardRun(0, [], {payload.key: payload.compressed})
            )
    for shard, run in runs:
        by_shard.setdefault(shard, []).append(run)
    return [make_shard_plan(shard, by_shard[shard], table) for shard in sorted(by_shard)]


def detached(samples: Sequence[Sample]) -> tuple[list[Sample], list[Payload]]:
    parts = [detach_payload(one) for one in samples]
    return [light for light, _ in parts], [payload for _, payload in parts if payload]


# --- one sample ---


def test_a_sample_leaves_its_payload_and_carries_the_digest() -> None:
    light, payload = detach_payload(sample("7", b"polygons", position=3))

    digest = digest_payload(b"polygons")
    assert digest.hex() == "b2bf82dd31542762d8add7f2c376c3d9"
    assert light == msgspec.structs.replace(sample("7", position=3), payload_digest=digest)
    assert payload is not None
    assert zlib.decompress(payload.compressed) == b"polygons"
    assert payload == Payload("train", "7", 3, payload.compressed)


@pytest.mark.parametrize("with_position", [False, True])
def test_the_content_is_the_same_before_and_after_detaching(with_position: bool) -> None:
    def digest(one: Sample) -> int:
        return content_digest(one, with_position=with_position)

    light, _ = detach_payload(sample("7", b"polygons"))

    assert digest(light) == digest(sample("7", b"polygons"))
    assert len({digest(light), digest(sample("7", b"polygon")), digest(sample("7"))}) == 3


@given(st.binary())
def test_attaching_undoes_detaching(data: bytes) -> None:
    whole = sample("7", data)
    light, payload = detach_payload(whole)

    found = {payload.key: payload.compressed} if payload else {}
    assert attach_payloads(
        [light], found | {"8": b"of a rejected sample"}, "train-00000-of-00001"
    ) == [whole]


CHANGED = {
    "missing": ({}, b"polygons"),
    "another": ({"7": zlib.compress(b"other polygons")}, b"polygons"),
    "one that was not there": ({"7": zlib.compress(b"polygons")}, b""),
}


@pytest.mark.parametrize(("payloads", "planned"), CHANGED.values(), ids=CHANGED)
def test_another_payload_than_planned_stops_the_run(
    payloads: dict[str, bytes], planned: bytes
) -> None:
    light, _ = detach_payload(sample("7", planned))

    with pytest.raises(RuntimeError) as raised:
        attach_payloads([light], payloads, "train-00001-of-00002")

    assert str(raised.value) == (
        "E-SRC-CHANGED train-00001-of-00002: the payload of key '7' is not what was planned;"
        " run again when the sources are at rest"
    )


# --- the whole path ---


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
    _, payloads = detached(samples)  # those of samples that were rejected since, too

    assert plan(light, data.draw(st.permutations(payloads)), sharding) == plan(kept, [], sharding)


SHARDINGS = {
    "shuffled": Sharding({"": 7}, seed=3),
    "filled one by one, as the input": Sharding(records_per_shard=40, order={"": INPUT}),
}


def check_pipeline(
    pipeline: beam.Pipeline,
    kept: Sequence[Sample],
    samples: Sequence[Sample],
    sharding: Sharding,
) -> None:
    kept_keys = {(one.split, one.key) for one in kept}
    with pipeline:
        parts = (
            pipeline
            | beam.Create(samples, reshuffle=False).with_output_types(Sample)
            | DetachPayloads()
        )
        keep = beam.Filter(lambda one: (one.split, one.key) in kept_keys)
        left = parts.samples | keep.with_output_types(Sample)
        planned = left | PlanShards(sharding, kilobyte, payloads=parts.payloads)
        assert_that(planned.shards, equal_to(plan(kept, [], sharding)))


@pytest.mark.parametrize("sharding", SHARDINGS.values(), ids=SHARDINGS)
def test_the_pipeline_brings_payloads_to_their_samples(
    test_pipeline: Callable[[], beam.Pipeline], sharding: Sharding
) -> None:
    samples = numbered(300) + numbered(40, "val")
    random.Random(1).shuffle(samples)

    check_pipeline(test_pipeline(), samples[:200], samples, sharding)
