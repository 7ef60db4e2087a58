"""Parsing of COCO segmentations against pycocotools."""

import itertools
import json
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco_mask

from beam_tfrec.schemas.annotations.coco_objects import (
    decode_rle_counts,
    outline_px,
    parse_segmentation,
    polygon_area_px2,
)
from beam_tfrec.schemas.faults import Reason
from beam_tfrec.schemas.fields import Segmentation
from tests.conftest import draw

Parsed = tuple[Segmentation, list[str]]


def parsed(text: str, width_px: int = 4, height_px: int = 3) -> Parsed | Reason:
    """Return a segmentation and its repairs, or its fault."""
    repairs: Counter[str] = Counter()
    found = parse_segmentation(text.encode(), width_px, height_px, repairs)
    return (found, sorted(repairs.elements())) if isinstance(found, Segmentation) else found


def polygon(*px: float) -> Parsed:
    return Segmentation(polygons_px=[[*px]]), []


def rle(*counts: int) -> Parsed:
    return Segmentation(rle_counts=[*counts]), []


def empty(*repairs: str) -> Parsed:
    return Segmentation(), [*repairs]


def in_3_4(counts: str) -> str:
    """Return an RLE of an image of 4 x 3 px."""
    return f'{{"size":[3,4],"counts":{counts}}}'


TRIANGLE = [0.0, 0.0, 4.0, 0.0, 4.0, 3.0]
DROPPED, EMPTY = "polygon_dropped", "segmentation_empty"

# The JSON of an annotation in an image of 4 x 3 px (width x height), and the result.
PARSED = {
    "polygon": ("[[0,0,4,0,4,3]]", polygon(*TRIANGLE)),
    "outside the image": ("[[1e5,0,100004,0,1e5,3]]", polygon(1e5, 0.0, 1e5 + 4, 0.0, 1e5, 3.0)),
    "odd number of coordinates": ("[[0,0,4,0,4,3,1]]", empty(DROPPED, EMPTY)),
    "two points": ("[[0,0,4,0]]", empty(DROPPED, EMPTY)),  # pycocotools takes these for a box
    "on a line": ("[[1,1,2,2,3,3]]", empty(DROPPED, EMPTY)),
    "beyond float64": ("[[1e400]]", ("E-SEG-SHAPE", "Number out of range - at `$[0][0]`")),
    "at the end of float64": ("[[1e308,0,-1e308,0,4,1e308]]", empty(DROPPED, EMPTY)),
    "too far to be drawn": ("[[1048577,0,1048578,0,1048577,3]]", empty(DROPPED, EMPTY)),
    "no polygons": ("[]", empty(EMPTY)),
    "null": ("null", empty("segmentation_missing")),
    "absent": ("", empty("segmentation_missing")),
    "RLE": ('{"counts":[0,12],"size":[3,4]}', rle(0, 12)),
    "RLE of nothing": (in_3_4("[12]"), empty(EMPTY)),
    "a number": ("5", ("E-SEG-SHAPE", "Expected `object | array | null`, got `int`")),
    "not JSON": ("[[NaN]]", ("E-SEG-SHAPE", "JSON is malformed: invalid character (byte 2)")),
    "size swapped": (
        '{"size":[4,3],"counts":[12]}',
        ("E-RLE-SIZE", "size is [4, 3], the image's is [3, 4]"),
    ),
    "too many in uint32": (  # pycocotools would add these up to 12
        in_3_4("[4294967296,12]"),
        ("E-RLE-SUM", "counts sum to 4294967308, 3 x 4 are 12 px"),
    ),
    "negative": (in_3_4("[13,-1]"), ("E-RLE-SUM", "count 1 is -1")),
    "compressed to a negative": (in_3_4('"=O"'), ("E-RLE-SUM", "count 1 is -1")),
    "character before the first": (
        in_3_4('"1/9"'),
        ("E-RLE-CHARS", "character '/' of count 1 is not part of it"),
    ),
    "unfinished": (in_3_4('"12P"'), ("E-RLE-CHARS", "the text ends within count 2")),
    "a count of 65 bits": (
        in_3_4(f'"1{"P" * 13}0"'),
        ("E-RLE-CHARS", "character '0' of count 1 is not part of it"),
    ),
}


@pytest.mark.parametrize(("text", "expected"), PARSED.values(), ids=PARSED)
def test_parse_segmentation(text: str, expected: Parsed | Reason) -> None:
    assert parsed(text) == expected


@st.composite
def counts_of_images(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Draw run lengths, and the width and height of their image."""
    width, height = draw(st.integers(1, 2000)), draw(st.integers(1, 300))
    cuts = draw(st.lists(st.integers(1, width * height), max_size=20, unique=True))
    edges = [0, *sorted(cuts), width * height]
    counts = [end - start for start, end in itertools.pairwise(edges)]
    if draw(st.booleans()):
        counts.insert(0, 0)  # the first pixel belongs to the object
    return [count for place, count in enumerate(counts) if count or not place], width, height


@draw(2000)
@given(counts_of_images())
def test_compressed_counts_equal_those_of_pycocotools(found: tuple[list[int], int, int]) -> None:
    counts, width, height = found
    by_pycocotools = coco_mask.frPyObjects(
        {"size": [height, width], "counts": counts}, height, width
    )
    text = by_pycocotools["counts"].decode()
    assert decode_rle_counts(text) == counts
    expected = rle(*counts) if any(counts[1::2]) else empty(EMPTY)
    assert parsed(json.dumps({"size": [height, width], "counts": text}), width, height) == expected


@pytest.mark.parametrize(
    ("polygon_px", "area_px2", "outline"),
    [
        (TRIANGLE, 6.0, 4.0 + 3.0 + 4.0),
        (TRIANGLE[::-1], 6.0, 11.0),  # x and y swapped, and the direction reversed
        ([0, 0, 2, 2, 0, 2, 2, 0], 0.0, 8.0),  # a bow tie: one half the other way around
        ([1e6, 1e6, 1e6 + 1, 1e6, 1e6 + 1, 1e6 + 1], 0.5, 3.0),  # far from 0
        # `sum` of Python 3.12 and newer would make it 3.509999999999934
        ([41.8, 21.6, 38.1, 0.1, 22.3, 36.1, 11.4, 47.3, 45.1, 1.5], 3.509999999999927, 134.6),
    ],
)
def test_area_and_outline(polygon_px: list[float], area_px2: float, outline: float) -> None:
    assert polygon_area_px2(polygon_px) == area_px2
    assert outline_px(polygon_px) == outline


DRAW_THE_LARGEST = """
from beam_tfrec.schemas.geometry.masks import mask_of
from beam_tfrec.schemas.fields import Segmentation
from beam_tfrec.schemas.annotations.coco_objects import MAX_OUTLINE_PX as size, is_drawable
for x in (-size, size):
    for y in (-size, size):
        far = [x, y, x * 0.75, y, x, y * 0.75]
        assert is_drawable(far)
        mask_of(Segmentation([far]), 640, 480)
mask_of(Segmentation([[0, 0, size / 2 - 1, 0, 0, 1]]), 13377, 13377)
"""


def test_drawing_uses_bounded_memory() -> None:
    limits = resource.RLIMIT_DATA, (10**9, 10**9)
    subprocess.run(
        [sys.executable, "-c", DRAW_THE_LARGEST],
        cwd=Path(__file__).parents[1],
        check=True,
        preexec_fn=lambda: resource.setrlimit(*limits),
    )
