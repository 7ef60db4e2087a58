"""What a `Sample` of an annotated picture carries of its annotations, in the file's own pixels.

Readers of every annotation format make these; layouts of pictures open them.
"""

from typing import NamedTuple

import msgspec

from schemas.geometry.boxes import BBoxXywhPx


class Segmentation(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
