"""Draw the pictures of a record: its images with masks, boxes, keypoints and captions.

What cannot be shown becomes a note.
"""

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from beam_tfrec.schemas.faults import at_record
from beam_tfrec.schemas.features import Corners, Kind, Roles, corners_of, values_at
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.parse_example import Values, parse_record
from beam_tfrec.schemas.tensors import Tensor
from beam_tfrec.transforms.images.check_images import check_image, decoding
from beam_tfrec.transforms.images.findings import BadImage, require_size
from beam_tfrec.transforms.report import (
    Outline,
    PickedRecord,
    ShownPicture,
    class_color,
    class_name,
    small_pictures,
)

MAX_JPEG_BYTES = 2_500_000
"""Budget for all pictures together: 3.4 MB in base64, on a page of up to 5 MB."""

MAX_PICTURES_OF_A_RECORD = 4
MAX_OUTLINES = 40
"""Number of outlines that are drawn on a picture."""

MAX_MASK_PIXELS = 1 << 27
"""Limit of all masks of a picture together; further masks are not drawn."""

_MAX_KEYPOINTS = 150  # per object; COCO-WholeBody has 133
_MAX_LABELS = 1000  # per record
_MAX_CAPTIONS = 6
_MAX_CHARACTERS = 300  # per text
_ALPHA = 128
_PANOPTIC_IMAGE, _PANOPTIC_IDS = "panoptic_image", "panoptic_objects/id"  # features of TFDS
_CATEGORIES = "image/panoptic/category_mask"
_SEMANTIC = "image/segmentation/class/encoded"
_POLYGON = "image/object/polygon"
_IDS_OF_BYTES = {number: number for number in range(1, 255)}  # 0 is background, 255 void
_FAR = 10.0  # limit of coordinates, in widths of the picture: polygons may reach beyond it
Features = Mapping[str, Values]
"""Context features of a record, by key."""

Polygon = Sequence[float]
"""Alternating x and y, as fractions of width and height."""


class Legend(NamedTuple):
    """Names and numbers of classes.

    Attributes:
        names: name of each class by label id.
        labels: label id by the id in annotation files, which panoptic masks use.
        by_name: label id by name, for records with names only.
    """

    names: dict[int, str]
    labels: Mapping[int, int]
    by_name: dict[str, int]


def legend_of(labels: Sequence[Label]) -> Legend:
    """Return the legend of a label map."""
    names = {label.id: label.text or label.name for label in labels}
    return Legend(names, {label.annotated_id: label.id for label in labels}, {})


class Drawn(NamedTuple):
    """Pictures of records, and notes on missing ones. A record's first picture has its outlines."""

    pictures: list[ShownPicture]
    notes: list[str]


def pictures_each(roles: Roles) -> int:
    """Return the largest number of pictures of a record with these features."""
    return min(max(1, len(roles.images) + len(roles.pixels)), MAX_PICTURES_OF_A_RECORD)


def where_is(record: PickedRecord) -> str:
    """Return the place of a record in words."""
    return at_record(record.file, record.number, record.offset, record.key or None)


class MaskLayer:
    """Transparent layer of a small picture's size, on which masks are painted.

    Attributes:
        labels: labels that were painted, without repetition.
    """

    def __init__(self, size_px: tuple[int, int]) -> None:
        self.labels: dict[int | None, None] = {}
        self._size_px = size_px
        self._pixels = np.zeros((size_px[1], size_px[0], 4), np.uint8)
        self._pixels_left = MAX_MASK_PIXELS

    def numbers(self, mask: bytes) -> NDArray[np.int64]:
        """Return the pixel numbers of a mask's image file, scaled to the layer's size.

        Raises:
            BadImage: The file cannot be read, or is too large.
        """
        info = check_image(mask)
        require_size(*info.size_px, self._pixels_left)
        self._pixels_left -= info.width_px * info.height_px
        with decoding(), Image.open(io.BytesIO(mask), formats=("PNG", "JPEG", "BMP")) as image:
            small = image.resize(self._size_px, Image.Resampling.NEAREST)
        numbers = np.asarray(small).astype(np.int64)  # for a palette the indices, not the colors
        if numbers.ndim == 2:
            return numbers
        if numbers.shape[2] < 3:
            return numbers[:, :, 0]
        return numbers[:, :, :3] @ np.array([1, 256, 65536])

    def fill(self, polygons: Iterable[Polygon]) -> NDArray[np.bool_]:
        """Return a mask of the pixels inside any of the polygons."""
        width, height = self._size_px
        where = Image.new("1", self._size_px)
        for polygon in polygons:
            corners = zip(polygon[::2], polygon[1::2], strict=True)
            points = [(x * width, y * height) for x, y in corners]
            ImageDraw.Draw(where).polygon(points, fill=1)
        return np.asarray(where)

    def paint(self, where: NDArray[np.bool_], label: int | None) -> None:
        """Paint pixels in the color of a label."""
        if where.any():
            self.labels[label] = None
            self._pixels[where] = [*bytes.fromhex(class_color(label)[1:]), _ALPHA]

    def png(self, size_px: tuple[int, int], most_bytes: int) -> bytes:
        """Return the layer as a PNG of a size; empty if nothing is painted or it is too large."""
        if not self.labels:
            return b""
        image, out = Image.fromarray(self._pixels, "RGBA"), io.BytesIO()
        image.resize(size_px, Image.Resampling.NEAREST).quantize(255).save(out, "PNG")
        return out.getvalue() if out.tell() <= most_bytes else b""


