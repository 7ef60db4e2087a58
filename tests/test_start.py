"""What a command does before its imports, and that importing us as a library does not do."""

import os
import sys

import pytest

from pipelines import start
from tests.coco_command import settings_kept

THREADS = "OPENBLAS_NUM_THREADS"


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["-m", "pipelines.table", "o"], True),
        (["-X", "dev", "-mpipelines.table", "o"], True),
        (["-m", "tool", "o"], False),
        (["-m", "tool.pipelines.table", "o"], False),
    ],
)
def test_python_m_of_ours_alone(
    words: list[str], begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python", *words])
    monkeypatch.setattr(sys, "argv", ["-m", "o"])
    with settings_kept():
        start.begin_module()
        assert (THREADS in os.environ) is begins


def test_nothing_begins_with_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "pipelines.table", "o"])
    monkeypatch.setattr(sys, "argv", ["/x/pipelines/show.py", "o"])
    with settings_kept():
        start.begin_module()
        assert THREADS not in os.environ
