"""Runs whose shards are built by two processes."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipelines import run as runner
from tests.children import builders_beside, wait_until_gone
from tests.coco_command import (
    MakeCoco,
    Sources,
    check_visible,
    command,
    committed,
    digests,
    finish,
    run_coco,
    shard_paths,
    start_coco,
)
from tests.small_runs import write_set
from transforms import builders
from transforms.gate import PROGRESS

TWO = ("--workers", 2)
"""Starts a second process even on a machine of one core."""


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of shards that this process builds itself."""
    names: list[str] = []
    write_shard = builders.write_shard

    def noted(shard: Any, *args: Any) -> Any:
        names.append(str(shard.name))
        return write_shard(shard, *args)

    monkeypatch.setattr(builders, "write_shard", noted)
    return names


@contextlib.contextmanager
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this process build all shards."""
    with monkeypatch.context() as patch:
        patch.setattr(runner, "builder_processes", lambda *_: contextlib.nullcontext())
        yield


FEATURES = {"boxes": (), "masks": ("--features", "boxes,masks,polygons")}


@pytest.mark.parametrize("flags", FEATURES.values(), ids=FEATURES)
def test_the_bytes_are_those_of_one_process(
    flags: tuple[str, ...],
    built_here: list[str],
    make_coco: MakeCoco,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What masks are made of lies in the run's spool."""
    sources = make_coco(24)
    (sources[0] / "a003.jpg").write_bytes(b"<html>")
    flags = (*flags, "--num_shards", "12", "--max_rejected", "1", *map(str, TWO))
    committed(sources, tmp_path / "both", *flags)
    assert 0 < len(built_here) < 12
    assert (PROGRESS.done, PROGRESS.planned, PROGRESS.rejected) == (24, 24, 1)
    assert PROGRESS.shards_done == PROGRESS.shards_planned == 12
    assert builders_beside(os.getpid()) == []
    with alone(monkeypatch):
        built_here.clear()
        committed(sources, tmp_path / "alone", *flags)
    assert len(built_here) == 12
    assert digests(tmp_path / "both") == digests(tmp_path / "alone")


def test_a_fault_leaves_no_process(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(8), tmp_path / "out"
    committed(sources, out, "--num_shards", 8, *TWO)
    (out / "manifest.json").unlink()
    for path in shard_paths(out):
        os.truncate(path, 10)
    run = run_coco(*command(sources, out, "--num_shards", 8, *TWO))
    assert run.ended == (5, "E-OUT-CONFLICT"), run.err
    assert builders_beside(os.getpid()) == []


# Ends of either process.

MANY = ("--num_shards", 120, "--no_report", *TWO)


class Job(NamedTuple):
    """A conversion of many small shards, and the digests of what it makes undisturbed."""

    sources: Sources
    undisturbed: dict[str, str]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    sources = write_set(folder, 120)
    committed(sources, folder / "out", *MANY)
    return Job(sources, digests(folder / "out"))


@contextlib.contextmanager
def with_shards_to_build(job: Job, out: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Start a run; yield it and its builder process once there are shards."""
    process = start_coco(*command(job.sources, out, *MANY))
    try:
        while process.poll() is None and not shard_paths(out):
            time.sleep(0.005)
        (beside,) = builders_beside(process.pid)
        yield process, beside
    finally:
        process.kill()
        process.communicate()
    wait_until_gone([beside])


def check_rerun(job: Job, out: Path) -> None:
    """Run again; it makes the bytes of an undisturbed run."""
    assert 0 < check_visible(out) < 120
    assert not (out / "manifest.json").exists()
    committed(job.sources, out, *MANY)
    assert digests(out) == job.undisturbed


def test_the_other_process_is_killed(job: Job, tmp_path: Path) -> None:
    with with_shards_to_build(job, tmp_path / "out") as (process, beside):
        os.kill(beside, signal.SIGKILL)
        run = finish(process)
    assert run.ended == (6, "E-IO-LIMIT"), run.err
    assert "one that built shards was ended by signal 9 (Killed)" in run.fault
    check_rerun(job, tmp_path / "out")


def test_the_run_is_ended(job: Job, tmp_path: Path) -> None:
    """And the other process with it: `with_shards_to_build` waits for that."""
    with with_shards_to_build(job, tmp_path / "out") as (process, _):
        process.kill()
        assert finish(process).code == -signal.SIGKILL
    check_rerun(job, tmp_path / "out")


def test_where_none_can_start_a_run_builds_alone(
    built_here: list[str], make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transforms.builders.sys.executable", "/bin/false")
    committed(make_coco(6), tmp_path / "out", "--num_shards", 6, *TWO)
    assert len(built_here) == 6


# How many processes a run starts.
