"""The `tfds` layout: keys, labels and boxes of TFDS's `coco/2017` and `coco/2017_panoptic`.

Source: tensorflow_datasets/object_detection/coco.py, 4.9.10. Each of its configurations has one of
the two lists of objects; here both may stand in one Example.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from schemas.features import Content, Feature, Kind
from schemas.geometry.boxes import PlacedBox
from schemas.layouts import Unfit
from schemas.layouts.groups import PLACE, FeatureGroup, GroupedLayout, orientation_to_photo
from schemas.layouts.pictures import CategoryIds, Picture, PictureObject, Values
from schemas.samples import Sample

_BYTES_BESIDE_OBJECTS = 193  # keys, lengths and framing of a record without objects
_BYTES_PER_OBJECT = 4 * 4 + 4 + 3 + 1 + 1  # box, id, area, label, crowd flag

_IMAGE = (
    Feature("image", Kind.BYTES, False, "the image file's bytes", Content.IMAGE),
    Feature("image/filename", Kind.BYTES, False, "name relative to the image root", Content.TEXT),
    Feature("image/id", Kind.INT64, False, "COCO image id"),
)
_PANOPTIC_IMAGE = (
    Feature("panoptic_image", Kind.BYTES, False, "the panoptic PNG's bytes", Content.IMAGE),
    Feature(
        "panoptic_image/filename",
        Kind.BYTES,
        False,
        "name relative to the panoptic root",
        Content.TEXT,
    ),
)


def _objects(key: str, id_doc: str) -> tuple[Feature, ...]:
    return (
        Feature(f"{key}/area", Kind.INT64, True, "areas in px squared, truncated"),
        Feature(
            f"{key}/bbox", Kind.FLOAT, True, "ymin, xmin, ymax, xmax in [0, 1]", Content.BOX_YXYX
        ),
        Feature(f"{key}/id", Kind.INT64, True, id_doc),
        Feature(f"{key}/is_crowd", Kind.INT64, True, "1 for a crowd, else 0", Content.FLAG),
        Feature(f"{key}/label", Kind.INT64, True, "class ids from 0", Content.CLASS_LABEL),
    )


def _image_values(picture: Picture) -> dict[str, Sequence]:
    return {
        "image": [picture.image.data],
        "image/filename": [picture.image.name.encode()],
        "image/id": [picture.fields.image_id],
    }


def _boxes_values(picture: Picture) -> dict[str, Sequence]:
    return _objects_values("objects", picture.objects)


def _panoptic_values(picture: Picture) -> Values | Unfit:
    image = picture.panoptic_image
    if image is None:
        return Unfit("E-EX-EMPTY", "no panoptic annotation, which TFDS has of every image")
    orientation = orientation_to_photo(image, picture.image)
    if isinstance(orientation, Unfit):
        return orientation
    if orientation != 1:  # its bytes pass through, and a reader would lay them on other pixels
        detail = "made of the picture as viewed, which takes --orientation upright"
        return Unfit("E-IMG-SIZE", detail, PLACE)
    return {
        "panoptic_image": [image.data],
        "panoptic_image/filename": [image.name.encode()],
        **_objects_values("panoptic_objects", _segments(picture)),
    }


def _segments(picture: Picture) -> list[PictureObject]:
    """Return a panoptic image's segments; one whose box lies outside the image is left out."""
    placed: list[PictureObject] = []
    for segment in picture.fields.segments or []:
        bbox = segment.bbox_xywh_px
        box = picture.place_box(bbox)
        if isinstance(box, PlacedBox):
            label = picture.labels[segment.category_id]
            area_px2, is_crowd = picture.area_px2(segment.area_px2, bbox), segment.is_crowd
            placed.append(PictureObject(segment.id, label, box, bbox, area_px2, is_crowd))
        else:
            picture.repairs.append("segment_left_out")
    return placed


def _objects_values(key: str, objects: Iterable[PictureObject]) -> dict[str, Sequence]:
    found = list(objects)
    boxes = [(of.box.ymin, of.box.xmin, of.box.ymax, of.box.xmax) for of in found]
    return {
        f"{key}/area": [int(of.area_px2) for of in found],
        f"{key}/bbox": [edge for box in boxes for edge in box],
        f"{key}/id": [of.annotation_id for of in found],
        f"{key}/is_crowd": [of.is_crowd for of in found],
        f"{key}/label": [of.label.id for of in found],
    }


