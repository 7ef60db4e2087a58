"""Which groups of features are written, and what those of the detection layout hold."""

import pickle
import re
from collections.abc import Sequence

import pytest

from schemas.features import Feature, FeatureSpec, Kind
from schemas.layouts.detection import GROUPS, DetectionLayout
from schemas.layouts.groups import FeatureGroup, choose_groups
from schemas.layouts.pictures import Picture, PictureLayout
from schemas.manifest import Label
from tests.small_pictures import built, image_of, object_at, sample_of, values_of

PERSON = Label(1, "person", keypoints=("nose", "left_eye", "right_eye"))
CUP = Label(47, "cup")


def group(name: str, found_as: str = "", by_default: bool = True) -> FeatureGroup:
    feature = Feature(f"image/{name}", Kind.INT64, True, "numbers")
    return FeatureGroup(name, (feature,), lambda _: {}, found_as or name, by_default)


SOME = (
    group("boxes"),
    group("masks", "boxes", by_default=False),
    group("keypoints"),
    group("captions"),
    group("license", by_default=False),
    group("lvis"),
)

# What is asked for, what the files hold, what is written.
CHOICES = {
    "boxes alone": (None, ["boxes"], ("boxes",)),
    "what the files hold": (
        None,
        ["boxes", "captions", "keypoints"],
        ("boxes", "keypoints", "captions"),
    ),
    "the license only by asking": (None, ["boxes", "license"], ("boxes",)),
    "asked for": (["boxes", "license"], ["boxes", "license"], ("boxes", "license")),
    "in the groups' order": (["masks", "boxes"], ["boxes"], ("boxes", "masks")),
    # These stand in the file that holds the boxes, which may be read for them alone.
    "keypoints left out": (["boxes"], ["boxes", "keypoints"], ("boxes",)),
}


@pytest.mark.parametrize(("asked", "found", "chosen"), CHOICES.values(), ids=CHOICES)
def test_choose_groups(
    asked: Sequence[str] | None, found: Sequence[str], chosen: tuple[str, ...]
) -> None:
    assert choose_groups(SOME, asked, found) == chosen


# What is asked for, what the files hold, what is said.
REFUSALS = {
    "no file for it": (
        ["boxes", "captions"],
        ["boxes", "keypoints"],
        "features name captions, but no annotation file holds captions, only boxes, keypoints:"
        " give such a file, or leave captions out",
    ),
    "a file for nothing": (
        ["boxes"],
        ["boxes", "captions"],
        "an annotation file holds captions, which features boxes leave out:"
        " add captions, or leave it out",
    ),
    "no features for a file": (
        None,
        ["boxes", "panoptic"],
        "an annotation file holds panoptic, which the layout has no features for:"
        " give another layout, or leave it out",
    ),
}


