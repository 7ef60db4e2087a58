"""Runs whose shards are built by this process and by one beside it."""

import contextlib
import logging
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines import folder
from pipelines import run as runner
from schemas.layouts.detection import DetectionLayout
from tests.children import builders_beside, wait_until_gone
from tests.coco_command import (
    MakeCoco,
    Sources,
    check_committed,
    check_visible,
    command,
    committed,
    digests,
    finish,
    run_coco,
    shard_paths,
    start_coco,
)
from tests.small_runs import plan_run, write_set
from transforms.gate import GateLimits, WorkerGate
from transforms.processes import shard_builders
from transforms.processes.shard_builders import ShardBuilders
from transforms.progress import PROGRESS
from transforms.storage import Access

TWO = ("--workers", 2)
"""Has a process beside this one on a machine of one core, too."""


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of shards that this process builds itself."""
    names: list[str] = []
    write_shard = shard_builders.write_shard

    def noted(shard: Any, *args: Any) -> Any:
        names.append(str(shard.name))
        return write_shard(shard, *args)

    monkeypatch.setattr(shard_builders, "write_shard", noted)
    return names


@contextlib.contextmanager
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have this process build all shards."""
    with monkeypatch.context() as patch:
        patch.setattr(runner, "builders_beside", lambda *_: contextlib.nullcontext())
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


def test_a_folder_has_the_bytes_of_one_process(
    built_here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, _ = write_set(tmp_path / "data" / "cat", 12)
    flags = ["--images", str(images.parent.parent), "--num_shards", "6", "--workers", "2"]
    folder.run([*flags, "--output", str(tmp_path / "both")])
    assert 0 < len(built_here) < 6
    with alone(monkeypatch):
        folder.run([*flags, "--output", str(tmp_path / "alone")])
    check_committed(tmp_path / "both")
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


def test_each_line_is_heard_once(make_coco: MakeCoco, tmp_path: Path) -> None:
    run = run_coco(*command(make_coco(8), tmp_path / "out", "--num_shards", 8, *TWO))
    assert run.code == 0, run.err
    wrote = re.findall(r"^wrote (\S+) \(1 record", run.err, re.MULTILINE)
    assert sorted(wrote) == [path.name for path in shard_paths(tmp_path / "out")]


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
    """Start a run; give it, and the process beside it, once there are shards."""
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
    """Run again; what it makes is what a run makes that nobody disturbed."""
    assert 0 < check_visible(out) < 120
    assert not (out / "manifest.json").exists()
    committed(job.sources, out, *MANY)
    assert digests(out) == job.undisturbed


def test_the_other_process_is_killed(job: Job, tmp_path: Path) -> None:
    with with_shards_to_build(job, tmp_path / "out") as (process, beside):
        os.kill(beside, signal.SIGKILL)
        run = finish(process)
    assert run.ended == (6, "E-IO-LIMIT"), run.err
    assert "one that built shards was ended by SIGKILL" in run.fault
    check_rerun(job, tmp_path / "out")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])  # none is caught
def test_the_run_is_ended(number: signal.Signals, job: Job, tmp_path: Path) -> None:
    """And the other process with it: `with_shards_to_build` waits for that."""
    with with_shards_to_build(job, tmp_path / "out") as (process, _):
        process.send_signal(number)
        assert finish(process).code == -number
    check_rerun(job, tmp_path / "out")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_run_is_interrupted(
    number: signal.Signals, code: int, job: Job, tmp_path: Path
) -> None:
    with with_shards_to_build(job, tmp_path / "out") as (process, _):
        process.send_signal(number)
        run = finish(process)
    assert run.code == code
    assert re.search(r"^interrupted; \d+ of 120 shards done; run again to resume$", run.err, re.M)
    assert "E-" not in run.err


