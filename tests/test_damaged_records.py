"""Damaged shards and indexes: `open` reports each damage with a code and a place."""

import functools
import operator
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import beam_tfrec
from beam_tfrec.schemas.faults import find_fault
from beam_tfrec.transforms.shard_index import index_from_parquet, index_to_parquet
from tests.gcs_stand_in import Fault, GcsStandIn, What
from tests.gcs_stand_in import Kind as Request
from tests.small_data_sets import write_data_set
from tests.test_records import COUNTS, SPEC, ids, make_shards, plain

KEYS = ("k0", "k1", "k2")
SHARD = "train-00000-of-00001-3.tfrec"
INDEX = "index/train-00000-of-00001-3.parquet"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "out", SPEC, {"train": make_shards([3], 10)})


def fault_of(read: Callable[[], Any]) -> tuple[str, str]:
    """Return code and line of the fault that a read raises."""
    with pytest.raises(RuntimeError) as caught:
        read()
    found = find_fault(str(caught.value))
    assert found is not None
    assert found[1] == str(caught.value)
    return found


def test_a_flipped_bit_of_every_byte_is_reported_with_record_and_byte(output: Path) -> None:
    records = beam_tfrec.open(str(output), "train")
    begins = list(records.reader.offsets(0))
    path = output / SHARD
    data = path.read_bytes()
    whole = [[*map(plain, record.values())] for record in records]
    file = path.open("r+b")
    stat = path.stat()
    for at in range(len(data)):
        number = max(n for n in range(3) if begins[n] <= at)
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        file.seek(0)
        file.write(flipped)
        file.flush()
        # As after a fault of a disk: size and modification time stay the same.
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        code, line = fault_of(functools.partial(operator.getitem, records, number))
        in_header = at - begins[number] < 12
        assert code == ("E-VER-FRAME" if in_header else "E-VER-CRC"), at
        where = f"{code} {path}: record {number} (key k{number}) at byte {begins[number]}: "
        assert line.startswith(where)
        assert fault_of(lambda: list(records))[1] == line
        assert fault_of(lambda: records.__getitems__([0, 1, 2]))[1] == line
        others = [n for n in range(3) if n != number]
        found = records.__getitems__(others)
        assert [[*map(plain, record.values())] for record in found] == [whole[n] for n in others]
    file.close()


def test_a_shard_that_changes_while_it_is_open_is_reported(output: Path) -> None:
    records = beam_tfrec.open(str(output), "train")
    assert int(records[0]["id"]) == 0
    data = (output / SHARD).read_bytes()
    for change in (data, data[:-1], b""):
        (output / SHARD).write_bytes(change)
        assert fault_of(lambda: records[0])[0] == "E-SRC-CHANGED"
        assert fault_of(lambda: list(records))[0] == "E-SRC-CHANGED"


def test_an_index_of_another_shard_is_reported(output: Path, tmp_path: Path) -> None:
    whole = (output / INDEX).read_bytes()
    for name, counts, size in (("more", [4], 10), ("longer", [3], 11)):
        other = write_data_set(tmp_path / name, SPEC, {"train": make_shards(counts, size)})
        (index,) = other.glob("index/*.parquet")
        (output / INDEX).write_bytes(index.read_bytes())
        _, line = fault_of(lambda: beam_tfrec.open(str(output), "train")[0])
        assert line.startswith(f"E-VER-INDEX {output}/{INDEX}: ")
    rows = index_from_parquet(whole)  # other lengths, but the same sum
    changed = [
        replace(rows[0], size=rows[0].size + 1),
        replace(rows[1], offset=rows[1].offset + 1, size=rows[1].size - 1),
        rows[2],
    ]
    (output / INDEX).write_bytes(index_to_parquet(changed))
    opened = beam_tfrec.open(str(output), "train")
    _, line = fault_of(lambda: opened[0])
    assert line.startswith(f"E-VER-FRAME {output}/{SHARD}: record 0 (key k0) at byte 0: ")
    assert fault_of(lambda: opened[1])[0] == "E-VER-FRAME"  # no record begins there
    (output / INDEX).unlink()
    _, line = fault_of(lambda: beam_tfrec.open(str(output), "train")[0])
    assert line.startswith(f"E-VER-MISSING {output}/{INDEX}: is missing; ")


def test_damage_in_a_bucket_is_reported(tmp_path: Path, stand_in: GcsStandIn) -> None:
    """A store has no checksum of a part of an object. The record's own checksum finds it."""
    output = write_data_set(tmp_path / "out", SPEC, {"train": make_shards(COUNTS)})
    for path in output.rglob("*.*"):
        stand_in.put("b", f"out/{path.relative_to(output)}", path.read_bytes())
    records = beam_tfrec.open("gs://b/out", "train")
    shard = records.reader.shards[0].entry.file
    stand_in.inject(Fault(What.FLIPPED_BIT, Request.READ, f"out/{shard}"))
    code, line = fault_of(lambda: list(records))
    assert code in ("E-VER-CRC", "E-VER-FRAME")
    assert re.match(rf"{code} gs://b/out/{shard}: record \d \(key k\d\) at byte \d+: ", line)
    assert ids(records) == list(range(10))
    data = bytearray(stand_in.objects("b")[f"out/{shard}"])
    data[20] ^= 1
    stand_in.put("b", f"out/{shard}", bytes(data))
    assert fault_of(lambda: records[0])[0] == "E-SRC-CHANGED"
    _, line = fault_of(lambda: beam_tfrec.open("gs://b/out", "train"))  # from the listing alone
    assert line.startswith(f"E-VER-CRC gs://b/out/{shard}: its store lists CRC-32C ")
