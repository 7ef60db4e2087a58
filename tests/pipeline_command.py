"""Run any pipeline in this process; `tests.coco_command` reads what it made."""

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipelines.cli import guarded
from tests.coco_command import Run, check_committed, settings_kept


def run_pipeline(run: Callable[[Sequence[str]], None], *arguments: object) -> Run:
    """Run a pipeline's command; what it sets for a process of its own is put back."""
    out, err = io.StringIO(), io.StringIO()
    with settings_kept(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(run, [str(argument) for argument in arguments])
    return Run(code, out.getvalue(), err.getvalue())


def committed_by(
    run: Callable[[Sequence[str]], None], out: Path, *arguments: object
) -> dict[str, Any]:
    """Run a command, which must succeed, and return the checked manifest."""
    ended = run_pipeline(run, *arguments, "--output", out)
    assert ended.code == 0, ended.err
    return check_committed(out)
