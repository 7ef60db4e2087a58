"""Turn annotation entries into the objects and panoptic segments of samples."""

import functools
import itertools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from beam_tfrec.schemas.annotations.coco_file import (
    NOTHING,
    CocoImage,
    CocoInstance,
    CocoObject,
    CocoSegment,
)
from beam_tfrec.schemas.faults import Reason
from beam_tfrec.schemas.fields import BadAnnotation, ObjectFields, Segmentation, SegmentFields
from beam_tfrec.schemas.geometry.boxes import MAX_AREA_PX2, BBoxXywhPx, check_bbox

_Length = Annotated[float, msgspec.Meta(gt=0)]
_DECODE_BBOX = msgspec.json.Decoder(tuple[float, float, _Length, _Length]).decode  # all finite

_DECODE_KEYPOINTS = msgspec.json.Decoder(list[float] | None).decode

_VISIBILITIES = {0.0, 1.0, 2.0}

MAX_OUTLINE_PX = 1 << 20
"""Longest outline that is drawn, and largest distance of a coordinate from 0."""

_MAX_CHARS_PER_COUNT = 13  # 64 bits, 5 bits a character

_EMPTY = Segmentation()


class _Rle(msgspec.Struct, gc=False):
    size: list[int]
    counts: str | list[int]


_DECODE = msgspec.json.Decoder(list[list[float]] | _Rle | None).decode


class OpenedObject(NamedTuple):
    """An annotation's id, its object, and its segmentation, which is empty if not requested."""

    annotation_id: int | str
    fields: ObjectFields
    segmentation: Segmentation


class ObjectOpener:
    """Decodes the slices of annotation entries.

    Attributes:
        repairs: counts of repairs since the last `clear`: `area_replaced`, `crowd_replaced`,
            `keypoints_dropped`, and those of `parse_segmentation`.
    """

    def __init__(self, num_keypoints: Mapping[Any, int]) -> None:
        """Take the number of keypoints per category; 0 if they have no names."""
        self.repairs: Counter[str] = Counter()
        self._num_keypoints = num_keypoints

    def open_all(
        self, instances: Iterable[CocoInstance], image: CocoImage, *, segmentations: bool
    ) -> tuple[list[OpenedObject], list[BadAnnotation]]:
        """Return the objects of an image's annotations, in their order, and the bad annotations.

        Args:
            instances: annotations of one image.
            image: the image.
            segmentations: parse segmentations too; an object with a bad one is dropped.
        """
        objects: list[OpenedObject] = []
        bad: list[BadAnnotation] = []
        for instance in instances:
            fields = self._open(instance, instance.keypoints, image)
            if not isinstance(fields, ObjectFields):
                bad.append(BadAnnotation(instance.id, *fields))
                continue
            outline: Segmentation | Reason = _EMPTY
            if segmentations:
                size_px = image.width, image.height
                outline = parse_segmentation(instance.segmentation, *size_px, self.repairs)
            if isinstance(outline, Segmentation):
                objects.append(OpenedObject(instance.id, fields, outline))
            else:
                bad.append(BadAnnotation(instance.id, *outline))
        return objects, bad

    def open_segments(
        self, segments: Iterable[CocoSegment], image: CocoImage, stuff: Collection[int]
    ) -> list[SegmentFields] | Reason:
        """Return the segments of a panoptic image, or the fault of one of them.

        They stay in the file's order, because panoptic masks number instances by it.

        Args:
            segments: entries of the file.
            image: the image.
            stuff: ids of categories that are stuff.
        """
        opened: list[SegmentFields] = []
        for segment in segments:
            found = self._open(segment, NOTHING, image)
            if not isinstance(found, ObjectFields):
                code, detail = found
                return code, f"segment {segment.id}: {detail}"
            box, area, crowd = found.bbox_xywh_px, found.area_px2, found.is_crowd
            is_thing = int(segment.category_id not in stuff)
            fields = SegmentFields(segment.id, segment.category_id, box, area, crowd, is_thing)
            opened.append(fields)
        return opened

    def _open(
        self, entry: CocoObject, keypoints: msgspec.Raw, image: CocoImage
    ) -> ObjectFields | Reason:
        """Return the object of an annotation, or its fault."""
        category_id = entry.category_id
        if category_id not in self._num_keypoints:
            return "E-ANN-CATEGORY", f"category_id {category_id} is not in categories"
        try:
            bbox = _DECODE_BBOX(entry.bbox)
        except ValueError:
            return _bbox_fault(entry.bbox)
        if entry.iscrowd not in (0, 1):
            self.repairs["crowd_replaced"] += 1
        area = entry.area
        if area is not None and not 0 <= area <= MAX_AREA_PX2:
            self.repairs["area_replaced"] += 1
            area = None
        if area is None:
            outline = parse_segmentation(entry.segmentation, image.width, image.height, Counter())
            area = area_px2(outline, bbox)
        points: list[float] = []
        if keypoints is not NOTHING:
            points = self._open_keypoints(keypoints, self._num_keypoints[category_id])
        return ObjectFields(category_id, bbox, area, 1 if entry.iscrowd else 0, points)

    def _open_keypoints(self, raw: msgspec.Raw, count: int) -> list[float]:
        """Return keypoints, or none if they do not fit the category."""
        try:
            points = _DECODE_KEYPOINTS(raw) or []
        except ValueError:
            points = [float("nan")]
        if points and not (len(points) == 3 * count and _VISIBILITIES.issuperset(points[2::3])):
            self.repairs["keypoints_dropped"] += 1
            return []
        return points


