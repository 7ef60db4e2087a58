"""Add to earlier data sets (`--since`): find them, keep their labels, skip the samples they hold.

A data set that grows daily consists of several outputs. Their manifests have a few kilobytes each,
and are read before the graph is built. The indexes of their shards hold the keys of their samples.
A join in partitions compares these with the new samples, so that no step holds more than the keys
of a partition or a shard. A sample that an earlier run rejected is tried again.
"""

import contextlib
import datetime
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.faults import Rejected, Scope, counted, fault_line
from beam_tfrec.schemas.labels import unite_labels
from beam_tfrec.schemas.manifest import (
    MANIFEST_NAME,
    PLAN_NAME,
    Label,
    Manifest,
    index_names_of,
    read_manifest,
    refuse_contradictions,
)
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import splitting_in
from beam_tfrec.transforms.output_files import missing_shards
from beam_tfrec.transforms.shard_index import index_from_parquet
from beam_tfrec.transforms.shuffle.elements import (
    Batch,
    BatchByName,
    GroupBatches,
    Partition,
    is_in_process,
    num_partitions,
    partition_of,
)
from beam_tfrec.transforms.shuffle.run_spool import RunSpool
from beam_tfrec.transforms.sources.list_blobs import PinTally
from beam_tfrec.transforms.sources.read_samples import RejectedOutput, SplitSource
from beam_tfrec.transforms.storage import (
    DEFAULT_ACCESS,
    Access,
    join_uri,
    name_below,
    open_storage,
    source_changed,
)

DATE = "{date}"
"""Placeholder of the day in names; other braces have no meaning."""

_FLAG = "--since"
_OPTIONS_OF_KEYS = ("key_column", "keys")
_READERS = 16


@dataclass(frozen=True)
class Since:
    """Earlier data sets as the user gives them.

    Attributes:
        names: URIs of data sets. A URI with `{date}` means all data sets of earlier days.
        date: the run's day.
    """

    names: Sequence[str]
    date: datetime.date

    def __post_init__(self) -> None:
        """Refuse `{date}` in a bucket's name, since buckets are not listed."""
        for name in self.names:
            if DATE in name and _split_pattern(name)[0].endswith(":/"):
                raise ValueError(
                    f"since must have {DATE} after the bucket, got {name!r}:"
                    " give the data sets by their names"
                )


class EarlierSet(msgspec.Struct, frozen=True, order=True):
    """A committed data set.

    Attributes:
        digest: digest of its manifest, hex. The manifest holds the checksum of every shard but no
            path, so a copy of the data set has the same digest.
        uri: URI of the data set.
    """

    digest: str
    uri: str


@dataclass(frozen=True)
class EarlierSets:
    """The data sets that a run adds to.

    Attributes:
        sets: data sets without repetition, sorted by digest.
        labels: labels of all data sets, sorted by id.
        since: names that the user gave; None if there was no search.
    """

    sets: tuple[EarlierSet, ...] = ()
    labels: tuple[Label, ...] = ()
    since: Since | None = None

    def options(self) -> dict[str, str]:
        """Return the plan's option `since`, which decides membership; empty without data sets."""
        if not self.sets:
            return {}
        digests = ",".join(earlier.digest for earlier in self.sets)
        digest = hashlib.blake2b(digests.encode(), digest_size=16).hexdigest()
        return {"since": f"{counted(len(self.sets), 'data set')} {digest}"}


NO_EARLIER_SETS = EarlierSets()


def parse_date(text: str) -> datetime.date:
    """Parse a day as `YYYY-MM-DD`, the only form that names have.

    >>> parse_date("2026-11-20")
    datetime.date(2026, 11, 20)

    Raises:
        ValueError: when the text is not such a day.
    """
    with contextlib.suppress(ValueError):
        date = datetime.date.fromisoformat(text)
        if date.isoformat() == text:
            return date
    raise ValueError(f"date must be a day as YYYY-MM-DD, got {text!r}: give one such as 2026-11-20")


def expand_date(name: str, date: datetime.date) -> str:
    """Replace `{date}` in a name by the day.

    >>> expand_date("gs://b/coco-{date}", parse_date("2026-11-20"))
    'gs://b/coco-2026-11-20'
    """
    return name.replace(DATE, date.isoformat())


