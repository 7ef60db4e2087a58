"""Groups `masks` and `polygons`: the pixels of each object, as images and as outlines.

`image/object/mask` is Model Garden's: a PNG of the whole image for each object. Polygons have no
keys that readers agree on. Ours are three flat lists, which are one ragged tensor of floats, per
object, per polygon, x and y in turn:

    tf.io.RaggedFeature(
        tf.float32,
        value_key="image/object/polygon",
        partitions=[
            tf.io.RaggedFeature.RowLengths("image/object/polygon_count"),
            tf.io.RaggedFeature.RowLengths("image/object/polygon_length"),
        ],
    )
"""

from collections.abc import Sequence
from importlib.metadata import version

import msgspec

from schemas.features import Feature, Kind
from schemas.geometry.turns import inverse_orientation, turn_array, turn_size
from schemas.layouts.groups import FeatureGroup
from schemas.layouts.pictures import Picture, Values
from schemas.picture_fields import Segmentation
from schemas.samples import Sample

# From 459 objects of COCO 2017: masks of 769 bytes in images of 0.29 Mpx, polygons of 177 bytes. Of
# TACO, 9.9 kB in 9.0 Mpx and 212 bytes.
_BYTES_PER_MASK = 480
_PX_PER_MASK_BYTE = 1000
_BYTES_PER_OBJECT_OF_POLYGONS = 180

_MASKS = (
    Feature(
        "image/object/mask",
        Kind.BYTES,
        True,
        "PNGs of the whole image, 8-bit gray, 1 where the object is, else 0",
    ),
)
_POLYGONS = (
    Feature(
        "image/object/polygon",
        Kind.FLOAT,
        True,
        "x / image width, y / image height of each point in turn, not clipped",
    ),
    Feature("image/object/polygon_count", Kind.INT64, True, "polygons of each object"),
    Feature("image/object/polygon_length", Kind.INT64, True, "floats of each polygon"),
)


class _Size(msgspec.Struct, array_like=True, gc=False):
    """The first fields of `PictureFields`."""

    width_px: int
    height_px: int


_SIZE = msgspec.msgpack.Decoder(_Size)


def _mask_values(picture: Picture) -> Values:
    segmentations = [found.segmentation for found in picture.objects]
    picture.repairs.extend("mask_empty" for segmentation in segmentations if not segmentation)
    return {"image/object/mask": [_mask_png(found, picture) for found in segmentations]}


def _mask_png(segmentation: Segmentation, picture: Picture) -> bytes:
    from schemas.geometry.masks import mask_png_of, scaled_mask_of
    from schemas.gray_png import encode_gray_png  # late: these import numpy

    info, frame = picture.image.info, picture.frame
    frame_size_px = frame.width_px, frame.height_px
    size_px = turn_size((info.width_px, info.height_px), frame.orientation)
    if frame_size_px == size_px and frame.orientation == 1 and frame.crop is None:
        return mask_png_of(segmentation, *size_px)
    mask = scaled_mask_of(segmentation, frame_size_px, size_px, frame.crop_of_frame)
    return encode_gray_png(turn_array(mask, inverse_orientation(frame.orientation)))


def _polygon_values(picture: Picture) -> Values:
    outlines = [found.segmentation.polygons_px for found in picture.objects]
    points = [picture.place(polygon) for polygons in outlines for polygon in polygons]
    return {
        "image/object/polygon": [value for polygon in points for value in polygon],
        "image/object/polygon_count": list(map(len, outlines)),
        "image/object/polygon_length": list(map(len, points)),
    }


MASKS = FeatureGroup("masks", _MASKS, _mask_values, found_as="boxes", by_default=False)
POLYGONS = FeatureGroup("polygons", _POLYGONS, _polygon_values, found_as="boxes", by_default=False)


def mask_codecs() -> str:
    """Return the libraries that decide masks' bytes, with the versions that are in use here."""
    from schemas.gray_png import png_codec  # late, as above

    return f"pycocotools {version('pycocotools')} {png_codec()}"


def segmentation_bytes(sample: Sample, features: Sequence[str]) -> int:
    """Return about how many bytes masks and polygons add to a sample's record.

    A mask's PNG is its image's pixels in runs of 258, two bits each, and the object's outline. The
    estimate fixes the number of shards, hence bytes: changing it is a breaking change.

    Args:
        sample: with or without its payload.
        features: names of the groups that are written.
    """
    objects = len(sample.annotation_ids)
    estimate = 0
    if "masks" in features:
        size = _SIZE.decode(sample.fields)
        estimate += objects * (
            _BYTES_PER_MASK + size.width_px * size.height_px // _PX_PER_MASK_BYTE
        )
    if "polygons" in features:
        estimate += objects * _BYTES_PER_OBJECT_OF_POLYGONS
    return estimate
