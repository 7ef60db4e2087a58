"""A COCO file of objects read piece by piece, of which little more is held than what is kept.

Only what is as it should be is read this way. Whatever else a file holds, and all that is wrong
with it, is left to those who read it as a whole and can say what it is.
"""

from dataclasses import dataclass, field

import msgspec

from schemas.annotations.coco_columns import InstanceColumns
from schemas.annotations.coco_types import (
    NOTHING,
    CocoBoxed,
    CocoImage,
    CocoInstance,
    Int64,
    Kind,
    kind_of,
)
from schemas.annotations.json_pieces import Text, divide_object
from schemas.annotations.json_sections import MAX_NESTING, first_keys, nests_deeper

_DECODE_IMAGES = msgspec.json.Decoder(list[CocoImage[Int64, Int64]]).decode
_DECODE_BOXED = msgspec.json.Decoder(list[CocoBoxed]).decode
_DECODE_INSTANCES = msgspec.json.Decoder(list[CocoInstance[Int64, Int64]]).decode
_DECODE_ANY = msgspec.json.Decoder(msgspec.Raw).decode
_NEEDED = {"images", "annotations", "categories"}


@dataclass
class CocoPieces:
    """What a file of objects holds.

    Attributes:
        images: its images.
        columns: its annotations.
        sections: its categories and licenses, as JSON.
    """

    images: list[CocoImage] = field(default_factory=list)
    columns: InstanceColumns = field(default_factory=InstanceColumns)
    sections: dict[str, bytes] = field(default_factory=dict)


def read_in_pieces(text: Text) -> CocoPieces | None:
    """Return what a file of objects holds; None where it must be read as a whole."""
    read = CocoPieces()
    seen: set[str] = set()
    try:
        for name, part in divide_object(text.pieces()):
            _add(read, name, part, is_first=name not in seen)
            seen.add(name)
    except (ValueError, RecursionError):  # msgspec's errors, and those of no UTF-8, are ValueErrors
        return None
    return read if seen >= _NEEDED else None


def _add(read: CocoPieces, name: str, part: bytes, *, is_first: bool) -> None:
    """Take a section, or a part of one.

    Raises:
        ValueError: when it is not as it should be.
        RecursionError: likewise.
    """
    if not part.isascii():
        part.decode()
    if name == "images":
        images = _DECODE_IMAGES(part)
        for image in images:
            _let_go(image)
        read.images += images
    elif name == "annotations":
        keys = first_keys(msgspec.Raw(part)) if is_first else []
        if keys and kind_of(keys) != Kind.INSTANCES:
            raise ValueError("annotations are no objects")
        _extend(read.columns, part)
    else:
        _DECODE_ANY(part)
        if name in ("categories", "licenses"):
            before = read.sections.get(name)
            read.sections[name] = part if before is None else b"%b,%b" % (before[:-1], part[1:])
    if nests_deeper(part, MAX_NESTING - 1):  # the object itself is a level
        raise ValueError("values nest too deep")


def _extend(columns: InstanceColumns, part: bytes) -> None:
    try:
        boxed = _DECODE_BOXED(part)
    except msgspec.DecodeError:  # few parts hold an entry that is none: these are read again
        columns.extend(_DECODE_INSTANCES(part))
    else:
        columns.extend_boxed(boxed)


def _let_go(image: CocoImage) -> None:
    """Keep no slice of the file, which would hold all of its piece."""
    if image.file_name is not msgspec.UNSET:
        image.coco_url = NOTHING
    elif image.coco_url is not NOTHING:
        image.coco_url = msgspec.Raw(bytes(image.coco_url))
    if image.license is not NOTHING:
        image.license = msgspec.Raw(bytes(image.license))
