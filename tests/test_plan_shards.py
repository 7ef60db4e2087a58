import hashlib
import itertools
import logging
import operator
import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence

import apache_beam as beam
import apache_beam.testing.test_pipeline as in_process
import msgspec
import numpy as np
import pytest
from apache_beam import coders
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from schemas.faults import find_fault
from schemas.manifest import PlannedSplit
from schemas.order import pack_rounded, places_in_order
from schemas.samples import Blob, Sample, pack_each, read_sample
from schemas.shards import ShardPlan
from transforms import pipeline_spool
from transforms.blobs import PinTally
from transforms.coders import StructCoder
from transforms.plan_shards import (
    MOST_IN_RUN,
    BucketBatch,
    Order,
    PlanShards,
    ShardRun,
    buckets_of,
    make_bucket_batch,
    make_bucket_batches,
    make_shard_plan,
    members_digest,
    order_key,
    order_keys,
    rank_bucket,
)
from transforms.shard_table import (
    DEFAULT_SHARD_BYTES,
    Ranks,
    Sharding,
    ShardTable,
    Tally,
    add_tallies,
    count_shards,
    equal_shares,
    make_shard_table,
)

SHUFFLED, INPUT = Order.SHUFFLED, Order.INPUT


def sample(key: str, split: str = "train", position: int = 0) -> Sample:
    blob = Blob(split, f"{key}.jpg", 1000 + position % 7, "pin")
    return Sample(split, key, position, (blob,), b"fields", (position,))


def numbered(total: int, split: str = "train") -> list[Sample]:
    return [sample(str(place), split, place) for place in range(total)]


def kilobyte(_: Sample) -> int:
    return 1000


def batch_of(samples: Sequence[Sample], order: Order = SHUFFLED) -> BucketBatch:
    keys = order_keys(samples[0].split, samples, order, seed=0)
    keyed = list(zip(keys, samples, strict=True))
    return make_bucket_batch(keyed, Sharding(order={"": order}), kilobyte)


def fault_of(error: BaseException) -> str:
    found = find_fault("".join(traceback.format_exception(error)))
    return found[1] if found else ""


# --- pure arithmetic ---


@given(st.data(), st.integers(1, 2000))
def test_every_rank_has_one_place_as_numpy_cuts(data: st.DataObject, total: int) -> None:
    num_shards = data.draw(st.integers(1, total))

    parts = np.array_split(np.arange(total), num_shards)

    expected = [(shard, place) for shard, part in enumerate(parts) for place in range(len(part))]
    assert [equal_shares(rank, total, num_shards) for rank in range(total)] == expected


@given(st.integers(1, 64), st.integers(1, 40), st.integers(0, 10**6))
def test_hosts_that_read_every_hth_file_get_equal_shares(
    hosts: int, files_each: int, more: int
) -> None:
    num_shards = hosts * files_each
    total = num_shards + more
    table = table_of(Sharding({"": num_shards}, hosts=hosts), {"train": total})

    counts = [table.splits["train"].shard_samples(index) for index in range(num_shards)]

    assert sum(counts) == total
    assert counts == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= 1
    per_host = [sum(counts[host::hosts]) for host in range(hosts)]
    assert max(per_host) - min(per_host) <= 1


def table_of(sharding: Sharding, totals: dict[str, int]) -> ShardTable:
    tallies = [((split, 0), Tally(total, 1000 * total, "0")) for split, total in totals.items()]
    return make_shard_table(tallies, sharding)


@given(st.integers(1, 500), st.integers(1, 600))
def test_filled_shards_are_full_but_the_last(total: int, full: int) -> None:
    ranks = table_of(Sharding(records_per_shard=full), {"train": total}).splits["train"]

    chunks = [list(range(total))[start : start + full] for start in range(0, total, full)]

    assert ranks.planned == PlannedSplit(total, len(chunks))
    assert [ranks.shard_samples(index) for index in range(len(chunks))] == list(map(len, chunks))
    expected = [(shard, place) for shard, chunk in enumerate(chunks) for place in range(len(chunk))]
    assert [ranks.shard_of(rank) for rank in range(total)] == expected


MB = 10**6


