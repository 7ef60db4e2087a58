"""Layouts of annotated pictures: what they all see, and the base that places it in the image."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from beam_tfrec.schemas.fields import (
    BadAnnotation,
    EncodedImage,
    ImageInfo,
    ObjectFields,
    PictureFields,
    Segmentation,
    SegmentFields,
    Window,
)
from beam_tfrec.schemas.geometry.boxes import (
    BBoxXywhPx,
    Crop,
    PlacedBox,
    inverse_orientation,
    place_box,
    place_points,
    turn_size,
)
from beam_tfrec.schemas.layouts import Built, Labels, Layout, Unfit, Values
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Sample

_FIELDS = msgspec.msgpack.Decoder(PictureFields)
_SEGMENTATIONS = msgspec.msgpack.Decoder(list[Segmentation])
_NO_SEGMENTATION = Segmentation()


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
    """The pixel frame that annotations are measured in.

    Attributes:
        width_px: its width.
        height_px: its height.
        orientation: EXIF orientation that turns the written image into it; 1 when it is that
            image's own.
        repairs: names of what was mended or assumed by choosing it.
        crop: the part of the picture that the written image shows, in its own frame and not in
            this one; None for all.
    """

    width_px: int
    height_px: int
    orientation: int = 1
    repairs: tuple[str, ...] = ()
    crop: Crop | None = None


class PictureObject(msgspec.Struct, frozen=True, gc=False):
    """One object of a picture, where it lies in the image that is written.

    Attributes:
        annotation_id: of the annotation file.
        label: its class, as records hold it: `label.id`, `label.name`.
        box: `xmin`, `ymin`, `xmax`, `ymax` in [0, 1] of the image that is written, clipped to it.
        bbox_xywh_px: COCO's bbox as annotated, in the pixels of the picture's frame; see
            `Picture.bbox_xywh_px` for the image's.
        area_px2: as annotated; of a converted image in its pixels, and where the image shows a
            part of the object's box alone, by that share.
        is_crowd: 0 or 1.
        keypoints_px: `[x, y, v]` for each keypoint, flat, in the pixels of the picture's frame; v
            is 0 for unlabelled, 1 for hidden, 2 for visible. Empty where none are annotated.
        segmentation: in the pixels of the picture's frame; empty unless the layout reads them.
    """

    annotation_id: int | str
    label: Label
    box: PlacedBox
    bbox_xywh_px: BBoxXywhPx
    area_px2: float
    is_crowd: int
    keypoints_px: list[float] = []
    segmentation: Segmentation = _NO_SEGMENTATION


class Picture(msgspec.Struct, frozen=True, gc=False):
    """An image with its annotations, as layouts see it.

    Attributes:
        key: the sample's key, unique in its split: the decimal image id.
        image: the image file that is written: `data`, `name`, `sha256`, and in `info` its `format`,
            `width_px` and `height_px`.
        frame: the pixels that annotations are measured in; those of the image, as a rule.
        fields: the annotations as the file has them, those left out of `objects` too: `captions`,
            `segments` (of the panoptic image), `image_id`, `license_id`, and LVIS's lists.
        objects: those that can be written, by annotation id.
        labels: labels that records hold, by category id of the annotation files and by name.
        panoptic_image: the PNG that `fields.segments` are about; None where there is none.
        dropped: annotations that cannot be written, with their reasons.
        repairs: names of what was mended, one entry a time; a layout may append its own.
    """

    key: str
    image: EncodedImage
    frame: Frame
    fields: PictureFields
    objects: list[PictureObject]
    labels: Labels = {}
    panoptic_image: EncodedImage | None = None
    dropped: list[BadAnnotation] = []
    repairs: list[str] = []

    def bbox_xywh_px(self, found: PictureObject) -> BBoxXywhPx:
        """Return an object's `x, y, width, height` in pixels of the image that is written.

        They are the annotated ones, unless these were clipped, or measured in another frame.
        """
        info, frame = self.image.info, self.frame
        its_own = (frame.width_px, frame.height_px) == (info.width_px, info.height_px)
        if its_own and frame.orientation == 1 and not frame.crop and not found.box.clipped:
            return found.bbox_xywh_px
        box, width_px, height_px = found.box, info.width_px, info.height_px
        width, height = (box.xmax - box.xmin) * width_px, (box.ymax - box.ymin) * height_px
        return box.xmin * width_px, box.ymin * height_px, width, height

    def place(self, xy_px: Sequence[float]) -> list[float]:
        """Return points of the picture's frame, `[x0, y0, x1, y1, ...]`, normalised in the image.

        They are not clipped: what is annotated outside the image has values outside [0, 1].
        """
        frame = self.frame
        return place_points(xy_px, *frame[:3], frame.crop)

    def place_object(
        self,
        annotation_id: int | str,
        found: ObjectFields | SegmentFields,
        segmentation: Segmentation = _NO_SEGMENTATION,
    ) -> PictureObject | tuple[str, str]:
        """Return an annotated object in the image, or (code, detail) of why it is not in there."""
        bbox, frame, area_px2 = found.bbox_xywh_px, self.frame, found.area_px2
        keypoints_px = found.keypoints_px if isinstance(found, ObjectFields) else []
        box = place_box(bbox, *frame[:3], frame.crop)
        if not isinstance(box, PlacedBox):
            return box
        if self.image.window is not None:
            area_px2 = self._converted_px2(area_px2, bbox, box)
        label = self.labels[found.category_id]
        return PictureObject(
            annotation_id, label, box, bbox, area_px2, found.is_crowd, keypoints_px, segmentation
        )

    def _converted_px2(
        self, annotated_px2: float, bbox_xywh_px: BBoxXywhPx, shown: PlacedBox
    ) -> float:
        """Return an object's area in pixels of the converted image.

        Where the image shows a part of the object's box alone, it is that share of the area.
        """
        frame, info = self.frame, self.image.info
        scale = info.width_px * info.height_px / (frame.width_px * frame.height_px)
        if frame.crop is None:
            return annotated_px2 * scale
        left, top, right, bottom = frame.crop
        scale /= (right - left) * (bottom - top)
        whole = place_box(bbox_xywh_px, *frame[:3])
        if not isinstance(whole, PlacedBox):
            return 0.0
        if min(whole.xmin - left, right - whole.xmax, whole.ymin - top, bottom - whole.ymax) >= 0:
            return annotated_px2 * scale
        share = _box_area(shown) * (right - left) * (bottom - top) / _box_area(whole)
        return annotated_px2 * scale * min(1.0, share)


def _box_area(box: PlacedBox) -> float:
    return (box.xmax - box.xmin) * (box.ymax - box.ymin)


@dataclass(frozen=True)
class PictureLayout(Layout):
    """The base of layouts of annotated pictures; a subclass says `name`, `spec` and `values`.

    Attributes:
        on_size_mismatch: what to do where the image's size is not the annotation file's.
        first_label: see `Layout`; None for the annotation files' own ids.
    """

    on_size_mismatch: SizeMismatch = SizeMismatch.AUTO
    first_label: int | None = None

    def values(self, picture: Picture) -> Values | Unfit:
        """Return the values of every feature of the spec, or why the picture gets no Example."""
        raise NotImplementedError

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes; a subclass adds those of its own."""
        ids = "original" if self.first_label_id is None else f"from {self.first_label_id}"
        return {"category_ids": ids, "on_size_mismatch": self.on_size_mismatch.value}

    def record_bytes(self, sample: Sample) -> int:
        """Return the size of the sample's record, to within its annotations."""
        return sum(blob.size_bytes for blob in sample.blobs)

    def build(
        self, sample: Sample, images: Sequence[EncodedImage], labels: Labels
    ) -> Built | Unfit:
        """Return the Example's values, or why the sample gets no Example."""
        fields, image, policy = _FIELDS.decode(sample.fields), images[0], self.on_size_mismatch
        json_size, panoptic = (fields.width_px, fields.height_px), [*images[1:], None][0]
        frame = choose_frame(json_size, image.info, policy, image.turned, image.window)
        if isinstance(frame, Unfit):
            return frame
        repairs = [*frame.repairs]
        picture = Picture(sample.key, image, frame, fields, [], labels, panoptic, [], repairs)
        segmentations = [_NO_SEGMENTATION] * len(fields.objects)
        if sample.payload:
            segmentations = _SEGMENTATIONS.decode(sample.payload)
        described = list(zip(fields.objects, segmentations, strict=True))
        # The ids of captions and of the panoptic annotation follow those of objects.
        for annotation_id, (found, outline) in zip(sample.annotation_ids, described, strict=False):
            placed = picture.place_object(annotation_id, found, outline)
            if not isinstance(placed, PictureObject):
                picture.dropped.append(BadAnnotation(annotation_id, *placed))
                continue
            repairs += ["box_clipped"] if placed.box.clipped else []
            picture.objects.append(placed)
        values = self.values(picture)
        if isinstance(values, Unfit):
            return values
        label_ids = [placed.label.id for placed in picture.objects]
        features = self.typed(values)
        return Built(features, picture.dropped, repairs, label_ids, None, fields.license_id)


