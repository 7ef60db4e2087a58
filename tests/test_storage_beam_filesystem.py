import functools
import gzip
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import pytest
from apache_beam.io.filesystem import BeamIOError, CompressionTypes, FileMetadata, FileSystem
from apache_beam.io.localfilesystem import LocalFileSystem

from tests.children import limited, outcome_of
from tests.storage_contract import StorageContract, files_in, put
from transforms.earlier_sets import list_days
from transforms.retries import retry
from transforms.storage import Access, Entry, open_storage
from transforms.storage.beam_filesystem import BeamStorage

DISK = LocalFileSystem(None)
FAULTS: dict[str, list[Exception]] = {}
"""Errors that the next calls of an operation raise, by its name."""


class DiskFileSystem(FileSystem):
    """A filesystem of Beam's for `testfs://`: folders on this disk, and errors on request."""

    @classmethod
    def scheme(cls) -> str:
        return "testfs"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def mkdirs(self, path: str) -> None:
        DISK.mkdirs(on_disk(path))

    def has_dirs(self) -> bool:
        return True

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        fail_if_asked("list")
        for found in DISK._list(on_disk(dir_or_prefix)):
            uri = f"testfs://{found.path}"
            yield FileMetadata(uri, found.size_in_bytes, found.last_updated_in_seconds)

    def create(
        self, path: str, mime_type: str = "", compression_type: str = CompressionTypes.AUTO
    ) -> BinaryIO:
        fail_if_asked("create")
        return DISK.create(on_disk(path), mime_type, compression_type)

    def open(
        self, path: str, mime_type: str = "", compression_type: str = CompressionTypes.AUTO
    ) -> BinaryIO:
        fail_if_asked("open")
        return DISK.open(on_disk(path), mime_type, compression_type)

    def copy(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        raise NotImplementedError

    def rename(self, source_file_names: list[str], destination_file_names: list[str]) -> None:
        fail_if_asked("rename")
        sources = [on_disk(name) for name in source_file_names]
        DISK.rename(sources, [on_disk(name) for name in destination_file_names])
        fail_if_asked("rename's reply")

    def exists(self, path: str) -> bool:
        fail_if_asked("exists")
        return DISK.exists(on_disk(path))

    def size(self, path: str) -> int:
        return DISK.size(on_disk(path))

    def last_updated(self, path: str) -> float:
        return DISK.last_updated(on_disk(path))

    def checksum(self, path: str) -> str:
        return DISK.checksum(on_disk(path))

    def metadata(self, path: str) -> FileMetadata:
        found = DISK.metadata(on_disk(path))
        return FileMetadata(path, found.size_in_bytes, found.last_updated_in_seconds)

    def delete(self, paths: list[str]) -> None:
        fail_if_asked("delete")
        DISK.delete([on_disk(path) for path in paths])


def on_disk(uri: str) -> str:
    return uri.removeprefix("testfs://")


def fail_if_asked(operation: str) -> None:
    if FAULTS.get(operation):
        raise FAULTS[operation].pop(0)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    FAULTS.clear()
    yield
    left = {operation: errors for operation, errors in FAULTS.items() if errors}
    FAULTS.clear()
    assert left == {}, "an error was asked for and never met"


@pytest.fixture(autouse=True)
def spools_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where spools grow on the worker's disk; nothing may be left there."""
    spools = tmp_path / "worker"
    spools.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spools))
    return spools


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def storage(folder: Path) -> Any:
    return open_storage(f"testfs://{folder}")


class TestContract(StorageContract):
    """Any filesystem of Beam's keeps the contract."""

    @pytest.fixture(autouse=True)
    def no_spool_is_left(self, folder: Path, spools_of_our_own: Path) -> Iterator[None]:
        yield
        assert [name for name in files_in(folder) if name.startswith("_spool/")] == []
        assert files_in(spools_of_our_own) == []


def test_opens_uris_of_schemes_that_beam_knows(folder: Path) -> None:
    storage = open_storage(f"testfs://{folder}/")

    assert isinstance(storage, BeamStorage)
    assert storage.root == f"testfs://{folder}"


def test_refuses_a_scheme_that_nothing_provides() -> None:
    for uri in ("nosuch://b/c", "hdfs://b/c"):  # of which Beam knows, without its client
        with pytest.raises(ValueError, match=rf"^no filesystem for '{uri}' \(.*\): install what"):
            open_storage(uri)