def draw_record(
    data: bytes, record: PickedRecord, roles: Roles, legend: Legend, most_bytes: int
) -> Drawn:
    """Return the pictures of a record.

    Args:
        data: bytes of the record.
        record: place of the record.
        roles: roles of its features.
        legend: names of the labels.
        most_bytes: limit of each picture's JPEG.

    Raises:
        MemoryError, RecursionError, OSError: The machine failed, not the record.
    """
    where, found = where_is(record), parse_record(data)
    if found is None:
        return Drawn([], [f"{where} is not shown: it is not an Example"])
    features, pictures, notes = found.context, list[ShownPicture](), list[str]()
    keys = [key for key in (*roles.images, *roles.pixels) if key != _PANOPTIC_IMAGE]
    keys = [key for key in keys if _first_value(features, key)][:MAX_PICTURES_OF_A_RECORD]
    for key in keys:
        try:
            small = _small(features, key, roles)
        except BadImage as error:
            notes.append(f"{where}: {key} is not shown: {error.detail}")
            continue
        jpeg, size_px = small_pictures.encode_jpeg(small.image, most_bytes)
        outlines, mask = list[Outline](), b""
        if not pictures:
            layer = MaskLayer(small.image.size)
            outlines, wrong = _objects(features, small, roles, legend, layer)
            mask = layer.png(size_px, most_bytes)
            notes += [f"{where}: {what}" for what in wrong]
        pictures.append(
            ShownPicture(
                record,
                key if len(keys) > 1 else "",
                jpeg,
                size_px,
                small.stored_size_px,
                mask,
                labels_of(features, roles, legend),
                tuple(outlines),
                captions_of(features, roles),
            )
        )
    return Drawn(pictures, notes)


def _first_value(features: Features, key: str) -> bytes:
    return next(iter(values_at(features, key, Kind.BYTES)), b"")


