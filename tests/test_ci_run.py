"""`.ci/run` with programs that do nothing: every step runs once, and a failure ends it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.coco_command import PROJECT

PROGRAM = """#!/bin/bash
said="$(basename "$0") $*"
echo "$said" >> "$SAID"
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


def run(project: Path, *, fails: str = NEVER) -> subprocess.CompletedProcess[str]:
    path = f"{project / 'bin'}:{os.environ['PATH']}"
    given = {"SAID": str(project / "said"), "FAILS": fails, "PATH": path}
    return subprocess.run(
        ["bash", ".ci/run"],
        cwd=project,
        env={**os.environ, **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )


def test_every_step_is_done_once(project: Path) -> None:
    ended = run(project)
    assert ended.returncode == 0, ended.stdout
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
    ended = run(project, fails=fails)
    assert ended.returncode != 0
    assert told in ended.stdout
    assert "=== ran" not in ended.stdout
