import contextlib
import ctypes
import errno
import fcntl
import functools
import itertools
import os
import resource
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest

from tests.children import (
    can_mount,
    kill_once_ready,
    limited,
    make_read_only,
    mount_disk_of_my_own,
    outcome_of,
    without_anonymous_files,
)
from tests.storage_contract import DiskFolder, Outside, StorageContract, files_in, listed, put
from transforms.retries import retry
from transforms.storage import (
    Access,
    Entry,
    find_uri,
    join_uri,
    local,
    name_below,
    open_storage,
    read_uri,
    split_uri,
)
from transforms.storage.local import LocalStorage, coded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


@pytest.fixture
def storage(folder: Path) -> LocalStorage:
    return LocalStorage(str(folder))


@pytest.fixture
def no_anonymous_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem such as overlayfs of old or NFS: `O_TMPFILE` is refused."""
    monkeypatch.setattr(os, "open", without_anonymous_files(os.open))


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem such as exFAT or gcsfuse: hard links are refused."""
    monkeypatch.setattr(os, "link", failing(errno.EPERM))


@pytest.fixture(params=["anonymous", "named, linked", "named, renamed"])
def way_of_writing(request: pytest.FixtureRequest) -> str:
    """Every way in which a file can get its name."""
    if request.param != "anonymous":
        request.getfixturevalue("no_anonymous_files")
    if request.param == "named, renamed":
        request.getfixturevalue("no_links")
    return request.param


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def failing_first(times: int, code: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return the real function behind so many failures."""
    left = [times]

    def fail_first(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return fail_first


class TestContract(StorageContract):
    """The local storage keeps the contract."""


@pytest.mark.usefixtures("no_anonymous_files")
class TestContractWithNamedSpools(StorageContract):
    """So it does where files cannot be anonymous; spools are then seen, but in `_spool` alone."""

    @pytest.fixture(autouse=True)
    def no_spool_is_left(self, folder: Path) -> Any:
        yield
        assert [path for path in folder.rglob("*") if path.parent.name == "_spool"] == []

    @pytest.mark.parametrize("size", [0])  # reading is the same
    def test_reads_every_size(self, storage: LocalStorage, outside: Outside, size: int) -> None:
        super().test_reads_every_size(storage, outside, size)


@pytest.mark.usefixtures("no_anonymous_files", "no_links")
class TestContractWithRenames(TestContractWithNamedSpools):
    """So it does where there are no hard links either."""


def test_listing_says_what_is_no_file(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a.jpg": b"123"})
    (folder / "folder.jpg").mkdir()
    os.mkfifo(folder / "fifo.jpg")
    (folder / "to nothing.jpg").symlink_to("nowhere")
    (folder / "through a file.jpg").symlink_to("a.jpg/b.jpg")
    (folder / "to itself.jpg").symlink_to("to itself.jpg")
    (folder / "to a file.jpg").symlink_to("a.jpg")
    (folder / "device.jpg").symlink_to("/dev/null")
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


def test_listing_follows_links_to_folders_but_not_their_loops(
    storage: LocalStorage, folder: Path, tmp_path: Path
) -> None:
    put(folder, {"a.jpg": b"", "b/c.jpg": b""})
    put(tmp_path / "elsewhere", {"d.jpg": b""})
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "loop").symlink_to(folder)
    (folder / "b/up").symlink_to("..")
    (folder / "b/here").symlink_to(".")

    assert {entry.name for entry in storage.list()} == {
        "a.jpg",
        "b",
        "b/c.jpg",
        "b/here",
        "b/up",
        "linked",
        "linked/d.jpg",
        "loop",
    }


def test_listing_goes_on_behind_names_that_are_no_text(storage: LocalStorage, folder: Path) -> None:
    for name in (b"\xff.jpg", b"\xffolder/inside.jpg"):
        path = os.path.join(os.fsencode(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
    put(folder, {f"{number}.jpg": b"" for number in range(50)})  # before and behind it in a folder

    kinds = {entry.name: entry.kind for entry in storage.list()}

    assert kinds == {
        "\\xff.jpg": "file whose name is no UTF-8",
        "\\xffolder": "directory whose name is no UTF-8",
        **{f"{number}.jpg": "file" for number in range(50)},
    }


def test_listing_goes_on_when_a_folder_vanishes(storage: LocalStorage, folder: Path) -> None:
    put(folder, {"a/x": b"", "b/x": b"", "c/x": b""})
    entries = storage.list()
    first = next(entries)
    for other in {"a", "b", "c"} - {first.name}:
        (folder / other / "x").unlink()
        (folder / other).rmdir()
        break

    assert len([entry for entry in entries if entry.name.endswith("/x")]) == 2


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("directory", lambda path: path.mkdir()),
        ("fifo", os.mkfifo),
        ("device", lambda path: path.symlink_to("/dev/zero")),
    ],
)
def test_a_file_that_became_something_else_is_a_change_and_no_hang(
    storage: LocalStorage, folder: Path, kind: str, make: Callable[[Path], None]
) -> None:
    entry = listed(storage, DiskFolder(folder), b"12345")
    (folder / "a").unlink()
    make(folder / "a")

    with pytest.raises(RuntimeError, match=rf"^E-SRC-CHANGED .*/a: a {kind} and no file; "):
        storage.read("a", entry)


def test_a_fifo_whose_writer_is_silent_does_not_hang_either(
    storage: LocalStorage, folder: Path
) -> None:
    entry = listed(storage, DiskFolder(folder), b"12345")
    (folder / "a").unlink()
    os.mkfifo(folder / "a")
    writer = os.open(folder / "a", os.O_RDWR | os.O_NONBLOCK)
    try:
        started_s = time.monotonic()
        with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED"):
            storage.read("a", entry)
        assert time.monotonic() - started_s < 5
    finally:
        os.close(writer)


def test_equal_bytes_written_again_are_a_change(storage: LocalStorage, folder: Path) -> None:
    put(folder, {"a": b"12345"})
    entry = storage.stat("a")
    os.utime(folder / "a", ns=(1, int(entry.pin) + 1))  # one nanosecond shows

    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*/a: modified since it was listed"):
        storage.read("a", entry)


def test_a_read_that_fails_for_a_moment_is_tried_again(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"12345"})
    entry = storage.stat("a")
    monkeypatch.setattr(os, "read", failing_first(2, errno.EIO, os.read))

    assert storage.read("a", entry) == b"12345"


def test_a_read_that_the_kernel_cuts_short_goes_on(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"0123456789"})
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 3)))  # as beyond 2 GB

    assert storage.read("a", storage.stat("a")) == b"0123456789"


def test_a_listing_that_fails_for_a_moment_is_tried_again(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"12345"})
    monkeypatch.setattr(os, "scandir", failing_first(2, errno.ESTALE, os.scandir))

    assert [entry.name for entry in storage.list()] == ["a"]


@pytest.mark.parametrize("most", [1, 3, 7])
def test_writes_that_take_only_a_part_are_continued(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    write = os.write
    monkeypatch.setattr(os, "writev", lambda fd, parts: write(fd, b"".join(parts)[:most]))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:most]))

    spool = storage.spool()
    spool.write([b"01", b"", b"23456789", b"abc"])
    spool.write([b"def"])
    spool.publish("a.tfrec")
    spool.close()

    assert (folder / "a.tfrec").read_bytes() == b"0123456789abcdef"


def test_one_write_takes_more_parts_than_the_system_call(
    storage: LocalStorage, folder: Path
) -> None:
    spool = storage.spool()
    spool.write([b"%d " % part for part in range(3000)])  # IOV_MAX is 1,024
    spool.publish("a.tfrec")
    spool.close()

    expected = b"".join(b"%d " % part for part in range(3000))
    assert (folder / "a.tfrec").read_bytes() == expected


def test_of_many_who_create_one_name_one_succeeds(
    storage: LocalStorage, folder: Path, way_of_writing: str
) -> None:
    results: list[tuple[bool, int]] = []
    together = threading.Barrier(8)

    def create(number: int) -> None:
        together.wait()
        results.append((storage.create("a.json", b"%d" % number), number))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    (winner,) = [number for created, number in results if created]
    assert len(results) == 8
    assert (folder / "a.json").read_bytes() == b"%d" % winner
    assert files_in(folder) == ["a.json"]


def test_a_relative_root_is_below_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, way_of_writing: str
) -> None:
    monkeypatch.chdir(folder)
    storage = LocalStorage("out")
    storage.probe()

    assert storage.create("deep/a.json", b"1") is True
    assert storage.create("deep/a.json", b"2") is False
    assert storage.read("deep/a.json") == (folder / "out/deep/a.json").read_bytes() == b"1"


def test_files_get_the_permissions_that_the_umask_leaves(
    storage: LocalStorage, folder: Path, way_of_writing: str
) -> None:
    before = os.umask(0o027)
    try:
        storage.create("a.json", b"")
    finally:
        os.umask(before)

    assert (folder / "a.json").stat().st_mode & 0o777 == 0o640


def write_until_killed(ready: Any, folder: str, named: bool) -> None:
    """Run in a child: fill a spool, say so, and wait for the end."""
    if named:
        os.open = without_anonymous_files(os.open)
    spool = LocalStorage(folder).spool()
    spool.write([bytes(1_000_000)])
    ready.send("ready")
    time.sleep(60)


def test_nothing_is_left_of_a_killed_writer(folder: Path) -> None:
    kill_once_ready(write_until_killed, str(folder), False)

    assert files_in(folder) == []


def test_the_next_run_drops_the_named_spool_of_a_killed_writer(
    storage: LocalStorage, folder: Path
) -> None:
    kill_once_ready(write_until_killed, str(folder), True)
    (spooled,) = files_in(folder)
    assert spooled.startswith("_spool/")

    storage.probe()

    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("no_anonymous_files")
def test_the_named_spool_of_a_living_writer_stays(storage: LocalStorage, folder: Path) -> None:
    spool = storage.spool()
    spool.write([b"still "])

    storage.probe()
    LocalStorage(str(folder)).probe()
    spool.write([b"there"])

    assert spool.publish("a.tfrec") is True
    spool.close()
    assert (folder / "a.tfrec").read_bytes() == b"still there"
    assert files_in(folder) == ["a.tfrec"]


@pytest.mark.usefixtures("no_anonymous_files")
def test_a_spool_that_is_cleaned_away_before_its_lock_is_begun_anew(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    locked: list[str] = []

    def lock_behind_a_cleaner(fd: int, how: int) -> None:
        if not locked:  # between the spool's creation and its lock, another run's probe
            locked.append(os.readlink(f"/proc/self/fd/{fd}"))
            os.unlink(locked[0])
            os.rmdir(os.path.dirname(locked[0]))
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock_behind_a_cleaner)

    assert storage.create("a.json", b"1") is True
    assert len(locked) == 1
    assert files_in(folder) == ["a.json"]


@pytest.mark.usefixtures("no_links")
def test_a_disk_without_links_is_refused_before_the_first_image(storage: LocalStorage) -> None:
    remedy = "has neither hard links nor exclusive renames; write to one that has"
    with pytest.raises(RuntimeError, match=rf"^E-IO-READONLY .*root: the filesystem {remedy}"):
        storage.probe()


def test_a_folder_that_cannot_be_synced_is_no_obstacle(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def sync_files_only(fd: int) -> None:  # as SMB does
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        sync(fd)

    monkeypatch.setattr(os, "fsync", sync_files_only)

    assert storage.create("a", b"1") is True


def test_a_file_is_durable_before_it_is_shown_and_its_name_behind(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
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

    assert steps == ["sync file", "link", "sync folder"]


def test_no_descriptor_is_left_open(
    storage: LocalStorage, folder: Path, way_of_writing: str
) -> None:
    put(folder, {"a": b"1", "b/c": b"2"})

    def use_everything() -> None:
        storage.probe()
        storage.create("d", b"")
        storage.create("d", b"")  # taken
        list(storage.list())
        next(storage.list())  # given up half-way
        storage.read("a")
        storage.crc32c("a")
        storage.stat("a")
        storage.spool().close()

    use_everything()
    before = len(os.listdir("/proc/self/fd"))
    use_everything()
    assert len(os.listdir("/proc/self/fd")) == before


def test_bytes_that_cannot_be_made_durable_are_never_shown(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, way_of_writing: str
) -> None:
    monkeypatch.setattr(os, "fsync", failing_first(1, errno.EIO, os.fsync))

    with pytest.raises(RuntimeError, match=r"^E-IO-RETRIES .*/a: Input/output error; look at"):
        storage.create("a", b"1")

    assert files_in(folder) == []


OUT_OF_SPACE_AT = 65_536


def fill_a_small_disk(folder: Path) -> tuple[str, list[str]]:
    """Run in a child: write more than its disk holds; return the error and what can be seen."""
    mount_disk_of_my_own(folder, OUT_OF_SPACE_AT)
    return fill(folder)


def fill_beyond_a_limit(folder: Path) -> tuple[str, list[str]]:
    """Run in a child: write more than a file of its may hold."""
    with limited(resource.RLIMIT_FSIZE, OUT_OF_SPACE_AT):
        return fill(folder)


def fill(folder: Path) -> tuple[str, list[str]]:
    storage = LocalStorage(str(folder))
    storage.create("small", b"fits")
    spool = storage.spool()
    try:
        for _ in range(100):
            spool.write([bytes(3000)])
    except RuntimeError as error:
        spool.close()
        storage.create("behind", b"fits again")
        return str(error), files_in(folder)
    raise AssertionError("the disk was not small")


def test_a_full_disk_is_one_line_and_leaves_nothing_partial(folder: Path) -> None:
    if not can_mount():
        pytest.skip("this machine does not let a process mount a disk of its own")

    error, seen = outcome_of(fill_a_small_disk, folder)

    remedy = "free some space, then run again to resume"
    assert error == f"E-IO-NOSPACE {folder}: No space left on device; {remedy}"
    assert seen == ["behind", "small"]


def test_a_file_beyond_its_limit_is_one_line_too(folder: Path) -> None:
    error, seen = outcome_of(fill_beyond_a_limit, folder)

    remedy = "ask for smaller shards with --shard_size"
    assert error == f"E-IO-NOSPACE {folder}: File too large; {remedy}"
    assert seen == ["behind", "small"]


def probe_a_read_only_disk(folder: Path) -> list[str]:
    """Run in a child."""
    mount_disk_of_my_own(folder, OUT_OF_SPACE_AT)
    make_read_only(folder)
    storage = LocalStorage(str(folder))
    errors = []
    for attempt in (storage.probe, storage.spool, lambda: storage.create("a", b"")):
        try:
            attempt()
        except RuntimeError as error:
            errors.append(str(error))
    return errors


def test_a_read_only_disk_is_found_at_once(folder: Path) -> None:
    if not can_mount():
        pytest.skip("this machine does not let a process mount a disk of its own")

    line = f"E-IO-READONLY {folder}: Read-only file system; give an --output that can be written"
    assert outcome_of(probe_a_read_only_disk, folder) == [line] * 3


def test_an_output_that_is_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"file": b"of the user"})

    for output in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(RuntimeError, match=rf"^E-IO-READONLY {output}: .*; give an --output"):
            LocalStorage(str(output)).probe()
        assert list(LocalStorage(str(output)).list()) == []

    assert (tmp_path / "file").read_bytes() == b"of the user"


def test_an_output_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")

    for name in ("loop", "dangling", "x" * 300):
        with pytest.raises(RuntimeError, match=rf"^E-IO-READONLY {tmp_path}/{name}: .*; give "):
            LocalStorage(str(tmp_path / name)).probe()


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a path must not hold a NUL, got '/data/\\x00': remove"):
        open_storage("/data/\0")


def test_an_output_that_is_taken_away_is_one_line(folder: Path) -> None:
    storage = LocalStorage(str(folder / "out"))
    storage.probe()
    (folder / "out").rmdir()

    with pytest.raises(RuntimeError, match=r"^E-IO-READONLY .*/out: No such file or directory; "):
        storage.create("a", b"")


def test_a_new_output_is_made_with_its_parents(folder: Path) -> None:
    storage = LocalStorage(str(folder / "new/out"))

    storage.probe()
    storage.probe()

    assert (folder / "new/out").is_dir()
    assert files_in(folder) == []


def read_without_descriptors(folder: Path) -> list[str]:
    """Run in a child: read, list and write while no file can be opened."""
    storage = LocalStorage(str(folder))
    lowest_free = os.dup(0)
    os.close(lowest_free)
    attempts = [
        lambda: storage.read("a"),
        lambda: storage.crc32c("a"),
        lambda: list(storage.list()),
        lambda: storage.create("b", b""),
    ]
    errors = []
    with limited(resource.RLIMIT_NOFILE, lowest_free):
        for attempt in attempts:
            try:
                attempt()
            except RuntimeError as error:
                errors.append(str(error))
    return errors


def test_too_many_open_files_are_one_line(folder: Path) -> None:
    put(folder, {"a": b"1"})

    what = "Too many open files; raise the limit on open files (ulimit -n)"
    assert outcome_of(read_without_descriptors, folder) == [
        f"E-IO-LIMIT {folder}/a: {what}",
        f"E-IO-LIMIT {folder}/a: {what}",
        f"E-IO-LIMIT {folder}: {what}",
        f"E-IO-LIMIT {folder}: {what}",
    ]


@pytest.mark.parametrize("call", ["stat", "read", "list"])
def test_missing_permission_stops_the_run_at_once(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    put(folder, {"a": b"1"})
    # What root would never see: the system calls say so instead.
    for name in ("stat", "open", "scandir"):
        monkeypatch.setattr(os, name, failing(errno.EACCES))

    started_s = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^E-IO-AUTH .*: Permission denied; give this user"):
        if call == "list":
            list(storage.list())
        else:
            getattr(storage, call)("a")
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (errno.EDQUOT, "E-IO-NOSPACE"),
        (errno.ENFILE, "E-IO-LIMIT"),
        (errno.ENOMEM, "E-IO-LIMIT"),
        (errno.EPERM, "E-IO-AUTH"),
        (errno.EXDEV, "E-IO-RETRIES"),  # unheard of, but one line with a code all the same
    ],
)
def test_every_error_of_a_write_is_one_coded_line(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, fault: str
) -> None:
    spool = storage.spool()
    monkeypatch.setattr(os, "writev", failing(code))

    with pytest.raises(RuntimeError) as raised:
        spool.write([b"1"])
    spool.close()

    assert str(raised.value).startswith(f"{fault} {folder}: {os.strerror(code)}; ")
    assert "\n" not in str(raised.value)


def test_a_root_of_too_many_levels(folder: Path) -> None:
    deep = f"{folder}{'/a' * 1990}"
    with pytest.raises(RuntimeError) as raised:
        LocalStorage(deep).probe()

    line = f"E-IO-READONLY {deep}: too many levels; give a shorter --output"
    assert str(raised.value) == line
    assert not (folder / "a").exists()


def test_names_in_messages_are_escaped(storage: LocalStorage) -> None:
    with pytest.raises(RuntimeError) as raised:
        storage.read("new\nline\u202e.jpg")

    assert "/new\\nline\\u202e.jpg: not there;" in str(raised.value)


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("/data/coco", "/data/coco"),
        ("relative/coco", "relative/coco"),
        ("file:///data/coco", "/data/coco"),
        ("", "."),
        ("/data/a:b", "/data/a:b"),  # no scheme without ://
    ],
)
def test_local_paths_and_file_uris_are_local(uri: str, root: str) -> None:
    storage = open_storage(uri)

    assert isinstance(storage, LocalStorage)
    assert storage.root == root


def test_reads_a_single_file_by_its_path(folder: Path) -> None:
    put(folder, {"a.json": b"{}"})

    assert read_uri(str(folder / "a.json")) == b"{}"
    assert read_uri(f"file://{folder}/a.json") == b"{}"


@pytest.mark.parametrize(
    ("uri", "root", "name"),
    [
        ("gs://b/coco/a.json", "gs://b/coco", "a.json"),
        ("/a.json", "/", "a.json"),
        ("a.json", ".", "a.json"),
        ("coco/a.json", "coco", "a.json"),
    ],
)
def test_a_file_uri_splits_and_joins(uri: str, root: str, name: str) -> None:
    assert split_uri(uri) == (root, name)
    assert join_uri(root, name).removeprefix("./") == uri


@pytest.mark.parametrize(
    ("root", "uri", "name"),
    [
        ("gs://b/photos", "gs://b/photos/out", "out"),
        ("gs://b/photos/", "gs://b/photos/a/out/", "a/out"),
        ("gs://b/photos", "gs://b/photos", ""),
        ("gs://b/photos", "gs://b/photos2", None),  # a longer name is no folder in it
        ("gs://b/photos/out", "gs://b/photos", None),
        ("/photos", "gs://b/photos", None),
        ("/photos", "/photos/out", "out"),
        ("/photos", "file:///photos/out", "out"),
        ("/", "/photos", "photos"),
        ("/photos/../photos/.", "/photos//out", "out"),
        (".", "out", "out"),
    ],
)
def test_a_path_below_a_root_has_a_name_there(root: str, uri: str, name: str | None) -> None:
    assert name_below(root, uri) == name


def test_a_path_is_below_a_root_by_whatever_link_it_is_reached(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to("photos")

    assert name_below(str(tmp_path / "photos"), str(tmp_path / "link" / "out")) == "out"


def test_an_entry_is_a_file_unless_it_says_otherwise() -> None:
    assert Entry("a", 1, "2") == Entry(name="a", size_bytes=1, pin="2", crc32c=None, kind="file")


@pytest.mark.parametrize("given", [b"", b"01234"])
def test_a_file_of_the_listed_size_that_gives_fewer_bytes_is_a_change(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, given: bytes
) -> None:
    put(folder, {"a": b"0123456789"})
    entry = storage.stat("a")
    given_once = iter([given])
    monkeypatch.setattr(os, "read", lambda fd, size: next(given_once, b""))

    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: "):
        storage.read("a", entry)


# --- the tables of the system's errors, entry by entry ---


@pytest.mark.parametrize(
    "code", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.ENETUNREACH]
)
def test_what_passes_is_tried_again(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    put(folder, {"a": b"12345"})
    monkeypatch.setattr(os, "read", failing_first(1, code, os.read))

    assert storage.read("a") == b"12345"


AGAIN = "then run again"
LINES = {
    errno.ENOSPC: ("E-IO-NOSPACE", f"free some space, {AGAIN} to resume"),
    errno.EDQUOT: ("E-IO-NOSPACE", f"raise the quota, {AGAIN} to resume"),
    errno.EFBIG: ("E-IO-NOSPACE", "ask for smaller shards with --shard_size"),
    errno.EROFS: ("E-IO-READONLY", "give an --output that can be written"),
    errno.EEXIST: ("E-IO-READONLY", "give an --output that is a folder"),
    errno.ENOTDIR: ("E-IO-READONLY", "give an --output that is a folder"),
    errno.ELOOP: ("E-IO-READONLY", "give an --output that is a folder"),
    errno.ENAMETOOLONG: ("E-IO-READONLY", "give a shorter --output"),
    errno.ENOENT: ("E-IO-READONLY", "leave the folder there, and run again"),
    errno.EACCES: ("E-IO-AUTH", f"give this user permission, {AGAIN}"),
    errno.EPERM: ("E-IO-AUTH", f"give this user permission, {AGAIN}"),
    errno.EMFILE: ("E-IO-LIMIT", "raise the limit on open files (ulimit -n)"),
    errno.ENFILE: ("E-IO-LIMIT", "raise the system's limit on open files"),
    errno.ENOMEM: ("E-IO-LIMIT", f"free some memory, {AGAIN} to resume"),
    errno.EXDEV: ("E-IO-RETRIES", "look at the storage"),  # any other
}


@pytest.mark.parametrize(("code", "line"), LINES.items(), ids=[errno.errorcode[c] for c in LINES])
def test_an_error_of_the_system_is_this_line(code: int, line: tuple[str, str]) -> None:
    fault, remedy = line
    error = OSError(code, os.strerror(code))

    assert str(coded(error, "out/a")) == f"{fault} out/a: {os.strerror(code)}; {remedy}"


def test_an_error_without_a_number_is_called_by_its_class() -> None:
    assert (
        str(coded(BlockingIOError(), "a")) == "E-IO-RETRIES a: BlockingIOError; look at the storage"
    )


def refusing(flag: int, code: int, real: Callable[..., int]) -> Callable[..., int]:
    """Return an `os.open` that refuses a flag."""

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & flag == flag:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **kwargs)

    return refuse


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT])
def test_a_disk_without_anonymous_files_says_so_in_several_ways(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "open", refusing(os.O_TMPFILE, code, os.open))
    spool = storage.spool()
    spool.write([b"123"])

    assert [name.split("/")[0] for name in files_in(folder)] == ["_spool"]
    assert spool.publish("a") is True
    spool.close()
    assert (folder / "a").read_bytes() == b"123"


def test_a_system_without_anonymous_files_has_named_ones(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")

    assert storage.create("a", b"123") is True
    assert (folder / "a").read_bytes() == b"123"


@pytest.mark.usefixtures("no_anonymous_files")
@pytest.mark.parametrize(
    "code", [errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.EMLINK]
)
def test_a_disk_without_links_says_so_in_several_ways(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", failing(code))

    assert storage.create("a", b"123") is True
    assert storage.create("a", b"other") is False
    assert (folder / "a").read_bytes() == b"123"


@pytest.mark.usefixtures("no_anonymous_files")
def test_a_link_that_fails_for_another_reason_is_no_rename(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EDQUOT))

    with pytest.raises(RuntimeError, match=r"^E-IO-NOSPACE \S*/a: .*; raise the quota"):
        storage.create("a", b"123")
    assert files_in(folder) == []


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_folder_that_cannot_be_synced_says_so_in_several_ways(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "fsync", failing_behind(1, code, os.fsync))

    assert storage.create("a", b"1") is True


def test_a_folder_whose_sync_fails_is_trouble(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", failing_behind(1, errno.EIO, os.fsync))

    with pytest.raises(RuntimeError, match=r"^E-IO-RETRIES \S*/a: Input/output error; look at"):
        storage.create("a", b"1")


def failing_behind(times: int, code: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Return the real function for so many calls, and failures behind them."""
    calls = itertools.count()

    def fail_behind(*args: Any) -> Any:
        if next(calls) >= times:
            raise OSError(code, os.strerror(code))
        return real(*args)

    return fail_behind


def test_a_source_must_be_a_folder(storage: LocalStorage, folder: Path) -> None:
    put(folder, {"file": b""})
    storage.require_folder()

    for name, what in (("gone", "no such folder"), ("file", "a file, not a folder")):
        with pytest.raises(RuntimeError) as raised:
            LocalStorage(f"{folder}/{name}").require_folder()
        assert str(raised.value) == f"E-ARG {folder}/{name}: {what}; give the path of a folder"


# --- how often and how much the system is asked ---


def noting_reads(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Have reads give so many bytes at most; return what they are asked for."""
    read, asked = os.read, []

    def note(fd: int, size: int) -> bytes:
        asked.append(size)
        return read(fd, min(size, most))

    monkeypatch.setattr(os, "read", note)
    return asked


@pytest.mark.parametrize("listed", [True, False])
def test_a_read_is_one_call_for_one_byte_more_than_there_should_be(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    put(folder, {"a": b"0123456789"})
    entry = storage.stat("a")
    asked = noting_reads(monkeypatch, 100)

    assert storage.read("a", entry if listed else None) == b"0123456789"
    assert asked == [11]


def test_a_read_that_is_cut_short_asks_for_the_rest_alone(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"0123456789"})
    asked = noting_reads(monkeypatch, 3)

    assert storage.read("a") == b"0123456789"
    assert asked == [11, 8, 5, 2]


def test_a_file_that_grew_is_not_read_beyond_what_was_listed(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"01234"})
    entry = storage.stat("a")
    put(folder, {"a": b"0123456789"})
    asked = noting_reads(monkeypatch, 100)

    with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: 10 bytes, 5 were listed; run"):
        storage.read("a", entry)
    assert asked == [6]


class Shaky:
    """A name of a listing, and the errors that asking for its status meets first."""

    def __init__(self, found: os.DirEntry[str], codes: list[int]) -> None:
        self._found = found
        self._codes = codes
        self.name = found.name

    def stat(self) -> os.stat_result:
        if self._codes:
            code = self._codes.pop(0)
            raise OSError(code, os.strerror(code))
        return self._found.stat()


class ShakyListing(contextlib.AbstractContextManager):
    """A listing of shaky names."""

    def __init__(self, listing: Any, codes: list[int]) -> None:
        self._listing = listing
        self._codes = codes

    def __iter__(self) -> Iterator[Shaky]:
        return (Shaky(found, self._codes) for found in self._listing)

    def __exit__(self, *_: object) -> None:
        self._listing.close()


def shake(monkeypatch: pytest.MonkeyPatch, codes: list[int]) -> None:
    """Have listings meet these errors when they ask for a name's status."""
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: ShakyListing(scan(path), codes))


def test_a_status_that_is_not_there_for_a_moment_is_asked_again(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"12345"})
    expected = storage.stat("a")
    shake(monkeypatch, [errno.EIO, errno.ESTALE])

    assert list(storage.list()) == [expected]


