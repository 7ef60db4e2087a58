"""Other engines than the one in process: the same command, bytes, rejects and exit codes.

`make engines` builds Prism; Beam's portable job service comes with Beam.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.coco_command import (
    PROJECT,
    REPORTED,
    Sources,
    check_committed,
    check_visible,
    digests,
    finish,
    shard_paths,
    spawn_coco,
    start_coco,
)
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.servers import children_of, serving, started, worker_pool

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


@pytest.fixture(scope="module")
def job_service() -> Iterator[str]:
    """Beam's portable job service; gives its address."""
    module = "apache_beam.runners.portability.local_job_service_main"
    with serving(lambda port: [sys.executable, "-m", module, "-p", str(port)]) as port:
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


def arguments(sources: Sources, out: Path | str) -> list[str]:
    images, annotations = sources
    given = ["--images", str(images), "--annotations", str(annotations), "--output", str(out)]
    return [*given, "--num_shards", "4"]


def test_the_bytes_are_those_of_a_run_in_process(
    engine: list[str], thirty_images: Sources, tmp_path: Path
) -> None:
    accepted = ("--max_rejected", "1")
    assert spawn_coco(*arguments(thirty_images, tmp_path / "here"), *accepted).code == 0

    run = spawn_coco(*arguments(thirty_images, tmp_path / "there"), *accepted, *REPORTED, *engine)

    assert run.code == 0, run.err
    manifest = check_committed(tmp_path / "there")
    assert manifest["splits"]["train"]["rejected"] == {"E-IMG-TRUNCATED": 1}
    assert digests(tmp_path / "there") == digests(tmp_path / "here")


def test_faults_are_one_line_with_their_exit_code(
    engine: list[str], thirty_images: Sources, tmp_path: Path
) -> None:
    assert spawn_coco(*arguments(thirty_images, tmp_path / "out"), "--max_rejected", "1").code == 0
    other = spawn_coco(
        *arguments(thirty_images, tmp_path / "out"), "--seed", "1", "--max_rejected", "1", *engine
    )
    assert other.ended == (5, "E-OUT-PLAN")
    (tmp_path / "empty").mkdir()
    missing = spawn_coco(
        *arguments((tmp_path / "empty", thirty_images[1]), tmp_path / "none"), *engine
    )
    assert missing.ended == (3, "E-SET-MISSING")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    unread = spawn_coco(*arguments((thirty_images[0], broken), tmp_path / "none"), *engine)
    assert (unread.code, unread.fault.split()[0][:6]) == (3, "E-ANN-")
    many = spawn_coco(*arguments(thirty_images, tmp_path / "none"), "--num_shards", "31", *engine)
    assert many.ended == (2, "E-ARG")


@pytest.mark.parametrize("engine", ["Prism", "job service"], indirect=True)
def test_a_refused_upload_ends_the_run_and_the_next_one_resumes(
    engine: list[str], thirty_images: Sources
) -> None:
    """On engines whose workers have the environment of the command, hence its stand-in."""
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


def test_a_killed_worker_of_a_job_service_is_one_line(
    make_coco: Callable[..., Sources], tmp_path: Path
) -> None:
    module = "apache_beam.runners.portability.local_job_service_main"
    workers = ENGINES["job service, a process of workers"]
    job = arguments(make_coco(600), tmp_path / "out")[:-1]
    with started(lambda port: [sys.executable, "-m", module, "-p", str(port)]) as (port, service):
        endpoint = ("--runner", "PortableRunner", "--job_endpoint", f"localhost:{port}")
        process = start_coco(*job, "300", *endpoint, *workers)
        while process.poll() is None and len(shard_paths(tmp_path / "out")) < 20:
            time.sleep(0.002)
        for pid in children_of(service):
            for worker in (*children_of(pid), pid):
                os.kill(worker, signal.SIGKILL)
        ended = finish(process)

    assert ended.ended == (6, "E-JOB"), ended.err


@pytest.mark.parametrize("engine", ["Prism"], indirect=True)
@pytest.mark.parametrize("victim", ["Prism", "its worker"])
def test_a_killed_engine_or_worker_ends_the_run_and_the_next_resumes(
    victim: str, engine: list[str], make_coco: Callable[..., Sources], tmp_path: Path
) -> None:
    """Prism tries nothing again: its end, or that of its only worker, is the end of the run."""
    job = [*arguments(make_coco(600), tmp_path / "out")[:-1], "300", *engine]
    with started(worker_pool) as (port, pool):
        away = ("--environment_type", "EXTERNAL", "--environment_config", f"localhost:{port}")
        process = start_coco(*job, *(away if victim == "its worker" else ()))
        while process.poll() is None and len(shard_paths(tmp_path / "out")) < 20:
            time.sleep(0.002)
        (pid,) = children_of(pool if victim == "its worker" else process.pid)
        os.kill(pid, signal.SIGKILL)
        ended = finish(process)

    assert ended.ended == (6, "E-JOB")
    assert not (tmp_path / "out/manifest.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in shard_paths(tmp_path / "out")}
    assert 20 <= check_visible(tmp_path / "out") < 300
    resumed = spawn_coco(*job, *REPORTED)
    assert resumed.code == 0, resumed.err
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    undisturbed = spawn_coco(*job[: -len(engine)], "--output", tmp_path / "here")
    assert undisturbed.code == 0, undisturbed.err
    check_committed(tmp_path / "out")
    assert digests(tmp_path / "out") == digests(tmp_path / "here")
