"""The report: pictures with boxes in the right place, and a page that is complete and safe."""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from beam_tfrec.schemas.documents.data_card import seen
from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import Kind, Roles, roles_of_keys, roles_of_spec
from beam_tfrec.schemas.layouts.arrays import ArraysLayout, Encoding
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.layouts.tfds import TfdsLayout
from beam_tfrec.schemas.tensors import encode_tensor
from beam_tfrec.transforms.report import Outline, PickedRecord, Report, SplitReport, class_color
from beam_tfrec.transforms.report.charts import make_chart, median
from beam_tfrec.transforms.report.page import render_page
from beam_tfrec.transforms.report.pictures import Drawn, Legend, draw_record
from tests.report_contents import BIDI, NO_COUNTS, XSS, hostile_report, rich_report
from tests.turned_images import jpeg_of, png_of, saved

WIDTH, HEIGHT = 120, 80
BOX_XYWH_PX = (30, 20, 48, 16)
RED, GRAY = (255, 0, 0), (128, 128, 128)
LEGEND = Legend({1: "square", 2: "circle"}, {1: 1, 90: 2}, {})
PICKED = PickedRecord("train", "a.tfrec", 3, 0, 100, "a")
MOST_BYTES = 30_000
Features = Mapping[str, tuple[Kind, Sequence]]


def rectangle() -> np.ndarray:
    """Return gray pixels with a red rectangle in the known box."""
    pixels = np.full((HEIGHT, WIDTH, 3), GRAY, np.uint8)
    x, y, w, h = BOX_XYWH_PX
    pixels[y : y + h, x : x + w] = RED
    return pixels


def pixels_of(jpeg: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(jpeg)) as image:
        assert image.format == "JPEG"
        return np.asarray(image.convert("RGB"))


def is_red(pixels: np.ndarray) -> np.ndarray:
    """Return where pixels are nearer to red than to gray."""
    return pixels[..., 0].astype(int) - pixels[..., 1] > 128


# --- records by hand ---

DETECTION = roles_of_spec(
    DetectionLayout(features=("boxes", "masks", "polygons", "keypoints")).spec
)
BOXES = {
    "image/object/bbox/xmin": (Kind.FLOAT, [0.25]),
    "image/object/bbox/xmax": (Kind.FLOAT, [0.65]),
    "image/object/bbox/ymin": (Kind.FLOAT, [0.25]),
    "image/object/bbox/ymax": (Kind.FLOAT, [0.45]),
    "image/object/class/label": (Kind.INT64, [1]),
}
GRAY_PNG = png_of(np.full((HEIGHT, WIDTH), 100, np.uint8))
IMAGE = {"image/encoded": (Kind.BYTES, [GRAY_PNG])}


def drawn(features: Features, roles: Roles = DETECTION) -> Drawn:
    return draw_record(encode_example(features), PICKED, roles, LEGEND, MOST_BYTES)


def drawn_image(value: bytes) -> Drawn:
    return drawn({"image/encoded": (Kind.BYTES, [value])})


RECTANGLE = Image.fromarray(rectangle())
ON_NOTHING = RECTANGLE.convert("RGBA")
ON_NOTHING.putalpha(Image.fromarray((is_red(rectangle()) * 255).astype(np.uint8)))
COLORED = {
    "jpeg": jpeg_of(rectangle(), quality=95, subsampling=0),
    "palette": saved(RECTANGLE.quantize(4), "PNG"),
    "gif": saved(RECTANGLE.quantize(4), "GIF"),
    "alpha": saved(ON_NOTHING, "PNG"),
    "webp": saved(RECTANGLE, "WEBP", lossless=True),
    "cmyk": saved(RECTANGLE.convert("CMYK"), "JPEG", quality=95, subsampling=0),
    "tensor": encode_tensor(rectangle()),
    "floats": encode_tensor((rectangle() / 255).astype(np.float32)),
    "halves": encode_tensor((rectangle() / 255).astype(np.float16)),
}


