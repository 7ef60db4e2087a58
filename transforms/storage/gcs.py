"""Google Cloud Storage: one request an image, one a thousand names, and objects that appear whole.

An upload has the precondition that no object has its name yet (`ifGenerationMatch=0`), and shows
nothing until the store has all of it. There are no temporary objects and no renames, and the
account needs no permission to delete. Every read asks for the generation that was listed and
compares the CRC-32C. All retries are ours.
"""

import base64
import contextlib
import errno
import functools
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
from google.cloud.storage import Blob, Client
from google.cloud.storage import exceptions as client_errors
from obstore import exceptions as obstore_errors
from obstore.auth.google import GoogleCredentialProvider
from obstore.store import GCSStore

from schemas.faults import fault_line
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
)
from transforms.storage.disk import UploadedSpool, coded, publish_whole
from transforms.storage.listing import Page, list_in_ranges
from transforms.storage.retries import rate_of, retry

IN_ONE_REQUEST_BYTES = 8 << 20
"""Uploaded in one request with the metadata; a larger object takes a session."""

_NAMES_PER_PAGE = 1000  # the store's limit
_LISTING_THREADS = 8
_SENT_AT_ONCE_BYTES = 1 << 18  # of a file; 16 kB take the interpreter's lock 16 times as often
_FIELDS = "name,size,generation,crc32c"
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


