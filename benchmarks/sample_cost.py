"""Print what a sample of boxes takes, encoded and over all group-bys: see test_sample_cost.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.test_sample_cost import BATCH, boxes_only
from transforms import pin_blobs
from transforms.coders import StructCoder
from transforms.plan_shards import BucketBatch, ShardRun, Tally

if __name__ == "__main__":
    sample = boxes_only()
    samples = [sample] * BATCH
    batches = (
        pin_blobs._JoinBatch(samples=samples),
        BucketBatch(samples, Tally(BATCH, BATCH * 190_123, "f" * 64)),
        ShardRun(1000, samples),
    )
    grouped = sum(len(StructCoder(type(batch)).encode(batch)) for batch in batches) / BATCH
    encoded = len(StructCoder(type(sample)).encode(sample))
    print(f"{encoded} bytes encoded, {grouped:.0f} bytes over all group-bys")
