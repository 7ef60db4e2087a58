"""Fuzz targets one after the other: `make fuzz`, or `python -m tests.fuzz [TARGET …]`.

Prints a Markdown table; what breaks a property lies in `.fuzz/TARGET/`, and the exit code is 1.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.fuzz.corpus import read_corpus, write_corpus
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.watch import Progress, watch

WORK = Path(".fuzz")
DICTIONARIES = Path(__file__).parent / "dictionaries"
_MERGE_S = 300
_FUZZ_ONE = (sys.executable, "-m", "tests.fuzz.one")


def main() -> int:
    """Fuzz, print what was measured, and tell whether a property broke."""
    flags = _parse()
    print("| target | inputs | per s | edges | features | new edge | new feature | peak MiB | |")
    print("|---|---|---|---|---|---|---|---|---|")
    broken = False
    for name in flags.targets or TARGETS:
        progress = fuzz(TARGETS[name], flags.seconds, flags.quiet, keep=flags.keep)
        print(_row(name, progress), flush=True)
        broken |= progress.artifact is not None
    return int(broken)


def fuzz(target: Target, seconds: float, quiet: float, *, keep: bool) -> Progress:
    """Fuzz a target from its seeds and kept inputs; with `keep`, keep what reached more."""
    folder = WORK / target.name
    inputs = folder / "inputs"
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir(parents=True)
    _write_all(inputs, [*target.seeds(), *read_corpus(target.name)])
    flags = [f"-artifact_prefix={folder}/", "-print_final_stats=1", "-use_value_profile=0"]
    if target.dictionary:
        flags.append(f"-dict={DICTIONARIES / target.dictionary}")
    command = [*_FUZZ_ONE, target.name, *flags, str(inputs)]
    progress = watch(command, folder / "log.txt", seconds, quiet)
    if keep and progress.artifact is None:
        _keep(target, folder, inputs)
    return progress


def _keep(target: Target, folder: Path, inputs: Path) -> None:
    """Write the least of the inputs that reaches what all of them reach into the repository."""
    least = folder / "least"
    shutil.rmtree(least, ignore_errors=True)
    least.mkdir()
    command = [*_FUZZ_ONE, target.name, "-merge=1", str(least), str(inputs)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as merging:
        try:
            merged = merging.wait(_MERGE_S) == 0
        except subprocess.TimeoutExpired:  # pyarrow's threads may keep it from ending
            os.killpg(merging.pid, signal.SIGKILL)
            merged = False
    if merged:
        write_corpus(target.name, [path.read_bytes() for path in least.iterdir()])
    else:
        print(f"{target.name}: not merged, the corpus stays as it was", file=sys.stderr)


def _write_all(folder: Path, inputs: Iterable[bytes]) -> None:
    for number, data in enumerate(inputs):
        (folder / f"kept-{number:04}").write_bytes(data)


def _row(name: str, progress: Progress) -> str:
    per_second = progress.executions / max(progress.seconds, 1.0)
    found = "" if progress.artifact is None else f"broken by {progress.artifact}"
    quiet = [f"{(progress.seconds - last) / 60:.1f} min ago" for last in progress.last_new()]
    values = [f"{progress.executions:,}", f"{per_second:,.0f}", progress.edges, progress.features]
    return "| " + " | ".join(map(str, [name, *values, *quiet, progress.peak_mib, found])) + " |"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=float, default=600, help="a target (default 600)")
    parser.add_argument(
        "--quiet", type=float, default=600, help="without a new edge end a target (default 600)"
    )
    parser.add_argument("--keep", action="store_true", help="keep inputs that reach something new")
    flags = parser.parse_args()
    if unknown := set(flags.targets) - TARGETS.keys():
        parser.error(f"no targets: {', '.join(sorted(unknown))}")
    return flags


if __name__ == "__main__":
    sys.exit(main())
