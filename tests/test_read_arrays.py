"""Rows of array files as samples, and members of `.npz` archives."""

import contextlib
import itertools
import struct
import zipfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.fields import ArrayFields
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.splits import HASH, Splitting
from beam_tfrec.schemas.tensors import parse_npy_header
from beam_tfrec.transforms.sources import read_arrays
from beam_tfrec.transforms.sources.read_arrays import (
    ArrayReader,
    ArraySource,
    choose_files,
    open_file,
    plan_pieces,
)
from beam_tfrec.transforms.sources.read_blobs import UNPACKED, read_blob, read_members
from beam_tfrec.transforms.sources.read_samples import SplitTally
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Entry, Storage, open_storage
from tests.array_runs import npy_bytes, random_images

GIVEN = Splitting()
IMAGES = random_images(5, 4)


def read(source: ArraySource, splitting: Splitting = GIVEN) -> list[Any]:
    """Return all that is read from a source, piece by piece."""
    storage, sources = open_storage(source.folder), {"train": source}
    files = [*choose_files("train", storage.list(), sources)]
    if source.is_file:
        files = [file for file in files if source.uri.endswith(f"/{file.entry.name}")]
    opened = [piece for file in files for piece in open_file(file, sources, DEFAULT_ACCESS)]
    reader = ArrayReader(splitting, sources, DEFAULT_ACCESS)
    planned = plan_pieces(("train", opened), sources, DEFAULT_ACCESS)
    return [item for piece in planned for item in reader(piece)]


def samples(source: ArraySource, splitting: Splitting = GIVEN) -> list[Sample]:
    return [item for item in read(source, splitting) if isinstance(item, Sample)]


def fields_of(sample: Sample) -> ArrayFields:
    return msgspec.msgpack.decode(sample.fields, type=ArrayFields)


def bytes_of(sample: Sample, folder: Path) -> bytes:
    (blob,) = sample.blobs
    return (folder / blob.name).read_bytes()[blob.offset : blob.offset + blob.length]


def save(folder: Path, **arrays: Any) -> None:
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)


IN_TWO = {"b.npy": IMAGES[2:], "a.npy": IMAGES[:2], "y.npy": [5, 6, 7, 8, 9], "README.txt": 0}
TO_NAME = {"x.npy": IMAGES, "masks.npy": IMAGES[..., 0], "y.npy": [0] * 5}
ALONE = {"a.npy": IMAGES[0], "b.npy": IMAGES[1, :2], "deep/c.npy": IMAGES[2], "y.npy": [7, 8, 9]}
ARCHIVES = {"a.npz": {"x": IMAGES[0], "y": 3}, "b.npz": {"x": IMAGES[1], "y": [4]}}
EACH = {"label": "y", "one_sample_per_file": True}
SAMPLES = {
    "a file": (IN_TWO, "/b.npy", {}, "012", [None] * 3, IMAGES[2:]),
    "files of a folder": (
        *(IN_TWO, "", {"label": "y"}),
        *(["a.npy:0", "a.npy:1", "b.npy:0", "b.npy:1", "b.npy:2"], [5, 6, 7, 8, 9], IMAGES),
    ),
    "a named array": (
        *(TO_NAME, "", {"image": "masks", "label": "y"}, "01234", [0] * 5, IMAGES[..., 0]),
    ),
    "each file": (
        *(ALONE, "", EACH, ["a.npy", "b.npy", "deep/c.npy"], [7, 8, 9]),
        [IMAGES[0], IMAGES[1, :2], IMAGES[2]],
    ),
    "each archive": (ARCHIVES, "", EACH, ["a.npz", "b.npz"], [3, 4], IMAGES[:2]),
}


