"""Run a reader over all pieces of its sources."""

import functools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import apache_beam as beam
import google_crc32c
import msgspec
from apache_beam.transforms.window import GlobalWindows

from schemas.columns import ColumnFacts, add_facts
from schemas.faults import Rejected, Scope, fault_line
from schemas.labels import License, unite_labels
from schemas.manifest import Label, SourceFile, from_json
from schemas.samples import Sample
from schemas.splits import Splitting
from transforms.sources.list_blobs import BlobName, PinTally
from transforms.storage import DEFAULT_ACCESS, Access, Entry, find_uri, read_uri

RejectedOutput = beam.pvalue.TaggedOutput[Literal["rejected"], Rejected]
"""The second output of a step that rejects."""


class SplitSource(msgspec.Struct, frozen=True):
    """What the sources of one split held, beyond its samples; parts of it add up.

    Attributes:
        split: the split they describe.
        identity: sizes and CRC-32C, to recognise the files again.
        images: listed images, or rows.
        annotations: listed annotations; those that became one of two files count once.
        excluded_images: samples left out on request.
        excluded_annotations: their annotations.
        repeated_annotation_ids: annotations whose id an earlier one has; they are kept.
        labels: their categories, where sources number these.
        cuts: some of its images' names, at which a listing of them can be divided.
        earlier_images: samples that earlier data sets hold, once they are counted.
        earlier_annotations: their annotations.
        found: names of what they hold, by which a layout is resolved.
        panoptic_cuts: some names of panoptic PNGs, like `cuts`.
        samples: listed samples, where they are objects; None where each image is one.
        images_without_samples: images that have no usable object, where samples are objects.
        skipped: samples left out by a filter, by filter.
        skipped_annotations: annotations left out by a filter, by filter.
        repairs: what was mended, with counts.
        sources: the files, where there are several.
        class_names: names of their classes, sorted, where these have no numbers.
        columns: what was seen of a table's columns, by name.
        rows: how many rows it was seen in.
        licenses: that they name, whether or not any image has them.
    """

    split: str
    identity: str
    images: int = 0
    annotations: int = 0
    excluded_images: int = 0
    excluded_annotations: int = 0
    repeated_annotation_ids: int = 0
    labels: list[Label] = []
    cuts: list[str] = []
    earlier_images: int = 0
    earlier_annotations: int = 0
    found: list[str] = []
    panoptic_cuts: list[str] = []
    samples: int | None = None
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
    def listed(self) -> int:
        """How many samples the files list."""
        return self.images if self.samples is None else self.samples


SplitSourceOutput = beam.pvalue.TaggedOutput[Literal["files"], SplitSource]


class SourceNote(msgspec.Struct, frozen=True, array_like=True):
    """What a piece of a source tells besides its samples.

    Attributes:
        split: one that the piece is of.
        class_names: names of classes that it knows of.
        found: names of what it holds, by which a layout is resolved.
        skipped: why the piece holds a sample that is left out, in a word; empty for none.
        repairs: what was mended in the piece, with counts.
        columns: what was seen of a table's columns.
        rows: how many rows it was seen in.
    """

    split: str
    class_names: frozenset[str] = frozenset()
    found: frozenset[str] = frozenset()
    skipped: str = ""
    repairs: dict[str, int] = {}
    columns: tuple[ColumnFacts, ...] = ()
    rows: int = 0


Item = Sample | Rejected | SourceNote
"""What readers yield. A `Rejected` is a listed sample that comes out otherwise in no form, or an
annotation that was dropped from one."""

_NOTHING_EXCLUDED: Mapping[str, str] = {}

_MAX_CLASS_NAMES = 1_000_000

_MAX_HASHED_BYTES = 2**30  # a larger file is known by its pin, rather than read for its checksum


class SourceSamples(NamedTuple):
    """What a reader's transform returns; `plan_data_set` takes it.

    Attributes:
        samples: every sample once, in any order.
        rejected: samples that cannot be planned, and annotations dropped.
        files: one `SplitSource` a split.
        listing: what samples' blobs are to be pinned by; None where they come pinned.
        tallies: digests of listings that the reader made itself, per root; None for none.
    """

    samples: beam.PCollection[Sample]
    rejected: beam.PCollection[Rejected]
    files: beam.PCollection[SplitSource]
    listing: beam.PCollection[tuple[BlobName, Entry]] | None = None
    tallies: beam.PCollection[tuple[str, PinTally]] | None = None


