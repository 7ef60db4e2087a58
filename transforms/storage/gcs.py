"""Google Cloud Storage: one request an image, one a thousand names, and objects that appear whole.

An upload has the precondition that no object has its name yet (`ifGenerationMatch=0`), and shows
nothing until the store has all of it. There are no temporary objects and no renames, and the
account needs no permission to delete. Every read asks for the generation that was listed and
compares the CRC-32C. All retries are ours.
"""

import base64
import contextlib
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import IO, Any, TypeVar

import google_crc32c
import msgspec
import obstore
import requests
from google.api_core import exceptions as api
from google.auth.transport.requests import AuthorizedSession
from google.cloud.storage import Blob
from google.cloud.storage import exceptions as client_errors
from obstore import exceptions as obstore_errors

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
from transforms.storage.gcs_clients import (
    API,
    SENDING_TIMEOUT_S,
    TIMEOUT_S,
    Refused,
    client,
    emulator,
    is_denied,
    is_forked,
    is_gone,
    is_throttling,
    is_transient,
    limit_of_files,
    reader,
    refused,
    session,
    status_of,
)
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
