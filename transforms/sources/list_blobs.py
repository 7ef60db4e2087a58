"""List what source roots hold, and pin blobs of samples to listed files."""

import hashlib
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.samples import Blob, Sample, pack
from beam_tfrec.transforms.shuffle.elements import is_in_process
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, Entry, open_storage

MAX_IMAGE_BYTES = 256 * 2**20
DIGEST_MODULUS = 2**256
"""Modulus of digests of sets, which are sums."""
_STAGE = "pin_blobs"
_EMPTY_DIGEST = hashlib.blake2b(digest_size=32)
HIDDEN = "hidden"
IMAGE_EXTENSIONS = frozenset(
    {
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "gif", "bmp", "dib", "webp", "tif", "tiff"),
        *("avif", "heic", "heif", "jp2", "j2k", "jxl", "ico", "tga", "ppm", "pgm", "pbm", "pnm"),
        "svg",
    }
)
"""In lower case. Only a file's content says which format it has, and if TensorFlow reads it."""


class PinTally(msgspec.Struct, frozen=True):
    """Counts of a join of samples with a listing; tallies add up.

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


class ListedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One name below a source root, as its listing shows it.

    Attributes:
        root: name of the root, such as `train`.
        entry: the name, its size and its pin; not every one is a file.
        position: place in the root's sorted listing, from 0; -1 where it was not asked for.
    """

    root: str
    entry: Entry
    position: int = -1


class SourcePieces(NamedTuple):
    """What listing and planning of sources return.

    Attributes:
        pieces: all pieces of the sources, such as their files, for workers to read.
        tallies: digest of every root's listing, and what a reader reads of it; None where all
            sources are given as files.
    """

    pieces: beam.PCollection
    tallies: beam.PCollection[tuple[str, PinTally]] | None


def pin_sample(sample: Sample, entry: Entry | None, place: int = 0) -> Sample | Rejected:
    """Return the sample with one of its blobs as listed, or why it cannot be read.

    Args:
        sample: names the blob.
        entry: what the listing holds under that name; None for nothing.
        place: of the blob among the sample's.
    """
    blob = sample.blobs[place]
    code, detail = _listing_fault(entry)
    if entry is None or code:
        return Rejected(
            code=code,
            stage=_STAGE,
            split=sample.split,
            key=sample.key,
            annotation_ids=sample.annotation_ids,
            file_name=blob.name,
            detail=detail,
        )
    pinned = Blob(blob.root, blob.name, entry.size_bytes, entry.pin, entry.crc32c)
    blobs = (*sample.blobs[:place], pinned, *sample.blobs[place + 1 :])
    return msgspec.structs.replace(sample, blobs=blobs)


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


def number_files(files: Iterable[ListedFile]) -> Iterator[ListedFile]:
    """Yield the files of a root, each with its place in the sorted listing."""
    in_order = sorted(files, key=lambda file: file.entry.name)
    for position, file in enumerate(in_order):
        yield msgspec.structs.replace(file, position=position)


def is_file(listed: ListedFile) -> bool:
    """Return whether a listed name is a file."""
    return listed.entry.kind == "file"


def is_folder(entry: Entry) -> bool:
    """Return whether a listed name is a folder; one of another kind could not be listed itself."""
    return entry.kind.startswith("directory")


def is_read(file: ListedFile) -> bool:
    """Return whether a listed file is read: one that can be meant as an image."""
    entry = file.entry
    readable = entry.kind == "file" and 0 < entry.size_bytes <= MAX_IMAGE_BYTES
    return readable and not why_skipped(entry.name)


def why_skipped(name: str) -> str:
    """Return why a file cannot be meant as an image, nothing where it can.

    >>> why_skipped("cat/.thumbs/1.jpg"), why_skipped("cat/Thumbs.db"), why_skipped("cat/1.JPG")
    ('hidden', 'not_called_an_image', '')
    """
    if name.startswith(".") or "/." in name:
        return HIDDEN
    _, dot, extension = name.rpartition("/")[2].rpartition(".")
    is_image = bool(dot) and extension.lower() in IMAGE_EXTENSIONS
    return "" if is_image else "not_called_an_image"