def test_a_status_that_may_not_be_known_ends_the_listing(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"12345"})
    shake(monkeypatch, [errno.EACCES, errno.EACCES])

    with pytest.raises(RuntimeError, match=r"^E-IO-AUTH \S*/a: Permission denied; give this user"):
        list(storage.list())


def test_a_link_to_nothing_has_no_size_and_no_pin(storage: LocalStorage, folder: Path) -> None:
    (folder / "a").symlink_to("nowhere")

    assert list(storage.list()) == [Entry("a", 0, "", kind="dangling link")]


@pytest.mark.usefixtures("no_anonymous_files")
def test_dead_spools_are_dropped_behind_a_living_one_too(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = storage.spool()
    (living,) = files_in(folder)
    put(folder, {"_spool/dead": b"1", "_spool/dead too": b"2"})
    names = os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda path: sorted(names(path), key=lambda name: "dead" in name)
    )

    storage.probe()

    assert files_in(folder) == [living]
    spool.close()


def test_what_never_passes_is_told_with_its_place(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"12345"})
    monkeypatch.setattr(local, "retry", functools.partial(retry, deadline_s=0))
    monkeypatch.setattr(os, "read", failing(errno.EIO))

    with pytest.raises(RuntimeError, match=rf"^E-IO-RETRIES {folder}/a: still failing after 0 s"):
        storage.read("a")


