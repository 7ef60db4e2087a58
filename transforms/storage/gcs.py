"""Google Cloud Storage: one request an image, one a thousand names, and objects that appear whole.

`obstore` reads objects for an eighth of the CPU of Python's HTTP. `google-cloud-storage` does the
rest. Neither client retries. All retries are ours.

An upload says that no object may have its name yet (`ifGenerationMatch=0`), and which CRC-32C the
bytes have. The store shows nothing until it has all of them. There are no temporary objects and no
renames, so the account needs no permission to delete. Every read asks for the generation that was
listed and compares the CRC-32C.
"""

import base64
import errno
import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from http import HTTPStatus
from itertools import pairwise
from typing import IO, Any, NoReturn, TypeVar

import google.auth
import google_crc32c
import obstore
import requests
import urllib3
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Blob, Bucket, Client
from obstore import exceptions as obstore_errors
from obstore.auth.google import GoogleCredentialProvider
from obstore.store import GCSStore

from schemas.faults import fault_line
from transforms.storage import Access, Entry, Span, Spool, Storage, ends_early
from transforms.storage.disk import UploadedSpool
from transforms.storage.listing import Bounds, Page, list_pages
from transforms.storage.retries import rate_of, retry

ONE_TRY: Any = {"timeout": (20, 60), "retry": None}
"""Seconds to connect or to send a piece, and between two bytes of a reply; no retry."""

READER_TIMEOUTS = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=20),
    "timeout": timedelta(minutes=10),
}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_NAMES_PER_PAGE = 1000  # the store's limit
_MOST_RANGES = 32  # of a listing in one process
_FIELDS = "items(name,size,generation,crc32c),prefixes,nextPageToken"
_CHUNK_BYTES = 8 << 20  # sent at once of a large upload, and held in memory

_REQUEST = re.compile(r"[A-Z]+ https?://\S+: ")  # in Google's messages, before the reason
_OBSTORE_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_THROTTLING = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
_TRANSIENT_STATUS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_TRANSIENT = (
    ConnectionError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
    urllib3.exceptions.HTTPError,
    requests.exceptions.JSONDecodeError,  # a reply that was cut
    auth.TransportError,
    obstore_errors.GenericError,
)
_DENIED_STATUS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_DENIED = (
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    auth.DefaultCredentialsError,  # also what a 401 becomes for anonymous requests
    auth.RefreshError,
)
_NO_MORE_FILES = os.strerror(errno.EMFILE)
T = TypeVar("T")


