"""Files that a process beside reads give what they give here, whatever becomes of that process."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.samples import Sample
from tests.children import processes_beside, wait_until_gone
from tests.coco_command import PROJECT, MakeCoco, committed, digests, finish, run_coco, spawn_coco
from tests.coco_texts import annotation, coco, image
from transforms import list_blobs
from transforms.processes import coco_reader_process
from transforms.processes.coco_reader_process import (
    Ask,
    CocoReaderProcess,
    begin_reading,
    end_reading,
    read_split,
)
from transforms.processes.read_coco_beside import parts_of
from transforms.sources import read_coco
from transforms.sources.coco_reading import CocoReading, Item
from transforms.sources.coco_samples import CocoRules

IMAGES = [image(n, f"{n}.jpg", license=n % 3) for n in range(1, 700)]
ODD = {3: {"bbox": None}, 17: {"bbox": [1, 2]}, 18: {"bbox": [0, 0, 0, 0]}, 30: {"image_id": 9000}}
ANNOTATIONS = [annotation(n, **{"image_id": 1 + n % 699} | ODD.get(n, {})) for n in range(1000)]
FILE = coco(IMAGES, ANNOTATIONS)
DROPPING = CocoReading(CocoRules(drop_orphans=True))

RUN = """
import sys
from pipelines import cli, start
from transforms.processes import coco_reader_process

coco_reader_process.usable_cores = lambda: 2
start._LONG_BYTES = 1
taken = coco_reader_process.CocoReaderProcess.items

def take_and_tell(process):
    print("read beside")
    {then}
    yield from taken(process)

coco_reader_process.CocoReaderProcess.items = take_and_tell
cli.main()
"""
"""The command with short files for long ones; it says when samples come from beside."""


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(coco_reader_process, "usable_cores", lambda: 2)
    open_before = len(os.listdir("/proc/self/fd"))
    yield
    end_reading()
    assert processes_beside(os.getpid(), coco_reader_process._MODULE) == []
    assert len(os.listdir("/proc/self/fd")) <= open_before  # a run may have closed some of others


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "instances.json"
    path.write_bytes(FILE)
    return str(path)


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The splits whose files this process reads."""
    splits: list[str] = []
    read = CocoReading.read

    def read_and_note(self: CocoReading, split: str, *given: Any) -> Iterator[Item]:
        splits.append(split)
        return read(self, split, *given)

    monkeypatch.setattr(CocoReading, "read", read_and_note)
    return splits


def told(items: Iterator[Item]) -> tuple[list[Item], list[Item]]:
    """Return samples, and all else."""
    read = list(items)
    is_sample = [isinstance(item, Sample) for item in read]
    return (
        [item for item, is_one in zip(read, is_sample, strict=True) if is_one],
        [item for item, is_one in zip(read, is_sample, strict=True) if not is_one],
    )


def beside() -> CocoReaderProcess:
    (process,) = coco_reader_process._BESIDE
    return process


def test_a_process_beside_reads_what_is_read_here(file: str, read_here: list[str]) -> None:
    other = f"{file}.other"
    Path(other).write_bytes(coco([image(5)], [annotation()]))
    begin_reading([file])
    for split, uris in [("train", [file]), ("val", [other])]:
        from_beside = told(read_split(DROPPING, split, uris))
        assert read_here == []
        assert from_beside == told(DROPPING.read(split, uris, {}))
        read_here.clear()
    assert len(processes_beside(os.getpid(), coco_reader_process._MODULE)) == 1


def test_parts_hold_everything_once() -> None:
    items = [*"ab" * 700]  # what is no sample
    parts = list(parts_of(items))  # type: ignore[arg-type]
    assert [other for part in parts for other in part.others] == items
    assert max(len(part.others) for part in parts) < 300


@pytest.mark.parametrize(
    "data",
    [FILE, FILE[:-9], FILE.replace(b'"categories"', b'"Categories"'), b"", None],
    ids=["orphans", "no end", "no section", "empty", "no file"],
)
def test_a_fault_is_told_as_it_is_here(data: bytes | None, file: str, read_here: list[str]) -> None:
    Path(file).unlink()
    if data is not None:
        Path(file).write_bytes(data)
    begin_reading([file])
    with pytest.raises(RuntimeError) as from_beside:
        told(read_split(CocoReading(), "train", [file]))
    assert read_here == []
    with pytest.raises(RuntimeError) as from_here:
        told(CocoReading().read("train", [file], {}))
    assert str(from_beside.value) == str(from_here.value)
    assert str(from_here.value).startswith("E-A")


def test_it_goes_on_after_a_fault(file: str) -> None:
    begin_reading([file])
    with pytest.raises(RuntimeError, match=r"^E-ANN-ORPHAN"):
        told(read_split(CocoReading(), "train", [file]))
    assert told(read_split(DROPPING, "train", [file])) == told(DROPPING.read("train", [file], {}))


def test_a_file_that_changes_is_read_as_it_was_or_as_it_is(file: str) -> None:
    """And known by what was read, so that the next run finds out."""
    before = told(DROPPING.read("train", [file], {}))
    begin_reading([file])
    Path(file).write_bytes(FILE.replace(b".jpg", b".jpeg"))
    assert told(read_split(DROPPING, "train", [file])) in (
        before,
        told(DROPPING.read("train", [file], {})),
    )


