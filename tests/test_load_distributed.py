"""`beam_tfrec.load` under a mirrored strategy, by the tf.data service, and of a bucket."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import beam_tfrec
from tests.coco_command import PROJECT
from tests.gcs_stand_in import GcsStandIn
from tests.test_docs import block_of
from tests.test_load import numbers_of, uneven, write_numbers

__all__ = ["uneven"]

ON_TWO_DEVICES = """
import sys
import tensorflow as tf
import beam_tfrec

(cpu,) = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration() for _ in range(2)]
tf.config.set_logical_device_configuration(cpu, two)
devices = [device.name for device in tf.config.list_logical_devices("CPU")]
strategy = tf.distribute.MirroredStrategy(devices)
out, global_batch = sys.argv[1], 10

BLOCK

@tf.function
def total(batch):
    sums = strategy.run(lambda values: tf.reduce_sum(values["n"]), (batch,))
    return strategy.reduce("SUM", sums, axis=None)

iterator = iter(batches)
print(strategy.num_replicas_in_sync, sum(int(total(next(iterator))) for _ in range(steps)))

dataset = beam_tfrec.load(out, "train", batch_size=global_batch)
for batch in strategy.experimental_distribute_dataset(dataset):
    parts = strategy.experimental_local_results(batch["n"])
    print(*(number for values in parts for number in values.numpy()))
"""


@pytest.mark.thorough
def test_a_mirrored_strategy_reads_it(uneven: str) -> None:
    """On two devices: by the document's function of the context, and as a whole dataset."""
    program = ON_TWO_DEVICES.replace("BLOCK", block_of("docs/readers.md", "def make(context)"))
    run = subprocess.run(
        [sys.executable, "-c", program, uneven], cwd=PROJECT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    (replicas, total), *batches = [
        [int(word) for word in line.split()] for line in run.stdout.splitlines()
    ]
    in_order = numbers_of(beam_tfrec.load(uneven, "train"))
    assert replicas == 2
    assert total == sum(in_order[:110])
    assert [number for batch in batches for number in batch] == in_order
    assert [len(batch) for batch in batches] == [10] * 11 + [1]


@pytest.fixture(scope="module")
def service() -> Any:
    """The address of a tf.data service of two workers in this process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    config = service.WorkerConfig(dispatcher.target.partition("://")[2])
    workers = [service.WorkerServer(config) for _ in range(2)]
    yield dispatcher.target
    del workers, dispatcher


@pytest.mark.parametrize(("policy", "known", "times"), [("OFF", True, 2), ("DYNAMIC", False, 1)])
def test_the_tf_data_service_reads_it(
    uneven: str, service: str, policy: str, known: bool, times: int
) -> None:
    """Each worker sends everything, or the files are divided among the workers."""
    dataset = beam_tfrec.load(uneven, "train", batch_size=8, known_cardinality=known)
    sharding = getattr(tf.data.experimental.service.ShardingPolicy, policy)
    distribute = tf.data.experimental.service.distribute(sharding, service)
    numbers = [n for batch in dataset.apply(distribute) for n in batch["n"].numpy()]
    assert sorted(numbers) == sorted(list(range(111)) * times)


def test_tensorflow_gets_the_paths_of_shards_in_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow cannot read from the stand-in, so the test looks at its graph only."""
    out = Path(write_numbers(tmp_path, 2, 2))
    with GcsStandIn() as stand_in:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stand_in.url)
        for path in out.glob("*.*"):
            stand_in.put("bucket", f"set/{path.name}", path.read_bytes())
        dataset = beam_tfrec.load("gs://bucket/set", "train")
        assert beam_tfrec.steps_per_epoch("gs://bucket/set", "train", 4) == 1
    variant = tf.data.experimental.to_variant(dataset)
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant).numpy()
    for path in out.glob("*.tfrec"):
        assert f"gs://bucket/set/{path.name}".encode() in graph
    assert len(dataset) == 4
