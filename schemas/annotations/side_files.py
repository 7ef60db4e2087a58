"""Side files: one JSON file per image. Their objects become COCO entries."""

import enum
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from beam_tfrec.schemas.annotations.coco_file import NOTHING, CocoInstance, Int64, PositiveInt
from beam_tfrec.schemas.fields import BadAnnotation

_UTF8_BOM = b"\xef\xbb\xbf"

_CIRCLE_CORNERS = 64

# Rounded, since libraries differ in the last bit of a cosine.
_CIRCLE = tuple(
    (round(math.cos(angle), 12), round(math.sin(angle), 12))
    for angle in (2 * math.pi * corner / _CIRCLE_CORNERS for corner in range(_CIRCLE_CORNERS))
)

_SidePx = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]

_PointPx = tuple[float, float]

CLASS_NAME = "object"
"""Class of all objects of SA-1B, which names none."""

T = TypeVar("T")


_ABSENT = object()
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class _LabelmeFile(msgspec.Struct, gc=False):
    shapes: list[msgspec.Raw]
    width_px: _SidePx | None = msgspec.field(name="imageWidth", default=None)
    height_px: _SidePx | None = msgspec.field(name="imageHeight", default=None)


class _Shape(msgspec.Struct, gc=False):
    label: str
    points: list[_PointPx]
    shape_type: str | None = None
    group_id: int | str | None = None


class _Image(msgspec.Struct, gc=False):
    width: PositiveInt
    height: PositiveInt


class _Sa1bFile(msgspec.Struct, gc=False):
    image: _Image
    annotations: list[msgspec.Raw]


class _Annotation(msgspec.Struct, gc=False):
    id: Int64
    bbox: msgspec.Raw = msgspec.Raw(b"null")
    area: float | None = None
    segmentation: msgspec.Raw = NOTHING


class SideFormat(enum.Enum):
    """Format of a side file."""

    LABELME = "labelme"
    SA1B = "sa1b"


class SideFile(NamedTuple):
    """Content of a side file.

    Attributes:
        width_px: image width; 0 if missing.
        height_px: image height; 0 if missing.
        entries: objects as COCO entries, sorted by id; their category is the class's name.
        bad: entries that cannot be objects, with the reasons.
        attributes: attributes of objects, by their ids; empty if no object has any.
        repairs: counts of repairs, by name.
        num_keypoints: number of keypoints of an object; 0 for a format without them.
    """

    width_px: int
    height_px: int
    entries: Sequence[CocoInstance]
    bad: list[BadAnnotation]
    attributes: Mapping[int | str, dict[str, int | str]] = {}
    repairs: Mapping[str, int] = {}
    num_keypoints: int = 0


def entry_of(number: int, category: int | str, box: Any, **fields: Any) -> CocoInstance:
    """Return an object as COCO entry.

    Args:
        number: its id.
        category: its class.
        box: COCO's bbox; of another form if the box is bad.
        **fields: other fields of the entry.
    """
    return CocoInstance(id=number, image_id=0, category_id=category, bbox=raw_json(box), **fields)


def side_px(values: Mapping[str, Any], name: str) -> int:
    """Return an image's `width` or `height`; 0 if it is missing.

    >>> side_px({"width": 640.0}, "width")
    640

    Raises:
        ValueError: it is not a whole number of pixels.
    """
    try:
        side = float(values.get(name) or 0)
    except (TypeError, ValueError, OverflowError):
        side = math.nan
    if not 0 <= side < 2**31 or side != int(side):
        raise ValueError(f"{name} must be a number of pixels, got {values[name]!r}")
    return int(side)


def raw_json(value: Any) -> msgspec.Raw:
    """Return a value as JSON, as it would be in a COCO file."""
    return msgspec.Raw(msgspec.json.encode(value))


def decode(data: bytes, kind: type[T]) -> T:
    """Return a decoded file.

    Raises:
        ValueError: it is not JSON in UTF-8, of another type, or has a key twice.
    """
    try:
        data.decode()  # First: decoders do not check the UTF-8 of values that they skip.
        text = data.removeprefix(_UTF8_BOM)
        if repeats_a_key(text, msgspec.json.decode(text)):
            raise ValueError("a key is there twice")
        return msgspec.json.decode(text, type=kind)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start}): save the file as UTF-8") from None
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def repeats_a_key(data: bytes, value: Any) -> bool:
    """Return whether an object in JSON has a key twice.

    Args:
        data: the JSON.
        value: the decoded JSON, with only the last value of each key.

    >>> repeats_a_key(b'{"a": ":"}', {"a": ":"}), repeats_a_key(b'{"a": 1, "a": 2}', {"a": 2})
    (False, True)
    """
    return _STRING.sub(b"", data).count(b":") > _count_keys(value)


def format_of(data: bytes) -> SideFormat:
    """Return the format of a side file by its keys.

    >>> format_of(b'{"version": "5", "shapes": []}')
    <SideFormat.LABELME: 'labelme'>

    Raises:
        ValueError: it is not a JSON object, or its keys are not those of one format.
    """
    sections = decode(data, dict[str, msgspec.Raw])
    is_labelme, is_sa1b = "shapes" in sections, {"image", "annotations"} <= sections.keys()
    if is_labelme and is_sa1b:
        both = "both shapes (LabelMe) and image and annotations (SA-1B)"
        raise ValueError(f"{both}: --format says which")
    if not (is_labelme or is_sa1b):
        raise ValueError("neither shapes (LabelMe) nor image and annotations (SA-1B)")
    return SideFormat.LABELME if is_labelme else SideFormat.SA1B


