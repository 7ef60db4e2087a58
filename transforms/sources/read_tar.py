"""Samples from tar files in the form of WebDataset: consecutive members with one base name.

`select_tars` chooses files from a listing. `TarReader` reads the headers and the small members of a
file once, in order, and makes the samples. A sample's blob is the range of its image in the tar
file. Nothing is unpacked to files of a member's name, so these names cannot do harm.

A compressed file has no such ranges. It is decompressed to an unnamed local file, and its images
are staged.
"""

import bz2
import functools
import gzip
import itertools
import lzma
import operator
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from beam_tfrec.schemas.annotations.side_files import value_at
from beam_tfrec.schemas.columns import ColumnType, matches, may_hold
from beam_tfrec.schemas.faults import Reason, run_fault
from beam_tfrec.schemas.fields import ClassFields
from beam_tfrec.schemas.labels import read_label_file
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import TAR, Blob, Sample, pack
from beam_tfrec.schemas.splits import Splitting
from beam_tfrec.transforms import storage
from beam_tfrec.transforms.sources import listing
from beam_tfrec.transforms.sources.read_blobs import unpack
from beam_tfrec.transforms.sources.read_samples import Item, SplitTally
from beam_tfrec.transforms.sources.read_sidecar import SideSample, read_values
from beam_tfrec.transforms.storage.staging import Stager, Staging, stage_image

STAGE = "read_tar"
REFUSED = (".tar.zst", ".tar.lz4", ".txz", ".tbz2", ".tar.lzma", ".tar.z")
DECOMPRESSORS: Mapping[str, Callable[[IO[bytes]], Any]] = {
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.bz2": bz2.open,
    ".tar.xz": lzma.open,
}
"""Functions that open a compressed stream for reading, by suffix of the file."""
NOT_A_FILE = "not_a_file"

_TEXTS = _CLASS, _CAPTION, _JSON = "cls", "txt", "json"  # extensions of members to read at once
_NUMBER_BITS, _FILE_BITS = 34, 20  # bits of a position: samples of a file, files of a source
_MAX_TEXT_BYTES = 16 << 20
# A request to a bucket takes as long as the transfer of a megabyte. So smaller images are read
# over, and larger ones are skipped. A disk has no such latency.
_REMOTE_READ_BYTES, _LOCAL_READ_BYTES = 1 << 20, 16 << 10
_NUMBER = re.compile(r"\s*[0-9]{1,5}\s*")  # all numbers up to the largest get a label
_END = b"\0" * tarfile.BLOCKSIZE
_MAX_END_BYTES = 1 << 20  # writers fill up their last 10 kB or more with zeros


@dataclass(frozen=True)
class TarSource:
    """The tar files of a split in one folder.

    Attributes:
        split: split that the user gave them for.
        number: place of the folder among those of the split.
        uri: URI of the folder.
        patterns: names of files that must be there, and globs; an empty one stands for all files.
    """

    split: str
    number: int
    uri: str
    patterns: frozenset[str]

    def chosen(self, entries: Iterable[storage.Entry]) -> dict[str, storage.Entry | None]:
        """Return the entries that the patterns choose, by name; None for a missing file.

        Globs match no hidden files. An entry may be something else than a file.
        """
        globs = [pattern for pattern in self.patterns if not pattern or {*"*?"} & {*pattern}]
        found: dict[str, storage.Entry | None] = dict.fromkeys(self.patterns.difference(globs))
        for entry in entries:
            name, is_hidden = entry.name, listing.why_skipped(entry.name) == listing.HIDDEN
            test = may_hold if listing.is_folder(entry) else matches
            is_matched = not is_hidden and any(test(name, glob) for glob in globs)
            if entry.kind != "directory" and (name in found or is_matched):
                found[name] = entry
        return found


class Part(NamedTuple):
    """A member of a sample: its name, its place in the tar file, and its content if it is read."""

    name: str
    offset: int
    size: int
    text: bytes | None


Parts = Mapping[str, list[Part]]
"""The members of a sample by extension in lower case; at most two of each."""


def select_tars(
    root: str, entries: Iterable[storage.Entry], sources: Mapping[str, TarSource]
) -> Iterator[listing.ListedFile]:
    """Yield the tar files of a folder in the order of their names, which their positions keep.

    Raises:
        RuntimeError: `E-ARG` when a file is missing, cannot be read, has a compression that is not
            supported, or there is none.
    """
    source = sources[root]
    place = source.number << _FILE_BITS  # among all files of the split
    for name, entry in sorted(source.chosen(entries).items()):
        if entry is None or name.lower().endswith(REFUSED):
            what = "its compression is not supported" if entry else "no such file"
            raise _refused(storage.join_uri(source.uri, name), what)
        if name.lower().endswith((TAR, *DECOMPRESSORS)) or listing.is_folder(entry):
            if entry.kind != "file":
                raise _refused(storage.join_uri(source.uri, name), f"a {entry.kind}, not a file")
            yield listing.ListedFile(root, entry, place)
            place += 1
    if place == source.number << _FILE_BITS:
        raise _refused(source.uri, "has no such .tar file")


