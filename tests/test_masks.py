"""Masks against pycocotools, and the mask and polygon features of the detection layout."""

import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco_mask

from schemas.annotations.coco_objects import (
    ParsedSegmentation,
    decode_rle_counts,
    parse_segmentation,
)
from schemas.example import encode_example_parts
from schemas.features import Kind
from schemas.fields import (
    EncodedImage,
    ImageInfo,
    ObjectFields,
    PictureFields,
    Segmentation,
)
from schemas.geometry.masks import (
    MAX_MASK_PX,
    Mask,
    decode_drawn_counts,
    encode_gray_png,
    mask_of,
    scaled_mask_of,
)
from schemas.layouts import Built
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.groups import MASKS, POLYGONS, mask_codecs, segmentation_bytes
from schemas.layouts.pictures import SizeMismatch
from schemas.manifest import Label
from schemas.samples import Blob, Sample, pack
from tests.drawn_examples import draw
from tests.test_segmentations import (
    ANNOTATION_FILES,
    counts_of_images,
    encode_rle_counts,
    real_objects,
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


@pytest.mark.parametrize("name", [name for name in ANNOTATION_FILES if "taco" not in name])
def test_real_masks_are_those_of_pycocotools_to_the_pixel(shared_data: Path, name: str) -> None:
    objects = list(real_objects(shared_data, name))

    for segmentation, width, height in objects:
        parsed = parse_segmentation(json.dumps(segmentation).encode(), width, height)
        assert isinstance(parsed, ParsedSegmentation)
        mask = mask_of(parsed.segmentation, width, height)
        assert (mask.dtype, mask.shape) == (np.uint8, (height, width))
        assert np.array_equal(mask, ann_to_mask(segmentation, width, height))
        assert np.array_equal(decoded(encode_gray_png(mask)), mask)


polygon_lists = st.lists(
    st.lists(
        st.floats(-20, 80, allow_subnormal=False) | st.integers(0, 60).map(float),
        min_size=6,
        max_size=24,
    ).map(lambda polygon: polygon[: len(polygon) // 2 * 2]),
    min_size=1,
    max_size=3,
)


@draw(2000)
@given(polygon_lists, st.integers(1, 70), st.integers(1, 50))
def test_any_polygons_are_drawn_as_pycocotools_does(
    polygons: list[list[float]], width: int, height: int
) -> None:
    mask = mask_of(Segmentation(polygons), width, height)

    assert np.array_equal(mask, ann_to_mask(polygons, width, height))


@draw(1000)
@given(counts_of_images())
def test_any_run_lengths_are_the_mask_of_pycocotools(found: tuple[list[int], int, int]) -> None:
    counts, width, height = found
    rle = {"size": [height, width], "counts": counts}

    mask = mask_of(Segmentation(rle_counts=counts), width, height)

    assert np.array_equal(mask, ann_to_mask(rle, width, height))


@given(st.lists(st.integers(0, 2**30), min_size=1, max_size=12))
def test_drawn_counts_are_decoded_as_any(counts: list[int]) -> None:
    text = encode_rle_counts(counts)
    assert decode_drawn_counts(text.encode()).tolist() == decode_rle_counts(text) == counts


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


def test_polygons_are_scaled_before_they_are_drawn() -> None:
    polygon = [1.0, 2.0, 9.0, 2.0, 9.0, 7.0, 1.0, 7.0]
    twice = [2.0, 6.0, 18.0, 6.0, 18.0, 21.0, 2.0, 21.0]  # 20 x 30 of 10 x 10

    mask = scaled_mask_of(Segmentation([polygon]), (10, 10), (20, 30))

    assert np.array_equal(mask, ann_to_mask([twice], 20, 30))


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


def image_of(width_px: int, height_px: int, orientation: int = 1) -> EncodedImage:
    info = ImageInfo("jpeg", width_px, height_px, orientation)
    return EncodedImage("a.jpg", b"\xff\xd8\xff", "ab" * 32, info)


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


def test_an_object_that_is_dropped_takes_its_segmentation_along() -> None:
    outside = ObjectFields(1, (200.0, 0.0, 5.0, 5.0), 5.0, 0)
    inside = ObjectFields(1, (0.0, 0.0, 5.0, 5.0), 5.0, 0)
    fields = pack(PictureFields(100, 50, [outside, inside]))
    payload = pack([Segmentation([SQUARE]), Segmentation([TRIANGLE])])
    sample = Sample("train", "42", 0, (Blob("train", "a.jpg"),), fields, (11, 12), payload)

    built = build(sample, image_of(100, 50), layout_of("masks", "polygons"))

    assert [dropped.annotation_id for dropped in built.dropped] == [11]
    assert [mask.tolist() for mask in masks_of(built)] == [
        ann_to_mask([TRIANGLE], 100, 50).tolist()
    ]
    assert built.features["image/object/polygon_count"] == (Kind.INT64, [1])
    assert built.features["image/object/polygon"][1][:2] == [0.5, 0.2]


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


def test_masks_of_a_thumbnail_have_its_size() -> None:
    sample = sample_of(Segmentation([SQUARE]), Segmentation(rle_counts=[0, 2500, 2500]))

    built = build(sample, image_of(50, 25), layout_of("masks", "polygons"))

    polygon, rle = masks_of(built)
    assert np.array_equal(polygon, ann_to_mask([[value / 2 for value in SQUARE]], 50, 25))
    assert np.array_equal(rle, np.array([[1] * 25 + [0] * 25] * 25))
    assert built.features["image/object/polygon"][1][:2] == [0.1, 0.1]
    assert built.repairs == ["boxes_rescaled"]


def test_an_image_without_objects_has_all_keys() -> None:
    built = build(sample_of(), image_of(100, 50), layout_of("masks", "polygons"))

    features = {feature.key: [] for group in (MASKS, POLYGONS) for feature in group.features}
    assert {key: built.features[key][1] for key in features} == features


def test_a_payload_of_other_objects_is_refused() -> None:
    fields = pack(PictureFields(100, 50, [ObjectFields(1, (0.0, 0.0, 5.0, 5.0), 5.0, 0)]))
    sample = Sample("train", "42", 0, (), fields, (11,), pack([Segmentation()] * 2))

    with pytest.raises(ValueError, match="argument 2 is longer"):
        layout_of("masks").build(sample, [image_of(100, 50)], LABELS)


def test_the_plan_knows_the_codecs_where_masks_are_written() -> None:
    assert layout_of("masks").options()["mask_codecs"] == mask_codecs()
    assert "mask_codecs" not in layout_of("polygons").options() | DetectionLayout().options()
    pycocotools, version, zlib_name, zlib_version = mask_codecs().split(" ")
    assert (pycocotools, zlib_name) == ("pycocotools", "zlib")
    assert (version.count("."), zlib_version) == (2, zlib.ZLIB_RUNTIME_VERSION)


def test_estimates_follow_the_objects_and_the_pixels() -> None:
    sample = sample_of(Segmentation(), Segmentation(), size_px=(1000, 500))  # and a caption

    assert segmentation_bytes(sample, ["boxes"]) == 0
    assert segmentation_bytes(sample, ["boxes", "polygons"]) == 3 * 180
    assert segmentation_bytes(sample, ["boxes", "masks"]) == 3 * (480 + 500)
    more = [layout_of(name).record_bytes(sample) for name in ("masks", "polygons")]
    assert [size - layout_of().record_bytes(sample) for size in more] == [3 * 980, 3 * 180]
