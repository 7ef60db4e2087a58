"""Join files of two roots by name: low and high images, or images and annotation files."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from beam_tfrec.transforms.shuffle.elements import BatchByName, GroupBatches, Partition
from beam_tfrec.transforms.shuffle.run_spool import RunSpool
from beam_tfrec.transforms.sources.list_blobs import ListedFile
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, read_uri

OTHER_SIDE = 2
"""Side of a file that is of neither kind, such as a text file among images. It is only counted."""

PNG = 3
"""Side of a PNG of masks. It belongs to the image with its name."""

NO_SIDE = 4
"""Side of a name that is only in a list of names. Its group exists even without files."""


@dataclass(frozen=True)
class NameList:
    """Names of a split's images without extensions, from a text file.

    Every process reads the file once, so that it need not be sent to each.

    Attributes:
        uri: URI of the file.
        parse: parser of the file; gets its content and, for messages, its URI.
        access: credentials and limits for stores.
    """

    uri: str
    parse: Callable[[bytes, str], frozenset[str]]
    access: Access = DEFAULT_ACCESS

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names."""
        return self.parse(read_uri(self.uri, self.access), self.uri)


class NamedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A listed file with its join name.

    Attributes:
        source: split that the user gave the file's root for.
        name: join name, equal for files that belong together.
        side: 0 for a file of the first root, 1 for the second; or `OTHER_SIDE`, `PNG` or
            `NO_SIDE`.
        file: the listed file.
    """

    source: str
    name: str
    side: int
    file: ListedFile

    @property
    def second(self) -> list[ListedFile]:
        """The file if it is of the second root, else an empty list, as in `JoinedFiles`."""
        return [self.file] if self.side == 1 else []


class JoinedFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All files with one join name, usually one per side.

    Attributes:
        source: split that the user gave the files' roots for.
        name: join name of the files.
        first: files of the first root, sorted by name.
        second: files of the second root, sorted by name.
        others: files of neither kind, sorted by name.
        masks: PNGs of masks, at most one per root.
    """

    source: str
    name: str
    first: list[ListedFile] = []
    second: list[ListedFile] = []
    others: list[ListedFile] = []
    masks: list[ListedFile] = []


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    """Files of one partition."""

    files: list[NamedFile]


def join_files(source: str, files: Iterable[NamedFile]) -> list[JoinedFiles]:
    """Group the files of a source by join name, in the order of names."""
    joined: dict[str, JoinedFiles] = {}
    for named in sorted(files, key=lambda named: (named.name, named.file.entry.name)):
        group = joined.setdefault(named.name, JoinedFiles(source, named.name, [], [], [], []))
        if named.side != NO_SIDE:
            sides = group.first, group.second, group.others, group.masks
            sides[named.side].append(named.file)
    return list(joined.values())


@dataclass(eq=False)
class JoinFiles(beam.PTransform):
    """Named files -> one `JoinedFiles` per source and join name, in any order.

    Groups by source and name in partitions; a worker holds one partition.

    Attributes:
        spool: file of the batches during the group-by; None if steps run in other processes.
    """

    spool: RunSpool | None = None

    def expand(self, files: beam.PCollection[NamedFile]) -> beam.PCollection[JoinedFiles]:
        """Group by source and join name."""
        batches = files | "BatchFiles" >> BatchByName(_name_of, _Batch)
        together = (batches,) | "JoinOnName" >> GroupBatches(_Batch, self.spool)
        return together | "Join" >> beam.FlatMap(_join)


def _name_of(named: NamedFile) -> tuple[str, str]:
    return named.source, named.name


def _join(grouped: tuple[Partition, Iterable[_Batch]]) -> list[JoinedFiles]:
    (source, _), batches = grouped
    return join_files(source, [named for batch in batches for named in batch.files])
