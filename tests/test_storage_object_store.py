"""S3 and Azure Blob Storage keep the storage contract, here in obstore's own store in memory."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore import exceptions as obstore_errors
from obstore.store import MemoryStore

from tests.obstore_folder import ObstoreFolder
from tests.storage_contract import Outside, StorageContract, files_in
from transforms import retries
from transforms.list_blobs import list_ranges
from transforms.storage import Access, Entry, Storage, object_store, open_storage, request_rate
from transforms.storage.request_rate import WaitedTime

GENERIC = obstore_errors.GenericError


class Unwell:
    """A call of obstore that fails before or after its effect, so many times."""

    def __init__(self, real: Any, error: Exception, *, times: int, after: bool = False) -> None:
        self._real = real
        self._error = error
        self._times = times
        self._after = after
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls > self._times:
            return self._real(*args, **kwargs)
        if self._after:
            self._real(*args, **kwargs)
        raise self._error


@pytest.fixture
def store() -> Any:
    return MemoryStore()


@pytest.fixture
def outside(store: Any) -> Outside:
    return ObstoreFolder(store)


@pytest.fixture
def spools(tmp_path: Path) -> Path:
    folder = tmp_path / "spools"
    folder.mkdir()
    return folder


@pytest.fixture
def storage(store: Any, spools: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    buckets = {"s3://bucket": store}
    monkeypatch.setattr(object_store, "_client", lambda bucket, anonymous: buckets[bucket])
    monkeypatch.setattr(retries, "_FIRST_WAIT_S", 0.001)
    return open_storage("s3://bucket/root", Access(spool_dir=str(spools)))


class TestContract(StorageContract):
    """An object store keeps the contract; another ETag is another object."""

    grew = shrank = touched = gone = "modified since it was listed, or gone"

    @pytest.fixture
    def outside(self, store: Any) -> Outside:
        return ObstoreFolder(store)

    @pytest.fixture(autouse=True)
    def no_spool_is_left(self, spools: Path) -> Iterator[None]:
        yield
        assert files_in(spools) == []


@pytest.mark.parametrize("scheme", ["s3", "s3a", "az", "azure", "abfs", "abfss"])
def test_urls_of_s3_and_azure_are_object_stores(scheme: str) -> None:
    storage = open_storage(f"{scheme}://bucket/a/b/")
    assert (type(storage).__name__, storage.root) == ("ObjectStorage", f"{scheme}://bucket/a/b")
    with pytest.raises(ValueError, match=rf"^a {scheme}:// path must name a bucket, got"):
        open_storage(f"{scheme}:///a")


def test_a_root_loses_nothing_but_slashes_at_its_end(storage: Storage, store: Any) -> None:
    obstore.put(store, "X/a", b"1")
    for uri in ("s3://bucket/X", "s3://bucket/X//"):
        found = open_storage(uri)
        assert (found.root, found.read("a")) == ("s3://bucket/X", b"1")
        assert [entry.name for entry in found.list()] == ["a"]


def test_a_whole_bucket_is_a_root(storage: Storage, store: Any) -> None:
    obstore.put(store, "a/b", b"1")
    obstore.put(store, "c", b"1")
    for uri in ("s3://bucket", "s3://bucket/"):
        found = open_storage(uri)
        assert (found.root, found.read("a/b")) == ("s3://bucket", b"1")
        assert sorted(entry.name for entry in found.list()) == ["a/b", "c"]
        top = sorted((entry.name, entry.kind) for entry in found.list(recursive=False))
        assert top == [("a", "directory"), ("c", "file")]


def test_a_listing_is_not_divided_at_known_names() -> None:
    """The store would be asked for all names before a range's, too."""
    assert list_ranges({"t": "s3://b/t"}, {"t": ["m"]}, Access()) == [("t", ["", ""])]


