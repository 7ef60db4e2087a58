"""`PictureLayout`: the base of layouts of annotated pictures, and the `Picture` that they get.

Annotations are measured in a frame: the picture as stored or upright, in the size that the
annotation file gives. The base finds the frame and places objects in the written image.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from beam_tfrec.schemas.fields import (
    STORED_FRACTIONS,
    UPRIGHT_FRACTIONS,
    AttributedFields,
    Attributes,
    BadAnnotation,
    EncodedImage,
    ImageInfo,
    ObjectFields,
    Segmentation,
    SegmentFields,
    Window,
)
from beam_tfrec.schemas.geometry import boxes
from beam_tfrec.schemas.layouts import Built, Labels, Layout, Unfit, Values
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Sample

_FIELDS = msgspec.msgpack.Decoder(AttributedFields)  # also of `PictureFields`, which has fewer
_SEGMENTATIONS = msgspec.msgpack.Decoder(list[Segmentation])
_NO_SEGMENTATION = Segmentation()
_NO_ATTRIBUTES: Attributes = {}


class SizeMismatch(enum.Enum):
    """Policy for images with another size than the annotation file says.

    AUTO scales boxes if the aspect ratios agree within a pixel, and rejects other samples.
    TRUST_IMAGE takes boxes as pixels of the image, TRUST_JSON as pixels of the annotation file's
    size.
    """

    AUTO = "auto"
    REJECT = "reject"
    TRUST_IMAGE = "trust_image"
    TRUST_JSON = "trust_json"


class Frame(NamedTuple):
    """The pixel frame that annotations are measured in.

    Attributes:
        width_px: width of the frame.
        height_px: height of the frame.
        orientation: EXIF orientation that turns the written image into the frame.
        repairs: names of repairs and assumptions made when the frame was chosen.
        crop: part of the picture that the written image shows, in that image's orientation; None
            for all of it.
    """

    width_px: int
    height_px: int
    orientation: int = 1
    repairs: tuple[str, ...] = ()
    crop: boxes.Crop | None = None


class PictureObject(msgspec.Struct, frozen=True, gc=False):
    """One object of a picture, placed in the written image.

    Attributes:
        annotation_id: id in the annotation file.
        label: class with the number and name that records hold.
        box: `xmin`, `ymin`, `xmax`, `ymax` in [0, 1] of the written image, clipped to it.
        bbox_xywh_px: COCO's bbox as annotated, in pixels of the frame. `Picture.bbox_xywh_px` gives
            it in pixels of the written image.
        area_px2: area as annotated. For a converted image it is scaled to its pixels, and reduced
            to the share of the object's box that the image shows.
        is_crowd: 0 or 1.
        keypoints_px: `[x, y, v]` for each keypoint, flat, in pixels of the frame. v is 0 for
            unlabelled, 1 for hidden, 2 for visible. Empty if none are annotated.
        segmentation: outline in pixels of the frame; empty unless the layout reads segmentations.
        attributes: attributes that the source gives, such as `difficult`, by name.
    """

    annotation_id: int | str
    label: Label
    box: boxes.PlacedBox
    bbox_xywh_px: boxes.BBoxXywhPx
    area_px2: float
    is_crowd: int
    keypoints_px: list[float] = []
    segmentation: Segmentation = _NO_SEGMENTATION
    attributes: Attributes = {}


class Picture(msgspec.Struct, frozen=True, gc=False):
    """An image with its annotations, the input of a layout.

    Layouts add to its lists while they place objects and make values.

    Attributes:
        key: the sample's key, unique in its split: the decimal image id.
        image: image file to be written: `data`, `name`, `sha256`, and in `info` its `format`,
            `width_px` and `height_px`.
        frame: pixel frame of the annotations; usually that of the image.
        fields: the image's annotations as in the file: `captions`, `segments` (of the panoptic
            image), `image_id`, `license_id`, LVIS's lists, and also objects left out of `objects`.
        objects: objects that can be written, sorted by annotation id.
        labels: labels by category id of the annotation files, and by name.
        more_images: the sample's images after the photo: the panoptic image, or PNGs of masks.
        dropped: annotations that cannot be written, with their reasons.
        repairs: names of repairs, one entry per repair; a layout may append its own.
    """

    key: str
    image: EncodedImage
    frame: Frame
    fields: AttributedFields
    objects: list[PictureObject]
    labels: Labels = {}
    more_images: Sequence[EncodedImage] = ()
    dropped: list[BadAnnotation] = []
    repairs: list[str] = []

    @property
    def panoptic_image(self) -> EncodedImage | None:
        """The PNG with the pixels of `fields.segments`; None without one."""
        return self.more_images[0] if self.more_images else None

    def bbox_xywh_px(self, found: PictureObject) -> boxes.BBoxXywhPx:
        """Return an object's `x, y, width, height` in pixels of the written image.

        These are the annotated numbers, unless the box was clipped or measured in another frame.
        """
        info, frame = self.image.info, self.frame
        its_own = (frame.width_px, frame.height_px) == (info.width_px, info.height_px)
        if its_own and frame.orientation == 1 and not frame.crop and not found.box.clipped:
            return found.bbox_xywh_px
        box, width_px, height_px = found.box, info.width_px, info.height_px
        width, height = (box.xmax - box.xmin) * width_px, (box.ymax - box.ymin) * height_px
        return box.xmin * width_px, box.ymin * height_px, width, height

    def place(self, xy_px: Sequence[float]) -> list[float]:
        """Return points `[x0, y0, x1, y1, ...]` of the frame, normalised in the written image.

        They are not clipped: points outside the image have values outside [0, 1].
        """
        frame = self.frame
        return boxes.place_points(xy_px, *frame[:3], frame.crop)

    def place_object(
        self,
        annotation_id: int | str,
        found: ObjectFields | SegmentFields,
        segmentation: Segmentation = _NO_SEGMENTATION,
        attributes: Attributes = _NO_ATTRIBUTES,
    ) -> PictureObject | tuple[str, str]:
        """Return an object placed in the written image, or (code, detail) if it is not in it."""
        bbox, frame, area_px2 = found.bbox_xywh_px, self.frame, found.area_px2
        keypoints_px = found.keypoints_px if isinstance(found, ObjectFields) else []
        box = boxes.place_box(bbox, *frame[:3], frame.crop)
        if not isinstance(box, boxes.PlacedBox):
            return box
        if self.image.window is not None or frame[:2] == (1, 1):  # of fractions, or of one pixel
            area_px2 = self._converted_px2(area_px2, bbox, box)
        label = self.labels[found.category_id]
        return PictureObject(
            annotation_id,
            label,
            box,
            bbox,
            area_px2,
            found.is_crowd,
            keypoints_px,
            segmentation,
            attributes,
        )

    def _converted_px2(
        self, annotated_px2: float, bbox_xywh_px: boxes.BBoxXywhPx, shown: boxes.PlacedBox
    ) -> float:
        """Return an object's area in pixels of the converted image.

        The area is reduced to the share of the object's box that the image shows.
        """
        frame, info = self.frame, self.image.info
        scale = info.width_px * info.height_px / (frame.width_px * frame.height_px)
        if frame.crop is None:
            return min(annotated_px2 * scale, boxes.MAX_AREA_PX2)
        left, top, right, bottom = frame.crop
        scale /= (right - left) * (bottom - top)
        whole = boxes.place_box(bbox_xywh_px, *frame[:3])
        if not isinstance(whole, boxes.PlacedBox):
            return 0.0
        if min(whole.xmin - left, right - whole.xmax, whole.ymin - top, bottom - whole.ymax) >= 0:
            return min(annotated_px2 * scale, boxes.MAX_AREA_PX2)
        share = _box_area(shown) * (right - left) * (bottom - top) / _box_area(whole)
        return min(annotated_px2 * scale * min(1.0, share), boxes.MAX_AREA_PX2)


def _box_area(box: boxes.PlacedBox) -> float:
    return (box.xmax - box.xmin) * (box.ymax - box.ymin)


@dataclass(frozen=True)
class PictureLayout(Layout):
    """The base of layouts of annotated pictures; a subclass defines `name`, `spec` and `values`.

    Attributes:
        on_size_mismatch: policy for images with another size than the annotation file says.
        first_label: see `Layout`; None for the annotation files' own ids.
    """

    on_size_mismatch: SizeMismatch = SizeMismatch.AUTO
    first_label: int | None = None

    def values(self, picture: Picture) -> Values:
        """Return the values of all features of the spec, or raise `Unfit`."""
        raise NotImplementedError

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes; a subclass adds its own."""
        ids = "original" if self.first_label_id is None else f"from {self.first_label_id}"
        return {"category_ids": ids, "on_size_mismatch": self.on_size_mismatch.value}

    def classes_of(self, sample: Sample) -> set[int | str]:
        """Return the classes of objects, of panoptic segments and of the whole image."""
        fields = _FIELDS.decode(sample.fields)
        found = (*fields.objects, *(fields.segments or ()))
        of_image = (name for name, confidence in fields.image_labels if confidence > 0)
        return {*(one.category_id for one in found), *of_image}

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's size without its annotations, for layouts of users."""
        return sum(blob.read_bytes for blob in sample.blobs)

    def build(self, sample: Sample, images: Sequence[EncodedImage], labels: Labels) -> Built:
        """Return the Example's values; raise `Unfit` if its image has another size than said."""
        fields, image, policy = _FIELDS.decode(sample.fields), images[0], self.on_size_mismatch
        json_size = fields.width_px, fields.height_px
        frame = choose_frame(json_size, image.info, policy, image.turned, image.window)
        picture = Picture(sample.key, image, frame, fields, [], labels, images[1:])
        picture.repairs.extend(frame.repairs)
        segmentations = [_NO_SEGMENTATION] * len(fields.objects)
        if sample.payload:
            segmentations = _SEGMENTATIONS.decode(sample.payload)
        attributes = fields.attributes or [{}] * len(fields.objects)
        described = list(zip(fields.objects, segmentations, attributes, strict=True))
        # The ids of captions and of the panoptic annotation follow those of objects.
        for annotation_id, of_object in zip(sample.annotation_ids, described, strict=False):
            placed = picture.place_object(annotation_id, *of_object)
            if not isinstance(placed, PictureObject):
                picture.dropped.append(BadAnnotation(annotation_id, *placed))
                continue
            if placed.box.clipped:
                picture.repairs.append("box_clipped")
            picture.objects.append(placed)
        features = self.typed(self.values(picture))
        label_ids = [placed.label.id for placed in picture.objects]
        return Built(features, picture.dropped, picture.repairs, label_ids, None, fields.license_id)


