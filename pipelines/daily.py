"""Flags of runs that are repeated day by day: `{date}` in --output, --date and --since."""

import argparse
import datetime
from collections.abc import Sequence

from pipelines.options import FlagParser, not_empty
from schemas.run_date import DATE, parse_date


def add_daily_flags(parser: FlagParser) -> None:
    """Add the flags that every pipeline has for its daily runs."""
    group = parser.add_argument_group("daily runs")
    group.add_argument(
        "--date",
        metavar="YYYY-MM-DD",
        help=f"day that stands for {DATE} in --output and --since, such as that of a run to resume"
        " (default: today in UTC, when the command starts)",
    )
    group.add_argument(
        "--since",
        nargs="+",
        action="extend",
        default=[],
        type=not_empty,
        metavar="DIR",
        help="earlier data sets: what they hold is left out, their label ids stay; with"
        f" {DATE}, all finished ones of that name and an earlier day (default none)",
    )


def run_date_of(flags: argparse.Namespace) -> datetime.date:
    """Return the day of a run: the one that the flags give, or today.

    Here and nowhere else a clock decides what a run does, once, before anything is read.

    Raises:
        ValueError: when the day is none, or nothing is called by it.
    """
    if flags.date is None:
        return datetime.datetime.now(datetime.UTC).date()
    date = parse_date(flags.date)
    if not _is_dated(flags):
        raise ValueError(
            f"date {date} must have {DATE} to stand for in output or since: add it, or leave"
            " --date out"
        )
    return date


def with_run_date(argv: Sequence[str], flags: argparse.Namespace, date: datetime.date) -> list[str]:
    """Return the arguments that ask for the same run on any day."""
    if flags.date is not None or not _is_dated(flags):
        return list(argv)
    return [*argv, "--date", date.isoformat()]


def _is_dated(flags: argparse.Namespace) -> bool:
    return any(DATE in name for name in (flags.output, *flags.since))
