"""How stores are named and reached: the rules that no store is asked for."""

import math
from pathlib import Path

import pytest

from transforms.storage import (
    Access,
    check_uri,
    is_local,
    join_uri,
    name_below,
    read_uri,
    split_uri,
)

ACCEPTED = {
    "anonymous for images": (Access(anonymous=True), ["s3://b/x"], "out"),
    "anonymous for the output": (Access(anonymous=True), ["photos"], "s3://b/out"),
    "who pays for images": (Access(billing_project="p"), ["photos", "gs://b/x"], "out"),
    "a key": (Access(kms_key="k"), ["photos"], "gs://b/out"),
    "a rate, some images far": (Access(max_reads_per_second=5), ["photos", "s3://b/x"], "out"),
}


@pytest.mark.parametrize(("access", "images", "output"), ACCEPTED.values(), ids=ACCEPTED)
def test_what_has_an_effect_is_accepted(access: Access, images: list[str], output: str) -> None:
    access.check_needed(images, ["notes.json"], output)


def test_a_key_for_what_is_only_read_is_refused() -> None:
    message = "^kms_key must come with an output on gs://, got k: leave it out$"
    with pytest.raises(ValueError, match=message):
        Access(kms_key="k").check_needed(["gs://b/x"], [], "s3://b/out")


@pytest.mark.parametrize("rate", [-1, -0.001, math.inf, math.nan])
def test_a_rate_is_a_number_of_requests(rate: float) -> None:
    with pytest.raises(ValueError) as raised:
        Access(max_reads_per_second=rate)
    assert str(raised.value) == (
        "max_reads_per_second must be a number of requests, or 0 for no limit,"
        f" got {rate}: give one such as 1000"
    )


@pytest.mark.parametrize("uri", ["gs://b//a", "gs://b/a//", "s3:////a", "hdfs://h/a//b"])
def test_an_empty_part_behind_a_store_is_refused(uri: str) -> None:
    with pytest.raises(ValueError) as raised:
        check_uri(uri)
    assert str(raised.value) == (
        f"a path must not hold '//' after its store, got {uri!r}: write one '/'"
    )


def test_local_paths() -> None:
    paths = ("a", "/a", "./a:b", "file:///a", "gs:/a", "gs//a", "1s://a")
    assert list(map(is_local, paths)) == [True] * len(paths)
    assert list(map(is_local, ("gs://b", "S3A://b/a", "x+y.z-1://a"))) == [False] * 3


BELOW = {
    "the root itself": ("gs://b/photos", "gs://b/photos/", ""),
    "a bucket": ("gs://b", "gs://b/out", "out"),
    "a bucket with a slash": ("gs://b/", "gs://b/x/out/", "x/out"),
    "a name that goes on": ("gs://b/photos", "gs://b/photos2", None),
    "another store": ("gs://b/photos", "s3://b/photos/out", None),
    "local": ("/photos", "/photos/out", "out"),
    "local by its URI": ("/photos", "file:///photos/out", "out"),
    "the other way round": ("/photos/out", "/photos", None),
    "the root of all": ("/", "/out", "out"),
    "local and not": ("/photos", "gs://photos/out", None),
    "by another way": ("/photos/../photos/.", "/photos//out", "out"),
    "an object's name is not a path": ("gs://b/a", "gs://b/a/../out", "../out"),
    "relative": (".", "out", "out"),
}


@pytest.mark.parametrize(("root", "uri", "name"), BELOW.values(), ids=BELOW)
def test_names_below_a_root(root: str, uri: str, name: str | None) -> None:
    assert name_below(root, uri) == name


def test_a_path_is_below_a_root_by_whatever_link_it_is_reached(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to("photos")

    assert name_below(str(tmp_path / "photos"), str(tmp_path / "link" / "out")) == "out"


@pytest.mark.parametrize(
    ("uri", "root", "name"),
    [
        ("gs://b/coco/a.json", "gs://b/coco", "a.json"),
        ("/a.json", "/", "a.json"),
        ("./a.json", ".", "a.json"),
        ("coco/a.json", "coco", "a.json"),
    ],
)
def test_a_single_file_has_a_root_and_a_name(uri: str, root: str, name: str) -> None:
    assert split_uri(uri) == (root, name)
    assert join_uri(root, name) == uri


def test_reads_a_single_file_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"{}")

    assert read_uri(f"{tmp_path}/a.json") == b"{}"
    assert read_uri(f"file://{tmp_path}/a.json") == b"{}"
    for uri, what in (
        (f"{tmp_path}/b", "no such file"),
        (str(tmp_path), "a directory, not a file"),
    ):
        with pytest.raises(RuntimeError) as raised:
            read_uri(uri)
        assert str(raised.value) == f"E-ARG {uri}: {what}; give the path of a file"
