"""A spool on the worker's own disk, for stores that take a file in one piece."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from transforms.storage.local import coded

_ELSEWHERE = "give a --spool_dir that can be written and has room, then run again to resume"


class UploadedSpool:
    """Bytes in an unnamed local file, uploaded when they are published."""

    def __init__(self, upload: Callable[[str, IO[bytes]], bool], spool_dir: str) -> None:
        """Take what uploads a file under a name, and the folder; the system's when it is empty."""
        self._upload = upload
        self._where = spool_dir or "temporary folder"
        with self._on_disk():
            self._where = spool_dir or tempfile.gettempdir()  # which looks for one that can be used
            self._file = tempfile.TemporaryFile(dir=self._where)

    def write(self, parts: Sequence[bytes]) -> None:
        """Append the parts."""
        with self._on_disk():
            self._file.writelines(parts)
            self._file.flush()  # here, where a full disk can still be told

    def publish(self, name: str) -> bool:
        """Upload the file; False when the name is taken."""
        return self._upload(name, self._file)

    def close(self) -> None:
        """Drop the local file."""
        with contextlib.suppress(OSError):  # of what a full disk did not take, and was told of
            self._file.close()

    @contextlib.contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise coded(error, self._where, _ELSEWHERE) from error