@pytest.mark.parametrize("root", ["testfs:///data/*", "testfs:///a?", "testfs:///a[1]"])
def test_refuses_a_root_that_beam_would_take_for_a_glob(root: str) -> None:
    with pytest.raises(ValueError, match=r"^a path on testfs must not hold \* \? or \[, got 'test"):
        open_storage(root)


@pytest.mark.parametrize("name", ["a*", "a?", "a[1]"])
def test_deletes_no_name_that_beam_would_take_for_a_glob(
    storage: BeamStorage, folder: Path, name: str
) -> None:
    put(folder, {name: b"", "a1": b"", "ab": b""})

    with pytest.raises(ValueError, match=r"^a name to delete must not hold \* \? or \[, got 'a"):
        storage.delete(name)

    assert files_in(folder) == sorted([name, "a1", "ab"])


@pytest.mark.parametrize("operation", ["open", "exists"])
def test_a_read_that_fails_for_a_moment_is_tried_again(
    storage: BeamStorage, folder: Path, operation: str
) -> None:
    put(folder, {"a": b"12345"})
    entry = storage.stat("a")
    FAULTS[operation] = [BeamIOError("503"), ConnectionResetError("reset")]

    assert storage.read("a", entry) == b"12345"


def test_a_listing_that_fails_for_a_moment_is_tried_again(
    storage: BeamStorage, folder: Path
) -> None:
    put(folder, {"a": b"12345"})
    FAULTS["list"] = [OSError("503"), OSError("503")]

    assert [entry.name for entry in storage.list()] == ["a"]


@pytest.mark.parametrize("operation", ["create", "rename"])
def test_an_upload_that_fails_for_a_moment_is_begun_again(
    storage: BeamStorage, folder: Path, operation: str
) -> None:
    FAULTS[operation] = [BeamIOError("503"), BeamIOError("503")]
    spool = storage.spool()
    spool.write([b"123", b"45"])

    assert spool.publish("a.tfrec") is True
    spool.close()

    assert (folder / "a.tfrec").read_bytes() == b"12345"
    assert [name for name in files_in(folder) if name.endswith(".tfrec")] == ["a.tfrec"]


def test_a_lost_reply_looks_like_a_name_that_is_taken(storage: BeamStorage, folder: Path) -> None:
    # The caller compares what has the name, as with any other twin.
    FAULTS["rename's reply"] = [BeamIOError("reset")]

    assert storage.create("a", b"12345") is False
    assert (folder / "a").read_bytes() == b"12345"


@pytest.mark.parametrize("operation", ["exists", "open", "list"])
def test_missing_permission_stops_the_run_at_once(
    storage: BeamStorage, folder: Path, operation: str
) -> None:
    put(folder, {"a": b"12345"})
    FAULTS[operation] = [PermissionError("403: caller lacks storage.objects.get")]
    attempts = {
        "exists": lambda: storage.stat("a"),
        "open": lambda: storage.read("a"),
        "list": lambda: list(storage.list()),
    }

    started_s = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^E-IO-AUTH testfs://.*: 403: caller lacks .*; give "):
        attempts[operation]()
    assert time.monotonic() - started_s < 5


def fill_a_spool_beyond_a_limit(folder: Path) -> str:
    """Run in a child: write more than a file of its may hold."""
    spool = open_storage(f"testfs://{folder}").spool()
    with limited(resource.RLIMIT_FSIZE, 65_536):
        try:
            spool.write([bytes(100_000)])
        except RuntimeError as error:
            return str(error)
    raise AssertionError("the limit did nothing")


def test_a_full_disk_of_the_worker_is_one_line(folder: Path) -> None:
    error = outcome_of(fill_a_spool_beyond_a_limit, folder)

    assert error.startswith("E-IO-NOSPACE ")
    assert error.endswith(": File too large; ask for smaller shards with --shard_size")


def test_a_store_without_its_client_is_told_at_once() -> None:
    storage = BeamStorage("s3://bucket/photos")  # boto3 is not installed
    started_s = time.monotonic()

    for act in (lambda: list(storage.list()), lambda: storage.stat("a"), storage.probe):
        with pytest.raises(
            RuntimeError, match=r"^E-ARG s3://bucket/photos\S*: .*; install and set"
        ):
            act()
    assert time.monotonic() - started_s < 5


# --- what stores tell in their own ways ---


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no project"),
        AssertionError("no client"),
        ImportError("No module named 'boto3'"),
    ],
)
def test_a_client_that_is_not_set_up_is_told_at_once(
    storage: BeamStorage, folder: Path, error: Exception
) -> None:
    FAULTS["exists"] = [error]

    with pytest.raises(RuntimeError) as raised:
        storage.stat("a")
    assert str(raised.value) == (
        f"E-ARG testfs://{folder}/a: {error}; install and set up this store's client"
    )


