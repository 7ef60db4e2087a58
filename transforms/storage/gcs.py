"""Google Cloud Storage: one request an image, one a thousand names, and objects that appear whole.

`obstore` reads, for an eighth of the CPU of Google's client; that client lists, which gives
generations and checksums, and uploads. An upload has the precondition that no object has its name
yet (`if_generation_match=0`), and shows nothing until the store has all of it: there are no
temporary objects, no renames, and no need for permission to delete. Every read is pinned to the
generation that was listed and checked against its CRC-32C. All retries are ours.
"""

import base64
import contextlib
import functools
import os
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import IO, Any, NoReturn, TypeVar

import google.auth
import google_crc32c
import msgspec
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Blob, Bucket, Client
from google.cloud.storage import exceptions as client_errors
from obstore import exceptions as obstore_errors
from obstore.auth.google import GoogleCredentialProvider
from obstore.store import GCSStore

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
)
from transforms.storage.local import coded
from transforms.storage.name_ranges import Page, list_in_ranges
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

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_CONNECTIONS = 64  # of the listing and uploading client, at most
_NAMES_PER_PAGE = 1000  # the store's limit
_LISTING_THREADS = 8
_IN_ONE_REQUEST_BYTES = 8 << 20  # with the object's metadata; a larger upload has a session
_SENT_AT_ONCE_BYTES = 1 << 18  # of a file; 16 kB take the interpreter's lock 16 times as often
_TIMEOUT_S = (5, 60)  # to connect, and between two bytes
_LISTED = "items(name,size,generation,crc32c),prefixes,nextPageToken"
_DENIED = (
    api.Forbidden,
    api.Unauthorized,
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    auth.DefaultCredentialsError,  # also 401 to one who sends no credentials
    auth.RefreshError,
)
_GONE = (api.NotFound, FileNotFoundError)
_TRANSIENT = (
    ConnectionError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
    requests.exceptions.JSONDecodeError,  # of a reply that was cut
    msgspec.DecodeError,
    auth.TransportError,
    obstore_errors.GenericError,
    client_errors.DataCorruption,
    client_errors.InvalidResponse,
)
_TRANSIENT_STATUS = {308, 408, 410, 429}
"""308: not all of an upload came; 410: its session is one that the store has forgotten."""
_CREATE_ONLY: dict[str, Any] = {"if_generation_match": 0}
_CREATED = {HTTPStatus.OK, HTTPStatus.CREATED}
T = TypeVar("T")


class _Listed(msgspec.Struct, rename="camel"):
    """An object as a listing has it: numbers as strings, the checksum big-endian in base64."""

    name: str
    size: int
    generation: str
    crc32c: str = ""


class _ListReply(msgspec.Struct, rename="camel"):
    items: Sequence[_Listed] = ()
    prefixes: Sequence[str] = ()
    next_page_token: str = ""


_decode_list_reply = functools.partial(msgspec.json.decode, type=_ListReply, strict=False)


