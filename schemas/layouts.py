"""Layouts: which features an Example holds, under which keys, and how they follow from a sample.

A layout is a frozen value with the methods of `Layout`; one of the user's own is passed to a
pipeline's `build` like those here. It sees one sample with its images, and no storage.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from schemas.boxes import PlacedBox, place_box
from schemas.coco import BadAnnotation, DetectionFields, DetectionObject
from schemas.example import FeatureValues
from schemas.features import Content, Feature, FeatureSpec, Kind
from schemas.images import EncodedImage, ImageInfo
from schemas.samples import Sample

_BYTES_PER_OBJECT = 4 * 4 + 4 + 2 + 1 + 10  # box, area, label, crowd flag, a short name
_BYTES_BESIDE_OBJECTS = 541  # keys, lengths, hash, format and framing of a record without objects


class Built(NamedTuple):
    """The values of one Example.

    Attributes:
        features: per key its kind and values, for `encode_example_parts`.
        dropped: annotations left out, with their reasons.
        repairs: names of what was mended, one entry a time, such as `box_clipped`.
        labels: class labels of the record, for the index.
    """

    features: FeatureValues
    dropped: list[BadAnnotation]
    repairs: list[str]
    labels: list[int]


class Unfit(NamedTuple):
    """Why a sample cannot become an Example: a SAMPLE code and a detail."""

    code: str
    detail: str


class Layout(Protocol):
    """What the transforms ask of a layout; implementations are frozen and picklable.

    Attributes:
        name: as in the manifest.
        spec: the features of every Example.
    """

    @property
    def name(self) -> str:
        """The layout's name in the manifest."""

    @property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes, for the plan."""

    def record_bytes(self, sample: Sample) -> int:
        """Return the size of the sample's record in its shard, before its images are read."""

    def build(
        self, sample: Sample, images: Sequence[EncodedImage], label_names: Mapping[int, str]
    ) -> Built | Unfit:
        """Return the Example's values from the sample and its images, in its blobs' order."""


class SizeMismatch(enum.Enum):
    """What to do where the image's size is not the annotation file's.

    AUTO scales boxes where the aspect ratios agree within a pixel and rejects the rest. TRUST_IMAGE
    takes boxes as pixels of the image, TRUST_JSON as pixels of the annotation file's size.
    """

    AUTO = "auto"
    REJECT = "reject"
    TRUST_IMAGE = "trust_image"
    TRUST_JSON = "trust_json"


class Frame(NamedTuple):
    """The pixel frame that boxes are measured in.

    Attributes:
        width_px: its width.
        height_px: its height.
        orientation: EXIF orientation from the stored image to it; 1 when it is the stored one.
        repair: the name of what was mended by choosing it, or empty.
    """

    width_px: int
    height_px: int
    orientation: int = 1
    repair: str = ""


DETECTION = FeatureSpec(
    "detection",
    (
        Feature("image/height", Kind.INT64, False, "image height in px, from the file"),
        Feature("image/width", Kind.INT64, False, "image width in px, from the file"),
        Feature(
            "image/filename", Kind.BYTES, False, "name relative to the image root", Content.TEXT
        ),
        Feature("image/source_id", Kind.BYTES, False, "COCO image id in decimal", Content.TEXT),
        Feature(
            "image/key/sha256", Kind.BYTES, False, "hex SHA-256 of image/encoded", Content.TEXT
        ),
        Feature("image/encoded", Kind.BYTES, False, "the file's bytes, unchanged", Content.IMAGE),
        Feature("image/format", Kind.BYTES, False, "jpeg, png, gif or bmp, as found", Content.TEXT),
        Feature("image/object/bbox/xmin", Kind.FLOAT, True, "left edges / image width, in [0, 1]"),
        Feature("image/object/bbox/xmax", Kind.FLOAT, True, "right edges / image width, in [0, 1]"),
        Feature("image/object/bbox/ymin", Kind.FLOAT, True, "top edges / image height, in [0, 1]"),
        Feature(
            "image/object/bbox/ymax", Kind.FLOAT, True, "bottom edges / image height, in [0, 1]"
        ),
        Feature("image/object/class/text", Kind.BYTES, True, "category names", Content.TEXT),
        Feature("image/object/class/label", Kind.INT64, True, "category ids", Content.CLASS_LABEL),
        Feature("image/object/is_crowd", Kind.INT64, True, "1 where the object is a crowd, else 0"),
        Feature("image/object/area", Kind.FLOAT, True, "areas in px squared, as annotated"),
    ),
)
"""Model Garden's and the Object Detection API's keys; both `class/label` and `class/text`."""
_DETECTION_KINDS = [(feature.key, feature.kind) for feature in DETECTION.sorted_features]
_DETECTION_FIELDS = msgspec.msgpack.Decoder(DetectionFields)


