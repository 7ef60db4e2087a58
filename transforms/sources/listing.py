"""List source roots, and pin the blobs of samples to listed files.

A *pin* identifies a version of a file: its modification time, or its generation in a bucket.

`ListFiles` lists roots and digests the listings. Readers that make samples of listed files pin them
with `pin_sample`. Samples that only name files, as those of COCO, are joined with the listing and
pinned by `PinBlobs`.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.samples import Blob, Sample, content_digest
from beam_tfrec.transforms.shuffle.elements import spread
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, Entry, open_storage

MAX_IMAGE_BYTES = 256 * 2**20
DIGEST_MODULUS = 2**256
"""Modulus of digests of sets; such a digest is a sum."""
HIDDEN = "hidden"
NOT_AN_IMAGE = "not_called_an_image"
IMAGE_EXTENSIONS = frozenset(
    {
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "gif", "bmp", "dib", "webp", "tif", "tiff"),
        *("avif", "heic", "heif", "jp2", "j2k", "jxl", "ico", "tga", "ppm", "pgm", "pbm", "pnm"),
        "svg",
    }
)
"""Extensions of images, in lower case. The format of an image is decided by its content."""


class RootTally(msgspec.Struct, frozen=True):
    """Counts of listed and pinned files of a root; `add_root_tallies` adds parts.

    Attributes:
        named: number of samples that name a blob.
        missing: number of samples with a blob that is not listed.
        unreferenced: number of listed files that no sample names.
        listing: digest of the listing, hex; see `listing_digest`.
        first_missing: smallest missing name.
        first_unreferenced: smallest name of an unreferenced file.
        read_files: number of files that `ListFiles.is_read` selects, for `--plan`.
        read_bytes: size of the files that are read.
    """

    named: int = 0
    missing: int = 0
    unreferenced: int = 0
    listing: str = "0"
    first_missing: str = ""
    first_unreferenced: str = ""
    read_files: int = 0
    read_bytes: int = 0


_COUNTS = ("named", "missing", "unreferenced", "read_files", "read_bytes")

RootTallyOutput = beam.pvalue.TaggedOutput[Literal["root_tallies"], tuple[str, RootTally]]
"""Side output of counts by root."""


class ListedFile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a source root's listing: a file, a folder or another kind.

    Attributes:
        root: name of the root, such as `train`.
        entry: name, kind, size and pin.
        position: index in the root's sorted listing, from 0; -1 for no number.
    """

    root: str
    entry: Entry
    position: int = -1


class SourcePieces(NamedTuple):
    """Output of steps that list and divide sources.

    Attributes:
        pieces: pieces of the sources, such as files, for workers to read, or for `PinBlobs`.
        root_tallies: listing digests and counts of read files, by root.
    """

    pieces: beam.PCollection
    root_tallies: beam.PCollection[tuple[str, RootTally]]


def pin_sample(sample: Sample, entry: Entry | None, blob_index: int = 0) -> Sample | Rejected:
    """Set the size and pin of one of a sample's blobs, or reject the sample.

    Args:
        sample: sample with the blob's name.
        entry: listed entry with this name; None if there is none.
        blob_index: index of the blob in `Sample.blobs`.
    """
    blob = sample.blobs[blob_index]
    code, detail = listing_fault(entry)
    if entry is None or code:
        return sample.reject("pin_blobs", code, detail, blob_index)
    pins = entry.size_bytes, entry.pin, entry.crc32c
    pinned = Blob(blob.root, blob.name, *pins, orientation=blob.orientation)
    blobs = (*sample.blobs[:blob_index], pinned, *sample.blobs[blob_index + 1 :])
    return msgspec.structs.replace(sample, blobs=blobs)


def pin_all(sample: Sample, entries: Iterable[Entry | None]) -> Sample | Rejected:
    """Pin all blobs of a sample to the listed entries in their order, or reject it at the first."""
    pinned: Sample | Rejected = sample
    for place, entry in enumerate(entries):
        if isinstance(pinned, Sample):
            pinned = pin_sample(pinned, entry, place)
    return pinned


def listing_digest(entries: Iterable[Entry]) -> int:
    """Return a digest of a listing; equal digests mean that the files have not changed.

    The digest is the sum of a digest per file, modulo 2^256, so that parts can be added in any
    order. A file's digest covers its name, its size, and its CRC-32C if listed, else its pin.
    """
    files = (entry for entry in entries if entry.kind == "file")
    contents = ((e.name, e.size_bytes, e.pin if e.crc32c is None else e.crc32c) for e in files)
    return sum(map(content_digest, contents)) % DIGEST_MODULUS


