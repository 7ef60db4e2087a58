"""What `records.show` draws of a record: its picture, with boxes where the objects are."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import readers
from readers.pictures import SIDE_PX, draw_record
from schemas.features import Feature, FeatureSpec, Kind
from schemas.layouts.classification import PairsLayout
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.tfds import KerasLayout, TfdsLayout
from tests.coco_command import committed

DETECTION = DetectionLayout(features=("boxes",)).spec
KERAS = KerasLayout(features=("boxes",)).spec
TFDS = TfdsLayout(features=("boxes",)).spec
FIRST_COLOR, SECOND_COLOR = (0xE6, 0x19, 0x4B), (0x3C, 0xB4, 0x4B)


def picture(size: tuple[int, int] = (64, 48), color: Any = "black", mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size, color).save(out, "PNG")
    return out.getvalue()


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def box_of(image: Image.Image, color: tuple[int, int, int]) -> tuple[int, int, int, int] | None:
    """Return the bounds of all pixels of a color, ends included."""
    ys, xs = np.nonzero((np.asarray(image) == color).all(axis=2))
    return (xs.min(), ys.min(), xs.max(), ys.max()) if len(xs) else None


EDGES = {
    "image/object/bbox/xmin": floats(0.25),
    "image/object/bbox/ymin": floats(0.5),
    "image/object/bbox/xmax": floats(0.75),
    "image/object/bbox/ymax": floats(0.75),
    "image/object/class/text": [b""],
}


@pytest.mark.parametrize(
    ("record", "spec"),
    [
        ({"image/encoded": picture()} | EDGES, DETECTION),
        ({"image": picture(), "bbox": floats(16, 24, 32, 12), "category_id": np.int64(3)}, KERAS),
        (
            {
                "image": picture(),
                "objects/bbox": floats(0.5, 0.25, 0.75, 0.75).reshape(1, 4),
                "objects/label": np.array([3]),
            },
            TFDS,
        ),
    ],
    ids=["detection", "keras", "tfds"],
)
def test_boxes_of_every_layout(record: dict[str, Any], spec: FeatureSpec) -> None:
    image = draw_record(record, spec, {3: ""})

    assert (image.mode, image.size) == ("RGB", (64, 48))
    assert box_of(image, FIRST_COLOR) == (16, 24, 48, 36)


def test_names_have_colors_and_are_written() -> None:
    record = {
        "image": picture((400, 300)),
        "objects/bbox": floats(0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75),
        "objects/label": np.array([3, 9]),
    }

    named, unnamed = (draw_record(record, TFDS, names) for names in ({3: "dog"}, {3: "", 9: ""}))

    assert box_of(named, SECOND_COLOR) == (200, 150, 300, 225)
    assert box_of(unnamed, SECOND_COLOR) is None
    whitest = [np.asarray(image).min(axis=2).max() for image in (named, unnamed)]
    assert whitest[0] > 120 > whitest[1]


@pytest.mark.parametrize(
    ("data", "size", "pixel"),
    [
        (picture((2048, 1024), "red"), (SIDE_PX, SIDE_PX // 2), (255, 0, 0)),
        (picture((8, 6), 128 << 8, "I;16"), (8, 6), (128, 128, 128)),
    ],
    ids=["large", "16 bits"],
)
def test_pictures_fit_a_screen(data: bytes, size: tuple[int, int], pixel: Any) -> None:
    image = draw_record({"lr": b"", "hr": data}, PairsLayout().spec, {})

    assert (image.size, image.getpixel((0, 0))) == (size, pixel)


@pytest.mark.parametrize(
    ("record", "spec", "what"),
    [
        ({"x": floats(1)}, FeatureSpec("t", (Feature("x", Kind.FLOAT, True, "x"),)), "layout 't'"),
        ({"lr": b"no image"}, PairsLayout().spec, "that Pillow decodes"),
        ({"lr": picture()[:60]}, PairsLayout().spec, "that Pillow decodes"),
    ],
)
def test_what_is_no_picture_is_an_error(record: dict, spec: FeatureSpec, what: str) -> None:
    with pytest.raises(ValueError, match=rf"^record must have an image .*{what}"):
        draw_record(record, spec, {})


def test_a_record_of_an_output_is_shown(
    make_coco: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    committed(make_coco(2), out)

    image = readers.open(out, "train").show(0)

    assert image.size == (64, 48)
    assert box_of(image, FIRST_COLOR) is not None
