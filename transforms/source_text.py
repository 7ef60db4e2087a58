"""A long source file as a text in pieces, and by what it is recognised once it was read."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import google_crc32c

from schemas.json_pieces import HeldText
from transforms.sources import identity_of
from transforms.storage import DEFAULT_ACCESS, Access, Entry, Storage, find_uri
from transforms.storage.stored_file import read_chunks

_BYTES_AT_ONCE = 2**23


class SourceText:
    """A source file whose bytes nobody holds but who reads it.

    A file that changes between two pieces is refused, as its pin tells.
    """

    def __init__(self, storage: Storage, entry: Entry) -> None:
        """Take the file as it was listed; nothing is read yet."""
        self._storage = storage
        self._entry = entry
        self._crc32c: int | None = None

    @property
    def identity(self) -> str:
        """By what `uri_identity` recognises the file, once it was read to its end."""
        assert self._crc32c is not None
        return identity_of(self._entry, self._crc32c)

    def pieces(self) -> Iterator[bytes]:
        """Yield the file from its beginning; each piece is read while the last one is in use.

        Raises:
            RuntimeError: a storage fault.
            ValueError: when they have another checksum than the store has of the file.
        """
        if self._entry.size_bytes <= _BYTES_AT_ONCE:  # as one object, whose checksum a store checks
            yield self.whole()
            return
        with ThreadPoolExecutor(max_workers=1) as reader:
            pieces = self._read()
            ahead = reader.submit(next, pieces, b"")
            while piece := ahead.result():
                ahead = reader.submit(next, pieces, b"")
                yield from HeldText(piece).pieces()

    def whole(self) -> bytes:
        """Return all of it.

        Raises:
            RuntimeError: a storage fault.
        """
        data = self._storage.read(self._entry.name, self._entry)
        self._crc32c = google_crc32c.value(data)
        return data

    def _read(self) -> Iterator[bytes]:
        entry, crc32c = self._entry, 0
        for piece in read_chunks(self._storage, entry, 0, entry.size_bytes, _BYTES_AT_ONCE):
            crc32c = google_crc32c.extend(crc32c, piece)
            yield piece
        if entry.crc32c not in (None, crc32c):
            raise ValueError(f"{entry.name} has crc32c {entry.crc32c}, what was read {crc32c}")
        self._crc32c = crc32c


def open_source(uri: str, access: Access = DEFAULT_ACCESS) -> SourceText:
    """Return a file that the user named.

    Raises:
        RuntimeError: `E-ARG` when there is no such file, or a storage fault.
    """
    return SourceText(*find_uri(uri, access))
