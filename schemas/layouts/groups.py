"""Groups of features that `--features` names, and the base of layouts made of such groups."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, ClassVar, Self

from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind, floats, int64, text
from beam_tfrec.schemas.fields import BadAnnotation, EncodedImage, Segmentation
from beam_tfrec.schemas.geometry.boxes import inverse_orientation, turn_array, turn_size, unturn_box
from beam_tfrec.schemas.layouts import AttributeValues, Unfit, Values
from beam_tfrec.schemas.layouts.pictures import Picture, PictureLayout
from beam_tfrec.schemas.samples import CLASS_PNG, OBJECT_PNG, PANOPTIC_IMAGE, Sample

# Contents with files of their own.
_OWN_FILES = ("boxes", "captions", "panoptic", "semantic", "object_masks", "instance_masks")


@dataclass(frozen=True)
class FeatureGroup:
    """Features that are written together or not at all.

    Attributes:
        name: name for `--features`.
        features: declarations of the features.
        values: function that returns the values by key, or raises `Unfit`.
        needs: content of the annotation files that it needs; empty if named like the group.
        by_default: whether it is written without `--features` if files hold its content.
        needs_boxes: whether its values belong to objects, so that `boxes` must be written too.
    """

    name: str
    features: tuple[Feature, ...]
    values: Callable[[Picture], Values]
    needs: str = ""
    by_default: bool = True
    needs_boxes: bool = False

    @property
    def found_as(self) -> str:
        """Name in `JobPlan.found` of the content that it needs, such as `boxes` for masks."""
        return self.needs or self.name


def choose_groups(
    groups: Sequence[FeatureGroup], asked: Sequence[str] | None, found: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the groups to write, in the layout's order.

    Args:
        groups: groups of the layout.
        asked: names of requested groups; None for the default.
        found: contents of the annotation files, as in `JobPlan.found`.

    Raises:
        ValueError: when a requested group has no file, or a file's content has no group.
    """
    if asked is None:
        chosen = [group for group in groups if group.by_default and group.found_as in found]
    else:
        chosen = [group for group in groups if group.name in asked]
    for group in chosen:
        if group.found_as not in found:
            what = f"features name {group.name}, but no annotation file holds {group.found_as}"
            raise ValueError(f"{what}: add such a file, or leave {group.name} out")
    read = {group.found_as for group in chosen}
    for content in _OWN_FILES:
        if content in found and content not in read:
            what, remedy = "the layout has no features for", "give another layout"
            if content in (group.name for group in groups):
                what, remedy = f"features {','.join(asked or ())} leave out", f"add {content}"
            raise ValueError(f"a file holds {content}, which {what}: {remedy}, or leave it out")
    return tuple(group.name for group in chosen)


