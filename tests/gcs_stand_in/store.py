"""Buckets of the Cloud Storage stand-in: objects, generations, preconditions, pages of names.

Source of the rules: https://cloud.google.com/storage/docs/json_api/v1/objects.
"""

import base64
import itertools
import threading
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import google_crc32c

MAX_PAGE = 1000
"""Largest number of objects and prefixes in one page of a listing, and the default."""

NO_BUCKET = "The specified bucket does not exist."


class GcsError(Exception):
    """A refusal of Cloud Storage, which the protocol turns into a reply.

    Attributes:
        status: HTTP status, e.g. 404.
        reason: machine-readable word of the JSON body, e.g. `notFound`.
        message: sentence for humans, e.g. `No such object: b/a.jpg`.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class StoredObject:
    """One generation of one object.

    Attributes:
        generation: number that is larger than that of every earlier write.
        crc32c: big-endian CRC-32C in base64, as the APIs give it, e.g. `4waSgw==`.
        properties: what the writer set, by its JSON name, e.g. `contentEncoding`.
    """

    name: str
    data: bytes
    generation: int
    crc32c: str
    properties: Mapping[str, Any]

    def metadata(self, bucket: str) -> dict[str, Any]:
        """Return the JSON resource of this object."""
        return {
            "kind": "storage#object",
            "name": self.name,
            "bucket": bucket,
            "generation": str(self.generation),
            "contentType": "application/octet-stream",
            "size": str(len(self.data)),
            "crc32c": self.crc32c,
        } | dict(self.properties)


@dataclass(frozen=True)
class ListQuery:
    """What one page of a listing is asked to hold; an empty bound is none."""

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

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self._names: list[str] = []
        self._virtual: list[tuple[list[str], StoredObject]] = []

    def get(self, name: str) -> StoredObject | None:
        if name in self.objects:
            return self.objects[name]
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
        del self.objects[name]
        del self._names[bisect_left(self._names, name)]

    def page(self, query: ListQuery) -> Page:
        """Return one page; names of one prefix are folded into one entry, which is never split."""
        objects: list[StoredObject] = []
        prefixes: list[str] = []
        token = base64.urlsafe_b64decode(query.page_token).decode()
        start = max(query.prefix, query.start_offset, token)
        while (name := self._first_from(start)) is not None:
            if not name.startswith(query.prefix) or (query.end_offset and name >= query.end_offset):
                break
            if len(objects) + len(prefixes) == query.max_results:
                return Page(objects, prefixes, base64.urlsafe_b64encode(name.encode()).decode())
            cut = name.find(query.delimiter, len(query.prefix)) if query.delimiter else -1
            if cut >= 0:
                prefixes.append(name[: cut + 1])
                start = name[:cut] + chr(ord(name[cut]) + 1)  # the first name past the prefix
            else:
                found = self.get(name)
                assert found is not None
                objects.append(found)
                start = name + "\0"  # the smallest string that is larger
        return Page(objects, prefixes, "")

    def _first_from(self, start: str) -> str | None:
        """Return the first name at or after `start`."""
        of_names = (self._names, *(names for names, _ in self._virtual))
        places = ((names, bisect_left(names, start)) for names in of_names)
        return min((names[place] for names, place in places if place < len(names)), default=None)


class Store:
    """All buckets. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}
        self._generations = itertools.count(1_700_000_000_000_001)  # as large as the real ones

    def make_bucket(self, name: str) -> Bucket:
        """Return the bucket of that name, made where there was none."""
        with self._lock:
            return self._buckets.setdefault(name, Bucket())

    def bucket(self, name: str) -> Bucket:
        """Return a bucket; 404 without it."""
        try:
            return self._buckets[name]
        except KeyError:
            raise GcsError(HTTPStatus.NOT_FOUND, "notFound", NO_BUCKET) from None

    def find(self, bucket: str, name: str, generation: int | None = None) -> StoredObject | None:
        """Return the live object, or None where there is none or not of that generation."""
        with self._lock:
            found = self.bucket(bucket).get(name)
        return None if found and generation not in (None, found.generation) else found

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Return all objects that have bytes of their own."""
        with self._lock:
            stored = dict(self.bucket(bucket).objects)
        return {name: stored[name].data for name in sorted(stored)}

    def insert(
        self,
        bucket: str,
        name: str,
        data: bytes,
        properties: Mapping[str, Any],
        if_generation_match: int | None = None,
        may_overwrite: bool = True,
    ) -> StoredObject:
        """Finalise an object, whole, unless its checksum or the precondition does not hold."""
        made = _new_object(name, data, properties)
        provided = properties.get("crc32c", made.crc32c)
        if provided != made.crc32c:
            what = f'Provided CRC32C "{provided}" doesn\'t match calculated CRC32C "{made.crc32c}".'
            raise invalid(what)
        with self._lock:
            home = self.bucket(bucket)
            found = home.get(name)
            if if_generation_match not in (None, found.generation if found else 0):
                what = "At least one of the pre-conditions you specified did not hold."
                raise GcsError(HTTPStatus.PRECONDITION_FAILED, "conditionNotMet", what)
            if found is not None and not may_overwrite:
                raise denied("storage.objects.delete")
            made = replace(made, generation=next(self._generations))
            home.set(made)
        return made

    def insert_virtual(self, bucket: str, names: Sequence[str], size_bytes: int) -> None:
        """Make objects of equal bytes (zeros, held once), as many as the names."""
        template = replace(
            _new_object("", bytes(size_bytes), {}), generation=next(self._generations)
        )
        with self._lock:
            self.bucket(bucket).set_virtual(names, template)

    def delete(self, bucket: str, name: str) -> None:
        """Remove an object; 404 without it."""
        with self._lock:
            home = self.bucket(bucket)
            if name not in home.objects:
                raise no_such_object(bucket, name)
            home.remove(name)

    def page(self, bucket: str, query: ListQuery) -> Page:
        """Return one page of a listing."""
        with self._lock:
            return self.bucket(bucket).page(query)


def no_such_object(bucket: str, name: str) -> GcsError:
    """Return the refusal of an object that is not there."""
    return GcsError(HTTPStatus.NOT_FOUND, "notFound", f"No such object: {bucket}/{name}")


def denied(permission: str, status: int = HTTPStatus.FORBIDDEN) -> GcsError:
    """Return the refusal for want of a permission, worded as Cloud Storage words it."""
    message = f"The caller does not have {permission} access to the Google Cloud Storage object."
    return GcsError(status, "forbidden", message)


def invalid(message: str) -> GcsError:
    return GcsError(HTTPStatus.BAD_REQUEST, "invalid", message)


def _new_object(name: str, data: bytes, properties: Mapping[str, Any]) -> StoredObject:
    crc32c = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
    kept = {key: value for key, value in properties.items() if key not in ("crc32c", "md5Hash")}
    return StoredObject(name, data, 0, crc32c, kept)