class GcsStorage(Storage):
    """Objects below `gs://bucket/prefix`."""

    lists_folders = True

    def __init__(self, root: str, access: Access) -> None:
        """Take the root's URI; nothing is connected yet.

        Raises:
            ValueError: when it names no bucket.
        """
        bucket, _, prefix = root.removeprefix("gs://").partition("/")
        if not bucket:
            raise ValueError(
                f"a gs:// path must name a bucket, got {root!r}: give gs://BUCKET/PATH"
            )
        self.root = root.rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        self._access = access
        self._rate = rate_of(bucket, is_throttling, access.max_reads_per_second)

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[Entry]:
        """Yield every object below the root or a folder of it, a thousand a request."""
        ranges = self._ranges() if recursive and not prefix else [("", "")]
        delimiter = None if recursive else "/"

        def fetch(bounds: Bounds, token: str) -> Page:
            start, end = (self._prefix + bound if bound else None for bound in bounds)
            return self._list_page(
                prefix,
                delimiter=delimiter,
                start_offset=start,
                end_offset=end,
                page_token=token or None,
            )

        yield from list_pages(fetch, ranges)

    def stat(self, name: str) -> Entry | None:
        """Return an object's entry, None when there is none."""
        return self._run(name, lambda: self._stat_once(name))

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return an object's bytes, in the generation that was listed, and with its checksum."""
        wanted = expected or self.stat(name)
        if wanted is None:
            raise self.changed(name, "not there")
        if span is not None and span[1] > wanted.size_bytes:
            raise self.changed(name, ends_early(wanted.size_bytes, span))
        return self._run(name, lambda: self._read_once(name, wanted, span))

    def crc32c(self, name: str) -> int:
        """Return an object's CRC-32C, as the store computed it."""
        found = self.stat(name)
        if found is None or found.crc32c is None:
            raise self.changed(name, "not there" if found is None else "without a CRC-32C")
        return found.crc32c

    def spool(self) -> Spool:
        """Return a spool on the worker's own disk."""
        return UploadedSpool(self._upload, self._access.spool_dir)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        self._run(name, lambda: _unless_gone(lambda: self._blob(name).delete(**ONE_TRY)))

    def require_folder(self) -> None:
        """Make sure that the bucket can be listed; a bucket has no folders."""
        self._list_page("", page_size=1)

    def _ranges(self) -> Sequence[Bounds]:
        """Return ranges between top-level folders, of those among the first thousand names."""
        top = self._list_page("", delimiter="/").entries
        folders = sorted(f"{entry.name}/" for entry in top if entry.kind == "directory")
        some = folders[:: len(folders) // _MOST_RANGES + 1]  # a range costs a request or more
        return list(pairwise(["", *some, ""]))

    def _list_page(self, folder: str, page_size: int = _NAMES_PER_PAGE, **asked: Any) -> Page:
        prefix = self._prefix + folder

        def ask() -> Page:
            found = self._client().list_blobs(
                self._objects(),
                prefix=prefix,
                page_size=page_size,
                fields=_FIELDS,
                **asked,
                **ONE_TRY,
            )
            entries = [*map(self._entry, next(found.pages))]
            for name in sorted(found.prefixes):
                entries.append(Entry(name[len(self._prefix) : -1], 0, "", kind="directory"))
            return Page(entries, found.next_page_token or "")

        return self._run(folder, ask)

    def _stat_once(self, name: str) -> Entry | None:
        found = self._objects().get_blob(self._prefix + name, **ONE_TRY)
        return None if found is None else self._entry(found)

    def _entry(self, found: Blob) -> Entry:
        crc32c = int.from_bytes(base64.b64decode(found.crc32c), "big") if found.crc32c else None
        kind = "directory" if found.name.endswith("/") else "file"
        name = found.name[len(self._prefix) :]
        return Entry(name, found.size, str(found.generation), crc32c, kind)

    def _read_once(self, name: str, wanted: Entry, span: Span | None) -> bytes:
        start, end = span or (0, wanted.size_bytes)
        data = _unless_gone(lambda: self._read_span(name, wanted.pin, start, end))
        if data is None:
            raise self.changed(name, f"generation {wanted.pin} is gone")
        # The store was asked for one generation, so other bytes come from the transport: try again.
        if len(data) != end - start:
            what = f"{len(data)} bytes came, {end - start} were asked for"
            raise obstore_errors.GenericError(what)
        if span is None and wanted.crc32c is not None:
            crc32c = google_crc32c.value(data)
            if crc32c != wanted.crc32c:
                raise obstore_errors.GenericError(
                    f"bytes of CRC-32C {crc32c:08x} came, those of {wanted.crc32c:08x} were listed"
                )
        return data

    def _read_span(self, name: str, generation: str, start: int, end: int) -> bytes:
        if start == end:
            return b""
        path = self._prefix + name
        if not _is_plain(path) or is_forked():
            blob = self._blob(name, generation=int(generation))
            return blob.download_as_bytes(  # as stored, not unpacked
                start=start, end=end - 1, raw_download=True, checksum=None, **ONE_TRY
            )
        store = reader(self._bucket, self._access, emulator())
        options: Any = {"version": generation, "range": (start, end)}
        return bytes(obstore.get(store, path, options=options).bytes())

    def _upload(self, name: str, file: IO[bytes]) -> bool:
        """Upload a file, which appears when the store has all of it; a failed try starts over."""
        crc32c = _crc32c_of(file)
        tries = itertools.count()

        def attempt() -> bool:
            # The failed try may have succeeded without a reply, or another writer came first. A
            # store may also close the connection of a long upload instead of refusing it.
            if next(tries) and self._stat_once(name) is not None:
                return False
            return self._upload_once(name, file, crc32c)

        return self._run(name, attempt)

    def _upload_once(self, name: str, file: IO[bytes], crc32c: str) -> bool:
        blob = self._blob(name, chunk_size=_CHUNK_BYTES, kms_key_name=self._access.kms_key or None)
        blob.crc32c = crc32c  # the store refuses other bytes
        try:
            blob.upload_from_file(
                file,
                rewind=True,
                size=os.fstat(file.fileno()).st_size,
                checksum=None,  # the client would delete the object when it finds other bytes
                if_generation_match=0,
                **ONE_TRY,
            )
        except api.PreconditionFailed:
            return False
        return True

    def _client(self) -> Client:
        return client(self._access, emulator())

    def _objects(self) -> Bucket:
        payer = self._access.billing_project or None
        return self._client().bucket(self._bucket, user_project=payer)

    def _blob(self, name: str, **properties: Any) -> Blob:
        return self._objects().blob(self._prefix + name, **properties)

    def _run(self, name: str, operation: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                with self._rate.request():
                    return operation()
            except AttributeError as error:  # of Google's client, if an error's JSON is no object
                raise requests.exceptions.ContentDecodingError(str(error)) from error

        try:
            return retry(attempt, is_transient, self.uri(name), sleep=self._rate.sleep)
        except (
            obstore_errors.BaseError,
            requests.RequestException,
            auth.GoogleAuthError,
            api.GoogleAPICallError,
        ) as error:
            code, remedy = _code_of(error)
            what = _REQUEST.sub("", " ".join(str(error).split()))[:300]
            raise RuntimeError(fault_line(code, self.uri(name), what, remedy)) from error


def _unless_gone(operation: Callable[[], T]) -> T | None:
    try:
        return operation()
    except (api.NotFound, FileNotFoundError):
        return None


def _crc32c_of(file: IO[bytes]) -> str:
    """Return a file's checksum as the store writes it: big-endian, in base64."""
    crc32c = 0
    file.seek(0)
    while piece := file.read(_CHUNK_BYTES):
        crc32c = google_crc32c.extend(crc32c, piece)
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def is_transient(error: Exception) -> bool:
    """Return whether a request that failed so is worth another try."""
    if _NO_MORE_FILES in str(error):  # reported as a host that has no address, for instance
        return False
    status = status_of(error)
    if status is None:
        return isinstance(error, _TRANSIENT)
    # The store answers 400 when an upload's bytes changed on their way.
    were_changed = status == HTTPStatus.BAD_REQUEST and "calculated CRC32C" in str(error)
    return status in _TRANSIENT_STATUS or status >= 500 or were_changed


def is_throttling(error: Exception) -> bool:
    """Return whether the store says that requests are too many."""
    return status_of(error) in _THROTTLING


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of a reply that failed, or None where there was none."""
    if isinstance(error, api.GoogleAPICallError):
        return error.code
    if not isinstance(error, obstore_errors.BaseError):
        return None
    found = _OBSTORE_STATUS.search(str(error))  # its class does not say
    return int(found[1]) if found else None


def _code_of(error: Exception) -> tuple[str, str]:
    """Return the fault code of a permanent error of the store, and the remedy."""
    if _NO_MORE_FILES in str(error):
        return "E-IO-LIMIT", "raise the limit on open files (ulimit -n)"
    if status_of(error) in _DENIED_STATUS or isinstance(error, _DENIED):
        return "E-IO-AUTH", "give the account permission, or --anonymous for a public bucket"
    if status_of(error) == HTTPStatus.NOT_FOUND:
        return "E-ARG", "give a bucket that exists"
    return "E-IO-RETRIES", "look at the storage, then run again to resume"


def emulator() -> str:
    """Return the address of an emulator; empty for the store itself."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")  # as Google's own clients call it


@functools.lru_cache(maxsize=1)
def credentials() -> Any:
    """Return Application Default Credentials, or fail within seconds."""
    # Off Google's machines the client asks three times, three seconds each, for a metadata server.
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    found, _ = google.auth.default(scopes=[_SCOPE])
    return found


@functools.lru_cache(maxsize=8)
def client(access: Access, emulator: str) -> Client:
    """Return the process's client of everything but reads."""
    # Without this the client asks where a bucket is, for its traces, with a permission of its own.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return Client(
        project=access.billing_project or "none",  # only the bill of a request needs it
        credentials=AnonymousCredentials() if access.anonymous or emulator else credentials(),
        client_options={"api_endpoint": emulator} if emulator else None,
    )


