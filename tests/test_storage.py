"""Behaviour that all storages share, tested on every kind of store."""

import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from beam_tfrec.transforms.storage import Entry, Storage
from tests.stores import LARGE, LOCAL, STORES, Store, opened

ODD_NAMES = [
    "two words.jpg",
    "a[1].jpg",  # a glob that does not match itself
    "star*.jpg",
    "what?.jpg",
    "100%25.jpg",  # no URL quoting
    "number#1.jpg",
    "caf\u00e9.jpg",
    "back\\slash.jpg",
    "deep/er/still.jpg",
]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as made:
        yield made
    assert list((tmp_path / "spools").iterdir()) == [], "a spool is left"
    assert list((tmp_path / "root").glob("_spool-*")) == [], "a named spool is left"


def listed(storage: Storage, name: str = "a") -> Entry:
    (entry,) = (entry for entry in storage.list() if entry.name == name)
    return entry


def test_lists_files_with_sizes_and_folders(store: Store) -> None:
    for name, size in {"a": 1, "b/c": 2, "b/d/e": 0, "bc": 4, ".hidden": 3, "f g/h/i": 4}.items():
        store.files.put(name, bytes(size))

    def found(prefix: str = "", *, recursive: bool = True, kind: str = "file") -> dict[str, int]:
        entries = store.storage.list(prefix, recursive=recursive)
        return {entry.name: entry.size_bytes for entry in entries if entry.kind == kind}

    assert found() == {"a": 1, "b/c": 2, "b/d/e": 0, "bc": 4, ".hidden": 3, "f g/h/i": 4}
    assert found("b/") == {"b/c": 2, "b/d/e": 0}
    assert found("b/", recursive=False) == {"b/c": 2}
    assert found(recursive=False) == {"a": 1, "bc": 4, ".hidden": 3}
    assert found("nowhere/") == {}
    if store.storage.lists_folders:
        assert found(recursive=False, kind="directory") == {"b": 0, "f g": 0}
        assert found("b/", recursive=False, kind="directory") == {"b/d": 0}


def test_takes_names_literally(store: Store) -> None:
    for other in ("a1.jpg", "starry.jpg"):  # two odd names would match these as globs
        store.files.put(other, b"1")
    for name in ODD_NAMES:
        assert store.storage.create(name, b"literal") is True
        assert store.files.all()[name] == b"literal"
        entry = store.storage.stat(name)
        assert entry == listed(store.storage, name)
        assert (entry.name, entry.size_bytes) == (name, 7)
        assert store.storage.read(name, entry) == b"literal"
        assert store.storage.read(name, entry, (1, 3)) == b"it"
    assert store.storage.stat("b") is None
    assert store.storage.stat("a1.jpg/c") is None


@pytest.mark.parametrize("data", [b"", b"1", LARGE, gzip.compress(b"packed")], ids=len)
@pytest.mark.parametrize("name", ["a", "a.json.gz"])
def test_reads_the_bytes_as_they_are(store: Store, name: str, data: bytes) -> None:
    store.files.put(name, data)
    assert store.storage.read(name) == data
    assert store.storage.read(name, store.storage.stat(name)) == data


def test_reads_a_span(store: Store) -> None:
    store.files.put("a", b"0123456789")
    entry = msgspec.structs.replace(store.storage.stat("a"), crc32c=7)  # of a staged image
    for span in [(0, 10), (0, 1), (9, 10), (3, 7), (4, 4), (10, 10)]:
        expected = b"0123456789"[slice(*span)]
        assert store.storage.read("a", entry, span) == expected
        assert store.storage.read("a", span=span) == expected
    for pinned in (entry, None):
        what = "10 bytes, those from 3 to 11 were asked for"
        with pytest.raises(RuntimeError, match=rf"^E-SRC-CHANGED \S*/a: {what}"):
            store.storage.read("a", pinned, (3, 11))


