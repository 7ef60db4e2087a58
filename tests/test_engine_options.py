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
    ("runner", "named"),
    [
        ([], "FnApiRunner"),
        (["--runner", "DirectRunner"], "FnApiRunner"),
        (["--runner", "direct"], "FnApiRunner"),  # Beam knows runners without their last word
        (["--runner", "apache_beam.runners.portability.fn_api_runner.FnApiRunner"], "FnApiRunner"),
        (["--runner", "PrismRunner"], "PrismRunner"),
        (["--runner", "dataflow"], "dataflow"),
    ],
)
def test_in_process_runs_use_the_runner_that_downloads_nothing(
    runner: list[str], named: str
) -> None:
    assert runner_of(PipelineOptions(runner)) == named


@pytest.mark.parametrize(
    ("flags", "here"),
    [
        ([], True),
        (["--runner", "PrismRunner"], True),  # its workers are threads here by default
        (["--runner", "PrismRunner", "--environment_type", "DOCKER"], False),
        (["--runner", "PortableRunner", "--environment_type", "LOOPBACK"], True),
        (["--runner", "PortableRunner"], False),
        (["--runner", "DataflowRunner"], False),
    ],
)
def test_workers_in_threads_of_the_command_are_recognised(flags: list[str], here: bool) -> None:
    assert runs_workers_here(PipelineOptions(flags)) is here


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
