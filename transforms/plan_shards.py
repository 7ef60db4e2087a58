"""Plan the shards: exact counts and a global order, without reading images.

Each sample has an order key. The keys are divided into ranges, and the samples of every range
are counted. From these counts follow the rank and the shard of each sample. A step holds at
most one range or one shard of samples, and the table of counts.

Output bytes depend on every function in this file. A change of a formula is a breaking change, and
needs a new format version.
"""

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.faults import NO_REJECTS, RejectBudget, run_fault
from beam_tfrec.schemas.samples import (
    PREFIX_BYTES,
    Order,
    Sample,
    add_content_digests,
    pack,
    shuffle_prefixes,
    split_and_key,
)
from beam_tfrec.schemas.shards import ShardPlan, shard_stem
from beam_tfrec.transforms.pin_blobs import refuse_mostly_missing
from beam_tfrec.transforms.shard_table import (
    KeyRange,
    RangeTally,
    Ranks,
    Sharding,
    ShardKey,
    ShardTable,
    add_tallies,
    make_shard_table,
)
from beam_tfrec.transforms.shuffle import elements
from beam_tfrec.transforms.sources.listing import DIGEST_MODULUS, RootTally
from beam_tfrec.transforms.storage import source_changed

_POSITIONS_PER_RANGE = 512  # few, since a range is in memory with its payloads
_SLICE_BYTES = 2_000_000  # small enough for the processor's caches


class RangeBatch(elements.Batch, frozen=True, array_like=True):
    """Samples of one range with their tally, so that a later step can check its samples.

    Attributes:
        samples: packed samples.
        keys: order keys of the samples, so that ranking needs no unpacking.
        tally: counts of the samples.
    """

    samples: list[msgspec.Raw]
    keys: list[bytes]
    tally: RangeTally


class KeyBatch(elements.Batch, frozen=True, array_like=True):
    """Keys of samples, to find repeated ones.

    Attributes:
        keys: keys of the samples.
    """

    keys: list[str]


class ShardSlice(elements.Batch, frozen=True, array_like=True):
    """Consecutive samples of a shard.

    Attributes:
        first_place: index of the first sample in its shard.
        samples: packed samples, at least one.
    """

    first_place: int
    samples: list[msgspec.Raw]


def order_keys(split: str, members: Sequence[Sample], order: Order, seed: int) -> list[bytes]:
    """Return the order keys of samples of a split.

    An order key has `PREFIX_BYTES` of the input position or of a keyed hash, then the sample's key.
    """
    if order is Order.INPUT:
        prefixes = [sample.position.to_bytes(PREFIX_BYTES) for sample in members]
    else:
        prefixes = shuffle_prefixes(split, [sample.key for sample in members], seed)
    return [prefix + sample.key.encode() for prefix, sample in zip(prefixes, members, strict=True)]


def range_of(key: bytes, order: Order, num_ranges: int) -> int:
    """Return the range of an order key; a larger key never has a smaller range.

    The plan does not depend on the number of ranges. Input order ignores `num_ranges`.

    >>> [range_of(bytes([n] * 16), Order.SHUFFLED, 100) for n in (0, 255)]
    [0, 99]
    >>> range_of((4096).to_bytes(16), Order.INPUT, 100)
    8
    """
    prefix = int.from_bytes(key[:PREFIX_BYTES])
    if order is Order.INPUT:
        return prefix // _POSITIONS_PER_RANGE
    return prefix * num_ranges >> 8 * PREFIX_BYTES


def make_range_batches(
    samples: Iterable[Sample],
    sharding: Sharding,
    record_bytes: Callable[[Sample], int],
    num_ranges: int,
) -> Iterator[tuple[KeyRange, RangeBatch]]:
    """Yield the samples of each range as one batch."""
    by_range: dict[KeyRange, list[tuple[bytes, Sample]]] = {}
    for split, neighbours in itertools.groupby(samples, operator.attrgetter("split")):
        members = list(neighbours)
        order = sharding.order_of(split)
        keys = order_keys(split, members, order, sharding.seed)
        for key, sample in zip(keys, members, strict=True):
            key_range = split, range_of(key, order, num_ranges)
            by_range.setdefault(key_range, []).append((key, sample))
    for key_range, keyed in by_range.items():
        held = [sample for _, sample in keyed]
        digest = members_digest(held, sharding.order_of(key_range[0]))
        tally = RangeTally(len(held), sum(map(record_bytes, held)), f"{digest:x}")
        packed = [msgspec.Raw(pack(sample)) for sample in held]
        yield key_range, RangeBatch(packed, [key for key, _ in keyed], tally)


