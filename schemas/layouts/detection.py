"""The `detection` layout, with the keys of Model Garden and the Object Detection API.

The Object Detection API reshapes an image's keypoints to [objects, keypoints] and expects the same
number of keypoints in the whole data set. So objects with fewer keypoints are filled up with zeros.
"""

from dataclasses import dataclass
from typing import ClassVar

import msgspec

from beam_tfrec.schemas.features import Feature, Kind, class_label, floats, image_file, int64, text
from beam_tfrec.schemas.layouts import AttributeValues, Values
from beam_tfrec.schemas.layouts.groups import (
    MASKS,
    OF_PNGS,
    PANOPTIC,
    POLYGONS,
    FeatureGroup,
    GroupedLayout,
    mask_codecs,
)
from beam_tfrec.schemas.layouts.pictures import Picture
from beam_tfrec.schemas.samples import Sample

# Means of 459 objects of COCO 2017: masks have 769 bytes in images of 0.29 Mpx, polygons have 177
# bytes. In TACO, masks have 9.9 kB in images of 9.0 Mpx, polygons 212 bytes.
_BYTES_PER_MASK = 480
_PX_PER_MASK_BYTE = 1000
_BYTES_PER_OBJECT_OF_POLYGONS = 180

# From 26 panoptic PNGs of COCO: a PNG of 7 kB gives three masks of 14 kB together.
_MASK_BYTES_PER_PANOPTIC_BYTE = 2

_LABEL = "image/object/class/label"
_IMAGE = {
    int64("image/height", "image height in px, from the file"): "image.info.height_px",
    int64("image/width", "image width in px, from the file"): "image.info.width_px",
    text("image/filename", "name relative to the image root"): "image.name",
    text("image/source_id", "key of the sample: for COCO, the image id"): "key",
    text("image/key/sha256", "hex SHA-256 of image/encoded"): "image.sha256",
    image_file("image/encoded", "the image file's bytes"): "image.data",  # of `Picture`
    text("image/format", "jpeg, png, gif or bmp, as found"): "image.info.format",
}
_IS_CROWD = "1 where the object is a crowd, else 0"
_BOXES = {
    floats("image/object/bbox/xmin", "left edges / image width, in [0, 1]"): "box.xmin",
    floats("image/object/bbox/xmax", "right edges / image width, in [0, 1]"): "box.xmax",
    floats("image/object/bbox/ymin", "top edges / image height, in [0, 1]"): "box.ymin",
    floats("image/object/bbox/ymax", "bottom edges / image height, in [0, 1]"): "box.ymax",
    text("image/object/class/text", "class names", repeated=True): "label.name",
    class_label(_LABEL, "class ids of label_map.pbtxt", repeated=True): "label.id",
    int64("image/object/is_crowd", _IS_CROWD, repeated=True): "is_crowd",
    floats("image/object/area", "areas in px squared, as annotated, else of the boxes"): "area_px2",
}
BOXES = FeatureGroup("boxes", tuple(_BOXES), AttributeValues(_BOXES, of_objects=True))
_SEEN = "a point: 0 unlabelled (x and y are 0), 1 hidden, 2 visible"
_KEYPOINTS = (
    floats("image/object/keypoint/x", "points / image width, object by object"),
    floats("image/object/keypoint/y", "points / image height, object by object"),
    int64("image/object/keypoint/visibility", _SEEN, repeated=True),
    int64("image/object/keypoint/num", "labelled points, an object", repeated=True),
    text("image/object/keypoint/text", "names of the points", repeated=True),
)


def _keypoints_values(picture: Picture) -> Values:
    """Return the keypoint features, with the same number of keypoints for every object.

    Objects of a class without keypoints get the names of the class with most keypoints. Objects of
    a class with fewer keypoints get nameless ones after their own.
    """
    labels = sorted(picture.labels.values())
    most = max((label.keypoints for label in labels), key=len, default=())
    xyv_px: list[float] = []
    num: list[int] = []
    texts: list[str] = []
    for found in picture.objects:
        names = found.label.keypoints or most
        unlabelled = [0.0] * (3 * len(most) - len(found.keypoints_px))
        xyv_px += [*found.keypoints_px, *unlabelled]
        num.append(sum(v > 0 for v in found.keypoints_px[2::3]))
        texts += [*names, *[""] * (len(most) - len(names))]
    points = list(zip(xyv_px[0::3], xyv_px[1::3], xyv_px[2::3], strict=True))
    # Zeros mean 'unlabelled' in COCO. They are not a place in the image and must not be turned.
    places = [picture.place(xyv[:2]) if xyv != (0, 0, 0) else (0.0, 0.0) for xyv in points]
    return {
        "image/object/keypoint/x": [x for x, _ in places],
        "image/object/keypoint/y": [y for _, y in places],
        "image/object/keypoint/visibility": [int(v) for *_, v in points],
        "image/object/keypoint/num": num,
        "image/object/keypoint/text": [name.encode() for name in texts],
    }


KEYPOINTS = FeatureGroup("keypoints", _KEYPOINTS, _keypoints_values, needs_boxes=True)


def _captions_values(picture: Picture) -> Values:
    return {"image/caption": [caption.encode() for caption in picture.fields.captions]}


def _license_values(picture: Picture) -> Values:
    license_id = picture.fields.license_id
    return {"image/license": [] if license_id is None else [license_id]}


