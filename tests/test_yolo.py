"""YOLO's data.yaml and label files: parsing, paths, and the command end to end."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image

from beam_tfrec.pipelines import yolo
from beam_tfrec.schemas.annotations.side_files import SideFile
from beam_tfrec.schemas.annotations.yolo_file import parse_yolo, read_data_file
from beam_tfrec.schemas.manifest import Label
from tests.coco_command import committed_by, examples, rejected_of, run_pipeline, value
from tests.conftest import jpeg_bytes
from tests.side_folders import write_side_files
from tests.turned_images import as_stored

CLASSES = [Label(0, "person"), Label(2, "cat")]
POSE = [Label(0, "person", keypoints=("0", "1"))]
TRAIN_AND_VAL = {"train": ["c"], "val": ["d"]}
NAMES = "names: {0: person, 1: cat}\n"
ORIENTED = [0.25, 0, 0.5, 0.25, 0.25, 0.5, 0, 0.25]
SHAPE = "kpt_shape must be [1 to 1000, 2 or 3], got "


def write_images(folder: Path, labels: dict[str, str | None]) -> Path:
    """Write an image of 64 x 48 px below `images/` and a label file for each name."""
    texts = {name: text if text is None else text.encode() for name, text in labels.items()}
    write_side_files(folder, texts, ".txt")
    return folder


def names_of(out: Path, split: str) -> list[str]:
    return sorted(value(e, "image/filename")[0].decode() for e in examples(out, split))


def parsed(text: str, labels: Sequence[Label] = CLASSES, point_values: int = 0) -> SideFile:
    return parse_yolo(text.encode(), labels, point_values)


@pytest.mark.parametrize(
    ("line", "bbox", "outline"),
    [
        ("2 0.5 0.5 0.25 0.5", [0.375, 0.25, 0.25, 0.5], None),
        ("2.0 .5 .5 1 1", [0, 0, 1, 1], None),
        ("0 0 0 0.5 0 0.5 0.25", [0, 0, 0.5, 0.25], [[0, 0, 0.5, 0, 0.5, 0.25]]),  # a polygon
        ("0 .25 0 .5 .25 .25 .5 0 .25", [0, 0, 0.5, 0.5], [ORIENTED]),  # its four corners
    ],
)
def test_a_line_is_a_box_or_a_polygon(line: str, bbox: list[float], outline: Any) -> None:
    (entry,) = parsed(f"\n{line}\n").entries
    assert (entry.id, msgspec.json.decode(entry.bbox)) == (2, bbox)
    assert (msgspec.json.decode(entry.segmentation) if entry.segmentation else None) == outline


@pytest.mark.parametrize(
    ("line", "code", "detail"),
    [
        ("0 0.5 0.5 0.25", "E-ANN-SHAPE", "line 1 has 4 numbers, an object has 5"),
        ("0 .5 .5 .25 .5 .9", "E-ANN-SHAPE", "line 1 has 6 numbers"),  # a confidence at the end
        ("cat .5 .5 .2 .5", "E-ANN-SHAPE", "line 1: could not convert string to float: 'cat'"),
        ("0.5 .5 .5 .2 .5", "E-ANN-SHAPE", "line 1: class 0.5 is not a whole number"),
        ("0 .5 .5 nan .5", "E-BOX-NOT-FINITE", "line 1 holds a number that is not finite"),
        ("0 0 0 .5 0 .5 1e7", "E-ANN-SHAPE", "line 1 has a point far outside"),
        ("-1 .5 .5 .2 .5", "E-ANN-CATEGORY", "class -1 is not in names"),
    ],
)
def test_a_line_that_is_no_object_is_named(line: str, code: str, detail: str) -> None:
    file = parsed(f"{line}\n0 .5 .5 .5 .5")
    assert [(bad.annotation_id, bad.code) for bad in file.bad] == [(1, code)]
    assert file.bad[0].detail.startswith(detail)
    assert [entry.id for entry in file.entries] == [2]


def test_repeated_lines_and_empty_files_are_counted() -> None:
    assert parsed("0 .5 .5 .5 .5\n0 .5 .5 .5 .5").repairs["repeated_line_left_out"] == 1
    assert parsed(" \n").repairs == {"background": 1}
    with pytest.raises(ValueError, match=r"not UTF-8 \(byte 0\): save the file as UTF-8"):
        parse_yolo(b"\xff", CLASSES)


@pytest.mark.parametrize(
    ("values", "point_values", "points"),
    [
        (".25 .5 2 0 0 0", 3, [0.25, 0.5, 2, 0, 0, 0]),
        (".25 .5 1 .5 .5 0", 3, [0.25, 0.5, 1, 0, 0, 0]),
        (".25 .5 -1 -1", 2, [0.25, 0.5, 2, 0, 0, 0]),
    ],
)
def test_keypoints(values: str, point_values: int, points: list[float]) -> None:
    (entry,) = parsed(f"0 .5 .5 .5 .5 {values}", POSE, point_values).entries
    assert msgspec.json.decode(entry.keypoints) == points
    assert parsed("0 .5 .5 .5 .5", POSE, point_values).bad[0].code == "E-ANN-SHAPE"


@pytest.mark.parametrize(
    ("text", "names", "splits"),
    [
        ("names: [a, b]\nval:\ntest: [d, e]", {0: "a", 1: "b"}, {"test": ["d", "e"]}),
        ("names: {3: a, 0: 7}\ntrain: c\nvalidation: d", {3: "a", 0: "7"}, TRAIN_AND_VAL),
        ("nc: 2\ntrain: c\nvalid: d", {0: "class_0", 1: "class_1"}, TRAIN_AND_VAL),
        ("nc: 1\nval: c\nvalid: d", {0: "class_0"}, {"val": ["c"]}),
    ],
)
def test_names_and_splits_have_several_forms(text: str, names: dict, splits: dict) -> None:
    found = read_data_file(text.encode())
    assert {label.id: label.name for label in found.labels} == names
    assert found.splits == splits


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [", "data must be YAML, got while parsing a flow node"),
        ("just text", "data must have keys such as train, got 'just text'; add them"),
        ("train: images", "names must be a list or a map of class names, got None; add it"),
        ("names: [a, b]\nnc: 3", "nc must be the number of names 2, got 3; omit it"),
        ("names: [yes]", "names must be numbers and texts, got 0: True; quote texts"),
        ("names: {0: a, 0: b}", "data must have a key once, got '0' twice; remove one"),
        ("names: [a]\ntrain: {a: b}", "train must be a path or a list of paths"),
        ("names: [a]\nkpt_shape: [17, 4]", f"{SHAPE}[17, 4]; correct it"),
        *[
            (f"names: [a]\nkpt_shape: {shape}", f"{SHAPE}{shape}; correct it")
            for shape in ("['17', 3]", "[1.5, 3]", "[True, 3]", "[0, 3]", "[10000000000, 3]", "[3]")
        ],
        ("names: !!python/object/apply:os.getcwd []", "data must be YAML, got could not determine"),
    ],
)
def test_a_wrong_data_file_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    data = tmp_path / "data.yaml"
    data.write_text(text)
    ended = run_pipeline(yolo.run, "--data", data, "--output", tmp_path / "out")
    assert ended.code == 2 and ended.fault.startswith(f"E-ARG command line: {data}: {fault}")


def test_folders_lists_and_globs_are_splits(tmp_path: Path) -> None:
    """`../` is left out where it leads nowhere, as in Ultralytics and in Roboflow's files."""
    box, out = "1 .5 .5 .5 .5\n", tmp_path / "out"
    names = ("a/1", "a/2", "b/1", "c/1", "c/2", "c/3", "a/7", "d/7")
    root = write_images(tmp_path / "set", dict.fromkeys(names, box) | {"a/3": "", "a/4": None})
    (root / "labels/classes.txt").write_text("person\ncat\n")  # as labelImg writes it
    for name in ("a/7", "d/7"):  # labels without an image; the second may be of another split
        (root / f"images/{name}.jpg").unlink()
    (root / "val.txt").write_text("./images/c/1.jpg\nimages/c/2.jpg\n./images/c/9.jpg\n")
    data = root / "data.yaml"
    data.write_text(f"{NAMES}train: [../images/a, images/b]\nval: val.txt\ntest: images/*/3.jpg")
    (root / "images" / os.fsdecode(b"\xff")).symlink_to(".")  # a folder that cannot be listed
    manifest = committed_by(yolo.run, out, "--data", data, "--max_rejected", 3)
    assert names_of(out, "train") == ["a/1.jpg", "a/2.jpg", "a/3.jpg", "a/4.jpg", "b/1.jpg"]
    assert names_of(out, "val") == ["1.jpg", "2.jpg"]
    assert names_of(out, "test") == ["a/3.jpg", "c/3.jpg"]
    assert manifest["splits"]["train"]["skipped"]["label_without_image"] == 4  # of c/ and d/
    assert manifest["splits"]["train"]["repairs"] == {"background": 2}
    rejected = [(found["code"], found["split"], found["key"]) for found in rejected_of(out)]
    missing = [("E-IMG-MISSING", "train", "a/7.txt"), ("E-IMG-MISSING", "val", "9")]
    assert rejected == [("E-IMG-NOT-A-FILE", "test", r"\xff"), *missing]
    labels = [(label["id"], label["name"]) for label in manifest["plan"]["labels"]]
    assert labels == [(1, "person"), (2, "cat")]
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text(f"path: /not/there\n{NAMES}train: images/a\nval: images/c")
    flags = ["--data", elsewhere, "--folder", root, "--splits", "val"]
    committed_by(yolo.run, tmp_path / "val", *flags)
    assert names_of(tmp_path / "val", "val") == ["1.jpg", "2.jpg", "3.jpg"]
    elsewhere.write_text(f"{NAMES}train: [images/a, val.txt]")
    mixed = run_pipeline(yolo.run, *flags[:-2], "--output", tmp_path / "no")
    assert mixed.fault.startswith("E-ARG command line: a split must be lists or folders, got ")
    ended = run_pipeline(yolo.run, *flags[:-1], "dev", "--output", tmp_path / "no")
    assert ended.fault.startswith("E-ARG command line: splits must be of data.yaml, got 'dev'")


