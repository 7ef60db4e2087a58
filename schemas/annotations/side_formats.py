"""LabelMe's and SA-1B's JSON files, one for each image."""

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

from schemas.annotations.coco_types import NOTHING, CocoOutlined, Int64, PositiveInt
from schemas.annotations.side_files import SideFile, decode
from schemas.fields import BadAnnotation

_CIRCLE_CORNERS = 64
# Rounded, since libraries differ in the last bit of a cosine.
_CIRCLE = tuple(
    (round(math.cos(angle), 12), round(math.sin(angle), 12))
    for angle in (2 * math.pi * corner / _CIRCLE_CORNERS for corner in range(_CIRCLE_CORNERS))
)
_SidePx = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_PointPx = tuple[float, float]


class _LabelmeFile(msgspec.Struct, gc=False):
    shapes: list[msgspec.Raw]
    width_px: _SidePx | None = msgspec.field(name="imageWidth", default=None)
    height_px: _SidePx | None = msgspec.field(name="imageHeight", default=None)


class _Shape(msgspec.Struct, gc=False):
    label: str
    points: list[_PointPx]
    shape_type: str | None = None
    group_id: int | str | None = None


_LABELME_FILES = msgspec.json.Decoder(_LabelmeFile)
_DECODE_SHAPE = msgspec.json.Decoder(_Shape).decode


def parse_labelme(data: bytes) -> SideFile | str:
    """Return what a LabelMe file says, or why it says nothing.

    An object's id is the place of its first shape in the file, from 0. Embedded images are left
    unread.

    >>> shape = b'{"label": "a", "points": [[1, 2]], "shape_type": "point"}'
    >>> parse_labelme(b'{"shapes": [' + shape + b"]}").bad
    [BadAnnotation(annotation_id=0, code='E-ANN-SHAPE', detail="shape_type is 'point'")]
    """
    file = decode(_LABELME_FILES, data, ("shapes",))
    if isinstance(file, str):
        return file
    objects: dict[object, tuple[int, str, list[list[float]]]] = {}
    bad: list[BadAnnotation] = []
    for place, raw in enumerate(file.shapes):
        shape = _open_shape(raw)
        if isinstance(shape, str):
            bad.append(BadAnnotation(place, "E-ANN-SHAPE", shape))
            continue
        label, group, outline = shape
        one = place if group is None else (label, group)
        _, _, outlines = objects.setdefault(one, (place, label, []))
        outlines.append(outline)
    entries = [_entry(*found) for found in objects.values()]
    return SideFile(file.width_px or 0, file.height_px or 0, entries, bad)


def outline_of(shape_type: str | None, points: Sequence[_PointPx]) -> list[float] | str:
    """Return the polygon `[x0, y0, x1, y1, ...]` that a shape is, or why it is none.

    >>> outline_of("rectangle", [(1.0, 2.0), (4.0, 6.0)])
    [1.0, 2.0, 4.0, 2.0, 4.0, 6.0, 1.0, 6.0]
    >>> outline_of("circle", [(5.0, 5.0), (5.0, 7.0)])[:2]
    [7.0, 5.0]
    """
    kind = shape_type or "polygon"
    if kind == "rectangle" and len(points) == 2:
        (x0, y0), (x1, y1) = points
        return [x0, y0, x1, y0, x1, y1, x0, y1]
    if kind == "circle" and len(points) == 2:
        (x, y), (edge_x, edge_y) = points
        radius = math.hypot(edge_x - x, edge_y - y)
        return [value for cos, sin in _CIRCLE for value in (x + radius * cos, y + radius * sin)]
    if kind not in ("polygon", "rectangle", "oriented_rectangle"):
        return f"shape_type is {kind!r}" if kind != "circle" else f"circle of {len(points)} points"
    if len(points) < 3:
        return f"{kind} of {len(points)} points"
    return [value for point in points for value in point]


def _open_shape(raw: msgspec.Raw) -> tuple[str, int | str | None, list[float]] | str:
    """Return a shape's label, its group and its outline, or why it has no area."""
    try:
        shape = _DECODE_SHAPE(raw)
    except ValueError as error:
        return str(error)
    if not shape.label:
        return "label is empty"
    outline = outline_of(shape.shape_type, shape.points)
    return outline if isinstance(outline, str) else (shape.label, shape.group_id, outline)


def _entry(place: int, label: str, outlines: list[list[float]]) -> CocoOutlined:
    """Return an object as COCO has it, its box the one around its outlines."""
    xs = [x for outline in outlines for x in outline[0::2]]
    ys = [y for outline in outlines for y in outline[1::2]]
    bbox = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    return CocoOutlined(
        id=place,
        image_id=0,
        category_id=label,
        bbox=msgspec.Raw(msgspec.json.encode(bbox)),
        segmentation=msgspec.Raw(msgspec.json.encode(outlines)),
    )


CLASS_NAME = "object"
"""The one class of everything that SA-1B outlines."""

_NULL = msgspec.Raw(b"null")


class _Image(msgspec.Struct, gc=False):
    width: PositiveInt
    height: PositiveInt


class _Sa1bFile(msgspec.Struct, gc=False):
    image: _Image
    annotations: list[msgspec.Raw]


class _Annotation(msgspec.Struct, gc=False):
    id: Int64
    bbox: msgspec.Raw = _NULL
    area: float | None = None
    segmentation: msgspec.Raw = NOTHING


_SA1B_FILES = msgspec.json.Decoder(_Sa1bFile)
_DECODE_ANNOTATION = msgspec.json.Decoder(_Annotation).decode


def parse_sa1b(data: bytes) -> SideFile | str:
    """Return what an SA-1B file says, or why it says nothing.

    An annotation without an id is known by its place in the file, from 0, as `annotations[0]`.
    """
    file = decode(_SA1B_FILES, data, ("image", "annotations"))
    if isinstance(file, str):
        return file
    entries: list[CocoOutlined] = []
    bad: list[BadAnnotation] = []
    for place, raw in enumerate(file.annotations):
        try:
            found = _DECODE_ANNOTATION(raw)
        except ValueError as error:
            bad.append(BadAnnotation(f"annotations[{place}]", "E-ANN-SHAPE", str(error)))
            continue
        entries.append(
            CocoOutlined(
                id=found.id,
                image_id=0,
                category_id=CLASS_NAME,
                bbox=found.bbox,
                area=found.area,
                segmentation=found.segmentation,
            )
        )
    entries.sort(key=lambda entry: entry.id)
    return SideFile(file.image.width, file.image.height, entries, bad)
