"""Join the files of two roots by name: the two images of a pair, an image and its annotations."""

from collections.abc import Iterable
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from beam_tfrec.transforms.shuffle.elements import BatchByName, GroupBatches, Partition
from beam_tfrec.transforms.shuffle.run_spool import RunSpool
from beam_tfrec.transforms.sources.list_blobs import ListedFile

OTHER_SIDE = 2


class NamedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A listed file under the name that it is joined by.

    Attributes:
        source: the split that its root is given for.
        name: equal for files that belong together.
        side: 0 for a file of the first root, 1 for one of the second, 2 for one of neither kind,
            which is passed on for its reader to count.
        file: as listed.
    """

    source: str
    name: str
    side: int
    file: ListedFile

    @property
    def second(self) -> list[ListedFile]:
        """The file if it is one of the second root, else none, as in `JoinedFiles`."""
        return [self.file] if self.side == 1 else []


class JoinedFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All files of a name, as a rule one a side; at least one in all.

    Attributes:
        source: the split that their roots are given for.
        name: that they are joined by.
        first: of the first root, by name.
        second: of the second root, by name.
        others: of neither kind, which have no partner, by name.
    """

    source: str
    name: str
    first: list[ListedFile] = []
    second: list[ListedFile] = []
    others: list[ListedFile] = []


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    """Files of one partition."""

    files: list[NamedFile]


def join_files(source: str, files: Iterable[NamedFile]) -> list[JoinedFiles]:
    """Return the files of a source by name, in the order of names."""
    joined: dict[str, JoinedFiles] = {}
    for named in sorted(files, key=lambda named: (named.name, named.file.entry.name)):
        found = joined.setdefault(named.name, JoinedFiles(source, named.name, [], [], []))
        (found.first, found.second, found.others)[named.side].append(named.file)
    return list(joined.values())


@dataclass(eq=False)
class JoinFiles(beam.PTransform):
    """Named files -> those of each name together, each name of a source once, in any order.

    A group-by on (source, name) in partitions, whose size is all that a worker holds.

    Attributes:
        spool: where files wait at the group-by; None where they travel.
    """

    spool: RunSpool | None = None

    def expand(self, files: beam.PCollection[NamedFile]) -> beam.PCollection[JoinedFiles]:
        """Join on the name."""
        batches = files | "BatchFiles" >> BatchByName(_name_of, _Batch, tuple[Partition, _Batch])
        together = (batches,) | "JoinOnName" >> GroupBatches(_Batch, self.spool)
        return together | "Join" >> beam.FlatMap(_join)


def _name_of(named: NamedFile) -> tuple[str, str]:
    return named.source, named.name


def _join(grouped: tuple[Partition, Iterable[_Batch]]) -> list[JoinedFiles]:
    (source, _), batches = grouped
    return join_files(source, [named for batch in batches for named in batch.files])
