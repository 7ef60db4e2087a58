"""The layouts of annotated pictures: which groups of features are written, and what they hold."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

import msgspec
import numpy as np
import pytest

from beam_tfrec.schemas.documents import tensorflow_files
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Content, Feature, FeatureSpec, Kind
from beam_tfrec.schemas.fields import (
    AttributedFields,
    EncodedImage,
    ImageInfo,
    ObjectFields,
    PictureFields,
    SegmentFields,
)
from beam_tfrec.schemas.layouts import Unfit, labels_by_category
from beam_tfrec.schemas.layouts.detection import ATTRIBUTES, GROUPS, DetectionLayout
from beam_tfrec.schemas.layouts.groups import GroupedLayout, choose_groups
from beam_tfrec.schemas.layouts.tfds import KerasLayout, TfdsLayout
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Blob, pack
from tests.coco_command import run_coco
from tests.conftest import TEST_DATA, jpeg_bytes
from tests.small_images import chunk, ihdr, png
from tests.small_pictures import built, image_of, object_at, sample_of, values_of
from tests.test_manifest import MANIFEST

PERSON = Label(1, "person", keypoints=("nose", "left_eye", "right_eye"))
CUP = Label(47, "cup")


def test_the_estimated_size_never_changes() -> None:
    # It fixes the number of shards: 541 + "42" + "dir/a.jpg" + 33 an object + the image.
    layout = DetectionLayout()
    assert layout.record_bytes(sample_of(9, 9)) == 541 + 2 + 9 + 3
    two = sample_of(9, 9, object_at(1, 1, 2, 2), object_at(1, 1, 2, 2))
    assert layout.record_bytes(two) == 541 + 2 + 9 + 66 + 3
    panoptic = Blob("train/panoptic", "a.png", 1000)  # three masks are made of it
    two = msgspec.structs.replace(two, blobs=(*two.blobs, panoptic))
    assert layout.record_bytes(two) == 541 + 2 + 9 + 66 + 3 + 2000


@pytest.mark.parametrize(
    ("asked", "found", "chosen"),
    [
        (None, "boxes", "boxes"),
        (None, "boxes captions keypoints", "boxes keypoints captions"),
        (None, "boxes license", "boxes"),
        ("boxes license", "boxes license", "boxes license"),
        ("masks boxes", "boxes", "boxes masks"),  # in the groups' order
        # A file of keypoints holds boxes too, and may be read for these alone.
        ("boxes", "boxes keypoints", "boxes"),
    ],
)
def test_choose_groups(asked: str | None, found: str, chosen: str) -> None:
    assert choose_groups(GROUPS, asked and asked.split(), found.split()) == tuple(chosen.split())


@pytest.mark.parametrize(
    ("layout", "found", "message"),
    [
        (
            DetectionLayout(features=("boxes",)),
            "boxes captions",
            "a file holds captions, which features boxes leave out: add captions, or leave it out",
        ),
        (
            KerasLayout(),
            "boxes panoptic",
            "a file holds panoptic, which the layout has no features for: give another layout, or"
            " leave it out",
        ),
        (
            DetectionLayout(features=("boxes", "captions")),
            "boxes",
            "features name captions, but no annotation file holds captions: add such a file, or"
            " leave captions out",
        ),
    ],
)
def test_files_and_groups_must_fit(layout: GroupedLayout, found: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layout.resolved(found.split())


@pytest.mark.parametrize("name", ["masks", "polygons", "keypoints", "difficult", "pose"])
def test_object_features_need_boxes(name: str) -> None:
    message = f"features {name} must come with boxes, got '{name},captions': add boxes"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DetectionLayout(features=(name, "captions"))


def values(
    name: str, *objects: ObjectFields, labels: Sequence[Label] = (PERSON, CUP), **fields: Any
):
    """Return the values of a group's features, and the repairs."""
    made = built(
        DetectionLayout(features=("boxes", name)),
        sample_of(100, 50, *objects, **fields),
        image_of(100, 50),
        labels=labels_by_category(labels),
        found=("boxes", name),
    )
    keys = [feature.key for group in GROUPS if group.name == name for feature in group.features]
    found = values_of(made)
    return {key.rpartition("/")[2]: found[key] for key in keys} | {"repairs": made.repairs}


