"""Copying records of other programs: any bytes, their features, and damaged files."""

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import beam_tfrec
from beam_tfrec.pipelines.diff import run as diff
from beam_tfrec.pipelines.show import run as show
from beam_tfrec.pipelines.verify import run as verify
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.tfrecord import frame_record
from tests.coco_command import run_pipeline
from tests.conftest import thorough
from tests.invariants import files_of, keyed_records
from tests.small_runs import build_run, plan_run, write_set
from tests.test_records_pipeline import copied, copy, row, write_records

ANY_BYTES = [b"", b"\xff" * 9, b"\n\x03abc", *(b"%d" % number for number in range(5))]


@pytest.fixture(scope="module")
def any_bytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of records that are not Examples, copied from a plain and a compressed file."""
    folder = tmp_path_factory.mktemp("any")
    write_records(folder / "in/a-1.tfrecord", ANY_BYTES[:3])
    framed = b"".join(part for data in ANY_BYTES[3:] for part in frame_record([data]))
    (folder / "in/b.tfrecord.gz").write_bytes(gzip.compress(framed))
    flags = ("--record_type", "bytes", "--num_shards", 3)
    manifest = copied(folder / "out", "--records", folder / "in", *flags)
    assert (manifest["layout"], manifest["features"]) == ("bytes", [])
    return folder / "out"


def test_records_of_any_bytes_are_copied(any_bytes: Path) -> None:
    keys = [f"a-1.tfrecord:{number}" for number in range(3)]
    keys += [f"b.tfrecord.gz:{number}" for number in range(5)]
    places = [("train", key) for key in keys]
    assert keyed_records(files_of(any_bytes)) == dict(zip(places, ANY_BYTES, strict=True))
    opened = beam_tfrec.open(str(any_bytes), "train")
    assert [dict(opened[opened.find(key)]) for key in keys] == [{"record": b} for b in ANY_BYTES]


@pytest.mark.thorough
def test_records_of_any_bytes_are_data_sets_like_others(any_bytes: Path, tmp_path: Path) -> None:
    assert not [*any_bytes.glob("*.pbtxt"), *any_bytes.glob("features.json")]
    assert run_pipeline(verify, any_bytes, "--deep").code == 0
    assert "9 bytes: ff ff" in run_pipeline(show, any_bytes).out
    card = (any_bytes / "README.md").read_text()
    assert "None: records are any bytes" in card and "tf.io.parse" not in card
    loaded = [record["record"].numpy() for record in beam_tfrec.load(str(any_bytes), "train")]
    (batch,) = beam_tfrec.load(str(any_bytes), "train", batch_size=8)
    assert sorted(loaded) == sorted(batch["record"].numpy()) == sorted(ANY_BYTES)
    out, flags = tmp_path / "out", ("--records", any_bytes, "--num_shards", 2)
    assert "got example; give --record_type bytes" in copy(out, *flags).fault
    copied(out, *flags, "--record_type", "bytes")
    assert run_pipeline(diff, any_bytes, out).code == 0


def test_features_are_those_of_all_records(tmp_path: Path) -> None:
    lists = [{"one": (Kind.INT64, [[1]]), "more": (Kind.FLOAT, [[0.5, 2], []])}, {}, None]
    context = {"id": (Kind.INT64, [7]), "many": (Kind.INT64, [3])}
    rows = [encode_example(context, steps) for steps in lists]
    rows += [row(1, "a", few=[1], many=[]), row(2, "b", many=[1, 2])]
    write_records(tmp_path / "in/a.tfrecord", rows)
    flags = ("--records", tmp_path / "in/a.tfrecord", "--order", "input")
    manifest = copied(tmp_path / "out", *flags)
    found = {
        each["key"]: (
            *(each["kind"], each["repeated"]),
            *(each.get(name, False) for name in ("optional", "per_step")),
        )
        for each in manifest["features"]
    }
    assert found == {
        "few": ("int64", False, True, False),
        "id": ("int64", False, False, False),
        "many": ("int64", True, False, False),
        "more": ("float", True, True, True),
        "one": ("int64", False, True, True),
        "text": ("bytes", False, True, False),
    }
    keyed = {("train", f"a.tfrecord:{number}"): data for number, data in enumerate(rows)}
    assert keyed_records(files_of(tmp_path / "out")) == keyed
    assert run_pipeline(verify, tmp_path / "out").code == 0
    steps = [len(record["one"]) for record in beam_tfrec.open(str(tmp_path / "out"), "train")]
    loaded = [*beam_tfrec.load(str(tmp_path / "out"), "train")]
    assert steps == [1, 0, 0, 0, 0] == [record["one"].shape[0] for record in loaded]
    more = [record["more"].to_list() for record in loaded]
    assert more == [[[0.5, 2], []], [], [], [], []]


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


SIZE = len(row(1, "a")) + 16  # of each frame


DAMAGES: Mapping[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "a byte of a record": (lambda d: flip(d, SIZE + 20), 1, f"record 1 at byte {SIZE}: "),
    "the end": (lambda d: d[:-3], 1, f"record 2 at byte {2 * SIZE}: "),
    "no Example": (lambda d: d + b"".join(frame_record([b"\xff" * 9])), 1, "of another kind"),
    "no key": (lambda d: d + b"".join(frame_record([encode_example({})])), 1, "no single value"),
}


def test_a_file_that_cannot_be_read_on_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "in/a.tfrecord"
    write_records(path, [row(number, "a") for number in (1, 2, 3)])
    whole = path.read_bytes()
    for damaged in (flip(whole, SIZE), gzip.compress(whole)[:-20]):
        path.write_bytes(damaged)
        run = copy(tmp_path / "out", "--records", path, "--max_rejected", 3)
        assert run.ended == (3, "E-SRC-DAMAGED")
        assert f"a.tfrecord: record 1 at byte {SIZE}: " in run.fault


@pytest.mark.parametrize(
    "name", [thorough("the end"), *(name for name in DAMAGES if name != "the end")]
)
def test_a_damaged_record_is_rejected(name: str, tmp_path: Path) -> None:
    damage, lost, detail = DAMAGES[name]
    path = tmp_path / "in/a.tfrecord"
    write_records(path, [row(number, "a") for number in (1, 2, 3)])
    path.write_bytes(damage(path.read_bytes()))
    flags = ("--records", path, "--key_feature", "id")
    copied(tmp_path / "out", *flags, "--max_rejected", lost)
    (line,) = (tmp_path / "out/rejected.jsonl").read_text().splitlines()
    reject = json.loads(line)
    assert reject["file_name"] == "a.tfrecord" and detail in reject["detail"]


def test_a_damaged_record_of_a_data_set_is_rejected(tmp_path: Path) -> None:
    build_run(plan_run(*write_set(tmp_path, 4), tmp_path / "old"))
    path = min((tmp_path / "old").glob("*.tfrec"))
    path.write_bytes(flip(path.read_bytes(), 100))
    manifest = copied(tmp_path / "out", "--records", tmp_path / "old", "--max_rejected", 1)
    assert manifest["splits"]["train"]["rejected"] == {"E-REC-DAMAGED": 1}
    (reject,) = map(json.loads, (tmp_path / "out/rejected.jsonl").read_text().splitlines())
    assert reject["file_name"] == path.name and "at byte 0: " in reject["detail"]


def write_by_tensorflow(folder: Path) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for number in range(20):
            values = tf.train.Int64List(value=range(number))
            features = {"values": tf.train.Feature(int64_list=values)}
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def write_by_tfds(folder: Path) -> None:
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["even", "odd"]),
            "numbers": tfds.features.Sequence(np.int64),
        }
    )
    version, place = tfds.core.Version("1.0.0"), {"data_dir": str(folder), "module_name": "numbers"}
    identity = tfds.core.DatasetIdentity(name="numbers", version=version, **place)
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=8)
    writer.initialize_splits(["train"])
    for number in range(20):
        image = np.full((4, 5 + number, 3), number, np.uint8)
        example = {"image": image, "label": number % 2, "numbers": [*range(number)]}
        writer.add_examples({"train": [example]})
    writer.close_all()


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "TensorFlow": write_by_tensorflow,
    "TFDS": write_by_tfds,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_records_of_another_program_keep_their_bytes(writer: str, tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "in").mkdir()
    WRITERS[writer](tmp_path / "in")
    flags = ("--records", f"{tmp_path}/in/**/*.tfrec*", "--num_shards", 3)
    copied(tmp_path / "out", *flags)
    read = {
        folder: sorted(
            record.numpy()
            for record in tf.data.TFRecordDataset(
                sorted(str(path) for path in (tmp_path / folder).rglob("*.tfrec*"))
            )
        )
        for folder in ("in", "out")
    }
    assert len(read["in"]) == 20 and read["out"] == read["in"]
    assert run_pipeline(verify, tmp_path / "out", "--deep").code == 0
