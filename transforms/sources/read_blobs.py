"""Read the bytes of a blob: a file, a range of it, or a range of an archive's member.

`read_members` and `open_array` find the arrays of a `.npy` file or a `.npz` archive.
"""

import errno
import os
import shutil
import struct
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

import google_crc32c
import msgspec

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.samples import Blob
from beam_tfrec.schemas.tensors import HEAD_BYTES, NpyHeader, parse_npy_header
from beam_tfrec.transforms.storage import Entry, Span, Storage, join_uri, open_stored
from beam_tfrec.transforms.storage.disk import ELSEWHERE, coded, open_temporary

NPY = ".npy"

_LENGTHS_OFFSET = 26  # offset of the lengths of name and extra field in a member's header

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_DIRECTORY_BUFFER_BYTES = 64 << 10

_PIECE_BYTES = 8 << 20  # size of a request to the store

_SAVE_AGAIN = "save it again with numpy.savez or numpy.savez_compressed"


class UnpackedMembers:
    """Cache of unpacked archive members in a process; it is emptied when its last user leaves."""

    def __init__(self) -> None:
        """Make an empty cache."""
        self._lock = threading.Lock()
        self._users = 0
        self._folder = ""
        self._locks: dict[tuple, threading.Lock] = {}
        self._files: dict[tuple, IO[bytes]] = {}

    def enter(self, folder: str = "") -> None:
        """Add a user; unpack new members into this folder if it is given."""
        with self._lock:
            self._users += 1
            self._folder = folder or self._folder

    def leave(self) -> None:
        """Remove a user; after the last one, delete all unpacked members."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            files, self._files, self._locks = self._files, {}, {}
        for file in files.values():
            file.close()

    def bytes_of(self, storage: Storage, entry: Entry, member: str, span: Span) -> bytes:
        """Return a range of a member's bytes; unpack the member on first use.

        Raises:
            RuntimeError: `E-ARR-ZIP` when the member's size or CRC-32 is wrong, or a storage fault.
        """
        key = (storage.root, entry.name, entry.pin, member)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._files:
                with _archive(storage, entry) as (archive, _), archive.open(member) as packed:
                    # `zipfile` checks size and CRC-32.
                    self._files[key] = unpack(packed, self._folder)
            file = self._files[key]
        start, end = span
        data = os.pread(file.fileno(), end - start, start)
        if len(data) != end - start:
            raise _bad_zip(storage, entry, f"{member} ends before byte {end}")
        return data


UNPACKED = UnpackedMembers()
"""The cache of this process."""


class Member(NamedTuple):
    """Position of an array in a `.npy` file or a `.npz` archive.

    Attributes:
        packed: name of the compressed member; empty if the file holds the bytes uncompressed.
        start: start offset in the unpacked member, or in the file if it is uncompressed.
        end: end offset, relative to the same start.
        head: first bytes of the array, with its header.
    """

    packed: str
    start: int
    end: int
    head: bytes


class StoredArray(msgspec.Struct, frozen=True, array_like=True):
    """An array, and its position in a file.

    Attributes:
        folder: URI of the file's folder.
        entry: listed file.
        header: header of the array; its offsets are in the file, or in the unpacked member.
        where: URI of the file, with the name of an archive's member, for messages.
        packed: name of the compressed member with the array; empty if it is not compressed.
    """

    folder: str
    entry: Entry
    header: NpyHeader
    where: str
    packed: str

    @property
    def rows(self) -> int:
        """Length of the first axis; 1 for a scalar."""
        return self.header.shape[0] if self.header.shape else 1

    def part(self, start: int, rows: int) -> "StoredArray":
        """Return a slice of at most `rows` rows."""
        shape = (min(rows, self.rows - start), *self.header.shape[1:])
        begin = self.header.start + start * self.header.item_bytes
        header = msgspec.structs.replace(self.header, start=begin, shape=shape)
        return msgspec.structs.replace(self, header=header)

    def blob(self, root: str, row: int, rows: int = 1) -> Blob:
        """Return a slice of rows as a blob."""
        file, item_bytes = self.entry, self.header.item_bytes
        span = (self.header.start + row * item_bytes, rows * item_bytes, self.packed)
        return Blob(root, file.name, file.size_bytes, file.pin, file.crc32c, *span)


def read_blob(storage: Storage, blob: Blob) -> bytes:
    """Read a blob, and check that its file has not changed since the listing.

    Raises:
        RuntimeError: `E-SRC-CHANGED`, `E-ARR-ZIP`, or a storage fault.
    """
    listed = Entry(blob.name, blob.size_bytes, blob.pin, blob.crc32c)
    span = None if blob.length < 0 else (blob.offset, blob.offset + blob.length)
    if blob.member and span is not None and not blob.is_member:
        return UNPACKED.bytes_of(storage, listed, blob.member, span)
    data = storage.read(blob.name, listed, span)
    if blob.is_staged and google_crc32c.value(data) != blob.crc32c:
        raise storage.changed(blob.name, f"other bytes at {blob.offset} than were staged")
    return data


def read_members(storage: Storage, entry: Entry) -> dict[str, Member]:
    """Return the position of each array in an archive, by its name; that of a `.npy` file has none.

    Raises:
        RuntimeError: `E-ARR-ZIP` when the archive cannot be read, or a storage fault.
    """
    if entry.name.endswith(NPY):
        with open_stored(storage, entry, 1) as file:
            return {"": Member("", 0, entry.size_bytes, file.read(HEAD_BYTES))}
    members: dict[str, Member] = {}
    with _archive(storage, entry) as (archive, file):
        for info in archive.infolist():
            if not info.filename.endswith(NPY):
                continue
            name = info.filename.removesuffix(NPY)
            if name in members:
                raise zipfile.BadZipFile(f"several arrays have the name {name}")
            if info.flag_bits & 1 or info.compress_type not in _METHODS:  # bit 0: encrypted
                raise zipfile.BadZipFile(f"{name} is encrypted, or compressed with another method")
            with archive.open(info) as member:  # also checks the member's own header
                head = member.read(HEAD_BYTES)
            if info.compress_type == zipfile.ZIP_DEFLATED:
                members[name] = Member(info.filename, 0, info.file_size, head)
                continue
            file.seek(info.header_offset + _LENGTHS_OFFSET)
            lengths = struct.unpack("<HH", file.read(4))
            start = file.tell() + sum(lengths)
            end = min(start + info.file_size, entry.size_bytes)
            members[name] = Member("", start, end, head)
    return members


def open_array(
    storage: Storage, entry: Entry, member: Member, dtype: str | None, name: str = ""
) -> StoredArray:
    """Parse the header of a file or of an archive's member, and check its size.

    Args:
        storage: folder of the file.
        entry: listed file.
        member: position of the array.
        dtype: see `parse_npy_header`.
        name: name of the member; empty for a file.

    Raises:
        RuntimeError: `E-ARR-HEADER` or `E-ARR-TYPE`.
    """
    where = join_uri(storage.root, entry.name) + (f":{name}" if name else "")
    try:
        header = parse_npy_header(member.head, dtype)
    except ValueError as error:
        what, _, remedy = str(error).rpartition(": ")
        code = "E-ARR-HEADER" if what.startswith("a .npy file") else "E-ARR-TYPE"
        raise run_fault(code, where, what, remedy) from None
    size_bytes = member.end - member.start
    # A compressed member must not be longer, since all of it is unpacked.
    if header.end > size_bytes or (member.packed and header.end != size_bytes):
        what = f"{size_bytes} bytes, its header says {header.end}"
        raise run_fault("E-ARR-HEADER", where, what, "copy the file again, or save it again")
    moved = msgspec.structs.replace(header, start=header.start + member.start)
    return StoredArray(storage.root, entry, moved, where, member.packed)


def unpack(packed: IO[bytes], folder: str) -> IO[bytes]:
    """Copy a stream that decompresses to an unnamed local file.

    Raises:
        RuntimeError: a fault of the disk.
        OSError: without `errno`, when the stream is damaged.
    """
    unpacked, where = open_temporary(folder)
    try:
        shutil.copyfileobj(packed, unpacked, _PIECE_BYTES)
        unpacked.flush()
    except OSError as error:
        if error.errno is None:
            raise
        raise coded(error, where, ELSEWHERE) from error
    return unpacked


@contextmanager
def _archive(storage: Storage, entry: Entry) -> Iterator[tuple[zipfile.ZipFile, IO[bytes]]]:
    """Open an archive; errors of its content are raised as `E-ARR-ZIP`."""
    try:
        with (
            open_stored(storage, entry, _DIRECTORY_BUFFER_BYTES) as file,
            zipfile.ZipFile(file) as archive,
        ):
            yield archive, file
    except Exception as error:  # zipfile raises many types for damaged bytes
        is_fault = type(error) in (RuntimeError, MemoryError)
        if is_fault or getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise _bad_zip(storage, entry, what) from error


def _bad_zip(storage: Storage, entry: Entry, what: str) -> RuntimeError:
    return run_fault("E-ARR-ZIP", join_uri(storage.root, entry.name), what, _SAVE_AGAIN)