WRAPPED = {
    "one": {"a": PermissionError("403")},
    "behind others": {"b": OSError("503"), "a": PermissionError("403")},
    "in another": {"c": BeamIOError("again", {"b": OSError("503"), "a": PermissionError("403")})},
}


@pytest.mark.parametrize("details", WRAPPED.values(), ids=WRAPPED)
def test_of_errors_that_beam_wraps_up_the_lasting_one_is_told(
    storage: BeamStorage, folder: Path, details: dict[str, Exception]
) -> None:
    put(folder, {"a": b"1"})
    FAULTS["delete"] = [BeamIOError("Delete operation failed", details)]

    with pytest.raises(RuntimeError) as raised:
        storage.delete("a")
    assert str(raised.value) == (f"E-IO-AUTH testfs://{folder}/a: 403; give this user permission")


@pytest.mark.parametrize("details", [None, {}, {"a": OSError("503")}])
def test_errors_that_beam_wraps_up_and_that_pass_are_tried_again(
    storage: BeamStorage, folder: Path, details: dict[str, Exception] | None
) -> None:
    put(folder, {"a": b"1"})
    FAULTS["delete"] = [BeamIOError("Delete operation failed", details)]

    storage.delete("a")

    assert files_in(folder) == []


def test_a_file_that_is_gone_is_a_change_of_the_source(storage: BeamStorage, folder: Path) -> None:
    line = f"E-SRC-CHANGED testfs://{folder}/a: not there; run again when the source is at rest"
    for act in (lambda: storage.read("a"), lambda: storage.crc32c("a")):
        with pytest.raises(RuntimeError) as raised:
            act()
        assert str(raised.value) == line


@pytest.mark.parametrize(("edit", "size"), [(b"1234", 4), (b"54321", 5)])
def test_a_file_that_is_not_the_listed_one_is_told_with_both_sizes(
    storage: BeamStorage, folder: Path, edit: bytes, size: int
) -> None:
    put(folder, {"a": b"12345"})
    entry = storage.stat("a")
    put(folder, {"a": edit})
    os.utime(folder / "a", (1, 1))

    with pytest.raises(RuntimeError) as raised:
        storage.read("a", entry)
    what = f"{size} bytes, 5 were listed, or it was modified"
    assert str(raised.value) == (
        f"E-SRC-CHANGED testfs://{folder}/a: {what}; run again when the source is at rest"
    )


def test_a_store_that_tells_no_times_has_empty_pins(
    storage: BeamStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"1"})
    timeless = FileMetadata(f"testfs://{folder}/a", 1)
    monkeypatch.setattr(DiskFileSystem, "_list", lambda self, _: iter([timeless]))
    monkeypatch.setattr(DiskFileSystem, "metadata", lambda self, _: timeless)

    assert list(storage.list()) == [Entry("a", 1, "")]
    assert storage.stat("a") == Entry("a", 1, "")
    assert storage.read("a", storage.stat("a")) == b"1"


def test_a_store_without_folders_makes_none(
    storage: BeamStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DiskFileSystem, path: str) -> None:
        raise NotImplementedError("a flat store")

    (folder / "_spool").mkdir()
    monkeypatch.setattr(DiskFileSystem, "mkdirs", refuse)

    assert storage.create("a", b"1") is True
    assert (folder / "a").read_bytes() == b"1"


def test_what_is_there_is_not_uploaded_to_find_that_out(
    storage: BeamStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"1"})
    monkeypatch.delattr(DiskFileSystem, "create")

    assert storage.create("a", b"2") is False


def test_nothing_is_packed_or_unpacked_by_its_name(storage: BeamStorage, folder: Path) -> None:
    packed = gzip.compress(b"1234567890")
    for name in ("a.gz", "a.bz2"):
        assert storage.create(name, packed) is True
        assert (folder / name).read_bytes() == packed
        assert storage.read(name) == packed
        assert storage.crc32c(name) == google_crc32c.value(packed)


class Pieces:
    """A file that notes how many bytes each call takes or gives."""

    def __init__(self, file: Any, sizes: list[int | None]) -> None:
        self._file = file
        self._sizes = sizes

    def __enter__(self) -> "Pieces":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int | None = None) -> bytes:
        self._sizes.append(size)
        return self._file.read(size)

    def write(self, data: bytes) -> int:
        self._sizes.append(len(data))
        return self._file.write(data)


