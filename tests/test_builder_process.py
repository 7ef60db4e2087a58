"""A process that builds shards beside this one, alone: what it is asked, told, and how it ends."""

import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import NoReturn

import pytest

from schemas.samples import Sample
from tests.children import builders_beside
from tests.coco_command import digests
from tests.small_runs import SmallRun, build_shards, claim, plan_run, write_set
from transforms.gate import GateLimits
from transforms.processes import build_beside, builder_process
from transforms.processes.builder_process import BuilderProcess, receive_file, send_file
from transforms.processes.process_beside import told_error
from transforms.progress import PROGRESS
from transforms.run_spool import RunSpool, close_spool

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
    """Have a process beside this one, of which nothing is left."""
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


def test_what_it_counts_adds_up(tmp_path: Path) -> None:
    run = planned(tmp_path)
    PROGRESS.reset()
    with beside() as process:
        infos = [built.result(30) for built in submit_all(process, run)]
        assert (PROGRESS.done, PROGRESS.shards_done) == (6, 3)
        assert PROGRESS.bytes == sum(info.bytes for info in infos)
    assert (PROGRESS.done, PROGRESS.shards_done) == (6, 3)


@pytest.mark.parametrize(("level", "heard"), [(logging.INFO, 3), (logging.WARNING, 0)])
def test_its_log_is_heard_once(
    level: int, heard: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = planned(tmp_path)
    with caplog.at_level(level, "transforms"), beside() as process:
        infos = [built.result(30) for built in submit_all(process, run)]
    lines = [record for record in caplog.records if "wrote " in record.getMessage()]
    assert [(line.name, line.levelno) for line in lines] == [
        ("transforms.build_shard", logging.INFO)
    ] * heard
    if heard:
        told = {line.getMessage().split()[1] for line in lines}
        assert told == {info.file for info in infos}


def test_what_is_logged_of_an_error_is_told_whole() -> None:
    ours, theirs = Pipe()
    PROGRESS.reset()
    teller = build_beside._Teller(theirs)
    try:
        raise ValueError("what was wrong")
    except ValueError:
        error = sys.exc_info()
    teller.emit(logging.LogRecord("transforms.x", 10, "", 0, "%s ended", ("it",), error))
    told = ours.recv()
    assert (told.logger, told.level) == ("transforms.x", logging.DEBUG)
    assert told.text.startswith("it ended\nTraceback")
    assert told.text.endswith("ValueError: what was wrong")


def test_a_fault_keeps_its_line(tmp_path: Path) -> None:
    run = planned(tmp_path)
    for image in (tmp_path / "data" / "images").iterdir():
        image.write_bytes(image.read_bytes() + b"more")
    with beside() as process:
        for built in submit_all(process, run):
            with pytest.raises(RuntimeError, match=r"^E-SRC-CHANGED .*\.jpg: "):
                built.result(30)


def test_a_foreign_file_is_a_conflict(tmp_path: Path) -> None:
    run = planned(tmp_path)
    (tmp_path / "out" / "train-00001-of-00003-2.tfrec").write_bytes(b"foreign")
    with beside() as process:
        first, second, third = submit_all(process, run)
        with pytest.raises(RuntimeError, match=r"^E-OUT-CONFLICT .*train-00001-of-00003-2\.tfrec"):
            second.result(30)
        assert (first.result(30).records, third.result(30).records) == (2, 2)


class OddError(Exception):
    """Takes other arguments than it keeps, as some libraries' do."""

    def __init__(self, code: int, place: str) -> None:
        super().__init__(f"code {code} at {place}")


def test_an_error_that_does_not_travel_is_told_as_text() -> None:
    told = told_error(OddError(7, "the end"))
    assert repr(told) == "RuntimeError('OddError: code 7 at the end')"
    pickle.loads(pickle.dumps(told))


def test_what_led_to_an_error_is_told_with_it() -> None:
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
    assert "test_what_led_to_an_error_is_told_with_it" in note


def test_one_that_is_killed_fails_what_it_was_asked(tmp_path: Path) -> None:
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


def test_one_that_is_halted_ends_when_it_is_told(tmp_path: Path) -> None:
    run = planned(tmp_path)
    with beside() as process:
        os.kill(pid_of(process), signal.SIGSTOP)
        asked = submit_all(process, run)
    assert all(built.exception(30) for built in asked)


def test_one_that_cannot_import_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(tmp_path)
    monkeypatch.setattr(builder_process, "_MODULE", "transforms.of_another_version")
    with beside() as process:
        assert not process.is_ready()
        with pytest.raises(RuntimeError, match=r"^E-IO-LIMIT .*ended with exit code 1;"):
            process.submit(run.shards[0], run.job, run.plan).result(30)


@pytest.mark.parametrize("executable", ["/nowhere/python", "", None])
def test_one_that_cannot_start_says_so(
    executable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(OSError):
        BuilderProcess(SHARED, [])
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


def test_one_that_no_thread_listens_to_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    open_before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        BuilderProcess(SHARED, [])
    assert builders_beside(os.getpid()) == []
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


def test_it_finds_the_modules_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not those of the folder that it is in, nor does it mind what is no path."""
    (tmp_path / "transforms").mkdir()
    (tmp_path / "transforms" / "__init__.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr(sys, "path", [*(path for path in sys.path if path), tmp_path])
    monkeypatch.chdir(tmp_path)
    run = planned(tmp_path)
    with beside() as process:
        assert process.is_ready()
        assert process.submit(run.shards[0], run.job, run.plan).result(30).records == 2


def test_a_job_that_cannot_be_told_fails_what_it_is_for(tmp_path: Path) -> None:
    """Each time, and without a word of it on its way."""
    run = planned(tmp_path)
    spool = RunSpool(10**9, str(tmp_path / "gone"))
    unwritable = replace(run.job, spool=spool)
    untold = replace(run.job, roots=types.MappingProxyType(run.job.roots))  # does not pickle
    with beside() as process:
        for job, error in ((unwritable, RuntimeError), (untold, TypeError), (untold, TypeError)):
            with pytest.raises(error):
                process.submit(run.shards[0], job, run.plan).result(30)
        assert process.submit(run.shards[0], run.job, run.plan).result(30).records == 2


def test_a_spool_is_shared(tmp_path: Path) -> None:
    ours, theirs = Pipe()
    spool = RunSpool(10**9)
    light = spool.take(Sample("train", "1", 0, (), b"", (), b"polygons"))
    send_file(ours, spool.written_file())
    copy = RunSpool(10**9 + 1)
    copy.adopt(receive_file(theirs))
    assert copy.give(light).payload == b"polygons"
    for each in (spool, copy):
        close_spool(each.number)


def test_a_file_that_cannot_be_opened_there_is_an_error() -> None:
    ours, theirs = Pipe()
    ours._send(b"f")  # as it arrives where no more files may be open
    with pytest.raises(OSError, match="Too many open files"):
        receive_file(theirs)
