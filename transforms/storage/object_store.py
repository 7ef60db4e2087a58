"""S3 and Azure Blob Storage by obstore: pinned reads, and objects that appear whole or not at all.

Listings of these stores have no checksum: an object is pinned by its ETag, which changes with every
write, and what was written is compared by reading it. An upload is one conditional request, its
shard held in memory meanwhile; S3 takes 5 GB in one. Credentials are those of the environment or of
the machine.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import IO, Any, TypeVar

import google_crc32c
import obstore
from obstore import exceptions as obstore_errors
from obstore.store import ObjectStore as Client
from obstore.store import from_url

from schemas.faults import fault_line
from transforms.retries import retry
from transforms.storage import (
    EVERYTHING,
    Access,
    Bounds,
    Entry,
    Span,
    Spool,
    ends_early,
    join_uri,
    source_changed,
    within,
)
from transforms.storage.local import coded
from transforms.storage.object_reads import (
    NO_RETRIES,
    THROTTLING_STATUS,
    TIMEOUTS,
    TooManyFiles,
    get_span,
    get_whole,
    is_forked,
    limits_told,
    said,
    status_of,
)
from transforms.storage.request_rate import rate_of
from transforms.storage.uploaded_spool import UploadedSpool

_NAMES_PER_PAGE = 1000
_DENIED = (obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError)
_DENIED_STATUS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_TRANSIENT_STATUS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_MACHINES_CREDENTIALS = "169.254.169.254"  # asked where the environment has none

T = TypeVar("T")
_Meta = Mapping[str, Any]  # obstore's `ObjectMeta`, which is there for type checkers alone


class ObjectStorage:
    """Objects below `s3://bucket/prefix`, `az://container/prefix` and their like."""

    lists_by_name = False
    lists_folders = True

    def __init__(self, root: str, access: Access) -> None:
        """Take the root's URI; nothing is connected yet.

        Raises:
            ValueError: when it names no bucket.
        """
        scheme, _, path = root.partition("://")
        bucket, _, prefix = path.partition("/")
        if not bucket:
            raise ValueError(
                f"a {scheme}:// path must name a bucket, got {root!r}: give {scheme}://BUCKET/PATH"
            )
        self.root = root.rstrip("/")
        self._bucket = f"{scheme}://{bucket}"
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        self._access = access
        self._rate = rate_of(self._bucket, _is_throttling, access.max_reads_per_second)

    def list(
        self, prefix: str = "", *, recursive: bool = True, bounds: Bounds = EVERYTHING
    ) -> Iterator[Entry]:
        """Yield every object below the root or a folder of it, a thousand a request."""
        if not recursive:
            return within(self._folder(prefix), bounds)
        pages = self._pages(prefix)
        return within((self._entry(found) for page in pages for found in page), bounds)

    def stat(self, name: str) -> Entry | None:
        """Return an object's entry, None when there is none."""
        try:
            return self._entry(self._run(name, lambda: self._head(name), FileNotFoundError))
        except FileNotFoundError:
            return None

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return an object's bytes, those of the ETag that was listed."""
        wanted = expected or self.stat(name)
        if wanted is None:
            raise self._changed(name, "not there")
        if span is not None and span[1] > wanted.size_bytes:
            raise self._changed(name, ends_early(wanted.size_bytes, span))
        return self._run(name, lambda: self._read_once(name, wanted, span))

    def crc32c(self, name: str) -> int:
        """Return an object's CRC-32C, of the bytes that the store gives now."""
        try:
            return self._run(name, lambda: self._crc32c_once(name), FileNotFoundError)
        except FileNotFoundError:
            raise self._changed(name, "not there") from None

    def create(self, name: str, data: bytes) -> bool:
        """Create a small object whole; False when the name is taken."""
        with contextlib.closing(self.spool()) as spool:
            spool.write([data])
            return spool.publish(name)

    def spool(self) -> Spool:
        """Return a spool on the worker's own disk."""
        return UploadedSpool(self._upload, self._access.spool_dir)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        delete = functools.partial(obstore.delete, self._client(), self._prefix + name)
        with contextlib.suppress(FileNotFoundError):
            self._run(name, delete, FileNotFoundError)

    def require_folder(self) -> None:
        """Make sure that the bucket can be listed; a bucket has no folders."""
        next(self._pages(""), None)

    def probe(self) -> None:
        """Make sure that the bucket can be read; nothing is written for it."""
        self.require_folder()

    def _client(self) -> Client:
        if is_forked():
            what = "a process that was forked cannot read it"
            remedy = "start processes by spawn or forkserver"
            raise RuntimeError(fault_line("E-ARG", self.root, what, remedy))
        try:
            return _client(self._bucket, self._access.anonymous)
        except obstore_errors.BaseError as error:  # of settings: waiting would not mend them
            remedy = "set the store's account and credentials in the environment"
            raise RuntimeError(fault_line("E-IO-AUTH", self.root, said(error), remedy)) from error

    def _pages(self, prefix: str) -> Iterator[Sequence[_Meta]]:
        """Yield page after page; what fails goes on behind the last name that came."""
        below = self._prefix + prefix
        stream: Iterator[Sequence[_Meta]] | None = None
        last: str | None = None

        def next_page() -> Sequence[_Meta]:
            nonlocal stream
            stream = stream or obstore.list(
                self._client(), below, offset=last, chunk_size=_NAMES_PER_PAGE
            )
            try:
                with self._rate.request():
                    return next(stream, ())
            except Exception:
                stream = None
                raise

        while page := self._run(prefix, next_page):
            yield page
            last = page[-1]["path"]

    def _folder(self, prefix: str) -> Iterator[Entry]:
        below = self._prefix + prefix
        list_folder = functools.partial(obstore.list_with_delimiter, self._client(), below)
        found = self._run(prefix, list_folder)
        yield from map(self._entry, found["objects"])
        for path in found["common_prefixes"]:
            yield Entry(path.removeprefix(self._prefix).rstrip("/"), 0, "", kind="directory")

    def _head(self, name: str) -> _Meta:
        with self._rate.request():
            return obstore.head(self._client(), self._prefix + name)

    def _read_once(self, name: str, wanted: Entry, span: Span | None) -> bytes:
        path, pinned = self._prefix + name, {"if_match": wanted.pin}
        try:
            if span is not None:
                data = get_span(self._client(), path, span, pinned, self._rate)
            else:
                data = get_whole(self._client(), path, wanted.size_bytes, pinned, self._rate)
        except (FileNotFoundError, obstore_errors.PreconditionError):
            raise self._changed(name, "modified since it was listed, or gone") from None
        size_bytes = wanted.size_bytes if span is None else span[1] - span[0]
        if len(data) != size_bytes:
            raise obstore_errors.GenericError(f"{len(data)} bytes came, {size_bytes} were listed")
        return data

    def _crc32c_once(self, name: str) -> int:
        with self._rate.request():
            reply = obstore.get(self._client(), self._prefix + name)
        crc = 0
        for piece in reply.stream():
            crc = google_crc32c.extend(crc, bytes(piece))
        return crc

    def _upload(self, name: str, file: IO[bytes]) -> bool:
        return self._run(name, lambda: self._upload_once(name, file))

    def _upload_once(self, name: str, file: IO[bytes]) -> bool:
        file.seek(0)
        try:
            obstore.put(self._client(), self._prefix + name, file, mode="create")
        except obstore_errors.AlreadyExistsError:
            return False
        return True

    def _run(self, name: str, operation: Callable[[], T], *passing: type[Exception]) -> T:
        where = functools.partial(self._uri, name)
        try:
            told = functools.partial(limits_told, operation, _is_transient)
            return retry(told, _is_transient, where, sleep=self._rate.sleep)
        except passing:
            raise
        except TooManyFiles as error:
            raise coded(error, where()) from error
        except (obstore_errors.BaseError, FileNotFoundError) as error:
            code, remedy = _fault_of(error)
            raise RuntimeError(fault_line(code, where(), said(error), remedy)) from error

    def _entry(self, found: _Meta) -> Entry:
        name = found["path"][len(self._prefix) :]
        return Entry(name, found["size"], found["e_tag"] or "")

    def _changed(self, name: str, what: str) -> RuntimeError:
        return source_changed(self._uri(name), what)

    def _uri(self, name: str) -> str:
        return join_uri(self.root, name) if name else self.root


