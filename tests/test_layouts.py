"""The detection layout: features, dropped boxes, size estimates."""

import hashlib
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from schemas.annotations.coco import CocoFile, CocoFiles
from schemas.example import encode_example_parts
from schemas.features import Kind
from schemas.fields import BadAnnotation, EncodedImage, ImageInfo, ObjectFields
from schemas.layouts import Built, labels_by_category
from schemas.layouts.detection import DETECTION, DetectionLayout
from schemas.manifest import Label
from schemas.samples import Blob
from schemas.tfrecord import frame_record
from tests.small_pictures import LABELS, image_of, object_at, sample_of
from transforms.sources.coco_samples import to_sample


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


def test_a_sample_without_objects_has_all_keys() -> None:
    built = DetectionLayout().build(sample_of(100, 50), [image_of(100, 50)], {})
    assert isinstance(built, Built)
    repeated = {f.key: (f.kind, []) for f in DETECTION.features if f.repeated}
    assert {key: built.features[key] for key in repeated} == repeated
    assert len(built.features) == 15
    assert (built.dropped, built.repairs, built.labels) == ([], [], [])


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


def real_records(folder: Path) -> list[tuple[str, int, int]]:
    """Return (name, estimated bytes, real bytes) of the photos of a COCO folder."""
    layout = DetectionLayout()
    file = CocoFile((folder / "annotations" / "instances.json").read_bytes(), "instances.json")
    labels = labels_by_category(Label(entry.id, entry.name) for entry in file.categories)
    records = []
    for position, annotated in enumerate(CocoFiles([file]).annotated_images()):
        (path,) = folder.rglob(annotated.image.file_name)
        data = path.read_bytes()
        with Image.open(path) as picture:
            info = ImageInfo("jpeg", *picture.size)
        sample = to_sample(annotated, "train", position)
        blob = msgspec.structs.replace(sample.blobs[0], size_bytes=len(data))
        sample = msgspec.structs.replace(sample, blobs=(blob,))
        image = EncodedImage(blob.name, data, hashlib.sha256(data).hexdigest(), info)
        built = layout.build(sample, [image], labels)
        assert isinstance(built, Built)
        framed = frame_record(encode_example_parts(built.features))
        records.append((path.name, layout.record_bytes(sample), sum(map(len, framed))))
    return records


def test_the_estimated_size_is_nearly_the_record_s(shared_data: Path) -> None:
    records = real_records(shared_data / "coco_val")
    assert len(records) == 25
    assert [r for r in records if abs(r[1] - r[2]) > 64 + r[2] / 100] == []
    estimated, real = (sum(sizes) for sizes in list(zip(*records, strict=True))[1:])
    assert estimated == pytest.approx(real, rel=0.002)


def test_the_estimated_size_is_this_for_ever() -> None:
    # It fixes the number of shards: 541 + "42" + "dir/a.jpg" + 33 an object + the image.
    layout = DetectionLayout()
    assert layout.record_bytes(sample_of(9, 9)) == 541 + 2 + 9 + 3
    two = sample_of(9, 9, object_at(1, 1, 2, 2), object_at(1, 1, 2, 2))
    assert layout.record_bytes(two) == 541 + 2 + 9 + 66 + 3
    panoptic = Blob("train/panoptic", "a.png", 1000)  # of which three masks are made
    two = msgspec.structs.replace(two, blobs=(*two.blobs, panoptic))
    assert layout.record_bytes(two) == 541 + 2 + 9 + 66 + 3 + 2000
