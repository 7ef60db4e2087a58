"""Reads by obstore, which all object stores share: timeouts, pieces, and what its errors say."""

import errno
import functools
import os
import re
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any, TypeVar

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import ObjectStore

from transforms.storage import Span
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


def limits_told(operation: Callable[[], T], is_transient: Callable[[Exception], bool]) -> T:
    """Run an operation; tell where it failed for want of a descriptor.

    Raises:
        TooManyFiles: when a client's error says so in its text, or is one to wait for while no
            file can be opened.
    """
    try:
        return operation()
    except Exception as error:
        number = errno.EMFILE if os.strerror(errno.EMFILE) in str(error) else 0
        if not number and is_transient(error):
            number = _why_no_file_opens()
        if not number:
            raise
        raise TooManyFiles(number, os.strerror(number)) from error


def _why_no_file_opens() -> int:
    """Return the number of the limit that is met, or 0.

    Clients say of it that a name has no address, or that there are no certificates.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno if error.errno in (errno.EMFILE, errno.ENFILE) else 0
    return 0


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
    if size_bytes > _PIECE_BYTES:
        return get_span(store, path, (0, size_bytes), pinned, rate)
    return _get(store, path, dict(pinned), rate)


def get_span(
    store: ObjectStore, path: str, span: Span, pinned: dict[str, Any], rate: RequestRate
) -> bytes:
    """Return a span of an object's bytes as they come, by a request for each large piece."""
    start, end = span
    pieces = ((first, min(first + _PIECE_BYTES, end)) for first in range(start, end, _PIECE_BYTES))
    return b"".join([_get(store, path, {**pinned, "range": piece}, rate) for piece in pieces])


def is_forked() -> bool:
    """Return whether obstore would wait for ever: its threads stayed in the process before a fork.

    They begin with the first request of a process, and cannot begin again in one forked from it.
    """
    return _process_of_threads() != os.getpid()


@functools.cache
def _process_of_threads() -> int:
    return os.getpid()


def _get(store: ObjectStore, path: str, options: Any, rate: RequestRate) -> bytes:
    with rate.request():
        reply = obstore.get(store, path, options=options)
    return bytes(reply.bytes())


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that an error of obstore tells of; its class does not say."""
    if not isinstance(error, obstore_errors.BaseError):
        return None
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def said(error: Exception) -> str:
    """Return what a client's error says, in one line."""
    return " ".join(str(getattr(error, "message", "") or error).split())[:300]
