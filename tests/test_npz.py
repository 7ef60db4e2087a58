"""Members of `.npz` archives."""

import contextlib
import itertools
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from beam_tfrec.schemas.samples import Blob
from beam_tfrec.schemas.tensors import parse_npy_header
from beam_tfrec.transforms.sources.read_blobs import UNPACKED, read_blob, read_members
from beam_tfrec.transforms.storage import Entry, Storage, open_storage
from tests.array_runs import npy_bytes

IMAGES = np.random.default_rng(0).integers(0, 4, (50, 8, 8), dtype=np.uint8)
LABELS = np.arange(50)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    np.savez(tmp_path / "stored.npz", x=IMAGES, y=LABELS)
    np.savez_compressed(tmp_path / "packed.npz", x=IMAGES, y=LABELS)
    with zipfile.ZipFile(tmp_path / "zip64.npz", "w") as archive:
        for name, values in (("x", IMAGES), ("y", LABELS)):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(npy_bytes(values))
    return open_storage(str(tmp_path))


@pytest.fixture(autouse=True)
def unpacked() -> Iterator[None]:
    UNPACKED.enter()
    yield
    UNPACKED.leave()


def entry_of(storage: Storage, name: str) -> Entry:
    entry = storage.stat(name)
    assert entry is not None
    return entry


@pytest.mark.parametrize("name", ["stored.npz", "packed.npz", "zip64.npz"])
def test_rows_of_a_member_are_read(storage: Storage, name: str) -> None:
    entry = entry_of(storage, name)
    members = read_members(storage, entry)
    assert [*members] == ["x", "y"]
    for member, values in zip(members.values(), (IMAGES, LABELS), strict=True):
        header = parse_npy_header(member.head)
        offset = member.start + header.start + 7 * header.item_bytes
        place = (offset, header.item_bytes, member.packed)
        blob = Blob("r", name, entry.size_bytes, entry.pin, entry.crc32c, *place)
        assert read_blob(storage, blob) == values[7].tobytes()
        assert member.end - member.start == header.end
        assert bool(member.packed) == (name == "packed.npz")


def zip_of(
    path: Path,
    method: int = zipfile.ZIP_STORED,
    *,
    encrypted: bool = False,
    local: bytes = b"",
    copies: int = 1,
) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for _ in range(copies):
            with pytest.warns(UserWarning) if archive.namelist() else contextlib.nullcontext():
                archive.writestr("x.npy", npy_bytes(LABELS))
    data = bytearray(path.read_bytes())
    directory = data.index(b"PK\1\2")
    struct.pack_into("<H", data, directory + 8, int(encrypted))
    data[: len(local)] = local
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda path: path.write_bytes(b""), "File is not a zip file"),
        (lambda path: zip_of(path, zipfile.ZIP_BZIP2), "x is encrypted, or compressed with anothe"),
        (lambda path: zip_of(path, encrypted=True), "x is encrypted, or compressed with another m"),
        (lambda path: zip_of(path, copies=2), "several arrays have the name x"),
        (lambda path: zip_of(path, local=b"PK\1\2"), "Bad magic number for file header"),
    ],
)
def test_refuses_other_archives(write: Callable[[Path], None], what: str, tmp_path: Path) -> None:
    write(tmp_path / "a.npz")
    storage = open_storage(str(tmp_path))
    with pytest.raises(RuntimeError, match=rf"^E-ARR-ZIP \S*/a\.npz: {what}"):
        read_members(storage, entry_of(storage, "a.npz"))


def test_a_member_with_a_wrong_checksum_is_refused(storage: Storage, tmp_path: Path) -> None:
    data = bytearray((tmp_path / "packed.npz").read_bytes())
    directory = data.index(b"PK\1\2")
    struct.pack_into("<I", data, directory + 16, 1)  # the CRC-32 in the directory
    (tmp_path / "packed.npz").write_bytes(data)
    with pytest.raises(RuntimeError, match=r"^E-ARR-ZIP \S*: Bad CRC-32 for file 'x\.npy'; save"):
        UNPACKED.bytes_of(storage, entry_of(storage, "packed.npz"), "x.npy", (0, 10))


@pytest.mark.parametrize("name", ["stored.npz", "packed.npz"])
def test_a_damaged_archive_is_read_or_refused(storage: Storage, tmp_path: Path, name: str) -> None:
    """Bits are flipped outside the arrays' data, and the file is cut at every 37th byte."""
    path = tmp_path / name
    whole = path.read_bytes()
    directory = whole.index(b"PK\1\2")
    places = [*range(200), *range(directory, len(whole))]
    damaged = [whole[:n] for n in range(0, len(whole), 37)]
    for place, bit in itertools.product(places, (0, 6)):
        flipped = bytes([whole[place] ^ 1 << bit])
        damaged.append(whole[:place] + flipped + whole[place + 1 :])
    for data in damaged:
        path.write_bytes(data)
        entry = entry_of(storage, name)
        UNPACKED.leave()  # forget the previous file's members: its pin may be the same
        UNPACKED.enter()
        try:
            member = read_members(storage, entry).get("x")
            if member and member.packed:
                UNPACKED.bytes_of(storage, entry, member.packed, (10, 30))
        except RuntimeError as error:
            assert str(error).startswith("E-ARR-ZIP "), error
