"""Write and read ArrayRecord files with Google's library, the extra `array_record`.

The library reads and writes paths of this machine, so a file is first written to a temporary file
without a name. Its bytes are then copied into a shard's spool. Equal records, options and library
versions give equal bytes.
"""

import contextlib
import errno
import importlib.metadata
import os
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.tfrecord import FrameError
from beam_tfrec.transforms.storage import Entry, Storage, is_local
from beam_tfrec.transforms.storage.disk import ELSEWHERE, coded, coding, open_temporary

DEFAULT_OPTIONS = "group_size:1,uncompressed"
"""Options of the writer: one record is read without its neighbours. JPEGs do not compress."""

_INSTALL = "pip install 'beam-tfrec[array_record]'"
_PIECE_BYTES = 2 << 20
_READ_ONE_BY_ONE = "readahead_buffer_size:0,max_parallelism:0"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_options(options: str) -> None:
    """Refuse options that the library's writer refuses.

    Raises:
        ValueError: The library refuses the options, or is not installed.
    """
    library = _library()
    try:
        library.ArrayRecordWriter(os.devnull, options).close()
    except ValueError as error:
        what = f"array_record_options must be the writer's, got {options!r} ({error})"
        raise ValueError(f"{what}: give such as {DEFAULT_OPTIONS}") from None


def plan_options(options: str) -> dict[str, str]:
    """Return the plan's option for the writer's options and version; none for TFRecord files."""
    if not options:
        return {}
    try:
        here = importlib.metadata.version("array_record")
    except importlib.metadata.PackageNotFoundError:
        here = f"none, {_INSTALL}"
    return {"record_format": f"array_record {options}, by array_record {here}"}


class GrowingArrayRecord:
    """An ArrayRecord file that grows in a temporary file, which has no name."""

    def __init__(self, options: str, spool_dir: str) -> None:
        """Open the writer.

        Args:
            options: options of the library's writer.
            spool_dir: folder of the temporary file; empty for the system's.
        """
        self._file, self._where = open_temporary(spool_dir)
        self._writer = _library().ArrayRecordWriter(_path_of(self._file), options)

    def write(self, record: bytes) -> None:
        """Append a record."""
        with self._coding():
            self._writer.write(record)

    def finish(self) -> Iterator[bytes]:
        """End the file, and yield its bytes in pieces."""
        with self._coding():
            self._writer.close()
        self._file.seek(0)
        yield from iter(lambda: self._file.read(_PIECE_BYTES), b"")

    def close(self) -> None:
        """Drop the temporary file."""
        self._file.close()

    @contextlib.contextmanager
    def _coding(self) -> Iterator[None]:
        """Raise the library's error as one `E-IO-…` line; it has the system's text, no number."""
        try:
            yield
        except RuntimeError as error:
            number = next((n for n in _NO_ROOM if os.strerror(n) in str(error)), 0)
            raise coded(OSError(number, str(error)), self._where, ELSEWHERE) from error


class ArrayRecordFile:
    """The records of an ArrayRecord file by position; threads may share it."""

    def __init__(self, path: str) -> None:
        """Open the file.

        Raises:
            FrameError: `E-VER-FRAME`: it is damaged or cut off, or another file.
        """
        self._path, self._lock = path, threading.Lock()
        self._open()
        if not self._reader.ok():
            try:
                self._reader.read()  # raises with the reason
            except (RuntimeError, IndexError) as error:
                raise FrameError("E-VER-FRAME", f"not readable, {error}") from None

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self._reader.num_records())

    def read(self, position: int) -> bytes:
        """Return a record, whose checksum the library compares.

        Raises:
            FrameError: `E-VER-CRC`: the record, or its group, is damaged.
        """
        with self._lock:  # not `read([position])`, which takes time for all records of the file
            try:
                self._reader.seek(position)
                return bytes(self._reader.read())
            except (RuntimeError, IndexError) as error:
                self._open()  # a reader reads no more after an error
                raise FrameError("E-VER-CRC", str(error)) from None

    def _open(self) -> None:
        self._reader = _library().ArrayRecordReader(self._path, _READ_ONE_BY_ONE)


def open_array_record(storage: Storage, file: Entry) -> ArrayRecordFile:
    """Open a listed file for reads of single records.

    Raises:
        FrameError: `E-VER-FRAME`: it is damaged.
        RuntimeError: `E-ARG`: it is in a store. `E-SRC-CHANGED`: it has changed since the listing.
    """
    if not is_local(storage.root):
        what = "is an ArrayRecord file in a store: its library reads single records only on disks"
        remedy = "copy the data set to a disk, mount the bucket, or write TFRecord files"
        raise run_fault("E-ARG", storage.uri(file.name), what, remedy)
    if storage.stat(file.name) != file:
        raise storage.changed(file.name, "modified since it was listed")
    return ArrayRecordFile(storage.uri(file.name).removeprefix("file://"))


@contextlib.contextmanager
def copied_array_record(pieces: Iterable[bytes]) -> Iterator[ArrayRecordFile]:
    """Copy a file of any storage to a temporary file, and open it.

    Raises:
        FrameError: `E-VER-FRAME`: it is damaged.
    """
    copy, where = open_temporary("")
    with copy:
        with coding(where, "give TMPDIR a folder with room, then run again"):
            copy.writelines(pieces)
            copy.flush()
        yield ArrayRecordFile(_path_of(copy))


def _path_of(file: IO[bytes]) -> str:
    """Return a path of a file without a name, which the library may open in this process."""
    return f"/dev/fd/{file.fileno()}"


def _library() -> Any:
    try:
        from array_record.python import array_record_module
    except ImportError:
        what = "the package array_record must be installed for ArrayRecord files, got none"
        raise ValueError(f"{what}: {_INSTALL}") from None
    return array_record_module
