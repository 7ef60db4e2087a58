"""Panoptic images: masks against a plain reference, frames, and refusals."""

import zlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.schemas.fields import BadAnnotation, EncodedImage, PictureFields, SegmentFields
from beam_tfrec.schemas.geometry import masks as panoptic
from beam_tfrec.schemas.geometry.boxes import Resize, ResizeMode, turn_array
from beam_tfrec.schemas.geometry.masks import paint_values, read_places
from beam_tfrec.schemas.layouts import Built, Unfit
from beam_tfrec.schemas.layouts import groups as panoptic_group
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.samples import Blob, Sample, pack
from beam_tfrec.transforms.build_records import convert_all
from beam_tfrec.transforms.images.conversion import Conversion
from tests.small_images import chunk, idat, ihdr, png
from tests.small_pictures import or_unfit
from tests.turned_images import UPRIGHT, as_stored, encoded, jpeg_of, oriented, png_of

KEYS = (
    "image/segmentation/class/encoded",
    "image/panoptic/category_mask",
    "image/panoptic/instance_mask",
)
BOX = (0.0, 0.0, 1.0, 1.0)
DOG, CAR = SegmentFields(70_000, 18, BOX, 1.0, 0), SegmentFields(300, 3, BOX, 1.0, 1)
SKY = SegmentFields(9, 187, BOX, 1.0, 0, is_thing=0)
SEGMENTS = [SKY, DOG, CAR]

# Segment ids of 7 x 5 pixels; the corner pixel belongs to no segment.
IDS = np.full((5, 7), SKY.id)
IDS[1:3, 2:4], IDS[3:, 4:], IDS[4, 6] = DOG.id, CAR.id, 0


def colours_of(ids: np.ndarray) -> bytes:
    return png_of(np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8))


def reference(ids: np.ndarray, segments: Sequence[SegmentFields]) -> list[np.ndarray]:
    """Return the masks as defined, computed pixel by pixel."""
    place_of = {segment.id: place for place, segment in enumerate(segments)}
    masks = np.zeros((3, *ids.shape), np.uint8)
    for at, segment_id in np.ndenumerate(ids):
        if int(segment_id) in place_of:
            place = place_of[int(segment_id)]
            segment = segments[place]
            if segment.is_thing:
                masks[(slice(None), *at)] = 1, segment.category_id, place + 1
            else:
                masks[(slice(None), *at)] = segment.category_id - 90, segment.category_id, 0
    return list(masks)


PHOTO, PANOPTIC = encoded(jpeg_of(np.zeros((5, 7), np.uint8))), encoded(colours_of(IDS))
BLOBS = Blob("train", "a.jpg"), Blob("train/panoptic", "a.png")


def build(segments: list[SegmentFields] | None, *images: EncodedImage) -> Built | Unfit:
    """Build the record of a photo of 7 x 5 px, and perhaps its panoptic image."""
    fields = PictureFields(7, 5, [], segments=segments)
    sample = Sample("train", "1", 0, BLOBS[: len(images)], pack(fields), (5,))
    return or_unfit(DetectionLayout(features=("boxes", "panoptic")).build, sample, images, {})


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1)), max_size=9),
    st.binary(min_size=40, max_size=40),
    st.integers(1, 40),
)
def test_masks_equal_those_of_the_definition(
    described: list[tuple[int, int]], pixels: bytes, strip_px: int
) -> None:
    scale = 1_398_101  # spreads 0 to 12 over all ids that colours can hold
    segments = [
        SegmentFields(n * scale, 100 + n, BOX, 1.0, 0, is_thing) for n, is_thing in described
    ]
    ids = (np.frombuffer(pixels, np.uint8).reshape(5, 8) % 13).astype(np.int64) * scale
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panoptic, "_STRIP_PX", strip_px)
        places, has_unlisted_pixels, num_empty = read_places(colours_of(ids), (8, 5), segments)
    values = paint_values(segments)
    assert not isinstance(values, str)
    for by_place, mask in zip(values, reference(ids, segments), strict=True):
        np.testing.assert_array_equal(by_place[places], mask)
    listed = {segment.id for segment in segments}
    assert has_unlisted_pixels == bool(set(ids.flat) - listed - {0})
    last = {segment.id: place for place, segment in enumerate(segments)}
    shown = sum(place in last.values() and s.id in ids for place, s in enumerate(segments))
    assert num_empty == len(segments) - shown


def test_an_image_without_an_annotation_has_no_masks() -> None:
    for images in ([PHOTO], [PHOTO, PANOPTIC]):
        built = build(None, *images)
        assert isinstance(built, Built)
        assert [built.features[key][1] for key in KEYS] == [[], [], []]


