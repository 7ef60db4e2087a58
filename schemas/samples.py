"""`Sample` and `Blob`: one future Example as a reference, without its pixels.

Samples are what the pipeline splits, shuffles and groups. They stay small (under 1 kB), so their
wire form is MessagePack arrays, and a layout's annotation fields travel as bytes that only the
shard writer opens.
"""

import enum
import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

ORDER_BYTES = 16
"""Size of a sample's place in the order of its split."""

_PACK = msgspec.msgpack.Encoder()

_PANOPTIC_SUFFIX = "/panoptic"


class Blob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes that a sample needs, as its store listed them.

    Attributes:
        root: name of the source root, such as `train`; `ShardJob.roots` maps it to a URI, so that
            no path reaches the data.
        name: path relative to the root, `/`-separated, such as `000000000030.jpg`.
        size_bytes: size from the listing; -1 before the listing is joined.
        pin: what changes when the bytes may have changed: mtime in ns, or a store's generation.
        crc32c: CRC-32C of the file's bytes where the listing gives one.
        offset: where the blob begins in the file's bytes, or in a member's.
        length: of the blob in bytes; -1 for the whole file.
        member: name of the compressed member of an archive that `offset` counts in; empty for none.
    """

    root: str
    name: str
    size_bytes: int = -1
    pin: str = ""
    crc32c: int | None = None
    offset: int = 0
    length: int = -1
    member: str = ""

    @property
    def read_bytes(self) -> int:
        """How many bytes are read for it."""
        return self.size_bytes if self.length < 0 else self.length


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One future Example.

    Attributes:
        split: such as `train`.
        key: unique in its split, such as the decimal COCO image id.
        position: place in the annotation file or sorted listing, from 0.
        blobs: what must be read for it; empty for a table row.
        fields: the annotation fields, MessagePack of the source's own type.
        annotation_ids: ids of the annotations it carries, for rejects and sums.
        payload: fields too large to be shuffled often, such as segmentations; empty for none.
        payload_digest: what `digest_payload` gives of a payload that lies in a spool; else empty.
        payload_place: where it lies in a spool of this process; empty where it does not.
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


class Order(enum.Enum):
    """A split's order: a seeded uniform shuffle, or the order of the annotation file."""

    SHUFFLED = "shuffled"
    INPUT = "input"


read_sample = msgspec.msgpack.Decoder(Sample).decode


def pack(value: Any) -> bytes:
    """Return the MessagePack form of a field value or struct; equal values give equal bytes."""
    return _PACK.encode(value)


def digest_payload(payload: bytes) -> bytes:
    """Return 16 bytes that stand for a payload; none for an empty one.

    >>> len(digest_payload(b"polygons")), digest_payload(b"")
    (16, b'')
    """
    return hashlib.blake2b(payload, digest_size=16).digest() if payload else b""


def add_content_digests(samples: Iterable[Sample], *, with_position: bool) -> int:
    """Return the sum of 256-bit digests of what samples put into the data set.

    Pins stay out, since a touched or copied source is the same data. The position counts only
    where the order follows the input, and a payload in a spool as if it were here.
    """
    total = 0
    for sample in samples:
        blobs = []
        for blob in sample.blobs:
            content: tuple = blob.root, blob.name, blob.size_bytes, blob.crc32c
            if blob.length >= 0:
                content += blob.offset, blob.length, blob.member
            blobs.append(content)
        position = sample.position if with_position else -1
        parts = [sample.split, sample.key, position, blobs, sample.fields, sample.annotation_ids]
        if sample.payload_digest or sample.payload:
            parts.append(sample.payload_digest or digest_payload(sample.payload))
        digest = hashlib.blake2b(_PACK.encode(parts), digest_size=32)
        total += int.from_bytes(digest.digest(), "big")
    return total


def shuffle_keys(split: str, keys: Iterable[str], seed: int) -> list[bytes]:
    """Return the places of a shuffled split's keys in its order. They decide bytes.

    Each is a keyed hash of split and key, hence a uniform order that no runner, worker or arrival
    order changes.
    """
    begun = hashlib.blake2b(
        f"{split}\0".encode(),
        key=str(seed).encode(),
        digest_size=ORDER_BYTES,
        person=b"tfrec-order",
    )
    places = []
    for key in keys:
        digest = begun.copy()
        digest.update(key.encode())
        places.append(digest.digest())
    return places


def panoptic_root(split: str) -> str:
    """Return the name of the root of a split's panoptic images; that of its photos is its own."""
    return f"{split}{_PANOPTIC_SUFFIX}"


def is_panoptic_root(root: str) -> bool:
    """Return whether `panoptic_root` gave a root its name."""
    return root.endswith(_PANOPTIC_SUFFIX)
