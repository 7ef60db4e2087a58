"""The command on Dataflow: what it refuses, submits and prints, and that the staged job works.

The service is a stand-in, which runs each job from its staged files alone.
"""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.coco_command import PROJECT, Run, Sources, finish, run_coco, spawn_coco, start_command
from tests.dataflow_stand_in import DataflowStandIn, serving_dataflow
from tests.gcs_stand_in import SOURCES, GcsStandIn, put_sources

RUN_STAGED = PROJECT / "tests" / "run_staged.py"
STORES = (*SOURCES, "--output", "gs://out/coco", "--num_shards", "4")
IMAGE = "example.com/beam-tfrec:1"
JOB = (
    *("--runner", "DataflowRunner", "--project", "my-project", "--region", "us-central1"),
    *("--temp_location", "gs://staging/temp", "--staging_location", "gs://staging/jobs"),
    *("--sdk_container_image", IMAGE, "--no_auth", "--job_name", "coco"),
)
WHERE = "https://console.cloud.google.com/dataflow/jobs/us-central1/2026-01-01_00_00_00-0"
MAX_GRAPH_BYTES = 100_000
WANTED = ("--max_rejected", "1", "--features", "boxes,masks,polygons")
"""Flags of both the job and the run here."""


@pytest.fixture
def gcs(thirty_images: Sources) -> Iterator[GcsStandIn]:
    """A store with the sources, and buckets for staged files and the output."""
    with GcsStandIn() as store:
        put_sources(store, thirty_images)
        store.make_bucket("staging")
        yield store


@pytest.fixture
def dataflow(gcs: GcsStandIn, tmp_path: Path) -> Iterator[DataflowStandIn]:
    """The service; its jobs run in this environment, from another folder."""
    with serving_dataflow(functools.partial(run_staged, gcs, sys.executable, tmp_path)) as service:
        yield service


def run_staged(
    gcs: GcsStandIn, python: str | Path, folder: Path, job: Mapping[str, Any]
) -> "subprocess.CompletedProcess[str]":
    """Run the graph that a job's description names, with a Python that has the project."""
    graph = folder / "pipeline.pb"
    graph.write_bytes(graph_of(gcs, job))
    return subprocess.run(
        [python, RUN_STAGED, graph],
        cwd=folder,
        env={**os.environ, "STORAGE_EMULATOR_HOST": gcs.url},
        capture_output=True,
        text=True,
        timeout=120,
    )


def graph_of(gcs: GcsStandIn, job: Mapping[str, Any]) -> bytes:
    url = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
    return gcs.objects("staging")[url.removeprefix("gs://staging/")]


def coco(gcs: GcsStandIn, *flags: object) -> Run:
    return spawn_coco(*SOURCES, "--num_shards", 4, *flags, STORAGE_EMULATOR_HOST=gcs.url)


def submitting(gcs: GcsStandIn, dataflow: DataflowStandIn, *flags: str) -> "subprocess.Popen[str]":
    job = (*STORES, *JOB, "--dataflow_endpoint", dataflow.url, *flags)
    return start_command("coco", *job, STORAGE_EMULATOR_HOST=gcs.url)


def submit(gcs: GcsStandIn, dataflow: DataflowStandIn, *flags: str) -> Run:
    return finish(submitting(gcs, dataflow, *flags), timeout_s=180)


def described(gcs: GcsStandIn, *flags: str) -> dict[str, Any]:
    """Return the job that a template describes."""
    run = coco(gcs, "--output", "gs://out/coco", *flags, "--template_location", "gs://staging/job")
    assert run.code == 0, run.err
    return json.loads(gcs.objects("staging")["job"])


def check_same(gcs: GcsStandIn) -> None:
    """Check that the job has written the same files as a run here."""
    run = coco(gcs, "--output", "gs://out/here", *WANTED)
    assert run.code == 0, run.err
    objects = gcs.objects("out")
    here, there = ({n[5:]: objects[n] for n in objects if n[:5] == f} for f in ("here/", "coco/"))
    assert here == there


