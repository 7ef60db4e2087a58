"""Fields of samples by source, in the sources' own pixels and types, and images as they are read.

Readers of every source make the fields; layouts open them.
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

LARGE_ROW_BYTES = 256
"""Larger rows travel as payloads: what all rows hold is in memory where a run is in process."""

_BYTES_A_STEP = 6  # beyond its values: the lengths of its Feature, and of the list in there


class ImageInfo(msgspec.Struct, frozen=True, gc=False):
    """What an image file's header says, by its content.

    Attributes:
        format: `jpeg`, `png`, `gif` or `bmp`, never from the extension; `raw` where it is none.
        width_px: width as stored, before any EXIF rotation; at least 1, 0 where it is none.
        height_px: height as stored, likewise.
        orientation: EXIF orientation (1..8), 1 when absent or invalid.
        traits: sorted names of what is unusual, keys of `findings.TRAITS`.
        channels: samples a pixel (1..4) as `tf.io.decode_image(channels=0)` gives them.
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
"""What is known of bytes that are no image file, such as an item of an array."""


class Window(NamedTuple):
    """What a converted image shows of the picture that it was made of.

    Attributes:
        whole_size_px: width and height of that picture, once it was turned.
        crop: the part that is shown; None for all of it.
    """

    whole_size_px: tuple[int, int]
    crop: Crop | None = None


class EncodedImage(msgspec.Struct, frozen=True, gc=False):
    """An image that was read and checked, as it is to be written.

    Attributes:
        name: path relative to its root.
        data: the file's bytes, or those of the picture turned upright or converted.
        sha256: of them, lower-case hex.
        info: what their header says.
        turned: EXIF orientation by which pixels were turned; 1 where the bytes are the file's own.
        source_sha256: of the file, where the bytes are not its own; else empty.
        pixels: height x width x channels of `Layout.pixels_dtype`, C-contiguous, where the layout
            asks for them; `info` then has their size, and `data` is the file's own.
        window: what a converted image shows of its file's; None where it was not converted.
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
        """Width and height, turned but neither resized nor cropped."""
        return self.info.size_px if self.window is None else self.window.whole_size_px


class Segmentation(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Where an object's pixels are: polygons, or a run-length encoding of its image; never both.

    Attributes:
        polygons_px: each `[x0, y0, x1, y1, ...]` of at least three points; their union is meant.
        rle_counts: lengths of alternating runs of 0 and 1, the first of 0, down the columns from
            the left; they sum to the image's width times height.
    """

    polygons_px: list[list[float]] = []
    rle_counts: list[int] = []

    def __bool__(self) -> bool:
        """Return whether anything is meant."""
        return bool(self.polygons_px or self.rle_counts)


class ObjectFields(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One object of an image.

    Attributes:
        category_id: as the annotation file has it; its class's name where there are no ids.
        bbox_xywh_px: COCO's bbox.
        area_px2: as annotated.
        is_crowd: 0 or 1.
        keypoints_px: `[x, y, v]` for each keypoint of the category, flat; v is 0 for unlabelled, 1
            for hidden, 2 for visible. Empty where none are annotated.
    """

    category_id: int | str
    bbox_xywh_px: BBoxXywhPx
    area_px2: float
    is_crowd: int
    keypoints_px: list[float] = []


class SegmentFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One segment of a panoptic image.

    Attributes:
        id: R + 256 G + 65536 B of its pixels in the panoptic PNG.
        category_id: as the annotation file has it.
        bbox_xywh_px: COCO's bbox.
        area_px2: as annotated.
        is_crowd: 0 or 1.
        is_thing: 1 where the category is countable, 0 where it is stuff such as sky.
    """

    id: int
    category_id: int
    bbox_xywh_px: BBoxXywhPx
    area_px2: float
    is_crowd: int
    is_thing: int = 1


class PictureFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The annotation fields of one image, as a `Sample` carries them.

    The sample's annotation ids are those of the objects, in their order, then of the captions, then
    of the panoptic annotation. Its payload, where segmentations are asked for, is a list of one
    `Segmentation` an object, an empty one where it has none.

    Attributes:
        width_px: image width by the annotation file; 0 where it does not say.
        height_px: image height by the annotation file; 0 where it does not say.
        objects: by annotation id.
        captions: by annotation id.
        segments: of the panoptic PNG, the sample's second blob, in the file's order, by which
            instances are numbered; None where the image has none.
        image_id: by the annotation file.
        license_id: of the image; None where it says nothing.
        negative_category_ids: of categories that are verified to be absent from the image (LVIS).
        not_exhaustive_category_ids: of categories whose objects are not all annotated (LVIS).
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


class BadAnnotation(NamedTuple):
    """An annotation that cannot be written: its id, the reason's code and a detail."""

    annotation_id: int | str
    code: str
    detail: str


class ClassFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The class of an image.

    Attributes:
        class_name: as its source has it, such as a folder's name.
    """

    class_name: str


class ArrayFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item of an array, but for its values.

    Attributes:
        shape: of the item.
        dtype: one of `TENSOR_TYPES`.
        big_endian: whether its values have their highest byte first.
        label: a number, or the name of its class; None where there are no labels.
        features: values of other arrays at its row, by their names.
    """

    shape: tuple[int, ...]
    dtype: str
    big_endian: bool = False
    label: int | str | None = None
    features: dict[str, Scalar] = {}


class RowFields(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of a table, or its size where it is the sample's payload.

    Attributes:
        row_bytes: size of the packed cells, and of what sequences need beyond that.
        cells: of every column that is not missing, by name; None for a payload.
    """

    row_bytes: int
    cells: dict[str, Any] | None = None


_FIELDS = msgspec.msgpack.Decoder(RowFields)

_CELLS = msgspec.msgpack.Decoder(dict[str, Any])


def fields_of_row(
    cells: dict[str, Cell], sequence_columns: Sequence[str] = ()
) -> tuple[bytes, bytes]:
    """Return (fields, payload) of a sample with these cells; columns of sequences have steps."""
    packed = pack(cells)
    lists = [cells[name] for name in sequence_columns if isinstance(cells.get(name), list)]
    row_bytes = len(packed) + _BYTES_A_STEP * sum(map(len, lists))
    if len(packed) <= LARGE_ROW_BYTES:
        return pack((row_bytes, msgspec.Raw(packed))), b""  # as `RowFields` is packed
    return pack(RowFields(row_bytes)), packed


def row_of(sample: Sample) -> dict[str, Cell]:
    """Return the cells of a sample that has its payload."""
    cells = _FIELDS.decode(sample.fields).cells
    return _CELLS.decode(sample.payload) if cells is None else cells


def row_bytes(sample: Sample) -> int:
    """Return about the size of a sample's row, with or without its payload."""
    return _FIELDS.decode(sample.fields).row_bytes


def labels_of(cells: Mapping[str, Cell], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a row's classes, in the order of the columns, each once.

    >>> labels_of({"a": "cat", "b": [7, "cat"]}, ("b", "a"))
    ('7', 'cat')
    """
    names: dict[str, None] = {}
    for column in columns:
        cell = cells.get(column)
        values = cell if isinstance(cell, list) else [] if cell is None else [cell]
        names |= dict.fromkeys(name for value in values if (name := text_of(value).strip()))
    return tuple(names)
