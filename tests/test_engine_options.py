"""What is asked of a runner before it gets a job."""

from collections.abc import Callable
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.engines import runner_of, runs_workers_here
from tests.coco_command import Sources, command, run_coco
from tests.servers import free_port


@pytest.mark.parametrize(
    ("runner", "named"),
    [
        ([], "FnApiRunner"),
        (["--runner", "DirectRunner"], "FnApiRunner"),
        (["--runner", "direct"], "FnApiRunner"),  # Beam knows runners without their last word
        (["--runner", "FnApiRunner"], "FnApiRunner"),
        (["--runner", "apache_beam.runners.portability.fn_api_runner.FnApiRunner"], "FnApiRunner"),
        (["--runner", "apache_beam.runners.direct.DirectRunner"], "FnApiRunner"),
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


def test_a_missing_job_service_is_one_line(
    make_coco: Callable[..., Sources], tmp_path: Path
) -> None:
    endpoint = ("--runner", "PortableRunner", "--job_endpoint", f"localhost:{free_port()}")
    run = run_coco(*command(make_coco(2), tmp_path / "out", *endpoint))
    assert run.ended == (6, "E-JOB")
    assert "Connection refused; start the job service" in run.fault
