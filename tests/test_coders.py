from typing import Any

import msgspec
import pytest
from apache_beam import coders

import transforms.commit
import transforms.plan_shards
import transforms.sources.read_coco
import transforms.write_shards  # noqa: F401  (they register the structs that only they name)
from schemas.faults import Rejected
from schemas.manifest import JobPlan, Label, PlannedSplit
from schemas.samples import Blob, Sample
from schemas.shards import ShardInfo, ShardPlan
from transforms.shard_table import Tally
from transforms.sources.elements import StructCoder
from transforms.sources.list_blobs import PinTally
from transforms.sources.read_samples import SplitSource
from transforms.storage import Entry

BLOB = Blob("train", "a/b.jpg", 100, "1700000000000000001", 0xFFFF_FFFF)
SAMPLE = Sample("train", "42", 7, (BLOB, Blob("train", "c.jpg")), b"\x00\xff", (1, "x", 2**62))
REJECTED = Rejected(
    code="E-IMG-MISSING",
    stage="pin_blobs",
    split="train",
    key="42",
    annotation_ids=(1, "x"),
    file_name="a/b.jpg",
    detail="not in the listing",
)
VALUES = [
    BLOB,
    SAMPLE,
    REJECTED,
    Entry("a", 1, "2", None, "fifo"),
    PinTally(3, 2, 1, "ff", "a", "b", 3, 10**15),
    Tally(3, 10**15, "ff"),
    ShardPlan("train", 0, 2, [SAMPLE]),
    ShardInfo(
        plan="00",
        split="train",
        index=0,
        num_shards=2,
        file="f",
        planned=2,
        records=1,
        bytes=5,
        crc32c="0",
        sha256="0",
        annotations_listed=4,
        annotations_written=3,
        repairs={"box_clipped": 1},
        traits={"cmyk": 2},
        rejected=[REJECTED],
    ),
    JobPlan(1, {"seed": "0"}, [Label(1, "person")], {"train": PlannedSplit(2, 1)}, "ff"),
    SplitSource("train", "9:ff", 2, 3, 0, 0, 1, [Label(1, "person")]),
    PlannedSplit(10, 2),
]
by_type = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


@by_type
def test_beam_finds_the_coder_by_the_type(value: Any) -> None:
    coder = coders.registry.get_coder(type(value))

    assert isinstance(coder, StructCoder)
    assert coder.to_type_hint() is type(value)
    assert coder.to_type_hint() is type(value)
    assert coder.is_deterministic()


@by_type
def test_decoding_gives_back_the_value(value: Any) -> None:
    coder = coders.registry.get_coder(type(value))
    decoded = coder.decode(coder.encode(value))

    assert decoded == value
    assert type(decoded) is type(value)


def test_equal_values_have_equal_bytes_whatever_a_mapping_s_order() -> None:
    coder = StructCoder(JobPlan)
    one = JobPlan(1, {"a": "1", "b": "2"}, [], {}, "ff")
    other = JobPlan(1, {"b": "2", "a": "1"}, [], {}, "ff")

    assert one == other
    assert coder.encode(one) == coder.encode(other)


def test_what_is_not_of_the_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        StructCoder(Blob).decode(StructCoder(Sample).encode(SAMPLE))
