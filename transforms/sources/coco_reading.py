"""How the COCO files of a split are read: from their URIs to samples, without Beam."""

from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.annotations.coco import CocoFiles
from schemas.annotations.coco_pieces import CocoPieces, read_in_pieces
from schemas.annotations.json_pieces import Text
from schemas.faults import Rejected
from schemas.samples import Sample
from transforms.sources.coco_samples import CocoRules, CocoSource, parse_sources, read_files
from transforms.sources.source_text import SourceText
from transforms.sources.split_sources import (
    SplitSource,
    excluded_keys,
    join_identities,
    read_identified,
)
from transforms.splits import Splitting
from transforms.storage import DEFAULT_ACCESS, Access

Item = Sample | Rejected | SplitSource
"""What is read: samples, annotations dropped, and last what each split of the data set held."""


class AheadOfTime(NamedTuple):
    """A file that was gone through before it was known how it is to be taken.

    Attributes:
        text: of the file.
        pieces: what it holds; None where it must be read as a whole.
    """

    text: SourceText
    pieces: CocoPieces | None

    def give(self, _: Text) -> CocoPieces | None:
        """Return what it holds."""
        return self.pieces


def read_ahead(uri: str) -> AheadOfTime:
    """Read a file, if in pieces it can be.

    Raises:
        RuntimeError: `E-ARG` when there is no such file, or a storage fault.
    """
    text = SourceText(uri)
    return AheadOfTime(text, read_in_pieces(text))


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

    def read(
        self, split: str, uris: Sequence[str], ahead: MutableMapping[str, AheadOfTime]
    ) -> Iterator[Item]:
        """Yield what the files of a split hold.

        Args:
            split: the split that they are given for.
            uris: of the files, in any order.
            ahead: files that were read ahead of time, by URI; one that is used is taken out.

        Raises:
            RuntimeError: what `read_coco` raises, or a storage fault.
        """
        files, identities = self._parse(uris, ahead)
        keys: dict[str, dict[str, str]] = {}
        excluded: list[str] = []
        if self.exclude:
            data, identity = read_identified(self.exclude, self.access)
            keys, excluded = excluded_keys(data, self.exclude), [identity]
        yield from read_files(
            files,
            split,
            self.rules,
            keys,
            join_identities(identities, *excluded),
            panoptic=split in self.panoptic_splits,
            splitting=self.splitting,
        )

    def _parse(
        self, uris: Sequence[str], ahead: MutableMapping[str, AheadOfTime]
    ) -> tuple[CocoFiles, list[str]]:
        """Return the files of a split, and by what each is recognised."""
        if len(uris) == 1:
            (uri,) = uris
            read = ahead.pop(uri, None)
            text = SourceText(uri, self.access) if read is None else read.text
            read_pieces = read_in_pieces if read is None else read.give
            files = parse_sources([CocoSource(text, uri, read_pieces=read_pieces)], self.rules)
            return files, [text.identity]
        sources = [self._read(uri) for uri in uris]
        return parse_sources(sources, self.rules), [source.identity for source in sources]

    def _read(self, uri: str) -> CocoSource:
        data, identity = read_identified(uri, self.access)
        return CocoSource(data, uri, identity)
