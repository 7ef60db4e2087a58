"""The detection layout: features, dropped boxes, size estimates."""

import msgspec

from schemas.features import Kind
from schemas.fields import BadAnnotation, ObjectFields
from schemas.layouts import Built
from schemas.layouts.detection import DetectionLayout
from schemas.samples import Blob
from tests.small_pictures import LABELS, image_of, object_at, sample_of


def boxes_of(built: Built) -> list[tuple[float, ...]]:
    """Return (xmin, ymin, xmax, ymax) of every box."""
    keys = ("xmin", "ymin", "xmax", "ymax")
    return list(zip(*(built.features[f"image/object/bbox/{key}"][1] for key in keys), strict=True))


def test_all_features_of_a_sample() -> None:
    sample = sample_of(
        100,
        50,
        ObjectFields(90, (25.0, 12.5, 50.0, 25.0), 1000.5, 0),
        ObjectFields(1, (0.0, 0.0, 100.0, 50.0), 7.0, 1),
    )
    built = DetectionLayout().build(sample, [image_of(100, 50)], LABELS)
    assert isinstance(built, Built)
    assert built.features == {
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
    assert (built.dropped, built.repairs, built.labels) == ([], [], [90, 1])


def test_boxes_outside_are_dropped_with_all_their_values() -> None:
    sample = sample_of(
        100,
        50,
        object_at(100.0, 0.0, 5.0, 5.0),  # 11: touches the right edge
        object_at(-10.0, 0.0, 60.0, 25.0, category_id=90),  # 12: over the left edge
        object_at(50.0, 10.0, 1e-6, 5.0),  # 13: vanishes
        object_at(50.0, 25.0, 25.0, 50.0),  # 14: over the bottom edge
    )
    built = DetectionLayout().build(sample, [image_of(100, 50)], LABELS)
    assert isinstance(built, Built)
    assert boxes_of(built) == [(0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 0.75, 1.0)]
    assert built.features["image/object/area"] == (Kind.FLOAT, [1500.0, 1250.0])
    assert built.features["image/object/class/text"][1] == ["Zahnbürste".encode(), b"person"]
    assert built.labels == [90, 1]
    assert built.repairs == ["box_clipped", "box_clipped"]
    assert built.dropped == [
        BadAnnotation(11, "E-BOX-OUTSIDE", "x 100.0 to 105.0, y 0.0 to 5.0 in 100 x 50"),
        BadAnnotation(13, "E-BOX-EMPTY", "width 1e-06 and height 5.0 vanish in float32"),
    ]


def test_the_estimated_size_is_this_for_ever() -> None:
    # It fixes the number of shards: 541 + "42" + "dir/a.jpg" + 33 an object + the image.
    layout = DetectionLayout()
    assert layout.record_bytes(sample_of(9, 9)) == 541 + 2 + 9 + 3
    two = sample_of(9, 9, object_at(1, 1, 2, 2), object_at(1, 1, 2, 2))
    assert layout.record_bytes(two) == 541 + 2 + 9 + 66 + 3
    panoptic = Blob("train/panoptic", "a.png", 1000)  # of which three masks are made
    two = msgspec.structs.replace(two, blobs=(*two.blobs, panoptic))
    assert layout.record_bytes(two) == 541 + 2 + 9 + 66 + 3 + 2000
