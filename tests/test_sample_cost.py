"""What a sample costs where it is shuffled, from the coders that encode it."""

import random

import msgspec
from apache_beam import coders

from schemas.samples import Order, Sample, pack
from tests.coco_texts import annotation, coco, image
from transforms import pin_blobs
from transforms.plan_shards import BucketBatch, ShardRun, order_keys
from transforms.shard_table import Tally
from transforms.sources.read_coco import CocoRules, CocoSource, read_coco

MOST_GROUPED_BYTES = 760
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
    sample, *_ = (
        item
        for item in read_coco([CocoSource(data, "f.json")], "train", CocoRules())
        if isinstance(item, Sample)
    )
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
    keys = order_keys("train", samples, Order.SHUFFLED, 0)
    packed = [msgspec.Raw(pack(sample)) for sample in samples]
    batches = (  # of the three
        pin_blobs._JoinBatch(samples=samples),
        BucketBatch(packed, keys, tally),
        ShardRun(1000, packed),
    )
    get_coder = coders.registry.get_coder
    return sum(len(get_coder(type(batch)).encode(batch)) for batch in batches) / BATCH


def test_all_group_bys_of_a_sample_take_little() -> None:
    assert grouped_bytes() <= MOST_GROUPED_BYTES
