"""What a notebook shows of a record: literal boxes where they are, and nothing of a stranger's."""

import base64
import io
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import readers
from readers.pictures import SIDE_PX, Box, Picture, boxes_of
from schemas.features import Feature, FeatureSpec, Kind
from schemas.layouts.classification import PAIRS
from schemas.layouts.detection import DetectionLayout
from schemas.layouts.tfds import KerasLayout, TfdsLayout
from tests.coco_command import MakeCoco, committed
from tests.conftest import jpeg_bytes

JPEG = jpeg_bytes(16, 12)
SHOWN_TAGS = {"div", "p", "table", "tr", "th", "td", "svg", "title", "image", "rect", "text"}
SVG = "{http://www.w3.org/2000/svg}"
DETECTION = DetectionLayout(features=("boxes",)).spec
KERAS = KerasLayout(features=("boxes",)).spec
TFDS = TfdsLayout(features=("boxes",)).spec


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def detection(texts: list[bytes], **others: Any) -> dict[str, Any]:
    """Return a record of 64 x 48 px, with a box at the right below the middle for each text."""
    count = len(texts)
    return {
        "image/encoded": jpeg_bytes(64, 48),
        "image/object/bbox/xmin": floats(*[0.5] * count),
        "image/object/bbox/ymin": floats(*[0.5] * count),
        "image/object/bbox/xmax": floats(*[1.0] * count),
        "image/object/bbox/ymax": floats(*[0.75] * count),
        "image/object/class/text": texts,
        **others,
    }


def shown(record: dict[str, Any], spec: FeatureSpec, names: dict[int, str] | None = None) -> Any:
    """Return what is shown, parsed: only what is well formed can be."""
    return ET.fromstring(Picture(record, spec, names or {})._repr_html_())


