"""Run each mutant of the core against the tests of its module; tell which no test notices.

Everything happens in a copy of the project. One process imports what the tests need of other
people's packages and forks for every mutant; the mutant is on disk, so that processes which tests
start run it too. Tests that killed a neighbour go first, then the fastest, and the first that turns
red is the last. What a results file holds as killed is not run again: after a new test, or with
`--thorough`, only the survivors are.
"""

import argparse
import contextlib
import gc
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

from tests.mutation.mutants import mutants
from tests.sabotage.run import ROOT, copy_tree


class Target(NamedTuple):
    """A module and its tests.

    Attributes:
        file: relative to the project.
        tests: pytest's names of files or tests.
        but: slow ones among them, as pytest's `-k` takes them; they run with `--thorough`.
    """

    file: str
    tests: tuple[str, ...]
    but: str = ""


TARGETS = (
    Target("schemas/shards.py", ("schemas/shards.py", "tests/test_shards.py")),
    Target(
        "transforms/commit.py",
        ("transforms/commit.py", "tests/test_commit.py"),
    ),
    Target(
        "transforms/plan_shards.py",
        ("transforms/plan_shards.py", "tests/test_plan_shards.py"),
        but=(
            "sorting_and_cutting_would and not totals2 or workers_do_not or estimated_bytes"
            " or duplicate_key_stops or too_many_shards_stop or missing_images"
        ),
    ),
    Target(
        "transforms/write_shards.py",
        ("tests/test_write_shards.py",),
        but="killed_at_any_call or at_once",
    ),
    Target("transforms/storage/__init__.py", ("transforms/storage", "tests/test_storage_local.py")),
    Target("transforms/storage/local.py", ("tests/test_storage_local.py",)),
    Target(
        "transforms/storage/uploaded_spool.py",
        ("tests/test_storage_beam_filesystem.py", "tests/test_uploaded_spool.py"),
    ),
    Target("transforms/storage/beam_filesystem.py", ("tests/test_storage_beam_filesystem.py",)),
    Target("transforms/storage/gcs.py", ("tests/test_storage_gcs.py",)),
)
RESULTS = ROOT / "build" / "mutation"
_LEAST_S = 20  # for a mutant that loops, beside three times what the tests take
_NOT_PRELOADED = (
    "tests",
    "schemas",
    "transforms",
    "pipelines",
    "conftest",
    "__main__",
)
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"


def main(argv: list[str] | None = None) -> int:
    """Run the targets whose file holds one of the given texts, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="*", help="run the modules whose path holds one of these")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (build/mutation)")
    parser.add_argument("--thorough", action="store_true", help="run the slow tests too")
    parser.add_argument("--in_copy", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    targets = [t for t in TARGETS if not args.file or any(text in t.file for text in args.file)]
    if args.thorough:
        targets = [target._replace(but="") for target in targets]
    args.results.mkdir(parents=True, exist_ok=True)
    for target in targets:
        results = args.results.resolve() / f"{target.file.replace('/', '.')}.jsonl"
        if args.in_copy:
            _Runner(target, results).run()
        else:
            _run_in_copy(target, args.results, ["--thorough"] if args.thorough else [])
            print(summary(target.file, results), flush=True)
    return 0


def summary(file: str, results: Path) -> str:
    """Return the counts of a target and its survivors, one a line."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    count = Counter(row["verdict"] for row in rows)
    words = Counter(row["verdict"] for row in rows if row["kind"] == "text")
    noticed = 100 * (count[KILLED] + count[TIMEOUT]) / max(1, len(rows))
    lines = [
        f"{file}: {len(rows)} mutants, {count[KILLED]} killed, {count[TIMEOUT]} timeouts,"
        f" {count[SURVIVED]} survived ({words[SURVIVED]} of them words of messages):"
        f" {noticed:.1f} % noticed"
    ]
    lines += [
        f"  {row['line']:4} {row['scope']} [{row['kind']}]"
        f" {row['before']} -> {row['after'] or 'gone'}"
        for row in rows
        if row["verdict"] == SURVIVED
    ]
    return "\n".join(lines)


