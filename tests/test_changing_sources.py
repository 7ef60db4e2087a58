"""Sources that change during or after a run are refused until they are restored."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from beam_tfrec.transforms.sources import read_arrays
from tests.array_runs import random_images, run_arrays
from tests.coco_command import MakeCoco, command, committed, run_coco, snapshot
from tests.faulty_sources import grow, rewrite

pytestmark = pytest.mark.thorough


def test_source_rewritten_after_its_shard_is_refused(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Equal names and sizes give the same plan; the index shows that the bytes differ."""
    sources, out = make_coco(4), tmp_path / "out"
    committed(sources, out, "--num_shards", 2)
    rewrite(sources[0] / "a002.jpg")
    for is_finished in (True, False):
        if not is_finished:
            (out / "manifest.json").unlink()
        before = snapshot(out)
        run = run_coco(*command(sources, out, "--num_shards", 2))
        assert run.ended == (6, "E-SRC-CHANGED")
        assert snapshot(out) == before
    grow(sources[0] / "a002.jpg")
    assert run_coco(*command(sources, out, "--num_shards", 2)).ended == (5, "E-OUT-PLAN")


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