def choose_frame(
    json_size: tuple[int, int],
    info: ImageInfo,
    policy: SizeMismatch,
    turned: int = 1,
    window: Window | None = None,
) -> Frame:
    """Return the frame of an image's annotations.

    Annotations were made on the picture as stored or on the upright picture. Only the size in the
    annotation file shows which, so it is compared with both sizes of the original file. If it fits
    both, or is missing, the stored picture is assumed.

    Args:
        json_size: width and height in px by the annotation file; zeros if it does not say. With
            `UPRIGHT_FRACTIONS`, the frame is the upright picture, and with `STORED_FRACTIONS` the
            picture as stored, 1 wide and 1 high.
        info: facts of the written image.
        policy: policy for sizes that differ.
        turned: EXIF orientation by which the written image was turned upright; 1 if it was not.
        window: part of the picture that a converted image shows; None without conversion.

    Raises:
        Unfit: the sizes differ, and the policy does not allow it.
    """
    written, crop = (info.size_px, None) if window is None else window
    if json_size == written and info.orientation == turned == 1:
        return Frame(*written, crop=crop)  # nearly every picture
    stored = boxes.turn_size(written, turned)
    orientation = info.orientation if turned == 1 else turned
    upright, is_upright = boxes.turn_size(stored, orientation), False
    size, repairs = json_size if all(json_size) else stored, list[str]()
    if size in (UPRIGHT_FRACTIONS, STORED_FRACTIONS):
        is_upright, size = size == UPRIGHT_FRACTIONS, (1, 1)
    elif size == stored:
        repairs += ["frame_assumed"] if orientation != 1 and upright == stored else []
    elif policy is SizeMismatch.TRUST_IMAGE:
        size, repairs = stored, ["size_from_image"]
    elif size == upright:
        is_upright = True
    else:
        fits_stored, fits_upright = (aspects_agree(size, of_file) for of_file in (stored, upright))
        trusts_json, rescales = policy is SizeMismatch.TRUST_JSON, policy is SizeMismatch.AUTO
        if not trusts_json and not (rescales and (fits_stored or fits_upright)):
            in_file = f"{stored[0]} x {stored[1]} in the file"
            raise Unfit("E-IMG-SIZE", f"{in_file}, {size[0]} x {size[1]} annotated")
        is_upright = fits_upright and not fits_stored
        repairs += ["frame_assumed"] if orientation != 1 and fits_stored == fits_upright else []
        repairs += ["size_from_json" if trusts_json else "boxes_rescaled"]
    to_frame = orientation if is_upright else 1  # from the stored picture
    if turned != 1:
        to_frame = 1 if is_upright else boxes.inverse_orientation(turned)
    repairs += ["boxes_turned"] if to_frame != 1 else []
    return Frame(*size, to_frame, tuple(repairs), crop)


def aspects_agree(size_px: tuple[int, int], other_px: tuple[int, int]) -> bool:
    """Return whether two sizes have equal aspect ratios, within a pixel of rounding on one side.

    >>> aspects_agree((640, 427), (320, 214)), aspects_agree((640, 427), (320, 216))
    (True, False)
    """
    width, height = size_px
    other_width, other_height = other_px
    return (
        abs(other_height - height * other_width / width) <= 1
        or abs(other_width - width * other_height / height) <= 1
    )
