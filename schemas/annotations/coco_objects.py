"""From an annotation's entry to what a sample carries: objects, captions, panoptic segments."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from schemas.annotations.coco_types import (
    NOTHING,
    CocoImage,
    CocoInstance,
    CocoOutlined,
    CocoSegment,
    Int64,
)
from schemas.annotations.json_sections import mend_numbers
from schemas.annotations.segmentations import (
    ParsedSegmentation,
    parse_segmentation,
    polygon_area_px2,
    sum_in_order,
)
from schemas.fields import ObjectFields, Segmentation, SegmentFields
from schemas.geometry.boxes import BBoxXywhPx, check_bbox

_DECODE_BBOX = msgspec.json.Decoder(BBoxXywhPx).decode  # a JSON number is finite, or refused
_DECODE_KEYPOINTS = msgspec.json.Decoder(list[float] | None).decode
_DECODE_SEGMENTS = msgspec.json.Decoder(list[CocoSegment[Int64]]).decode
_VISIBILITIES = {0.0, 1.0, 2.0}


class ObjectOpener:
    """Opens what an annotation file holds as slices.

    Attributes:
        repairs: what was mended so far, with counts: `area_replaced`, `crowd_replaced`,
            `keypoints_dropped`, and what `parse_segmentation` mends.
    """

    def __init__(self, num_keypoints: Mapping[Any, int]) -> None:
        """Take the number of keypoints per category; 0 where they have no names."""
        self.repairs: Counter[str] = Counter()
        self._num_keypoints = num_keypoints

    def open(
        self, instance: CocoInstance, keypoints: msgspec.Raw, image: CocoImage
    ) -> ObjectFields | tuple[str, str]:
        """Return the object of an annotation, or (code, detail) of why there is none."""
        category_id = instance.category_id
        if category_id not in self._num_keypoints:
            return unknown_category(category_id)
        try:
            bbox = _DECODE_BBOX(instance.bbox)
        except msgspec.ValidationError:
            return bbox_fault(instance.bbox)
        if not (bbox[2] > 0 and bbox[3] > 0):
            return bbox_fault(instance.bbox)
        area = _not_negative(instance.area, self.repairs)
        if area is None:
            area = area_px2(_parse_segmentation(instance, image), bbox)
        crowd = _crowd_of(instance.iscrowd, self.repairs)
        if keypoints is NOTHING:
            return ObjectFields(category_id, bbox, area, crowd)
        points = self._open_keypoints(keypoints, category_id)
        return ObjectFields(category_id, bbox, area, crowd, points)

    def open_segmentation(
        self, instance: CocoInstance, image: CocoImage
    ) -> Segmentation | tuple[str, str]:
        """Return where an object's pixels are, or (code, detail) of why that cannot be said."""
        parsed = _parse_segmentation(instance, image)
        if not isinstance(parsed, ParsedSegmentation):
            return parsed
        self.repairs.update(parsed.repairs)
        return parsed.segmentation

    def _open_keypoints(self, raw: msgspec.Raw, category_id: int) -> list[float]:
        """Return keypoints; none where they are not what the category asks for."""
        try:
            points = _DECODE_KEYPOINTS(raw) or []
        except msgspec.ValidationError:
            points = [float("nan")]
        right_length = len(points) == 3 * self._num_keypoints[category_id]
        if points and not (right_length and _VISIBILITIES.issuperset(points[2::3])):
            self.repairs["keypoints_dropped"] += 1
            return []
        return points


