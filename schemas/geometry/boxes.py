"""Boxes and points in pictures: clipped, normalised, turned, cropped and resized."""

import enum
import re
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from beam_tfrec.schemas.faults import Reason

if TYPE_CHECKING:  # boxes need no numpy
    from numpy.typing import NDArray

BBoxXywhPx = tuple[float, float, float, float]
"""COCO's `[x, y, width, height]` in pixels, from the top left corner."""

MAX_AREA_PX2 = 2.0**62
"""Largest area that is written, in px squared: float32 and int64 can hold it."""

Crop = tuple[float, float, float, float]
"""A part of a picture: `xmin, ymin, xmax, ymax` in [0, 1] of its width and height."""

SWAPPING = frozenset({5, 6, 7, 8})
"""EXIF orientations that swap width and height."""

MAX_SIDE_PX = 65_500
"""The longest side that libjpeg writes."""

# Orientations that mirror the stored picture horizontally and vertically, before any swap of sides.
_MIRROR_X = frozenset({2, 3, 7, 8})
_MIRROR_Y = frozenset({3, 4, 6, 7})

_FLOAT32_X4 = struct.Struct("<4f")

_SIDE = "([1-9][0-9]{0,4})"
_BOX = f"{_SIDE}(?:x{_SIDE})?"
_RESIZE = re.compile(f"max:{_SIDE}|{_BOX}")

_AUTO = re.compile(f"auto:{_SIDE}(?::([1-9][0-9]{{0,3}}))?")
_BUCKETS = re.compile(f"{_AUTO.pattern}|{_BOX}(?:,{_BOX})*")
_STEP_PX = 64
_MOST_BUCKETS = 100
_LARGEST_ASPECT = 2  # of `auto`: from 1:2 to 2:1


class PlacedBox(msgspec.Struct, frozen=True, gc=False):
    """A box in [0, 1] of width and height, in float32; `xmin < xmax`, `ymin < ymax`.

    Attributes:
        xmin: left edge.
        ymin: top edge.
        xmax: right edge.
        ymax: bottom edge.
        clipped: whether it was clipped to the annotated picture or to the written image.
    """

    xmin: float
    ymin: float
    xmax: float
    ymax: float
    clipped: bool = False


class ResizeMode(enum.Enum):
    """How a picture is fitted into a box of another aspect ratio.

    FIT keeps the aspect ratio and gives the largest size inside the box, without padding. FILL
    covers the box and cuts off what exceeds it, equally on both sides. STRETCH gives the box's size
    and ignores the aspect ratio.
    """

    FIT = "fit"
    FILL = "fill"
    STRETCH = "stretch"


class Resized(NamedTuple):
    """Result of a resize.

    Attributes:
        size_px: new width and height.
        crop: part of the picture that is shown; None for all of it.
    """

    size_px: tuple[int, int]
    crop: Crop | None = None


