"""Google Cloud Storage: faults, permissions, credentials, and the requests that are made."""

import contextlib
import functools
import gzip
import json
import math
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import google.auth
import google_crc32c
import pytest
import requests
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from obstore import exceptions as obstore_errors

from beam_tfrec.transforms.storage import Access, Entry, Storage, gcs, open_storage, retries
from tests.children import outcome_of
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.stores import LARGE, Store, opened

SMALL = b"1234567890"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened("gcs", tmp_path) as made:
        yield made
        assert made.stand_in.faults_left() == [], "an injected fault never occurred"


@pytest.fixture
def stand_in(store: Store) -> GcsStandIn:
    return store.stand_in


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gcs.ONE_TRY, "timeout", (1, 0.3))
    monkeypatch.setattr(gcs, "READER_TIMEOUTS", {"read_timeout": "300ms", "timeout": "1s"})


def names_in(storage: Storage) -> list[str]:
    return sorted(entry.name for entry in storage.list())


# --- every kind of request, with every kind of fault ---


def read_pinned(storage: Storage) -> bytes:
    (entry,) = (entry for entry in storage.list() if entry.name == "a")
    return storage.read("a", entry)


def create(data: bytes) -> Callable[[Storage], int]:
    def act(storage: Storage) -> int:
        # False if an earlier try made it and its reply was lost.
        assert storage.create("new", data) in (True, False)
        return storage.crc32c("new")

    return act


def delete_a(storage: Storage) -> list[str]:
    storage.delete("a")
    return names_in(storage)


Act = Callable[[Storage], object]
SITES: dict[str, tuple[Kind, Act, object]] = {
    "list": (Kind.LIST, names_in, ["a"]),
    "crc32c": (Kind.STAT, lambda storage: storage.crc32c("a"), 0xF3DBD4FE),
    "read": (Kind.READ, read_pinned, SMALL),
    "create": (Kind.UPLOAD, create(SMALL), 0xF3DBD4FE),
    "create a large object": (Kind.UPLOAD, create(LARGE), google_crc32c.value(LARGE)),
    "send a part of a large object": (Kind.UPLOAD_CHUNK, create(LARGE), google_crc32c.value(LARGE)),
    "delete": (Kind.DELETE, delete_a, []),
    "probe": (Kind.LIST, lambda storage: storage.probe(), None),
}
TRANSIENT = {
    "408": Fault(What.STATUS, status=408),
    "429": Fault(What.STATUS, status=429),
    "503 twice": Fault(What.STATUS, status=503, times=2),
    "reset": Fault(What.RESET),
    "lost reply": Fault(What.LOST_REPLY),
    "stall": Fault(What.STALL),
}
at_every_site = pytest.mark.parametrize(("kind", "act", "result"), SITES.values(), ids=SITES)


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("fault", TRANSIENT.values(), ids=TRANSIENT)
@at_every_site
def test_a_transient_error_is_retried(
    kind: Kind, act: Act, result: object, fault: Fault, store: Store, stand_in: GcsStandIn
) -> None:
    store.files.put("a", SMALL)
    stand_in.inject(replace(fault, kind=kind))
    assert act(store.storage) == result


DENIED = r"E-IO-AUTH gs://b/root\S*: .*; give "
PERMANENT = {400: r"E-IO-RETRIES gs://b/root\S*: .*; check ", 401: DENIED, 403: DENIED}


@pytest.mark.parametrize(("status", "line"), PERMANENT.items())
@at_every_site
def test_a_permanent_error_ends_the_run_at_once(
    kind: Kind, act: Act, result: object, status: int, line: str, store: Store, stand_in: GcsStandIn
) -> None:
    store.files.put("a", SMALL)
    stand_in.inject(Fault(What.STATUS, kind, status=status))
    with pytest.raises(RuntimeError, match=f"^{line}"):
        act(store.storage)
    assert stand_in.count(kind) == 1


