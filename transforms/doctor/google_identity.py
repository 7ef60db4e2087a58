"""Who asks Google: the credentials that are found, proved by asking for a token, and their name."""

import base64
import functools
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import google.auth
import google.auth.transport.requests
from google.auth import exceptions as auth
from google.oauth2 import credentials as of_users

from schemas.faults import fault_line
from transforms.doctor.diagnosis import Diagnosis, fine, warning
from transforms.storage import Access
from transforms.storage.object_reads import said

EMULATOR = "STORAGE_EMULATOR_HOST"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_TOKEN_S = 5
_LOG_IN = "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
_WHERE = "Google credentials"


@dataclass(frozen=True)
class Identity:
    """Who a request is of.

    Attributes:
        credentials: of Google's client; None to send none.
        principal: as permissions name it, or `nobody`.
    """

    credentials: Any
    principal: str


NOBODY = Identity(None, "nobody (no credentials are sent)")


def identity_for_storage(access: Access) -> Identity:
    """Return who asks Cloud Storage, as the run would.

    Raises:
        RuntimeError: `E-IO-AUTH` where there are no credentials, or they are refused.
    """
    return NOBODY if access.anonymous or os.environ.get(EMULATOR) else find_identity()


@functools.cache
def find_identity() -> Identity:
    """Return the Application Default Credentials once they have given a token.

    Raises:
        RuntimeError: `E-IO-AUTH`, within seconds, where there are none, or they are refused.
    """
    # As the storage does: off Google's machines their metadata server is asked once.
    os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")
    warnings.filterwarnings("ignore", message="Your application has authenticated")
    request = functools.partial(google.auth.transport.requests.Request(), timeout=_TOKEN_S)
    try:
        found, _ = google.auth.default()
        if not isinstance(found, of_users.Credentials):  # whose scopes were given at the login
            found, _ = google.auth.default(scopes=[_SCOPE])
        found.refresh(request)
    except auth.GoogleAuthError as error:
        raise RuntimeError(fault_line("E-IO-AUTH", _WHERE, said(error), _LOG_IN)) from error
    return Identity(found, principal_of(found))


def principal_of(credentials: Any) -> str:
    """Return the name of whom credentials are, as far as they tell."""
    for attribute in ("service_account_email", "account"):
        if name := getattr(credentials, attribute, ""):
            return str(name)
    return _email_in(getattr(credentials, "id_token", None)) or "a user without a name"


def check_identity(access: Access, *, asks_services: bool) -> Iterator[Diagnosis]:
    """Yield who asks, where requests of the run have credentials.

    Args:
        access: how stores are reached.
        asks_services: whether others than the storage are asked, such as Dataflow.
    """
    if address := os.environ.get(EMULATOR, ""):
        what = f"{EMULATOR} is set: gs:// is asked at {address}, without credentials"
        yield warning("gs://", what, "unset it to ask Google's")
    elif access.anonymous:
        yield fine("gs://", "no credentials are sent (--anonymous)")
    if asks_services or not (address or access.anonymous):
        yield fine(_WHERE, find_identity().principal)


def _email_in(id_token: str | None) -> str:
    """Return the address in a token that Google has just given, so that nobody has to verify it."""
    try:
        payload = str(id_token).split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(payload + "=="))["email"])
    except (ValueError, IndexError, KeyError):
        return ""