def area_px2(segmentation: Any, bbox_xywh_px: BBoxXywhPx) -> float:
    """Return an object's area by its segmentation, or by its box where that says nothing.

    >>> square = Segmentation(polygons_px=[[0.0, 0.0, 4.0, 0.0, 4.0, 4.0, 0.0, 4.0]])
    >>> area_px2(ParsedSegmentation(square, []), (0.0, 0.0, 9.0, 9.0))
    16.0
    >>> area_px2(("E-RLE-SUM", "counts sum to 3"), (0.0, 0.0, 9.0, 9.0))
    81.0
    """
    if isinstance(segmentation, ParsedSegmentation):
        polygons, runs = segmentation.segmentation.polygons_px, segmentation.segmentation.rle_counts
        if polygons or runs:
            return sum_in_order(map(polygon_area_px2, polygons)) + sum(runs[1::2])
    return bbox_xywh_px[2] * bbox_xywh_px[3]


class PanopticImage(NamedTuple):
    """A panoptic annotation: the name of its PNG, as `blob_name` gives it, and its segments."""

    file_name: str
    segments: list[SegmentFields]


def decode_segments(raw: msgspec.Raw) -> list[CocoSegment]:
    """Return the entries of `segments_info`.

    Raises:
        msgspec.ValidationError: when one has a wrong type.
    """
    try:
        return _DECODE_SEGMENTS(raw)
    except msgspec.ValidationError:
        return _DECODE_SEGMENTS(mend_numbers(raw))


def open_segments(
    segments: list[CocoSegment],
    num_keypoints: Mapping[int, int],
    stuff: Collection[int],
    repairs: Counter[str],
) -> list[SegmentFields] | tuple[str, str]:
    """Return the segments of a panoptic image, or (code, detail) of why there are none.

    They stay in the file's order, by which panoptic masks number instances.

    Args:
        segments: as the file has them.
        num_keypoints: by the ids of all categories.
        stuff: ids of categories that are no things.
        repairs: where `area_replaced` and `crowd_replaced` are counted.
    """
    opened: list[SegmentFields] = []
    for segment in segments:
        if segment.category_id not in num_keypoints:
            code, detail = unknown_category(segment.category_id)
            return code, f"segment {segment.id}: {detail}"
        try:
            bbox = _DECODE_BBOX(segment.bbox)
        except msgspec.ValidationError:
            bbox = (0.0, 0.0, 0.0, 0.0)
        if not (bbox[2] > 0 and bbox[3] > 0):
            code, detail = bbox_fault(segment.bbox)
            return code, f"segment {segment.id}: {detail}"
        area = _not_negative(segment.area, repairs)
        area = bbox[2] * bbox[3] if area is None else area
        crowd = _crowd_of(segment.iscrowd, repairs)
        category_id, is_thing = segment.category_id, int(segment.category_id not in stuff)
        opened.append(SegmentFields(segment.id, category_id, bbox, area, crowd, is_thing))
    return opened


def _not_negative(area: float | None, repairs: Counter[str]) -> float | None:
    """Return an annotated area; None, counted, where it is below 0."""
    if area is None or area >= 0:
        return area
    repairs["area_replaced"] += 1
    return None


def _crowd_of(iscrowd: int, repairs: Counter[str]) -> int:
    """Return 0 or 1; any other number counts as 1, and is counted."""
    if iscrowd not in (0, 1):
        repairs["crowd_replaced"] += 1
    return int(bool(iscrowd))


def unknown_category(category_id: int) -> tuple[str, str]:
    """Return (code, detail) of an annotation of a category that there is not."""
    return "E-ANN-CATEGORY", f"category_id {category_id} is not in categories"


def _parse_segmentation(
    instance: CocoInstance, image: CocoImage
) -> ParsedSegmentation | tuple[str, str]:
    raw = instance.segmentation if isinstance(instance, CocoOutlined) else NOTHING
    return parse_segmentation(raw, image.width, image.height)


def bbox_fault(raw: msgspec.Raw) -> tuple[str, str]:
    """Return (code, detail) of what is wrong with the JSON of a bbox that is no box."""
    try:
        bbox = msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return "E-BOX-NOT-FINITE", "bbox holds a number that is not finite"
    return check_bbox(bbox) or ("E-BOX-SHAPE", "bbox is not four numbers")
