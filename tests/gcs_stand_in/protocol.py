"""Parse requests to the Cloud Storage stand-in, and answer them.

It serves list, get, media, insert (multipart, resumable) and delete of the JSON API, and GET of an
object of the XML API. It refuses other parameters if they would change the result.
Sources: https://cloud.google.com/storage/docs/json_api/v1, .../docs/transcoding.
"""

import base64
import gzip
import itertools
import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

import google_crc32c

MAX_PAGE = 1000
"""Largest number of objects and prefixes in one page of a listing, and the default."""


class Kind(Enum):
    """What a request is for."""

    LIST = auto()
    STAT = auto()  # metadata of an object
    READ = auto()  # bytes of an object, by either API
    UPLOAD = auto()  # a whole object, or the start of a session
    UPLOAD_CHUNK = auto()  # of a session
    DELETE = auto()
    BUCKET = auto()  # metadata of a bucket, for Beam's staging
    OTHER = auto()  # not served


_OBJECTS = r"/storage/v1/b/(?P<bucket>[^/]+)/o"
_ROUTES = [
    (Kind.LIST, "GET", _OBJECTS),
    (Kind.STAT, "GET", rf"(?:/download)?{_OBJECTS}/(?P<name>[^/]+)"),
    (Kind.DELETE, "DELETE", rf"{_OBJECTS}/(?P<name>[^/]+)"),
    (Kind.UPLOAD, "POST", rf"/upload{_OBJECTS}"),
    (Kind.UPLOAD_CHUNK, "PUT", rf"/upload{_OBJECTS}"),
    (Kind.BUCKET, "GET", r"/storage/v1/b/(?P<bucket>[^/]+)"),
    (Kind.READ, "GET", r"/(?!storage/|upload/|download/|batch/)(?P<bucket>[^/]+)/(?P<name>.+)"),
    (Kind.OTHER, "[A-Z]+", r"(?P<bucket>)(?P<name>.*)"),
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


class GcsError(Exception):
    """A refusal: HTTP status, machine-readable reason in the JSON body, and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass
class Call:
    """A parsed request.

    Attributes:
        name: object's name; the prefix for a listing; empty for a bucket.
        query: last value of each parameter.
        headers: values by lower-case name.
        properties: properties that an upload sets on the object, by JSON name.
        media: object's bytes, if one request uploads them all.
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
        """Return an integer parameter, or None if it is absent."""
        text = self.query.get(parameter)
        return None if text is None else int(text)


class Reply(NamedTuple):
    """A reply, without the length of its body."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""


class StoredObject(NamedTuple):
    """One generation of one object.

    Attributes:
        generation: number that is larger than that of every earlier write.
        crc32c: big-endian CRC-32C in base64, as the APIs give it, e.g. `4waSgw==`.
        properties: properties set by the writer, by JSON name, e.g. `contentEncoding`.
    """

    bucket: str
    name: str
    data: bytes
    generation: int
    crc32c: str
    properties: Mapping[str, Any]

    def metadata(self) -> dict[str, Any]:
        """Return the JSON resource of this object."""
        return {
            "kind": "storage#object",
            "name": self.name,
            "bucket": self.bucket,
            "generation": str(self.generation),
            "contentType": "application/octet-stream",
            "size": str(len(self.data)),
            "crc32c": self.crc32c,
            **self.properties,
        }


def parse_call(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
    """Parse a request.

    `target` is still percent-encoded, since a name may contain an encoded slash.
    """
    path, _, query_text = target.partition("?")
    query = dict(parse_qsl(query_text, keep_blank_values=True, errors="strict"))
    headers = {key.lower(): value for key, value in headers.items()}
    routes = ((k, re.fullmatch(p, path)) for k, m, p in _ROUTES if re.fullmatch(m, method))
    kind, match = next((kind, match) for kind, match in routes if match)
    names = {key: unquote(value) for key, value in match.groupdict().items()}
    name = names.get("name", query.get("prefix" if kind is Kind.LIST else "name", ""))
    call = Call(kind, method, names["bucket"], name, query, headers, body)
    if kind is Kind.STAT and query.get("alt") == "media":
        call.kind = Kind.READ
    if kind is Kind.UPLOAD:
        is_whole = query["uploadType"] == "multipart"
        resource, call.media = _split_multipart(call) if is_whole else (body or b"{}", b"")
        call.properties = json.loads(resource)
        call.properties.pop("bucket", None)
        call.name = call.properties.pop("name", name)
    return call


def _split_multipart(call: Call) -> tuple[bytes, bytes]:
    """Return JSON metadata and media bytes; the bytes may contain anything."""
    outer = Message()
    outer["Content-Type"] = call.headers.get("content-type", "")
    marker = b"--" + str(outer.get_boundary("")).encode()
    metadata, _, rest = call.body.partition(marker)[2].partition(b"\r\n" + marker)
    media, end, _ = rest.rpartition(b"\r\n" + marker + b"--")
    if not end:
        raise _invalid("Malformed multipart body.")
    return metadata.partition(b"\r\n\r\n")[2], media.partition(b"\r\n\r\n")[2]


class Store:
    """All buckets, and the answers to calls. Every method may be called from any thread.

    Attributes:
        permissions: permissions of the caller; anything else is refused with 403.
    """

    def __init__(self, url: str) -> None:
        self.permissions = set(_PERMISSIONS.values())
        self._url = url
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._generations = itertools.count(1_700_000_000_000_001)  # as large as the real ones
        self._uploads: dict[str, tuple[Call, bytearray]] = {}
        self._answers: dict[Kind, Callable[[Call], Reply]] = {
            Kind.LIST: lambda call: _json_reply(self._page(call.bucket, call.query)),
            Kind.STAT: lambda call: _json_reply(self._find(call).metadata()),
            Kind.READ: lambda call: _media_reply(call, self._find(call)),
            Kind.UPLOAD: self._upload,
            Kind.UPLOAD_CHUNK: self._add_chunk,
            Kind.DELETE: self._delete,
            Kind.BUCKET: self._bucket,
        }

    def answer(self, call: Call) -> Reply:
        """Execute the call and return the reply, which may be a refusal."""
        try:
            if call.kind not in self._answers:
                raise GcsError(HTTPStatus.NOT_FOUND, "notFound", "Not Found")
            permission = _PERMISSIONS.get(call.kind, "")
            if permission and permission not in self.permissions:
                raise _denied(permission)
            unserved = set(call.query) - _SERVED.get(call.kind, set()) - _IGNORED
            if unserved:
                raise _invalid(f"not served by the stand-in: {', '.join(sorted(unserved))}")
            return self._answers[call.kind](call)
        except GcsError as error:
            return error_reply(error)

    def make_bucket(self, name: str) -> None:
        """Make a bucket, unless it exists."""
        with self._lock:
            self._buckets.setdefault(name, {})

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        """Return all objects of a bucket by name, sorted; 404 if the bucket does not exist."""
        with self._lock:
            if bucket not in self._buckets:
                what = "The specified bucket does not exist."
                raise GcsError(HTTPStatus.NOT_FOUND, "notFound", what)
            return dict(sorted(self._buckets[bucket].items()))

    def insert(
        self,
        bucket: str,
        name: str,
        data: bytes,
        properties: Mapping[str, Any],
        if_generation_match: int | None = None,
        may_overwrite: bool = True,
    ) -> StoredObject:
        """Write a complete object; refuse a wrong checksum or a failed precondition."""
        self.objects(bucket)
        crc32c = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        provided = properties.get("crc32c", crc32c)
        if provided != crc32c:
            what = f'Provided CRC32C "{provided}" doesn\'t match calculated CRC32C "{crc32c}".'
            raise _invalid(what)
        kept = {key: value for key, value in properties.items() if key not in ("crc32c", "md5Hash")}
        with self._lock:
            found = self._buckets[bucket].get(name)
            if if_generation_match not in (None, found.generation if found else 0):
                what = "At least one of the pre-conditions you specified did not hold."
                raise GcsError(HTTPStatus.PRECONDITION_FAILED, "conditionNotMet", what)
            if found is not None and not may_overwrite:
                raise _denied("storage.objects.delete")
            made = StoredObject(bucket, name, data, next(self._generations), crc32c, kept)
            self._buckets[bucket][name] = made
        return made

    def remove(self, bucket: str, name: str) -> None:
        """Remove an object; 404 if it does not exist."""
        with self._lock:
            if self._buckets.get(bucket, {}).pop(name, None) is None:
                raise _no_such_object(bucket, name)

    def _page(self, bucket: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return one page of a listing; names of one prefix are folded into one entry."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        token = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        start, end = max(query.get("startOffset", ""), token), query.get("endOffset", "")
        found: dict[str, list[StoredObject]] = defaultdict(list)
        for name, stored in self.objects(bucket).items():
            if name.startswith(prefix) and name >= start and (not end or name < end):
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                found[name if cut < 0 else name[: cut + 1]].append(stored)
        most = min(int(query.get("maxResults", MAX_PAGE)), MAX_PAGE)
        shown, following = [*found][:most], "".join([*found][most : most + 1])
        folders = {name for name in shown if delimiter and delimiter in name[len(prefix) :]}
        content = {
            "nextPageToken": base64.urlsafe_b64encode(following.encode()).decode(),
            "prefixes": sorted(folders),
            "items": [found[name][0].metadata() for name in shown if name not in folders],
        }
        return {key: value for key, value in content.items() if value}

    def _find(self, call: Call) -> StoredObject:
        """Return the live object, if it has the requested generation."""
        found = self._buckets.get(call.bucket, {}).get(call.name)
        if found is not None and call.number("generation") in (None, found.generation):
            return found
        if "storage.objects.list" not in self.permissions:
            raise _denied("storage.objects.list")  # a 404 needs the permission to list
        raise _no_such_object(call.bucket, call.name)

    def _upload(self, call: Call) -> Reply:
        if call.query["uploadType"] == "multipart":
            return self._insert(call, call.media)
        upload_id = f"session-{next(self._generations)}"
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
        stored = self.insert(
            call.bucket,
            call.name,
            data,
            call.properties | ({"kmsKeyName": key} if key else {}),
            call.number("ifGenerationMatch"),
            "storage.objects.delete" in self.permissions,
        )
        return _json_reply(stored.metadata())

    def _bucket(self, call: Call) -> Reply:
        self.objects(call.bucket)  # 404 if it does not exist
        return _json_reply({"kind": "storage#bucket", "name": call.bucket, "location": "US"})

    def _delete(self, call: Call) -> Reply:
        self.remove(call.bucket, call.name)
        return Reply(HTTPStatus.NO_CONTENT)


def error_reply(error: GcsError) -> Reply:
    """Return a refusal as the JSON API words it."""
    detail = {"message": error.message, "domain": "global", "reason": error.reason}
    content = {"code": int(error.status), "message": error.message, "errors": [detail]}
    return _json_reply({"error": content}, error.status)


def _json_reply(content: dict[str, Any], status: int = HTTPStatus.OK) -> Reply:
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    return Reply(status, headers, json.dumps(content).encode())


def _media_reply(call: Call, found: StoredObject) -> Reply:
    """Return the bytes, or the requested range, with the headers of the API."""
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
        return error_reply(GcsError(416, "requestedRangeNotSatisfiable", "past the end"))
    end = min(int(span[2]) + 1 if span[2] else size, size)
    headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
    return Reply(HTTPStatus.PARTIAL_CONTENT, headers, found.data[first:end])


def _no_such_object(bucket: str, name: str) -> GcsError:
    return GcsError(HTTPStatus.NOT_FOUND, "notFound", f"No such object: {bucket}/{name}")


def _denied(permission: str) -> GcsError:
    message = f"The caller does not have {permission} access to the Google Cloud Storage object."
    return GcsError(HTTPStatus.FORBIDDEN, "forbidden", message)


def _invalid(message: str) -> GcsError:
    return GcsError(HTTPStatus.BAD_REQUEST, "invalid", message)