# More threads than the client keeps connections for are slower, but nothing is wrong.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
os.register_at_fork(after_in_child=client.cache_clear)  # a connection belongs to one process


@functools.lru_cache(maxsize=64)
def reader(bucket: str, access: Access, emulator: str) -> GCSStore:
    """Return the process's obstore reader of a bucket, of an emulator or of the store itself."""
    # This header keeps the store from unpacking objects whose `Content-Encoding` is gzip.
    headers = {"accept-encoding": "gzip"}
    options: dict[str, Any] = {**READER_TIMEOUTS, "default_headers": headers}
    config: Any = {"skip_signature": True}
    provider: Any = _no_credentials
    if access.billing_project:
        headers["x-goog-user-project"] = access.billing_project
    if emulator:
        config["base_url"] = emulator
        options["allow_http"] = True
    elif not access.anonymous:
        config, provider = {}, GoogleCredentialProvider(credentials())
    return GCSStore(
        bucket,
        config=config,
        client_options=options,  # type: ignore[arg-type]
        retry_config={"max_retries": 0},
        credential_provider=provider,
    )


def is_forked() -> bool:
    """Return whether obstore would hang: its threads exist only in the process before a fork.

    They start with the first request of a process, and cannot start again after a fork.
    """
    return _process_of_threads() != os.getpid()


@functools.cache
def _process_of_threads() -> int:
    return os.getpid()


def _no_credentials() -> NoReturn:
    """Keep obstore from reading the machine's credentials when it must not send any.

    It reads them all the same, and fails when it does not know their kind
    (https://github.com/apache/arrow-rs-object-store/issues/520).
    """
    raise auth.DefaultCredentialsError("credentials were asked for, and none are to be sent")


def _is_plain(path: str) -> bool:
    """Return whether obstore reads the object of this very name; it tidies some names."""
    return path.isprintable() and not {"", ".", ".."} & set(path.split("/"))