class SplitCounter:
    """Counts what readers yield, and passes on what is not excluded."""

    def __init__(self, excluded: Mapping[str, Mapping[str, str]]) -> None:
        """Take the keys of samples to leave out, per split, as `excluded_keys` gives them."""
        self._excluded = excluded
        self._counts: dict[str, Counter[str]] = {}
        self._class_names: dict[str, set[str]] = {}
        self._found: dict[str, set[str]] = {}
        self._skipped: dict[str, Counter[str]] = {}
        self._repairs: dict[str, Counter[str]] = {}
        self._columns: dict[str, list[ColumnFacts]] = {}

    def admit(self, items: Iterable[Item]) -> Iterator[Sample | Rejected]:
        """Yield the samples and rejects that are not left out, each counted.

        Raises:
            RuntimeError: `E-ARG` when a sample is of another file than the excluded one of its key.
        """
        for item in items:
            if isinstance(item, SourceNote):
                self._note(item)
                continue
            counts = self._counts.setdefault(item.split, Counter())
            is_sample = isinstance(item, Sample) or item.scope is Scope.SAMPLE
            counts["samples"] += is_sample
            counts["annotations"] += len(item.annotation_ids)
            if item.key in self._excluded.get(item.split, _NOTHING_EXCLUDED):
                self._check_excluded(item)
                counts["excluded_samples"] += is_sample
                counts["excluded_annotations"] += len(item.annotation_ids)
            else:
                yield item

    def split_sources(self) -> list[SplitSource]:
        """Return the counts so far."""
        sources: list[SplitSource] = []
        for split in sorted({*self._counts, *self._class_names, *self._found, *self._repairs}):
            counts = self._counts.get(split, Counter())
            sources.append(
                SplitSource(
                    split=split,
                    identity="",
                    images=counts["samples"],
                    annotations=counts["annotations"],
                    excluded_images=counts["excluded_samples"],
                    excluded_annotations=counts["excluded_annotations"],
                    found=sorted(self._found.get(split, ())),
                    skipped=_add([self._skipped.get(split, {})]),
                    repairs=_add([self._repairs.get(split, {})]),
                    class_names=sorted(self._class_names.get(split, ())),
                    columns=self._columns.get(split, []),
                    rows=counts["rows"],
                )
            )
        return sources

    def _note(self, note: SourceNote) -> None:
        self._class_names.setdefault(note.split, set()).update(note.class_names)
        self._found.setdefault(note.split, set()).update(note.found)
        if note.rows:
            self._counts.setdefault(note.split, Counter())["rows"] += note.rows
            facts = [*self._columns.get(note.split, ()), *note.columns]
            self._columns[note.split] = add_facts(facts)
        if note.skipped:
            self._counts.setdefault(note.split, Counter())["samples"] += 1
            self._skipped.setdefault(note.split, Counter())[note.skipped] += 1
        if note.repairs:
            self._repairs.setdefault(note.split, Counter()).update(note.repairs)

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
    several = sorted(parts, key=operator.attrgetter("identity"))
    first = several[0]
    if len(several) == 1:
        return first
    names = _union(part.class_names for part in several)
    if len(names) > _MAX_CLASS_NAMES:
        what = f"more than {_MAX_CLASS_NAMES} classes, such as {names[0]!r} and {names[-1]!r}"
        remedy = "give labels that are shared, not an id of each sample"
        raise RuntimeError(fault_line("E-ANN-LABELS", f"split {first.split}", what, remedy))
    return SplitSource(
        split=first.split,
        identity=" and ".join(sorted({part.identity for part in several} - {""})),
        images=sum(part.images for part in several),
        annotations=sum(part.annotations for part in several),
        excluded_images=sum(part.excluded_images for part in several),
        excluded_annotations=sum(part.excluded_annotations for part in several),
        repeated_annotation_ids=sum(part.repeated_annotation_ids for part in several),
        labels=unite_labels((label for part in several for label in part.labels), first.split),
        found=_union(part.found for part in several),
        skipped=_add(part.skipped for part in several),
        skipped_annotations=_add(part.skipped_annotations for part in several),
        repairs=_add(part.repairs for part in several),
        class_names=names,
        columns=add_facts(column for part in several for column in part.columns),
        rows=sum(part.rows for part in several),
        licenses=sorted({license for part in several for license in part.licenses}),
    )


