"""The command `beam-tfrec plan PIPELINE ...`: the pipeline's command with `--plan`."""

import importlib
import sys

from pipelines.cli import PIPELINES
from pipelines.flags import FlagParser
from schemas.faults import EXIT_USAGE, fault_line


def parser() -> FlagParser:
    """Return what is said of the command; all flags are the pipeline's."""
    flags = FlagParser("beam-tfrec plan", "What a run would make; nothing is written.")
    flags.usage = f"beam-tfrec plan {{{','.join(PIPELINES)}}} ..."
    flags.epilog = "Flags are those of the run: beam-tfrec PIPELINE --help. See docs/plan.md."
    return flags


def main() -> None:
    """Run the pipeline that the first argument names, to plan."""
    program, (pipeline, *arguments) = sys.argv[0], sys.argv[1:] or [""]
    if pipeline in ("-h", "--help"):
        parser().print_help()
        sys.exit(0)
    if pipeline not in PIPELINES:
        what = f"no pipeline is called {pipeline!r}" if sys.argv[1:] else "no pipeline"
        remedy = f"give one of {', '.join(PIPELINES)}"
        print(fault_line("E-ARG", "command line", what, remedy), file=sys.stderr)
        sys.exit(EXIT_USAGE)
    is_console = program.startswith("beam-tfrec ")
    sys.argv = [f"beam-tfrec {pipeline}" if is_console else program, "--plan", *arguments]
    importlib.import_module(f"pipelines.{pipeline}").main()


if __name__ == "__main__":
    main()
