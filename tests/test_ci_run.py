"""`.ci/run` with fake programs: every step runs once, and a failure stops the run."""

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


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("", "=== ran"),
        ("make --no-print-directory lint", "no: make --no-print-directory lint"),
        ("directory engines", "engines could not be fetched"),
        ("-r tests/tfdv", "--- schema_used_by_tfdv failed"),
        ("directory sabotage", "--- sabotage failed"),
        ("VENV=.venv-3.13", "newest_python could not be fetched"),
    ],
)
def test_every_step_runs_once_and_a_failure_stops_the_run(
    fails: str, said: str, tmp_path: Path
) -> None:
    for folder in (".ci", ".venv/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(PROJECT / ".ci/run", tmp_path / ".ci/run")
    for name in ("make", "python3.11", "python3.13", "go", "chromium"):
        (tmp_path / "bin" / name).write_text(PROGRAM)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "bin/make")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env={**os.environ, "SAID": str(tmp_path / "said"), "FAILS": fails or "~", "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert said in ended.stdout
    assert ("=== ran" in ended.stdout, ended.returncode == 0) == (not fails, not fails)
    calls = (tmp_path / "said").read_text()
    steps = ("test-all", "test-slow", "test-flink", " sabotage", "FUZZ_SECONDS=5")
    for once in (*steps, "coverage report", "directory test\n", "test PYTHON=", "test_tfdv.py"):
        assert fails or calls.count(once) == 1, once
