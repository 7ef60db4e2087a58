"""Run each mutant of the core against the tests of its module; tell which no test notices.

Everything happens in a copy of the project, where the mutant is on disk, so that processes which
tests start run it too. What a mutant costs is a fork: most change the body of a function, and get
their code put into that function once all tests are collected; the others (constants, defaults,
fields) are imported anew by a fork that has other people's packages only. Tests that killed a
neighbour go first, then the fastest, and the first that turns red is the last.

What a results file holds as noticed is not run again: after a new test, or with `--thorough`, only
the survivors are.
"""

import argparse
import ast
import contextlib
import functools
import gc
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, settings

from tests.mutation.mutants import Mutant, mutants
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


_IN_CHILDREN = (
    "killed_writer or full_disk or beyond_its_limit or read_only_disk or too_many_open_files"
    " or keeps_looking"
)
TARGETS = (
    Target("schemas/shards.py", ("schemas/shards.py", "tests/test_shards.py")),
    Target(
        "schemas/annotations/segmentations.py",
        ("schemas/annotations/segmentations.py", "tests/test_segmentations.py"),
        but="are_what_pycocotools or are_those_of_pycocotools or bounded_memory",
    ),
    Target(
        "schemas/geometry/masks.py",
        ("schemas/geometry/masks.py", "tests/test_masks.py"),
        but="to_the_pixel or as_pycocotools_does or mask_of_pycocotools or near_the_real or tfds",
    ),
    Target(
        "transforms/payloads.py",
        ("transforms/payloads.py", "tests/test_payloads.py"),
        but="brings_payloads and not one_shard or workers or held_back",
    ),
    Target(
        "transforms/commit.py",
        ("transforms/commit.py", "tests/test_commit.py", "tests/test_coders.py"),
    ),
    Target(
        "transforms/publish_plan.py",
        ("transforms/publish_plan.py", "tests/test_commit.py", "tests/test_coders.py"),
    ),
    Target(
        "transforms/earlier_sets.py",
        (
            "transforms/earlier_sets.py",
            "tests/test_earlier_sets.py",
            "tests/test_daily_runs.py::test_days_are_found_beside_any_number_of_other_files",
            "tests/test_storage_beam_filesystem.py"
            "::test_days_are_not_searched_where_folders_are_not_listed",
        ),
    ),
    *(
        Target(
            module,
            (module, "tests/test_plan_shards.py"),
            but=(
                "sorting_and_cutting_would and not totals2 or workers_do_not or estimated_bytes"
                " or duplicate_key_stops or too_many_shards_stop or missing_images"
            ),
        )
        for module in ("transforms/plan_shards.py", "transforms/shard_table.py")
    ),
    *(
        Target(module, ("tests/test_write_shards.py",), but="killed_at_any_call or at_once")
        for module in ("transforms/build_records.py", "transforms/build_shard.py")
    ),
    Target(
        "transforms/blobs.py",
        ("transforms/blobs.py", "tests/test_blobs.py"),
        but="many_samples",
    ),
    Target("transforms/pin_blobs.py", ("tests/test_blobs.py",), but="many_samples"),
    Target(
        "transforms/storage/__init__.py",
        ("transforms/storage/__init__.py", "tests/test_storage_access.py"),
    ),
    Target(
        "transforms/storage/local.py",
        ("tests/test_storage.py", "tests/test_storage_local.py"),
        but=_IN_CHILDREN,
    ),
    Target(
        "transforms/storage/disk.py",
        ("tests/test_storage_local.py", "tests/test_storage_beam_filesystem.py"),
        but=_IN_CHILDREN,
    ),
    Target(
        "transforms/storage/beam_filesystem.py",
        ("tests/test_storage.py", "tests/test_storage_beam_filesystem.py"),
        but="observer or full_disk",
    ),
    *(
        Target(
            module,
            ("tests/test_storage.py", "tests/test_storage_gcs.py"),
            but="full_disk or observer or in_memory",
        )
        for module in ("transforms/storage/gcs.py", "transforms/storage/gcs_clients.py")
    ),
    Target("transforms/storage/retries.py", ("tests/test_retries.py",)),
    Target(
        "transforms/storage/listing.py",
        ("transforms/storage/listing.py", "tests/test_listing.py"),
    ),
)
RESULTS = ROOT / "build" / "mutation"
KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
_NOTICED = (KILLED, TIMEOUT)
_LEAST_S = 5  # for a mutant that loops, beside ten times what its test takes
_OURS = ("tests", "schemas", "transforms", "pipelines", "readers", "conftest", "__main__")
_PLUGINS_LEFT_OUT = ("xdist", "cov", "unraisableexception", "threadexception")


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


class _Verdict(NamedTuple):
    """What came of a mutant, and the test that turned red."""

    verdict: str
    red: str = ""


