"""Outline planned shards: what each will hold and take, in a value of bounded size.

Some 130 samples stay whole, chosen by a digest of their keys, to be tried where pixels count.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
import msgspec

from schemas.faults import Rejected
from schemas.fields import ArrayFields, ClassFields, PictureFields, labels_of, row_of
from schemas.layouts import Layout
from schemas.layouts.arrays import ArraysLayout
from schemas.layouts.classification import ClassifiedLayout
from schemas.layouts.pictures import PictureLayout
from schemas.layouts.table import TableLayout
from schemas.samples import Sample
from schemas.shards import ShardPlan
from transforms import coders
from transforms.blobs import PinTally
from transforms.run_spool import RunSpool
from transforms.shard_table import ShardTable
from transforms.sources.read_samples import SplitSource

MAX_TRIED = 64  # takes seconds, even of 24 Mpx
_KEPT_PER_TRIED = 2  # so that by far enough are kept, whichever digests there are
_DIGEST_BITS = 64

_CLASS = msgspec.msgpack.Decoder(ClassFields)
PICTURE_FIELDS = msgspec.msgpack.Decoder(PictureFields)
_ITEM = msgspec.msgpack.Decoder(ArrayFields)
_NUMBERS = itertools.count()

RootReads = tuple[int, int]
"""Files, and bytes of them."""


class ShardOutline(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a planned shard.

    Attributes:
        split: its split.
        index: place among the split's shards, from 0.
        records: samples planned.
        record_bytes: of its records by the estimate that number of shards follows from.
        reads: by root name, files and bytes of them.
        classes: id or name of each class, as samples have it, with its samples, or objects.
        tried: samples that stay whole, with their payloads.
    """

    split: str
    index: int
    records: int
    record_bytes: int
    reads: dict[str, RootReads]
    classes: list[tuple[int | str, int]]
    tried: list[Sample]


coders.register(ShardOutline)


class GatheredPlan(NamedTuple):
    """Everything that is known before the first shard.

    Attributes:
        table: how many samples the shards get.
        outlines: one a shard, in any order.
        files: what the sources held.
        rejected: rejects so far.
        tallies: what pinning saw, per root name.
    """

    table: ShardTable
    outlines: list[ShardOutline]
    files: list[SplitSource]
    rejected: list[Rejected]
    tallies: list[tuple[str, PinTally]]


def trial_digest(sample: Sample) -> int:
    """Return the number below 2^64 by which samples are chosen, whatever the order of shards.

    Nothing that is written depends on it.
    """
    content = f"{sample.split}\0{sample.key}".encode()
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BITS // 8, person=b"tfrec-plan")
    return int.from_bytes(digest.digest(), "big")


def choose_tried(samples: Iterable[Sample]) -> list[Sample]:
    """Return those of the smallest digests, at most `MAX_TRIED`, in that order."""
    by_digest = sorted(samples, key=lambda s: (trial_digest(s), s.split, s.key))
    return by_digest[:MAX_TRIED]


