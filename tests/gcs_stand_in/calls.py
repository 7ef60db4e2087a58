"""Requests to the Cloud Storage stand-in, understood: by which API, for what, with which bytes.

Sources: https://cloud.google.com/storage/docs/json_api/v1, .../docs/uploading-objects.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from email.message import Message
from enum import Enum, auto
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

from tests.gcs_stand_in.bucket import GcsError
from tests.gcs_stand_in.faults import Kind

_OBJECTS = r"/storage/v1/b/(?P<bucket>[^/]+)/o"
_ROUTES = [
    (Kind.LIST, "GET", _OBJECTS),
    (Kind.STAT, "GET", rf"(?:/download)?{_OBJECTS}/(?P<name>[^/]+)"),
    (Kind.DELETE, "DELETE", rf"{_OBJECTS}/(?P<name>[^/]+)"),
    (Kind.UPLOAD, "POST", rf"/upload{_OBJECTS}"),
    (Kind.RESUMABLE_PUT, "PUT", rf"/upload{_OBJECTS}"),
    (Kind.RESUMABLE_CANCEL, "DELETE", rf"/upload{_OBJECTS}"),
    (Kind.BUCKET, "GET", r"/storage/v1/b/(?P<bucket>[^/]+)"),
    (Kind.PERMISSIONS, "GET", r"/storage/v1/b/(?P<bucket>[^/]+)/iam/testPermissions"),
]
_XML_ROUTE = r"/(?!storage/v1/|upload/|download/|batch/)(?P<bucket>[^/]+)/(?P<name>.+)"


class Api(Enum):
    """Which of the two APIs a request speaks; it decides how errors and headers look."""

    JSON = auto()
    XML = auto()


@dataclass(frozen=True)
class Call:
    """A request, understood.

    Attributes:
        name: of the object; the prefix for a listing; empty for a bucket.
        query: the last value of each parameter.
        headers: by lower-case name.
        body: all of it.
        properties: what an upload sets on the object, by JSON name.
        media: the object's bytes in an upload of one request.
    """

    kind: Kind
    api: Api
    method: str
    bucket: str
    name: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    properties: dict[str, Any] = field(default_factory=dict)
    media: bytes = b""

    def number(self, parameter: str, header: str = "") -> int | None:
        """Return an integer parameter (or header), None without it; 400 if it is no integer."""
        text = self.query.get(parameter, self.headers.get(header))
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", text):
            raise invalid(f"Invalid value for {parameter}: {text!r}")
        return int(text)


def parse_call(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Call:
    """Understand a request.

    `target` is the request line's, still percent-encoded: a name may hold an encoded slash.
    """
    path, _, query_text = target.partition("?")
    pairs = parse_qsl(query_text, keep_blank_values=True, errors="strict")
    query = dict(pairs)
    headers = {key.lower(): value for key, value in headers.items()}
    kind, api, match = _route(method, path)
    names = {key: unquote(value, errors="strict") for key, value in match.items()}
    call = Call(kind, api, method, names["bucket"], names.get("name", ""), query, headers, body)
    match kind:
        case Kind.STAT if query.get("alt") == "media":
            return replace(call, kind=Kind.READ)
        case Kind.LIST:
            return replace(call, name=query.get("prefix", ""))
        case Kind.PERMISSIONS:
            asked = [value for key, value in pairs if key == "permissions"]
            return replace(call, properties={"permissions": asked})
        case Kind.UPLOAD:
            return _parse_upload(call)
        case Kind.RESUMABLE_PUT:
            is_status = headers.get("content-range", "").startswith("bytes */")
            kind = Kind.RESUMABLE_STATUS if is_status else kind
            return replace(call, kind=kind, name=query.get("name", ""))
    return call


def _route(method: str, path: str) -> tuple[Kind, Api, dict[str, str]]:
    for kind, route_method, pattern in _ROUTES:
        if route_method == method and (match := re.fullmatch(pattern, path)):
            return kind, Api.JSON, match.groupdict()
    if method in ("GET", "HEAD") and (match := re.fullmatch(_XML_ROUTE, path)):
        return (Kind.READ if method == "GET" else Kind.STAT), Api.XML, match.groupdict()
    return Kind.OTHER, Api.JSON, {"bucket": ""}


def _parse_upload(call: Call) -> Call:
    """Find kind, name, properties and bytes of a POST to the upload address."""
    kind, resource, media = Kind.UPLOAD, b"{}", call.body
    content_type = call.headers.get("content-type")
    match call.query.get("uploadType"):
        case "media":
            pass
        case "multipart":
            resource, content_type, media = _split_multipart(call)
        case "resumable":
            kind, resource, media = Kind.RESUMABLE_START, call.body or b"{}", b""
            content_type = call.headers.get("x-upload-content-type")
        case other:
            raise invalid(f"uploadType must be media, multipart or resumable, got {other}")
    given = json.loads(resource)
    if not isinstance(given, dict):
        raise invalid("The metadata of an object must be a JSON object.")
    properties = {"contentType": content_type} | given | hashes_of(call.headers)
    kept = {key: value for key, value in properties.items() if value is not None}
    kept.pop("bucket", None)
    name = str(kept.pop("name", call.query.get("name", "")))
    return replace(call, kind=kind, name=name, properties=kept, media=media)


def _split_multipart(call: Call) -> tuple[bytes, str | None, bytes]:
    """Return JSON metadata, content type and bytes; the bytes may hold whatever they like."""
    outer = Message()
    outer["Content-Type"] = call.headers.get("content-type", "")
    boundary = str(outer.get_boundary(""))
    marker = b"--" + boundary.encode()
    _, _, rest = call.body.partition(marker)
    metadata, _, rest = rest.partition(b"\r\n" + marker)
    media, end, _ = rest.rpartition(b"\r\n" + marker + b"--")
    if not boundary or not end:
        raise invalid("Malformed multipart body.")
    head, _, data = media.partition(b"\r\n\r\n")
    match = re.search(rb"(?i)^content-type:\s*(\S+)", head, re.MULTILINE)
    content_type = match.group(1).decode() if match else None
    return metadata.partition(b"\r\n\r\n")[2], content_type, data


def hashes_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums of an `x-goog-hash` header by their JSON names."""
    keys = {"crc32c": "crc32c", "md5": "md5Hash"}
    pairs = [part.strip().partition("=") for part in headers.get("x-goog-hash", "").split(",")]
    return {keys[what]: value for what, _, value in pairs if what in keys}


def content_range(call: Call, received_bytes: int) -> tuple[int, int | None]:
    """Return where a chunk begins, and the total size once the client knows it."""
    text = call.headers.get("content-range")
    if text is None:  # one PUT of everything
        return 0, len(call.body)
    match = re.fullmatch(r"bytes (?:\*|(\d+)-(\d+))/(\*|\d+)", text)
    if match is None:
        raise invalid(f"Invalid Content-Range: {text}")
    total_bytes = None if match[3] == "*" else int(match[3])
    if match[1] is None:
        return received_bytes, total_bytes
    if int(match[2]) - int(match[1]) + 1 != len(call.body):
        raise invalid(f"Content-Range {text} of a body of {len(call.body)} bytes")
    return int(match[1]), total_bytes


def byte_range(text: str, size_bytes: int) -> tuple[int, int] | None:
    """Return the half-open span of a Range header; None for all of it, empty where past the end."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        return max(size_bytes - int(match[2]), 0), size_bytes
    end = int(match[2]) + 1 if match[2] else size_bytes
    return int(match[1]), min(end, size_bytes)


def invalid(message: str) -> GcsError:
    return GcsError(HTTPStatus.BAD_REQUEST, "invalid", message)