class _Watch:
    """A plugin: orders the tests, and notes how long they take and which turns red."""

    def __init__(self, runner: "_Runner", killers: Counter[str]) -> None:
        self.red = ""
        self.seconds: dict[str, float] = {}
        self._runner = runner
        self._killers = killers

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = self._runner.in_order(items, self._killers)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.red = self.red or report.nodeid


class _CodeSwaps:
    """A plugin: instead of the tests, runs mutants, each in a fork of what is collected."""

    def __init__(self, runner: "_Runner", watch: _Watch, wanted: Sequence[Mutant]) -> None:
        self._runner = runner
        self._watch = watch
        self._wanted = wanted

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.freeze()
        source = ast.unparse(ast.parse(self._runner.path.read_text(encoding="utf-8")))
        whole = compile(source, "", "exec")
        for mutant in self._wanted:
            swap = _code_swap(self._runner.module, whole, mutant)
            if swap is not None:
                run = functools.partial(self._run, session, mutant, swap)
                self._runner.keep(mutant, self._runner.judge(mutant, run))
        return True

    def _run(
        self, session: pytest.Session, mutant: Mutant, swap: tuple[FunctionType, CodeType]
    ) -> dict[str, Any]:
        function, code = swap
        function.__code__ = code
        folder = Path("basetemp").resolve()
        folder.mkdir()
        session.config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        items = self._runner.in_order(session.items, self._runner.killers(mutant))
        for item, following in itertools.zip_longest(items, items[1:]):
            signal.alarm(self._runner.limit_s(item))
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._watch.red:
                break
        return {"code": int(bool(self._watch.red)), "red": self._watch.red}


