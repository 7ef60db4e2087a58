"""Verify sources: that the files which a data set was made of still have its bytes."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.findings import Findings
from schemas.manifest import Manifest
from schemas.shards import index_names, shard_stem
from transforms.shard_index import Source, index_from_parquet
from transforms.storage import Access, Storage, join_uri, open_storage

_REMEDY = "restore it from a copy, or make the data set again"
_ARRAYS = "arrays"


class SourceTask(NamedTuple):
    """A source file to be hashed.

    Attributes:
        split: of its record.
        key: of its record.
        source: as the index tells of it.
    """

    split: str
    key: str
    source: Source


@dataclass
class VerifiedSources:
    """What was hashed.

    Attributes:
        findings: what is wrong.
        files: hashed.
        bytes: of them.
    """

    findings: Findings
    files: int = 0
    bytes: int = 0


MapSources = Callable[
    [Callable[[SourceTask], tuple[int, str]], Iterable[SourceTask]], Iterable[tuple[int, str]]
]
"""`map`, or one that does several at once."""


def check_sources(manifest: Manifest, sources: Mapping[str, Sequence[str]]) -> None:
    """Refuse roots that could not be compared with an index.

    Raises:
        ValueError: where there is no such split, or records are made of parts of files.
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


def verify_sources(
    root: str,
    manifest: Manifest,
    sources: Mapping[str, Sequence[str]],
    access: Access,
    map_sources: MapSources,
) -> VerifiedSources:
    """Return which source files are gone, or have other bytes than the index says.

    Args:
        root: path or URI of the data set.
        manifest: its.
        sources: roots by split, one of which has the file; those of `""` for every split.
        access: how stores are reached.
        map_sources: hashes them.

    Raises:
        RuntimeError: `E-ARG` where a root is no folder, `E-IO-…` where a store fails.
    """
    opened = {uri: open_storage(uri, access) for given in sources.values() for uri in given}
    for storage in opened.values():
        storage.require_folder()
    roots = {
        split: [opened[uri] for uri in (*sources.get(split, ()), *sources.get("", ()))]
        for split in manifest.splits
    }
    found = VerifiedSources(Findings())

    def check(task: SourceTask) -> tuple[int, str]:
        return _check_source(task.source, roots[task.split])

    for index in _indexes(manifest, open_storage(root, access), roots):
        tasks = list(index)
        for task, (size, wrong) in zip(tasks, map_sources(check, tasks), strict=True):
            found.files += 1
            found.bytes += size
            if wrong:
                where = join_uri(roots[task.split][0].root, task.source.name)
                where += f" (of key {task.key!r} in {task.split})"
                found.findings.add("E-VER-SOURCE", where, wrong, _REMEDY)
    return found


def _indexes(
    manifest: Manifest, storage: Storage, roots: Mapping[str, Sequence[Storage]]
) -> Iterator[Iterator[SourceTask]]:
    """Yield the sources of each shard, every file once a shard; of an unreadable index none."""
    for split, group in itertools.groupby(manifest.shards, lambda entry: entry.split):
        entries = list(group)
        for number in range(len(entries) if roots.get(split) else 0):
            name = index_names(shard_stem(split, number, len(entries)))[0]
            if storage.stat(name) is None:
                continue  # a finding of its shard
            try:
                rows = index_from_parquet(storage.read(name))
            except ValueError:
                continue  # likewise
            tasks = {
                (source.name, source.sha256): SourceTask(split, row.key, source)
                for row in rows
                for source in row.sources
            }
            yield iter(tasks.values())


def _check_source(source: Source, roots: Sequence[Storage]) -> tuple[int, str]:
    """Return how many bytes were read, and what is wrong; empty for nothing."""
    read_bytes, wrong = 0, "is not there"
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
