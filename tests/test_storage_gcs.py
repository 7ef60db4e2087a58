import base64
import gzip
import io
import math
import os
import re
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import requests
from google.auth.credentials import AnonymousCredentials

from tests.call_sites import SPOOL_METHODS, STORAGE_METHODS
from tests.children import limited, outcome_of
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What, store
from tests.storage_contract import Outside, StorageContract, files_in
from transforms import retries
from transforms.storage import (
    Access,
    Entry,
    Storage,
    gcs,
    object_reads,
    open_storage,
)
from transforms.storage.request_rate import RequestRate, WaitedTime

LARGE = bytes(range(256)) * 40_000  # over the 8 MB from which an upload is resumable


class BucketFolder:
    """What a root's objects look like from outside."""

    def __init__(self, stand_in: GcsStandIn) -> None:
        self._gcs = stand_in

    def put(self, files: dict[str, bytes], mtime_s: int | None = None) -> None:
        for name, data in files.items():
            self._gcs.put("b", f"root/{name}", data)

    def get(self, name: str) -> bytes:
        return self._gcs.get("b", f"root/{name}")

    def names(self) -> list[str]:
        return sorted(name.removeprefix("root/") for name in self._gcs.objects("b"))

    def sizes(self) -> list[int]:
        return [len(data) for data in self._gcs.objects("b").values()]

    def touch(self, name: str) -> None:
        self.put({name: self.get(name)})  # as a rewrite with equal bytes does: a new generation

    def remove(self, name: str) -> None:
        self._gcs.remove("b", f"root/{name}")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    with GcsStandIn() as running:
        running.make_bucket("b")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running
        assert running.faults_left() == [], "a fault was asked for and never met"


@pytest.fixture
def outside(stand_in: GcsStandIn) -> Outside:
    return BucketFolder(stand_in)


@pytest.fixture
def spools(tmp_path: Path) -> Path:
    folder = tmp_path / "spools"
    folder.mkdir()
    return folder


@pytest.fixture
def storage(stand_in: GcsStandIn, spools: Path) -> Storage:
    return open_storage("gs://b/root", Access(spool_dir=str(spools)))


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs, "_TIMEOUT_S", (1, 0.3))
    monkeypatch.setattr(gcs, "TIMEOUTS", {"read_timeout": "300ms", "timeout": "1s"})


class TestContract(StorageContract):
    """Google Cloud Storage keeps the contract; another generation is another object."""

    grew = shrank = touched = gone = "generation [0-9]+ is gone; run again"

    @pytest.fixture
    def outside(self, stand_in: GcsStandIn) -> Outside:
        return BucketFolder(stand_in)

    @pytest.fixture(autouse=True)
    def no_spool_is_left(self, spools: Path) -> Iterator[None]:
        yield
        assert files_in(spools) == []

    def test_creates_large_objects_once(self, storage: Storage, outside: Outside) -> None:
        assert storage.create("large", LARGE) is True
        assert storage.create("large", LARGE[1:]) is False
        assert outside.get("large") == LARGE


# --- every call site, and everything that can happen to it ---


def list_all(storage: Storage) -> list[str]:
    return sorted(entry.name for entry in storage.list())


def read_pinned(storage: Storage) -> bytes:
    (entry,) = (entry for entry in storage.list() if entry.name == "a")
    return storage.read("a", entry)


def create_small(storage: Storage) -> bytes:
    # False: a try whose reply was lost has made it.
    assert storage.create("new", b"12345") in (True, False)
    return storage.read("new")


def create_large(storage: Storage) -> int:
    assert storage.create("new", LARGE) in (True, False)
    return storage.crc32c("new")


def delete_a(storage: Storage) -> list[str]:
    storage.delete("a")
    return list_all(storage)


