"""Run a reader over all pieces of its sources."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from schemas.faults import Rejected
from schemas.samples import Sample
from transforms.blobs import BlobName, PinTally
from transforms.sources.split_sources import (
    Item,
    SplitCounter,
    SplitSource,
    add_split_sources,
    excluded_keys,
    uri_identity,
)
from transforms.storage import DEFAULT_ACCESS, Access, Entry, read_uri

RejectedOutput = beam.pvalue.TaggedOutput[Literal["rejected"], Rejected]
"""The second output of a step that rejects."""
SplitSourceOutput = beam.pvalue.TaggedOutput[Literal["files"], SplitSource]


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


def _known_splits(
    _: bytes, source_files: Mapping[str, Sequence[str]], exclude: str, access: Access
) -> Iterator[SplitSource]:
    identity = functools.cache(lambda uris: uri_identity(uris, exclude, access))
    for split in sorted(source_files):
        yield SplitSource(split=split, identity=identity(tuple(source_files[split])))


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
