"""The `detection` layout: Model Garden's and the Object Detection API's keys.

The Object Detection API reshapes all keypoints of an image to [objects, keypoints], with one number
of keypoints for the whole data set. An object without any has as many zeros as others have points.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from schemas.features import Feature, Kind, class_label, image_file, text
from schemas.layouts.groups import (
    MASKS,
    PANOPTIC,
    POLYGONS,
    FeatureGroup,
    GroupedLayout,
    mask_codecs,
    segmentation_bytes,
)
from schemas.layouts.pictures import Picture, Values
from schemas.manifest import Label
from schemas.samples import Sample

_MASK_BYTES_PER_PANOPTIC_BYTE = 2  # of 26 panoptic PNGs of COCO: 14 kB for 7 kB, in three masks

_IMAGE = (
    Feature("image/height", Kind.INT64, False, "image height in px, from the file"),
    Feature("image/width", Kind.INT64, False, "image width in px, from the file"),
    text("image/filename", "name relative to the image root"),
    text("image/source_id", "COCO image id in decimal"),
    text("image/key/sha256", "hex SHA-256 of image/encoded"),
    image_file("image/encoded", "the image file's bytes"),
    text("image/format", "jpeg, png, gif or bmp, as found"),
)
_BOXES = (
    Feature("image/object/bbox/xmin", Kind.FLOAT, True, "left edges / image width, in [0, 1]"),
    Feature("image/object/bbox/xmax", Kind.FLOAT, True, "right edges / image width, in [0, 1]"),
    Feature("image/object/bbox/ymin", Kind.FLOAT, True, "top edges / image height, in [0, 1]"),
    Feature("image/object/bbox/ymax", Kind.FLOAT, True, "bottom edges / image height, in [0, 1]"),
    text("image/object/class/text", "category names", repeated=True),
    class_label("image/object/class/label", "class ids of label_map.pbtxt", repeated=True),
    Feature("image/object/is_crowd", Kind.INT64, True, "1 where the object is a crowd, else 0"),
    Feature("image/object/area", Kind.FLOAT, True, "areas in px squared, as annotated"),
)


def _image_values(picture: Picture) -> Values:
    image = picture.image
    return {
        "image/height": [image.info.height_px],
        "image/width": [image.info.width_px],
        "image/filename": [image.name.encode()],
        "image/source_id": [picture.key.encode()],
        "image/key/sha256": [image.sha256.encode()],
        "image/encoded": [image.data],
        "image/format": [image.info.format.encode()],
    }


def _boxes_values(picture: Picture) -> Values:
    objects = picture.objects
    boxes = [found.box for found in objects]
    return {
        "image/object/bbox/xmin": [box.xmin for box in boxes],
        "image/object/bbox/xmax": [box.xmax for box in boxes],
        "image/object/bbox/ymin": [box.ymin for box in boxes],
        "image/object/bbox/ymax": [box.ymax for box in boxes],
        "image/object/class/text": [found.label.name.encode() for found in objects],
        "image/object/class/label": [found.label.id for found in objects],
        "image/object/is_crowd": [found.is_crowd for found in objects],
        "image/object/area": [found.area_px2 for found in objects],
    }


IMAGE = FeatureGroup("image", _IMAGE, _image_values, found_as="images")
BOXES = FeatureGroup("boxes", _BOXES, _boxes_values, found_as="boxes")
_KEYPOINTS = (
    Feature("image/object/keypoint/x", Kind.FLOAT, True, "points / image width, object by object"),
    Feature("image/object/keypoint/y", Kind.FLOAT, True, "points / image height, object by object"),
    Feature(
        "image/object/keypoint/visibility",
        Kind.INT64,
        True,
        "a point: 0 unlabelled (x and y are 0), 1 hidden, 2 visible",
    ),
    Feature("image/object/keypoint/num", Kind.INT64, True, "labelled points, an object"),
    text("image/object/keypoint/text", "names of the points", repeated=True),
)


def keypoint_names(label: Label, labels: Iterable[Label]) -> list[str]:
    """Return the names of an object's keypoints, as many for every label.

    A class without keypoints has the names of one that has most; one with fewer than others gets
    nameless ones after its own.

    >>> dog, fly = Label(1, "dog", keypoints=("nose", "tail")), Label(2, "fly", keypoints=("eye",))
    >>> keypoint_names(fly, [dog, fly]), keypoint_names(Label(3, "cup"), [dog, fly])
    (['eye', ''], ['nose', 'tail'])
    """
    most = max((other.keypoints for other in labels), key=len, default=())
    names = label.keypoints or most
    return [*names, *[""] * (len(most) - len(names))]


def _keypoints_values(picture: Picture) -> Values:
    labels = sorted(picture.labels.values())
    names_of: dict[int, list[str]] = {}
    xyv_px: list[float] = []
    num: list[int] = []
    texts: list[str] = []
    for found in picture.objects:
        names = names_of.get(found.label.id)
        if names is None:
            names = names_of[found.label.id] = keypoint_names(found.label, labels)
        if len(found.keypoints_px) > 3 * len(names):
            raise ValueError(f"{len(found.keypoints_px) // 3} keypoints of {len(names)} names")
        unlabelled = [0.0] * (3 * len(names) - len(found.keypoints_px))
        xyv_px += [*found.keypoints_px, *unlabelled]
        num.append(sum(v > 0 for v in found.keypoints_px[2::3]))
        texts += names
    xs, ys = _place(picture, xyv_px)
    return {
        "image/object/keypoint/x": xs,
        "image/object/keypoint/y": ys,
        "image/object/keypoint/visibility": [int(v) for v in xyv_px[2::3]],
        "image/object/keypoint/num": num,
        "image/object/keypoint/text": [name.encode() for name in texts],
    }


def _place(picture: Picture, xyv_px: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the points' x and y in the image, 0 where COCO has zeros for 'unlabelled'."""
    points = list(zip(xyv_px[0::3], xyv_px[1::3], xyv_px[2::3], strict=True))
    placed = picture.place([number for x, y, _ in points for number in (x, y)])
    for index, point in enumerate(points):
        if point == (0, 0, 0):  # no place in the image, however it is turned
            placed[2 * index : 2 * index + 2] = 0.0, 0.0
    return placed[0::2], placed[1::2]


