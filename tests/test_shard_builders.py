"""Runs with two processes that build shards; `test_kill_and_resume.py` kills them."""

import contextlib
import os
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter

from beam_tfrec.pipelines import coco
from beam_tfrec.pipelines import run as runner
from beam_tfrec.pipelines.data_set import build
from beam_tfrec.transforms import builders
from beam_tfrec.transforms.progress import PROGRESS
from tests.children import builders_of
from tests.coco_command import (
    MakeCoco,
    check_committed,
    command,
    committed,
    digests,
    run_coco,
    shard_paths,
)

TWO = ("--workers", 2)
"""Starts a second process even on a machine of one core."""


@pytest.fixture
def built_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of shards that this process builds itself."""
    names: list[str] = []
    write_shard = builders.write_shard

    def noted(shard: Any, *args: Any) -> Any:
        names.append(str(shard.name))
        return write_shard(shard, *args)

    monkeypatch.setattr(builders, "write_shard", noted)
    return names


def test_two_processes_make_the_bytes_of_one(
    built_here: list[str], make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks are made from segmentations in the run's spool."""
    sources = make_coco(24)
    (sources[0] / "a003.jpg").write_bytes(b"<html>")
    flags = ("--features", "boxes,masks,polygons", "--num_shards", 12, "--max_rejected", 1, *TWO)
    committed(sources, tmp_path / "both", *flags)
    assert 0 < len(built_here) < 12
    assert (PROGRESS.counts.done, PROGRESS.planned, PROGRESS.counts.rejected) == (24, 24, 1)
    assert PROGRESS.counts.shards_done == PROGRESS.shards_planned == 12
    assert builders_of(os.getpid()) == []
    built_here.clear()
    monkeypatch.setattr(runner, "builder_processes", lambda *_: contextlib.nullcontext())
    committed(sources, tmp_path / "alone", *flags)
    assert len(built_here) == 12
    assert digests(tmp_path / "both") == digests(tmp_path / "alone")


@pytest.mark.thorough
def test_a_fault_leaves_no_process(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources, out = make_coco(8), tmp_path / "out"
    committed(sources, out, "--num_shards", 8, *TWO)
    (out / "manifest.json").unlink()
    for path in shard_paths(out):
        os.truncate(path, 10)
    run = run_coco(*command(sources, out, "--num_shards", 8, *TWO))
    assert run.ended == (5, "E-OUT-CONFLICT"), run.err
    assert builders_of(os.getpid()) == []


def test_a_run_builds_alone_if_no_process_can_start(
    built_here: list[str], make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("beam_tfrec.transforms.builders.sys.executable", "/bin/false")
    committed(make_coco(6), tmp_path / "out", "--num_shards", 6, *TWO)
    assert len(built_here) == 6


@pytest.mark.thorough
def test_counters_are_the_sums_of_the_manifest(make_coco: MakeCoco, tmp_path: Path) -> None:
    (images, annotations), out = make_coco(12), tmp_path / "out"
    (images / "a003.jpg").write_bytes(b"<html>")
    (images / "a004.jpg").unlink()
    given = ["--images", str(images), "--annotations", str(annotations), "--output", str(out)]
    given += ["--num_shards", "3", "--max_rejected", "2"]
    found = []
    for _ in range(2):  # every shard is made, then kept
        (out / "manifest.json").unlink(missing_ok=True)
        pipeline = beam.Pipeline(runner="FnApiRunner")
        build(pipeline, coco.run.configure(given)[0])
        result = pipeline.run()
        result.wait_until_finish()
        counters = result.metrics().query(MetricsFilter().with_namespace("beam_tfrec"))["counters"]
        found.append({counter.key.metric.name: counter.committed for counter in counters})
    split = check_committed(out)["splits"]["train"]
    assert found[0] == found[1]
    assert found[0] == {
        "samples_planned": split["planned"],
        "shards_planned": split["shards"],
        "records": split["records"],
        "rejected": split["rejected_in_shards"],
        "bytes": split["bytes"],
        "shards_done": split["shards"],
    }
    assert (split["planned"], split["records"], split["rejected_in_shards"]) == (11, 10, 1)
