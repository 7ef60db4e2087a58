"""Engines outside this process: the same command, bytes, rejects and exit codes.

`make engines` builds Prism; Beam's portable job service comes with Beam.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coco_command import (
    PROJECT,
    REPORTED,
    MakeCoco,
    Sources,
    check_committed,
    check_visible,
    command,
    digests,
    finish,
    shard_paths,
    spawn_coco,
    start_coco,
)
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.servers import children_of, started, worker_pool

PRISM = PROJECT / ".tools" / "prism"
WORKER = f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
ENGINES = {
    "Prism": ["--runner", "PrismRunner", "--prism_location", str(PRISM)],
    "job service": ["--environment_type", "LOOPBACK"],
    "job service, a process of workers": [
        *("--environment_type", "beam:env:harness_subprocess_python:v1"),
        *("--environment_config", WORKER),
    ],
}

pytestmark = pytest.mark.slow


def service(port: int) -> list[str]:
    """Return the command of Beam's portable job service."""
    module = "apache_beam.runners.portability.local_job_service_main"
    return [sys.executable, "-m", module, "-p", str(port)]


@pytest.fixture(scope="module")
def job_service() -> Iterator[str]:
    with started(service) as (port, _):
        yield f"localhost:{port}"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> list[str]:
    """The flags of an engine."""
    flags = ENGINES[request.param]
    if request.param == "Prism":
        if not PRISM.exists():
            pytest.skip("no .tools/prism; `make engines` builds it, with Go")
        return flags
    endpoint = request.getfixturevalue("job_service")
    return ["--runner", "PortableRunner", "--job_endpoint", endpoint, *flags]


def arguments(sources: Sources, out: Path | str, *flags: object, shards: int = 4) -> list[str]:
    return command(sources, out, "--num_shards", shards, *flags)


def test_bytes_equal_those_of_a_run_in_process(
    engine: list[str], thirty_images: Sources, tmp_path: Path
) -> None:
    accepted = ("--max_rejected", "1")
    assert spawn_coco(*arguments(thirty_images, tmp_path / "here", *accepted)).code == 0
    there = arguments(thirty_images, tmp_path / "there", *accepted, *REPORTED, *engine)
    run = spawn_coco(*there)
    assert run.code == 0, run.err
    manifest = check_committed(tmp_path / "there")
    assert manifest["splits"]["train"]["rejected"] == {"E-IMG-TRUNCATED": 1}
    assert digests(tmp_path / "there") == digests(tmp_path / "here")


def test_faults_are_one_line_with_their_exit_code(
    engine: list[str], thirty_images: Sources, tmp_path: Path
) -> None:
    (images, annotations), out = thirty_images, tmp_path / "out"
    assert spawn_coco(*arguments(thirty_images, out, "--max_rejected", "1")).code == 0
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.json").write_text("{")
    runs = [
        arguments(thirty_images, out, "--max_rejected", "1", "--seed", "1"),
        arguments((tmp_path / "empty", annotations), tmp_path / "none"),
        arguments((images, tmp_path / "broken.json"), tmp_path / "none"),
        arguments(thirty_images, tmp_path / "none", shards=31),
    ]
    ended = [spawn_coco(*run, *engine).ended for run in runs]
    assert ended == [(5, "E-OUT-PLAN"), (3, "E-SET-MISSING"), (3, "E-ANN-JSON"), (2, "E-ARG")]


@pytest.mark.parametrize("engine", ["Prism", "job service"], indirect=True)
def test_a_refused_upload_ends_the_run_and_the_next_one_resumes(
    engine: list[str], thirty_images: Sources
) -> None:
    """On engines whose workers share the command's environment, and so its stand-in."""
    shutil.copy(thirty_images[0] / "a008.jpg", thirty_images[0] / "a007.jpg")
    with GcsStandIn() as gcs:
        gcs.make_bucket("out")
        there = {"STORAGE_EMULATOR_HOST": gcs.url}
        third = "coco/train-00002-of-00004-7.tfrec"
        gcs.inject(Fault(What.STATUS, Kind.UPLOAD, third, status=403, times=None))
        refused = spawn_coco(*arguments(thirty_images, "gs://out/coco"), *engine, **there)
        assert refused.ended == (6, "E-IO-AUTH")
        assert "coco/manifest.json" not in gcs.objects("out")
        gcs.heal()
        resumed = spawn_coco(*arguments(thirty_images, "gs://out/coco"), *engine, **there)
        assert resumed.code == 0, resumed.err
        shards = {name for name in gcs.objects("out") if name.endswith(".tfrec")}
        assert len(shards) == 4


def wait_for_some_shards(process: "subprocess.Popen[str]", out: Path) -> None:
    while process.poll() is None and len(shard_paths(out)) < 20:
        time.sleep(0.002)


def test_a_killed_worker_of_a_job_service_is_one_line(make_coco: MakeCoco, tmp_path: Path) -> None:
    workers = ENGINES["job service, a process of workers"]
    with started(service) as (port, server):
        endpoint = ("--runner", "PortableRunner", "--job_endpoint", f"localhost:{port}", *workers)
        process = start_coco(*arguments(make_coco(600), tmp_path / "out", *endpoint, shards=300))
        wait_for_some_shards(process, tmp_path / "out")
        for pid in children_of(server):
            for worker in (*children_of(pid), pid):
                os.kill(worker, signal.SIGKILL)
        ended = finish(process)
    assert ended.ended == (6, "E-JOB"), ended.err


@pytest.mark.parametrize("engine", ["Prism"], indirect=True)
@pytest.mark.parametrize("victim", ["Prism", "its worker"])
def test_a_killed_engine_or_worker_ends_the_run_and_the_next_resumes(
    victim: str, engine: list[str], make_coco: MakeCoco, tmp_path: Path
) -> None:
    """Prism retries nothing: if it or its only worker dies, the run ends."""
    sources, out = make_coco(600), tmp_path / "out"
    job = arguments(sources, out, *engine, shards=300)
    with started(worker_pool) as (port, pool):
        away = ("--environment_type", "EXTERNAL", "--environment_config", f"localhost:{port}")
        process = start_coco(*job, *(away if victim == "its worker" else ()))
        wait_for_some_shards(process, out)
        (pid,) = children_of(pool if victim == "its worker" else process.pid)
        os.kill(pid, signal.SIGKILL)
        ended = finish(process)
    assert ended.ended == (6, "E-JOB")
    assert not (out / "manifest.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in shard_paths(out)}
    assert 20 <= check_visible(out) < 300
    resumed = spawn_coco(*job, *REPORTED)
    assert resumed.code == 0, resumed.err
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    undisturbed = spawn_coco(*arguments(sources, tmp_path / "here", shards=300))
    assert undisturbed.code == 0, undisturbed.err
    check_committed(out)
    assert digests(out) == digests(tmp_path / "here")