@dataclass(frozen=True)
class GroupedLayout(PictureLayout):
    """The base of layouts made of groups; a subclass lists the groups.

    Attributes:
        features: names of the groups to write. None for all default groups that the annotation
            files hold. Until the layout is resolved, that means boxes.
        image: function that returns the features of every image.
        groups: groups that `features` can name.
        bytes_beside_objects: size of the keys, lengths and framing of a record without objects.
        bytes_per_object: size of one object's values.
    """

    image: ClassVar[AttributeValues]
    groups: ClassVar[tuple[FeatureGroup, ...]]
    bytes_beside_objects: ClassVar[int]
    bytes_per_object: ClassVar[int] = 0

    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse unknown groups, and groups of objects without boxes."""
        asked, names = self.features or (), [group.name for group in self.groups]
        if unknown := [name for name in asked if name not in names]:
            raise ValueError(f"features must be {', '.join(names)}, got {unknown[0]!r}: omit it")
        for group in self.groups:
            if group.needs_boxes and group.name in asked and "boxes" not in asked:
                what = f"features {group.name} must come with boxes"
                raise ValueError(f"{what}, got {','.join(asked)!r}: add boxes")

    @functools.cached_property
    def spec(self) -> FeatureSpec:
        """The features of every Example."""
        of_groups = (feature for group in self.chosen for feature in group.features)
        return FeatureSpec(self.name, (*self.image.features, *of_groups))

    @functools.cached_property
    def chosen(self) -> list[FeatureGroup]:
        """The groups that are written."""
        return [group for group in self.groups if group.name in self.names]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the groups that are written."""
        return ("boxes",) if self.features is None else self.features

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes."""
        asked = "by default" if self.features is None else " ".join(sorted(set(self.features)))
        return {**super().options(), "features": asked}

    def resolved(self, found: Sequence[str]) -> Self:
        """Return the layout for what the annotation files hold."""
        return dataclasses.replace(self, features=choose_groups(self.groups, self.features, found))

    def record_bytes(self, sample: Sample) -> int:
        """Return the record's estimated size, exact to some ten bytes per object."""
        files = [blob.image_file for blob in sample.blobs]
        files_bytes = sum(len(name) + size for name, size in files)
        objects_bytes = self.bytes_per_object * len(sample.annotation_ids)
        return self.bytes_beside_objects + files_bytes + objects_bytes

    def values(self, picture: Picture) -> Values:
        """Return the features of an image and its annotations."""
        values: dict[str, Sequence] = {**self.image(picture)}
        for group in self.chosen:
            values.update(group.values(picture))
        return values


_MASK = "PNGs of the whole image, 8-bit gray, 1 where the object is, else 0"
_MASKS = (Feature("image/object/mask", Kind.BYTES, True, _MASK),)
_POINTS = "x / image width, y / image height of each point in turn, not clipped"
_POLYGONS = (
    floats("image/object/polygon", _POINTS),
    int64("image/object/polygon_count", "polygons of each object", repeated=True),
    int64("image/object/polygon_length", "floats of each polygon", repeated=True),
)


def _mask_values(picture: Picture) -> Values:
    segmentations = [found.segmentation for found in picture.objects]
    picture.repairs.extend("mask_empty" for segmentation in segmentations if not segmentation)
    return {"image/object/mask": [_mask_png(found, picture) for found in segmentations]}


def _mask_png(segmentation: Segmentation, picture: Picture, pixels: Any = None) -> bytes:
    # Imported here and below: the module imports numpy, which takes a tenth of a second.
    from beam_tfrec.schemas.geometry import masks

    info, frame = picture.image.info, picture.frame
    frame_size_px = frame.width_px, frame.height_px
    annotated_size_px = picture.fields.width_px, picture.fields.height_px
    if segmentation.rle_counts and annotated_size_px != frame_size_px:  # only with `trust_image`
        what = "run lengths are of {} x {} px, the image has {} x {} px"
        what = what.format(*annotated_size_px, *frame_size_px)
        raise Unfit("E-IMG-SIZE", f"{what}; give --on_size_mismatch trust_json or auto")
    size_px = turn_size((info.width_px, info.height_px), frame.orientation)
    inverse = inverse_orientation(frame.orientation)
    crop_of_frame = frame.crop and unturn_box(*frame.crop, inverse)
    if pixels is None:
        mask = masks.scaled_mask_of(segmentation, frame_size_px, size_px, crop_of_frame)
    else:
        mask = masks.sampled_mask_of(pixels, size_px, crop_of_frame)
    return masks.encode_gray_png(turn_array(mask, inverse))


def _polygon_values(picture: Picture) -> Values:
    outlines = [found.segmentation.polygons_px for found in picture.objects]
    points = [picture.place(polygon) for polygons in outlines for polygon in polygons]
    return {
        "image/object/polygon": [value for polygon in points for value in polygon],
        "image/object/polygon_count": list(map(len, outlines)),
        "image/object/polygon_length": list(map(len, points)),
    }


MASKS = FeatureGroup("masks", _MASKS, _mask_values, "boxes", by_default=False, needs_boxes=True)
POLYGONS = FeatureGroup(
    "polygons", _POLYGONS, _polygon_values, "boxes", by_default=False, needs_boxes=True
)