@pytest.mark.thorough
def test_images_elsewhere_that_a_split_does_not_name_are_left_out(tmp_path: Path) -> None:
    """Their labels lie where the split's do not, since a folder `images` is within another."""
    root = write_images(tmp_path / "set", dict.fromkeys(("1", "2"), ""))
    (root / "images/old/images").mkdir(parents=True)
    (root / "images/old/images/3.jpg").write_bytes(jpeg_bytes())
    (root / "data.yaml").write_text(f"{NAMES}train: train.txt\nval: images/*.jpg")
    (root / "train.txt").write_text("images/1.jpg\n")
    manifest = committed_by(yolo.run, tmp_path / "out", "--data", root / "data.yaml")
    assert names_of(tmp_path / "out", "train") == ["1.jpg"]
    assert names_of(tmp_path / "out", "val") == ["1.jpg", "2.jpg"]
    assert manifest["splits"]["train"]["skipped"] == {"not_in_list": 2}
    (root / "data.yaml").write_text(f"{NAMES}train: images")
    ended = run_pipeline(yolo.run, "--data", root / "data.yaml", "--output", tmp_path / "no")
    assert ended.fault.startswith(f"E-ARG {root}/images/old/images/3.jpg: its labels are not below")


@pytest.mark.parametrize(
    ("text", "listed", "fault"),
    [
        ("train: train.txt", b"\n", "a list must name images, got none in {}/train.txt; fill it"),
        ("train: train.txt", b"images/\xe9.jpg", "a list must be UTF-8, got {}/train.txt; save it"),
        ("path: .", b"", "data must name images, got {}/data.yaml without them; add train or val"),
        ("path: /c\ntrain: a", b"", "/data.yaml: train leads to /c/a, not a folder; correct"),
        ("train: /d", b"", "/d, not a folder; correct train or path in it, or give --folder"),
        ("train: a/images", b"", "leads to {}/a/images, not a folder; correct train or path"),
        ("train: [/d, 'gs://b/d']", b"", "images of a split must share a folder, got /d, gs://b/d"),
        ("train: images", b"", "leads to {}/labels, not a folder; make it, or leave"),
        ("train: [images/a, images]", b"", "leads to {}/images/a, not a folder; correct train"),
    ],
)
def test_a_data_file_without_images_is_refused(
    text: str, listed: bytes, fault: str, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "train.txt").write_bytes(listed)
    (tmp_path / "data.yaml").write_text(NAMES + text)
    ended = run_pipeline(yolo.run, "--data", tmp_path / "data.yaml", "--output", tmp_path / "out")
    assert ended.code == 2
    assert fault.format(tmp_path) in ended.fault


