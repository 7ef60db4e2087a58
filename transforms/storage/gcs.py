"""Google Cloud Storage: one request an image, one a thousand names, and objects that appear whole.

`obstore` reads objects for an eighth of the CPU of Python's HTTP. `google-cloud-storage` uploads.
All other requests go to the JSON API by an authorised session, since Google's client takes three
times the CPU to list. No client retries. All retries are ours.

An upload says that no object may have its name yet (`ifGenerationMatch=0`), and which CRC-32C the
bytes have. The store shows nothing until it has all of them. There are no temporary objects and no
renames, so the account needs no permission to delete. Every read asks for the generation that was
listed and compares the CRC-32C.
"""

import base64
import errno
import functools
import itertools
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import IO, Any, NoReturn, TypeVar

import google.auth
import google_crc32c
import msgspec
import obstore
import requests
import urllib3
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Client
from obstore import exceptions as obstore_errors
from obstore.auth.google import GoogleCredentialProvider
from obstore.store import GCSStore

from schemas.faults import fault_line
from transforms.storage import EVERYTHING, Access, Bounds, Entry, Span, Spool, Storage, ends_early
from transforms.storage.disk import UploadedSpool
from transforms.storage.listing import Page, list_pages
from transforms.storage.retries import rate_of, retry

API = "https://storage.googleapis.com"
TIMEOUT_S = (20, 60)
"""Seconds to connect or to send a piece, and between two bytes of a reply."""

READER_TIMEOUTS = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=20),
    "timeout": timedelta(minutes=10),
}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_CONNECTIONS = 64  # of the session, at most
_NAMES_PER_PAGE = 1000  # the store's limit
_FIELDS = "name,size,generation,crc32c"
_CHUNK_BYTES = 8 << 20  # sent at once of a large upload, and held in memory

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
    msgspec.DecodeError,  # a reply that was cut
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


class _Object(msgspec.Struct, rename="camel"):
    """An object's metadata: numbers as strings, the checksum big-endian in base64."""

    name: str
    size: int
    generation: str
    crc32c: str = ""


class _ListReply(msgspec.Struct, rename="camel"):
    items: Sequence[_Object] = ()
    prefixes: Sequence[str] = ()
    next_page_token: str = ""