def without(flag: str) -> list[str]:
    place = JOB.index(flag)
    return [*JOB[:place], *JOB[place + 2 :]]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (without("--project"), "project must be given"),
        (without("--region"), "region must be given"),
        (without("--sdk_container_image"), "workers need this package"),
        ([*JOB, "--output", "/data/out"], "got '/data/out'; copy it to gs://"),
        ([*JOB, "--exclude", "/data/rejected.jsonl"], "got '/data/rejected.jsonl'; copy"),
        ([*JOB, "--since", "/data/coco-{date}"], "got '/data/coco-{date}'; copy"),
        (["--dry_run=True"], "dry_run must come with --runner DataflowRunner"),
        (["--region", "europe-west4"], "region must come with --runner DataflowRunner"),
        (["--label", "y"], "labels must come with --runner DataflowRunner"),  # not --label_array
        (["--template_location", "gs://b/t"], "template_location must come with --runner Data"),
        (["--no_wait"], "no_wait must come with a job that goes on without this process"),
        (["--job_endpoint", "localhost:1"], "job_endpoint must come with --runner"),
        (["--runner", "PrismRunner"], "prism_location must be given for PrismRunner, got none"),
        (["--runner", "SparkRunner"], "spark_job_server_jar must be given for SparkRunner"),
        (["--runner", "flinkrunner"], "flink_job_server_jar must be given for flinkrunner"),
    ],
)
def test_mistakes_are_refused_before_any_request(flags: list[str], said: str) -> None:
    run = run_coco(*STORES, *flags)
    assert run.ended == (2, "E-ARG")
    assert said in run.fault


@pytest.mark.thorough
def test_a_dry_run_sends_no_request_to_a_store(gcs: GcsStandIn) -> None:
    before = len(gcs.requests)
    run = coco(gcs, "--output", "gs://out/coco", *JOB, "--dry_run=True")
    assert run == (0, "valid; nothing was submitted\n", "")
    assert len(gcs.requests) == before


@pytest.mark.thorough
def test_the_graph_does_not_grow_with_the_data(
    gcs: GcsStandIn, make_coco: Callable[..., Sources]
) -> None:
    job = described(gcs, *JOB)
    small = graph_of(gcs, job)
    put_sources(gcs, make_coco(300, "larger"))
    large = graph_of(gcs, described(gcs, *JOB))
    assert abs(len(small) - len(large)) < 100  # for random names
    assert len(large) < MAX_GRAPH_BYTES
    assert len(json.dumps(job)) < MAX_GRAPH_BYTES
    assert b"a007" not in small


@pytest.mark.slow
def test_the_job_writes_the_same_files_and_a_repeat_starts_no_job(
    gcs: GcsStandIn, dataflow: DataflowStandIn
) -> None:
    there = submit(gcs, dataflow, *WANTED)
    assert there.code == 0, there.err
    assert there.out.startswith(f"submitted: {WHERE}")
    assert "29 records" in there.out
    check_same(gcs)
    again = submit(gcs, dataflow, *WANTED)
    assert (again.code, "already complete" in again.out) == (0, True)
    assert len(dataflow.jobs) == 1


@pytest.mark.slow
def test_a_worker_needs_only_the_staged_package(gcs: GcsStandIn, tmp_path: Path) -> None:
    """The job runs in an environment with only the package and its declared requirements."""
    job = described(gcs, *without("--sdk_container_image"), "--setup_file", "./setup.py")
    python = install(gcs, job, tmp_path)
    with serving_dataflow(functools.partial(run_staged, gcs, python, tmp_path)) as dataflow:
        there = submit(gcs, dataflow, *WANTED)
    assert there.code == 0, there.err
    check_same(gcs)


