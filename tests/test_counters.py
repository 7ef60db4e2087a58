"""Counters of a whole run, as Dataflow's page shows them: they end as the manifest's sums."""

from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
from apache_beam.metrics import MetricsFilter

from pipelines import coco
from tests.coco_command import Sources, check_committed


def counters_of(arguments: list[str]) -> dict[str, int]:
    """Run the pipeline and return its counters."""
    pipeline = beam.Pipeline(runner="FnApiRunner")
    coco.build(pipeline, coco.COMMAND.configure(arguments)[0])
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query(MetricsFilter().with_namespace("beam_tfrec"))["counters"]
    return {counter.key.metric.name: counter.committed for counter in found}


def test_they_are_the_sums_of_the_manifest(
    make_coco: Callable[..., Sources], tmp_path: Path
) -> None:
    (images, annotations), out = make_coco(12), tmp_path / "out"
    (images / "a003.jpg").write_bytes(b"<html>")
    (images / "a004.jpg").unlink()
    given = ["--images", str(images), "--annotations", str(annotations), "--output", str(out)]
    given += ["--num_shards", "3", "--max_rejected", "2"]
    counters = counters_of(given)
    (out / "manifest.json").unlink()
    assert counters_of(given) == counters  # every shard is kept
    split = check_committed(out)["splits"]["train"]
    assert counters == {
        "samples_planned": split["planned"],
        "shards_planned": split["shards"],
        "records": split["records"],
        "rejected": split["rejected_in_shards"],
        "bytes": split["bytes"],
        "shards_done": split["shards"],
    }
    assert (split["planned"], split["records"], split["rejected_in_shards"]) == (11, 10, 1)