@pytest.mark.parametrize("anonymous", [True, False])
def test_a_client_s_settings(anonymous: bool) -> None:
    client = object_store._client("s3://bucket", anonymous)

    assert client.config.get("skip_signature") == ("true" if anonymous else None)
    assert client.config["bucket"] == "bucket"
    times = {"connect_timeout": "5s", "read_timeout": "20s", "timeout": "10m"}
    assert client.client_options == {**times, "allow_http": "true"}
    assert client.retry_config is not None
    assert client.retry_config["max_retries"] == 0
    assert object_store._client("s3://bucket", anonymous) is client


CALLS = {
    "head": lambda storage: storage.stat("a"),
    "get": lambda storage: storage.read("a", storage.stat("a")),
    "put": lambda storage: storage.create("new", b"1"),
    "delete": lambda storage: storage.delete("a"),
    "list": lambda storage: list(storage.list()),
    "list_with_delimiter": lambda storage: list(storage.list(recursive=False)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_settings_that_are_missing_are_told_at_once(
    call: Callable[[Storage], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    storage = open_storage("az://container/root", Access(spool_dir=str(tmp_path)))

    with pytest.raises(
        RuntimeError, match=r"^E-IO-AUTH az://container/root: .*Account .*; set the store's account"
    ):
        call(storage)


BUSY = GENERIC("Server returned non-2xx status code: 503 Service Unavailable")


@pytest.mark.parametrize("error", [BUSY, GENERIC("connection reset")], ids=["503", "reset"])
@pytest.mark.parametrize("call", CALLS)
def test_what_passes_is_tried_again(
    call: str,
    error: Exception,
    storage: Storage,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside.put({"a": b"12345"})
    expected = CALLS[call](storage)
    outside.put({"a": b"12345"})
    if call == "put":
        outside.remove("new")
    unwell = Unwell(getattr(obstore, call), error, times=2)
    monkeypatch.setattr(obstore, call, unwell)

    again = CALLS[call](storage)

    assert unwell.calls == 3
    assert type(again) is type(expected)


def test_a_lost_reply_of_an_upload_is_a_taken_name(
    storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore, "put", Unwell(obstore.put, BUSY, times=1, after=True))

    assert storage.create("a", b"1") is False
    assert outside.get("a") == b"1"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (GENERIC("non-2xx status code: 403 Forbidden"), "E-IO-AUTH .*: .*; set the store's cred"),
        (obstore_errors.PermissionDeniedError("no"), "E-IO-AUTH .*: no; set the store's cred"),
        (obstore_errors.UnauthenticatedError("who"), "E-IO-AUTH .*: who; set the store's cred"),
        (GENERIC("no answer of http://169.254.169.254/latest"), "E-IO-AUTH .*; set the store's"),
        (GENERIC("non-2xx status code: 401 Unauthorized"), "E-IO-AUTH .*: .*; set the store's"),
        (GENERIC("non-2xx status code: 404 Not Found"), "E-ARG .*; give a bucket that exists"),
        (FileNotFoundError("no container"), "E-ARG .*: no container; give a bucket that exists"),
        (GENERIC("Too many open files (os error 24)"), "E-IO-LIMIT .*: Too many open files; raise"),
        (obstore_errors.InvalidPathError("a//b"), "E-ARG .*: a//b; rename it"),
        (GENERIC("non-2xx status code: 400 Bad Request"), "E-IO-RETRIES .*; look at the storage"),
    ],
)
def test_what_stays_is_told_at_once(
    error: Exception, line: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwell = Unwell(obstore.list, error, times=9)
    monkeypatch.setattr(obstore, "list", unwell)

    for act in (storage.require_folder, storage.probe):
        with pytest.raises(RuntimeError, match=f"^{line}") as told:
            act()
        assert told.value.args[0].split()[1] == "s3://bucket/root:"
    assert unwell.calls == 2


@pytest.mark.parametrize("status", [408, 429, 500, 599])
def test_statuses_that_pass_are_tried_again(
    status: int, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = GENERIC(f"Server returned non-2xx status code: {status} Whatever")
    unwell = Unwell(obstore.list, error, times=2)
    monkeypatch.setattr(obstore, "list", unwell)

    storage.require_folder()

    assert unwell.calls == 3


@pytest.mark.parametrize(("status", "slows_down"), [(429, True), (503, True), (500, False)])
def test_a_store_that_throttles_is_read_slower(
    status: int,
    slows_down: bool,
    storage: Storage,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside.put({"a": b"12345"})
    rate = request_rate.RequestRate(object_store._is_throttling, waited=WaitedTime())
    monkeypatch.setattr(storage, "_rate", rate)
    for _ in range(30):
        storage.stat("a")
    error = GENERIC(f"Server returned non-2xx status code: {status} Whatever")
    monkeypatch.setattr(obstore, "get", Unwell(obstore.get, error, times=1))

    assert storage.read("a") == b"12345"

    assert (rate.per_s() < math.inf) is slows_down


def test_waits_of_a_store_that_throttles_are_told(
    storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.put({"a": b"12345"})
    waited = WaitedTime()
    rate = request_rate.RequestRate(object_store._is_throttling, waited=waited)
    monkeypatch.setattr(storage, "_rate", rate)
    monkeypatch.setattr(rate, "_sleep", lambda seconds: None)
    monkeypatch.setattr(retries, "_FIRST_WAIT_S", 1000.0)
    monkeypatch.setattr(retries, "_LONGEST_WAIT_S", 1000.0)
    for _ in range(30):
        storage.stat("a")
    monkeypatch.setattr(obstore, "get", Unwell(obstore.get, BUSY, times=5))

    assert storage.read("a") == b"12345"

    assert waited.take(1) > 1


def test_an_object_that_the_store_does_not_know_is_deleted(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwell = Unwell(obstore.delete, FileNotFoundError("a"), times=1)  # as Azure says
    monkeypatch.setattr(obstore, "delete", unwell)

    storage.delete("a")

    assert unwell.calls == 1


def test_a_listing_goes_on_behind_the_last_name_that_came(
    storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:05}" for number in range(2_500)]
    outside.put(dict.fromkeys(names, b""))
    real, offsets = obstore.list, []

    def cut_once(*args: Any, **kwargs: Any) -> Iterator[Any]:
        offsets.append(kwargs["offset"])
        pages = real(*args, **kwargs)
        if len(offsets) == 1:
            yield next(pages)
            raise BUSY
        yield from pages

    monkeypatch.setattr(obstore, "list", cut_once)

    assert sorted(entry.name for entry in storage.list()) == names
    assert offsets == [None, "root/00999"]


def test_a_short_body_is_read_again(
    storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.put({"a": b"12345"})
    real, bodies = object_store.get_whole, iter([b"123", b"12345"])
    monkeypatch.setattr(object_store, "get_whole", lambda *args: real(*args) and next(bodies))

    assert storage.read("a", storage.stat("a")) == b"12345"


def test_a_body_that_stays_short_is_told(
    storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.put({"a": b"12345"})
    monkeypatch.setattr(object_store, "get_whole", lambda *args: b"123")
    monkeypatch.setattr(
        object_store, "retry", lambda *args, **given: retries.retry(*args, **given, deadline_s=0.01)
    )

    with pytest.raises(RuntimeError, match=r"^E-IO-RETRIES .*Error: 3 bytes came, 5 were listed"):
        storage.read("a")


def test_an_object_without_an_etag_has_an_empty_pin(
    storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.put({"a": b"12345"})
    head = obstore.head
    monkeypatch.setattr(obstore, "head", lambda *args: {**head(*args), "e_tag": None})

    assert storage.stat("a") == Entry("a", 5, "")


def test_an_object_is_pinned_by_its_etag(storage: Storage, outside: Outside) -> None:
    outside.put({"a": b"12345"})
    (entry,) = storage.list()
    assert entry == Entry("a", 5, '"0"')