def members_digest(samples: Iterable[Sample], order: Order) -> int:
    """Return a 256-bit digest of samples, independent of their order.

    The digest of a union is the sum of the digests, modulo `DIGEST_MODULUS`.
    """
    return add_content_digests(samples, with_position=order is Order.INPUT) % DIGEST_MODULUS


def rank_range(
    grouped: tuple[KeyRange, Iterable[RangeBatch]], table: ShardTable
) -> Iterator[tuple[ShardKey, ShardSlice]]:
    """Sort a range's samples, and yield them as slices of their shards.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when the samples differ from those counted: a runner has
            repeated a step, and a source has changed in between;
            `E-SET-DUPLICATE` when two samples share a key.
    """
    (split, number), batches = grouped
    ranks = table.splits[split]
    first_rank, counted = ranks.ranges.get(str(number), (0, add_tallies([])))
    members: list[tuple[bytes, msgspec.Raw]] = []
    tallies: list[RangeTally] = []
    for batch in batches:
        members += zip(batch.keys, batch.samples, strict=True)
        tallies.append(batch.tally)
    if add_tallies(tallies) != counted:
        what = f"key range {number} had {counted.samples} samples, now it has {len(members)} others"
        raise source_changed(f"split {split}", what)
    refuse_equal_keys(split, [key[PREFIX_BYTES:].decode() for key, _ in members])
    yield from _slices(split, [sample for _, sample in sorted(members)], ranks, first_rank)


def make_shard_plan(grouped: tuple[ShardKey, Iterable[ShardSlice]], table: ShardTable) -> ShardPlan:
    """Return a shard's plan, with its samples in order.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when samples are missing or superfluous.
    """
    (split, index), slices = grouped
    ranks = table.splits[split]
    packed, gaps = list[msgspec.Raw](), 0
    for each in sorted(slices, key=operator.attrgetter("first_place")):
        gaps += each.first_place != len(packed)
        packed += each.samples
    planned = ranks.shard_samples(index)
    where = shard_stem(split, index, ranks.planned.shards)
    if gaps or len(packed) != planned:
        what = f"{planned} samples were planned, and there are {len(packed)} now"
        raise source_changed(where, what)
    return ShardPlan(split, index, ranks.planned.shards, packed)


