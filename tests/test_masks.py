"""Masks against pycocotools, and the mask and polygon features of the detection layout."""

import io
import re
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from beam_tfrec.schemas.example import encode_example_parts
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.fields import ObjectFields, PictureFields, Segmentation
from beam_tfrec.schemas.geometry.masks import Mask, encode_gray_png, mask_of, scaled_mask_of
from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.groups import mask_codecs
from beam_tfrec.schemas.layouts.pictures import SizeMismatch
from beam_tfrec.schemas.samples import Blob, Sample, pack
from tests.small_pictures import built, image_of
from tests.test_segmentations import counts_of_images


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
    rle = {"size": [from_height, from_width], "counts": counts}
    assert np.array_equal(mask, ann_to_mask(rle, from_width, from_height))
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
TRIANGLE = [50.0, 10.0, 90.0, 10.0, 90.0, 40.0]
TOP_LEFT_PIXEL = Segmentation(rle_counts=[0, 1, 4999])


def sample_of(*segmentations: Segmentation) -> Sample:
    whole = ObjectFields(1, (0.0, 0.0, 100.0, 50.0), 5.0, 0)
    fields = PictureFields(100, 50, [whole] * len(segmentations), captions=["a caption"])
    ids = (*range(11, 11 + len(segmentations)), 99)  # the caption's id
    payload = pack(list(segmentations))
    return Sample("train", "42", 0, (Blob("train", "a.jpg", 3),), pack(fields), ids, payload)


def test_each_object_has_its_mask() -> None:
    sample = sample_of(Segmentation([SQUARE, TRIANGLE]), TOP_LEFT_PIXEL, Segmentation())
    made = built(DetectionLayout(features=("boxes", "masks")), sample, image_of(100, 50))
    first, second, third = map(decoded, made.features["image/object/mask"][1])
    assert np.array_equal(first, ann_to_mask([SQUARE, TRIANGLE], 100, 50))
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
    outlines = (Segmentation([SQUARE, TRIANGLE]), TOP_LEFT_PIXEL, Segmentation([over_the_edge]))
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
