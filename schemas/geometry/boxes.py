"""Box geometry: from COCO's pixels to clipped, normalised coordinates in the written image."""

import math
import struct
from collections.abc import Sequence

import msgspec

from schemas.geometry.turns import unturn_points
from schemas.images import Crop

_FLOAT32_X4 = struct.Struct("<4f")

BBoxXywhPx = tuple[float, float, float, float]
"""COCO's `[x, y, width, height]` in pixels, from the top left corner."""


class PlacedBox(msgspec.Struct, frozen=True, gc=False):
    """A box in [0, 1] of width and height, in float32; `xmin < xmax`, `ymin < ymax`.

    Attributes:
        xmin: left edge.
        ymin: top edge.
        xmax: right edge.
        ymax: bottom edge.
        clipped: whether an edge of the image cut it, as it was annotated or as it is written.
    """

    xmin: float
    ymin: float
    xmax: float
    ymax: float
    clipped: bool = False


def check_bbox(bbox: object) -> tuple[str, str] | None:
    """Return (code, detail) of what is wrong with a bbox by itself, or None.

    >>> check_bbox([1.0, 2.0, 0, 4.0])
    ('E-BOX-EMPTY', 'width 0 and height 4.0')
    """
    if not isinstance(bbox, (list, tuple)) or len(bbox) != 4:
        return "E-BOX-SHAPE", f"bbox is {_shape_of(bbox)}, not four numbers"
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in bbox):
        return "E-BOX-SHAPE", "bbox holds something that is no number"
    if not all(math.isfinite(_to_float(v)) for v in bbox):
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
        bbox_xywh_px: finite, width and height above 0.
        width_px: width of the frame that the bbox is measured in.
        height_px: height of that frame.
        orientation: EXIF orientation that turns the written image into that frame; 1 when the
            frame is that image's own.
        crop: the part of the turned picture that the written image shows; None for all.

    Returns:
        The box, or (code, detail) when nothing of it is left.

    >>> place_box((-10.0, 0.0, 60.0, 50.0), 100, 100)
    PlacedBox(xmin=0.0, ymin=0.0, xmax=0.5, ymax=0.5, clipped=True)
    >>> place_box((100.0, 0.0, 5.0, 5.0), 100, 100)
    ('E-BOX-OUTSIDE', 'x 100.0 to 105.0, y 0.0 to 5.0 in 100 x 100')
    """
    x, y, width, height = bbox_xywh_px
    xmin, ymin = x / width_px, y / height_px
    xmax, ymax = (x + width) / width_px, (y + height) / height_px
    clipped = xmin < 0.0 or ymin < 0.0 or xmax > 1.0 or ymax > 1.0
    if clipped or xmin >= 1.0 or ymin >= 1.0:
        if xmin >= 1.0 or ymin >= 1.0 or xmax <= 0.0 or ymax <= 0.0:
            where = f"x {x} to {x + width}, y {y} to {y + height} in {width_px} x {height_px}"
            return "E-BOX-OUTSIDE", where
        xmin, ymin, xmax, ymax = max(xmin, 0.0), max(ymin, 0.0), min(xmax, 1.0), min(ymax, 1.0)
    if orientation != 1:
        xmin, ymin, xmax, ymax = unturn_box(xmin, ymin, xmax, ymax, orientation)
    if crop is not None:
        xmin, ymin, xmax, ymax = cropped = crop_points((xmin, ymin, xmax, ymax), crop)
        if xmin >= 1.0 or ymin >= 1.0 or xmax <= 0.0 or ymax <= 0.0:
            where = f"x {x} to {x + width}, y {y} to {y + height} in {width_px} x {height_px}"
            return "E-BOX-OUTSIDE", f"{where}, of which the rest is cut off"
        xmin, ymin, xmax, ymax = max(xmin, 0.0), max(ymin, 0.0), min(xmax, 1.0), min(ymax, 1.0)
        clipped = clipped or (xmin, ymin, xmax, ymax) != tuple(cropped)
    rounded = _FLOAT32_X4.pack(xmin, ymin, xmax, ymax)  # the one rounding
    xmin, ymin, xmax, ymax = _FLOAT32_X4.unpack(rounded)
    if not (xmin < xmax and ymin < ymax):
        return "E-BOX-EMPTY", f"width {width} and height {height} vanish in float32"
    return PlacedBox(xmin, ymin, xmax, ymax, clipped)


def unturn_box(
    xmin: float, ymin: float, xmax: float, ymax: float, orientation: int
) -> tuple[float, float, float, float]:
    """Return where a box of a turned picture lies in the one that was turned.

    Args:
        xmin: left edge in the turned picture, in [0, 1]; the others likewise.
        ymin: top edge.
        xmax: right edge.
        ymax: bottom edge.
        orientation: EXIF orientation that turned it.

    >>> unturn_box(0.0, 0.0, 0.25, 0.5, 6)  # turned clockwise
    (0.0, 0.75, 0.5, 1.0)
    """
    xs, ys = unturn_points((xmin, xmax), (ymin, ymax), orientation)
    return min(xs), min(ys), max(xs), max(ys)


def crop_points(xy: Sequence[float], crop: Crop) -> list[float]:
    """Return points `[x0, y0, x1, y1, ...]` of a picture in the part of it that is shown.

    All are in [0, 1] of width and height, or outside; they are not clipped.

    >>> crop_points([0.5, 0.5, 0.0, 1.0], (0.25, 0.0, 0.75, 1.0))
    [0.5, 0.5, -0.5, 1.0]
    """
    left, top, right, bottom = crop
    placed: list[float] = []
    for x, y in zip(xy[0::2], xy[1::2], strict=True):
        placed += ((x - left) / (right - left), (y - top) / (bottom - top))
    return placed


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return math.inf


def _shape_of(bbox: object) -> str:
    return f"{len(bbox)} values" if isinstance(bbox, (list, tuple)) else type(bbox).__name__


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
        width_px: width of the frame that the points are measured in.
        height_px: height of that frame.
        orientation: EXIF orientation that turns the written image into that frame.
        crop: the part of the turned picture that the written image shows; None for all.

    >>> place_points([25.0, 10.0], 100, 20, 6)  # a quarter right, half down as it is viewed
    [0.5, 0.75]
    """
    xs = [x / width_px for x in xy_px[0::2]]
    ys = [y / height_px for y in xy_px[1::2]]
    placed = zip(*unturn_points(xs, ys, orientation), strict=True)
    points = [value for point in placed for value in point]
    return points if crop is None else crop_points(points, crop)
