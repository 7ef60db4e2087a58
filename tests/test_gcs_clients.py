"""The clients of Google Cloud Storage: whom they say they are, and which of their errors pass."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.api_core import exceptions as api
from google.auth import exceptions as auth_errors
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import exceptions as client_errors
from obstore import exceptions as obstore_errors
from obstore.auth.google import GoogleCredentialProvider

from tests.gcs_stand_in import GcsStandIn, Kind
from transforms.storage import Access, gcs, open_storage

GENERIC = obstore_errors.GenericError
TIMES = {"connect_timeout": "5s", "read_timeout": "20s", "timeout": "10m"}
AS_STORED = {"accept-encoding": b"gzip"}
ANONYMOUS = {"bucket": "b", "skip_signature": "true"}
EMULATOR = "http://localhost:1"


ELSEWHERE = {
    "type": "external_account",
    "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/q",
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "token_url": "https://sts.googleapis.com/v1/token",
    "credential_source": {"file": "/nowhere"},
}
"""Credentials of a job at another provider, as CI services have them; obstore knows no such."""


@pytest.fixture(autouse=True)
def new_clients(no_credentials: None) -> Iterator[None]:
    """Neither are clients of earlier tests used here, nor those of here later."""
    made = (gcs._credentials, gcs._client, gcs._store)
    for cached in made:
        cached.cache_clear()
    yield
    for cached in made:
        cached.cache_clear()


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The account that a machine's Application Default Credentials are of."""
    email = "reader@example.iam.gserviceaccount.com"
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    told = {
        "type": "service_account",
        "client_email": email,
        "private_key": key.decode(),
        "token_uri": EMULATOR,
    }
    log_in(told, tmp_path, monkeypatch)
    return email


def log_in(credentials: dict, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "credentials.json"
    path.write_text(json.dumps(credentials))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))


def test_an_account_may_read_and_write_objects_and_nothing_else(account: str) -> None:
    credentials = gcs._client(Access(), "")._credentials

    assert credentials.service_account_email == account
    assert credentials.scopes == ["https://www.googleapis.com/auth/devstorage.read_write"]
    provider = gcs._store("b", Access(), "").credential_provider
    assert isinstance(provider, GoogleCredentialProvider)
    assert provider.credentials is credentials


@pytest.mark.parametrize(
    ("access", "emulator"), [(Access(anonymous=True), ""), (Access(), EMULATOR)]
)
def test_a_public_bucket_or_an_emulator_is_told_of_no_account(
    access: Access, emulator: str, account: str
) -> None:
    assert isinstance(gcs._client(access, emulator)._credentials, AnonymousCredentials)
    assert gcs._store("b", access, emulator).config["skip_signature"] == "true"


def test_credentials_that_are_not_sent_may_be_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(ELSEWHERE, tmp_path, monkeypatch)
    with GcsStandIn() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        running.put("b", "a", b"1")
        storage = open_storage("gs://b", Access(anonymous=True))

        assert storage.read("a", storage.stat("a")) == b"1"
        (request,) = (request for request in running.requests if request.kind is Kind.READ)
        assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("access", "emulator", "config", "options"),
    [
        (Access(), "", {"bucket": "b"}, {}),
        (Access(anonymous=True), "", ANONYMOUS, {}),
        (Access(), EMULATOR, {**ANONYMOUS, "base_url": EMULATOR}, {"allow_http": "true"}),
    ],
)
def test_a_reader_s_settings(
    access: Access, emulator: str, config: dict, options: dict, account: str
) -> None:
    store = gcs._store("b", access, emulator)

    assert store.config == config
    assert store.client_options == {**TIMES, "default_headers": AS_STORED, **options}
    assert store.retry_config is not None
    assert store.retry_config["max_retries"] == 0


