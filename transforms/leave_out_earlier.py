"""Skip the samples that earlier data sets hold (`--since`).

The indexes of their shards hold the keys of their samples. A join in partitions compares these with
the new samples, so that no step holds more than the keys of a partition or a shard. A sample that
an earlier run rejected is tried again.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.faults import Rejected, Scope, run_fault
from beam_tfrec.schemas.manifest import MANIFEST_NAME, ShardEntry
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.transforms.earlier import FLAG, EarlierSet
from beam_tfrec.transforms.shuffle import elements
from beam_tfrec.transforms.sources.listing import RootTally
from beam_tfrec.transforms.sources.read_samples import (
    AddSplitTallies,
    RejectedOutput,
    SplitTally,
    SplitTallyOutput,
)
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, open_storage
from beam_tfrec.transforms.storage.read_data_set import read_finished, read_rows

_RESTORE_INDEX = "restore index/ of that data set, then run again"


EarlierEntry = tuple[str, ShardEntry]
"""The URI of an earlier data set, and one of its shards."""


class JoinBatch(elements.Batch, frozen=True, array_like=True):
    """Samples, rejects or earlier keys; one type for all three, so that the join has one coder.

    Attributes:
        samples: samples of this run.
        rejected: rejects of this run.
        sources: name and size in bytes of each earlier sample's first source, by key.
    """

    samples: list[Sample] = msgspec.field(default_factory=list)
    rejected: list[Rejected] = msgspec.field(default_factory=list)
    sources: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)


def list_earlier_shards(
    earlier: EarlierSet, splits: Collection[str], access: Access = DEFAULT_ACCESS
) -> list[EarlierEntry]:
    """Return the shards of an earlier data set.

    Args:
        earlier: the data set.
        splits: splits of the run; shards of others are left out.
        access: credentials and limits for stores.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when the data set was replaced or deleted during the run.
    """
    storage = open_storage(earlier.uri, access)
    manifest, digest = read_finished(storage, FLAG)
    if digest != earlier.digest:
        raise storage.changed(MANIFEST_NAME, "another data set than when the run began")
    return [(earlier.uri, shard) for shard in manifest.shards if shard.split in splits]


def read_written(
    earlier: EarlierEntry, access: Access, count: int
) -> Iterator[tuple[elements.Partition, JoinBatch]]:
    """Yield the keys of a shard's records by partition, with their first sources.

    Args:
        earlier: the shard, and the URI of its data set.
        access: credentials and limits for stores.
        count: number of partitions per split.

    Raises:
        RuntimeError: `E-VER-…` when the index is missing, or does not describe its shard.
    """
    uri, shard = earlier
    rows = read_rows(open_storage(uri, access), shard, _RESTORE_INDEX)
    parts: dict[elements.Partition, dict[str, tuple[str, int]]] = {}
    for row in rows:
        source = (row.sources[0].name, row.sources[0].size) if row.sources else ("", 0)
        parts.setdefault(elements.partition_of(shard.split, row.key, count), {})[row.key] = source
    for partition, sources in parts.items():
        yield partition, JoinBatch(sources=sources)


def leave_out_earlier(
    grouped: tuple[elements.Partition, Iterable[JoinBatch]],
) -> Iterator[Sample | RejectedOutput | SplitTallyOutput]:
    """Yield the new samples of a partition, the new rejects, and a tally of the skipped ones.

    A reject is skipped if an earlier data set holds its sample.

    Raises:
        RuntimeError: `E-SET-DUPLICATE` when a key belongs to another file than before, or to a
            member of another size. Otherwise new images with reused ids would be skipped silently.
    """
    (split, _), batches = grouped
    samples: list[Sample] = []
    rejected: list[Rejected] = []
    sources: dict[str, tuple[str, int]] = {}
    for batch in batches:
        samples += batch.samples
        rejected += batch.rejected
        sources |= batch.sources
    images = annotations = 0
    for sample in samples:
        if sample.key in sources:
            _check_source(sample, sources[sample.key])
            images += 1
            annotations += len(sample.annotation_ids)
        else:
            yield sample
    for reject in rejected:
        if reject.key and reject.key in sources:
            images += reject.scope is Scope.SAMPLE  # an earlier run has written it
            annotations += len(reject.annotation_ids)
        else:
            yield RejectedOutput("rejected", reject)
    if images or annotations:
        left_out = SplitTally(split, earlier_samples=images, earlier_annotations=annotations)
        yield SplitTallyOutput("split_tallies", left_out)


def _check_source(sample: Sample, source: tuple[str, int]) -> None:
    what, (name, size) = "", sample.blobs[0].image_file if sample.blobs else ("", 0)
    if name != source[0]:
        what = f"its file is {name!r}, but {source[0]!r} in an earlier data set"
    elif sample.blobs and sample.blobs[0].is_member and size != source[1]:  # others may change
        what = f"{name!r} has {size} bytes, but {source[1]} in an earlier data set"
    if what:
        remedy = "give new images new ids, and keep the names of old ones"
        raise run_fault("E-SET-DUPLICATE", f"sample {sample.key} of {sample.split}", what, remedy)


@dataclass(eq=False)
class LeaveOutEarlier(beam.PTransform):
    """Samples -> new samples, their rejects, tallies of splits, and of skipped samples by root.

    The join compares split and key. The order of samples is lost.

    Attributes:
        earlier: earlier data sets.
        splits: splits of the run.
        rejected: samples and annotations rejected by the reader.
        split_tallies: one `SplitTally` per split.
        access: credentials and limits for stores.
        root: name of the common root of all samples; empty if each split has its own.
    """

    earlier: tuple[EarlierSet, ...]
    splits: tuple[str, ...]
    rejected: beam.PCollection[Rejected]
    split_tallies: beam.PCollection[SplitTally]
    access: Access = DEFAULT_ACCESS
    root: str = ""

    def expand(self, samples: beam.PCollection[Sample]) -> tuple[beam.PCollection, ...]:
        """Join the samples with the keys of the earlier data sets."""
        pipeline = samples.pipeline
        count = elements.num_groups(pipeline)
        shards = (
            pipeline
            | "Sets" >> beam.Create(self.earlier, reshuffle=False)
            | "ListShards" >> beam.FlatMap(list_earlier_shards, self.splits, self.access)
        )
        by_key = elements.BatchByName(_name_of, JoinBatch, _batch_of)
        read = beam.FlatMap(read_written, self.access, count)
        sides = (
            samples | "BatchSamples" >> by_key,
            self.rejected | "BatchRejected" >> by_key,
            elements.spread(shards) | "ReadWritten" >> read,
        )
        joined = sides | "JoinOnKey" >> elements.GroupBatches(JoinBatch)
        step = beam.FlatMap(leave_out_earlier)
        left = joined | "LeaveOut" >> step.with_outputs("rejected", "split_tallies", main="new")
        tallies = (self.split_tallies, left.split_tallies) | "CountEarlier" >> AddSplitTallies()
        skipped = left.split_tallies | "SkippedTallies" >> beam.Map(_tally_of, self.root)
        return left.new, left.rejected, tallies, skipped


def _batch_of(items: list) -> JoinBatch:
    """Return a batch of samples, or of rejects."""
    return JoinBatch(items) if isinstance(items[0], Sample) else JoinBatch(rejected=items)


def _name_of(item: Sample | Rejected) -> tuple[str, str]:
    # A rejected annotation without a sample has no key; its ids choose the partition.
    return item.split, item.key or str(item.annotation_ids)


def _tally_of(left_out: SplitTally, root: str) -> tuple[str, RootTally]:
    return root or left_out.split, RootTally(named=left_out.earlier_samples)
