"""Folders of photos for those who follow a tutorial: its own way of reading, written anew."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_folder_pipeline import committed

tf = pytest.importorskip("tensorflow")

ONE_INT64 = tf.io.FixedLenFeature([], tf.int64)
ONE_STRING = tf.io.FixedLenFeature([], tf.string)


def parsed(out: Path, description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all records, as a training program would map them."""
    files = sorted(map(str, out.glob("*.tfrec")))
    records = tf.data.TFRecordDataset(files)
    return [*records.map(lambda one: tf.io.parse_single_example(one, description))]


@pytest.fixture
def cat_and_bridge(shared_data: Path, tmp_path: Path) -> Path:
    """Two photos in two folders, one of them gray, as in TensorFlow's tutorial."""
    root = tmp_path / "photos"
    for class_name, number in (("cat", 0), ("bridge", 1)):
        photo = sorted((shared_data / "coco_val" / "images").glob("*.jpg"))[number]
        (root / class_name).mkdir(parents=True)
        (root / class_name / "photo.jpg").write_bytes(photo.read_bytes())
    gray = tf.io.encode_png(tf.zeros([5, 7, 1], tf.uint8)).numpy()
    (root / "bridge" / "gray.png").write_bytes(gray)
    return root


def test_tensorflows_tutorial(cat_and_bridge: Path, tmp_path: Path) -> None:
    names = tmp_path / "labels.txt"
    names.write_text("cat\nbridge\n")
    out = tmp_path / "out"
    flags = ("--layout", "tutorial", "--label_file", names, "--order", "input")
    committed(out, "--images", cat_and_bridge, *flags)
    numbers = ("height", "width", "depth", "label")
    description = {**dict.fromkeys(numbers, ONE_INT64), "image_raw": ONE_STRING}
    found = []
    for one in parsed(out, description):
        pixels = tf.io.decode_image(one["image_raw"])
        assert pixels.shape == (one["height"], one["width"], one["depth"])
        found.append((int(one["label"]), one["image_raw"].numpy()))
    files = [(1, "bridge/gray.png"), (1, "bridge/photo.jpg"), (0, "cat/photo.jpg")]
    assert found == [(label, (cat_and_bridge / name).read_bytes()) for label, name in files]


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_a_resized_photo_as_a_tensor_with_the_name_of_its_class(
    dtype: str, shared_data: Path, tmp_path: Path
) -> None:
    root, out = shared_data / "classes", tmp_path / "out"
    flags = ("--layout", "tensor", "--resize", "16x16", "--dtype", dtype, "--order", "input")
    committed(out, "--images", root, *flags)
    records = parsed(out, {"image": ONE_STRING, "class_name": ONE_STRING})
    photos = sorted(root.rglob("*.jpg"), key=lambda path: path.relative_to(root).as_posix())
    assert len(records) == len(photos) == 120
    for one, photo in zip(records, photos, strict=True):
        assert one["class_name"] == photo.parent.name.encode()
        tensor = tf.io.parse_tensor(one["image"], out_type=dtype)
        assert tensor.shape == (16, 16, 3)
        pixels = tf.io.decode_jpeg(photo.read_bytes(), dct_method="INTEGER_ACCURATE")
        wanted = tf.image.resize(pixels, [16, 16], antialias=True).numpy() / 255
        given = tensor.numpy() / 255 if dtype == "uint8" else tensor.numpy()
        assert np.abs(given - wanted).max() <= 1 / 255
