"""Any filesystem of Beam's: globs in names, and errors as its clients report them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from apache_beam.io.filesystem import BeamIOError, FileMetadata

from beam_tfrec.transforms.earlier import list_days
from beam_tfrec.transforms.storage import Entry, Storage, open_storage
from tests.stores import FAULTS, DiskFileSystem, Store, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened("beam", tmp_path) as made:
        yield made
    left = [operation for operation, errors in FAULTS.items() if errors]
    FAULTS.clear()
    assert left == [], "an injected error was never raised"


@pytest.mark.parametrize("uri", ["nosuch://b/c", "hdfs://b/c"])  # Beam's hdfs lacks its client
def test_an_unknown_scheme_is_refused(uri: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^no filesystem for '{uri}' \(.*\): install its package"
    ):
        open_storage(uri)


@pytest.mark.parametrize("root", ["testfs:///data/*", "testfs:///a?", "testfs:///a[1]"])
def test_a_root_that_beam_would_take_for_a_glob_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match=r"^a path here must not hold \* \? or \[, got 'test"):
        open_storage(root)


def test_a_name_that_beam_would_take_for_a_glob_is_not_deleted(store: Store) -> None:
    names = ["a*", "a1", "a?", "a[1]"]
    for each in names:
        store.files.put(each, b"")
    for name in {*names} - {"a1"}:
        what = r"^a name to delete must not hold \* \? or \[, got 'a"
        with pytest.raises(ValueError, match=what):
            store.storage.delete(name)
    assert sorted(store.files.all()) == names


def read_a(storage: Storage) -> object:
    return [storage.read(entry.name, entry) for entry in storage.list()]


def create_b(storage: Storage) -> object:
    return storage.create("b", b"1")


Act = Callable[[Storage], object]
SITES: list[tuple[str, Act, object]] = [
    ("list", read_a, [b"12345"]),
    ("open", read_a, [b"12345"]),
    ("exists", read_a, [b"12345"]),
    ("create", create_b, True),
    ("rename", create_b, True),
    ("delete", lambda storage: storage.delete("a"), None),
]
DENIED, CLIENT = "E-IO-AUTH testfs://.*: 403; give this user perm", "install and set up"
WRAPPED = BeamIOError("failed", {"b": OSError("503"), "a": PermissionError("403")})
PERMANENT = {
    "permission": (PermissionError("403"), DENIED),
    "wrapped": (WRAPPED, DENIED),
    "twice wrapped": (BeamIOError("again", {"c": WRAPPED}), DENIED),
    "no project": (ValueError("no project"), f"E-ARG testfs://.*: no project; {CLIENT}"),
    "no client": (ImportError("no boto3"), f"E-ARG testfs://.*: no boto3; {CLIENT}"),
}
at_every_site = pytest.mark.parametrize(("operation", "act", "result"), SITES)


@at_every_site
def test_a_transient_error_is_retried(
    operation: str, act: Act, result: object, store: Store
) -> None:
    store.files.put("a", b"12345")
    FAULTS[operation] = [BeamIOError("503", {"a": OSError("503")}), ConnectionResetError("reset")]
    assert act(store.storage) == result


@pytest.mark.parametrize(("error", "line"), PERMANENT.values(), ids=PERMANENT)
@at_every_site
def test_a_permanent_error_ends_the_run_at_once(
    operation: str, act: Act, result: object, error: Exception, line: str, store: Store
) -> None:
    store.files.put("a", b"12345")
    FAULTS[operation] = [error]
    with pytest.raises(RuntimeError, match=f"^{line}"):
        act(store.storage)


def test_a_lost_reply_looks_like_a_name_that_is_taken(store: Store) -> None:
    FAULTS["rename's reply"] = [BeamIOError("reset")]
    assert store.storage.create("a", b"12345") is False
    assert store.files.all() == {"a": b"12345"}


def test_a_store_that_reports_no_times_has_empty_pins(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.files.put("a", b"1")
    timeless = FileMetadata(store.storage.uri("a"), 1)
    monkeypatch.setattr(DiskFileSystem, "_list", lambda self, _: iter([timeless]))
    monkeypatch.setattr(DiskFileSystem, "metadata", lambda self, _: timeless)
    assert list(store.storage.list()) == [Entry("a", 1, "")]
    assert store.storage.read("a", store.storage.stat("a")) == b"1"


def test_a_store_without_folders_makes_none(store: Store) -> None:
    FAULTS["mkdirs"] = [NotImplementedError("a flat store")]
    assert store.storage.create("a", b"1") is True
    assert store.files.all() == {"a": b"1"}


def test_a_store_may_report_a_missing_file_by_a_general_error(store: Store) -> None:
    FAULTS["open"] = [BeamIOError("404")]
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: not there; run again when"):
        store.storage.read("a")


def test_days_are_not_searched_where_folders_are_not_listed(tmp_path: Path) -> None:
    """Finding none would mean writing everything again."""
    pattern = f"testfs://{tmp_path}/coco-{{date}}"
    with pytest.raises(RuntimeError, match=r"^E-ARG .*: {date} needs a list of folders, .*--since"):
        list_days(pattern)