def _slices(
    split: str, in_order: list[msgspec.Raw], ranks: Ranks, first_rank: int
) -> Iterator[tuple[ShardKey, ShardSlice]]:
    start, total_bytes = 0, sum(memoryview(sample).nbytes for sample in in_order)
    most_in_slice = max(1, _SLICE_BYTES * len(in_order) // max(total_bytes, 1))
    while start < len(in_order):
        index, place = ranks.shard_of(first_rank + start)
        left = ranks.shard_samples(index) - place
        end = start + min(left, most_in_slice)
        yield (split, index), ShardSlice(place, in_order[start:end])
        start = end


def refuse_equal_keys(split: str, keys: Sequence[str]) -> None:
    """Refuse repeated keys in a split.

    Raises:
        RuntimeError: `E-SET-DUPLICATE`.
    """
    if len({*keys}) < len(keys):
        key = min(key for key, count in Counter(keys).items() if count > 1)
        what = f"two samples have the key {key!r}"
        ways = "records: --key_feature or --on_duplicate; tar files: rename members"
        remedy = f"give every sample its own key, or put it into another split ({ways})"
        raise run_fault("E-SET-DUPLICATE", f"split {split}", what, remedy)


def _refuse_in_batches(grouped: tuple[elements.Partition, Iterable[KeyBatch]]) -> tuple[()]:
    (split, _), batches = grouped
    refuse_equal_keys(split, [key for batch in batches for key in batch.keys])
    return ()


def _key_batch(samples: list[Sample]) -> KeyBatch:
    return KeyBatch([sample.key for sample in samples])


class RefuseEqualKeys(beam.PTransform):
    """Samples -> nothing; stops the run if two samples of a split have one key.

    A step that must wait for this takes the empty result as a side input.
    """

    def expand(self, samples: beam.PCollection[Sample]) -> beam.PCollection[str]:
        """Group the keys of each split."""
        keys = samples | "BatchKeys" >> elements.BatchByName(split_and_key, KeyBatch, _key_batch)
        grouped = (keys,) | "GroupKeys" >> elements.GroupBatches(KeyBatch)
        return grouped | "RefuseTwice" >> beam.FlatMap(_refuse_in_batches).with_output_types(str)


class PlannedShards(NamedTuple):
    """Output of `PlanShards`.

    Attributes:
        shards: plans of all shards, in any order.
        table: counts of the plan, one element. It comes after the search for equal keys, so that
            none is published with them.
    """

    shards: beam.PCollection[ShardPlan]
    table: beam.PCollection[ShardTable]


@dataclass(eq=False)
class PlanShards(beam.PTransform):
    """Samples -> shard plans.

    Groups samples by range, then by shard. The plans depend only on the samples and `sharding`.
    Every sample is in exactly one plan, or the run stops.

    Attributes:
        sharding: number of shards, and order.
        record_bytes: estimates the size of a sample's record; a named function or bound method.
        root_tallies: counts of listed and pinned files, by root name, to stop if most are missing.
        budget: limit of missing images.
    """

    sharding: Sharding
    record_bytes: Callable[[Sample], int]
    root_tallies: beam.PCollection[tuple[str, RootTally]] | None = None
    budget: RejectBudget = NO_REJECTS

    def expand(self, samples: beam.PCollection[Sample]) -> PlannedShards:
        """Count, rank and group."""
        to_batches = functools.partial(
            make_range_batches,
            sharding=self.sharding,
            record_bytes=self.record_bytes,
            num_ranges=elements.num_groups(samples.pipeline),
        )
        in_ranges = samples | "FindRanges" >> elements.MakeBatches(
            to_batches, tuple[KeyRange, RangeBatch]
        )
        counted = (
            in_ranges
            | "TakeTallies" >> beam.MapTuple(_take_tally)
            | "AddTallies" >> beam.CombinePerKey(add_tallies)
        )
        tallies: Any = [] if self.root_tallies is None else beam.pvalue.AsList(self.root_tallies)
        counts = beam.pvalue.AsList(counted), tallies
        make_table = beam.Map(_check_and_make_table, *counts, self.sharding, self.budget)
        table = samples.pipeline | "Once" >> beam.Impulse() | "MakeShardTable" >> make_table
        as_table = beam.pvalue.AsSingleton(table)
        slices = (
            (in_ranges,)
            | "GroupRanges" >> elements.GroupBatches(RangeBatch)
            | "RankRanges" >> beam.FlatMap(rank_range, as_table)
        )
        shards = (
            (slices,)
            | "GroupShards" >> elements.GroupBatches(ShardSlice)
            | "MakeShardPlans" >> beam.Map(make_shard_plan, as_table)
        )
        # The table is given out only after these checks, so that a refused run publishes no plan.
        checks: list[beam.PCollection] = [slices]
        if Order.INPUT in self.sharding.order.values():  # equal keys may be in different ranges
            checks.append(samples | "RefuseEqualKeys" >> RefuseEqualKeys())
        wait = beam.WaitOn(*checks).with_output_types(ShardTable)
        return PlannedShards(shards, table | "AfterChecks" >> wait)


def _take_tally(key_range: KeyRange, batch: RangeBatch) -> tuple[KeyRange, RangeTally]:
    return key_range, batch.tally


def _check_and_make_table(
    _: bytes,
    tallies: list[tuple[KeyRange, RangeTally]],
    root_tallies: list[tuple[str, RootTally]],
    sharding: Sharding,
    budget: RejectBudget,
) -> ShardTable:
    refuse_mostly_missing(root_tallies, budget)
    return make_shard_table(tallies, sharding)
