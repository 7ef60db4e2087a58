"""Google Cloud Storage: one request per image, one per thousand names, create-only uploads.

`obstore` reads objects, for an eighth of the CPU time of Python's HTTP. `google-cloud-storage` does
the rest. Retries of both clients are off: this module retries.

An upload requires that the name is free (`ifGenerationMatch=0`), and sends the CRC-32C of the
bytes. The store shows an object only when it is complete. There are no temporary objects and no
renames, so the account needs no permission to delete. Every read requests the listed generation and
compares the CRC-32C.
"""

import base64
import errno
import functools
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
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

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.transforms.storage import Access, Entry, Span, Storage, crc32c_of, ends_early
from beam_tfrec.transforms.storage.disk import UploadedFile
from beam_tfrec.transforms.storage.retries import rate_of, retry

ONE_TRY: Any = {"timeout": (20, 60), "retry": None}
"""Seconds to connect, and between two bytes of a reply, for a request without retries."""

READER_TIMEOUTS = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=20),
    "timeout": timedelta(minutes=10),
}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_NAMES_PER_PAGE = 1000  # the store's limit
_MOST_RANGES = 32  # per listing
_LISTING_THREADS = 16
_FIELDS = "items(name,size,generation,crc32c),prefixes,nextPageToken"
_CHUNK_BYTES = 8 << 20  # piece of a large upload, held in memory

_OBSTORE_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_THROTTLING = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
_TRANSIENT_STATUS = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
_TRANSIENT = (
    ConnectionError,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    auth.TransportError,
    obstore_errors.GenericError,
)
_DENIED_STATUS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_NO_MORE_FILES = os.strerror(errno.EMFILE)
T = TypeVar("T")

Bounds = tuple[str, str]
"""First name of a range, and first name after it; empty for no bound."""
Page = tuple[list[Entry], str]
"""Part of a listing, and the token of the next part; empty for the last one."""


def list_pages(fetch: Callable[[Bounds, str], Page], ranges: Sequence[Bounds]) -> Iterator[Entry]:
    """Yield every name of the ranges once, in any order.

    One page of each range is held or requested at a time, and at most 16 are requested.

    Args:
        fetch: function that returns the page of a range at a token.
        ranges: ranges of names, without overlap.
    """
    with ThreadPoolExecutor(min(_LISTING_THREADS, len(ranges)), "list-names") as pool:
        running = {pool.submit(fetch, bounds, ""): bounds for bounds in ranges}
        while running:
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            bounds, (entries, token) = running.pop(future), future.result()
            if token:
                running[pool.submit(fetch, bounds, token)] = bounds
            yield from entries