def test_what_is_written_is_pushed_to_disk_a_megabyte_at_a_time(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, start, length, advice: pushed.append((start, length))
    )
    spool = storage.spool()
    for size in (2**20 - 1, 1, 600_000, 600_000, 3 << 20):
        spool.write([bytes(size)])
    spool.close()

    assert pushed == [(0, 2**20), (2**20, 1_200_000), (2**20 + 1_200_000, 3 << 20)]


def test_a_system_without_advice_writes_all_the_same(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise")

    assert storage.create("a", bytes(2**20)) is True
    assert (folder / "a").stat().st_size == 2**20


def tidied(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Have another run tidy a folder away, so many times, as soon as it is made."""
    make, left = os.mkdir, [times]

    def make_and_lose(path: str, mode: int = 0o777) -> None:
        make(path, mode)
        if left[0]:
            left[0] -= 1
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", make_and_lose)


@pytest.mark.usefixtures("no_anonymous_files")
def test_a_folder_of_spools_that_goes_between_two_looks_is_made_again(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there when it is to be made, and gone when it is looked at."""
    make, left = os.mkdir, [2]

    def there_and_gone(path: str, mode: int = 0o777) -> None:
        if left[0]:
            left[0] -= 1
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        make(path, mode)

    monkeypatch.setattr(os, "mkdir", there_and_gone)

    assert storage.create("a.json", b"1") is True
    assert files_in(folder) == ["a.json"]


@pytest.mark.parametrize("times", [1, 8])
def test_a_folder_that_another_run_tidies_away_is_made_again(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    tidied(monkeypatch, times)

    assert storage.create("_spool/probe", b"1") is True
    assert files_in(folder) == ["_spool/probe"]


def test_a_folder_that_is_always_tidied_away_is_one_line(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidied(monkeypatch, 9)

    with pytest.raises(RuntimeError, match=r"^E-IO-READONLY \S*/_spool/probe: No such file or dir"):
        storage.create("_spool/probe", b"1")
    assert files_in(folder) == []


def test_a_probe_that_another_run_tidies_away_has_succeeded(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_and_lose(source: str, target: str, **kwargs: Any) -> None:
        link(source, target, **kwargs)
        os.unlink(target)
        os.rmdir(os.path.dirname(target))

    monkeypatch.setattr(os, "link", link_and_lose)

    assert storage.create("_spool/probe", b"1") is True


@pytest.mark.usefixtures("no_anonymous_files")
def test_a_named_spool_that_is_gone_closes_all_the_same(
    storage: LocalStorage, folder: Path
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    spool = storage.spool()
    (name,) = files_in(folder)
    (folder / name).unlink()

    spool.close()
    spool.close()

    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("umask", [0, 0o077])
def test_files_get_all_permissions_that_the_umask_leaves(
    storage: LocalStorage, folder: Path, way_of_writing: str, umask: int
) -> None:
    before = os.umask(umask)
    try:
        storage.create("a.json", b"")
    finally:
        os.umask(before)

    assert (folder / "a.json").stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_anonymous_file_that_may_not_be_made_is_no_reason_for_a_named_one(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", refusing(os.O_TMPFILE, errno.EACCES, os.open))

    with pytest.raises(RuntimeError, match=rf"^E-IO-AUTH {folder}: Permission denied; give this"):
        storage.spool()
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("no_anonymous_files")
def test_a_folder_of_spools_that_another_run_tidies_away_is_made_again(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidied(monkeypatch, 3)

    spool = storage.spool()
    assert [name.split("/")[0] for name in files_in(folder)] == ["_spool"]
    spool.close()
    assert files_in(folder) == []


def test_a_folder_that_is_tidied_away_before_the_link_is_made_again(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, way_of_writing: str
) -> None:
    link, lost = os.link, []

    def lose_and_link(source: str, target: str, **kwargs: Any) -> None:
        if not lost:
            lost.append(target)
            os.rmdir(os.path.dirname(target))
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", lose_and_link)

    assert storage.create("index/a", b"1") is True
    assert len(lost) == 1
    assert files_in(folder) == ["index/a"]


@pytest.mark.usefixtures("no_anonymous_files")
def test_a_spool_that_is_cleaned_away_before_its_lock_leaves_no_descriptor(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, cleaned = fcntl.flock, []

    def lock_behind_a_cleaner(fd: int, how: int) -> None:
        if not cleaned:
            cleaned.append(os.readlink(f"/proc/self/fd/{fd}"))
            os.unlink(cleaned[0])
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock_behind_a_cleaner)
    before = len(os.listdir("/proc/self/fd"))
    storage.spool().close()

    assert len(cleaned) == 1
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.usefixtures("no_anonymous_files")
def test_a_link_whose_source_cannot_be_named_becomes_a_rename(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.ENOENT))
    monkeypatch.setattr(os.path, "exists", lambda path: False)

    assert storage.create("a", b"1") is True
    assert (folder / "a").read_bytes() == b"1"


@pytest.mark.usefixtures("no_anonymous_files", "no_links")
def test_a_system_without_exclusive_renames_is_refused(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())

    with pytest.raises(RuntimeError, match=r"^E-IO-READONLY \S*/root: the filesystem has neither"):
        storage.create("a", b"1")
    assert files_in(folder) == []


def test_what_is_no_file_has_no_size_and_no_pin(storage: LocalStorage, folder: Path) -> None:
    (folder / "b").mkdir()
    os.mkfifo(folder / "c")

    assert storage.stat("b") == Entry("b", 0, "", kind="directory")
    assert storage.stat("c") == Entry("c", 0, "", kind="fifo")


def test_a_checksum_is_computed_of_pieces_of_4_mib(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(folder / "a", "wb") as file:
        file.truncate(9 << 20)
    extend, pieces = google_crc32c.extend, []

    def note(crc: int, piece: bytes) -> int:
        pieces.append(len(piece))
        return extend(crc, piece)

    monkeypatch.setattr(google_crc32c, "extend", note)

    assert storage.crc32c("a") == google_crc32c.value(bytes(9 << 20))
    assert pieces == [4 << 20, 4 << 20, 1 << 20]


def test_too_little_memory_for_a_read_is_no_fault_of_the_storage(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, {"a": b"12345"})

    def run_out(fd: int, size: int) -> bytes:
        raise MemoryError

    monkeypatch.setattr(os, "read", run_out)

    with pytest.raises(MemoryError):
        storage.read("a")


@pytest.mark.parametrize("mode", [stat.S_IFBLK, stat.S_IFCHR, 0])
def test_a_device_or_a_kind_unheard_of_is_no_file(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(os, "stat", lambda path: os.stat_result((mode | 0o660, *range(1, 10))))

    assert storage.stat("a") == Entry("a", 0, "", kind="device")


def test_a_probe_leaves_nothing_where_there_are_no_locks(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))  # an NFS without its lock daemon

    storage.probe()

    assert files_in(folder) == []


@pytest.mark.usefixtures("no_anonymous_files")
def test_a_named_spool_is_linked_by_its_name(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, sources = os.link, []

    def note_link(source: str, target: str, **kwargs: Any) -> None:
        sources.append(source)
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", note_link)

    storage.create("a", b"1")

    assert [os.path.dirname(source) for source in sources] == [f"{folder}/_spool"]  # not by /proc


# --- which store a path belongs to, and single files ---


@pytest.mark.parametrize(
    ("uri", "root", "name"),
    [
        ("/a.json", "/", "a.json"),
        ("a.json", ".", "a.json"),
        ("b/a.json", "b", "a.json"),
        ("gs://b/a.json", "gs://b", "a.json"),
    ],
)
def test_a_single_file_has_a_root_and_a_name(uri: str, root: str, name: str) -> None:
    assert split_uri(uri) == (root, name)
    assert join_uri(root, name) == (uri if "/" in uri else f"./{uri}")


@pytest.mark.parametrize(
    ("root", "store", "opened"),
    [
        ("out", "LocalStorage", "out"),
        ("", "LocalStorage", "."),
        ("file:///data", "LocalStorage", "/data"),
        ("gs://bucket/out/", "GcsStorage", "gs://bucket/out"),
    ],
)
def test_a_root_s_form_chooses_its_store(root: str, store: str, opened: str) -> None:
    storage = open_storage(root)

    assert (type(storage).__name__, storage.root) == (store, opened)


def test_a_single_file_that_is_none_is_refused(folder: Path) -> None:
    put(folder, {"a.json": b"1"})
    storage, entry = find_uri(f"{folder}/a.json")
    assert (storage.root, entry.name, entry.kind) == (str(folder), "a.json", "file")

    for uri, what in ((f"{folder}/b", "no such file"), (str(folder), "a directory, not a file")):
        for act in (find_uri, read_uri):
            with pytest.raises(RuntimeError) as raised:
                act(uri)
            assert str(raised.value) == f"E-ARG {uri}: {what}; give the path of a file"


def test_stores_are_reached_with_credentials_and_the_bucket_s_own_settings() -> None:
    assert Access() == Access(anonymous=False, billing_project="", kms_key="", spool_dir="")
    with pytest.raises(AttributeError):
        Access().anonymous = True  # type: ignore[misc]


def test_a_listing_s_entry_is_never_changed_and_travels_without_names() -> None:
    entry = Entry("a", 1, "2", 3)
    with pytest.raises(AttributeError, match="immutable"):
        entry.pin = "4"  # type: ignore[misc]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(entry)) == ["a", 1, "2", 3, "file"]


@pytest.mark.parametrize(
    ("root", "uri", "name"),
    [
        ("gs://b/boX", "gs://b/boX/out", "out"),
        ("gs://b/boX/", "gs://b/boX/out", "out"),
        ("/boX/", "/boX/out", "out"),
        ("gs://b/a", "gs://b/a/../out", "../out"),  # an object's name is no path
        ("/b/a", "/b/a/../out", None),
    ],
)
def test_names_below_a_root_are_taken_literally(root: str, uri: str, name: str | None) -> None:
    assert name_below(root, uri) == name


def test_a_root_loses_its_slash_alone() -> None:
    assert join_uri("boX/", "a") == "boX/a"
    assert join_uri("/", "a") == "/a"


def test_closing_deletes_named_spools_alone(
    storage: LocalStorage, folder: Path, monkeypatch: pytest.MonkeyPatch, way_of_writing: str
) -> None:
    deleted: list[str] = []
    unlink = os.unlink
    monkeypatch.setattr(os, "unlink", lambda path: (deleted.append(path), unlink(path)))

    assert storage.create("a", b"1") is True

    linked = way_of_writing == "named, linked"
    assert [os.path.dirname(path) for path in deleted] == [f"{folder}/_spool"] * linked