@pytest.mark.parametrize("way", ["up", "down"])
def test_large_files_go_in_pieces_of_a_megabyte(
    storage: BeamStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    data = bytes(2**20 + 1)
    put(folder, {"there": data})
    sizes: list[int | None] = []
    if way == "up":
        create = DISK.create
        monkeypatch.setattr(DISK, "create", lambda *args: Pieces(create(*args), sizes))
        storage.create("a", data)
        assert sizes == [2**20, 1]
    else:
        read = DISK.open
        monkeypatch.setattr(DISK, "open", lambda *args: Pieces(read(*args), sizes))
        assert storage.crc32c("there") == google_crc32c.value(data)
        assert sizes == [2**20, 2**20, 2**20]


def test_only_characters_of_globs_are_refused(storage: BeamStorage, folder: Path) -> None:
    put(folder, {"X]{}!~.jpg": b"1"})

    storage.delete("X]{}!~.jpg")

    assert files_in(folder) == []
    assert open_storage("testfs:///X]{}").root == "testfs:///X]{}"


def test_roots_and_folders_lose_their_slash_alone(folder: Path) -> None:
    root = folder / "boX"
    put(root, {"inX/a": b"1", "b": b"2"})
    storage = open_storage(f"testfs://{root}/")

    assert storage.root == f"testfs://{root}"
    assert [entry.name for entry in storage.list("inX/")] == ["inX/a"]


def test_spools_lie_where_they_were_asked_for(folder: Path, tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    with pytest.raises(RuntimeError, match=rf"^E-IO-READONLY {gone}: "):
        open_storage(f"testfs://{folder}", Access(spool_dir=gone)).spool()

    assert BeamStorage(f"testfs://{folder}").create("a", b"1") is True


def test_a_file_that_goes_while_it_is_read_is_a_change(
    storage: BeamStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"12345"})
    entry = storage.stat("a")
    monkeypatch.setattr(DiskFileSystem, "exists", lambda self, path: False)

    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: 5 bytes, 5 were listed, or it"):
        storage.read("a", entry)


def test_a_store_that_has_no_error_of_its_own_for_what_is_gone(
    storage: BeamStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def refuse(self: DiskFileSystem, path: str, *_: Any, **__: Any) -> BinaryIO:
        tries.append(path)
        raise BeamIOError("404")

    monkeypatch.setattr(DiskFileSystem, "open", refuse)

    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: not there; run again when"):
        storage.read("a")
    assert len(tries) == 1  # it is no use to wait for it


def test_a_probe_creates_and_leaves_nothing_but_the_folder_of_spools(
    storage: BeamStorage, folder: Path
) -> None:
    storage.probe()
    assert [path.name for path in folder.iterdir()] == ["_spool"]
    assert files_in(folder) == []

    FAULTS["create"] = [PermissionError("403: no objects.create")]
    with pytest.raises(RuntimeError, match=r"^E-IO-AUTH \S*/_spool/probe-\w+: 403: no objects"):
        storage.probe()


def test_folders_are_made_where_a_store_has_them(
    storage: BeamStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    mkdirs = DISK.mkdirs
    monkeypatch.setattr(DISK, "mkdirs", lambda path: (made.append(path), mkdirs(path)))

    storage.create("index/deep/a.parquet", b"1")

    assert made == [f"{folder}/_spool", f"{folder}/index/deep"]


def test_what_never_passes_is_told_with_its_place(
    storage: BeamStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = functools.partial(retry, deadline_s=0)
    monkeypatch.setattr("transforms.storage.beam_filesystem.retry", soon)
    FAULTS["exists"] = [OSError("503")]
    FAULTS["list"] = [OSError("503")]
    what = r"still failing after 0 s \(OSError: 503\)"

    with pytest.raises(RuntimeError, match=rf"^E-IO-RETRIES testfs://{folder}/a: {what}"):
        storage.stat("a")
    with pytest.raises(RuntimeError, match=rf"^E-IO-RETRIES testfs://{folder}: "):
        list(storage.list())


def test_days_are_not_searched_where_folders_are_not_listed(tmp_path: Path) -> None:
    """To find none would be to write everything again."""
    pattern = f"testfs://{tmp_path}/coco-{{date}}"

    with pytest.raises(RuntimeError) as raised:
        list_days(pattern)

    assert str(raised.value) == (
        f"E-ARG {pattern}: folders cannot be listed there, as {{date}} needs it;"
        " give --since the data sets by their names"
    )
