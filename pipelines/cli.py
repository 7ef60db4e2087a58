"""The console command `beam-tfrec`: each pipeline is a subcommand of the same name."""

import importlib
import sys

from pipelines.start import PIPELINES, begin

COMMANDS = (*PIPELINES, "plan", "verify", "show", "report", "doctor")
"""Each names the module of `pipelines` that has its `main`."""


def main() -> None:
    """Run the subcommand that the first argument names."""
    command, arguments = (sys.argv[1:2] or ["--help"])[0], sys.argv[2:]
    if command in ("-h", "--help"):
        print(f"usage: beam-tfrec {{{','.join(COMMANDS)}}} ...  (beam-tfrec COMMAND --help)")
        sys.exit(0)
    if command not in COMMANDS:
        print(
            f"E-ARG command line: unknown command {command!r}; give one of {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        sys.exit(2)
    begin(command, arguments)
    pipeline = importlib.import_module(f"pipelines.{command}")  # Beam takes half a second
    sys.argv = [f"beam-tfrec {command}", *arguments]
    pipeline.main()


if __name__ == "__main__":
    main()