def test_keypoints_of_persons_and_zeros_of_others() -> None:
    person = object_at(0, 0, 50, 50, keypoints_px=[25, 10, 2, 50.5, 0, 1, 0, 0, 0])
    cup = object_at(0, 0, 9, 9, category_id=47)
    bare = object_at(0, 0, 20, 20)
    assert values("keypoints", person, cup, bare) == {
        "x": [0.25, 0.505, 0.0] + [0.0] * 6,
        "y": [0.2, 0.0, 0.0] + [0.0] * 6,
        "visibility": [2, 1, 0] + [0] * 6,
        "num": [2, 0, 0],
        "text": [b"nose", b"left_eye", b"right_eye"] * 3,
        "repairs": [],
    }


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("captions", {"captions": ["A dog.", "ü"]}, [b"A dog.", "ü".encode()]),
        ("license", {"license_id": None}, []),
        ("license", {"license_id": 4}, [4]),
    ],
)
def test_captions_and_license(name: str, fields: dict[str, Any], expected: list) -> None:
    assert values(name, **fields) == {name.removesuffix("s"): expected, "repairs": []}


def test_attributes_are_written_where_the_source_has_them() -> None:
    """An object that lacks one has the default; an image without objects has empty lists."""
    one, outside = object_at(0, 0, 50, 50), object_at(200, 0, 9, 9)
    fields = PictureFields(100, 50, [one, outside, one])
    given: list[dict[str, int | str]] = [
        {"difficult": 1, "pose": "Left"},
        {"difficult": 1, "group_of": 1, "occluded": 1},
        {"occluded": -1},
    ]
    packed = pack(AttributedFields(*msgspec.structs.astuple(fields), attributes=given))
    found = ("boxes", "difficult", "occluded", "pose")
    sample = msgspec.structs.replace(sample_of(100, 50), fields=packed, annotation_ids=(1, 2, 3))
    keys = {f"image/object/{key}" for key in ("difficult", "occluded", "view")}
    for each, expected in (
        (sample, [[1, 0], [0, -1], [b"Left", b""]]),
        (sample_of(100, 50), [[], [], []]),
    ):
        values = values_of(built(DetectionLayout(), each, image_of(100, 50), found=found))
        assert [values[key] for key in sorted(keys)] == expected
    of_groups = {feature.key for group in ATTRIBUTES for feature in group.features}
    assert of_groups & values.keys() == keys


CONTIGUOUS = (Label(1, "person"), Label(2, "cup", category_id=47))


@pytest.mark.parametrize(
    ("labels", "negative", "not_exhaustive", "expected"),
    [
        ((PERSON, CUP), [47, 1], [47], ([47, 1], [47], [])),
        (CONTIGUOUS, [47, 1], [47], ([2, 1], [2], [])),
    ],
)
def test_lvis_lists_hold_class_ids_as_records_do(
    labels: Sequence[Label], negative: list[int], not_exhaustive: list[int], expected: tuple
) -> None:
    fields = {"negative_category_ids": negative, "not_exhaustive_category_ids": not_exhaustive}
    assert tuple(values("lvis", labels=labels, **fields).values()) == expected


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, r"the same keys, differ in \['path'\]"),
        ([], "path must be a list of one value, got 0"),
        (b"the bytes themselves", "path must be a list of one value, got 20"),
    ],
)
def test_values_must_match_the_spec(path: Any, message: str) -> None:
    """Other values would be lost, or could not be parsed with the spec."""
    values = {feature.key: [0] for feature in KerasLayout().spec.features} | {"path": path}
    with pytest.raises(ValueError, match=message):
        KerasLayout().typed({key: found for key, found in values.items() if found is not None})


# --- the layouts of TFDS and Keras ---


LABELS = {1: Label(0, "person", 1), 13: Label(1, "stop sign", 13), 92: Label(2, "banner", 92)}
SEGMENTS = [
    SegmentFields(8_345_037, 92, (10.0, 5.0, 40.0, 20.0), 353.0, 0),
    SegmentFields(3, 1, (0.0, 0.0, 100.0, 50.0), 4999.0, 1),
]
RGB_PNG = png(ihdr(100, 50, 8, 2), chunk(b"IDAT", b""))


