"""Apply one sabotage at a time to a copy of the project; a test that it names must fail.

To fail means a failed assertion, or a line of a fault (E-…) where none is expected. A file that
cannot be imported, a broken fixture or any other exception proves nothing about the guard, and
counts as a sabotage that survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from tests.sabotage.sabotages import SABOTAGES, Sabotage

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "beam_tfrec",
    "schemas",
    "transforms",
    "pipelines",
    "readers",
    "tests",
    "docs",
    "pyproject.toml",
    "setup.py",
)
_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".venv")  # fuzzing's may be half made
TIMEOUT_S = 600
_RED = ("AssertionError", "assert ", "Failed: DID NOT RAISE", "RuntimeError: E-")
_ALL_PASSED, _SOME_FAILED = 0, 1  # exit codes of pytest
# Python compares a .pyc by whole seconds and size, which a sabotage may leave as they were, so none
# is written. With CI set, pytest prints differences in full, which can take hours.
_ENV = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
_ENV["PYTHONDONTWRITEBYTECODE"] = "1"


def main() -> int:
    """Run the sabotages with a text in their names, by default all; return 0 if all are caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "name", nargs="?", default="", help="run those with this text in their names"
    )
    wanted = parser.parse_args().name
    sabotages = [sabotage for sabotage in SABOTAGES if wanted in sabotage.name]
    caught = 0
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        tree = Path(folder)
        for path in (ROOT / name for name in COPIED):
            if path.is_dir():
                shutil.copytree(path, tree / path.name, symlinks=True, ignore=_NOT_COPIED)
            else:
                shutil.copy(path, tree)
        code, _, said = run_tests(tree, sorted({sabotage.test for sabotage in sabotages}))
        if code != _ALL_PASSED:
            print(f"without any sabotage, pytest ended with {code}\n{said}")
            return 1
        for sabotage in sabotages:
            started_s = time.monotonic()
            trouble, caught_by = sabotaged(tree, sabotage)
            caught += not trouble
            found = f"SURVIVES: {trouble}" if trouble else f"caught by {caught_by}"
            print(f"{time.monotonic() - started_s:4.1f} s  {sabotage.name}: {found}", flush=True)
    print(f"{caught} of {len(sabotages)} caught")
    return int(caught != len(sabotages))


def sabotaged(tree: Path, sabotage: Sabotage) -> tuple[str, str]:
    """Return (trouble, name of the test that failed), one of them empty."""
    path = tree / sabotage.file
    whole = path.read_text(encoding="utf-8")
    if whole.count(sabotage.old) != 1:
        return f"does not apply: {sabotage.file} does not hold its text once", ""
    path.write_text(whole.replace(sabotage.old, sabotage.new), encoding="utf-8")
    module = sabotage.file.removesuffix(".py").replace("/", ".")
    try:
        imported = run(tree, "-c", f"import {module}")
        if imported.returncode:
            return f"{module} cannot be imported\n{imported.stderr}", ""
        code, failures, said = run_tests(tree, ["-x", sabotage.test])
    finally:
        path.write_text(whole, encoding="utf-8")
    red = [test for test, message in failures if message.startswith(_RED)]
    if code != _SOME_FAILED or not red:
        return f"no assertion failed, pytest ended with {code}\n{said}", ""
    return "", red[0]


def run_tests(tree: Path, words: Iterable[str]) -> tuple[int, list[tuple[str, str]], str]:
    """Return pytest's exit code, the tests that failed with their messages, and its output."""
    results = tree / "results.xml"
    results.unlink(missing_ok=True)
    options = ("-q", "-p", "no:cacheprovider", "--tb=short", f"--junitxml={results}")
    ended = run(tree, "-m", "pytest", *options, *words)
    failures = [
        (f"{case.get('name')}", failure.get("message", ""))
        for case in (ET.parse(results).iter("testcase") if results.exists() else ())
        for failure in case.iter("failure")
    ]
    return ended.returncode, failures, ended.stdout[-3000:] + ended.stderr[-1000:]


def run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the copy; a timeout raises."""
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=tree, env=_ENV, capture_output=True, text=True, timeout=TIMEOUT_S
    )


if __name__ == "__main__":
    sys.exit(main())
