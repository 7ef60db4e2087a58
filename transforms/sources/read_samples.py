"""Run a reader of a source, count its samples per split, and skip excluded ones.

A source such as a table or a folder has a *reader*, a function in a module of this folder. A reader
takes a piece of the source, such as a file, and yields `Item`s. `ReadSamples` calls it.
"""

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.columns import ColumnFacts, add_facts
from beam_tfrec.schemas.faults import Reason, Rejected, Scope, run_fault
from beam_tfrec.schemas.labels import License, unite_labels
from beam_tfrec.schemas.manifest import Label, SourceFile, from_json
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.splits import DigestValues, Splitting, split_without_bucket
from beam_tfrec.transforms.shuffle.elements import SPOOLS
from beam_tfrec.transforms.shuffle.run_spool import RunSpool
from beam_tfrec.transforms.sources.listing import ListedFile, RootTally, why_skipped
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, find_uri, read_uri

RejectedOutput = beam.pvalue.TaggedOutput[Literal["rejected"], Rejected]
"""Side output of rejects."""


class SplitTally(msgspec.Struct, frozen=True):
    """Counts and facts of one split's sources, without samples; `add_split_tallies` adds parts.

    Attributes:
        split: name of the split.
        identity: sizes and CRC-32C of the source files, for a rerun to compare.
        listed: number of samples in the sources.
        annotations: number of annotations in the sources; an annotation merged from two files
            counts once.
        excluded_samples: number of samples skipped by `--exclude`.
        excluded_annotations: number of annotations of these samples.
        repeated_annotation_ids: number of annotations with the id of an earlier one; they are kept.
        labels: labels, if the sources have numeric category ids.
        earlier_samples: number of samples in earlier data sets; 0 until `LeaveOutEarlier`.
        earlier_annotations: number of annotations of these samples.
        found: sorted names of what the sources hold, such as `captions`, for `Layout.resolved`.
        images: number of images, if samples are objects; None if each image is a sample.
        images_without_samples: number of images without a usable object.
        skipped: number of samples skipped by each filter.
        skipped_annotations: number of annotations skipped by each filter.
        repairs: number of repairs, by kind.
        sources: source files, if there are several.
        class_names: sorted class names, if the sources have no numeric ids.
        named_ids: ids and names of the classes in records of other programs, such as `7 cat`.
        columns: facts of a table's columns, by name.
        rows: number of rows that `columns` describes.
        licenses: licenses in the sources, used or not.
        unused_keys: number of keys of the table of groups that no sample has. Only the sum over all
            splits counts; a part may be negative.
    """

    split: str
    identity: str = ""
    listed: int = 0
    annotations: int = 0
    excluded_samples: int = 0
    excluded_annotations: int = 0
    repeated_annotation_ids: int = 0
    labels: list[Label] = []
    earlier_samples: int = 0
    earlier_annotations: int = 0
    found: list[str] = []
    images: int | None = None
    images_without_samples: int = 0
    skipped: dict[str, int] = {}
    skipped_annotations: dict[str, int] = {}
    repairs: dict[str, int] = {}
    sources: list[SourceFile] = []
    class_names: list[str] = []
    named_ids: list[str] = []
    columns: list[ColumnFacts] = []
    rows: int = 0
    licenses: list[License] = []
    unused_keys: int = 0

    @property
    def left_out(self) -> dict[str, int]:
        """Number of samples left out on request, by filter; `excluded`, `earlier`."""
        counts = {"excluded": self.excluded_samples, "earlier": self.earlier_samples}
        return {name: count for name, count in (self.skipped | counts).items() if count}


SplitTallyOutput = beam.pvalue.TaggedOutput[Literal["split_tallies"], SplitTally]

Item = Sample | Rejected | SplitTally
"""Output of readers.

A `Sample` is a future record. A `Rejected` stands for a rejected sample or a dropped annotation. A
`SplitTally` from a reader is called a note. It holds other facts, such as class names.
`SplitCounter` counts samples, rejects and their annotations, so a note must not.
"""

_MAX_NOTES = 4096
_MAX_CLASS_NAMES = 1_000_000
_MAX_HASHED_BYTES = 2**30  # a larger file is compared by its pin instead of its checksum


class SourceSamples(NamedTuple):
    """Output of a source's transform, and of the steps after it that pin its samples.

    Attributes:
        samples: all samples, each once, in any order.
        rejected: rejected samples and dropped annotations.
        split_tallies: one `SplitTally` per split.
        listing: listed files, for `PinBlobs`; None if the reader pins its samples.
        root_tallies: digests of listings, then counts of pinned files, by root; None without any.
    """

    samples: beam.PCollection[Sample]
    rejected: beam.PCollection[Rejected]
    split_tallies: beam.PCollection[SplitTally]
    listing: beam.PCollection[ListedFile] | None = None
    root_tallies: beam.PCollection[tuple[str, RootTally]] | None = None


