"""Samples of a split: joined files, filters, one sample per object, and all sums."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.fields import PictureFields, Segmentation, SegmentFields
from beam_tfrec.schemas.manifest import Label, SourceFile
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.transforms.sources.read_coco import CocoRules
from beam_tfrec.transforms.sources.read_samples import SplitTally
from tests.coco_texts import (
    CAPTION,
    PANOPTIC,
    SEGMENT,
    SMALL_OBJECT,
    annotation,
    coco,
    image,
    read_counted,
)

_FIELDS = msgspec.msgpack.Decoder(PictureFields).decode
PLAIN = SMALL_OBJECT[1]


def read(
    *files: bytes, panoptic: bool = False, **rules: Any
) -> tuple[list[Sample], list[Rejected], SplitTally]:
    """Return a split's samples, rejects and summary."""
    sources = [(f"f{n}.json", data) for n, data in enumerate(files)]
    *items, file = read_counted(sources, "dev", CocoRules(**rules), panoptic=panoptic)
    assert isinstance(file, SplitTally)
    samples = [item for item in items if isinstance(item, Sample)]
    rejected = [item for item in items if isinstance(item, Rejected)]
    return samples, rejected, file


def keys(samples: Sequence[Sample]) -> list[str]:
    return [sample.key for sample in samples]


def test_a_sample_joins_all_kinds_of_annotations() -> None:
    entry = image(license=4, neg_category_ids=[3], not_exhaustive_category_ids=[])
    instances = coco([entry, image(2, "b.jpg")], [annotation()])
    person = {"id": 3, "name": "cat", "keypoints": ["nose"]}
    keypoints = coco([image()], [annotation(keypoints=[1, 2, 2])], [person])
    captions = coco([image()], [{**CAPTION, "id": 8, "caption": "Z"}, CAPTION])
    panoptic = coco([image()], [PANOPTIC])
    first: Any = None
    for order in itertools.permutations((instances, keypoints, captions, panoptic)):
        samples, _, file = read(*order, panoptic=True)
        first = first or (samples, file)
        assert (samples, file) == first
    (sample, other), file = first
    assert [(one.key, one.position) for one in (sample, other)] == [("1", 0), ("2", 1)]
    assert sample.blobs == (Blob("dev", "a.jpg"), Blob("dev/panoptic", "a.png"))
    assert other.blobs == (Blob("dev", "b.jpg"),)  # no panoptic annotation, no second blob
    assert sample.annotation_ids == (5, 7, 8, 1)
    assert _FIELDS(sample.fields) == PictureFields(
        width_px=64,
        height_px=48,
        objects=[msgspec.structs.replace(PLAIN, keypoints_px=[1, 2, 2])],
        captions=["A cat.", "Z"],
        segments=[SegmentFields(9, 3, (1.0, 2.0, 3.0, 4.0), 6.0, 0)],
        image_id=1,
        license_id=4,
        negative_category_ids=[3],
    )
    assert _FIELDS(other.fields).segments is None
    assert file.found == ["boxes", "captions", "keypoints", "license", "lvis", "panoptic"]
    assert file.labels == [Label(3, "cat", keypoints=("nose",))]
    assert file.sources == [
        SourceFile("instances", 2, 1, 1),
        SourceFile("keypoints", 1, 1, 1, joined_annotations=1, images_not_listed=1),
        SourceFile("captions", 1, 2, 0, images_not_listed=1),
        SourceFile("panoptic", 1, 1, 1, images_not_listed=1),
    ]


def test_segmentations_are_in_the_payload() -> None:
    square = [0, 0, 4, 0, 4, 4, 0, 4]
    rle = {"size": [48, 64], "counts": [10, 5, 48 * 64 - 15]}
    entries = [
        annotation(5, segmentation=[square, [1, 1]]),
        annotation(4, segmentation=rle),
        annotation(6),
        annotation(7, segmentation={**rle, "counts": [1]}),
    ]
    (plain,), bad, file = read(coco([image()], entries))
    assert (plain.payload, bad, file.repairs) == (b"", [], {})
    (sample,), (bad_one,), file = read(coco([image()], entries), segmentations=True)
    assert msgspec.msgpack.decode(sample.payload, type=list[Segmentation]) == [
        Segmentation(rle_counts=rle["counts"]),
        Segmentation(polygons_px=[list(map(float, square))]),
        Segmentation(),
    ]
    assert (sample.annotation_ids, bad_one.annotation_ids) == ((4, 5, 6), (7,))
    assert bad_one.code == "E-RLE-SUM"
    assert file.repairs == {"polygon_dropped": 1, "segmentation_missing": 1}


