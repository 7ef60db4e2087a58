"""What a listing of the roots says of a sample; `list_blobs` lists, `pin_blobs` joins the two."""

import hashlib
import zlib
from collections.abc import Callable, Iterable

import msgspec

from schemas.faults import Rejected, fault_line
from schemas.samples import Blob, Sample, is_panoptic_root, pack
from transforms.storage import Entry

MAX_IMAGE_BYTES = 256 * 2**20
_STAGE = "pin_blobs"
DIGEST_MODULUS = 2**256
"""Digests of sets are sums modulo this."""
_EMPTY_DIGEST = hashlib.blake2b(digest_size=32)
_NAMES_A_CUT = 50_000

BlobName = tuple[str, str]
"""A blob's root and name: what samples and listings are joined on."""


class PinTally(msgspec.Struct, frozen=True):
    """What joining samples with a listing came to; tallies add up.

    Attributes:
        named: samples that name a blob.
        missing: of them, those whose blob is not listed.
        unreferenced: listed files that no sample names.
        listing: digest of the listing, hex; see `listing_digest`.
        first_missing: smallest missing name.
        first_unreferenced: smallest listed name that no sample names.
        read_files: files that samples name, or that a reader takes from the listing.
        read_bytes: their size.
    """

    named: int = 0
    missing: int = 0
    unreferenced: int = 0
    listing: str = "0"
    first_missing: str = ""
    first_unreferenced: str = ""
    read_files: int = 0
    read_bytes: int = 0


def pin_sample(sample: Sample, entry: Entry | None, place: int = 0) -> Sample | Rejected:
    """Return the sample with one of its blobs as listed, or why it cannot be read.

    Args:
        sample: names the blob.
        entry: what the listing holds under that name; None for nothing.
        place: of the blob among the sample's.
    """
    if entry is None:
        return _rejected(sample, place, "E-IMG-MISSING", "not in the listing")
    fault = _listing_fault(entry)
    if fault is not None:
        return _rejected(sample, place, *fault)
    blob = sample.blobs[place]
    pinned = Blob(blob.root, blob.name, entry.size_bytes, entry.pin, entry.crc32c)
    blobs = list(sample.blobs)
    blobs[place] = pinned
    return msgspec.structs.replace(sample, blobs=tuple(blobs))


def _rejected(sample: Sample, place: int, code: str, detail: str) -> Rejected:
    return Rejected(
        code=code,
        stage=_STAGE,
        split=sample.split,
        key=sample.key,
        annotation_ids=sample.annotation_ids,
        file_name=sample.blobs[place].name,
        detail=detail,
    )


def _listing_fault(entry: Entry) -> tuple[str, str] | None:
    if entry.kind == "dangling link":
        return "E-IMG-MISSING", "a link to nothing"
    if entry.kind != "file":
        return "E-IMG-NOT-A-FILE", f"a {entry.kind}"
    if entry.size_bytes == 0:
        return "E-IMG-EMPTY", "0 bytes"
    if entry.size_bytes > MAX_IMAGE_BYTES:
        return "E-IMG-TOO-LARGE", f"{entry.size_bytes} bytes, the limit is {MAX_IMAGE_BYTES}"
    return None


def is_cut(name: str) -> bool:
    """Return whether a listing may be divided at this name, as at one in 50,000."""
    return zlib.crc32(name.encode()) % _NAMES_A_CUT == 0


def listing_digest(entries: Iterable[Entry]) -> int:
    """Return a digest of a listing, equal when its files' contents must be.

    A sum modulo 2^256 of a digest an entry, so that parts can be added in any order. Contents are
    compared by CRC-32C where the store lists it, else by size and pin.
    """
    total = 0
    for entry in entries:
        if entry.kind != "file":
            continue
        content = entry.pin if entry.crc32c is None else entry.crc32c
        digest = _EMPTY_DIGEST.copy()  # made anew, it takes a quarter longer
        digest.update(pack((entry.name, entry.size_bytes, content)))
        total += int.from_bytes(digest.digest(), "big")
    return total % DIGEST_MODULUS


def add_pin_tallies(tallies: Iterable[PinTally]) -> PinTally:
    """Return the sum of tallies; of the first names the smallest."""
    parts = list(tallies)
    return PinTally(
        named=sum(part.named for part in parts),
        missing=sum(part.missing for part in parts),
        unreferenced=sum(part.unreferenced for part in parts),
        listing=f"{sum(int(part.listing, 16) for part in parts) % DIGEST_MODULUS:x}",
        first_missing=first_name(part.first_missing for part in parts),
        first_unreferenced=first_name(part.first_unreferenced for part in parts),
        read_files=sum(part.read_files for part in parts),
        read_bytes=sum(part.read_bytes for part in parts),
    )


def first_name(names: Iterable[str]) -> str:
    """Return the smallest name that is not empty, or none."""
    return min(filter(None, names), default="")


def none_allowed(named: int) -> int:
    """Return how many of the named images may be missing where none are accepted."""
    return 0


def refuse_mostly_missing(
    tallies: Iterable[tuple[str, PinTally]], allowed: Callable[[int], int] = none_allowed
) -> None:
    """Stop where more than half of a root's images are not there: the root must be wrong.

    Unless the user accepts so many, and the root has no other file either that would tell of a
    wrong one: then they are rejects like others.

    Args:
        tallies: what pinning saw, per root name.
        allowed: how many of so many named images may be missing.

    Raises:
        RuntimeError: `E-SET-MISSING`, with a missing name and what listed names look like.
    """
    for root, tally in tallies:
        accepted = tally.missing <= allowed(tally.named) and not tally.unreferenced
        if 2 * tally.missing > tally.named and not accepted:
            flag = "--panoptic_images" if is_panoptic_root(root) else "--images"
            remedy = f"give the folder that file_name is relative to with {flag}"
            listed = "no file is listed"
            if tally.first_unreferenced:
                listed = f"listed names look like {tally.first_unreferenced!r}"
            elif tally.missing < tally.named:
                listed = "all listed files are wanted"
                remedy = "add the missing ones, or accept them with"
                remedy += f" --max_rejected {tally.missing}"
            what = (
                f"{tally.missing} of {tally.named} images are not there, the first"
                f" {tally.first_missing!r}; {listed}"
            )
            raise RuntimeError(fault_line("E-SET-MISSING", f"images of {root}", what, remedy))