def install(gcs: GcsStandIn, job: Mapping[str, Any], folder: Path) -> Path:
    """Return the Python of a new environment with the staged package and its requirements."""
    (pool,) = job["environment"]["workerPools"]
    (url,) = (p["location"] for p in pool["packages"] if p["name"] == "workflow.tar.gz")
    package = folder / "workflow.tar.gz"
    staged = url.removeprefix("storage.googleapis.com/staging/")
    package.write_bytes(gcs.objects("staging")[staged])
    versions = folder / "versions.txt"  # the lock's, without Pillow: pip keeps to Beam's pin
    pins = re.findall(r"^[\w.-]+==\S+", (PROJECT / "requirements.lock").read_text(), re.MULTILINE)
    versions.write_text("\n".join(pin for pin in pins if not pin.startswith("pillow")))
    venv.create(folder / "worker", with_pip=True)
    python = folder / "worker" / "bin" / "python"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", package, "-c", versions], check=True, timeout=600)
    installed = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    assert "beam-tfrec" in installed and "tensorflow" not in installed.lower()
    return python


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "ended"),
    [((), (4, "E-BUDGET")), (("--max_rejected", "1", "--num_shards", "31"), (2, "E-ARG"))],
)
def test_faults_of_the_job_end_with_their_exit_code(
    gcs: GcsStandIn, dataflow: DataflowStandIn, flags: tuple[str, ...], ended: tuple[int, str]
) -> None:
    run = submit(gcs, dataflow, *flags)
    assert run.ended == ended, (run.err, dataflow.errors)


@pytest.mark.slow
def test_a_verifying_job_reports_the_same_damage(
    gcs: GcsStandIn, dataflow: DataflowStandIn
) -> None:
    assert coco(gcs, "--output", "gs://out/coco", "--max_rejected", 1).code == 0
    name = min(name for name in gcs.objects("out") if name.endswith(".tfrec"))
    data = bytearray(gcs.objects("out")[name])
    data[100] ^= 1
    gcs.put("out", name, bytes(data))
    deep, job = ("verify", "gs://out/coco", "--deep"), (*JOB, "--dataflow_endpoint", dataflow.url)
    started = [start_command(*deep, *on, STORAGE_EMULATOR_HOST=gcs.url) for on in ((), job)]
    runs = [finish(process, timeout_s=180) for process in started]
    (here, there) = (run.out.splitlines() for run in runs)
    assert [run.code for run in runs] == [7, 7], [run.err for run in runs]
    assert there[0].startswith(f"submitted: {WHERE}")
    assert there[1:-1] == here[:-1]
    assert [line.split()[0] for line in here[:-1]] == ["E-VER-CRC", "E-VER-CRC"]
    assert [n for n in gcs.objects("staging") if n.startswith("temp/beam-tfrec-verify-")]
    assert len(dataflow.jobs) == 1


@pytest.fixture
def held_dataflow() -> Iterator[DataflowStandIn]:
    """The service; its jobs run until the test has ended."""
    released = threading.Event()

    def wait(_: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], int(not released.wait(120)), "", "")

    with serving_dataflow(wait) as service:
        yield service
        released.set()


@pytest.mark.slow
def test_no_wait_ends_once_the_job_is_submitted(
    gcs: GcsStandIn, held_dataflow: DataflowStandIn
) -> None:
    run = submit(gcs, held_dataflow, "--no_wait")
    assert (run.code, run.out) == (0, f"submitted: {WHERE}?project=my-project\n")


@pytest.mark.slow
def test_an_interrupted_command_leaves_the_job_and_prints_how_to_cancel_it(
    gcs: GcsStandIn, held_dataflow: DataflowStandIn
) -> None:
    waiting = submitting(gcs, held_dataflow)
    assert waiting.stdout and waiting.stdout.readline().startswith("submitted: ")
    waiting.send_signal(signal.SIGINT)
    run = finish(waiting)
    assert run.code == 130
    assert f"interrupted; the job goes on: {WHERE}" in run.err
    assert "gcloud dataflow jobs cancel 2026-01-01_00_00_00-0 --project my-project" in run.err