REMEDY = "correct the file, or give --orphans drop"
SEGMENTS = {**PANOPTIC, "segments_info": [{**SEGMENT, "category_id": 4}]}
IMAGE, ORPHAN, CATEGORY = "image 1 (a.jpg)", "E-ANN-ORPHAN", "E-ANN-CATEGORY"


@pytest.mark.parametrize(
    ("bad", "where", "code", "key", "detail"),
    [
        (annotation(image_id=99), "f1.json", ORPHAN, "", "image_id 99 is not in images"),
        (annotation(category_id=2), IMAGE, CATEGORY, "1", "category_id 2 is not in categories"),
        (SEGMENTS, IMAGE, CATEGORY, "1", "segment 9: category_id 4 is not in categories"),
    ],
)
def test_orphans_stop_the_run_unless_they_are_dropped(
    bad: dict, where: str, code: str, key: str, detail: str
) -> None:
    panoptic, bad_id = bad is SEGMENTS, bad.get("id", 1)  # else its image's
    files = coco([image()], [annotation(6)]), coco([image(), image(2, "b.jpg")], [bad])
    with pytest.raises(RuntimeError) as raised:
        read(*files, panoptic=panoptic)
    assert str(raised.value) == f"{code} {where}: annotation {bad_id}: {detail}; {REMEDY}"
    (sample, _), (found,), _ = read(*files, panoptic=panoptic, drop_orphans=True)
    assert (sample.annotation_ids, len(sample.blobs)) == ((6,), 1)
    assert (found.code, found.key, found.detail) == (code, key, detail)
    assert found.annotation_ids == (bad_id,)


def test_unknown_categories_in_lvis_lists_stop_the_run_or_are_dropped() -> None:
    data = coco([image(neg_category_ids=[4, 3], not_exhaustive_category_ids=[9])], [])
    with pytest.raises(RuntimeError) as raised:
        read(data)
    what = "neg_category_ids has 4, which is not in categories"
    assert str(raised.value) == f"E-ANN-CATEGORY image 1 (a.jpg): {what}; {REMEDY}"
    (sample,), _, file = read(data, drop_orphans=True)
    fields = _FIELDS(sample.fields)
    assert (fields.negative_category_ids, fields.not_exhaustive_category_ids) == ([3], [])
    assert file.repairs == {"unknown_category_dropped": 2}


ONE = coco([image()], [annotation()])
ARG = "E-ARG split dev: "