@pytest.mark.parametrize(
    ("total", "output_bytes", "sharding", "shards"),
    [
        (118_287, 19_000 * MB, Sharding(), 127),
        (118_287, 19_000 * MB, Sharding(hosts=8), 128),  # up to a multiple
        (10, 150 * MB, Sharding(), 1),
        (10, 150 * MB + 1, Sharding(), 2),
        (10, 150 * MB, Sharding(shard_bytes=50 * MB), 3),
        (1, 1, Sharding(), 1),
        (1023, 1, Sharding(), 1),  # 16 shards would have fewer than 64 records
        (1024, 1, Sharding(), 16),
        (1024, 3000 * MB, Sharding(), 20),  # 16 are a minimum only
        (1024, 1, Sharding(hosts=6), 18),
        (1024, 1, Sharding(shard_bytes=150 * MB), 1),  # a given size is obeyed
        (1024, 1, Sharding(shard_bytes=150 * MB, hosts=6), 6),
        (1024, 1, Sharding({"": 3}), 3),  # what is asked for is not raised
        (100, 1, Sharding({"": 100}), 100),
        (100, 1, Sharding({"train": 8, "": 4}), 8),
        (100, 1, Sharding({"val": 8, "": 4}), 4),
        (100, 1, Sharding({"val": 8}), 1),  # another split's number: by size
        (2000, 1, Sharding(records_per_shard=1000), 2),
        (2001, 1, Sharding(records_per_shard=1000), 3),
        (5, 1, Sharding(records_per_shard=1000), 1),
    ],
)
def test_counts_shards(total: int, output_bytes: int, sharding: Sharding, shards: int) -> None:
    assert count_shards("train", total, output_bytes, sharding) == shards


def test_the_least_number_of_shards_is_logged_where_it_decides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        table_of(Sharding(), {"train": 1025, "val": 100})
        table_of(Sharding(shard_bytes=MB), {"train": 1025})
    assert caplog.messages == [
        "split train: 16 shards, the least by default; for fewer give --shard_size"
    ]


