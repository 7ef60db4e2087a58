"""The frame that annotations refer to, for each size policy and EXIF orientation."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.schemas.fields import STORED_FRACTIONS, UPRIGHT_FRACTIONS, ImageInfo
from beam_tfrec.schemas.geometry.boxes import inverse_orientation, turn_size
from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.layouts.pictures import Frame, SizeMismatch, aspects_agree, choose_frame
from tests.small_pictures import or_unfit

AUTO, REJECT = SizeMismatch.AUTO, SizeMismatch.REJECT
TRUST_IMAGE, TRUST_JSON = SizeMismatch.TRUST_IMAGE, SizeMismatch.TRUST_JSON
Size = tuple[int, int]

WIDE, HIGH, HALF, HALF_HIGH, OTHER = (640, 427), (427, 640), (320, 214), (214, 320), (100, 900)


def unfit(in_file: str, annotated: str) -> Unfit:
    return Unfit("E-IMG-SIZE", f"{in_file} in the file, {annotated} annotated")


def frame_in(
    policy: SizeMismatch, json_size: Size, file_size: Size, orientation: int, *, upright: bool
) -> Frame | Unfit:
    """Return the frame where an image is kept as stored, or turned upright."""
    if upright and orientation != 1:
        info = ImageInfo("jpeg", *turn_size(file_size, orientation))
        return or_unfit(choose_frame, json_size, info, policy, orientation)
    info = ImageInfo("jpeg", *file_size, orientation)
    return or_unfit(choose_frame, json_size, info, policy)


# Policy, size in the annotations, size and orientation of the file; the frame of an image kept as
# stored and, where it differs, of one turned upright.
FRAMES = {
    "auto, equal": (AUTO, WIDE, WIDE, 1, Frame(*WIDE)),
    "stored, EXIF 6": (AUTO, WIDE, WIDE, 6, Frame(*WIDE), Frame(*WIDE, 8, ("boxes_turned",))),
    # The annotated size is that of the picture as it is viewed.
    "upright, EXIF 6": (REJECT, HIGH, WIDE, 6, Frame(*HIGH, 6, ("boxes_turned",)), Frame(*HIGH)),
    "upright, trust_image": (
        *(TRUST_IMAGE, HIGH, WIDE, 6, Frame(*WIDE, 1, ("size_from_image",))),
        Frame(*WIDE, 8, ("size_from_image", "boxes_turned")),
    ),
    # The size cannot show which frame is meant: both have the same.
    "mirrored": (
        *(AUTO, WIDE, WIDE, 2, Frame(*WIDE, 1, ("frame_assumed",))),
        Frame(*WIDE, 2, ("frame_assumed", "boxes_turned")),
    ),
    "swapped without EXIF": (AUTO, HIGH, WIDE, 1, unfit("640 x 427", "427 x 640")),
    "auto, halved": (AUTO, WIDE, HALF, 1, Frame(*WIDE, 1, ("boxes_rescaled",))),
    "auto, halved, upright": (
        *(AUTO, WIDE, HALF_HIGH, 6, Frame(*WIDE, 6, ("boxes_rescaled", "boxes_turned"))),
        Frame(*WIDE, 1, ("boxes_rescaled",)),
    ),
    "fractions": (REJECT, STORED_FRACTIONS, WIDE, 1, Frame(1, 1)),
    "fractions, EXIF 6": (
        *(TRUST_IMAGE, STORED_FRACTIONS, WIDE, 6, Frame(1, 1)),
        Frame(1, 1, 8, ("boxes_turned",)),
    ),
    "upright fractions": (REJECT, UPRIGHT_FRACTIONS, WIDE, 1, Frame(1, 1)),
    "upright fractions, EXIF 6": (
        *(TRUST_IMAGE, UPRIGHT_FRACTIONS, WIDE, 6, Frame(1, 1, 6, ("boxes_turned",))),
        Frame(1, 1),
    ),
    "auto, another aspect": (AUTO, WIDE, (320, 216), 1, unfit("320 x 216", "640 x 427")),
    "reject, halved": (REJECT, WIDE, HALF, 1, unfit("320 x 214", "640 x 427")),
    "trust_image, halved": (TRUST_IMAGE, WIDE, HALF, 1, Frame(*HALF, 1, ("size_from_image",))),
    "trust_json, halved": (TRUST_JSON, WIDE, HALF, 1, Frame(*WIDE, 1, ("size_from_json",))),
    "trust_json, another aspect, EXIF": (
        *(TRUST_JSON, WIDE, OTHER, 6, Frame(*WIDE, 1, ("frame_assumed", "size_from_json"))),
        Frame(*WIDE, 8, ("frame_assumed", "size_from_json", "boxes_turned")),
    ),
}


@pytest.mark.parametrize("case", FRAMES.values(), ids=FRAMES)
def test_choose_frame(case: tuple) -> None:
    policy, json_size, file_size, orientation, kept, *turned = case
    found = frame_in(policy, json_size, file_size, orientation, upright=False)
    assert found == kept
    found = frame_in(policy, json_size, file_size, orientation, upright=True)
    assert found == (turned[0] if turned else kept)


SIZES = [WIDE, HIGH, HALF, HALF_HIGH, OTHER, (640, 640), (639, 640)]


@pytest.mark.parametrize("policy", SizeMismatch)
def test_annotations_lie_on_the_same_pixels_kept_or_upright(policy: SizeMismatch) -> None:
    for json_size, file_size, orientation in itertools.product(SIZES, SIZES, range(1, 9)):
        kept = frame_in(policy, json_size, file_size, orientation, upright=False)
        turned = frame_in(policy, json_size, file_size, orientation, upright=True)
        if isinstance(kept, Unfit) or isinstance(turned, Unfit):
            assert kept == turned
            continue
        assert kept[:2] == turned[:2]
        in_stored = (1, inverse_orientation(orientation))
        assert (kept.orientation, turned.orientation) in (in_stored, (orientation, 1))
        for frame in (kept, turned):
            assert ("boxes_turned" in frame.repairs) == (frame.orientation != 1)
        counted = [[name for name in f.repairs if name != "boxes_turned"] for f in (kept, turned)]
        assert counted[0] == counted[1]


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 20_000))
def test_every_thumbnail_keeps_its_aspect(width: int, height: int, thumb_width: int) -> None:
    thumb_height = max(1, round(height * thumb_width / width))
    assert aspects_agree((width, height), (thumb_width, thumb_height))
    assert not aspects_agree((640, 480), (320, 242))
