"""Any filesystem of Beam's: globs in names, and errors as its clients report them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystem import BeamIOError, FileMetadata

from tests.stores import FAULTS, DiskFiles, DiskFileSystem, Store, opened
from transforms.earlier import list_days
from transforms.storage import Entry, Storage, open_storage


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    FAULTS.clear()
    with opened("beam", tmp_path) as made:
        yield made
    left = {operation: errors for operation, errors in FAULTS.items() if errors}
    FAULTS.clear()
    assert left == {}, "an error was asked for and never met"


@pytest.fixture
def storage(store: Store) -> Storage:
    return store.storage


@pytest.fixture
def files(store: Store) -> DiskFiles:
    return store.files


@pytest.mark.parametrize("uri", ["nosuch://b/c", "hdfs://b/c"])  # Beam knows hdfs, without client
def test_a_scheme_that_nothing_provides_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=rf"^no filesystem for '{uri}' \(.*\): install what"):
        open_storage(uri)


@pytest.mark.parametrize("root", ["testfs:///data/*", "testfs:///a?", "testfs:///a[1]"])
def test_a_root_that_beam_would_take_for_a_glob_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match=r"^a path on testfs must not hold \* \? or \[, got 'test"):
        open_storage(root)


@pytest.mark.parametrize("name", ["a*", "a?", "a[1]"])
def test_a_name_that_beam_would_take_for_a_glob_is_not_deleted(
    storage: Storage, files: DiskFiles, name: str
) -> None:
    for each in (name, "a1", "ab"):
        files.put(each, b"")

    with pytest.raises(ValueError, match=r"^a name to delete must not hold \* \? or \[, got 'a"):
        storage.delete(name)

    assert sorted(files.all()) == sorted([name, "a1", "ab"])


def read_a(storage: Storage) -> object:
    return [storage.read(entry.name, entry) for entry in storage.list()]


def create_b(storage: Storage) -> object:
    return storage.create("b", b"1")


def delete_a(storage: Storage) -> object:
    return storage.delete("a")


Act = Callable[[Storage], object]
SITES: dict[str, tuple[Act, object]] = {
    "list": (read_a, [b"12345"]),
    "open": (read_a, [b"12345"]),
    "exists": (read_a, [b"12345"]),
    "create": (create_b, True),
    "rename": (create_b, True),
    "delete": (delete_a, None),
}
WRAPPED = BeamIOError("failed", {"b": OSError("503"), "a": PermissionError("403")})
PERMANENT = {
    "permission": (PermissionError("403"), r"E-IO-AUTH testfs://.*: 403; give this user perm"),
    "wrapped": (WRAPPED, r"E-IO-AUTH testfs://.*: 403; give this user perm"),
    "twice wrapped": (BeamIOError("again", {"c": WRAPPED}), r"E-IO-AUTH testfs://.*: 403; give"),
    "no project": (ValueError("no project"), r"E-ARG testfs://.*: no project; install and set up"),
    "no client": (ImportError("no boto3"), r"E-ARG testfs://.*: no boto3; install and set up"),
}


@pytest.mark.parametrize(("operation", "site"), SITES.items(), ids=SITES)
def test_a_transient_error_is_retried(
    operation: str, site: tuple[Act, object], storage: Storage, files: DiskFiles
) -> None:
    act, result = site
    files.put("a", b"12345")
    FAULTS[operation] = [BeamIOError("503", {"a": OSError("503")}), ConnectionResetError("reset")]

    assert act(storage) == result


@pytest.mark.parametrize(("error", "line"), PERMANENT.values(), ids=PERMANENT)
@pytest.mark.parametrize(("operation", "site"), SITES.items(), ids=SITES)
def test_a_permanent_error_ends_the_run_at_once(
    operation: str,
    site: tuple[Act, object],
    error: Exception,
    line: str,
    storage: Storage,
    files: DiskFiles,
) -> None:
    files.put("a", b"12345")
    FAULTS[operation] = [error]

    with pytest.raises(RuntimeError, match=f"^{line}"):
        site[0](storage)


def test_a_lost_reply_looks_like_a_name_that_is_taken(storage: Storage, files: DiskFiles) -> None:
    FAULTS["rename's reply"] = [BeamIOError("reset")]

    assert storage.create("a", b"12345") is False
    assert files.all() == {"a": b"12345"}


def test_a_store_that_reports_no_times_has_empty_pins(
    storage: Storage, files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put("a", b"1")
    timeless = FileMetadata(f"{storage.root}/a", 1)
    monkeypatch.setattr(DiskFileSystem, "_list", lambda self, _: iter([timeless]))
    monkeypatch.setattr(DiskFileSystem, "metadata", lambda self, _: timeless)

    assert list(storage.list()) == [Entry("a", 1, "")]
    assert storage.read("a", storage.stat("a")) == b"1"


def test_a_store_without_folders_makes_none(
    storage: Storage, files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DiskFileSystem, path: str) -> None:
        raise NotImplementedError("a flat store")

    (files.folder / "_spool").mkdir()
    monkeypatch.setattr(DiskFileSystem, "mkdirs", refuse)

    assert storage.create("a", b"1") is True
    assert files.all() == {"a": b"1"}


def test_a_store_may_have_no_error_of_its_own_for_what_is_gone(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DiskFileSystem, path: str, *_: Any, **__: Any) -> None:
        raise BeamIOError("404")

    monkeypatch.setattr(DiskFileSystem, "open", refuse)

    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: not there; run again when"):
        storage.read("a")


def test_days_are_not_searched_where_folders_are_not_listed(tmp_path: Path) -> None:
    """Finding none would mean to write everything again."""
    pattern = f"testfs://{tmp_path}/coco-{{date}}"

    with pytest.raises(RuntimeError, match=r"^E-ARG .*: folders cannot be listed there, .*--since"):
        list_days(pattern)
