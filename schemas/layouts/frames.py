"""The pixel frame that an image's annotations are measured in, decided from sizes alone.

| annotated size is that of | frame | counted as |
|---|---|---|
| the file, with an orientation that swaps width and height | stored | |
| the file, with another orientation, or square | stored, for want of evidence | `frame_assumed` |
| another, `trust_image` | stored | `size_from_image` |
| the upright picture | upright | |
| another, `trust_json`, or `auto` where aspects agree | whose aspect it has, else stored |
`size_from_json` or `boxes_rescaled`, and `frame_assumed` where both or neither have it |

`boxes_turned` is counted wherever that frame is not the one of the image that is written.
"""

import enum
from typing import NamedTuple

from schemas.geometry.boxes import unturn_box
from schemas.geometry.turns import inverse_orientation, turn_size
from schemas.images import Crop, ImageInfo, Window
from schemas.layouts import Unfit


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

    @property
    def crop_of_frame(self) -> Crop | None:
        """The part of this frame that the written image shows; None for all."""
        if self.crop is None:
            return None
        return unturn_box(*self.crop, inverse_orientation(self.orientation))


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
    chosen = _choose(json_size if all(json_size) else stored, stored, orientation, policy)
    if isinstance(chosen, Unfit):
        return chosen
    size, is_upright, repairs = chosen
    to_frame = orientation if is_upright else 1  # from the stored picture
    if turned != 1:
        to_frame = 1 if is_upright else inverse_orientation(turned)
    repairs += ["boxes_turned"] if to_frame != 1 else []
    return Frame(*size, to_frame, tuple(repairs), crop)


def _choose(
    json_size: tuple[int, int], stored: tuple[int, int], orientation: int, policy: SizeMismatch
) -> tuple[tuple[int, int], bool, list[str]] | Unfit:
    """Return the frame's size, whether it is the upright picture, and what was mended."""
    upright = turn_size(stored, orientation)
    if json_size == stored:
        return stored, False, ["frame_assumed"] if orientation != 1 and upright == stored else []
    if policy is SizeMismatch.TRUST_IMAGE:
        return stored, False, ["size_from_image"]
    if json_size == upright:
        return upright, True, []
    fits_stored, fits_upright = (aspects_agree(json_size, size) for size in (stored, upright))
    if policy is SizeMismatch.TRUST_JSON:
        mended = "size_from_json"
    elif policy is SizeMismatch.AUTO and (fits_stored or fits_upright):
        mended = "boxes_rescaled"
    else:
        sizes = f"{stored[0]} x {stored[1]} in the file, {json_size[0]} x {json_size[1]} annotated"
        return Unfit("E-IMG-SIZE", sizes)
    is_assumed = orientation != 1 and fits_stored == fits_upright
    is_upright = fits_upright and not fits_stored
    return json_size, is_upright, [*(["frame_assumed"] if is_assumed else []), mended]


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
