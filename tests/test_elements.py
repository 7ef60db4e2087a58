"""Elements between steps: coders of structs, and batches in a spool or between workers."""

import msgspec
import pytest
from apache_beam import coders

from beam_tfrec.schemas.manifest import JobPlan, Label, PlannedSplit
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.shards import ShardPlan
from beam_tfrec.transforms.plan_shards import ShardSlice
from beam_tfrec.transforms.shard_table import RangeTally
from beam_tfrec.transforms.shuffle.elements import Batch, StructCoder
from beam_tfrec.transforms.storage import Entry

BLOB = Blob("train", "a/b.jpg", 100, "1700000000000000001", 0xFFFF_FFFF)
SAMPLE = Sample("train", "42", 7, (BLOB, Blob("train", "c.jpg")), b"\x00\xff", (1, "x", 2**62))
VALUES = [
    SAMPLE,
    Entry("a", 1, "2", None, "fifo"),
    RangeTally(3, 10**15, "ff"),
    ShardPlan("train", 0, 2, [SAMPLE]),
    JobPlan(1, {"seed": "0"}, [Label(1, "person")], {"train": PlannedSplit(2, 1)}, "ff"),
    ShardSlice(3, [msgspec.Raw(b"\x01")]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_beam_finds_a_coder_for_every_struct(value: msgspec.Struct) -> None:
    coder = coders.registry.get_coder(type(value))
    again = coders.registry.get_coder(type(value))
    assert coder == again and hash(coder) == hash(again)
    assert isinstance(coder, StructCoder)
    assert coder != StructCoder(Blob)
    assert coder.to_type_hint() is type(value)
    assert coder.is_deterministic()
    encoded = coder.get_impl().encode(value)
    assert encoded == coder.encode(value)
    assert coder.decode(encoded) == value and type(coder.decode(encoded)) is type(value)
    assert encoded.startswith(b"x") is isinstance(value, Batch)  # compressed by zlib


def test_equal_values_have_equal_bytes_in_any_order_of_a_mapping() -> None:
    one, other = (JobPlan(1, options, [], {}, "ff") for options in ({"a": "1", "b": "2"}, {}))
    other.options.update({"b": "2", "a": "1"})
    assert one == other
    assert StructCoder(JobPlan).encode(one) == StructCoder(JobPlan).encode(other)
