"""`Sample` and `Blob`: one future Example as a reference, without its pixels.

The pipeline splits, shuffles and groups samples. They stay small (under 1 kB): they travel as
MessagePack arrays. Annotation fields are packed bytes in them, which only the shard writer opens.
"""

import enum
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from beam_tfrec.schemas.faults import Rejected

TAR, NPZ = ".tar", ".npz"
PREFIX_BYTES = 16
"""Size of the prefix of an order key. Samples are sorted by order keys: prefix, then key."""

STAGED_IMAGES = "/staged"
"""Name of the root of images that were copied out of tables; no split has an empty name."""

PHOTO, PANOPTIC_IMAGE = 0, 1
"""Indexes of a sample's photo and its panoptic image in `Sample.blobs`."""

CLASS_PNG, OBJECT_PNG = 1, 2
"""Indexes of the PNGs of `--segmentation`: of the pixels' classes, and of their objects."""

_PANOPTIC_SUFFIX = "/panoptic"
_SIZED = "/instance_masks"
_ID_SUFFIXES = _PANOPTIC_SUFFIX, "/semantic", "/object_masks", _SIZED
_RECORDS = "/records/"


class Blob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file, or a range of a file, that a sample needs. Sizes are those of the listing.

    Attributes:
        root: name of the source root, such as `train`. `ShardJob.roots` maps it to a URI, so the
            data holds no paths of this machine.
        name: path relative to the root, `/`-separated, such as `000000000030.jpg`.
        size_bytes: size from the listing; -1 before the listing is joined.
        pin: text that changes with the file: its mtime in ns, or the store's generation.
        crc32c: CRC-32C of the file's bytes, if the listing gives one; of a staged image, its
            own.
        offset: first byte of the blob in the file, or in the compressed member.
        length: size of the blob in bytes; -1 for the whole file.
        member: name of the archive's member that holds the blob, in a `.tar` file or compressed in
            an `.npz` file; of a staged image, its name in its source; else empty.
        orientation: EXIF orientation of an image that its source knows, whatever its file says; 0
            if only the file says it.
    """

    root: str
    name: str
    size_bytes: int = -1
    pin: str = ""
    crc32c: int | None = None
    offset: int = 0
    length: int = -1
    member: str = ""
    orientation: int = 0

    @property
    def read_bytes(self) -> int:
        """Number of bytes to read for it."""
        return self.size_bytes if self.length < 0 else self.length

    @property
    def is_staged(self) -> bool:
        """Whether it was copied out of a table or archive. No data set names its staged file."""
        return self.root == STAGED_IMAGES

    @property
    def is_member(self) -> bool:
        """Whether it is an image within another file: in a tar file, or in a table."""
        return self.member != "" and not self.name.endswith(NPZ)

    @property
    def image_file(self) -> tuple[str, int]:
        """Name and size of the image's file: of the member in a tar file."""
        return (self.member, self.length) if self.is_member else (self.name, self.size_bytes)

    @property
    def file_name(self) -> str:
        """Name of the file, and of the member in a tar file, for messages."""
        if self.root.startswith("/"):  # staged, under a name by chance
            return self.member
        return f"{self.name}:{self.member}" if self.is_member else self.name


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One future Example.

    Attributes:
        split: name of its split, such as `train`.
        key: name that is unique in its split, such as the decimal COCO image id.
        position: rank in the input order: the index in an annotation file or sorted listing, from
            0; of rows, records and members, the number in their file, with the file's in high bits.
        blobs: files to read for it; empty for a row without an image.
        fields: the annotation fields, packed as MessagePack; each source has its own type.
        annotation_ids: ids of the annotations it carries, for rejects and sums.
        payload: fields too large to be shuffled often, such as segmentations; empty for none.
        payload_digest: `digest_payload` of a payload that waits in a spool on disk; else empty.
        payload_place: location of the payload in a spool of this process; else empty.
    """

    split: str
    key: str
    position: int
    blobs: tuple[Blob, ...]
    fields: bytes
    annotation_ids: tuple[int | str, ...] = ()
    payload: bytes = b""
    payload_digest: bytes = b""
    payload_place: bytes = b""

    def reject(self, stage: str, code: str, detail: str, place: int = 0) -> Rejected:
        """Return the reject of the sample for its blob at `place`."""
        return Rejected(
            code=code,
            stage=stage,
            split=self.split,
            key=self.key,
            annotation_ids=self.annotation_ids,
            file_name=self.blobs[place].file_name if place < len(self.blobs) else "",
            detail=detail,
        )


class Order(enum.Enum):
    """A split's order: a seeded uniform shuffle, or the order of the annotation file."""

    SHUFFLED = "shuffled"
    INPUT = "input"


