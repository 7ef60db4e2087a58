"""Open Images end to end: attributes, image-level labels, turns, masks, faults, reruns."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from beam_tfrec.pipelines import openimages
from tests.coco_command import committed_by, digests, examples, rejected_of, run_pipeline, value
from tests.conftest import jpeg_bytes, thorough
from tests.turned_images import as_stored, every_pixel_another, oriented, png_of, saved

FLAGS = ("IsOccluded", "IsTruncated", "IsGroupOf", "IsDepiction", "IsInside")
BOXES = ",".join(("ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax", *FLAGS))
LABELS = "ImageID,Source,LabelName,Confidence"
CLASSES = "/m/01yrx,Cat\n/m/0bt9lr,Dog\n"
CAT = "/m/01yrx,1,0.25,0.5,0,1,0,0,0,0,0"
OBJECT = "image/object"


def box(image_id: str, rest: str = CAT) -> str:
    """Return a row of boxes."""
    return f"{image_id},xclick,{rest}"


def write_table(path: Path, rows: Iterable[str], header: str = BOXES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows, ""]))
    return path


def write_sources(
    folder: Path, rows: Iterable[str], images: Iterable[str], labels: Iterable[str] = ()
) -> list[object]:
    """Write images and tables, and return the flags that name them."""
    for place, name in enumerate(images):
        path = folder / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_bytes(color=place))
    (folder / "classes.csv").write_text(CLASSES)
    flags: list[object] = ["--images", folder / "images", "--classes", folder / "classes.csv"]
    flags += ["--boxes", write_table(folder / "boxes.csv", rows)]
    if labels:
        flags += ["--image_labels", write_table(folder / "labels.csv", labels, LABELS)]
    return flags


def features(out: Path, *keys: str) -> dict[str, list[Any]]:
    """Return features of each record by its source id."""
    return {
        value(example, "image/source_id")[0].decode(): [value(example, key) for key in keys]
        for example in examples(out)
    }


def rejects(out: Path) -> list[tuple[str, str, list, str]]:
    found = rejected_of(out)
    return [(one["code"], one["key"], one["annotation_ids"], one["detail"]) for one in found]


def test_attributes_and_labels_have_the_keys_of_the_object_detection_api(tmp_path: Path) -> None:
    rows = [
        box("b", "/m/0bt9lr,1,0.5,1,0.25,0.75,1,-1,1,0,-1"),
        box("a", "/m/01yrx,1,0,0.5,0,1,0,0,0,1,"),
        box("b"),
    ]
    labels = ["b,verification,/m/01yrx,1", "c,verification,/m/0bt9lr,0", "b,machine,/m/0bt9lr,0.7"]
    flags = write_sources(tmp_path, rows, ["a.jpg", "deep/er/b.JPG", "c.png"], labels)
    manifest = committed_by(openimages.run, tmp_path / "out", *flags)
    attributes = ("occluded", "truncated", "group_of", "depiction", "is_inside", "is_crowd")
    assert features(tmp_path / "out", *(f"{OBJECT}/{key}" for key in attributes)) == {
        "a": [[0], [0], [0], [1], [-1], [0]],
        "b": [[1, 0], [-1, 0], [1, 0], [0, 0], [-1, 0], [1, 0]],
        "c": [[]] * 6,
    }
    texts = (f"{OBJECT}/class/text", f"{OBJECT}/bbox/xmax", f"{OBJECT}/area")
    assert features(tmp_path / "out", *texts) == {
        "a": [[b"/m/01yrx"], [0.5], [0.5 * 64 * 48]],
        "b": [[b"/m/0bt9lr", b"/m/01yrx"], [1, 0.5], [0.25 * 64 * 48] * 2],
        "c": [[], [], []],
    }
    keys = ("image/class/label", "image/class/text", "image/class/confidence")
    assert features(tmp_path / "out", *keys) == {
        "a": [[], [], []],
        "b": [[1, 2], [b"/m/01yrx", b"/m/0bt9lr"], [1, pytest.approx(0.7)]],
        "c": [[2], [b"/m/0bt9lr"], [0]],
    }
    dog = {"id": 2, "name": "/m/0bt9lr", "text": "Dog"}
    assert [*manifest["plan"]["labels"]] == [{"id": 1, "name": "/m/01yrx", "text": "Cat"}, dog]
    assert manifest["splits"]["train"]["annotations"]["written"] == 6


ROTATIONS = [  # in the list, orientation by EXIF, counter-clockwise turns as of numpy
    ("0", 1, 0),
    ("90.0", 1, 1),
    ("180", 1, 2),
    ("270", 1, 3),
    ("90", 6, 1),  # the list is right, not the file
    ("0", 6, 0),
    ("nan", 6, 3),
    ("", 1, 0),
    (None, 6, 3),
    ("45", 6, 3),
]


def test_images_and_boxes_are_turned_as_the_list_says(tmp_path: Path) -> None:
    sides_px, pixels = (8, 6), every_pixel_another(8, 6)
    images = {f"i{number}": row for number, row in enumerate(ROTATIONS)}
    rows = [box(name, "/m/01yrx,1,0.25,0.5,0,0.5,,,,,") for name in images]
    flags = write_sources(tmp_path, rows, [f"{name}.png" for name in images])
    listed = ["gone,validation,90"]
    for name, (rotation, exif, _) in images.items():
        (tmp_path / f"images/{name}.png").write_bytes(oriented(png_of(pixels), exif))
        listed += [] if rotation is None else [f"{name},validation,{rotation}"]
    turned = write_table(tmp_path / "list.csv", listed, "ImageID,Subset,Rotation")
    flags += ["--rotation", turned, "--orientation", "upright", "--max_dropped", 1]
    manifest = committed_by(openimages.run, tmp_path / "out", *flags)
    edges = [f"{OBJECT}/bbox/{edge}" for edge in ("xmin", "xmax", "ymin", "ymax")]
    keys = ("image/encoded", "image/width", "image/height", *edges)
    found = features(tmp_path / "out", *keys)
    for name, (_, _, turns) in images.items():
        (encoded,), *size, (xmin,), (xmax,), (ymin,), (ymax,) = found.pop(name)
        np.testing.assert_array_equal(as_stored(encoded), np.rot90(pixels, turns), name)
        width, height = sides_px if turns % 2 == 0 else sides_px[::-1]
        shown = np.rot90(pixels, turns)[
            round(ymin * height) : round(ymax * height), round(xmin * width) : round(xmax * width)
        ]
        assert sorted(shown.flat) == sorted(pixels[0:3, 2:4].flat), name
        assert size == [[width], [height]], name
    assert found == {}
    detail = "Rotation is '45', not 0, 90, 180 or 270, or unlike an earlier row"
    assert rejects(tmp_path / "out") == [("E-ANN-ROW", "i9", ["rotation:11"], detail)]
    repairs = manifest["splits"]["train"]["repairs"]
    assert repairs == dict.fromkeys(("image_turned", "boxes_turned"), 7)
    write_table(turned, [*listed, "i2,,0"], "ImageID,Subset,Rotation")  # the list is a source
    again = run_pipeline(openimages.run, *flags, "--output", tmp_path / "out")
    assert (again.code, "2 E-ANN-ROW" in again.err) == (4, True)
    write_table(turned, ["i0,,90", *listed[2:]], "ImageID,Subset,Rotation")
    again = run_pipeline(openimages.run, *flags, "--output", tmp_path / "out")
    assert again.ended == (5, "E-OUT-PLAN")


def mask_row(name: str, edges: str, label: str = "/m/01yrx") -> str:
    image_id, _, box_id = name.removesuffix(".png").rsplit("_", 2)
    return f"{name},{image_id},{label},{box_id},{edges},0.9,0.5 0.5 1"


def write_masks(folder: Path, rows: Iterable[str], pngs: Mapping[str, bytes]) -> list[object]:
    header = "MaskPath,ImageID,LabelName,BoxID,BoxXMin,BoxXMax,BoxYMin,BoxYMax,PredictedIoU,Clicks"
    for name, png in pngs.items():
        (folder / "masks/train-masks-0").mkdir(parents=True, exist_ok=True)
        (folder / "masks/train-masks-0" / name).write_bytes(png)
    table = write_table(folder / "masks.csv", rows, header)
    return ["--masks", table, "--mask_images", folder / "masks"]


def as_bits(mask: np.ndarray) -> bytes:
    return saved(Image.fromarray(mask.astype(np.uint8) * 255).convert("1"), "PNG")


# 64 x 48 pixels.
QUARTER = np.kron([[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 1]], np.ones((16, 16), int))


@pytest.mark.parametrize(
    ("flags", "turns", "part"),
    [
        thorough((), 0, np.s_[:, :]),
        thorough(("--orientation", "upright"), -1, np.s_[:, :]),
        (("--orientation", "upright", "--rotation"), 2, np.s_[:, :]),
        (("--resize", "24x24", "--resize_mode", "fill"), 0, np.s_[::2, 8:56:2]),
    ],
)
def test_masks_are_those_of_the_nearest_boxes(
    flags: tuple, turns: int, part: Any, tmp_path: Path
) -> None:
    """Masks may be smaller than the photos, which are to be turned clockwise by their EXIF."""
    boxes = "/m/01yrx,1,0.25,1,0,1", "/m/01yrx,1,0.255,0.995,0,1", "/m/0bt9lr,1,0.25,1,0,1"
    steps = {"a_b": 1, "c": 4}
    every_box = [box(image, f"{rest},,,,,") for image in steps for rest in boxes]
    sources = write_sources(tmp_path, every_box, ["a_b.jpg", "c.jpg", "other.jpg"])
    rows, pngs = list[str](), dict[str, bytes]()
    for image, step in steps.items():
        (tmp_path / f"images/{image}.jpg").write_bytes(oriented(jpeg_bytes(), 6))
        names = [f"{image}_m0_{n}.png" for n in range(2)]
        pngs[names[0]] = as_bits(QUARTER[::step, ::step])
        pngs[names[1]] = png_of((1 - QUARTER[::step, ::step]).astype(np.uint8))
        rows += [mask_row(names[0], "0.2551,0.9951,0,1"), mask_row(names[1], "0.25001,1,0,1")]
    sources += [*write_masks(tmp_path, rows, pngs), "--allow_unannotated", *flags]
    if "--rotation" in flags:
        turned = [f"{image},180" for image in steps]
        sources.append(write_table(tmp_path / "list.csv", turned, "ImageID,Rotation"))
    manifest = committed_by(openimages.run, tmp_path / "out", *sources)
    found = features(tmp_path / "out", f"{OBJECT}/mask", f"{OBJECT}/class/text")
    assert found["other"] == [[], []]
    for image in steps:
        assert found[image][1] == [b"/m/01yrx", b"/m/01yrx", b"/m/0bt9lr"]
        for png, mask in zip(found[image][0], (1 - QUARTER, QUARTER, QUARTER * 0), strict=True):
            np.testing.assert_array_equal(as_stored(png), np.rot90(mask, turns)[part])
    assert manifest["splits"]["train"]["repairs"]["mask_empty"] == 2
    assert manifest["splits"]["train"]["annotations"]["listed"] == 6


def test_masks_without_a_box_or_a_file_are_dropped(tmp_path: Path) -> None:
    flags = write_sources(tmp_path, [box("a"), box("b"), box("gone")], ["a.jpg", "b.jpg"])
    png = as_bits(QUARTER)
    names = [f"a_m_{n}.png" for n in range(1, 5)] + [f"{of}_m_1.png" for of in ("b", "gone", "c")]
    here = "0.25,0.5,0,1"
    rows = [
        mask_row(names[0], here),
        mask_row(names[1], "0.25,0.52,0,1"),
        mask_row(names[2], here, "/m/0bt9lr"),
        mask_row(names[3], "0,x,0,1"),
        *(mask_row(name, here) for name in (*names[4:], "a_m_5.png", "a_m_1.png")),
        mask_row("a_m_4.png", "nan,0.5,0,1"),
    ]
    pngs = dict.fromkeys(names, png) | {"b_m_1.png": b"", "a_readme.txt": b""}
    flags += [*write_masks(tmp_path, rows, pngs), "--max_rejected", 2, "--max_dropped", 6]
    manifest = committed_by(openimages.run, tmp_path / "out", *flags)
    no_box = "no box of {} is where the mask's box is"
    assert sorted(rejects(tmp_path / "out"), key=str) == [
        ("E-ANN-ROW", "a", ["masks:11"], "a box of [nan, 0.5, 0.0, 1.0]"),
        ("E-ANN-ROW", "a", ["masks:5"], "could not convert string to float: 'x'"),
        ("E-IMG-EMPTY", "b", [3], "0 bytes"),
        ("E-IMG-MISSING", "gone", [4], "no such image"),
        ("E-SEG-MISSING", "a", ["masks:10"], no_box.format("/m/01yrx")),
        ("E-SEG-MISSING", "a", ["masks:3"], no_box.format("/m/01yrx")),
        ("E-SEG-MISSING", "a", ["masks:4"], no_box.format("/m/0bt9lr")),
        ("E-SEG-MISSING", "a", ["masks:9"], "a_m_5.png is not in the folder of masks"),
    ]
    assert "skipped" not in manifest["splits"]["train"]
    assert manifest["splits"]["train"]["annotations"]["written"] == 1


def test_every_row_is_in_a_record_or_a_reject(tmp_path: Path) -> None:
    bad = {
        "/m/x,1,0,1,0,1,0,0,0,0,0": "E-ANN-CATEGORY class '/m/x' is not in the file of classes",
        "/m/01yrx,1,0,wide,0,1,0,0,0,0,0": "E-ANN-ROW could not convert string to float: 'wide'",
        "/m/01yrx,1,0,nan,0,1,0,0,0,0,0": "E-BOX-NOT-FINITE bbox holds a number that is not finite",
        "/m/01yrx,1,0.5,0.5,0,1,0,0,0,0,0": "E-BOX-EMPTY width 0.0 and height 1.0",
        "/m/01yrx,1,0,1,0,1,2,0,0,0,0": "E-ANN-ROW a flag is '2', not 1, 0 or -1",
        CAT: "E-ANN-TWICE an earlier row of the image is equal",
        "/m/01yrx,1,1.5,2.0,0,1,0,0,0,0,0": "E-BOX-OUTSIDE x 1.5 to 2.0, y 0.0 to 1.0 in 1 x 1",
    }
    rows = [box("a"), *(box("a", rest) for rest in bad), "a,too,few", box(""), box("gone")]
    rows += [box("two"), box("zero")]
    labels = ["a,verification,/m/01yrx,1.5"]
    images = ["a.jpg", "two.jpg", "x/two.png", "zero.jpg", "bare.jpg", "notes.txt"]
    flags = write_sources(tmp_path, rows, images, labels)
    (tmp_path / "images/zero.jpg").write_bytes(b"")
    accept = ("--max_dropped", 10, "--max_rejected", 5)
    manifest = committed_by(openimages.run, tmp_path / "out", *flags, *accept)
    of_label = "the confidence is 1.5, not from 0 to 1"
    parts = [reject.partition(" ") for reject in bad.values()]
    expected = [
        ("E-ANN-ROW", "", [10], "3 cells, the header has 13"),
        ("E-ANN-ROW", "", [11], "it has no ImageID"),
        *((code, "a", [line], detail) for line, (code, _, detail) in enumerate(parts, 3)),
        ("E-ANN-ROW", "a", ["image_labels:2"], of_label),
        ("E-ANN-MISSING", "bare", [], "no row names it"),
        ("E-IMG-MISSING", "gone", [12], "no such image"),
        ("E-SRC-TWICE", "two.jpg", [13], "2 images have the id two"),
        ("E-SRC-TWICE", "x/two.png", [], "2 images have the id two"),
        ("E-IMG-EMPTY", "zero", [14], "0 bytes"),
    ]
    assert sorted(rejects(tmp_path / "out"), key=str) == sorted(expected, key=str)
    split = manifest["splits"]["train"]
    assert split["skipped"] == {"not_called_an_image": 1}
    fate = split["annotations"]
    assert (fate["listed"], fate["written"], fate["lost"]) == (14, 1, 3)
    assert sum(fate["dropped"].values()) == 10


def test_a_table_without_a_needed_column_ends_the_run(tmp_path: Path) -> None:
    flags = write_sources(tmp_path, [box("a")], ["a.jpg"])
    (tmp_path / "boxes.csv").write_text("ImageID,LabelName,XMin,XMax,YMin\n")
    ended = run_pipeline(openimages.run, *flags, "--output", tmp_path / "out")
    assert (*ended.ended, "no column 'YMax'" in ended.fault) == (3, "E-TAB-HEADER", True)


@pytest.mark.thorough
def test_rows_may_be_in_any_order(tmp_path: Path) -> None:
    sides = [f"0.{side}" for side in range(1, 9)]
    rows = [[box(f"i{n}", f"/m/01yrx,1,0,{side},0,1,,,,,") for side in sides] for n in range(6)]
    images = [f"i{n}.jpg" for n in range(6)]
    by_image = [row for of_image in rows for row in of_image]
    taking_turns = [row for of_side in zip(*rows, strict=True) for row in of_side]
    for name, in_order in (("one", by_image), ("other", taking_turns)):
        committed_by(openimages.run, tmp_path / name, *write_sources(tmp_path, in_order, images))
    assert digests(tmp_path / "one", "*.tfrec") == digests(tmp_path / "other", "*.tfrec")
    assert f"{OBJECT}/occluded" not in examples(tmp_path / "one")[0].features.feature  # not known