class _Body:
    """A file that every request sends from its start, also one repeated for another token."""

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
        self._bucket_name = bucket
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        self._access = access
        self._rate = rate_of(bucket, _is_throttling, access.max_reads_per_second)

    def list(
        self, prefix: str = "", *, recursive: bool = True, bounds: Bounds = EVERYTHING
    ) -> Iterator[Entry]:
        """Yield every object below the root or a folder of it, a thousand a request."""
        delimiter = {} if recursive else {"delimiter": "/"}

        def fetch(start: str, end: str, token: str) -> Page:
            asked = {
                "prefix": self._prefix + prefix,
                "startOffset": self._prefix + start if start else "",
                "endOffset": self._prefix + end if end else "",
                "pageToken": token,
                **delimiter,
            }
            return self._run(prefix, lambda: self._list_page(asked))

        return list_in_ranges(fetch, bounds, _LISTING_THREADS)

    def stat(self, name: str) -> Entry | None:
        """Return an object's entry, None when there is none."""
        blob = self._run(name, lambda: self._stat_once(name))
        return None if blob is None else _entry(name, blob)

    def read(self, name: str, expected: Entry | None = None, span: Span | None = None) -> bytes:
        """Return an object's bytes, in the generation that was listed, and as its checksum says."""
        wanted = expected or self.stat(name)
        if wanted is None:
            raise self._changed(name, "not there")
        if span is not None and span[1] > wanted.size_bytes:
            raise self._changed(name, ends_early(wanted.size_bytes, span))
        return self._run(name, lambda: self._read_once(name, wanted, span))

    def crc32c(self, name: str) -> int:
        """Return an object's CRC-32C, as the store took it."""
        found = self.stat(name)
        if found is None or found.crc32c is None:
            raise self._changed(name, "not there")
        return found.crc32c

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
        self._run(name, lambda: self._delete_once(name))

    def require_folder(self) -> None:
        """Make sure that the bucket can be listed; a bucket has no folders."""
        self._run("", lambda: self._list_page({"prefix": self._prefix}, max_results=1))

    def probe(self) -> None:
        """Make sure that the bucket can be read.

        Nothing is written for it: who may only create objects could not delete it again.
        """
        self.require_folder()

    def _delete_once(self, name: str) -> None:
        with contextlib.suppress(*_GONE):
            self._bucket().blob(self._prefix + name).delete(**_call())

    def _stat_once(self, name: str) -> Blob | None:
        with self._rate.request():
            return self._bucket().get_blob(self._prefix + name, **_call())

    def _bucket(self) -> Bucket:
        return self._client().bucket(
            self._bucket_name, user_project=self._access.billing_project or None
        )

    def _client(self) -> Client:
        return _client(self._access, _emulator())

    def _list_page(self, asked: Mapping[str, str], max_results: int = _NAMES_PER_PAGE) -> Page:
        """Ask for one page, past Google's client: that spends 12 ms on its JSON, this takes 1."""
        common = {"maxResults": str(max_results), "fields": _LISTED}
        given = {name: value for name, value in asked.items() if value}
        page = _decode_list_reply(self._ask("/o", {**common, **given}))
        entries = [self._listed(item) for item in page.items]
        entries += [self._folder(prefix) for prefix in page.prefixes]
        return Page(entries, page.next_page_token)

    def _ask(self, path: str, asked: Mapping[str, str]) -> bytes:
        """Return the JSON that the bucket's address gives, with a path behind it."""
        client = self._client()
        bucket = urllib.parse.quote(self._bucket_name)
        paying = self._access.billing_project
        with self._rate.request():
            reply = client._http.get(
                f"{client.api_endpoint}/storage/v1/b/{bucket}{path}",
                params={**asked, "prettyPrint": "false"}
                | ({"userProject": paying} if paying else {}),
                timeout=_TIMEOUT_S,
            )
            if reply.status_code != HTTPStatus.OK:
                raise api.from_http_response(reply)
        return reply.content

    def _listed(self, item: _Listed) -> Entry:
        name = item.name[len(self._prefix) :]
        kind = "directory" if item.name.endswith("/") else "file"
        crc32c = _crc32c(item.crc32c)
        return Entry(name, item.size, item.generation, crc32c, kind)

    def _folder(self, prefix: str) -> Entry:
        return Entry(prefix[len(self._prefix) : -1], 0, "", kind="directory")

    def _read_once(self, name: str, wanted: Entry, span: Span | None) -> bytes:
        path, pinned = self._prefix + name, {"version": wanted.pin}
        try:
            if not _is_plain(path) or is_forked():
                data = self._download(path, wanted, span)
            else:
                store = _store(self._bucket_name, self._access, _emulator())
                if span is not None:
                    data = get_span(store, path, span, pinned, self._rate)
                else:
                    data = get_whole(store, path, wanted.size_bytes, pinned, self._rate)
        except _GONE:
            raise self._changed(name, f"generation {wanted.pin} is gone") from None
        if span is not None:
            if len(data) != span[1] - span[0]:
                what = f"{len(data)} bytes came, {span[1] - span[0]} were asked for"
                raise obstore_errors.GenericError(what)
            return data
        if len(data) != wanted.size_bytes or (
            wanted.crc32c is not None and google_crc32c.value(data) != wanted.crc32c
        ):
            # The generation is what was asked for, so it is the transport that has changed it.
            raise obstore_errors.GenericError(
                f"{len(data)} bytes of CRC-32C {google_crc32c.value(data):08x} came,"
                f" {wanted.size_bytes} of {wanted.crc32c or 0:08x} were listed"
            )
        return data

    def _download(self, path: str, wanted: Entry, span: Span | None) -> bytes:
        """Read an object that obstore cannot name, or not in this process, in one piece."""
        blob = self._bucket().blob(path, generation=int(wanted.pin))
        part = {} if span is None else {"start": span[0], "end": span[1] - 1}
        if span is not None and span[0] == span[1]:
            return b""  # no range of bytes is empty
        with self._rate.request():
            return blob.download_as_bytes(raw_download=True, checksum=None, **part, **_call())

    def _upload(self, name: str, file: IO[bytes]) -> bool:
        """Upload a file that appears when all of it came; a failed try starts over."""
        return self._run(name, lambda: self._upload_once(name, file))

    def _upload_once(self, name: str, file: IO[bytes]) -> bool:
        key = self._access.kms_key or None
        blob = self._bucket().blob(self._prefix + name, kms_key_name=key)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        try:
            if size > _IN_ONE_REQUEST_BYTES:
                self._upload_by_session(blob, file, size)
            else:
                blob.upload_from_file(
                    file, size=size, checksum="crc32c", **_CREATE_ONLY, **_sending()
                )
        except api.PreconditionFailed:
            return False
        return True

    def _upload_by_session(self, blob: Blob, file: IO[bytes], size: int) -> None:
        """Upload as the file is read; Google's client would hold 100 MiB of it, five times over."""
        session = blob.create_resumable_upload_session(
            size=size, checksum=None, **_CREATE_ONLY, **_call()
        )
        body = _Body(file, size)
        crc32c = base64.b64encode(_crc32c_of(body).to_bytes(4, "big")).decode()
        reply = self._client()._http.put(
            session,
            data=body,
            headers={
                "content-range": f"bytes 0-{size - 1}/{size}",
                "x-goog-hash": f"crc32c={crc32c}",  # the store refuses other bytes
            },
            timeout=_sending()["timeout"],
        )
        if reply.status_code == HTTPStatus.NOT_FOUND:  # the session; a bucket was there before it
            raise api.from_http_status(HTTPStatus.GONE, f"upload session: {reply.text}")
        if reply.status_code not in _CREATED:
            raise api.from_http_response(reply)

    def _run(self, name: str, operation: Callable[[], T]) -> T:
        try:
            where = functools.partial(self._uri, name)
            told = functools.partial(limits_told, operation, _is_transient)
            return retry(told, _is_transient, where, sleep=self._rate.sleep)
        except TooManyFiles as error:
            raise coded(error, self._uri(name)) from error
        except _DENIED as error:
            remedy = "give the account permission, or --anonymous for a public bucket"
            line = fault_line("E-IO-AUTH", self._uri(name), said(error), remedy)
            raise RuntimeError(line) from error
        except _GONE as error:
            line = fault_line("E-ARG", self._uri(name), said(error), "give a bucket that exists")
            raise RuntimeError(line) from error
        except (api.GoogleAPICallError, obstore_errors.BaseError) as error:
            remedy = "look at the storage, then run again to resume"
            line = fault_line("E-IO-RETRIES", self._uri(name), said(error), remedy)
            raise RuntimeError(line) from error

    def _changed(self, name: str, what: str) -> RuntimeError:
        return source_changed(self._uri(name), what)

    def _uri(self, name: str) -> str:
        return join_uri(self.root, name) if name else self.root


