"""Annotations against pixels: draw in the frame, turn, look for the same pixels again."""

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from schemas.fields import EncodedImage, ObjectFields, PictureFields, Segmentation
from schemas.layouts import Built
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.pictures import Frame, SizeMismatch, choose_frame
from schemas.manifest import Label
from schemas.samples import Blob, Sample, pack
from tests.coco_command import examples, run_coco, shard_paths, value
from tests.turned_images import as_stored, as_viewed, encoded, every_pixel_another, oriented, png_of
from transforms.images.convert_images import NO_CONVERSION, Orientation, convert_image

WIDTH_PX, HEIGHT_PX = 7, 5
PERSON = Label(1, "person", keypoints=("nose", "tail"))

# EXIF orientation, whether the annotations were made in the upright picture, and whether that is
# what is written. Where sizes cannot tell, they are taken as made in the stored one.
CASES = [
    (orientation, in_upright, written_upright)
    for orientation in range(1, 9)
    for in_upright in ([False, True] if orientation >= 5 else [False])
    for written_upright in (False, True)
]
IDS = [
    f"EXIF {orientation}, annotated {'upright' if drawn else 'as stored'},"
    f" {'turned' if written else 'kept'}"
    for orientation, drawn, written in CASES
]
cases = pytest.mark.parametrize("case", CASES, ids=IDS)


class Scene:
    """A picture of pixels that are all different, as annotated and as written."""

    def __init__(self, case: tuple[int, bool, bool]) -> None:
        turn, in_upright, written_upright = case
        data = png_of(every_pixel_another(WIDTH_PX, HEIGHT_PX))
        data = oriented(data, turn) if turn != 1 else data
        self.annotated = as_viewed(data) if in_upright else as_stored(data)
        self.height_px, self.width_px = self.annotated.shape
        orientation = Orientation.UPRIGHT if written_upright else Orientation.KEEP
        image = convert_image(encoded(data), NO_CONVERSION, orientation)
        assert isinstance(image, EncodedImage)
        self.image = image
        self.written = as_stored(image.data)

    @property
    def frame(self) -> Frame:
        json_size, image = (self.width_px, self.height_px), self.image
        frame = choose_frame(json_size, image.info, SizeMismatch.AUTO, image.turned)
        assert isinstance(frame, Frame)
        return frame

    def built(self, *objects: ObjectFields, outlines: Sequence[Segmentation] = ()) -> Built:
        fields = PictureFields(self.width_px, self.height_px, list(objects))
        ids = tuple(range(len(objects)))
        payload = pack(list(outlines)) if outlines else b""
        blobs = (Blob("train", "a.jpg"),)
        sample = Sample("train", "1", 0, blobs, pack(fields), ids, payload)
        layout = DetectionLayout(features=("boxes", "keypoints", "masks", "polygons"))
        built = layout.build(sample, [self.image], {1: PERSON})
        assert isinstance(built, Built)
        return built


def feature(built: Built, key: str) -> list:
    return list(built.features[key][1])


def run_lengths(mask: np.ndarray) -> list[int]:
    """Return lengths of alternating runs of 0 and 1, down the columns."""
    flat = mask.T.ravel().tolist()
    runs = [(value, len(list(run))) for value, run in itertools.groupby(flat)]
    return [0] * runs[0][0] + [length for _, length in runs]


@cases
def test_masks_select_their_pixels(case: tuple[int, bool, bool]) -> None:
    scene = Scene(case)
    image = Image.new("1", (scene.width_px, scene.height_px))
    ImageDraw.Draw(image).polygon([(0, 0), (3, 1), (1, 4)], fill=1)
    drawn = np.asarray(image)
    corner = [2.0, 1.0, 4.0, 1.0, 4.0, 3.0, 2.0, 3.0]
    outlines = [Segmentation(rle_counts=run_lengths(drawn)), Segmentation([corner])]
    whole = ObjectFields(1, (0.0, 0.0, scene.width_px, scene.height_px), 1.0, 0)
    built = scene.built(whole, whole, outlines=outlines)
    by_runs, by_polygon = map(as_stored, feature(built, "image/object/mask"))
    assert by_runs.shape == by_polygon.shape == scene.written.shape
    assert drawn.sum() > 3 and set(scene.written[by_runs == 1]) == set(scene.annotated[drawn])
    assert set(scene.written[by_polygon == 1]) == set(scene.annotated[1:3, 2:4].flat)