def add_root_tallies(tallies: Iterable[RootTally]) -> RootTally:
    """Add tallies; keep the smallest of the first names."""
    parts = list(tallies)
    return RootTally(
        **{name: sum(getattr(part, name) for part in parts) for name in _COUNTS},
        listing=f"{sum(int(part.listing, 16) for part in parts) % DIGEST_MODULUS:x}",
        first_missing=first_name(part.first_missing for part in parts),
        first_unreferenced=first_name(part.first_unreferenced for part in parts),
    )


def first_name(names: Iterable[str]) -> str:
    """Return the smallest name that is not empty, or an empty text."""
    return min(filter(None, names), default="")


def is_file(listed: ListedFile) -> bool:
    """Return whether a listed entry is a file."""
    return listed.entry.kind == "file"


def is_folder(entry: Entry) -> bool:
    """Return whether an entry is a folder, including folders that could not be listed."""
    return entry.kind.startswith("directory")


def why_skipped(name: str) -> str:
    """Return why a file is not an image by its name, or an empty text if it is one.

    >>> why_skipped("cat/.thumbs/1.jpg"), why_skipped("cat/Thumbs.db"), why_skipped("cat/1.JPG")
    ('hidden', 'not_called_an_image', '')
    """
    if name.startswith(".") or "/." in name:
        return HIDDEN
    _, dot, extension = name.rpartition("/")[2].rpartition(".")
    is_image = bool(dot) and extension.lower() in IMAGE_EXTENSIONS
    return "" if is_image else NOT_AN_IMAGE


def listing_fault(entry: Entry | None) -> tuple[str, str]:
    """Return code and detail if an entry cannot be read, else two empty texts."""
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


def _select_all(root: str, entries: Iterable[Entry]) -> Iterator[ListedFile]:
    return (ListedFile(root, entry) for entry in entries)


def _number_entries(root: str, entries: Iterable[Entry]) -> Iterator[ListedFile]:
    in_order = sorted(entries, key=operator.attrgetter("name"))
    return (ListedFile(root, entry, position) for position, entry in enumerate(in_order))


@dataclass(eq=False)
class ListFiles(beam.PTransform):
    """Pipeline root -> the files of source roots, in any order, with digests of the listings.

    Files and digests come from the same listing, even if a runner repeats a step. One worker lists
    a root.

    Attributes:
        roots: URIs by root name.
        access: credentials and limits for stores.
        numbered: whether to set positions, instead of `select`. For this, the worker that lists a
            root sorts it in memory.
        is_read: function that returns whether the reader reads a file, for `--plan`'s counts of
            roots without blobs; a named function or method.
        select: function of a root's name and its listing that returns the files, each with its
            `entry`; a named function or a partial one. It must take all entries, since they are
            digested as they pass. By default, it returns every entry as a `ListedFile`.
    """

    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS
    numbered: bool = False
    is_read: Callable[[Any], bool] = is_file
    select: Callable[[str, Iterable[Entry]], Iterable[Any]] = _select_all

    def expand(self, root: beam.pvalue.PBegin) -> SourcePieces:
        """List every root."""
        select = _number_entries if self.numbered else self.select
        roots = root | "Roots" >> beam.Create(sorted(self.roots.items()))
        step = beam.FlatMap(_list_files, self.access, self.is_read, select)
        listed = roots | "List" >> step.with_outputs("root_tallies", main="files")
        return SourcePieces(spread(listed.files), listed.root_tallies)


def _list_files(
    named: tuple[str, str],
    access: Access,
    is_read: Callable[[Any], bool],
    select: Callable[[str, Iterable[Entry]], Iterable[Any]],
) -> Iterator[Any]:
    """Yield the files of a root, then the listing's digest and counts of read files."""
    root, uri = named
    digest = read_files = read_bytes = 0

    def entries() -> Iterator[Entry]:
        nonlocal digest
        for entry in open_storage(uri, access).list():
            digest += listing_digest([entry])
            yield entry

    for file in select(root, entries()):
        if is_read(file):
            read_files += 1
            read_bytes += file.entry.size_bytes
        yield file
    listing = f"{digest % DIGEST_MODULUS:x}"
    tally = RootTally(listing=listing, read_files=read_files, read_bytes=read_bytes)
    yield RootTallyOutput("root_tallies", (root, tally))
