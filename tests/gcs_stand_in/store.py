"""Buckets of the Cloud Storage stand-in: objects, generations, preconditions, pages of names.

Source of the rules: https://cloud.google.com/storage/docs/json_api/v1/objects.
"""

import base64
import itertools
import threading
from collections import defaultdict
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import google_crc32c

MAX_PAGE = 1000
"""Largest number of objects and prefixes in one page of a listing, and the default."""


class GcsError(Exception):
    """A refusal: its HTTP status, the machine-readable word of the JSON body, and a sentence."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class StoredObject(NamedTuple):
    """One generation of one object.

    Attributes:
        generation: number that is larger than that of every earlier write.
        crc32c: big-endian CRC-32C in base64, as the APIs give it, e.g. `4waSgw==`.
        properties: what the writer set, by its JSON name, e.g. `contentEncoding`.
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


class Store:
    """All buckets. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, dict[str, StoredObject]] = {}
        self._generations = itertools.count(1_700_000_000_000_001)  # as large as the real ones

    def make_bucket(self, name: str) -> None:
        """Make a bucket, unless it is there."""
        with self._lock:
            self._buckets.setdefault(name, {})

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        """Return all objects of a bucket by name, sorted; 404 without the bucket."""
        with self._lock:
            if bucket not in self._buckets:
                what = "The specified bucket does not exist."
                raise GcsError(HTTPStatus.NOT_FOUND, "notFound", what)
            return dict(sorted(self._buckets[bucket].items()))

    def find(self, bucket: str, name: str, generation: int | None = None) -> StoredObject | None:
        """Return the live object, or None where there is none or not of that generation."""
        found = self._buckets.get(bucket, {}).get(name)
        return None if found and generation not in (None, found.generation) else found

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
        self.objects(bucket)
        crc32c = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
        provided = properties.get("crc32c", crc32c)
        if provided != crc32c:
            what = f'Provided CRC32C "{provided}" doesn\'t match calculated CRC32C "{crc32c}".'
            raise invalid(what)
        kept = {key: value for key, value in properties.items() if key not in ("crc32c", "md5Hash")}
        with self._lock:
            found = self._buckets[bucket].get(name)
            if if_generation_match not in (None, found.generation if found else 0):
                what = "At least one of the pre-conditions you specified did not hold."
                raise GcsError(HTTPStatus.PRECONDITION_FAILED, "conditionNotMet", what)
            if found is not None and not may_overwrite:
                raise denied("storage.objects.delete")
            made = StoredObject(bucket, name, data, next(self._generations), crc32c, kept)
            self._buckets[bucket][name] = made
        return made

    def delete(self, bucket: str, name: str) -> None:
        """Remove an object; 404 without it."""
        with self._lock:
            if self._buckets.get(bucket, {}).pop(name, None) is None:
                raise no_such_object(bucket, name)

    def page(self, bucket: str, query: Mapping[str, str]) -> dict[str, Any]:
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


def no_such_object(bucket: str, name: str) -> GcsError:
    """Return the refusal of an object that is not there."""
    return GcsError(HTTPStatus.NOT_FOUND, "notFound", f"No such object: {bucket}/{name}")


def denied(permission: str) -> GcsError:
    """Return the refusal of a caller without a permission, worded as Cloud Storage words it."""
    message = f"The caller does not have {permission} access to the Google Cloud Storage object."
    return GcsError(HTTPStatus.FORBIDDEN, "forbidden", message)


def invalid(message: str) -> GcsError:
    return GcsError(HTTPStatus.BAD_REQUEST, "invalid", message)