class GcsStorage(Storage):
    """Objects below `gs://bucket/prefix`."""

    def __init__(self, root: str, access: Access) -> None:
        """Parse the root's URI without connecting.

        Raises:
            ValueError: The root has no bucket.
        """
        bucket, _, prefix = root.removeprefix("gs://").partition("/")
        if not bucket:
            raise ValueError(f"a gs:// path must name a bucket, got {root!r}: give gs://BUCKET")
        self.root = root.rstrip("/")
        self._bucket = bucket
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        self._access = access
        self._rate = rate_of(bucket, access.max_reads_per_second, is_throttling)

    def list(self, prefix: str = "", *, recursive: bool = True) -> Iterator[Entry]:
        """Yield every object below the root or a folder of it, a thousand per request."""
        ranges = self._ranges() if recursive and not prefix else [("", "")]
        delimiter = None if recursive else "/"
        fetch = functools.partial(self._list_page, folder=prefix, delimiter=delimiter)
        return list_pages(fetch, ranges)

    def stat(self, name: str) -> Entry | None:
        """Return an object's entry, or None if it does not exist."""
        return self._run(name, lambda: self._stat_once(name))

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return the bytes of the listed generation; compare their checksum."""
        wanted = expected or self.entry_of(name)
        if span is not None and span[1] > wanted.size_bytes:
            raise self.changed(name, ends_early(wanted.size_bytes, span))
        return self._run(name, lambda: self._read_once(name, wanted, span))

    def new_file(self) -> UploadedFile:
        """Return a file on the worker's own disk, which is uploaded with `publish`."""
        return UploadedFile(self._upload, self._access.spool_dir)

    def delete(self, name: str) -> None:
        """Delete an object if it exists."""
        self._run(name, lambda: _unless_gone(lambda: self._blob(name).delete(**ONE_TRY)))

    def require_folder(self) -> None:
        """Check that the bucket can be listed; a bucket has no folders."""
        self._list_page()

    probe = require_folder

    def _ranges(self) -> Sequence[Bounds]:
        """Return ranges of names, split at top-level folders of the first thousand names."""
        top, _ = self._list_page(delimiter="/")
        folders = sorted(f"{entry.name}/" for entry in top if entry.kind == "directory")
        some = folders[:: len(folders) // _MOST_RANGES + 1]  # each range costs at least a request
        return list(pairwise(["", *some, ""]))

    def _list_page(
        self,
        bounds: Bounds = ("", ""),
        token: str = "",
        folder: str = "",
        delimiter: str | None = None,
    ) -> Page:
        start, end = (self._prefix + bound if bound else None for bound in bounds)

        def ask() -> Page:
            found = self._objects().list_blobs(
                prefix=self._prefix + folder,
                page_size=_NAMES_PER_PAGE,
                fields=_FIELDS,
                delimiter=delimiter,
                start_offset=start,
                end_offset=end,
                page_token=token or None,
                **ONE_TRY,
            )
            entries = [*map(self._entry, next(found.pages))]
            names = [name[len(self._prefix) : -1] for name in found.prefixes]
            entries += [Entry(name, 0, "", kind="directory") for name in names]
            return entries, found.next_page_token or ""

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
        # A generation never changes, so wrong bytes are a transport error: retry.
        if len(data) != end - start:
            what = f"received {len(data)} bytes, requested {end - start}"
            raise obstore_errors.GenericError(what)
        if span is None and wanted.crc32c is not None:
            crc32c = google_crc32c.value(data)
            if crc32c != wanted.crc32c:
                raise obstore_errors.GenericError(
                    f"received bytes with CRC-32C {crc32c:08x}, listed was {wanted.crc32c:08x}"
                )
        return data

    def _read_span(self, name: str, generation: str, start: int, end: int) -> bytes:
        if start == end:
            return b""
        path = self._prefix + name
        # After a fork obstore would hang, since its threads remain in the parent process.
        if not _is_plain(path) or _process_of_threads() != os.getpid():
            blob = self._blob(name, generation=int(generation))
            return blob.download_as_bytes(  # as stored, not decompressed
                start=start, end=end - 1, raw_download=True, checksum=None, **ONE_TRY
            )
        store = reader(self._bucket, self._access, emulator())
        options: Any = {"version": generation, "range": (start, end)}
        return bytes(obstore.get(store, path, options=options).bytes())

    def _upload(self, name: str, file: IO[bytes]) -> bool:
        """Upload a file, which appears only when it is complete; a failed try starts over."""
        file.seek(0)
        crc32c = base64.b64encode(crc32c_of(file).to_bytes(4, "big")).decode()
        kms_key = self._access.kms_key or None
        tries = itertools.count()

        def attempt() -> bool:
            # The last try may have succeeded with its reply lost, or another writer was first.
            # Instead of refusing a long upload, a store may just close the connection.
            if next(tries) and self._stat_once(name) is not None:
                return False
            blob = self._blob(name, chunk_size=_CHUNK_BYTES, kms_key_name=kms_key)
            blob.crc32c = crc32c  # the store refuses other bytes
            try:
                blob.upload_from_file(
                    file,
                    rewind=True,
                    size=os.fstat(file.fileno()).st_size,
                    checksum=None,  # on a mismatch the client would delete the object
                    if_generation_match=0,
                    **ONE_TRY,
                )
            except api.PreconditionFailed:
                return False
            return True

        return self._run(name, attempt)

    def _objects(self) -> Bucket:
        payer = self._access.billing_project or None
        return client(self._access, emulator()).bucket(self._bucket, user_project=payer)

    def _blob(self, name: str, **properties: Any) -> Blob:
        return self._objects().blob(self._prefix + name, **properties)

    def _run(self, name: str, operation: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                with self._rate.request():
                    return operation()
            except AttributeError as error:  # Google's client: a JSON reply is not an object
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
            what = " ".join(str(error).split())[:300]
            raise run_fault(code, self.uri(name), what, remedy) from error


def _unless_gone(operation: Callable[[], T]) -> T | None:
    try:
        return operation()
    except (api.NotFound, FileNotFoundError):
        return None


def is_transient(error: Exception) -> bool:
    """Return whether to retry a request after this error."""
    if isinstance(error, ValueError) and isinstance(error, requests.RequestException):
        return isinstance(error, requests.exceptions.JSONDecodeError)  # others mean a bad URL
    if _NO_MORE_FILES in str(error):  # may be reported as a DNS error
        return False
    status = status_of(error)
    if status is None:
        return isinstance(error, _TRANSIENT)
    # The store replies 400 when the bytes of an upload were damaged on the way.
    were_changed = status == HTTPStatus.BAD_REQUEST and "calculated CRC32C" in str(error)
    return status in _TRANSIENT_STATUS or status >= 500 or were_changed


def is_throttling(error: Exception) -> bool:
    """Return whether the store refused a request as one too many."""
    return status_of(error) in _THROTTLING


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of a failed request, or None without a reply."""
    if isinstance(error, api.GoogleAPICallError):
        return error.code
    found = _OBSTORE_STATUS.search(str(error))  # obstore's errors have no status field
    return int(found[1]) if found else None


def _code_of(error: Exception) -> tuple[str, str]:
    """Return the fault code and the remedy of a permanent error."""
    if _NO_MORE_FILES in str(error):
        return "E-IO-LIMIT", "raise the limit on open files (ulimit -n)"
    # For an anonymous request, obstore turns a 401 into a credentials error.
    if status_of(error) in _DENIED_STATUS or isinstance(error, auth.GoogleAuthError):
        return "E-IO-AUTH", "give the account permission, or --anonymous for a public bucket"
    if status_of(error) == HTTPStatus.NOT_FOUND:
        return "E-ARG", "give a bucket that exists"
    return "E-IO-RETRIES", "check the storage, then run again to resume"


def emulator() -> str:
    """Return the address of an emulator, or an empty string for the real store."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")  # the variable of Google's clients


@functools.lru_cache(maxsize=1)
def credentials() -> Any:
    """Return Application Default Credentials, or fail within seconds."""
    # Outside Google Cloud, the client would try a metadata server three times for three seconds.
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    found, _ = google.auth.default(scopes=[_SCOPE])
    return found


@functools.lru_cache(maxsize=8)
def client(access: Access, emulator: str) -> Client:
    """Return the process's client for everything except reads."""
    # Otherwise the client requests the bucket's location for traces, which needs a permission.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return Client(
        project=access.billing_project or "none",  # used only for billing
        credentials=AnonymousCredentials() if access.anonymous or emulator else credentials(),
        client_options={"api_endpoint": emulator} if emulator else None,
    )


