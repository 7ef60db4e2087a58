"""Local paths: listing by `scandir`, pinned reads, and files that appear whole or not at all.

A file is written to an anonymous inode (`O_TMPFILE`), synced, and then linked to its name. The link
fails if the name exists. No temporary file is left to clean up. Filesystems without anonymous files
or hard links use a named, locked file and `renameat2(RENAME_NOREPLACE)`.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from typing import TypeVar

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.transforms.storage import SPOOL_PREFIX, Entry, NewFile, Span, Storage
from beam_tfrec.transforms.storage.disk import DiskFile, coding
from beam_tfrec.transforms.storage.retries import retry

_TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ENETUNREACH}
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}  # ELOOP: a link in a circle
_NO_ANONYMOUS_FILE = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_NO_LINK = {errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.EMLINK}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}  # SMB, some FUSE
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BUFFER_BYTES = 1 << 20
_MOST_LEVELS = 500
_KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
T = TypeVar("T")


class LocalStorage(Storage):
    """Files below a local directory."""

    def __init__(self, root: str) -> None:
        """Take the directory's path without reading or making it.

        Raises:
            ValueError: The path contains NUL, or has more than 500 levels.
        """
        if "\0" in root:
            raise ValueError(f"a path must not hold a NUL, got {root!r}: remove it")
        if root.count("/") > _MOST_LEVELS:  # `os.makedirs` recurses once per level
            raise ValueError(f"a path must have at most {_MOST_LEVELS} levels: give a shorter one")
        self.root = root or "."

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[Entry]:
        """Yield every name below the root or a folder of it; follow links, but not in circles."""
        return self._walk(prefix, frozenset(), recursive)

    def stat(self, name: str) -> Entry | None:
        """Return a name's entry, or None if it does not exist."""
        found = self._if_there(name, lambda: os.stat(self._path(name)))
        return None if found is None else _entry(name, found)

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return a file's bytes; with `expected`, only if size and mtime are unchanged."""
        read = self._if_there(name, lambda: _read_once(self._path(name), expected, span))
        if read is None:
            raise self.changed(name, "not there")
        data, status = read
        found = _entry(name, status)
        if found.kind != "file":
            raise self.changed(name, f"a {found.kind}, not a file")
        return self.checked(data, found, expected, span)

    def new_file(self) -> NewFile:
        """Return an anonymous file in the root's filesystem."""
        return _LocalFile(self.root)

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        self._if_there(name, lambda: os.unlink(self._path(name)))

    def delete_folder(self, prefix: str) -> None:
        """Delete a folder of the root with all that is in it."""
        self._if_there(prefix, lambda: shutil.rmtree(self._path(prefix)))

    def require_folder(self) -> None:
        """Check that the root is a directory."""
        entry = self.stat("")
        if entry is None or entry.kind != "directory":
            what = "no such folder" if entry is None else f"a {entry.kind}, not a folder"
            raise run_fault("E-ARG", self.root, what, "give the path of a folder")

    def probe(self) -> None:
        """Make the root, test it with a file, and delete the unpublished files of dead writers."""
        _run(self.root, lambda: os.makedirs(self.root, exist_ok=True))
        super().probe()
        for path in glob.iglob(os.path.join(glob.escape(self.root), f"{SPOOL_PREFIX}*")):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a living writer holds the lock
                os.unlink(path)

    def _walk(self, prefix: str, above: frozenset[str], recursive: bool) -> Iterator[Entry]:
        folder = self._path(prefix)
        entries = self._if_there(prefix, lambda: os.scandir(folder))
        if entries is None:
            return
        above |= {os.path.realpath(folder)}
        with entries, coding(self.uri(prefix)):
            for found in entries:
                # Bytes that are not UTF-8 are escaped.
                name = prefix + os.fsencode(found.name).decode("utf-8", "backslashreplace")
                status: os.stat_result | None
                try:
                    status = found.stat()
                except OSError:  # a dangling link, or a real error
                    status = self._if_there(name, found.stat)
                entry = _entry(name, status)
                if not name.endswith(found.name):
                    entry = Entry(name, 0, "", kind=f"{entry.kind} whose name is not UTF-8")
                yield entry
                is_folder = recursive and entry.kind == "directory"
                if is_folder and os.path.realpath(found.path) not in above:
                    yield from self._walk(f"{name}/", above, recursive)

    def _if_there(self, name: str, operation: Callable[[], T]) -> T | None:
        """Return the operation's result, or None if the file does not exist."""

        def attempt() -> T | None:
            try:
                return operation()
            except OSError as error:
                if error.errno in _NOT_THERE:
                    return None
                raise

        return _run(self.uri(name), attempt)

    def _path(self, name: str) -> str:
        return os.path.join(self.root, name) if name else self.root


