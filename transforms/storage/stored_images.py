"""Read-only storage of the image files that the records of a data set hold.

Names and sizes are those of the source images, by the data set's indexes. The root is
`DATA_SET/manifest.json/SPLIT`, a path that no folder of images can have.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.features import roles_of_spec
from beam_tfrec.schemas.manifest import (
    CONVERSIONS,
    MANIFEST_NAME,
    Manifest,
    spec_of,
)
from beam_tfrec.schemas.parse_example import parse_record
from beam_tfrec.schemas.tfrecord import FrameError, read_frame
from beam_tfrec.transforms.shard_index import IndexRow
from beam_tfrec.transforms.storage import Access, Entry, Span, Spool, Storage, open_storage
from beam_tfrec.transforms.storage.read_data_set import list_shards, read_finished, read_rows

ALL_SPLITS = "all"
"""In place of a split: the images of every split. No split has this name."""

_RESTORE = "restore it, or give the folder of images"
_Place = tuple[Entry, int, int, str]
"""Shard file, offset and size of a frame in it, SHA-256 of its image. A pin is this as JSON."""


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
                    raise RuntimeError(fault_line("E-ARG", self._data_set.root, what, remedy))
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
        entry = expected or self.stat(name)
        if entry is None:
            raise self.changed(name, "not there")
        shard, offset, size, sha256 = msgspec.json.decode(entry.pin, type=_Place)
        frame = self._data_set.read(shard.name, shard, (offset, offset + size))
        try:
            record = parse_record(read_frame(frame, 0, len(frame)))
        except FrameError as error:
            what = f"{shard.name} at byte {offset}: {error}"
            raise FrameError(error.code, what) from None
        for _, values in record.byte_values() if record else ():
            for data in values:
                if len(data) == entry.size_bytes and hashlib.sha256(data).hexdigest() == sha256:
                    return data if span is None else data[slice(*span)]
        raise self.changed(name, f"not in the record at byte {offset} of {shard.name}")

    def spool(self) -> Spool:
        """Refuse to write."""
        raise NotImplementedError("images in records are only read")

    def delete(self, name: str) -> None:
        """Refuse to delete."""
        self.spool()

    def _rows(self) -> Iterator[tuple[Entry, IndexRow]]:
        """Yield the index rows of the split's shards, each with its shard's entry."""
        manifest = _read_manifest(self._data_set)
        splits = [] if self._split == ALL_SPLITS else [self._split]
        for shard in list_shards(self._data_set, manifest, _RESTORE, splits):
            rows = read_rows(self._data_set, shard.index_name, shard.entry.bytes, _RESTORE)
            yield from ((shard.file, row) for row in rows)


def _read_manifest(data_set: Storage) -> Manifest:
    """Return the manifest of a data set whose records hold the source images."""
    manifest, _ = read_finished(data_set, "--images")
    images = roles_of_spec(spec_of(manifest)).images
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
        raise RuntimeError(fault_line("E-ARG", data_set.root, what, remedy))
    return manifest