def test_panoptic_alone_gives_coco_2017_panoptic() -> None:
    """A segment outside the image is left out and counted."""
    outside = SegmentFields(9, 1, (100.0, 0.0, 5.0, 5.0), 25.0, 0)
    sample = sample_of(100, 50, segments=[*SEGMENTS, outside])
    second = EncodedImage("pan/a.png", RGB_PNG, "", ImageInfo("png", 100, 50))
    photo, found = image_of(100, 50), ("panoptic",)
    made = built(TfdsLayout(), sample, photo, second, labels=LABELS, found=found)
    assert values_of(made) == {
        "image": [b"\xff\xd8\xff"],
        "image/filename": [b"dir/a.jpg"],
        "image/id": [42],
        "panoptic_image": [RGB_PNG],
        "panoptic_image/filename": [b"pan/a.png"],
        "panoptic_objects/area": [353, 4999],
        "panoptic_objects/bbox": pytest.approx([0.1, 0.1, 0.5, 0.5, 0.0, 0.0, 1.0, 1.0]),
        "panoptic_objects/id": [8_345_037, 3],
        "panoptic_objects/is_crowd": [0, 1],
        "panoptic_objects/label": [2, 0],
    }
    assert made.repairs == ["segment_left_out"]


def test_an_image_without_panoptic_annotation_is_rejected() -> None:
    layout = TfdsLayout().resolved(["panoptic"])
    with pytest.raises(Unfit) as unfit:
        layout.build(sample_of(100, 50), [image_of(100, 50)], LABELS)
    detail = "no panoptic annotation, which TFDS has of every image"
    assert unfit.value == Unfit("E-EX-EMPTY", detail)


@pytest.mark.parametrize(
    ("second", "orientation", "unfit"),
    [
        (("jpeg", 100, 50), 1, "TYPE a panoptic image must be a PNG of RGB, 8 bits each"),
        (("png", 50, 100), 1, "SIZE 50 x 100, its photo is 100 x 50"),
        (("png", 50, 100), 6, "SIZE drawn on the upright picture; give"),
    ],
)
def test_a_panoptic_image_of_another_form_is_rejected(
    second: tuple[str, int, int], orientation: int, unfit: str
) -> None:
    """Its bytes are stored as they are, so its segments would not fit the photo."""
    image = EncodedImage("pan/a.png", RGB_PNG, "", ImageInfo(*second))
    images = [image_of(100, 50, orientation), image]
    layout = TfdsLayout().resolved(["panoptic"])
    with pytest.raises(Unfit) as raised:
        layout.build(sample_of(100, 50, segments=SEGMENTS), images, LABELS)
    assert raised.value.place == 1
    assert f"{raised.value.code} {raised.value.detail}".startswith(f"E-IMG-{unfit}")


@pytest.mark.parametrize(
    ("config", "found", "key", "classes"),
    [
        ("2017", ("boxes",), "objects", 80),
        ("2017_panoptic", ("panoptic",), "panoptic_objects", 133),
    ],
)
def test_the_features_equal_those_of_tfds(
    tfds: Any, tmp_path: Path, config: str, found: tuple[str, ...], key: str, classes: int
) -> None:
    names = [f"class {number}" for number in range(classes)]
    spec, files = TfdsLayout().resolved(found).spec, {}
    files["dataset_info.json"] = tensorflow_files.dataset_info_json(MANIFEST)
    files["features.json"] = tensorflow_files.features_json(spec, len(names))
    for name, text in (files | tensorflow_files.label_files(spec, names)).items():
        (tmp_path / name).write_text(text)
    ours = tfds.builder_from_directory(tmp_path).info.features
    with pytest.MonkeyPatch.context() as patch:  # without any download
        patch.setattr(tfds.core.DatasetInfo, "initialize_from_bucket", lambda _: None)
        theirs = tfds.object_detection.Coco(config=config, data_dir=tmp_path / "x").info.features
    assert pformat(ours.get_tensor_info()) == pformat(theirs.get_tensor_info())
    assert pformat(ours.get_serialized_info()) == pformat(theirs.get_serialized_info())
    for mine, other in ((ours, theirs), (ours[key].feature, theirs[key].feature)):
        assert dict(zip(mine, map(type, mine.values()), strict=True)) == {
            name: type(feature) for name, feature in other.items()
        }
    assert ours[key]["label"].num_classes == theirs[key]["label"].num_classes == classes
    assert ours[key]["label"].names == names
    assert ours[key]["bbox"].bbox_format == theirs[key]["bbox"].bbox_format