def date_in(name: str, pattern: str) -> datetime.date | None:
    """Return the day in a name that matches the pattern, None for any other name.

    >>> date_in("coco-2026-11-20", "coco-{date}"), date_in("coco-old", "coco-{date}")
    (datetime.date(2026, 11, 20), None)
    """
    start = pattern.index(DATE)
    try:
        date = parse_date(name[start : start + len("YYYY-MM-DD")])
    except ValueError:
        return None
    return date if expand_date(pattern, date) == name else None


def list_days(pattern: str, access: Access = DEFAULT_ACCESS) -> list[datetime.date]:
    """Return the days for which a folder matches the pattern, in ascending order.

    Raises:
        RuntimeError: `E-ARG` where folders cannot be listed.
    """
    root, folder = _split_pattern(pattern)
    storage = open_storage(root, access)
    if not storage.lists_folders:
        what = f"{DATE} needs a list of folders, which this storage does not give"
        raise _refused(pattern, what, f"give {_FLAG} the data sets by their names")
    entries = storage.list(recursive=False)
    days = (date_in(entry.name, folder) for entry in entries if entry.kind == "directory")
    return sorted(filter(None, days))


def find_earlier_sets(
    since: Since,
    output: str,
    layout: str,
    *,
    access: Access = DEFAULT_ACCESS,
    overwrite: bool = False,
    splitting: Mapping[str, str] | None = None,
) -> EarlierSets:
    """Find the data sets that a run adds to, and read their manifests.

    Args:
        since: names of the data sets.
        output: URI of the run's own data set, which is never one of them.
        layout: the run's layout; earlier data sets must have the same.
        access: credentials and limits for stores.
        overwrite: whether the run replaces its output.
        splitting: the run's `dividing_options`; earlier data sets must have the same. With others,
            a sample could be written again in another split. None to skip this check.

    Raises:
        RuntimeError: one of these faults:
            `E-ARG` for a data set that is unfinished, or has another layout or other splits;
            `E-OUT-CONFLICT` for a missing or different shard;
            `E-OUT-FOREIGN` for a manifest that cannot be read;
            `E-VER-MANIFEST` for a manifest with contradictions;
            `E-OUT-DATES` for an unfinished earlier day or a finished later day;
            `E-ANN-LABELS` for data sets with contradicting labels.
    """
    uris: list[str] = []
    for name in since.names:
        if DATE in name:
            uris += _finished_before(name, since.date, output, access, overwrite=overwrite)
        elif name_below(output, name) == "":
            raise _refused(name, f"is given as --output and as {_FLAG}", f"remove it from {_FLAG}")
        else:
            uris.append(name)
    with ThreadPoolExecutor(_READERS, "read-manifests") as pool:
        sets = list(pool.map(lambda uri: _read_set(uri, access), uris))
    by_digest: dict[str, EarlierSet] = {}
    labels: list[Label] = []
    for earlier, manifest in sets:
        _check_alike(earlier.uri, manifest, layout, splitting)
        by_digest.setdefault(earlier.digest, earlier)
        labels = unite_labels([*labels, *manifest.plan.labels], earlier.uri)
    return EarlierSets(tuple(sorted(by_digest.values())), tuple(labels), since)