SITES: dict[str, tuple[Kind, Callable[[Storage], object], object]] = {
    "list": (Kind.LIST, list_all, ["a"]),
    "stat": (Kind.STAT, lambda storage: storage.stat("a").size_bytes, 10),  # type: ignore[union-attr]
    "crc32c": (Kind.STAT, lambda storage: storage.crc32c("a"), 0xF3DBD4FE),
    "read": (Kind.READ, read_pinned, b"1234567890"),
    "create": (Kind.UPLOAD, create_small, b"12345"),
    "begin a large upload": (Kind.RESUMABLE_START, create_large, google_crc32c.value(LARGE)),
    "send a large upload": (Kind.RESUMABLE_PUT, create_large, google_crc32c.value(LARGE)),
    "delete": (Kind.DELETE, delete_a, []),
    "require_folder": (Kind.LIST, lambda storage: storage.require_folder(), None),
    "probe": (Kind.LIST, lambda storage: storage.probe(), None),
}
OUTCOMES: dict[str, Callable[[Kind], Fault]] = {
    "408": lambda kind: Fault(What.STATUS, kind, status=408),
    "429": lambda kind: Fault(What.STATUS, kind, status=429),
    "500": lambda kind: Fault(What.STATUS, kind, status=500),
    "503 twice": lambda kind: Fault(What.STATUS, kind, status=503, times=2),
    "reset": lambda kind: Fault(What.RESET, kind),
    "lost reply": lambda kind: Fault(What.LOST_REPLY, kind),
    "stall": lambda kind: Fault(What.STALL, kind),
}


def test_every_method_of_a_storage_is_among_the_sites() -> None:
    """Spools are files of the worker's until they are published, by a large upload."""
    methods = {name.split()[0] for name in SITES} - {"begin", "send"} | {"spool"}
    assert methods == STORAGE_METHODS
    assert {"write", "publish", "close"} == SPOOL_METHODS


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize(("kind", "act", "result"), SITES.values(), ids=SITES)
def test_what_passes_is_tried_again(
    kind: Kind,
    act: Callable[[Storage], object],
    result: object,
    outcome: Callable[[Kind], Fault],
    stand_in: GcsStandIn,
    storage: Storage,
    outside: Outside,
) -> None:
    outside.put({"a": b"1234567890"})
    stand_in.inject(outcome(kind))

    assert act(storage) == result


