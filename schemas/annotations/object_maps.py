"""`ObjectMap`: where objects are in JSON of any form or in cells, and what boxes mean."""

import enum
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeGuard

from beam_tfrec.schemas.annotations.coco_file import CocoInstance
from beam_tfrec.schemas.annotations.side_files import SideFile, cells_at, entry_of, side_px
from beam_tfrec.schemas.fields import STORED_FRACTIONS, BadAnnotation

_LIMIT = 2**63  # larger ids and areas have no place in a sample


class BoxFormat(enum.Enum):
    """The four numbers of a box, by KerasCV's names.

    They are in px; with `rel_`, they are fractions of the image as it is stored.
    """

    XYWH = "xywh"
    XYXY = "xyxy"
    YXYX = "yxyx"
    CENTER_XYWH = "center_xywh"
    REL_XYWH = "rel_xywh"
    REL_XYXY = "rel_xyxy"
    REL_YXYX = "rel_yxyx"
    REL_CENTER_XYWH = "rel_center_xywh"

    def to_xywh(self, box: Any) -> Any:
        """Return left edge, top edge, width and height; anything but four numbers unchanged.

        >>> BoxFormat.CENTER_XYWH.to_xywh([5, 5, 4, 2]), BoxFormat.YXYX.to_xywh([1, 2, 4, 6])
        ([3.0, 4.0, 4, 2], [2, 1, 4, 3])
        """
        if not (isinstance(box, list) and len(box) == 4 and all(map(_is_number, box))):
            return box
        a, b, c, d = box
        match self.value.removeprefix("rel_"):
            case "xyxy":
                return [a, b, c - a, d - b]
            case "yxyx":
                return [b, a, d - b, c - a]
            case "center_xywh":
                return [a - c / 2, b - d / 2, c, d]
        return box


class ObjectMap(NamedTuple):
    """Where objects are in JSON of any other format.

    Attributes:
        path: keys of the list of objects, joined by dots; it may also be an object of lists.
        box: key of an object's box.
        label: key of its class, a text or a number.
        box_format: meaning of the box's numbers.
    """

    path: str
    box: str = "bbox"
    label: str = "category"
    box_format: BoxFormat = BoxFormat.XYWH

    @property
    def value(self) -> str:
        """The map as text, as `SideFormat.value` is."""
        return f"{self.path}:{self.box}={self.box_format.value},{self.label}"


NO_OBJECTS = ObjectMap("")


def parse_mapped(data: bytes, objects: ObjectMap) -> SideFile:
    """Return the content of JSON in which a map finds objects.

    >>> side = parse_mapped(b'{"o": {"bbox": [[1, 2, 3, 4]], "category": [7]}}', ObjectMap("o"))
    >>> side.entries[0].category_id, bytes(side.entries[0].bbox)
    ('7', b'[1,2,3,4]')

    Raises:
        ValueError: it is not a JSON object, or has no objects there.
    """
    cells = cells_at(data, [objects.path, "width", "height"])
    if objects.path not in cells:
        raise ValueError(f"nothing at {objects.path!r}")
    return side_file_of(cells, cells[objects.path], objects, _text_of_class)


def side_file_of(
    cells: Mapping[str, Any], objects: Any, names: ObjectMap, class_of: Callable[[Any], str]
) -> SideFile:
    """Return objects as a side file.

    Their members `id`, `area` and `iscrowd` may be missing. Without unique whole ids of 64 bits, an
    object's id is its place.

    Args:
        cells: values of the image; `width` and `height` are read if present.
        objects: a list of objects, an object of equally long lists, or None for no objects.
        names: names of the members.
        class_of: function that returns the name of a class, or raises `ValueError`.

    Raises:
        ValueError: `objects` has another form, or `width` or `height` is not a number of pixels.
    """
    found = _objects_in(objects, names.path)
    ids: list[Any] = [of.get("id") for of in found]
    if not all(type(one) is int and abs(one) < _LIMIT for one in ids) or len({*ids}) < len(ids):
        ids = [*range(len(found))]
    entries, bad = list[CocoInstance](), list[BadAnnotation]()
    for number, of in sorted(zip(ids, found, strict=True), key=operator.itemgetter(0)):
        try:
            category = class_of(of.get(names.label))
        except ValueError as error:
            bad.append(BadAnnotation(number, "E-ANN-CATEGORY", str(error)))
            continue
        area, crowd = of.get("area"), of.get("iscrowd", of.get("is_crowd")) or 0
        if not _is_number(crowd) and crowd is not True:
            bad.append(BadAnnotation(number, "E-ANN-SHAPE", f"iscrowd is {crowd!r}, not 0 or 1"))
            continue
        area = area if _is_number(area) and abs(area) < _LIMIT else None
        crowd = int(crowd) if crowd in (0, 1) else 2  # which is counted as replaced
        box = names.box_format.to_xywh(of.get(names.box))
        entries.append(entry_of(number, category, box, area=area, iscrowd=crowd))
    if names.box_format.value.startswith("rel_"):
        return SideFile(*STORED_FRACTIONS, entries, bad)
    return SideFile(side_px(cells, "width"), side_px(cells, "height"), entries, bad)


def _objects_in(value: Any, path: str) -> list[dict[str, Any]]:
    """Return objects with their members."""
    if value is None:
        return []
    if isinstance(value, dict):
        lists = {name: values for name, values in value.items() if values is not None}
        lengths = {len(of) if isinstance(of, list) else -1 for of in lists.values()}
        if len(lengths) < 2 and -1 not in lengths:
            of_objects = zip(*lists.values(), strict=True)
            return [dict(zip(lists, of_object, strict=True)) for of_object in of_objects]
    elif isinstance(value, list) and all(isinstance(of_object, dict) for of_object in value):
        return value
    raise ValueError(f"{path!r} is neither a list of objects nor an object of equally long lists")


def _is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number that a float can hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def _text_of_class(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    if type(value) is int:
        return str(value)
    raise ValueError(f"its class is {value!r}, not a text or a whole number")
