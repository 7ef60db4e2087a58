"""Run a reader over all pieces of its sources."""

import functools
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.columns import ColumnFacts, add_facts
from beam_tfrec.schemas.faults import Rejected, Scope, fault_line
from beam_tfrec.schemas.labels import License, unite_labels
from beam_tfrec.schemas.manifest import Label, SourceFile, from_json
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms.sources.list_blobs import ListedFile, PinTally, why_skipped
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, find_uri, read_uri

RejectedOutput = beam.pvalue.TaggedOutput[Literal["rejected"], Rejected]
"""The second output of a step that rejects."""


class SplitSource(msgspec.Struct, frozen=True):
    """What the sources of one split hold besides their samples; parts of it add up.

    Attributes:
        split: the split that it describes.
        identity: sizes and CRC-32C, to recognise the files again.
        listed: samples that the sources list.
        annotations: listed annotations; those that became one of two files count once.
        excluded_images: samples left out on request.
        excluded_annotations: their annotations.
        repeated_annotation_ids: annotations whose id an earlier one has; they are kept.
        labels: their categories, where sources number these.
        earlier_images: samples that earlier data sets hold, once they are counted.
        earlier_annotations: their annotations.
        found: names of what they hold, by which a layout is resolved.
        images: listed images, where samples are objects; None where each image is a sample.
        images_without_samples: of these, images without a usable object.
        skipped: samples left out by a filter, by filter.
        skipped_annotations: annotations left out by a filter, by filter.
        repairs: what was mended, with counts.
        sources: the files, where there are several.
        class_names: names of their classes, sorted, where these have no numbers.
        columns: what was seen of a table's columns, by name.
        rows: number of rows it was seen in.
        licenses: licenses that they name, whether or not any image has them.
    """

    split: str
    identity: str = ""
    listed: int = 0
    annotations: int = 0
    excluded_images: int = 0
    excluded_annotations: int = 0
    repeated_annotation_ids: int = 0
    labels: list[Label] = []
    earlier_images: int = 0
    earlier_annotations: int = 0
    found: list[str] = []
    images: int | None = None
    images_without_samples: int = 0
    skipped: dict[str, int] = {}
    skipped_annotations: dict[str, int] = {}
    repairs: dict[str, int] = {}
    sources: list[SourceFile] = []
    class_names: list[str] = []
    columns: list[ColumnFacts] = []
    rows: int = 0
    licenses: list[License] = []

    @property
    def is_empty(self) -> bool:
        """Whether the sources list neither samples nor images."""
        return not (self.listed or self.images)


SplitSourceOutput = beam.pvalue.TaggedOutput[Literal["sources"], SplitSource]

Item = Sample | Rejected | SplitSource
"""What readers yield: samples; a `Rejected` for a listed sample that yields none, or for a dropped
annotation; a `SplitSource` as a note on anything else. `SplitCounter` counts samples and rejects
with their annotations, so notes hold only what neither shows."""

_NOTHING_EXCLUDED: Mapping[str, str] = {}

_MAX_NOTES = 4096

_MAX_CLASS_NAMES = 1_000_000

_MAX_HASHED_BYTES = 2**30  # a larger file is known by its pin, rather than read for its checksum


class SourceSamples(NamedTuple):
    """What a reader's transform returns; `plan_data_set` takes it.

    Attributes:
        samples: every sample once, in any order.
        rejected: samples that cannot be planned, and annotations dropped.
        sources: one `SplitSource` a split.
        listing: what samples' blobs are to be pinned by; None where they come pinned.
        tallies: digests of listings that the reader made itself, per root; None for none.
    """

    samples: beam.PCollection[Sample]
    rejected: beam.PCollection[Rejected]
    sources: beam.PCollection[SplitSource]
    listing: beam.PCollection[ListedFile] | None = None
    tallies: beam.PCollection[tuple[str, PinTally]] | None = None


def note_skipped(splitting: Splitting, source: str, name: str) -> SplitSource:
    """Return the note of a listed file that cannot be meant as an image."""
    split = splitting.split_of_other(source, name)
    return SplitSource(split, listed=1, skipped={why_skipped(name): 1})


