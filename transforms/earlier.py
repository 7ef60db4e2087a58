"""Find the earlier data sets that a run adds to, and the labels that they have.

A data set that grows day by day is several outputs. What each of them holds is said by its manifest
alone, so everything here is read from manifests, before a graph is built: a few kilobytes a set.
The keys of the samples are read by the workers, see `transforms/earlier.py`.
"""

import datetime
import enum
import functools
import hashlib
import logging
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

import apache_beam as beam
import msgspec

from schemas.documents.tensorflow_files import MAX_LABEL_ID
from schemas.faults import Rejected, Scope, fault_line, printable
from schemas.manifest import (
    MANIFEST_NAME,
    PLAN_NAME,
    Label,
    Manifest,
    index_names_of,
    read_manifest,
    refuse_contradictions,
)
from schemas.samples import Sample
from schemas.shown_values import counted
from schemas.splits import splitting_in
from transforms.output_files import missing_shards
from transforms.shard_index import index_from_parquet
from transforms.sources.elements import Batch, BatchByKey, GroupBatches, is_in_process, num_groups
from transforms.sources.list_blobs import PinTally
from transforms.sources.read_samples import RejectedOutput, SplitSource
from transforms.storage import (
    DEFAULT_ACCESS,
    Access,
    Storage,
    join_uri,
    name_below,
    open_storage,
    source_changed,
)
from transforms.storage.run_spool import RunSpool

_LOG = logging.getLogger(__name__)
_FLAG = "--since"
_OPTIONS_OF_KEYS = ("key_column", "keys")
_READERS = 16


class _State(enum.Enum):
    """What is to be seen of a data set: nothing, a plan, or a manifest too."""

    NOTHING = "nothing"
    BEGUN = "begun"
    FINISHED = "finished"


class _DaySet(NamedTuple):
    """The data set of a day: where it is or would be, and how far it is."""

    day: datetime.date
    uri: str
    state: _State


@dataclass(frozen=True)
class Since:
    """Which earlier data sets a run is to add to, as the user says it.

    Attributes:
        names: URIs of data sets; with `{date}`, all of that name whose day is before the run's.
        date: the run's day.
    """

    names: Sequence[str]
    date: datetime.date

    def __post_init__(self) -> None:
        """Refuse names whose days could not be listed."""
        for name in filter(is_pattern, self.names):
            if split_pattern(name)[0].endswith(":/"):
                raise ValueError(
                    f"since must have {DATE} behind the bucket, got {name!r}:"
                    " give the data sets by their names"
                )


class EarlierSet(msgspec.Struct, frozen=True, order=True):
    """A data set that was committed before.

    Attributes:
        digest: of its manifest, hex. The manifest holds the checksum of every shard and no path,
            so that a copy is the same data set and one that was made anew is not.
        uri: where it is.
    """

    digest: str
    uri: str


class InheritedLabel(NamedTuple):
    """A class label, and the first data set that has it."""

    label: Label
    data_set: str


@dataclass(frozen=True)
class EarlierSets:
    """The data sets that a run adds to; what it needs of them is small, whatever they hold.

    Attributes:
        sets: each once, by digest.
        labels: theirs together, by id.
        since: what they were found by; None where they were not looked for.
    """

    sets: tuple[EarlierSet, ...] = ()
    labels: tuple[InheritedLabel, ...] = ()
    since: Since | None = None

    def options(self) -> dict[str, str]:
        """Return the option that decides membership, for the plan; none where there are no sets."""
        if not self.sets:
            return {}
        digests = ",".join(earlier.digest for earlier in self.sets)
        digest = hashlib.blake2b(digests.encode(), digest_size=16).hexdigest()
        return {"since": f"{counted(len(self.sets), 'data set')} {digest}"}


NO_EARLIER_SETS = EarlierSets()


def is_pattern(name: str) -> bool:
    """Return whether a name stands for the data sets of many days."""
    return DATE in name


