"""Sources that change during or after a run are refused until they are restored."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_tfrec.transforms.sources import read_arrays
from tests.array_runs import random_images, run_arrays

pytestmark = pytest.mark.thorough


def test_rerun_notices_labels_that_changed_after_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run notes the state of its sources before it reads them, never after."""
    np.save(tmp_path / "x.npy", random_images(6))
    np.save(tmp_path / "y.npy", np.arange(6))
    arguments = ("--arrays", tmp_path / "x.npy", "--label_array", "y", "--output", tmp_path / "out")
    read = read_arrays.read_rows

    def read_then_rewrite(*args: Any) -> list[int | float | str]:
        values = read(*args)
        np.save(tmp_path / "y.npy", np.arange(6)[::-1])
        return values

    with monkeypatch.context() as patch:
        patch.setattr(read_arrays, "read_rows", read_then_rewrite)
        run = run_arrays(*arguments)
        assert run.code == 0, run.err
    assert "already complete" not in run_arrays(*arguments).out