def outline_shard(
    shard: ShardPlan,
    layout: Layout,
    record_bytes: Callable[[Sample], int],
    total: int,
    spool: RunSpool | None = None,
) -> ShardOutline:
    """Return a shard's outline.

    Args:
        shard: as planned.
        layout: what an Example holds.
        record_bytes: estimated size of a sample's record.
        total: samples of all shards, at least 1.
        spool: where payloads lie; None where they are in the samples.
    """
    below = min(2**_DIGEST_BITS, _KEPT_PER_TRIED * MAX_TRIED * 2**_DIGEST_BITS // total)
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    classes: Counter[int | str] = Counter()
    for sample in shard.samples:
        classes.update(_classes_of(sample, layout, spool))
        for blob in sample.blobs:
            files[blob.root] += 1
            sizes[blob.root] += blob.read_bytes
    tried = [sample for sample in shard.samples if trial_digest(sample) < below]
    return ShardOutline(
        shard.split,
        shard.index,
        len(shard.samples),
        sum(map(record_bytes, shard.samples)),
        {root: (files[root], sizes[root]) for root in sorted(files)},
        [*classes.items()],
        tried if spool is None else list(map(spool.give, tried)),
    )


def _classes_of(sample: Sample, layout: Layout, spool: RunSpool | None) -> list[int | str]:
    """Return the class of a sample, or of each of its objects, as its source has it."""
    if isinstance(layout, PictureLayout):
        return [found.category_id for found in PICTURE_FIELDS.decode(sample.fields).objects]
    if isinstance(layout, ClassifiedLayout):
        return [_CLASS.decode(sample.fields).class_name]
    if isinstance(layout, ArraysLayout):
        label = _ITEM.decode(sample.fields).label
        return [] if label is None else [label]
    if isinstance(layout, TableLayout) and layout.label_columns:
        whole = sample if spool is None else spool.give(sample)
        return [*labels_of(row_of(whole), layout.label_columns)]
    return []


@dataclass(frozen=True)
class PlanSlot:
    """Where a plan is put that was gathered in this process.

    Attributes:
        number: of the plan in this process.
    """

    number: int

    def put(self, plan: GatheredPlan) -> None:
        """Put a plan there."""
        _GATHERED[self.number] = plan

    def take(self) -> GatheredPlan:
        """Return the plan, once."""
        return _GATHERED.pop(self.number)


_GATHERED: dict[int, GatheredPlan] = {}


def new_slot() -> PlanSlot:
    """Return a slot that nothing else uses."""
    return PlanSlot(next(_NUMBERS))


@dataclass(eq=False)
class OutlineShards(beam.PTransform):
    """Shard plans -> their outlines, one each, in any order.

    Attributes:
        layout: what an Example holds.
        record_bytes: estimated size of a sample's record; a named function or bound method.
        table: one element, the plan without its samples.
        spool: where payloads lie; None where they are in the samples.
    """

    layout: Layout
    record_bytes: Callable[[Sample], int]
    table: beam.PCollection[ShardTable]
    spool: RunSpool | None = None

    def expand(self, shards: beam.PCollection[ShardPlan]) -> beam.PCollection[ShardOutline]:
        """Outline every shard."""
        outline = _Outline(self.layout, self.record_bytes, self.spool)
        return shards | "Outline" >> beam.Map(outline, beam.pvalue.AsSingleton(self.table))


@dataclass(frozen=True)
class _Outline:
    """Outlines a shard; Beam would ask of a function's own arguments whether one is a layout."""

    layout: Layout
    record_bytes: Callable[[Sample], int]
    spool: RunSpool | None

    def __call__(self, shard: ShardPlan, table: ShardTable) -> ShardOutline:
        total = sum(ranks.planned.samples for ranks in table.splits.values())
        return outline_shard(shard, self.layout, self.record_bytes, total, self.spool)


@dataclass(eq=False)
class GatherPlan(beam.PTransform):
    """The shard table -> nothing; all that is known is put into a slot of this process.

    Attributes:
        outlines: of all shards.
        files: what the sources held.
        rejected: rejects so far.
        tallies: what pinning saw; None where nothing is pinned.
        slot: where to.
    """

    outlines: beam.PCollection[ShardOutline]
    files: beam.PCollection[SplitSource]
    rejected: beam.PCollection[Rejected]
    tallies: beam.PCollection[tuple[str, PinTally]] | None
    slot: PlanSlot

    def expand(self, table: beam.PCollection[ShardTable]) -> beam.PCollection[None]:
        """Gather everything."""
        return table | "Gather" >> beam.Map(
            _gather,
            beam.pvalue.AsList(self.outlines),
            beam.pvalue.AsList(self.files),
            beam.pvalue.AsList(self.rejected),
            [] if self.tallies is None else beam.pvalue.AsList(self.tallies),
            self.slot,
        )


def _gather(
    table: ShardTable,
    outlines: list[ShardOutline],
    files: list[SplitSource],
    rejected: list[Rejected],
    tallies: list[tuple[str, PinTally]],
    slot: PlanSlot,
) -> None:
    slot.put(GatheredPlan(table, outlines, files, rejected, tallies))