def test_segments_and_pixels_that_disagree_are_counted() -> None:
    unseen = SegmentFields(77, 1, BOX, 1.0, 0)
    built = build([DOG, unseen, SKY, unseen], PHOTO, PANOPTIC)
    assert isinstance(built, Built)  # CAR's pixels are in no segment
    repairs = ["panoptic_pixels_unlisted", "panoptic_segment_empty", "panoptic_segment_empty"]
    assert built.repairs == repairs
    assert as_stored(*built.features[KEYS[0]][1])[3:, 4:].tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("conversion", "shown"),
    [
        (Conversion(), "a.jpg"),
        (Conversion(Resize(5, 5), ResizeMode.FILL), "the part of a.jpg that is left"),
    ],
)
def test_a_panoptic_image_without_a_pixel_of_a_segment_is_dropped(
    conversion: Conversion, shown: str
) -> None:
    ids = np.zeros((5, 7), int)
    ids[:, 0] = DOG.id if conversion.resize else DOG.id + 1
    sample = Sample("train", "1", 0, BLOBS, b"")
    images = convert_all(sample, [PHOTO, encoded(colours_of(ids))], conversion)
    built = build([DOG], *images)
    assert isinstance(built, Built)
    detail = f"none of its 1 segments has a pixel in {shown}"
    assert built.dropped == [BadAnnotation(0, "E-SEG-EMPTY", detail)]
    assert [built.features[key][1] for key in KEYS] == [[], [], []]


def segment(category_id: int, is_thing: int, segment_id: int = 9) -> SegmentFields:
    return SegmentFields(segment_id, category_id, BOX, 1.0, 0, is_thing)


@pytest.mark.parametrize(
    ("segments", "what"),
    [
        ([segment(0, 1)], "segment 9 is thing of category 0, not 1 to 255"),  # 0 is void
        ([segment(256, 1)], "segment 9 is thing of category 256, not 1 to 255"),
        ([segment(91, 0)], "segment 9 is stuff of category 91, not 92 to 255"),  # would be a thing
        ([segment(1, 1, n) for n in range(256)], "256 segments, the limit is 255"),
    ],
)
def test_values_beyond_8_bits_are_refused(segments: list[SegmentFields], what: str) -> None:
    assert build(segments, PHOTO, PANOPTIC) == Unfit("E-EX-FAILED", f"panoptic: {what}", 1)


@pytest.mark.parametrize(
    "data",
    [
        jpeg_of(np.zeros((5, 7, 3), np.uint8)),
        png_of(np.zeros((5, 7, 4), np.uint8)),
        png(ihdr(7, 5, 16, 2), idat(bytes(5 * 43))),
    ],
)
def test_other_colour_types_are_rejected(data: bytes) -> None:
    what = "a panoptic image must be a PNG of RGB, 8 bits each"
    assert build(SEGMENTS, PHOTO, encoded(data)) == Unfit("E-IMG-TYPE", what, 1)


def test_damaged_pixels_name_the_panoptic_image() -> None:
    cut = chunk(b"IDAT", zlib.compress(bytes(5 * 22))[:-8])
    built = build(SEGMENTS, PHOTO, encoded(png(ihdr(7, 5, 8, 2), cut)))
    assert isinstance(built, Unfit)
    assert (built.code, built.place) == ("E-IMG-DAMAGED", 1)


def test_too_many_pixels_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panoptic_group, "MAX_PANOPTIC_PX", 35)
    assert isinstance(build(SEGMENTS, PHOTO, PANOPTIC), Built)
    monkeypatch.setattr(panoptic_group, "MAX_PANOPTIC_PX", 34)
    assert build(SEGMENTS, PHOTO, PANOPTIC) == Unfit("E-IMG-PIXELS", "35 pixels, limit 34", 1)


def test_only_panoptic_pngs_of_stored_pixels_turn_with_their_photo() -> None:
    photo_6 = encoded(oriented(png_of(np.zeros((5, 7), np.uint8)), 6))
    of_upright = encoded(colours_of(turn_array(IDS, 6)))
    for other, turned in ((PANOPTIC, 6), (of_upright, 1), (PHOTO, 1)):
        found = convert_all(Sample("train", "1", 0, BLOBS, b""), [photo_6, other], UPRIGHT)
        assert found[1].turned == turned and (found[1] is other) == (turned == 1)
    pair = Sample("train", "1", 0, (BLOBS[0], Blob("train", "b.png")), b"")
    found = convert_all(pair, [photo_6, PANOPTIC], UPRIGHT)
    assert found[1].turned == 1  # images of a pair turn independently
