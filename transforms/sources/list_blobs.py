"""List what the image roots hold, and pin a sample's blob to a listed file."""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import apache_beam as beam
import msgspec

from schemas.faults import Rejected
from schemas.samples import Blob, Sample, pack
from transforms.sources.elements import is_in_process
from transforms.storage import DEFAULT_ACCESS, Access, Entry, Storage, list_uri, open_storage
from transforms.storage.listing import find_cuts

MAX_IMAGE_BYTES = 256 * 2**20
DIGEST_MODULUS = 2**256
"""Modulus of digests of sets, which are sums."""

_STAGE = "pin_blobs"
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


def list_ranges(
    roots: Mapping[str, str],
    cuts: Mapping[str, Iterable[str]],
    access: Access,
    cut_unknown: Callable[[Storage], list[str]] | None = None,
) -> list[tuple[str, list[str]]]:
    """Return the bounds of every root's listing, by its name, and where it may be divided.

    Args:
        roots: URI per root name.
        cuts: names per root name, in any order.
        access: how stores are reached.
        cut_unknown: finds names in a root without known names; None where one lister lists all.
    """
    bounds = []
    for root, uri in sorted(roots.items()):
        storage = open_storage(uri, access)
        known = sorted(set(cuts.get(root, ()))) if storage.lists_by_name else []
        if not known and cut_unknown is not None and storage.lists_by_name:
            known = cut_unknown(storage)
        bounds.append((root, ["", *known, ""]))
    return bounds


@dataclass(eq=False)
class ListBlobs(beam.PTransform):
    """Root -> everything that the roots hold, as `((root name, name), Entry)`, in any order.

    Attributes:
        roots: URI per root name, such as `{"train": "gs://b/train2017"}`.
        access: how stores are reached.
        cuts: per root name, names at which its listing may be divided; None for none known.
    """

    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS
    cuts: beam.PCollection[tuple[str, list[str]]] | None = None

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[tuple[BlobName, Entry]]:
        """List every root: on a cluster its ranges one by one, in process all by one lister."""
        in_process = is_in_process(root.pipeline)
        cuts: Any = [] if self.cuts is None else beam.pvalue.AsList(self.cuts)
        ranges = (
            root
            | "Once" >> beam.Impulse()
            | "Ranges"
            >> beam.FlatMap(
                _list_ranges,
                cuts,
                self.roots,
                self.access,
                None if in_process else find_cuts,
            )
        )
        if not in_process:
            ranges |= "Divide" >> beam.FlatMap(_divide) | "Spread" >> beam.Reshuffle()
        return ranges | "List" >> beam.FlatMap(_list_range, self.roots, self.access)


def _list_ranges(
    _: bytes,
    cuts: list[tuple[str, list[str]]],
    roots: Mapping[str, str],
    access: Access,
    cut_unknown: Callable[[Storage], list[str]] | None,
) -> list[tuple[str, list[str]]]:
    of_root: dict[str, list[str]] = {}
    for root, names in cuts:
        of_root.setdefault(root, []).extend(names)
    return list_ranges(roots, of_root, access, cut_unknown)


def _divide(element: tuple[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    root, bounds = element
    for start, end in pairwise(bounds):
        yield root, [start, end]


def _list_range(
    element: tuple[str, list[str]],
    roots: Mapping[str, str],
    access: Access,
) -> Iterator[tuple[BlobName, Entry]]:
    root, bounds = element
    for entry in list_uri(roots[root], access, bounds):
        yield (root, entry.name), entry