def value_at(data: bytes, path: str) -> str:
    """Return a value of a JSON object as text; empty for a missing value, null, list or object.

    Args:
        data: the file.
        path: keys, joined by dots.

    >>> value_at(b'{"image": {"file_name": "a.jpg"}}', "image.file_name")
    'a.jpg'
    """
    try:
        value = cells_at(data, [path]).get(path)
    except ValueError:
        return ""
    if value is None or isinstance(value, (dict, list)):
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def cells_at(data: bytes, paths: Collection[str]) -> dict[str, Any]:
    """Return the values at paths of a JSON object, without missing ones.

    >>> cells_at(b'{"a": {"b": [1, 2]}, "c": null}', ["a.b", "c", "d.e"])
    {'a.b': [1, 2], 'c': None}

    Raises:
        ValueError: it is not a JSON object.
    """
    content = decode(data, dict[str, Any])
    cells: dict[str, Any] = {}
    for path in paths:
        found: Any = content
        for key in path.split("."):
            found = found.get(key, _ABSENT) if isinstance(found, dict) else _ABSENT
        if found is not _ABSENT:
            cells[path] = found
    return cells


def parse_side_file(data: bytes, format: SideFormat | None = None) -> SideFile:
    """Return the content of a side file.

    Args:
        data: the file.
        format: the file's format; None to detect it by its keys.

    Raises:
        ValueError: the file cannot be parsed.
    """
    is_labelme = (format or format_of(data)) is SideFormat.LABELME
    return parse_labelme(data) if is_labelme else parse_sa1b(data)


def parse_labelme(data: bytes) -> SideFile:
    """Return the content of a LabelMe file.

    An object's id is the position of its first shape in the file, from 0. Embedded images are
    ignored.

    >>> shape = b'{"label": "a", "points": [[1, 2]], "shape_type": "point"}'
    >>> parse_labelme(b'{"shapes": [' + shape + b"]}").bad
    [BadAnnotation(annotation_id=0, code='E-ANN-SHAPE', detail="shape_type is 'point'")]

    Raises:
        ValueError: the file cannot be parsed.
    """
    file = decode(data, _LabelmeFile)
    objects: dict[object, tuple[int, str, list[list[float]]]] = {}
    bad: list[BadAnnotation] = []
    for place, raw in enumerate(file.shapes):
        try:
            shape = msgspec.json.decode(raw, type=_Shape)
            if not shape.label:
                raise ValueError("label is empty")
            outline = outline_of(shape.shape_type, shape.points)
        except ValueError as error:
            bad.append(BadAnnotation(place, "E-ANN-SHAPE", str(error)))
            continue
        one = place if shape.group_id is None else (shape.label, shape.group_id)
        _, _, outlines = objects.setdefault(one, (place, shape.label, []))
        outlines.append(outline)
    entries = [_outlined(*found) for found in objects.values()]
    return SideFile(file.width_px or 0, file.height_px or 0, entries, bad)


def outline_of(shape_type: str | None, points: Sequence[_PointPx]) -> list[float]:
    """Return a shape as polygon `[x0, y0, x1, y1, ...]`.

    >>> outline_of("rectangle", [(1.0, 2.0), (4.0, 6.0)])
    [1.0, 2.0, 4.0, 2.0, 4.0, 6.0, 1.0, 6.0]
    >>> outline_of("circle", [(5.0, 5.0), (5.0, 7.0)])[:2]
    [7.0, 5.0]

    Raises:
        ValueError: the shape has no area.
    """
    kind = shape_type or "polygon"
    if kind == "rectangle" and len(points) == 2:
        (x0, y0), (x1, y1) = points
        return [x0, y0, x1, y0, x1, y1, x0, y1]
    if kind == "circle" and len(points) == 2:
        (x, y), (edge_x, edge_y) = points
        radius = math.hypot(edge_x - x, edge_y - y)
        return [value for cos, sin in _CIRCLE for value in (x + radius * cos, y + radius * sin)]
    if kind not in ("polygon", "rectangle", "oriented_rectangle", "circle"):
        raise ValueError(f"shape_type is {kind!r}")
    if len(points) < 3 or kind == "circle":
        raise ValueError(f"{kind} of {len(points)} points")
    return [value for point in points for value in point]


def parse_sa1b(data: bytes) -> SideFile:
    """Return the content of an SA-1B file.

    An annotation that cannot be parsed, such as one without an id, is identified by its position,
    as `annotations[0]`.

    Raises:
        ValueError: the file cannot be parsed.
    """
    file = decode(data, _Sa1bFile)
    entries: list[CocoInstance] = []
    bad: list[BadAnnotation] = []
    for place, raw in enumerate(file.annotations):
        try:
            found = msgspec.json.decode(raw, type=_Annotation)
        except ValueError as error:
            bad.append(BadAnnotation(f"annotations[{place}]", "E-ANN-SHAPE", str(error)))
            continue
        fields = msgspec.structs.asdict(found)
        entries.append(CocoInstance(image_id=0, category_id=CLASS_NAME, **fields))
    entries.sort(key=lambda entry: entry.id)
    return SideFile(file.image.width, file.image.height, entries, bad)


def _outlined(place: int, label: str, outlines: list[list[float]]) -> CocoInstance:
    """Return an object as COCO entry; its box encloses its outlines."""
    xs = [x for outline in outlines for x in outline[0::2]]
    ys = [y for outline in outlines for y in outline[1::2]]
    bbox = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    return entry_of(place, label, bbox, segmentation=raw_json(outlines))


def _count_keys(value: Any) -> int:
    if type(value) is dict:
        return len(value) + sum(map(_count_keys, value.values()))
    return sum(map(_count_keys, value)) if type(value) is list else 0
