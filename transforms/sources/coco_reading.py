"""How the COCO files of a split are read: from their URIs to samples, without Beam."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from schemas.faults import Rejected
from schemas.samples import Sample
from transforms.sources.coco_samples import CocoRules, CocoSource, parse_sources, read_files
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
        files = parse_sources(sources, self.rules)
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

    def _read(self, uri: str) -> CocoSource:
        data, identity = read_identified(uri, self.access)
        return CocoSource(data, uri, identity)