@dataclass(frozen=True)
class TarReader:
    """Makes the samples of a tar file.

    Attributes:
        splitting: rule that decides the split of a sample.
        sources: sources by root name.
        access: credentials and limits for stores.
        types: types of the fields to write, by path; None to write classes.
        label_file: URI of the file with a class's name in each line; empty for none.
        read: parser of objects in .json members; None to write classes or fields.
        staging: place of the images of compressed files; None to write none, for a plan.
    """

    splitting: Splitting
    sources: Mapping[str, TarSource]
    access: storage.Access
    types: Mapping[str, ColumnType] | None = None
    label_file: str = ""
    read: Callable[[bytes], SideSample | Reason] | None = None
    staging: Staging | None = None

    def __call__(self, file: listing.ListedFile) -> Iterator[Item]:
        """Yield a sample or a reject for each base name, then notes of classes and other members.

        Raises:
            RuntimeError: `E-SRC-DAMAGED` when the rest of the file cannot be read; `E-SRC-SPLIT`;
                or a storage fault.
        """
        left_out: Counter[tuple[str, str]] = Counter()
        classes: dict[str, int] = {}
        stream, is_unpacked = self._open_file(file)
        stager = Stager(self.staging) if is_unpacked and self.staging else None
        found = self._members(file, stream, left_out)
        members = itertools.groupby(found, operator.itemgetter(0))
        for number, (key, of_sample) in enumerate(members):
            parts: dict[str, list[Part]] = {}
            for _, extension, part in of_sample:
                if len(same := parts.setdefault(extension, [])) < 2:
                    same.append(part)
            for item in self._items(file, number, key, parts, classes):
                if is_unpacked and isinstance(item, Sample):
                    blob = item.blobs[0]
                    stream.seek(blob.offset)
                    yield from stage_image(item, stream.read(blob.length), blob.member, stager)
                else:
                    yield item
        if stager:
            yield from stager.flush()
        for (split, why), count in left_out.items():
            yield SplitTally(split, listed=count, skipped={why: count})
        for split, largest in classes.items():  # all lower numbers too, so that ids do not shift
            yield SplitTally(split, labels=[Label(n, str(n)) for n in range(largest + 1)])

    def _open_file(self, file: listing.ListedFile) -> tuple[IO[bytes], bool]:
        """Return the plain tar file as a stream, and whether it was compressed.

        Raises:
            RuntimeError: `E-SRC-DAMAGED`, or a fault of a disk or store.
        """
        uri, name = self.sources[file.root].uri, file.entry.name
        at_once = _LOCAL_READ_BYTES if storage.is_local(uri) else _REMOTE_READ_BYTES
        stream = storage.open_stored(
            storage.open_storage(uri, self.access), file.entry, at_once, _MAX_TEXT_BYTES
        )
        for suffix, decompressed in DECOMPRESSORS.items():
            if name.lower().endswith(suffix):
                try:
                    return unpack(decompressed(stream), self.access.spool_dir), True
                except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
                    raise _damaged(
                        storage.join_uri(uri, name), "cannot be decompressed", error
                    ) from None
        return stream, False

    def _members(
        self, file: listing.ListedFile, stream: IO[bytes], left_out: Counter[tuple[str, str]]
    ) -> Iterator[tuple[str, str, Part]]:
        """Yield each member of samples with its base name and extension, and count the others."""
        source = self.sources[file.root]
        for info in walk_members(stream, storage.join_uri(source.uri, file.entry.name)):
            name = info.name.removeprefix("./")
            if info.isdir():
                continue
            if why := _why_left_out(info, name):
                left_out[self.splitting.split_of_file(source.split, name), why] += 1
                continue
            extension, text = name.rpartition("/")[2].partition(".")[2], None
            if extension.lower() in _TEXTS and info.size <= _MAX_TEXT_BYTES:
                stream.seek(info.offset_data)
                text = stream.read(info.size)
            part = Part(name, info.offset_data, info.size, text)
            yield name[: -1 - len(extension)], extension.lower(), part

    def _items(
        self, file: listing.ListedFile, number: int, key: str, parts: Parts, classes: dict[str, int]
    ) -> Iterator[Item]:
        """Yield a sample and its note, or a reject; keep the largest number of a class."""
        given, entry = self.sources[file.root].split, file.entry
        images = [p for ext in parts if ext in listing.IMAGE_EXTENSIONS for p in parts[ext]]
        first = images[0] if images else next(iter(parts.values()))[0]
        pinned = entry.name, entry.size_bytes, entry.pin, entry.crc32c
        blob = Blob(file.root, *pinned, first.offset, first.size, first.name)
        opened = self._open(parts, images)
        if isinstance(opened, tuple):
            split = self.splitting.split_of_file(given, key)
            yield Sample(split, key, -1, (blob,), b"").reject(STAGE, *opened)
            return
        json = (parts[_JSON][0].text if _JSON in parts else None) or b"{}"
        fields = {name: value_at(json, name) for name in self.splitting.fields.values()}
        split = self.splitting.split_of(given, key, fields, blob.file_name)
        position = file.position << _NUMBER_BITS | number
        *items, note = opened.items(Sample(split, key, position, (blob,), b""), STAGE)
        yield from items
        if self.types is None and self.read is None and not self.label_file:
            classes[split] = max(classes.get(split, 0), *map(int, opened.note.class_names))
        else:
            yield note

    def _open(self, parts: Parts, images: list[Part]) -> SideSample | Reason:
        """Check a sample's members, and read its class or fields."""
        texts = {name: parts[name] for name in _TEXTS if name in parts}
        if not images:
            return "E-IMG-MISSING", "no image with its base name is next to it"
        for found in (images, *texts.values()):
            if len(found) > 1:
                return "E-SRC-TWICE", f"{found[0].name} and {found[1].name} have one base name"
        code, detail = listing.listing_fault(storage.Entry(images[0].name, images[0].size, ""))
        if code:
            return code, detail
        cells: dict[str, str] = {}
        for name, [part] in texts.items():
            if part.text is None:
                return "E-ANN-FILE", f"{part.name}: {part.size} bytes, above {_MAX_TEXT_BYTES}"
            try:
                cells[name] = part.text.decode()
            except UnicodeDecodeError as error:
                return "E-ANN-FILE", f"{part.name}: not UTF-8 (byte {error.start})"
        if self.types is None and self.read is None:
            if _CLASS not in cells:
                return "E-SRC-LABEL", "no .cls member with its base name is next to it"
            return self._class_of(cells[_CLASS])
        types = self.types or {}
        if _JSON not in cells and (self.read or types.keys() - {_CLASS, _CAPTION}):
            return "E-ANN-MISSING", "no .json member with its base name is next to it"
        json = cells.pop(_JSON, "{}").encode()
        return self.read(json) if self.read else read_values(json, types, cells)

    def _class_of(self, text: str) -> SideSample | Reason:
        if not _NUMBER.fullmatch(text):
            return "E-SRC-LABEL", f".cls holds {text[:40]!r}, not a whole number of 1 to 5 digits"
        number = int(text)
        if 0 < len(self._names) <= number:  # its digits may be another class's name
            many = f"the label file has {len(self._names)} classes"
            return "E-SRC-LABEL", f".cls holds {number}, {many}"
        name = self._names[number] if self._names else str(number)
        return SideSample(SplitTally("", class_names=[name]), pack(ClassFields(name)))

    @functools.cached_property
    def _names(self) -> list[str]:
        """Names of the classes by number, from 0; none without a label file."""
        if not self.label_file:
            return []
        labels = read_label_file(storage.read_uri(self.label_file, self.access), 0, self.label_file)
        return [label.name for label in labels]


