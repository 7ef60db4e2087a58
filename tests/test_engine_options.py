"""What is asked of a runner before it gets a job, and how its own faults are told."""

import socket
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.engines import engine_fault, runner_of, runs_workers_here
from tests.coco_command import Sources, command, run_coco


@pytest.mark.parametrize(
    ("runner", "named"),
    [
        ([], "FnApiRunner"),
        (["--runner", "DirectRunner"], "FnApiRunner"),
        (["--runner", "direct"], "FnApiRunner"),  # Beam knows runners without their last word
        (["--runner", "FnApiRunner"], "FnApiRunner"),
        (["--runner", "PrismRunner"], "PrismRunner"),
        (["--runner", "dataflow"], "dataflow"),
    ],
)
def test_in_process_the_runner_that_downloads_nothing_is_named(
    runner: list[str], named: str
) -> None:
    assert runner_of(PipelineOptions(runner)) == named


@pytest.mark.parametrize(
    ("flags", "here"),
    [
        ([], True),
        (["--runner", "PrismRunner"], True),  # whose workers are threads here unless told else
        (["--runner", "PrismRunner", "--environment_type", "DOCKER"], False),
        (["--runner", "PortableRunner", "--environment_type", "LOOPBACK"], True),
        (["--runner", "PortableRunner"], False),
        (["--runner", "DataflowRunner"], False),
    ],
)
def test_progress_is_known_where_workers_are_threads_of_the_command(
    flags: list[str], here: bool
) -> None:
    assert runs_workers_here(PipelineOptions(flags)) is here


def test_a_job_service_that_is_not_there_is_told_at_once(
    make_coco: Callable[..., Sources], tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = ("--runner", "PortableRunner", "--job_endpoint", f"localhost:{port}")
    run = run_coco(*command(make_coco(2), tmp_path / "out", *endpoint))
    assert run.ended == (6, "E-JOB")
    assert "Connection refused; start the job service" in run.fault


class DataflowRuntimeException(Exception):
    """Named as that of a package which only Dataflow needs."""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            grpc.RpcError("Socket closed"),
            "E-JOB engine: Socket closed; check that the engine runs, then run again to resume",
        ),
        (
            DataflowRuntimeException("State: FAILED, Error:\nTraceback:\n  f()\nKeyError: 'a'\n"),
            "E-JOB engine: KeyError: 'a'; see the job's log, then run again to resume",
        ),
        (
            DataflowRuntimeException("State: FAILED, Error:\nno quota; ask for more\n"),
            "E-JOB engine: no quota ask for more; see the job's log, then run again to resume",
        ),
        (
            DataflowRuntimeException("Job failed. State: CANCELLED, Error:\nNone"),
            "E-JOB engine: Job failed. State: CANCELLED, Error:; see the job's log, then run again"
            " to resume",
        ),
    ],
)
def test_faults_of_engines_say_the_line_that_tells_most(error: Exception, line: str) -> None:
    assert engine_fault(error) == ("E-JOB", line)
    outer = RuntimeError("while something else")
    outer.__cause__ = error
    assert engine_fault(outer) == ("E-JOB", line)


def test_faults_of_our_own_are_no_engine_s() -> None:
    assert engine_fault(KeyError("a bug")) is None