@pytest.mark.parametrize("program", ["/bin/false", "/bin/nothing-there"])
def test_where_none_can_start_files_are_read_here(
    program: str,
    file: str,
    read_here: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("transforms.processes.process_beside.sys.executable", program)
    with caplog.at_level(logging.INFO, "transforms"):
        begin_reading([file])
        samples, _ = told(read_split(DROPPING, "train", [file]))
    assert (len(samples), read_here) == (len(IMAGES), ["train"])
    assert len(caplog.messages) == 1


def test_one_that_has_ended_before_it_was_asked_is_done_without(
    file: str, read_here: list[str]
) -> None:
    begin_reading([file])
    os.kill(beside()._process.pid, signal.SIGKILL)
    for _ in range(2):
        samples, _ = told(read_split(DROPPING, "train", [file]))
        assert len(samples) == len(IMAGES)
    assert read_here == ["train", "train"]


def test_one_that_ends_before_it_is_through_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_bytes(coco([image(n, f"{n:0200}.jpg") for n in range(20_000)], []))
    process = CocoReaderProcess([])
    try:
        assert process.begins(Ask("train", (str(path),), DROPPING))
        items = process.items()
        next(items)
        os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError) as ended:
            list(items)
    finally:
        process.end()
    assert str(ended.value) == (
        "E-IO-LIMIT processes: one that read annotations was ended by SIGKILL;"
        " most often it is memory: give more, then run again to resume"
    )


def test_one_core_is_for_one(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco_reader_process, "usable_cores", lambda: 1)
    begin_reading([file])
    assert coco_reader_process._BESIDE == []


@pytest.mark.parametrize("then", ["input()", "coco_reader_process._BESIDE[0].begins(asked)"])
def test_it_ends_with_the_process_that_began_it(then: str, tmp_path: Path) -> None:
    """Whether it waits for being asked, or for what it has read to be taken."""
    path = tmp_path / "long.json"
    path.write_bytes(coco([image(n, f"{n:0200}.jpg") for n in range(20_000)], []))
    program = (
        "import sys\n"
        "from transforms.processes import coco_reader_process\n"
        "coco_reader_process.usable_cores = lambda: 2\n"
        "from transforms.sources.coco_reading import CocoReading\n"
        "asked = coco_reader_process.Ask('train', (sys.argv[1],), CocoReading())\n"
        "coco_reader_process.begin_reading([])\n"
        f"print('begun', flush=True); {then}; print('waits', flush=True); input()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    if "begins" in then:
        assert process.stdout.readline() == "waits\n"
    deadline_s = time.monotonic() + 10
    while not (pids := processes_beside(process.pid, coco_reader_process._MODULE)):
        assert time.monotonic() < deadline_s  # it begins to be one before it has a name
    process.kill()
    finish(process)
    assert len(pids) == 1
    wait_until_gone(pids)


# Whole runs.


def command(program: str, *arguments: object) -> Any:
    return subprocess.run(
        [sys.executable, "-c", program, "coco", *map(str, arguments)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_run_writes_the_same(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(12)
    committed((images, annotations), tmp_path / "here", "--num_shards", 2)
    sources = ["--images", images, "--annotations", annotations, "--num_shards", 2]
    ran = command(RUN.format(then="pass"), *sources, "--output", tmp_path / "beside")

    assert (ran.returncode, ran.stderr.count("E-")) == (0, 0), ran.stderr
    assert "read beside" in ran.stdout
    assert digests(tmp_path / "here") == digests(tmp_path / "beside")


def test_a_run_ends_by_the_same_line(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(2)
    annotations.write_bytes(annotations.read_bytes()[:-5])
    sources = ["--images", images, "--annotations", annotations, "--output", tmp_path / "out"]
    ran = command(RUN.format(then="pass"), *sources)
    here = spawn_coco(*sources)

    assert (ran.returncode, ran.stderr) == (here.code, here.err)
    assert "read beside" in ran.stdout
    assert here.fault.startswith("E-ANN-JSON")


def test_a_run_whose_reader_is_killed_says_so(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(2)
    then = "import os; os.kill(process._process.pid, 9); process._process.wait();"
    then += " process._connection.recv = lambda: (_ for _ in ()).throw(EOFError)"
    sources = ["--images", images, "--annotations", annotations, "--output", tmp_path / "out"]
    ran = command(RUN.format(then=then), *sources)

    assert ran.returncode == 6, ran.stderr
    assert ran.stderr.startswith("E-IO-LIMIT processes: one that read annotations was ended by")


def test_local_folders_are_listed_while_files_are_read(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, annotations = make_coco(3)
    seen: list[str] = []

    def noting(name: str, real: Any) -> Any:
        def call(*args: Any) -> Iterator[Any]:
            for item in real(*args):
                seen.append(name)
                yield item

        return call

    monkeypatch.setattr(list_blobs, "source_entries", noting("listed", list_blobs.source_entries))
    monkeypatch.setattr(read_coco, "read_split", noting("read", read_coco.read_split))
    argv = ["--images", images, "--annotations", annotations, "--output", tmp_path / "out"]
    assert run_coco(*argv).code == 0
    assert seen == ["listed"] * 3 + ["read"] * 4
