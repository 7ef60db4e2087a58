"""Engines: the options that a runner needs for a job, and how a job elsewhere ends."""

import argparse
import difflib
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    PipelineOptions,
    PortableOptions,
    PrismRunnerOptions,
    SetupOptions,
    SparkRunnerOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)
from apache_beam.runners.runner import PipelineState

from pipelines.command import JOB_ELSEWHERE
from pipelines.flags import FlagParser
from schemas.faults import fault_line
from schemas.shown_values import counted, megabytes
from transforms.storage import is_local

_IN_PROCESS = {"", "direct", "fnapi"}
_PAGE = "https://console.cloud.google.com/dataflow/jobs/{0.region}/{1}?project={0.project}"
_CANCEL = "gcloud dataflow jobs cancel {1} --project {0.project} --region {0.region}"
_PROGRAMS = {
    "prism": (PrismRunnerOptions, "prism_location"),
    "spark": (SparkRunnerOptions, "spark_job_server_jar"),
    "flink": (FlinkRunnerOptions, "flink_job_server_jar"),
}
"""Runners that start a program, and the option that names it. Beam would download it otherwise."""
_CONNECT_S = 10.0
_AGAIN = "see the job's log, then run again to resume"


def parse_flags(parser: FlagParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return our flags' values and the arguments that are Beam's.

    Raises:
        ValueError: when a flag is neither ours nor Beam's, which Beam would drop with a warning.
    """
    of_beam = beam_parser()
    known = [*parser._option_string_actions, *of_beam._option_string_actions]
    for argument in argv:  # first, since a misspelt flag also leaves a required one missing
        flag = argument.split("=")[0]
        if flag.startswith("--") and " " not in flag and flag not in known:
            raise _unknown(flag, known)
    flags, others = parser.parse_known_args(list(argv))
    _, unknown = of_beam.parse_known_args(others)
    if unknown:
        raise _unknown(unknown[0], known)
    return flags, others


def beam_flags() -> set[str]:
    """Return every flag that Beam's own options know."""
    return set(beam_parser()._option_string_actions)


def beam_parser() -> FlagParser:
    """Return a parser of every flag that Beam's own options know."""
    parser = FlagParser("beam", "Beam's own options")
    parser.conflict_handler = "resolve"
    for options in _subclasses(PipelineOptions):
        if options.__module__.startswith("apache_beam."):
            options._add_argparse_args(parser)
    return parser


def _unknown(argument: str, known: Sequence[str]) -> ValueError:
    close = difflib.get_close_matches(argument, known, n=1)
    remedy = f"did you mean {close[0]}?" if close else "see --help"
    return ValueError(f"unknown argument {argument!r}: {remedy}")


def _subclasses(of: Any) -> list[Any]:
    return [found for child in of.__subclasses__() for found in (child, *_subclasses(child))]


def runner_of(options: PipelineOptions) -> str:
    """Return the runner's name; in process, FnApiRunner is named, so that nothing is downloaded.

    Beam's `DirectRunner` first looks for a Prism executable and fetches one.
    """
    name = options.view_as(StandardOptions).runner or ""
    last = name.lower().rpartition(".")[2]  # Beam takes a whole path, too
    return "FnApiRunner" if last.removesuffix("runner") in _IN_PROCESS else name


def is_dataflow(options: PipelineOptions) -> bool:
    """Return whether a run is a job of Dataflow."""
    return runner_of(options).lower().removesuffix("runner") == "dataflow"


def is_dry_run(options: PipelineOptions) -> bool:
    """Return whether Beam is asked to check a job without submitting it."""
    return bool(options.view_as(TestOptions).dry_run)


def makes_template(options: PipelineOptions) -> bool:
    """Return whether the job is only described, as a Flex Template's launcher asks."""
    return bool(options.view_as(GoogleCloudOptions).template_location)


def runs_workers_here(options: PipelineOptions) -> bool:
    """Return whether workers are threads of this process, which then knows how far they are."""
    environment = options.view_as(PortableOptions).environment_type
    is_prism = runner_of(options).lower().startswith("prism") and not environment
    return is_prism or environment == "LOOPBACK" or runner_of(options) == "FnApiRunner"


def check_engine(options: PipelineOptions, uris: Iterable[str], *, waits: bool) -> None:
    """Refuse what would fail only after the job was submitted, or have no effect.

    Args:
        options: Beam's.
        uris: everything that workers read and write.
        waits: whether the command stays until the job has ended.

    Raises:
        ValueError: with the value and the remedy.
        RuntimeError: `E-JOB` when nothing answers where the job service should be.
    """
    if is_dataflow(options):
        _check_dataflow(options, uris)
    else:
        _check_not_dataflow(options, runner_of(options), waits=waits)
    _check_endpoint(options.view_as(PortableOptions).job_endpoint)


def _check_not_dataflow(options: PipelineOptions, runner: str, *, waits: bool) -> None:
    asked = {"dry_run": is_dry_run(options), "template_location": makes_template(options)}
    for name, is_asked in asked.items():
        if is_asked:
            raise ValueError(f"{name} must come with --runner DataflowRunner, got {runner}: add it")
    endpoint = options.view_as(PortableOptions).job_endpoint
    if endpoint and runner == "FnApiRunner":
        raise ValueError(f"job_endpoint must come with --runner, got {endpoint!r}: add it")
    if not waits and (not endpoint or runs_workers_here(options)):
        what = "a job that goes on without this process"
        raise ValueError(f"no_wait must come with {what}, got {runner}: leave it out")
    started = runner.lower().rpartition(".")[2].removesuffix("runner")
    if started in _PROGRAMS and not endpoint:
        view, name = _PROGRAMS[started]
        if not getattr(options.view_as(view), name):
            raise ValueError(f"{name} must be given for {runner}, got none: add --{name}")


def _check_endpoint(address: str | None) -> None:
    """Find a job service at once, for which Beam waits five minutes."""
    host, _, port = (address or "").rpartition(":")
    if not port.isdecimal():  # none, or Beam's own word for one in this process
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError as error:
        remedy = "start the job service, or give its --job_endpoint"
        raise RuntimeError(
            fault_line("E-JOB", address or "", error.strerror or str(error), remedy)
        ) from error


def _check_dataflow(options: PipelineOptions, uris: Iterable[str]) -> None:
    cloud, setup = options.view_as(GoogleCloudOptions), options.view_as(SetupOptions)
    needs = {
        "project": cloud.project,
        "region": cloud.region,
        "temp_location": cloud.temp_location or cloud.staging_location,
    }
    for name, given in needs.items():
        if not given:
            raise ValueError(f"{name} must be given for DataflowRunner, got none: add --{name}")
    for uri in filter(is_local, uris):
        raise ValueError(f"Dataflow's workers see no local paths, got {uri!r}: copy it to gs://")
    image = options.view_as(WorkerOptions).sdk_container_image
    if not (image or setup.setup_file or setup.extra_packages or setup.requirements_file):
        raise ValueError(
            "Dataflow's workers must get this package, got no way: add --setup_file ./setup.py,"
            " or --sdk_container_image with an image that holds it"
        )


def prepare(options: PipelineOptions) -> PipelineOptions:
    """Return options with which nothing of the main module travels: workers have the package."""
    setup = options.view_as(SetupOptions)
    setup.save_main_session = bool(setup.save_main_session)
    return options


def follow(result: Any, options: PipelineOptions, *, waits: bool) -> Iterator[str]:
    """Yield what is to be said of a submitted job, and wait for its end if asked to.

    Raises:
        Exception: the runner's, when the job has failed or was cancelled.
    """
    if is_dry_run(options):
        yield _described(result)
        return
    if makes_template(options):
        return
    if job := _dataflow_id(result):
        cloud = options.view_as(GoogleCloudOptions)
        JOB_ELSEWHERE.page = _PAGE.format(cloud, job)
        JOB_ELSEWHERE.cancel = _CANCEL.format(cloud, job)
        yield f"submitted: {JOB_ELSEWHERE.page}"
    if waits:
        state = result.wait_until_finish()
        if state != PipelineState.DONE:
            what = f"ended as {state}"
            raise RuntimeError(fault_line("E-JOB", JOB_ELSEWHERE.page or "engine", what, _AGAIN))
        JOB_ELSEWHERE.page = JOB_ELSEWHERE.cancel = ""


def _described(result: Any) -> str:
    graph = result.job.proto_pipeline
    steps = counted(len(graph.components.transforms), "transform")
    return f"valid: {steps}, {megabytes(graph.ByteSize())}; nothing was submitted"


def _dataflow_id(result: Any) -> str | None:
    return result.job_id() if getattr(result, "has_job", False) else None


def build_nothing(root: beam.Pipeline) -> None:
    """Build a graph that does nothing: a template's launcher takes a missing one for a failure."""
    root | "AlreadyComplete" >> beam.Create([0])
