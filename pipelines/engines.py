"""Engines: check the options of a runner, run a graph on it, and report how the job ended."""

import argparse
import contextlib
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options import pipeline_options
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from beam_tfrec.pipelines.cli import JOB_ELSEWHERE, FlagParser, say
from beam_tfrec.schemas.faults import did_you_mean, find_fault, run_fault
from beam_tfrec.transforms.shuffle.elements import delete_spool
from beam_tfrec.transforms.storage import is_local
from beam_tfrec.transforms.storage.disk import coding

_LOG = logging.getLogger(__name__)
_IN_PROCESS = {"", "direct", "fnapi"}
_PAGE = "https://console.cloud.google.com/dataflow/jobs/{0.region}/{1}?project={0.project}"
_CANCEL = "gcloud dataflow jobs cancel {1} --project {0.project} --region {0.region}"
_PROGRAMS = {
    "prism": "prism_location",
    "spark": "spark_job_server_jar",
    "flink": "flink_job_server_jar",
}
"""Runners that start a program, and the option with its path. Without it Beam downloads one."""
_PACKAGES = "sdk_container_image", "setup_file", "extra_packages", "requirements_file"
"""Options that can give this package to Dataflow's workers."""
_TMPDIR = "set TMPDIR to a folder that can be written and has room, then run again"
_AGAIN = "see its log, then run again to resume"
_PYTHON_FAILED = "Traceback (most recent call last)"
_WORKER_LOST = "Channel closed prematurely."  # the end of a job service's own traceback


