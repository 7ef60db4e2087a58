"""Outputs that are not empty: foreign files, finished data sets, and another run at work."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.coco_command import (
    MakeCoco,
    check_committed,
    command,
    committed,
    finish,
    forbid_image_reads,
    run_coco,
    shard_paths,
    snapshot,
    start_coco,
)


@pytest.mark.thorough
def test_overwrite_checks_arguments_before_it_deletes(make_coco: MakeCoco, tmp_path: Path) -> None:
    """A typing mistake in --annotations must not delete the existing data set."""
    (images, annotations), out = make_coco(3), tmp_path / "out"
    committed((images, annotations), out)
    run = run_coco(*command((images, tmp_path / "typo.json"), out, "--overwrite"))
    assert run.code != 0
    check_committed(out)


def test_a_complete_output_is_not_written_again(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a touch, equal contents are accepted, and no existing file is written again."""
    sources, out = make_coco(5), tmp_path / "out"
    committed(sources, out)
    before, line = snapshot(out), f"already complete: {out}/manifest.json\n"
    with monkeypatch.context() as patch:
        forbid_image_reads(patch)
        assert run_coco(*command(sources, out)) == (0, line, "")
    assert snapshot(out) == before
    for path in (*sources[0].iterdir(), sources[1]):
        os.utime(path, (10**9, 10**9))
    monkeypatch.setenv("BEAM_TFREC_LOG", "DEBUG")  # names each shard
    touched = run_coco(*command(sources, out))
    assert touched.code == 0
    assert "wrote" not in touched.err
    after = snapshot(out)
    assert {name: after.get(name) for name in before} == before
    assert run_coco(*command(sources, out)).out == line
    assert snapshot(out) == after


@pytest.mark.thorough
def test_overwrite_is_refused_while_another_run_writes(make_coco: MakeCoco, tmp_path: Path) -> None:
    """It ends before it deletes anything, and does not disturb the other run."""
    sources, out = make_coco(200), tmp_path / "out"
    process = start_coco(*command(sources, out, "--num_shards", 100))
    while process.poll() is None and len(shard_paths(out)) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    try:
        run = run_coco(*command(sources, out, "--num_shards", 50, "--overwrite"))
    finally:
        process.send_signal(signal.SIGCONT)
    assert run.ended == (5, "E-OUT-FOREIGN")
    assert "another run writes there" in run.fault
    assert finish(process).code == 0
    assert len(check_committed(out)["shards"]) == 100
    committed(sources, out, "--num_shards", 50, "--overwrite")


@pytest.mark.thorough
def test_a_failed_run_leaves_no_empty_folder(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(2)
    annotations.write_text("{}")
    (tmp_path / "mine").mkdir()
    for out in ("new", "mine", "mine/deep/er"):
        run = run_coco(*command((images, annotations), tmp_path / out))
        assert run.ended == (3, "E-ANN-SECTION")
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_complete_output_refuses_other_plans(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(6), tmp_path / "out"
    committed(sources, out)
    before = snapshot(out)
    run = run_coco(*command(sources, out, "--check", "decode"))
    assert run.ended == (5, "E-OUT-PLAN") and "check" in run.fault
    spec = json.loads(sources[1].read_text())
    spec["annotations"][0]["category_id"] = 2
    sources[1].write_text(json.dumps(spec))
    assert run_coco(*command(sources, out)).ended == (5, "E-OUT-PLAN")
    assert snapshot(out) == before
