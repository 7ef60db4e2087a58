"""Boxes, points and arrays: faults, clipping, rounding, and turns as in Pillow."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from beam_tfrec.schemas.geometry import boxes
from tests.turned_images import as_viewed, oriented, png_of


@pytest.mark.parametrize(
    ("bbox", "fault"),
    [
        ((-5.5, 1e300, 0.25, 1e-300), None),  # the image decides about these
        ([1, 2, 3], ("E-BOX-SHAPE", "bbox is [1, 2, 3], not four numbers")),
        ([1, 2, True, 4], ("E-BOX-SHAPE", "bbox is [1, 2, True, 4], not four numbers")),
        ([1, 2, math.nan, 4], ("E-BOX-NOT-FINITE", "bbox holds a number that is not finite")),
        ([1, 2, 3.5, -0.5], ("E-BOX-EMPTY", "width 3.5 and height -0.5")),
    ],
)
def test_check_bbox(bbox: object, fault: tuple[str, str] | None) -> None:
    assert boxes.check_bbox(bbox) == fault


def test_boxes_that_vanish_or_are_cut_off_are_faults() -> None:
    detail = "width 1e-06 and height 5.0 vanish in float32"
    assert boxes.place_box((50.0, 10.0, 1e-6, 5.0), 100, 50) == ("E-BOX-EMPTY", detail)
    detail = "x 0.0 to 5.0, y 0.0 to 5.0 in 100 x 50, and the crop cuts off the rest"
    found = boxes.place_box((0.0, 0.0, 5.0, 5.0), 100, 50, crop=(0.5, 0.0, 1.0, 1.0))
    assert found == ("E-BOX-OUTSIDE", detail)


COORDINATES = st.floats(-2000.0, 2000.0) | st.floats(allow_nan=False, allow_infinity=False)
LENGTHS = st.floats(5e-324, 2000.0) | st.floats(min_value=5e-324, allow_infinity=False)
SIZES = st.integers(1, 2000) | st.integers(1, 2**31 - 1)


@given(st.tuples(COORDINATES, COORDINATES, LENGTHS, LENGTHS), SIZES, SIZES)
@example((95.0, 0.0, 5.0, 5.0), 100, 50)
@example((-5.0, -5.0, 10.0, 10.0), 100, 50)
def test_place_box_is_float64_arithmetic_rounded_once(
    bbox_xywh_px: tuple, width_px: int, height_px: int
) -> None:
    x, y, width, height = np.float64(bbox_xywh_px)
    with np.errstate(over="ignore"):
        corners = np.float64([x, y, x + width, y + height]) / ([width_px, height_px] * 2)
    rounded = np.float32(np.clip(corners, 0.0, 1.0))
    placed = boxes.place_box(bbox_xywh_px, width_px, height_px)
    if not isinstance(placed, boxes.PlacedBox):
        code, _ = placed
        left_over = np.clip(corners, 0.0, 1.0)
        nothing = left_over[0] >= left_over[2] or left_over[1] >= left_over[3]
        vanishes = rounded[0] >= rounded[2] or rounded[1] >= rounded[3]
        assert {"E-BOX-OUTSIDE": nothing, "E-BOX-EMPTY": vanishes}[code]
        return
    assert (placed.xmin, placed.ymin, placed.xmax, placed.ymax) == tuple(rounded.tolist())
    assert 0.0 <= placed.xmin < placed.xmax <= 1.0 and 0.0 <= placed.ymin < placed.ymax <= 1.0
    assert placed.clipped == bool((corners[:2] < 0.0).any() or (corners[2:] > 1.0).any())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("shape", [(3, 5), (1, 4), (3, 5, 3)])
def test_arrays_turn_as_pillow_turns_them(shape: tuple[int, ...], orientation: int) -> None:
    pixels = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    turned = boxes.turn_array(pixels, orientation)
    np.testing.assert_array_equal(turned, as_viewed(oriented(png_of(pixels), orientation)))
    assert turned.flags.c_contiguous
    height, width = shape[:2]
    assert boxes.turn_size((width, height), orientation) == turned.shape[1::-1]
    back = boxes.turn_array(turned, boxes.inverse_orientation(orientation))
    np.testing.assert_array_equal(back, pixels)