def test_boxes_are_those_of_the_upright_picture(tmp_path: Path) -> None:
    """Ultralytics turns pictures as EXIF says. Areas are in px; a box and a polygon are equal."""
    lines = "0 .125 .25 .25 .5\n0 0 0 .25 0 .25 .5 0 .5\n"
    root = write_images(tmp_path / "set", {"1": lines})
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    (root / "images/1.jpg").write_bytes(jpeg_bytes(exif=exif))
    (root / "data.yaml").write_text(f"{NAMES}train: images")
    flags = ("--data", root / "data.yaml", "--features", "boxes,polygons,masks")
    committed_by(yolo.run, tmp_path / "out", *flags)
    (example,) = examples(tmp_path / "out")
    keys = ("bbox/xmin", "bbox/ymin", "bbox/xmax", "bbox/ymax", "area")
    got = [value(example, f"image/object/{key}") for key in keys]
    assert got == [[of] * 2 for of in (0.0, 0.75, 0.5, 1.0, 64 * 48 / 8)]
    assert value(example, "image/object/polygon") == [0, 1, 0, 0.75, 0.5, 0.75, 0.5, 1]
    masks = [as_stored(png).sum(axis=1) for png in value(example, "image/object/mask")]
    assert [mask.tolist() for mask in masks] == [[0] * 48, [0] * 36 + [32] * 12]


def test_keypoints_of_a_pose_data_set(tmp_path: Path) -> None:
    root = write_images(tmp_path / "set", {"1": "0 .5 .5 .5 .5 .25 .5 2 0 0 0\n", "2": None})
    (root / "data.yaml").write_text("names: [person]\nkpt_shape: [2, 3]\ntrain: images")
    committed_by(yolo.run, tmp_path / "out", "--data", root / "data.yaml")
    keys = ("x", "y", "visibility", "num", "text")
    got = {
        value(e, "image/filename")[0]: [value(e, f"image/object/keypoint/{key}") for key in keys]
        for e in examples(tmp_path / "out")
    }
    assert got == {b"1.jpg": [[0.25, 0], [0.5, 0], [2, 0], [1], [b"0", b"1"]], b"2.jpg": [[]] * 5}
