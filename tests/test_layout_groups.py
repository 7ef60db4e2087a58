"""Which groups of features are written, and what those of the detection layout hold."""

import pickle
import re
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.features import Feature, FeatureSpec, Kind
from schemas.fields import ObjectFields
from schemas.layouts import labels_by_category
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


@pytest.mark.parametrize(
    ("asked", "found", "chosen"),
    [
        (None, "boxes", "boxes"),
        (None, "boxes captions keypoints", "boxes keypoints captions"),
        (None, "boxes license", "boxes"),
        ("boxes license", "boxes license", "boxes license"),
        ("masks boxes", "boxes", "boxes masks"),  # in the groups' order
        # Keypoints stand in the file that holds the boxes, which may be read for them alone.
        ("boxes", "boxes keypoints", "boxes"),
    ],
)
def test_choose_groups(asked: str | None, found: str, chosen: str) -> None:
    assert choose_groups(SOME, asked and asked.split(), found.split()) == tuple(chosen.split())


@pytest.mark.parametrize(
    ("asked", "found", "message"),
    [
        (
            "boxes captions",
            "boxes keypoints",
            "features name captions, but no annotation file holds captions, only boxes, keypoints:"
            " give such a file, or leave captions out",
        ),
        (
            "boxes",
            "boxes captions",
            "an annotation file holds captions, which features boxes leave out:"
            " add captions, or leave it out",
        ),
        (
            None,
            "boxes panoptic",
            "an annotation file holds panoptic, which the layout has no features for:"
            " give another layout, or leave it out",
        ),
    ],
)
def test_choose_groups_refuses(asked: str | None, found: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        choose_groups(SOME, asked and asked.split(), found.split())


@pytest.mark.parametrize("name", ["masks", "polygons", "keypoints"])
def test_object_features_need_boxes(name: str) -> None:
    message = f"features {name} are of objects, which need boxes, got '{name},captions': add boxes"
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
    """Return the values of a group's features, and what was mended."""
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
        (
            "captions",
            {"captions": ["A dog.", "Ein Hündchen"]},
            [b"A dog.", "Ein Hündchen".encode()],
        ),
        ("license", {"license_id": None}, []),
        ("license", {"license_id": 0}, [0]),
        ("license", {"license_id": 4}, [4]),
    ],
)
def test_captions_and_license(name: str, fields: dict[str, Any], expected: list) -> None:
    assert values(name, **fields) == {name.removesuffix("s"): expected, "repairs": []}


CONTIGUOUS = (Label(1, "person"), Label(2, "cup", category_id=47))


@pytest.mark.parametrize(
    ("labels", "negative", "not_exhaustive", "expected"),
    [
        ((PERSON, CUP), [47, 1], [47], ([47, 1], [47], [])),
        (CONTIGUOUS, [47, 1], [47], ([2, 1], [2], [])),
        ((PERSON, CUP), [2, 47, 3], [], ([47], [], ["unknown_category_left_out"] * 2)),
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
def test_values_are_those_of_the_spec(values: dict[str, list], message: str) -> None:
    """Others would be lost, or parsed by no reader of the spec."""
    photo, x = Feature("photo", Kind.BYTES, False, "the file"), Feature("x", Kind.FLOAT, True, "x")

    class Mine(PictureLayout):
        spec = FeatureSpec("mine", (photo, x))

        def values(self, picture: Picture) -> dict[str, list]:
            return values

    with pytest.raises(ValueError, match=message):
        Mine().build(sample_of(9, 9), [image_of(9, 9)], {})
