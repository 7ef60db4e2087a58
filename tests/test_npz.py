"""Members of `.npz` archives."""

import contextlib
import os
import struct
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from schemas.tensors import parse_npy_header
from tests.array_runs import npy_bytes
from transforms.sources import read_blobs
from transforms.sources.read_blobs import UnpackedMembers, find_member, list_members
from transforms.storage import Entry, Storage, open_storage

IMAGES = np.random.default_rng(0).integers(0, 4, (50, 8, 8), dtype=np.uint8)
LABELS = np.arange(50)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    np.savez(tmp_path / "stored.npz", x=IMAGES, y=LABELS)
    np.savez_compressed(tmp_path / "packed.npz", x=IMAGES, y=LABELS)
    return open_storage(str(tmp_path))


@pytest.fixture
def unpacked() -> Iterator[UnpackedMembers]:
    members = UnpackedMembers()
    members.enter()
    yield members
    members.leave()


def entry_of(storage: Storage, name: str) -> Entry:
    entry = storage.stat(name)
    assert entry is not None
    return entry


@pytest.mark.parametrize("name", ["stored.npz", "packed.npz"])
def test_lists_the_arrays(storage: Storage, name: str) -> None:
    assert list_members(storage, entry_of(storage, name)) == ["x", "y"]


def test_a_stored_member_is_a_range_of_the_file(storage: Storage) -> None:
    entry = entry_of(storage, "stored.npz")
    member = find_member(storage, entry, "y")
    header = parse_npy_header(member.head)

    span = member.start + header.start, member.start + header.end
    assert member.packed == ""
    assert storage.read(entry.name, entry, span) == LABELS.tobytes()


def test_a_packed_member_is_read_from_its_beginning(
    storage: Storage, unpacked: UnpackedMembers
) -> None:
    entry = entry_of(storage, "packed.npz")
    member = find_member(storage, entry, "x")
    header = parse_npy_header(member.head)
    begin = header.start + 7 * header.item_bytes
    span = begin, begin + header.item_bytes

    assert member.packed == "x.npy"
    assert unpacked.bytes_of(storage, entry, "x.npy", span) == IMAGES[7].tobytes()


def test_a_member_is_unpacked_once_and_leaves_nothing(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, spool = entry_of(storage, "packed.npz"), tmp_path / "spool"
    spool.mkdir()
    made: list[object] = []
    real = tempfile.TemporaryFile

    def temporary(**options: object) -> object:
        made.append(options["dir"])
        return real(**options)

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary)
    members = UnpackedMembers()
    members.enter(str(spool))
    members.enter(str(spool))

    def read() -> None:
        for row in range(50):
            assert members.bytes_of(storage, entry, "x.npy", (128 + row * 64, 192 + row * 64))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    members.leave()
    assert made == [str(spool)]
    assert os.listdir(spool) == []

    assert members.bytes_of(storage, entry, "x.npy", (128, 129)) == IMAGES.tobytes()[:1]
    assert made == [str(spool)]
    members.leave()
    members.enter(str(spool))
    assert members.bytes_of(storage, entry, "x.npy", (128, 129)) == IMAGES.tobytes()[:1]
    assert made == [str(spool)] * 2
    members.leave()


def test_a_zip64_archive_is_read(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name, values in (("x", IMAGES), ("y", LABELS)):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(npy_bytes(values))
    entry = entry_of(storage, "a.npz")

    member = find_member(storage, entry, "y")

    assert storage.read("a.npz", entry, (member.start, member.end)) == npy_bytes(LABELS)


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda path: path.write_bytes(b""), "File is not a zip file"),
        (lambda path: zip_of(path, zipfile.ZIP_BZIP2), "x.npy is compressed by method 12"),
        (lambda path: zip_of(path, encrypted=True), "x.npy is encrypted"),
        (lambda path: zip_of(path, name="z.npy"), "no array x.npy"),
        (lambda path: zip_of(path, copies=2), "several arrays x.npy"),
        (lambda path: zip_of(path, local=b"PK\1\2"), "no header of x.npy where it should be"),
    ],
)
def test_refuses_other_archives(write: object, what: str, tmp_path: Path) -> None:
    write(tmp_path / "a.npz")  # type: ignore[operator]
    storage = open_storage(str(tmp_path))

    with pytest.raises(RuntimeError, match=rf"^E-ARR-ZIP \S*/a\.npz: {what}; save it again with"):
        find_member(storage, entry_of(storage, "a.npz"), "x")


def zip_of(
    path: Path,
    method: int = zipfile.ZIP_STORED,
    *,
    encrypted: bool = False,
    name: str = "x.npy",
    local: bytes = b"",
    copies: int = 1,
) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for _ in range(copies):
            with pytest.warns(UserWarning) if archive.namelist() else contextlib.nullcontext():
                archive.writestr(name, npy_bytes(LABELS))
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\1\2")
    struct.pack_into("<H", data, directory + 8, int(encrypted))
    data[: len(local)] = local
    path.write_bytes(data)


def test_a_member_of_other_bytes_is_refused(tmp_path: Path, unpacked: UnpackedMembers) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=IMAGES)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    directory = data.index(b"PK\1\2")
    struct.pack_into("<I", data, directory + 16, 1)  # the CRC-32 in the directory
    (tmp_path / "a.npz").write_bytes(data)
    storage = open_storage(str(tmp_path))

    with pytest.raises(RuntimeError, match=r"^E-ARR-ZIP \S*: Bad CRC-32 for file 'x\.npy'; save"):
        unpacked.bytes_of(storage, entry_of(storage, "a.npz"), "x.npy", (0, 10))


def test_a_full_disk_is_named(
    storage: Storage, unpacked: UnpackedMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(read_blobs.tempfile, "TemporaryFile", full)
    line = r"^E-IO-NOSPACE \S*: No space left on device; give a --spool_dir with room"
    with pytest.raises(RuntimeError, match=line):
        unpacked.bytes_of(storage, entry_of(storage, "packed.npz"), "x.npy", (0, 10))


@pytest.mark.parametrize("name", ["stored.npz", "packed.npz"])
def test_a_damaged_archive_is_read_or_refused(storage: Storage, tmp_path: Path, name: str) -> None:
    """Every bit of what is no array's data, and cuts at every tenth byte."""
    path = tmp_path / name
    whole = path.read_bytes()
    directory = whole.index(b"PK\1\2")
    flips = [
        (place, bit) for place in (*range(200), *range(directory, len(whole))) for bit in (0, 3, 7)
    ]
    damaged = [whole[:n] for n in range(0, len(whole), 37)]
    for place, bit in flips:
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        damaged.append(bytes(changed))
    for data in damaged:
        path.write_bytes(data)
        read_or_refused(storage, entry_of(storage, name))


def read_or_refused(storage: Storage, entry: Entry) -> None:
    members = UnpackedMembers()
    members.enter()
    try:
        list_members(storage, entry)
        member = find_member(storage, entry, "x")
        if member.packed:
            members.bytes_of(storage, entry, member.packed, (10, 30))
    except RuntimeError as error:
        assert str(error).startswith("E-ARR-ZIP "), error
    finally:
        members.leave()