class _Body:
    """A file that each request sends from its start, also when it is repeated with a new token."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while piece := self._file.read(_SENT_AT_ONCE_BYTES):
            yield piece


class GcsStorage:
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
        delimiter = "" if recursive else "/"

        def fetch(start: str, end: str, token: str) -> Page:
            asked = {
                "prefix": self._prefix + prefix,
                "delimiter": delimiter,
                "startOffset": self._prefix + start if start else "",
                "endOffset": self._prefix + end if end else "",
                "pageToken": token,
            }
            return self._run(prefix, lambda: self._list_page(asked))

        return list_in_ranges(fetch, bounds, _LISTING_THREADS)

    def stat(self, name: str) -> Entry | None:
        """Return an object's entry, None when there is none."""
        return self._run(name, lambda: self._stat_once(name))

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return an object's bytes, in the generation that was listed, and with its checksum."""
        wanted = expected or self.stat(name)
        if wanted is None:
            raise self._changed(name, "not there")
        if span is not None and span[1] > wanted.size_bytes:
            raise self._changed(name, ends_early(wanted.size_bytes, span))
        return self._run(name, lambda: self._read_once(name, wanted, span))

    def crc32c(self, name: str) -> int:
        """Return an object's CRC-32C, as the store computed it."""
        found = self.stat(name)
        if found is None or found.crc32c is None:
            raise self._changed(name, "not there" if found is None else "without a CRC-32C")
        return found.crc32c

    def create(self, name: str, data: bytes) -> bool:
        """Create a small object whole; False when the name is taken."""
        return publish_whole(self.spool(), name, data)

    def spool(self) -> Spool:
        """Return a spool on the worker's own disk."""
        return UploadedSpool(self._upload, self._access.spool_dir)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        self._run(name, lambda: self._delete_once(name))

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
        content = self._get("/o", {**asked, **limits}).content
        page = msgspec.json.decode(content, type=_ListReply, strict=False)
        folders = [
            Entry(prefix[len(self._prefix) : -1], 0, "", kind="directory")
            for prefix in page.prefixes
        ]
        return Page([*map(self._entry, page.items), *folders], page.next_page_token)

    def _stat_once(self, name: str) -> Entry | None:
        try:
            content = self._get(self._path(name), {"fields": _FIELDS}).content
        except Refused as error:
            if is_gone(error):
                return None
            raise
        return self._entry(msgspec.json.decode(content, type=_Object, strict=False))

    def _entry(self, found: _Object) -> Entry:
        crc32c = int.from_bytes(base64.b64decode(found.crc32c), "big") if found.crc32c else None
        kind = "directory" if found.name.endswith("/") else "file"
        name = found.name[len(self._prefix) :]
        return Entry(name, found.size, found.generation, crc32c, kind)

    def _read_once(self, name: str, wanted: Entry, span: Span | None) -> bytes:
        start, end = span or (0, wanted.size_bytes)
        try:
            data = self._read_span(name, wanted.pin, start, end)
        except Exception as error:
            if is_gone(error):
                raise self._changed(name, f"generation {wanted.pin} is gone") from None
            raise
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
        with self._get(self._path(name), asked, headers=headers, stream=True) as reply:
            return bytes(reply.raw.read(decode_content=False))  # as stored, not unpacked

    def _delete_once(self, name: str) -> None:
        with contextlib.suppress(api.NotFound):
            self._blob(name).delete(timeout=TIMEOUT_S, retry=None)

    def _upload(self, name: str, file: IO[bytes]) -> bool:
        """Upload a file, which appears when the store has all of it; a failed try starts over."""
        return self._run(name, lambda: self._upload_once(name, file))

    def _upload_once(self, name: str, file: IO[bytes]) -> bool:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        blob = self._blob(name)
        try:
            if size > IN_ONE_REQUEST_BYTES:
                self._send_by_session(blob, file, size)
            else:
                blob.upload_from_file(
                    file,
                    size=size,
                    checksum="crc32c",
                    if_generation_match=0,
                    timeout=SENDING_TIMEOUT_S,
                    retry=None,
                )
        except (Refused, api.PreconditionFailed, client_errors.InvalidResponse) as error:
            if status_of(error) == HTTPStatus.PRECONDITION_FAILED:
                return False
            raise
        return True

    def _send_by_session(self, blob: Blob, file: IO[bytes], size: int) -> None:
        """Upload as the file is read, in one request of a resumable session."""
        address = blob.create_resumable_upload_session(
            size=size, checksum=None, if_generation_match=0, timeout=TIMEOUT_S, retry=None
        )
        body = _Body(file, size)
        reply = self._session().put(
            address,
            data=body,
            headers={
                "content-range": f"bytes 0-{size - 1}/{size}",
                "x-goog-hash": f"crc32c={_crc32c_of(body)}",  # the store refuses other bytes
            },
            timeout=SENDING_TIMEOUT_S,
        )
        if reply.status_code == HTTPStatus.NOT_FOUND:  # the session: the bucket exists
            raise Refused(HTTPStatus.GONE, f"upload session: {reply.text}")
        _check(reply)

    def _get(self, path: str, asked: Mapping[str, str], **given: Any) -> requests.Response:
        """Return the JSON API's reply for a path below the bucket's, at the allowed rate."""
        address = f"{emulator() or API}/storage/v1/b/{_quote(self._bucket)}{path}"
        params = {**asked, "prettyPrint": "false", "userProject": self._access.billing_project}
        present = {name: value for name, value in params.items() if value}
        with self._rate.request():
            reply = self._session().get(address, params=present, timeout=TIMEOUT_S, **given)
            _check(reply)
        return reply

    def _blob(self, name: str) -> Blob:
        bucket = client(self._access, emulator()).bucket(
            self._bucket, user_project=self._access.billing_project or None
        )
        return bucket.blob(self._prefix + name, kms_key_name=self._access.kms_key or None)

    def _session(self) -> AuthorizedSession:
        return session(self._access.anonymous or bool(emulator()))

    def _path(self, name: str) -> str:
        return f"/o/{_quote(self._prefix + name)}"

    def _run(self, name: str, operation: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return operation()
            except Exception as error:
                limit = limit_of_files(error)
                if limit is not None:
                    raise coded(limit, self._uri(name)) from error
                raise

        try:
            return retry(attempt, is_transient, lambda: self._uri(name), sleep=self._rate.sleep)
        except Exception as error:
            line = self._line(name, error)
            if not line:
                raise
            raise RuntimeError(line) from error

    def _line(self, name: str, error: Exception) -> str:
        """Return an error of the store as a coded line; empty for any other error."""
        code, remedy = "E-IO-RETRIES", "look at the storage, then run again to resume"
        if is_denied(error):
            remedy = "give the account permission, or --anonymous for a public bucket"
            code = "E-IO-AUTH"
        elif is_gone(error):
            code, remedy = "E-ARG", "give a bucket that exists"
        elif not isinstance(error, (Refused, api.GoogleAPICallError, obstore_errors.BaseError)):
            return ""
        what = " ".join(str(error).split())[:300]
        return fault_line(code, self._uri(name), what, remedy)

    def _changed(self, name: str, what: str) -> RuntimeError:
        return source_changed(self._uri(name), what)

    def _uri(self, name: str) -> str:
        return join_uri(self.root, name) if name else self.root


def _check(reply: requests.Response) -> None:
    if reply.status_code >= HTTPStatus.MULTIPLE_CHOICES:
        raise refused(reply)


def _crc32c_of(body: _Body) -> str:
    crc = 0
    for piece in body:
        crc = google_crc32c.extend(crc, piece)
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def _quote(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _is_plain(path: str) -> bool:
    """Return whether obstore reads the object of this very name; it tidies some names."""
    return path.isprintable() and not {"", ".", ".."} & set(path.split("/"))


API = "https://storage.googleapis.com"
TIMEOUT_S = (5, 60)
"""To connect, and between two bytes of a reply."""

SENDING_TIMEOUT_S = TIMEOUT_S[1]
"""For uploads: urllib3 applies the time to connect to each send, too."""

READER_TIMEOUTS = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=20),
    "timeout": timedelta(minutes=10),
}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_CONNECTIONS = 64  # of the session, at most
_OBSTORE_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_THROTTLING_STATUS = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
_TRANSIENT_STATUS = {308, 408, 410, 429}
"""308: not all of an upload arrived; 410: the store has forgotten the upload's session."""
_DENIED_STATUS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
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
    client_errors.DataCorruption,
)
_DENIED = (
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    auth.DefaultCredentialsError,  # also what a 401 becomes for anonymous requests
    auth.RefreshError,
)