@pytest.mark.parametrize(
    ("sharding", "output_bytes", "what", "remedy"),
    [
        (Sharding({"": 11}), 1, "--num_shards 11", "give at most --num_shards 10"),
        (Sharding({"train": 99}), 1, "--num_shards 99", "give at most --num_shards 10"),
        # The largest must be a multiple of the hosts, too.
        (Sharding({"": 12}, hosts=4), 1, "--num_shards 12", "give at most --num_shards 8"),
        (Sharding({"": 16}, hosts=16), 1, "--num_shards 16", "give fewer --hosts"),
        (
            Sharding(hosts=16),
            1,
            "--shard_size 150000000 and --hosts 16 make 16 shards",
            "give fewer --hosts",
        ),
        # Records larger than a shard.
        (
            Sharding(),
            10 * 200 * MB,
            "--shard_size 150000000 and --hosts 1 make 14 shards",
            "give at most --num_shards 10",
        ),
    ],
)
def test_more_shards_than_samples_name_the_largest_number(
    sharding: Sharding, output_bytes: int, what: str, remedy: str
) -> None:
    with pytest.raises(ValueError) as raised:
        count_shards("train", 10, output_bytes, sharding)

    assert str(raised.value) == f"E-ARG split train: {what}, but 10 samples; {remedy}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sharding({"": 0}), "num_shards must be at least 1, got 0: give a larger number"),
        (
            lambda: Sharding({"train": 4, "val": -1}),
            "num_shards must be at least 1, got -1: give a larger number",
        ),
        (
            lambda: Sharding(records_per_shard=0),
            "records_per_shard must be at least 1, got 0: give a larger number",
        ),
        (
            lambda: Sharding(shard_bytes=0),
            "shard_size must be at least 1, got 0: give a larger number",
        ),
        (lambda: Sharding(hosts=0), "hosts must be at least 1, got 0: give a larger number"),
        (
            lambda: Sharding({"": 20}, hosts=8),
            "num_shards must be a multiple of hosts 8, got 20: give 16 or 24",
        ),
        (
            lambda: Sharding({"": 5}, hosts=8),
            "num_shards must be a multiple of hosts 8, got 5: give 8",
        ),
        (
            lambda: Sharding({"train": 4}, records_per_shard=100),
            "num_shards {'train': 4} and records_per_shard 100 exclude each other: give one",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(make: Callable[[], Sharding], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        make()

    assert str(raised.value) == message


def test_options_tell_of_everything_that_decides_the_plan() -> None:
    sharding = Sharding({"val": 16, "": 512}, hosts=8, order={"val": INPUT, "": SHUFFLED}, seed=7)

    assert sharding.options() == {
        "hosts": "",  # without effect beside num_shards
        "num_shards": "all=512 val=16",
        "order": "all=shuffled val=input",
        "records_per_shard": "",
        "seed": "7",
        "shard_size": "",  # without effect, so a change of it is no change of the plan
    }
    assert Sharding(records_per_shard=5).options()["records_per_shard"] == "5"
    assert Sharding(records_per_shard=5).options()["shard_size"] == ""
    assert Sharding().options()["shard_size"] == "150000000"
    given = Sharding(shard_bytes=150_000_000).options()["shard_size"]
    assert given == "150000000 as given"  # has no least number of shards
    assert Sharding(hosts=8).options()["hosts"] == "8"


# --- order ---

KEYS = [*map(str, range(1, 13)), "a.jpg", "b/c.jpg", "caf\u00e9.jpg", "z", "30", "000000000030.jpg"]
KEYS += ["Z", ""]


@pytest.mark.parametrize(
    ("seed", "split", "expected"),
    [
        (
            0,
            "train",
            "10 1 Z 8 12 6 9 z 000000000030.jpg 11 a.jpg 2 4 7 3 caf\u00e9.jpg 30 5  b/c.jpg",
        ),
        (
            1,
            "train",
            " 000000000030.jpg 12 6 caf\u00e9.jpg z 2 10 3 5 8 Z 4 1 b/c.jpg a.jpg 9 7 30 11",
        ),
        (
            0,
            "val",
            " 30 12 caf\u00e9.jpg 10 a.jpg 11 2 8 3 9 Z z 7 5 6 b/c.jpg 4 1 000000000030.jpg",
        ),
    ],
)
def test_the_shuffled_order_is_for_ever(seed: int, split: str, expected: str) -> None:
    # Output bytes depend on it. Computed outside of the project from the recipe in ARCHITECTURE.md.
    samples = [sample(key, split) for key in KEYS]

    in_order = sorted(samples, key=lambda s: order_key(s, SHUFFLED, seed))

    assert " ".join(s.key for s in in_order) == expected


def test_the_shuffled_order_of_many_is_for_ever() -> None:
    samples = [sample(str(number)) for number in range(100_000)]

    in_order = sorted(samples, key=lambda s: order_key(s, SHUFFLED, 0))

    digest = hashlib.sha256("\n".join(s.key for s in in_order).encode()).hexdigest()
    assert digest == "86cc1d4f893f0369fd80dfd3469ea30d6f7fb551e443a06dff6eb65d6d61ad01"


def test_the_input_s_order_is_the_position() -> None:
    samples = [sample("b", position=2), sample("a", position=10), sample("c", position=0)]

    in_order = sorted(samples, key=lambda s: order_key(s, INPUT, 0))

    assert [s.key for s in in_order] == ["c", "b", "a"]


def test_all_permutations_are_equally_likely() -> None:
    samples = numbered(5)
    seen: Counter = Counter()
    for seed in range(12_000):
        seen[tuple(sorted(range(5), key=lambda n: order_key(samples[n], SHUFFLED, seed)))] += 1

    assert len(seen) == 120
    chi_squared = sum((count - 100) ** 2 / 100 for count in seen.values())
    assert chi_squared < 180  # 119 degrees of freedom: one seed recipe in 5,000 would fail


@pytest.mark.parametrize(("order", "largest"), [(SHUFFLED, 2**128 - 1), (INPUT, 10**9)])
def test_buckets_sort_as_their_keys_do(order: Order, largest: int) -> None:
    choose = random.Random(0)
    keys = sorted({0, 1, largest, *(choose.randint(0, largest) for _ in range(2000))})

    buckets = buckets_of(keys, order, 4096)

    assert buckets == sorted(buckets)
    assert len(set(buckets)) > 1000


# --- digests and tallies ---

BLOB = Blob("train", "a.jpg", 1000, "pin", 7)
SAMPLE = Sample("train", "1", 3, (BLOB,), b"fields", (1, 2))


def with_blob(**changes: object) -> Sample:
    return msgspec.structs.replace(SAMPLE, blobs=(msgspec.structs.replace(BLOB, **changes),))


@pytest.mark.parametrize(
    ("other", "same", "same_with_order_input"),
    [
        (SAMPLE, True, True),
        (with_blob(pin="touched or copied"), True, True),
        (msgspec.structs.replace(SAMPLE, position=4), True, False),
        (msgspec.structs.replace(SAMPLE, split="val"), False, False),
        (msgspec.structs.replace(SAMPLE, key="2"), False, False),
        (msgspec.structs.replace(SAMPLE, fields=b"other"), False, False),
        (msgspec.structs.replace(SAMPLE, annotation_ids=(2, 1)), False, False),
        (msgspec.structs.replace(SAMPLE, blobs=()), False, False),
        (with_blob(root="val"), False, False),
        (with_blob(name="b.jpg"), False, False),
        (with_blob(size_bytes=1001), False, False),
        (with_blob(crc32c=8), False, False),
    ],
)
def test_the_plan_s_digest_tells_what_decides_the_data_set(
    other: Sample, same: bool, same_with_order_input: bool
) -> None:
    for order, expected in ((SHUFFLED, same), (INPUT, same_with_order_input)):
        assert (members_digest([SAMPLE], order) == members_digest([other], order)) is expected


@given(st.permutations(list(range(8))), st.integers(0, 8))
def test_tallies_add_up_in_any_order_and_cut(order: list[int], cut: int) -> None:
    samples = numbered(8)
    whole = batch_of(samples).tally
    shuffled = [samples[place] for place in order]

    parts = [batch_of(part).tally for part in (shuffled[:cut], shuffled[cut:]) if part]

    assert add_tallies(parts) == whole
    assert (whole.samples, whole.bytes) == (8, 8000)
    assert add_tallies([]) == Tally(0, 0, "0")


def test_a_split_without_samples_has_no_shards() -> None:
    assert table_of(Sharding(), {"train": 3}).planned("val") == PlannedSplit(0, 0)


# --- ranking, and sources that change meanwhile ---

TWO_SHARDS = Sharding({"": 2}, order={"": INPUT})


def ranked(samples: Sequence[Sample], counted: Sequence[Sample], sharding: Sharding) -> list:
    """Rank samples of one bucket by a table that was made of those counted before."""
    order = sharding.order_of("train")
    table = make_shard_table([(("train", 0), batch_of(counted, order).tally)], sharding)
    # Cut in two, as bundles would.
    batches = [batch_of(part, order) for part in (samples[:1], samples[1:]) if part]
    return list(rank_bucket(("train", 0), batches, table, sharding))


def test_a_bucket_s_samples_come_as_runs_of_shards() -> None:
    samples = numbered(5)

    runs = ranked(samples[::-1], samples, TWO_SHARDS)

    assert runs == [
        (("train", 0), ShardRun(0, pack_each(samples[:3]))),
        (("train", 1), ShardRun(0, pack_each(samples[3:]))),
    ]


def test_a_run_is_not_longer_than_what_caches_hold() -> None:
    samples = numbered(5)
    sharding = Sharding({"": 1}, order={"": INPUT})
    many = numbered(2 * MOST_IN_RUN + 1)

    assert ranked(samples, samples, sharding) == [(("train", 0), ShardRun(0, pack_each(samples)))]
    assert ranked(many, many, sharding) == [
        (("train", 0), ShardRun(start, pack_each(many[start : start + MOST_IN_RUN])))
        for start in (0, MOST_IN_RUN, 2 * MOST_IN_RUN)
    ]


def test_ranks_go_on_from_bucket_to_bucket() -> None:
    samples = numbered(3) + [sample(str(p), position=p) for p in (4096, 4097, 9000)]
    buckets = [
        (("train", 0), batch_of(samples[:3], INPUT)),
        (("train", 1), batch_of(samples[3:5], INPUT)),
        (("train", 2), batch_of(samples[5:], INPUT)),
    ]
    tallies = [(bucket, batch.tally) for bucket, batch in buckets]
    table = make_shard_table(tallies[::-1], TWO_SHARDS)  # in any order

    runs = [list(rank_bucket(bucket, [batch], table, TWO_SHARDS)) for bucket, batch in buckets]

    assert runs == [
        [(("train", 0), ShardRun(0, pack_each(samples[:3])))],
        [(("train", 1), ShardRun(0, pack_each(samples[3:5])))],
        [(("train", 1), ShardRun(2, pack_each(samples[5:])))],
    ]


_CLOSE_TOGETHER = st.builds(operator.add, st.sampled_from([0, 2**127]), st.integers(0, 3))


@given(st.lists(_CLOSE_TOGETHER | st.integers(0, 2**128 - 1)))
def test_places_are_told_where_rounding_tells_them_all(keys: list[int]) -> None:
    places = places_in_order(pack_rounded(keys))

    if len({*map(float, keys)}) < len(keys):
        assert places is None
    else:
        assert places == sorted(range(len(keys)), key=keys.__getitem__)


@given(st.sets(st.text(), min_size=1))
def test_a_bucket_is_ranked_by_whole_hashes_where_rounding_tells_too_little(keys: set[str]) -> None:
    samples = [sample(key) for key in sorted(keys)]
    expected = sorted(samples, key=lambda one: digest("train", one.key, 0))
    sharding = Sharding({"": 1})
    batch = batch_of(samples)
    table = make_shard_table([(("train", 0), batch.tally)], sharding)

    for rounded in (batch.rounded, pack_rounded([7] * len(samples))):
        alike = msgspec.structs.replace(batch, rounded=rounded)
        ((_, run),) = rank_bucket(("train", 0), [alike], table, sharding)
        assert run.samples == pack_each(expected)


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (numbered(4), "3 samples were counted in bucket 0, now 4 others came"),
        (numbered(2), "3 samples were counted in bucket 0, now 2 others came"),
        # As many, but one is another: a count alone would not tell.
        ([*numbered(2), sample("x", position=2)], "3 samples were counted in bucket 0, now 3 oth"),
        ([*numbered(2), sample("2", position=3)], "3 samples were counted in bucket 0, now 3 oth"),
        # One twice, another not at all.
        ([*numbered(2), numbered(1)[0]], "3 samples were counted in bucket 0, now 3 others came"),
    ],
)
def test_a_bucket_that_is_not_what_was_counted_stops_the_run(now: list[Sample], what: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        ranked(now, numbered(3), TWO_SHARDS)

    assert str(raised.value).startswith(f"E-SRC-CHANGED split train: {what}")
    assert str(raised.value).endswith("; run again when the sources are at rest")


def test_a_bucket_that_was_not_counted_at_all_stops_the_run() -> None:
    table = make_shard_table(
        [(("train", n), batch_of(numbered(3), INPUT).tally) for n in (0, 2)], TWO_SHARDS
    )
    for bucket in (1, 3):
        with pytest.raises(RuntimeError, match=rf"^E-SRC-CHANGED .*: 0 samples .* {bucket}, now 1"):
            list(rank_bucket(("train", bucket), [batch_of(numbered(1), INPUT)], table, TWO_SHARDS))


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [ShardRun(0, pack_each(numbered(2)))],
        [ShardRun(0, pack_each(numbered(4)))],
        [ShardRun(1, pack_each(numbered(3)))],
        [ShardRun(0, pack_each(numbered(2))), ShardRun(1, pack_each(numbered(1)))],  # overlap
        [ShardRun(0, pack_each(numbered(1))), ShardRun(2, pack_each(numbered(1)))],  # gap
        [ShardRun(0, pack_each(numbered(3))), ShardRun(0, pack_each(numbered(3)))],  # twice
    ],
)
def test_a_shard_that_is_not_as_planned_stops_the_run(runs: list[ShardRun]) -> None:
    table = table_of(TWO_SHARDS, {"train": 6})

    with pytest.raises(RuntimeError) as raised:
        make_shard_plan(("train", 1), runs, table)

    came = sum(len(run.samples) for run in runs)
    assert str(raised.value) == (
        f"E-SRC-CHANGED train-00001-of-00002: 3 samples are planned, {came} came;"
        " run again when the sources are at rest"
    )