_BOXES = FeatureGroup(
    "boxes",
    _objects("objects", "COCO annotation ids"),
    _boxes_values,
    found_as="boxes",
    sequence="objects",
)
_PANOPTIC = FeatureGroup(
    "panoptic",
    (*_PANOPTIC_IMAGE, *_objects("panoptic_objects", "R + 256 G + 65536 B of the pixels")),
    _panoptic_values,
    found_as="panoptic",
    sequence="panoptic_objects",
)


@dataclass(frozen=True)
class TfdsLayout(GroupedLayout):
    """One Example per image, as code written for `tfds.load("coco/2017")` expects it."""

    category_ids: CategoryIds = CategoryIds.CONTIGUOUS
    image_group: ClassVar[FeatureGroup] = FeatureGroup("image", _IMAGE, _image_values, "images")
    groups: ClassVar[tuple[FeatureGroup, ...]] = (
        _BOXES,
        _PANOPTIC,
    )

    def __post_init__(self) -> None:
        """Refuse ids with gaps, which TFDS's class labels cannot have."""
        super().__post_init__()
        if self.category_ids is not CategoryIds.CONTIGUOUS:
            raise ValueError(
                f"category_ids of layout tfds must be contiguous, got {self.category_ids.value}:"
                " leave it out, or give --layout detection"
            )

    @property
    def name(self) -> str:
        """The layout's name in the manifest."""
        return "tfds"

    @property
    def first_label_id(self) -> int | None:
        """The number from which labels are counted."""
        return 0

    @property
    def int64_ids(self) -> bool:
        """Whether ids must be numbers."""
        return True

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size to within some ten bytes an object, without its fields.

        The estimate fixes the number of shards, hence bytes: changing it is a breaking change.
        """
        names_bytes = sum(len(blob.name) for blob in sample.blobs)
        objects_bytes = _BYTES_PER_OBJECT * len(sample.annotation_ids)
        images_bytes = sum(blob.size_bytes for blob in sample.blobs)
        return _BYTES_BESIDE_OBJECTS + names_bytes + objects_bytes + images_bytes


_BYTES_BESIDE_IMAGE = 160  # keys, lengths, numbers and framing of a record

_KERAS_IMAGE = (
    Feature("image", Kind.BYTES, False, "the image file's bytes", Content.IMAGE),
    Feature("path", Kind.BYTES, False, "name relative to the image root", Content.TEXT),
    Feature("image_id", Kind.INT64, False, "COCO image id"),
)
_KERAS_BOXES = (
    Feature("area", Kind.FLOAT, False, "area in px squared, as annotated"),
    Feature("bbox", Kind.FLOAT, True, "x, y, width, height in px of the image, from its top left"),
    Feature("category_id", Kind.INT64, False, "class id", Content.CLASS_LABEL),
    Feature("id", Kind.INT64, False, "COCO annotation id"),
)


def _keras_image_values(picture: Picture) -> dict[str, Sequence]:
    return {
        "image": [picture.image.data],
        "path": [picture.image.name.encode()],
        "image_id": [picture.fields.image_id],
    }


def _keras_box_values(picture: Picture) -> dict[str, Sequence]:
    (found,) = picture.objects
    return {
        "area": [found.area_px2],
        "bbox": picture.bbox_xywh_px(found),
        "category_id": [found.label.id],
        "id": [found.annotation_id],
    }


@dataclass(frozen=True)
class KerasLayout(GroupedLayout):
    """One Example per annotation: the photo, its path, and one box in pixels."""

    image_group: ClassVar[FeatureGroup] = FeatureGroup(
        "image", _KERAS_IMAGE, _keras_image_values, "images"
    )
    groups: ClassVar[tuple[FeatureGroup, ...]] = (
        FeatureGroup("boxes", _KERAS_BOXES, _keras_box_values, found_as="boxes"),
    )

    @property
    def name(self) -> str:
        """The layout's name in the manifest."""
        return "keras"

    @property
    def per_annotation(self) -> bool:
        """Whether an Example is of one annotation."""
        return True

    @property
    def int64_ids(self) -> bool:
        """Whether ids must be numbers."""
        return True

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size to within some ten bytes.

        The estimate fixes the number of shards, hence bytes: changing it is a breaking change.
        """
        blob = sample.blobs[0]
        return _BYTES_BESIDE_IMAGE + len(blob.name) + blob.size_bytes

    def values(self, picture: Picture) -> Values | Unfit:
        """Return the features of an image and its one annotation."""
        for dropped in picture.dropped:
            return Unfit("E-EX-EMPTY", dropped.detail)
        return super().values(picture)