def _listing_fault(entry: Entry | None) -> tuple[str, str]:
    """Return why a listed file cannot be read, as code and detail; empty where it can."""
    if entry is None:
        return "E-IMG-MISSING", "not in the listing"
    if entry.kind == "dangling link":
        return "E-IMG-MISSING", "a link to nothing"
    if entry.kind != "file":
        return "E-IMG-NOT-A-FILE", f"a {entry.kind}"
    if entry.size_bytes == 0:
        return "E-IMG-EMPTY", "0 bytes"
    if entry.size_bytes > MAX_IMAGE_BYTES:
        return "E-IMG-TOO-LARGE", f"{entry.size_bytes} bytes, the limit is {MAX_IMAGE_BYTES}"
    return "", ""


def _list_root(named: tuple[str, str], access: Access) -> Iterator[ListedFile]:
    root, uri = named
    for entry in open_storage(uri, access).list():
        yield ListedFile(root, entry)


@dataclass(eq=False)
class ListBlobs(beam.PTransform):
    """Nothing -> everything that the roots hold, in any order.

    Attributes:
        roots: URI per root name, such as `{"train": "gs://b/train2017"}`.
        access: how stores are reached.
    """

    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[ListedFile]:
        """List every root, each by one worker."""
        roots = root | "Roots" >> beam.Create(sorted(self.roots.items()))
        if not is_in_process(root.pipeline):
            roots |= "Spread" >> beam.Reshuffle()
        return roots | "List" >> beam.FlatMap(_list_root, self.access)


@dataclass(eq=False)
class ListFiles(beam.PTransform):
    """Nothing -> everything that source roots hold, in any order, with digests of the listings.

    Files and digests are of one listing, whatever is executed twice.

    Attributes:
        roots: URI per root name.
        access: how stores are reached.
        numbered: give every file its place in the sorted listing, which one worker sorts in memory,
            a root at a time.
        is_read: whether a reader reads a file, for what that costs; a named function or method.
    """

    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS
    numbered: bool = False
    is_read: Callable[[ListedFile], bool] = is_file

    def expand(self, root: beam.pvalue.PBegin) -> SourcePieces:
        """List every root."""
        listing = root | "ListBlobs" >> ListBlobs(self.roots, self.access)
        if not is_in_process(root.pipeline):
            # One listing for both, where a runner may list again for each.
            listing |= "Keep" >> beam.Reshuffle()
        parts = listing | "Digest" >> beam.ParDo(_Digest(self.is_read)).with_output_types(
            tuple[str, PinTally]
        )
        none = root | "NoEntries" >> beam.Create([(name, PinTally()) for name in self.roots])
        tallies = (
            (parts, none)
            | "AllDigests" >> beam.Flatten()
            | "AddDigests" >> beam.CombinePerKey(add_pin_tallies)
        )
        if self.numbered:
            listing = (
                listing
                | "ByRoot" >> beam.WithKeys(operator.attrgetter("root"))
                | "GroupRoots" >> beam.GroupByKey()
                | "Roots" >> beam.Values()
                | "Number" >> beam.FlatMap(number_files)
            )
        return SourcePieces(listing, tallies)


class _Digest(beam.DoFn):
    """Adds up the digests of a bundle, and what is read."""

    def __init__(self, is_read: Callable[[ListedFile], bool]) -> None:
        self._is_read = is_read

    def start_bundle(self) -> None:
        self._digests: dict[str, int] = {}
        self._read_files: Counter[str] = Counter()
        self._read_bytes: Counter[str] = Counter()

    def process(self, listed: ListedFile) -> Iterator[tuple[str, PinTally]]:
        root, entry = listed.root, listed.entry
        self._digests[root] = self._digests.get(root, 0) + listing_digest([entry])
        if self._is_read(listed):
            self._read_files[root] += 1
            self._read_bytes[root] += entry.size_bytes
        return iter(())

    def finish_bundle(self) -> Iterator:
        for root, digest in self._digests.items():
            tally = PinTally(
                listing=f"{digest % DIGEST_MODULUS:x}",
                read_files=self._read_files[root],
                read_bytes=self._read_bytes[root],
            )
            yield GlobalWindows.windowed_value_at_end_of_window((root, tally))