def test_a_shard_s_runs_come_in_any_order() -> None:
    table = table_of(TWO_SHARDS, {"train": 12})
    samples = numbered(6)
    runs = [
        ShardRun(0, pack_each(samples[:1])),
        ShardRun(1, pack_each(samples[1:4])),
        ShardRun(4, pack_each(samples[4:])),
    ]

    for shuffled in itertools.permutations(runs):
        plan = make_shard_plan(("train", 1), list(shuffled), table)
        assert plan == ShardPlan("train", 1, 2, samples)


@pytest.mark.parametrize("order", Order)
def test_two_samples_of_one_key_stop_the_run(order: Order) -> None:
    samples = [sample("a", position=3), sample("b"), sample("a", position=9)]

    with pytest.raises(RuntimeError) as raised:
        ranked(samples, samples, Sharding({"": 2}, order={"": order}))

    assert str(raised.value) == (
        "E-SET-DUPLICATE split train: key 'a' stands for two samples (at 3 and 9);"
        " give every sample a key of its own"
    )


# --- the pipeline ---


def reference(samples: Sequence[Sample], sharding: Sharding) -> list[tuple[str, int, int, list]]:
    """Sort each split as a whole and let numpy cut it."""
    shards = []
    for split in sorted({s.split for s in samples}):
        members = [s for s in samples if s.split == split]
        order = sharding.order_of(split)
        if order is INPUT:
            keys = [s.key for s in sorted(members, key=lambda s: s.position)]
        else:
            keys = sorted(
                (s.key for s in members), key=lambda key: digest(split, key, sharding.seed)
            )
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