def parse_flags(parser: FlagParser, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the values of our flags, and the arguments for Beam.

    Raises:
        ValueError: when a flag is unknown. Beam would drop it with a warning.
    """
    of_beam = beam_parser()
    ours = ["--help", "--help_all", *(flag.option_strings[0] for flag in parser.flags)]
    known = [*ours, *flags_of(of_beam)]
    for argument in argv:  # first, since a misspelt flag also leaves a required one missing
        flag = argument.split("=")[0]
        if flag.startswith("--") and " " not in flag and flag not in known:
            raise _unknown(flag, known)
    flags, others = parser.parse_known_args(list(argv))
    _, unknown = of_beam.parse_known_args(others)
    if unknown:
        word, splits = unknown[0], getattr(flags, "splits", None)
        if splits and word[:1] != "-" and argv[argv.index(word) - 1].endswith(splits):
            given = f"--splits {splits.rstrip(',')},{word}"
            raise ValueError(f"unknown argument {word!r}: separate splits by commas, as in {given}")
        raise _unknown(word, known)
    return flags, others


def beam_parser() -> FlagParser:
    """Return a parser of all flags of Beam."""
    found: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=found.append)
    return FlagParser("", parents=found, add_help=False)


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Return the names of a parser's flags, with their dashes."""
    return {*re.findall(r"(?<![\w-])--\w[\w-]*", parser.format_help())}


def _unknown(argument: str, known: Sequence[str]) -> ValueError:
    remedy = did_you_mean(argument, known, "see --help_all")
    return ValueError(f"unknown argument {argument!r}: {remedy}")


def runner_of(options: PipelineOptions) -> str:
    """Return the runner's name. For runs in this process it is FnApiRunner.

    Beam's `DirectRunner` would first look for a Prism executable, and download one.
    """
    name = options.view_as(pipeline_options.StandardOptions).runner or ""
    last = name.lower().rpartition(".")[2]  # Beam takes a whole path, too
    return "FnApiRunner" if last.removesuffix("runner") in _IN_PROCESS else name


def is_dry_run(options: PipelineOptions) -> bool:
    """Return whether Beam only checks the job, without submitting it."""
    return bool(options.view_as(pipeline_options.TestOptions).dry_run)


def makes_template(options: PipelineOptions) -> bool:
    """Return whether Beam only describes the job, for a Flex Template's launcher."""
    return bool(options.view_as(pipeline_options.GoogleCloudOptions).template_location)


def runs_workers_here(options: PipelineOptions) -> bool:
    """Return whether workers are threads of this process, so that it knows their progress."""
    environment = options.view_as(pipeline_options.PortableOptions).environment_type
    is_prism = runner_of(options).lower().startswith("prism") and not environment
    return is_prism or environment == "LOOPBACK" or runner_of(options) == "FnApiRunner"


def checked_options(
    beam_args: Sequence[str], uris: Iterable[str], *, waits: bool = True
) -> PipelineOptions:
    """Return Beam's options. Refuse those that would fail once the job is submitted.

    Args:
        beam_args: Beam's flags.
        uris: everything that workers read and write.
        waits: whether the command waits for the job's end.

    Raises:
        ValueError: with the value and the remedy.
        RuntimeError: `E-JOB` when the job service does not answer.
    """
    options = PipelineOptions(list(beam_args))
    setup = options.view_as(pipeline_options.SetupOptions)
    setup.save_main_session = bool(setup.save_main_session)  # workers have this package
    runner, given = runner_of(options), options.get_all_options()
    if runner.lower().removesuffix("runner") == "dataflow":
        _check_dataflow(given, uris)
    else:
        _check_not_dataflow(options, runner, given, waits=waits)
    _check_endpoint(given["job_endpoint"])
    return options


def _check_dataflow(given: Mapping[str, Any], uris: Iterable[str]) -> None:
    _require("project", given["project"], "DataflowRunner")
    _require("region", given["region"], "DataflowRunner")
    _require("temp_location", given["temp_location"] or given["staging_location"], "DataflowRunner")
    for uri in filter(is_local, uris):
        raise ValueError(f"Dataflow's workers see no local paths, got {uri!r}: copy it to gs://")
    if not any(given[name] for name in _PACKAGES):
        remedy = "add --setup_file ./setup.py, or --sdk_container_image with an image that holds it"
        raise ValueError(f"Dataflow's workers need this package, got no flag for it: {remedy}")


def _require(name: str, given: str | None, runner: str) -> None:
    if not given:
        raise ValueError(f"{name} must be given for {runner}, got none: add --{name}")


def _check_not_dataflow(
    options: PipelineOptions, runner: str, given: Mapping[str, Any], *, waits: bool
) -> None:
    for name in ("dry_run", "labels", "region", "template_location"):
        if given[name]:
            raise ValueError(f"{name} must come with --runner DataflowRunner, got {runner}: add it")
    endpoint = given["job_endpoint"]
    if endpoint and runner == "FnApiRunner":
        raise ValueError(f"job_endpoint must come with --runner, got {endpoint!r}: add it")
    if not waits and (not endpoint or runs_workers_here(options)):
        what = "a job that goes on without this process"
        raise ValueError(f"no_wait must come with {what}, got {runner}: leave it out")
    program = _PROGRAMS.get(runner.lower().rpartition(".")[2].removesuffix("runner"))
    if program and not endpoint:
        _require(program, given[program], runner)


def _check_endpoint(address: str | None) -> None:
    """Fail at once if the job service does not answer. Beam would wait five minutes."""
    host, _, port = (address or "").rpartition(":")
    if not port.isdecimal():  # none, or Beam's word for one in this process
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        remedy = "start the job service, or give its --job_endpoint"
        raise run_fault("E-JOB", f"{address}", f"{error}", remedy) from error


def run_graph(
    build: Callable[[beam.Pipeline], object], options: PipelineOptions, *, waits: bool = True
) -> None:
    """Build a graph, run it on its engine, and wait for its end if asked to.

    Raises:
        Exception: the runner's, when the job failed or was cancelled; `E-JOB` if it has no fault
            code of ours.
    """
    with coding("temporary folder", _TMPDIR):
        pipeline = beam.Pipeline(runner=runner_of(options), options=options)
        # Beam makes this folder for steps in other languages. We have no such steps, and a signal
        # would leave the folder behind.
        os.rmdir(pipeline.local_tempdir)
    try:
        build(pipeline)
        # A fault is one line of ours. Beam's own output helps only in debugging.
        shown = sys.stderr if _LOG.isEnabledFor(logging.DEBUG) else None
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(shown or nowhere):
            _follow(pipeline, options, waits=waits)
    finally:
        delete_spool(pipeline)


def _follow(pipeline: beam.Pipeline, options: PipelineOptions, *, waits: bool) -> None:
    """Run a pipeline, print where the job is, and wait for its end if asked to."""
    try:
        result: Any = pipeline.run()
        if is_dry_run(options):
            say("valid; nothing was submitted")
            return
        if makes_template(options):
            return
        if getattr(result, "has_job", False):
            cloud, job = options.view_as(pipeline_options.GoogleCloudOptions), result.job_id()
            JOB_ELSEWHERE.page = _PAGE.format(cloud, job)
            JOB_ELSEWHERE.cancel = _CANCEL.format(cloud, job)
            say(f"submitted: {JOB_ELSEWHERE.page}")
        if waits:
            state = result.wait_until_finish()
            if state != PipelineState.DONE:
                raise _ended(f"ended as {state}")
            JOB_ELSEWHERE.page = JOB_ELSEWHERE.cancel = ""
    except Exception as error:
        if runner_of(options) == "FnApiRunner":
            raise
        time.sleep(0.5)  # hide the tracebacks of workers that lost their engine
        raise engine_fault(error) from error


def engine_fault(error: Exception) -> Exception:
    """Return an engine's error as one line of `E-JOB`, or unchanged if it is a bug of ours.

    A bug in one of our steps puts a Python traceback into the engine's text. So does a lost worker,
    but that traceback is the job service's, and ends in `_WORKER_LOST`.

    >>> print(engine_fault(RuntimeError("worker lost")))
    E-JOB engine: worker lost; see its log, then run again to resume
    """
    text = str(error).rstrip()
    is_lost = text.endswith(_WORKER_LOST)
    is_bug = _PYTHON_FAILED in text and not is_lost
    if is_bug or isinstance(error, ValueError) or find_fault(text):
        return error
    what = "a worker has ended" if is_lost else " ".join(text.split())[:300]
    return _ended(what or "no answer from its job service")


def _ended(what: str) -> RuntimeError:
    return run_fault("E-JOB", JOB_ELSEWHERE.page or "engine", what, _AGAIN)


def build_nothing(root: beam.Pipeline) -> None:
    """Build a graph that does nothing. A template's launcher needs one, or reports a failure."""
    root | "AlreadyComplete" >> beam.Create([0])
