"""Read a finished data set: its manifest, its shards in a listing, its indexes and records.

Readers, `diff`, `--since` and `records` start here. Each passes the remedy for its messages.

The image files that records hold are a storage of their own, `StoredImages`, which is only read.
Names and sizes are those of the source images, by the indexes. Its root is
`DATA_SET/manifest.json/SPLIT`, a path that no folder of images can have.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from beam_tfrec.schemas.example import MAX_EXAMPLE_BYTES
from beam_tfrec.schemas.faults import Reason, run_fault
from beam_tfrec.schemas.features import roles_of_spec
from beam_tfrec.schemas.manifest import (
    CONVERSIONS,
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    contradictions,
    read_manifest,
)
from beam_tfrec.schemas.shards import WrittenShard, folder_of
from beam_tfrec.schemas.tfrecord import FrameError, read_frame
from beam_tfrec.transforms.storage import (
    Access,
    Entry,
    NewFile,
    Span,
    Storage,
    open_storage,
    open_stored,
)

if TYPE_CHECKING:
    from beam_tfrec.transforms.shard_index import IndexRow

T = TypeVar("T")

_READ_AHEAD_BYTES = 4 << 20
ALL_SPLITS = "all"
"""In place of a split: the images of every split. No split has this name."""

_RESTORE_IMAGES = "restore it, or give the folder of images"
_Place = tuple[Entry, int, int, str]
"""Shard file, offset and size of a frame in it, SHA-256 of its image. A pin is this as JSON."""


class Shard(NamedTuple):
    """A shard of a finished data set.

    Attributes:
        entry: its entry in the manifest.
        file: its entry in the listing.
    """

    entry: ShardEntry
    file: Entry


class ShardPart(NamedTuple):
    """A range of a shard.

    Attributes:
        shard: the shard.
        start: offset of the first byte.
        end: offset of the last byte plus one.
    """

    shard: Shard
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
        raise run_fault("E-ARG", storage.root, what, remedy)
    data, where = storage.read(MANIFEST_NAME), storage.uri(MANIFEST_NAME)
    manifest = read_manifest(data, where, flag)
    for what in contradictions(manifest):  # readers would read wrong records
        remedy = "run `beam-tfrec verify` on its folder, and restore the manifest from a copy"
        raise run_fault("E-VER-MANIFEST", where, what, remedy)
    return manifest, hashlib.blake2b(data, digest_size=16).hexdigest()


def list_shards(
    storage: Storage, manifest: Manifest, remedy: str, splits: Collection[str] = ()
) -> list[Shard]:
    """Return the shards of all splits, or of these, as a listing of its folders has them.

    Raises:
        RuntimeError: `E-VER-MISSING`, `E-VER-SIZE` or, in a store that lists checksums,
            `E-VER-CRC`: the first shard that is not the file that was written.
    """
    wanted = [entry for entry in manifest.shards if not splits or entry.split in splits]
    there = list_folders(storage, {folder_of(entry.file) for entry in wanted})
    shards: list[Shard] = []
    for entry in wanted:
        file = there.get(entry.file)
        if wrong := what_differs(entry, file):
            code, what = wrong
            raise run_fault(code, storage.uri(entry.file), what, remedy)
        assert file is not None
        shards.append(Shard(entry, file))
    return shards


def list_folders(storage: Storage, folders: Iterable[str]) -> dict[str, Entry]:
    """Return the entries directly in folders of a data set, by name; `""` is the data set."""
    prefixes = [f"{folder}/" if folder else "" for folder in sorted(folders)]
    found = (storage.list(prefix, recursive=False) for prefix in prefixes)
    # Some consoles make an object with the folder's own name.
    return {e.name: e for entries in found for e in entries if e.name not in prefixes}


def what_differs(written: WrittenShard, listed: Entry | None) -> Reason | None:
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
    """Return an index as parsed by a function of `shard_index`.

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
    raise run_fault(code, storage.uri(name), what, remedy)


def read_rows(storage: Storage, shard: ShardEntry, remedy: str) -> "list[IndexRow]":
    """Return the rows of a shard's index, which must be undamaged and describe a whole shard.

    Raises:
        RuntimeError: as `read_index`.
    """
    from beam_tfrec.transforms.shard_index import index_of_shard  # pyarrow takes 0.2 s

    name = shard.index_names[0]
    return read_index(storage, name, remedy, lambda data: index_of_shard(data, name, shard.bytes))


def parts_of(shard: Shard, part_bytes: int = 64 << 20) -> Iterator[ShardPart]:
    """Yield the ranges of a shard that are read in parallel; a record is in that of its offset."""
    size_bytes = shard.file.size_bytes
    for start in range(0, size_bytes, part_bytes):
        yield ShardPart(shard, start, min(start + part_bytes, size_bytes))


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
    rows = read_rows(storage, part.shard.entry, remedy)
    file = open_stored(storage, part.shard.file, _READ_AHEAD_BYTES, MAX_EXAMPLE_BYTES)
    for number, row in enumerate(rows):
        if not part.start <= row.offset < part.end:
            continue
        file.seek(row.offset)
        try:
            yield row.key, read_frame(file.read(row.size), 0, row.size)
        except FrameError as error:
            what = f"record {number} (key {row.key}) at byte {row.offset}: {error}"
            raise run_fault(error.code, storage.uri(part.shard.entry.file), what, remedy) from None


