"""Single requests to Google's JSON APIs: soon answered or told why not, with the status kept."""

import datetime
import email.utils
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import google.auth.transport.requests
import requests
from google.auth import exceptions as auth

from schemas.faults import fault_line
from transforms.doctor.google_identity import EMULATOR, Identity
from transforms.retries import retry
from transforms.storage.object_reads import said

DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_TIMEOUT_S = (5, 10)  # to connect, and between two bytes
_RETRIED_S = 8.0
_STORAGE = "https://storage.googleapis.com"


@dataclass(frozen=True)
class Reply:
    """What a service answered.

    Attributes:
        status: of HTTP.
        content: the JSON, empty where there was none.
        headers: of the reply.
    """

    status: int
    content: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_fine(self) -> bool:
        """Whether it was done."""
        return self.status < HTTPStatus.BAD_REQUEST

    @property
    def message(self) -> str:
        """What the service says of its refusal, in a line."""
        error = self.content.get("error")
        text = error.get("message", "") if isinstance(error, dict) else error
        return " ".join(str(text or f"status {self.status}").split())[:300]

    @property
    def reasons(self) -> set[str]:
        """The words that programs know a refusal by, such as `SERVICE_DISABLED`."""
        error = self.content.get("error")
        parts = error if isinstance(error, dict) else {}
        several = [*parts.get("details", []), *parts.get("errors", [])]
        return {
            str(part["reason"]) for part in several if isinstance(part, dict) and "reason" in part
        }


def storage_url(path: str) -> str:
    """Return the address of a path of Cloud Storage, or of its emulator."""
    return f"{os.environ.get(EMULATOR) or _STORAGE}{path}"


def ask(
    url: str,
    identity: Identity,
    where: str,
    *,
    method: str = "GET",
    params: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
) -> Reply:
    """Return the answer to a request, whatever its status; trouble is tried again for seconds.

    Args:
        url: of the service, without parameters.
        identity: who asks.
        where: what is asked about, for faults.
        method: of HTTP.
        params: of the request; a list for one that comes several times.
        body: JSON to send.

    Raises:
        RuntimeError: `E-IO-RETRIES` where none answers, `E-IO-AUTH` where credentials are refused.
    """

    def once() -> Reply:
        # A session of its own, since these are not to be used by several threads at once.
        with _session(identity) as session:
            reply = session.request(method, url, params=params, json=body, timeout=_TIMEOUT_S)
        if reply.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise requests.ConnectionError(f"status {reply.status_code}")
        return Reply(reply.status_code, _json(reply), reply.headers)

    try:
        return retry(once, _is_transient, lambda: where, deadline_s=_RETRIED_S)
    except auth.GoogleAuthError as error:
        remedy = "run gcloud auth application-default login"
        raise RuntimeError(fault_line("E-IO-AUTH", where, said(error), remedy)) from error


def clock_skew_s(reply: Reply, now: datetime.datetime) -> float | None:
    """Return how many seconds this clock is ahead of the service's; None where it tells no time.

    >>> noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    >>> clock_skew_s(Reply(200, {}, {"Date": "Thu, 01 Jan 2026 11:58:00 GMT"}), noon)
    120.0
    """
    try:
        then = email.utils.parsedate_to_datetime(reply.headers["Date"])
    except (KeyError, ValueError):
        return None
    return (now - then).total_seconds()


def _session(identity: Identity) -> requests.Session:
    if identity.credentials is None:
        return requests.Session()
    return google.auth.transport.requests.AuthorizedSession(identity.credentials)


def _json(reply: requests.Response) -> Mapping[str, Any]:
    try:
        content = reply.json() if reply.content else {}
    except ValueError:
        return {"error": {"message": reply.text[:300]}}
    return content if isinstance(content, dict) else {}


def _is_transient(error: Exception) -> bool:
    return isinstance(error, (requests.ConnectionError, requests.Timeout, auth.TransportError))
