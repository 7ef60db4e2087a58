"""Make the pictures of a record: a small JPEG, a layer of masks, and outlines.

A pure function of a record's bytes, safe in threads. Whatever a record holds, it is no failure:
what cannot be shown becomes a note.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from schemas.faults import at_record
from schemas.features import Kind, Roles
from schemas.shown_values import Tensor
from transforms.images.check_images import Check, check_image, decoding
from transforms.images.findings import BadImage, ImageFault
from transforms.report.contents import Outline, ShownPicture, class_color
from transforms.report.index_sums import PickedRecord
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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MAX_MASK_PIXELS = 1 << 27
"""Of all masks of a picture together; the rest is not drawn."""

_ALPHA = 128
_FORMATS = ("PNG", "JPEG", "BMP")

Polygon = Sequence[float]
"""x and y in turn, as parts of width and height."""


class MaskLayer:
    """A transparent layer as large as a small picture.

    Attributes:
        labels: of what was drawn, each once.
    """

    def __init__(self, size_px: tuple[int, int]) -> None:
        import numpy as np

        self.labels: dict[int | None, None] = {}
        self._size_px = size_px
        self._pixels = np.zeros((size_px[1], size_px[0], 4), np.uint8)
        self._pixels_left = MAX_MASK_PIXELS

    def add_objects(self, masks: Iterable[tuple[bytes, int | None]]) -> str:
        """Draw a mask for each object, given with its label; return what is wrong with the first.

        An empty text stands for nothing wrong.
        """
        wrong = ""
        for mask, label in masks:
            try:
                self._paint(self._read(mask) > 0, label)
            except BadImage as error:
                wrong = wrong or error.fault.detail
        return wrong

    def add_numbers(self, mask: bytes, labels: Mapping[int, int]) -> None:
        """Draw a mask of several classes, whose numbers stand for labels.

        Raises:
            BadImage: when the mask is damaged.
        """
        import numpy as np

        numbers = self._read(mask)
        for number in np.unique(numbers).tolist():
            if number in labels:
                self._paint(numbers == number, labels[number])

    def add_polygons(self, objects: Iterable[tuple[Sequence[Polygon], int | None]]) -> None:
        """Draw the polygons of each object, given with its label."""
        import numpy as np
        from PIL import Image, ImageDraw

        width, height = self._size_px
        for polygons, label in objects:
            where = Image.new("1", self._size_px)
            for polygon in polygons:
                corners = zip(polygon[::2], polygon[1::2], strict=True)
                points = [(x * width, y * height) for x, y in corners]
                ImageDraw.Draw(where).polygon(points, fill=1)
            self._paint(np.asarray(where), label)

    def png(self, size_px: tuple[int, int], most_bytes: int) -> bytes:
        """Return the layer scaled to a size; nothing if it is empty or would be too large."""
        from PIL import Image

        if not self.labels:
            return b""
        image, out = Image.fromarray(self._pixels, "RGBA"), io.BytesIO()
        image.resize(size_px, Image.Resampling.NEAREST).quantize(255).save(out, "PNG")
        return out.getvalue() if out.tell() <= most_bytes else b""

    def _paint(self, where: "NDArray[np.bool_]", label: int | None) -> None:
        if where.any():
            self.labels[label] = None
            self._pixels[where] = [*bytes.fromhex(class_color(label)[1:]), _ALPHA]

    def _read(self, value: bytes) -> "NDArray[np.int64]":
        """Return the numbers in a mask, as large as the layer.

        Raises:
            BadImage: when it is no image or has too many pixels.
        """
        info = check_image(value, Check.HEADER, max_pixels=self._pixels_left)
        if isinstance(info, ImageFault):
            raise BadImage(info.code, info.detail)
        self._pixels_left -= info.width_px * info.height_px
        with decoding():
            return _numbers(value, self._size_px)


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


def _numbers(value: bytes, size_px: tuple[int, int]) -> "NDArray[np.int64]":
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(value), formats=_FORMATS) as image:
        pixels = np.asarray(image)  # of a palette its numbers, not its colors
    if pixels.ndim == 3 and pixels.shape[2] < 3:
        pixels = pixels[:, :, 0]
    width, height = size_px
    rows = np.arange(height) * pixels.shape[0] // height
    columns = np.arange(width) * pixels.shape[1] // width
    small = pixels[rows][:, columns].astype(np.int64)
    if small.ndim == 2:
        return small
    return small[:, :, 0] + 256 * small[:, :, 1] + 65536 * small[:, :, 2]