@dataclass(frozen=True)
class Resize:
    """A requested size: a box, or a limit of the longer side.

    Attributes:
        width_px: width of the box, or limit of the longer side.
        height_px: height of the box; None for a limit. A limit never enlarges pictures.
    """

    width_px: int
    height_px: int | None

    def __post_init__(self) -> None:
        """Refuse sides that no image can have."""
        for side in (self.width_px, self.width_px if self.height_px is None else self.height_px):
            if not 1 <= side <= MAX_SIDE_PX:
                raise ValueError(f"sides must be 1 to {MAX_SIDE_PX} px, got {side}: give another")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the resize from a flag's text.

        Raises:
            ValueError: when the text has none of the forms N, WxH and max:N.

        >>> Resize.parse("512"), Resize.parse("max:1024")
        (Resize(width_px=512, height_px=512), Resize(width_px=1024, height_px=None))
        """
        if found := _RESIZE.fullmatch(text):
            longest, width, height = found.groups()
            return cls(int(longest), None) if longest else cls(int(width), int(height or width))
        raise ValueError(f"resize must be N, WxH or max:N in px, got {text!r}: give such as 512")

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        width = self.width_px
        return f"max:{width}" if self.height_px is None else f"{width}x{self.height_px}"


def parse_buckets(text: str) -> tuple[Resize, ...]:
    """Return the size buckets of a flag's text: sizes, or `auto:SIDE[:STEP]`.

    `auto` gives sizes of at most SIDE x SIDE pixels. Their sides are multiples of STEP px (default
    64), and their aspect ratios lie between 1:2 and 2:1.

    Raises:
        ValueError: when the text has another form, or names a size twice.

    >>> [str(bucket) for bucket in parse_buckets("auto:256:64")]
    ['192x320', '256x256', '320x192']
    """
    if not _BUCKETS.fullmatch(text):
        raise ValueError(f"buckets must be WxH,WxH or auto:SIDE:STEP, got {text!r}: correct it")
    if found := _AUTO.fullmatch(text):
        buckets = _auto(int(found[1]), int(found[2] or _STEP_PX))
    else:
        buckets = [Resize.parse(size) for size in text.split(",")]
    if not 1 <= len({*buckets}) == len(buckets) <= _MOST_BUCKETS:
        what = f"1 to {_MOST_BUCKETS} different sizes, got {len(buckets)} in {text!r}"
        raise ValueError(f"buckets must be {what}: correct it")
    return tuple(buckets)


def _auto(side_px: int, step_px: int) -> list[Resize]:
    """Return buckets from the highest to the widest."""
    by_height: dict[int, int] = {}
    for width in range(step_px, _LARGEST_ASPECT * side_px + 1, step_px):
        height = side_px * side_px // width // step_px * step_px
        if height <= width <= _LARGEST_ASPECT * height:
            by_height[height] = width  # the widest of equal heights
    wide = sorted((width, height) for height, width in by_height.items())
    high = [(height, width) for width, height in reversed(wide) if height < width]
    return [Resize(*size) for size in (*high, *wide)]


def nearest_bucket(width_px: int, height_px: int, buckets: Sequence[Resize]) -> Resize:
    """Return the bucket with the nearest aspect ratio; of several, the first.

    Distances are ratios, so 2:1 is as far from 1:1 as 1:2.

    >>> str(nearest_bucket(640, 480, parse_buckets("512x512,512x384,384x512")))
    '512x384'
    """

    def distance(bucket: Resize) -> Fraction:  # exact, so that ties are ties
        one, other = width_px * (bucket.height_px or 1), height_px * bucket.width_px
        return Fraction(max(one, other), min(one, other))

    return min(buckets, key=distance)


def check_bbox(bbox: object) -> Reason | None:
    """Return (code, detail) of a bbox's fault, or None. The image's size is not considered.

    >>> check_bbox([1.0, 2.0, 0, 4.0])
    ('E-BOX-EMPTY', 'width 0 and height 4.0')
    """
    if not (isinstance(bbox, Sequence) and len(bbox) == 4 and {*map(type, bbox)} <= {int, float}):
        return "E-BOX-SHAPE", f"bbox is {bbox!r:.80}, not four numbers"
    if not all(abs(v) <= sys.float_info.max for v in bbox):  # integers may be larger
        return "E-BOX-NOT-FINITE", "bbox holds a number that is not finite"
    if bbox[2] <= 0 or bbox[3] <= 0:
        return "E-BOX-EMPTY", f"width {bbox[2]} and height {bbox[3]}"
    return None


def place_box(
    bbox_xywh_px: BBoxXywhPx,
    width_px: float,
    height_px: float,
    orientation: int = 1,
    crop: Crop | None = None,
) -> PlacedBox | tuple[str, str]:
    """Return a bbox clipped to its frame and normalised in the written image.

    Args:
        bbox_xywh_px: bbox of finite numbers, with width and height above 0.
        width_px: width of the frame in which the bbox is measured.
        height_px: height of that frame.
        orientation: EXIF orientation that turns the written image into that frame; 1 for none.
        crop: part of the turned picture that the written image shows; None for all of it.

    Returns:
        The box, or (code, detail) if nothing of it is left.

    >>> place_box((-10.0, 0.0, 60.0, 50.0), 100, 100)
    PlacedBox(xmin=0.0, ymin=0.0, xmax=0.5, ymax=0.5, clipped=True)
    >>> place_box((100.0, 0.0, 5.0, 5.0), 100, 100)
    ('E-BOX-OUTSIDE', 'x 100.0 to 105.0, y 0.0 to 5.0 in 100 x 100')
    """
    x, y, width, height = bbox_xywh_px
    box = x / width_px, y / height_px, (x + width) / width_px, (y + height) / height_px
    shown = _clip(box)
    clipped, cut = shown != box, ""
    if shown is not None and orientation != 1:
        shown = unturn_box(*shown, orientation)
    if shown is not None and crop is not None:
        left, top, right, low = crop_points(shown, crop)
        shown, cut = _clip((left, top, right, low)), ", and the crop cuts off the rest"
        clipped = clipped or shown != (left, top, right, low)
    if shown is None:
        where = f"x {x} to {x + width}, y {y} to {y + height} in {width_px} x {height_px}"
        return "E-BOX-OUTSIDE", f"{where}{cut}"
    xmin, ymin, xmax, ymax = _FLOAT32_X4.unpack(_FLOAT32_X4.pack(*shown))  # rounded only here
    if not (xmin < xmax and ymin < ymax):
        return "E-BOX-EMPTY", f"width {width} and height {height} vanish in float32"
    return PlacedBox(xmin, ymin, xmax, ymax, clipped)


def unturn_box(
    xmin: float, ymin: float, xmax: float, ymax: float, orientation: int
) -> tuple[float, float, float, float]:
    """Return a box of a turned picture in the coordinates of the picture before turning.

    Args:
        xmin: left edge in the turned picture, in [0, 1] like the other edges.
        ymin: top edge.
        xmax: right edge.
        ymax: bottom edge.
        orientation: EXIF orientation that turned it.

    >>> unturn_box(0.0, 0.0, 0.25, 0.5, 6)  # turned clockwise
    (0.0, 0.75, 0.5, 1.0)
    """
    xs, ys = unturn_points((xmin, xmax), (ymin, ymax), orientation)
    return min(xs), min(ys), max(xs), max(ys)


def place_points(
    xy_px: Sequence[float],
    width_px: float,
    height_px: float,
    orientation: int = 1,
    crop: Crop | None = None,
) -> list[float]:
    """Return points normalised in the written image, not clipped.

    Args:
        xy_px: `[x0, y0, x1, y1, ...]` in the frame's pixels.
        width_px: width of the frame in which the points are measured.
        height_px: height of that frame.
        orientation: EXIF orientation that turns the written image into that frame.
        crop: part of the turned picture that the written image shows; None for all of it.

    >>> place_points([25.0, 10.0], 100, 20, 6)  # a quarter right, half down in the turned picture
    [0.5, 0.75]
    """
    xs = [x / width_px for x in xy_px[0::2]]
    ys = [y / height_px for y in xy_px[1::2]]
    placed = zip(*unturn_points(xs, ys, orientation), strict=True)
    points = [value for point in placed for value in point]
    return points if crop is None else crop_points(points, crop)


def crop_points(xy: Sequence[float], crop: Crop) -> list[float]:
    """Return points `[x0, y0, x1, y1, ...]` of a picture in the coordinates of its crop.

    Coordinates are fractions of width and height. Points outside the crop are not clipped.

    >>> crop_points([0.5, 0.5, 0.0, 1.0], (0.25, 0.0, 0.75, 1.0))
    [0.5, 0.5, -0.5, 1.0]
    """
    left, top, right, bottom = crop
    placed: list[float] = []
    for x, y in zip(xy[0::2], xy[1::2], strict=True):
        placed += ((x - left) / (right - left), (y - top) / (bottom - top))
    return placed


def inverse_orientation(orientation: int) -> int:
    """Return the orientation that undoes another.

    >>> [inverse_orientation(orientation) for orientation in range(1, 9)]
    [1, 2, 3, 4, 5, 8, 7, 6]
    """
    return {6: 8, 8: 6}.get(orientation, orientation)


def turn_size(size_px: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return width and height of a picture after turning.

    >>> turn_size((640, 427), 6), turn_size((640, 427), 3)
    ((427, 640), (640, 427))
    """
    return size_px[::-1] if orientation in SWAPPING else size_px