@pytest.mark.parametrize(
    ("files", "uri", "source", "keys", "labels", "values"), SAMPLES.values(), ids=SAMPLES
)
def test_items_are_samples(
    files: Any, uri: str, source: Any, keys: Any, labels: Any, values: Any, tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    for name, saved in files.items():
        with (tmp_path / name).open("wb") as file:
            np.savez(file, **saved) if name.endswith(".npz") else np.save(file, saved)
    found = samples(ArraySource(f"{tmp_path}{uri}", **source))
    assert [sample.key for sample in found] == [*keys]
    assert [sample.position for sample in found] == [*range(len(found))]
    assert [fields_of(sample).label for sample in found] == labels
    assert [fields_of(sample).shape for sample in found] == [item.shape for item in values]
    assert [bytes_of(sample, tmp_path) for sample in found] == [item.tobytes() for item in values]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([0, 200, 2], ">i4"), [0, 200, 2]),
        (np.array([[0], [200], [2]], "i8"), [0, 200, 2]),
        (np.array([True, False, True]), [1, 0, 1]),
        (np.array(["cat", "ox", "cat"], ">U3"), ["cat", "ox", "cat"]),
        (np.array([b"cat", b"ox", b"cat"]), ["cat", "ox", "cat"]),
    ],
)
def test_labels_are_named_in_the_folder_or_by_path(
    labels: np.ndarray, expected: list, tmp_path: Path
) -> None:
    save(tmp_path, x=IMAGES[:3], y=labels)
    for label in ("y", f"{tmp_path}/y.npy"):
        *found, note = read(ArraySource(f"{tmp_path}/x.npy", label=label))
        assert [fields_of(sample).label for sample in found] == expected
        is_text = expected[0] == "cat"
        assert note.class_names == (["cat", "ox"] if is_text else [])
        assert note.found == ["dtype uint8", f"label {'bytes' if is_text else 'int64'}", "rank 3"]


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
def test_arrays_of_an_archive_belong_together(tmp_path: Path, save_npz: Any) -> None:
    arrays = {"images": IMAGES, "y": np.arange(5), "age": np.linspace(0, 1, 5), "ok": [True] * 5}
    save_npz(tmp_path / "a.npz", **arrays)
    found = samples(ArraySource(f"{tmp_path}/a.npz", label="y", features=("age", "ok")))
    assert [sample.key for sample in found] == ["0", "1", "2", "3", "4"]
    assert [fields_of(sample).label for sample in found] == [0, 1, 2, 3, 4]
    assert fields_of(found[1]).features == {"age": 0.25, "ok": 1}
    assert {s.blobs[0].member for s in found} == {"" if save_npz is np.savez else "images.npy"}


def test_large_arrays_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_arrays, "MAX_PIECE_BYTES", 2 * read_arrays.MIN_ROW_BYTES)
    np.savez_compressed(tmp_path / "a.npz", x=IMAGES, y=np.arange(5))
    found = samples(ArraySource(f"{tmp_path}/a.npz", label="y"))
    assert [(s.key, fields_of(s).label) for s in found] == [(str(n), n) for n in range(5)]


def test_splits_follow_the_key_or_a_feature(tmp_path: Path) -> None:
    save(tmp_path, x=IMAGES, scene=["a", "b", "a", "b", "a"], part=["val"] + ["train"] * 4)
    source = ArraySource(f"{tmp_path}/x.npy", features=("scene", "part"))
    halves = {"train": Fraction(1), "val": Fraction(1)}
    by_key = [s.split for s in samples(source, Splitting(HASH, halves))]
    by_scene = [s.split for s in samples(source, Splitting(HASH, halves, "scene"))]
    by_part = [s.split for s in samples(source, Splitting("part"))]
    assert by_key == [Splitting(HASH, halves).draw(str(row)) for row in range(5)]
    assert by_scene == [Splitting(HASH, halves).draw(scene) for scene in "ababa"]
    assert by_part == ["val", "train", "train", "train", "train"]


def test_an_item_over_the_limit_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_arrays, "MAX_EXAMPLE_BYTES", 47)
    save(tmp_path, x=IMAGES[:1])
    (rejected,) = read(ArraySource(f"{tmp_path}/x.npy"))
    found = (rejected.code, rejected.key, rejected.detail)
    assert found == ("E-EX-TOO-LARGE", "0", "48 bytes, the limit is 47")


def test_a_row_that_no_example_can_hold_is_rejected(tmp_path: Path) -> None:
    save(tmp_path, x=IMAGES[:3], y=["cat", "", "dog"], f=[1.0, 2.0, 1e300])
    found = read(ArraySource(f"{tmp_path}/x.npy", label="y", features=("f",)))
    rejected = [(item.key, item.code, item.detail) for item in found if isinstance(item, Rejected)]
    assert rejected == [
        ("1", "E-SRC-LABEL", "its label is an empty text"),
        ("2", "E-ROW-TYPE", "f: 1e+300, beyond float32"),
    ]
    assert [item.class_names for item in found if isinstance(item, SplitTally)] == [["cat"]]


