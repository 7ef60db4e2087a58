"""The layout `detection`: which groups of features are written, and what they hold."""

import pickle
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind
from beam_tfrec.schemas.fields import AttributedFields, ObjectFields, PictureFields
from beam_tfrec.schemas.layouts import labels_by_category
from beam_tfrec.schemas.layouts.detection import ATTRIBUTES, GROUPS, DetectionLayout
from beam_tfrec.schemas.layouts.groups import GroupedLayout, choose_groups
from beam_tfrec.schemas.layouts.pictures import Picture, PictureLayout
from beam_tfrec.schemas.layouts.tfds import KerasLayout
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Blob, pack
from tests.small_pictures import built, image_of, object_at, sample_of, values_of

PERSON = Label(1, "person", keypoints=("nose", "left_eye", "right_eye"))
CUP = Label(47, "cup")


def test_all_features_of_a_sample() -> None:
    sample = sample_of(
        100,
        50,
        ObjectFields(90, (25.0, 12.5, 50.0, 25.0), 1000.5, 0),
        ObjectFields(1, (0.0, 0.0, 100.0, 50.0), 7.0, 1),
    )
    made = built(DetectionLayout(), sample, image_of(100, 50))
    assert made.features == {
        "image/height": (Kind.INT64, [50]),
        "image/width": (Kind.INT64, [100]),
        "image/filename": (Kind.BYTES, [b"dir/a.jpg"]),
        "image/source_id": (Kind.BYTES, [b"42"]),
        "image/key/sha256": (Kind.BYTES, [b"ab" * 32]),
        "image/encoded": (Kind.BYTES, [b"\xff\xd8\xff"]),
        "image/format": (Kind.BYTES, [b"jpeg"]),
        "image/object/bbox/xmin": (Kind.FLOAT, [0.25, 0.0]),
        "image/object/bbox/xmax": (Kind.FLOAT, [0.75, 1.0]),
        "image/object/bbox/ymin": (Kind.FLOAT, [0.25, 0.0]),
        "image/object/bbox/ymax": (Kind.FLOAT, [0.75, 1.0]),
        "image/object/class/text": (Kind.BYTES, ["Zahnbürste".encode(), b"person"]),
        "image/object/class/label": (Kind.INT64, [90, 1]),
        "image/object/is_crowd": (Kind.INT64, [0, 1]),
        "image/object/area": (Kind.FLOAT, [1000.5, 7.0]),
    }
    assert (made.dropped, made.repairs, made.labels) == ([], [], [90, 1])


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
            "an annotation file holds captions, which features boxes leave out: add captions, or"
            " leave it out",
        ),
        (
            KerasLayout(),
            "boxes panoptic",
            "an annotation file holds panoptic, which the layout has no features for: give another"
            " layout, or leave it out",
        ),
        (
            DetectionLayout(features=("boxes", "captions")),
            "boxes",
            "features name captions, but no annotation file holds captions, only boxes: add such a"
            " file, or leave captions out",
        ),
    ],
)
def test_files_and_groups_must_fit(layout: GroupedLayout, found: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        layout.resolved(found.split())


@pytest.mark.parametrize("name", ["masks", "polygons", "keypoints", "difficult", "pose"])
def test_object_features_need_boxes(name: str) -> None:
    message = f"features {name} describe objects and need boxes, got '{name},captions': add boxes"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DetectionLayout(features=(name, "captions"))


def test_a_resolved_layout_writes_the_chosen_groups() -> None:
    layout = DetectionLayout()
    resolved = layout.resolved(["boxes", "captions", "license"])
    keys = {feature.key for feature in resolved.spec.features}
    assert keys - {feature.key for feature in layout.spec.features} == {"image/caption"}
    assert resolved.features == ("boxes", "captions")
    assert pickle.loads(pickle.dumps(resolved)) == resolved
    assert layout.options()["features"] == "by default"
    assert DetectionLayout(features=("captions", "boxes")).options()["features"] == "boxes captions"


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
    ("values", "message"),
    [
        ({"photo": [b""], "x": [], "y": []}, r"the same keys, differ in \['y'\]"),
        ({"photo": [], "x": []}, "photo must be a list of one value, got 0"),
        ({"photo": b"the bytes themselves", "x": []}, "photo must be a list of one value, got 20"),
    ],
)
def test_values_must_match_the_spec(values: dict[str, list], message: str) -> None:
    """Other values would be lost, or could not be parsed with the spec."""
    photo, x = Feature("photo", Kind.BYTES, False, "the file"), Feature("x", Kind.FLOAT, True, "x")

    class Mine(PictureLayout):
        spec = FeatureSpec("mine", (photo, x))

        def values(self, picture: Picture) -> dict[str, list]:
            return values

    with pytest.raises(ValueError, match=message):
        Mine().build(sample_of(9, 9), [image_of(9, 9)], {})
