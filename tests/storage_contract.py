"""What every storage must do: one class of tests, inherited by the test file of each storage."""

import gzip
import os
import threading
from pathlib import Path

import pytest

from transforms.storage import Entry, Storage

ODD_NAMES = [
    "plain.jpg",
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


class StorageContract:
    """Subclasses provide the fixtures `storage`, and `folder`: where its files lie on disk."""

    def test_lists_nested_files_with_their_sizes(self, storage: Storage, folder: Path) -> None:
        put(folder, {"a.jpg": b"1", "b/c.jpg": b"22", "b/d/e.jpg": b"", ".hidden": b"333"})

        assert sizes_of(storage) == {"a.jpg": 1, "b/c.jpg": 2, "b/d/e.jpg": 0, ".hidden": 3}

    def test_lists_one_folder_alone(self, storage: Storage, folder: Path) -> None:
        put(folder, {"a": b"1", "b/c": b"22", "b/d/e": b"333", "bc": b"4444"})

        assert sizes_of(storage, "b/", recursive=False) == {"b/c": 2}
        assert sizes_of(storage, "b/") == {"b/c": 2, "b/d/e": 3}
        assert sizes_of(storage, recursive=False) == {"a": 1, "bc": 4}

    def test_lists_nothing_where_there_is_no_folder(self, storage: Storage) -> None:
        assert list(storage.list("nowhere/")) == []

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_takes_names_literally(self, storage: Storage, folder: Path, name: str) -> None:
        put(folder, {name: b"literal", "a1.jpg": b"what a[1].jpg would match", "starry.jpg": b""})

        entry = storage.stat(name)

        assert entry is not None
        assert entry in list(storage.list())
        assert (entry.name, entry.size_bytes) == (name, 7)
        assert storage.read(name, entry) == b"literal"

    def test_knows_no_entry_of_what_is_not_there(self, storage: Storage, folder: Path) -> None:
        put(folder, {"a": b"1"})

        assert storage.stat("b") is None
        assert storage.stat("b/c") is None

    def test_reads_a_gzip_file_as_it_is(self, storage: Storage, folder: Path) -> None:
        packed = gzip.compress(b"instances", mtime=0)
        put(folder, {"instances.json.gz": packed})

        assert storage.read("instances.json.gz") == packed
        assert storage.read("instances.json.gz", storage.stat("instances.json.gz")) == packed

    @pytest.mark.parametrize("size", [0, 1, 4096, 3_000_000])
    def test_reads_every_size(self, storage: Storage, folder: Path, size: int) -> None:
        data = bytes(range(256)) * (size // 256 + 1)
        put(folder, {"a": data[:size]})

        assert storage.read("a", storage.stat("a")) == data[:size]

    def test_refuses_a_file_that_grew(self, storage: Storage, folder: Path) -> None:
        entry = listed(storage, folder, b"12345")
        rewrite(folder, b"123456")

        with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: 6 bytes, 5 were listed"):
            storage.read("a", entry)

    def test_refuses_a_file_that_shrank(self, storage: Storage, folder: Path) -> None:
        entry = listed(storage, folder, b"12345")
        rewrite(folder, b"1234")

        with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: 4 bytes, 5 were listed"):
            storage.read("a", entry)

    def test_refuses_a_file_that_was_touched(self, storage: Storage, folder: Path) -> None:
        entry = listed(storage, folder, b"12345")
        os.utime(folder / "a", (1_700_000_000, 1_700_000_000))

        with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: .*modified"):
            storage.read("a", entry)

    def test_refuses_a_file_that_is_gone(self, storage: Storage, folder: Path) -> None:
        entry = listed(storage, folder, b"12345")
        (folder / "a").unlink()

        for expected in (entry, None):
            with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: not there; run again"):
                storage.read("a", expected)
        with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED \S*/a: not there; run again"):
            storage.crc32c("a")

    def test_computes_the_crc32c(self, storage: Storage, folder: Path) -> None:
        put(folder, {"a": b"123456789", "large": bytes(5_000_000)})

        assert storage.crc32c("a") == 0xE3069283  # the check value of RFC 3720's polynomial
        assert storage.crc32c("large") == 0x1C92FE1C

    def test_creates_a_file_once(self, storage: Storage, folder: Path) -> None:
        assert storage.create("new/folder/a.json", b"first") is True
        assert storage.create("new/folder/a.json", b"second") is False

        assert (folder / "new/folder/a.json").read_bytes() == b"first"
        assert files_in(folder) == ["new/folder/a.json"]

    def test_creates_empty_files(self, storage: Storage, folder: Path) -> None:
        assert storage.create("empty", b"") is True
        assert (folder / "empty").read_bytes() == b""

    def test_shows_a_spool_only_whole(self, storage: Storage, folder: Path) -> None:
        spool = storage.spool()
        for part in range(100):
            spool.write([bytes([part]) * 10_000, b"|"])
            assert list(folder.rglob("*.tfrec")) == []
        assert spool.publish("a.tfrec") is True
        spool.close()

        expected = b"".join(bytes([part]) * 10_000 + b"|" for part in range(100))
        assert (folder / "a.tfrec").read_bytes() == expected
        assert files_in(folder) == ["a.tfrec"]

    def test_shows_no_partial_file_to_one_who_keeps_looking(
        self, storage: Storage, folder: Path
    ) -> None:
        stop = threading.Event()
        sizes: set[int] = set()
        looking = threading.Thread(target=watch, args=(folder, stop, sizes))
        looking.start()
        for number in range(20):
            spool = storage.spool()
            for _ in range(8):
                spool.write([bytes(50_000)])
            spool.publish(f"{number}.tfrec")
            spool.close()
        stop.set()
        looking.join()

        assert sizes == {400_000}

    def test_a_spool_of_several_writes_appears_whole(self, storage: Storage, folder: Path) -> None:
        data = bytes(range(256)) * 40_000  # in several pieces
        spool = storage.spool()
        spool.write([data[:1], data[1:9_000_000]])
        spool.write([data[9_000_000:]])

        spool.publish("a.tfrec")
        spool.close()

        assert (folder / "a.tfrec").read_bytes() == data

    def test_leaves_nothing_of_a_spool_that_is_not_published(
        self, storage: Storage, folder: Path
    ) -> None:
        spool = storage.spool()
        spool.write([b"lost"])
        spool.close()
        spool.close()  # closing twice is harmless

        assert files_in(folder) == []

    def test_leaves_a_taken_name_as_it_is(self, storage: Storage, folder: Path) -> None:
        put(folder, {"a.tfrec": b"of another"})
        spool = storage.spool()
        spool.write([b"mine"])

        assert spool.publish("a.tfrec") is False
        spool.close()

        assert (folder / "a.tfrec").read_bytes() == b"of another"
        assert files_in(folder) == ["a.tfrec"]

    def test_deletes_a_file_or_finds_it_deleted(self, storage: Storage, folder: Path) -> None:
        put(folder, {"a/b": b"1", "a/c": b"2"})

        storage.delete("a/b")
        storage.delete("a/b")
        storage.delete("x/y")

        assert files_in(folder) == ["a/c"]

    def test_proves_that_it_can_write(self, storage: Storage, folder: Path) -> None:
        storage.probe()
        assert files_in(folder) == []


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def listed(storage: Storage, folder: Path, data: bytes) -> Entry:
    """Return the entry of a new file `a`, its mtime in the past."""
    put(folder, {"a": data})
    os.utime(folder / "a", (1_600_000_000, 1_600_000_000))
    (entry,) = storage.list()
    return entry


def rewrite(folder: Path, data: bytes) -> None:
    """Change the bytes of `a` and restore its mtime, which alone would be told already."""
    (folder / "a").write_bytes(data)
    os.utime(folder / "a", (1_600_000_000, 1_600_000_000))


def sizes_of(storage: Storage, prefix: str = "", *, recursive: bool = True) -> dict[str, int]:
    entries = storage.list(prefix, recursive=recursive)
    return {entry.name: entry.size_bytes for entry in entries if entry.kind == "file"}


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir())


def watch(folder: Path, stop: threading.Event, sizes: set[int]) -> None:
    """Note the size of every `*.tfrec` that can be seen, until told to stop."""
    while True:
        last_look = stop.is_set()
        for path in folder.glob("*.tfrec"):
            sizes.add(path.stat().st_size)
        if last_look:
            return