def test_where_none_can_start_a_run_builds_alone(
    built_here: list[str], make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transforms.processes.process_beside.sys.executable", "/bin/false")
    committed(make_coco(6), tmp_path / "out", "--num_shards", 6, *TWO)
    assert len(built_here) == 6


def test_one_that_is_not_ready_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = plan_run(*write_set(tmp_path / "data", 1), tmp_path / "out", num_shards=1)
    process = SimpleNamespace(is_ready=lambda: False)
    monkeypatch.setitem(shard_builders._BESIDE, run.job.output, [process])
    with caplog.at_level(logging.INFO, "transforms"):
        assert ShardBuilders(GateLimits(workers=2), run.job).readers == 2
    assert caplog.messages == ["builds shards in fewer processes: of 1 beside this one 0 are ready"]


# Who gets a process beside.


class Asked:
    """Counts who is asked for, and cannot be started."""

    def __init__(self) -> None:
        self.limits: list[GateLimits] = []

    def __call__(self, limits: GateLimits, *_: object) -> Any:
        self.limits.append(limits)
        return SimpleNamespace(end=lambda: None, is_ready=lambda: False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(shard_builders, "BuilderProcess", found)
    return found


@pytest.mark.parametrize(
    ("limits", "processes"),
    [
        (GateLimits(workers=2), 1),
        (GateLimits(workers=1), 0),
        (GateLimits(workers=4, shards_in_flight=1), 0),
        (GateLimits(workers=3, shards_in_flight=5), 2),
        (GateLimits(workers=4, shards_in_flight=4, readers=1), 0),
        (GateLimits(workers=4, shards_in_flight=4, readers=2), 1),
    ],
)
def test_each_has_a_part_of_every_limit(limits: GateLimits, processes: int, asked: Asked) -> None:
    with shard_builders.builders_beside(limits, "out", []):
        assert [each.processes for each in asked.limits] == [processes + 1] * processes
        assert [each.place for each in asked.limits] == [*range(1, processes + 1)]


def test_a_process_has_its_part() -> None:
    limits = GateLimits(shards_in_flight=4, bytes_in_flight=1000, readers=6, workers=2, processes=2)
    gate = WorkerGate(limits)
    assert (gate.shards, gate.readers, gate._bytes) == (2, 3, 500)
    assert gate.working._free.qsize() == 1
    assert GateLimits(processes=3).part(2) == 1


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_all_parts_are_the_whole(processes: int) -> None:
    """On three cores two processes use three."""
    shared = GateLimits(shards_in_flight=5, workers=7, readers=9, processes=processes)
    gates = [WorkerGate(replace(shared, place=place)) for place in range(processes)]
    assert sum(gate.shards for gate in gates) == 5
    assert sum(gate.readers for gate in gates) == 9
    assert sum(gate.working._free.qsize() for gate in gates) == 7


class OwnLayout(DetectionLayout):
    """A user's: no module of ours."""


SUITS: dict[str, Any] = {
    "roots": {"train": "/images"},
    "output": "/out",
    "keeps_on_disk": False,
    "access": Access(),
    "layout": DetectionLayout(),
    "limits": GateLimits(workers=2),
}
SUITS_NOT: dict[str, dict[str, Any]] = {
    "archives": {"keeps_on_disk": True},
    "asked slowly": {"access": Access(max_reads_per_second=5)},
    "own layout": {"layout": OwnLayout()},
    "root of Beam's": {"roots": {"train": "hdfs://host/images"}},
    "output of Beam's": {"output": "hdfs://host/out"},
    "one worker": {"limits": GateLimits(workers=1)},
}


@pytest.mark.parametrize("other", SUITS_NOT.values(), ids=SUITS_NOT)
def test_what_one_process_does_alone(other: dict[str, Any], asked: Asked) -> None:
    options = PipelineOptions([])
    with runner._builders_beside(SimpleNamespace(**SUITS), options):
        assert len(asked.limits) == 1
    with runner._builders_beside(SimpleNamespace(**{**SUITS, **other}), options):
        assert len(asked.limits) == 1


def test_processes_of_beam_have_none_beside(asked: Asked) -> None:
    for flags in (["--direct_running_mode", "multi_processing"], ["--runner", "FlinkRunner"]):
        with runner._builders_beside(SimpleNamespace(**SUITS), PipelineOptions(flags)):
            assert asked.limits == []


def test_runs_of_one_process_have_their_own(asked: Asked) -> None:
    """A process knows one job: another run's shards are not for it."""
    limits = GateLimits(workers=2)
    with shard_builders.builders_beside(limits, "a", []):
        with shard_builders.builders_beside(limits, "b", []):
            assert {name: len(has) for name, has in shard_builders._BESIDE.items()} == {
                "a": 1,
                "b": 1,
            }
            with shard_builders.builders_beside(limits, "a", []):
                assert len(asked.limits) == 2
            assert len(shard_builders._BESIDE["a"]) == 1
        assert list(shard_builders._BESIDE) == ["a"]
    assert shard_builders._BESIDE == {}


def test_shards_go_to_who_has_the_fewest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = plan_run(*write_set(tmp_path / "data", 6), tmp_path / "out", num_shards=6)
    given: dict[str, list[Future]] = {"here": [], "beside": []}

    def taking(name: str) -> Callable[..., Future]:
        def take(*_: object) -> Future:
            given[name].append(Future())
            return given[name][-1]

        return take

    process = SimpleNamespace(submit=taking("beside"), is_ready=lambda: True)
    monkeypatch.setitem(shard_builders._BESIDE, run.job.output, [process])
    builders = ShardBuilders(GateLimits(shards_in_flight=5, workers=2), run.job)
    builders._builders[0].submit = taking("here")
    assert builders.at_once == 5
    for shard in run.shards[:5]:
        builders.submit(shard, run.job, run.plan)
    assert (len(given["here"]), len(given["beside"])) == (3, 2)

    def submit_last(_: Future) -> None:
        """As who waits for the first finished may, before other callbacks are called."""
        builders.submit(run.shards[5], run.job, run.plan)

    first = given["here"][0]
    first._done_callbacks.insert(0, submit_last)
    first.set_result(None)
    assert (len(given["here"]), len(given["beside"])) == (4, 2)