def _lvis_values(picture: Picture) -> Values:
    fields = picture.fields
    found = fields.negative_category_ids, fields.not_exhaustive_category_ids
    label_ids = ([picture.labels[category_id].id for category_id in ids] for ids in found)
    return {of.key: ids for of, ids in zip(_LVIS, label_ids, strict=True)}


_CAPTIONS = text("image/caption", "captions, by annotation id", repeated=True)
CAPTIONS = FeatureGroup("captions", (_CAPTIONS,), _captions_values)
_LICENSE = int64("image/license", "id of the license; none where it is not known", repeated=True)
LICENSE = FeatureGroup("license", (_LICENSE,), _license_values, by_default=False)
_NEGATIVE = "class ids of which no object is in the image, verified"
_NOT_EXHAUSTIVE = "class ids of which not all objects are annotated"
_LVIS = (
    int64("image/neg_category_ids", _NEGATIVE, repeated=True),
    int64("image/not_exhaustive_category_ids", _NOT_EXHAUSTIVE, repeated=True),
)
LVIS = FeatureGroup("lvis", _LVIS, _lvis_values)

_IMAGE_LABELS = (
    class_label("image/class/label", "class ids of verified labels of the image", repeated=True),
    text("image/class/text", "class names of these labels", repeated=True),
    floats("image/class/confidence", "1 where the class is in the image, 0 where it is not"),
)


def _image_labels_values(picture: Picture) -> Values:
    """Return the labels of the whole image, as in its source."""
    labels = [picture.labels[name] for name, _ in picture.fields.image_labels]
    return {
        "image/class/label": [label.id for label in labels],
        "image/class/text": [label.name.encode() for label in labels],
        "image/class/confidence": [confidence for _, confidence in picture.fields.image_labels],
    }


IMAGE_LABELS = FeatureGroup("image_labels", _IMAGE_LABELS, _image_labels_values)
"""Group for labels of whole images, with their confidences."""

GROUPS = (BOXES, MASKS, POLYGONS, KEYPOINTS, CAPTIONS, PANOPTIC, LICENSE, LVIS)
"""Groups for what COCO's files hold."""


def _attribute_group(name: str, feature: Feature) -> FeatureGroup:
    """Return the group of an attribute. An object without it has 0, or an empty text."""

    def values(picture: Picture) -> Values:
        given = [found.attributes.get(name) for found in picture.objects]
        if feature.kind is Kind.INT64:
            return {feature.key: [value or 0 for value in given]}
        return {feature.key: [str(value or "").encode() for value in given]}

    return FeatureGroup(name, (feature,), values, needs_boxes=True)


_FLAGS = {
    "difficult": ("difficult", "1 where the object is hard to recognise, else 0"),
    "truncated": ("truncated", "1 where the object reaches beyond its box, -1 not known, else 0"),
    "occluded": ("occluded", "1 where the object is partly hidden, -1 not known, else 0"),
    "group_of": ("group_of", "1 where the box holds a group of objects, -1 not known, else 0"),
    "depiction": ("depiction", "1 where the object is drawn or a model, -1 not known, else 0"),
    "inside": ("is_inside", "1 where the picture shows the object's inside, -1 not known, else 0"),
}
_VIEW = text("image/object/view", "sides that objects show, such as Left", repeated=True)
ATTRIBUTES = (
    *(
        _attribute_group(name, int64(f"image/object/{key}", doc, repeated=True))
        for name, (key, doc) in _FLAGS.items()
    ),
    _attribute_group("pose", _VIEW),
)
"""Groups of one attribute each, for sources whose objects have it."""


@dataclass(frozen=True)
class DetectionLayout(GroupedLayout):
    """One Example per image with its annotations, with the keys of Model Garden's readers."""

    name: ClassVar[str] = "detection"
    bytes_beside_objects: ClassVar[int] = 541  # keys, lengths, hash, format and framing
    bytes_per_object: ClassVar[int] = 4 * 4 + 4 + 2 + 1 + 10  # box, area, label, flag, name
    image: ClassVar[AttributeValues] = AttributeValues(_IMAGE)
    groups: ClassVar[tuple[FeatureGroup, ...]] = (*GROUPS, *ATTRIBUTES, IMAGE_LABELS, *OF_PNGS)

    @property
    def reads_segmentations(self) -> bool:
        """Whether masks or polygons are written."""
        return bool({"masks", "polygons"} & set(self.names))

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        return super().options() | ({"mask_codecs": mask_codecs()} if "masks" in self.names else {})

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's estimated size, exact to some ten bytes an object without outlines.

        A mask's PNG holds the outline, and all pixels in runs of 258, with two bits per run.
        """
        objects, estimate = len(sample.annotation_ids), super().record_bytes(sample)
        if "masks" in self.names:
            width_px, height_px, *_ = msgspec.msgpack.decode(sample.fields)
            estimate += objects * (_BYTES_PER_MASK + width_px * height_px // _PX_PER_MASK_BYTE)
        if "polygons" in self.names:
            estimate += objects * _BYTES_PER_OBJECT_OF_POLYGONS
        for png in sample.blobs[1:]:  # panoptic: its masks are written instead of its bytes
            estimate += (_MASK_BYTES_PER_PANOPTIC_BYTE - 1) * png.size_bytes - len(png.name)
        return estimate + len(sample.key)