def dividing_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that decide a sample's split and key.

    >>> dividing_options({"seed": "0", "split_by": "part", "key_column": "id"})
    {'split_by': 'part', 'key_column': 'id'}
    """
    keys = {name: options[name] for name in _OPTIONS_OF_KEYS if options.get(name)}
    return {**splitting_in(options), **keys}


def check_turn(earlier: EarlierSets, output: str, layout: str, access: Access) -> None:
    """Check that the earlier data sets are still the same after the output is claimed.

    If the runs of two days overlap, at least one of them fails here.

    Raises:
        RuntimeError: `E-OUT-DATES` when the data sets have changed since the run began.
    """
    since = earlier.since
    if since is None or not any(DATE in name for name in since.names):
        return
    now = find_earlier_sets(since, output, layout, access=access)
    if now.sets != earlier.sets:
        what = f"{counted(len(now.sets), 'data set')} of earlier days now"
        what += f", {len(earlier.sets)} when this run began"
        raise _out_of_turn(output, what, "run again with --overwrite")


def _split_pattern(pattern: str) -> tuple[str, str]:
    """Split a pattern into the parent folder, and the pattern of the daily folders in it.

    >>> _split_pattern("gs://b/coco/day-{date}/tfrec"), _split_pattern("out-{date}")
    (('gs://b/coco', 'day-{date}'), ('.', 'out-{date}'))
    """
    before = pattern[: pattern.index(DATE)]
    parent, slash, _ = before.rpartition("/")
    folder = pattern[len(parent) + len(slash) :].partition("/")[0]
    return parent or slash or ".", folder


def _finished_before(
    pattern: str, date: datetime.date, output: str, access: Access, *, overwrite: bool
) -> list[str]:
    """Return the finished data sets of days before the run's.

    Days must be processed in order, or two data sets could hold the same sample. An unfinished
    data set may still get any sample, and a later one did not skip this run's samples.
    """
    every = [(day, expand_date(pattern, day)) for day in list_days(pattern, access)]
    days = [(day, uri) for day, uri in every if name_below(output, uri) != ""]
    with ThreadPoolExecutor(_READERS, "look-for-manifests") as pool:
        last_files = list(pool.map(lambda day_uri: _last_file(day_uri[1], access), days))
    finished: list[str] = []
    later: list[tuple[datetime.date, str]] = []
    for (day, uri), last_file in zip(days, last_files, strict=True):
        if day > date and last_file:
            later.append((day, uri))
        elif day < date and last_file == PLAN_NAME:
            remedy = f"finish it with --date {day}, or delete it"
            raise _out_of_turn(uri, "is unfinished", remedy)
        elif day < date and last_file == MANIFEST_NAME:
            finished.append(uri)
    is_daily = name_below(output, expand_date(pattern, date)) == ""
    if later and is_daily and (overwrite or _last_file(output, access) != MANIFEST_NAME):
        what = f"is of a later day, and was made without {output}"
        remedy = f"give --date {later[-1][0]} or a later one, or delete the later data sets"
        raise _out_of_turn(later[0][1], what, remedy)
    return finished


def _last_file(uri: str, access: Access) -> str:
    """Return the manifest's name, or the plan's for an unfinished data set, or an empty text."""
    storage = open_storage(uri, access)
    names = (MANIFEST_NAME, PLAN_NAME)
    return next((name for name in names if storage.stat(name) is not None), "")


def _read_set(uri: str, access: Access) -> tuple[EarlierSet, Manifest]:
    """Check a data set; return it with its manifest, without the list of shards to save memory."""
    storage = open_storage(uri, access)
    if storage.stat(MANIFEST_NAME) is None:
        what = f"is not a finished data set: it has no {MANIFEST_NAME}"
        raise _refused(uri, what, f"finish it, or give {_FLAG} other data sets")
    earlier, manifest = _read_manifest(uri, access)
    if missing := missing_shards(storage, manifest):  # else their samples would be lost
        what = f"lacks {missing[0]}, one of {counted(len(missing), 'missing shard')}"
        remedy = f"restore it, run its command again, or give {_FLAG} other data sets"
        raise RuntimeError(fault_line("E-OUT-CONFLICT", uri, what, remedy))
    return earlier, msgspec.structs.replace(manifest, shards=[])


def _read_manifest(uri: str, access: Access) -> tuple[EarlierSet, Manifest]:
    data = open_storage(uri, access).read(MANIFEST_NAME)
    where = join_uri(uri, MANIFEST_NAME)
    manifest = read_manifest(data, where, _FLAG)
    refuse_contradictions(manifest, where)
    return EarlierSet(hashlib.blake2b(data, digest_size=16).hexdigest(), uri), manifest


def _check_alike(
    uri: str, manifest: Manifest, layout: str, splitting: Mapping[str, str] | None
) -> None:
    if manifest.layout != layout:
        what = f"its layout is {manifest.layout}, this run's is {layout}"
        raise _refused(uri, what, f"give {_FLAG} data sets of one layout")
    theirs = dividing_options(manifest.plan.options)
    if splitting is not None and theirs != splitting:
        what = f"its samples have other splits or keys: {_as_text(theirs)}; this run's are"
        remedy = f"give {_FLAG} data sets of the same --split_by, --splits, seed and keys"
        raise _refused(uri, f"{what} {_as_text(splitting)}", remedy)


def _as_text(splitting: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in splitting.items() if value) or "as given"


def _refused(where: str, what: str, remedy: str) -> RuntimeError:
    return RuntimeError(fault_line("E-ARG", where, what, remedy))


def _out_of_turn(uri: str, what: str, remedy: str) -> RuntimeError:
    return RuntimeError(fault_line("E-OUT-DATES", uri, what, remedy))


class EarlierTally(msgspec.Struct, frozen=True):
    """Counts of what earlier data sets already hold.

    Attributes:
        images: number of skipped samples, with rejects of such samples.
        annotations: number of annotations of these samples.
    """

    images: int = 0
    annotations: int = 0


class EarlierIndex(msgspec.Struct, frozen=True, array_like=True):
    """The index of one shard of an earlier data set.

    Attributes:
        data_set: URI of the data set.
        name: name of the index in the data set.
        split: split of the shard.
        records: number of records in the shard.
        bytes: size of the shard.
    """

    data_set: str
    name: str
    split: str
    records: int
    bytes: int


class JoinBatch(Batch, frozen=True, array_like=True):
    """Samples, rejects or earlier keys; one type for all three, so that the join has one coder.

    Attributes:
        samples: samples of this run.
        rejected: rejects of this run.
        sources: name of the first source file of each earlier sample, by key.
    """

    samples: list[Sample] = msgspec.field(default_factory=list)
    rejected: list[Rejected] = msgspec.field(default_factory=list)
    sources: dict[str, str] = msgspec.field(default_factory=dict)


_TallyOutput = beam.pvalue.TaggedOutput[Literal["tallies"], tuple[str, EarlierTally]]


def list_indexes(
    earlier: EarlierSet, splits: Collection[str], access: Access = DEFAULT_ACCESS
) -> list[EarlierIndex]:
    """Return the indexes of an earlier data set's shards.

    Args:
        earlier: the data set.
        splits: splits of the run; shards of others are left out.
        access: credentials and limits for stores.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when the data set was replaced or deleted during the run.
    """
    now, manifest = _read_manifest(earlier.uri, access)
    if now != earlier:
        where = join_uri(earlier.uri, MANIFEST_NAME)
        raise source_changed(where, "another data set than when the run began")
    return [
        EarlierIndex(earlier.uri, name, shard.split, shard.records, shard.bytes)
        for shard, (name, _) in zip(manifest.shards, index_names_of(manifest), strict=True)
        if shard.split in splits
    ]


def read_written(
    index: EarlierIndex, access: Access, count: int
) -> Iterator[tuple[Partition, JoinBatch]]:
    """Yield the keys of a shard's records by partition, with the names of their first sources.

    Args:
        index: index of the shard.
        access: credentials and limits for stores.
        count: number of partitions per split.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when the index contradicts the manifest.
    """
    try:
        rows = index_from_parquet(open_storage(index.data_set, access).read(index.name))
        records, size = len(rows), sum(row.size for row in rows)
        if (records, size) != (index.records, index.bytes):
            what = f"{records} records of {size} bytes, the manifest says"
            raise ValueError(f"{what} {index.records} of {index.bytes}")
    except ValueError as error:
        where = join_uri(index.data_set, index.name)
        remedy = "restore index/ of that data set, then run again"
        raise RuntimeError(fault_line("E-SRC-CHANGED", where, str(error), remedy)) from None
    parts: dict[Partition, dict[str, str]] = {}
    for row in rows:
        source = row.sources[0].name if row.sources else ""
        parts.setdefault(partition_of(index.split, row.key, count), {})[row.key] = source
    for partition, sources in parts.items():
        yield partition, JoinBatch(sources=sources)


def leave_out_earlier(
    grouped: tuple[Partition, Iterable[JoinBatch]],
) -> Iterator[Sample | RejectedOutput | _TallyOutput]:
    """Yield the new samples of a partition, the new rejects, and a tally of the skipped ones.

    A reject is skipped if an earlier data set holds its sample.

    Raises:
        RuntimeError: `E-SET-DUPLICATE` when a key belongs to another file than before. Otherwise
            new images with reused ids would be skipped silently.
    """
    (split, _), batches = grouped
    samples: list[Sample] = []
    rejected: list[Rejected] = []
    sources: dict[str, str] = {}
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
        yield _TallyOutput("tallies", (split, EarlierTally(images, annotations)))


def _check_source(sample: Sample, source: str) -> None:
    name = sample.blobs[0].image_file[0] if sample.blobs else ""
    if name != source:
        where = f"sample {sample.key} of {sample.split}"
        what = f"its file is {name!r}, but {source!r} in an earlier data set"
        remedy = "give new images new ids, and keep the names of old ones"
        raise RuntimeError(fault_line("E-SET-DUPLICATE", where, what, remedy))


def count_earlier(source: SplitSource, tallies: Iterable[tuple[str, EarlierTally]]) -> SplitSource:
    """Return a split's source counts, with the numbers of samples in earlier data sets."""
    parts = [tally for split, tally in tallies if split == source.split]
    return msgspec.structs.replace(
        source,
        earlier_images=sum(part.images for part in parts),
        earlier_annotations=sum(part.annotations for part in parts),
    )