def _emulator() -> str:
    """Return the address of an emulator, empty for the store itself."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")  # as Google's own clients call it


@functools.lru_cache(maxsize=8)
def _client(access: Access, emulator: str) -> Client:
    """Return the process's client that lists and uploads."""
    credentials: Any = AnonymousCredentials()
    if not access.anonymous and not emulator:
        credentials = _credentials()
    # Else the client asks where a bucket is, for its traces, with a permission of its own.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    client = Client(
        project=access.billing_project or "none",  # of a request, nothing but its bill asks for it
        credentials=credentials,
        client_options={"api_endpoint": emulator},  # where there is none, the store's
    )
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS)
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, adapter)
    return client


os.register_at_fork(after_in_child=_client.cache_clear)  # connections are their process's


@functools.lru_cache(maxsize=64)
def _store(bucket: str, access: Access, emulator: str) -> GCSStore:
    """Return the process's client that reads a bucket."""
    # As stored, and not unpacked on the way where a `Content-Encoding` says that it is packed.
    headers = {"accept-encoding": "gzip"}
    options: dict[str, Any] = {**TIMEOUTS, "default_headers": headers}
    config: Any = {"skip_signature": True}
    provider: Any = _nobody
    if access.billing_project:
        headers["x-goog-user-project"] = access.billing_project
    if emulator:
        config["base_url"] = emulator
        options["allow_http"] = True
    elif not access.anonymous:
        config, provider = {}, GoogleCredentialProvider(_credentials())
    return GCSStore(
        bucket,
        config=config,
        client_options=options,  # type: ignore[arg-type]
        retry_config=NO_RETRIES,  # type: ignore[arg-type]
        credential_provider=provider,
    )