KEYPOINTS = FeatureGroup("keypoints", _KEYPOINTS, _keypoints_values, found_as="keypoints")


def _captions_values(picture: Picture) -> Values:
    return {"image/caption": [caption.encode() for caption in picture.fields.captions]}


def _license_values(picture: Picture) -> Values:
    license_id = picture.fields.license_id
    return {"image/license": [] if license_id is None else [license_id]}


def _lvis_values(picture: Picture) -> Values:
    negative = picture.fields.negative_category_ids
    not_exhaustive = picture.fields.not_exhaustive_category_ids
    return {
        "image/neg_category_ids": _label_ids(negative, picture),
        "image/not_exhaustive_category_ids": _label_ids(not_exhaustive, picture),
    }


def _label_ids(category_ids: Iterable[int], picture: Picture) -> list[int]:
    """Return class ids as records hold them.

    A category that is not in the annotation files has none, whatever the numbering: it is left out,
    and counted.
    """
    label_ids: list[int] = []
    for category_id in category_ids:
        label = picture.labels.get(category_id)
        if label is None:
            picture.repairs.append("unknown_category_left_out")
        else:
            label_ids.append(label.id)
    return label_ids


CAPTIONS = FeatureGroup(
    "captions",
    (text("image/caption", "captions, by annotation id", repeated=True),),
    _captions_values,
    found_as="captions",
)
_LICENSE = Feature(
    "image/license", Kind.INT64, True, "id of the license; none where it is not known"
)
LICENSE = FeatureGroup("license", (_LICENSE,), _license_values, "license", by_default=False)
_NEGATIVE = "class ids of which no object is in the image, verified"
_NOT_EXHAUSTIVE = "class ids of which not all objects are annotated"
_LVIS = (
    Feature("image/neg_category_ids", Kind.INT64, True, _NEGATIVE),
    Feature("image/not_exhaustive_category_ids", Kind.INT64, True, _NOT_EXHAUSTIVE),
)
LVIS = FeatureGroup("lvis", _LVIS, _lvis_values, found_as="lvis")

GROUPS = (BOXES, MASKS, POLYGONS, KEYPOINTS, CAPTIONS, PANOPTIC, LICENSE, LVIS)
"""What `--features` can name."""


@dataclass(frozen=True)
class DetectionLayout(GroupedLayout):
    """One Example per image with its annotations, in the keys of Model Garden's readers.

    Attributes:
        first_label: number of the first class, where sources know classes by name; None where
            `category_ids` says which numbers there are.
    """

    name: ClassVar[str] = "detection"
    bytes_beside_objects: ClassVar[int] = 541  # keys, lengths, hash, format and framing
    bytes_per_object: ClassVar[int] = 4 * 4 + 4 + 2 + 1 + 10  # box, area, label, flag, a name
    first_label: int | None = None
    image_group: ClassVar[FeatureGroup] = IMAGE
    groups: ClassVar[tuple[FeatureGroup, ...]] = GROUPS

    @property
    def first_label_id(self) -> int | None:
        """The number from which labels are counted; None for the files' own ids."""
        return super().first_label_id if self.first_label is None else self.first_label

    @property
    def reads_segmentations(self) -> bool:
        """Whether masks or polygons are written."""
        return bool({"masks", "polygons"} & set(self.names))

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        return super().options() | ({"mask_codecs": mask_codecs()} if "masks" in self.names else {})

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size to within some ten bytes an object, masks and polygons aside."""
        masks_bytes = segmentation_bytes(sample, self.names)
        for png in sample.blobs[1:]:  # panoptic: masks are written of it, not its bytes or name
            masks_bytes += (_MASK_BYTES_PER_PANOPTIC_BYTE - 1) * png.size_bytes - len(png.name)
        return super().record_bytes(sample) + len(sample.key) + masks_bytes


DETECTION = DetectionLayout().spec
"""What a record with boxes holds, for `parse_spec`."""