def note_skipped(splitting: Splitting, source: str, name: str, why: str = "") -> SplitTally:
    """Return the note of a listed file that is not read: by its name, or by a list of names."""
    split = splitting.split_of_file(source, name)
    return SplitTally(split, listed=1, skipped={why or why_skipped(name) or "not_in_list": 1})


def reject_file(
    splitting: Splitting, file: ListedFile, stage: str, fault: Reason, ids: tuple[int | str, ...]
) -> Rejected:
    """Return the reject of a listed file that makes no sample; its name is the key.

    Args:
        splitting: rule that decides its split.
        file: the file; its root is that of a source, or lies below one, as `train/annotations`.
        stage: name of the reader.
        fault: code and detail.
        ids: ids of the annotations in the file.
    """
    name = file.entry.name
    split = splitting.split_of_file(file.root.partition("/")[0], name)
    return Sample(split, name, -1, (Blob(file.root, name),), b"", ids).reject(stage, *fault)


class SplitCounter:
    """Counts the items of readers, and drops excluded ones."""

    def __init__(self, excluded: Mapping[str, Mapping[str, str]]) -> None:
        """Store the keys of excluded samples, as `excluded_keys` returns them."""
        self._excluded = excluded
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._notes: list[SplitTally] = []

    def admit(self, items: Iterable[Item]) -> Iterator[Sample | Rejected]:
        """Count items, and yield the samples and rejects that are not excluded.

        Raises:
            RuntimeError: `E-ARG` when an excluded sample has another file than in
                `rejected.jsonl`.
        """
        for item in items:
            if isinstance(item, SplitTally):
                self._notes.append(item)
                if len(self._notes) == _MAX_NOTES:
                    self._notes = self.split_tallies()
                continue
            counts = self._counts[item.split]
            is_sample = isinstance(item, Sample) or item.scope is Scope.SAMPLE
            counts["listed"] += is_sample
            counts["annotations"] += len(item.annotation_ids)
            if item.key in self._excluded.get(item.split, ()):
                self._check_excluded(item)
                counts["excluded_samples"] += is_sample
                counts["excluded_annotations"] += len(item.annotation_ids)
            else:
                yield item

    def split_tallies(self) -> list[SplitTally]:
        """Return counts and notes of each split since the last call."""
        parts: dict[str, list[SplitTally]] = {}
        counted = (
            msgspec.structs.replace(SplitTally(split), **counts)
            for split, counts in self._counts.items()
        )
        for part in (*self._notes, *counted):
            parts.setdefault(part.split, []).append(part)
        self._counts, self._notes = defaultdict(Counter), []
        return [add_split_tallies(parts[split]) for split in sorted(parts)]

    def _check_excluded(self, item: Sample | Rejected) -> None:
        """Check that an excluded sample still has the file that was rejected."""
        name = self._excluded[item.split][item.key]
        if not (name and isinstance(item, Sample)):
            return
        if name not in [blob.file_name for blob in item.blobs]:
            now = repr(item.blobs[0].file_name) if item.blobs else "no file"
            what = f"it was rejected with file {name!r}, and has {now} now"
            remedy = "give --exclude the rejected.jsonl of a run of these sources"
            raise run_fault("E-ARG", f"sample {item.key} of {item.split}", what, remedy)


def add_split_tallies(parts: Iterable[SplitTally]) -> SplitTally:
    """Add parts of one split's sources.

    Raises:
        RuntimeError: `E-ANN-LABELS` when labels contradict each other, or class names are too many.
    """
    several = list(parts)
    first = several[0]
    images = [part.images for part in several if part.images is not None]
    added: dict[str, Any] = {
        name: add(getattr(part, name) for part in several) for name, add in _ADDED_BY.items()
    }
    names = added["class_names"]
    if len(names) > _MAX_CLASS_NAMES:
        what = f"more than {_MAX_CLASS_NAMES} classes, such as {names[0]!r} and {names[-1]!r}"
        remedy = "give labels that samples share, not an id of each sample"
        raise run_fault("E-ANN-LABELS", f"split {first.split}", what, remedy)
    return msgspec.structs.replace(
        SplitTally(first.split),
        **added,
        identity=" and ".join(sorted({part.identity for part in several} - {""})),
        labels=unite_labels((label for part in several for label in part.labels), first.split),
        images=sum(images) if images else None,
        sources=[source for part in several for source in part.sources],
        columns=add_facts(column for part in several for column in part.columns),
    )


