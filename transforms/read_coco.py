"""Read the annotation files of every split into samples."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import apache_beam as beam

from schemas.coco import CocoFiles
from schemas.faults import Rejected
from schemas.samples import Sample, panoptic_root
from transforms.coco_halves import read_in_halves
from transforms.coco_samples import CocoRules, CocoSource, parse_sources, read_files
from transforms.source_text import SourceText
from transforms.sources import SplitSource, excluded_keys, join_identities, read_identified
from transforms.splits import Splitting
from transforms.storage import DEFAULT_ACCESS, Access
from transforms.tagged_outputs import RejectedOutput, SplitSourceOutput


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
        uris: annotation files per split, in any order.
        rules: how strictly files are taken, and what of them is wanted.
        exclude: URI of a `rejected.jsonl` whose samples are left out; empty for none.
        access: how stores are reached.
        panoptic_splits: splits that have a root of panoptic PNGs.
        splitting: which split of the data set an image belongs to; where it draws them, files are
            given for one.
    """

    uris: Mapping[str, Sequence[str]]
    rules: CocoRules = field(default_factory=CocoRules)
    exclude: str = ""
    access: Access = DEFAULT_ACCESS
    panoptic_splits: Collection[str] = ()
    splitting: Splitting = field(default_factory=Splitting)

    def expand(self, root: beam.pvalue.PBegin) -> CocoSamples:
        """Read every file."""
        read = (
            root
            | "Once" >> beam.Impulse()
            | "ListFiles" >> beam.FlatMap(_list_files, self.uris)
            | "ReadFiles"
            >> beam.ParDo(
                _ReadSplit(
                    self.rules,
                    self.exclude,
                    self.access,
                    frozenset(self.panoptic_splits),
                    self.splitting,
                )
            ).with_outputs("rejected", "files", main="samples")
        )
        root_of_all = "" if self.splitting.is_given else next(iter(self.uris))
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
    def __init__(
        self,
        rules: CocoRules,
        exclude: str,
        access: Access,
        panoptic_splits: frozenset[str],
        splitting: Splitting,
    ) -> None:
        self._rules = rules
        self._exclude = exclude
        self._access = access
        self._panoptic_splits = panoptic_splits
        self._splitting = splitting

    def process(
        self, element: tuple[str, tuple[str, ...]]
    ) -> Iterator[Sample | RejectedOutput | SplitSourceOutput]:
        split, uris = element
        files, identities = self._parse(uris)
        keys: dict[str, dict[str, str]] = {}
        excluded: list[str] = []
        if self._exclude:
            data, identity = read_identified(self._exclude, self._access)
            keys, excluded = excluded_keys(data, self._exclude), [identity]
        items = read_files(
            files,
            split,
            self._rules,
            keys,
            join_identities(identities, *excluded),
            panoptic=split in self._panoptic_splits,
            splitting=self._splitting,
        )
        for item in items:
            if isinstance(item, Sample):
                yield item
            elif isinstance(item, Rejected):
                yield RejectedOutput("rejected", item)
            else:
                yield SplitSourceOutput("files", item)

    def _parse(self, uris: Sequence[str]) -> tuple[CocoFiles, list[str]]:
        """Return the files of a split, and by what each is recognised."""
        if len(uris) == 1:
            text = SourceText(uris[0], self._access)
            source = CocoSource(text, uris[0], read_pieces=read_in_halves)
            files = parse_sources([source], self._rules)
            return files, [text.identity]
        sources = [self._read(uri) for uri in uris]
        return parse_sources(sources, self._rules), [source.identity for source in sources]

    def _read(self, uri: str) -> CocoSource:
        data, identity = read_identified(uri, self._access)
        return CocoSource(data, uri, identity)
