"""Print what a sample of boxes takes where it is shuffled, alone and over all group-bys."""

import random
import sys
from pathlib import Path

import msgspec
from apache_beam import coders

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from schemas.samples import Sample, pack_each, pack_rounded, shuffle_keys
from tests.coco_texts import annotation, coco, image
from transforms import pin_blobs
from transforms.plan_shards import BucketBatch, ShardRun
from transforms.shard_table import Tally
from transforms.sources.elements import StructCoder
from transforms.sources.read_coco import CocoReader

BATCH = 32


def boxes_only(number: int = 0) -> Sample:
    """A pinned sample of COCO's usual size: seven boxes, ids of six digits, and no outline."""
    draw = random.Random(number)
    image_id = 391_895 + 7 * number
    boxes = [
        annotation(
            draw.randrange(100_000, 999_999),
            image_id=image_id,
            bbox=[round(draw.uniform(0, 400), 2) for _ in range(4)],
            area=round(draw.uniform(20, 90_000), 4),
            iscrowd=0,
            category_id=draw.choice([1, 2, 44]),
        )
        for _ in range(7)
    ]
    categories = [{"id": id_, "name": f"class {id_}"} for id_ in (1, 2, 44)]
    data = coco([image(image_id, file_name=f"{image_id:012}.jpg")], boxes, categories)
    items = CocoReader().read("train", [("f.json", data)])
    sample = next(item for item in items if isinstance(item, Sample))
    blob = msgspec.structs.replace(
        sample.blobs[0],
        size_bytes=draw.randrange(50_000, 250_000),
        pin=str(1_700_000_000_123_456 + draw.randrange(10**12)),
        crc32c=draw.getrandbits(32),
    )
    return msgspec.structs.replace(sample, blobs=(blob,))


def grouped_bytes() -> float:
    """Return what a sample of a batch takes over all group-bys."""
    samples = [boxes_only(number) for number in range(BATCH)]
    tally = Tally(BATCH, BATCH * 190_123, "f" * 64)
    rounded = pack_rounded(shuffle_keys("train", [sample.key for sample in samples], 0))
    batches = (  # of the three
        pin_blobs._JoinBatch(samples=samples),
        BucketBatch(pack_each(samples), rounded, tally),
        ShardRun(1000, pack_each(samples)),
    )
    get_coder = coders.registry.get_coder
    return sum(len(get_coder(type(batch)).encode(batch)) for batch in batches) / BATCH


if __name__ == "__main__":
    grouped = grouped_bytes()
    alone = len(StructCoder(Sample).encode(boxes_only()))
    print(
        f"{grouped / 3:.0f} bytes encoded, as batches travel ({alone} alone),"
        f" {grouped:.0f} bytes over all group-bys"
    )
