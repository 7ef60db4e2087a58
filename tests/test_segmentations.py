"""Segmentations against pycocotools: parsed, drawn as masks, and written as features."""

import io
import itertools
import json
import re
import resource
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from beam_tfrec.schemas.annotations import coco_objects
from beam_tfrec.schemas.example import encode_example_parts
from beam_tfrec.schemas.faults import Reason
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.fields import ObjectFields, PictureFields, Segmentation
from beam_tfrec.schemas.geometry.masks import Mask, encode_gray_png, mask_of, scaled_mask_of
from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.groups import mask_codecs
from beam_tfrec.schemas.layouts.pictures import SizeMismatch
from beam_tfrec.schemas.samples import Blob, Sample, pack
from tests.conftest import draw
from tests.small_pictures import built, image_of

Parsed = tuple[Segmentation, list[str]]


def parsed(text: str, width_px: int = 4, height_px: int = 3) -> Parsed | Reason:
    """Return a segmentation and its repairs, or its fault."""
    repairs: Counter[str] = Counter()
    found = coco_objects.parse_segmentation(text.encode(), width_px, height_px, repairs)
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
        ("E-RLE-CHARS", "character '/' of count 1 does not fit there"),
    ),
    "unfinished": (in_3_4('"12P"'), ("E-RLE-CHARS", "the text ends within count 2")),
    "a count of 65 bits": (
        in_3_4(f'"1{"P" * 13}0"'),
        ("E-RLE-CHARS", "character '0' of count 1 does not fit there"),
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
    assert coco_objects.decode_rle_counts(text) == counts
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
    assert coco_objects.polygon_area_px2(polygon_px) == area_px2
    assert coco_objects.outline_px(polygon_px) == outline


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


def ann_to_mask(segmentation: Any, width_px: int, height_px: int) -> Mask:
    """Return the result of `pycocotools.coco.COCO.annToMask`, by the same calls."""
    rle = coco_mask.frPyObjects(segmentation, height_px, width_px)
    return coco_mask.decode(coco_mask.merge(rle) if isinstance(segmentation, list) else rle)


def decoded(png: bytes) -> Mask:
    with Image.open(io.BytesIO(png)) as image:
        assert (image.format, image.mode) == ("PNG", "L")
        return np.asarray(image)


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        (Segmentation(rle_counts=[13, -1]), "run lengths are not those of 3 x 4 px"),
        (Segmentation([[1e300, 0, 1, 0, 1, 1]]), "a polygon of 6 numbers is too large to be drawn"),
        # pycocotools would take it for a box.
        (Segmentation([[0, 0, 1, 1]]), "a polygon of 4 numbers is too large to be drawn"),
    ],
)
def test_values_that_would_crash_pycocotools_are_refused(
    segmentation: Segmentation, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        mask_of(segmentation, 3, 4)


@settings(deadline=None)
@given(counts_of_images(), st.integers(1, 60), st.integers(1, 60))
def test_scaled_run_lengths_are_the_nearest_pixels(
    found: tuple[list[int], int, int], width: int, height: int
) -> None:
    counts, from_width, from_height = found
    segmentation = Segmentation(rle_counts=counts)
    scaled = scaled_mask_of(segmentation, (from_width, from_height), (width, height))
    mask = mask_of(segmentation, from_width, from_height)
    runs = {"size": [from_height, from_width], "counts": counts}
    assert np.array_equal(mask, ann_to_mask(runs, from_width, from_height))
    rows = [int((row + 0.5) * from_height / height) for row in range(height)]
    columns = [int((column + 0.5) * from_width / width) for column in range(width)]
    if (from_width, from_height) == (width, height):
        rows, columns = list(range(height)), list(range(width))
    assert np.array_equal(scaled, mask[np.ix_(rows, columns)])


def test_run_lengths_of_a_size_beyond_memory_are_scaled() -> None:
    side = 2**31 - 1
    left_half = Segmentation(rle_counts=[0, side * (side // 2), side * (side // 2 + 1)])
    assert scaled_mask_of(left_half, (side, side), (4, 1)).tolist() == [[1, 1, 0, 0]]


def test_a_png_decodes_to_its_mask() -> None:
    import tensorflow as tf

    noise = np.random.default_rng(0).integers(0, 2, (1001, 5000), np.uint8)
    empty, view = np.zeros((480, 640), np.uint8), noise[:3, :5].T[::-1]
    for mask in (np.ones((1, 1), np.uint8), empty, noise, view):
        png = encode_gray_png(mask)
        assert np.array_equal(decoded(png), mask)
        assert np.array_equal(tf.io.decode_image(png).numpy()[..., 0], mask)


SQUARE = [10.0, 5.0, 30.0, 5.0, 30.0, 25.0, 10.0, 25.0]
WEDGE = [50.0, 10.0, 90.0, 10.0, 90.0, 40.0]
TOP_LEFT_PIXEL = Segmentation(rle_counts=[0, 1, 4999])


def sample_of(*segmentations: Segmentation) -> Sample:
    whole = ObjectFields(1, (0.0, 0.0, 100.0, 50.0), 5.0, 0)
    fields = PictureFields(100, 50, [whole] * len(segmentations), captions=["a caption"])
    ids = (*range(11, 11 + len(segmentations)), 99)  # the caption's id
    payload = pack(list(segmentations))
    return Sample("train", "42", 0, (Blob("train", "a.jpg", 3),), pack(fields), ids, payload)


def test_each_object_has_its_mask() -> None:
    sample = sample_of(Segmentation([SQUARE, WEDGE]), TOP_LEFT_PIXEL, Segmentation())
    made = built(DetectionLayout(features=("boxes", "masks")), sample, image_of(100, 50))
    first, second, third = map(decoded, made.features["image/object/mask"][1])
    assert np.array_equal(first, ann_to_mask([SQUARE, WEDGE], 100, 50))
    assert second.sum() == second[0, 0] == 1
    assert third.sum() == 0
    assert made.repairs == ["mask_empty"]
    assert "image/object/polygon" not in made.features


def test_run_lengths_fit_no_image_of_another_size() -> None:
    layout = DetectionLayout(SizeMismatch.TRUST_IMAGE, features=("boxes", "masks"))
    what = "run lengths are of 100 x 50 px, the image has 50 x 100 px; give "
    with pytest.raises(Unfit, match=what):
        built(layout, sample_of(TOP_LEFT_PIXEL), image_of(50, 100))


def test_polygons_are_one_ragged_tensor() -> None:
    import tensorflow as tf

    over_the_edge = [-10.0, 0.0, 110.0, 0.0, 50.0, 60.0]
    outlines = (Segmentation([SQUARE, WEDGE]), TOP_LEFT_PIXEL, Segmentation([over_the_edge]))
    layout = DetectionLayout(features=("boxes", "polygons"))
    made = built(layout, sample_of(*outlines), image_of(100, 50))
    square = [0.1, 0.1, 0.3, 0.1, 0.3, 0.5, 0.1, 0.5]
    others = [[0.5, 0.2, 0.9, 0.2, 0.9, 0.8], [-0.1, 0.0, 1.1, 0.0, 0.5, 1.2]]  # not clipped
    assert made.features["image/object/polygon"] == (Kind.FLOAT, sum(others, square))
    assert made.repairs == [] and "image/object/mask" not in made.features
    keys = ("image/object/polygon_count", "image/object/polygon_length")
    feature = tf.io.RaggedFeature(
        tf.float32,
        value_key="image/object/polygon",
        partitions=[tf.io.RaggedFeature.RowLengths(key) for key in keys],
    )
    record = b"".join(encode_example_parts(made.features))
    batch = tf.io.parse_example([record, record], {"polygon": feature})["polygon"]
    for parsed in batch:
        assert [len(polygons) for polygons in parsed.to_list()] == [2, 0, 1]
        for polygon, expected in zip(parsed.merge_dims(0, 1), [square, *others], strict=True):
            np.testing.assert_array_equal(polygon, np.float32(expected))


def test_the_plan_names_the_codecs_of_masks() -> None:
    masks, polygons = (DetectionLayout(features=("boxes", name)) for name in ("masks", "polygons"))
    assert masks.options()["mask_codecs"] == mask_codecs()
    assert "mask_codecs" not in polygons.options() | DetectionLayout().options()
    assert re.fullmatch(rf"pycocotools [\d.]+ zlib {zlib.ZLIB_RUNTIME_VERSION}", mask_codecs())
