"""Masks against pycocotools, and the mask and polygon features of the detection layout."""

import io
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from schemas.example import encode_example_parts
from schemas.features import Kind
from schemas.fields import (
    EncodedImage,
    ObjectFields,
    PictureFields,
    Segmentation,
)
from schemas.geometry.masks import (
    MAX_MASK_PX,
    Mask,
    encode_gray_png,
    mask_of,
    scaled_mask_of,
)
from schemas.layouts import Built
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.groups import mask_codecs
from schemas.layouts.pictures import SizeMismatch
from schemas.manifest import Label
from schemas.samples import Blob, Sample, pack
from tests.drawn_examples import draw
from tests.small_pictures import image_of
from tests.test_segmentations import (
    counts_of_images,
)

LABELS = {1: Label(1, "person")}


def ann_to_mask(segmentation: Any, width_px: int, height_px: int) -> Mask:
    """Return what `pycocotools.coco.COCO.annToMask` does, in its own words."""
    if isinstance(segmentation, list):
        rles = coco_mask.frPyObjects(segmentation, height_px, width_px)
        rle = coco_mask.merge(rles)
    elif isinstance(segmentation["counts"], list):
        rle = coco_mask.frPyObjects(segmentation, height_px, width_px)
    else:
        rle = segmentation
    return coco_mask.decode(rle)


def decoded(png: bytes) -> Mask:
    with Image.open(io.BytesIO(png)) as image:
        assert (image.format, image.mode) == ("PNG", "L")
        return np.asarray(image)


# --- pixels ---