@dataclass(frozen=True)
class DetectionLayout:
    """One Example per image with its boxes, in the keys of Model Garden's detection readers.

    Attributes:
        on_size_mismatch: what to do where the image's size is not the annotation file's.
    """

    on_size_mismatch: SizeMismatch = SizeMismatch.AUTO
    name: str = "detection"

    @property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        return DETECTION

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        return {"on_size_mismatch": self.on_size_mismatch.value}

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size to within some ten bytes an object, without opening the fields.

        The estimate fixes the number of shards, hence bytes: changing it is a breaking change.
        """
        (image,) = sample.blobs
        names_bytes = len(sample.key) + len(image.name)
        objects_bytes = _BYTES_PER_OBJECT * len(sample.annotation_ids)
        return _BYTES_BESIDE_OBJECTS + names_bytes + objects_bytes + image.size_bytes

    def build(
        self, sample: Sample, images: Sequence[EncodedImage], label_names: Mapping[int, str]
    ) -> Built | Unfit:
        """Return the features of an image and its boxes, or why its size does not fit them."""
        fields = _DETECTION_FIELDS.decode(sample.fields)
        (image,) = images
        frame = choose_frame(fields, image.info, self.on_size_mismatch)
        if isinstance(frame, Unfit):
            return frame
        repairs = [frame.repair] if frame.repair else []
        boxes: list[PlacedBox] = []
        kept: list[DetectionObject] = []
        dropped: list[BadAnnotation] = []
        for annotation_id, instance in zip(sample.annotation_ids, fields.objects, strict=True):
            placed = place_box(
                instance.bbox_xywh_px, frame.width_px, frame.height_px, frame.orientation
            )
            if not isinstance(placed, PlacedBox):
                dropped.append(BadAnnotation(annotation_id, *placed))
                continue
            boxes.append(placed)
            kept.append(instance)
            if placed.clipped:
                repairs.append("box_clipped")
        features = _detection_values(sample, image, boxes, kept, label_names)
        return Built(features, dropped, repairs, [instance.category_id for instance in kept])


def choose_frame(fields: DetectionFields, info: ImageInfo, policy: SizeMismatch) -> Frame | Unfit:
    """Return the frame of an image's boxes, given the file's size and the annotations'.

    A size that the EXIF orientation swaps means boxes in the upright picture; they are turned into
    the stored one, since TensorFlow decodes pixels as stored.
    """
    json_size = (fields.width_px, fields.height_px)
    file_size = (info.width_px, info.height_px)
    if json_size == file_size:
        return Frame(*json_size)
    if policy is SizeMismatch.TRUST_IMAGE:
        return Frame(*file_size, repair="size_from_image")
    if info.orientation >= 5 and json_size == file_size[::-1]:
        return Frame(*json_size, orientation=info.orientation, repair="boxes_turned")
    if policy is SizeMismatch.TRUST_JSON:
        return Frame(*json_size, repair="size_from_json")
    if policy is SizeMismatch.AUTO and aspects_agree(json_size, file_size):
        return Frame(*json_size, repair="boxes_rescaled")
    return Unfit(
        "E-IMG-SIZE",
        f"{file_size[0]} x {file_size[1]} in the file, {json_size[0]} x {json_size[1]} annotated",
    )


def aspects_agree(size_px: tuple[int, int], other_px: tuple[int, int]) -> bool:
    """Return whether one size is the other scaled, within a pixel of rounding on one side.

    >>> aspects_agree((640, 427), (320, 214)), aspects_agree((640, 427), (320, 216))
    (True, False)
    """
    width, height = size_px
    other_width, other_height = other_px
    return (
        abs(other_height - height * other_width / width) <= 1
        or abs(other_width - width * other_height / height) <= 1
    )


def _detection_values(
    sample: Sample,
    image: EncodedImage,
    boxes: Sequence[PlacedBox],
    kept: Sequence[DetectionObject],
    label_names: Mapping[int, str],
) -> FeatureValues:
    values: dict[str, Sequence] = {
        "image/height": [image.info.height_px],
        "image/width": [image.info.width_px],
        "image/filename": [image.name.encode()],
        "image/source_id": [sample.key.encode()],
        "image/key/sha256": [image.sha256.encode()],
        "image/encoded": [image.data],
        "image/format": [image.info.format.encode()],
        "image/object/bbox/xmin": [box.xmin for box in boxes],
        "image/object/bbox/xmax": [box.xmax for box in boxes],
        "image/object/bbox/ymin": [box.ymin for box in boxes],
        "image/object/bbox/ymax": [box.ymax for box in boxes],
        "image/object/class/text": [label_names[i.category_id].encode() for i in kept],
        "image/object/class/label": [i.category_id for i in kept],
        "image/object/is_crowd": [i.is_crowd for i in kept],
        "image/object/area": [i.area_px2 for i in kept],
    }
    return {key: (kind, values[key]) for key, kind in _DETECTION_KINDS}