@functools.lru_cache(maxsize=64)
def _client(bucket: str, anonymous: bool) -> Client:
    """Return the process's client of a bucket."""
    return from_url(
        bucket,
        config={"skip_signature": True} if anonymous else {},  # type: ignore[call-overload]
        client_options={**TIMEOUTS, "allow_http": True},  # where the user names such an endpoint
        retry_config=NO_RETRIES,
    )


def _fault_of(error: Exception) -> tuple[str, str]:
    """Return the code and the remedy of an error that stays."""
    if _is_denied(error):
        return "E-IO-AUTH", "set the store's credentials in the environment, or --anonymous"
    if isinstance(error, FileNotFoundError) or status_of(error) == HTTPStatus.NOT_FOUND:
        return "E-ARG", "give a bucket that exists"
    if isinstance(error, obstore_errors.InvalidPathError):
        return "E-ARG", "rename it; names here must have no empty part and no control character"
    return "E-IO-RETRIES", "look at the storage, then run again to resume"


def _is_denied(error: Exception) -> bool:
    denied = isinstance(error, _DENIED) or status_of(error) in _DENIED_STATUS
    return denied or _MACHINES_CREDENTIALS in str(error)


def _is_transient(error: Exception) -> bool:
    if _is_denied(error) or not isinstance(error, obstore_errors.GenericError):
        return False
    status = status_of(error)
    return (
        status is None or status in _TRANSIENT_STATUS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    )


def _is_throttling(error: Exception) -> bool:
    return status_of(error) in THROTTLING_STATUS