def image_root(uri: str, split: str, access: Access) -> str:
    """Return the root of the images in a data set's records.

    Args:
        uri: path or URI of the data set.
        split: split whose images are meant; if the data set lacks this split, all images are.
        access: credentials and limits for stores.

    Raises:
        RuntimeError: `E-ARG` for an unfinished data set or one without source images, or a fault of
            its manifest.
    """
    storage = open_storage(uri, access)
    there = split in _read_manifest(storage).splits
    return storage.uri(f"{MANIFEST_NAME}/{split if there else ALL_SPLITS}")


class StoredImages(Storage):
    """The images of a split of a data set, or of all its splits.

    An entry's pin is the place of the first record that holds the image.
    """

    lists_folders = False

    def __init__(self, data_set: Storage, split: str) -> None:
        """Store the arguments.

        Args:
            data_set: storage of the data set.
            split: name of the split, or `ALL_SPLITS`.
        """
        self.root = data_set.uri(f"{MANIFEST_NAME}/{split}")
        self._data_set = data_set
        self._split = split

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[Entry]:
        """Yield the images by the indexes of the shards.

        Raises:
            RuntimeError: `E-ARG` where the records do not hold the source images, or two different
                images have one name; or the fault of a missing or damaged file.
        """
        sums: dict[str, str] = {}
        for shard, row in self._rows():
            for source in row.sources[:1]:  # the second is a panoptic image
                name, is_new = source.name, source.name not in sums
                if sums.setdefault(name, source.sha256) != source.sha256:
                    what = f"has two images called {name}"
                    remedy = "give each split as SPLIT=DIR, or give the folder of images"
                    raise run_fault("E-ARG", self._data_set.root, what, remedy)
                is_below = name.startswith(prefix)
                if is_new and is_below and (recursive or "/" not in name[len(prefix) :]):
                    place: _Place = (shard, row.offset, row.size, source.sha256)
                    yield Entry(name, source.size, msgspec.json.encode(place).decode())

    def stat(self, name: str) -> Entry | None:
        """Return an image's entry, or None; it reads all indexes."""
        return next((entry for entry in self.list() if entry.name == name), None)

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return an image from its record, after checking the checksums of record and image.

        Raises:
            FrameError: The record is damaged.
            RuntimeError: `E-SRC-CHANGED`: the shard has changed since the listing, or the record
                lacks the image.
        """
        entry = expected or self.entry_of(name)
        shard, offset, size, sha256 = msgspec.json.decode(entry.pin, type=_Place)
        frame = self._data_set.read(shard.name, shard, (offset, offset + size))
        from beam_tfrec.schemas.parse_example import parse_record  # protobuf, rarely needed

        try:
            record = parse_record(read_frame(frame, 0, len(frame)))
        except FrameError as error:
            raise FrameError(error.code, f"{shard.name} at byte {offset}: {error}") from None
        for _, values in record.byte_values() if record else ():
            for data in values:
                if len(data) == entry.size_bytes and hashlib.sha256(data).hexdigest() == sha256:
                    return data if span is None else data[slice(*span)]
        raise self.changed(name, f"not in the record at byte {offset} of {shard.name}")

    def new_file(self) -> NewFile:
        """Refuse to write."""
        raise NotImplementedError("images in records are only read")

    def delete(self, name: str) -> None:
        """Refuse to delete."""
        self.new_file()

    def _rows(self) -> "Iterator[tuple[Entry, IndexRow]]":
        """Yield the index rows of the split's shards, each with its shard's entry."""
        manifest = _read_manifest(self._data_set)
        splits = [] if self._split == ALL_SPLITS else [self._split]
        for shard in list_shards(self._data_set, manifest, _RESTORE_IMAGES, splits):
            rows = read_rows(self._data_set, shard.entry, _RESTORE_IMAGES)
            yield from ((shard.file, row) for row in rows)


def _read_manifest(data_set: Storage) -> Manifest:
    """Return the manifest of a data set whose records hold the source images."""
    manifest, _ = read_finished(data_set, "--images")
    images = roles_of_spec(manifest.spec).images
    repairs = {name for split in manifest.splits.values() for name in split.repairs}
    changed = " and ".join(sorted(CONVERSIONS & repairs))
    refused = {
        "has no image files in its records": not images,
        "has two images in a record": "lr" in images,
        "has ArrayRecord files, where images have no range of bytes": manifest.is_array_record,
        f"holds changed images ({changed}), which annotations do not fit": bool(changed),
    }
    for what in (what for what, is_so in refused.items() if is_so):
        remedy = "give another data set, or give the folder of images"
        raise run_fault("E-ARG", data_set.root, what, remedy)
    return manifest