def split_pattern(pattern: str) -> tuple[str, str]:
    """Return the folder in which the folders of days lie, and how they are called.

    >>> split_pattern("gs://b/coco/day-{date}/tfrec"), split_pattern("out-{date}")
    (('gs://b/coco', 'day-{date}'), ('.', 'out-{date}'))
    """
    before = pattern[: pattern.index(DATE)]
    parent, slash, _ = before.rpartition("/")
    folder = pattern[len(parent) + len(slash) :].partition("/")[0]
    return parent or slash or ".", folder


def list_days(pattern: str, access: Access = DEFAULT_ACCESS) -> list[datetime.date]:
    """Return the days for which there is a folder of that name, whatever it holds, ascending.

    Raises:
        RuntimeError: `E-ARG` where folders cannot be listed.
    """
    root, folder = split_pattern(pattern)
    storage = open_storage(root, access)
    if not storage.lists_folders:
        what = f"folders cannot be listed there, as {DATE} needs it"
        raise _refused(pattern, what, f"give {_FLAG} the data sets by their names")
    head = folder[: folder.index(DATE)]
    with_a_digit = (f"{head}0", f"{head}:")  # the character behind 9
    days = (
        date_in(entry.name, folder)
        for entry in storage.list(recursive=False, bounds=with_a_digit)
        if entry.kind == "directory"
    )
    return sorted(day for day in days if day is not None)


def find_earlier_sets(
    since: Since,
    output: str,
    layout: str,
    *,
    access: Access = DEFAULT_ACCESS,
    overwrite: bool = False,
    splitting: Mapping[str, str] | None = None,
) -> EarlierSets:
    """Return the data sets that a run adds to.

    Args:
        since: which.
        output: the run's own data set, which is never among them.
        layout: the run's layout, which they must have.
        access: how stores are reached.
        overwrite: whether the run replaces what is in the output.
        splitting: options by which the run's samples are split, which must be theirs: else a sample
            would come again, in another split. None to leave that alone.

    Raises:
        RuntimeError: `E-ARG` for a name that is no finished data set, or one of another layout or
            split otherwise; `E-OUT-CONFLICT` for one of which a shard is missing or another;
            `E-OUT-FOREIGN` for a manifest that cannot be read; `E-VER-MANIFEST` for one that
            contradicts itself; `E-OUT-DATES` for days out of turn;
            `E-ANN-LABELS` when two data sets contradict.
    """
    uris: list[str] = []
    for name in since.names:
        if is_pattern(name):
            uris += _finished_before(name, since.date, output, access, overwrite)
        else:
            uris.append(_named(name, output))
    with ThreadPoolExecutor(_READERS, "read-manifests") as pool:
        found = list(pool.map(lambda uri: _read_set(uri, access), uris))
    by_digest: dict[str, EarlierSet] = {}
    labels: list[InheritedLabel] = []
    for earlier, its_layout, its_labels, its_splitting in found:
        if its_layout != layout:
            what = f"its layout is {its_layout}, this run's is {layout}"
            raise _refused(earlier.uri, what, f"give {_FLAG} data sets of one layout")
        if splitting is not None and its_splitting != splitting:
            what = f"its samples were split or keyed otherwise: {_told(its_splitting)}, and now"
            remedy = f"give {_FLAG} data sets of the same --split_by, --splits, seed and keys"
            if its_splitting.get("keys") != splitting.get("keys"):
                remedy += ", which a file given alone has not as it has in a folder"
            raise _refused(earlier.uri, f"{what} {_told(splitting)}", remedy)
        by_digest.setdefault(earlier.digest, earlier)
        labels = add_labels(labels, its_labels, earlier.uri)
    return EarlierSets(tuple(sorted(by_digest.values())), tuple(labels), since)


