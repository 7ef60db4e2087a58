"""Local paths: odd files, errors of the system, crashes, and disks that lack features."""

import ctypes
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.transforms.storage import Entry, Storage, open_storage
from beam_tfrec.transforms.storage.disk import coded
from tests.children import kill_once_ready, without_anonymous_files
from tests.stores import LOCAL, Store, failing, opened


@pytest.fixture(params=LOCAL[:1])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def storage(store: Store) -> Storage:
    return store.storage


@pytest.fixture
def folder(store: Store, tmp_path: Path) -> Path:
    return tmp_path / "root"


in_every_way = pytest.mark.parametrize("store", LOCAL, indirect=True)
by_named_spools = pytest.mark.parametrize("store", LOCAL[1:2], indirect=True)


def all_names(folder: Path) -> list[str]:
    """Return the names of all files, spools too."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


# --- listing ---


def test_a_listing_gives_the_kind_of_each_entry(
    storage: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.jpg").write_bytes(b"123")
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "fifo.jpg")
    for name, target in {
        "to nothing.jpg": "nowhere",
        "through a file.jpg": "a.jpg/b.jpg",
        "to itself.jpg": "to itself.jpg",
        "to a file.jpg": "a.jpg",
        "device.jpg": "/dev/null",
    }.items():
        (folder / name).symlink_to(target)
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(folder)  # a socket's path must be short
        server.bind("socket.jpg")
    assert {entry.name: (entry.size_bytes, entry.kind) for entry in storage.list()} == {
        "a.jpg": (3, "file"),
        "folder.jpg": (0, "directory"),
        "fifo.jpg": (0, "fifo"),
        "to nothing.jpg": (0, "dangling link"),
        "through a file.jpg": (0, "dangling link"),
        "to itself.jpg": (0, "dangling link"),
        "to a file.jpg": (3, "file"),
        "device.jpg": (0, "device"),
        "socket.jpg": (0, "socket"),
    }
    assert storage.stat("fifo.jpg") == Entry("fifo.jpg", 0, "", kind="fifo")


def test_a_listing_follows_links_to_folders_but_not_in_circles(
    storage: Storage, folder: Path, tmp_path: Path
) -> None:
    for path in (folder / "b/c.jpg", tmp_path / "elsewhere/d.jpg"):
        path.parent.mkdir()
        path.touch()
    for name, target in {
        "linked": "../elsewhere",
        "loop": ".",
        "b/up": "..",
        "b/here": ".",
    }.items():
        (folder / name).symlink_to(target)
    found = {entry.name for entry in storage.list()}
    assert found == {"b", "b/c.jpg", "b/here", "b/up", "linked", "linked/d.jpg", "loop"}


def test_a_listing_goes_on_after_names_that_are_not_text(storage: Storage, folder: Path) -> None:
    for name in (b"\xff.jpg", b"\xffolder/inside.jpg", *(b"%d.jpg" % n for n in range(50))):
        path = os.path.join(os.fsencode(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT))
    assert {entry.name: entry.kind for entry in storage.list()} == {
        "\\xff.jpg": "file whose name is not UTF-8",
        "\\xffolder": "directory whose name is not UTF-8",
        **{f"{number}.jpg": "file" for number in range(50)},
    }


# --- reading ---

REPLACED: dict[str, Callable[[Path], object]] = {
    "directory": Path.mkdir,
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize(("kind", "make"), REPLACED.items(), ids=REPLACED)
def test_a_file_that_became_something_else_is_a_change(
    storage: Storage, folder: Path, kind: str, make: Callable[[Path], object]
) -> None:
    make(folder / "a")
    with pytest.raises(RuntimeError, match=rf"^E-SRC-CHANGED .*/a: a {kind}, not a file; "):
        storage.read("a", Entry("a", 5, "1"))


def test_a_change_of_one_nanosecond_is_noticed(storage: Storage, folder: Path) -> None:
    (folder / "a").write_bytes(b"12345")
    entry = storage.stat("a")
    os.utime(folder / "a", ns=(1, int(entry.pin) + 1))
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*/a: modified since it was listed"):
        storage.read("a", entry)


def test_a_short_read_is_continued(
    storage: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_bytes(b"0123456789")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))  # as at 2 GB
    assert storage.read("a", storage.stat("a")) == b"0123456789"
    assert storage.read("a", storage.stat("a"), (1, 9)) == b"12345678"
    once = iter([b"01234"])
    monkeypatch.setattr(os, "pread", lambda fd, size, at: next(once, b""))
    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: "):  # the file shrank
        storage.read("a", storage.stat("a"))


# --- errors ---


@pytest.mark.parametrize("call", ["pread", "scandir"])
@pytest.mark.parametrize("code", ["EIO", "ESTALE", "ETIMEDOUT", "EAGAIN", "ENETUNREACH"])
def test_a_transient_error_is_retried(
    storage: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, call: str
) -> None:
    (folder / "a").write_bytes(b"12345")
    left, real = [getattr(errno, code)] * 2, getattr(os, call)

    def fail_twice(*args: Any) -> Any:
        if left:
            raise OSError(left.pop(), code)
        return real(*args)

    monkeypatch.setattr(os, call, fail_twice)
    assert [storage.read(entry.name, entry) for entry in storage.list()] == [b"12345"]


AGAIN = "then run again"
LINES = {
    "EDQUOT": f"E-IO-NOSPACE a: Disk quota exceeded; raise the quota, {AGAIN} to resume",
    "EFBIG": "E-IO-NOSPACE a: File too large; ask for smaller shards with --shard_size",
    "EROFS": "E-IO-READONLY a: Read-only file system; give an --output that can be written",
    "ENOENT": "E-IO-READONLY a: No such file or directory; keep the folder, and run again",
    "EACCES": f"E-IO-AUTH a: Permission denied; give this user permission, {AGAIN}",
    "EPERM": f"E-IO-AUTH a: Operation not permitted; give this user permission, {AGAIN}",
    "EMFILE": "E-IO-LIMIT a: Too many open files; raise the limit on open files (ulimit -n)",
    "ENFILE": "E-IO-LIMIT a: Too many open files in system; raise the system's limit on open files",
    "ENOMEM": f"E-IO-LIMIT a: Cannot allocate memory; free some memory, {AGAIN} to resume",
    "EXDEV": "E-IO-RETRIES a: Invalid cross-device link; check the storage",  # any other
}


def test_an_error_of_the_system_is_one_coded_line() -> None:
    numbers = {name: getattr(errno, name) for name in LINES}
    found = {name: str(coded(OSError(n, os.strerror(n)), "a")) for name, n in numbers.items()}
    assert found == LINES
    line = str(coded(OSError(errno.ENOSPC, "Full"), "a", "give another --spool_dir"))
    assert line == "E-IO-NOSPACE a: Full; give another --spool_dir"


def test_an_output_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"of the user")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "file/below", "loop", "dangling", "x" * 300):
        with pytest.raises(RuntimeError, match=rf"^E-IO-READONLY {tmp_path}/{name}: .*; give "):
            open_storage(f"{tmp_path}/{name}").probe()
    assert (tmp_path / "file").read_bytes() == b"of the user"
    with pytest.raises(ValueError, match=r"^a path must not hold a NUL, got '/data/\\x00': remove"):
        open_storage("/data/\0")


# --- writing ---


@in_every_way
@pytest.mark.parametrize("umask", [0, 0o027, 0o077])
def test_files_get_the_permissions_that_the_umask_leaves(
    storage: Storage, folder: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        storage.create("a.json", b"")
    finally:
        os.umask(before)
    assert (folder / "a.json").stat().st_mode & 0o777 == 0o666 & ~umask


@in_every_way
def test_no_descriptor_is_left_open(storage: Storage) -> None:
    def use_everything() -> None:
        storage.probe()
        storage.create("b/c", b"")
        storage.create("b/c", b"")  # taken
        next(storage.list())  # given up half-way
        storage.read("b/c")
        storage.crc32c("b/c")
        storage.new_file().close()

    use_everything()
    before = len(os.listdir("/proc/self/fd"))
    use_everything()
    assert len(os.listdir("/proc/self/fd")) <= before  # fewer if those of other tests are closed


def test_bytes_are_synced_before_their_name_and_the_name_after(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, link = os.fsync, os.link

    def note_sync(fd: int) -> None:
        sync(fd)
        steps.append("sync folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "sync file")

    def note_link(*args: Any, **kwargs: Any) -> None:
        link(*args, **kwargs)
        steps.append("link")

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_link)
    storage.create("a", b"1")
    storage.create("new/b", b"1")
    storage.create("new/c", b"1")
    named = ["sync file", "link", "sync folder"]
    in_new_folder = ["sync file", "sync folder", "link", "sync folder"]
    assert steps == [*named, *in_new_folder, *named]


@in_every_way
def test_bytes_that_cannot_be_made_durable_are_never_shown(
    storage: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(RuntimeError, match=r"^E-IO-RETRIES .*/a: Input/output error; check"):
        storage.create("a", b"1")
    assert all_names(folder) == []


def test_a_folder_that_cannot_be_synced_is_accepted_and_one_that_fails_is_not(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, codes = os.fsync, [errno.EIO, errno.EINVAL]  # EINVAL is SMB's answer

    def sync_files_only(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            failing(codes.pop())()
        sync(fd)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    assert storage.create("a", b"1") is True
    with pytest.raises(RuntimeError, match=r"^E-IO-RETRIES \S*/b: Input/output error; check"):
        storage.create("b", b"1")


@by_named_spools
@pytest.mark.parametrize("code", ["EOPNOTSUPP", "EPERM", "ENOSYS", "EINVAL", "EMLINK"])
def test_a_disk_may_refuse_links_in_several_ways(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(os, "link", failing(getattr(errno, code)))
    assert store.storage.create("a", b"123") is True
    assert store.storage.create("a", b"other") is False
    assert store.files.all() == {"a": b"123"}


@by_named_spools
def test_a_disk_without_exclusive_names_is_refused(
    storage: Storage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs could overwrite each other."""
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: None)  # of the C library's renameat2
    what = "the filesystem has neither hard links nor exclusive renames; write to another f"
    with pytest.raises(RuntimeError, match=f"^E-IO-READONLY {folder}: {what}"):
        storage.probe()
    assert all_names(folder) == []


# --- other runs in the same folder ---


def write_until_killed(ready: Any, folder: str, named: bool) -> None:
    """Run in a child: fill a spool, report that, and wait to be killed."""
    if named:
        os.open = without_anonymous_files(os.open)
    pending = open_storage(folder).new_file()
    pending.write([bytes(1_000_000)])
    ready.send("ready")
    time.sleep(60)


@pytest.mark.parametrize("named", [False, True])
def test_the_next_run_removes_what_a_killed_writer_left(
    storage: Storage, folder: Path, named: bool
) -> None:
    kill_once_ready(write_until_killed, str(folder), named)
    assert len(all_names(folder)) == named
    storage.probe()
    assert list(folder.iterdir()) == []


@by_named_spools
def test_the_named_spool_of_a_living_writer_stays(storage: Storage, folder: Path) -> None:
    pending = storage.new_file()
    pending.write([b"still "])
    (folder / "_spool-dead").write_bytes(b"1")
    storage.probe()
    open_storage(str(folder)).probe()
    pending.write([b"there"])
    assert pending.publish("a.tfrec") is True
    pending.close()
    assert (folder / "a.tfrec").read_bytes() == b"still there"
    assert all_names(folder) == ["a.tfrec"]