def mask_codecs() -> str:
    """Return names and installed versions of the libraries that decide masks' bytes."""
    from beam_tfrec.schemas.geometry.masks import png_codec  # imported here, see `_mask_png`

    return f"pycocotools {version('pycocotools')} {png_codec()}"


MAX_PANOPTIC_PX = 1 << 26
"""Largest panoptic image. Decoding and three masks take up to 8 bytes per pixel: 0.5 GiB."""

_ONE_OR_NONE = "one 8-bit gray PNG, none without a panoptic annotation"
_DOCS = {
    "image/segmentation/class/encoded": "0 for void, 1 for things, category id - 90 for stuff",
    "image/panoptic/category_mask": "category ids, 0 for void",
    "image/panoptic/instance_mask": "things numbered from 1, else 0",
}
_PANOPTIC = tuple(
    Feature(key, Kind.BYTES, True, f"{_ONE_OR_NONE}: {doc}") for key, doc in _DOCS.items()
)
RGB_8_BITS = (bytes([8, 2]),)
"""Bit depth and colour type in a PNG's header, at bytes 24 and 25."""

NUMBERS_8_BITS = (bytes([8, 0]), *(bytes([bits, 3]) for bits in (1, 2, 4, 8)))
"""The same of PNGs with a number for each pixel: gray of 8 bits, or places in a palette."""


def _panoptic_values(picture: Picture) -> Values:
    import numpy as np  # takes a tenth of a second, and few data sets have panoptic images

    from beam_tfrec.schemas.geometry.masks import encode_gray_png, paint_values, read_places

    png, segments = picture.panoptic_image, picture.fields.segments
    if png is None or segments is None:
        return {key: [] for key in _DOCS}
    values = paint_values(segments)
    if isinstance(values, str):
        raise Unfit("E-EX-FAILED", f"panoptic: {values}", PANOPTIC_IMAGE)
    orientation = orientation_to_photo(png, picture.image)
    read = functools.partial(read_places, segments=segments)
    places, has_unlisted_pixels, num_empty = _read_pixels(png, PANOPTIC_IMAGE, read)
    if segments and num_empty == len(segments):
        shown = f"the part of {png.name} that is left" if picture.frame.crop else png.name
        detail = f"none of its {len(segments)} segments has a pixel in {shown}"
        picture.dropped.append(BadAnnotation(picture.fields.image_id, "E-SEG-EMPTY", detail))
        return {key: [] for key in _DOCS}
    if has_unlisted_pixels:
        picture.repairs.append("panoptic_pixels_unlisted")
    picture.repairs.extend(["panoptic_segment_empty"] * num_empty)
    places = turn_array(places, orientation)
    return {
        key: [encode_gray_png(np.take(by_place, places))]
        for key, by_place in zip(_DOCS, values, strict=True)
    }


def _read_pixels(png: EncodedImage, place: int, read: Callable[..., Any]) -> Any:
    """Return what is read of a PNG, or raise `Unfit`.

    Args:
        png: the PNG.
        place: its index in `Sample.blobs`.
        read: function of the PNG's bytes and size.
    """
    pixels = png.info.width_px * png.info.height_px
    if pixels > MAX_PANOPTIC_PX:
        raise Unfit("E-IMG-PIXELS", f"{pixels} pixels, limit {MAX_PANOPTIC_PX}", place)
    try:
        return read(png.data, png.info.size_px)
    except OSError as error:
        if error.errno is not None:  # a fault of the machine, not of the file
            raise
        raise Unfit("E-IMG-DAMAGED", f"pixels of {png.name}: {error}", place) from None


