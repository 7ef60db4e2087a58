"""Readers return exactly the encoded values, to strategies and by the tf.data service too."""

import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import beam_tfrec
from beam_tfrec.readers.data_sets import find_data_sets
from beam_tfrec.schemas.columns import parse_type
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.layouts.arrays import ArraysLayout
from beam_tfrec.schemas.layouts.classification import ClassificationLayout
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.table import TableLayout
from beam_tfrec.schemas.layouts.tfds import KerasLayout, TfdsLayout
from tests.coco_command import PROJECT
from tests.conftest import thorough
from tests.gcs_stand_in import GcsStandIn
from tests.small_data_sets import Values, write_values
from tests.test_docs import block_of
from tests.test_load import numbers_of, uneven, write_numbers

Flat = dict[str, list]
"""A record's values by key, a list per step if they are per step; floats as their bits."""

COLUMNS = {
    name: parse_type(name, text, may_nest=name.startswith("step"))
    for name, text in {
        "int": "int64",
        "maybe": "float?",
        "text": "bytes?",
        "many": "int64[]",
        "texts": "bytes[]",
        "steps": "float[]",
        "step lists": "int64[][]",
        "step texts": "bytes[]",
    }.items()
}
STEPS = tuple(name for name in COLUMNS if name.startswith("step"))
FLAT_COLUMNS = {name: column for name, column in COLUMNS.items() if name not in STEPS}
SPECS = {
    "detection": DetectionLayout(
        features=(
            *("boxes", "masks", "polygons", "keypoints"),
            *("captions", "panoptic", "license", "lvis"),
        )
    ).spec,
    "keras": KerasLayout().spec,
    "tfds": TfdsLayout(features=("boxes", "panoptic")).spec,
    "classification": ClassificationLayout().spec,
    "arrays": ArraysLayout(dtype="uint8", label=Kind.BYTES, others=(("x", Kind.FLOAT),)).spec,
    "table": TableLayout(columns=FLAT_COLUMNS).spec,
    "table with images": TableLayout(columns=FLAT_COLUMNS, with_image=True).spec,
    "sequence": TableLayout(columns=COLUMNS, sequence_columns=STEPS).spec,
}
VALUES = {
    Kind.BYTES: st.binary(max_size=12) | st.integers(4000, 5000).map(bytes),
    Kind.FLOAT: st.floats(width=32, allow_nan=False),
    Kind.INT64: st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 200),
}


def value_lists(feature: Feature) -> st.SearchStrategy[list]:
    """Return lists of as many values as a feature may have."""
    value = VALUES[feature.kind]
    if feature.content is Content.BOX_YXYX and feature.repeated:
        boxes = st.lists(st.lists(value, min_size=4, max_size=4), max_size=3)
        return boxes.map(lambda found: [number for box in found for number in box])
    if feature.repeated:
        return st.lists(value, max_size=4)
    return st.lists(value, min_size=1, max_size=1)


def record_values(spec: FeatureSpec) -> st.SearchStrategy[Values]:
    """Return the values of records; some lack optional features."""
    given = {f.key: value_lists(f) for f in spec.features if not f.optional}
    steps = {f.key for f in spec.features if f.per_step}
    given |= {key: st.lists(given[key], max_size=3) for key in steps}
    optional = {f.key: value_lists(f) for f in spec.features if f.optional}
    return st.fixed_dictionaries(given, optional=optional)


def flat(spec: FeatureSpec, values: Mapping[str, Any]) -> Flat:
    """Return values in one form, whatever their container; missing ones are the defaults."""
    defaults: dict[Kind, Any] = {Kind.BYTES: b"", Kind.FLOAT: 0.0, Kind.INT64: 0}
    found: Flat = {}
    for feature in spec.features:
        default = [defaults[feature.kind]] if feature.optional else None
        value = values.get(feature.key, default)
        if feature.per_step:
            found[feature.key] = [_as_list(step, feature.kind) for step in value]
        else:
            found[feature.key] = _as_list(value, feature.kind)
    return found


def _as_list(value: Any, kind: Kind) -> list:
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        value = value.reshape(-1).tolist()
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if kind is Kind.FLOAT:
        return [struct.pack("<f", number) for number in values]
    return values


# --- readers: each yields all records of the split `train`, shard by shard ---


def by_load(root: str) -> Iterator[Flat]:
    """Parse records one by one."""
    spec = find_data_sets(root).spec
    for record in beam_tfrec.load(root, "train", decode_images=False):
        yield flat(spec, record)


def by_load_in_batches(root: str) -> Iterator[Flat]:
    """Parse records in batches, with steps or without."""
    spec = find_data_sets(root).spec
    for batch in beam_tfrec.load(root, "train", batch_size=4, decode_images=False):
        for place in range(batch[spec.features[0].key].shape[0]):
            yield flat(spec, {key: values[place] for key, values in batch.items()})


def by_open(root: str) -> Iterator[Flat]:
    """Read by random access, without TensorFlow."""
    records = beam_tfrec.open(root, "train")
    for place in range(len(records)):
        yield flat(records.spec, records[place])


READERS: dict[str, Callable[[str], Iterator[Flat]]] = {
    "load": by_load,
    "load in batches": by_load_in_batches,
    "open": by_open,
}


QUICK = {("detection", "load"), ("table with images", "load in batches"), ("sequence", "load")}
CASES = [
    (layout, reader) if reader == "open" or (layout, reader) in QUICK else thorough(layout, reader)
    for layout in SPECS
    for reader in READERS
]


@pytest.mark.parametrize(("layout", "reader"), CASES)
def test_readers_return_the_encoded_values(layout: str, reader: str) -> None:
    spec = SPECS[layout]

    # An example takes TensorFlow half a second, so failing ones are not shrunk.
    @settings(max_examples=5, phases=[Phase.generate])
    @given(st.lists(record_values(spec), min_size=1, max_size=10))
    def equal(records: list[Values]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_values(Path(folder), spec, {"train": [records]})
            found = list(READERS[reader](folder))
        assert found == [flat(spec, values) for values in records]

    equal()


# --- a mirrored strategy, the tf.data service, a bucket ---


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
