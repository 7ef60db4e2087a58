import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
import msgspec
import numpy as np
import pytest
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from beam_tfrec.schemas.samples import Blob, Sample, add_content_digests, pack, shuffle_prefixes
from beam_tfrec.schemas.shards import ShardPlan
from beam_tfrec.transforms.plan_shards import (
    Order,
    PlanShards,
    RangeBatch,
    ShardSlice,
    make_range_batches,
    make_shard_plan,
    members_digest,
    rank_range,
)
from beam_tfrec.transforms.shard_table import (
    RangeTally,
    Sharding,
    ShardTable,
    count_shards,
    make_shard_table,
)
from tests.conftest import thorough

SHUFFLED, INPUT = Order.SHUFFLED, Order.INPUT


def sample(key: str, split: str = "train", position: int = 0) -> Sample:
    blob = Blob(split, f"{key}.jpg", 1000 + position % 7, "pin")
    return Sample(split, key, position, (blob,), b"fields", (position,))


def numbered(total: int, split: str = "train") -> list[Sample]:
    return [sample(str(place), split, place) for place in range(total)]


def kilobyte(_: Sample) -> int:
    return 1000


def batch_of(samples: Sequence[Sample], order: Order = SHUFFLED) -> RangeBatch:
    ((_, batch),) = make_range_batches(samples, Sharding(order={"": order}), kilobyte, 1)
    return batch


def packed(samples: Sequence[Sample]) -> list[msgspec.Raw]:
    return [msgspec.Raw(pack(one)) for one in samples]


@given(st.integers(1, 64), st.integers(1, 40), st.integers(0, 10**6))
def test_hosts_get_equal_shares_of_records(hosts: int, files_each: int, more: int) -> None:
    num_shards = hosts * files_each
    total = num_shards + more
    ranks = table_of(Sharding({"": num_shards}, hosts=hosts), {"train": total}).splits["train"]
    counts = [ranks.shard_samples(index) for index in range(num_shards)]
    assert counts == [len(part) for part in np.array_split(np.empty(total), num_shards)]
    per_host = [sum(counts[host::hosts]) for host in range(hosts)]
    assert max(per_host) - min(per_host) <= 1


def table_of(sharding: Sharding, totals: dict[str, int]) -> ShardTable:
    tallies = [
        ((split, 0), RangeTally(total, 1000 * total, "0")) for split, total in totals.items()
    ]
    return make_shard_table(tallies, sharding)


MB = 10**6


@pytest.mark.parametrize(
    ("total", "output_bytes", "sharding", "shards"),
    [
        (10, 150 * MB + 1, Sharding(), 2),
        (10, 150 * MB, Sharding(shard_bytes=50 * MB), 3),
        (5, 0, Sharding(), 1),  # a user's layout may estimate nothing
        (1023, 1, Sharding(), 1),  # 16 shards would have fewer than 64 records
        (1024, 1, Sharding(), 16),
        (1024, 1, Sharding(hosts=6), 18),
        (1024, 1, Sharding(shard_bytes=150 * MB), 1),  # a given size is obeyed
        (1024, 1, Sharding(shard_bytes=150 * MB, hosts=6), 6),
        (1024, 1, Sharding({"": 3}), 3),  # a given number is kept
        (100, 1, Sharding({"train": 8, "": 4}), 8),
        (100, 1, Sharding({"val": 8}), 1),  # another split's number: by size
        (2001, 1, Sharding(records_per_shard=1000), 3),
    ],
)
def test_counts_shards(total: int, output_bytes: int, sharding: Sharding, shards: int) -> None:
    assert count_shards("train", total, output_bytes, sharding) == shards


BY_SIZE = "--shard_size 150000000 and --hosts"


@pytest.mark.parametrize(
    ("sharding", "output_bytes", "what", "remedy"),
    [
        (Sharding({"": 11}), 1, "--num_shards 11", "give at most --num_shards 10"),
        # The largest must be a multiple of the hosts, too.
        (Sharding({"": 12}, hosts=4), 1, "--num_shards 12", "give at most --num_shards 8"),
        (Sharding({"": 16}, hosts=16), 1, "--num_shards 16", "give fewer --hosts"),
        (Sharding(hosts=16), 1, f"{BY_SIZE} 16 make 16 shards", "give fewer --hosts"),
        # Records larger than a shard.
        (Sharding(), 2000 * MB, f"{BY_SIZE} 1 make 14 shards", "give at most --num_shards 10"),
    ],
)
def test_more_shards_than_samples_name_the_largest_number(
    sharding: Sharding, output_bytes: int, what: str, remedy: str
) -> None:
    with pytest.raises(RuntimeError) as raised:
        count_shards("train", 10, output_bytes, sharding)
    assert str(raised.value) == f"E-ARG split train: {what}, but 10 samples to write; {remedy}"


