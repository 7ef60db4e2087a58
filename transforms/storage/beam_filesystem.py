"""Any filesystem that Beam supports, through `FileSystems`: the lowest common denominator.

Files are written under `_spool-…` and then renamed, so that they appear whole. Beam has no
create-only rename. Only a check just before the rename keeps two runs from publishing one name.
Names are literal here, but Beam's `match` and `delete` treat them as globs. A root or a name to
delete must therefore not contain glob characters.
"""

import contextlib
import shutil
import uuid
from collections.abc import Callable, Iterator
from typing import IO, TypeVar

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, SPOOL_PREFIX, Access, Entry, Span, Storage
from beam_tfrec.transforms.storage.disk import UploadedFile
from beam_tfrec.transforms.storage.retries import rate_of, retry

_GLOB = set("*?[")
_AS_IT_IS = CompressionTypes.UNCOMPRESSED  # Beam would decompress by the file extension
# A missing client raises one of the last three.
_PERMANENT = (FileNotFoundError, PermissionError, ValueError, AssertionError, ImportError)

T = TypeVar("T")


class BeamStorage(Storage):
    """Files below a URI that Beam's `FileSystems` can open."""

    lists_folders = False

    def __init__(self, root: str, access: Access = DEFAULT_ACCESS) -> None:
        """Find the filesystem of the root's scheme.

        Raises:
            ValueError: The root has glob characters, or no filesystem supports its scheme.
        """
        self.root = root.rstrip("/")
        self._spool_dir = access.spool_dir
        store = "/".join(root.split("/")[:3])
        self._rate = rate_of(store, access.max_reads_per_second)
        if _GLOB & set(root):
            raise ValueError(f"a path here must not hold * ? or [, got {root!r}: rename it")
        try:
            self._filesystem = FileSystems.get_filesystem(root)
        except (ValueError, BeamIOError) as error:
            remedy = "install its package, such as apache-beam[hadoop] for hdfs://"
            raise ValueError(f"no filesystem for {root!r} ({error}): {remedy}") from None

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[Entry]:
        """Yield every file below the root or a folder of it."""
        below = self.uri(prefix).rstrip("/")
        pattern = f"{below}/{'**' if recursive else '*'}"
        (matched,) = self._run(prefix, lambda: FileSystems.match([pattern]))
        skip = len(self.root) + 1
        for found in matched.metadata_list:
            pin = str(found.last_updated_in_seconds or "")
            yield Entry(found.path[skip:], found.size_in_bytes, pin)

    def stat(self, name: str) -> Entry | None:
        """Return a file's entry, or None if it does not exist."""
        uri = self.uri(name)
        if not self._run(name, lambda: self._filesystem.exists(uri)):
            return None
        found = self._run(name, lambda: self._filesystem.metadata(uri))
        return Entry(name, found.size_in_bytes, str(found.last_updated_in_seconds or ""))

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return a file's bytes; with `expected`, only if size and modification time agree."""
        data = self._run(name, lambda: self._read_once(name, span))
        return self.checked(data, self.entry_of(name), expected, span)

    def new_file(self) -> UploadedFile:
        """Return a file on the worker's own disk, which is uploaded with `publish`."""
        return UploadedFile(self._upload, self._spool_dir)

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        if _GLOB & set(name):
            what = f"a name to delete must not hold * ? or [, got {name!r}"
            raise ValueError(f"{what}: do it by hand")
        if self.stat(name) is not None:
            self._run(name, lambda: self._filesystem.delete([self.uri(name)]))

    def _read_once(self, name: str, span: Span | None) -> bytes:
        uri = self.uri(name)
        try:
            with self._rate.request():
                file = self._filesystem.open(uri, compression_type=_AS_IT_IS)
            with file:
                if span is None:
                    return file.read()
                file.seek(span[0])
                return file.read(span[1] - span[0])
        except OSError as error:
            if not self._filesystem.exists(uri):
                raise FileNotFoundError(uri) from error
            raise

    def _upload(self, name: str, file: IO[bytes]) -> bool:
        """Upload under a temporary name, then rename; return False if the name is taken."""
        return self._run(name, lambda: self._rename(name, file))

    def _rename(self, name: str, file: IO[bytes]) -> bool:
        if self.stat(name) is not None:
            return False
        temporary = self.uri(f"{SPOOL_PREFIX}{uuid.uuid4().hex}")
        with contextlib.suppress(Exception):  # stores without folders
            self._filesystem.mkdirs(self.uri(name).rpartition("/")[0])
        file.seek(0)
        with self._filesystem.create(temporary, compression_type=_AS_IT_IS) as uploaded:
            shutil.copyfileobj(file, uploaded)
        self._filesystem.rename([temporary], [self.uri(name)])
        return True

    def _run(self, name: str, operation: Callable[[], T]) -> T:
        try:
            return retry(operation, _is_transient, self.uri(name))
        except (BeamIOError, *_PERMANENT) as error:
            cause = _unwrapped(error)
            if isinstance(cause, FileNotFoundError):
                raise self.changed(name, "not there") from error
            code, remedy = "E-ARG", "install and set up this store's client"
            if isinstance(cause, PermissionError):
                code, remedy = "E-IO-AUTH", "give this user permission"
            raise run_fault(code, self.uri(name), str(cause), remedy) from error


def _unwrapped(error: Exception) -> Exception:
    """Return the permanent error that Beam wrapped, if there is one, else the error itself."""
    details = (getattr(error, "exception_details", None) or {}).values()
    return next((e for e in map(_unwrapped, details) if isinstance(e, _PERMANENT)), error)


def _is_transient(error: Exception) -> bool:
    return isinstance(error, OSError) and not isinstance(_unwrapped(error), _PERMANENT)
