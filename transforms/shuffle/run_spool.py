"""The spool of an in-process run: a temporary file that holds data instead of memory.

An in-process runner holds about six copies of the input of a group-by. So batches of samples wait
in an unnamed file, and payloads wait there until their shard is built. The file is deleted with
the run or the process.
"""

import os
import struct
import threading
from dataclasses import dataclass
from typing import IO

import google_crc32c
import msgspec

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.samples import Sample, digest_payload
from beam_tfrec.transforms.storage.disk import ELSEWHERE, DiskFile, coding, open_temporary

_PLACE = struct.Struct(">QQI")  # offset, length and CRC-32C of stored data
_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class RunSpool:
    """Handle of a run's file; a pickled copy refers to the same file in this process.

    A *place* is the position of data in the file: `put` returns it, and `get` takes it.

    Attributes:
        number: number of the spool in this process.
        folder: folder of the file; empty for the system's temporary folder.
    """

    number: int
    folder: str = ""

    def put(self, data: bytes) -> bytes:
        """Store data in the file, and return its place.

        Raises:
            RuntimeError: `E-IO-…` when the file cannot be written.
        """
        return _PLACE.pack(self._file().append(data), len(data), google_crc32c.value(data))

    def get(self, place: bytes) -> bytes:
        """Return the data at a place.

        Raises:
            RuntimeError: `E-IO-…` when the file cannot be read, or the checksum differs.
        """
        offset, length, crc32c = _PLACE.unpack(place)
        data = self._file().read(offset, length)
        if google_crc32c.value(data) != crc32c:
            what = f"{length} bytes at {offset} of a temporary file have changed"
            raise run_fault("E-IO-RETRIES", self._where, what, "check the disk")
        return data

    def store_payload(self, sample: Sample) -> Sample:
        """Move a sample's payload to the file; return the sample with the payload's place.

        Raises:
            RuntimeError: `E-IO-…` when the file cannot be written.
        """
        if not sample.payload:
            return sample
        return msgspec.structs.replace(
            sample,
            payload=b"",
            payload_digest=digest_payload(sample.payload),
            payload_place=self.put(sample.payload),
        )

    def load_payload(self, sample: Sample) -> Sample:
        """Return a sample with the payload that `store_payload` stored.

        Raises:
            RuntimeError: `E-IO-…` when the file cannot be read, or the checksum differs.
        """
        if not sample.payload_place:
            return sample
        payload = self.get(sample.payload_place)
        return msgspec.structs.replace(
            sample, payload=payload, payload_digest=b"", payload_place=b""
        )

    def written_file(self) -> int:
        """Write buffered data, and return the file's descriptor, for `adopt`.

        Raises:
            RuntimeError: `E-IO-…` when the file cannot be written.
        """
        return self._file().written()

    def adopt(self, descriptor: int) -> None:
        """Read from the file of the process that made this spool."""
        with _OPENING:
            _OPEN[self.number] = _SpoolFile(os.fdopen(descriptor, "rb", buffering=0), self._where)

    @property
    def _where(self) -> str:
        return self.folder or "temporary folder"

    def _file(self) -> "_SpoolFile":
        with _OPENING:
            if self.number not in _OPEN:
                _OPEN[self.number] = _SpoolFile(*open_temporary(self.folder, _BUFFER_BYTES))
            return _OPEN[self.number]


class _SpoolFile(DiskFile):
    """An unnamed file for several threads. Appended data is buffered, to save system calls."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        super().__init__(file, where, ELSEWHERE)
        self._appending = threading.Lock()

    def append(self, data: bytes) -> int:
        """Append data, and return its offset."""
        with self._appending, coding(self._where, ELSEWHERE):
            offset = self._file.tell()
            self._file.write(data)
        return offset

    def read(self, offset: int, length: int) -> bytes:
        """Return the data at an offset."""
        with coding(self._where, ELSEWHERE):
            return os.pread(self.written(), length, offset)

    def written(self) -> int:
        """Write buffered data, and return the file's descriptor."""
        with self._appending, coding(self._where, ELSEWHERE):
            self._file.flush()
        return self._file.fileno()


_OPEN: dict[int, _SpoolFile] = {}
_OPENING = threading.Lock()


def payload_bytes(sample: Sample) -> int:
    """Return the size of a sample's payload, in a spool or in memory."""
    return _PLACE.unpack(sample.payload_place)[1] if sample.payload_place else len(sample.payload)


def close_spool(number: int) -> None:
    """Close a spool's file, if there is one; this frees its disk space."""
    with _OPENING:
        file = _OPEN.pop(number, None)
    if file is not None:
        file.close()