@pytest.mark.parametrize("kind", [*COLORED, "plain values"])
def test_pictures_of_every_kind_show_the_rectangle(kind: str) -> None:
    if kind in COLORED:
        made = drawn_image(COLORED[kind])
    else:  # the record has the size
        size = {"height": (Kind.INT64, [HEIGHT]), "width": (Kind.INT64, [WIDTH])}
        features = {"raw_image": (Kind.BYTES, [rectangle().tobytes()]), **size}
        made = drawn(features, roles_of_spec(ArraysLayout(Encoding.RAW, "uint8").spec))
    assert made.notes == []
    red = is_red(pixels_of(made.pictures[0].jpeg))
    assert red[22:34, 32:76].all()
    assert not red[:17].any() and not red[39:].any()
    assert made.pictures[0].stored_size_px == (WIDTH, HEIGHT)


def test_a_picture_has_no_metadata() -> None:
    profile = b"\0" * 36 + b"acsp" + b"\0" * 88
    exif = Image.Exif()
    exif[0x010E] = "secret place"
    exif[0x0112] = 6  # boxes are those of the picture as it is stored
    data = saved(RECTANGLE, "JPEG", exif=exif, comment=b"secret words", icc_profile=profile)
    (picture,) = drawn_image(data).pictures
    for private in (b"secret", b"ICC_PROFILE"):
        assert private in data and private not in picture.jpeg
    with Image.open(io.BytesIO(picture.jpeg)) as shown:
        assert set(shown.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    assert is_red(pixels_of(picture.jpeg))[22:34, 32:76].all()


def test_a_picture_keeps_the_limit_of_bytes() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3)).astype(np.uint8)
    (picture,) = drawn_image(png_of(noise)).pictures
    assert len(picture.jpeg) <= MOST_BYTES
    assert pixels_of(picture.jpeg).shape == (*picture.size_px[::-1], 3)


# --- masks, outlines and captions ---

TRIANGLE = np.tril(np.ones((HEIGHT, WIDTH), np.uint8))
SEGMENTS = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
SEGMENTS[:40, :, 1] = 2  # segment 512
SEGMENTS[40:, :, 0] = 9
CATEGORIES = np.zeros((HEIGHT, WIDTH), np.uint8)
CATEGORIES[:, 60:] = 90  # an id of the annotation file
# Remark, features, roles, label or None by x and y, texts of outlines.
MASKS: dict[str, tuple[Features, Roles, dict[tuple[int, int], int | None], set[str]]] = {
    "a mask of an object": (
        {**IMAGE, **BOXES, "image/object/mask": (Kind.BYTES, [png_of(TRIANGLE)])},
        DETECTION,
        {(10, 60): 1, (100, 20): None},
        {"square"},
    ),
    "polygons, without masks": (
        {
            **IMAGE,
            **BOXES,
            "image/object/polygon": (Kind.FLOAT, [0.25, 0.25, 0.65, 0.25, 0.65, 0.45, 0.25, 0.45]),
            "image/object/polygon_count": (Kind.INT64, [1]),
            "image/object/polygon_length": (Kind.INT64, [8]),
        },
        DETECTION,
        {(60, 28): 1, (60, 60): None},
        {"square"},
    ),
    "panoptic segments of TFDS": (
        {
            "image": (Kind.BYTES, [GRAY_PNG]),
            "panoptic_image": (Kind.BYTES, [png_of(SEGMENTS)]),
            "panoptic_objects/id": (Kind.INT64, [512, 9]),
            "panoptic_objects/label": (Kind.INT64, [2, 1]),
            "panoptic_objects/bbox": (Kind.FLOAT, [0.0, 0.0, 0.5, 1.0, 0.5, 0.0, 1.0, 1.0]),
        },
        roles_of_spec(TfdsLayout(features=("panoptic",)).spec),
        {(60, 20): 2, (60, 60): 1},
        {"square", "circle"},
    ),
    "a category mask": (
        {**IMAGE, "image/panoptic/category_mask": (Kind.BYTES, [png_of(CATEGORIES)])},
        roles_of_spec(DetectionLayout(features=("panoptic",)).spec),
        {(70, 5): 2, (10, 5): None},
        {"circle"},
    ),
}


