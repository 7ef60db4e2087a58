"""A long source file as a text in pieces, and by what it is recognised once it was read."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import google_crc32c

from schemas.annotations.json_pieces import HeldText
from transforms.sources.split_sources import identity_of, read_identified
from transforms.storage import DEFAULT_ACCESS, Access, Entry, Storage, find_uri
from transforms.storage.stored_file import read_chunks

_BYTES_AT_ONCE = 2**23


class SourceText:
    """A source file whose bytes nobody holds but who reads it.

    A file that changes between two pieces is refused, as its pin tells.
    """

    def __init__(self, uri: str, access: Access = DEFAULT_ACCESS) -> None:
        """Take the file's URI; nothing is read yet."""
        self._uri = uri
        self._access = access
        self._identity = ""

    @property
    def identity(self) -> str:
        """By what `uri_identity` recognises the file, once it was read to its end."""
        assert self._identity
        return self._identity

    def pieces(self) -> Iterator[bytes]:
        """Yield the file from its beginning; each piece is read while the last one is in use.

        Raises:
            RuntimeError: `E-ARG` when there is no such file, or a storage fault.
            ValueError: when they have another checksum than the store has of the file.
        """
        storage, entry = find_uri(self._uri, self._access)
        if entry.size_bytes <= _BYTES_AT_ONCE:  # as one object, whose checksum a store checks
            yield self.whole()
            return
        with ThreadPoolExecutor(max_workers=1) as reader:
            pieces = self._read(storage, entry)
            ahead = reader.submit(next, pieces, b"")
            while piece := ahead.result():
                ahead = reader.submit(next, pieces, b"")
                yield from HeldText(piece).pieces()

    def whole(self) -> bytes:
        """Return all of it.

        Raises:
            RuntimeError: `E-ARG` when there is no such file, or a storage fault.
        """
        data, self._identity = read_identified(self._uri, self._access)
        return data

    def _read(self, storage: Storage, entry: Entry) -> Iterator[bytes]:
        crc32c = 0
        for piece in read_chunks(storage, entry, 0, entry.size_bytes, _BYTES_AT_ONCE):
            crc32c = google_crc32c.extend(crc32c, piece)
            yield piece
        if entry.crc32c not in (None, crc32c):
            raise ValueError(f"{entry.name} has crc32c {entry.crc32c}, what was read {crc32c}")
        self._identity = identity_of(entry, crc32c)