DATA = npy_bytes(IMAGES)
EMPTY = npy_bytes(np.zeros((3, 0), "u1"))
ENDLESS = EMPTY.replace(b"(3, 0), }" + b" " * 20, b"(%d, 0), }  " % 2**62)
LATIN = np.array([2**31 - 1], "<i4").view("U1")
X, Y = {"x": IMAGES}, {"label": "y"}
FAULTS = [
    ({"x": np.array([None])}, {}, r"E-ARR-TYPE \S*/x.npy: an array must be of bool, .* got '.O'"),
    (X, {"dtype": "bfloat16"}, r"E-ARR-TYPE \S*/x.npy: values of uint8, but --dtype is bfloat16;"),
    (X, {"dtype": "bfloat16", "tensors": ("x",)}, r"E-ARR-TYPE .*: no array has .* is bfloat16; "),
    ({"x": np.uint8(3)}, {}, "E-ARR-TYPE .*no items .* is \\(\\); give --one_sample_per_file"),
    ({"x": np.array(["a"])}, {}, "E-ARR-TYPE .*: text; name the image array"),
    ({**X, "y": [1] * 6}, Y, "E-ARR-COUNT .*: 6 rows, the images have 5;"),
    ({**X, "y": np.eye(5)}, Y, r"E-ARR-TYPE .*: float64 of shape \(5, 5\), instead of one whole"),
    ({**X, "y": np.ones(5)}, Y, r"E-ARR-TYPE .*: float64 of shape \(5,\), instead of one whole"),
    (X, Y, r"E-ARG \S*/y.npy: no such file"),
    ({"x": IMAGES[:1], "y": LATIN}, Y, "E-ARR-TYPE .*: text that cannot be decoded"),
    *(({"x": DATA[:cut]}, {}, r"E-ARR-HEADER \S*/x\.npy: ") for cut in (0, 5, 128, 300)),
    ({"x": ENDLESS}, {}, r"E-ARR-TYPE \S*/x\.npy: no items with values along the first"),
]


@pytest.mark.parametrize(("arrays", "options", "line"), FAULTS)
def test_bad_arrays_are_refused(arrays: Any, options: Any, line: str, tmp_path: Path) -> None:
    for name, values in arrays.items():
        data = values if isinstance(values, bytes) else npy_bytes(values)
        (tmp_path / f"{name}.npy").write_bytes(data)
    with pytest.raises(RuntimeError, match=f"^{line}"):
        read(ArraySource(f"{tmp_path}/x.npy", **options))


@pytest.mark.parametrize(
    ("arrays", "source", "line"),
    [
        ("ab", {}, "E-ARG .*: it needs one array of images; it has a, b; correct the names"),
        (["x", "images"], {}, "E-ARG .*: it needs one array of images; it has x, images; "),
        ("a", {"image": "x"}, "E-ARG .*: it needs x; it has a; "),
        ("a", {"label": "y"}, "E-ARG .*: it needs one array of images, y; it has a; "),
        ("xy", {"label": "y"}, r"E-ARR-TYPE .*/a\.npz:y: uint8 of shape \(5, 4, 4, 3\), instead"),
    ],
)
def test_other_arrays_are_named(arrays: Any, source: Any, line: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **dict.fromkeys(arrays, IMAGES))
    with pytest.raises(RuntimeError, match=f"^{line}"):
        read(ArraySource(f"{tmp_path}/a.npz", **source))


def test_a_packed_member_longer_than_its_array_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", DATA + bytes(10**6))
    line = r"^E-ARR-HEADER \S*/a\.npz:x: 1000368 bytes, its header says 368; "
    with pytest.raises(RuntimeError, match=line):
        read(ArraySource(f"{tmp_path}/a.npz"))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("b.npz", r"E-ARG \S*: it holds both \.npy and \.npz files; "),
        ("b.NPY", r"E-ARR-HEADER \S*/b\.NPY: a file, but only files that end in .*; rename it"),
        ("b\udcff.npy", r"E-ARR-HEADER \S*: a file whose name is not UTF-8, "),
        ("link.npy", r"E-ARR-HEADER \S*/link\.npy: a dangling link, but only files .*, repair it,"),
    ],
)
def test_other_files_of_a_folder_are_refused(name: str, line: str, tmp_path: Path) -> None:
    save(tmp_path, a=IMAGES)
    if name == "b.npz":
        np.savez(tmp_path / name, x=IMAGES)
    elif name == "link.npy":
        (tmp_path / name).symlink_to("nowhere")
    else:
        (tmp_path / name).write_bytes(DATA)
    with pytest.raises(RuntimeError, match=f"^{line}"):
        read(ArraySource(str(tmp_path)))


# --- members of archives ---

MANY, LABELS = random_images(50), np.arange(50)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    np.savez(tmp_path / "stored.npz", x=MANY, y=LABELS)
    np.savez_compressed(tmp_path / "packed.npz", x=MANY, y=LABELS)
    with zipfile.ZipFile(tmp_path / "zip64.npz", "w") as archive:
        for name, values in (("x", MANY), ("y", LABELS)):
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
    for member, values in zip(members.values(), (MANY, LABELS), strict=True):
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
