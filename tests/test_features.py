"""Feature specs and their parse specs."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from schemas.features import Content, Feature, FeatureSpec, Kind, RepeatedAs, parse_spec

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
    import tensorflow as tf

    def feature(kind: Kind, values: list) -> tf.train.Feature:
        if kind is Kind.BYTES:
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if kind is Kind.FLOAT:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = {f.key: feature(f.kind, values[f.key]) for f in spec.features}
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)


@pytest.mark.parametrize("repeated_as", RepeatedAs)
def test_parse_spec_gives_back_all_values(repeated_as):
    import tensorflow as tf

    expected = [detection_values(index) for index in range(20)]
    serialized = [serialize(DETECTION, values) for values in expected]
    batch = tf.io.parse_example(serialized, parse_spec(DETECTION, repeated_as))

    assert set(batch) == set(expected[0])
    for feature in DETECTION.features:
        tensor = batch[feature.key]
        if not feature.repeated:
            assert [[value] for value in tensor.numpy()] == [v[feature.key] for v in expected]
            continue
        if repeated_as is RepeatedAs.SPARSE:
            tensor = tf.RaggedTensor.from_sparse(tensor)
        wanted = [v[feature.key] for v in expected]
        if feature.kind is Kind.FLOAT:
            wanted = [[float(np.float32(value)) for value in row] for row in wanted]
        assert tensor.to_list() == wanted, feature.key


def test_parse_spec_refuses_an_example_without_a_required_key():
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError, match="image/encoded"):
        tf.io.parse_single_example(b"", parse_spec(DETECTION))


def test_sorted_features_follow_the_keys_bytes():
    keys = ["b", "a/b", "é", "a", "Z", "a-b", "\U0001f600", "\uffff"]
    spec = FeatureSpec("x", tuple(Feature(key, Kind.BYTES, False, "any") for key in keys))
    assert [feature.key for feature in spec.sorted_features] == sorted(keys, key=str.encode)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"key": ""}, "key must be names joined by single slashes, got '': remove"),
        ({"key": "a//b"}, "key must be names joined by single slashes, got 'a//b': remove"),
        ({"doc": ""}, "doc of a must be one line, got '': "),
        ({"content": Content.CLASS_LABEL}, "content class_label of a needs kind int64, got bytes"),
        (
            {"kind": Kind.INT64, "content": Content.TEXT},
            "content text of a needs kind bytes, got int64",
        ),
    ],
)
def test_feature_refuses(overrides, message):
    fields = {"key": "a", "kind": Kind.BYTES, "repeated": False, "doc": "px"}
    with pytest.raises(ValueError, match=message):
        Feature(**fields | overrides)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("", ["a"], "name must not be empty"),
        ("x", [], "features of x must not be empty"),
        ("x", ["a", "b", "a", "b", "c"], r"keys of x must differ, got \['a', 'b'\] twice"),
    ],
)
def test_feature_spec_refuses(name, keys, message):
    features = tuple(Feature(key, Kind.INT64, False, "px") for key in keys)
    with pytest.raises(ValueError, match=message):
        FeatureSpec(name, features)


@pytest.mark.parametrize(
    ("features", "sequences"),
    [
        ([Feature("objects/id", Kind.INT64, False, "one id")], ("objects",)),
        ([Feature("objects", Kind.INT64, True, "ids")], ("objects",)),
        ([Feature("others/id", Kind.INT64, True, "ids")], ("objects",)),
    ],
)
def test_sequences_have_repeated_features_alone(
    features: list[Feature], sequences: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match="sequences of some must have repeated features alone"):
        FeatureSpec("some", tuple(features), sequences)


@pytest.mark.parametrize(
    ("kind", "content"), [(Kind.FLOAT, Content.FLAG), (Kind.INT64, Content.BOX_YXYX)]
)
def test_contents_of_numbers_have_their_kind(kind: Kind, content: Content) -> None:
    with pytest.raises(ValueError, match=f"content {content.value} of some needs kind "):
        Feature("some", kind, True, "values", content)