def _run_in_copy(target: Target, results: Path, flags: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = copy_tree(Path(folder))
        command = [sys.executable, "-m", "tests.mutation.run", "--in_copy", *flags, target.file]
        subprocess.run([*command, "--results", results.resolve()], cwd=tree, check=True)


class _Session:
    """A plugin: orders the tests, and notes how long they take and which turns red."""

    def __init__(self, first: Counter[str], seconds: dict[str, float]) -> None:
        self.red = ""
        self.seconds: dict[str, float] = {}
        self._first = first
        self._known_seconds = seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        def rank(item: pytest.Item) -> tuple[float, float]:
            return -self._first[item.nodeid], self._known_seconds.get(item.nodeid, 0)

        items.sort(key=rank)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.red = self.red or report.nodeid


class _Runner:
    """Runs the mutants of a target, in a copy of the project that it may edit."""

    def __init__(self, target: Target, results: Path) -> None:
        self._target = target
        self._results = results
        self._path = Path(target.file)
        self._whole = self._path.read_text(encoding="utf-8")
        self._killers: dict[str, Counter[str]] = {}
        self._seconds: dict[str, float] = {}
        self._limit_s: float = 600
        self._versions = itertools.count(1)

    def run(self) -> None:
        settings.register_profile(
            "mutation", derandomize=True, database=None, phases=(Phase.explicit, Phase.generate)
        )
        settings.load_profile("mutation")
        self._rehearse()
        earlier = self._earlier()
        with self._results.open("w", encoding="utf-8") as results:
            for mutant in mutants(self._whole):
                row = mutant._asdict()
                source = row.pop("source")
                known = earlier.get(_identity(row), [])
                verdict, red = (
                    (KILLED, known.pop(0)) if known else self._judge(mutant.scope, source)
                )
                if red:
                    self._killers.setdefault(mutant.scope, Counter())[red] += 1
                results.write(json.dumps({**row, "verdict": verdict, "red": red}) + "\n")
                results.flush()

    def _rehearse(self) -> None:
        """Run the tests as they are, and import what they imported of other people's packages."""
        for _ in range(2):  # the second time as fast as all that follow
            started_s = time.monotonic()
            told = self._fork(lambda: self._test(Counter(), said=True))
            if told.get("code") != 0:
                raise RuntimeError(f"the tests of {self._path} are not green as they are: {told}")
            self._seconds = told["seconds"]
            self._limit_s = 3 * (time.monotonic() - started_s) + _LEAST_S
            for name in told["modules"]:
                if not name.startswith(_NOT_PRELOADED):
                    _import(name)
        gc.freeze()  # so that forked processes share these pages
        print(f"{self._path}: green in {(self._limit_s - _LEAST_S) / 3:.1f} s", flush=True)

    def _judge(self, scope: str, source: str) -> tuple[str, str]:
        """Return (verdict, name of the test that turned red)."""
        killers = self._killers.get(scope, Counter())
        self._write(source)
        try:
            told = self._fork(lambda: self._test(killers))
        finally:
            self._write(self._whole)
        if told.get("late"):
            return TIMEOUT, ""
        return (SURVIVED if told.get("code") == 0 else KILLED), told.get("red", "")

    def _write(self, source: str) -> None:
        """Write the module, with a time of its own by which its .pyc is told from the last."""
        self._path.write_text(source, encoding="utf-8")
        version_s = next(self._versions)
        os.utime(self._path, (version_s, version_s))

    def _test(self, killers: Counter[str], said: bool = False) -> dict[str, Any]:
        """Run the tests in this process and tell what came of them."""
        session = _Session(killers, self._seconds)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no" if not said else "--tb=short"]
        options += ["-m", "not slow", "--basetemp=basetemp"]
        if self._target.but:
            options += ["-k", f"not ({self._target.but})"]
        code = pytest.main([*options, *self._target.tests], plugins=[session])
        told: dict[str, Any] = {"code": int(code), "red": session.red}
        if said:
            told |= {"seconds": session.seconds, "modules": sorted(sys.modules)}
        return told

    def _fork(self, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what the function tells in a child, which ends in time with all it started."""
        told = Path("told.json")
        told.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            try:
                told.write_text(json.dumps(function()))
            finally:
                os._exit(0)
        ended = _wait(child, self._limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it has started
        if not ended:
            os.waitpid(child, 0)
            return {"late": True}
        return json.loads(told.read_text()) if told.exists() else {"code": -1}

    def _earlier(self) -> dict[tuple, list[str]]:
        """Return the tests that killed the mutants of an earlier run, equal ones in their order."""
        if not self._results.exists():
            return {}
        killed: dict[tuple, list[str]] = {}
        for line in self._results.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["verdict"] == KILLED:
                killed.setdefault(_identity(row), []).append(row["red"])
        return killed


def _identity(row: dict[str, Any]) -> tuple:
    return row["scope"], row["line"], row["kind"], row["before"], row["after"]


def _wait(child: int, limit_s: float) -> bool:
    """Return whether the child ends in time."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    return False


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception:  # it is not there under this name, or is no module to import
        return


if __name__ == "__main__":
    sys.exit(main())
