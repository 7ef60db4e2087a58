import random
import traceback
import zlib
from collections.abc import Callable, Sequence

import apache_beam as beam
import apache_beam.testing.test_pipeline as in_process
import msgspec
import pytest
from apache_beam import coders
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from schemas.faults import find_fault
from schemas.samples import Blob, Sample, content_digest, digest_payload, pack_each
from schemas.shards import ShardPlan
from transforms import payloads as payloads_module
from transforms.coders import StructCoder
from transforms.payloads import (
    Boundary,
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


def test_a_sample_without_payload_stays_itself() -> None:
    whole = sample("7")

    light, payload = detach_payload(whole)

    assert light is whole
    assert payload is None


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
def test_a_payload_that_is_not_what_was_planned_stops_the_run(
    payloads: dict[str, bytes], planned: bytes
) -> None:
    light, _ = detach_payload(sample("7", planned))

    with pytest.raises(RuntimeError) as raised:
        attach_payloads([light], payloads, "train-00001-of-00002")

    assert str(raised.value) == (
        "E-SRC-CHANGED train-00001-of-00002: the payload of key '7' is not what was planned;"
        " run again when the sources are at rest"
    )


# --- where shards begin ---


def test_a_shard_begins_with_its_first_run() -> None:
    by_input = Sharding(order={"": INPUT})
    runs = (
        ShardRun(0, pack_each([sample("a", position=260), sample("b")])),
        ShardRun(2, pack_each([sample("c")])),
    )

    assert [find_boundary(("train", 3), run, by_input) for run in runs] == [
        Boundary("train", 3, bytes(14) + b"\x01\x04", "a"),
        None,
    ]


BOUNDARIES = make_boundaries(
    [
        Boundary("val", 0, b"c", "5"),
        Boundary("train", 1, b"d", "7"),
        Boundary("train", 0, b"b", "9"),
        Boundary("train", 2, b"d", "8"),
    ]
)


@pytest.mark.parametrize(
    ("split", "order_key", "key", "shard"),
    [
        ("train", b"a", "0", None),  # before the first sample: that of a rejected one
        ("train", b"b", "8", None),
        ("train", b"b", "9", 0),  # the first itself
        ("train", b"c", "0", 0),
        ("train", b"d", "6", 0),  # ties of the order go by key
        ("train", b"d", "7", 1),
        ("train", b"d", "71", 1),
        ("train", b"d", "8", 2),
        ("train", b"z", "", 2),
        ("val", b"d", "7", 0),
        ("test", b"d", "7", None),  # all of its samples were rejected
    ],
)
def test_a_place_in_the_order_tells_the_shard(
    split: str, order_key: bytes, key: str, shard: int | None
) -> None:
    assert BOUNDARIES.find(split, order_key, key) == shard


def test_boundaries_are_those_of_each_split_in_order() -> None:
    assert BOUNDARIES.splits == {
        "train": [(b"b", "9"), (b"d", "7"), (b"d", "8")],
        "val": [(b"c", "5")],
    }


@pytest.mark.parametrize(
    ("element", "wire"),
    [
        (Payload("train", "7", 3, b"x"), ["train", "7", 3, b"x"]),
        (Boundary("train", 1, b"x", "7"), ["train", 1, b"x", "7"]),
    ],
)
def test_elements_never_change_and_travel_without_names(
    element: Payload | Boundary, wire: list
) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(element)) == wire
    assert isinstance(coders.registry.get_coder(type(element)), StructCoder)
    with pytest.raises(AttributeError, match="immutable"):
        setattr(element, "key", "8")  # noqa: B010


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
    "as the input": Sharding({"": 7}, order={"": INPUT}),
    "filled one by one": Sharding(records_per_shard=40),
    "one shard": Sharding({"": 1}),
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


def test_workers_do_not_change_it() -> None:
    samples = numbered(500)
    flags = ["--direct_num_workers=2", "--direct_running_mode=multi_threading"]
    pipeline = in_process.TestPipeline(runner="FnApiRunner", options=PipelineOptions(flags))

    check_pipeline(pipeline, samples[100:], samples, SHARDINGS["shuffled"])


def test_payloads_are_held_back_to_a_limit(
    test_pipeline: Callable[[], beam.Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transforms.plan_shards.PAYLOADS_HELD_BYTES", 100)
    assert payloads_module.PAYLOADS_HELD_BYTES == 8_000_000

    check_pipeline(test_pipeline(), numbered(100), numbered(100), SHARDINGS["shuffled"])


def _lose_one(payload: Payload) -> bool:
    return payload.key != "41"


def test_a_lost_payload_stops_the_pipeline(test_pipeline: Callable[[], beam.Pipeline]) -> None:
    pipeline = test_pipeline()
    parts = pipeline | beam.Create(numbered(60)).with_output_types(Sample) | DetachPayloads()
    payloads = parts.payloads | beam.Filter(_lose_one).with_output_types(Payload)
    _ = parts.samples | PlanShards(Sharding({"": 1}), kilobyte, payloads=payloads)

    with pytest.raises(Exception) as raised:
        pipeline.run()

    code, line = find_fault("".join(traceback.format_exception(raised.value))) or ("", "")
    assert code == "E-SRC-CHANGED"
    assert "train-00000-of-00001: the payload of key '41' is not what was planned;" in line


def test_without_payloads_the_graph_has_no_more_steps(
    test_pipeline: Callable[[], beam.Pipeline],
) -> None:
    def steps(with_payloads: bool) -> set[str]:
        pipeline = test_pipeline()
        parts = pipeline | beam.Create(numbered(6)).with_output_types(Sample) | DetachPayloads()
        payloads = parts.payloads if with_payloads else None
        _ = parts.samples | PlanShards(Sharding(), kilobyte, payloads=payloads)
        names = pipeline.to_runner_api().components.transforms.values()
        return {step.unique_name.removeprefix("PlanShards/").split("/")[0] for step in names}

    assert steps(True) - steps(False) == {
        "FindBoundaries",
        "OnceRanked",
        "MakeBoundaries",
        "FindShards",
    }
