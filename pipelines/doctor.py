"""Look at all that a run stands on, before it: `python -m pipelines.doctor --help`.

Beam is imported only where a pipeline's flags are given.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipelines.cli import PIPELINES
from pipelines.command import guarded, say
from pipelines.flags import FlagParser
from schemas.faults import EXIT_BUG
from transforms.doctor.diagnosis import Diagnosis, exit_code_of, of_error, summary
from transforms.doctor.machine import Needs, check_machine
from transforms.doctor.run_checks import Check, is_any_left, run_checks

_PROGRAM = "beam-tfrec doctor"
_IMPORTS_S = 90.0


def parser() -> FlagParser:
    """Return the parser of the command line."""
    found = FlagParser(
        _PROGRAM,
        "Look at this machine and, with a pipeline and its flags, at all that the run stands on:"
        " credentials, permissions, buckets and their places, sources, a sample of images, room,"
        " output, engine, the package for workers. A line a finding: ok, warning or wrong, with"
        " its remedy. Nothing is left anywhere. Exit code 0: nothing is wrong; else that with"
        " which the first wrong thing would end the run.",
    )
    found.add_argument(
        "pipeline", nargs="?", choices=PIPELINES, help="whose flags follow (default: none)"
    )
    found.add_argument(
        "flags",
        nargs=argparse.REMAINDER,
        metavar="FLAGS",
        help="of the run, as the pipeline takes them: beam-tfrec PIPELINE --help",
    )
    return found


def run(argv: Sequence[str]) -> None:
    """Look, print what is found, and end with the exit code of the first wrong thing."""
    found: list[Diagnosis] = []
    for diagnosis in diagnoses(argv):
        if diagnosis in found:  # by another check, of what both need
            continue
        found.append(diagnosis)
        say(diagnosis.line, sys.stdout)
    say(summary(found), sys.stdout)
    if code := exit_code_of(found):
        sys.exit(code)


def diagnoses(argv: Sequence[str]) -> Iterator[Diagnosis]:
    """Yield what is found, in an order that does not change.

    Raises:
        ValueError: where the first word is no pipeline.
    """
    if not argv or argv[0] not in PIPELINES:  # whose own flags, such as --help, are not ours
        parser().parse_args(list(argv))
        yield from run_checks(_machine_checks(Needs(), decodes=None))
        return
    try:
        needs, decodes, checks = _of_run(argv[0], argv[1:])
    except (ValueError, ImportError) as error:
        refused = of_error(error)
        assert refused is not None  # of these, it knows what to say
        yield refused
        yield from run_checks(_machine_checks(Needs(), decodes=None))
        return
    yield from run_checks([*_machine_checks(needs, decodes=decodes), *checks])


def _of_run(pipeline: str, flags: Sequence[str]) -> tuple[Needs, bool, list[Check]]:
    """Return what a run takes of this machine, whether it decodes images, and its checks."""
    configure: Callable[..., Any] = importlib.import_module(f"pipelines.{pipeline}").configure
    run_config, beam_args = configure(flags)

    from apache_beam.options.pipeline_options import PipelineOptions

    from pipelines.doctor_checks import checks_of, decodes, needs_of

    options = PipelineOptions(beam_args)
    return (
        needs_of(run_config, options),
        decodes(run_config.config),
        checks_of(run_config, options),
    )


def _machine_checks(needs: Needs, *, decodes: bool | None) -> list[Check]:
    def packages() -> Iterator[Diagnosis]:
        from transforms.doctor.packages import check_packages  # itself of a package

        return check_packages(decodes=decodes)

    def imports() -> Iterator[Diagnosis]:
        from transforms.doctor.packages import check_imports

        return check_imports()

    return [
        Check("packages", packages),
        Check("imports", imports, _IMPORTS_S),
        Check("machine", lambda: check_machine(needs)),
    ]


def _put_away() -> str:
    """Remove what an interrupted doctor would leave, and return what is said."""
    # Not imported here: in a signal's handler another thread may hold what that waits for.
    if built := sys.modules.get("transforms.doctor.worker_package"):
        built.stop_builds()
    return "nothing was changed; run again"


def main() -> None:
    """Run the command line."""
    code: object = EXIT_BUG
    try:
        code = guarded(run, sys.argv[1:], _put_away)
    except SystemExit as ended:
        code = ended.code or 0
    if is_any_left():  # what still waits for an answer would keep Python from ending
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else EXIT_BUG)
    sys.exit(code)


if __name__ == "__main__":
    main()