@pytest.mark.parametrize(
    "what", [What.SHORT_BODY, What.TRUNCATED_BODY, What.FLIPPED_BIT, What.STALLED_BODY]
)
@pytest.mark.usefixtures("short_timeouts")
def test_bytes_that_are_not_the_listed_ones_are_read_again(
    what: What, stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    outside.put({"a": LARGE})
    stand_in.inject(Fault(what, Kind.READ))

    assert storage.read("a", storage.stat("a")) == LARGE
    assert stand_in.count(Kind.READ) == 2


@pytest.mark.parametrize("what", [What.SHORT_BODY, What.TRUNCATED_BODY])
def test_a_listing_that_is_cut_is_asked_for_again(
    what: What, stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    outside.put({f"{number:05}": b"" for number in range(1500)})
    stand_in.inject(Fault(what, Kind.LIST, after=1))

    assert len(list_all(storage)) == 1500
    assert stand_in.count(Kind.LIST) == 3


def test_a_lost_upload_session_starts_over(
    stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    stand_in.inject(Fault(What.GONE))

    assert storage.create("large", LARGE) is True
    assert outside.get("large") == LARGE


def test_what_does_not_pass_ends_the_run(
    stand_in: GcsStandIn, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(retries, "_LONGEST_WAIT_S", 0.002)
    monkeypatch.setattr(
        gcs, "retry", lambda *args, **given: retries.retry(*args, **given, deadline_s=0.2)
    )
    stand_in.inject(Fault(What.STATUS, Kind.LIST, status=503, times=None))

    with pytest.raises(RuntimeError, match=r"^E-IO-RETRIES gs://b/root: still failing after .*503"):
        list_all(storage)


def test_bytes_that_are_never_the_listed_ones_are_told_with_both_checksums(
    stand_in: GcsStandIn, storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gcs, "retry", lambda *args, **given: retries.retry(*args, **given, deadline_s=0.05)
    )
    outside.put({"a": b"1234567890"})
    stand_in.inject(Fault(What.FLIPPED_BIT, Kind.READ, times=None))

    with pytest.raises(RuntimeError, match=r"^E-IO-RETRIES gs://b/root/a: .*") as told:
        storage.read("a")
    assert re.search(
        r": 10 bytes of CRC-32C [0-9a-f]{8} came, 10 of f3dbd4fe were", str(told.value)
    )


@pytest.mark.parametrize(("kind", "act", "_"), SITES.values(), ids=SITES)
def test_what_the_store_refuses_is_told_at_once(
    kind: Kind,
    act: Callable[[Storage], object],
    _: object,
    stand_in: GcsStandIn,
    storage: Storage,
    outside: Outside,
) -> None:
    outside.put({"a": b"1234567890"})
    stand_in.inject(Fault(What.STATUS, kind, status=400))

    with pytest.raises(
        RuntimeError, match=r"^E-IO-RETRIES gs://b/root\S*: .*400.*; look at the sto"
    ):
        act(storage)
    assert stand_in.count(kind) == 1


# --- permissions and credentials ---


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(("kind", "act", "_"), SITES.values(), ids=SITES)
def test_who_may_not_is_told_at_once(
    kind: Kind,
    act: Callable[[Storage], object],
    _: object,
    status: int,
    stand_in: GcsStandIn,
    storage: Storage,
    outside: Outside,
) -> None:
    outside.put({"a": b"1234567890"})
    stand_in.inject(Fault(What.STATUS, kind, status=status))

    with pytest.raises(RuntimeError, match=r"^E-IO-AUTH gs://b/root\S*: .*; give the account"):
        act(storage)


def test_a_refusal_names_the_missing_permission(stand_in: GcsStandIn, storage: Storage) -> None:
    stand_in.allow("storage.objects.get", "storage.objects.list")

    with pytest.raises(
        RuntimeError, match=r"^E-IO-AUTH gs://b/root/new: .*storage\.objects\.create"
    ):
        storage.create("new", b"1")


def test_nobody_needs_permission_to_delete(stand_in: GcsStandIn, storage: Storage) -> None:
    stand_in.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")

    storage.probe()
    assert storage.create("a", LARGE) is True
    assert storage.create("a", LARGE) is False
    assert storage.read("a", storage.stat("a")) == LARGE
    assert list_all(storage) == ["a"]


def test_a_bucket_that_is_not_there_is_told(stand_in: GcsStandIn) -> None:
    for act in (Storage.require_folder, Storage.probe):
        with pytest.raises(RuntimeError, match=r"^E-ARG gs://nowhere/x: .*; give a bucket"):
            getattr(open_storage("gs://nowhere/x"), act.__name__)()


def test_a_path_without_a_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a gs:// path must name a bucket, got 'gs://'"):
        open_storage("gs://")


def test_no_credentials_are_told_within_seconds(no_credentials: None) -> None:
    started_s = time.monotonic()

    with pytest.raises(RuntimeError, match=r"^E-IO-AUTH gs://b/root: .*credentials"):
        open_storage("gs://b/root", Access(billing_project="none of its clients yet")).probe()
    assert time.monotonic() - started_s < 5


def test_too_many_open_files_are_told_at_once(
    storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise requests.ConnectionError("Max retries exceeded: [Errno 24] Too many open files")

    monkeypatch.setattr(requests.Session, "request", refuse)
    with pytest.raises(RuntimeError, match=r"^E-IO-LIMIT gs://b/root/a: Too many open .*; raise "):
        storage.stat("a")


def test_waits_of_a_store_that_throttles_are_told(
    stand_in: GcsStandIn, storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside.put({"a": b"1"})
    waited = WaitedTime()
    rate = RequestRate(gcs._is_throttling, waited=waited)
    monkeypatch.setattr(storage, "_rate", rate)
    monkeypatch.setattr(rate, "_sleep", lambda seconds: None)
    monkeypatch.setattr(retries, "_FIRST_WAIT_S", 100.0)
    for _ in range(30):
        storage.stat("a")
    stand_in.inject(Fault(What.STATUS, Kind.READ, status=503, times=4))

    assert storage.read("a") == b"1"

    assert waited.take(1) > 1
    assert rate.per_s() < math.inf


# --- what requests carry, and how many there are ---


def test_requests_name_who_pays_and_the_key(stand_in: GcsStandIn, spools: Path) -> None:
    access = Access(billing_project="payer", kms_key="projects/p/key", spool_dir=str(spools))
    storage = open_storage("gs://b/root", access)

    storage.create("a", b"1")
    storage.read("a", storage.stat("a"))
    list_all(storage)

    asked = {request.kind: request for request in stand_in.requests}
    for kind in (Kind.UPLOAD, Kind.STAT, Kind.LIST):
        assert asked[kind].query["userProject"] == "payer"
    assert asked[Kind.READ].headers["x-goog-user-project"] == "payer"
    assert asked[Kind.UPLOAD].query["kmsKeyName"] == "projects/p/key"


def test_nobody_is_named_who_does_not_pay(stand_in: GcsStandIn, storage: Storage) -> None:
    storage.create("a", b"1")
    storage.read("a", storage.stat("a"))
    list_all(storage)
    storage.delete("a")

    told = [(request.query.keys(), request.headers.keys()) for request in stand_in.requests]
    assert not [parts for parts in told if "userProject" in parts[0]]
    assert not [parts for parts in told if "x-goog-user-project" in parts[1]]
    assert not [parts for parts in told if "kmsKeyName" in parts[0]]


def test_uploads_have_the_precondition_that_nothing_is_there(
    stand_in: GcsStandIn, storage: Storage
) -> None:
    storage.create("small", b"1")
    storage.create("large", LARGE)

    for kind in (Kind.UPLOAD, Kind.RESUMABLE_START):
        (request,) = (request for request in stand_in.requests if request.kind is kind)
        assert request.query["ifGenerationMatch"] == "0"


def test_a_large_upload_is_one_request_that_the_store_compares_with_its_checksum(
    stand_in: GcsStandIn, storage: Storage
) -> None:
    storage.create("large", LARGE)

    (sent,) = (each for each in stand_in.requests if each.kind is Kind.RESUMABLE_PUT)
    encoded = base64.b64encode(google_crc32c.value(LARGE).to_bytes(4, "big")).decode()
    assert sent.headers["x-goog-hash"] == f"crc32c={encoded}"
    assert sent.headers["content-range"] == f"bytes 0-{len(LARGE) - 1}/{len(LARGE)}"


@pytest.mark.parametrize("status", [308, 404, 410, 429, 503])
def test_a_large_upload_starts_over_where_its_session_does_not_go_on(
    status: int, stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    stand_in.inject(Fault(What.STATUS, Kind.RESUMABLE_PUT, status=status))

    assert storage.create("large", LARGE) is True
    assert outside.get("large") == LARGE
    assert stand_in.count(Kind.RESUMABLE_START) == 2


def test_a_large_upload_whose_reply_was_lost_finds_its_twin(
    stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    stand_in.inject(Fault(What.LOST_REPLY, Kind.RESUMABLE_PUT))

    assert storage.create("large", LARGE) is False
    assert outside.get("large") == LARGE


def test_a_name_taken_while_a_large_upload_goes_on_is_kept(
    stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    def take() -> None:
        outside.put({"large": b"another's"})

    stand_in.inject(Fault(What.STALL, Kind.RESUMABLE_PUT, seconds=0.0, strike=take))

    assert storage.create("large", LARGE) is False
    assert outside.get("large") == b"another's"


@pytest.mark.parametrize("data", [b"12345", LARGE], ids=["small", "large"])
def test_bytes_changed_on_their_way_are_sent_again(
    data: bytes,
    stand_in: GcsStandIn,
    storage: Storage,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare, flipped = store._check_hash, [1]

    def as_if_a_bit_was_flipped(what: str, provided: str | None, calculated: str) -> None:
        if what == "CRC32C" and flipped:
            calculated = "AAAAAA==" if flipped.pop() else calculated
        compare(what, provided, calculated)

    monkeypatch.setattr(store, "_check_hash", as_if_a_bit_was_flipped)

    assert storage.create("new", data) is True
    assert not flipped
    assert outside.get("new") == data


@pytest.mark.parametrize("data", [b"12345", LARGE], ids=["small", "large"])
def test_a_slow_store_may_take_its_time_to_receive_as_to_answer(
    data: bytes, storage: gcs.GcsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = storage._client()._http
    request, timeouts = session.request, []

    def look(method: str, url: str, data: Any = None, **given: Any) -> Any:
        timeouts.append((len(data), given["timeout"]))
        return request(method, url, data=data, **given)

    monkeypatch.setattr(session, "request", look)
    storage.create("new", data)

    assert max(timeouts)[1] == 60


class Renewed(AnonymousCredentials):
    """Credentials whose token is another after a refusal."""

    times = 0

    def refresh(self, request: Any) -> None:
        self.times += 1


@pytest.mark.parametrize("kind", [Kind.RESUMABLE_START, Kind.RESUMABLE_PUT])
def test_credentials_renewed_during_a_large_upload_send_all_of_it_again(
    kind: Kind, stand_in: GcsStandIn, storage: gcs.GcsStorage, outside: Outside
) -> None:
    credentials = storage._client()._http.credentials = Renewed()
    stand_in.inject(Fault(What.STATUS, kind, status=401))

    assert storage.create("large", LARGE) is True
    assert credentials.times == 1
    assert outside.get("large") == LARGE


class CountingFile(io.BytesIO):
    """A file that knows how much of it was ever asked for at once."""

    most_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        CountingFile.most_bytes = max(CountingFile.most_bytes, len(data))
        return data


def test_a_large_upload_is_never_held_in_memory(
    storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: CountingFile())

    storage.create("large", LARGE)

    assert outside.get("large") == LARGE
    assert 0 < CountingFile.most_bytes <= 1 << 20


def test_one_request_an_image_and_one_a_thousand_names(
    stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    outside.put({f"{number:05}": b"image" for number in range(2500)})

    entries = sorted(storage.list(), key=lambda entry: entry.name)
    assert stand_in.count(Kind.LIST) == 3
    for entry in entries[:50]:
        assert storage.read(entry.name, entry) == b"image"
    assert stand_in.count(Kind.READ) == 50
    assert len(stand_in.requests) == 53


def test_a_listing_asks_for_what_it_needs_alone(stand_in: GcsStandIn, storage: Storage) -> None:
    asked = {
        "prefix": "root/",
        "fields": "items(name,size,generation,crc32c),prefixes,nextPageToken",
        "prettyPrint": "false",
    }
    storage.require_folder()
    list_all(storage)
    assert list(storage.list("x/", recursive=False, bounds=("b", "d"))) == []

    everything, folder = {**asked, "maxResults": "1000"}, {"prefix": "root/x/", "delimiter": "/"}
    within = {"startOffset": "root/b", "endOffset": "root/d"}
    assert [request.query for request in stand_in.requests] == [
        {**asked, "maxResults": "1"},
        everything,
        {**everything, **folder, **within},
    ]


def test_ranges_of_names_are_listed_at_the_same_time(
    stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    names = [f"{number:02}" for number in range(12)]
    outside.put(dict.fromkeys(names, b""))
    stand_in.inject(Fault(What.STALL, Kind.LIST, times=8))

    with ThreadPoolExecutor(1) as lister:
        listed = lister.submit(list, storage.list(bounds=["", *names, ""]))
        wait_for(lambda: stand_in.count(Kind.LIST) >= 8)
        time.sleep(0.1)
        most_at_once = stand_in.count(Kind.LIST)
        stand_in.release()

    assert sorted(entry.name for entry in listed.result()) == names
    assert most_at_once == 8


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def list_and_measure(emulator: str, root: str) -> tuple[int, int]:
    """Return how many names a root has, and by how much the memory grew; for a child."""
    os.environ["STORAGE_EMULATOR_HOST"] = emulator  # a child has that of an earlier moment
    storage = open_storage(root)
    entries = storage.list()
    next(entries)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = 1 + sum(1 for _ in entries)
    return count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib


@pytest.mark.slow
def test_a_million_names_in_one_folder(stand_in: GcsStandIn) -> None:
    stand_in.put_virtual("many", [f"{number:012}.jpg" for number in range(1_000_000)], 100_000)

    count, grown_kib = outcome_of(list_and_measure, stand_in.url, "gs://many", timeout_s=300)

    assert count == 1_000_000
    assert grown_kib < 32 * 1024
    asked = [request.query for request in stand_in.requests if request.kind is Kind.LIST]
    assert len(asked) <= 1.1 * 1000 + 50
    assert len({query.get("startOffset") for query in asked}) > 8  # by several at once


def test_a_listing_knows_sizes_generations_and_checksums(
    stand_in: GcsStandIn, storage: Storage
) -> None:
    generation = stand_in.put("b", "root/a", b"123456789")
    stand_in.put("b", "root/folder/", b"")  # as the console makes a folder
    stand_in.put("b", "rooted", b"")

    assert sorted(storage.list(), key=lambda entry: entry.name) == [
        Entry("a", 9, str(generation), 0xE3069283, "file"),
        Entry("folder/", 0, pin_of(storage, "folder/"), 0, "directory"),
    ]


def pin_of(storage: Storage, name: str) -> str:
    entry = storage.stat(name)
    assert entry is not None
    return entry.pin


@pytest.mark.parametrize("name", ["a//b.jpg", "./a.jpg", "a/../b.jpg", "a\tb.jpg", "/a.jpg"])
def test_names_that_a_disk_would_tidy_are_read_as_they_are(
    name: str, stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    outside.put({name: b"literal", "a.jpg": b"other", "b.jpg": b"other", "a/b.jpg": b"other"})
    entry = storage.stat(name)

    assert storage.read(name, entry) == b"literal"
    outside.touch(name)
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*generation [0-9]+ is gone"):
        storage.read(name, entry)


@pytest.mark.parametrize("name", ["a", "a//b"])
def test_an_object_stored_packed_is_read_as_stored(
    name: str, stand_in: GcsStandIn, storage: Storage
) -> None:
    packed = gzip.compress(b"instances", mtime=0)
    stand_in.put("b", f"root/{name}", packed, contentEncoding="gzip")

    assert storage.read(name, storage.stat(name)) == packed


def test_a_generation_that_goes_while_it_is_read_is_told(
    stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    outside.put({"a": LARGE})
    entry = storage.stat("a")

    def rewrite_at_the_second(name: str) -> bool:
        if stand_in.count(Kind.READ) == 1:
            outside.touch("a")
        return True

    stand_in.inject(Fault(What.SHORT_BODY, Kind.READ, rewrite_at_the_second))
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*generation [0-9]+ is gone"):
        storage.read("a", entry)


def test_a_bucket_that_wants_credentials_says_so_to_the_anonymous(
    stand_in: GcsStandIn, storage: Storage
) -> None:
    stand_in.require_token()

    with pytest.raises(RuntimeError, match=r"^E-IO-AUTH gs://b/root: "):
        list_all(storage)


def test_an_object_larger_than_a_request_is_read_in_several(
    stand_in: GcsStandIn, storage: Storage, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_reads, "_PIECE_BYTES", 4_000_000)
    outside.put({"a": LARGE})

    assert storage.read("a", storage.stat("a")) == LARGE
    assert stand_in.count(Kind.READ) == 3


def test_a_whole_bucket_is_a_root(stand_in: GcsStandIn) -> None:
    stand_in.put("b", "a/b", b"1")
    for uri in ("gs://b", "gs://b/"):
        storage = open_storage(uri)
        assert list_all(storage) == ["a/b"]
        assert (storage.root, storage.read("a/b")) == ("gs://b", b"1")


def test_a_root_loses_nothing_but_slashes_at_its_end(stand_in: GcsStandIn) -> None:
    stand_in.put("b", "X/a", b"1")
    for uri in ("gs://b/X", "gs://b/X//"):
        storage = open_storage(uri)
        assert (storage.root, list_all(storage)) == ("gs://b/X", ["a"])


def test_connections_are_kept_for_as_many_as_upload_at_once(
    stand_in: GcsStandIn, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.inject(Fault(What.STALL, Kind.UPLOAD, times=32))

    with ThreadPoolExecutor(32) as uploads:
        made = uploads.map(lambda number: storage.create(f"{number}", b"1"), range(32))
        wait_for(lambda: stand_in.count(Kind.UPLOAD) == 32)
        stand_in.release()

    assert list(made) == [True] * 32
    assert "Connection pool is full" not in caplog.text


def test_many_read_at_once(stand_in: GcsStandIn, storage: Storage, outside: Outside) -> None:
    outside.put({f"{number:03}": bytes([number]) * 1000 for number in range(200)})
    entries = list(storage.list())
    stand_in.inject(Fault(What.STALL, Kind.READ, times=32))

    with ThreadPoolExecutor(32) as readers:
        data = readers.map(lambda entry: storage.read(entry.name, entry), entries)
        wait_for(lambda: stand_in.count(Kind.READ) == 32)  # one by one: there is no second
        stand_in.release()

    assert list(data) == [bytes([int(entry.name)]) * 1000 for entry in entries]


def test_two_creators_make_one_object(stand_in: GcsStandIn, storage: Storage) -> None:
    both = threading.Barrier(2)

    def create(data: bytes) -> bool:
        both.wait()
        return storage.create("a", data)

    for _ in range(10):
        with ThreadPoolExecutor(2) as creators:
            made = list(creators.map(create, [b"1", b"2"]))
        assert sorted(made) == [False, True]
        assert storage.read("a") == (b"1" if made[0] else b"2")
        storage.delete("a")


def create_beyond_a_limit(spools: str) -> str:
    """Run in a child: create an object larger than a file of its may be."""
    storage = open_storage("gs://b/root", Access(spool_dir=spools))
    with limited(resource.RLIMIT_FSIZE, 65_536):
        try:
            storage.create("a.tfrec", bytes(100_000))
        except RuntimeError as error:
            return str(error)
    raise AssertionError("the limit did nothing")


def test_a_full_disk_of_the_worker_is_one_line(
    stand_in: GcsStandIn, spools: Path, outside: Outside
) -> None:
    assert outcome_of(create_beyond_a_limit, str(spools)).startswith(f"E-IO-NOSPACE {spools}: ")
    assert outside.names() == []


def test_a_body_that_is_cut_short_is_read_again_where_no_checksum_was_listed(
    stand_in: GcsStandIn, storage: Storage, outside: Outside
) -> None:
    outside.put({"a": LARGE})
    listed = storage.stat("a")
    assert listed is not None
    stand_in.inject(Fault(What.TRUNCATED_BODY, Kind.READ))

    assert storage.read("a", Entry(listed.name, listed.size_bytes, listed.pin)) == LARGE
    assert stand_in.count(Kind.READ) == 2
