"""How stores are named and reached, and their files read as streams."""

import math
import os
from pathlib import Path

import pytest

from beam_tfrec.transforms.storage import (
    Access,
    Entry,
    Storage,
    check_uri,
    is_local,
    name_below,
    open_storage,
    open_stored,
    read_uri,
)

ACCEPTED = {
    "anonymous for images": (Access(anonymous=True), ["s3://b/x"], "out"),
    "anonymous for the output": (Access(anonymous=True), ["photos"], "s3://b/out"),
    "billing project for images": (Access(billing_project="p"), ["photos", "gs://b/x"], "out"),
    "a key": (Access(kms_key="k"), ["photos"], "gs://b/out"),
}


@pytest.mark.parametrize(("access", "images", "output"), ACCEPTED.values(), ids=ACCEPTED)
def test_flags_with_an_effect_are_accepted(access: Access, images: list[str], output: str) -> None:
    access.refuse_unused(images, ["notes.json"], output)


def test_a_key_without_an_output_on_gs_is_refused() -> None:
    message = "^kms_key must come with an output on gs://, got k: leave it out$"
    with pytest.raises(ValueError, match=message):
        Access(kms_key="k").refuse_unused(["gs://b/x"], [], "s3://b/out")


@pytest.mark.parametrize("rate", [-0.001, math.inf, math.nan])
def test_rates_must_be_finite_and_not_negative(rate: float) -> None:
    what = f"^max_reads_per_second must be .* no limit, got {rate}: give for example 1000$"
    with pytest.raises(ValueError, match=what):
        Access(max_reads_per_second=rate)


@pytest.mark.parametrize(
    ("uri", "what"),
    [
        *((uri, "hold '//'") for uri in ("gs://b//a", "gs://b/a//", "s3:////a", "hdfs://h/a//b")),
        *((uri, "a URI must be ") for uri in ("gs:/b/a", "file:/a", "S3A:/b/a")),
    ],
)
def test_wrong_slashes_of_a_uri_are_refused(uri: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"{what}.*, got '{uri}': "):
        check_uri(uri)


def test_local_paths() -> None:
    paths = ("a", "/a//b", "./a:b", "./gs:/a", "a/s3:/b", "file:///a", "gs//a", "1s://a")
    assert list(map(is_local, paths)) == [True] * len(paths)
    stores = ("gs://b/c:/d", "S3A://b/a", "x+y.z-1://a")
    assert list(map(is_local, stores)) == [False] * len(stores)
    for path in paths + stores:
        check_uri(path)  # refuses none


BELOW = {
    "the root itself": ("gs://b/photos", "gs://b/photos/", ""),
    "a bucket": ("gs://b", "gs://b/out", "out"),
    "a longer name": ("gs://b/photos", "gs://b/photos2", None),
    "another store": ("gs://b/photos", "s3://b/photos/out", None),
    "local": ("/photos", "/photos/out", "out"),
    "local by its URI": ("/photos", "file:///photos/out", "out"),
    "above the root": ("/photos/out", "/photos", None),
    "the root folder": ("/", "/out", "out"),
    "dots and double slashes": ("/photos/../photos/.", "/photos//out", "out"),
    "an object's name is not a path": ("gs://b/a", "gs://b/a/../out", "../out"),
    "relative": (".", "out", "out"),
    "through a link": ("photos", "link/out", "out"),
}


@pytest.mark.parametrize(("root", "uri", "name"), BELOW.values(), ids=BELOW)
def test_names_below_a_root(
    root: str, uri: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("photos")
    assert name_below(root, uri) == name


def test_reads_a_single_file_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"{}")
    assert read_uri(f"{tmp_path}/a.json") == b"{}"
    assert read_uri(f"file://{tmp_path}/a.json") == b"{}"
    for uri, what in {f"{tmp_path}/b": "no such file", f"{tmp_path}": "a directory, not a"}.items():
        with pytest.raises(RuntimeError, match=f"^E-ARG {uri}: {what}.*; give the path of a file"):
            read_uri(uri)


# --- streams ---


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Storage, Entry]:
    (tmp_path / "a").write_bytes(b"0123456789")
    storage = open_storage(str(tmp_path))
    return storage, next(storage.list())


@pytest.mark.parametrize("buffer_bytes", [1, 3, 100])
def test_reads_and_seeks_like_a_file(
    stored: tuple[Storage, Entry], tmp_path: Path, buffer_bytes: int
) -> None:
    with open_stored(*stored, buffer_bytes) as mine, open(tmp_path / "a", "rb") as theirs:
        for file in (mine, theirs):
            assert file.read(3) == b"012"
            assert file.seek(2, os.SEEK_CUR) == 5
            assert file.read(2) == b"56"
            assert file.seek(-1, os.SEEK_END) == 9
            assert file.read() == b"9"
            assert file.read(5) == b""
            assert file.seek(50) == 50
            assert file.read() == b""
            with pytest.raises(OSError):
                file.seek(-11, os.SEEK_END)


def test_refuses_to_read_much_at_once_or_another_file(stored: tuple[Storage, Entry]) -> None:
    with pytest.raises(ValueError, match="10 bytes at once"):
        open_stored(*stored, 1, max_at_once_bytes=5).read()
    with pytest.raises(RuntimeError, match="E-SRC-CHANGED"):
        open_stored(stored[0], Entry("a", 10, "1"), 1).read(2)