class Refused(Exception):
    """A reply that is not a success.

    Attributes:
        status: of the reply.
    """

    def __init__(self, status: int, message: str) -> None:
        """Take the status and the store's words."""
        super().__init__(f"{status} {message}")
        self.status = status


def refused(reply: requests.Response) -> Refused:
    """Return a reply that is not a success as an error, with the message of its JSON."""
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.text or reply.reason or ""
    return Refused(reply.status_code, message)


def is_transient(error: Exception) -> bool:
    """Return whether a request that failed so is worth another try."""
    status = status_of(error)
    if status is None:
        return isinstance(error, _TRANSIENT)
    # The store answers 400 when an upload's bytes changed on their way.
    were_changed = status == HTTPStatus.BAD_REQUEST and "calculated CRC32C" in str(error)
    return status in _TRANSIENT_STATUS or status >= 500 or were_changed


def is_throttling(error: Exception) -> bool:
    """Return whether the store says that requests are too many."""
    return status_of(error) in _THROTTLING_STATUS


def is_denied(error: Exception) -> bool:
    """Return whether credentials or a permission are missing."""
    return status_of(error) in _DENIED_STATUS or isinstance(error, _DENIED)


def is_gone(error: Exception) -> bool:
    """Return whether there is no such object, generation or bucket."""
    return status_of(error) == HTTPStatus.NOT_FOUND or isinstance(error, FileNotFoundError)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of a reply that failed, or None where there was none."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, api.GoogleAPICallError):
        return error.code
    if isinstance(error, client_errors.InvalidResponse):
        return error.response.status_code
    if not isinstance(error, obstore_errors.BaseError):
        return None
    found = _OBSTORE_STATUS.search(str(error))  # its class does not say
    return int(found[1]) if found else None


def limit_of_files(error: Exception) -> OSError | None:
    """Return the limit on open files as an error, where that is why a request failed.

    A client that cannot open a file reports that a host has no address, or that there are no
    certificates. Retries would not help.
    """
    if os.strerror(errno.EMFILE) in str(error):
        return OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if not is_transient(error):
        return None
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as limit:
        return limit if limit.errno in (errno.EMFILE, errno.ENFILE) else None
    return None


@functools.lru_cache(maxsize=1)
def credentials() -> Any:
    """Return Application Default Credentials, or fail within seconds."""
    # Off Google's machines the client asks three times, three seconds each, for a metadata server.
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    found, _ = google.auth.default(scopes=[_SCOPE])
    return found


def emulator() -> str:
    """Return the address of an emulator; empty for the store itself."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")  # as Google's own clients call it


@functools.lru_cache(maxsize=2)
def session(anonymous: bool) -> AuthorizedSession:
    """Return the process's session, for all stores."""
    made = AuthorizedSession(AnonymousCredentials() if anonymous else credentials())
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS)
    for scheme in ("https://", "http://"):
        made.mount(scheme, adapter)
    return made


@functools.lru_cache(maxsize=8)
def client(access: Access, emulator: str) -> Client:
    """Return the process's client that uploads and deletes."""
    # Without this the client asks where a bucket is, for its traces, with a permission of its own.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return Client(
        project=access.billing_project or "none",  # only the bill of a request needs it
        credentials=AnonymousCredentials() if access.anonymous or emulator else credentials(),
        client_options={"api_endpoint": emulator} if emulator else None,
    )


# A connection belongs to one process.
os.register_at_fork(after_in_child=session.cache_clear)
os.register_at_fork(after_in_child=client.cache_clear)


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
