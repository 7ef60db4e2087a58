"""Data sets in a store that lists checksums: shards are read only with `--deep`."""

import pytest

from beam_tfrec.pipelines.verify import VerifyConfig, verify
from tests.memory_runs import Sources, make_sources, run_on
from tests.memory_store import MemoryStore, Moment, Process, Step


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
def test_only_deep_reads_shards(
    deep: bool, store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    process = store.start()
    *notes, last = verified(process, capsys, deep=deep)
    note = "sizes and checksums from the store's listing were compared: --deep reads all bytes"
    assert notes == ([] if deep else [note])
    assert last.startswith(f"4 files, 9 records, {'' if deep else '0 B read in '}")
    read = [step.name for step in process.steps if step.operation == "read"]
    assert sum(name.endswith(".tfrec") for name in read) == (4 if deep else 0)


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
    assert found[0].startswith(f"E-VER-CRC OUT/{name}: its store lists CRC-32C ")
    of_record = [line for line in found if line.startswith(f"E-VER-CRC {name} record 0 (key ")]
    assert len(of_record) == deep
    assert store.files() == before
    assert {step.operation for step in process.steps} <= {"list", "read", "stat"}


def test_a_store_that_fails_is_not_damage(store: MemoryStore) -> None:
    def fail(step: Step, now: Moment) -> None:
        if step.operation == "read" and now is Moment.BEFORE and "index" in step.name:
            raise RuntimeError("E-IO-RETRIES out: kept failing; run again")

    with pytest.raises(RuntimeError, match="E-IO-RETRIES"):
        verify(VerifyConfig((f"{store.start(fail).uri}/out",)))
