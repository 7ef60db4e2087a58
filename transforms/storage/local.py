"""Local paths: listing by `scandir`, pinned reads, and files that appear whole or not at all.

A file is written into an anonymous inode (`O_TMPFILE`), synced and then linked to its name. The
link fails when the name exists. No temporary name is left to clean up or to mistake for data.
Where anonymous files or hard links are missing, a named spool under a lock and
`renameat2(RENAME_NOREPLACE)` do the same.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import posixpath
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import google_crc32c

from schemas.faults import fault_line
from transforms.storage import (
    EVERYTHING,
    SPOOL_DIR,
    Bounds,
    Entry,
    Span,
    Spool,
    ends_early,
    join_uri,
    source_changed,
    within,
)
from transforms.storage.disk import coded, coding, publish_whole
from transforms.storage.retries import retry

_TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ENETUNREACH}
_NO_ANONYMOUS_FILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_NO_LINK = {errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.ENOENT, errno.EMLINK}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}  # SMB, some FUSE
_LEADS_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_NOT_THERE = (FileNotFoundError, NotADirectoryError)
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_MAX_PARTS = 1024  # IOV_MAX
_PIECE_BYTES = 4 << 20
_SYNC_BYTES = 1 << 20
_FOLDER_TRIES = 10
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
T = TypeVar("T")


class LocalStorage:
    """Files below a local directory."""

    lists_by_name = False
    lists_folders = True

    def __init__(self, root: str) -> None:
        """Take the directory's path; nothing is read or made yet.

        Raises:
            ValueError: when it holds a NUL.
        """
        if "\0" in root:
            raise ValueError(f"a path must not hold a NUL, got {root!r}: remove it")
        self.root = root or "."

    def list(
        self, prefix: str = "", *, recursive: bool = True, bounds: Bounds = EVERYTHING
    ) -> Iterator[Entry]:
        """Yield every name below the root or a folder of it; follow links, but not in circles."""
        return within(self._walk(prefix, frozenset(), recursive), bounds)

    def stat(self, name: str) -> Entry | None:
        """Return a name's entry, None when there is none."""
        try:
            found = self._run(name, lambda: os.stat(self._path(name)), _NOT_THERE)
        except _NOT_THERE:
            return None
        return _entry(name, found)

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return a file's bytes; with `expected`, only if size and mtime are those listed."""
        try:
            data, found = self._run(name, lambda: self._read_once(name, expected, span), _NOT_THERE)
        except _NOT_THERE:
            raise self._changed(name, "not there") from None
        wanted = expected or found
        if found.kind != "file":
            raise self._changed(name, f"a {found.kind}, not a file")
        if span is not None and found.size_bytes == wanted.size_bytes:
            if len(data) != span[1] - span[0]:
                raise self._changed(name, ends_early(found.size_bytes, span))
        elif not found.size_bytes == len(data) == wanted.size_bytes:
            raise self._changed(name, f"{found.size_bytes} bytes, {wanted.size_bytes} were listed")
        if found.pin != wanted.pin:
            raise self._changed(name, "modified since it was listed")
        return data

    def crc32c(self, name: str) -> int:
        """Return a file's CRC-32C."""
        try:
            return self._run(name, lambda: self._crc32c_once(name), _NOT_THERE)
        except _NOT_THERE:
            raise self._changed(name, "not there") from None

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file whole; False when the name is taken."""
        return publish_whole(self.spool(), name, data)

    def spool(self) -> Spool:
        """Return an anonymous file in the root's filesystem."""
        return _LocalSpool(self)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with contextlib.suppress(*_NOT_THERE):
            self._run(name, lambda: os.unlink(self._path(name)), _NOT_THERE)

    def require_folder(self) -> None:
        """Make sure that the root is a directory."""
        entry = self.stat("")
        if entry is None or entry.kind != "directory":
            what = "no such folder" if entry is None else f"a {entry.kind}, not a folder"
            raise RuntimeError(fault_line("E-ARG", self.root, what, "give the path of a folder"))

    def probe(self) -> None:
        """Make the root, create and delete a file there; drop the spools of dead writers."""
        try:
            self._run("", lambda: os.makedirs(self.root, exist_ok=True))
        except RecursionError as error:
            raise coded(OSError(errno.ENAMETOOLONG, "too many levels"), self.root) from error
        name = f"{SPOOL_DIR}/probe-{uuid.uuid4().hex}"
        self.create(name, b"")
        self.delete(name)
        self._drop_dead_spools()

    def _walk(self, prefix: str, above: frozenset, recursive: bool) -> Iterator[Entry]:
        directory = self._path(prefix)
        try:
            status = self._run(prefix, lambda: os.stat(directory), _NOT_THERE)
            entries = self._run(prefix, lambda: os.scandir(directory), _NOT_THERE)
        except _NOT_THERE:  # nothing to list, or a folder whose name is not UTF-8
            return
        above |= {_identity(status)}
        with entries, self._coding(prefix):
            for found in entries:
                name = prefix + _utf8(found.name)
                try:
                    status = found.stat()
                except OSError:  # a dangling link, or a real error
                    leads_to = self._run(name, functools.partial(_stat_if_there, found))
                    if leads_to is None:
                        yield Entry(name, 0, "", kind="dangling link")
                        continue
                    status = leads_to
                entry = _entry(name, status)
                if not name.endswith(found.name):
                    yield Entry(name, 0, "", kind=f"{entry.kind} whose name is no UTF-8")
                    continue
                yield entry
                if recursive and stat.S_ISDIR(status.st_mode) and _identity(status) not in above:
                    yield from self._walk(f"{name}/", above, recursive)

    def _read_once(
        self, name: str, expected: Entry | None, span: Span | None
    ) -> tuple[bytes, Entry]:
        # Non-blocking: a FIFO that replaced a listed file must not hang the read.
        fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if span is None:  # one more byte shows a file that grew
                span = 0, 1 + (expected.size_bytes if expected else os.fstat(fd).st_size)
            data = _read_span(fd, *span)
            status = os.fstat(fd)  # after the read: the mtime shows a write in between
        except OSError:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                raise
            data = b""
        finally:
            os.close(fd)
        return data, _entry(name, status)

    def _crc32c_once(self, name: str) -> int:
        crc = 0
        with open(self._path(name), "rb", buffering=0) as file:
            while chunk := file.read(_PIECE_BYTES):
                crc = google_crc32c.extend(crc, chunk)
        return crc

    def _drop_dead_spools(self) -> None:
        directory = self._path(SPOOL_DIR)
        with contextlib.suppress(OSError):  # another run may clean up, too
            for name in os.listdir(directory):
                path = os.path.join(directory, name)
                with contextlib.suppress(OSError), open(path, "rb") as spool:
                    fcntl.flock(spool, fcntl.LOCK_EX | fcntl.LOCK_NB)  # then its writer is gone
                    os.unlink(path)
            os.rmdir(directory)

    def _run(
        self, name: str, operation: Callable[[], T], passing: tuple[type[OSError], ...] = ()
    ) -> T:
        try:
            return retry(operation, _is_transient, lambda: self._uri(name))
        except passing:
            raise
        except OSError as error:
            if passing and error.errno == errno.ELOOP:  # a loop of links is a dangling link
                raise FileNotFoundError(error.errno, error.strerror) from error
            raise coded(error, self._uri(name)) from error

    def _coding(self, name: str) -> contextlib.AbstractContextManager[None]:
        return coding(self._uri(name))

    def _changed(self, name: str, what: str) -> RuntimeError:
        return source_changed(self._uri(name), what)

    def _path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else self.root

    def _uri(self, name: str) -> str:
        return join_uri(self.root, name) if name else self.root


