"""Annotations of converted images match the pixels: coloured squares show where they are."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from beam_tfrec.schemas.fields import (
    EncodedImage,
    ObjectFields,
    PictureFields,
    Segmentation,
    SegmentFields,
)
from beam_tfrec.schemas.geometry.boxes import Resize, ResizeMode
from beam_tfrec.schemas.layouts import Built, Layout, Unfit
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.tfds import KerasLayout, TfdsLayout
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Blob, Sample, pack, panoptic_root
from beam_tfrec.transforms.build_records import convert_all
from beam_tfrec.transforms.images.conversion import NO_CONVERSION, Color, Conversion, Encoding
from tests.small_pictures import or_unfit
from tests.turned_images import as_stored, as_viewed, encoded, oriented, png_of

WIDTH_PX, HEIGHT_PX = 120, 80
RED, GREEN, BLUE = range(3)
SQUARES = {  # channel: left, top, right, bottom as stored
    RED: (4, 6, 16, 30),  # crops to the middle remove it, or a part of it
    GREEN: (50, 20, 90, 61),
    BLUE: (12, 50, 44, 74),
}
PERSON = Label(1, "person", keypoints=("nose",))
CONVERSIONS = [
    NO_CONVERSION,
    Conversion(Resize(60, 60)),
    Conversion(Resize(300, 250), ResizeMode.FIT),
    Conversion(Resize(60, 60), ResizeMode.FILL),
    Conversion(Resize(40, 100), ResizeMode.FILL),
    Conversion(Resize(64, 64), ResizeMode.STRETCH),
    Conversion(Resize(90, None)),
    Conversion(reencode=Encoding.PNG, color=Color.RGB),
    Conversion(Resize(64, 48), pixels_dtype="uint8"),
]
# EXIF orientation, whether annotated in the upright picture, and whether that is written.
TURNS = [
    (orientation, in_upright, upright)
    for orientation in range(1, 9)
    for in_upright in ([False, True] if orientation >= 5 else [False])
    for upright in (False, True)
]
PAIRS = list(itertools.product(TURNS, CONVERSIONS))
# 7 is coprime to both lengths: every turn and every conversion occurs.
PAIRS = [*PAIRS[::7], *itertools.product(TURNS, [NO_CONVERSION])]
some = pytest.mark.parametrize(("turn", "conversion"), PAIRS)


def run_lengths(mask: np.ndarray) -> list[int]:
    """Return lengths of alternating runs of 0 and 1, down the columns."""
    flat = mask.T.ravel().tolist()
    runs = [(value, len(list(run))) for value, run in itertools.groupby(flat)]
    return [0] * runs[0][0] + [length for _, length in runs]


def drawn() -> np.ndarray:
    pixels = np.zeros((HEIGHT_PX, WIDTH_PX, 3), np.uint8)
    for channel, (left, top, right, bottom) in SQUARES.items():
        pixels[top:bottom, left:right, channel] = 255
    return pixels


def extent(mask: np.ndarray) -> tuple[int, int, int, int] | None:
    """Return left, top, right and bottom of what is set; None for nothing."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def grown(mask: np.ndarray) -> np.ndarray:
    """Return a mask with all neighbouring pixels added."""
    padded = np.pad(mask, 1)
    height, width = mask.shape
    steps = itertools.product(range(3), range(3))
    return np.any([padded[y : y + height, x : x + width] for y, x in steps], axis=0)


def agree(mask: np.ndarray, found: np.ndarray) -> bool:
    """Return whether two masks are the same to within a pixel."""
    return not ((mask & ~grown(found)).any() or (found & ~grown(mask)).any())


BLOBS = (Blob("train", "a.png"), Blob(panoptic_root("train"), "b.png"))


class Scene:
    """Converted squares: on a photo, on its panoptic image, and in its annotations."""

    def __init__(self, turn: tuple[int, bool, bool], conversion: Conversion) -> None:
        orientation, in_upright, upright = turn
        photo = oriented(png_of(drawn()), orientation)
        self.annotated = (as_viewed(photo) if in_upright else as_stored(photo)) == 255
        self.height_px, self.width_px, _ = self.annotated.shape
        panoptic = png_of((self.annotated * [10, 20, 30]).astype(np.uint8))
        files = [encoded(photo), encoded(panoptic, "b.png")]
        sample = Sample("train", "1", 0, BLOBS, b"")
        found = convert_all(sample, files, replace(conversion, turns=upright))
        self.images: list[EncodedImage] = found
        image = found[0]
        pixels = as_stored(image.data) if image.pixels is None else image.pixels
        assert pixels.shape[1::-1] == image.info.size_px
        self.written = pixels > 127
        assert image.turned == (orientation if upright else 1)
        assert image.info.orientation == (1 if upright else orientation)
        assert ("exif_orientation" in image.info.traits) == (image.info.orientation != 1)

    @property
    def size_px(self) -> tuple[int, int]:
        return self.images[0].info.size_px

    def build(
        self, layout: Layout, channels: Sequence[int], *, outlines: str = ""
    ) -> Built | Unfit:
        objects, segmentations, segments = [], list[Segmentation](), []
        for channel in channels:
            mask = self.annotated[:, :, channel]
            found = extent(mask)
            assert found is not None
            left, top, right, bottom = found
            bbox = (float(left), float(top), float(right - left), float(bottom - top))
            middle = [(left + right) / 2, (top + bottom) / 2, 2.0]
            objects.append(ObjectFields(1, bbox, float(mask.sum()), 0, middle))
            corners = [left, top, right, top, right, bottom, left, bottom]
            polygon = Segmentation([list(map(float, corners))])
            runs = Segmentation(rle_counts=run_lengths(mask.astype(np.uint8)))
            segmentations.append(runs if outlines == "rle" else polygon)
            segment_id = (10 << 0, 20 << 8, 30 << 16)[channel]
            segments.append(SegmentFields(segment_id, 1, bbox, float(mask.sum()), 0))
        fields = PictureFields(self.width_px, self.height_px, objects, segments=segments)
        payload = pack(segmentations) if outlines else b""
        sample = Sample("train", "1", 0, BLOBS, pack(fields), tuple(channels), payload)
        return or_unfit(layout.build, sample, self.images, {1: PERSON})

    def built(self, layout: Layout, *, outlines: str = "") -> Built:
        built = self.build(layout, list(SQUARES), outlines=outlines)
        assert isinstance(built, Built), built
        return built

    def shown(self) -> list[int]:
        """Return the squares with more than a row of pixels in the written image."""
        return [c for c in SQUARES if self.written[:, :, c].sum() > max(self.size_px)]


