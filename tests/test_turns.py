"""Turns by EXIF orientation agree with Pillow."""

import itertools

import numpy as np
import pytest
from PIL import Image, ImageOps

from schemas.geometry.boxes import inverse_orientation, place_points, turn_array, turn_size

_TAG = 0x0112


def as_viewed(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Return pixels as Pillow shows them."""
    image = Image.fromarray(pixels)
    image.getexif()[_TAG] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 4), (1, 1), (3, 5, 3)])
def test_arrays_turn_as_pillow_turns_them(shape: tuple[int, ...], orientation: int) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    turned = turn_array(pixels, orientation)
    np.testing.assert_array_equal(turned, as_viewed(pixels, orientation))
    assert turned.flags.c_contiguous
    height, width = shape[:2]
    assert turn_size((width, height), orientation) == turned.shape[1::-1]
    back = turn_array(turned, inverse_orientation(orientation))
    np.testing.assert_array_equal(back, pixels)


def test_place_points_of_several_none_and_outside() -> None:
    assert place_points([0.0, 0.0, 100.0, 40.0, 50.0, 10.0], 100, 40) == [0, 0, 1, 1, 0.5, 0.25]
    assert place_points([], 100, 40, 6) == []
    assert place_points([-25.0, 60.0], 100, 40) == [-0.25, 1.5]  # not clipped


@pytest.mark.parametrize("orientation", range(1, 9))
def test_points_lie_on_the_pixels_that_pillow_turns(orientation: int) -> None:
    stored = np.arange(15, dtype=np.uint8).reshape(3, 5)  # every pixel another value
    upright = as_viewed(stored, orientation)
    height, width = upright.shape
    for row, column in itertools.product(range(height), range(width)):
        x, y = place_points([column + 0.5, row + 0.5], width, height, orientation)
        assert stored[int(y * 3), int(x * 5)] == upright[row, column]
