"""What one bucket of the Cloud Storage stand-in holds: objects, sorted names, pages of them.

Source of the listing's rules: https://cloud.google.com/storage/docs/json_api/v1/objects/list.
"""

import base64
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any

MAX_PAGE = 1000
"""Objects and prefixes in one page of a listing, at most and by default."""

NO_BUCKET = "The specified bucket does not exist."


class GcsError(Exception):
    """A refusal of Cloud Storage, which the protocol turns into a reply.

    Attributes:
        status: e.g. 404.
        reason: the machine-readable word of the JSON body, e.g. `notFound`.
        message: the sentence for humans, e.g. `No such object: b/a.jpg`.
        location: the header to blame, e.g. `If-Match`; empty where none is.
    """

    def __init__(self, status: int, reason: str, message: str, location: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.location = location


@dataclass(frozen=True)
class StoredObject:
    """One generation of one object.

    Attributes:
        name: e.g. `train/a.jpg`.
        data: all its bytes.
        generation: larger than that of every earlier write to the store.
        created: when it was finalised, in UTC.
        crc32c: big-endian CRC-32C in base64, as the APIs give it, e.g. `4waSgw==`.
        md5: MD5 in base64.
        properties: what the writer set, by its JSON name, e.g. `contentType`.
    """

    name: str
    data: bytes
    generation: int
    created: datetime
    crc32c: str
    md5: str
    properties: Mapping[str, Any]

    def metadata(self, bucket: str) -> dict[str, Any]:
        """Return the JSON resource of this object."""
        created = self.created.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {
            "kind": "storage#object",
            "id": f"{bucket}/{self.name}/{self.generation}",
            "name": self.name,
            "bucket": bucket,
            "generation": str(self.generation),
            "metageneration": "1",
            "contentType": "application/octet-stream",
            "storageClass": "STANDARD",
            "size": str(len(self.data)),
            "md5Hash": self.md5,
            "crc32c": self.crc32c,
            "etag": base64.b64encode(str(self.generation).encode()).decode(),
            "timeCreated": created,
            "updated": created,
        } | dict(self.properties)


@dataclass(frozen=True)
class ListQuery:
    """What one page of a listing is asked to hold.

    Attributes:
        prefix: names start with it.
        delimiter: names that hold it after the prefix are folded into prefixes; empty for none.
        start_offset: names are at or after it.
        end_offset: names are before it; empty for no end.
        page_token: the `next_page_token` of the page before; empty for the first page.
        max_results: objects and prefixes of the page together, 1 to `MAX_PAGE`.
    """

    prefix: str = ""
    delimiter: str = ""
    start_offset: str = ""
    end_offset: str = ""
    page_token: str = ""
    max_results: int = MAX_PAGE


@dataclass(frozen=True)
class Page:
    """One page of a listing, in the order of the names' UTF-8 bytes."""

    objects: list[StoredObject]
    prefixes: list[str]
    next_page_token: str


class Bucket:
    """One flat namespace in sorted order; the store's lock guards it."""

    def __init__(self, name: str, properties: dict[str, Any]) -> None:
        self.name = name
        self.properties = properties
        self.objects: dict[str, StoredObject] = {}
        self._names: list[str] = []
        self._virtual: list[tuple[list[str], StoredObject]] = []
        self._deleted: set[str] = set()

    def get(self, name: str) -> StoredObject | None:
        if name in self.objects or name in self._deleted:
            return self.objects.get(name)
        for names, template in self._virtual:
            place = bisect_left(names, name)
            if place < len(names) and names[place] == name:
                return replace(template, name=name)
        return None

    def set(self, stored: StoredObject) -> None:
        if stored.name not in self.objects:
            insort(self._names, stored.name)
        self.objects[stored.name] = stored

    def set_virtual(self, names: Sequence[str], template: StoredObject) -> None:
        self._virtual.append((sorted(names), template))

    def remove(self, name: str) -> None:
        if self.objects.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]
        self._deleted.add(name)  # a virtual object of this name stays hidden

    def first_from(self, start: str) -> str | None:
        """Return the first name at or after `start`."""
        places = [(names, bisect_left(names, start)) for names, _ in self._virtual]
        places.append((self._names, bisect_left(self._names, start)))
        first = min((names[place] for names, place in places if place < len(names)), default=None)
        if first in self._deleted and first not in self.objects:
            return self.first_from(_after(first))
        return first

    def page(self, query: ListQuery) -> Page:
        """Return one page; names of one prefix are folded into one entry, which is never split."""
        objects: list[StoredObject] = []
        prefixes: list[str] = []
        start = max(query.prefix, query.start_offset, _from_token(query.page_token))
        while (name := self.first_from(start)) is not None and _is_listed(name, query):
            if len(objects) + len(prefixes) == query.max_results:
                return Page(objects, prefixes, _to_token(name))
            folder = _folder_of(name, query)
            found = self.get(name)
            if folder:
                prefixes.append(folder)
                start = folder[:-1] + chr(ord(folder[-1]) + 1)  # the first name past the prefix
            elif found is not None:
                objects.append(found)
                start = _after(name)
        return Page(objects, prefixes, "")


def no_such_object(bucket: str, name: str) -> GcsError:
    """Return the refusal of an object that is not there."""
    return GcsError(HTTPStatus.NOT_FOUND, "notFound", f"No such object: {bucket}/{name}")


def denied(permission: str, caller: str = "stand-in@example.iam.gserviceaccount.com") -> GcsError:
    """Return the refusal for want of a permission, worded as Cloud Storage words it."""
    resource = "object" if permission.startswith("storage.objects.") else "bucket"
    message = (
        f"{caller} does not have {permission} access to the Google Cloud Storage {resource}. "
        f"Permission '{permission}' denied on resource (or it may not exist)."
    )
    return GcsError(HTTPStatus.FORBIDDEN, "forbidden", message)


def _is_listed(name: str, query: ListQuery) -> bool:
    is_before_end = not query.end_offset or name < query.end_offset
    return name.startswith(query.prefix) and is_before_end


def _folder_of(name: str, query: ListQuery) -> str:
    if not query.delimiter:
        return ""
    cut = name.find(query.delimiter, len(query.prefix))
    return "" if cut < 0 else name[: cut + len(query.delimiter)]


def _after(name: str) -> str:
    return name + "\0"  # the smallest string that is larger


def _to_token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _from_token(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise GcsError(HTTPStatus.BAD_REQUEST, "invalid", "Invalid page token.") from None
