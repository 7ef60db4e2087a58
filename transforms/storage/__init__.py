"""Storage of files: listings, pinned reads, create-only writes.

All other code reads and writes through this interface. `open_storage` chooses the storage by the
root: a local path, `gs://`, or a URI of another filesystem that Beam supports.
"""

import contextlib
import io
import math
import os
import posixpath
import re
import sys
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Protocol, cast

import google_crc32c
import msgspec

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.manifest import MANIFEST_NAME

SPOOL_PREFIX = "_spool-"
"""Prefix of new files in an output until they are published, where none can be anonymous."""

DEFAULT_READERS = 2
"""Number of files that a process reads in parallel from a local disk."""

DEFAULT_REMOTE_READERS = 64
"""Number of parallel reads from other stores: 2,000 images a second at 30 ms a request."""

Span = tuple[int, int]
"""A half-open range of bytes within a file."""

MAX_AT_ONCE_BYTES = 64 << 20
"""Limit of a single read from a stream: callers read headers and pieces."""

_CHUNK_BYTES = 8 << 20
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/(?!/)")


@dataclass(frozen=True)
class Access:
    """Settings for stores; the defaults suit most.

    Attributes:
        anonymous: whether to send no credentials, for public buckets.
        billing_project: project that pays for requests; empty for the bucket's project.
        kms_key: name of the key that encrypts new files; empty for the bucket's key.
        spool_dir: folder for shards before their upload, and for samples of an in-process run;
            empty for the system's temporary folder.
        max_reads_per_second: limit per worker process and bucket; 0 for none.
    """

    anonymous: bool = False
    billing_project: str = ""
    kms_key: str = ""
    spool_dir: str = ""
    max_reads_per_second: float = 0

    def __post_init__(self) -> None:
        """Refuse a rate that is not a positive number."""
        if not 0 <= self.max_reads_per_second < math.inf:
            what = "max_reads_per_second must be a number of requests, or 0 for no limit"
            raise ValueError(f"{what}, got {self.max_reads_per_second}: give for example 1000")

    def refuse_unused(self, images: Collection[str], others: Collection[str], output: str) -> None:
        """Refuse options that have no effect on these URIs.

        Args:
            images: roots of images.
            others: all other inputs; they may repeat the images and the output.
            output: root of the data set.

        Raises:
            ValueError: An option has no effect; the message has its value.
        """
        uris = [*images, *others, output]
        rules = (
            ("anonymous", not all(map(is_local, uris)), "a path that is not local"),
            ("billing_project", any(map(_is_gcs, uris)), "a path on gs://"),
            ("kms_key", _is_gcs(output), "an output on gs://"),
            ("max_reads_per_second", not all(map(is_local, images)), "images that are not local"),
        )
        for name, has_effect, where in rules:
            value = getattr(self, name)
            if value and not has_effect:
                raise ValueError(f"{name} must come with {where}, got {value}: leave it out")