read_sample = msgspec.msgpack.Decoder(Sample).decode
pack = msgspec.msgpack.Encoder().encode
"""Return the MessagePack form of a field value or struct; equal values give equal bytes."""


def split_and_key(sample: Sample) -> tuple[str, str]:
    """Return what identifies a sample in its data set."""
    return sample.split, sample.key


def content_digest(value: Any) -> int:
    """Return a 256-bit digest of a value's packed form, to be added to others."""
    return int.from_bytes(hashlib.blake2b(pack(value), digest_size=32).digest(), "big")


def digest_payload(payload: bytes) -> bytes:
    """Return a payload's 16-byte digest; empty for an empty payload.

    >>> len(digest_payload(b"polygons")), digest_payload(b"")
    (16, b'')
    """
    return hashlib.blake2b(payload, digest_size=16).digest() if payload else b""


def add_content_digests(samples: Iterable[Sample], *, with_position: bool) -> int:
    """Return the sum of 256-bit digests of the samples. A digest covers all that decides a record.

    Pins are left out, since a touched or copied source is the same data. So is the file of a
    finished record, since its fields identify its content. The position counts only
    where the order follows the input. A payload counts the same in a spool and in memory.
    """
    total = 0
    for sample in samples:
        blobs = []
        for blob in sample.blobs:
            if _RECORDS in blob.root:  # its fields have the record's checksum
                continue
            content: tuple = blob.root, blob.name, blob.size_bytes, blob.crc32c
            if blob.is_staged:
                content = blob.member, blob.length, blob.crc32c
            elif blob.length >= 0:
                content += blob.offset, blob.length, blob.member
            if blob.orientation:
                content += (blob.orientation,)
            blobs.append(content)
        position = sample.position if with_position else -1
        parts = [sample.split, sample.key, position, blobs, sample.fields, sample.annotation_ids]
        if sample.payload_digest or sample.payload:
            parts.append(sample.payload_digest or digest_payload(sample.payload))
        total += content_digest(parts)
    return total


def shuffle_prefixes(split: str, keys: Iterable[str], seed: int) -> list[bytes]:
    """Return the prefix of the order key of each sample of a shuffled split; it decides bytes.

    A prefix is a keyed hash of split and key. So the order is uniform, and does not depend on
    runner, workers or order of arrival.
    """
    begun = hashlib.blake2b(
        f"{split}\0".encode(),
        key=str(seed).encode(),
        digest_size=PREFIX_BYTES,
        person=b"tfrec-order",
    )
    prefixes = []
    for key in keys:
        digest = begun.copy()
        digest.update(key.encode())
        prefixes.append(digest.digest())
    return prefixes


def panoptic_root(split: str) -> str:
    """Return the name of a split's panoptic root. The root of its photos has the split's name."""
    return f"{split}{_PANOPTIC_SUFFIX}"


def is_panoptic_root(root: str) -> bool:
    """Return whether a root's name is one that `panoptic_root` makes."""
    return root.endswith(_PANOPTIC_SUFFIX)


def mask_root(split: str, kind: str) -> str:
    """Return the name of a split's root of PNGs.

    Args:
        split: name of the split.
        kind: `semantic`, `object_masks` or `instance_masks`.
    """
    return f"{split}/{kind}"


def is_id_root(root: str) -> bool:
    """Return whether the images of a root hold ids, not colours: panoptic images and masks."""
    return root.endswith(_ID_SUFFIXES)


def has_own_sizes(root: str) -> bool:
    """Return whether the PNGs of a root differ in size from their photos, as `instance_masks`."""
    return root.endswith(_SIZED)


def records_root(split: str, number: int) -> str:
    """Return the name of a root of finished records; a split may have several."""
    return f"{split}{_RECORDS}{number}"
