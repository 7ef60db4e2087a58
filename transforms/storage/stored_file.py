"""A stored file read by spans: in chunks, or as a stream that can be sought in, for libraries."""

import errno
import io
import os
from collections.abc import Iterator

from transforms.storage import Entry, Storage

MAX_AT_ONCE_BYTES = 64 << 20
"""Bytes that are read ahead for headers and pieces of a file without a checksum."""


def open_stored(
    storage: Storage, entry: Entry, buffer_bytes: int, max_at_once_bytes: int = MAX_AT_ONCE_BYTES
) -> io.BufferedReader:
    """Return a file, as it was listed, as a stream; nothing is read yet.

    Args:
        storage: that holds the file.
        entry: as listed.
        buffer_bytes: asked for at once, at least.
        max_at_once_bytes: a read of more is a `ValueError`.
    """
    return io.BufferedReader(_StoredFile(storage, entry, max_at_once_bytes), buffer_bytes)


def read_chunks(
    storage: Storage, entry: Entry, start: int, end: int, chunk_bytes: int
) -> Iterator[bytes]:
    """Yield the bytes of a span of a file, as it was listed, so many at a time."""
    for at in range(start, end, chunk_bytes):
        yield storage.read(entry.name, entry, (at, min(at + chunk_bytes, end)))


class _StoredFile(io.RawIOBase):
    """Each read is of one span."""

    def __init__(self, storage: Storage, entry: Entry, max_at_once_bytes: int) -> None:
        self._storage = storage
        self._entry = entry
        self._max_at_once_bytes = max_at_once_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.size_bytes}
        if begin[whence] + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))  # as of a file of a disk
        self._position = begin[whence] + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._next(self._entry.size_bytes)

    def _next(self, size_bytes: int) -> bytes:
        end = max(min(self._position + size_bytes, self._entry.size_bytes), self._position)
        if end - self._position > self._max_at_once_bytes:
            raise ValueError(f"{end - self._position} bytes at once")
        if end == self._position:
            return b""
        data = self._storage.read(self._entry.name, self._entry, (self._position, end))
        self._position = end
        return data
