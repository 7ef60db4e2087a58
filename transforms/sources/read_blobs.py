"""Read the bytes that a blob stands for: a file, a span of one, or of a compressed member."""

import errno
import os
import struct
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from schemas.faults import fault_line
from schemas.samples import Blob
from schemas.tensors import HEAD_BYTES
from transforms.storage import Entry, Span, Storage, join_uri, open_stored
from transforms.storage.disk import coded

NPY, NPZ = ".npy", ".npz"

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field

_LOCAL_SIGNATURE = b"PK\3\4"

_ENCRYPTED = 1

_DIRECTORY_BUFFER_BYTES = 64 << 10

_PIECE_BYTES = 8 << 20  # each is asked of the store alone

_BAD_ZIP = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    NotImplementedError,
    EOFError,
    ValueError,
    OverflowError,
    struct.error,
    zlib.error,
)

SAVE_AGAIN = "save it again with numpy.savez or numpy.savez_compressed"


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
        file = self._unpacked(storage, entry, member)
        start, end = span
        data = os.pread(file.fileno(), end - start, start)
        if len(data) != end - start:
            raise _bad_zip(storage, entry, f"{member} ends before byte {end}")
        return data

    def _unpacked(self, storage: Storage, entry: Entry, member: str) -> IO[bytes]:
        key = (storage.root, entry.name, entry.pin, member)
        if (found := self._files.get(key)) is not None:
            return found
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._files:
                self._files[key] = _unpack(storage, entry, member, self._folder)
            return self._files[key]


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


def list_members(storage: Storage, entry: Entry) -> list[str]:
    """Return the names of the arrays of an archive, as its directory has them.

    Raises:
        RuntimeError: `E-ARR-ZIP` when it is none, or a storage fault.
    """
    with _archive(storage, entry) as archive:
        return [
            info.filename.removesuffix(NPY)
            for info in archive.infolist()
            if info.filename.endswith(NPY)
        ]


def find_member(storage: Storage, entry: Entry, name: str) -> Member:
    """Return where an array of an archive lies, and how it begins.

    Raises:
        RuntimeError: `E-ARR-ZIP` when it cannot be read, or a storage fault.
    """
    with _archive(storage, entry) as archive:
        info = _info_of(archive, f"{name}{NPY}")
        if info.compress_type == zipfile.ZIP_STORED:
            start = _data_start(archive, info)
            end = start + info.file_size
            if end > entry.size_bytes:
                raise zipfile.BadZipFile(f"{name} ends after the file's end")
            file = _stream(archive)
            file.seek(start)
            head = file.read(min(HEAD_BYTES, end - start))
            return Member("", start, end, head)
        with archive.open(info) as packed:
            head = packed.read(HEAD_BYTES)
        return Member(info.filename, 0, info.file_size, head)


def _unpack(storage: Storage, entry: Entry, member: str, folder: str) -> IO[bytes]:
    """Return an unnamed file with a member's bytes, after checking their number and CRC-32."""
    where = folder or tempfile.gettempdir()
    try:
        file = tempfile.TemporaryFile(dir=folder or None)
        with _archive(storage, entry) as archive, archive.open(_info_of(archive, member)) as packed:
            while piece := packed.read(_PIECE_BYTES):
                file.write(piece)
        file.flush()
    except OSError as error:
        raise coded(error, where, "give a --spool_dir with room, then run again") from error
    return file


@contextmanager
def _archive(storage: Storage, entry: Entry) -> Iterator[zipfile.ZipFile]:
    """Open an archive; whatever is wrong with it becomes its fault."""
    try:
        with (
            open_stored(storage, entry, _DIRECTORY_BUFFER_BYTES) as file,
            zipfile.ZipFile(file) as archive,
        ):
            yield archive
    except _BAD_ZIP as error:
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise _bad_zip(storage, entry, what) from error
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # else an offset before the beginning
            raise
        raise _bad_zip(storage, entry, "a place before its beginning") from error


def _info_of(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    try:
        info = archive.getinfo(member)
    except KeyError:
        raise zipfile.BadZipFile(f"no array {member}") from None
    if sum(other.filename == member for other in archive.infolist()) > 1:
        raise zipfile.BadZipFile(f"several arrays {member}")
    if info.flag_bits & _ENCRYPTED:
        raise zipfile.BadZipFile(f"{member} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"{member} is compressed by method {info.compress_type}")
    return info


def _data_start(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> int:
    """Return where a member's bytes begin: after its header, which gives its own lengths."""
    file = _stream(archive)
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_LOCAL_SIGNATURE):
        raise zipfile.BadZipFile(f"no header of {info.filename} where it should be")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    return info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes


def _stream(archive: zipfile.ZipFile) -> IO[bytes]:
    assert archive.fp is not None, "the archive is open"
    return archive.fp


def _bad_zip(storage: Storage, entry: Entry, what: str) -> RuntimeError:
    where = join_uri(storage.root, entry.name)
    return RuntimeError(fault_line("E-ARR-ZIP", where, what, SAVE_AGAIN))