def check_pipeline(
    pipeline: beam.Pipeline, samples: Sequence[Sample], sharding: Sharding, expected: list
) -> None:
    with pipeline:
        planned = (
            pipeline
            | beam.Create(samples).with_output_types(Sample)
            | "Plan" >> PlanShards(sharding, kilobyte)
        )
        assert_that(planned.shards | beam.Map(describe), equal_to(expected), label="shards")
        digests = planned.table | beam.Map(lambda table: table.digest)
        total = sum(members_digest([s], sharding.order_of(s.split)) for s in samples) % 2**256
        assert_that(digests, equal_to([f"{total:064x}"]), label="digest")


ARRIVAL = random.Random(0)


@pytest.mark.parametrize(
    ("totals", "sharding"),
    [
        ({"train": 1}, Sharding()),
        ({"train": 5}, Sharding({"": 2})),
        ({"train": 5}, Sharding({"": 5}, seed=1)),
        ({"train": 100}, Sharding({"": 8}, hosts=4, seed=-3)),
        ({"train": 1024}, Sharding()),  # 16 shards
        ({"train": 50}, Sharding(records_per_shard=7)),
        ({"train": 50}, Sharding(records_per_shard=50)),
        ({"train": 50}, Sharding({"": 3}, order={"": INPUT})),
        ({"train": 9000}, Sharding({"": 3}, order={"": INPUT})),  # three buckets
        (
            {"train": 60, "val": 20, "test": 7},
            Sharding({"train": 4, "": 2}, order={"val": INPUT}, seed=2),
        ),
        ({"train": 20, "val": 20}, Sharding(records_per_shard=6, order={"": INPUT})),
    ],
)
def test_the_pipeline_plans_as_sorting_and_cutting_would(
    test_pipeline: Callable[[], beam.Pipeline], totals: dict[str, int], sharding: Sharding
) -> None:
    samples = [s for split, total in totals.items() for s in numbered(total, split)]
    arriving = ARRIVAL.sample(samples, len(samples))

    check_pipeline(test_pipeline(), arriving, sharding, reference(samples, sharding))


