"""One process that builds shards for a run: its requests, its answers and its end."""

import contextlib
import os
import pickle
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.children import builders_beside
from tests.coco_command import digests
from tests.small_runs import SmallRun, build_shards, claim, plan_run, write_set
from transforms.gate import GateLimits
from transforms.processes.builder_process import BuilderProcess
from transforms.processes.process_beside import told_error

SHARED = GateLimits(processes=2, workers=2)


def planned(folder: Path, output: str = "out") -> SmallRun:
    """Plan three shards of six images, and claim the output for them."""
    images, annotations = folder / "data" / "images", folder / "data" / "instances.json"
    if not images.exists():
        write_set(folder / "data", 6)
    (folder / output).mkdir()
    run = plan_run(images, annotations, folder / output, num_shards=3)
    claim(run)
    return run


@contextlib.contextmanager
def beside() -> Iterator[BuilderProcess]:
    """Run a second process; afterwards neither it nor an open file is left."""
    open_before = os.listdir("/proc/self/fd")
    process = BuilderProcess(SHARED, ["transforms"])
    try:
        yield process
    finally:
        process.end()
    assert builders_beside(os.getpid()) == []
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


def submit_all(process: BuilderProcess, run: SmallRun) -> list[Future]:
    return [process.submit(shard, run.job, run.plan) for shard in run.shards]


def pid_of(process: BuilderProcess) -> int:
    assert process.is_ready()
    (pid,) = builders_beside(os.getpid())
    return pid


def test_it_makes_what_this_process_makes(tmp_path: Path) -> None:
    there, here = planned(tmp_path, "there"), planned(tmp_path, "here")
    with beside() as process:
        assert process.is_ready()
        infos = [built.result(30) for built in submit_all(process, there)]
    assert infos == build_shards(here)
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
    assert len(digests(tmp_path / "there", "*.tfrec")) == 3


def test_a_fault_keeps_its_line(tmp_path: Path) -> None:
    run = planned(tmp_path)
    for image in (tmp_path / "data" / "images").iterdir():
        image.write_bytes(image.read_bytes() + b"more")
    with beside() as process:
        for built in submit_all(process, run):
            with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*\.jpg: "):
                built.result(30)


def test_the_cause_of_an_error_arrives_with_it() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("no picture") from error
    except ValueError as error:
        travelled = pickle.loads(pickle.dumps(told_error(error)))
    assert repr(travelled) == "ValueError('no picture')"
    (note,) = travelled.__notes__
    assert "MemoryError" in note
    assert "test_the_cause_of_an_error_arrives_with_it" in note


def test_a_killed_process_fails_its_shards(tmp_path: Path) -> None:
    run = planned(tmp_path)
    before = digests(tmp_path / "out")
    with beside() as process:
        pid = pid_of(process)
        os.kill(pid, signal.SIGSTOP)  # it has none of them when it is killed
        asked = submit_all(process, run)
        os.kill(pid, signal.SIGKILL)
        line = r"^E-IO-LIMIT processes: one that built shards was ended by SIGKILL; most often"
        for built in (*asked, *submit_all(process, run)):
            with pytest.raises(RuntimeError, match=line):
                built.result(30)
    assert digests(tmp_path / "out") == before


def test_a_stopped_process_ends_with_the_run(tmp_path: Path) -> None:
    run = planned(tmp_path)
    with beside() as process:
        os.kill(pid_of(process), signal.SIGSTOP)
        asked = submit_all(process, run)
    assert all(built.exception(30) for built in asked)
