"""Leave out the samples that earlier data sets hold, before their images are looked for.

The keys of what was written are in the indexes of the shards. They are joined with the samples in
partitions, references only: no step holds more than a partition or a shard's keys, however large
the earlier data sets are. A sample that was rejected then was not written, and is tried again.
"""

import functools
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import apache_beam as beam
import msgspec

from schemas.faults import Rejected, Scope, fault_line
from schemas.manifest import Manifest, index_names_of
from schemas.samples import Sample
from transforms.earlier_sets import EarlierSet, manifest_of
from transforms.shard_index import index_from_parquet
from transforms.sources.elements import Batch, BatchByKey, GroupBatches, is_in_process, num_groups
from transforms.sources.list_blobs import PinTally
from transforms.sources.read_samples import RejectedOutput, SplitSource
from transforms.storage import DEFAULT_ACCESS, Access, join_uri, open_storage
from transforms.storage.run_spool import RunSpool

_PARTITIONS = 4096  # of the join, on a cluster: each is held in memory

_Partition = tuple[str, int]


class EarlierTally(msgspec.Struct, frozen=True):
    """Samples left out, and the annotations that they and their rejects carry; tallies add up."""

    images: int = 0
    annotations: int = 0


class EarlierIndex(msgspec.Struct, frozen=True, array_like=True):
    """The index of one shard of an earlier data set.

    Attributes:
        data_set: URI of the data set.
        split: of the shard.
        name: of the index file.
        records: in the shard.
        bytes: of the shard.
    """

    data_set: str
    split: str
    name: str
    records: int
    bytes: int


class Written(msgspec.Struct, frozen=True, array_like=True):
    """A sample that an earlier data set holds.

    Attributes:
        split: of the sample.
        key: of the sample.
        source: name of the file that it was made of; empty for none.
    """

    split: str
    key: str
    source: str


class _JoinBatch(Batch, frozen=True, array_like=True):
    """What is read now, or what was written: one type, hence one coder."""

    samples: list[Sample] = msgspec.field(default_factory=list)
    rejected: list[Rejected] = msgspec.field(default_factory=list)
    written: list[Written] = msgspec.field(default_factory=list)


_TallyOutput = beam.pvalue.TaggedOutput[Literal["tallies"], tuple[str, EarlierTally]]


def leave_out_earlier(
    samples: Iterable[Sample], rejected: Iterable[Rejected], sources: Mapping[str, str]
) -> tuple[list[Sample], list[Rejected], EarlierTally]:
    """Return the samples that are new, their rejects, and what is left out, all of one split.

    Args:
        samples: as read.
        rejected: their annotations that were dropped, those of no sample, and samples that cannot
            be read: one that was written before is left out like any other.
        sources: file name per key of the samples that earlier data sets hold.

    Raises:
        RuntimeError: `E-SET-DUPLICATE` when a key has another file than it had: ids that begin
            again would leave out new images without a word.
    """
    new: list[Sample] = []
    still_rejected: list[Rejected] = []
    images = annotations = 0
    for sample in samples:
        if sample.key in sources:
            _check_source(sample, sources[sample.key])
            images += 1
            annotations += len(sample.annotation_ids)
        else:
            new.append(sample)
    for reject in rejected:
        if reject.key and reject.key in sources:
            images += reject.scope is Scope.SAMPLE  # it was whole when it was written
            annotations += len(reject.annotation_ids)
        else:
            still_rejected.append(reject)
    return new, still_rejected, EarlierTally(images, annotations)


def _check_source(sample: Sample, source: str) -> None:
    name = _source_name(blob.name for blob in sample.blobs)
    if name != source:
        where = f"sample {sample.key} of {sample.split}"
        what = f"its file is {name!r}, and was {source!r} in an earlier data set"
        remedy = "give new images ids of their own, and old ones the names they had"
        raise RuntimeError(fault_line("E-SET-DUPLICATE", where, what, remedy))


