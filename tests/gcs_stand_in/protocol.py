"""The protocol of the Cloud Storage stand-in: what a request asks for, and the reply to it.

Served: of the JSON API list, get, media, insert (multipart, resumable) and delete; of the XML API
GET of an object. A parameter that would change a result and is not served is refused, not ignored.
Sources: https://cloud.google.com/storage/docs/json_api/v1, .../docs/transcoding.
"""

import gzip
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from email.message import Message
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from tests.gcs_stand_in.faults import Kind
from tests.gcs_stand_in.store import (
    GcsError,
    Store,
    StoredObject,
    denied,
    invalid,
    no_such_object,
)

ALL_PERMISSIONS = frozenset(
    f"storage.objects.{what}" for what in ("create", "delete", "get", "list")
)
_OBJECTS = r"/storage/v1/b/(?P<bucket>[^/]+)/o"
_ROUTES = [
    (Kind.LIST, "GET", _OBJECTS),
    (Kind.STAT, "GET", rf"(?:/download)?{_OBJECTS}/(?P<name>[^/]+)"),
    (Kind.DELETE, "DELETE", rf"{_OBJECTS}/(?P<name>[^/]+)"),
    (Kind.UPLOAD, "POST", rf"/upload{_OBJECTS}"),
    (Kind.UPLOAD_CHUNK, "PUT", rf"/upload{_OBJECTS}"),
    (Kind.BUCKET, "GET", r"/storage/v1/b/(?P<bucket>[^/]+)"),
    (Kind.READ, "GET", r"/(?!storage/|upload/|download/|batch/)(?P<bucket>[^/]+)/(?P<name>.+)"),
]
_PERMISSIONS = {
    Kind.LIST: "storage.objects.list",
    Kind.STAT: "storage.objects.get",
    Kind.READ: "storage.objects.get",
    Kind.UPLOAD: "storage.objects.create",
    Kind.DELETE: "storage.objects.delete",
}
_SERVED = {
    Kind.LIST: {"prefix", "delimiter", "startOffset", "endOffset", "maxResults", "pageToken"},
    Kind.STAT: {"generation"},
    Kind.READ: {"generation"},
    Kind.UPLOAD: {"uploadType", "name", "ifGenerationMatch", "kmsKeyName"},
    Kind.UPLOAD_CHUNK: {"uploadType", "name", "upload_id"},
}
_IGNORED = {"alt", "fields", "prettyPrint", "projection", "userProject"}
_XML_ERRORS = {403: "AccessDenied", 404: "NoSuchKey"}


@dataclass(frozen=True)
class Call:
    """A request, understood.

    Attributes:
        name: object's name; the prefix for a listing.
        query: last value of each parameter.
        headers: values by lower-case name.
        properties: what an upload sets on the object, by JSON name.
        media: object's bytes in an upload of one request.
    """

    kind: Kind
    method: str
    bucket: str
    name: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    properties: dict[str, Any] = field(default_factory=dict)
    media: bytes = b""

    def number(self, parameter: str) -> int | None:
        """Return an integer parameter, None without it."""
        text = self.query.get(parameter)
        return None if text is None else int(text)


