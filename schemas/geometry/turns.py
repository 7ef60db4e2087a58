"""Turns of pictures: what the eight EXIF orientations do to sizes, points, boxes and arrays.

An orientation turns one picture into another: the stored one of a file into the upright one that a
viewer shows (EXIF 2.32, tag 0x0112), or back. Coordinates are normalised: x / width, y / height.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # boxes need no numpy
    from numpy.typing import NDArray

SWAPPING = frozenset({5, 6, 7, 8})
"""Orientations that swap width and height."""

_MIRROR_X = frozenset({2, 3, 7, 8})  # of the picture before the turn, to look up where it came from
_MIRROR_Y = frozenset({3, 4, 6, 7})


def inverse_orientation(orientation: int) -> int:
    """Return the orientation that undoes another.

    >>> [inverse_orientation(orientation) for orientation in range(1, 9)]
    [1, 2, 3, 4, 5, 8, 7, 6]
    """
    return {6: 8, 8: 6}.get(orientation, orientation)


def turn_size(size_px: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return width and height of a picture once it is turned.

    >>> turn_size((640, 427), 6), turn_size((640, 427), 3)
    ((427, 640), (640, 427))
    """
    return size_px[::-1] if orientation in SWAPPING else size_px


def unturn_points(
    xs: Sequence[float], ys: Sequence[float], orientation: int
) -> tuple[Sequence[float], Sequence[float]]:
    """Return where points of a turned picture lie in the one that was turned.

    >>> unturn_points([0.25], [0.5], 6)  # a quarter right, half down once turned clockwise
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
    """Return pixels turned; rows first, then columns, then whatever a pixel has.

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