def _source_name(names: Iterable[str]) -> str:
    return next(iter(names), "")


def add_earlier_tallies(tallies: Iterable[EarlierTally]) -> EarlierTally:
    """Return the sum of tallies."""
    parts = list(tallies)
    return EarlierTally(sum(part.images for part in parts), sum(part.annotations for part in parts))


def list_indexes(manifest: Manifest, data_set: str, splits: Collection[str]) -> list[EarlierIndex]:
    """Return the indexes of a data set's shards, of those splits that a run has."""
    indexes: list[EarlierIndex] = []
    for split in sorted(manifest.plan.splits.keys() & set(splits)):
        for shard, (name, _) in zip(manifest.shards, index_names_of(manifest), strict=True):
            if shard.split == split:
                indexes.append(EarlierIndex(data_set, split, name, shard.records, shard.bytes))
    return indexes


def read_written(index: EarlierIndex, access: Access = DEFAULT_ACCESS) -> list[Written]:
    """Return the samples that a shard's records were made of.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when they are not those of the manifest.
    """
    storage = open_storage(index.data_set, access)
    where = join_uri(index.data_set, index.name)
    try:
        rows = index_from_parquet(storage.read(index.name))
    except ValueError as error:
        raise _not_as_written(where, str(error)) from None
    found = len(rows), sum(row.size for row in rows)
    if found != (index.records, index.bytes):
        what = f"{found[0]} records of {found[1]} bytes, the manifest says"
        raise _not_as_written(where, f"{what} {index.records} of {index.bytes}")
    return [
        Written(index.split, row.key, _source_name(source.name for source in row.sources))
        for row in rows
    ]


def _not_as_written(where: str, what: str) -> RuntimeError:
    remedy = "restore index/ of that data set, then run again"
    return RuntimeError(fault_line("E-SRC-CHANGED", where, what, remedy))


class NewSamples(NamedTuple):
    """What `LeaveOutEarlier` returns.

    Attributes:
        samples: those that no earlier data set holds.
        rejected: samples and annotations, without those of samples left out.
        files: the annotation files, with what was left out of each.
        named: samples left out per root name, which no listing is asked for; None for none.
    """

    samples: beam.PCollection[Sample]
    rejected: beam.PCollection[Rejected]
    files: beam.PCollection[SplitSource]
    named: beam.PCollection[tuple[str, PinTally]] | None = None


@dataclass(eq=False)
class LeaveOutEarlier(beam.PTransform):
    """Samples -> those whose (split, key) is in no earlier data set, each once, in any order.

    A join on split and key. Without earlier data sets everything passes as it is.

    Attributes:
        earlier: the data sets.
        splits: of the run.
        rejected: samples and annotations rejected when they were read.
        files: the annotation files.
        access: how stores are reached.
        root: name of the root that all samples are of; empty where each split has its own.
        spool: where both sides wait at the group-by; None where they travel.
    """

    earlier: tuple[EarlierSet, ...]
    splits: tuple[str, ...]
    rejected: beam.PCollection[Rejected]
    files: beam.PCollection[SplitSource]
    access: Access = DEFAULT_ACCESS
    root: str = ""
    spool: RunSpool | None = None

    def expand(self, samples: beam.PCollection[Sample]) -> NewSamples:
        """Join samples with the keys of what was written."""
        if not self.earlier:
            return NewSamples(samples, self.rejected, self.files)
        count = num_groups(samples.pipeline, _PARTITIONS)
        left = (
            (
                samples | "BatchSamples" >> _batches(_partitions_of_samples, _samples_batch, count),
                self.rejected
                | "BatchRejected" >> _batches(_partitions_of_rejects, _rejected_batch, count),
                self._written(samples.pipeline)
                | "BatchWritten" >> _batches(_partitions_of_written, _written_batch, count),
            )
            | "JoinOnKey" >> GroupBatches(_JoinBatch, self.spool)
            | "LeaveOut" >> beam.ParDo(_LeaveOut()).with_outputs("rejected", "tallies", main="new")
        )
        tallies = left.tallies | "AddTallies" >> beam.CombinePerKey(add_earlier_tallies)
        files = self.files | "CountEarlier" >> beam.Map(_count_earlier, beam.pvalue.AsList(tallies))
        named = tallies | "Named" >> beam.Map(_named, self.root)
        return NewSamples(left.new, left.rejected, files, named)

    def _written(self, pipeline: beam.Pipeline) -> beam.PCollection[Written]:
        """Read what was written, an element an index file."""
        indexes = (
            pipeline
            | "Sets" >> beam.Create(self.earlier, reshuffle=False)
            | "ListIndexes" >> beam.FlatMap(_list_indexes, self.splits, self.access)
        )
        if not is_in_process(pipeline):
            indexes |= "Spread" >> beam.Reshuffle()
        return indexes | "ReadWritten" >> beam.FlatMap(read_written, self.access)


