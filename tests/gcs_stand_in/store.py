"""The writes of the Cloud Storage stand-in: generations, preconditions, upload sessions.

Nothing here knows of HTTP but the status codes that Cloud Storage gives its refusals. Sources:
https://cloud.google.com/storage/docs/json_api/v1 and .../docs/performing-resumable-uploads.
"""

import base64
import hashlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import google_crc32c

from tests.gcs_stand_in.bucket import (
    NO_BUCKET,
    Bucket,
    GcsError,
    ListQuery,
    Page,
    StoredObject,
    denied,
    no_such_object,
)

CHUNK_BYTES = 256 * 1024
"""What is kept of a chunk that is not the last: a multiple of this, the rest is sent again."""

MAX_NAME_BYTES = 1024


@dataclass
class Upload:
    """A resumable upload under way; what it has received is no object yet.

    Attributes:
        if_generation_match: the precondition given at the start, checked again at the end.
        received: the bytes that are safe, a multiple of `CHUNK_BYTES`.
        finished: the object, once the last byte came; the session then answers with it for ever.
        is_gone: the session is lost, every further request gets 410.
    """

    bucket: str
    name: str
    properties: dict[str, Any]
    if_generation_match: int | None
    may_overwrite: bool
    received: bytearray = field(default_factory=bytearray)
    finished: StoredObject | None = None
    is_gone: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Store:
    """All buckets. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[str, Bucket] = {}
        self._uploads: dict[str, Upload] = {}
        self._upload_numbers = itertools.count(1)
        self._generations = itertools.count(1_700_000_000_000_001)  # as large as the real ones

    def make_bucket(self, name: str, properties: dict[str, Any]) -> Bucket:
        """Return the bucket of that name, made with these properties where there was none."""
        with self._lock:
            return self._buckets.setdefault(name, Bucket(name, properties))

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
        """Finalise an object, whole, unless its checksums or the precondition do not hold."""
        _check_name(name)
        made = _new_object(name, data, properties, generation=0)
        _check_hash("CRC32C", properties.get("crc32c"), made.crc32c)
        _check_hash("MD5 hash", properties.get("md5Hash"), made.md5)
        with self._lock:
            home = self.bucket(bucket)
            self._check_write(home.get(name), if_generation_match, may_overwrite)
            made = replace(made, generation=next(self._generations))
            home.set(made)
        return made

    def insert_virtual(self, bucket: str, names: Sequence[str], size_bytes: int) -> None:
        """Make objects of equal bytes (zeros, held once), as many as the names."""
        template = _new_object("", bytes(size_bytes), {}, next(self._generations))
        with self._lock:
            self.bucket(bucket).set_virtual(names, template)

    def delete(
        self,
        bucket: str,
        name: str,
        generation: int | None = None,
        if_generation_match: int | None = None,
    ) -> None:
        """Remove an object; 404 without it, 412 where it is of another generation."""
        with self._lock:
            home = self.bucket(bucket)
            found = home.get(name)
            if found is None or generation not in (None, found.generation):
                raise no_such_object(bucket, name)
            check_generation(found, if_generation_match)
            home.remove(name)

    def page(self, bucket: str, query: ListQuery) -> Page:
        """Return one page of a listing."""
        with self._lock:
            return self.bucket(bucket).page(query)

    def start_upload(self, upload: Upload) -> str:
        """Open a resumable session and return its id; 412 where its precondition fails now."""
        _check_name(upload.name)
        with self._lock:
            found = self.bucket(upload.bucket).get(upload.name)
            self._check_write(found, upload.if_generation_match, upload.may_overwrite)
            upload_id = f"session-{next(self._upload_numbers)}"
            self._uploads[upload_id] = upload
        return upload_id

    def upload(self, upload_id: str) -> Upload:
        """Return a session; 404 where there never was one, 410 where it is lost."""
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise GcsError(HTTPStatus.NOT_FOUND, "notFound", f"No such upload: {upload_id}")
        if upload.is_gone:
            raise GcsError(HTTPStatus.GONE, "gone", "The upload session is gone; start again.")
        return upload

    def lose_upload(self, upload_id: str) -> None:
        """Forget what a session received: from now on it answers 410."""
        self.upload(upload_id).is_gone = True

    def add_chunk(
        self,
        upload: Upload,
        first: int,
        data: bytes,
        total_bytes: int | None,
        hashes: dict[str, str],
    ) -> None:
        """Take the bytes `[first, first + len(data))` of an upload, and finalise at its end.

        Bytes that came before are not taken twice; bytes after a gap are not taken at all. What
        is kept of a chunk that is not the last is cut to a multiple of `CHUNK_BYTES`.
        """
        with upload.lock:
            if upload.finished is not None or first > len(upload.received):
                return
            upload.received += data[len(upload.received) - first :]
            if len(upload.received) != total_bytes:
                del upload.received[len(upload.received) // CHUNK_BYTES * CHUNK_BYTES :]
                return
            upload.finished = self.insert(
                upload.bucket,
                upload.name,
                bytes(upload.received),
                upload.properties | hashes,
                upload.if_generation_match,
                upload.may_overwrite,
            )

    def _check_write(
        self, found: StoredObject | None, if_generation_match: int | None, may_overwrite: bool
    ) -> None:
        check_generation(found, if_generation_match)
        if found is not None and not may_overwrite:
            raise denied("storage.objects.delete")


def check_generation(found: StoredObject | None, if_generation_match: int | None) -> None:
    """Raise 412 unless the live object is of that generation; 0 asks that there be none."""
    if if_generation_match not in (None, found.generation if found else 0):
        message = "At least one of the pre-conditions you specified did not hold."
        raise GcsError(HTTPStatus.PRECONDITION_FAILED, "conditionNotMet", message, "If-Match")


def _new_object(
    name: str, data: bytes, properties: Mapping[str, Any], generation: int
) -> StoredObject:
    crc32c = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    kept = {key: value for key, value in properties.items() if key not in ("crc32c", "md5Hash")}
    return StoredObject(name, data, generation, datetime.now(UTC), crc32c, md5, kept)


def _check_name(name: str) -> None:
    size = len(name.encode())
    if not 1 <= size <= MAX_NAME_BYTES or name in (".", "..") or "\n" in name or "\r" in name:
        raise GcsError(HTTPStatus.BAD_REQUEST, "invalid", f"Invalid object name: {name!r}")


def _check_hash(what: str, provided: str | None, calculated: str) -> None:
    if provided not in (None, calculated):
        message = f'Provided {what} "{provided}" doesn\'t match calculated {what} "{calculated}".'
        raise GcsError(HTTPStatus.BAD_REQUEST, "invalid", message)