class Refused(Exception):
    """A reply that is not a success.

    Attributes:
        status: HTTP status of the reply.
    """

    def __init__(self, reply: requests.Response) -> None:
        """Take the reply, with the message of its JSON."""
        try:
            message = reply.json()["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = reply.text or reply.reason or ""
        super().__init__(f"{reply.status_code} {message}")
        self.status = reply.status_code


class GcsStorage(Storage):
    """Objects below `gs://bucket/prefix`."""

    lists_by_name = True
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

    def list(
        self, prefix: str = "", *, recursive: bool = True, bounds: Bounds = EVERYTHING
    ) -> Iterator[Entry]:
        """Yield every object below the root or a folder of it, a thousand a request."""

        def fetch(start: str, end: str, token: str) -> Page:
            asked = {
                "prefix": self._prefix + prefix,
                "delimiter": "" if recursive else "/",
                "startOffset": self._prefix + start if start else "",
                "endOffset": self._prefix + end if end else "",
                "pageToken": token,
            }
            return self._run(prefix, lambda: self._list_page(asked))

        return list_pages(fetch, bounds, divide=recursive)

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
        self._run(name, lambda: self._unless_gone(lambda: self._call("DELETE", self._path(name))))

    def require_folder(self) -> None:
        """Make sure that the bucket can be listed; a bucket has no folders."""
        self._run("", lambda: self._list_page({"prefix": self._prefix}, max_results=1))

    def probe(self) -> None:
        """Make sure that the bucket can be read.

        Nothing is written: an account that may only create objects could not delete it again.
        """
        self.require_folder()

    def _list_page(self, asked: Mapping[str, str], max_results: int = _NAMES_PER_PAGE) -> Page:
        fields = f"items({_FIELDS}),prefixes,nextPageToken"
        limits = {"maxResults": str(max_results), "fields": fields}
        reply = self._call("GET", self._path(), {**asked, **limits})
        page = msgspec.json.decode(reply.content, type=_ListReply, strict=False)
        folders = [
            Entry(prefix[len(self._prefix) : -1], 0, "", kind="directory")
            for prefix in page.prefixes
        ]
        return Page([*map(self._entry, page.items), *folders], page.next_page_token)

    def _stat_once(self, name: str) -> Entry | None:
        asked = {"fields": _FIELDS}
        reply = self._unless_gone(lambda: self._call("GET", self._path(name), asked))
        if reply is None:
            return None
        return self._entry(msgspec.json.decode(reply.content, type=_Object, strict=False))

    def _entry(self, found: _Object) -> Entry:
        crc32c = int.from_bytes(base64.b64decode(found.crc32c), "big") if found.crc32c else None
        kind = "directory" if found.name.endswith("/") else "file"
        name = found.name[len(self._prefix) :]
        return Entry(name, found.size, found.generation, crc32c, kind)

    def _read_once(self, name: str, wanted: Entry, span: Span | None) -> bytes:
        start, end = span or (0, wanted.size_bytes)
        data = self._unless_gone(lambda: self._read_span(name, wanted.pin, start, end))
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
            return self._download(name, generation, start, end)
        store = reader(self._bucket, self._access, emulator())
        options: Any = {"version": generation, "range": (start, end)}
        with self._rate.request():
            reply = obstore.get(store, path, options=options)
        return bytes(reply.bytes())

    def _download(self, name: str, generation: str, start: int, end: int) -> bytes:
        """Read an object that obstore cannot name, or in a process that cannot use obstore."""
        asked = {"alt": "media", "generation": generation}
        headers = {"accept-encoding": "gzip", "range": f"bytes={start}-{end - 1}"}
        with self._call("GET", self._path(name), asked, headers=headers, stream=True) as reply:
            return bytes(reply.raw.read(decode_content=False))  # as stored, not unpacked

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
        payer = self._access.billing_project or None
        bucket = client(self._access, emulator()).bucket(self._bucket, user_project=payer)
        blob = bucket.blob(
            self._prefix + name, _CHUNK_BYTES, kms_key_name=self._access.kms_key or None
        )
        blob.crc32c = crc32c  # the store refuses other bytes
        try:
            with self._rate.request():
                blob.upload_from_file(
                    file,
                    rewind=True,
                    size=os.fstat(file.fileno()).st_size,
                    checksum=None,  # the client would delete the object when it finds other bytes
                    if_generation_match=0,
                    timeout=TIMEOUT_S,
                    retry=None,
                )
        except api.PreconditionFailed:
            return False
        return True

    def _call(
        self, method: str, path: str, asked: Mapping[str, str] | None = None, **given: Any
    ) -> requests.Response:
        """Return the JSON API's reply, at the allowed rate; a refusal is raised."""
        params = {
            **(asked or {}),
            "prettyPrint": "false",
            "userProject": self._access.billing_project,
        }
        present = {name: value for name, value in params.items() if value}
        made = session(self._access.anonymous or bool(emulator()))
        address = f"{emulator() or API}{path}"
        with self._rate.request():
            reply = made.request(method, address, params=present, timeout=TIMEOUT_S, **given)
            if reply.status_code >= HTTPStatus.MULTIPLE_CHOICES:
                raise Refused(reply)
        return reply

    def _path(self, name: str = "") -> str:
        path = f"/storage/v1/b/{_quote(self._bucket)}/o"
        return f"{path}/{_quote(self._prefix + name)}" if name else path

    def _unless_gone(self, operation: Callable[[], T]) -> T | None:
        try:
            return operation()
        except (Refused, FileNotFoundError) as error:
            if is_gone(error):
                return None
            raise

    def _run(self, name: str, operation: Callable[[], T]) -> T:
        try:
            return retry(operation, is_transient, self.uri(name), sleep=self._rate.sleep)
        except (
            Refused,
            obstore_errors.BaseError,
            requests.RequestException,
            auth.GoogleAuthError,
            api.GoogleAPICallError,
        ) as error:
            code, remedy = _code_of(error)
            what = " ".join(str(error).split())[:300]
            raise RuntimeError(fault_line(code, self.uri(name), what, remedy)) from error


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


def is_gone(error: Exception) -> bool:
    """Return whether there is no such object, generation or bucket."""
    return status_of(error) == HTTPStatus.NOT_FOUND or isinstance(error, FileNotFoundError)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of a reply that failed, or None where there was none."""
    if isinstance(error, Refused):
        return error.status
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
    if is_gone(error):
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


@functools.lru_cache(maxsize=2)
def session(anonymous: bool) -> AuthorizedSession:
    """Return the process's session, for all buckets."""
    made = AuthorizedSession(AnonymousCredentials() if anonymous else credentials())
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS)
    for scheme in ("https://", "http://"):
        made.mount(scheme, adapter)
    return made


@functools.lru_cache(maxsize=8)
def client(access: Access, emulator: str) -> Client:
    """Return the process's client that uploads."""
    # Without this the client asks where a bucket is, for its traces, with a permission of its own.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return Client(
        project=access.billing_project or "none",  # only the bill of a request needs it
        credentials=AnonymousCredentials() if access.anonymous or emulator else credentials(),
        client_options={"api_endpoint": emulator} if emulator else None,
    )


for _made in (session, client):  # a connection belongs to one process
    os.register_at_fork(after_in_child=_made.cache_clear)


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


def _quote(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _is_plain(path: str) -> bool:
    """Return whether obstore reads the object of this very name; it tidies some names."""
    return path.isprintable() and not {"", ".", ".."} & set(path.split("/"))