# The client warns when there are more threads than pooled connections. That is only slower.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
os.register_at_fork(after_in_child=client.cache_clear)  # a connection belongs to one process


@functools.lru_cache(maxsize=64)
def reader(bucket: str, access: Access, emulator: str) -> GCSStore:
    """Return the process's obstore client for a bucket."""
    # With this header the store does not decompress objects with `Content-Encoding: gzip`.
    headers = {"accept-encoding": "gzip"}
    if access.billing_project:
        headers["x-goog-user-project"] = access.billing_project
    options: Any = {**READER_TIMEOUTS, "default_headers": headers, "allow_http": bool(emulator)}
    sends_none = access.anonymous or bool(emulator)
    config: Any = {"skip_signature": sends_none} | ({"base_url": emulator} if emulator else {})
    return GCSStore(
        bucket,
        config=config,
        client_options=options,
        retry_config={"max_retries": 0},
        credential_provider=_no_credentials
        if sends_none
        else GoogleCredentialProvider(credentials()),
    )


@functools.cache
def _process_of_threads() -> int:
    """Return the id of the process that made the first request: obstore's threads live there."""
    return os.getpid()


def _no_credentials() -> NoReturn:
    """Keep obstore from reading the machine's credentials for anonymous requests.

    Without this provider it reads them anyway, and fails for unknown kinds
    (https://github.com/apache/arrow-rs-object-store/issues/520).
    """
    raise auth.DefaultCredentialsError("requests are anonymous and must not use credentials")


def _is_plain(path: str) -> bool:
    """Return whether obstore passes a name on unchanged; it normalises some names."""
    return path.isprintable() and not {"", ".", ".."} & set(path.split("/"))
