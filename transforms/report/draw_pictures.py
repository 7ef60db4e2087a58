"""Make the pictures of a record: a small JPEG, a layer of masks, and outlines.

A pure function of a record's bytes, safe in threads. Whatever a record holds, it is no failure:
what cannot be shown becomes a note.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from schemas.feature_roles import Roles
from schemas.features import Kind
from schemas.findings import at_record
from schemas.shown_values import Tensor
from transforms.images.findings import BadImage
from transforms.report.contents import Outline, ShownPicture
from transforms.report.index_sums import PickedRecord
from transforms.report.masks import MaskLayer
from transforms.report.outlines import (
    MAX_OUTLINES,
    Features,
    Legend,
    captions_of,
    class_text,
    labels_of,
    object_labels,
    outlines_of,
    values_of,
)
from transforms.report.small_pictures import Small, encode_jpeg, small_picture, small_tensor
from transforms.verify.files import parse_record

MAX_PICTURES_OF_A_RECORD = 4

_PANOPTIC_IMAGE, _PANOPTIC_IDS = "panoptic_image", "panoptic_objects/id"  # of TFDS
_CATEGORIES = "image/panoptic/category_mask"
_SEMANTIC = "image/segmentation/class/encoded"
_POLYGON = "image/object/polygon"
_IDS_OF_BYTES = {number: number for number in range(1, 255)}  # 0 is background, 255 void
_FAR = 10.0  # widths of a picture: polygons may reach beyond it
_DEPTHS = (1, 3, 4, 2)
_PLAIN_DTYPES = {1: "uint8", 2: "uint16"}


class Drawn(NamedTuple):
    """The pictures of a record, the one with outlines first, and notes on what is not shown."""

    pictures: tuple[ShownPicture, ...]
    notes: tuple[str, ...]


def draw_record(
    data: bytes, picked: PickedRecord, roles: Roles, legend: Legend, most_bytes: int
) -> Drawn:
    """Return the pictures of a record.

    Args:
        data: the record.
        picked: where it is.
        roles: of its features.
        legend: of the labels.
        most_bytes: of each picture's JPEG.

    Raises:
        MemoryError, RecursionError, OSError: of the machine, not of the record.
    """
    where = at_record(picked.file, picked.number, picked.offset, picked.key or None)
    found = parse_record(data)
    if found is None:
        return Drawn((), (f"{where} is not shown: it is no Example",))
    features, pictures, notes = found.context, list[ShownPicture](), list[str]()
    keys = [key for key in (*roles.images, *roles.pixels) if key != _PANOPTIC_IMAGE]
    keys = [key for key in keys if _first_value(features, key)][:MAX_PICTURES_OF_A_RECORD]
    for key in keys:
        try:
            small = _small(features, key, roles)
        except BadImage as error:
            notes.append(f"{where}: {key} is not shown: {error.fault.detail}")
            continue
        jpeg, size_px = encode_jpeg(small.image, most_bytes)
        outlines, mask = list[Outline](), b""
        if not pictures:
            layer = MaskLayer(small.image.size)
            outlines, wrong = _objects(features, small, roles, legend, layer)
            mask = layer.png(size_px, most_bytes)
            notes += [f"{where}: {what}" for what in wrong]
        pictures.append(
            ShownPicture(
                split=picked.split,
                key=picked.key,
                file=picked.file,
                number=picked.number,
                name=key if len(keys) > 1 else "",
                jpeg=jpeg,
                size_px=size_px,
                stored_size_px=small.stored_size_px,
                mask=mask,
                labels=labels_of(features, roles, legend),
                outlines=tuple(outlines),
                captions=captions_of(features, roles),
            )
        )
    return Drawn(tuple(pictures), tuple(notes))


def _first_value(features: Features, key: str) -> bytes:
    return next(iter(values_of(features, Kind.BYTES)(key)), b"")


def _small(features: Features, key: str, roles: Roles) -> Small:
    value = _first_value(features, key)
    plain = _plain_pixels(features, value, roles) if key in roles.pixels else None
    return small_picture(value) if plain is None else small_tensor(plain)


def _plain_pixels(features: Features, value: bytes, roles: Roles) -> Tensor | None:
    """Return values without a header as the picture that the record gives the size of."""
    sides = [values_of(features, Kind.INT64)(key)[:1] for key in (roles.height, roles.width)]
    if not all(side and side[0] > 0 for side in sides):
        return None
    height, width = (int(side[0]) for side in sides)
    for bytes_each, dtype in _PLAIN_DTYPES.items():
        for depth in _DEPTHS:
            if len(value) == height * width * depth * bytes_each:
                return Tensor(dtype, (height, width, depth), value)
    return None


def _objects(
    features: Features, small: Small, roles: Roles, legend: Legend, layer: MaskLayer
) -> tuple[list[Outline], list[str]]:
    """Return the outlines of a record and what is wrong with them; draw its masks on a layer."""
    outlines, notes = list[Outline](), list[str]()
    try:
        outlines = outlines_of(features, roles, small.stored_size_px, legend)
    except ValueError as error:
        notes = [f"boxes are not shown: {error}"]
    if len(outlines) > MAX_OUTLINES:
        notes.append(f"{MAX_OUTLINES} of {len(outlines)} objects are drawn")
        outlines = outlines[:MAX_OUTLINES]
    labels = [outline.label for outline in outlines]
    masks = values_of(features, Kind.BYTES)(roles.masks)[: len(outlines)]
    wrong = ""
    if outlines and len(masks) == len(outlines):
        wrong = layer.add_objects(zip(masks, labels, strict=True))
    else:
        layer.add_polygons(zip(_polygons(features, len(outlines)), labels, strict=False))
    if numbers := _numbered_mask(features, roles, legend):
        before = set(layer.labels)
        try:
            layer.add_numbers(*numbers)
        except BadImage as error:
            wrong = wrong or error.fault.detail
        new = [label for label in layer.labels if label not in before]
        outlines += [Outline(label, class_text(label, legend.names)) for label in new]
    return outlines, [*notes, *([f"a mask is not shown: {wrong}"] if wrong else [])]


def _polygons(features: Features, objects: int) -> Iterator[list[Sequence[float]]]:
    """Yield the polygons of each object, of three points and more; none where counts do not fit."""
    values = list(values_of(features)(_POLYGON))
    counts, lengths = (
        values_of(features, Kind.INT64)(f"{_POLYGON}_{what}") for what in ("count", "length")
    )
    fits = sum(lengths) == len(values) and sum(counts) == len(lengths) and len(counts) >= objects
    if not values or not fits or min(lengths) < 0 or min(counts) < 0:
        return
    ends, at = iter(lengths), 0
    for count in counts[:objects]:
        own = []
        for _ in range(count):
            length = next(ends)
            own.append(values[at : at + length])
            at += length
        yield [points for points in own if _is_polygon(points)]


def _is_polygon(points: Sequence[float]) -> bool:
    is_near = all(-_FAR < value < _FAR for value in points)  # false of what is no number
    return is_near and len(points) >= 6 and len(points) % 2 == 0


def _numbered_mask(
    features: Features, roles: Roles, legend: Legend
) -> tuple[bytes, Mapping[int, int]] | None:
    """Return a mask of several classes, and the labels of its numbers."""
    if value := _first_value(features, _PANOPTIC_IMAGE):
        ids = values_of(features, Kind.INT64)(_PANOPTIC_IDS)
        for objects in roles.objects:
            labels = object_labels(features, objects, len(ids))
            if objects.labels.startswith("panoptic_objects/") and None not in labels:
                return value, {i: n for i, n in zip(ids, labels, strict=True) if n is not None}
    if _CATEGORIES in roles.segmentations and (value := _first_value(features, _CATEGORIES)):
        return value, legend.labels or _IDS_OF_BYTES
    if _SEMANTIC in roles.segmentations and (value := _first_value(features, _SEMANTIC)):
        return value, _IDS_OF_BYTES
    return None