# File name, EXIF orientation, whether the JSON has the size of the upright picture.
SET = [
    ("plain.png", 1, False),
    ("stored.png", 6, False),
    ("viewed.png", 6, True),
    ("mirrored.png", 2, False),
]
BBOX = [1.0, 2.0, 3.0, 2.0]


def write_set(folder: Path) -> list[object]:
    """Write a set of four small pictures; return the flags that name it."""
    images = folder / "images"
    images.mkdir(parents=True)
    listed = []
    for number, (name, orientation, upright) in enumerate(SET, start=1):
        pixels = every_pixel_another(WIDTH_PX, HEIGHT_PX) + 40 * number
        data = png_of(pixels)
        (images / name).write_bytes(oriented(data, orientation) if orientation != 1 else data)
        size = (HEIGHT_PX, WIDTH_PX) if upright else (WIDTH_PX, HEIGHT_PX)
        listed.append({"id": number, "file_name": name, "width": size[0], "height": size[1]})
    objects = [
        {"id": number, "image_id": number, "category_id": 1, "bbox": BBOX, "area": 6.0}
        | {"iscrowd": 0, "segmentation": []}
        for number in range(1, len(SET) + 1)
    ]
    categories = [{"id": 1, "name": "person"}]
    spec = {"images": listed, "annotations": objects, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(spec))
    return ["--images", images, "--annotations", folder / "instances.json", "--num_shards", 1]


def pixels_in_boxes(out: Path) -> dict[str, set[int]]:
    """Return the pixels in the one box of each image, by file name."""
    found = {}
    for example in examples(out):
        pixels = as_stored(value(example, "image/encoded")[0])
        assert value(example, "image/height") + value(example, "image/width") == list(pixels.shape)
        edges = [
            value(example, f"image/object/bbox/{e}")[0] for e in ("ymin", "ymax", "xmin", "xmax")
        ]
        top, low, left, right = np.round(np.multiply(edges, np.repeat(pixels.shape, 2))).astype(int)
        name = value(example, "image/filename")[0].decode()
        found[name] = set(pixels[top:low, left:right].flat)
    return found


def summary_of(out: Path) -> dict:
    return json.loads((out / "manifest.json").read_bytes())["splits"]["train"]


def test_orientation_has_its_effect(tmp_path: Path) -> None:
    sources = write_set(tmp_path)
    for orientation in ("keep", "upright"):
        run = run_coco(*sources, "--output", tmp_path / orientation, "--orientation", orientation)
        assert run.code == 0, run.err
    assert run_coco(*sources, "--output", tmp_path / "default").code == 0
    kept, turned = tmp_path / "keep", tmp_path / "upright"
    assert summary_of(kept)["repairs"] == {"boxes_turned": 1, "frame_assumed": 1}
    assert summary_of(kept)["traits"] == {"exif_orientation": 3, "gray": 4}
    assert summary_of(turned)["repairs"] == {
        "boxes_turned": 2,
        "frame_assumed": 1,
        "image_turned": 3,
    }
    assert summary_of(turned)["traits"] == {"gray": 4}
    assert pixels_in_boxes(turned) == pixels_in_boxes(kept)
    assert len(pixels_in_boxes(kept)["stored.png"]) == 6
    for example in examples(turned):
        path = tmp_path / "images" / value(example, "image/filename")[0].decode()
        (data,), (sha256,) = (value(example, f"image/{k}") for k in ("encoded", "key/sha256"))
        np.testing.assert_array_equal(as_stored(data), as_viewed(path.read_bytes()))
        assert sha256.decode() == hashlib.sha256(data).hexdigest()
    assert shard_paths(kept)[0].read_bytes() == shard_paths(tmp_path / "default")[0].read_bytes()
    assert shard_paths(kept)[0].read_bytes() != shard_paths(turned)[0].read_bytes()
