"""Source roots as the files that they hold, for readers that begin with a listing."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from transforms.sources.elements import is_in_process
from transforms.sources.list_blobs import (
    DIGEST_MODULUS,
    MAX_IMAGE_BYTES,
    BlobName,
    ListBlobs,
    PinTally,
    add_pin_tallies,
    listing_digest,
)
from transforms.storage import DEFAULT_ACCESS, Access, Entry

HIDDEN = "hidden"
IMAGE_EXTENSIONS = frozenset(
    {
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "gif", "bmp", "dib", "webp", "tif", "tiff"),
        *("avif", "heic", "heif", "jp2", "j2k", "jxl", "ico", "tga", "ppm", "pgm", "pbm", "pnm"),
        "svg",
    }
)
"""In lower case. Only a file's content says which format it has, and if TensorFlow reads it."""


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


class ListedFiles(NamedTuple):
    """What `ListFiles` returns.

    Attributes:
        files: everything that the roots hold.
        tallies: the digest of every root's listing, and what a reader reads of it.
    """

    files: beam.PCollection[ListedFile]
    tallies: beam.PCollection[tuple[str, PinTally]]


def number_files(root: str, entries: Iterable[Entry]) -> list[ListedFile]:
    """Return a root's files with their places in the sorted listing.

    >>> [found.position for found in number_files("train", [Entry("b", 1, ""), Entry("a", 1, "")])]
    [0, 1]
    """
    in_order = sorted(entries, key=lambda entry: entry.name)
    return [ListedFile(root, entry, position) for position, entry in enumerate(in_order)]


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


@dataclass(eq=False)
class ListFiles(beam.PTransform):
    """Root -> everything that source roots hold, in any order, with digests of the listings.

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

    def expand(self, root: beam.pvalue.PBegin) -> ListedFiles:
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
        if not self.numbered:
            return ListedFiles(listing | "AsFiles" >> beam.Map(_as_file), tallies)
        files = (
            listing
            | "ByRoot" >> beam.Map(_by_root)
            | "GroupRoots" >> beam.GroupByKey()
            | "Number" >> beam.FlatMapTuple(number_files).with_output_types(ListedFile)
        )
        return ListedFiles(files, tallies)


def _as_file(listed: tuple[BlobName, Entry]) -> ListedFile:
    (root, _), entry = listed
    return ListedFile(root, entry)


def _by_root(listed: tuple[BlobName, Entry]) -> tuple[str, Entry]:
    (root, _), entry = listed
    return root, entry


class _Digest(beam.DoFn):
    """Adds up the digests of a bundle, and what is read."""

    def __init__(self, is_read: Callable[[ListedFile], bool]) -> None:
        self._is_read = is_read

    def start_bundle(self) -> None:
        self._digests: dict[str, int] = {}
        self._read_files: Counter[str] = Counter()
        self._read_bytes: Counter[str] = Counter()

    def process(self, listed: tuple[BlobName, Entry]) -> Iterator[tuple[str, PinTally]]:
        (root, _), entry = listed
        self._digests[root] = self._digests.get(root, 0) + listing_digest([entry])
        if self._is_read(ListedFile(root, entry)):
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
