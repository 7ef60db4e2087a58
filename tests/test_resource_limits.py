"""Limits and permissions of a process: a fault in one line, nothing partial, never a reject."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_tfrec.pipelines import table
from tests import children
from tests.coco_command import (
    PROJECT,
    MakeCoco,
    Run,
    Sources,
    check_visible,
    command,
    committed,
    digests,
    manifest_of,
    rejected_of,
    run_coco,
    run_pipeline,
)
from tests.small_runs import write_set

pytestmark = pytest.mark.thorough


def run_within(what: int, limit: int, arguments: list[str], *dropped: str) -> Run:
    """Run the command within a resource limit; as root, `setpriv` drops rights first."""
    if os.geteuid() == 0 and dropped and shutil.which("setpriv") is None:
        pytest.skip("limits do not bind root, and setpriv is not installed")
    by = ["setpriv", *dropped] if os.geteuid() == 0 and dropped else []
    run = subprocess.run(
        [*by, sys.executable, "-m", "beam_tfrec.pipelines.coco", *arguments],
        cwd=PROJECT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(what, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Run(run.returncode, run.stdout, run.stderr)


@pytest.mark.parametrize("what", ["images", "image", "annotations", "output"])
def test_missing_permission_stops_the_run(what: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    """A source that cannot be read or an output that cannot be written stops the run."""
    images, annotations = make_coco(3)
    out = tmp_path / "out"
    out.mkdir()
    paths = {"images": images, "image": images / "a001.jpg", "annotations": annotations}
    path = paths.get(what, out)
    path.chmod(0o500 if path == out else 0)
    bound = "--bounding-set=-dac_override,-dac_read_search"
    run = run_within(resource.RLIMIT_CORE, 0, command((images, annotations), out), bound)
    path.chmod(0o700)
    assert run.ended == (6, "E-IO-AUTH"), run.err
    assert str(path) in run.fault
    assert not (out / "manifest.json").exists()


class Job(NamedTuple):
    """A conversion of 32 images, and the digests of its output without limits."""

    sources: Sources
    undisturbed: dict[str, str]

    def into(self, out: Path) -> list[str]:
        return command(self.sources, out, *SHARDS)

    def check(self, run: Run, out: Path) -> None:
        """Check that a run succeeded or met a limit, and that without limits it completes."""
        check_visible(out)
        if run.code:
            assert run.ended == (6, "E-IO-LIMIT"), run.err
            assert not (out / "manifest.json").exists()
        again = run_coco(*self.into(out))
        assert again.code == 0, again.err
        assert digests(out) == self.undisturbed


SHARDS = ("--num_shards", 8, "--shards_in_flight", 4, "--readers", 8)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("job")
    sources = write_set(folder, 32)
    committed(sources, folder / "out", *SHARDS)
    return Job(sources, digests(folder / "out"))


def test_file_size_limit(job: Job, tmp_path: Path) -> None:
    run = run_within(resource.RLIMIT_FSIZE, 4000, job.into(tmp_path / "out"))
    assert run.ended == (6, "E-IO-NOSPACE"), run.err
    assert check_visible(tmp_path / "out") == 0
    assert run_coco(*job.into(tmp_path / "out")).code == 0
    assert digests(tmp_path / "out") == job.undisturbed


def test_open_file_limit(job: Job, tmp_path: Path) -> None:
    """With 4 and fewer, Python cannot import its modules."""
    out = tmp_path / "out"
    job.check(run_within(resource.RLIMIT_NOFILE, 12, job.into(out)), out)


def test_thread_limit(job: Job, tmp_path: Path) -> None:
    """Root's processes are not counted, so the command runs as another user."""
    out = tmp_path / "out"
    other_user = ("--ruid=65534", "--bounding-set=-sys_resource,-sys_admin")
    run = run_within(resource.RLIMIT_NPROC, 4, job.into(out), *other_user)
    assert run.ended == (6, "E-IO-LIMIT"), run.err
    assert "threads: no more can be started" in run.fault
    job.check(run, out)


def convert_within(
    more_bytes: int, arguments: list[str], run: Callable[..., Run] = run_coco
) -> Run:
    """Run with this much more memory than is in use; to be called in a child process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return run(*arguments)


def test_memory_limit(tmp_path: Path) -> None:
    """Too little memory is never a reject; a run with enough completes."""
    sources, out = write_set(tmp_path, 6), tmp_path / "out"
    for path in sources[0].iterdir():
        os.truncate(path, 16 << 20)  # sparse: takes no disk space
    alone = ("--workers", 1)  # a second process would have its own limit
    arguments = command(sources, out, "--num_shards", 3, "--max_rejected", "100%", *alone)
    run = Run(*children.outcome_of(convert_within, 80 << 20, arguments))
    assert run.ended == (6, "E-IO-LIMIT"), run.err
    assert not (out / "rejected.jsonl").exists()
    assert committed(sources, out, *arguments[6:])["splits"]["train"]["records"] == 6


def large_table(path: Path) -> None:
    """Write a small table that is large in memory: a cell of 200 MB, or one text 300 times."""
    if path.suffix == ".parquet":
        column = pa.array(["x" * 1_000_000]).take(pa.array([0] * 300, pa.int32()))
        pq.write_table(pa.table({"a": column}), path)
        return
    with path.open("wb") as file:
        file.write(b'{"a":0}\n')
        file.truncate(200_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"a":2}\n')


@pytest.mark.parametrize(
    ("name", "records", "rejects"),
    [("cell.jsonl", 2, ["E-ROW-TOO-LARGE"]), ("dictionary.parquet", 300, [])],
)
def test_tables_that_are_large_in_memory(
    name: str, records: int, rejects: list[str], tmp_path: Path
) -> None:
    """Cells over the limit are not kept, and others are unpacked a few at a time."""
    large_table(tmp_path / name)
    out = tmp_path / "out"
    flags = ("--types", "a=bytes", "--max_rejected", "1", "--workers", "1")
    arguments = ["--table", str(tmp_path / name), "--output", str(out), *flags]
    run = Run(*children.outcome_of(convert_within, 900 << 20, arguments, run_table))
    assert run.code == 0, run.err
    assert manifest_of(out)["splits"]["train"]["records"] == records
    assert [line["code"] for line in rejected_of(out)] == rejects


def run_table(*arguments: str) -> Run:
    return run_pipeline(table.run, *arguments)