def test_workers_do_not_change_the_plan() -> None:
    samples, sharding = numbered(3000), Sharding({"": 7})
    flags = ["--direct_num_workers=2", "--direct_running_mode=multi_threading"]
    options = PipelineOptions(flags)
    pipeline = in_process.TestPipeline(runner="FnApiRunner", options=options)

    check_pipeline(pipeline, samples[::-1], sharding, reference(samples, sharding))


def test_estimated_bytes_decide_the_number_of_shards(
    test_pipeline: Callable[[], beam.Pipeline],
) -> None:
    samples, sharding = numbered(10), Sharding(shard_bytes=3000)

    # 10 records of 1,000 bytes
    assert {shards for _, _, shards, _ in reference(samples, sharding)} == {4}
    check_pipeline(test_pipeline(), samples, sharding, reference(samples, sharding))


def run_plan(
    pipeline: beam.Pipeline,
    samples: Sequence[Sample],
    sharding: Sharding,
    tallies: Sequence[tuple[str, PinTally]] | None = None,
) -> str:
    """Return the fault that ends the pipeline."""
    with pytest.raises(Exception) as raised, pipeline:
        given_tallies = None if tallies is None else pipeline | "Tallies" >> beam.Create(tallies)
        created = pipeline | beam.Create(samples).with_output_types(Sample)
        _ = created | PlanShards(sharding, kilobyte, given_tallies)
    return fault_of(raised.value)


def test_a_duplicate_key_stops_the_pipeline(test_pipeline: Callable[[], beam.Pipeline]) -> None:
    samples = [*numbered(50), sample("7", position=50)]

    line = run_plan(test_pipeline(), samples, Sharding())

    assert line.startswith("E-SET-DUPLICATE split train: key '7' stands for two samples (at ")


def test_too_many_shards_stop_the_pipeline(test_pipeline: Callable[[], beam.Pipeline]) -> None:
    line = run_plan(test_pipeline(), numbered(3), Sharding({"": 4}))

    remedy = "give at most --num_shards 3"
    assert line == f"E-ARG split train: --num_shards 4, but 3 samples; {remedy}"


def test_mostly_missing_images_stop_the_pipeline(
    test_pipeline: Callable[[], beam.Pipeline],
) -> None:
    tallies = [("val", PinTally(named=4, missing=2)), ("train", PinTally(5, 3, 9, "0", "a", "b"))]

    line = run_plan(test_pipeline(), numbered(3), Sharding(), tallies)

    assert line.startswith("E-SET-MISSING images of train: 3 of 5 images are not there, the first")


def test_missing_images_up_to_half_do_not_stop_it(
    test_pipeline: Callable[[], beam.Pipeline],
) -> None:
    with test_pipeline() as pipeline:
        tallies = pipeline | "Tallies" >> beam.Create([("train", PinTally(named=6, missing=3))])
        samples = pipeline | beam.Create(numbered(3)).with_output_types(Sample)
        planned = samples | PlanShards(Sharding(), kilobyte, tallies)
        assert_that(planned.shards | beam.Map(lambda plan: len(plan.samples)), equal_to([3]))


