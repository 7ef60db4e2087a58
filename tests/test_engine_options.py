"""Which runner is used, where its workers run, and how its failures are reported."""

from pathlib import Path

import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from google.api_core.exceptions import Forbidden

from beam_tfrec.pipelines.engines import engine_fault, runner_of, runs_workers_here
from tests.coco_command import MakeCoco, command, run_coco
from tests.servers import free_port


@pytest.mark.parametrize(
    ("flags", "named", "here"),
    [
        ("", "FnApiRunner", True),  # downloads nothing
        ("--runner DirectRunner", "FnApiRunner", True),
        ("--runner direct", "FnApiRunner", True),  # Beam knows runners without their last word
        ("--runner apache_beam.runners.portability.fn_api_runner.FnApiRunner", "FnApiRunner", True),
        ("--runner PrismRunner", "PrismRunner", True),  # its workers are threads here by default
        ("--runner PrismRunner --environment_type DOCKER", "PrismRunner", False),
        ("--runner PortableRunner --environment_type LOOPBACK", "PortableRunner", True),
        ("--runner PortableRunner", "PortableRunner", False),
        ("--runner dataflow", "dataflow", False),
    ],
)
def test_runners_are_known_by_name_and_place_of_workers(flags: str, named: str, here: bool) -> None:
    options = PipelineOptions(flags.split())
    assert (runner_of(options), runs_workers_here(options)) == (named, here)


def test_a_missing_job_service_is_one_line(make_coco: MakeCoco, tmp_path: Path) -> None:
    endpoint = ("--runner", "PortableRunner", "--job_endpoint", f"localhost:{free_port()}")
    run = run_coco(*command(make_coco(2), tmp_path / "out", *endpoint))
    assert run.ended == (6, "E-JOB")
    assert "Connection refused; start the job service" in run.fault


FAILED = "Pipeline job-1 failed in state FAILED: "
TRACEBACK = 'Traceback (most recent call last):\n  File "transforms/commit.py", line 3, in commit\n'
LOST = f"{FAILED}Error running pipeline.\n{TRACEBACK}RuntimeError: Channel closed prematurely.\n"


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (RuntimeError(f"{FAILED}panic:\ngoroutine 99"), f"{FAILED}panic: goroutine 99"),
        (Forbidden("POST https://dataflow: no"), "403 POST https://dataflow: no"),
        (RuntimeError(LOST), "a worker has ended"),
        (grpc.FutureTimeoutError(), "no answer from its job service"),
        (RuntimeError("x" * 5000), "x" * 300),
    ],
)
def test_a_failed_engine_is_one_line(error: Exception, what: str) -> None:
    line = f"E-JOB engine: {what}; see its log, then run again to resume"
    assert str(engine_fault(error)) == line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"{FAILED}{TRACEBACK}KeyError: 3\n"),
        RuntimeError(f"{LOST}KeyError: 3\n"),
        RuntimeError("E-IO-AUTH gs://b: refused; log in [while running 'Commit']"),
        ValueError("region must be given: add it"),
    ],
)
def test_faults_and_bugs_of_ours_are_not_blamed_on_the_engine(error: Exception) -> None:
    assert engine_fault(error) is error
