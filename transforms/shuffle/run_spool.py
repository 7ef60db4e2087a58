"""The spool of a run in this process: data waits in a file on disk, not in memory.

A runner in process holds some six copies of all that crosses a group-by. So batches of samples,
and payloads until their shard is built, lie in an unnamed file. It goes with the process or the
run.
"""

import os
import struct
import threading
from dataclasses import dataclass
from typing import IO

import google_crc32c
import msgspec

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.samples import Sample, digest_payload
from beam_tfrec.transforms.storage.disk import ELSEWHERE, FileSpool, coding, open_temporary

_PLACE = struct.Struct(">QQI")  # offset, length, and CRC-32C of what lies there
_BUFFER_BYTES = 2**20


@dataclass(frozen=True)
class RunSpool:
    """Names a run's file; steps that are pickled find the same one in this process.

    Attributes:
        number: of the run in this process.
        folder: that the file lies in; empty for the system's.
    """

    number: int
    folder: str = ""

    def put(self, data: bytes) -> bytes:
        """Return the place of data that lies in the file now.

        Raises:
            RuntimeError: `E-IO-…` when the file cannot be written.
        """
        return _PLACE.pack(self._file().append(data), len(data), google_crc32c.value(data))

    def get(self, place: bytes) -> bytes:
        """Return the data that `put` gave a place.

        Raises:
            RuntimeError: `E-IO-…` when the file cannot be read, or gives something else.
        """
        offset, length, crc32c = _PLACE.unpack(place)
        data = self._file().read(offset, length)
        if google_crc32c.value(data) != crc32c:
            what = f"{length} bytes at {offset} are not what was put there"
            raise RuntimeError(fault_line("E-IO-RETRIES", self._where, what, "look at the disk"))
        return data

    def store_payload(self, sample: Sample) -> Sample:
        """Return a sample whose payload lies in the file; itself where it has none.

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
            RuntimeError: `E-IO-…` when the file cannot be read, or gives something else.
        """
        if not sample.payload_place:
            return sample
        payload = self.get(sample.payload_place)
        return msgspec.structs.replace(
            sample, payload=payload, payload_digest=b"", payload_place=b""
        )

    def written_file(self) -> int:
        """Return the descriptor of the file, in which all that was put is now, for `adopt`.

        Raises:
            RuntimeError: `E-IO-…` when the file cannot be written.
        """
        return self._file().written()

    def adopt(self, descriptor: int) -> None:
        """Read from the file of another process, whose spool this one is a copy of."""
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


class _SpoolFile(FileSpool):
    """An unnamed file that several threads append to and read.

    Appended data is buffered: a system call costs more than a sample.
    """

    def __init__(self, file: IO[bytes], where: str) -> None:
        super().__init__(file, where, ELSEWHERE)
        self._appending = threading.Lock()

    def append(self, data: bytes) -> int:
        """Append data; return its offset."""
        with self._appending, coding(self._where, ELSEWHERE):
            offset = self._file.tell()
            self._file.write(data)
        return offset

    def read(self, offset: int, length: int) -> bytes:
        """Return what was written there."""
        with coding(self._where, ELSEWHERE):
            return os.pread(self.written(), length, offset)

    def written(self) -> int:
        """Return the file's descriptor, once nothing waits."""
        with self._appending, coding(self._where, ELSEWHERE):
            self._file.flush()
        return self._file.fileno()


_OPEN: dict[int, _SpoolFile] = {}
_OPENING = threading.Lock()


def payload_bytes(sample: Sample) -> int:
    """Return how many bytes of a sample's payload are to be read."""
    return _PLACE.unpack(sample.payload_place)[1] if sample.payload_place else 0


def close_spool(number: int) -> None:
    """Give back the disk's room of a run's file, if there is one."""
    with _OPENING:
        file = _OPEN.pop(number, None)
    if file is not None:
        file.close()
