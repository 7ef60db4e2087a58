"""Fuzz targets one after the other: `make fuzz`, or `python -m tests.fuzz [TARGET …]`.

If an input breaks a property, it is kept in `.fuzz/TARGET/`, and the exit code is 1.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tests.fuzz.target import Target, write_corpus
from tests.fuzz.targets import TARGETS

WORK = Path(".fuzz")
DICTIONARIES = Path(__file__).parent / "dictionaries"
_END_S = 300  # a fuzzer's start and end take seconds; a merge takes minutes


def main() -> int:
    """Fuzz, print the figures of each target, and return whether a property broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default 600)")
    parser.add_argument("--keep", action="store_true", help="keep inputs that reach something new")
    flags = parser.parse_args()
    targets = [TARGETS[name] for name in flags.targets or TARGETS]
    held = [fuzz(target, flags.seconds, keep=flags.keep) for target in targets]
    return int(not all(held))


def fuzz(target: Target, seconds: int, *, keep: bool) -> bool:
    """Fuzz a target from its seeds and kept inputs; return whether its property held."""
    folder = WORK / target.name
    inputs, least = folder / "inputs", folder / "least"
    for emptied in (inputs, least):
        shutil.rmtree(emptied, ignore_errors=True)
        emptied.mkdir(parents=True)
    for number, data in enumerate(target.inputs()):
        (inputs / f"kept-{number:04}").write_bytes(data)
    flags = [f"-artifact_prefix={folder}/", f"-max_total_time={seconds}", "-use_value_profile=0"]
    if target.dictionary:
        flags.append(f"-dict={DICTIONARIES / target.dictionary}")
    log = folder / "log.txt"
    held = _libfuzzer(target, [*flags, str(inputs)], log, seconds + _END_S)
    figures = [line for line in log.read_text(errors="replace").splitlines() if "cov: " in line]
    end = "" if held else f"  broken, see {log}"
    print(f"{target.name}: {figures[-1] if figures else 'no input'}{end}", flush=True)
    merge = ["-merge=1", str(least), str(inputs)]
    if held and keep and _libfuzzer(target, merge, folder / "merge.txt", _END_S):
        write_corpus(target.name, [path.read_bytes() for path in least.iterdir()])
    return held


def _libfuzzer(target: Target, arguments: list[str], log: Path, most_s: int) -> bool:
    """Run libFuzzer on a target in a new process; return whether it succeeded."""
    command = ["timeout", "-s", "KILL", f"{most_s}", sys.executable, "-m", "tests.fuzz.one"]
    with log.open("w") as out:
        ended = subprocess.run([*command, target.name, *arguments], stdout=out, stderr=out)
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