@pytest.mark.parametrize(
    ("files", "given", "what"),
    [
        ([ONE, ONE], {}, "E-ANN-JOIN f1.json: has the bytes of f0.json; give one of them"),
        (
            [coco([image()], [PANOPTIC])],
            {},
            f"{ARG}a panoptic file, and no folder of its PNGs; give --panoptic_images",
        ),
        (
            [ONE],
            {"panoptic": True},
            f"{ARG}a folder of panoptic PNGs, and no panoptic file; give it in --annotations",
        ),
        (
            [ONE, coco([image()], [CAPTION])],
            {"per_annotation": True},
            f"{ARG}a captions file, for which records of one object each have no place;"
            " leave it out, or give another --layout",
        ),
    ],
)
def test_files_must_fit_the_options(files: list, given: dict, what: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        read(*files, **given)
    assert str(raised.value) == what


IMAGES = [
    image(1, "a.jpg", license=4),
    image(2, "b.jpg", license=5),
    image(3, "c.jpg"),
    image(4, "d.jpg", license=4),
]
OBJECTS = [
    annotation(10, image_id=1),
    annotation(11, image_id=1, iscrowd=1),
    annotation(12, image_id=2, bbox=[0, 0, 2, 40]),
    annotation(13, image_id=2, bbox=[0, 0, 0, 40]),  # bad, whatever the filters
    annotation(14, image_id=3, bbox=[0, 0, 40, 40], iscrowd=1),
]
FILTERED = coco(IMAGES, OBJECTS)
FILTERS: dict[str, tuple[dict, list[str], dict, dict]] = {
    "none": ({}, ["1", "2", "3", "4"], {}, {}),
    "licenses": ({"licenses": (4,)}, ["1", "4"], {"license": 2}, {"license": 3}),
    "crowd": ({"skip_crowd": True}, ["1", "2", "3", "4"], {}, {"crowd": 2}),
    "small": ({"min_box_px": 3}, ["1", "2", "3", "4"], {}, {"small_box": 1}),
    "unannotated": ({"skip_unannotated": True}, ["1", "2", "3"], {"unannotated": 1}, {}),
    "unannotated after others": (
        {"skip_unannotated": True, "skip_crowd": True, "min_box_px": 3},
        ["1"],
        {"unannotated": 3},
        {"crowd": 2, "small_box": 1},
    ),
}


@pytest.mark.parametrize(("rules", "left", "images", "annotations"), FILTERS.values(), ids=FILTERS)
def test_filters_are_counted(rules: dict, left: list, images: dict, annotations: dict) -> None:
    samples, _, file = read(FILTERED, **rules)
    assert (keys(samples), file.skipped, file.skipped_annotations) == (left, images, annotations)


def test_captions_annotate_an_image_only_without_object_files() -> None:
    captions = coco(IMAGES, [{**CAPTION, "image_id": 4}])
    samples, _, file = read(FILTERED, captions, skip_unannotated=True)
    assert keys(samples) == ["1", "2", "3"]
    assert file.skipped_annotations == {"unannotated": 1}  # the caption
    samples, _, _ = read(captions, skip_unannotated=True)  # without objects any annotation counts
    assert keys(samples) == ["4"]


@pytest.mark.parametrize("side_px", [-1.0, float("nan")])
def test_min_box_px_must_be_a_length(side_px: float) -> None:
    what = f"^min_box_px must be at least 0, got {side_px}: give 0 or more$"
    with pytest.raises(ValueError, match=what):
        CocoRules(min_box_px=side_px)


def test_one_sample_per_object() -> None:
    data = coco(
        [image(1), image(2, "b.jpg"), image(3, "c.jpg")],
        [
            annotation(11),
            annotation(12, image_id=3, bbox=[64, 0, 5, 5]),  # outside
            annotation(13, image_id=3, bbox=[0, 0, 0, 5]),
            annotation(14, image_id=3),
            annotation(10),
        ],
    )
    samples, rejected, file = read(data, per_annotation=True)
    assert [(s.key, s.position, s.annotation_ids, s.blobs[0].name) for s in samples] == [
        ("10", 4, (10,), "a.jpg"),
        ("11", 0, (11,), "a.jpg"),
        ("14", 3, (14,), "c.jpg"),
    ]
    fields = [_FIELDS(sample.fields) for sample in samples]
    assert [(f.image_id, f.objects) for f in fields] == [(n, [PLAIN]) for n in (1, 1, 3)]
    assert [(r.code, r.key, r.annotation_ids) for r in rejected] == [
        ("E-BOX-EMPTY", "13", (13,)),
        ("E-BOX-OUTSIDE", "12", (12,)),
    ]
    assert (file.images, file.listed, file.images_without_samples) == (3, 3, 1)


def test_objects_outside_do_not_annotate_an_image() -> None:
    """Unless only the image file knows its size."""
    data = coco(
        [image(), image(2, "b.jpg")],
        [annotation(bbox=[64, 0, 5, 5]), annotation(6, image_id=2, bbox=[63, 0, 5, 5])],
    )
    samples, _, file = read(data, skip_unannotated=True)
    assert (keys(samples), file.skipped) == (["2"], {"unannotated": 1})
    assert file.skipped_annotations == {"unannotated": 1}
    for per_annotation, left in ((False, ["1", "2"]), (True, ["5", "6"])):
        rules: dict = {"per_annotation": per_annotation, "annotated_size": False}
        samples, rejected, _ = read(data, skip_unannotated=True, **rules)
        assert (keys(samples), rejected) == (left, [])


@pytest.mark.parametrize(("per_annotation", "name"), [(False, "a.jpg"), (True, "b.jpg")])
def test_rejects_of_another_layout_are_refused(per_annotation: bool, name: str) -> None:
    """Key 5 is an annotation in one layout, and an image in the other, with another file."""
    data = coco([image(), image(5, "b.jpg")], [annotation()])
    rules = CocoRules(per_annotation=per_annotation)
    with pytest.raises(RuntimeError, match=f"^E-ARG sample 5 of dev: .*'{name}'"):
        read_counted([("f.json", data)], "dev", rules, {"dev": {"5": name}})
