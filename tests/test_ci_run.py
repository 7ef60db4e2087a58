"""`.ci/run` with programs that do nothing: what fails is told, and nothing outlives it."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.coco_command import PROJECT

PROGRAM = """#!/bin/bash
said="$(basename "$0") $*"
echo "$$ $said" >> "$SAID"
case "$said" in *"$SLOW"*) exec sleep 300;; esac
case "$said" in *"$FAILS"*) echo "no: $said"; exit 3;; esac
case "$said" in
  *demo*) mkdir -p demo-out; echo already complete;;
  *"venv --clear"*) mkdir -p "${@: -1}/bin"; ln -sf "$0" "${@: -1}/bin/python";;
esac
"""
NEVER = "~"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of `.ci/run` and programs that write down how they are called."""
    for folder in (".ci", ".venv/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(PROJECT / ".ci/run", tmp_path / ".ci/run")
    for name in ("make", "python3.11", "python3.13", "go", "chromium"):
        (tmp_path / "bin" / name).write_text(PROGRAM)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "bin/make")
    return tmp_path


def start(project: Path, *, fails: str = NEVER, slow: str = NEVER) -> subprocess.Popen[str]:
    given = {"SAID": str(project / "said"), "FAILS": fails, "SLOW": slow}
    path = f"{project / 'bin'}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", ".ci/run"],
        cwd=project,
        env={**os.environ, **given, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def process_of(project: Path, call: str) -> int:
    """Wait until a program is called so; return its process."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        said = project / "said"
        for line in said.read_text().splitlines() if said.exists() else ():
            if call in line:
                return int(line.split()[0])
        time.sleep(0.05)
    raise AssertionError(f"nobody called {call}")


def has_ended(process: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_every_step_is_done_once(project: Path) -> None:
    run = start(project)
    said = run.communicate(timeout=100)[0]
    assert run.returncode == 0, said
    calls = (project / "said").read_text()
    for once in ("test-slow", "test-flink", " sabotage", "FUZZ_SECONDS=5", "tests/test_tfdv.py"):
        assert calls.count(once) == 1


@pytest.mark.parametrize(
    ("fails", "told"),
    [
        ("make --no-print-directory lint", "no: make --no-print-directory lint"),
        ("directory engines", "engines could not be fetched"),
        ("-r tests/tfdv", "--- schema_used_by_tfdv failed"),
        ("directory sabotage", "--- sabotage failed"),
        ("VENV=.venv-3.13", "newest_python could not be fetched"),
    ],
)
def test_what_fails_ends_it(fails: str, told: str, project: Path) -> None:
    run = start(project, fails=fails)
    said = run.communicate(timeout=100)[0]
    assert run.returncode != 0
    assert told in said
    assert "=== ran" not in said


def test_a_fetch_that_was_killed_is_not_waited_for(project: Path) -> None:
    run = start(project, slow="-r tests/tfdv")
    fetch = process_of(project, "-r tests/tfdv")
    fetching = int(Path(f"/proc/{fetch}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(fetching, 9)
    os.kill(fetch, 9)
    said = run.communicate(timeout=100)[0]
    assert run.returncode != 0
    assert "tfdv could not be fetched" in said


@pytest.mark.parametrize("slow", ["-r tests/tfdv", "directory sabotage"])
def test_nothing_goes_on_behind_its_end(slow: str, project: Path) -> None:
    run = start(project, slow=slow)
    left = process_of(project, slow)
    run.terminate()
    run.communicate(timeout=100)
    assert has_ended(left)