def _list_indexes(
    earlier: EarlierSet, splits: tuple[str, ...], access: Access
) -> list[EarlierIndex]:
    return list_indexes(manifest_of(earlier, access), earlier.uri, splits)


def _batches(keys_of: Callable, to_batch: Callable[[list], _JoinBatch], count: int) -> beam.ParDo:
    batch = beam.ParDo(BatchByKey(functools.partial(keys_of, count=count), to_batch, count))
    return batch.with_output_types(tuple[_Partition, _JoinBatch])


def _partitions_of_samples(samples: list[Sample], count: int) -> list[_Partition]:
    return [(sample.split, zlib.crc32(sample.key.encode()) % count) for sample in samples]


def _partitions_of_rejects(rejects: list[Rejected], count: int) -> list[_Partition]:
    # An orphan is no sample's: what spreads it are its annotations.
    spread_by = [reject.key or str(reject.annotation_ids) for reject in rejects]
    return [
        (reject.split, zlib.crc32(by.encode()) % count)
        for reject, by in zip(rejects, spread_by, strict=True)
    ]


def _partitions_of_written(written: list[Written], count: int) -> list[_Partition]:
    return [(one.split, zlib.crc32(one.key.encode()) % count) for one in written]


def _samples_batch(samples: list[Sample]) -> _JoinBatch:
    return _JoinBatch(samples=samples)


def _rejected_batch(rejected: list[Rejected]) -> _JoinBatch:
    return _JoinBatch(rejected=rejected)


def _written_batch(written: list[Written]) -> _JoinBatch:
    return _JoinBatch(written=written)


class _LeaveOut(beam.DoFn):
    """Passes on what is new of a partition."""

    def process(
        self, element: tuple[_Partition, Iterable[_JoinBatch]]
    ) -> Iterator[Sample | RejectedOutput | _TallyOutput]:
        (split, _), batches = element
        samples: list[Sample] = []
        rejected: list[Rejected] = []
        sources: dict[str, str] = {}
        for batch in batches:
            samples += batch.samples
            rejected += batch.rejected
            sources.update((written.key, written.source) for written in batch.written)
        new, still_rejected, tally = leave_out_earlier(samples, rejected, sources)
        yield from new
        for reject in still_rejected:
            yield RejectedOutput("rejected", reject)
        if tally != EarlierTally():
            yield _TallyOutput("tallies", (split, tally))


def _named(tally: tuple[str, EarlierTally], root: str) -> tuple[str, PinTally]:
    split, earlier = tally
    return root or split, PinTally(named=earlier.images)


def _count_earlier(file: SplitSource, tallies: list[tuple[str, EarlierTally]]) -> SplitSource:
    return count_earlier(file, dict(tallies).get(file.split, EarlierTally()))


def count_earlier(file: SplitSource, tally: EarlierTally) -> SplitSource:
    """Return an annotation file with what was left out of it."""
    return msgspec.structs.replace(
        file, earlier_images=tally.images, earlier_annotations=tally.annotations
    )
