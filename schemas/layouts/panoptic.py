"""Group `panoptic`: masks of classes and instances, as Model Garden's script makes them.

Its readers take masks of 8 bits, and the classes of COCO: what does not fit is a reject.
"""

from schemas.features import Feature, Kind
from schemas.geometry.turns import inverse_orientation, turn_array, turn_size
from schemas.images import EncodedImage
from schemas.layouts import Unfit
from schemas.layouts.groups import FeatureGroup
from schemas.layouts.pictures import Picture, Values
from schemas.picture_fields import BadAnnotation

MAX_PANOPTIC_PX = 1 << 26
"""Of a panoptic image; its decoding and three masks take up to 8 bytes a pixel, 0.5 GiB."""

_SEMANTIC = "image/segmentation/class/encoded"
_CATEGORY = "image/panoptic/category_mask"
_INSTANCE = "image/panoptic/instance_mask"
_ONE_OR_NONE = "one 8-bit gray PNG, none without a panoptic annotation"

_PANOPTIC = (
    Feature(
        _SEMANTIC,
        Kind.BYTES,
        True,
        f"{_ONE_OR_NONE}: 0 for void, 1 for things, category id - 90 for stuff",
    ),
    Feature(_CATEGORY, Kind.BYTES, True, f"{_ONE_OR_NONE}: category ids, 0 for void"),
    Feature(_INSTANCE, Kind.BYTES, True, f"{_ONE_OR_NONE}: things numbered from 1, else 0"),
)
PLACE = 1
"""Of the panoptic image among the sample's."""


def _panoptic_values(picture: Picture) -> Values | Unfit:
    import numpy as np  # late: it takes a tenth of a second, and few have panoptic images

    from schemas.geometry.panoptic import paint_values, read_places
    from schemas.gray_png import encode_gray_png

    png, segments = picture.panoptic_image, picture.fields.segments
    if png is None or segments is None:
        return {_SEMANTIC: [], _CATEGORY: [], _INSTANCE: []}
    orientation = orientation_to_photo(png, picture.image)
    if isinstance(orientation, Unfit):
        return orientation
    pixels = png.info.width_px * png.info.height_px
    if pixels > MAX_PANOPTIC_PX:
        return Unfit("E-IMG-PIXELS", f"{pixels} pixels, limit {MAX_PANOPTIC_PX}", PLACE)
    values = paint_values(segments)
    if isinstance(values, str):
        return Unfit("E-EX-FAILED", f"panoptic: {values}", PLACE)
    try:
        found = read_places(png.data, (png.info.width_px, png.info.height_px), segments)
    except OSError as error:
        if error.errno is not None:  # of the machine
            raise
        return Unfit("E-IMG-DAMAGED", f"panoptic pixels: {error}", PLACE)
    if segments and found.num_empty == len(segments):
        detail = f"none of its {len(segments)} segments has a pixel in {png.name}"
        picture.dropped.append(BadAnnotation(picture.fields.image_id, "E-SEG-EMPTY", detail))
        return {_SEMANTIC: [], _CATEGORY: [], _INSTANCE: []}
    if found.has_unlisted_pixels:
        picture.repairs.append("panoptic_pixels_unlisted")
    picture.repairs.extend(["panoptic_segment_empty"] * found.num_empty)
    places = turn_array(found.places, orientation)
    return {
        key: [encode_gray_png(np.take(by_place, places))]
        for key, by_place in zip((_SEMANTIC, _CATEGORY, _INSTANCE), values, strict=True)
    }


def orientation_to_photo(png: EncodedImage, photo: EncodedImage) -> int | Unfit:
    """Return the orientation that turns a panoptic image into its photo as that is written.

    Only one that was made of the upright picture, of a photo that is kept, has to be turned: what
    was made of the stored one has been turned along with it. One that is no PNG of RGB, or of
    another size, says nothing of the photo's pixels: it is the reason why there is no Example.
    """
    from schemas.geometry.panoptic import is_rgb_png  # late, as above

    if png.info.format != "png" or not is_rgb_png(png.data):
        return Unfit("E-IMG-TYPE", "a panoptic image must be a PNG of RGB, 8 bits each", PLACE)
    size, written = png.whole_size_px, photo.whole_size_px
    if size == written:
        return 1
    if size == turn_size(written, photo.info.orientation):
        return inverse_orientation(photo.info.orientation)
    detail = f"{size[0]} x {size[1]}, its photo is {written[0]} x {written[1]}"
    return Unfit("E-IMG-SIZE", detail, PLACE)


PANOPTIC = FeatureGroup("panoptic", _PANOPTIC, _panoptic_values, found_as="panoptic")