def choose_frame(
    json_size: tuple[int, int],
    info: ImageInfo,
    policy: SizeMismatch,
    turned: int = 1,
    window: Window | None = None,
) -> Frame | Unfit:
    """Return the frame of an image's annotations, given the size that they state in px.

    Only a size tells whether they were made in the picture as stored or in the upright one, so it
    is the size of the file, not of what is written, that they are compared with. Where an EXIF
    orientation leaves both sizes equal, they are taken as made in the stored one.

    Args:
        json_size: width and height by the annotation file; zeros where it does not say, and they
            are taken as made in the stored one too.
        info: of the image that is written.
        policy: what to do where sizes differ.
        turned: EXIF orientation by which the written image was turned upright; 1 for not.
        window: what it shows of the picture that it was made of, where it was converted.
    """
    written, crop = (info.size_px, None) if window is None else window
    if json_size == written and info.orientation == turned == 1:
        return Frame(*written, crop=crop)  # nearly every picture
    stored = turn_size(written, turned)
    orientation = info.orientation if turned == 1 else turned
    upright, is_upright = turn_size(stored, orientation), False
    size, repairs = json_size if all(json_size) else stored, list[str]()
    if size == stored:
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
            return Unfit("E-IMG-SIZE", f"{in_file}, {size[0]} x {size[1]} annotated")
        is_upright = fits_upright and not fits_stored
        repairs += ["frame_assumed"] if orientation != 1 and fits_stored == fits_upright else []
        repairs += ["size_from_json" if trusts_json else "boxes_rescaled"]
    to_frame = orientation if is_upright else 1  # from the stored picture
    if turned != 1:
        to_frame = 1 if is_upright else inverse_orientation(turned)
    repairs += ["boxes_turned"] if to_frame != 1 else []
    return Frame(*size, to_frame, tuple(repairs), crop)


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