def _nobody() -> NoReturn:
    """Stand where obstore, told to send no credentials, would look for some all the same.

    It reads the machine's, to ignore them, and fails where they are of a kind that it does not know
    (https://github.com/apache/arrow-rs-object-store/issues/520).
    """
    raise auth.DefaultCredentialsError("credentials were asked for, and none are to be sent")


@functools.lru_cache(maxsize=1)
def _credentials() -> Any:
    """Return Application Default Credentials, found or not within seconds."""
    # Off Google's machines the client asks for their metadata server, three times three seconds.
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    credentials, _ = google.auth.default(scopes=[_SCOPE])
    return credentials


def _call() -> dict[str, Any]:
    return {"retry": None, "timeout": _TIMEOUT_S}


def _sending() -> dict[str, Any]:
    """Return the same for what sends much: urllib3 takes the time to connect for each send."""
    return {**_call(), "timeout": _TIMEOUT_S[1]}


def _entry(name: str, blob: Blob) -> Entry:
    crc32c = _crc32c(blob.crc32c)
    return Entry(name, blob.size, str(blob.generation), crc32c)


def _crc32c_of(pieces: Iterable[bytes]) -> int:
    crc = 0
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
    return crc


def _crc32c(encoded: str | None) -> int | None:
    return int.from_bytes(base64.b64decode(encoded), "big") if encoded else None


def _is_transient(error: Exception) -> bool:
    status = _status_of(error)
    if status is not None:
        return status in _TRANSIENT_STATUS or status >= 500 or _tells_other_bytes(error)
    return isinstance(error, _TRANSIENT)


def _tells_other_bytes(error: Exception) -> bool:
    """Return whether the store refused an upload of which other bytes came than were sent."""
    return isinstance(error, api.BadRequest) and "calculated CRC32C" in str(error)


def _is_throttling(error: Exception) -> bool:
    return _status_of(error) in THROTTLING_STATUS


def _status_of(error: Exception) -> int | None:
    if isinstance(error, api.GoogleAPICallError):
        return error.code
    return status_of(error)


def _is_plain(path: str) -> bool:
    """Return whether obstore reads the object of this name, and not one of a tidier name."""
    return path.isprintable() and not {"", ".", ".."} & set(path.split("/"))
