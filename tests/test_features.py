"""Feature specs, their parse specs, and roles of features."""

from contextlib import nullcontext
from typing import Any

import pytest

from beam_tfrec.schemas.columns import ColumnType
from beam_tfrec.schemas.features import (
    BoxForm,
    Content,
    Feature,
    FeatureSpec,
    Kind,
    ObjectRoles,
    Roles,
    corners_of,
    parse_spec,
    roles_of_spec,
)
from beam_tfrec.schemas.layouts import classification
from beam_tfrec.schemas.layouts.arrays import ArraysLayout, Encoding
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.table import TableLayout
from beam_tfrec.schemas.layouts.tfds import KerasLayout, TfdsLayout


def test_lists_are_sparse_unless_ragged_ones_are_asked_for() -> None:
    """As Model Garden's readers expect. tests/test_reader_values.py reads ragged ones."""
    import tensorflow as tf

    spec = FeatureSpec("one", (Feature("a", Kind.FLOAT, True, "x"),))
    assert parse_spec(spec) == {"a": tf.io.VarLenFeature(tf.float32)}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"key": ""}, "key must be like a or a/b, got '': remove the empty part"),
        ({"key": "a//b"}, "key must be like a or a/b, got 'a//b': remove"),
        ({"doc": ""}, "doc of a must be one line, got '': "),
        ({"content": Content.CLASS_LABEL}, "content class_label of a needs kind int64, got bytes"),
    ],
)
def test_invalid_features_are_refused(overrides, message):
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
def test_invalid_feature_specs_are_refused(name, keys, message):
    features = tuple(Feature(key, Kind.INT64, False, "px") for key in keys)
    with pytest.raises(ValueError, match=message):
        FeatureSpec(name, features)


BOX_KEYS = tuple(f"image/object/bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
EDGES = ObjectRoles(BoxForm.EDGES, BOX_KEYS, "image/object/class/label", "image/object/class/text")
SIZE = {"width": "image/width", "height": "image/height"}
KERAS = Roles(images=("image",), objects=(ObjectRoles(BoxForm.XYWH_PX, ("bbox",), "category_id"),))


@pytest.mark.parametrize(
    ("layout", "roles"),
    [
        (
            DetectionLayout(features=("boxes", "masks", "keypoints", "captions", "panoptic")),
            Roles(
                images=("image/encoded",),
                **SIZE,
                objects=(EDGES,),
                keypoints=tuple(f"image/object/keypoint/{key}" for key in ("x", "y", "visibility")),
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
            classification.ClassificationLayout(),
            Roles(
                images=("image/encoded",),
                **SIZE,
                class_label="image/class/label",
                class_text="image/class/text",
            ),
        ),
        (classification.TensorLayout(), Roles(pixels=("image",), class_text="class_name")),
        (classification.PairsLayout(tensors=True), Roles(pixels=("lr", "hr"))),
        (TableLayout(columns={"label": ColumnType(Kind.INT64)}), Roles()),
        (
            ArraysLayout(encoding=Encoding.RAW, dtype="uint8", label=Kind.INT64),
            Roles((), ("raw_image",), "width", "height", class_label="label"),
        ),
    ],
)
def test_roles_of_every_layout(layout: Any, roles: Roles) -> None:
    assert roles_of_spec(layout.spec) == roles


@pytest.mark.parametrize(
    ("form", "lists", "corners"),
    [
        (BoxForm.EDGES, [[0.1], [0.2], [0.3], [0.4]], [(0.1, 0.2, 0.3, 0.4)]),
        (BoxForm.EDGES, [[1], [1], [1], []], "boxes have more values of some edges than of others"),
        (BoxForm.YXYX, [[0.2, 0.1, 0.4, 0.3]], [(0.1, 0.2, 0.3, 0.4)]),
        (BoxForm.YXYX, [[1, 2, 3]], "boxes have four numbers each, got 3"),
        (BoxForm.XYWH_PX, [[10, 10, 20, 5]], [(0.1, 0.2, 0.3, 0.3)]),
    ],
)
def test_corners_of_every_form(form: BoxForm, lists: list[list[float]], corners: Any) -> None:
    values = {key: (Kind.FLOAT, found) for key, found in zip("abcd", lists, strict=False)}
    refused = pytest.raises(ValueError, match=corners) if isinstance(corners, str) else None
    with refused or nullcontext():
        found = corners_of(ObjectRoles(form, tuple(values)), values, (100, 50))
        assert list(found) == [pytest.approx(box) for box in corners]