class NewSamples(NamedTuple):
    """Output of `LeaveOutEarlier`.

    Attributes:
        samples: samples that are not in an earlier data set.
        rejected: rejects, without those of skipped samples.
        sources: counts of the sources, one `SplitSource` per split.
        skipped_tallies: counts of skipped samples, by root name; None without earlier data sets.
    """

    samples: beam.PCollection[Sample]
    rejected: beam.PCollection[Rejected]
    sources: beam.PCollection[SplitSource]
    skipped_tallies: beam.PCollection[tuple[str, PinTally]] | None = None


@dataclass(eq=False)
class LeaveOutEarlier(beam.PTransform):
    """Samples -> samples that earlier data sets do not hold, in any order.

    The join compares split and key. Without earlier data sets everything passes unchanged.

    Attributes:
        earlier: earlier data sets.
        splits: splits of the run.
        rejected: samples and annotations rejected by the reader.
        sources: counts of the sources, one `SplitSource` per split.
        access: credentials and limits for stores.
        root: name of the common root of all samples; empty if each split has its own.
        spool: file of the batches during the group-by; None if steps run in other processes.
    """

    earlier: tuple[EarlierSet, ...]
    splits: tuple[str, ...]
    rejected: beam.PCollection[Rejected]
    sources: beam.PCollection[SplitSource]
    access: Access = DEFAULT_ACCESS
    root: str = ""
    spool: RunSpool | None = None

    def expand(self, samples: beam.PCollection[Sample]) -> NewSamples:
        """Join the samples with the keys of the earlier data sets."""
        if not self.earlier:
            return NewSamples(samples, self.rejected, self.sources)
        pipeline = samples.pipeline
        count = num_partitions(pipeline)
        indexes = (
            pipeline
            | "Sets" >> beam.Create(self.earlier, reshuffle=False)
            | "ListIndexes" >> beam.FlatMap(list_indexes, self.splits, self.access)
        )
        if not is_in_process(pipeline):
            indexes |= "Spread" >> beam.Reshuffle()
        by_key = BatchByName(_name_of, _batch_of, tuple[Partition, JoinBatch])
        left = (
            (
                samples | "BatchSamples" >> by_key,
                self.rejected | "BatchRejected" >> by_key,
                indexes | "ReadWritten" >> beam.FlatMap(read_written, self.access, count),
            )
            | "JoinOnKey" >> GroupBatches(JoinBatch, self.spool)
            | "LeaveOut"
            >> beam.FlatMap(leave_out_earlier).with_outputs("rejected", "tallies", main="new")
        )
        tallies = beam.pvalue.AsList(left.tallies)
        sources = self.sources | "CountEarlier" >> beam.Map(count_earlier, tallies)
        skipped = left.tallies | "SkippedTallies" >> beam.Map(_pins_of, self.root)
        return NewSamples(left.new, left.rejected, sources, skipped)


def _batch_of(items: list) -> JoinBatch:
    """Return a batch of samples, or of rejects."""
    if isinstance(items[0], Sample):
        return JoinBatch(samples=items)
    return JoinBatch(rejected=items)


def _name_of(item: Sample | Rejected) -> tuple[str, str]:
    # A rejected annotation without a sample has no key; its ids choose the partition.
    return item.split, item.key or str(item.annotation_ids)


def _pins_of(tally: tuple[str, EarlierTally], root: str) -> tuple[str, PinTally]:
    split, earlier = tally
    return root or split, PinTally(named=earlier.images)