@pytest.mark.parametrize(("features", "roles", "labels", "texts"), MASKS.values(), ids=MASKS)
def test_masks_are_a_separate_layer(
    features: Features, roles: Roles, labels: dict[tuple[int, int], int | None], texts: set[str]
) -> None:
    """The picture stays as it is."""
    made = drawn(features, roles)
    assert made.notes == []
    (picture,) = made.pictures
    assert np.abs(pixels_of(picture.jpeg).astype(int) - 100).max() < 12
    assert {outline.text for outline in picture.outlines} == texts
    with Image.open(io.BytesIO(picture.mask)) as image:
        assert (image.format, image.size) == ("PNG", picture.size_px)
        colors = np.asarray(image.convert("RGBA"))
    for (x, y), label in labels.items():
        if label is None:
            assert colors[y, x, 3] == 0
        else:
            assert colors[y, x].tolist() == [*bytes.fromhex(class_color(label)[1:]), 128]


def test_each_object_has_its_own_keypoints() -> None:
    edges = {key: (kind, list(values) * 2) for key, (kind, values) in BOXES.items()}
    keypoints = {
        "image/object/keypoint/x": (Kind.FLOAT, [0.25, 0.0, 0.5, 0.75]),
        "image/object/keypoint/y": (Kind.FLOAT, [0.5, 0.0, 0.5, 0.25]),
        "image/object/keypoint/visibility": (Kind.INT64, [2, 0, 1, 2]),
    }
    first, second = drawn({**IMAGE, **edges, **keypoints}).pictures[0].outlines
    assert first.keypoints == ((0.25, 0.5),)
    assert second.keypoints == ((0.5, 0.5), (0.75, 0.25))


@pytest.mark.parametrize(
    ("xmin", "box"),
    [(math.nan, None), (math.inf, None), (0.9, None), (-5.0, (0.0, 0.25, 0.65, 0.2))],
)
def test_odd_boxes_are_clipped_or_left_out(xmin: float, box: Any) -> None:
    made = drawn({**IMAGE, **BOXES, "image/object/bbox/xmin": (Kind.FLOAT, [xmin])})
    (outline,) = made.pictures[0].outlines
    assert outline == Outline(1, "square", box and pytest.approx(box))


def test_pairs_are_two_pictures_with_captions() -> None:
    kinds = {"lr": Kind.BYTES, "hr": Kind.BYTES, "caption": Kind.BYTES}
    features = {"lr": (Kind.BYTES, [GRAY_PNG]), "hr": (Kind.BYTES, [GRAY_PNG])}
    captions = {"caption": (Kind.BYTES, [b"a <b>", b"\xff", b"a <b>"])}
    made = drawn({**features, **captions}, roles_of_keys(kinds, ["lr", "hr"]))
    assert [picture.name for picture in made.pictures] == ["hr", "lr"]
    assert made.pictures[0].captions == ("a <b>", "\ufffd")


# --- bad pictures are notes, not failures ---

BOMB = saved(Image.new("1", (10_000, 10_000)), "PNG")
NO_PICTURES = {
    "cut off": (COLORED["jpeg"][:-200], "no end marker"),
    "a GIF without a size": (b"GIF89a" + bytes(10), "size 0 x 0"),
    "a bomb": (BOMB, "10000 x 10000 = 100000000 pixels, limit 67108864"),
    "a page": (b"<html>Not Found</html>", "HTML"),
    "seven channels": (encode_tensor(np.zeros((2, 2, 7), np.uint8)), "a tensor of uint8 [2, 2, 7]"),
    "no rows": (encode_tensor(np.zeros((0, 2), np.uint8)), "which is not a picture"),
    "damaged pixels": (COLORED["palette"][:-30] + bytes(4) + COLORED["palette"][-26:], ""),
}


@pytest.mark.parametrize(("value", "what"), NO_PICTURES.values(), ids=NO_PICTURES)
def test_a_value_that_is_not_a_picture_is_a_note(value: bytes, what: str) -> None:
    made = drawn_image(value)
    assert made.pictures == []
    (note,) = made.notes
    assert note.startswith("a.tfrec record 3 (key 'a') at byte 0: image/encoded is not shown: ")
    assert what in note


@pytest.mark.parametrize(
    ("key", "values", "outlines", "what"),
    [
        ("image/object/mask", (Kind.BYTES, [b"no mask"]), 1, "masks are missing: "),
        ("image/object/mask", (Kind.BYTES, [BOMB[:100]]), 1, "masks are missing: "),
        ("image/object/bbox/xmin", (Kind.FLOAT, []), 0, "boxes have more values of some edges"),
    ],
)
def test_damaged_objects_are_a_note(
    key: str, values: tuple[Kind, list], outlines: int, what: str
) -> None:
    made = drawn({**IMAGE, **BOXES, key: values})
    assert made.pictures[0].mask == b"" and len(made.pictures[0].outlines) == outlines
    assert what in made.notes[0]


