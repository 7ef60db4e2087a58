"""Points of keypoints and polygons: from the annotations' pixels into the image that is written."""

from collections.abc import Sequence

from schemas.geometry.boxes import crop_points
from schemas.geometry.turns import unturn_points
from schemas.images import Crop


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
