"""Which key plays which role: of every layout of ours, and of what others write."""

from typing import Any

import pytest

from schemas.columns import ColumnType
from schemas.features import (
    BoxForm,
    Content,
    Feature,
    FeatureSpec,
    Kind,
    ObjectRoles,
    PointRoles,
    Roles,
    corners_of,
    roles_of_keys,
    roles_of_spec,
)
from schemas.layouts.arrays import ArraysLayout, Encoding
from schemas.layouts.classification import (
    ClassificationLayout,
    ImagenetLayout,
    PairsLayout,
    TensorLayout,
    TutorialLayout,
)
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.table import TableLayout
from schemas.layouts.tfds import KerasLayout, TfdsLayout

BOX_KEYS = tuple(f"image/object/bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))
EDGES = ObjectRoles(BoxForm.EDGES, BOX_KEYS, "image/object/class/label", "image/object/class/text")
SIZE = {"width": "image/width", "height": "image/height"}
PLAIN_SIZE = {"width": "width", "height": "height"}
B, F, I = Kind.BYTES, Kind.FLOAT, Kind.INT64  # noqa: E741


@pytest.mark.parametrize(
    ("layout", "roles"),
    [
        (
            DetectionLayout(features=("boxes",)),
            Roles(images=("image/encoded",), **SIZE, objects=(EDGES,)),
        ),
        (
            DetectionLayout(features=("boxes", "masks", "keypoints", "captions", "panoptic")),
            Roles(
                images=("image/encoded",),
                **SIZE,
                objects=(EDGES,),
                keypoints=PointRoles(
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
        (
            DetectionLayout(features=("captions",)),
            Roles(images=("image/encoded",), **SIZE, captions=("image/caption",)),
        ),
        (
            KerasLayout(),
            Roles(
                images=("image",),
                objects=(ObjectRoles(BoxForm.XYWH_PX, ("bbox",), "category_id"),),
            ),
        ),
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
        (
            ImagenetLayout(),
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
        (
            TableLayout(label_columns=("class",), with_image=True).resolved([]),
            Roles(
                images=("image/encoded",),
                **SIZE,
                class_label="image/class/label",
                class_text="image/class/text",
            ),
        ),
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


def test_a_layout_of_the_user_s_has_the_roles_that_it_declares() -> None:
    spec = FeatureSpec(
        "mine",
        (
            Feature("photo", B, False, "file", Content.IMAGE),
            Feature("frames", B, True, "files", Content.IMAGE),
            Feature("corners", F, True, "boxes", Content.BOX_YXYX),
            Feature("kind", I, True, "class", Content.CLASS_LABEL),
            Feature("bbox", F, True, "of another meaning"),
        ),
    )
    assert roles_of_spec(spec) == Roles(
        images=("photo",),
        objects=(ObjectRoles(BoxForm.YXYX, ("corners",)),),
        class_label="kind",
    )


def test_features_of_steps_have_no_role() -> None:
    spec = FeatureSpec(
        "sequence",
        (
            Feature("image/class/label", I, False, "class", Content.CLASS_LABEL),
            Feature("frames", B, False, "files", Content.IMAGE, per_step=True),
            Feature("boxes", F, True, "boxes", Content.BOX_YXYX, per_step=True),
        ),
    )
    assert roles_of_spec(spec) == Roles(class_label="image/class/label")


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
        (  # the Object Detection API's, without numbers
            {"image/encoded": B, "image/object/class/text": B, **dict.fromkeys(BOX_KEYS, F)},
            ["image/encoded"],
            Roles(
                images=("image/encoded",),
                objects=(ObjectRoles(BoxForm.EDGES, BOX_KEYS, "", "image/object/class/text"),),
            ),
        ),
        (  # the Keras recipe
            {"image": B, "path": B, "area": F, "bbox": F, "category_id": I, "id": I, "image_id": I},
            ["image"],
            Roles(
                images=("image",),
                objects=(ObjectRoles(BoxForm.XYWH_PX, ("bbox",), "category_id"),),
            ),
        ),
        (  # TFDS's coco and voc
            {"image": B, "image/filename": B, "objects/bbox": F, "objects/label": I},
            ["image"],
            Roles(
                images=("image",),
                objects=(ObjectRoles(BoxForm.YXYX, ("objects/bbox",), "objects/label"),),
            ),
        ),
        (
            {"image": B, "faces/bbox": F},
            ["image"],
            Roles(images=("image",), objects=(ObjectRoles(BoxForm.YXYX, ("faces/bbox",)),)),
        ),
        # Kaggle's flowers and melanoma
        ({"image": B, "class": I}, ["image"], Roles(images=("image",), class_label="class")),
        ({"image": B, "target": I}, ["image"], Roles(images=("image",), class_label="target")),
        ({"image": B, "target": F}, ["image"], Roles(images=("image",))),
        # PyImageSearch's
        ({"image": B, "class_name": B}, [], Roles(pixels=("image",), class_text="class_name")),
        (
            {"image_raw": B, "label": I, "height": I, "width": I},
            [],
            Roles(pixels=("image_raw",), **PLAIN_SIZE, class_label="label"),
        ),
        # edges of other kinds, or not all
        (dict.fromkeys(BOX_KEYS, I), [], Roles()),
        (dict.fromkeys(BOX_KEYS[:3], F), [], Roles()),
        ({}, [], Roles()),
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
        (BoxForm.YXYX, [[0.2, 0.1, 0.4, 0.3]], [(0.1, 0.2, 0.3, 0.4)]),
        (BoxForm.XYWH_PX, [[10, 10, 20, 5]], [(0.1, 0.2, 0.3, 0.3)]),
        (BoxForm.XYWH_PX, [[]], []),
    ],
)
def test_corners_of_every_form(form: BoxForm, lists: list[list[float]], corners: Any) -> None:
    keys = ("a", "b", "c", "d")[: len(lists)]
    values = dict(zip(keys, lists, strict=True))
    found = list(corners_of(ObjectRoles(form, keys), values.__getitem__, (100, 50)))
    assert found == [pytest.approx(box) for box in corners]


@pytest.mark.parametrize(
    ("form", "lists", "message"),
    [
        (BoxForm.EDGES, [[1], [1], [1], []], "boxes have some edges more often than others"),
        (BoxForm.YXYX, [[1, 2, 3]], "boxes have four numbers each, got 3"),
        (BoxForm.XYWH_PX, [[1, 2, 3, 4, 5]], "boxes have four numbers each, got 5"),
    ],
)
def test_what_is_missing_of_a_box_is_told(
    form: BoxForm, lists: list[list[float]], message: str
) -> None:
    keys = ("a", "b", "c", "d")[: len(lists)]
    values = dict(zip(keys, lists, strict=True))
    with pytest.raises(ValueError, match=message):
        list(corners_of(ObjectRoles(form, keys), values.__getitem__, (1, 1)))
