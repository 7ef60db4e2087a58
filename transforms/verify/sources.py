"""Verify that the source files of a data set still have the same bytes."""

import hashlib
from collections.abc import Mapping, Sequence

from schemas.manifest import Manifest
from transforms.shard_index import Source, index_from_parquet
from transforms.storage import Access, Storage, join_uri, open_storage
from transforms.verify.reports import Report, ShardTask

_REMEDY = "restore it from a copy, or make the data set again"
_ARRAYS = "arrays"


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
    shard: ShardTask, root: str, sources: Mapping[str, Sequence[str]], access: Access
) -> Report:
    """Return which sources of a shard are gone, or have other bytes than its index says.

    Args:
        shard: the shard.
        root: path or URI of its data set.
        sources: roots by split, and one of them has the file; those of `""` for every split.
        access: how stores are reached.

    Raises:
        RuntimeError: `E-IO-…` where a store fails.
    """
    split, report = shard.entry.split, Report()
    roots = [open_storage(uri, access) for uri in (*sources.get(split, ()), *sources.get("", ()))]
    for source, key in _sources_of(shard, open_storage(root, access)):
        size, wrong = _check_source(source, roots)
        report.files += 1
        report.read_bytes += size
        if wrong:
            where = f"{join_uri(roots[0].root, source.name)} (of key {key!r} in {split})"
            report.findings.add("E-VER-SOURCE", where, wrong, _REMEDY)
    return report


def _sources_of(shard: ShardTask, storage: Storage) -> list[tuple[Source, str]]:
    """Return the sources of a shard with a record's key, every file once; of a bad index none.

    Such an index is a finding of its shard.
    """
    name = shard.index[0]
    if storage.stat(name) is None:
        return []
    try:
        rows = index_from_parquet(storage.read(name))
    except ValueError:
        return []
    found = {(s.name, s.sha256): (s, row.key) for row in rows for s in row.sources}
    return list(found.values())


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