def is_there(source: SplitTally, splitting: Splitting) -> bool:
    """Return whether the data set has a split: one with images, or one that is not optional."""
    is_optional = source.split in splitting.optional_splits
    return bool(source.listed or source.images) or not is_optional


def merge_labels(tallies: Collection[SplitTally]) -> list[Label]:
    """Return the labels of all splits, sorted by id.

    Raises:
        RuntimeError: `E-ANN-LABELS` when labels contradict each other.
    """
    labels = (label for tally in tallies for label in tally.labels)
    return unite_labels(labels, "all annotation files")


def uri_identity(uris: Sequence[str], exclude: str, access: Access = DEFAULT_ACCESS) -> str:
    """Return a text that identifies the contents of a split's source files and of `--exclude`.

    It consists of sizes and CRC-32C, and does not depend on the order of the files. If the listing
    has no checksum, a file above 1 GiB is identified by its pin.

    Raises:
        RuntimeError: `E-ARG` when a file does not exist.
    """
    files = " and ".join(sorted(_identity_at(uri, access) for uri in uris))
    return f"{files} without {_identity_at(exclude, access)}" if exclude else files


def excluded_keys(data: bytes, where: str) -> dict[str, dict[str, str]]:
    """Parse a `rejected.jsonl`; return each split's rejected keys with their file names.

    Lines of dropped annotations are ignored, since their samples were written.

    Raises:
        RuntimeError: `E-ARG` when a line is not a reject.
    """
    keys: dict[str, dict[str, str]] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            rejected = from_json(line, Rejected)
            scope = rejected.scope
        except (ValueError, KeyError) as error:
            what = f"line {number} is not a line of a rejected.jsonl ({error})"
            remedy = "give --exclude the rejected.jsonl of an earlier run"
            raise run_fault("E-ARG", where, what, remedy) from None
        if scope is Scope.SAMPLE:
            keys.setdefault(rejected.split, {})[rejected.key] = rejected.file_name
    return keys


def _identify_sources(
    _: bytes,
    source_files: Mapping[str, Sequence[str]],
    exclude: str,
    access: Access,
    labels: list[Label],
) -> Iterator[SplitTally]:
    """Yield each split's source files with their identity, and labels known before reading."""
    identity = functools.cache(lambda uris: uri_identity(uris, exclude, access))
    for split in sorted(source_files):
        yield SplitTally(split, identity(tuple(source_files[split])), labels=labels)


def _count_keys(groups: DigestValues, splitting: Splitting) -> SplitTally:
    """Return the number of keys of a table; `_Read` subtracts those that it finds."""
    return SplitTally(splitting.splits(())[0], unused_keys=len(groups[0]))


