"""Box geometry: from COCO's pixels to clipped, normalised coordinates in the stored image."""

import array
import math
from typing import NamedTuple

BBoxXywhPx = tuple[float, float, float, float]
"""COCO's `[x, y, width, height]` in pixels, from the top left corner."""


class NormalizedBox(NamedTuple):
    """A box in [0, 1] of width and height, in float32; `xmin < xmax`, `ymin < ymax`."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float


class PlacedBox(NamedTuple):
    """A box that is kept.

    Attributes:
        box: its coordinates.
        clipped: whether an edge of the image cut it.
    """

    box: NormalizedBox
    clipped: bool


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
    bbox_xywh_px: BBoxXywhPx, width_px: float, height_px: float, orientation: int = 1
) -> PlacedBox | tuple[str, str]:
    """Return a bbox clipped to its frame and normalised in the stored image.

    Args:
        bbox_xywh_px: finite, width and height above 0.
        width_px: width of the frame that the bbox is measured in.
        height_px: height of that frame.
        orientation: EXIF orientation that turns the stored image into that frame; 1 when the frame
            is the stored image's own.

    Returns:
        The box, or (code, detail) when nothing of it is left.

    >>> place_box((-10.0, 0.0, 60.0, 50.0), 100, 100)
    PlacedBox(box=NormalizedBox(xmin=0.0, ymin=0.0, xmax=0.5, ymax=0.5), clipped=True)
    >>> place_box((100.0, 0.0, 5.0, 5.0), 100, 100)
    ('E-BOX-OUTSIDE', 'x 100.0 to 105.0, y 0.0 to 5.0 in 100 x 100')
    """
    x, y, w, h = bbox_xywh_px
    exact = (x / width_px, y / height_px, (x + w) / width_px, (y + h) / height_px)
    xmin, ymin, xmax, ymax = (min(max(edge, 0.0), 1.0) for edge in exact)
    if exact[0] >= 1.0 or exact[1] >= 1.0 or exact[2] <= 0.0 or exact[3] <= 0.0:
        where = f"x {x} to {x + w}, y {y} to {y + h} in {width_px} x {height_px}"
        return "E-BOX-OUTSIDE", where
    corners = upright_to_stored(NormalizedBox(xmin, ymin, xmax, ymax), orientation)
    box = NormalizedBox(*array.array("f", corners))  # the one rounding to float32
    if not (box.xmin < box.xmax and box.ymin < box.ymax):
        return "E-BOX-EMPTY", f"width {w} and height {h} vanish in float32"
    return PlacedBox(box, clipped=(xmin, ymin, xmax, ymax) != exact)


def upright_to_stored(box: NormalizedBox, orientation: int) -> NormalizedBox:
    """Return where a box of the upright picture lies in the pixels as stored.

    Args:
        box: in the picture as a viewer turns it.
        orientation: EXIF orientation (1..8), see the EXIF 2.32 standard, tag 0x0112.

    >>> upright_to_stored(NormalizedBox(0.0, 0.0, 0.25, 0.5), 6)  # turned clockwise to be viewed
    NormalizedBox(xmin=0.0, ymin=0.75, xmax=0.5, ymax=1.0)
    """
    xmin, ymin, xmax, ymax = box
    if orientation in (5, 6, 7, 8):  # these swap width and height
        xmin, ymin, xmax, ymax = ymin, xmin, ymax, xmax
    if orientation in (2, 3, 7, 8):
        xmin, xmax = 1.0 - xmax, 1.0 - xmin
    if orientation in (3, 4, 6, 7):
        ymin, ymax = 1.0 - ymax, 1.0 - ymin
    return NormalizedBox(xmin, ymin, xmax, ymax)


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return math.inf


def _shape_of(bbox: object) -> str:
    return f"{len(bbox)} values" if isinstance(bbox, (list, tuple)) else type(bbox).__name__
