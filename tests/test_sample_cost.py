"""What a sample costs where it is shuffled, from the coders that encode it."""

import msgspec

from schemas.picture_fields import PictureFields
from schemas.samples import Sample, pack_each
from tests.coco_texts import annotation, coco, image
from transforms import pin_blobs
from transforms.coco_samples import CocoRules, CocoSource, read_coco
from transforms.coders import StructCoder
from transforms.payloads import detach_payload
from transforms.plan_shards import BucketBatch, ShardRun, Tally

MOST_ENCODED_BYTES = 485
MOST_GROUPED_BYTES = 1460
BATCH = 32


def boxes_only() -> Sample:
    """A pinned sample of COCO's usual size: seven boxes, ids of six digits, and no outline."""
    boxes = [
        annotation(
            900_100 + n, image_id=391_895, bbox=[1.25 + n, 2.5, 30.75, 21.1], area=648.8, iscrowd=0
        )
        for n in range(7)
    ]
    data = coco([image(391_895, file_name="000000391895.jpg")], boxes)
    sample, *_ = (
        item
        for item in read_coco([CocoSource(data, "f.json")], "train", CocoRules(), {})
        if isinstance(item, Sample)
    )
    blob = msgspec.structs.replace(
        sample.blobs[0], size_bytes=190_123, pin="1700000000123456789", crc32c=2**32 - 1
    )
    return detach_payload(msgspec.structs.replace(sample, blobs=(blob,)))[0]


def test_a_sample_of_boxes_is_small() -> None:
    sample = boxes_only()

    assert len(msgspec.msgpack.decode(sample.fields, type=PictureFields).objects) == 7
    assert len(StructCoder(Sample).encode(sample)) <= MOST_ENCODED_BYTES


def test_all_group_bys_of_a_sample_take_little() -> None:
    samples = [boxes_only()] * BATCH
    tally = Tally(BATCH, BATCH * 190_123, "f" * 64)
    batches = (
        pin_blobs._JoinBatch(samples=samples),
        BucketBatch(pack_each(samples), tally),
        ShardRun(1000, pack_each(samples)),
    )

    encoded = sum(len(StructCoder(type(batch)).encode(batch)) for batch in batches)

    assert encoded / BATCH <= MOST_GROUPED_BYTES