def area_px2(outline: Segmentation | Reason, bbox_xywh_px: BBoxXywhPx) -> float:
    """Return an object's area by its segmentation, or by its box without a usable one.

    >>> square = Segmentation(polygons_px=[[0.0, 0.0, 4.0, 0.0, 4.0, 4.0, 0.0, 4.0]])
    >>> area_px2(square, (0.0, 0.0, 9.0, 9.0))
    16.0
    >>> area_px2(("E-RLE-SUM", "counts sum to 3"), (0.0, 0.0, 9.0, 9.0))
    81.0
    >>> area_px2(Segmentation(), (0.0, 0.0, 1e200, 1e200)) == MAX_AREA_PX2
    True
    """
    if isinstance(outline, Segmentation) and outline:
        area = sum_in_order(map(polygon_area_px2, outline.polygons_px))
        return area + sum(outline.rle_counts[1::2])
    return min(bbox_xywh_px[2] * bbox_xywh_px[3], MAX_AREA_PX2)


def _bbox_fault(raw: msgspec.Raw) -> Reason:
    """Return the fault of an invalid bbox."""
    try:
        fault = check_bbox(msgspec.json.decode(raw))
    except msgspec.ValidationError:
        return "E-BOX-NOT-FINITE", "bbox holds a number that is not finite"
    except (ValueError, RecursionError):  # Invalid UTF-8, or far too many brackets.
        fault = None
    return fault or ("E-BOX-SHAPE", "bbox is not four numbers")


def parse_segmentation(
    raw: bytes | msgspec.Raw, width_px: int, height_px: int, repairs: Counter[str]
) -> Segmentation | Reason:
    """Return an annotation's segmentation, or its fault.

    Args:
        raw: JSON of the segmentation; empty for none.
        width_px: width of the annotation's image, by the annotation file.
        height_px: height of that image.
        repairs: counter of repairs. `polygon_dropped` counts polygons with an odd number of
            coordinates, fewer than three points, no area, or too large to be drawn.
            `segmentation_empty` counts segmentations without a pixel, `segmentation_missing`
            annotations without a segmentation.

    >>> repairs = Counter()
    >>> parse_segmentation(b"[[0,0,2,0,2,2],[1,1]]", 4, 4, repairs), repairs
    (Segmentation(polygons_px=[[0.0, 0.0, 2.0, 0.0, 2.0, 2.0]], rle_counts=[]), \
Counter({'polygon_dropped': 1}))
    >>> parse_segmentation(b'{"size":[4,3],"counts":[6,5]}', 3, 4, repairs)
    ('E-RLE-SUM', 'counts sum to 11, 4 x 3 are 12 px')
    """
    try:
        found = _DECODE(raw) if memoryview(raw) else None
    except ValueError as error:  # Another type, invalid JSON or invalid UTF-8.
        return "E-SEG-SHAPE", str(error)
    if found is None:
        repairs["segmentation_missing"] += 1
        return _EMPTY
    if isinstance(found, _Rle):
        parsed = _parse_rle(found, width_px, height_px)
    else:
        parsed = Segmentation(polygons_px=[polygon for polygon in found if _has_area(polygon)])
        repairs.update(["polygon_dropped"] * (len(found) - len(parsed.polygons_px)))
    if not parsed:
        repairs["segmentation_empty"] += 1
    return parsed


