"""Tables as files: those that are given by name, and those that a folder or a glob holds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import apache_beam as beam
import msgspec

from schemas.columns import is_called_a_table, matches
from schemas.faults import fault_line
from transforms import coders
from transforms.sources.listed_files import ListedFile, is_file
from transforms.storage import Access, Entry, find_uri, join_uri, split_uri


class TableFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a table.

    Attributes:
        split: that it is given for.
        root: URI of its folder.
        entry: its name below that, size and pin.
        place: among the files of its split, in the order of their names.
        prefix: of its rows' keys where these are numbers; empty for the only file of a split.
        is_table: whether it is meant as one; else it is counted and left out.
    """

    split: str
    root: str
    entry: Entry
    place: int = 0
    prefix: str = ""
    is_table: bool = True

    @property
    def where(self) -> str:
        """Its URI, for messages."""
        return join_uri(self.root, self.entry.name)


coders.register(TableFile)


def stat_tables(split: str, uris: Sequence[str], access: Access) -> list[TableFile]:
    """Return the files of a split that are given by name, in the order of their names.

    Raises:
        RuntimeError: `E-ARG` when one of them is not there.
    """
    by_name = sorted((*reversed(split_uri(uri)), uri) for uri in uris)
    return [
        TableFile(split, root, find_uri(uri, access)[1], place, f"{name}:" if len(uris) > 1 else "")
        for place, (name, root, uri) in enumerate(by_name)
    ]


def number_tables(split: str, root: str, entries: Iterable[Entry]) -> list[TableFile]:
    """Return a folder's files, those that are tables with their place in the order of names."""
    in_order = sorted(entries, key=lambda entry: (not is_called_a_table(entry.name), entry.name))
    return [
        TableFile(split, root, entry, place, f"{entry.name}:", is_called_a_table(entry.name))
        for place, entry in enumerate(in_order)
    ]


@dataclass(eq=False)
class ListTables(beam.PTransform):
    """Root -> the table files that are given by name, as they are now.

    Attributes:
        files: URIs per split.
        access: how stores are reached.
    """

    files: Mapping[str, Sequence[str]]
    access: Access

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[TableFile]:
        """Look at every file."""
        return (
            root
            | "Once" >> beam.Impulse()
            | "Stat" >> beam.FlatMap(_stat_tables, self.files, self.access)
        )


def _stat_tables(
    _: bytes, files: Mapping[str, Sequence[str]], access: Access
) -> Iterator[TableFile]:
    for split, uris in sorted(files.items()):
        yield from stat_tables(split, uris, access)


@dataclass(eq=False)
class PickTables(beam.PTransform):
    """Listed files -> the files of tables, and those in between that are not called so.

    Attributes:
        roots: URI per name of a root.
        patterns: glob per name of a root; empty for all that is there.
        splits: split per name of a root.
    """

    roots: Mapping[str, str]
    patterns: Mapping[str, str]
    splits: Mapping[str, str]

    def expand(self, listed: beam.PCollection[ListedFile]) -> beam.PCollection[TableFile]:
        """Look at every name."""
        return (
            listed
            | "Pick" >> beam.Filter(_is_picked, self.patterns, self.roots)
            | "ByRoot" >> beam.Map(_by_root)
            | "GroupRoots" >> beam.GroupByKey()
            | "Number" >> beam.FlatMap(_number, self.roots, self.splits)
        )


def is_table(listed: ListedFile, patterns: Mapping[str, str]) -> bool:
    """Return whether a listed file is one that is read as a table."""
    name = listed.entry.name
    is_meant = is_called_a_table(name) and matches(name, patterns[listed.root])
    return is_file(listed) and is_meant


def _is_picked(listed: ListedFile, patterns: Mapping[str, str], roots: Mapping[str, str]) -> bool:
    """Return whether a name is meant; what is called a table, and is none, is not passed over."""
    entry = listed.entry
    if entry.kind == "directory" or not matches(entry.name, patterns[listed.root]):
        return False
    if entry.kind != "file" and is_called_a_table(entry.name):
        where = join_uri(roots[listed.root], entry.name)
        raise RuntimeError(
            fault_line("E-TAB-FORMAT", where, f"a {entry.kind}", "mend it, or take it away")
        )
    return entry.kind == "file"


def _by_root(listed: ListedFile) -> tuple[str, Entry]:
    return listed.root, listed.entry


def _number(
    of_root: tuple[str, Iterable[Entry]], roots: Mapping[str, str], splits: Mapping[str, str]
) -> list[TableFile]:
    root, entries = of_root
    return number_tables(splits[root], roots[root], entries)
