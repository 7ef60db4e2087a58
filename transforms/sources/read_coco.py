"""Read the annotation files of every split into samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import apache_beam as beam

from schemas.faults import Rejected
from schemas.samples import Sample, panoptic_root
from schemas.splits import Splitting
from transforms.sources.coco_samples import CocoRules, CocoSource, read_coco
from transforms.sources.read_samples import (
    RejectedOutput,
    SplitSource,
    SplitSourceOutput,
    excluded_keys,
    join_identities,
    read_identified,
)
from transforms.storage import DEFAULT_ACCESS, Access

Item = Sample | Rejected | SplitSource
"""What is read: samples, annotations dropped, and last what each split of the data set held."""


@dataclass(frozen=True)
class CocoReading:
    """How COCO files are read.

    Attributes:
        rules: how strictly files are taken, and what of them is wanted.
        exclude: URI of a `rejected.jsonl` whose samples are left out; empty for none.
        access: how stores are reached.
        panoptic_splits: splits that have a root of panoptic PNGs.
        splitting: which split of the data set an image belongs to.
    """

    rules: CocoRules = field(default_factory=CocoRules)
    exclude: str = ""
    access: Access = DEFAULT_ACCESS
    panoptic_splits: frozenset[str] = frozenset()
    splitting: Splitting = field(default_factory=Splitting)

    def read(self, split: str, uris: Sequence[str]) -> Iterator[Item]:
        """Yield what the files of a split hold.

        Args:
            split: the split that they are given for.
            uris: of the files, in any order.

        Raises:
            RuntimeError: what `read_coco` raises, or a storage fault.
        """
        sources = [self._read(uri) for uri in uris]
        identities = [source.identity for source in sources]
        keys: dict[str, dict[str, str]] = {}
        excluded: list[str] = []
        if self.exclude:
            data, identity = read_identified(self.exclude, self.access)
            keys, excluded = excluded_keys(data, self.exclude), [identity]
        yield from read_coco(
            sources,
            split,
            self.rules,
            keys,
            join_identities(identities, *excluded),
            panoptic=split in self.panoptic_splits,
            splitting=self.splitting,
        )

    def _read(self, uri: str) -> CocoSource:
        data, identity = read_identified(uri, self.access)
        return CocoSource(data, uri, identity)


class CocoSamples(NamedTuple):
    """What `ReadCoco` returns.

    Attributes:
        samples: one a listed image, its blob not yet pinned.
        rejected: annotations dropped.
        files: one summary a split of the data set.
        cuts: per root, names at which its listing can be divided.
    """

    samples: beam.PCollection[Sample]
    rejected: beam.PCollection[Rejected]
    files: beam.PCollection[SplitSource]
    cuts: beam.PCollection[tuple[str, list[str]]]


@dataclass(eq=False)
class ReadCoco(beam.PTransform):
    """Root -> the samples of COCO annotation files, with the annotations dropped on the way.

    The files of a split are read by one worker, several as a whole, and joined there; their
    samples' order does not matter downstream. The annotations of an image come by ascending id,
    whatever the order of files or in them.

    Attributes:
        uris: annotation files per split, in any order; where the splitting draws splits, of one.
        reading: how they are read.
    """

    uris: Mapping[str, Sequence[str]]
    reading: CocoReading = field(default_factory=CocoReading)

    def expand(self, root: beam.pvalue.PBegin) -> CocoSamples:
        """Read every file."""
        read = (
            root
            | "Once" >> beam.Impulse()
            | "ListFiles" >> beam.FlatMap(_list_files, self.uris)
            | "ReadFiles"
            >> beam.ParDo(_ReadSplit(self.reading)).with_outputs(
                "rejected", "files", main="samples"
            )
        )
        root_of_all = "" if self.reading.splitting.is_given else next(iter(self.uris))
        cuts = read.files | "Cuts" >> beam.FlatMap(_cuts_of, root_of_all)
        return CocoSamples(read.samples, read.rejected, read.files, cuts)


def _list_files(_: bytes, uris: Mapping[str, Sequence[str]]) -> list[tuple[str, tuple[str, ...]]]:
    return [(split, tuple(uris[split])) for split in sorted(uris)]


def _cuts_of(file: SplitSource, root_of_all: str) -> Iterator[tuple[str, list[str]]]:
    root = root_of_all or file.split
    yield root, file.cuts
    if file.panoptic_cuts:
        yield panoptic_root(root), file.panoptic_cuts


class _ReadSplit(beam.DoFn):
    def __init__(self, reading: CocoReading) -> None:
        self._reading = reading

    def process(
        self, element: tuple[str, tuple[str, ...]]
    ) -> Iterator[Sample | RejectedOutput | SplitSourceOutput]:
        for item in self._reading.read(*element):
            if isinstance(item, Sample):
                yield item
            elif isinstance(item, Rejected):
                yield RejectedOutput("rejected", item)
            else:
                yield SplitSourceOutput("files", item)