def values(built: Built, key: str) -> list:
    return list(built.features[key][1])


def written_squares(scene: Scene, built: Built) -> list[int]:
    """Return the squares that have an object; check that the others have hardly a pixel left."""
    dropped = {found.annotation_id: found.code for found in built.dropped}
    assert set(dropped.values()) <= {"E-BOX-OUTSIDE", "E-BOX-EMPTY"}
    kept = [channel for channel in SQUARES if channel not in dropped]
    assert set(scene.shown()) <= set(kept)
    return kept


def near(found: Sequence[float], scene: Scene, channel: int) -> bool:
    """Return whether xmin, ymin, xmax, ymax in px are those of a square to within a pixel."""
    expected = extent(scene.written[:, :, channel])
    if expected is None:  # less than half a pixel is left of it
        return min(found[2] - found[0], found[3] - found[1]) <= 1
    return bool(np.abs(np.subtract(found, expected)).max() <= 1.01)


@some
def test_detection_and_keras_match_the_pixels(
    turn: tuple[int, bool, bool], conversion: Conversion
) -> None:
    scene = Scene(turn, conversion)
    width_px, height_px = scene.size_px
    for channel in SQUARES:
        built = scene.build(KerasLayout(), [channel])
        if isinstance(built, Unfit):
            assert built.code == "E-EX-EMPTY" and channel not in scene.shown()
            continue
        x, y, width, height = values(built, "bbox")
        assert near([x, y, x + width, y + height], scene, channel)
    layout = DetectionLayout(features=("boxes", "keypoints", "masks", "polygons"))
    for outlines in ("polygons", "rle"):
        built = scene.built(layout, outlines=outlines)
        kept = written_squares(scene, built)
        keys = [f"image/object/bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax")]
        sides = (width_px, height_px) * 2
        edges = [np.multiply(values(built, k), side) for k, side in zip(keys, sides, strict=True)]
        masks = [as_stored(png) for png in values(built, "image/object/mask")]
        areas = values(built, "image/object/area")
        for place, channel in enumerate(kept):
            found = scene.written[:, :, channel]
            box = [edge[place] for edge in edges]
            assert near(box, scene, channel)
            mask = masks[place] == 1
            assert mask.shape == found.shape
            assert conversion.changes or (mask == found).all()
            assert agree(mask, found)
            outline = 2 * (box[2] - box[0] + box[3] - box[1]) + 4
            assert abs(areas[place] - found.sum()) <= outline
            x = values(built, "image/object/keypoint/x")[place] * width_px
            y = values(built, "image/object/keypoint/y")[place] * height_px
            if 1 <= x < width_px - 1 and 1 <= y < height_px - 1:
                assert found[int(y), int(x)]
        points = np.reshape(values(built, "image/object/polygon"), (-1, 4, 2)) * scene.size_px
        for channel, corners in zip(kept, points, strict=outlines == "polygons"):
            clipped = corners.clip(0, scene.size_px)  # polygons are not clipped
            assert near([*clipped.min(axis=0), *clipped.max(axis=0)], scene, channel)


@some
def test_panoptic_images_match_the_pixels(
    turn: tuple[int, bool, bool], conversion: Conversion
) -> None:
    scene = Scene(turn, conversion)
    masks = scene.built(DetectionLayout(features=("boxes", "panoptic")))
    instances = as_stored(values(masks, "image/panoptic/instance_mask")[0])
    for place, channel in enumerate(SQUARES, start=1):
        assert agree(instances == place, scene.written[:, :, channel])
    layout = TfdsLayout(features=("boxes", "panoptic"))
    built = scene.build(layout, list(SQUARES))
    _, in_upright, upright = turn
    if in_upright and not upright:  # refused as without conversion: the pixels do not match
        assert isinstance(built, Unfit) and built.code == "E-IMG-SIZE"
        return
    assert isinstance(built, Built), built
    height_px, width_px, _ = scene.written.shape
    kept = written_squares(scene, built)
    for key in ("objects", "panoptic_objects"):
        boxes = np.reshape(values(built, f"{key}/bbox"), (-1, 4))[:, [1, 0, 3, 2]]
        for channel, box in zip(kept, boxes, strict=True):
            assert near(np.multiply(box, (width_px, height_px) * 2).tolist(), scene, channel)
    if scene.images[0].pixels is None:
        ids = as_stored(values(built, "panoptic_image")[0])
        assert set(np.unique(ids)) <= {0, 10, 20, 30}
        for channel in SQUARES:
            assert agree(ids[:, :, channel] != 0, scene.written[:, :, channel])
