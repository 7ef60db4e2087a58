"""The layouts `tfds` and `keras`: keys and boxes of two other programs that write COCO.

`tfds` follows TFDS's `coco/2017` and `coco/2017_panoptic` (4.9.10). TFDS writes one of the two
lists of objects; here one Example may hold both. `keras` follows the Keras recipe 'Creating
TFRecords'. The recipe encodes each photo again; here the file's bytes are kept.
Sources: tensorflow_datasets/object_detection/coco.py,
https://keras.io/examples/keras_recipes/creating_tfrecords/.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from beam_tfrec.schemas.features import (
    Content,
    Feature,
    Kind,
    class_label,
    floats,
    image_file,
    int64,
    text,
)
from beam_tfrec.schemas.layouts import AttributeValues, Unfit, Values
from beam_tfrec.schemas.layouts.groups import FeatureGroup, GroupedLayout, orientation_to_photo
from beam_tfrec.schemas.layouts.pictures import Picture, PictureObject
from beam_tfrec.schemas.samples import PANOPTIC_IMAGE

_IMAGE = {
    image_file("image", "the image file's bytes"): "image.data",
    text("image/filename", "name relative to the image root"): "image.name",
    int64("image/id", "COCO image id"): "fields.image_id",
}
_PANOPTIC_IMAGE = (
    image_file("panoptic_image", "the panoptic PNG's bytes"),
    text("panoptic_image/filename", "name relative to the panoptic root"),
)


def _objects(key: str, id_doc: str) -> tuple[Feature, ...]:
    return (
        Feature(f"{key}/area", Kind.INT64, True, "areas in px squared, truncated"),
        Feature(
            f"{key}/bbox", Kind.FLOAT, True, "ymin, xmin, ymax, xmax in [0, 1]", Content.BOX_YXYX
        ),
        Feature(f"{key}/id", Kind.INT64, True, id_doc),
        Feature(f"{key}/is_crowd", Kind.INT64, True, "1 for a crowd, else 0", Content.FLAG),
        class_label(f"{key}/label", "class ids from 0", repeated=True),
    )


def _boxes_values(picture: Picture) -> Values:
    return _objects_values("objects", picture.objects)


def _panoptic_values(picture: Picture) -> Values:
    image = picture.panoptic_image
    if image is None:
        raise Unfit("E-EX-EMPTY", "no panoptic annotation, which TFDS has of every image")
    # The PNG's bytes are kept, so it cannot be turned to fit the photo.
    if orientation_to_photo(image, picture.image) != 1:
        detail = "drawn on the upright picture; give --orientation upright"
        raise Unfit("E-IMG-SIZE", detail, PANOPTIC_IMAGE)
    # A segment whose box lies outside the image is left out.
    found = [picture.place_object(of.id, of) for of in picture.fields.segments or []]
    placed = [segment for segment in found if isinstance(segment, PictureObject)]
    picture.repairs.extend(["segment_left_out"] * (len(found) - len(placed)))
    return {
        "panoptic_image": [image.data],
        "panoptic_image/filename": [image.name.encode()],
        **_objects_values("panoptic_objects", placed),
    }


def _objects_values(key: str, found: Sequence[PictureObject]) -> Values:
    boxes = [(of.box.ymin, of.box.xmin, of.box.ymax, of.box.xmax) for of in found]
    return {
        f"{key}/area": [int(of.area_px2) for of in found],
        f"{key}/bbox": [edge for box in boxes for edge in box],
        f"{key}/id": [of.annotation_id for of in found],
        f"{key}/is_crowd": [of.is_crowd for of in found],
        f"{key}/label": [of.label.id for of in found],
    }


_BOXES = FeatureGroup("boxes", _objects("objects", "COCO annotation ids"), _boxes_values)
_PANOPTIC = FeatureGroup(
    "panoptic",
    (*_PANOPTIC_IMAGE, *_objects("panoptic_objects", "R + 256 G + 65536 B of the pixels")),
    _panoptic_values,
)


@dataclass(frozen=True)
class TfdsLayout(GroupedLayout):
    """One Example per image, with the features of `tfds.load("coco/2017")`."""

    name: ClassVar[str] = "tfds"
    first_label_id: ClassVar[int | None] = 0
    int64_ids: ClassVar[bool] = True
    bytes_beside_objects: ClassVar[int] = 193
    bytes_per_object: ClassVar[int] = 4 * 4 + 4 + 3 + 1 + 1  # box, id, area, label, crowd flag
    image: ClassVar[AttributeValues] = AttributeValues(_IMAGE)
    groups: ClassVar[tuple[FeatureGroup, ...]] = (_BOXES, _PANOPTIC)


_KERAS_IMAGE = {
    image_file("image", "the image file's bytes"): "image.data",
    text("path", "name relative to the image root"): "image.name",
    int64("image_id", "COCO image id"): "fields.image_id",
}
_KERAS_BOXES = (
    Feature("area", Kind.FLOAT, False, "area in px squared, as annotated"),
    floats("bbox", "x, y, width, height in px of the image, from its top left"),
    class_label("category_id", "class id"),
    int64("id", "COCO annotation id"),
)


def _keras_box_values(picture: Picture) -> Values:
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

    name: ClassVar[str] = "keras"
    sample_noun: ClassVar[str] = "object"
    per_annotation: ClassVar[bool] = True
    int64_ids: ClassVar[bool] = True
    bytes_beside_objects: ClassVar[int] = 160  # including the box
    image: ClassVar[AttributeValues] = AttributeValues(_KERAS_IMAGE)
    groups: ClassVar[tuple[FeatureGroup, ...]] = (
        FeatureGroup("boxes", _KERAS_BOXES, _keras_box_values),
    )

    def values(self, picture: Picture) -> Values:
        """Return the features of an image and its one annotation."""
        for dropped in picture.dropped:
            raise Unfit("E-EX-EMPTY", dropped.detail)
        return super().values(picture)