class SplitCounter:
    """Counts what readers yield, and passes on what is not excluded."""

    def __init__(self, excluded: Mapping[str, Mapping[str, str]]) -> None:
        """Take the keys of samples to leave out, per split, as `excluded_keys` gives them."""
        self._excluded = excluded
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._notes: list[SplitSource] = []

    def admit(self, items: Iterable[Item]) -> Iterator[Sample | Rejected]:
        """Yield the samples and rejects that are not left out, each counted.

        Raises:
            RuntimeError: `E-ARG` when a sample is of another file than the excluded one of its key.
        """
        for item in items:
            if isinstance(item, SplitSource):
                self._notes.append(item)
                if len(self._notes) == _MAX_NOTES:
                    self._notes = self.split_sources()
                continue
            counts = self._counts[item.split]
            is_sample = isinstance(item, Sample) or item.scope is Scope.SAMPLE
            counts["listed"] += is_sample
            counts["annotations"] += len(item.annotation_ids)
            if item.key in self._excluded.get(item.split, _NOTHING_EXCLUDED):
                self._check_excluded(item)
                counts["excluded_images"] += is_sample
                counts["excluded_annotations"] += len(item.annotation_ids)
            else:
                yield item

    def split_sources(self) -> list[SplitSource]:
        """Return what was seen of each split since the last call."""
        parts: dict[str, list[SplitSource]] = {}
        counted = (
            msgspec.structs.replace(SplitSource(split), **counts)
            for split, counts in self._counts.items()
        )
        for part in (*self._notes, *counted):
            parts.setdefault(part.split, []).append(part)
        self._counts, self._notes = defaultdict(Counter), []
        return [add_split_sources(parts[split]) for split in sorted(parts)]

    def _check_excluded(self, item: Sample | Rejected) -> None:
        """Refuse to leave out a sample for a file that it does not have."""
        name = self._excluded[item.split][item.key]
        if isinstance(item, Sample) and name and name not in [blob.name for blob in item.blobs]:
            is_of = item.blobs[0].name if item.blobs else "no file"
            what = f"it was rejected for {name!r}, and is of {is_of!r} now"
            remedy = "give --exclude the file of a run of these sources"
            where = f"sample {item.key} of {item.split}"
            raise RuntimeError(fault_line("E-ARG", where, what, remedy))


def add_split_sources(parts: Iterable[SplitSource]) -> SplitSource:
    """Return the sum of the parts of a split's sources.

    Raises:
        RuntimeError: `E-ANN-LABELS` when labels contradict, or class names are too many for labels.
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
        remedy = "give labels that are shared, not an id of each sample"
        raise RuntimeError(fault_line("E-ANN-LABELS", f"split {first.split}", what, remedy))
    return msgspec.structs.replace(
        SplitSource(first.split),
        **added,
        identity=" and ".join(sorted({part.identity for part in several} - {""})),
        labels=unite_labels((label for part in several for label in part.labels), first.split),
        images=sum(images) if images else None,
        sources=[source for part in several for source in part.sources],
        columns=add_facts(column for part in several for column in part.columns),
    )


def is_there(source: SplitSource, splitting: Splitting) -> bool:
    """Return whether a split is one of the data set, even without samples."""
    return not source.is_empty or source.split not in splitting.optional_splits


def merge_labels(sources: Collection[SplitSource]) -> list[Label]:
    """Return the numbered labels of all splits, by id.

    Raises:
        RuntimeError: `E-ANN-LABELS` when two contradict.
    """
    return unite_labels(
        (label for source in sources for label in source.labels), "all annotation files"
    )


def uri_identity(uris: Sequence[str], exclude: str, access: Access = DEFAULT_ACCESS) -> str:
    """Return the text by which a rerun recognises a split's source files and its exclusions.

    Sizes and CRC-32C, whatever the order of the files. Files over 1 GiB are known by their pins,
    where the store does not tell the checksum.

    Raises:
        RuntimeError: `E-ARG` when one of them is not there.
    """
    files = " and ".join(sorted(_identity_at(uri, access) for uri in uris))
    return f"{files} without {_identity_at(exclude, access)}" if exclude else files


def excluded_keys(data: bytes, where: str) -> dict[str, dict[str, str]]:
    """Return the keys of the samples that a `rejected.jsonl` names, with their files, per split.

    Lines about single annotations are passed over: their samples were written.

    Raises:
        RuntimeError: `E-ARG` when a line is no reject.
    """
    keys: dict[str, dict[str, str]] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            rejected = from_json(line, Rejected)
            scope = rejected.scope
        except (ValueError, KeyError) as error:
            what = f"line {number} is no line of rejected.jsonl ({error})"
            raise RuntimeError(
                fault_line("E-ARG", where, what, "give --exclude the file of an earlier run")
            ) from None
        if scope is Scope.SAMPLE:
            keys.setdefault(rejected.split, {})[rejected.key] = rejected.file_name
    return keys


def _known_splits(
    _: bytes, source_files: Mapping[str, Sequence[str]], exclude: str, access: Access
) -> Iterator[SplitSource]:
    identity = functools.cache(lambda uris: uri_identity(uris, exclude, access))
    for split in sorted(source_files):
        yield SplitSource(split=split, identity=identity(tuple(source_files[split])))


def _union(parts: Iterable[Collection[Any]]) -> list[Any]:
    return sorted({name for part in parts for name in part})


def _add(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for part in filter(None, counts):
        total.update(part)
    return dict(sorted((+total).items()))


_ADDERS: Mapping[Any, Callable] = {
    int: sum,
    dict[str, int]: _add,
    list[str]: _union,
    list[License]: _union,
}
_ADDED_BY = {
    field.name: _ADDERS[field.type]
    for field in msgspec.structs.fields(SplitSource)
    if field.type in _ADDERS
}
"""Function that adds up a field of several parts; the field's type decides."""


