"""`beam_tfrec.pipelines.arrays` end to end, read back with the tutorials' own parsing."""

from pathlib import Path

import numpy as np
import pytest

import beam_tfrec
from beam_tfrec.pipelines.arrays import run
from tests.array_runs import parsed, random_images, run_arrays
from tests.coco_command import committed_by, rejected_of, shard_paths
from tests.gcs_stand_in import GcsStandIn

pytestmark = pytest.mark.thorough

IMAGES = random_images(60)
LABELS = np.random.default_rng(1).integers(0, 10, 60)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.save(folder / "x.npy", IMAGES)
    np.save(folder / "y.npy", LABELS)
    return folder


def test_arrays_of_several_sizes_are_read_back(tmp_path: Path) -> None:
    import tensorflow as tf

    folder, out = tmp_path / "arrays", tmp_path / "out"
    folder.mkdir()
    arrays = [IMAGES[n, : 1 + n % 8, : 1 + n % 5] for n in range(20)]
    for number, values in enumerate(arrays):
        np.save(folder / f"{number:02}.npy", values)
    flags = ("--one_sample_per_file", "--num_shards", 1, "--order", "input")
    committed_by(run, out, "--arrays", folder, *flags)
    for values, row in zip(arrays, parsed(out, tf.uint8), strict=True):
        np.testing.assert_array_equal(row["image"], values)
        assert (row["height"], row["width"], row["depth"]) == values.shape


def test_bfloat16_is_read_back(tmp_path: Path) -> None:
    import tensorflow as tf

    values = np.random.default_rng(0).integers(0, 2, (3, 4, 5, 1), np.uint16)
    np.save(tmp_path / "x.npy", values.view("V2"))
    flags = ("--dtype", "bfloat16", "--order", "input", "--num_shards", 1)
    manifest = committed_by(run, tmp_path / "out", "--arrays", tmp_path / "x.npy", *flags)
    assert "dtype bfloat16" in manifest["plan"]["found"]
    found = parsed(tmp_path / "out", tf.bfloat16)
    for row, expected in zip(found, values, strict=True):
        np.testing.assert_array_equal(row["image"].view("uint16"), expected)


def test_bytes_do_not_depend_on_packing_or_place_of_the_file(
    source: Path, tmp_path: Path, stand_in: GcsStandIn
) -> None:
    packed = source / "packed.npz"
    np.savez_compressed(packed, x=IMAGES, y=LABELS)
    stand_in.put("b", "packed.npz", packed.read_bytes())
    for n, uri in enumerate([source / "x.npy", packed, "gs://b/packed.npz"]):
        committed_by(run, tmp_path / str(n), "--arrays", uri, "--label_array", "y")
    one, *others = ([p.read_bytes() for p in shard_paths(tmp_path / n)] for n in "012")
    assert others == [one, one]


@pytest.mark.parametrize("form", ["folder", "npz"])
def test_named_tensors_are_read_by_maxdiffusions_parser(form: str, tmp_path: Path) -> None:
    import tensorflow as tf

    draw = np.random.default_rng(0)
    moments = draw.random((9, 8, 4, 4), np.float32)
    arrays = {
        "moments": moments.astype(">f4"),
        "clip_embeddings": draw.random((9, 77, 2)).astype(np.float16),
        "y": np.arange(9),
        "key": np.array([f"photo-{n}" for n in range(9)]),
    }
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in.npz", **arrays)
    for name, values in arrays.items():
        np.save(tmp_path / f"in/{name}.npy", values)
    named = ("--tensor_arrays", "moments,clip_embeddings", "--label_array", "y")
    source = tmp_path / ("in" if form == "folder" else "in.npz")
    committed_by(run, tmp_path / "out", "--arrays", source, *named, "--key_array", "key")
    description = {
        "moments": tf.io.FixedLenFeature([], tf.string),
        "clip_embeddings": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    records = [*tf.data.TFRecordDataset([*map(str, shard_paths(tmp_path / "out"))])]
    assert len(records) == 9
    for record in records:
        features = tf.io.parse_single_example(record, description)
        row = int(features["label"])
        found = tf.io.parse_tensor(features["moments"], tf.float32)
        np.testing.assert_array_equal(found, moments[row])
        found = tf.io.parse_tensor(features["clip_embeddings"], tf.float16)
        np.testing.assert_array_equal(found, arrays["clip_embeddings"][row])
    split = beam_tfrec.open(tmp_path / "out", "train")
    assert split[split.find("photo-3")]["label"] == 3


def test_wrong_arrays_are_refused(tmp_path: Path) -> None:
    odd = {"a": np.zeros((3, 2)), "b": np.zeros((2, 2)), "k": np.array(["x", "", "y"])}
    np.savez(tmp_path / "x.npz", **odd)
    arrays = ("--arrays", tmp_path / "x.npz", "--output", tmp_path / "out")
    assert run_arrays(*arrays, "--tensor_arrays", "a,b").ended == (3, "E-ARR-COUNT")
    assert run_arrays(*arrays, "--tensor_arrays", "a,k").ended == (3, "E-ARR-TYPE")
    assert run_arrays(*arrays, "--image_array", "a", "--key_array", "b").ended == (3, "E-ARR-TYPE")
    named = ("--tensor_arrays", "a", "--key_array", "k", "--max_rejected", 1)
    committed_by(run, tmp_path / "out", *arrays[:2], *named)
    [reject] = rejected_of(tmp_path / "out")
    assert (reject["code"], reject["key"]) == ("E-ROW-KEY", "x.npz:1")


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ("in/x.npy", None),  # row 0 is `0`, and in a folder `x.npy:0`
        ("in", "file:row"),
        ("in --one_sample_per_file", "file"),
        ("in --image_array x", "array"),
    ],
)
def test_since_compares_the_kind_of_keys(flags: str, keys: str | None) -> None:
    config, _ = run.configure(["--arrays", *flags.split(), "--output", "out"])
    assert config.options().get("keys") == keys


def test_a_split_has_arrays_of_its_own() -> None:
    flags = "--arrays train=m.npz test=m.npz --image_array train=x_train test=x_test"
    flags += " --label_array y --output out"
    config, _ = run.configure(flags.split())
    found = {split: (of.uri, of.image, of.label) for split, of in config.sources.items()}
    assert found == {"train": ("m.npz", "x_train", "y"), "test": ("m.npz", "x_test", "y")}


def test_archives_are_unpacked_in_the_spool_dir(source: Path, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "packed.npz", x=IMAGES)
    spool = tmp_path / "spool"
    arguments = ("--arrays", tmp_path / "packed.npz", "--spool_dir", spool)
    found = run_arrays(*arguments, "--output", tmp_path / "out")
    assert found.ended == (6, "E-IO-READONLY")
    assert f"{spool}: " in found.fault and "give a --spool_dir that can be written" in found.fault
    spool.mkdir()
    committed_by(run, tmp_path / "out", *arguments)
    assert [*spool.iterdir()] == []
