"""Data sets in a store that lists checksums: nothing is read of shards, unless it is asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.verify import VerifyConfig, verify
from tests.gcs_stand_in import Fault, GcsStandIn, Kind, What
from tests.memory_runs import Sources, make_sources, run_on
from tests.memory_store import MemoryStore, Moment, Process, Step
from tests.small_runs import build_run, plan_run, write_set
from tests.test_verify_command import run


@pytest.fixture(scope="module")
def sources(memory_served: None) -> Sources:
    return make_sources()


@pytest.fixture
def store(sources: Sources) -> MemoryStore:
    found = sources.store.copy()
    run_on(found.start())
    return found


def verified(
    process: Process, capsys: pytest.CaptureFixture[str], *, deep: bool = False
) -> list[str]:
    root = f"{process.uri}/out"
    verify(VerifyConfig((root,), deep=deep, workers=2))
    return [line.replace(root, "OUT") for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("deep", [False, True])
def test_a_changed_shard_is_found_by_its_checksum_and_nothing_is_written(
    deep: bool, store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = (name for name in store.files("out/") if name.startswith("train-00002"))
    data = bytearray(store.files("out/")[name])
    data[20] ^= 1
    store.put(f"out/{name}", bytes(data))
    before, process = store.files(), store.start()
    found = verified(process, capsys, deep=deep)
    assert found[0].startswith(f"E-VER-CRC OUT/{name}: has the CRC-32C ")
    of_record = [line for line in found if line.startswith(f"E-VER-CRC {name} record 0 (key ")]
    assert len(of_record) == deep
    assert store.files() == before
    assert {step.operation for step in process.steps} <= {"list", "read", "stat"}


def test_a_store_that_fails_is_no_damage(store: MemoryStore) -> None:
    def fail(step: Step, now: Moment) -> None:
        if step.operation == "read" and now is Moment.BEFORE and "index" in step.name:
            raise RuntimeError("E-IO-RETRIES out: kept failing; run again")

    with pytest.raises(RuntimeError, match="E-IO-RETRIES"):
        verify(VerifyConfig((f"{store.start(fail).uri}/out",)))


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


def test_listed_checksums_or_all_bytes(stand_in: GcsStandIn) -> None:
    code, lines, err = run("gs://b/out")
    assert (code, err, len(lines)) == (0, "", 2)
    assert lines[0] == (
        "sizes and checksums as the store lists them were compared: --deep reads all bytes"
    )
    assert lines[1].startswith("2 files, 6 records, 0 B read in ")
    assert shard_reads(stand_in) == 0
    stand_in.inject(Fault(What.STATUS, Kind.READ, status=503, times=2))
    code, lines, err = run("gs://b/out", "--deep")
    assert (code, err, len(lines)) == (0, "", 1)
    assert lines[0].startswith("2 files, 6 records, ") and lines[0].endswith(": all is well")
    assert shard_reads(stand_in) >= 2
    assert stand_in.faults_left() == []


def shard_reads(stand_in: GcsStandIn) -> int:
    return sum(r.kind is Kind.READ and r.name.endswith(".tfrec") for r in stand_in.requests)
