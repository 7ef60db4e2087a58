"""Verify sources: that the files which a data set was made of still have its bytes."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from schemas.findings import Findings, Verified
from schemas.manifest import Manifest, index_names_of
from transforms.quantities import counted
from transforms.shard_index import Source, index_from_parquet
from transforms.storage import Access, Storage, join_uri, open_storage

_REMEDY = "restore it from a copy, or make the data set again"
_ARRAYS = "arrays"


class SourceTask(msgspec.Struct, frozen=True, array_like=True):
    """A source file to be hashed.

    Attributes:
        split: of its record.
        key: of its record.
        source: as the index tells of it.
    """

    split: str
    key: str
    source: Source


class SourcesIndex(msgspec.Struct, frozen=True, array_like=True):
    """An index whose sources are to be hashed.

    Attributes:
        place: of its shard in the manifest, from 0.
        split: of its shard.
        name: of the index below the data set.
    """

    place: int
    split: str
    name: str


class SourcesFound(msgspec.Struct):
    """What was hashed; what was hashed behind it adds up.

    Attributes:
        findings: what is wrong.
        files: hashed.
        bytes: of them.
    """

    findings: Findings = msgspec.field(default_factory=Findings)
    files: int = 0
    bytes: int = 0

    def extend(self, other: "SourcesFound") -> None:
        """Add what was hashed behind these."""
        self.findings.extend(other.findings)
        self.files += other.files
        self.bytes += other.bytes

    def add_to(self, found: Verified) -> None:
        """Add it to what was found of the data set."""
        found.findings.extend(self.findings)
        found.bytes += self.bytes
        note = f"{counted(self.files, 'source file')} compared with the index"
        if not self.files:
            note = "no source file was compared: the index names none, as of rows and of no records"
        found.notes += (note,)


MapSources = Callable[
    [Callable[[SourceTask], tuple[int, str]], Iterable[SourceTask]], Iterable[tuple[int, str]]
]
"""`map`, or one that does several at once."""


def check_sources(manifest: Manifest, sources: Mapping[str, Sequence[str]], access: Access) -> None:
    """Refuse roots that could not be compared with an index.

    Raises:
        ValueError: where there is no such split, or records are made of parts of files.
        RuntimeError: `E-ARG` where a root is no folder.
    """
    for split in sources:
        if split and split not in manifest.splits:
            names = ", ".join(sorted(manifest.splits))
            raise ValueError(f"sources must be of splits {names}, got {split!r}: name one of them")
    if manifest.layout == _ARRAYS:
        raise ValueError(
            "sources must be files of their own, got items of arrays, of which an index does not"
            " say where they lie: leave --sources out"
        )
    for uri in {uri for given in sources.values() for uri in given}:
        open_storage(uri, access).require_folder()


def verify_sources(
    root: str,
    manifest: Manifest,
    sources: Mapping[str, Sequence[str]],
    access: Access,
    map_sources: MapSources,
) -> SourcesFound:
    """Return which source files are gone, or have other bytes than the index says.

    Args:
        root: path or URI of the data set.
        manifest: its.
        sources: roots by split, one of which has the file; those of `""` for every split.
        access: how stores are reached.
        map_sources: hashes them.

    Raises:
        RuntimeError: `E-IO-…` where a store fails.
    """
    storage, found = open_storage(root, access), SourcesFound()
    for index in indexes_of_sources(manifest, sources):
        roots = source_roots(index.split, sources, access)
        found.extend(compare_sources(sources_of_index(index, storage), roots, map_sources))
    return found


def source_roots(split: str, sources: Mapping[str, Sequence[str]], access: Access) -> list[Storage]:
    """Return where the sources of a split may lie."""
    return [open_storage(uri, access) for uri in (*sources.get(split, ()), *sources.get("", ()))]


def compare_sources(
    tasks: Sequence[SourceTask], roots: Sequence[Storage], map_sources: MapSources = map
) -> SourcesFound:
    """Return which sources of a shard are gone, or have other bytes than the index says."""
    found = SourcesFound()
    check = functools.partial(_check_source, roots=roots)
    for task, (size, wrong) in zip(tasks, map_sources(check, tasks), strict=True):
        found.files += 1
        found.bytes += size
        if wrong:
            where = join_uri(roots[0].root, task.source.name)
            where += f" (of key {task.key!r} in {task.split})"
            found.findings.add("E-VER-SOURCE", where, wrong, _REMEDY)
    return found


def indexes_of_sources(
    manifest: Manifest, sources: Mapping[str, Sequence[str]]
) -> Iterator[SourcesIndex]:
    """Yield the indexes of the splits whose sources are given, in the manifest's order."""
    for place, (name, _) in enumerate(index_names_of(manifest)):
        split = manifest.shards[place].split
        if split in sources or "" in sources:
            yield SourcesIndex(place, split, name)


def sources_of_index(index: SourcesIndex, storage: Storage) -> list[SourceTask]:
    """Return the sources of a shard, every file once; of an unreadable index none.

    Such an index is a finding of its shard.
    """
    if storage.stat(index.name) is None:
        return []
    try:
        rows = index_from_parquet(storage.read(index.name))
    except ValueError:
        return []
    tasks = {
        (source.name, source.sha256): SourceTask(index.split, row.key, source)
        for row in rows
        for source in row.sources
    }
    return list(tasks.values())


def _check_source(task: SourceTask, roots: Sequence[Storage]) -> tuple[int, str]:
    """Return how many bytes were read, and what is wrong; empty for nothing."""
    source, read_bytes, wrong = task.source, 0, "is not there"
    for storage in roots:
        entry = storage.stat(source.name)
        if entry is None or entry.kind != "file":
            continue
        if entry.size_bytes != source.size:
            wrong = f"has {entry.size_bytes} bytes, the index says {source.size}"
            continue
        data = storage.read(source.name, entry)
        read_bytes += len(data)
        digest = hashlib.sha256(data).hexdigest()
        if digest == source.sha256:
            return read_bytes, ""
        wrong = f"has the SHA-256 {digest}, the index says {source.sha256}"
    return read_bytes, wrong