def _small(features: Features, key: str, roles: Roles) -> small_pictures.Small:
    value = _first_value(features, key)
    sides = [values_at(features, side, Kind.INT64)[:1] for side in (roles.height, roles.width)]
    if key in roles.pixels and all(side and side[0] > 0 for side in sides):
        height, width = (int(side[0]) for side in sides)
        depth, rest = divmod(len(value), height * width)
        if not rest and depth in (1, 2, 3, 4, 6, 8):  # plain values without a header
            dtype, channels = ("uint8", depth) if depth <= 4 else ("uint16", depth // 2)
            return small_pictures.small_tensor(Tensor(dtype, (height, width, channels), value))
    return small_pictures.small_picture(value)


def _objects(
    features: Features, small: small_pictures.Small, roles: Roles, legend: Legend, layer: MaskLayer
) -> tuple[list[Outline], list[str]]:
    """Return the outlines of a record and notes on faults; paint its masks on a layer."""
    outlines, wrong = list[Outline](), list[str]()
    try:
        outlines = outlines_of(features, roles, small.stored_size_px, legend)
    except ValueError as error:
        wrong.append(f"boxes are not shown: {error}")
    if len(outlines) > MAX_OUTLINES:
        wrong.append(f"{MAX_OUTLINES} of {len(outlines)} objects are drawn")
        outlines = outlines[:MAX_OUTLINES]
    masks = values_at(features, roles.masks, Kind.BYTES)[: len(outlines)]
    try:
        if outlines and len(masks) == len(outlines):
            for mask, outline in zip(masks, outlines, strict=True):
                layer.paint(layer.numbers(mask) > 0, outline.label)
        else:
            polygons = _polygons(features, len(outlines))
            for found, outline in zip(polygons, outlines, strict=False):
                layer.paint(layer.fill(found), outline.label)
        if value := _numbered_mask(features, roles, legend):
            before, numbers = set(layer.labels), layer.numbers(value[0])
            for number in {*numbers.flat} & value[1].keys():
                layer.paint(numbers == number, value[1][number])
            new = [label for label in layer.labels if label not in before]
            outlines += [Outline(label, class_name(label, legend.names)) for label in new]
    except BadImage as error:
        wrong.append(f"masks are missing: {error.detail}")
    return outlines, wrong


def _polygons(features: Features, objects: int) -> Iterator[list[Sequence[float]]]:
    """Yield the polygons of each object, with three points or more; none if counts do not fit."""
    numbers = values_at(features, _POLYGON, Kind.FLOAT)
    counts, lengths = (
        values_at(features, f"{_POLYGON}_{what}", Kind.INT64) for what in ("count", "length")
    )
    fits = sum(lengths) == len(numbers) and sum(counts) == len(lengths)
    if not fits or min([*counts, *lengths], default=0) < 0:
        return
    points, sizes = iter(numbers), iter(lengths)
    for count in counts[:objects]:
        polygons = [list(islice(points, size)) for size in islice(sizes, count)]
        yield [polygon for polygon in polygons if _is_polygon(polygon)]


def _is_polygon(points: Sequence[float]) -> bool:
    is_near = all(-_FAR < value < _FAR for value in points)  # False for NaN
    return is_near and len(points) >= 6 and len(points) % 2 == 0


def _numbered_mask(
    features: Features, roles: Roles, legend: Legend
) -> tuple[bytes, Mapping[int, int]] | None:
    """Return a mask with a number per class or object, and the label of each number."""
    if value := _first_value(features, _PANOPTIC_IMAGE):
        ids = values_at(features, _PANOPTIC_IDS, Kind.INT64)
        for objects in roles.objects:
            labels = labels_at(features, objects.labels, objects.texts, legend)
            if objects.labels.startswith("panoptic_objects/") and len(labels) == len(ids):
                return value, dict(zip(ids, labels, strict=True))
    for key, labels_of_bytes in ((_CATEGORIES, legend.labels), (_SEMANTIC, {})):
        if key in roles.segmentations and (value := _first_value(features, key)):
            return value, labels_of_bytes or _IDS_OF_BYTES
    return None


def outlines_of(
    features: Features, roles: Roles, size_px: tuple[int, int], legend: Legend
) -> list[Outline]:
    """Return the boxes and keypoints of a record's first list of objects, in its order.

    Args:
        features: features of the record.
        roles: roles of the features.
        size_px: width and height of the picture as stored.
        legend: names of the classes.

    Raises:
        ValueError: Edges of boxes are missing.
    """
    if not roles.objects:
        return []
    objects = roles.objects[0]
    corners = list(corners_of(objects, features, size_px))
    labels = labels_at(features, objects.labels, objects.texts, legend)
    texts = texts_at(features, objects.texts)
    labels = labels if len(labels) == len(corners) else []
    texts = texts if len(texts) == len(corners) else []
    points = list(_keypoints(features, roles.keypoints, len(corners)))
    return [
        Outline(label, text or class_name(label, legend.names), box and _box(box), places or ())
        for box, label, text, places in zip_longest(corners, labels, texts, points)
    ]


def labels_at(features: Features, labels_key: str, texts_key: str, legend: Legend) -> list[int]:
    """Return the class ids of a record from the feature of labels, or else from that of names."""
    if labels_key:
        return list(map(int, values_at(features, labels_key, Kind.INT64)))
    names = texts_at(features, texts_key)
    return [legend.by_name[name] for name in names if name in legend.by_name]


def labels_of(features: Features, roles: Roles, legend: Legend) -> tuple[int, ...]:
    """Return the sorted ids of the classes of a record and its objects."""
    keys = [(roles.class_label, roles.class_text)]
    keys += [(objects.labels, objects.texts) for objects in roles.objects]
    found = {label for own in keys for label in labels_at(features, *own, legend)}
    return tuple(sorted(found)[:_MAX_LABELS])


def captions_of(features: Features, roles: Roles) -> tuple[str, ...]:
    """Return a record's captions, and its class name if the class has no number."""
    keys = roles.captions if roles.class_label else (roles.class_text, *roles.captions)
    texts = (text for key in keys for text in texts_at(features, key) if text)
    return tuple(dict.fromkeys(texts))[:_MAX_CAPTIONS]


def texts_at(features: Features, key: str) -> list[str]:
    """Return each text of a feature, cut to the shown length."""
    return [
        value[: 4 * _MAX_CHARACTERS].decode(errors="replace")[:_MAX_CHARACTERS]
        for value in values_at(features, key, Kind.BYTES)
    ]


def _box(corners: Corners) -> tuple[float, float, float, float] | None:
    """Return a box as left, top, width and height, clipped to the picture; None if invalid."""
    if not all(map(math.isfinite, corners)):
        return None
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in corners)
    return (left, top, right - left, bottom - top) if left <= right and top <= bottom else None


def _keypoints(
    features: Features, keys: Sequence[str], objects: int
) -> Iterator[tuple[tuple[float, float], ...]]:
    """Yield the labelled keypoints of each object; all objects have the same number of places."""
    if not keys or not objects:
        return
    xs, ys = (values_at(features, key, Kind.FLOAT) for key in keys[:2])
    seen = values_at(features, "".join(keys[2:]), Kind.INT64) or [1] * len(xs)
    each, rest = divmod(len(xs), objects)
    if rest or not len(xs) == len(ys) == len(seen):
        return
    points = list(zip(xs, ys, seen, strict=True))
    for first in range(0, len(points), max(each, 1)):
        own = points[first : first + min(each, _MAX_KEYPOINTS)]
        yield tuple((x, y) for x, y, is_seen in own if is_seen and 0 <= x <= 1 and 0 <= y <= 1)
