"""Storage that fails while tables are read: one line, its exit code, and a rerun that completes."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from pipelines import table
from tests.coco_command import Run
from tests.memory_store import MemoryStore, Moment, Process, Step, fail_at
from tests.pipeline_command import run_pipeline

COLUMNS = {"a": [*range(20)], "b": ["x"] * 20}


@pytest.fixture(autouse=True)
def served(memory_served: None) -> Iterator[None]:
    yield


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    store = MemoryStore()
    store.put("t.csv", b"a,b\n" + b"".join(b"%d,x\n" % number for number in range(20)))
    store.put("t.jsonl", b"".join(b'{"a":%d,"b":"x"}\n' % number for number in range(20)))
    pyarrow.parquet.write_table(pyarrow.table(COLUMNS), tmp_path / "t", row_group_size=5)
    store.put("t.parquet", (tmp_path / "t").read_bytes())
    return store


def convert(process: Process, name: str) -> Run:
    return run_pipeline(
        table.run,
        *("--table", f"{process.uri}/{name}", "--output", f"{process.uri}/out", "--num_shards", 2),
    )


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
@pytest.mark.parametrize("code", ["E-IO-RETRIES", "E-IO-AUTH"])
def test_a_read_that_fails_ends_the_run(name: str, code: str, store: MemoryStore) -> None:
    trial = store.copy().start()
    assert convert(trial, name).code == 0
    reads = [s.number for s in trial.steps if s.operation in ("read", "crc32c") and s.name == name]
    assert len(reads) > 2

    for number in reads:
        disturbed = store.copy()
        run = convert(disturbed.start(fail_at(number, Moment.BEFORE, code)), name)
        assert run.ended == (6, code)
        assert convert(disturbed.start(), name).code == 0
        assert shards(disturbed) == shards(trial.store)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_a_table_that_changes_meanwhile_ends_the_run(name: str, store: MemoryStore) -> None:
    """It is rewritten with the same bytes, just before its rows are read."""
    trial = store.copy().start()
    assert convert(trial, name).code == 0
    left = [sum(is_read_of(name, step) for step in trial.steps)]

    def rewrite(step: Step, moment: Moment) -> None:
        if moment is Moment.BEFORE and is_read_of(name, step):
            left[0] -= 1
            if not left[0]:
                store.put(name, store.files()[name])

    assert convert(store.start(rewrite), name).ended == (6, "E-SRC-CHANGED")


def test_memory_that_ends_within_pyarrow_is_no_fault_of_the_file(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise pyarrow.ArrowMemoryError("malloc of size 4096 failed")

    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", no_memory)
        assert convert(store.start(), "t.parquet").ended == (6, "E-IO-LIMIT")
    assert convert(store.start(), "t.parquet").code == 0


def is_read_of(name: str, step: Step) -> bool:
    return (step.operation, step.name) == ("read", name)


def shards(store: MemoryStore) -> dict[str, bytes]:
    return {name: data for name, data in store.files("out/").items() if name.endswith(".tfrec")}