def orientation_to_photo(
    png: EncodedImage,
    photo: EncodedImage,
    kinds: Sequence[bytes] = RGB_8_BITS,
    place: int = PANOPTIC_IMAGE,
) -> int:
    """Return the orientation that turns a panoptic image so that it fits the written photo.

    It is 1 except in one case: the panoptic image was drawn on the upright picture, and the photo
    is written as stored. If the photo was turned, a panoptic image drawn on the stored picture was
    turned with it.

    Args:
        png: the panoptic image.
        photo: the photo.
        kinds: bit depths and colour types that the PNG may have.
        place: index of the PNG in `Sample.blobs`.

    Raises:
        Unfit: the PNG is of another kind, or its size does not match the photo's.
    """
    if png.info.format != "png" or png.data[24:26] not in kinds:
        wanted = "a panoptic image must be a PNG of RGB, 8 bits each"
        if kinds != RGB_8_BITS:
            wanted = "masks must be PNGs with a palette, or of gray with 8 bits"
        raise Unfit("E-IMG-TYPE", wanted, place)
    size, written = png.whole_size_px, photo.whole_size_px
    if size == written:
        return 1
    if size == turn_size(written, photo.info.orientation):
        return inverse_orientation(photo.info.orientation)
    detail = f"{size[0]} x {size[1]}, its photo is {written[0]} x {written[1]}"
    raise Unfit("E-IMG-SIZE", detail, place)


PANOPTIC = FeatureGroup("panoptic", _PANOPTIC, _panoptic_values)


def _read_numbers(picture: Picture, place: int) -> Any:
    """Return the number of each pixel of a PNG, an array turned as the photo is."""
    from beam_tfrec.schemas.geometry.masks import read_numbers

    png = picture.more_images[place - 1]
    orientation = orientation_to_photo(png, picture.image, NUMBERS_8_BITS, place)
    return turn_array(_read_pixels(png, place, read_numbers), orientation)


def _semantic_values(picture: Picture) -> Values:
    """Return the PNG of the class of each pixel."""
    from beam_tfrec.schemas.geometry.masks import encode_gray_png

    png = encode_gray_png(_read_numbers(picture, CLASS_PNG))
    return {f"{_CLASSES}/encoded": [png], f"{_CLASSES}/format": [b"png"]}


def _object_mask_values(picture: Picture) -> Values:
    """Return the mask of each object, from the PNG that numbers them.

    Such sources count objects from 0; the pixels of object n have the number n + 1.
    """
    from beam_tfrec.schemas.geometry.masks import encode_gray_png

    numbers = _read_numbers(picture, OBJECT_PNG)
    ids = [int(found.annotation_id) + 1 for found in picture.objects]
    masks = [(numbers == number) & (number < 255) for number in ids]  # 255 is the border
    picture.repairs.extend("mask_empty" for mask in masks if not mask.any())
    return {"image/object/mask": [encode_gray_png(mask.view("uint8")) for mask in masks]}


def _instance_values(picture: Picture) -> Values:
    """Return the mask of each object. Its attribute `mask` is the place of its PNG, if any."""
    from beam_tfrec.schemas.geometry.masks import read_numbers

    masks = []
    for found in picture.objects:
        pixels, place = None, int(found.attributes.get("mask", 0))
        if place:
            png = picture.more_images[place - 1]
            if png.info.format != "png":
                raise Unfit("E-IMG-TYPE", f"{png.name} is not a PNG but {png.info.format}", place)
            pixels = (_read_pixels(png, place, read_numbers) > 0).view("uint8")
        else:
            picture.repairs.append("mask_empty")
        masks.append(_mask_png(Segmentation(), picture, pixels))
    return {"image/object/mask": masks}


_CLASSES = "image/segmentation/class"
_NUMBERED = "8-bit gray PNG of the image's size: the number of each pixel in the source"
_SEMANTIC = (
    Feature(f"{_CLASSES}/encoded", Kind.BYTES, False, _NUMBERED),
    text(f"{_CLASSES}/format", "png"),
)
OF_PNGS = (
    FeatureGroup("semantic", _SEMANTIC, _semantic_values),
    FeatureGroup("object_masks", _MASKS, _object_mask_values, needs_boxes=True),
    FeatureGroup("instance_masks", _MASKS, _instance_values, needs_boxes=True),
)
"""Groups for PNGs: Pascal VOC's of classes and numbered objects, Open Images' of an object each."""