def walk_members(stream: IO[bytes], where: str) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar file up to its end, and check that nothing follows.

    `TarFile.next` would take a damaged header for the end, and keep every member in memory.

    Raises:
        RuntimeError: `E-SRC-DAMAGED` when the rest of the file cannot be read, or a storage fault.
    """
    at = 0
    try:
        with tarfile.open(
            fileobj=stream, mode="r:", encoding="utf-8", errors="backslashreplace"
        ) as tar:
            stream.seek(at)
            while stream.read(tarfile.BLOCKSIZE) != _END:
                stream.seek(at)
                info = tarfile.TarInfo.fromtarfile(tar)
                if tar.offset <= at:  # would never end
                    raise tarfile.ReadError("a member of negative size")
                yield info
                at = tar.offset
                stream.seek(at)
        if stream.read(_MAX_END_BYTES).strip(b"\0"):
            raise tarfile.ReadError("another archive follows the end of the first")
    except Exception as error:  # tarfile raises many types for damaged bytes, MemoryError too
        if type(error) is RuntimeError or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise _damaged(where, f"cannot be read from byte {at} on", error) from None


def _damaged(where: str, what: str, error: Exception) -> RuntimeError:
    what += f" ({' '.join(str(error).split())[:200]})"
    return run_fault("E-SRC-DAMAGED", where, what, "restore it, or leave it out of --shards")


def _why_left_out(info: tarfile.TarInfo, name: str) -> str:
    """Return why a member is not part of a sample, or an empty text if it is one."""
    *folders, last = name.split("/")
    if not info.isreg() or info.issparse():
        return NOT_A_FILE
    if any(part.startswith(".") and part.strip(".") for part in (*folders, last)):
        return listing.HIDDEN
    return "" if last.partition(".")[1] else listing.NOT_AN_IMAGE


def _refused(where: str, what: str) -> RuntimeError:
    remedy = f"give --shards {', '.join((TAR, *DECOMPRESSORS))} files"
    return run_fault("E-ARG", where, what, remedy)