def test_no_samples_make_an_empty_plan(test_pipeline: Callable[[], beam.Pipeline]) -> None:
    check_pipeline(test_pipeline(), [], Sharding(), [])


# --- limits, and digests at their modulus ---

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("num_shards", lambda number: Sharding({"": number})),
        ("records_per_shard", lambda number: Sharding(records_per_shard=number)),
        ("shard_size", lambda number: Sharding(shard_bytes=number)),
        ("hosts", lambda number: Sharding(hosts=number)),
    ],
)
def test_numbers_are_those_of_64_bits(name: str, make: Callable[[int], Sharding]) -> None:
    make(1)
    make(LARGEST)
    with pytest.raises(ValueError) as raised:
        make(LARGEST + 1)

    assert str(raised.value) == (
        f"{name} must be below 2^63, got {LARGEST + 1}: give a smaller number"
    )


def test_a_seed_has_64_digits_at_most() -> None:
    Sharding(seed=10**64 - 1)
    with pytest.raises(ValueError) as raised:
        Sharding(seed=10**64)

    assert str(raised.value) == (
        f"seed must be at most 64 digits, got {10**64}: give a smaller one"
    )


def test_shards_that_are_filled_one_by_one_are_no_multiple_of_hosts() -> None:
    Sharding(records_per_shard=100, hosts=1)
    with pytest.raises(ValueError) as raised:
        Sharding(records_per_shard=100, hosts=2)

    assert str(raised.value) == (
        "records_per_shard 100 fills shards one by one, which gives no multiple of hosts 2:"
        " give num_shards instead"
    )


def test_the_defaults_are_those_that_the_help_names() -> None:
    assert Sharding() == Sharding({}, None, None, 1, {}, 0)
    assert DEFAULT_SHARD_BYTES == 150_000_000
    assert Sharding().order_of("train") is SHUFFLED


def test_a_sharding_is_never_changed() -> None:
    with pytest.raises(AttributeError):
        Sharding().seed = 1  # type: ignore[misc]


def test_digests_are_sums_modulo_2_to_256() -> None:
    largest, two = Tally(3, 30, "f" * 64), Tally(1, 7, "2")

    assert add_tallies([largest, two]) == Tally(4, 37, "1")
    assert add_tallies([]) == Tally(0, 0, "0")
    samples = numbered(40)
    assert members_digest(samples, SHUFFLED) == (
        sum(members_digest([sample], SHUFFLED) for sample in samples) % 2**256
    )
    assert 0 < members_digest(samples, SHUFFLED) < 2**256


def test_a_plan_s_digest_has_64_digits() -> None:
    table = make_shard_table([(("train", 5), Tally(1, 1000, "1f"))], Sharding({"": 1}))

    assert table.digest == f"{'1f':0>64}"
    assert make_shard_table([], Sharding()).digest == "0" * 64


def test_elements_are_never_changed() -> None:
    batch, table = batch_of(numbered(2)), table_of(Sharding(), {"train": 5})
    fields = [(batch, "tally"), (batch.tally, "samples"), (ShardRun(0, []), "samples")]
    fields += [(table, "digest"), (table.splits["train"], "full")]
    for element, name in fields:
        with pytest.raises(AttributeError, match="immutable"):
            setattr(element, name, None)


def test_what_goes_through_a_group_by_holds_no_names_of_fields() -> None:
    tally = Tally(1, 1000, "ff")

    def wire(element: object) -> object:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(element))

    assert wire(BucketBatch([], b"", tally)) == [[], b"", [1, 1000, "ff"]]
    assert wire(ShardRun(7, [])) == [7, [], {}]


# --- one bucket of many samples, and buckets that begin inside a shard ---


@pytest.mark.parametrize("order", Order)
def test_a_bucket_of_many_is_in_its_order_and_not_in_that_of_the_keys(order: Order) -> None:
    samples = [sample(str(place), position=1000 - place) for place in range(50)]
    sharding = Sharding({"": 1}, order={"": order}, seed=3)
    keyed = list(zip(order_keys("train", samples, order, 3), samples, strict=True))
    batch = make_bucket_batch(keyed, sharding, kilobyte)
    table = make_shard_table([(("train", 0), batch.tally)], sharding)

    ((shard, run),) = rank_bucket(("train", 0), [batch], table, sharding)

    keys = [s.key for s in samples]
    expected = keys[::-1]
    if order is SHUFFLED:
        expected = sorted(keys, key=lambda key: digest("train", key, 3))
    assert (shard, [read_sample(s).key for s in run.samples]) == (("train", 0), expected)