class _LocalSpool:
    """A file that gets its name last."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage = storage
        self._spool_path = ""
        self._is_named = False
        self._synced_bytes = 0
        self._fd = storage._run("", self._open)

    def write(self, parts: Sequence[bytes]) -> None:
        """Append the parts."""
        with self._storage._coding(""):
            for start in range(0, len(parts), _MAX_PARTS):
                self._write_all(parts[start : start + _MAX_PARTS])
            self._begin_sync()

    def publish(self, name: str) -> bool:
        """Make the bytes durable, then give them their name unless it is taken."""
        storage = self._storage
        target = storage._path(name)
        directory = posixpath.dirname(target)
        with storage._coding(name):  # no retry: after a failed fsync a second one proves nothing
            os.fsync(self._fd)
            try:
                self._name_in(directory, target)
            except FileExistsError:
                return False
            with contextlib.suppress(FileNotFoundError):  # another run tidied a probe away
                _fsync_directory(directory)
        return True

    def _name_in(self, directory: str, target: str) -> None:
        for _ in range(_FOLDER_TRIES - 1):
            _make_folder(directory)
            with contextlib.suppress(FileNotFoundError):  # another run tidied the folder away
                return self._name_it(directory, target)
        return self._name_it(directory, target)

    def close(self) -> None:
        """Release the inode; a named spool is deleted, the last one with its folder."""
        if self._fd >= 0:
            if self._spool_path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._spool_path)
            os.close(self._fd)
            self._fd = -1
            if self._is_named:
                with contextlib.suppress(OSError):  # others are in it
                    os.rmdir(self._storage._path(SPOOL_DIR))

    def _open(self) -> int:
        try:
            flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
            return os.open(self._storage.root, flags, 0o666)
        except AttributeError:  # not Linux
            pass
        except OSError as error:
            if error.errno not in _NO_ANONYMOUS_FILE or not os.path.isdir(self._storage.root):
                raise
        return self._open_named()

    def _open_named(self) -> int:
        self._is_named = True
        directory = self._storage._path(SPOOL_DIR)
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
        while True:
            _make_folder(directory)
            self._spool_path = os.path.join(directory, uuid.uuid4().hex)
            with contextlib.suppress(FileNotFoundError):  # another run deleted it
                fd = os.open(self._spool_path, flags, 0o666)
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.fstat(fd).st_nlink:  # else a clean-up deleted it before we had the lock
                    return fd
                os.close(fd)

    def _begin_sync(self) -> None:
        """Have the kernel start to write new pages, so that `publish` waits for few of them.

        The advice to drop pages that are not written yet only starts the writing.
        """
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        if end - self._synced_bytes >= _SYNC_BYTES and hasattr(os, "posix_fadvise"):
            length = end - self._synced_bytes
            os.posix_fadvise(self._fd, self._synced_bytes, length, os.POSIX_FADV_DONTNEED)
            self._synced_bytes = end

    def _write_all(self, parts: Sequence[bytes]) -> None:
        left = sum(map(len, parts)) - os.writev(self._fd, parts)
        if left:  # a signal or a nearly full disk cut it short
            rest = memoryview(b"".join(parts))[-left:]
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def _name_it(self, directory: str, target: str) -> None:
        source = f"/proc/self/fd/{self._fd}"
        if self._spool_path:
            source = os.path.abspath(self._spool_path)  # a relative path would begin at `directory`
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # With a directory descriptor Python calls linkat() with AT_SYMLINK_FOLLOW. That links
            # the inode itself, not the symbolic link below /proc/self/fd.
            os.link(source, target, src_dir_fd=directory_fd, follow_symlinks=True)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in _NO_LINK or (
                error.errno == errno.ENOENT and os.path.exists(source)  # the folder is gone
            ):
                raise
            self._rename_no_replace(target)
        finally:
            os.close(directory_fd)

    def _rename_no_replace(self, target: str) -> None:
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        code = errno.ENOSYS
        if rename is not None and self._spool_path:
            old, new = os.fsencode(self._spool_path), os.fsencode(target)
            if rename(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE) == 0:
                self._spool_path = ""
                return
            code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS):
            what = "the filesystem has neither hard links nor exclusive renames"
            remedy = "write to one that has, and copy the result"
            raise RuntimeError(fault_line("E-IO-READONLY", self._storage.root, what, remedy))
        raise OSError(code, os.strerror(code), target)


def _read_span(fd: int, start: int, end: int) -> bytes:
    """Return the bytes of a span, fewer where the file ends before it does."""
    data = os.pread(fd, end - start, start)
    while len(data) < end - start and (
        more := os.pread(fd, end - start - len(data), start + len(data))
    ):
        data += more
    return data


def _entry(name: str, status: os.stat_result) -> Entry:
    if stat.S_ISREG(status.st_mode):
        return Entry(name, status.st_size, str(status.st_mtime_ns))
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "device")
    return Entry(name, 0, "", kind=kind)  # a data set ignores sizes and times of folders


def _utf8(name: str) -> str:
    """Return a file's name as text that can be encoded; bytes that are no UTF-8 are escaped."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "backslashreplace")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _stat_if_there(found: os.DirEntry[str]) -> os.stat_result | None:
    """Return what a name leads to, None for a link to nothing, through a file or to itself."""
    try:
        return found.stat()
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return None
        raise


def _make_folder(path: str) -> None:
    """Make a folder unless it is there; another run may delete it at any moment.

    `makedirs` checks whether an existing path is a folder, and fails if it has just gone.
    """
    os.makedirs(posixpath.dirname(path) or ".", exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)


def _fsync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(fd)


def _is_transient(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _TRANSIENT
