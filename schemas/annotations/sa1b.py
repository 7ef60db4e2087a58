"""SA-1B's files: masks without classes, as compressed run lengths.

Source of the format: https://ai.meta.com/datasets/segment-anything-downloads.
"""

import msgspec

from schemas.annotations.coco_types import NOTHING, CocoOutlined, Int64, PositiveInt
from schemas.annotations.side_files import SideFile, decode
from schemas.picture_fields import BadAnnotation

CLASS_NAME = "object"
"""The one class of everything that SA-1B outlines."""

_NULL = msgspec.Raw(b"null")


class _Image(msgspec.Struct, gc=False):
    width: PositiveInt
    height: PositiveInt


class _File(msgspec.Struct, gc=False):
    image: _Image
    annotations: list[msgspec.Raw]


class _Annotation(msgspec.Struct, gc=False):
    id: Int64
    bbox: msgspec.Raw = _NULL
    area: float | None = None
    segmentation: msgspec.Raw = NOTHING


_FILES = msgspec.json.Decoder(_File)
_DECODE_ANNOTATION = msgspec.json.Decoder(_Annotation).decode


def parse_sa1b(data: bytes) -> SideFile | str:
    """Return what an SA-1B file says, or why it says nothing.

    An annotation without an id is known by its place in the file, from 0, as `annotations[0]`.
    """
    file = decode(_FILES, data, ("image", "annotations"))
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