DEFAULT_ACCESS = Access()


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One name in a listing, and the version of its bytes.

    Attributes:
        name: relative to the root, `/`-separated.
        size_bytes: size in bytes.
        pin: version of the bytes: the mtime in ns, or a store's generation.
        crc32c: CRC-32C of the bytes, where the store lists it.
        kind: `file`, `directory`, `fifo`, `socket`, `device` or `dangling link`; with the suffix
            `whose name is not UTF-8` for names that cannot be decoded.
    """

    name: str
    size_bytes: int
    pin: str
    crc32c: int | None = None
    kind: str = "file"


class NewFile(Protocol):
    """The bytes of a file that appears only with `publish`."""

    def write(self, parts: Sequence[bytes]) -> None:
        """Append the parts."""

    def publish(self, name: str) -> bool:
        """Create the file, whole and durable; return False if the name is taken."""

    def close(self) -> None:
        """Release the file; drop bytes that were not published."""


class Storage(Protocol):
    """The files below a root. Names are relative to it and literal, never globs.

    Methods retry transient errors. The text of any other error is one `E-IO-…` or `E-SRC-…` line.

    Attributes:
        root: path or URI of the root.
        lists_folders: whether a non-recursive listing includes folders.
    """

    root: str
    lists_folders: bool = True

    def uri(self, name: str) -> str:
        """Return the path or URI of a name, or of the root for an empty name."""
        return join_uri(self.root, name) if name else self.root

    def changed(self, name: str, what: str) -> RuntimeError:
        """Return the fault of a file that is missing or has changed since it was listed."""
        return source_changed(self.uri(name), what)

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[Entry]:
        """Yield every name below the root, or below its folder `prefix` (`_receipts/`).

        The order is arbitrary. A missing folder has no names. A non-recursive listing includes
        entries of kind `directory` if `lists_folders`.
        """

    def stat(self, name: str) -> Entry | None:
        """Return a name's entry, or None if it does not exist."""

    def entry_of(self, name: str) -> Entry:
        """Return the entry of a file that must exist.

        Raises:
            RuntimeError: `E-SRC-CHANGED`: it does not.
        """
        entry = self.stat(name)
        if entry is None:
            raise self.changed(name, "not there")
        return entry

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return a file's bytes; with `expected`, only if the file is still the listed one.

        A span is complete and from the expected file, but its checksum is not compared. An empty
        span may be returned without a request.

        Raises:
            RuntimeError: `E-SRC-CHANGED`: the file is missing, has changed, or ends before the
                span does.
        """

    def checked(
        self, data: bytes, found: Entry, expected: Entry | None, span: Span | None
    ) -> bytes:
        """Return bytes that were read, if they are complete and from the expected file.

        Args:
            data: bytes that were read.
            found: the file after the read.
            expected: the file as listed; only its size and pin are compared.
            span: range that was asked for; None for the whole file.

        Raises:
            RuntimeError: `E-SRC-CHANGED`.
        """
        listed = expected or found
        if (found.size_bytes, found.pin) != (listed.size_bytes, listed.pin):
            raise self.changed(found.name, "modified since it was listed")
        start, end = span or (0, found.size_bytes)
        if len(data) != end - start:
            raise self.changed(found.name, ends_early(found.size_bytes, (start, end)))
        return data

    def crc32c(self, name: str) -> int:
        """Return a file's CRC-32C, from the store or by reading the file in pieces."""
        entry = self.entry_of(name)
        if entry.crc32c is not None:
            return entry.crc32c
        return crc32c_of(open_unbuffered(self, entry))

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file whole; return False if the name is taken."""
        with contextlib.closing(self.new_file()) as pending:
            pending.write([data])
            return pending.publish(name)

    def new_file(self) -> NewFile:
        """Return an empty file that appears with `publish`, for large files."""

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""

    def delete_folder(self, prefix: str) -> None:
        """Delete all files below a folder of the root, such as `_staged/`."""
        for entry in [*self.list(prefix)]:
            self.delete(entry.name)

    def require_folder(self) -> None:
        """Check that the root exists, in stores that have folders.

        Raises:
            RuntimeError: `E-ARG`: the root is missing or not a folder.
        """
        return

    def probe(self) -> None:
        """Make the root if it is missing, and test it by creating and deleting a file.

        A bucket is only listed, since an account may have permission to create but not to delete.

        Raises:
            RuntimeError: `E-IO-…`, such as `E-IO-READONLY` or `E-IO-NOSPACE`.
        """
        name = f"{SPOOL_PREFIX}probe-{uuid.uuid4().hex}"
        self.create(name, b"\n")
        self.delete(name)


def open_storage(root: str, access: Access = DEFAULT_ACCESS) -> Storage:
    """Return the storage of a root: a local path, `file://…`, `gs://…`, or a URI for Beam.

    The images in the records of a data set have the root `DATA_SET/manifest.json/SPLIT`.
    """
    data_set, is_stored, split = root.partition(f"/{MANIFEST_NAME}/")
    if is_stored:
        from beam_tfrec.transforms.storage.read_data_set import StoredImages

        return StoredImages(open_storage(data_set, access), split)
    if is_local(root):
        from beam_tfrec.transforms.storage.local import LocalStorage

        return LocalStorage(root.removeprefix("file://"))
    if _is_gcs(root):
        from beam_tfrec.transforms.storage.gcs import GcsStorage

        return GcsStorage(root, access)
    from beam_tfrec.transforms.storage.beam_filesystem import BeamStorage

    return BeamStorage(root, access)


def check_uri(uri: str) -> None:
    """Refuse a URI with an empty part, which stores read differently, or with one `/` too few.

    Raises:
        ValueError: The URI has `//` after its store, or only one `/` after its scheme.
    """
    if _ONE_SLASH.match(uri):  # it would be a local folder called `gs:`
        form = "file:///PATH" if uri.startswith("file:") else "SCHEME://PATH"
        raise ValueError(f"a URI must be {form}, got {uri!r}: correct it, or put ./ before a path")
    if not is_local(uri) and "//" in uri.partition("://")[2]:
        raise ValueError(f"a path must not hold '//' after its store, got {uri!r}: write one '/'")


def _is_gcs(uri: str) -> bool:
    return uri.startswith("gs://")


def is_local(root: str) -> bool:
    """Return whether a root is on this machine: a path or `file://…`."""
    scheme = _URI.match(root)
    return scheme is None or scheme[1] == "file"


def is_beams(root: str) -> bool:
    """Return whether a root is read through one of Beam's filesystems.

    >>> is_beams("hdfs://host/out"), is_beams("gs://b/out"), is_beams("/out")
    (True, False, False)
    """
    return not is_local(root) and not _is_gcs(root)


def split_uri(uri: str) -> tuple[str, str]:
    """Split a file's path or URI into a root and a name.

    >>> split_uri("gs://bucket/coco/instances.json"), split_uri("instances.json")
    (('gs://bucket/coco', 'instances.json'), ('.', 'instances.json'))
    """
    head, name = posixpath.split(uri)
    return head or ".", name


def find_uri(
    uri: str, access: Access = DEFAULT_ACCESS, *, lacks: str = ""
) -> tuple[Storage, Entry]:
    """Return the storage and the entry of a single file that the user named.

    Args:
        uri: path or URI of the file.
        access: settings for reading from its store.
        lacks: what a folder lacks to be accepted, such as `manifest.json`; for messages.

    Raises:
        RuntimeError: `E-ARG`: the file does not exist.
    """
    root, name = split_uri(uri)
    storage = open_storage(root, access)
    entry = storage.stat(name)
    if entry is None or entry.kind != "file":
        what = "no such file" if entry is None else f"a {entry.kind}, not a file"
        remedy = "give a finished data set or a file" if lacks else "give the path of a file"
        if lacks and entry and entry.kind == "directory":
            what = f"has no {lacks}"
        raise run_fault("E-ARG", uri, what, remedy)
    return storage, entry


def read_uri(uri: str, access: Access = DEFAULT_ACCESS) -> bytes:
    """Return the bytes of a single file that the user named.

    Raises:
        RuntimeError: `E-ARG`: the file does not exist.
    """
    storage, entry = find_uri(uri, access)
    return storage.read(entry.name, entry)


def name_below(root: str, uri: str) -> str | None:
    """Return a path's name relative to a root, or None if it is not below the root.

    >>> name_below("gs://b/photos", "gs://b/photos/out"), name_below("gs://b", "gs://b2/out")
    ('out', None)
    """
    prefix, path = _canonical(root).rstrip("/") + "/", _canonical(uri)
    return path[len(prefix) :] if f"{path}/".startswith(prefix) else None


def _canonical(uri: str) -> str:
    if "\0" in uri or (_URI.match(uri) and not uri.startswith("file://")):
        return uri.rstrip("/")  # not a local path
    return os.path.realpath(uri.removeprefix("file://"))


def join_uri(root: str, name: str) -> str:
    """Return the path or URI of a name below a root.

    >>> join_uri("gs://b/coco", "a.json"), join_uri("/", "a.json")
    ('gs://b/coco/a.json', '/a.json')
    """
    return f"{root.rstrip('/')}/{name}"


def ends_early(size_bytes: int, span: Span) -> str:
    """Return the detail of a fault: the file ends before the span does."""
    return f"{size_bytes} bytes, those from {span[0]} to {span[1]} were asked for"


def source_changed(where: str, what: str) -> RuntimeError:
    """Return the fault of a file that is missing or has changed since it was listed."""
    return run_fault("E-SRC-CHANGED", where, what, "run again when the source no longer changes")


def open_unbuffered(storage: Storage, entry: Entry) -> IO[bytes]:
    """Return a listed file as a stream that requests each read, of any size, and copies nothing."""
    return cast(IO[bytes], _StoredFile(storage, entry, sys.maxsize))


def open_stored(
    storage: Storage, entry: Entry, buffer_bytes: int, max_at_once_bytes: int = MAX_AT_ONCE_BYTES
) -> io.BufferedReader:
    """Return a listed file as a stream, without reading yet.

    Args:
        storage: storage of the file.
        entry: entry of the file in a listing.
        buffer_bytes: smallest size of a request.
        max_at_once_bytes: limit of a single read; larger reads raise `ValueError`.
    """
    return io.BufferedReader(_StoredFile(storage, entry, max_at_once_bytes), buffer_bytes)


def crc32c_of(file: IO[bytes]) -> int:
    """Return the CRC-32C of the rest of a file, read in pieces."""
    crc32c = 0
    while chunk := file.read(_CHUNK_BYTES):
        crc32c = google_crc32c.extend(crc32c, chunk)
    return crc32c


class _StoredFile(io.RawIOBase):
    """Raw stream over a stored file; each read requests one span."""

    def __init__(self, storage: Storage, entry: Entry, max_at_once_bytes: int) -> None:
        self._storage = storage
        self._entry = entry
        self._max_at_once_bytes = max_at_once_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.size_bytes}
        self._position = begin[whence] + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:  # the base class would make many requests
        return self.read(self._entry.size_bytes)

    def read(self, size: int = -1) -> bytes:  # the base class would copy twice
        left_bytes = self._entry.size_bytes - self._position
        size_bytes = left_bytes if size < 0 else min(size, left_bytes)
        if size_bytes > self._max_at_once_bytes:
            raise ValueError(f"{size_bytes} bytes at once")
        if size_bytes <= 0:
            return b""
        start, self._position = self._position, self._position + size_bytes
        return self._storage.read(self._entry.name, self._entry, (start, self._position))