def test_a_rare_size_may_be_left_out() -> None:
    with pytest.raises(RuntimeError, match=r"fewer --hosts, or leave this size out of --buckets$"):
        count_shards("train_64x32", 3, 1, Sharding(hosts=4))


TOO_SMALL = "must be at least 1, got 0: give a larger number"
NO_MULTIPLE = "num_shards must be a multiple of hosts 8, got"
FILLED = "records_per_shard 100 cannot promise a number of shards that is a multiple of hosts 2"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_shards": {"train": 4, "": 0}}, f"num_shards {TOO_SMALL}"),
        ({"records_per_shard": 0}, f"records_per_shard {TOO_SMALL}"),
        ({"shard_bytes": 0}, f"shard_size {TOO_SMALL}"),
        ({"hosts": 0}, f"hosts {TOO_SMALL}"),
        ({"num_shards": {"": 20}, "hosts": 8}, f"{NO_MULTIPLE} 20: give 16 or 24"),
        ({"num_shards": {"": 5}, "hosts": 8}, f"{NO_MULTIPLE} 5: give 8"),
        (
            {"num_shards": {"train": 4}, "records_per_shard": 100},
            "num_shards must come without records_per_shard, got both: give one",
        ),
        ({"records_per_shard": 100, "hosts": 2}, f"{FILLED}: give num_shards instead"),
        ({"seed": None}, "seed must be a whole number, got None: give one"),
        ({"seed": 10**64}, f"seed must be at most 64 digits, got {10**64}: give a smaller one"),
    ],
)
def test_bad_sharding_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Sharding(**given)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("sharding", "options"),
    [
        (
            Sharding({"val": 16, "": 512}, hosts=8, order={"val": INPUT, "": SHUFFLED}, seed=7),
            {"num_shards": "all=512 val=16", "order": "all=shuffled val=input", "seed": "7"},
        ),
        (Sharding(records_per_shard=5), {"records_per_shard": "5"}),
        (Sharding(hosts=8), {"shard_size": "150000000", "hosts": "8"}),
        # With a given size, there is no minimum number of shards.
        (Sharding(shard_bytes=150 * MB), {"shard_size": "150000000 as given", "hosts": "1"}),
    ],
)
def test_options_hold_what_decides_the_plan(sharding: Sharding, options: dict[str, str]) -> None:
    without_effect = dict.fromkeys(["hosts", "num_shards", "records_per_shard", "shard_size"], "")
    plain = {"order": "all=shuffled", "seed": "0"}
    assert sharding.options() == {**without_effect, **plain, **options}


CAFE, LONG = "caf\u00e9.jpg", "000000000030.jpg"
KEYS = [*map(str, range(1, 13)), "a.jpg", "b/c.jpg", CAFE, "z", "30", LONG, "Z", ""]


@pytest.mark.parametrize(
    ("seed", "split", "expected"),
    [
        (0, "train", f"10 1 Z 8 12 6 9 z {LONG} 11 a.jpg 2 4 7 3 {CAFE} 30 5  b/c.jpg"),
        (1, "train", f" {LONG} 12 6 {CAFE} z 2 10 3 5 8 Z 4 1 b/c.jpg a.jpg 9 7 30 11"),
        (0, "val", f" 30 12 {CAFE} 10 a.jpg 11 2 8 3 9 Z z 7 5 6 b/c.jpg 4 1 {LONG}"),
    ],
)
def test_the_shuffled_order_never_changes(seed: int, split: str, expected: str) -> None:
    # Output bytes depend on it. The expected keys were computed without this project's code.
    places = shuffle_prefixes(split, KEYS, seed)
    assert " ".join(key for _, key in sorted(zip(places, KEYS, strict=True))) == expected


TWO_SHARDS = Sharding({"": 2}, order={"": INPUT})


def ranked(samples: Sequence[Sample], counted: Sequence[Sample], sharding: Sharding) -> list:
    """Rank samples of one range with a table made from those counted before."""
    order = sharding.order_of("train")
    table = make_shard_table([(("train", 0), batch_of(counted, order).tally)], sharding)
    # Cut in two, as by bundles.
    batches = [batch_of(part, order) for part in (samples[:1], samples[1:]) if part]
    return list(rank_range((("train", 0), batches), table))


