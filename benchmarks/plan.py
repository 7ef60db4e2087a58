"""Read, group and plan a large annotation file, without writing: prints seconds and peak memory.

`python benchmarks/plan.py IMAGES ANNOTATIONS` runs the pipeline's own transforms up to the shard
plans, in this process. Make the input with `generate.py --annotations-only --sparse-images`.
"""

import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import apache_beam as beam

from schemas.layouts.detection import DetectionLayout
from schemas.shards import ShardPlan
from transforms.blobs import ListBlobs
from transforms.pin_blobs import PinBlobs
from transforms.pipeline_spool import spool_for
from transforms.plan_shards import PlanShards, Sharding
from transforms.process_memory import keep_freed_memory, spare_the_collector
from transforms.read_coco import ReadCoco


def count_samples(shard: ShardPlan) -> None:
    """Print a shard's size."""
    print(f"{shard.name}: {len(shard.samples)} samples")


def main() -> None:
    """Plan the data set that the arguments name."""
    images, annotations = sys.argv[1:]
    started_s = time.perf_counter()
    spare_the_collector()
    keep_freed_memory()
    with beam.Pipeline(runner="FnApiRunner") as root:
        read = root | ReadCoco({"train": [annotations]})
        spool = spool_for(root)
        pinned = read.samples | PinBlobs(root | ListBlobs({"train": images}), spool=spool)
        layout = DetectionLayout()
        planned = pinned.samples | PlanShards(
            Sharding(num_shards={"": 16}), layout.record_bytes, pinned.tallies, spool=spool
        )
        _ = planned.shards | beam.Map(count_samples)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"planned in {time.perf_counter() - started_s:.2f} s, peak {peak_kb / 1000:.0f} MB")


if __name__ == "__main__":
    main()