def test_samples_of_one_position_go_by_their_keys() -> None:
    samples = [sample(key, position=7) for key in ("c", "a", "b")]

    ((_, run),) = ranked(samples, samples, Sharding({"": 1}, order={"": INPUT}))

    assert [read_sample(s).key for s in run.samples] == ["a", "b", "c"]


def test_a_bucket_that_begins_inside_a_shard_goes_on_into_the_next() -> None:
    sharding = Sharding({"": 3}, order={"": INPUT})
    samples = [sample(str(p), position=p) for p in (0, 4096, 4097, 4098, 4099, 4100, 4101)]
    first, second = batch_of(samples[:1], INPUT), batch_of(samples[1:], INPUT)
    table = make_shard_table([(("train", 0), first.tally), (("train", 1), second.tally)], sharding)

    assert list(rank_bucket(("train", 1), [second], table, sharding)) == [
        (("train", 0), ShardRun(1, pack_each(samples[1:3]))),
        (("train", 1), ShardRun(0, pack_each(samples[3:5]))),
        (("train", 2), ShardRun(0, pack_each(samples[5:]))),
    ]


def test_a_bucket_is_found_by_its_split_s_own_order() -> None:
    sharding = Sharding(order={"val": INPUT, "": SHUFFLED}, seed=5)
    mixed = [sample("a", split, position=5000) for split in ("train", "val", "train")]

    shuffled = int.from_bytes(digest("train", "a", 5), "big") * 100 >> 128
    expected = [("train", shuffled), ("val", 1), ("train", shuffled)]
    batches = dict(make_bucket_batches(mixed, sharding, kilobyte, 100))
    assert list(batches) == expected[:2]
    assert [batch.samples for batch in batches.values()] == [
        pack_each([mixed[0], mixed[2]]),
        pack_each(mixed[1:2]),
    ]


def test_a_table_knows_of_what_is_not_there_that_it_is_empty() -> None:
    table = table_of(Sharding({"": 2}), {"train": 5})

    assert table.planned("train") == PlannedSplit(5, 2)
    assert table.planned("val") == PlannedSplit(0, 0)
    assert table.splits["train"].find(0) == (0, Tally(5, 5000, "0"))
    assert table.splits["train"].find(7) == (0, Tally(0, 0, "0"))


@pytest.mark.parametrize(
    ("sharding", "told"),
    [
        (Sharding(), ("1", "", "all=shuffled", "", "0", "150000000")),
        (Sharding(records_per_shard=5, seed=-1), ("", "", "all=shuffled", "5", "-1", "")),
        (Sharding({"": 8}, hosts=4), ("", "all=8", "all=shuffled", "", "0", "")),
    ],
)
def test_options_are_these_texts(sharding: Sharding, told: tuple[str, ...]) -> None:
    names = ("hosts", "num_shards", "order", "records_per_shard", "seed", "shard_size")
    assert sharding.options() == dict(zip(names, told, strict=True))


@pytest.mark.parametrize("struct", [BucketBatch, Ranks, ShardRun, ShardTable, Tally])
def test_elements_have_their_compact_coder(struct: type) -> None:
    assert isinstance(coders.registry.get_coder(struct), StructCoder)


_MANY = "50 samples are many for one process: sorting them takes some"
_CLUSTER = "a cluster (--runner) divides them among its workers"


@pytest.mark.parametrize(
    ("most", "spooled", "expected"),
    [
        (49, True, [f"{_MANY} 5 kB of memory, and 50 kB or more in --spool_dir; {_CLUSTER}"]),
        (49, False, [f"{_MANY} 100 kB of memory; {_CLUSTER}"]),
        (50, True, []),
        (50, False, []),
    ],
)
def test_a_run_in_process_warns_of_more_samples_than_it_was_measured_with(
    test_pipeline: Callable[[], beam.Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    most: int,
    spooled: bool,
    expected: list[str],
) -> None:
    monkeypatch.setattr(pipeline_spool, "MOST_SPOOLED" if spooled else "MOST_HELD", most)
    with test_pipeline() as pipeline:
        samples = pipeline | beam.Create(numbered(50)).with_output_types(Sample)
        spool = pipeline_spool.spool_for(pipeline) if spooled else None
        _ = samples | PlanShards(Sharding({"": 2}), kilobyte, spool=spool)

    told = [record for record in caplog.records if record.name == pipeline_spool.__name__]
    assert [record.getMessage() for record in told] == expected