@pytest.mark.parametrize(("asked", "found", "message"), REFUSALS.values(), ids=REFUSALS)
def test_choose_groups_refuses(
    asked: Sequence[str] | None, found: Sequence[str], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        choose_groups(SOME, asked, found)


@pytest.mark.parametrize("name", ["masks", "polygons", "keypoints"])
def test_object_features_need_boxes(name: str) -> None:
    message = f"features {name} are of objects, which need boxes, got '{name},captions': add boxes"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DetectionLayout(features=(name, "captions"))


def test_unknown_features_are_refused_with_those_that_there_are() -> None:
    names = ", ".join(group.name for group in GROUPS)
    message = f"features of layout detection must be of {names}, got 'boxes,bbox': leave out 'bbox'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        DetectionLayout(features=("boxes", "bbox"))


def test_a_resolved_layout_writes_the_chosen_groups() -> None:
    layout = DetectionLayout()
    resolved = layout.resolved(["boxes", "captions", "license"])
    keys = {feature.key for feature in resolved.spec.features}
    assert keys - {feature.key for feature in layout.spec.features} == {"image/caption"}
    assert resolved.features == ("boxes", "captions")
    assert pickle.loads(pickle.dumps(resolved)) == resolved
    assert layout.options()["features"] == "by default"
    assert DetectionLayout(features=("captions", "boxes")).options()["features"] == "boxes captions"


# --- keypoints ---


def keypoints(*objects, labels=(PERSON, CUP), image=None, width_px=100, height_px=50) -> dict:
    layout = DetectionLayout(features=("boxes", "keypoints"))
    made = built(
        layout,
        sample_of(width_px, height_px, *objects),
        image or image_of(100, 50),
        labels={label.id: label for label in labels},
        found=("boxes", "keypoints"),
    )
    prefix = "image/object/keypoint/"
    values = values_of(made)
    return {key.removeprefix(prefix): values[key] for key in values if key.startswith(prefix)}


def test_keypoints_of_persons_and_zeros_of_others() -> None:
    person = object_at(0, 0, 50, 50, keypoints_px=[25, 10, 2, 50.5, 0, 1, 0, 0, 0])
    cup = object_at(0, 0, 9, 9, category_id=47)
    bare = object_at(0, 0, 20, 20)
    assert keypoints(person, cup, bare) == {
        "x": [0.25, 0.505, 0.0] + [0.0] * 6,
        "y": [0.2, 0.0, 0.0] + [0.0] * 6,
        "visibility": [2, 1, 0] + [0] * 6,
        "num": [2, 0, 0],
        "text": [b"nose", b"left_eye", b"right_eye"] * 3,
    }


# --- whole images ---


def image_values(name: str, labels: Sequence[Label] = (PERSON, CUP), **fields) -> dict:
    layout = DetectionLayout(features=("boxes", name))
    sample = sample_of(100, 50, **fields)
    by_id = {label.annotated_id: label for label in labels}
    made = built(layout, sample, image_of(100, 50), labels=by_id, found=("boxes", name))
    keys = [feature.key for group in GROUPS if group.name == name for feature in group.features]
    return {key: values_of(made)[key] for key in keys} | {"repairs": made.repairs}


def test_captions_and_license() -> None:
    captions = image_values("captions", captions=["A dog.", "Ein Hündchen\n"])
    assert captions["image/caption"] == [b"A dog.", "Ein Hündchen\n".encode()]
    for license_id, values in ((None, []), (0, [0]), (4, [4])):
        assert image_values("license", license_id=license_id)["image/license"] == values


def test_lvis_lists_hold_class_ids_as_records_do() -> None:
    fields = {"negative_category_ids": [47, 1], "not_exhaustive_category_ids": [47]}
    assert image_values("lvis", **fields) == {
        "image/neg_category_ids": [47, 1],
        "image/not_exhaustive_category_ids": [47],
        "repairs": [],
    }
    contiguous = (Label(1, "person"), Label(2, "cup", category_id=47))
    found = image_values("lvis", contiguous, **fields)
    assert found["image/neg_category_ids"] == [2, 1]
    assert found["image/not_exhaustive_category_ids"] == [2]


def test_a_category_that_lvis_does_not_know_is_left_out_and_counted() -> None:
    found = image_values("lvis", negative_category_ids=[2, 47, 3])
    assert found == {
        "image/neg_category_ids": [47],
        "image/not_exhaustive_category_ids": [],
        "repairs": ["unknown_category_left_out"] * 2,
    }


# --- class ids ---


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"photo": [b""], "x": [], "y": []}, r"the same keys, differ in \['y'\]"),
        ({"photo": [], "x": []}, "photo must be a list of one value, got 0"),
        ({"photo": b"the bytes themselves", "x": []}, "photo must be a list of one value, got 20"),
    ],
)
def test_values_are_those_of_the_spec(values: dict[str, list], message: str) -> None:
    """Others would be lost, or parsed by no reader of the spec."""
    photo, x = Feature("photo", Kind.BYTES, False, "the file"), Feature("x", Kind.FLOAT, True, "x")

    class Mine(PictureLayout):
        spec = FeatureSpec("mine", (photo, x))

        def values(self, picture: Picture) -> dict[str, list]:
            return values

    with pytest.raises(ValueError, match=message):
        Mine().build(sample_of(9, 9), [image_of(9, 9)], {})
