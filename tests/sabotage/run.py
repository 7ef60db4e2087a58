"""Apply one sabotage at a time to a copy of the project; a test that it names must turn red.

Red means an assertion that fails, or one of the project's own lines of a fault where none belongs.
A file that cannot be imported, a fixture that breaks or any other exception proves nothing about
the guard, and ends the run like a sabotage that survives.
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
COPIED = ("schemas", "transforms", "pipelines", "readers", "tests", "pyproject.toml", "setup.py")
_NOT_COPIED = shutil.ignore_patterns("__pycache__", ".venv")  # that of fuzzing may just be made
TIMEOUT_S = 600
_TELL_OF_CI = ("CI", "BUILD_NUMBER")
_RED = ("AssertionError", "assert ", "Failed: DID NOT RAISE", "RuntimeError: E-")
_ALL_PASSED, _SOME_FAILED = 0, 1  # of pytest's exit codes


def main(argv: list[str] | None = None) -> int:
    """Run the sabotages whose name holds the given text, all by default; 0 when all are caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="run those whose name holds this text")
    wanted = parser.parse_args(argv).name
    sabotages = [sabotage for sabotage in SABOTAGES if wanted in sabotage.name]
    if not sabotages:
        print(f"no sabotage's name holds {wanted!r}")
        return 2
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sabotage-") as folder:
        tree = copy_tree(Path(folder))
        trouble = unharmed_trouble(tree, sabotages)
        if trouble:
            print(f"without any sabotage: {trouble}")
            return 1
        survivors = [sabotage for sabotage in sabotages if not report(tree, sabotage)]
    caught = len(sabotages) - len(survivors)
    print(f"{caught} of {len(sabotages)} caught in {time.monotonic() - started_s:.0f} s")
    return 1 if survivors else 0


def copy_tree(folder: Path) -> Path:
    """Return a copy of what the tests need, below the folder."""
    tree = folder / "project"
    tree.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=_NOT_COPIED)
        else:
            shutil.copy(source, tree / name)
    return tree


def unharmed_trouble(tree: Path, sabotages: Iterable[Sabotage]) -> str:
    """Return why the tests are not all green as they are, else nothing."""
    tests = sorted({sabotage.test for sabotage in sabotages})
    code, _, said = run_tests(tree, tests, exit_first=False)
    return "" if code == _ALL_PASSED else f"pytest ended with {code}\n{said}"


def report(tree: Path, sabotage: Sabotage) -> bool:
    """Run the tests under a sabotage, print a line, and return whether they caught it."""
    started_s = time.monotonic()
    trouble, caught_by = sabotaged(tree, sabotage)
    took_s = time.monotonic() - started_s
    what = trouble or f"caught by {caught_by}"
    print(
        f"{'SURVIVES' if trouble else 'ok':8} {took_s:4.1f} s  {sabotage.name}: {what}", flush=True
    )
    return not trouble


def sabotaged(tree: Path, sabotage: Sabotage) -> tuple[str, str]:
    """Return (trouble, name of the test that turned red), one of them empty."""
    path = tree / sabotage.file
    whole = path.read_text(encoding="utf-8")
    found = whole.count(sabotage.old)
    if found != 1:
        return f"does not apply: {sabotage.file} holds its text {found} times", ""
    path.write_text(whole.replace(sabotage.old, sabotage.new), encoding="utf-8")
    try:
        trouble = import_trouble(tree, sabotage.file)
        if trouble:
            return trouble, ""
        code, failures, said = run_tests(tree, [sabotage.test], exit_first=True)
    finally:
        path.write_text(whole, encoding="utf-8")
    if code == _ALL_PASSED:
        return "no test turned red", ""
    red = [test for test, message in failures if message.startswith(_RED)]
    if code != _SOME_FAILED or not red:
        return f"no assertion failed, pytest ended with {code}\n{said}", ""
    return "", red[0]


def import_trouble(tree: Path, file: str) -> str:
    """Return why a sabotaged module cannot be imported, else nothing."""
    module = file.removesuffix(".py").replace("/", ".")
    command = [sys.executable, "-c", f"import {module}"]
    run = subprocess.run(command, cwd=tree, env=_env(), capture_output=True, text=True)
    return f"{module} cannot be imported\n{run.stderr}" if run.returncode else ""


def run_tests(
    tree: Path, tests: Iterable[str], *, exit_first: bool
) -> tuple[int, list[tuple[str, str]], str]:
    """Return pytest's exit code, the tests that failed with their messages, and what it said."""
    results = tree / "results.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    command += [f"--junitxml={results}", *(["-x"] if exit_first else []), *tests]
    try:
        run = subprocess.run(
            command, cwd=tree, env=_env(), capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return -1, [], f"no end after {TIMEOUT_S} s"
    failures = [
        (f"{case.get('name')}", failure.get("message", ""))
        for case in (ET.parse(results).iter("testcase") if results.exists() else ())
        for failure in case.iter("failure")
    ]
    return run.returncode, failures, run.stdout[-3000:] + run.stderr[-1000:]


def _env() -> dict[str, str]:
    # A stale .pyc is told by whole seconds and size, which a sabotage may leave as they were; and
    # where it finds itself in CI, pytest compares values to the last line, which can take hours.
    told = {name: value for name, value in os.environ.items() if name not in _TELL_OF_CI}
    return {**told, "PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    sys.exit(main())