CHANGES: dict[str, Callable[[Store], None]] = {
    "grew": lambda store: store.files.put("a", b"123456"),
    "shrank": lambda store: store.files.put("a", b"1234"),
    "touched": lambda store: store.files.put("a", b"12345"),
    "gone": lambda store: store.files.remove("a"),
}


@pytest.mark.parametrize("span", [None, (1, 3)])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_refuses_a_file_that_changed_since_its_listing(
    store: Store, change: Callable[[Store], None], span: tuple[int, int] | None
) -> None:
    store.files.put("a", b"12345")
    entry = listed(store.storage)
    change(store)
    remedy = "run again when the source no longer changes$"
    with pytest.raises(RuntimeError, match=rf"^E-SRC-CHANGED \S*/a: .*; {remedy}"):
        store.storage.read("a", entry, span)


def test_names_a_missing_file(store: Store) -> None:
    for act in (store.storage.read, store.storage.crc32c):
        with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: not there; run again"):
            act("a")


def test_computes_the_crc32c(store: Store) -> None:
    store.files.put("a", b"123456789")
    store.files.put("large", bytes(5_000_000))
    assert store.storage.crc32c("a") == 0xE3069283  # the check value of RFC 3720
    assert store.storage.crc32c("large") == 0x1C92FE1C


@pytest.mark.parametrize("data", [b"", b"12345", LARGE], ids=len)
def test_creates_a_file_once(store: Store, data: bytes) -> None:
    assert store.storage.create("new/folder/a", data) is True
    assert store.storage.create("new/folder/a", b"other") is False
    assert store.files.all() == {"new/folder/a": data}


@pytest.mark.parametrize("size", [1, len(LARGE)])
def test_leaves_a_taken_name_as_it_is(store: Store, size: int) -> None:
    store.files.put("a.tfrec", b"of another")
    pending = store.storage.new_file()
    pending.write([bytes(size)])
    assert pending.publish("a.tfrec") is False
    pending.close()
    assert store.files.all() == {"a.tfrec": b"of another"}


def test_shows_a_spool_only_when_it_is_whole(store: Store) -> None:
    lost = store.storage.new_file()
    lost.write([b"never published"])
    lost.close()
    lost.close()  # harmless
    pending = store.storage.new_file()
    for part in range(100):
        pending.write([bytes([part]) * 1000, b"|"])
        assert store.files.all() == {}
    pending.write([b"%d " % part for part in range(3000)])  # too many for one call of writev
    assert pending.publish("a.tfrec") is True
    expected = [bytes([part]) * 1000 + b"|" for part in range(100)]
    expected += [b"%d " % part for part in range(3000)]
    assert store.files.all() == {"a.tfrec": b"".join(expected)}  # before it is closed
    pending.close()


def test_deletes_a_folder_with_all_its_files(store: Store) -> None:
    for name in ("d/e", "d/f/g", "dd/h"):
        store.files.put(name, b"1")
    for _ in range(2):
        store.storage.delete_folder("d/")
    assert store.files.all() == {"dd/h": b"1"}


def test_deletes_files_that_exist_and_a_probe_its_own(store: Store) -> None:
    store.files.put("a/b", b"1")
    store.files.put("a/c", b"2")
    for name in ("a/b", "a/b", "x/y"):
        store.storage.delete(name)
    store.storage.probe()
    store.storage.require_folder()
    assert store.files.all() == {"a/c": b"2"}


# Beam's filesystems have no create-only rename, and fake-gcs-server checks before it locks.
@pytest.mark.parametrize("store", [*LOCAL, "gcs"], indirect=True)
def test_of_many_creators_one_succeeds(store: Store) -> None:
    together = threading.Barrier(8)

    def create(number: int) -> bool:
        together.wait()
        return store.storage.create("a.json", b"%d" % number)

    with ThreadPoolExecutor(8) as creators:
        made = list(creators.map(create, range(8)))
    assert sorted(made) == [False] * 7 + [True]
    assert store.files.all() == {"a.json": b"%d" % made.index(True)}
