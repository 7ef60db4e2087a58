"""Runs whose shards are built by two processes; `test_kill_and_resume.py` kills them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines import run as runner
from tests.children import builders_beside
from tests.coco_command import MakeCoco, command, committed, digests, run_coco, shard_paths
from transforms import builders
from transforms.progress import PROGRESS

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


def test_the_bytes_are_those_of_one_process(
    built_here: list[str],
    make_coco: MakeCoco,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What masks are made of lies in the run's spool."""
    sources = make_coco(24)
    (sources[0] / "a003.jpg").write_bytes(b"<html>")
    flags = ("--features", "boxes,masks,polygons", "--num_shards", 12, "--max_rejected", 1, *TWO)
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


def test_where_none_can_start_a_run_builds_alone(
    built_here: list[str], make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transforms.builders.sys.executable", "/bin/false")
    committed(make_coco(6), tmp_path / "out", "--num_shards", 6, *TWO)
    assert len(built_here) == 6
