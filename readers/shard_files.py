"""The files of a split's shards, as a listing shows them, against what the manifests say."""

import array
import bisect
import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from readers.data_sets import DataSets, ShardFile
from schemas.faults import fault_line
from transforms.storage import Entry, Storage, join_uri

REMEDY = "copy the data set again from where it is whole, or make it again"


T = TypeVar("T")


class ListedShard(NamedTuple):
    """A shard that is there, and as long as it was written.

    Attributes:
        file: as the manifest has it.
        entry: as listed, by which its bytes are pinned.
        uri: its path or URI.
    """

    file: ShardFile
    entry: Entry
    uri: str


def list_shards(data_sets: DataSets, split: str) -> list[ListedShard]:
    """Return the shards of a split in their order, by one listing of each data set.

    Raises:
        ValueError: when none of the data sets has such a split.
        RuntimeError: `E-VER-MISSING`, `E-VER-SIZE` or, where the store tells checksums,
            `E-VER-CRC`, naming the first shard that is not what was written.
    """
    files = data_sets.shards(split)
    listed: dict[int, Mapping[str, Entry]] = {}
    for file in files:
        if file.data_set not in listed:
            entries = data_sets.storage(file).list(recursive=False)
            listed[file.data_set] = {entry.name: entry for entry in entries}
    return [_checked(data_sets, file, listed[file.data_set]) for file in files]


def _checked(data_sets: DataSets, file: ShardFile, listed: Mapping[str, Entry]) -> ListedShard:
    written, uri = file.entry, data_sets.uri(file)
    entry = listed.get(written.file)
    if entry is None or entry.kind != "file":
        raise RuntimeError(fault_line("E-VER-MISSING", uri, _not_a_file(entry), REMEDY))
    if entry.size_bytes != written.bytes:
        storage = data_sets.storage(file)
        what = f"{entry.size_bytes} bytes, of {written.bytes} that were written"
        what += _first_cut(file, storage, entry.size_bytes)
        raise RuntimeError(fault_line("E-VER-SIZE", uri, what, REMEDY))
    if entry.crc32c is not None and f"{entry.crc32c:08x}" != written.crc32c:
        what = f"the store's CRC-32C is {entry.crc32c:08x}, {written.crc32c} was written"
        raise RuntimeError(fault_line("E-VER-CRC", uri, what, REMEDY))
    return ListedShard(file, entry, uri)


def _not_a_file(entry: Entry | None) -> str:
    return "no such file" if entry is None else f"a {entry.kind}, not a file"


def _first_cut(file: ShardFile, storage: Storage, size_bytes: int) -> str:
    """Return which record a file lacks first, nothing when the index does not tell."""
    if size_bytes > file.entry.bytes:
        return ""
    with contextlib.suppress(RuntimeError):
        offsets = read_offsets(file, storage)
        number = bisect.bisect_right(offsets, size_bytes) - 1
        return f": record {number} at byte {offsets[number]} is cut off"
    return ""


def read_offsets(file: ShardFile, storage: Storage) -> array.array:
    """Return where a shard's records begin and, behind them, where the last one ends.

    Raises:
        RuntimeError: `E-VER-MISSING` or `E-VER-INDEX` when there is no index, or it is not that of
            the shard.
    """
    from transforms.shard_index import offsets_from_parquet

    written = file.entry
    offsets = _decoded(
        file, storage, lambda data: offsets_from_parquet(data, written.records, written.bytes)
    )
    return array.array("q", offsets.tobytes())


def read_keys(file: ShardFile, storage: Storage) -> list[str]:
    """Return the keys of a shard's records.

    Raises:
        RuntimeError: `E-VER-MISSING` or `E-VER-INDEX` when there is no index, or it is not that of
            the shard.
    """
    from transforms.shard_index import keys_from_parquet

    return _decoded(file, storage, lambda data: keys_from_parquet(data, file.entry.records))


def _decoded(file: ShardFile, storage: Storage, decode: Callable[[bytes], T]) -> T:
    entry = storage.stat(file.index_name)
    where = join_uri(storage.root, file.index_name)
    if entry is None or entry.kind != "file":
        raise RuntimeError(fault_line("E-VER-MISSING", where, _not_a_file(entry), REMEDY))
    try:
        return decode(storage.read(file.index_name, entry))
    except ValueError as error:
        raise RuntimeError(fault_line("E-VER-INDEX", where, str(error), REMEDY)) from None
