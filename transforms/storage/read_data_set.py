"""Read a finished data set: its manifest, its shards in a listing, its indexes and records.

All that read earlier outputs begin here: trainers, `diff`, and runs that add to an output or copy
from it. Each names its own remedy, since they differ in what else a user can give.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from beam_tfrec.schemas.example import MAX_EXAMPLE_BYTES
from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.manifest import (
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    contradictions,
    index_names_of,
    read_manifest,
)
from beam_tfrec.schemas.shards import ShardInfo, folder_of
from beam_tfrec.schemas.tfrecord import FrameError, read_frame
from beam_tfrec.transforms.storage import Access, Entry, Storage, open_storage, open_stored

if TYPE_CHECKING:
    from beam_tfrec.transforms.shard_index import IndexRow

T = TypeVar("T")

_READ_AHEAD_BYTES = 4 << 20


class Shard(NamedTuple):
    """A shard of a finished data set.

    Attributes:
        entry: its entry in the manifest.
        index_name: name of its Parquet index.
        file: its entry in the listing.
    """

    entry: ShardEntry
    index_name: str
    file: Entry


class ShardPart(NamedTuple):
    """A range of a shard.

    Attributes:
        file: the shard's entry in the listing.
        index_name: name of the shard's Parquet index.
        start: offset of the first byte.
        end: offset of the last byte plus one.
    """

    file: Entry
    index_name: str
    start: int
    end: int


def read_finished(storage: Storage, flag: str) -> tuple[Manifest, str]:
    """Return the manifest of a finished data set, and the digest of its bytes in hex.

    Args:
        storage: storage of the data set.
        flag: the flag or argument that gave the data set, for messages.

    Raises:
        RuntimeError: one of these faults, or a storage fault:
            `E-ARG` for an unfinished data set, or none;
            `E-OUT-FOREIGN` for a manifest that cannot be read;
            `E-VER-MANIFEST` for a manifest with contradictions.
    """
    if storage.stat(MANIFEST_NAME) is None:
        what = f"is not a finished data set: it has no {MANIFEST_NAME}"
        remedy = f"run its command again, or give another {flag}"
        raise RuntimeError(fault_line("E-ARG", storage.root, what, remedy))
    data, where = storage.read(MANIFEST_NAME), storage.uri(MANIFEST_NAME)
    manifest = read_manifest(data, where, flag)
    for what in contradictions(manifest):  # readers would read wrong records
        remedy = "run `beam-tfrec verify` on its folder, and restore the manifest from a copy"
        raise RuntimeError(fault_line("E-VER-MANIFEST", where, what, remedy))
    return manifest, hashlib.blake2b(data, digest_size=16).hexdigest()


def list_shards(
    storage: Storage, manifest: Manifest, remedy: str, splits: Collection[str] = ()
) -> list[Shard]:
    """Return the shards of all splits, or of these, as a listing of its folders has them.

    Raises:
        RuntimeError: `E-VER-MISSING`, `E-VER-SIZE` or, in a store that lists checksums,
            `E-VER-CRC`: the first shard that is not the file that was written.
    """
    wanted = {entry.split for entry in manifest.shards if not splits or entry.split in splits}
    folders = {folder_of(entry.file) for entry in manifest.shards if entry.split in wanted}
    there = list_folders(storage, folders)
    shards: list[Shard] = []
    for entry, (index_name, *_) in zip(manifest.shards, index_names_of(manifest), strict=True):
        if entry.split in wanted:
            file = there.get(entry.file)
            if wrong := what_differs(entry, file):
                code, what = wrong
                raise RuntimeError(fault_line(code, storage.uri(entry.file), what, remedy))
            assert file is not None
            shards.append(Shard(entry, index_name, file))
    return shards


def list_folders(storage: Storage, folders: Iterable[str]) -> dict[str, Entry]:
    """Return the entries directly in folders of a data set, by name; `""` is the data set."""
    prefixes = [f"{folder}/" if folder else "" for folder in sorted(folders)]
    found = (storage.list(prefix, recursive=False) for prefix in prefixes)
    # Some consoles make an object with the folder's own name.
    return {e.name: e for entries in found for e in entries if e.name not in prefixes}


def what_differs(written: ShardEntry | ShardInfo, listed: Entry | None) -> tuple[str, str] | None:
    """Return code and text of how a listed file differs from the shard that was written."""
    if listed is None or listed.kind != "file":
        return "E-VER-MISSING", what_is(listed)
    if listed.size_bytes != written.bytes:
        return "E-VER-SIZE", f"has {listed.size_bytes} bytes, the manifest says {written.bytes}"
    if listed.crc32c is not None and f"{listed.crc32c:08x}" != written.crc32c:
        what = f"its store lists CRC-32C {listed.crc32c:08x}, the manifest says {written.crc32c}"
        return "E-VER-CRC", what
    return None


def what_is(entry: Entry | None) -> str:
    """Return in words what is there instead of a file."""
    return "is missing" if entry is None else f"is a {entry.kind}"


def read_index(storage: Storage, name: str, remedy: str, parse: Callable[[bytes], T]) -> T:
    """Return what a function of `shard_index` makes of an index.

    Raises:
        RuntimeError: `E-VER-MISSING`: the index is missing. `E-VER-INDEX`: the function raised a
            `ValueError`. Or a storage fault.
    """
    try:
        return parse(storage.read(name))
    except ValueError as error:
        code, what = "E-VER-INDEX", " ".join(str(error).split())
    except RuntimeError:
        entry = storage.stat(name)
        if entry is not None and entry.kind == "file":
            raise
        code, what = "E-VER-MISSING", what_is(entry)
    raise RuntimeError(fault_line(code, storage.uri(name), what, remedy))


def read_rows(storage: Storage, name: str, shard_bytes: int, remedy: str) -> "list[IndexRow]":
    """Return the rows of an index, which must be undamaged and describe a whole shard.

    Raises:
        RuntimeError: as `read_index`.
    """
    from beam_tfrec.transforms.shard_index import index_of_shard  # pyarrow takes 0.2 s

    return read_index(storage, name, remedy, lambda data: index_of_shard(data, name, shard_bytes))


def parts_of(shard: Shard, part_bytes: int = 64 << 20) -> Iterator[ShardPart]:
    """Yield the ranges of a shard that are read in parallel; a record is in that of its offset."""
    size_bytes = shard.file.size_bytes
    for start in range(0, size_bytes, part_bytes):
        yield ShardPart(shard.file, shard.index_name, start, min(start + part_bytes, size_bytes))


def read_part(
    part: ShardPart, uri: str, access: Access, remedy: str
) -> Iterator[tuple[str, bytes]]:
    """Yield key and bytes of each record of a range, after checking both checksums.

    Args:
        part: range of a shard.
        uri: URI of the data set.
        access: credentials and limits for stores.
        remedy: what to do about damage, for messages.

    Raises:
        RuntimeError: as `read_index`; `E-VER-FRAME` or `E-VER-CRC`: a record is damaged;
            `E-SRC-CHANGED`; or a storage fault.
    """
    storage = open_storage(uri, access)
    rows = read_rows(storage, part.index_name, part.file.size_bytes, remedy)
    file = open_stored(storage, part.file, _READ_AHEAD_BYTES, MAX_EXAMPLE_BYTES)
    for number, row in enumerate(rows):
        if not part.start <= row.offset < part.end:
            continue
        file.seek(row.offset)
        try:
            yield row.key, read_frame(file.read(row.size), 0, row.size)
        except FrameError as error:
            what = f"record {number} (key {row.key}) at byte {row.offset}: {error}"
            where = storage.uri(part.file.name)
            raise RuntimeError(fault_line(error.code, where, what, remedy)) from None
