"""Flags that every pipeline has, as values of its configuration and its run."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from pipelines.command import accepting_command
from pipelines.daily import add_daily_flags, run_date_of, with_run_date
from pipelines.data_set import DataSetConfig
from pipelines.image_flags import add_image_flags, image_fields
from pipelines.launch import RunConfig
from pipelines.options import (
    FlagParser,
    access_of,
    add_output_flags,
    budget_of,
    limits_of,
    sharding_of,
)
from pipelines.plan_text import PlanFormat
from pipelines.split_flags import add_split_flags, splitting_of
from schemas.manifest import REPORT_NAME
from schemas.run_date import expand_date
from transforms.earlier_sets import Since

C = TypeVar("C", bound=DataSetConfig)


def add_data_set_flags(parser: FlagParser, *, images: bool = True) -> None:
    """Add the flags that every pipeline has, behind those of its sources and its layout.

    Args:
        parser: of the pipeline's command.
        images: whether it has image files, which flags are about.
    """
    add_split_flags(parser)
    if images:
        add_image_flags(parser)
    add_daily_flags(parser)
    add_output_flags(parser)
    _add_report_flags(parser)


def _add_report_flags(parser: FlagParser) -> None:
    group = parser.add_argument_group("report")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--report",
        action="store_true",
        help=f"make {REPORT_NAME} behind the manifest, and where it is missing beside a complete"
        " --output (default: where the run is in this process and --output is local)",
    )
    which.add_argument(
        "--no_report",
        action="store_true",
        help=f"make no {REPORT_NAME}: beam-tfrec report makes it later (default: see --report)",
    )


def make_run(
    make_config: Callable[..., C],
    flags: argparse.Namespace,
    argv: Sequence[str],
    command: str,
    *,
    images: bool = True,
) -> RunConfig[C]:
    """Return the run that the flags ask for.

    Args:
        make_config: makes the pipeline's configuration, given the fields that all pipelines have.
        flags: as parsed.
        argv: what they were parsed from, for the command that accepts rejects.
        command: the pipeline's name.
        images: whether it has image files, as `add_data_set_flags` was told.

    Raises:
        ValueError: with the value and the remedy.
    """
    date = run_date_of(flags)
    program, given = _program(command), with_run_date(argv, flags, date)
    config = make_config(
        output=expand_date(flags.output, date),
        sharding=sharding_of(flags),
        splitting=splitting_of(flags),
        **(image_fields(flags) if images else {}),
        budget=budget_of(flags),
        exclude=flags.exclude or "",
        allow_empty=flags.allow_empty,
        limits=limits_of(flags),
        access=access_of(flags),
        accept_command=accepting_command(program, given),
        accept_drops_command=accepting_command(program, given, "--max_dropped"),
    )
    since = Since(tuple(flags.since), date)
    return RunConfig(
        config,
        flags.overwrite,
        flags.trust_manifest,
        since,
        waits=not flags.no_wait,
        plan=PlanFormat(flags.plan) if flags.plan else None,
        report=True if flags.report else False if flags.no_report else None,
    )


def _program(command: str) -> str:
    """Return how the user started this; the console command says so in its first argument."""
    is_console = sys.argv[0].startswith("beam-tfrec ")
    return sys.argv[0] if is_console else f"python -m pipelines.{command}"
