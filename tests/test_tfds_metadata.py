"""`features.json` and `dataset_info.json` as TFDS reads them."""

import hashlib
import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from schemas.documents.tensorflow_files import dataset_info_json, features_json
from schemas.features import Content, Feature, FeatureSpec, Kind
from schemas.manifest import Manifest, ShardEntry
from schemas.shards import PLAIN
from tests.test_example import from_tensorflow
from tests.test_manifest import MANIFEST

NUM_EXAMPLES = 20
SHARD_LENGTHS = (7, 7, 6)


DETECTION = FeatureSpec(
    "detection",
    (
        Feature("image/height", Kind.INT64, False, "px"),
        Feature("image/width", Kind.INT64, False, "px"),
        Feature("image/filename", Kind.BYTES, False, "path below the root", Content.TEXT),
        Feature("image/source_id", Kind.BYTES, False, "image id, decimal", Content.TEXT),
        Feature("image/key/sha256", Kind.BYTES, False, "hex, of image/encoded", Content.TEXT),
        Feature("image/encoded", Kind.BYTES, False, "the file's bytes", Content.IMAGE),
        Feature("image/format", Kind.BYTES, False, "jpeg, png, …", Content.TEXT),
        Feature("image/object/bbox/xmin", Kind.FLOAT, True, "left / width, in [0, 1]"),
        Feature("image/object/bbox/xmax", Kind.FLOAT, True, "right / width, in [0, 1]"),
        Feature("image/object/bbox/ymin", Kind.FLOAT, True, "top / height, in [0, 1]"),
        Feature("image/object/bbox/ymax", Kind.FLOAT, True, "bottom / height, in [0, 1]"),
        Feature("image/object/class/text", Kind.BYTES, True, "category name", Content.TEXT),
        Feature(
            "image/object/class/label", Kind.INT64, True, "COCO category id", Content.CLASS_LABEL
        ),
        Feature("image/object/is_crowd", Kind.INT64, True, "0 or 1"),
        Feature("image/object/area", Kind.FLOAT, True, "px²"),
    ),
)

RGB = (200, 30, 90)


def encoded_image(image_format: str, mode: str = "RGB", size_wh: tuple[int, int] = (6, 4)) -> bytes:
    """Return an image of one colour, so that JPEG decodes to it within 2."""
    buffer = io.BytesIO()
    Image.new("RGB", size_wh, RGB).convert(mode).save(buffer, image_format)
    return buffer.getvalue()


def detection_values(index: int) -> dict[str, list]:
    """Return the values of Example `index` by key: `index % 4` objects, JPEG and PNG in turn."""
    image_format = ("jpeg", "png")[index % 2]
    encoded = encoded_image(image_format, size_wh=(6 + index, 4))
    num_objects = index % 4
    edges = [float(np.float32((index + i) / 40)) for i in range(num_objects)]
    return {
        "image/height": [4],
        "image/width": [6 + index],
        "image/filename": [f"dir/é{index}.{image_format}".encode()],
        "image/source_id": [str(index).encode()],
        "image/key/sha256": [hashlib.sha256(encoded).hexdigest().encode()],
        "image/encoded": [encoded],
        "image/format": [image_format.encode()],
        "image/object/bbox/xmin": edges,
        "image/object/bbox/xmax": [edge + 0.5 for edge in edges],
        "image/object/bbox/ymin": edges[::-1],
        "image/object/bbox/ymax": [1.0] * num_objects,
        "image/object/class/text": [b"person", "Fußgänger".encode(), b""][:num_objects],
        "image/object/class/label": [1, 90, 2**62][:num_objects],
        "image/object/is_crowd": [0, 1, 0][:num_objects],
        "image/object/area": [0.0, 12.5, 3e38][:num_objects],
    }


def serialize(spec: FeatureSpec, values: dict[str, list]) -> bytes:
    """Return the Example as TensorFlow writes it."""
    return from_tensorflow({f.key: (f.kind, values[f.key]) for f in spec.features}, None)


def manifest_of(layout: str, lengths: Sequence[int], shards_bytes: int) -> Manifest:
    """Return a manifest of one split of shards with plain names."""
    shards = [ShardEntry("", "train", n, n, 0, "", "") for n in lengths]
    train = replace(MANIFEST.splits["train"], shards=len(lengths), bytes=shards_bytes)
    plan = replace(MANIFEST.plan, options={"shard_names": PLAIN})
    return replace(MANIFEST, layout=layout, plan=plan, splits={"train": train}, shards=shards)


@pytest.fixture(scope="module")
def detection_dir(tmp_path_factory) -> Path:
    import tensorflow as tf

    root = tmp_path_factory.mktemp("detection")
    records = map(
        serialize, itertools.repeat(DETECTION), map(detection_values, range(NUM_EXAMPLES))
    )
    for index, length in enumerate(SHARD_LENGTHS):
        with tf.io.TFRecordWriter(str(root / f"train-{index:05}-of-00003.tfrec")) as writer:
            for record in itertools.islice(records, length):
                writer.write(record)
    shards_bytes = sum(path.stat().st_size for path in root.iterdir())
    (root / "features.json").write_text(features_json(DETECTION))
    manifest = manifest_of("detection", SHARD_LENGTHS, shards_bytes)
    (root / "dataset_info.json").write_text(dataset_info_json(manifest))
    return root


@pytest.fixture(scope="module")
def builder(tfds, detection_dir):
    return tfds.builder_from_directory(detection_dir)


def flatten(nested: dict, prefix: str = "") -> dict:
    """Return TFDS's nested Example as Examples have it, by '/'-separated key."""
    flat = {}
    for name, value in nested.items():
        key = f"{prefix}{name}"
        flat |= flatten(value, f"{key}/") if isinstance(value, dict) else {key: value}
    return flat


def test_tfds_reads_every_value(tfds, builder):
    dataset = builder.as_dataset(split="train")
    assert len(dataset) == NUM_EXAMPLES
    for index, nested in enumerate(tfds.as_numpy(dataset)):
        expected = detection_values(index)
        read = flatten(nested)
        assert sorted(read) == sorted(expected)
        image = read.pop("image/encoded")
        assert (image.shape, image.dtype) == ((4, 6 + index, 3), np.uint8)
        np.testing.assert_allclose(image, np.broadcast_to(RGB, image.shape), atol=2)
        for feature in DETECTION.features:
            if feature.key != "image/encoded":
                value = read[feature.key] if feature.repeated else [read[feature.key]]
                wanted = expected[feature.key]
                if feature.kind is Kind.FLOAT:
                    wanted = [np.float32(number) for number in wanted]
                assert list(value) == wanted, feature.key


def test_tfds_knows_the_description_and_the_splits(builder, detection_dir):
    info = builder.info
    assert info.full_name == "beam_tfrec_detection/3.0.0"
    assert info.description == "detection Examples written by beam-tfrec; see manifest.json."
    train = info.splits["train"]
    assert (train.num_examples, tuple(train.shard_lengths)) == (NUM_EXAMPLES, SHARD_LENGTHS)
    assert train.filenames == sorted(path.name for path in detection_dir.glob("*.tfrec"))
    assert train.num_bytes == sum(path.stat().st_size for path in detection_dir.glob("*.tfrec"))
    for feature in DETECTION.features:
        connector = info.features
        for part in feature.key.split("/"):
            connector = connector[part]
        assert connector.doc.desc == feature.doc
