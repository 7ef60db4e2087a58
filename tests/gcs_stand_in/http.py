"""The protocol of the Cloud Storage stand-in: the reply to each request.

Served: of the JSON API list, get, media, insert (simple, multipart, resumable), delete, bucket
metadata and testIamPermissions; of the XML API GET and HEAD of an object. A parameter that would
change a result and is not served is refused, not ignored. Sources:
https://cloud.google.com/storage/docs/json_api/v1, .../docs/xml-api/overview, .../docs/transcoding.
"""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import format_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

from tests.gcs_stand_in.bucket import (
    MAX_PAGE,
    NO_BUCKET,
    GcsError,
    ListQuery,
    StoredObject,
    denied,
    no_such_object,
)
from tests.gcs_stand_in.calls import Api, Call, byte_range, content_range, hashes_of, invalid
from tests.gcs_stand_in.faults import Kind
from tests.gcs_stand_in.store import Store, Upload, check_generation

ALL_PERMISSIONS = frozenset(
    f"storage.{what}"
    for what in ("buckets.get", "objects.create", "objects.delete", "objects.get", "objects.list")
)

_LISTING = {"prefix", "delimiter", "startOffset", "endOffset", "maxResults", "pageToken"}
_INSERT = {"uploadType", "name", "ifGenerationMatch", "kmsKeyName", "upload_id"}
_IGNORED = {"alt", "fields", "prettyPrint", "projection", "userProject", "quotaUser", "key"}
_SERVED = {
    Kind.LIST: _LISTING,
    Kind.STAT: {"generation", "ifGenerationMatch"},
    Kind.READ: {"generation", "ifGenerationMatch"},
    Kind.DELETE: {"generation", "ifGenerationMatch"},
    Kind.UPLOAD: _INSERT,
    Kind.RESUMABLE_START: _INSERT,
    Kind.RESUMABLE_PUT: _INSERT,
    Kind.RESUMABLE_STATUS: _INSERT,
    Kind.RESUMABLE_CANCEL: _INSERT,
    Kind.PERMISSIONS: {"permissions"},
}
_UNSERVED_HEADERS = {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"}
_XML_ERRORS = {
    400: ("InvalidArgument", "Invalid argument."),
    401: ("AuthenticationRequired", "Authentication required."),
    403: ("AccessDenied", "Access denied."),
    404: ("NoSuchKey", "The specified key does not exist."),
    412: ("PreconditionFailed", "At least one of the pre-conditions you specified did not hold."),
    416: ("InvalidRange", "The requested range cannot be satisfied."),
    429: ("SlowDown", "Please reduce your request rate."),
    503: ("ServiceUnavailable", "Service Unavailable"),
}


@dataclass(frozen=True)
class Reply:
    """A reply: the body's length is left to whoever sends it."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_chunked: bool = False


class Protocol:
    """Answers calls from a store.

    Attributes:
        permissions: what the caller may do; the rest is refused with 403.
        needs_token: refuse with 401 what has no Authorization header.
    """

    def __init__(self, store: Store, url: str) -> None:
        self.permissions: set[str] = set(ALL_PERMISSIONS)
        self.needs_token = False
        self._store = store
        self._url = url
        self._answers: dict[Kind, tuple[str, Callable[[Call], Reply]]] = {
            Kind.LIST: ("storage.objects.list", self._list),
            Kind.STAT: ("storage.objects.get", self._stat),
            Kind.READ: ("storage.objects.get", self._read),
            Kind.UPLOAD: ("storage.objects.create", self._upload),
            Kind.RESUMABLE_START: ("storage.objects.create", self._start_upload),
            Kind.DELETE: ("storage.objects.delete", self._delete),
            Kind.BUCKET: ("storage.buckets.get", self._bucket),
            # The address of a session is itself the right to write to it.
            Kind.RESUMABLE_PUT: ("", self._put_chunk),
            Kind.RESUMABLE_STATUS: ("", self._put_chunk),
            Kind.RESUMABLE_CANCEL: ("", self._cancel_upload),
            Kind.PERMISSIONS: ("", self._test_permissions),
        }

    def answer(self, call: Call) -> Reply:
        """Do what the call asks for and return the reply, which may be a refusal."""
        try:
            if call.kind not in self._answers:
                raise GcsError(HTTPStatus.NOT_FOUND, "notFound", "Not Found")
            permission, answer = self._answers[call.kind]
            self._check_caller(call, permission)
            _check_parameters(call)
            self._check_payer(call)
            return answer(call)
        except GcsError as error:
            return error_reply(call, error)

    def _check_caller(self, call: Call, permission: str) -> None:
        if not permission:
            return
        if self.needs_token and "authorization" not in call.headers:
            message = denied(permission, caller="Anonymous caller").message
            raise GcsError(HTTPStatus.UNAUTHORIZED, "required", message, "Authorization")
        if permission not in self.permissions:
            raise denied(permission)

    def _check_payer(self, call: Call) -> None:
        billing = self._store.bucket(call.bucket).properties.get("billing", {})
        payer = call.query.get("userProject") or call.headers.get("x-goog-user-project")
        if billing.get("requesterPays") and not payer:
            message = "Bucket is a requester pays bucket but no user project provided."
            raise GcsError(HTTPStatus.BAD_REQUEST, "required", message)

    def _find(self, call: Call) -> StoredObject:
        generation = call.number("generation")
        found = self._store.find(call.bucket, call.name, generation)
        if found is None and "storage.objects.list" not in self.permissions:
            raise denied("storage.objects.list")  # who may not list may not know what is missing
        if found is None:
            raise no_such_object(call.bucket, call.name)
        check_generation(found, call.number("ifGenerationMatch", "x-goog-if-generation-match"))
        return found

    def _list(self, call: Call) -> Reply:
        asked = call.number("maxResults")
        query = ListQuery(
            prefix=call.query.get("prefix", ""),
            delimiter=call.query.get("delimiter", ""),
            start_offset=call.query.get("startOffset", ""),
            end_offset=call.query.get("endOffset", ""),
            page_token=call.query.get("pageToken", ""),
            max_results=min(asked or MAX_PAGE, MAX_PAGE),
        )
        page = self._store.page(call.bucket, query)
        content: dict[str, Any] = {"kind": "storage#objects"}
        if page.next_page_token:
            content["nextPageToken"] = page.next_page_token
        if page.prefixes:
            content["prefixes"] = page.prefixes
        if page.objects:
            content["items"] = [found.metadata(call.bucket) for found in page.objects]
        return _json_reply(_of_fields(content, call.query.get("fields", "")))

    def _stat(self, call: Call) -> Reply:
        found = self._find(call)
        if call.api is Api.XML:
            return _media_reply(call, found)
        return _json_reply(found.metadata(call.bucket))

    def _read(self, call: Call) -> Reply:
        return _media_reply(call, self._find(call))

    def _upload(self, call: Call) -> Reply:
        stored = self._store.insert(
            call.bucket,
            call.name,
            call.media,
            self._properties(call),
            call.number("ifGenerationMatch"),
            "storage.objects.delete" in self.permissions,
        )
        return _json_reply(stored.metadata(call.bucket))

    def _start_upload(self, call: Call) -> Reply:
        upload = Upload(
            call.bucket,
            call.name,
            self._properties(call),
            call.number("ifGenerationMatch"),
            "storage.objects.delete" in self.permissions,
        )
        upload_id = self._store.start_upload(upload)
        path = f"/upload/storage/v1/b/{quote(call.bucket)}/o?uploadType=resumable"
        # The name is in the address for the stand-in's own list of requests.
        location = f"{self._url}{path}&name={quote(call.name, safe='')}&upload_id={upload_id}"
        return Reply(HTTPStatus.OK, (("Location", location), ("X-GUploader-UploadID", upload_id)))

    def _put_chunk(self, call: Call) -> Reply:
        upload = self._store.upload(call.query.get("upload_id", ""))
        first, total_bytes = content_range(call, len(upload.received))
        self._store.add_chunk(upload, first, call.body, total_bytes, hashes_of(call.headers))
        if upload.finished is not None:
            return _json_reply(upload.finished.metadata(call.bucket))
        received = len(upload.received)
        headers = (("Range", f"bytes=0-{received - 1}"),) if received else ()
        return Reply(HTTPStatus.PERMANENT_REDIRECT, headers)

    def _cancel_upload(self, call: Call) -> Reply:
        self._store.lose_upload(call.query.get("upload_id", ""))
        return Reply(499)  # as documented: 'client closed request'

    def _delete(self, call: Call) -> Reply:
        numbers = call.number("generation"), call.number("ifGenerationMatch")
        self._store.delete(call.bucket, call.name, *numbers)
        return Reply(HTTPStatus.NO_CONTENT)

    def _bucket(self, call: Call) -> Reply:
        bucket = self._store.bucket(call.bucket)
        content = {"kind": "storage#bucket", "id": bucket.name, "name": bucket.name}
        content |= bucket.properties
        return _json_reply(_of_fields(content, call.query.get("fields", "")))

    def _test_permissions(self, call: Call) -> Reply:
        granted = [name for name in call.properties["permissions"] if name in self.permissions]
        content = {"kind": "storage#testIamPermissionsResponse"}
        return _json_reply(content | ({"permissions": granted} if granted else {}))

    def _properties(self, call: Call) -> dict[str, Any]:
        """Return what an upload sets, with the keys that the bucket and the query add."""
        encryption = self._store.bucket(call.bucket).properties.get("encryption", {})
        key = call.query.get("kmsKeyName", encryption.get("defaultKmsKeyName"))
        return ({"kmsKeyName": key} if key else {}) | call.properties


def error_reply(call: Call, error: GcsError, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    """Return a refusal as the API of the call words it: JSON, XML, or text for JSON media."""
    if call.api is Api.XML:
        code, message = _XML_ERRORS.get(error.status, ("InternalError", "Internal error."))
        if error.message == NO_BUCKET:
            code, message = "NoSuchBucket", error.message
        text = f"<Code>{code}</Code><Message>{message}</Message>"
        text += f"<Details>{escape(error.message)}</Details>"
        body = f"<?xml version='1.0' encoding='UTF-8'?><Error>{text}</Error>"
        content_type = "application/xml; charset=UTF-8"
    elif call.kind is Kind.READ:
        body, content_type = error.message, "text/html; charset=UTF-8"
    else:
        detail = {"message": error.message, "domain": "global", "reason": error.reason}
        if error.location:
            detail |= {"locationType": "header", "location": error.location}
        content = {"code": int(error.status), "message": error.message, "errors": [detail]}
        body, content_type = json.dumps({"error": content}), "application/json; charset=UTF-8"
    return Reply(error.status, (("Content-Type", content_type), *headers), body.encode())


def _media_reply(call: Call, found: StoredObject) -> Reply:
    """Return the bytes, or the range asked for, with the headers that the API gives them."""
    is_gzip = found.properties.get("contentEncoding") == "gzip"
    headers = _media_headers(call, found)
    if is_gzip and "gzip" not in call.headers.get("accept-encoding", ""):
        # Cloud Storage unpacks, forgets length and ETag, and ignores the range.
        unpacked = ("X-GUploader-Response-Body-Transformations", "gunzipped")
        return Reply(HTTPStatus.OK, (*headers, unpacked), gzip.decompress(found.data), True)
    headers.append(("ETag", _etag(call, found)))
    if is_gzip:
        headers.append(("Content-Encoding", "gzip"))
    span = byte_range(call.headers.get("range", ""), len(found.data))
    if span is None:
        return Reply(HTTPStatus.OK, tuple(headers), found.data)
    first, end = span
    if first >= end:
        error = GcsError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        return error_reply(call, error, [("Content-Range", f"bytes */{len(found.data)}")])
    headers.append(("Content-Range", f"bytes {first}-{end - 1}/{len(found.data)}"))
    return Reply(HTTPStatus.PARTIAL_CONTENT, tuple(headers), found.data[first:end])


def _media_headers(call: Call, found: StoredObject) -> list[tuple[str, str]]:
    metadata = found.metadata(call.bucket)
    encoding = metadata.get("contentEncoding", "identity")
    hashes = [f"crc32c={found.crc32c}", f"md5={found.md5}"]
    if call.api is Api.JSON:
        hashes = [",".join(hashes)]
    return [
        ("Content-Type", metadata["contentType"]),
        ("Last-Modified", format_datetime(found.created, usegmt=True)),
        ("Cache-Control", metadata.get("cacheControl", "private, max-age=0")),
        ("Accept-Ranges", "bytes"),
        ("X-Goog-Generation", str(found.generation)),
        ("X-Goog-Metageneration", "1"),
        ("X-Goog-Storage-Class", metadata["storageClass"]),
        ("X-Goog-Stored-Content-Encoding", encoding),
        ("X-Goog-Stored-Content-Length", str(len(found.data))),
        *(("X-Goog-Hash", value) for value in hashes),
    ]


def _etag(call: Call, found: StoredObject) -> str:
    if call.api is Api.JSON:
        return str(found.metadata(call.bucket)["etag"])
    return f'"{base64.b64decode(found.md5).hex()}"'  # equal bytes rewritten keep their XML ETag


def _check_parameters(call: Call) -> None:
    unserved = set(call.query) - _SERVED.get(call.kind, set()) - _IGNORED
    unserved |= _UNSERVED_HEADERS & set(call.headers)
    if unserved:
        raise invalid(f"not served by the stand-in: {', '.join(sorted(unserved))}")


def _of_fields(content: dict[str, Any], fields: str) -> dict[str, Any]:
    """Return what a mask such as `items(name,size),prefixes` leaves of a reply; all without one."""
    if not fields:
        return content
    kept: dict[str, Any] = {}
    for name, _, inner in re.findall(r"([^,()]+)(\(([^()]*)\))?", fields):
        if name in content:
            value = content[name]
            kept[name] = [_of_fields(item, inner) for item in value] if inner else value
    return kept


def _json_reply(content: dict[str, Any]) -> Reply:
    headers = (("Content-Type", "application/json; charset=UTF-8"),)
    return Reply(HTTPStatus.OK, headers, json.dumps(content).encode())
