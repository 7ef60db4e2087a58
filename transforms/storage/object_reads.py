"""Reads by obstore, which all object stores share: timeouts, pieces, and what its errors say."""

import errno
import os
import re
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any, TypeVar

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import ObjectStore

from transforms.storage.request_rate import RequestRate

TIMEOUTS: dict[str, Any] = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=20),
    "timeout": timedelta(minutes=10),
}
NO_RETRIES: dict[str, Any] = {"max_retries": 0}
"""Of obstore's own; ours is the one retry layer."""

THROTTLING_STATUS = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}

_PIECE_BYTES = 64 * 2**20  # of one request; a larger object is read in several
_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")

T = TypeVar("T")


class TooManyFiles(OSError):
    """What clients take for trouble of the network: waiting would not mend it."""


def limits_told(operation: Callable[[], T]) -> T:
    """Run an operation; tell where it failed for want of a descriptor.

    Raises:
        TooManyFiles: when a client's error says so in its text.
    """
    try:
        return operation()
    except Exception as error:
        if os.strerror(errno.EMFILE) not in str(error):
            raise
        raise TooManyFiles(errno.EMFILE, os.strerror(errno.EMFILE)) from error


def get_whole(
    store: ObjectStore, path: str, size_bytes: int, pinned: dict[str, Any], rate: RequestRate
) -> bytes:
    """Return an object's bytes as they come, by one request or one for each large piece.

    Args:
        store: of the object.
        path: its name.
        size_bytes: as listed.
        pinned: options of obstore that ask for the listed object alone.
        rate: at which requests may start.
    """
    parts = []
    for start in range(0, max(size_bytes, 1), _PIECE_BYTES):  # once where there is nothing
        options: Any = dict(pinned)
        if size_bytes > _PIECE_BYTES:
            options["range"] = (start, min(start + _PIECE_BYTES, size_bytes))
        with rate.request():
            reply = obstore.get(store, path, options=options)
        parts.append(bytes(reply.bytes()))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that an error of obstore tells of; its class does not say."""
    if not isinstance(error, obstore_errors.BaseError):
        return None
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def said(error: Exception) -> str:
    """Return what a client's error says, in one line."""
    return " ".join(str(getattr(error, "message", "") or error).split())[:300]