# --- bytes that change on their way ---


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(
    "what", [What.SHORT_BODY, What.TRUNCATED_BODY, What.FLIPPED_BIT, What.STALLED_BODY]
)
@pytest.mark.parametrize("name", ["a", "a//b"])  # obstore cannot read the second one
def test_a_read_of_damaged_bytes_is_repeated(
    what: What, name: str, store: Store, stand_in: GcsStandIn
) -> None:
    store.files.put(name, LARGE)
    stand_in.inject(Fault(what, Kind.READ))
    assert store.storage.read(name, store.storage.stat(name)) == LARGE
    assert stand_in.count(Kind.READ) == 2


@pytest.mark.parametrize("what", [What.SHORT_BODY, What.TRUNCATED_BODY])
def test_a_listing_that_is_cut_is_repeated(what: What, store: Store, stand_in: GcsStandIn) -> None:
    stand_in.put_all("b", [f"root/{number:05}" for number in range(1500)])
    stand_in.inject(Fault(what, Kind.LIST, after=1))
    assert len(names_in(store.storage)) == 1500
    assert stand_in.count(Kind.LIST) == 4


@pytest.mark.parametrize(("kind", "data"), [(Kind.UPLOAD, SMALL), (Kind.UPLOAD_CHUNK, LARGE)])
def test_an_upload_of_damaged_bytes_is_refused_and_repeated(
    kind: Kind, data: bytes, store: Store, stand_in: GcsStandIn
) -> None:
    stand_in.inject(Fault(What.FLIPPED_UPLOAD, kind))
    assert store.storage.create("new", data) is True
    assert store.files.all() == {"new": data}
    assert stand_in.count(Kind.UPLOAD) == 2


# --- uploads ---


def test_a_lost_reply_looks_like_a_name_that_is_taken(store: Store, stand_in: GcsStandIn) -> None:
    stand_in.inject(Fault(What.LOST_REPLY, Kind.UPLOAD))
    assert store.storage.create("new", SMALL) is False
    assert store.files.all() == {"new": SMALL}
    assert stand_in.count(Kind.UPLOAD) == 1  # the bytes are not sent again


def test_a_name_taken_during_an_upload_is_kept(store: Store, stand_in: GcsStandIn) -> None:
    take = functools.partial(store.files.put, "large", b"of another")
    stand_in.inject(Fault(What.NOTHING, Kind.UPLOAD, strike=take))
    assert store.storage.create("large", LARGE) is False
    assert store.files.all() == {"large": b"of another"}


def upload_in_little_memory(emulator: str) -> int:
    """Run in a child: upload 60 MB, and return by how many bytes the memory grew."""
    os.environ["STORAGE_EMULATOR_HOST"] = emulator
    pending = open_storage("gs://b/root").new_file()
    for _ in range(60):
        pending.write([bytes(1_000_000)])
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pending.publish("large")
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib)


def test_a_large_upload_is_never_held_in_memory(stand_in: GcsStandIn) -> None:
    assert outcome_of(upload_in_little_memory, stand_in.url) < 30_000_000


def test_a_full_spool_disk_is_named(store: Store, tmp_path: Path) -> None:
    with contextlib.closing(store.storage.new_file()) as pending:
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, pending._file.fileno())
        os.close(full)
        full_disk = "No space left on device, .* are free; give a --spool_dir"
        line = f"^E-IO-NOSPACE {tmp_path}/spools: {full_disk}"
        with pytest.raises(RuntimeError, match=line):
            pending.write([SMALL])


# --- permissions, credentials and limits ---


def test_no_permission_to_delete_is_needed(store: Store, stand_in: GcsStandIn) -> None:
    stand_in.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")
    store.storage.probe()
    assert store.storage.create("a", LARGE) is True
    assert store.storage.create("a", LARGE) is False
    assert store.storage.read("a", store.storage.stat("a")) == LARGE


@pytest.mark.usefixtures("stand_in")
def test_a_missing_bucket_is_reported() -> None:
    storage = open_storage("gs://nowhere/x")
    for act in (storage.require_folder, storage.probe, lambda: storage.create("a", b"1")):
        with pytest.raises(RuntimeError, match=r"^E-ARG gs://nowhere/x.*: .*; give a bucket"):
            act()
    with pytest.raises(ValueError, match=r"^a gs:// path must name a bucket, got 'gs://'"):
        open_storage("gs://")