def unturn_points(
    xs: Sequence[float], ys: Sequence[float], orientation: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Return points of a turned picture in the coordinates of the picture before turning.

    >>> unturn_points([0.25], [0.5], 6)  # a quarter right, half down in the turned picture
    ([0.5], [0.75])
    """
    if orientation in SWAPPING:
        xs, ys = ys, xs
    if orientation in _MIRROR_X:
        xs = [1.0 - x for x in xs]
    if orientation in _MIRROR_Y:
        ys = [1.0 - y for y in ys]
    return xs, ys


def turn_array(pixels: "NDArray", orientation: int) -> "NDArray":
    """Return turned pixels. The axes are rows, columns, and channels if any.

    >>> import numpy as np
    >>> turn_array(np.array([[1, 2, 3], [4, 5, 6]]), 6).tolist()  # clockwise
    [[4, 1], [5, 2], [6, 3]]
    """
    if orientation in _MIRROR_X:
        pixels = pixels[:, ::-1]
    if orientation in _MIRROR_Y:
        pixels = pixels[::-1]
    if orientation in SWAPPING:
        pixels = pixels.swapaxes(0, 1)
    return pixels.copy()


def resized(size_px: tuple[int, int], resize: Resize | None, mode: ResizeMode) -> Resized:
    """Return the size and crop that a resize gives a picture.

    Sides are rounded to the nearest px, halves up, and are at least 1. Output bytes depend on this.

    >>> resized((640, 427), Resize(512, 512), ResizeMode.FIT).size_px
    (512, 342)
    >>> resized((640, 480), Resize(512, 512), ResizeMode.FILL)
    Resized(size_px=(512, 512), crop=(0.125, 0.0, 0.875, 1.0))
    >>> resized((640, 480), Resize(1024, None), ResizeMode.FIT)
    Resized(size_px=(640, 480), crop=None)
    """
    width, height = size_px
    if resize is None or (resize.height_px is None and max(size_px) <= resize.width_px):
        return Resized(size_px)
    box = box_width, box_height = resize.width_px, resize.height_px or resize.width_px
    if resize.height_px is None or mode is ResizeMode.FIT:
        return Resized(_fit(size_px, box))
    if mode is ResizeMode.STRETCH or box_width * height == box_height * width:
        return Resized(box)
    if box_width * height < box_height * width:  # the picture is too wide
        left = (1.0 - box_width * height / (box_height * width)) / 2.0
        return Resized(box, (left, 0.0, 1.0 - left, 1.0))
    top = (1.0 - box_height * width / (box_width * height)) / 2.0
    return Resized(box, (0.0, top, 1.0, 1.0 - top))


def _clip(box: Crop) -> Crop | None:
    """Return the part of a box within [0, 1]; None if it is empty."""
    xmin, ymin, xmax, ymax = box
    if xmin >= 1.0 or ymin >= 1.0 or xmax <= 0.0 or ymax <= 0.0:
        return None
    return max(xmin, 0.0), max(ymin, 0.0), min(xmax, 1.0), min(ymax, 1.0)


def _fit(size_px: tuple[int, int], box_px: tuple[int, int]) -> tuple[int, int]:
    (width, height), (box_width, box_height) = size_px, box_px
    if box_width * height <= box_height * width:
        return box_width, max(1, (2 * height * box_width + width) // (2 * width))
    return max(1, (2 * width * box_height + height) // (2 * height)), box_height