@pytest.mark.thorough
def test_tfds_loads_the_directory(tfds: Any, tmp_path: Path) -> None:
    """Every value equals the annotation file's, computed as TFDS's own builder does."""
    roots = {split: TEST_DATA / f"coco_{split}" for split in ("train", "val")}
    files = {split: root / "annotations" / "instances.json" for split, root in roots.items()}
    run = run_coco(
        *("--images", *(f"{split}={root / 'images'}" for split, root in roots.items())),
        *("--annotations", *(f"{split}={path}" for split, path in files.items())),
        *("--output", tmp_path / "out", "--layout", "tfds", "--num_shards", "2"),
    )
    assert run.code == 0, run.err
    builder = tfds.builder_from_directory(tmp_path / "out")
    label = builder.info.features["objects"]["label"]
    for split, path in files.items():
        spec = json.loads(path.read_bytes())
        names = {category["id"]: category["name"] for category in spec["categories"]}
        images = {image["id"]: image for image in spec["images"]}
        found = {int(of["image/id"]): of for of in tfds.as_numpy(builder.as_dataset(split=split))}
        assert sorted(found) == sorted(images)
        for image_id, example in found.items():
            image = images[image_id]
            assert example["image/filename"] == image["file_name"].encode()
            assert example["image"].shape == (image["height"], image["width"], 3)
            theirs = [a for a in spec["annotations"] if a["image_id"] == image_id]
            theirs.sort(key=lambda annotation: annotation["id"])
            ours = example["objects"]
            assert ours["id"].tolist() == [a["id"] for a in theirs]
            assert ours["area"].tolist() == [int(a["area"]) for a in theirs]
            assert ours["is_crowd"].tolist() == [bool(a["iscrowd"]) for a in theirs]
            found_names = [label.int2str(number) for number in ours["label"]]
            assert found_names == [names[a["category_id"]] for a in theirs]
            boxes = np.array([a["bbox"] for a in theirs]).reshape(-1, 4)
            scale = np.array([image["height"], image["width"]] * 2)
            corners = np.concatenate([boxes[:, 1::-1], boxes[:, 1::-1] + boxes[:, :1:-1]], axis=1)
            np.testing.assert_allclose(ours["bbox"], corners / scale, atol=1e-6)


def test_boxes_next_to_single_features_are_no_sequence_of_dicts() -> None:
    photo = Feature("image/encoded", Kind.BYTES, False, "the file", Content.IMAGE)
    boxes = Feature("image/bbox", Kind.FLOAT, True, "boxes", Content.BOX_YXYX)
    ours = json.loads(tensorflow_files.features_json(FeatureSpec("mine", (photo, boxes))))
    image = ours["featuresDict"]["features"]["image"]["featuresDict"]["features"]
    assert sorted(image) == ["bbox", "encoded"]


def test_the_keras_recipe_parses_the_records() -> None:
    """With the feature description and the steps of the page that the layout names."""
    import tensorflow as tf

    description = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "path": tf.io.FixedLenFeature([], tf.string),
        "area": tf.io.FixedLenFeature([], tf.float32),
        "bbox": tf.io.VarLenFeature(tf.float32),
        "category_id": tf.io.FixedLenFeature([], tf.int64),
        "id": tf.io.FixedLenFeature([], tf.int64),
        "image_id": tf.io.FixedLenFeature([], tf.int64),
    }
    crowd = ObjectFields(90, (10.5, 20.25, 30.0, 20.0), 345.67, 1)
    image = EncodedImage("dir/a.jpg", jpeg_bytes(100, 50), "", ImageInfo("jpeg", 100, 50))
    made = built(KerasLayout(), sample_of(100, 50, crowd), image)
    example = tf.io.parse_single_example(encode_example(made.features), description)
    assert tf.io.decode_jpeg(example["image"], channels=3).shape == (50, 100, 3)
    bbox = tf.sparse.to_dense(example["bbox"])
    assert bbox.numpy().tolist() == [10.5, 20.25, 30.0, 20.0]
    assert example["area"].numpy() == pytest.approx(345.67)
    names = ("path", "category_id", "id", "image_id")
    assert [example[name].numpy() for name in names] == [b"dir/a.jpg", 90, 11, 42]
