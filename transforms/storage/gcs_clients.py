"""Clients of Google Cloud Storage: an authorised HTTP session, an obstore reader, and their errors.

`obstore` reads objects for an eighth of the CPU of Python's HTTP. The session does all else by the
JSON API: it lists, uploads and deletes. Neither retries on its own.
"""

import errno
import functools
import os
import re
from datetime import timedelta
from http import HTTPStatus
from typing import Any, NoReturn

import google.auth
import msgspec
import requests
import urllib3
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from obstore import exceptions as obstore_errors
from obstore.auth.google import GoogleCredentialProvider
from obstore.store import GCSStore

from transforms.storage import Access

API = "https://storage.googleapis.com"
TIMEOUT_S = (5, 60)
"""To connect, and between two bytes of a reply."""

SENDING_TIMEOUT_S = TIMEOUT_S[1]
"""For uploads: urllib3 applies the time to connect to each send, too."""

READER_TIMEOUTS = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=20),
    "timeout": timedelta(minutes=10),
}
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_CONNECTIONS = 64  # of the session, at most
_OBSTORE_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_THROTTLING_STATUS = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
_TRANSIENT_STATUS = {308, 408, 410, 429}
"""308: not all of an upload arrived; 410: the store has forgotten the upload's session."""
_DENIED_STATUS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_TRANSIENT = (
    ConnectionError,
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
    urllib3.exceptions.HTTPError,
    msgspec.DecodeError,  # a reply that was cut
    auth.TransportError,
    obstore_errors.GenericError,
)
_DENIED = (
    obstore_errors.PermissionDeniedError,
    obstore_errors.UnauthenticatedError,
    auth.DefaultCredentialsError,  # also what a 401 becomes for anonymous requests
    auth.RefreshError,
)


class Refused(Exception):
    """A reply that is not a success.

    Attributes:
        status: of the reply.
    """

    def __init__(self, status: int, message: str) -> None:
        """Take the status and the store's words."""
        super().__init__(f"{status} {message}")
        self.status = status


def refused(reply: requests.Response) -> Refused:
    """Return a reply that is not a success as an error, with the message of its JSON."""
    try:
        message = reply.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = reply.text or reply.reason or ""
    return Refused(reply.status_code, message)


def is_transient(error: Exception) -> bool:
    """Return whether a request that failed so is worth another try."""
    status = _status_of(error)
    if status is None:
        return isinstance(error, _TRANSIENT)
    # The store answers 400 when an upload's bytes changed on their way.
    were_changed = status == HTTPStatus.BAD_REQUEST and "calculated CRC32C" in str(error)
    return status in _TRANSIENT_STATUS or status >= 500 or were_changed


def is_throttling(error: Exception) -> bool:
    """Return whether the store says that requests are too many."""
    return _status_of(error) in _THROTTLING_STATUS


def is_denied(error: Exception) -> bool:
    """Return whether credentials or a permission are missing."""
    return _status_of(error) in _DENIED_STATUS or isinstance(error, _DENIED)


def is_gone(error: Exception) -> bool:
    """Return whether there is no such object, generation or bucket."""
    return _status_of(error) == HTTPStatus.NOT_FOUND or isinstance(error, FileNotFoundError)


def _status_of(error: Exception) -> int | None:
    if isinstance(error, Refused):
        return error.status
    if not isinstance(error, obstore_errors.BaseError):
        return None
    found = _OBSTORE_STATUS.search(str(error))  # its class does not say
    return int(found[1]) if found else None


def limit_of_files(error: Exception) -> OSError | None:
    """Return the limit on open files as an error, where that is why a request failed.

    A client that cannot open a file reports that a host has no address, or that there are no
    certificates. Retries would not help.
    """
    if os.strerror(errno.EMFILE) in str(error):
        return OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if not is_transient(error):
        return None
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as limit:
        return limit if limit.errno in (errno.EMFILE, errno.ENFILE) else None
    return None


@functools.lru_cache(maxsize=1)
def credentials() -> Any:
    """Return Application Default Credentials, or fail within seconds."""
    # Off Google's machines the client asks three times, three seconds each, for a metadata server.
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    found, _ = google.auth.default(scopes=[_SCOPE])
    return found


def emulator() -> str:
    """Return the address of an emulator; empty for the store itself."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")  # as Google's own clients call it


@functools.lru_cache(maxsize=2)
def session(anonymous: bool) -> AuthorizedSession:
    """Return the process's session, for all stores."""
    made = AuthorizedSession(AnonymousCredentials() if anonymous else credentials())
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS)
    for scheme in ("https://", "http://"):
        made.mount(scheme, adapter)
    return made


os.register_at_fork(after_in_child=session.cache_clear)  # a connection belongs to one process


@functools.lru_cache(maxsize=64)
def reader(bucket: str, access: Access, emulator: str) -> GCSStore:
    """Return the process's obstore reader of a bucket, of an emulator or of the store itself."""
    # This header keeps the store from unpacking objects whose `Content-Encoding` is gzip.
    headers = {"accept-encoding": "gzip"}
    options: dict[str, Any] = {**READER_TIMEOUTS, "default_headers": headers}
    config: Any = {"skip_signature": True}
    provider: Any = _no_credentials
    if access.billing_project:
        headers["x-goog-user-project"] = access.billing_project
    if emulator:
        config["base_url"] = emulator
        options["allow_http"] = True
    elif not access.anonymous:
        config, provider = {}, GoogleCredentialProvider(credentials())
    return GCSStore(
        bucket,
        config=config,
        client_options=options,  # type: ignore[arg-type]
        retry_config={"max_retries": 0},
        credential_provider=provider,
    )


def is_forked() -> bool:
    """Return whether obstore would hang: its threads exist only in the process before a fork.

    They start with the first request of a process, and cannot start again after a fork.
    """
    return _process_of_threads() != os.getpid()


@functools.cache
def _process_of_threads() -> int:
    return os.getpid()


def _no_credentials() -> NoReturn:
    """Keep obstore from reading the machine's credentials when it must not send any.

    It reads them all the same, and fails when it does not know their kind
    (https://github.com/apache/arrow-rs-object-store/issues/520).
    """
    raise auth.DefaultCredentialsError("credentials were asked for, and none are to be sent")
