"""Storage that fails while tables and arrays are read: one line, its exit code, and a rerun."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from beam_tfrec.pipelines import table
from tests.array_runs import npy_bytes, random_images, run_arrays
from tests.coco_command import Run, run_pipeline
from tests.memory_store import MemoryStore, Moment, Process, Step, fail_at, meanwhile_at

pytestmark = pytest.mark.usefixtures("memory_served")
IMAGES, LABELS = random_images(6, 4), np.arange(6)


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    store = MemoryStore()
    store.put("t.csv", b"a,b\n" + b"".join(b"%d,x\n" % number for number in range(20)))
    columns = pyarrow.table({"a": [*range(20)], "b": ["x"] * 20})
    pyarrow.parquet.write_table(columns, tmp_path / "t.parquet", row_group_size=5)
    np.savez_compressed(tmp_path / "packed.npz", x=IMAGES, y=LABELS)
    for path in tmp_path.iterdir():
        store.put(path.name, path.read_bytes())
    store.put("x.npy", npy_bytes(IMAGES))
    store.put("y.npy", npy_bytes(LABELS))
    return store


def convert(process: Process, name: str) -> Run:
    source, output = f"{process.uri}/{name}", ("--output", f"{process.uri}/out")
    if name.startswith("t."):
        return run_pipeline(table.run, "--table", source, *output, "--num_shards", 2)
    return run_arrays("--arrays", source, "--label_array", "y", *output, "--num_shards", 2)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "x.npy", "packed.npz"])
def test_a_failed_read_ends_the_run(name: str, store: MemoryStore) -> None:
    """The first and the last read fail; then the file is rewritten before its last read."""
    trial = store.copy().start()
    assert convert(trial, name).code == 0
    reads = [s.number for s in trial.steps if s.operation in ("read", "crc32c") and s.name == name]
    assert len(reads) > 1
    disturbed = store.copy()
    for number, code in ((reads[0], "E-IO-RETRIES"), (reads[-1], "E-IO-AUTH")):
        run = convert(disturbed.start(fail_at(number, Moment.BEFORE, code)), name)
        assert run.ended == (6, code)
    assert convert(disturbed.start(), name).code == 0
    assert shards(disturbed) == shards(trial.store)
    left = [sum(is_read_of(name, step) for step in trial.steps)]

    def rewrite(step: Step, moment: Moment) -> None:
        if moment is Moment.BEFORE and is_read_of(name, step):
            left[0] -= 1
            if not left[0]:
                store.put(name, store.files()[name])

    assert convert(store.start(rewrite), name).ended == (6, "E-SRC-CHANGED")


@pytest.mark.thorough
def test_a_rerun_notices_labels_that_changed_after_they_were_read(store: MemoryStore) -> None:
    """A run notes the state of its sources before it reads them, never after."""
    trial = store.copy().start()
    assert convert(trial, "x.npy").code == 0
    *_, last = (step.number for step in trial.steps if is_read_of("y.npy", step))
    labels = npy_bytes(LABELS[::-1])
    changing = meanwhile_at(last, Moment.AFTER, lambda: store.put("y.npy", labels))
    assert convert(store.start(changing), "x.npy").code == 0
    assert convert(store.start(), "x.npy").ended == (5, "E-OUT-PLAN")


def test_too_little_memory_for_pyarrow_is_not_a_fault_of_the_file(
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