class _LocalFile(DiskFile):
    """A file that gets its name only when it is complete."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._name = ""  # set only for a file that is not anonymous
        super().__init__(os.fdopen(_run(root, self._open), "wb", _BUFFER_BYTES), root)

    def publish(self, name: str) -> bool:
        """Sync the file and give it its name; return False if the name is taken."""
        target = os.path.join(self._root, name)
        with coding(target):  # no retry: a second fsync after a failed one proves nothing
            os.fsync(self._file.fileno())
            folder = os.path.dirname(target)
            _make_folder(folder)
            folder_fd = os.open(folder, _OPEN_FOLDER)
            try:
                self._link(target, folder_fd)
                _sync_folder(folder_fd)
            except FileExistsError:
                return False
            finally:
                os.close(folder_fd)
        return True

    def close(self) -> None:
        """Close the file, and delete it if it was not published."""
        super().close()
        if self._name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name)

    def _open(self) -> int:
        try:
            flags = getattr(os, "O_TMPFILE", 0) | os.O_RDWR | os.O_CLOEXEC
            return os.open(self._root, flags, 0o666)
        except OSError as error:
            if error.errno not in _NO_ANONYMOUS_FILE or not os.path.isdir(self._root):
                raise
        self._name = os.path.join(os.path.abspath(self._root), f"{SPOOL_PREFIX}{uuid.uuid4().hex}")
        fd = os.open(self._name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return fd

    def _link(self, target: str, folder_fd: int) -> None:
        source = self._name or f"/proc/self/fd/{self._file.fileno()}"
        try:
            # With a directory descriptor, Python calls linkat() with AT_SYMLINK_FOLLOW. This links
            # the inode instead of the symbolic link in /proc/self/fd.
            os.link(source, target, src_dir_fd=folder_fd, follow_symlinks=True)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self._rename_no_replace(target)

    def _rename_no_replace(self, target: str) -> None:
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        code = errno.ENOSYS
        if rename is not None and self._name:
            old, new = os.fsencode(self._name), os.fsencode(target)
            if rename(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE) == 0:
                self._name = ""
                return
            code = ctypes.get_errno()
        if code in (errno.EINVAL, errno.ENOSYS):
            what = "the filesystem has neither hard links nor exclusive renames"
            remedy = "write to another filesystem and copy the result"
            raise run_fault("E-IO-READONLY", self._root, what, remedy)
        raise OSError(code, os.strerror(code), target)


def _run(where: str, operation: Callable[[], T]) -> T:
    with coding(where):
        return retry(operation, _is_transient, where)


def _is_transient(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in _TRANSIENT


def _read_once(
    path: str, expected: Entry | None, span: Span | None
) -> tuple[bytes, os.stat_result]:
    """Return a file's bytes (empty unless it is a regular file), and its status after the read."""
    # Non-blocking, so that a FIFO in place of the listed file cannot hang the read.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return b"", status
        if span is None:  # one more byte detects a file that grew
            span = 0, 1 + (expected.size_bytes if expected else status.st_size)
        data = _read_span(fd, *span)
        return data, os.fstat(fd)  # after the read, to detect a write in between
    finally:
        os.close(fd)


def _read_span(fd: int, start: int, end: int) -> bytes:
    """Return the bytes of a span, or fewer if the file ends within it."""
    data = b""
    while start < end and (more := os.pread(fd, end - start, start)):
        data += more
        start += len(more)
    return data


def _entry(name: str, status: os.stat_result | None) -> Entry:
    if status is None:
        return Entry(name, 0, "", kind="dangling link")
    if stat.S_ISREG(status.st_mode):
        return Entry(name, status.st_size, str(status.st_mtime_ns))
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "device")
    return Entry(name, 0, "", kind=kind)  # sizes and times of folders are ignored


def _make_folder(folder: str) -> None:
    """Make a folder and its parents, so that they outlive a power cut."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder) or "."
    _make_folder(parent)
    os.makedirs(folder, exist_ok=True)
    fd = os.open(parent, _OPEN_FOLDER)
    try:
        _sync_folder(fd)
    finally:
        os.close(fd)


def _sync_folder(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
