"""The annotation fields that samples carry, one type per source, and images after reading.

The reader of a source packs the fields into `Sample.fields`, with coordinates in the source's
pixels. Layouts unpack them and build Examples.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from beam_tfrec.schemas.columns import Cell, text_of
from beam_tfrec.schemas.geometry.boxes import BBoxXywhPx, Crop
from beam_tfrec.schemas.samples import Sample, pack

if TYPE_CHECKING:  # few layouts need numpy
    from numpy.typing import NDArray

Scalar = int | float | str

Attributes = Mapping[str, int | str]
"""Attributes of an object, such as `difficult`, by the names of `detection.ATTRIBUTES`.

The further key `mask` is the index in `Sample.blobs` of the PNG with the object's mask.
"""

LARGE_ROW_BYTES = 256
"""Size above which a table row becomes a payload. A run in this process keeps fields in memory,
but payloads on disk."""

_BYTES_A_STEP = 6  # without its values: the lengths of its Feature, and of the Feature's list

UPRIGHT_FRACTIONS = -1, -1
"""Width and height in `PictureFields` if coordinates are fractions of the upright picture."""

STORED_FRACTIONS = -2, -2
"""Width and height in `PictureFields` if coordinates are fractions of the picture as stored."""


class ImageInfo(msgspec.Struct, frozen=True, gc=False):
    """Facts from an image file's header.

    Attributes:
        format: `jpeg`, `png`, `gif` or `bmp` by the content, never by the extension; `raw` for
            bytes that are not an image file.
        width_px: width as stored, before any EXIF rotation; 0 for `raw`.
        height_px: height as stored, likewise.
        orientation: EXIF orientation (1..8); 1 if absent or invalid.
        traits: sorted names of unusual properties, keys of `findings.TRAITS`.
        channels: values per pixel (1..4), as `tf.io.decode_image(channels=0)` decodes it.
    """

    format: str
    width_px: int
    height_px: int
    orientation: int = 1
    traits: tuple[str, ...] = ()
    channels: int = 3

    @property
    def size_px(self) -> tuple[int, int]:
        """Width and height as stored."""
        return self.width_px, self.height_px


RAW = ImageInfo("raw", 0, 0)
"""The info of bytes that are not an image file, such as an item of an array."""


class Window(NamedTuple):
    """The part of the original picture that a converted image shows.

    Attributes:
        whole_size_px: width and height of the original picture after turning.
        crop: the part that is shown; None for all of it.
    """

    whole_size_px: tuple[int, int]
    crop: Crop | None = None


class EncodedImage(msgspec.Struct, frozen=True, gc=False):
    """An image after reading, checking and conversion, ready to be written.

    Attributes:
        name: path relative to its root.
        data: the file's bytes, or the bytes of the turned or converted picture.
        sha256: SHA-256 of `data`, lower-case hex.
        info: facts from the header of `data`.
        turned: EXIF orientation by which pixels were turned upright; 1 if they were not.
        source_sha256: SHA-256 of the file if `data` differs from it; else empty.
        pixels: array of height x width x channels, C-contiguous, of type `Layout.pixels_dtype`;
            None unless the layout asks for pixels. With pixels, `info` has their size, and `data`
            is the file's.
        window: part of the picture that is shown; None if the image was not converted.
    """

    name: str
    data: bytes
    sha256: str
    info: ImageInfo
    turned: int = 1
    source_sha256: str = ""
    pixels: "NDArray | None" = None
    window: Window | None = None

    @property
    def whole_size_px(self) -> tuple[int, int]:
        """Width and height after turning, before resizing and cropping."""
        return self.info.size_px if self.window is None else self.window.whole_size_px


class Segmentation(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """An object's outline: polygons, or a run-length encoding (RLE) of its mask; never both.

    Attributes:
        polygons_px: polygons `[x0, y0, x1, y1, ...]` of at least three points. The object is their
            union.
        rle_counts: lengths of alternating runs of 0 and 1, beginning with 0. They go down the
            columns, from left to right, and sum to width x height of the image.
    """

    polygons_px: list[list[float]] = []
    rle_counts: list[int] = []

    def __bool__(self) -> bool:
        """Return whether there is an outline."""
        return bool(self.polygons_px or self.rle_counts)


class ObjectFields(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One object of an image.

    Attributes:
        category_id: category id of the annotation file, or the class's name if it has no ids.
        bbox_xywh_px: COCO's bbox.
        area_px2: area as annotated.
        is_crowd: 0 or 1.
        keypoints_px: `[x, y, v]` for each keypoint of the category, flat; v is 0 for unlabelled, 1
            for hidden, 2 for visible. Empty if none are annotated.
    """

    category_id: int | str
    bbox_xywh_px: BBoxXywhPx
    area_px2: float
    is_crowd: int
    keypoints_px: list[float] = []


class SegmentFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One segment of a panoptic image.

    Attributes:
        id: R + 256 G + 65536 B of its pixels' colour in the panoptic PNG.
        category_id: category id of the annotation file.
        bbox_xywh_px: COCO's bbox.
        area_px2: area as annotated.
        is_crowd: 0 or 1.
        is_thing: 1 for a countable category (a thing), 0 for stuff such as sky.
    """

    id: int
    category_id: int
    bbox_xywh_px: BBoxXywhPx
    area_px2: float
    is_crowd: int
    is_thing: int = 1


class PictureFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The annotation fields of one image, as a `Sample` carries them.

    `Sample.annotation_ids` lists the ids of the objects, then of the captions, then of the panoptic
    annotation. If the layout needs segmentations, `Sample.payload` holds one `Segmentation` per
    object; it is empty for an object without outline.

    Attributes:
        width_px: image width by the annotation file; 0 if the file does not say. If coordinates are
            fractions, it is that of `UPRIGHT_FRACTIONS` or `STORED_FRACTIONS`.
        height_px: image height by the annotation file, likewise.
        objects: objects, sorted by annotation id.
        captions: captions, sorted by annotation id.
        segments: segments of the panoptic PNG, which is the sample's second blob. Their order, that
            of the file, numbers the instances. None without a panoptic annotation.
        image_id: id in the annotation file.
        license_id: id of the image's license; None if unknown.
        negative_category_ids: categories that are verified to be absent from the image (LVIS).
        not_exhaustive_category_ids: categories that are not fully annotated in it (LVIS).
    """

    width_px: int
    height_px: int
    objects: list[ObjectFields]
    captions: list[str] = []
    segments: list[SegmentFields] | None = None
    image_id: int | str = 0
    license_id: int | None = None
    negative_category_ids: list[int] = []
    not_exhaustive_category_ids: list[int] = []


class AttributedFields(PictureFields, frozen=True, array_like=True, gc=False):
    """The annotation fields of one image whose objects have attributes.

    Samples of images without attributes carry `PictureFields`, which are decoded as these too.

    Attributes:
        attributes: attributes of each object; empty if no object has any.
        image_labels: class and confidence, 0 to 1, of each label of the whole image.
    """

    attributes: list[dict[str, int | str]] = []
    image_labels: list[tuple[str, float]] = []


class BadAnnotation(NamedTuple):
    """An annotation that cannot be written: its id, the reason's code and a detail."""

    annotation_id: int | str
    code: str
    detail: str


class ClassFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The class of an image.

    Attributes:
        class_name: name in the source, such as a folder's name.
    """

    class_name: str


class NamedTensor(NamedTuple):
    """The item of one array.

    Attributes:
        shape: length of each axis of the item.
        dtype: one of `TENSOR_TYPES`.
        big_endian: whether a value's highest byte comes first.
    """

    shape: tuple[int, ...]
    dtype: str
    big_endian: bool


class ArrayFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item of an array. Its values are the sample's blob.

    Attributes:
        shape: length of each axis of the item.
        dtype: one of `TENSOR_TYPES`.
        big_endian: whether a value's highest byte comes first.
        label: a number or a class name; None without labels.
        features: values of the other arrays at the same index, by array name.
    """

    shape: tuple[int, ...]
    dtype: str
    big_endian: bool = False
    label: int | str | None = None
    features: dict[str, Scalar] = {}

    @property
    def tensors(self) -> tuple[NamedTensor, ...]:
        """The item, and those of other arrays."""
        return (NamedTensor(self.shape, self.dtype, self.big_endian),)


class TensorFields(ArrayFields, frozen=True, array_like=True, gc=False):
    """Items of several arrays. Their values are the sample's blobs, in the same order.

    Attributes:
        others: the items after the first one.
    """

    others: tuple[NamedTensor, ...] = ()

    @property
    def tensors(self) -> tuple[NamedTensor, ...]:
        """The items."""
        return (*super().tensors, *self.others)


class RowFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of a table, or only its size if the row is the sample's payload.

    Attributes:
        row_bytes: size of the packed cells, and `_BYTES_A_STEP` for each step of sequences.
        cells: packed cells that are not missing, by column name; nil if the row is the payload.
    """

    row_bytes: int
    cells: msgspec.Raw = msgspec.Raw(b"\xc0")


_FIELDS = msgspec.msgpack.Decoder(RowFields)

_CELLS = msgspec.msgpack.Decoder(dict[str, Any])


def fields_of_row(
    cells: dict[str, Cell], sequence_columns: Sequence[str] = ()
) -> tuple[bytes, bytes]:
    """Return (fields, payload) of a sample for a row.

    Args:
        cells: cells of the row, by column.
        sequence_columns: names of columns of sequences; each value in their lists is a step.
    """
    packed = pack(cells)
    row_bytes = len(packed)
    for name in sequence_columns:
        if isinstance(steps := cells.get(name), list):
            row_bytes += _BYTES_A_STEP * len(steps)
    if len(packed) <= LARGE_ROW_BYTES:
        return pack(RowFields(row_bytes, msgspec.Raw(packed))), b""
    return pack(RowFields(row_bytes)), packed


def row_of(sample: Sample) -> dict[str, Cell]:
    """Return the cells of a sample's row. The payload must be loaded."""
    return _CELLS.decode(sample.payload or _FIELDS.decode(sample.fields).cells)


def row_bytes(sample: Sample) -> int:
    """Return the estimated size of a sample's row. The payload need not be loaded."""
    return _FIELDS.decode(sample.fields).row_bytes


def labels_of(cells: Mapping[str, Cell], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the class names of a row without repeats, in the order of the columns.

    >>> labels_of({"a": "cat", "b": [7, "cat", float("nan")]}, ("b", "a"))
    ('7', 'cat')
    """
    names: dict[str, None] = {}
    for column in columns:
        cell = cells.get(column)
        values = cell if isinstance(cell, list) else [] if cell is None else [cell]
        names |= {text_of(value).strip(): None for value in values if value == value}  # not of NaN
    return tuple(filter(None, names))
