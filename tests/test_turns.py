import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from schemas.geometry.boxes import place_points, unturn_box
from schemas.geometry.turns import inverse_orientation, turn_array, turn_size, unturn_points

_TAG = 0x0112
ORIENTATIONS = st.integers(1, 8)
SHARES = st.integers(0, 2**20).map(lambda n: n / 2**20)  # of which 1 - x is exact


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


# A point a quarter from the left and an eighth from the top, in a frame of 100 x 40 px.
@pytest.mark.parametrize(
    ("orientation", "placed"),
    [
        (1, [0.25, 0.125]),
        (2, [0.75, 0.125]),
        (3, [0.75, 0.875]),
        (4, [0.25, 0.875]),
        (5, [0.125, 0.25]),
        (6, [0.125, 0.75]),
        (7, [0.875, 0.75]),
        (8, [0.875, 0.25]),
    ],
)
def test_place_points(orientation: int, placed: list[float]) -> None:
    assert place_points([25.0, 5.0], 100, 40, orientation) == placed


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


@given(st.lists(st.tuples(SHARES, SHARES), max_size=4), ORIENTATIONS)
def test_points_turned_there_and_back_are_where_they_were(
    points: list[tuple[float, float]], orientation: int
) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    there = unturn_points(xs, ys, orientation)
    assert unturn_points(*there, inverse_orientation(orientation)) == (xs, ys)


@given(st.tuples(SHARES, SHARES, SHARES, SHARES), ORIENTATIONS)
def test_boxes_turned_there_and_back_are_where_they_were(
    edges: tuple[float, ...], orientation: int
) -> None:
    (xmin, xmax), (ymin, ymax) = sorted(edges[:2]), sorted(edges[2:])
    there = unturn_box(xmin, ymin, xmax, ymax, orientation)
    assert there[0] <= there[2] and there[1] <= there[3]
    assert unturn_box(*there, inverse_orientation(orientation)) == (xmin, ymin, xmax, ymax)


@given(ORIENTATIONS, st.integers(1, 100), st.integers(1, 100))
def test_a_size_turned_there_and_back_is_what_it_was(
    orientation: int, width: int, height: int
) -> None:
    turned = turn_size((width, height), orientation)
    assert turn_size(turned, inverse_orientation(orientation)) == (width, height)
