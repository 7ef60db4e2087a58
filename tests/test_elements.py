"""Elements between steps: coders of structs, and batches in a spool or between workers."""

from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import msgspec
import pytest
from apache_beam import coders

from beam_tfrec.schemas.manifest import JobPlan, Label, PlannedSplit
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.shards import ShardPlan
from beam_tfrec.transforms.plan_shards import PlanShards, ShardRun
from beam_tfrec.transforms.shard_table import Sharding, Tally
from beam_tfrec.transforms.shuffle.elements import Batch, StructCoder, spool_for
from beam_tfrec.transforms.storage import Entry

BLOB = Blob("train", "a/b.jpg", 100, "1700000000000000001", 0xFFFF_FFFF)
SAMPLE = Sample("train", "42", 7, (BLOB, Blob("train", "c.jpg")), b"\x00\xff", (1, "x", 2**62))
VALUES = [
    SAMPLE,
    Entry("a", 1, "2", None, "fifo"),
    Tally(3, 10**15, "ff"),
    ShardPlan("train", 0, 2, [SAMPLE]),
    JobPlan(1, {"seed": "0"}, [Label(1, "person")], {"train": PlannedSplit(2, 1)}, "ff"),
    ShardRun(3, [msgspec.Raw(b"\x01")]),
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


def test_other_types_keep_the_coders_of_beam() -> None:
    assert isinstance(coders.registry.get_coder(Path), coders.FastPrimitivesCoder)


def test_equal_values_have_equal_bytes_in_any_order_of_a_mapping() -> None:
    one, other = (JobPlan(1, options, [], {}, "ff") for options in ({"a": "1", "b": "2"}, {}))
    other.options.update({"b": "2", "a": "1"})
    assert one == other
    assert StructCoder(JobPlan).encode(one) == StructCoder(JobPlan).encode(other)


def test_another_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        StructCoder(Blob).decode(StructCoder(Sample).encode(SAMPLE))


def hundred_bytes(_: Sample) -> int:
    return 100


def note(shard: ShardPlan, folder: Path) -> None:
    (folder / shard.name).write_bytes(StructCoder(ShardPlan).encode(shard))


@pytest.mark.parametrize("number", [1, 3000])
def test_plans_are_the_same_with_and_without_a_spool(
    test_pipeline: Callable[[], beam.Pipeline], tmp_path: Path, number: int
) -> None:
    samples = [Sample("train", str(n), n, (BLOB,), b"fields") for n in range(number)]
    plans = []
    for spooled in (False, True):
        folder = tmp_path / str(spooled)
        folder.mkdir()
        with test_pipeline() as pipeline:
            spool = spool_for(pipeline) if spooled else None
            planning = PlanShards(Sharding(), hundred_bytes, spool=spool)
            planned = pipeline | beam.Create(samples, reshuffle=False) | planning
            planned.shards | beam.Map(note, folder)
        plans.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert plans[0] == plans[1]
    shards = map(StructCoder(ShardPlan).decode, plans[0].values())
    assert sum(len(shard.samples) for shard in shards) == number
