"""A bucket with a limit of reads per second: the run takes longer, and nothing fails."""

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter

from beam_tfrec.pipelines import coco
from beam_tfrec.pipelines.data_set import build
from beam_tfrec.transforms.storage import retries
from tests.coco_command import MakeCoco
from tests.gcs_stand_in import GcsStandIn
from tests.gcs_stand_in.sources import SOURCES, put_sources


@pytest.mark.thorough
def test_throttling_is_reported_to_the_runner(
    stand_in: GcsStandIn, make_coco: MakeCoco, tmp_path: Path
) -> None:
    """So that Dataflow adds no workers while a store cannot serve the present ones."""
    put_sources(stand_in, make_coco(60))
    given = [*SOURCES, "--output", str(tmp_path / "out"), "--num_shards", "2"]
    limits = ("--readers", "1", "--max_reads_per_second", "20")
    config = coco.COMMAND.configure([*given, *limits])[0]
    retries.THROTTLED.add(100)  # earlier waits, for instance of listings
    pipeline = beam.Pipeline(runner="FnApiRunner")
    build(pipeline, config)
    result = pipeline.run()
    result.wait_until_finish()
    throttled = MetricsFilter().with_name("cumulativeThrottlingSeconds")
    (counter,) = result.metrics().query(throttled)["counters"]
    assert counter.key.metric.namespace == "beam_tfrec"
    assert 1 <= counter.result <= 3  # sixty images at 20 a second, less on a busy machine
