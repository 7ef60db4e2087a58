"""The command `beam-tfrec plan PIPELINE ...`: the pipeline's command with `--plan`."""

import importlib
import sys

from pipelines.cli import PIPELINES
from schemas.faults import EXIT_USAGE, fault_line


def main() -> None:
    """Run the pipeline that the first argument names, to plan."""
    program, (pipeline, *arguments) = sys.argv[0], sys.argv[1:] or ["--help"]
    if pipeline in ("-h", "--help"):
        print(
            f"usage: beam-tfrec plan {{{','.join(PIPELINES)}}} ...  (as beam-tfrec PIPELINE ...);"
            " says what a run would make, and writes nothing"
        )
        sys.exit(0)
    if pipeline not in PIPELINES:
        what = f"no pipeline is called {pipeline!r}"
        remedy = f"give one of {', '.join(PIPELINES)}"
        print(fault_line("E-ARG", "command line", what, remedy), file=sys.stderr)
        sys.exit(EXIT_USAGE)
    is_console = program.startswith("beam-tfrec ")
    sys.argv = [f"beam-tfrec {pipeline}" if is_console else program, "--plan", *arguments]
    importlib.import_module(f"pipelines.{pipeline}").main()


if __name__ == "__main__":
    main()