def polygon_area_px2(polygon_px: Sequence[float]) -> float:
    """Return the area inside a polygon `[x0, y0, x1, y1, ...]` by the shoelace formula.

    Coordinates are taken relative to the first point, so equal points have an area of exactly 0.
    Parts with the opposite orientation are subtracted.

    >>> polygon_area_px2([1.0, 1.0, 4.0, 1.0, 4.0, 3.0, 1.0, 3.0])
    6.0
    """
    x0, y0 = polygon_px[0], polygon_px[1]
    xs = [x - x0 for x in polygon_px[0::2]]
    ys = [y - y0 for y in polygon_px[1::2]]
    down = sum_in_order(map(operator.mul, xs, ys[1:]))
    up = sum_in_order(map(operator.mul, xs[1:], ys))
    return abs(down - up) / 2.0


def sum_in_order(values: Iterable[float]) -> float:
    """Return the sum, rounded after each value. From Python 3.12 on, `sum` rounds differently.

    >>> sum_in_order([1e16, 1.0, 1.0])
    1e+16
    """
    return functools.reduce(operator.add, values, 0.0)


def outline_px(polygon_px: Sequence[float]) -> float:
    """Return the cost of drawing a polygon: the larger of dx and dy, summed over its edges.

    >>> outline_px([0.0, 0.0, 3.0, 4.0, 0.0, 4.0])
    11.0
    """
    xs, ys = polygon_px[0::2], polygon_px[1::2]
    turns = itertools.pairwise(zip([*xs, xs[0]], [*ys, ys[0]], strict=True))
    return sum_in_order(max(abs(x1 - x0), abs(y1 - y0)) for (x0, y0), (x1, y1) in turns)


def is_drawable(polygon_px: Sequence[float]) -> bool:
    """Return whether drawing a polygon of finite coordinates costs a bounded time and memory."""
    farthest = max(max(polygon_px), -min(polygon_px))
    if farthest * len(polygon_px) <= MAX_OUTLINE_PX:  # Every edge is at most 2 * farthest.
        return True
    return farthest <= MAX_OUTLINE_PX and outline_px(polygon_px) <= MAX_OUTLINE_PX


def decode_rle_counts(text: str) -> list[int] | Reason:
    """Return the run lengths of a compressed RLE, or (code, detail); source: `rleFrString`.

    A count is a signed number with 5 bits a character, lowest bits first. A sixth bit says that
    more characters follow. From the fourth count on, it is the difference to the count two before.

    >>> decode_rle_counts("06o0O")
    [0, 6, 31, 5]
    """
    counts: list[int] = []
    value = shift = 0
    for char in text:
        if not "0" <= char <= "o" or shift == 5 * _MAX_CHARS_PER_COUNT:
            return "E-RLE-CHARS", f"character {char!r} of count {len(counts)} does not fit there"
        bits = ord(char) - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        if len(counts) > 2:
            value += counts[-2]
        counts.append(value)
        value = shift = 0
    if shift:
        return "E-RLE-CHARS", f"the text ends within count {len(counts)}"
    return counts


def _has_area(polygon: list[float]) -> bool:
    is_one = len(polygon) >= 6 and not len(polygon) % 2
    return is_one and is_drawable(polygon) and polygon_area_px2(polygon) > 0.0


def _parse_rle(rle: _Rle, width_px: int, height_px: int) -> Segmentation | Reason:
    if rle.size != [height_px, width_px]:
        return "E-RLE-SIZE", f"size is {rle.size}, the image's is [{height_px}, {width_px}]"
    counts = decode_rle_counts(rle.counts) if isinstance(rle.counts, str) else rle.counts
    if isinstance(counts, tuple):
        return counts
    if min(counts, default=0) < 0:
        return "E-RLE-SUM", f"count {counts.index(min(counts))} is {min(counts)}"
    total = sum(counts)
    if total != width_px * height_px:
        pixels = f"{height_px} x {width_px} are {width_px * height_px} px"
        return "E-RLE-SUM", f"counts sum to {total}, {pixels}"
    return Segmentation(rle_counts=counts if any(counts[1::2]) else [])
