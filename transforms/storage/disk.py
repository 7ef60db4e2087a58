"""The local disk: coded errors, the lock of an output, and temporary files for uploads."""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from beam_tfrec.schemas.faults import bytes_text, run_fault
from beam_tfrec.transforms.storage import is_local

_LOCK_TRIES, _LOCK_WAIT_S = 50, 0.1  # a killed run's processes take a moment to end
ELSEWHERE = "give a --spool_dir that can be written and has room, then run again"
"""Remedy for a folder of temporary files that cannot be written."""

_CODES = {
    errno.ENOSPC: ("E-IO-NOSPACE", "free some space, then run again to resume"),
    errno.EDQUOT: ("E-IO-NOSPACE", "raise the quota, then run again to resume"),
    errno.EFBIG: ("E-IO-NOSPACE", "ask for smaller shards with --shard_size"),
    errno.EROFS: ("E-IO-READONLY", "give an --output that can be written"),
    errno.EEXIST: ("E-IO-READONLY", "give an --output that is a folder"),
    errno.ENOTDIR: ("E-IO-READONLY", "give an --output that is a folder"),
    errno.ELOOP: ("E-IO-READONLY", "give an --output that is a folder"),
    errno.ENAMETOOLONG: ("E-IO-READONLY", "give a shorter --output"),
    errno.ENOENT: ("E-IO-READONLY", "keep the folder, and run again"),
    errno.EACCES: ("E-IO-AUTH", "give this user permission, then run again"),
    errno.EPERM: ("E-IO-AUTH", "give this user permission, then run again"),
    errno.EMFILE: ("E-IO-LIMIT", "raise the limit on open files (ulimit -n)"),
    errno.ENFILE: ("E-IO-LIMIT", "raise the system's limit on open files"),
    errno.ENOMEM: ("E-IO-LIMIT", "free some memory, then run again to resume"),
}


def coded(error: OSError, where: str, elsewhere: str = "") -> RuntimeError:
    """Return an error of the operating system as one `E-IO-…` line.

    Args:
        error: error of the operating system.
        where: path or URI of the file.
        elsewhere: remedy for a path outside the output, such as another `--spool_dir`.
    """
    code, remedy = _CODES.get(error.errno or 0, ("E-IO-RETRIES", "check the storage"))
    if code not in ("E-IO-LIMIT", "E-IO-RETRIES") and error.errno != errno.EFBIG:
        remedy = elsewhere or remedy
    what = error.strerror or type(error).__name__
    if error.errno == errno.ENOSPC:
        with contextlib.suppress(OSError):
            what += f", {bytes_text(shutil.disk_usage(where).free)} are free"
    return run_fault(code, where, what, remedy)


@contextlib.contextmanager
def coding(where: str, elsewhere: str = "") -> Iterator[None]:
    """Raise an `OSError` of the block as one `E-IO-…` line."""
    try:
        yield
    except OSError as error:
        raise coded(error, where, elsewhere) from error


@contextlib.contextmanager
def without_new_empty_folders(root: str) -> Iterator[None]:
    """Remove the empty folders that the block made for a local root, if the block fails."""
    path = Path(os.path.abspath(root.removeprefix("file://")))
    folders = [path, *path.parents] if is_local(root) else []
    missing = [folder for folder in folders if not os.path.lexists(folder)]
    try:
        yield
    except BaseException:
        for folder in missing:  # innermost first
            with contextlib.suppress(OSError, ValueError):
                folder.rmdir()
        raise


class RunLock:
    """Advisory lock on a local output: shared by runs, exclusive for a run that deletes.

    The folder itself is locked, so no lock file is left. The kernel releases the lock when the
    process ends, even by a kill. The lock has no effect on stores and on network filesystems
    without `flock`.
    """

    def __init__(self, root: str) -> None:
        """Open the folder without locking it.

        Raises:
            RuntimeError: `E-IO-…`: the folder cannot be opened.
        """
        self._root, self._fd = root, -1
        if is_local(root):
            with coding(root):
                self._fd = os.open(root.removeprefix("file://"), os.O_RDONLY | os.O_DIRECTORY)

    def take(self, *, alone: bool) -> None:
        """Take the lock, exclusively if `alone`, or change its mode.

        Raises:
            RuntimeError: `E-OUT-FOREIGN`: another run has held the lock for five seconds.
        """
        if self._fd < 0:
            return
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(self._fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(_LOCK_WAIT_S)
            except OSError:  # this filesystem has no locks
                return
        what = "another run writes there" if alone else "another run deletes files there"
        remedy = "wait until it has ended, or stop it, then run again"
        raise run_fault("E-OUT-FOREIGN", self._root, what, remedy)

    def close(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)


def open_temporary(folder: str, buffering: int = -1) -> tuple[IO[bytes], str]:
    """Create a file without a name; return it with its folder.

    Args:
        folder: folder of the file; empty for the system's temporary folder.
        buffering: size of the buffer, as for `open`.

    Raises:
        RuntimeError: `E-IO-…`: the folder cannot be written.
    """
    with coding(folder or "temporary folder", ELSEWHERE):
        where = folder or tempfile.gettempdir()  # the first that can be written
        return tempfile.TemporaryFile(dir=where, buffering=buffering), where


class DiskFile:
    """A file without a name on this machine."""

    def __init__(self, file: IO[bytes], where: str, elsewhere: str = "") -> None:
        """Take the file, its path for messages, and the remedy if it cannot be written."""
        self._file, self._where, self._elsewhere = file, where, elsewhere

    def write(self, parts: Sequence[bytes]) -> None:
        """Append the parts."""
        with coding(self._where, self._elsewhere):
            self._file.writelines(parts)
            self._file.flush()  # a full disk must fail here, not in close

    def close(self) -> None:
        """Drop the file."""
        with contextlib.suppress(OSError):  # the write has reported a full disk
            self._file.close()


class UploadedFile(DiskFile):
    """A file without a name that is uploaded on `publish`."""

    def __init__(self, upload: Callable[[str, IO[bytes]], bool], spool_dir: str) -> None:
        """Take a function that uploads a file under a name, and the folder for it until then."""
        super().__init__(*open_temporary(spool_dir), ELSEWHERE)
        self._upload = upload

    def publish(self, name: str) -> bool:
        """Upload the file; return False if the name is taken."""
        return self._upload(name, self._file)
