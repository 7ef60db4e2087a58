"""Real files that bend the format: no areas, LVIS, licenses of all kinds."""

from typing import Any

import pytest

from schemas.annotations.coco_file import name_of_url
from schemas.annotations.coco_join import license_of
from schemas.fields import Segmentation
from tests.coco_texts import annotated, annotation, coco, image, join, refused

SQUARE = [0, 0, 4, 0, 4, 4, 0, 4]
RLE = {"size": [48, 64], "counts": [10, 5, 48 * 64 - 15]}
NO_AREA = {
    "no segmentation": ({}, 12.0),
    "null": ({"area": None, "segmentation": None}, 12.0),
    "a polygon": ({"segmentation": [SQUARE]}, 16.0),
    "two polygons": ({"segmentation": [SQUARE, [9, 9, 11, 9, 11, 12, 9, 12]]}, 22.0),
    "a second polygon of two points": ({"segmentation": [SQUARE, [1, 1, 2, 2]]}, 16.0),
    "no polygon": ({"segmentation": []}, 12.0),
    "a polygon without area": ({"segmentation": [[1, 1, 2, 2, 3, 3]]}, 12.0),
    "an RLE": ({"segmentation": RLE}, 5.0),
    "an RLE of the wrong sum": ({"segmentation": {**RLE, "counts": [10, 5]}}, 12.0),
    "neither": ({"segmentation": "x"}, 12.0),
}


@pytest.mark.parametrize(("fields", "area_px2"), NO_AREA.values(), ids=NO_AREA)
def test_a_missing_area_is_computed(fields: dict, area_px2: float) -> None:
    """By the segmentation where that is valid, else by the box; nothing else changes."""
    entry = {"id": 5, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], **fields}
    (found,) = annotated(coco([image()], [entry, annotation(6)]))
    assert [(i, o.area_px2) for i, o in found.objects] == [(5, area_px2), (6, 9.5)]
    assert (found.bad, found.segmentations) == ([], ())


def test_segmentations_are_read_on_request() -> None:
    entries = [
        annotation(5, segmentation=[SQUARE, [1, 1]]),
        annotation(4, segmentation=RLE),
        annotation(6),
        annotation(7, segmentation={**RLE, "counts": [1]}),
    ]
    joined = join(coco([image()], entries), segmentations=True)
    (found,) = joined.annotated_images()
    assert [annotation_id for annotation_id, _ in found.objects] == [4, 5, 6]
    assert found.segmentations == [
        Segmentation(rle_counts=RLE["counts"]),
        Segmentation(polygons_px=[[float(v) for v in SQUARE]]),
        Segmentation(),
    ]
    assert [(bad.annotation_id, bad.code) for bad in found.bad] == [(7, "E-RLE-SUM")]
    assert joined.repairs == {"polygon_dropped": 1, "segmentation_missing": 1}


# --- LVIS ---


def test_lvis_images_are_named_by_their_url() -> None:
    url = "http://images.cocodataset.org/train2017/000000391895.jpg"
    entry = {"id": 1, "width": 64, "height": 48, "coco_url": url}
    lists = {"neg_category_ids": [3], "not_exhaustive_category_ids": [3, 3]}
    joined = join(coco([{**entry, **lists}], []))
    (found,) = joined.images
    assert found.file_name == "train2017/000000391895.jpg"
    assert (found.neg_category_ids, found.not_exhaustive_category_ids) == ([3], [3, 3])
    assert joined.found == ["boxes", "lvis"]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://host/a/b/c.jpg", "b/c.jpg"),
        ("http://host/c.jpg", "c.jpg"),
        ("http://host", ""),
        ("http://host/a/../c.jpg", "../c.jpg"),  # which no root has
    ],
)
def test_the_last_two_components_of_a_url(url: str, name: str) -> None:
    assert name_of_url(url) == name


def test_a_url_that_climbs_is_refused() -> None:
    entry = {"id": 1, "width": 64, "height": 48, "coco_url": "http://host/a/../c.jpg"}
    what = "$.images[0] (id 1): file_name '../c.jpg' climbs out of the image root"
    line = f"E-ANN-PATH f.json: {what}; give names relative to --images"
    refused(coco([entry], []), line)


# --- licenses, and unread fields ---


LICENSES = [(4, 4), (4.0, 4), (None, None), ("CC BY", None), (4.5, None), ([4], None), (0, 0)]


@pytest.mark.parametrize(("given_as", "license_id"), [*LICENSES, (10**400, None), (2**60, None)])
def test_a_license_is_a_whole_number_or_nothing(given_as: Any, license_id: int | None) -> None:
    joined = join(coco([image(license=given_as)], []))
    assert [license_of(found) for found in joined.images] == [license_id]
    assert ("license" in joined.found) == (license_id is not None)


def test_null_in_unread_fields_is_accepted() -> None:
    """As in TACO."""
    entry = image(license=None, coco_url=None, flickr_url=None, date_captured=None)
    assert len(annotated(coco([entry], []))) == 1