def _union(parts: Iterable[Collection[Any]]) -> list[Any]:
    return sorted({name for part in parts for name in part})


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums by name, sorted, without zeros."""
    total = Counter[str]()
    for part in filter(None, counts):
        total.update(part)
    return dict(sorted((+total).items()))


_ADDERS: Mapping[Any, Callable] = {
    int: sum,
    dict[str, int]: add_counts,
    list[str]: _union,
    list[License]: _union,
}
_ADDED_BY = {
    field.name: _ADDERS[field.type]
    for field in msgspec.structs.fields(SplitTally)
    if field.type in _ADDERS
}
"""Function that adds the values of a field, by the field's name; chosen by the field's type."""


def _identity_at(uri: str, access: Access) -> str:
    storage, entry = find_uri(uri, access)
    if entry.crc32c is None and entry.size_bytes > _MAX_HASHED_BYTES:
        return f"{entry.size_bytes}:{entry.pin}"
    return f"{entry.size_bytes}:{storage.crc32c(entry.name):08x}"


@dataclass(eq=False)
class ReadSamples(beam.PTransform):
    """Pieces of sources -> samples in any order, rejects, and one `SplitTally` per split.

    Attributes:
        read: reader of a piece, a named function or a value that can be pickled.
        source_files: URIs of source files whose contents a rerun compares, for every split.
        exclude: URI of a `rejected.jsonl`; its samples are counted and skipped. Empty for none.
        access: credentials and limits for stores.
        labels: classes that are known before samples are read.
        splitting: rule of the reader. If it needs tables, they are set in `read.splitting`.
        classes_of: function that returns the classes of a sample; None unless `stratified`.
        earlier: URIs of earlier data sets, for `stratified`: their samples keep their splits.
    """

    read: Callable[[Any], Iterable[Item]]
    source_files: Mapping[str, Sequence[str]]
    exclude: str = ""
    access: Access = DEFAULT_ACCESS
    labels: Sequence[Label] = ()
    splitting: Splitting = field(default_factory=Splitting)
    classes_of: Callable[[Sample], Collection[int | str]] | None = None
    earlier: Sequence[str] = ()

    def expand(self, pieces: beam.PCollection) -> SourceSamples:
        """Read every piece."""
        of_sources = self.source_files, self.exclude, self.access, [*self.labels]
        once = pieces.pipeline | "Once" >> beam.Impulse()
        identified = once | "IdentifySources" >> beam.FlatMap(_identify_sources, *of_sources)
        sides, counts = {}, [identified]
        if self.splitting.group_table or self.classes_of:
            # Late, since few runs need it.
            from beam_tfrec.transforms.sources.split_tables import make_split_tables

            of_samples = self.splitting, self.classes_of, self.earlier, self.access
            tables = make_split_tables(pieces, self.read, *of_samples)
            sides = {name: beam.pvalue.AsSingleton(table) for name, table in tables.items()}
            if groups := tables.get("groups"):
                counts.append(groups | "CountKeys" >> beam.Map(_count_keys, self.splitting))
        splits, spool = [*self.source_files], SPOOLS.get(pieces.pipeline)
        reader = _Read(self.read, self.exclude, self.access, self.splitting, splits, spool)
        step = beam.ParDo(reader, beam.pvalue.AsList(identified), **sides)
        read = pieces | "Read" >> step.with_outputs("rejected", "split_tallies", main="samples")
        tallies = (read.split_tallies, *counts) | "AddSplitTallies" >> AddSplitTallies()
        return SourceSamples(read.samples, read.rejected, tallies)


class AddSplitTallies(beam.PTransform):
    """Several collections of `SplitTally` -> one of each split."""

    def expand(self, parts: Any) -> beam.PCollection[SplitTally]:  # Beam warns of a declared tuple
        """Add the parts of each split."""
        return (
            parts
            | "AllParts" >> beam.Flatten()
            | "BySplit" >> beam.WithKeys(operator.attrgetter("split"))
            | "AddParts" >> beam.CombinePerKey(add_split_tallies)
            | "SplitTallies" >> beam.Values()
        )


@dataclass(eq=False)
class _Read(beam.DoFn):
    """Runs a reader, and spools payloads; yields its counts at the end of a bundle.

    The side input `identified` is unused, but delays reading until all source files are hashed.
    If a file changes after that, its pin differs and the run stops, or the next run plans again.
    If files were hashed last, old samples could get the hash of a changed file.
    """

    read: Any
    exclude: str
    access: Access
    splitting: Splitting
    splits: Collection[str]
    spool: RunSpool | None

    def setup(self) -> None:
        self._excluded: dict[str, dict[str, str]] = {}
        if self.exclude:
            found = excluded_keys(read_uri(self.exclude, self.access), self.exclude)
            for split, keys in found.items():
                of_source = split if split in self.splits else split_without_bucket(split)
                self._excluded[of_source] = {**self._excluded.get(of_source, {}), **keys}

    def start_bundle(self) -> None:
        # A new counter, since the last bundle may have failed.
        self._counter = SplitCounter(self._excluded)
        if self.splitting.groups is not None:
            self.splitting.groups.found[:] = False

    def process(
        self,
        piece: Any,
        identified: list[SplitTally],
        groups: DigestValues | None = None,
        assigned: DigestValues | None = None,
    ) -> Iterator[Sample | RejectedOutput | SplitTallyOutput]:
        has_tables = self.splitting.groups or self.splitting.assigned
        if (groups or assigned) and not has_tables:
            self.splitting = self.splitting.with_tables(groups, assigned)
            self.read = replace(self.read, splitting=self.splitting)
        for item in self._counter.admit(self.read(piece)):
            if self.spool and isinstance(item, Sample):
                item = self.spool.store_payload(item)
            yield RejectedOutput("rejected", item) if isinstance(item, Rejected) else item

    def finish_bundle(self) -> Iterator:
        tallies = self._counter.split_tallies()
        if self.splitting.groups is not None:
            found = int(self.splitting.groups.found.sum())
            tallies.append(SplitTally(self.splitting.splits(())[0], unused_keys=-found))
        for tally in tallies:
            windowed = GlobalWindows.windowed_value_at_end_of_window(tally)
            yield beam.pvalue.TaggedOutput("split_tallies", windowed)