@dataclass(frozen=True)
class Reply:
    """A reply, without the length of its body."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def parse_call(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
    """Understand a request.

    `target` is the request line's, still percent-encoded: a name may hold an encoded slash.
    """
    path, _, query_text = target.partition("?")
    query = dict(parse_qsl(query_text, keep_blank_values=True, errors="strict"))
    headers = {key.lower(): value for key, value in headers.items()}
    kind, names = _route(method, path)
    name = names.get("name", query.get("prefix" if kind is Kind.LIST else "name", ""))
    call = Call(kind, method, names["bucket"], name, query, headers, body)
    if kind is Kind.STAT and query.get("alt") == "media":
        return replace(call, kind=Kind.READ)
    return _parse_upload(call) if kind is Kind.UPLOAD else call


def _route(method: str, path: str) -> tuple[Kind, dict[str, str]]:
    for kind, route_method, pattern in _ROUTES:
        if route_method == method and (match := re.fullmatch(pattern, path)):
            return kind, {key: unquote(value) for key, value in match.groupdict().items()}
    return Kind.OTHER, {"bucket": ""}


def _parse_upload(call: Call) -> Call:
    """Find name, properties and bytes of a POST to the upload address."""
    match call.query.get("uploadType"):
        case "multipart":
            resource, media = _split_multipart(call)
        case "resumable":
            resource, media = call.body or b"{}", b""
        case other:
            raise invalid(f"uploadType must be multipart or resumable, got {other}")
    properties = json.loads(resource)
    properties.pop("bucket", None)
    name = str(properties.pop("name", call.name))
    return replace(call, name=name, properties=properties, media=media)


def _split_multipart(call: Call) -> tuple[bytes, bytes]:
    """Return JSON metadata and bytes; the bytes may hold whatever they like."""
    outer = Message()
    outer["Content-Type"] = call.headers.get("content-type", "")
    boundary = str(outer.get_boundary(""))
    marker = b"--" + boundary.encode()
    _, _, rest = call.body.partition(marker)
    metadata, _, rest = rest.partition(b"\r\n" + marker)
    media, end, _ = rest.rpartition(b"\r\n" + marker + b"--")
    if not boundary or not end:
        raise invalid("Malformed multipart body.")
    return metadata.partition(b"\r\n\r\n")[2], media.partition(b"\r\n\r\n")[2]


class Protocol:
    """Answers calls from a store.

    Attributes:
        permissions: what the caller may do; the rest is refused with 403.
    """

    def __init__(self, store: Store, url: str) -> None:
        self.permissions: set[str] = set(ALL_PERMISSIONS)
        self._store = store
        self._url = url
        self._uploads: dict[str, tuple[Call, bytearray]] = {}
        self._upload_numbers = itertools.count(1)
        self._answers: dict[Kind, Callable[[Call], Reply]] = {
            Kind.LIST: lambda call: _json_reply(self._store.page(call.bucket, call.query)),
            Kind.STAT: lambda call: _json_reply(self._find(call).metadata()),
            Kind.READ: lambda call: _media_reply(call, self._find(call)),
            Kind.UPLOAD: self._upload,
            Kind.UPLOAD_CHUNK: self._add_chunk,
            Kind.DELETE: self._delete,
            Kind.BUCKET: self._bucket,
        }

    def answer(self, call: Call) -> Reply:
        """Do what the call asks for and return the reply, which may be a refusal."""
        try:
            if call.kind not in self._answers:
                raise GcsError(HTTPStatus.NOT_FOUND, "notFound", "Not Found")
            permission = _PERMISSIONS.get(call.kind, "")
            if permission and permission not in self.permissions:
                raise denied(permission)
            unserved = set(call.query) - _SERVED.get(call.kind, set()) - _IGNORED
            if unserved:
                raise invalid(f"not served by the stand-in: {', '.join(sorted(unserved))}")
            return self._answers[call.kind](call)
        except GcsError as error:
            return error_reply(call, error)

    def _find(self, call: Call) -> StoredObject:
        found = self._store.find(call.bucket, call.name, call.number("generation"))
        if found is None and "storage.objects.list" not in self.permissions:
            raise denied("storage.objects.list")  # who may not list may not know what is missing
        if found is None:
            raise no_such_object(call.bucket, call.name)
        return found

    def _upload(self, call: Call) -> Reply:
        if call.query["uploadType"] == "multipart":
            return self._insert(call, call.media)
        upload_id = f"session-{next(self._upload_numbers)}"
        self._uploads[upload_id] = call, bytearray()
        path = f"/upload/storage/v1/b/{quote(call.bucket)}/o?uploadType=resumable"
        location = f"{self._url}{path}&name={quote(call.name, safe='')}&upload_id={upload_id}"
        return Reply(HTTPStatus.OK, {"Location": location})

    def _add_chunk(self, call: Call) -> Reply:
        begun, received = self._uploads[call.query["upload_id"]]
        received += call.body
        span, _, total = call.headers["content-range"].partition("/")
        if total == "*" or len(received) < int(total):  # more will come
            span = f"bytes=0-{len(received) - 1}"
            return Reply(HTTPStatus.PERMANENT_REDIRECT, {"Range": span})
        return self._insert(begun, bytes(received))

    def _insert(self, call: Call, data: bytes) -> Reply:
        key = call.query.get("kmsKeyName")
        stored = self._store.insert(
            call.bucket,
            call.name,
            data,
            call.properties | ({"kmsKeyName": key} if key else {}),
            call.number("ifGenerationMatch"),
            "storage.objects.delete" in self.permissions,
        )
        return _json_reply(stored.metadata())

    def _bucket(self, call: Call) -> Reply:
        self._store.objects(call.bucket)  # 404 where there is none
        return _json_reply({"kind": "storage#bucket", "name": call.bucket, "location": "US"})

    def _delete(self, call: Call) -> Reply:
        self._store.delete(call.bucket, call.name)
        return Reply(HTTPStatus.NO_CONTENT)


def error_reply(call: Call, error: GcsError) -> Reply:
    """Return a refusal as the API of the call words it: XML for reads, else JSON."""
    if call.kind is Kind.READ:
        code = _XML_ERRORS.get(error.status, "Error")
        body = f"<Error><Code>{code}</Code><Details>{error.message}</Details></Error>"
        content_type = "application/xml; charset=UTF-8"
    else:
        detail = {"message": error.message, "domain": "global", "reason": error.reason}
        content = {"code": int(error.status), "message": error.message, "errors": [detail]}
        body, content_type = json.dumps({"error": content}), "application/json; charset=UTF-8"
    return Reply(error.status, {"Content-Type": content_type}, body.encode())


def _media_reply(call: Call, found: StoredObject) -> Reply:
    """Return the bytes, or the range asked for, with the headers that the API gives them."""
    headers = {
        "Content-Type": "application/octet-stream",
        "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        "ETag": f'"{found.generation}"',
        "X-Goog-Generation": str(found.generation),
        "X-Goog-Hash": f"crc32c={found.crc32c}",
    }
    if found.properties.get("contentEncoding") == "gzip":
        if "gzip" not in call.headers.get("accept-encoding", ""):
            # Cloud Storage unpacks, and ignores the range.
            return Reply(HTTPStatus.OK, headers, gzip.decompress(found.data))
        headers["Content-Encoding"] = "gzip"
    span = re.fullmatch(r"bytes=(\d+)-(\d*)", call.headers.get("range", ""))
    if span is None:
        return Reply(HTTPStatus.OK, headers, found.data)
    first, size = int(span[1]), len(found.data)
    if first >= size:
        return error_reply(call, GcsError(416, "requestedRangeNotSatisfiable", "past the end"))
    end = min(int(span[2]) + 1 if span[2] else size, size)
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    return Reply(HTTPStatus.PARTIAL_CONTENT, headers, found.data[first:end])


def _json_reply(content: dict[str, Any]) -> Reply:
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    return Reply(HTTPStatus.OK, headers, json.dumps(content).encode())
