"""`verify` and `show` of a data set on the stand-in of Google Cloud Storage, by real clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.small_runs import build_run, plan_run, write_set
from tests.test_verify_command import run


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    out = tmp_path / "out"
    build_run(plan_run(*write_set(tmp_path, 6), out, num_shards=2))
    with GcsStandIn() as running:
        for path in out.rglob("*"):
            if path.is_file():
                running.put("b", f"out/{path.relative_to(out)}", path.read_bytes())
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


def first_shard(stand_in: GcsStandIn) -> str:
    return min(name for name in stand_in.objects("b") if name.endswith(".tfrec"))


def test_listed_checksums_or_all_bytes(stand_in: GcsStandIn) -> None:
    code, lines, err = run("gs://b/out")
    assert (code, err, len(lines)) == (0, "", 2)
    assert lines[0].startswith("sizes and checksums as the store lists them were compared")
    stand_in.inject(Fault(What.STATUS, Kind.READ, status=503, times=2))
    code, lines, err = run("gs://b/out", "--deep")
    assert (code, err, len(lines)) == (0, "", 1)
    assert lines[0].startswith("2 files, 6 records, ") and lines[0].endswith(": all is well")
    assert stand_in.faults_left() == []


def test_a_flipped_bit(stand_in: GcsStandIn) -> None:
    name = first_shard(stand_in)
    data = bytearray(stand_in.objects("b")[name])
    data[20] ^= 1
    stand_in.put("b", name, bytes(data))
    code, lines, _ = run("gs://b/out")
    assert code == 7 and lines[0].startswith(f"E-VER-CRC gs://b/{name}: has the CRC-32C ")
    code, lines, _ = run("gs://b/out", "--deep")
    shard = name.removeprefix("out/")
    assert code == 7 and lines[1].startswith(f"E-VER-CRC {shard} record 0 (key ")


def test_a_shard_and_the_manifest_are_gone(stand_in: GcsStandIn) -> None:
    name = first_shard(stand_in)
    stand_in.remove("b", name)
    code, lines, _ = run("gs://b/out")
    assert code == 7 and lines[0].startswith(f"E-VER-MISSING gs://b/{name}: is not there")
    stand_in.remove("b", "out/manifest.json")
    code, lines, _ = run("gs://b/out")
    assert code == 7 and lines[0].startswith("E-VER-MISSING gs://b/out/manifest.json: is not there")


def test_show_reads_one_record(stand_in: GcsStandIn) -> None:
    code, lines, err = run("gs://b/out", "--key", "1", program="pipelines.show")
    assert (code, err) == (0, "")
    assert any(" (key '1') at byte " in line for line in lines)
