"""The shuffle: coders of structs, batches and payloads in a spool or between workers."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from apache_beam import coders

from beam_tfrec.pipelines import table
from beam_tfrec.schemas.manifest import JobPlan, Label, PlannedSplit
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.schemas.shards import ShardPlan
from beam_tfrec.transforms.plan_shards import ShardSlice
from beam_tfrec.transforms.shard_table import RangeTally
from beam_tfrec.transforms.shuffle import run_spool
from beam_tfrec.transforms.shuffle.elements import Batch, StructCoder
from beam_tfrec.transforms.shuffle.run_spool import RunSpool, close_spool
from beam_tfrec.transforms.storage import Entry

BLOB = Blob("train", "a/b.jpg", 100, "1700000000000000001", 0xFFFF_FFFF)
SAMPLE = Sample("train", "42", 7, (BLOB, Blob("train", "c.jpg")), b"\x00\xff", (1, "x", 2**62))
VALUES = [
    SAMPLE,
    Entry("a", 1, "2", None, "fifo"),
    RangeTally(3, 10**15, "ff"),
    ShardPlan("train", 0, 2, [msgspec.Raw(b"\x01")]),
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


def sample(key: str, payload: bytes = b"") -> Sample:
    return Sample("train", key, 0, (), b"fields", (), payload)


@pytest.fixture
def spools() -> Iterator[list[RunSpool]]:
    """Two spools, one of which may be another process's copy."""
    made = [RunSpool(10**9), RunSpool(10**9 + 1)]
    yield made
    for spool in made:
        close_spool(spool.number)


def test_payloads_beyond_the_buffer_are_read_back(spools: list[RunSpool]) -> None:
    spool = spools[0]
    parts = [bytes([n]) * size for n, size in enumerate([5, 2**20, 7, 2**19, 2**19, 3 * 2**20, 1])]
    places = [spool.put(part) for part in parts]
    assert [spool.get(place) for place in reversed(places)] == parts[::-1]
    later = spool.put(b"later")
    assert (spool.get(later), spool.get(places[0])) == (b"later", parts[0])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^E-IO-READONLY .*gone: .*give a --spool_dir"):
        RunSpool(10**9, str(tmp_path / "gone")).put(b"polygons")


def test_a_full_disk_is_one_line(spools: list[RunSpool]) -> None:
    """`/dev/full` refuses every write."""
    spool = spools[0]
    light = spool.store_payload(sample("1", b"x"))
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, run_spool._OPEN[spool.number]._file.fileno())
    os.close(full)
    for use in (
        lambda: spool.store_payload(sample("2", b"y" * 2**20)),
        lambda: spool.load_payload(light),
    ):
        full = r"^E-IO-NOSPACE .*: No space left on device, .* are free; give"
        with pytest.raises(RuntimeError, match=full):
            use()


@pytest.mark.thorough
def test_a_finished_command_frees_the_disk(tmp_path: Path) -> None:
    """Even while its pipeline waits for the garbage collector."""
    (tmp_path / "t.csv").write_text("a\n1\n")
    before = {*run_spool._OPEN}
    for number, shards in enumerate(("1", "1", "9")):
        output = str(tmp_path / f"out{number}")
        arguments = ["--table", str(tmp_path / "t.csv"), "--output", output, "--num_shards", shards]
        with pytest.raises(RuntimeError, match="E-ARG") if shards == "9" else nullcontext():
            table.run(arguments)
        assert {*run_spool._OPEN} <= before


@pytest.mark.parametrize("there", [b"abd", b"ab", b""])
def test_other_bytes_at_a_place_stop_the_run(spools: list[RunSpool], there: bytes) -> None:
    place, elsewhere = spools[0].put(b"abc"), spools[1]
    elsewhere.put(there)
    with pytest.raises(RuntimeError) as raised:
        elsewhere.get(place)
    assert str(raised.value) == (
        "E-IO-RETRIES temporary folder: 3 bytes at 0 of a temporary file have changed;"
        " check the disk"
    )


def test_another_process_reads_the_payloads(spools: list[RunSpool]) -> None:
    """Those still buffered in this process, too."""
    spool, theirs = spools
    light, place = spool.store_payload(sample("1", b"polygons")), spool.put(b"abc")
    theirs.adopt(os.dup(spool.written_file()))
    assert theirs.load_payload(light) == sample("1", b"polygons")
    assert theirs.get(place) == b"abc"
    close_spool(theirs.number)
    assert spool.get(place) == b"abc"