def is_there(file: SplitSource, splitting: Splitting) -> bool:
    """Return whether a split is one of the data set, even without samples."""
    return bool(file.images) or file.split not in splitting.optional_splits


def merge_labels(files: Collection[SplitSource]) -> list[Label]:
    """Return the numbered labels of all splits, by id.

    Raises:
        RuntimeError: `E-ANN-LABELS` when two contradict.
    """
    return unite_labels((label for file in files for label in file.labels), "all annotation files")


def uri_identity(uris: Sequence[str], exclude: str, access: Access = DEFAULT_ACCESS) -> str:
    """Return by what a rerun recognises a split's source files and what was left out of them.

    Sizes and CRC-32C, whatever the order of the files; their bytes pass through in pieces. Files
    over 1 GiB are known by their pins, where the store does not tell the checksum.

    Raises:
        RuntimeError: `E-ARG` when one of them is not there.
    """
    files, excluded = (
        [_identity_at(uri, access) for uri in given] for given in (uris, filter(None, [exclude]))
    )
    return join_identities(files, *excluded)


def read_identified(uri: str, access: Access = DEFAULT_ACCESS) -> tuple[bytes, str]:
    """Return a file's bytes, and by what `uri_identity` recognises it.

    Raises:
        RuntimeError: `E-ARG` when there is no such file, or a storage fault.
    """
    storage, entry = find_uri(uri, access)
    data = storage.read(entry.name, entry)
    return data, identity_of(entry, google_crc32c.value(data))


def identity_of(entry: Entry, crc32c: int) -> str:
    """Return by what `uri_identity` recognises a file as it was listed, and read.

    Args:
        entry: as listed.
        crc32c: of the bytes that were read.
    """
    if _is_known_by_pin(entry):
        return _pin_identity(entry)
    return _file_identity(entry.size_bytes, crc32c)


def join_identities(files: Iterable[str], *excluded: str) -> str:
    """Return the identity of a split's source files, and of what is left out of them.

    >>> join_identities(["9:2", "8:1"], "3:4")
    '8:1 and 9:2 without 3:4'
    """
    return " without ".join([" and ".join(sorted(files)), *excluded])


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


def _union(parts: Iterable[Collection[str]]) -> list[str]:
    return sorted({name for part in parts for name in part})


def _add(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sorted(sum(map(Counter, counts), Counter()).items()))


def _identity_at(uri: str, access: Access) -> str:
    storage, entry = find_uri(uri, access)
    if _is_known_by_pin(entry):
        return _pin_identity(entry)
    return _file_identity(entry.size_bytes, storage.crc32c(entry.name))


def _is_known_by_pin(entry: Entry) -> bool:
    return entry.crc32c is None and entry.size_bytes > _MAX_HASHED_BYTES


def _pin_identity(entry: Entry) -> str:
    return f"{entry.size_bytes}:{entry.pin}"


def _file_identity(size_bytes: int, crc32c: int) -> str:
    return f"{size_bytes}:{crc32c:08x}"


@dataclass(eq=False)
class ReadSamples(beam.PTransform):
    """Pieces of sources -> their samples, rejects, and one `SplitSource` a split.

    Every sample comes out once, in any order; those that `exclude` names are counted alone.

    Attributes:
        read: the reader, a pure function of a piece; a named function or a picklable value.
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
        ).with_outputs("rejected", "files", main="samples")
        files = (
            (read.files, known)
            | "AllParts" >> beam.Flatten()
            | "BySplit" >> beam.WithKeys(operator.attrgetter("split"))
            | "AddSplitSources" >> beam.CombinePerKey(add_split_sources)
            | "SplitSources" >> beam.Values()
        )
        return SourceSamples(read.samples, read.rejected, files)


class _Read(beam.DoFn):
    """Runs a reader; its counts leave once a bundle.

    Files are recognised before any is read: what changes in between is refused by its pin, or makes
    the next run look again. Seen later, new files would be taken for those that were read.
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
            yield beam.pvalue.TaggedOutput("files", windowed)
