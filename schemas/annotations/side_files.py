"""Side files: a JSON file for each image, with the objects in it.

What such a file says is opened as COCO's entries are, so that both give the same objects.
"""

import enum
import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from schemas.annotations.coco_objects import ObjectOpener
from schemas.annotations.coco_types import NOTHING, CocoImage, CocoOutlined
from schemas.annotations.json_sections import lone_surrogate_at
from schemas.fields import BadAnnotation, ObjectFields, Segmentation

_UTF8_BOM = b"\xef\xbb\xbf"
_TRUNCATED = "Input data was truncated"  # as msgspec says it, without an offset

T = TypeVar("T")


class SideFormat(enum.Enum):
    """How a side file says what is in its image."""

    LABELME = "labelme"
    SA1B = "sa1b"


class SideFile(NamedTuple):
    """What a side file says of its image.

    Attributes:
        width_px: image width; 0 where it does not say.
        height_px: image height; 0 where it does not say.
        entries: its objects as COCO has them, of the class's name as category, by id.
        bad: what cannot be an object, with the reasons.
    """

    width_px: int
    height_px: int
    entries: Sequence[CocoOutlined]
    bad: list[BadAnnotation]


class OpenedObjects(NamedTuple):
    """The objects of a side file.

    Attributes:
        objects: with their ids, by id.
        segmentations: one an object, where they are asked for.
        bad: those that cannot be written, with the reasons.
        repairs: what was mended, with counts.
    """

    objects: list[tuple[int | str, ObjectFields]]
    segmentations: list[Segmentation]
    bad: list[BadAnnotation]
    repairs: Counter[str]


class _Sections(msgspec.Struct, gc=False):
    """The keys that tell formats apart."""

    shapes: msgspec.Raw = NOTHING
    annotations: msgspec.Raw = NOTHING
    image: msgspec.Raw = NOTHING


_SECTIONS = msgspec.json.Decoder(_Sections)
_ANYTHING: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(dict[str, Any])
_ABSENT = object()
_DECODE_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_DECODE_VALUE = msgspec.json.Decoder(str | int | float | bool | None).decode


def decode(
    decoder: "msgspec.json.Decoder[T]", data: bytes, sections: Sequence[str] = ()
) -> T | str:
    """Return what a decoder makes of a file, or what is wrong with it.

    Args:
        decoder: of a JSON object.
        data: the file.
        sections: keys that may stand there only once, since a decoder takes the last one.

    >>> decode(msgspec.json.Decoder(dict), b'{"a": }')
    'JSON is malformed: invalid character (byte 6)'
    """
    try:
        data.decode()  # first: decoders take other text where they skip it or leave it for later
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {error.start}): save the file as UTF-8"
    try:
        found = decoder.decode(data.removeprefix(_UTF8_BOM))
        twice = _repeated(data.removeprefix(_UTF8_BOM), sections)
        return f"two {twice} keys" if twice else found
    except RecursionError:
        return "JSON is nested too deeply"
    except ValueError as error:  # no JSON, or another type
        what = str(error)
        if what == _TRUNCATED and (at := lone_surrogate_at(data)) is not None:
            return f"JSON is malformed: half of a surrogate pair (byte {at})"
        return what if what != _TRUNCATED else f"the file ends within its JSON (byte {len(data)})"


def format_of(data: bytes) -> SideFormat | str:
    """Return the format of a side file by its keys, or why it has none.

    >>> format_of(b'{"version": "5", "shapes": []}'), format_of(b'{"images": []}')
    (<SideFormat.LABELME: 'labelme'>, 'neither shapes (LabelMe) nor image and annotations (SA-1B)')
    """
    sections = decode(_SECTIONS, data)
    if isinstance(sections, str):
        return sections
    is_sa1b = sections.image is not NOTHING and sections.annotations is not NOTHING
    if sections.shapes is not NOTHING:
        both = "both shapes (LabelMe) and image and annotations (SA-1B): --format says which"
        return both if is_sa1b else SideFormat.LABELME
    if is_sa1b:
        return SideFormat.SA1B
    return "neither shapes (LabelMe) nor image and annotations (SA-1B)"


def value_at(data: bytes, path: str) -> str:
    """Return a value of a JSON object as text; empty where it is not there, or no single one.

    Args:
        data: the file.
        path: keys with dots between.

    >>> value_at(b'{"image": {"file_name": "a.jpg"}}', "image.file_name")
    'a.jpg'
    """
    raw: Any = data.removeprefix(_UTF8_BOM)
    try:
        for key in path.split("."):
            raw = _DECODE_OBJECT(raw)[key]
        value = _DECODE_VALUE(raw)
    except (KeyError, ValueError, RecursionError):
        return ""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def cells_at(data: bytes, paths: Collection[str]) -> dict[str, Any] | str:
    """Return what stands at paths of a JSON object, those that are there; or why it is none.

    >>> cells_at(b'{"a": {"b": [1, 2]}, "c": null}', ["a.b", "c", "d.e"])
    {'a.b': [1, 2], 'c': None}
    """
    content = decode(_ANYTHING, data)
    if not isinstance(content, dict):
        return str(content)
    cells: dict[str, Any] = {}
    for path in paths:
        found: Any = content
        for key in path.split("."):
            found = found.get(key, _ABSENT) if isinstance(found, dict) else _ABSENT
        if found is not _ABSENT:
            cells[path] = found
    return cells


def open_objects(side: SideFile, *, segmentations: bool) -> OpenedObjects:
    """Return the objects of a side file, checked as COCO's are.

    Args:
        side: the file.
        segmentations: open these too; an object whose own is bad is then dropped.
    """
    opener = ObjectOpener({entry.category_id: 0 for entry in side.entries})
    image: CocoImage = CocoImage(id=0, width=side.width_px, height=side.height_px)
    found = OpenedObjects([], [], [*side.bad], opener.repairs)
    for entry in side.entries:
        fields = opener.open(entry, NOTHING, image)
        if not isinstance(fields, ObjectFields):
            found.bad.append(BadAnnotation(entry.id, *fields))
            continue
        if segmentations:
            outline = opener.open_segmentation(entry, image)
            if not isinstance(outline, Segmentation):
                found.bad.append(BadAnnotation(entry.id, *outline))
                continue
            found.segmentations.append(outline)
        found.objects.append((entry.id, fields))
    return found


def _repeated(data: bytes, sections: Sequence[str]) -> str:
    """Return a key of several that stands more than once at the top of a JSON object, if one does.

    Raises:
        ValueError, RecursionError: when it cannot be parsed.
    """
    if all(data.count(f'"{key}"'.encode()) < 2 for key in sections):  # the rule, and fast
        return ""
    pairs = json.loads(data, object_pairs_hook=list)
    counts = Counter(key for key, _ in pairs)
    return next((key for key in sections if counts[key] > 1), "")
