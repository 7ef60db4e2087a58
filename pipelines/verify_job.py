"""`verify` as a Beam pipeline: the same command with `--runner`, the same lines and exit codes."""

import argparse
import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions

from pipelines import verify
from pipelines.engines import beam_parser, is_dry_run, makes_template, runner_of, runs_workers_here
from pipelines.flags import FlagParser
from pipelines.run import beam_options, run_graph
from schemas.faults import Verified
from transforms.storage import open_storage
from transforms.verify import VerifyConfig, check_config
from transforms.verify.with_beam import VerifyEverything, check_folder


def verify_elsewhere(argv: Sequence[str]) -> bool:
    """Verify on a runner of Beam and print; return whether anything is wrong.

    Raises:
        ValueError: with the value and the remedy.
        RuntimeError: the fault that ended the job, as a line of `E-…` somewhere in its text.
    """
    began = time.perf_counter()
    flags = parser().parse_args(argv)
    config = verify.config_of(flags)
    if config.workers is not None:
        raise ValueError(
            f"workers must come without --runner, got {config.workers}: leave it out, and give the"
            " runner's own flag, such as --max_num_workers"
        )
    roots = [uri for given in config.sources.values() for uri in given]
    _check_text([*config.paths, *roots])
    options = beam_options(flags.beam_args, [*config.paths, *roots])
    if makes_template(options):
        raise ValueError(
            "template_location must come with a pipeline that makes a data set, got verify: leave"
            " it out"
        )
    if is_dry_run(options):  # which asks no store
        run_graph(partial(_build, config=config, folder="dry_run", name=""), options, waits=False)
        return False
    check_config(config)
    with _result_folder(options) as folder:
        name = f"beam-tfrec-verify-{secrets.token_hex(8)}.json"
        run_graph(partial(_build, config=config, folder=folder, name=name), options, waits=True)
        found = msgspec.json.decode(open_storage(folder).read(name), type=Verified)
    return verify.say_found(found, time.perf_counter() - began)


def parser() -> FlagParser:
    """Return the parser of the command line, which takes Beam's flags too, as `beam_args`."""
    found = verify.parser()
    found.conflict_handler = "resolve"
    group = found.add_argument_group("Beam's own options")
    for action in beam_parser()._actions:
        if action.option_strings and action.dest != "help":
            group.add_argument(
                *action.option_strings,
                nargs=action.nargs,
                action=_Collect,
                dest="beam_args",
                default=[],
                help=argparse.SUPPRESS,
            )
    return found


class _Collect(argparse.Action):
    """Keeps a flag of Beam's as it was given."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Append the flag and its value."""
        given = [option_string]
        if isinstance(values, str):
            given = [f"{option_string}={values}"]
        elif values:
            given = [option_string, *values]
        namespace.beam_args = [*namespace.beam_args, *given]


def _check_text(uris: Sequence[str]) -> None:
    """Refuse paths that could not be sent to workers.

    Raises:
        ValueError: with the value and the remedy.
    """
    for uri in uris:
        if not uri.isascii() and os.fsencode(uri).decode("utf-8", "replace") != uri:
            raise ValueError(
                f"paths must be UTF-8 with --runner, got {uri!r}: rename it, or leave --runner out"
            )


def _build(
    root: beam.Pipeline, config: VerifyConfig, folder: str, name: str
) -> beam.PCollection[Verified]:
    return root | "Verify" >> VerifyEverything(config, folder, name)


@contextlib.contextmanager
def _result_folder(options: PipelineOptions) -> Iterator[str]:
    """Give the folder that workers leave the result in.

    Raises:
        ValueError: where workers are elsewhere, and none is given.
        RuntimeError: `E-ARG` where it is a path of nothing, which else the job's end would tell.
    """
    cloud = options.view_as(GoogleCloudOptions)
    if given := cloud.temp_location or cloud.staging_location:
        check_folder(given)
        yield given
        return
    if not runs_workers_here(options):
        raise ValueError(
            f"temp_location must be given for {runner_of(options)}, whose workers hand the result"
            " back there, got none: add a folder or URI that workers and this machine see"
        )
    with tempfile.TemporaryDirectory(prefix="beam-tfrec-") as folder:
        yield folder
