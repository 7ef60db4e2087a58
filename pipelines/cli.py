"""The console command `beam-tfrec`: each pipeline is a subcommand of the same name."""

import importlib
import sys

from pipelines.start import PIPELINES, begin

COMMANDS = (*PIPELINES, "plan", "verify", "show", "report")
"""Each names the module of `pipelines` that has its `main`."""

REMOVED = {"doctor": "run the command with --plan, which checks sources, output and credentials"}
"""What to do instead of a command that was removed, for one release."""


def main() -> None:
    """Run the subcommand that the first argument names."""
    command, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if command in ("-h", "--help"):
        print(f"usage: beam-tfrec {{{','.join(COMMANDS)}}} ...  (beam-tfrec COMMAND --help)")
        sys.exit(0)
    if command in REMOVED:
        print(f"E-ARG command line: {command} was removed; {REMOVED[command]}", file=sys.stderr)
        sys.exit(2)
    if command not in COMMANDS:
        what = f"unknown command {command!r}" if sys.argv[1:] else "no command"
        print(
            f"E-ARG command line: {what}; give one of {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        sys.exit(2)
    begin(command)
    pipeline = importlib.import_module(f"pipelines.{command}")  # Beam takes half a second
    sys.argv = [f"beam-tfrec {command}", *arguments]
    pipeline.main()


if __name__ == "__main__":
    main()