@pytest.mark.parametrize(
    "now",
    [
        numbered(4),
        numbered(2),
        [*numbered(2), sample("x", position=2)],  # the same number, but one is another
        [*numbered(2), sample("2", position=3)],
        [*numbered(2), replace(sample("2", position=2), fields=b"others")],  # other annotations
        [*numbered(2), replace(sample("2", position=2), blobs=(Blob("train", "2.jpg", 1003),))],
    ],
)
def test_a_range_whose_samples_changed_stops_the_run(now: list[Sample]) -> None:
    with pytest.raises(RuntimeError) as raised:
        ranked(now, numbered(3), TWO_SHARDS)
    assert str(raised.value) == (
        "E-SRC-CHANGED split train: key range 0 had 3 samples,"
        f" now it has {len(now)} others; run again when the source no longer changes"
    )


def test_a_range_that_was_not_counted_stops_the_run() -> None:
    table = table_of(TWO_SHARDS, {"train": 3})
    with pytest.raises(
        RuntimeError, match=r"^E-SRC-CHANGED .*: key range 1 had 0 samples, now it has 1"
    ):
        list(rank_range((("train", 1), [batch_of(numbered(1), INPUT)]), table))


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [ShardSlice(0, packed(numbered(2)))],
        [ShardSlice(0, packed(numbered(4)))],
        [ShardSlice(1, packed(numbered(3)))],
        [ShardSlice(0, packed(numbered(2))), ShardSlice(1, packed(numbered(1)))],  # overlap
        [ShardSlice(0, packed(numbered(1))), ShardSlice(2, packed(numbered(1)))],  # gap
        [ShardSlice(0, packed(numbered(3))), ShardSlice(0, packed(numbered(3)))],  # twice
    ],
)
def test_a_shard_that_is_not_as_planned_stops_the_run(runs: list[ShardSlice]) -> None:
    table = table_of(TWO_SHARDS, {"train": 6})
    with pytest.raises(RuntimeError) as raised:
        make_shard_plan((("train", 1), runs), table)
    came = sum(len(run.samples) for run in runs)
    assert str(raised.value) == (
        f"E-SRC-CHANGED train-00001-of-00002: 3 samples were planned, and there are {came} now;"
        " run again when the source no longer changes"
    )


@pytest.mark.parametrize("order", [Order.SHUFFLED, thorough(Order.INPUT)])
@pytest.mark.parametrize("second", [9, 5000])  # in the same range, or far away in input order
def test_two_samples_of_one_key_stop_the_run(
    order: Order, second: int, test_pipeline: Callable[[], beam.Pipeline]
) -> None:
    samples = [sample("a", position=3), sample("b"), sample("a", position=second)]
    with pytest.raises(Exception, match="E-SET-DUPLICATE") as raised, test_pipeline() as pipeline:
        sharding = Sharding({"": 2}, order={"": order})
        _ = pipeline | beam.Create(samples) | PlanShards(sharding, kilobyte)
    assert (
        "E-SET-DUPLICATE split train: two samples have the key 'a';"
        " give every sample its own key, or put it into another split (records: --key_feature or"
        " --on_duplicate; tar files: rename members)"
    ) in str(raised.value)


def reference(samples: Sequence[Sample], sharding: Sharding) -> list[tuple[str, int, int, list]]:
    """Sort each split as a whole and let numpy cut it."""
    shards = []
    for split in sorted({s.split for s in samples}):
        members = [s for s in samples if s.split == split]
        if sharding.order_of(split) is INPUT:
            members.sort(key=lambda one: one.position)
        else:
            members.sort(key=lambda one: digest(split, one.key, sharding.seed))
        keys = [one.key for one in members]
        num_shards = count_shards(split, len(keys), 1000 * len(keys), sharding)
        full = sharding.records_per_shard
        cuts = [full * n for n in range(1, num_shards)] if full else num_shards
        parts = np.array_split(np.array(keys), cuts)
        shards += [(split, i, num_shards, part.tolist()) for i, part in enumerate(parts)]
    return shards


def digest(split: str, key: str, seed: int) -> bytes:
    data, seed_key = f"{split}\0{key}".encode(), str(seed).encode()
    return hashlib.blake2b(data, key=seed_key, digest_size=16, person=b"tfrec-order").digest()