def test_who_pays_is_told_by_reader_and_writer(account: str) -> None:
    access = Access(billing_project="payer")

    headers = gcs._store("b", access, "").client_options["default_headers"]  # type: ignore[index]
    assert headers == {**AS_STORED, "x-goog-user-project": b"payer"}
    assert gcs._client(access, "").project == "payer"
    assert gcs._client(Access(), "").project == "none"


def test_a_writer_talks_to_the_store_or_an_emulator(account: str) -> None:
    assert gcs._client(Access(), "").api_endpoint == "https://storage.googleapis.com"
    assert gcs._client(Access(), EMULATOR).api_endpoint == EMULATOR


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_a_writer_keeps_a_connection_for_each_of_many_threads(scheme: str, account: str) -> None:
    adapter = gcs._client(Access(), "")._http.get_adapter(f"{scheme}://")

    assert adapter._pool_maxsize >= 32


def test_a_writer_asks_for_nothing_but_objects(
    account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", raising=False)

    gcs._client(Access(), "")

    assert os.environ["DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"] == "true"


def test_a_machine_s_credentials_are_asked_for_once(
    account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no metadata server, Google's client waits three seconds for it each time."""
    monkeypatch.delenv("GCE_METADATA_DETECT_RETRIES", raising=False)

    gcs._credentials()

    assert os.environ["GCE_METADATA_DETECT_RETRIES"] == "1"


def test_a_writer_gives_up_within_a_minute_and_once() -> None:
    assert gcs._call() == {"retry": None, "timeout": (5, 60)}


@pytest.mark.parametrize(
    "error",
    [
        api.Forbidden("token has been revoked"),
        api.Unauthorized("token has been revoked"),
        obstore_errors.PermissionDeniedError("token has been revoked"),
        obstore_errors.UnauthenticatedError("token has been revoked"),
        auth_errors.DefaultCredentialsError("token has been revoked"),
        auth_errors.RefreshError("token has been revoked"),
        auth_errors.InvalidOperation("token has been revoked"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_who_is_refused_is_told_so(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(gcs.GcsStorage, "_list_page", refuse)
    with pytest.raises(
        RuntimeError, match=r"^E-IO-AUTH gs://b/root: token has been revoked; give the account"
    ):
        open_storage("gs://b/root").require_folder()


REPLY = requests.Response()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionResetError(), True),
        (requests.ConnectionError(), True),
        (requests.ConnectTimeout(), True),
        (requests.ReadTimeout(), True),
        (requests.exceptions.ChunkedEncodingError(), True),
        (requests.exceptions.ContentDecodingError(), True),
        (requests.exceptions.JSONDecodeError("cut", "{", 1), True),
        (msgspec.DecodeError(), True),
        (auth_errors.TransportError(), True),
        (GENERIC("connection reset"), True),
        (client_errors.DataCorruption(REPLY), True),
        (client_errors.InvalidResponse(REPLY), True),
        (api.TooManyRequests("quota"), True),
        (api.InternalServerError("oops"), True),
        (GENERIC("Server returned non-2xx status code: 503 Service Unavailable"), True),
        (GENERIC("Server returned non-2xx status code: 499"), False),
        (api.from_http_status(408, "late"), True),
        (api.from_http_status(410, "a forgotten session"), True),
        (api.from_http_status(308, "half of an upload"), True),
        (api.BadRequest("no"), False),
        (auth_errors.RefreshError("revoked"), False),
        (requests.exceptions.InvalidURL(), False),
        (TypeError(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_passes(error: Exception, passes: bool) -> None:
    assert gcs._is_transient(error) is passes


@pytest.mark.parametrize(
    ("error", "slows_down"),
    [
        (api.TooManyRequests("quota"), True),
        (api.ServiceUnavailable("busy"), True),
        (GENERIC("Server returned non-2xx status code: 429 Too Many Requests"), True),
        (api.InternalServerError("oops"), False),
        (ConnectionResetError(), False),
    ],
)
def test_what_slows_reads_down(error: Exception, slows_down: bool) -> None:
    assert gcs._is_throttling(error) is slows_down
