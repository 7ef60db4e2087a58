"""PyTorch, Grain and the `tfrecord` package read our shards with TensorFlow's values and order.

`.ci/run` installs them in their own environment, since PyTorch's wheel brings gigabytes of CUDA's
libraries, and names its Python in TORCH_READER_PYTHON.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from beam_tfrec.pipelines import records
from tests.coco_command import (
    PROJECT,
    command,
    examples,
    run_coco,
    run_pipeline,
    shard_paths,
    value,
)
from tests.drawn_sources import draw_coco
from tests.torch_reader.digests import digest

PYTHON = os.environ.get("TORCH_READER_PYTHON", "")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not PYTHON, reason="TORCH_READER_PYTHON names no Python; .ci/run installs one"
    ),
]
SPLIT = "train"
LOADERS = ("DataLoader, 2 forked workers", "DataLoader, 2 spawned workers")
IN_ORDER = (*LOADERS, "tfrecord, by index")
OF_ARRAY_RECORD = (*LOADERS, "ArrayRecordDataSource")
SHUFFLED = "DataLoader, shuffled"
GRAIN = ("Grain, shuffled", "Grain, 2 workers, resumed")
MULTI = "tfrecord, all shards"
INDEX = "tfrecord2idx"


def read(out: Path, *ways: str) -> dict[str, list[str]]:
    """Return the records by way of reading, tried one after the other in one process."""
    command = [PYTHON, "-m", "tests.torch_reader.read", str(out), SPLIT, *ways]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures in three shards, with up to six objects each."""
    folder = tmp_path_factory.mktemp("drawn")
    run = run_coco(*command(draw_coco(folder, 40), folder / "out", "--num_shards", "3"))
    assert run.code == 0, run.err
    return folder / "out"


@pytest.fixture(scope="module")
def expected(out: Path) -> list[str]:
    """Digests of all Examples as TensorFlow reads them, shard by shard."""
    digests = [
        digest({key: value(example, key) for key in example.features.feature})
        for example in examples(out, SPLIT)
    ]
    assert len(set(digests)) == 40
    return digests


@pytest.fixture(scope="module")
def got(out: Path) -> dict[str, list[str]]:
    return read(out, *IN_ORDER, SHUFFLED, *GRAIN, INDEX)


@pytest.fixture
def of_array_record(out: Path) -> dict[str, list[str]]:
    """Reads of a copy in ArrayRecord files, with the plan of the other."""
    flags = ("--num_shards", 3, "--record_format", "array_record", "--no_report")
    copy = out.parent / "array_record"
    assert run_pipeline(records.run, "--records", out, *flags, "--output", copy).code == 0
    return read(copy, *OF_ARRAY_RECORD, *GRAIN)


def test_every_value_is_read_in_the_order_of_the_shards(
    expected: list[str], got: dict[str, list[str]], of_array_record: dict[str, list[str]]
) -> None:
    """Of both formats, which Grain shuffles alike."""
    assert {way: got[way] for way in IN_ORDER} == dict.fromkeys(IN_ORDER, expected)
    in_order = {way: of_array_record.pop(way) for way in OF_ARRAY_RECORD}
    assert in_order == dict.fromkeys(OF_ARRAY_RECORD, expected)
    assert of_array_record == {way: got[way] for way in GRAIN}


def test_other_orders_have_every_record(expected: list[str], got: dict[str, list[str]]) -> None:
    """Two epochs of a shuffled loader differ; Grain keeps its order after a restore."""
    first, second = got[SHUFFLED][: len(expected)], got[SHUFFLED][len(expected) :]
    shuffled, resumed = (got[way] for way in GRAIN)
    assert sorted(first) == sorted(second) == sorted(shuffled) == sorted(expected)
    assert len({*map(tuple, (first, second, shuffled, expected))}) == 4
    assert resumed == shuffled


@pytest.mark.parametrize("names", ["counted", "tfds", "maxdiffusion", "{split}.{index}"])
def test_all_shards_are_found_by_patterns(
    out: Path, expected: list[str], names: str, tmp_path: Path
) -> None:
    flags = ("--num_shards", "3", "--shard_names", names, "--no_report")
    images, annotations = draw_coco(out.parent, 40)
    run = run_coco(*command((images, annotations), tmp_path / "out", *flags))
    assert run.code == 0, run.err
    assert sorted(read(tmp_path / "out", MULTI)[MULTI]) == sorted(expected)


def test_index_files_equal_those_of_tfrecord2idx(out: Path, got: dict[str, list[str]]) -> None:
    assert got[INDEX] == [path.name for path in shard_paths(out, SPLIT)]