def describe(plan: ShardPlan) -> tuple[str, int, int, list[str]]:
    return plan.split, plan.index, plan.num_shards, [s.key for s in plan.samples]


@pytest.mark.parametrize(
    ("totals", "sharding"),
    [
        ({}, Sharding()),
        thorough({"train": 1}, Sharding()),
        thorough({"train": 10}, Sharding(shard_bytes=3000)),  # 4 shards of 1,000-byte records
        thorough({"train": 100}, Sharding({"": 8}, hosts=4, seed=-3)),
        thorough({"train": 1024}, Sharding()),  # 16 shards
        ({"train": 50}, Sharding(records_per_shard=7)),
        thorough({"train": 9000}, Sharding({"": 3}, order={"": INPUT})),  # three ranges
        (
            {"train": 60, "val": 20, "test": 7},
            Sharding({"train": 4, "": 2}, order={"val": INPUT}, seed=2),
        ),
    ],
)
def test_the_pipeline_plans_like_sorting_and_cutting(
    test_pipeline: Callable[[], beam.Pipeline], totals: dict[str, int], sharding: Sharding
) -> None:
    samples = [s for split, total in totals.items() for s in numbered(total, split)]
    arriving = random.Random(0).sample(samples, len(samples))
    with test_pipeline() as pipeline:
        planned = (
            pipeline
            | beam.Create(arriving).with_output_types(Sample)
            | "Plan" >> PlanShards(sharding, kilobyte)
        )
        shards, expected = planned.shards | beam.Map(describe), reference(samples, sharding)
        assert_that(shards, equal_to(expected), label="shards")
        digests = planned.table | beam.Map(lambda table: table.digest)
        total = sum(members_digest([s], sharding.order_of(s.split)) for s in samples) % 2**256
        assert_that(digests, equal_to([f"{total:064x}"]), label="digest")


def test_the_minimum_of_shards_is_logged_when_it_decides(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        table_of(Sharding(), {"train": 1025, "val": 100})
        table_of(Sharding(shard_bytes=MB), {"train": 1025})
    assert caplog.messages == [
        "split train: 16 shards, the default minimum; for fewer give --shard_size"
    ]


BLOB = Blob("train", "dir/a.jpg", size_bytes=1234, pin="1700000000", crc32c=0xDEADBEEF)
SAMPLE = Sample("train", "42", 7, (BLOB,), pack([640, 480, []]), (11, 12))


def changed(**fields: Any) -> Sample:
    return msgspec.structs.replace(SAMPLE, **fields)


def with_blob(**fields: Any) -> Sample:
    return changed(blobs=(msgspec.structs.replace(BLOB, **fields),))


# What was changed, and whether the digest changes without and with positions.
DIGESTS = {
    "nothing": (changed(), False, False),
    "split": (changed(split="val"), True, True),
    "key": (changed(key="43"), True, True),
    "position": (changed(position=8), False, True),  # decides bytes only with --order input
    "no blob": (changed(blobs=()), True, True),
    "fields": (changed(fields=pack([640, 481, []])), True, True),
    "annotation ids": (changed(annotation_ids=(11, 13)), True, True),
    "order of annotation ids": (changed(annotation_ids=(12, 11)), True, True),
    "annotation id as text": (changed(annotation_ids=(11, "12")), True, True),
    "blob name": (with_blob(name="dir/b.jpg"), True, True),
    "blob size": (with_blob(size_bytes=1235), True, True),
    "blob crc": (with_blob(crc32c=None), True, True),
    "pin": (with_blob(pin="1800000000"), False, False),  # a touched source is the same data
}


@pytest.mark.parametrize(("changed", "differs", "differs_in_order"), DIGESTS.values(), ids=DIGESTS)
def test_the_digest_covers_exactly_what_decides_bytes(
    changed: Sample, differs: bool, differs_in_order: bool
) -> None:
    for with_position, differs_then in ((False, differs), (True, differs_in_order)):
        one, other = (
            add_content_digests([each], with_position=with_position) for each in (changed, SAMPLE)
        )
        assert (one != other) is differs_then


def test_digests_never_change() -> None:
    assert [f"{add_content_digests([SAMPLE], with_position=p):064x}" for p in (False, True)] == [
        "6472286869f7bd16477306faba5b02e566e43cd7be72c8f0865a3e6b9037408f",
        "85a459ff7e580766468fdd6211abfad3dcd731cf1b87f6adaddb95127d8f2e52",
    ]
