"""Beam as most recipes use it: Map, Reshuffle, WriteToTFRecord.

Every photo's bytes pass through a shuffle. It runs on the in-process FnApiRunner, named explicitly:
plain DirectRunner looks for another runner to download first.
"""

import sys
from pathlib import Path

import apache_beam as beam
import job
from apache_beam.options.pipeline_options import PipelineOptions
from tf_example import build_example


def serialize(row: dict, names: dict[int, str], images: Path) -> bytes:
    """Read a photo and return its serialized Example."""
    return build_example(row, names, images).SerializeToString()


def main() -> int:
    """Run the pipeline."""
    args = job.arguments().parse_args()
    rows, names = job.load_rows(args.annotations)
    with beam.Pipeline(runner="FnApiRunner", options=PipelineOptions([])) as pipeline:
        (
            pipeline
            | "Rows" >> beam.Create(rows)
            | "Serialize" >> beam.Map(serialize, names, args.images)
            | "Shuffle" >> beam.Reshuffle()
            | "Write"
            >> beam.io.WriteToTFRecord(
                str(args.out / "train"), file_name_suffix=".tfrec", num_shards=job.SHARDS
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