def pixels(svg: Any) -> Image.Image:
    (image,) = svg.iter(f"{SVG}image")
    head, data = image.attrib["href"].split(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def rectangles(root: Any) -> list[tuple[float, ...]]:
    sides = ("x", "y", "width", "height")
    return [tuple(float(rect.attrib[s]) for s in sides) for rect in root.iter(f"{SVG}rect")]


@pytest.mark.parametrize(
    ("record", "spec", "boxes"),
    [
        (detection([b"cat"]), DETECTION, [Box(0.5, 0.5, 0.5, 0.25, "cat")]),
        (detection([]), DETECTION, []),
        (
            {"image": b"", "bbox": floats(16, 12, 32, 24), "category_id": np.int64(3)},
            KERAS,
            [Box(0.25, 0.25, 0.5, 0.5, "dog")],
        ),
        (
            {"objects/bbox": floats(0.5, 0.25, 1, 0.75), "objects/label": np.array([9])},
            TFDS,
            [Box(0.25, 0.5, 0.5, 0.5, "9")],  # a label without a name
        ),
        (
            {"objects/bbox": floats(0, 0, 1, 1).reshape(1, 4), "objects/label": np.array([3])},
            TFDS,
            [Box(0, 0, 1, 1, "dog")],
        ),
        ({"filename": b"a"}, PAIRS, []),
    ],
)
def test_boxes_of_every_layout(record: dict[str, Any], spec: FeatureSpec, boxes: list[Box]) -> None:
    assert boxes_of(record, (64, 48), spec, {3: "dog"}) == boxes


def test_a_box_is_drawn_where_the_object_is() -> None:
    picture = Image.new("RGB", (1024, 768), "white")
    picture.paste("red", (512, 384, 1024, 576))
    file = io.BytesIO()
    picture.save(file, "PNG")

    root = shown(detection([b"cat"]) | {"image/encoded": file.getvalue()}, DETECTION)

    (svg,) = root.iter(f"{SVG}svg")
    assert svg.attrib["viewBox"] == "0 0 512 384"  # scaled down by two
    assert rectangles(root) == [(256.0, 192.0, 256.0, 96.0)]
    assert [text.text for text in root.iter(f"{SVG}text")] == ["cat"]
    image = pixels(root)
    assert image.size == (512, 384)
    green = image.getchannel("G").load()
    assert green is not None
    inside = [(260, 196), (508, 196), (260, 284), (508, 284)]
    outside = [(252, 196), (260, 188), (252, 284), (260, 292), (508, 292)]
    assert all(green[at] < 30 for at in inside) and all(green[at] > 225 for at in outside)


def test_pixels_are_as_stored_whatever_exif_says() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = jpeg_bytes(64, 48, exif=exif)

    image = pixels(shown(detection([]) | {"image/encoded": data}, DETECTION))

    assert image.size == (64, 48)
    assert not image.getexif()


def test_texts_of_strangers_are_escaped() -> None:
    hostile = "<script>alert('x')</script>\" onload=\"y"
    record = detection([hostile.encode()]) | {"image/filename": hostile.encode(), hostile: b"z"}

    html = Picture(record, DETECTION)._repr_html_()

    assert "<script" not in html and '" onload' not in html
    root = ET.fromstring(html)
    assert [text.text for text in root.iter(f"{SVG}text")] == [hostile]
    assert hostile in [cell.text for cell in root.iter("td")]
    assert hostile in [cell.text for cell in root.iter("th")]


@given(
    image=st.one_of(
        st.binary(max_size=100),
        st.tuples(st.integers(0, 600), st.binary(max_size=8)).map(
            lambda cut: JPEG[: cut[0]] + cut[1] + JPEG[cut[0] + len(cut[1]) :]
        ),
    ),
    text=st.one_of(st.text().map(str.encode), st.binary()),
    key=st.text(min_size=1),
)
def test_any_record_is_shown_well_formed(image: bytes, text: bytes, key: str) -> None:
    record = detection([text]) | {"image/encoded": image, "image/caption": [text, text], key: text}

    root = shown(record, DETECTION)

    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= SHOWN_TAGS


def test_two_images_are_shown_and_the_rest_is_a_table() -> None:
    record = {"lr": jpeg_bytes(8, 6), "hr": jpeg_bytes(32, 24), "filename": b"a.png"}

    root = shown(record, PAIRS)

    sizes = [(i.attrib["width"], i.attrib["height"]) for i in root.iter(f"{SVG}image")]
    assert sizes == [("8", "6"), ("32", "24")]
    assert [cell.text for cell in root.iter("td")] == ["a.png"]


def test_a_record_without_an_image_is_a_table() -> None:
    spec = FeatureSpec("table", (Feature("x", Kind.FLOAT, True, "some"),))

    root = shown({"x": floats(0.1, *range(1, 12)), "raw": b"\xff\x00", "n": np.int64(7)}, spec)

    assert list(root.iter(f"{SVG}svg")) == []
    assert [cell.text for cell in root.iter("td")] == [
        "0.1, 1, 2, 3, 4, 5, 6, 7, 8, 9, … (12 values)",
        "2 bytes",
        "7",
    ]


def test_a_damaged_image_does_not_hide_the_rest() -> None:
    data = jpeg_bytes(64, 48)[:-200]
    root = shown(detection([b"cat"]) | {"image/encoded": data}, DETECTION)

    (said,) = root.iter("p")
    assert str(said.text).startswith("image/encoded: not shown, ")
    assert "cat" in [cell.text for cell in root.iter("td")]


def test_too_many_pixels_are_not_decoded() -> None:
    file = io.BytesIO()
    Image.new("1", (9000, 9000)).save(file, "PNG")

    (said,) = shown(detection([]) | {"image/encoded": file.getvalue()}, DETECTION).iter("p")

    assert said.text == "image/encoded: not shown, 9000 x 9000 = 81000000 pixels, limit 67108864"


def test_what_is_shown_has_bounded_size() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2000, 3000, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG")
    record = detection([b"x" * 1000] * 5000) | {
        "image/encoded": file.getvalue(),
        "long": b"y" * 9999,
    }

    html = Picture(record, DETECTION)._repr_html_()

    assert len(html) < 600_000
    root = ET.fromstring(html)
    assert max(pixels(root).size) == SIDE_PX
    assert len(rectangles(root)) == 100
    assert [note.text for note in root.iter("p")] == ["100 of 5000 boxes"]


@pytest.mark.parametrize("mode", ["1", "RGBA", "I;16"])
def test_any_mode_is_shown_with_its_brightness(mode: str) -> None:
    gray = Image.new("L", (16, 16), 255).convert("RGB")
    value = 0x8000 if mode == "I;16" else None
    image = Image.new(mode, (16, 16), value) if value else gray.convert(mode)
    file = io.BytesIO()
    image.save(file, "PNG")

    got = pixels(shown(detection([]) | {"image/encoded": file.getvalue()}, DETECTION))

    assert got.getpixel((8, 8)) == ((128,) * 3 if value else (255,) * 3)


def test_boxes_that_do_not_fit_together_are_reported() -> None:
    record = detection([b"cat"]) | {"image/object/bbox/xmax": floats()}
    why = "image/encoded: not shown, boxes have some edges more often than others"
    assert [said.text for said in shown(record, DETECTION).iter("p")] == [why]


def test_annotated_boxes_of_a_data_set_are_shown(make_coco: MakeCoco, tmp_path: Path) -> None:
    committed(make_coco(5), tmp_path / "out", "--order", "input")
    records = readers.open(str(tmp_path / "out"), "train")

    root = ET.fromstring(records.show(0)._repr_html_())

    assert rectangles(root) == [(1.5, 2.0, 10.0, 12.2), (2.5, 2.0, 10.0, 12.2)]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["person", "crowd of people"]
    assert root.find("table") is not None


def test_a_notebook_shows_the_first_records_of_a_sequence(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    committed(make_coco(5), tmp_path / "out")
    records = readers.open(str(tmp_path / "out"), "train")

    html = records._repr_html_()

    assert html.startswith(f"<p>&lt;Records of train in &#x27;{tmp_path}/out&#x27;: ")
    assert html.endswith("".join(records.show(place)._repr_html_() for place in range(3)))
    assert html.count("<svg") == 3
    assert records[3:]._repr_html_().count("<svg") == 2
