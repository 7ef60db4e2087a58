"""Read the bytes that a blob stands for: a file, a span of one, or of a compressed member."""

import errno
import os
import struct
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.samples import Blob
from beam_tfrec.schemas.tensors import HEAD_BYTES
from beam_tfrec.transforms.storage import Entry, Span, Storage, join_uri, open_stored
from beam_tfrec.transforms.storage.disk import coded

NPY, NPZ = ".npy", ".npz"

_LENGTHS_OFFSET = 26  # in a member's own header, of the lengths of its name and extra field

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_DIRECTORY_BUFFER_BYTES = 64 << 10

_PIECE_BYTES = 8 << 20  # each is asked of the store alone

_SAVE_AGAIN = "save it again with numpy.savez or numpy.savez_compressed"


class UnpackedMembers:
    """The compressed members that a process has unpacked, for as long as anyone may read them."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._lock = threading.Lock()
        self._users = 0
        self._folder = ""
        self._locks: dict[tuple, threading.Lock] = {}
        self._files: dict[tuple, IO[bytes]] = {}

    def enter(self, folder: str = "") -> None:
        """Begin to use them; new ones go into this folder, if it is given."""
        with self._lock:
            self._users += 1
            self._folder = folder or self._folder

    def leave(self) -> None:
        """End to use them; with its last user each is gone."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            files, self._files, self._locks = self._files, {}, {}
        for file in files.values():
            file.close()

    def bytes_of(self, storage: Storage, entry: Entry, member: str, span: Span) -> bytes:
        """Return a span of a member, which is unpacked if it is not yet.

        Raises:
            RuntimeError: `E-ARR-ZIP` when its bytes are not those that the archive names, or a
                storage fault.
        """
        key = (storage.root, entry.name, entry.pin, member)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._files:
                self._files[key] = _unpack(storage, entry, member, self._folder)
            file = self._files[key]
        start, end = span
        data = os.pread(file.fileno(), end - start, start)
        if len(data) != end - start:
            raise _bad_zip(storage, entry, f"{member} ends before byte {end}")
        return data


UNPACKED = UnpackedMembers()
"""Of this process."""


class Member(NamedTuple):
    """An array of an archive.

    Attributes:
        packed: name of the member where it is compressed; empty where its bytes are the file's.
        start: where its bytes begin: in the file's, or where it is compressed in its own.
        end: where they end.
        head: its first bytes, for its header.
    """

    packed: str
    start: int
    end: int
    head: bytes


def read_blob(storage: Storage, blob: Blob) -> bytes:
    """Return a blob's bytes, those of the file that was listed.

    Raises:
        RuntimeError: `E-SRC-CHANGED`, `E-ARR-ZIP`, or a storage fault.
    """
    listed = Entry(blob.name, blob.size_bytes, blob.pin, blob.crc32c)
    span = None if blob.length < 0 else (blob.offset, blob.offset + blob.length)
    if blob.member and span is not None:
        return UNPACKED.bytes_of(storage, listed, blob.member, span)
    return storage.read(blob.name, listed, span)


def read_members(storage: Storage, entry: Entry) -> dict[str, Member]:
    """Return where each array of an archive lies, and how it begins, by its name.

    Raises:
        RuntimeError: `E-ARR-ZIP` when it cannot be read, or a storage fault.
    """
    members: dict[str, Member] = {}
    with _archive(storage, entry) as (archive, file):
        for info in archive.infolist():
            if not info.filename.endswith(NPY):
                continue
            name = info.filename.removesuffix(NPY)
            if name in members:
                raise zipfile.BadZipFile(f"several arrays {name}")
            if info.flag_bits & 1 or info.compress_type not in _METHODS:  # 1: encrypted
                raise zipfile.BadZipFile(f"{name} is encrypted, or packed by another method")
            with archive.open(info) as member:  # after a look at the member's own header
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


def _unpack(storage: Storage, entry: Entry, member: str, folder: str) -> IO[bytes]:
    """Return an unnamed file with a member's bytes, after checking their number and CRC-32."""
    where = folder or tempfile.gettempdir()
    try:
        file = tempfile.TemporaryFile(dir=folder or None)
        with _archive(storage, entry) as (archive, _), archive.open(member) as packed:
            while piece := packed.read(_PIECE_BYTES):
                file.write(piece)
        file.flush()
    except OSError as error:
        raise coded(error, where, "give a --spool_dir with room, then run again") from error
    return file


@contextmanager
def _archive(storage: Storage, entry: Entry) -> Iterator[tuple[zipfile.ZipFile, IO[bytes]]]:
    """Open an archive; whatever is wrong with it becomes its fault."""
    try:
        with (
            open_stored(storage, entry, _DIRECTORY_BUFFER_BYTES) as file,
            zipfile.ZipFile(file) as archive,
        ):
            yield archive, file
    except Exception as error:  # whatever zipfile makes of damaged bytes
        is_fault = type(error) in (RuntimeError, MemoryError)
        if is_fault or getattr(error, "errno", None) not in (None, errno.EINVAL):
            raise
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise _bad_zip(storage, entry, what) from error


def _bad_zip(storage: Storage, entry: Entry, what: str) -> RuntimeError:
    where = join_uri(storage.root, entry.name)
    return RuntimeError(fault_line("E-ARR-ZIP", where, what, _SAVE_AGAIN))