class _Runner:
    """Runs the mutants of a target, in a copy of the project that it may edit."""

    def __init__(self, target: Target, results: Path) -> None:
        self.path = Path(target.file)
        self.module = target.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._target = target
        self._results = results
        self._kept = results.with_suffix(".kept")
        self._whole = self.path.read_text(encoding="utf-8")
        self._killers: dict[str, Counter[str]] = {}
        self._seconds: dict[str, float] = {}
        self._limit_s: float = 600
        self._versions = itertools.count(1)

    def run(self) -> None:
        settings.register_profile(
            "mutation",
            derandomize=True,
            database=None,
            deadline=None,  # of an example: on a busy machine it would say nothing of the mutant
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile("mutation")
        self._rehearse()
        every = list(mutants(self._whole))
        known = _verdicts(self._results, _NOTICED) | _verdicts(self._kept, _NOTICED)
        wanted = [mutant for mutant in every if _identity(mutant) not in known]
        self._kept.write_text("")
        for mutant in every:
            if _identity(mutant) in known:
                self.keep(mutant, known[_identity(mutant)])
        self._fork(lambda: self._test(Counter(), swaps=wanted), limit_s=None)
        known = _verdicts(self._kept, (KILLED, SURVIVED, TIMEOUT))
        for mutant in every:
            if _identity(mutant) not in known:
                run = functools.partial(self._test, self.killers(mutant))
                self.keep(mutant, self.judge(mutant, run))
        known = _verdicts(self._kept, (KILLED, SURVIVED, TIMEOUT))
        with self._results.open("w", encoding="utf-8") as results:
            for mutant in every:
                results.write(_row(mutant, known[_identity(mutant)]))
        self._kept.unlink()

    def in_order(self, items: list[pytest.Item], killers: Counter[str]) -> list[pytest.Item]:
        return sorted(items, key=lambda i: (-killers[i.nodeid], self._seconds.get(i.nodeid, 0)))

    def limit_s(self, item: pytest.Item) -> int:
        """Return how long a test may take before its mutant counts as one that does not end."""
        return int(_LEAST_S + 10 * self._seconds.get(item.nodeid, 0))

    def killers(self, mutant: Mutant) -> Counter[str]:
        return self._killers.setdefault(mutant.scope, Counter())

    def keep(self, mutant: Mutant, verdict: _Verdict) -> None:
        """Note a verdict, at once and on disk."""
        if verdict.red:
            self.killers(mutant)[verdict.red] += 1
        with self._kept.open("a", encoding="utf-8") as kept:
            kept.write(_row(mutant, verdict))

    def judge(self, mutant: Mutant, run: Callable[[], dict[str, Any]]) -> _Verdict:
        """Return what comes of a mutant when a fork runs the tests."""
        self._write(mutant.source)
        try:
            told = self._fork(run, self._limit_s)
        finally:
            self._write(self._whole)
        if told.get("late"):
            return _Verdict(TIMEOUT)
        return _Verdict(SURVIVED if told.get("code") == 0 else KILLED, told.get("red", ""))

    def _rehearse(self) -> None:
        """Run the tests as they are, and import what they imported of other people's packages."""
        for _ in range(2):  # the second time as fast as all that follow
            started_s = time.monotonic()
            told = self._fork(lambda: self._test(Counter(), said=True), self._limit_s)
            if told.get("code") != 0:
                raise RuntimeError(
                    f"the tests of {self.path} are not green as they are: {told.get('red')}"
                )
            self._seconds = told["seconds"]
            took_s = time.monotonic() - started_s
            for name in told["modules"]:
                if not name.startswith(_OURS):
                    _import(name)
        self._limit_s = 3 * took_s + 2 * _LEAST_S
        gc.freeze()  # so that forked processes share these pages
        print(f"{self.path}: green in {took_s:.1f} s", flush=True)

    def _write(self, source: str) -> None:
        """Write the module, with a time of its own by which its .pyc is told from the last."""
        self.path.write_text(source, encoding="utf-8")
        version_s = next(self._versions)
        os.utime(self.path, (version_s, version_s))

    def _test(
        self, killers: Counter[str], said: bool = False, swaps: Sequence[Mutant] = ()
    ) -> dict[str, Any]:
        """Run the tests in this process, or swap code under them, and tell what came of it."""
        watch = _Watch(self, killers)
        plugins: list[object] = [watch]
        if swaps:
            plugins.append(_CodeSwaps(self, watch, swaps))
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=short" if said else "--tb=no"]
        options += ["-m", "not slow", f"--basetemp={'collected' if swaps else 'basetemp'}"]
        options += [f"-pno:{name}" for name in _PLUGINS_LEFT_OUT]
        if self._target.but:
            options += ["-k", f"not ({self._target.but})"]
        code = pytest.main([*options, *self._target.tests], plugins=plugins)
        told: dict[str, Any] = {"code": int(code), "red": watch.red}
        if said:
            told |= {"seconds": watch.seconds, "modules": sorted(sys.modules)}
        return told

    def _fork(
        self, function: Callable[[], dict[str, Any]], limit_s: float | None
    ) -> dict[str, Any]:
        """Return what the function tells in a child, which ends in time with all it started."""
        shutil.rmtree("basetemp", ignore_errors=True)
        told = Path(f"told-{os.getpid()}.json").resolve()
        told.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            said = os.open(f"said-{os.getppid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            try:
                told.write_text(json.dumps(function()))
            finally:
                os._exit(0)
        ended = _wait(child, limit_s)  # None while it runs
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # and what it has started
        if ended is None:
            os.waitpid(child, 0)
        if ended is None or os.WIFSIGNALED(ended):
            return {"late": ended is None or os.WTERMSIG(ended) == signal.SIGALRM}
        return json.loads(told.read_text()) if told.exists() else {"code": -1}


def _code_swap(
    module: str, whole: CodeType, mutant: Mutant
) -> tuple[FunctionType, CodeType] | None:
    """Return the function that a mutant changes and its new code; None when it changes more."""
    function = _function(sys.modules.get(module), mutant.scope)
    if function is None:
        return None
    mutated = compile(mutant.source, function.__code__.co_filename, "exec")
    before = [code for code in _codes(whole) if code.co_qualname == function.__qualname__]
    after = [code for code in _codes(mutated) if code.co_qualname == function.__qualname__]
    if len(before) != 1 or len(after) != 1 or _says(before[0]) == _says(after[0]):
        return None  # a default, a decorator or a field
    if after[0].co_freevars != function.__code__.co_freevars:
        return None
    return function, after[0]


def _function(module: object, scope: str) -> FunctionType | None:
    """Return the outermost function of a scope such as `Ranks.find`."""
    found: Any = module
    for name in scope.split(".") if scope else ():
        found = vars(found).get(name)
        found = getattr(found, "fget", found)
        found = getattr(found, "__func__", found)
        while hasattr(found, "__wrapped__"):
            found = found.__wrapped__
        if isinstance(found, FunctionType):
            return found
        if not isinstance(found, type):
            return None
    return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _says(code: CodeType) -> tuple:
    """Return what a code object does, without where it stands."""
    constants = [_says(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_exceptiontable


def _verdicts(results: Path, of: Sequence[str]) -> dict[tuple, _Verdict]:
    """Return the verdicts of these sorts that a file holds, by the mutants' identities."""
    if not results.exists():
        return {}
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {
        tuple(row["identity"]): _Verdict(row["verdict"], row["red"])
        for row in rows
        if row["verdict"] in of
    }


def _identity(mutant: Mutant) -> tuple:
    """Return what tells a mutant from all others, and stays when lines elsewhere change."""
    return mutant.scope, mutant.kind, mutant.before, mutant.after, mutant.number


def _row(mutant: Mutant, verdict: _Verdict) -> str:
    row = {**mutant._asdict(), **verdict._asdict(), "identity": _identity(mutant)}
    del row["source"]
    return json.dumps(row) + "\n"


def _wait(child: int, limit_s: float | None) -> int | None:
    """Return the status with which the child ends, None when it does not end in time."""
    if limit_s is None:
        return os.waitpid(child, 0)[1]
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    return None


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception:  # it is not there under this name, or is no module to import
        return


if __name__ == "__main__":
    sys.exit(main())
