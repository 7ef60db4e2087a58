"""Find records to look at: of any TFRecord file in order, of a data set by its index."""

import itertools
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from schemas.faults import fault_line
from schemas.manifest import MANIFEST_NAME, Manifest, ShardEntry, index_names_of, read_manifest
from schemas.tfrecord import FRAME_BYTES
from transforms.storage import Access, Storage, find_uri, join_uri, open_storage
from transforms.verify.files import open_records
from transforms.walk_frames import BadFrame, walk_frames


class FoundRecord(NamedTuple):
    """A record to be shown.

    Attributes:
        file: its file's path or URI.
        number: its place in the file, from 0.
        offset: of its frame, in bytes.
        key: of it by the index; None where there is no index.
        data: its bytes; None where they are too many.
        wrong: what is wrong with its frame; empty for nothing.
    """

    file: str
    number: int
    offset: int
    key: str | None
    data: bytes | None
    wrong: str = ""


def records_of_file(uri: str, access: Access, first: int = 0) -> Iterator[FoundRecord]:
    """Yield a TFRecord file's records from one on, damaged ones too."""
    opened = open_records(*find_uri(uri, access))
    number = end = 0
    try:
        for found in walk_frames(opened.read, opened.size_bytes):
            number = found.number + 1
            if isinstance(found, BadFrame):
                record = FoundRecord(uri, found.number, found.offset, None, None, found.what)
            else:
                record = FoundRecord(uri, found.number, found.offset, None, found.data)
                end = found.offset + found.size + FRAME_BYTES
            if found.number >= first:
                yield record
    except zlib.error as error:
        what = f"its {opened.compression} data is damaged ({error})"
        yield FoundRecord(uri, number, end, None, None, what)


def records_of_set(
    root: str, access: Access, split: str, first: int = 0, key: str | None = None
) -> Iterator[FoundRecord]:
    """Yield records of a split by its indexes: from one on, or those with a key.

    Raises:
        ValueError: where there is no such split.
        RuntimeError: `E-VER-…` where an index or a record is not there.
    """
    from transforms.shard_index import index_from_parquet  # pyarrow takes 0.2 s

    storage = open_storage(root, access)
    for entry, name in _indexed(manifest_of(root, access), split):
        if key is None and first >= entry.records:
            first -= entry.records
            continue
        index = storage.stat(name)
        if index is None or index.kind != "file":
            what, remedy = "is not there, or no file", "look with beam-tfrec verify"
            where = join_uri(root, name)
            raise RuntimeError(fault_line("E-VER-MISSING", where, what, remedy))
        try:
            rows = index_from_parquet(storage.read(name, index))
        except ValueError as error:
            what, remedy = " ".join(str(error).split()), "look with beam-tfrec verify"
            raise RuntimeError(fault_line("E-VER-INDEX", name, what, remedy)) from None
        for place, row in itertools.islice(enumerate(rows), first, None):
            if key is None or row.key == key:
                yield _read_record(storage, entry, place, row.offset, row.size, row.key)
        first = 0


def manifest_of(root: str, access: Access) -> Manifest:
    """Return a data set's manifest."""
    storage = open_storage(root, access)
    return read_manifest(storage.read(MANIFEST_NAME), join_uri(root, MANIFEST_NAME), "path")


def _indexed(manifest: Manifest, split: str) -> list[tuple[ShardEntry, str]]:
    """Return a split's shards with the names of their Parquet indexes."""
    indexed = zip(manifest.shards, index_names_of(manifest), strict=True)
    found = [(entry, name) for entry, (name, _) in indexed if entry.split == split]
    if not found:
        names = ", ".join(sorted(manifest.splits))
        raise ValueError(f"split must be one of {names}, got {split!r}: name one of them")
    return found


def _read_record(
    storage: Storage, entry: ShardEntry, number: int, offset: int, size: int, key: str
) -> FoundRecord:
    """Return the record at the place that an index gives, if there is one."""
    file = storage.stat(entry.file)
    where = join_uri(storage.root, entry.file)
    if file is None or not 0 <= offset <= offset + size <= file.size_bytes or size < FRAME_BYTES:
        what, remedy = (
            f"has no record of key {key!r} at byte {offset}",
            "look with beam-tfrec verify",
        )
        raise RuntimeError(fault_line("E-VER-MISSING", where, what, remedy))
    frame = storage.read(entry.file, file, (offset, offset + size))
    found = next(walk_frames(lambda start, end: frame[start:end], size))
    if isinstance(found, BadFrame):
        return FoundRecord(where, number, offset, key, None, found.what)
    return FoundRecord(where, number, offset, key, found.data)
