"""`verify --runner`: the lines of the command in process, on the faults of its tests."""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pipelines import verify_job
from pipelines.verify import VerifyConfig, verify
from tests.conftest import jpeg_bytes
from tests.test_verify_data_set import (
    FAULTS,
    edit,
    flip,
    names,
    note_shared_contents,
    shards,
    whole,
)
from tests.test_verify_files import example, write

__all__ = ["whole"]
TIME = re.compile(r"in \d+\.\d s( \(\d+\.\d\d GB/s\))?")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A folder with `images` and the data set `out`, to be damaged."""
    shutil.copytree(whole, tmp_path / "set")
    names[:] = [path.name for path in shards(tmp_path / "set/out")]
    return tmp_path / "set"


def here(
    capsys: pytest.CaptureFixture[str], *paths: Path, **config: object
) -> tuple[bool, list[str]]:
    found = verify(VerifyConfig(tuple(map(str, paths)), **config))
    return found, lines(capsys)


def elsewhere(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[bool, list[str]]:
    found = verify_job.verify_elsewhere(["--runner", "FnApiRunner", *map(str, arguments)])
    return found, lines(capsys)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [TIME.sub("", line) for line in capsys.readouterr().out.splitlines()]


def keys_twice(out: Path) -> None:
    """Have both shards of val hold the same keys, in a split without an order of its own."""
    edit(out / "manifest.json", lambda m: m["plan"]["options"].update(order="all=input"))
    for name in ("parquet", "idx"):
        one, other = (out / f"index/val-0000{n}-of-00002.{name}" for n in (0, 1))
        shutil.copy(one, other)


def bits_flipped(out: Path) -> None:
    for path in out.glob("*.tfrec"):
        flip(path, 200)


PLANTED: Mapping[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "keys twice": keys_twice,
    "bits flipped in each shard": bits_flipped,
    "another seed": lambda out: edit(
        out / "manifest.json", lambda m: m["plan"]["options"].update(seed="7")
    ),
    "no plan": lambda out: (out / "manifest.json").unlink(),
    **{
        name: FAULTS[name][0]
        for name in (
            "a shard is gone",
            "a shard is cut off",
            "a stray shard of an older run",
            "an index is none",
            "a receipt says otherwise",
            "sums do not hold",
            "a manifest that is none",
        )
    },
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_planted_faults_are_told_as_in_process(
    plant: Callable[[Path], object], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(folder / "out")
    found, told = elsewhere(capsys, folder / "out", "--deep")
    assert (found, told) == here(capsys, folder / "out", deep=True)
    assert found is (plant is not PLANTED["nothing"])


def test_sources_and_several_paths_in_one_job(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, images = folder / "out", folder / "images"
    flip(images / "a001.jpg", 100)
    write(tmp_path / "a.tfrecord", [example(image=[jpeg_bytes(8, 8)[:-20]]), example(image=[b""])])
    write(tmp_path / "b.tfrecord", [example(image=[jpeg_bytes(8, 8)], x=[1]), b"no Example"])
    write(tmp_path / "c.tfrecord.gz", [example(x=[1.5])], "GZIP")
    several = (out, tmp_path / "b.tfrecord", tmp_path)
    found, told = elsewhere(capsys, *several, "--sources", images)
    assert (found, told) == here(capsys, *several, sources={"": (str(images),)})
    codes = {line.split()[0] for line in told if line.startswith("E-")}
    assert codes == {"E-VER-SOURCE", "E-VER-IMAGE", "E-VER-EXAMPLE"}
    assert "10 source files compared with the index" in told
    assert any("GZIP" in line for line in told)
    assert any(
        line.startswith("2 records of other bytes than Examples: the first") for line in told
    )


def test_contents_that_splits_share_are_counted_as_in_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_shared_contents(folder / "out")
    found, told = elsewhere(capsys, folder / "out", "--deep")
    assert not found
    path = folder / "out/duplicates.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"train":1', b'"train":2', 1))
    found, told = elsewhere(capsys, folder / "out", "--deep")
    assert (found, told) == here(capsys, folder / "out", deep=True)
    assert found and told[0].startswith("E-VER-MANIFEST duplicates.jsonl line 1: 2 records of")