polygon_lists = st.lists(
    st.lists(
        st.floats(-20, 80, allow_subnormal=False) | st.integers(0, 60).map(float),
        min_size=6,
        max_size=24,
    ).map(lambda polygon: polygon[: len(polygon) // 2 * 2]),
    min_size=1,
    max_size=3,
)


@draw(300)
@given(polygon_lists, st.integers(1, 70), st.integers(1, 50))
def test_any_polygons_are_drawn_as_pycocotools_does(
    polygons: list[list[float]], width: int, height: int
) -> None:
    mask = mask_of(Segmentation(polygons), width, height)
    assert np.array_equal(mask, ann_to_mask(polygons, width, height))


@draw(200)
@given(counts_of_images())
def test_any_run_lengths_are_the_mask_of_pycocotools(found: tuple[list[int], int, int]) -> None:
    counts, width, height = found
    rle = {"size": [height, width], "counts": counts}
    mask = mask_of(Segmentation(rle_counts=counts), width, height)
    assert np.array_equal(mask, ann_to_mask(rle, width, height))


REFUSED = {
    "too many pixels": (
        (Segmentation(), MAX_MASK_PX + 1, 1),
        "a mask of 178956971 x 1 px, the limit is 178956970 px",
    ),
    "run lengths of another image": (
        (Segmentation(rle_counts=[5, 6]), 3, 4),
        "run lengths are not those of 3 x 4 px",
    ),
    "negative run": (
        (Segmentation(rle_counts=[13, -1]), 3, 4),
        "run lengths are not those of 3 x 4 px",
    ),
    "far away": (
        (Segmentation([[1e300, 0, 1, 0, 1, 1]]), 3, 4),
        "a polygon of 6 numbers is too large to be drawn",
    ),
    "four numbers": (  # a box for pycocotools
        (Segmentation([[0, 0, 1, 1]]), 3, 4),
        "a polygon of 4 numbers is too large to be drawn",
    ),
}


@pytest.mark.parametrize(("given", "message"), REFUSED.values(), ids=REFUSED)
def test_values_that_would_crash_pycocotools_are_refused(
    given: tuple[Segmentation, int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        mask_of(*given)


# --- other sizes and orientations ---


@settings(deadline=None)
@given(counts_of_images(), st.integers(1, 60), st.integers(1, 60))
def test_scaled_run_lengths_are_the_nearest_pixels(
    found: tuple[list[int], int, int], width: int, height: int
) -> None:
    counts, from_width, from_height = found
    segmentation = Segmentation(rle_counts=counts)
    scaled = scaled_mask_of(segmentation, (from_width, from_height), (width, height))
    mask = mask_of(segmentation, from_width, from_height)
    rows = [int((row + 0.5) * from_height / height) for row in range(height)]
    columns = [int((column + 0.5) * from_width / width) for column in range(width)]
    if (from_width, from_height) == (width, height):
        rows, columns = list(range(height)), list(range(width))
    assert np.array_equal(scaled, mask[np.ix_(rows, columns)])


def test_run_lengths_of_a_size_beyond_memory_are_scaled() -> None:
    side = 2**31 - 1
    left_half = Segmentation(rle_counts=[0, side * (side // 2), side * (side // 2 + 1)])
    assert scaled_mask_of(left_half, (side, side), (4, 1)).tolist() == [[1, 1, 0, 0]]


# --- the PNG ---


def random_mask(width: int, height: int) -> Mask:
    return np.random.default_rng(width).integers(0, 2, (height, width), np.uint8)


@pytest.mark.parametrize(
    "mask",
    [
        np.ones((1, 1), np.uint8),
        np.zeros((480, 640), np.uint8),
        random_mask(1, 300),
        random_mask(1001, 5000),  # several stripes
        random_mask(5, 3).T[::-1],  # a view, turned
    ],
    ids=lambda mask: "{} x {}".format(*mask.shape[::-1]),
)
def test_a_png_decodes_to_its_mask(mask: Mask) -> None:
    import tensorflow as tf

    png = encode_gray_png(mask)
    assert np.array_equal(decoded(png), mask)
    assert np.array_equal(tf.io.decode_png(png).numpy()[..., 0], mask)
    assert np.array_equal(tf.io.decode_image(png).numpy()[..., 0], mask)


# --- the layout ---

SQUARE = [10.0, 5.0, 30.0, 5.0, 30.0, 25.0, 10.0, 25.0]
TRIANGLE = [50.0, 10.0, 90.0, 10.0, 90.0, 40.0]
TOP_LEFT_PIXEL = Segmentation(rle_counts=[0, 1, 4999])


def sample_of(*segmentations: Segmentation, size_px: tuple[int, int] = (100, 50)) -> Sample:
    whole = ObjectFields(1, (0.0, 0.0, 100.0, 50.0), 5.0, 0)
    fields = PictureFields(*size_px, [whole] * len(segmentations), captions=["a caption"])
    ids = (*range(11, 11 + len(segmentations)), 99)  # the caption's
    payload = pack(list(segmentations))
    return Sample("train", "42", 0, (Blob("train", "a.jpg", 3),), pack(fields), ids, payload)


def layout_of(*features: str, policy: SizeMismatch = SizeMismatch.AUTO) -> DetectionLayout:
    return DetectionLayout(on_size_mismatch=policy, features=("boxes", *features))


def build(sample: Sample, image: EncodedImage, layout: DetectionLayout) -> Built:
    built = layout.build(sample, [image], LABELS)
    assert isinstance(built, Built)
    return built


def masks_of(built: Built) -> list[Mask]:
    kind, pngs = built.features["image/object/mask"]
    assert kind is Kind.BYTES
    return list(map(decoded, pngs))


def test_each_object_has_its_mask() -> None:
    sample = sample_of(Segmentation([SQUARE, TRIANGLE]), TOP_LEFT_PIXEL, Segmentation())
    built = build(sample, image_of(100, 50), layout_of("masks"))
    first, second, third = masks_of(built)
    assert np.array_equal(first, ann_to_mask([SQUARE, TRIANGLE], 100, 50))
    assert second.sum() == second[0, 0] == 1
    assert third.sum() == 0
    assert built.repairs == ["mask_empty"]
    assert "image/object/polygon" not in built.features


def test_polygons_are_normalised_floats_and_two_lists_of_lengths() -> None:
    over_the_edge = [-10.0, 0.0, 110.0, 0.0, 50.0, 60.0]
    sample = sample_of(
        Segmentation([SQUARE, TRIANGLE]), TOP_LEFT_PIXEL, Segmentation([over_the_edge])
    )
    built = build(sample, image_of(100, 50), layout_of("polygons"))
    assert built.features["image/object/polygon"] == (
        Kind.FLOAT,
        [
            *(0.1, 0.1, 0.3, 0.1, 0.3, 0.5, 0.1, 0.5),
            *(0.5, 0.2, 0.9, 0.2, 0.9, 0.8),
            *(-0.1, 0.0, 1.1, 0.0, 0.5, 1.2),  # not clipped
        ],
    )
    assert built.features["image/object/polygon_count"] == (Kind.INT64, [2, 0, 1])
    assert built.features["image/object/polygon_length"] == (Kind.INT64, [8, 6, 6])
    assert built.repairs == []
    assert "image/object/mask" not in built.features


def test_polygons_are_one_ragged_tensor() -> None:
    import tensorflow as tf

    sample = sample_of(Segmentation([SQUARE, TRIANGLE]), Segmentation(), Segmentation([TRIANGLE]))
    built = build(sample, image_of(100, 50), layout_of("polygons"))
    record = b"".join(encode_example_parts(built.features))
    feature = tf.io.RaggedFeature(
        tf.float32,
        value_key="image/object/polygon",
        partitions=[
            tf.io.RaggedFeature.RowLengths("image/object/polygon_count"),
            tf.io.RaggedFeature.RowLengths("image/object/polygon_length"),
        ],
    )
    parsed = tf.io.parse_single_example(record, {"polygon": feature})["polygon"]
    square = np.array(SQUARE, np.float32) / np.tile(np.array([100, 50], np.float32), 4)
    triangle = np.array(TRIANGLE, np.float32) / np.tile(np.array([100, 50], np.float32), 3)
    assert parsed.shape[0] == 3
    assert parsed.row_lengths().numpy().tolist() == [2, 0, 1]
    assert parsed[0].to_list() == [square.tolist(), triangle.tolist()]
    assert parsed[2].to_list() == [triangle.tolist()]
    batch = tf.io.parse_example([record, record], {"polygon": feature})["polygon"]
    assert batch[1].to_list() == parsed.to_list()


def test_the_plan_knows_the_codecs_where_masks_are_written() -> None:
    assert layout_of("masks").options()["mask_codecs"] == mask_codecs()
    assert "mask_codecs" not in layout_of("polygons").options() | DetectionLayout().options()
    pycocotools, version, zlib_name, zlib_version = mask_codecs().split(" ")
    assert (pycocotools, zlib_name) == ("pycocotools", "zlib")
    assert (version.count("."), zlib_version) == (2, zlib.ZLIB_RUNTIME_VERSION)