def dividing_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return those of a plan's options that say which split and key a source's sample has.

    >>> dividing_options({"seed": "0", "split_by": "part", "key_column": "id"})
    {'split_by': 'part', 'key_column': 'id'}
    """
    keys = {name: options[name] for name in _OPTIONS_OF_KEYS if options.get(name)}
    return {**splitting_in(options), **keys}


def check_turn(earlier: EarlierSets, output: str, layout: str, access: Access) -> None:
    """Look again, once the output is claimed: of two days at once, one sees the other.

    Raises:
        RuntimeError: `E-OUT-DATES` when other data sets are there than when the run began.
    """
    since = earlier.since
    if since is None or not any(map(is_pattern, since.names)):
        return
    now = find_earlier_sets(since, output, layout, access=access)
    if now.sets != earlier.sets:
        what = f"{counted(len(now.sets), 'data set')} of earlier days, when this run began"
        raise _out_of_turn(output, f"{what} {len(earlier.sets)}", "run again with --overwrite")


def manifest_of(earlier: EarlierSet, access: Access = DEFAULT_ACCESS) -> Manifest:
    """Return the manifest of a data set that was found, the same as then.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when it is another one, or gone.
    """
    found, manifest = _read(open_storage(earlier.uri, access))
    if found.digest != earlier.digest:
        where = join_uri(earlier.uri, MANIFEST_NAME)
        raise source_changed(where, "another data set than when the run began")
    return manifest


def number_labels(
    known: Sequence[InheritedLabel], labels: Iterable[Label], first_id: int | None
) -> list[Label]:
    """Return labels with the ids that records hold.

    Args:
        known: labels of earlier data sets, which keep their ids.
        labels: as the annotation files have them.
        first_id: of a numbering without gaps, by category id; new categories come after the known
            ones. None to take category ids as they are.

    Raises:
        RuntimeError: `E-ARG` when earlier data sets are numbered in another way; `E-ANN-LABELS`
            when a category id taken as it is can be no number of a class.

    >>> [label.id for label in number_labels([], [Label(90, "cup"), Label(3, "cat")], 1)]
    [1, 2]
    """
    _check_numbering(known, first_id)
    if first_id is None:
        kept = list(labels)
        inherited_ids = {inherited.label.id for inherited in known}
        for label in kept:
            if not (0 <= label.id <= MAX_LABEL_ID or label.id in inherited_ids):
                what = f"category id {label.id} of {label.name!r} is not from 0 to {MAX_LABEL_ID}"
                what += ", the numbers that a label map can have"
                remedy = "number classes anew with --category_ids contiguous"
                raise RuntimeError(fault_line("E-ANN-LABELS", "all annotation files", what, remedy))
            if label.id == 0:
                _LOG.warning(
                    "category id 0 of %s: the Object Detection API refuses a label map with it;"
                    " --category_ids contiguous numbers classes from 1",
                    printable(label.name),
                )
        return kept
    ids = {inherited.label.annotated_id: inherited.label.id for inherited in known}
    numbered: list[Label] = []
    for label in sorted(labels):
        number = ids.setdefault(label.id, first_id + len(ids))
        category_id = None if number == label.id else label.id
        numbered.append(msgspec.structs.replace(label, id=number, category_id=category_id))
    return numbered


def number_names(
    known: Sequence[InheritedLabel], names: Iterable[str], first_id: int
) -> list[Label]:
    """Return labels of classes that have names alone, in the order of these.

    Args:
        known: labels of earlier data sets, which keep their ids.
        names: of classes.
        first_id: of the numbering; new categories come after the known ones.

    Raises:
        RuntimeError: `E-ARG` when earlier data sets are numbered in another way.

    >>> number_names([], ["cup", "cat"], 0)[1]
    Label(id=1, name='cup', category_id=None, keypoints=(), text='')
    """
    if sorted(inherited.label.id for inherited in known) != [
        *range(first_id, first_id + len(known))
    ]:
        what = f"its classes are not numbered from {first_id} without gaps"
        raise _refused(known[0].data_set, what, "give the --first_label that it was made with")
    ids = {inherited.label.name: inherited.label.id for inherited in known}
    return [Label(ids.setdefault(name, first_id + len(ids)), name) for name in sorted(set(names))]


def _check_numbering(known: Sequence[InheritedLabel], first_id: int | None) -> None:
    if first_id is None:
        theirs_is_ours = all(inherited.label.category_id is None for inherited in known)
    else:
        wanted = range(first_id, first_id + len(known))
        theirs_is_ours = sorted(inherited.label.id for inherited in known) == [*wanted]
    if not theirs_is_ours:
        what = "its class ids are " + ("contiguous" if first_id is None else "the files' own")
        raise _refused(known[0].data_set, what, "give the --category_ids that it was made with")


def add_labels(
    known: Sequence[InheritedLabel], labels: Iterable[Label], data_set: str
) -> list[InheritedLabel]:
    """Return the labels of several data sets with those of one more, by id.

    Ids and names stay what they are: a class that a later data set does not have is kept. Names of
    keypoints, and what a class is called, may come with a later one.

    Raises:
        RuntimeError: `E-ANN-LABELS` when an id has another name there, or a name another id, or
            a class is called otherwise.
    """
    by_id = {inherited.label.id: inherited for inherited in known}
    by_name = {inherited.label.name: inherited for inherited in known}
    for label in labels:
        for other in (by_id.get(label.id), by_name.get(label.name)):
            if other is not None and not _are_one_class(label, other.label):
                what = f"category {label.annotated_id} is {_described(label)}, but"
                what += f" {other.data_set} has {other.label.annotated_id} for"
                what += f" {_described(other.label)}"
                remedy = "give each class the id and the name that it had"
                raise RuntimeError(fault_line("E-ANN-LABELS", data_set, what, remedy))
        there = by_id.get(label.id, InheritedLabel(label, data_set))
        if there.label != (united := _united(there.label, label)):
            there = InheritedLabel(united, data_set)
        by_id[label.id] = there
    return [by_id[label_id] for label_id in sorted(by_id)]


def _are_one_class(label: Label, other: Label) -> bool:
    same = (label.id, label.name, label.annotated_id) == (other.id, other.name, other.annotated_id)
    pairs = (label.keypoints, other.keypoints), (label.text, other.text)
    return same and all(one == two or not (one and two) for one, two in pairs)


def _united(label: Label, other: Label) -> Label:
    """Return a class with what either data set knows of it."""
    return msgspec.structs.replace(
        label, keypoints=label.keypoints or other.keypoints, text=label.text or other.text
    )


def _described(label: Label) -> str:
    called = f" ({label.text})" if label.text else ""
    return f"{label.name!r}{called}" + (
        f" of {', '.join(label.keypoints)}" if label.keypoints else ""
    )


def _named(name: str, output: str) -> str:
    if name_below(output, name) == "":
        raise _refused(name, f"is --output and {_FLAG} at once", "leave it out")
    return name


def _finished_before(
    pattern: str, date: datetime.date, output: str, access: Access, overwrite: bool
) -> list[str]:
    """Return the data sets of a pattern that were committed for days before a run's.

    Days must come one after the other, or two data sets would hold the same sample: one that is
    begun may yet hold anything, and a later one was made without what this run writes.
    """
    sets = [found for found in _list_sets(pattern, access) if name_below(output, found.uri) != ""]
    for found in sets:
        if found.day < date and found.state is _State.BEGUN:
            remedy = f"finish it with --date {found.day}, or delete it"
            raise _out_of_turn(found.uri, "is begun and not finished", remedy)
    later = [found for found in sets if found.day > date and found.state is not _State.NOTHING]
    is_one_of_them = name_below(output, expand_date(pattern, date)) == ""
    if later and is_one_of_them and (overwrite or _state_of(output, access) is not _State.FINISHED):
        what = f"is there already, and was made without {output}"
        remedy = f"give --date {later[-1].day} or a later one, or delete what is later"
        raise _out_of_turn(later[0].uri, what, remedy)
    return [found.uri for found in sets if found.day < date and found.state is _State.FINISHED]


def _list_sets(pattern: str, access: Access) -> list[_DaySet]:
    days = list_days(pattern, access)
    uris = [expand_date(pattern, day) for day in days]
    with ThreadPoolExecutor(_READERS, "look-for-manifests") as pool:
        states = list(pool.map(lambda uri: _state_of(uri, access), uris))
    return [_DaySet(*found) for found in zip(days, uris, states, strict=True)]


def _state_of(uri: str, access: Access) -> _State:
    storage = open_storage(uri, access)
    if storage.stat(MANIFEST_NAME) is not None:
        return _State.FINISHED
    return _State.NOTHING if storage.stat(PLAN_NAME) is None else _State.BEGUN


def _read_set(uri: str, access: Access) -> tuple[EarlierSet, str, list[Label], dict[str, str]]:
    """Return a data set, its layout, labels and splitting: not its shards, which may be many."""
    storage = open_storage(uri, access)
    if storage.stat(MANIFEST_NAME) is None:
        what = f"no {MANIFEST_NAME}, hence no finished data set"
        raise _refused(uri, what, f"finish it, or give {_FLAG} others")
    earlier, manifest = _read(storage)
    if missing := missing_shards(storage, manifest):  # whose records would be in no data set
        what = f"lacks {missing[0]}, one of {counted(len(missing), 'missing shard')}"
        remedy = f"restore it, run its command again, or give {_FLAG} others"
        raise RuntimeError(fault_line("E-OUT-CONFLICT", uri, what, remedy))
    return earlier, manifest.layout, manifest.plan.labels, dividing_options(manifest.plan.options)


def _read(storage: Storage) -> tuple[EarlierSet, Manifest]:
    data = storage.read(MANIFEST_NAME)
    where = join_uri(storage.root, MANIFEST_NAME)
    manifest = read_manifest(data, where, _FLAG)
    refuse_contradictions(manifest, where)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return EarlierSet(digest, storage.root), manifest


def _told(splitting: Mapping[str, str]) -> str:
    values = [f"{name} {value}" for name, value in splitting.items() if value]
    return ", ".join(values) or "as given"


def _refused(uri: str, what: str, remedy: str) -> RuntimeError:
    return RuntimeError(fault_line("E-ARG", uri, what, remedy))


def _out_of_turn(uri: str, what: str, remedy: str) -> RuntimeError:
    return RuntimeError(fault_line("E-OUT-DATES", uri, what, remedy))


DATE = "{date}"
"""What stands for a day; other braces are what they are."""

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def parse_date(text: str) -> datetime.date:
    """Return the day of `YYYY-MM-DD`; of no other form, since names hold this one.

    >>> parse_date("2026-11-20")
    datetime.date(2026, 11, 20)

    Raises:
        ValueError: when the text is no day.
    """
    try:
        if _DAY.fullmatch(text):
            return datetime.date.fromisoformat(text)
    except ValueError:
        pass
    raise ValueError(f"date must be a day as YYYY-MM-DD, got {text!r}: give one such as 2026-11-20")


def expand_date(name: str, date: datetime.date) -> str:
    """Return a name with the day in it.

    >>> expand_date("gs://b/coco-{date}", parse_date("2026-11-20"))
    'gs://b/coco-2026-11-20'
    """
    return name.replace(DATE, date.isoformat())


def date_in(name: str, pattern: str) -> datetime.date | None:
    """Return the day that a name has where the pattern has `{date}`, None for any other name.

    >>> date_in("coco-2026-11-20", "coco-{date}"), date_in("coco-old", "coco-{date}")
    (datetime.date(2026, 11, 20), None)
    """
    start = pattern.index(DATE)
    try:
        date = parse_date(name[start : start + len("YYYY-MM-DD")])
    except ValueError:
        return None
    return date if expand_date(pattern, date) == name else None


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
        named = tallies | "Named" >> beam.Map(_pins_of, self.root)
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


def _pins_of(tally: tuple[str, EarlierTally], root: str) -> tuple[str, PinTally]:
    split, earlier = tally
    return root or split, PinTally(named=earlier.images)


def _count_earlier(file: SplitSource, tallies: list[tuple[str, EarlierTally]]) -> SplitSource:
    return count_earlier(file, dict(tallies).get(file.split, EarlierTally()))


def count_earlier(file: SplitSource, tally: EarlierTally) -> SplitSource:
    """Return an annotation file with what was left out of it."""
    return msgspec.structs.replace(
        file, earlier_images=tally.images, earlier_annotations=tally.annotations
    )
