"""Feature specs and their parse specs."""

import hashlib
import io
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from PIL import Image

from schemas.columns import ColumnType
from schemas.example import encode_example
from schemas.features import (
    BoxForm,
    Content,
    Feature,
    FeatureSpec,
    Kind,
    ObjectRoles,
    RepeatedAs,
    Roles,
    corners_of,
    parse_spec,
    roles_of_keys,
    roles_of_spec,
)
from schemas.layouts.arrays import ArraysLayout, Encoding
from schemas.layouts.classification import (
    ClassificationLayout,
    PairsLayout,
    TensorLayout,
    TutorialLayout,
)
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.table import TableLayout
from schemas.layouts.tfds import KerasLayout, TfdsLayout
from tests.test_example import tensorflow_example

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
    example = tensorflow_example({f.key: (f.kind, values[f.key]) for f in spec.features})
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
        ({"repeated": True, "optional": True}, "optional must be a feature of one value, got a of"),
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


BOX_KEYS = tuple(f"image/object/bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
EDGES = ObjectRoles(BoxForm.EDGES, BOX_KEYS, "image/object/class/label", "image/object/class/text")
SIZE = {"width": "image/width", "height": "image/height"}
PLAIN_SIZE = {"width": "width", "height": "height"}
KERAS = Roles(images=("image",), objects=(ObjectRoles(BoxForm.XYWH_PX, ("bbox",), "category_id"),))
B, F, I = Kind.BYTES, Kind.FLOAT, Kind.INT64  # noqa: E741


@pytest.mark.parametrize(
    ("layout", "roles"),
    [
        (
            DetectionLayout(features=("boxes", "masks", "keypoints", "captions", "panoptic")),
            Roles(
                images=("image/encoded",),
                **SIZE,
                objects=(EDGES,),
                keypoints=(
                    "image/object/keypoint/x",
                    "image/object/keypoint/y",
                    "image/object/keypoint/visibility",
                ),
                masks="image/object/mask",
                segmentations=(
                    "image/segmentation/class/encoded",
                    "image/panoptic/category_mask",
                    "image/panoptic/instance_mask",
                ),
                captions=("image/caption",),
            ),
        ),
        (KerasLayout(), KERAS),
        (
            TfdsLayout(features=("boxes", "panoptic")),
            Roles(
                images=("image", "panoptic_image"),
                objects=(
                    ObjectRoles(BoxForm.YXYX, ("objects/bbox",), "objects/label"),
                    ObjectRoles(BoxForm.YXYX, ("panoptic_objects/bbox",), "panoptic_objects/label"),
                ),
            ),
        ),
        (
            ClassificationLayout(),
            Roles(
                images=("image/encoded",),
                **SIZE,
                class_label="image/class/label",
                class_text="image/class/text",
            ),
        ),
        (TutorialLayout(), Roles(images=("image_raw",), **PLAIN_SIZE, class_label="label")),
        (TensorLayout(), Roles(pixels=("image",), class_text="class_name")),
        (PairsLayout(), Roles(images=("lr", "hr"))),
        (PairsLayout(tensors=True), Roles(pixels=("lr", "hr"))),
        (TableLayout(columns={"label": ColumnType(Kind.INT64)}), Roles()),
        (
            ArraysLayout(encoding=Encoding.RAW, dtype="uint8", label=Kind.INT64),
            Roles(pixels=("raw_image",), **PLAIN_SIZE, class_label="label"),
        ),
        (ArraysLayout(dtype="uint8", pictures=False), Roles(pixels=("raw_image",))),
    ],
)
def test_roles_of_every_layout(layout: Any, roles: Roles) -> None:
    assert roles_of_spec(layout.spec) == roles


@pytest.mark.parametrize(
    ("kinds", "images", "roles"),
    [
        (  # Model Garden's create_coco_tf_record.py, with --include_masks
            {
                **dict.fromkeys(("image/height", "image/width"), I),
                **dict.fromkeys(("image/encoded", "image/source_id", "image/object/mask"), B),
                **dict.fromkeys(BOX_KEYS, F),
                "image/object/class/text": B,
                "image/object/class/label": I,
            },
            ["image/encoded", "image/object/mask"],
            Roles(images=("image/encoded",), **SIZE, objects=(EDGES,), masks="image/object/mask"),
        ),
        (  # the Keras recipe
            {"image": B, "path": B, "area": F, "bbox": F, "category_id": I, "id": I, "image_id": I},
            ["image"],
            KERAS,
        ),
        (  # TFDS's coco and voc
            {"image": B, "image/filename": B, "objects/bbox": F, "objects/label": I},
            ["image"],
            Roles(
                images=("image",),
                objects=(ObjectRoles(BoxForm.YXYX, ("objects/bbox",), "objects/label"),),
            ),
        ),
        # Kaggle's flowers and melanoma
        ({"image": B, "class": I}, ["image"], Roles(images=("image",), class_label="class")),
        ({"image": B, "target": F}, ["image"], Roles(images=("image",))),
        # PyImageSearch's
        ({"image": B, "class_name": B}, [], Roles(pixels=("image",), class_text="class_name")),
        (dict.fromkeys(BOX_KEYS[:3], F), [], Roles()),
    ],
)
def test_roles_of_what_others_write(
    kinds: dict[str, Kind], images: list[str], roles: Roles
) -> None:
    assert roles_of_keys(kinds, images) == roles


@pytest.mark.parametrize(
    ("form", "lists", "corners"),
    [
        (BoxForm.EDGES, [[0.1], [0.2], [0.3], [0.4]], [(0.1, 0.2, 0.3, 0.4)]),
        (BoxForm.EDGES, [[], [], [], []], []),
        (BoxForm.EDGES, [[1], [1], [1], []], "boxes have some edges more often than others"),
        (BoxForm.YXYX, [[0.2, 0.1, 0.4, 0.3]], [(0.1, 0.2, 0.3, 0.4)]),
        (BoxForm.YXYX, [[1, 2, 3]], "boxes have four numbers each, got 3"),
        (BoxForm.XYWH_PX, [[10, 10, 20, 5]], [(0.1, 0.2, 0.3, 0.3)]),
        (BoxForm.XYWH_PX, [[]], []),
    ],
)
def test_corners_of_every_form(form: BoxForm, lists: list[list[float]], corners: Any) -> None:
    values = dict(zip("abcd"[: len(lists)], lists, strict=True))
    refused = pytest.raises(ValueError, match=corners) if isinstance(corners, str) else None
    with refused or nullcontext():
        found = corners_of(ObjectRoles(form, tuple(values)), values.__getitem__, (100, 50))
        assert list(found) == [pytest.approx(box) for box in corners]


def test_parse_spec_gives_the_default_of_the_kind() -> None:
    import tensorflow as tf

    kinds = {"age": Kind.INT64, "name": Kind.BYTES, "weight": Kind.FLOAT}
    optional = [Feature(key, kind, False, "x", optional=True) for key, kind in kinds.items()]
    spec = FeatureSpec("table", (Feature("row", Kind.INT64, False, "x"), *optional))
    full = {"age": (Kind.INT64, [7]), "name": (Kind.BYTES, [b"ann"]), "weight": (Kind.FLOAT, [1.5])}
    rows = [encode_example({"row": (Kind.INT64, [n]), **(full if n == 0 else {})}) for n in (0, 1)]
    parsed = tf.io.parse_example(rows, parse_spec(spec))

    assert {key: value.numpy().tolist() for key, value in parsed.items()} == {
        "age": [7, 0],
        "name": [b"ann", b""],
        "row": [0, 1],
        "weight": [1.5, 0.0],
    }