def _identity_at(uri: str, access: Access) -> str:
    storage, entry = find_uri(uri, access)
    if entry.crc32c is None and entry.size_bytes > _MAX_HASHED_BYTES:
        return f"{entry.size_bytes}:{entry.pin}"
    return f"{entry.size_bytes}:{storage.crc32c(entry.name):08x}"


@dataclass(eq=False)
class ReadSamples(beam.PTransform):
    """Pieces of sources -> their samples, rejects, and one `SplitSource` a split.

    Every sample comes out once, in any order; those that `exclude` names are counted alone.

    Attributes:
        read: the reader, a named function or a picklable value; it opens the piece itself.
        source_files: URIs of files that the sources are recognised by, for every split there is.
        exclude: URI of a `rejected.jsonl` whose samples are left out; empty for none.
        access: how stores are reached.
    """

    read: Callable[[Any], Iterable[Item]]
    source_files: Mapping[str, Sequence[str]]
    exclude: str = ""
    access: Access = DEFAULT_ACCESS

    def expand(self, pieces: beam.PCollection) -> SourceSamples:
        """Read every piece."""
        known = (
            pieces.pipeline
            | "Once" >> beam.Impulse()
            | "KnowSplits"
            >> beam.FlatMap(_known_splits, self.source_files, self.exclude, self.access)
        )
        read = pieces | "Read" >> beam.ParDo(
            _Read(self.read, self.exclude, self.access), beam.pvalue.AsList(known)
        ).with_outputs("rejected", "sources", main="samples")
        sources = (
            (read.sources, known)
            | "AllParts" >> beam.Flatten()
            | "BySplit" >> beam.WithKeys(operator.attrgetter("split"))
            | "AddSplitSources" >> beam.CombinePerKey(add_split_sources)
            | "SplitSources" >> beam.Values()
        )
        return SourceSamples(read.samples, read.rejected, sources)


class _Read(beam.DoFn):
    """Runs a reader; its counts leave once a bundle.

    The side input `known` is there for order alone: sources are recognised before any is read. A
    file that changes in between is refused by its pin, or makes the next run look again.
    Recognised later, a new file would be taken for the one that was read.
    """

    def __init__(self, read: Callable[[Any], Iterable[Item]], exclude: str, access: Access) -> None:
        self._read = read
        self._exclude = exclude
        self._access = access

    def setup(self) -> None:
        self._excluded: dict[str, dict[str, str]] = {}
        if self._exclude:
            self._excluded = excluded_keys(read_uri(self._exclude, self._access), self._exclude)

    def start_bundle(self) -> None:
        self._counter = SplitCounter(self._excluded)  # anew, whatever became of the bundle before

    def process(
        self, piece: Any, known: list[SplitSource]
    ) -> Iterator[Sample | RejectedOutput | SplitSourceOutput]:
        for item in self._counter.admit(self._read(piece)):
            yield RejectedOutput("rejected", item) if isinstance(item, Rejected) else item

    def finish_bundle(self) -> Iterator:
        for source in self._counter.split_sources():
            windowed = GlobalWindows.windowed_value_at_end_of_window(source)
            yield beam.pvalue.TaggedOutput("sources", windowed)
