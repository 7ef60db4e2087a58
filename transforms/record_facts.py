"""What an index says of a record's content: the size of its picture and its number of objects."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from schemas.feature_roles import BoxForm, Roles
from schemas.features import Kind
from schemas.images import EncodedImage, ImageInfo
from schemas.shown_values import tensor_shape
from transforms.images.check_images import check_image

RecordValues = Mapping[str, tuple[Kind | None, Sequence]]
"""Kind and values by feature key, as encoded or as parsed."""

_NOTHING: tuple[Kind | None, Sequence] = (None, ())
_NUMBERS_A_BOX = 4


class RecordFacts(NamedTuple):
    """What an index says of a record; None where the record has no such thing.

    Attributes:
        image_height: of its first picture, in px as stored.
        image_width: likewise.
        objects: number of objects on it.
    """

    image_height: int | None
    image_width: int | None
    objects: int | None


def record_facts(
    values: RecordValues, roles: Roles, images: Sequence[EncodedImage] = ()
) -> RecordFacts:
    """Return what an index says of a record.

    Args:
        values: of its features.
        roles: of these features.
        images: that it was made from; their headers are not parsed again.
    """
    height, width = _picture_size(values, roles, images) or (None, None)
    return RecordFacts(height, width, _num_objects(values, roles))


def _picture_size(
    values: RecordValues, roles: Roles, images: Sequence[EncodedImage]
) -> tuple[int, int] | None:
    for key in roles.images:
        for value in _values(values, key, Kind.BYTES)[:1]:
            info = next((i.info for i in images if i.data is value), None) or check_image(value)
            return (info.height_px, info.width_px) if isinstance(info, ImageInfo) else None
    for key in roles.pixels:
        for value in _values(values, key, Kind.BYTES)[:1]:
            return _tensor_size(value) or _stated_size(values, roles)
    return None


def _tensor_size(value: bytes) -> tuple[int, int] | None:
    """Return height and width of a serialized tensor of pixels."""
    shape = tensor_shape(value)
    return (shape[0], shape[1]) if shape and len(shape) in (2, 3) and all(shape) else None


def _stated_size(values: RecordValues, roles: Roles) -> tuple[int, int] | None:
    """Return the size that a record of plain pixel values states."""
    height, width = (
        next(iter(_values(values, key, Kind.INT64)), 0) for key in (roles.height, roles.width)
    )
    return (int(height), int(width)) if height > 0 and width > 0 else None


def _num_objects(values: RecordValues, roles: Roles) -> int | None:
    if not roles.objects:
        return None
    objects = roles.objects[0]
    numbers = len(_values(values, objects.boxes[0], Kind.FLOAT))
    boxes = numbers if objects.form is BoxForm.EDGES else numbers // _NUMBERS_A_BOX
    return max(boxes, len(_values(values, objects.labels, Kind.INT64)))


def _values(values: RecordValues, key: str, kind: Kind) -> Sequence:
    found, held = values.get(key, _NOTHING)
    return held if found is kind else ()
