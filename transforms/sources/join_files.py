"""Join files of several roots by name, such as images and annotation files; rows of tables too."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import msgspec

from beam_tfrec.transforms.shuffle import elements
from beam_tfrec.transforms.sources.listing import ListedFile
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, read_uri

Row = tuple[str, int, list[str]]
"""A row of a table: the kind of the table, the row's line, and its cells."""


@dataclass(frozen=True)
class NameList:
    """Names of a split's images without extensions, from text files.

    Every process reads the files once, so that the names need not be sent to each.

    Attributes:
        uris: URIs of the files.
        parse: parser of a file; gets its content and, for messages, its URI.
        access: credentials and limits for stores.
    """

    uris: Sequence[str]
    parse: Callable[[bytes, str], Iterable[str]]
    access: Access = DEFAULT_ACCESS

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names."""
        lists = (self.parse(read_uri(uri, self.access), uri) for uri in self.uris)
        return frozenset[str]().union(*lists)


class JoinedFiles(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Files and rows with one join name. Before the join, one file or some rows; or only a name.

    Attributes:
        source: split that the user gave the files' roots for.
        name: join name, equal for files that belong together.
        first: files of the first root, sorted by name.
        second: files of the second root, sorted by name.
        others: files of neither kind, such as a text file among images. They are only counted.
        masks: PNGs of masks.
        rows: rows of tables, sorted.
    """

    source: str
    name: str
    first: tuple[ListedFile, ...] = ()
    second: tuple[ListedFile, ...] = ()
    others: tuple[ListedFile, ...] = ()
    masks: tuple[ListedFile, ...] = ()
    rows: tuple[Row, ...] = ()


class _Batch(elements.Batch, frozen=True, array_like=True):
    """Files of one partition."""

    files: list[JoinedFiles]


def join_files(grouped: tuple[elements.Partition, Iterable[_Batch]]) -> Iterator[JoinedFiles]:
    """Yield the files of a partition of a source, joined by name, in the order of names."""
    (source, _), batches = grouped
    by_name: dict[str, list[JoinedFiles]] = {}
    for file in (file for batch in batches for file in batch.files):
        by_name.setdefault(file.name, []).append(file)
    for name, parts in sorted(by_name.items()):
        yield JoinedFiles(
            source,
            name,
            _sorted_files(part.first for part in parts),
            _sorted_files(part.second for part in parts),
            _sorted_files(part.others for part in parts),
            _sorted_files(part.masks for part in parts),
            tuple(sorted(row for part in parts for row in part.rows)),
        )


def _sorted_files(parts: Iterable[tuple[ListedFile, ...]]) -> tuple[ListedFile, ...]:
    files = (file for part in parts for file in part)
    return tuple(sorted(files, key=lambda file: file.entry.name))


class JoinFiles(beam.PTransform):
    """Named files and rows, in one or more collections -> joined ones, in any order.

    Groups by source and name in partitions; a worker holds one partition.
    """

    def expand(self, sides: Any) -> beam.PCollection[JoinedFiles]:  # Beam warns of a declared tuple
        """Group by source and join name."""
        by_name = elements.BatchByName(operator.attrgetter("source", "name"), _Batch)
        # Batched before they are flattened: FnApiRunner holds what it flattens.
        batches = [side | f"Batch{number}" >> by_name for number, side in enumerate(sides)]
        together = tuple(batches) | "JoinOnName" >> elements.GroupBatches(_Batch)
        return together | "Join" >> beam.FlatMap(join_files)