@pytest.mark.usefixtures("new_clients")
def test_missing_credentials_are_reported_within_seconds() -> None:
    started_s = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^E-IO-AUTH gs://b/root: .*credentials"):
        open_storage("gs://b/root").probe()
    assert time.monotonic() - started_s < 5


@pytest.fixture
def new_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Clients are created again, without credentials."""
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "CLOUDSDK_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    made = (gcs.credentials, gcs.client, gcs.reader)
    for cached in made:
        cached.cache_clear()
    yield
    for cached in made:
        cached.cache_clear()


@pytest.mark.usefixtures("new_clients")
def test_all_clients_use_the_account_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    account, asked = AnonymousCredentials(), []

    def find(scopes: list[str]) -> tuple[AnonymousCredentials, None]:
        asked.extend(scopes)
        return account, None

    monkeypatch.setattr(google.auth, "default", find)
    gcs.client(Access(), "")
    assert gcs.reader("b", Access(), "").credential_provider.credentials is account
    assert asked == ["https://www.googleapis.com/auth/devstorage.read_write"]
    anonymous = gcs.reader("b", Access(anonymous=True), "")
    assert anonymous.config["skip_signature"] == "true"


@pytest.mark.usefixtures("new_clients")
def test_credentials_that_are_not_sent_may_be_of_any_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those of CI services, which obstore cannot read."""
    elsewhere = {"type": "external_account", "credential_source": {"file": "/nowhere"}}
    (tmp_path / "credentials.json").write_text(json.dumps(elsewhere))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "credentials.json"))
    with GcsStandIn() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        running.put("b", "a", b"1")
        storage = open_storage("gs://b", Access(anonymous=True))
        assert storage.read("a", storage.stat("a")) == b"1"
        assert not any("authorization" in request.headers for request in running.requests)


def test_errors_that_no_fault_here_causes() -> None:
    full = obstore_errors.GenericError("dns error: Too many open files (os error 24)")
    assert [*map(gcs.is_transient, (auth.TransportError(), full))] == [True, False]


def test_too_many_open_files_are_reported_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise requests.ConnectionError("Max retries exceeded: [Errno 24] Too many open files")

    monkeypatch.setattr(requests.Session, "request", refuse)
    with pytest.raises(RuntimeError, match=r"^E-IO-LIMIT \S*: .*Too many open .*; raise "):
        store.storage.stat("a")


# --- requests ---


def test_a_listing_has_generations_and_checksums(store: Store, stand_in: GcsStandIn) -> None:
    generation = stand_in.put("b", "root/a", b"123456789")
    folder = stand_in.put("b", "root/folder/", b"")  # as the console makes a folder
    stand_in.put("b", "rooted", b"")
    assert sorted(store.storage.list(), key=lambda entry: entry.name) == [
        Entry("a", 9, str(generation), 0xE3069283, "file"),
        Entry("folder/", 0, str(folder), 0, "directory"),
    ]


@pytest.mark.parametrize("name", ["a", "a//b.jpg", "./a.jpg", "a/../b.jpg", "a\tb.jpg", "/a.jpg"])
def test_objects_are_read_as_they_are_stored(name: str, store: Store, stand_in: GcsStandIn) -> None:
    """Bytes are not unpacked, and names are not normalized like those on a disk."""
    stand_in.put_all("b", ["root/a.jpg", "root/b.jpg", "root/a/b.jpg"], b"other")
    packed = gzip.compress(b"instances", mtime=0)
    stand_in.put("b", f"root/{name}", packed, contentEncoding="gzip")
    entry = store.storage.stat(name)
    assert store.storage.read(name, entry) == packed
    assert store.storage.read(name, entry, (1, 3)) == packed[1:3]
    store.files.put(name, packed)
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*generation [0-9]+ is gone"):
        store.storage.read(name, entry)


def test_reads_slow_down_when_a_store_throttles(store: Store, stand_in: GcsStandIn) -> None:
    store.files.put("a", b"1")
    for _ in range(30):
        store.storage.stat("a")
    stand_in.inject(Fault(What.STATUS, Kind.READ, status=503))
    assert store.storage.read("a") == b"1"
    assert retries.rate_of("b", 0, gcs.is_throttling).per_s() < math.inf