def test_a_record_that_is_not_an_example_is_a_note() -> None:
    made = draw_record(b"no Example at all", PICKED, DETECTION, LEGEND, MOST_BYTES)
    assert made.pictures == [] and made.notes[0].endswith(" is not shown: it is not an Example")


# --- the page ---


class Elements(HTMLParser):
    """Elements of a page with their attributes, and its text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.found)


def test_a_page_shows_all_parts() -> None:
    page = Elements(render_page(rich_report()))
    ids = {attributes.get("id") for _, attributes in page.found}
    assert {"pictures", "counts", "sizes", "classes", "origin", "features"} <= ids
    assert {"show-boxes", "show-masks", "show-points", "show-names"} <= ids
    classes = Counter(attributes.get("class") for _, attributes in page.found)
    assert (classes["tile"], classes["mask"], classes["chart"]) == (96, 96, 4)
    for text in (
        *("birds-and-bicycles", "22,000", "median 640 px", "median 480 px", "person"),
        *(
            "E-IMG-TRUNCATED",
            "photos/7.jpg",
            "no end marker",
            "a caption in a sentence",
            "1,203 classes, 1,198 of them without a record",
        ),
        *("Private data:", "24 pictures with GPS positions", "thing 0006", "a note"),
    ):
        assert text in page.text


def test_a_page_leaves_out_empty_parts() -> None:
    page = Elements(render_page(Report("a", "", [SplitReport("", NO_COUNTS)])))
    ids = {attributes.get("id") for _, attributes in page.found}
    assert "origin" in ids and not ids & {"pictures", "counts", "sizes", "classes", "show-masks"}


def test_untrusted_text_stays_text() -> None:
    data = render_page(hostile_report())
    page = Elements(data)
    assert page.count("script") == 1
    assert all(not name.startswith("on") for _, attributes in page.found for name in attributes)
    assert {str(attributes.get("src", "data:"))[:5] for _, attributes in page.found} == {"data:"}
    assert XSS in page.text and seen(BIDI, 300) in page.text and "{{ 7 * 7 }}" in page.text
    assert all(c.isprintable() or c in "\n\t" for c in data.decode())


def test_the_policy_allows_only_the_pages_own_script_and_style() -> None:
    """Equal reports also have equal bytes."""
    data = render_page(rich_report(6, 20))
    assert data == render_page(rich_report(6, 20))
    metas = dict(
        attributes.values()
        for tag, attributes in Elements(data).found
        if tag == "meta" and len(attributes) == 2
    )
    policy = str(metas["Content-Security-Policy"])
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy and "http" not in policy
    used = data.replace(b"http-equiv", b"").replace(b"http://www.w3.org/2000/svg", b"")
    assert b"http" not in used


@pytest.mark.parametrize(
    ("histogram", "rows"),
    [
        ({2: 1, 4: 3}, [("2", [1], [33.3]), ("4", [3], [100.0])]),
        ({0: 1, 100: 2}, [("0", [1], [50.0]), ("91 – 100", [2], [100.0])]),
        ({5: 1}, [("5", [1], [100.0])]),
    ],
)
def test_the_rows_of_a_chart(histogram: dict[int, int], rows: list[tuple]) -> None:
    bins = make_chart("objects", [("train", histogram)]).bins
    assert [row for row in bins if sum(row.counts)] == rows


def test_more_than_three_splits_are_one_series() -> None:
    chart = make_chart("image_width", [(name, {64: 1}) for name in "abcd"])
    assert chart.series == [("all splits", "median 64 px")]
    assert chart.bins == [("64 px", [4], [100.0])]


@given(st.dictionaries(st.integers(0, 10**6), st.integers(1, 5), min_size=1, max_size=30))
def test_charts_count_each_record_once_and_medians_are_exact(histogram: dict[int, int]) -> None:
    values = sorted(value for value, count in histogram.items() for _ in range(count))
    assert median(histogram) == values[(len(values) - 1) // 2]
    bins = make_chart("record_bytes", [("train", histogram)]).bins
    assert sum(row.counts[0] for row in bins) == len(values)
    assert max(row.bars[0] for row in bins) == 100.0
