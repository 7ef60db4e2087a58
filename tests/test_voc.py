"""Pascal VOC's XML files: parsing, lists of images, and the command end to end."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from beam_tfrec.pipelines import voc
from beam_tfrec.schemas.annotations.side_files import SideFile
from beam_tfrec.schemas.annotations.voc_file import MAX_XML_BYTES, parse_image_set, parse_voc
from tests.coco_command import committed_by, examples, rejected_of, run_pipeline, value
from tests.conftest import jpeg_bytes, thorough
from tests.side_folders import sources, voc_object, write_side_files
from tests.side_folders import voc as voc_xml
from tests.turned_images import oriented, png_of, saved

# The shape of VOC 2012's files, with what its objects may have.
REAL = b"""<annotation>
    <folder>VOC2012</folder><filename>2007_000027.jpg</filename>
    <size><width>486</width><height>500</height><depth>3</depth></size>
    <segmented>0</segmented>
    <object>
        <name>person</name><pose>Unspecified</pose><truncated>0</truncated>
        <difficult>0</difficult>
        <bndbox><xmin>174</xmin><ymin>101</ymin><xmax>349</xmax><ymax>351</ymax></bndbox>
        <part><name>head</name>
            <bndbox><xmin>169</xmin><ymin>104</ymin><xmax>209</xmax><ymax>146</ymax></bndbox>
        </part>
    </object>
    <object>
        <name> tv monitor </name><pose>Left</pose><truncated>1</truncated><occluded>1</occluded>
        <bndbox><ymax>20.5</ymax><xmax>45.70</xmax><ymin>10.5</ymin><xmin>1</xmin></bndbox>
        <difficult>Unspecified</difficult>
    </object>
</annotation>"""
NO_BOX = "<object><name>a</name></object>"
ROTATED = "<object><type>robndbox</type><name>a</name><robndbox><cx>9</cx></robndbox></object>"
OF_TEXT = "bndbox is xmin '1', ymin '2', xmax '3px', ymax '4'"
NOT_FINITE = "bndbox holds a number that is not finite"
BOMB = b'<!DOCTYPE annotation [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><annotation>&b;</annotation>'
EXTERNAL = b'<!DOCTYPE annotation SYSTEM "http://localhost/a.dtd"><annotation>&b;</annotation>'
DOCTYPE = "XML: a document type (annotation), which may declare entities: remove it"


def boxes_of(file: SideFile) -> list[tuple[Any, ...]]:
    return [(e.id, e.category_id, *msgspec.json.decode(e.bbox)) for e in file.entries]


def test_a_real_file() -> None:
    file = parse_voc(REAL)
    person, monitor = (0, "person", 173, 100, 176, 251), (1, "tv monitor", 0, 9.5, 45.7, 11)
    assert boxes_of(file) == [person, monitor]
    assert (file.width_px, file.height_px, file.bad) == (486, 500, [])
    assert file.attributes == {
        0: {"difficult": 0, "truncated": 0, "pose": "Unspecified"},
        1: {"truncated": 1, "occluded": 1, "pose": "Left"},
    }
    assert file.repairs == {"part_left_out": 1, "attribute_left_out": 1}
    assert boxes_of(parse_voc(REAL, offset_px=0))[0][2:] == (174, 101, 175, 250)


@pytest.mark.parametrize(
    ("found", "code", "detail"),
    [
        ("<object/>", "E-ANN-SHAPE", "name is empty"),
        (voc_object("a", more="<name>b</name>"), "E-ANN-SHAPE", "name is there twice"),
        (NO_BOX, "E-BOX-SHAPE", "bndbox is xmin '', ymin '', xmax '', ymax ''"),
        (voc_object("a", (1, 2, "3px", 4)), "E-BOX-SHAPE", OF_TEXT),
        (ROTATED, "E-BOX-SHAPE", "robndbox is a rotated box, only upright ones can be written"),
        (voc_object("a", (1, 2, "nan", 4)), "E-BOX-NOT-FINITE", NOT_FINITE),
    ],
)
def test_an_object_that_is_none_is_named(found: str, code: str, detail: str) -> None:
    file = parse_voc(voc_xml(voc_object(), found, voc_object()))
    assert [*file.bad] == [(1, code, detail)]
    assert [entry.id for entry in file.entries] == [0, 2]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "XML: no element found: line 1, column 0"),
        (b"<annotation>\xff<", "XML: not well-formed (invalid token): line 1, column 12"),
        (b"<html/>", "XML: the root is <html>, not <annotation>"),
        (BOMB, DOCTYPE),
        (EXTERNAL, DOCTYPE),
        (BOMB.decode().encode("utf-16"), DOCTYPE),
        (b"<annotation>&b;</annotation>", "XML: undefined entity: line 1, column 12"),
        (b'<?xml version="1.0" encoding="no"?><annotation/>', "XML: unknown encoding: no"),
        (bytes(MAX_XML_BYTES + 1), "XML: 16777217 bytes, the limit is 16777216"),
        (voc_xml(width="1e99"), "XML: width must be a number of pixels, got '1e99'"),
        (voc_xml(height=-1), "XML: height must be a number of pixels, got '-1'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(data: bytes, what: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_voc(data)
    assert str(raised.value) == what


def test_deep_elements_are_read() -> None:
    nested = b"<a>" * 200_000 + b"</a>" * 200_000
    assert parse_voc(b"<annotation>" + nested + b"</annotation>").entries == []


def test_objects_have_attributes_and_bad_samples_are_rejected(tmp_path: Path) -> None:
    flags = "<difficult>1</difficult><truncated>1</truncated>"
    files = {
        "1": voc_xml(voc_object("cat", (1, 1, 64, 48), flags), voc_object("dog", (10, 9, 12, 8))),
        "2": voc_xml(voc_object("dog", (60, 1, 70, 2)), voc_object("dog", (66, 1, 70, 2))),
        "3": voc_xml(width=0, height=0),
        "broken": BOMB,
        "size": voc_xml(voc_object(), width=640, height=640),
    }
    folders = write_side_files(tmp_path, files, ".xml")
    flags = ["--max_rejected", "2", "--max_dropped", "2"]
    manifest = committed_by(voc.run, tmp_path / "out", *sources(folders), *flags)
    found = [(one["code"], one["key"], one["detail"]) for one in rejected_of(tmp_path / "out")]
    assert sorted(found) == [
        ("E-ANN-FILE", "broken.jpg", f"broken.xml: {DOCTYPE}"),
        ("E-BOX-EMPTY", "1.jpg", "width 3.0 and height 0.0"),
        ("E-BOX-OUTSIDE", "2.jpg", "x 65.0 to 70.0, y 0.0 to 2.0 in 64 x 48"),
        ("E-IMG-SIZE", "size.jpg", "64 x 48 in the file, 640 x 640 annotated"),
    ]
    split = manifest["splits"]["train"]
    assert (split["listed"], split["records"]) == (5, 3)
    assert split["repairs"] == {"box_clipped": 1}
    assert [label["name"] for label in manifest["plan"]["labels"]] == ["cat", "dog"]
    records = {value(e, "image/filename")[0]: e for e in examples(tmp_path / "out")}
    keys = ("bbox/xmin", "bbox/xmax", "class/text", "difficult", "truncated", "view")
    got = {n: [value(e, f"image/object/{key}") for key in keys] for n, e in records.items()}
    assert got == {
        b"1.jpg": [[0.0], [1.0], [b"cat"], [1], [1], [b""]],
        b"2.jpg": [[59 / 64], [1.0], [b"dog"], [0], [0], [b"Left"]],
        b"3.jpg": [[]] * 6,
    }
    assert "image/object/occluded" not in {feature["key"] for feature in manifest["features"]}


def test_lists_of_images_are_the_splits(tmp_path: Path) -> None:
    """A name without an image is a reject; images that a list does not name are counted."""
    names = [f"{number:06}" for number in range(6)]
    folders = write_side_files(tmp_path, dict.fromkeys(names, voc_xml(voc_object())), ".xml")
    assert parse_image_set(b"photo 1\nphoto 2\n", "train.txt") == {"photo 1", "photo 2"}
    sets = tmp_path / "Main"
    sets.mkdir()
    (sets / "train.txt").write_text("000000\n000001 \r\n\n000003\n")
    (sets / "val.txt").write_text("000004\n000009\n")
    (sets / "cat_train.txt").write_text("000000  1\n000001 -1\n")
    given = [*sources(folders), "--image_sets", sets, "--splits"]
    out = tmp_path / "out"
    manifest = committed_by(voc.run, out, *given, "train,val", "--max_rejected", 1)
    splits = {
        split: sorted(value(e, "image/filename")[0] for e in examples(out, split))
        for split in ("train", "val")
    }
    of_train = [b"000000.jpg", b"000001.jpg", b"000003.jpg"]
    assert splits == {"train": of_train, "val": [b"000004.jpg"]}
    (one,) = rejected_of(out)
    assert (one["code"], one["split"], one["key"]) == ("E-IMG-MISSING", "val", "000009")
    assert one["detail"] == "a list names it, and no image has this name before its extension"
    skipped = [manifest["splits"][split]["skipped"] for split in splits]
    assert skipped == [{"not_in_list": 3}, {"not_in_list": 5}]
    (sets / "val.txt").write_text("000005\n")
    again = run_pipeline(voc.run, *given, "train,val", "--max_rejected", 1, "--output", out)
    assert again.fault.startswith("E-OUT-PLAN")
    ended = run_pipeline(voc.run, *given, "cat_train", "--output", tmp_path / "of_a_class")
    assert ended.fault.startswith(f"E-ARG {sets}/cat_train.txt: its line '000000  1' has a number")


def palette_png(numbers: np.ndarray) -> bytes:
    """Return a PNG as VOC has them: places in a palette."""
    height, width = numbers.shape
    image = Image.frombytes("P", (width, height), numbers.astype(np.uint8).tobytes())
    image.putpalette([*range(256)] * 3)
    return saved(image, "PNG")


def pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.mode) == ("PNG", "L")
        return np.asarray(image)


# Blocks of 8 x 8 px: a border of 255, class 12 twice, and class 8; 64 x 48 px in all.
ROWS = [[0, 1, 1, 255, 2, 2, 0, 0]] * 3 + [[0, 0, 3, 3, 3, 3, 3, 0]] * 3
NUMBERED = np.kron(ROWS, np.ones((8, 8), int))
CLASSED = np.choose(NUMBERED % 251, [0, 12, 8, 12, 255])
ENCODED, OF_OBJECTS = "image/segmentation/class/encoded", "image/object/mask"


def write_masks(
    folder: Path, files: Mapping[str, tuple[bytes | None, bytes | None]]
) -> list[object]:
    """Write PNGs of classes and of objects by the names of their images, and return the flag."""
    folders = [folder / "SegmentationClass", folder / "SegmentationObject"]
    for name, pngs in files.items():
        for root, png in zip(folders, pngs, strict=True):
            root.mkdir(exist_ok=True)
            if png is not None:
                (root / f"{name}.png").write_bytes(png)
    return ["--segmentation", *folders]


def test_masks_of_classes_and_objects(tmp_path: Path) -> None:
    """Objects have the masks of their places in the file; the second has no box."""
    objects = voc_object(), NO_BOX, voc_object("dog"), voc_object("owl")
    names = ("1", "bare", "rgb", "lost", "size", "pixels")
    files = {name: voc_xml(*objects) for name in names} | {"bare": voc_xml()}
    good = palette_png(CLASSED), palette_png(NUMBERED)
    small, rgb = palette_png(CLASSED[::2, ::2]), png_of(np.zeros((48, 64, 3), np.uint8))
    pngs = dict.fromkeys(("1", "bare", "alone"), good) | {"rgb": (rgb, good[1])}
    pngs |= {"lost": (good[0], None), "size": (good[0], small), "pixels": (good[0], b"no PNG")}
    flags = [*sources(write_side_files(tmp_path, files, ".xml")), *write_masks(tmp_path, pngs)]
    (tmp_path / "SegmentationObject/readme.txt").write_text("")
    manifest = committed_by(
        voc.run, tmp_path / "out", *flags, "--max_rejected", 5, "--max_dropped", 6
    )
    found = [
        (one["code"], one["key"], one["file_name"], one["detail"])
        for one in rejected_of(tmp_path / "out")
        if one["code"] != "E-BOX-SHAPE"
    ]
    form = "masks must be PNGs with a palette, or of gray with 8 bits"
    assert sorted(found) == [
        ("E-IMG-MISSING", "alone", "alone", "a PNG of masks has its name"),
        ("E-IMG-MISSING", "lost.jpg", "lost.png", "not in the listing"),
        ("E-IMG-SIZE", "size.jpg", "size.png", "32 x 24, its photo is 64 x 48"),
        ("E-IMG-TYPE", "pixels.jpg", "pixels.png", "text"),
        ("E-IMG-TYPE", "rgb.jpg", "rgb.png", form),
    ]
    records = {value(e, "image/filename")[0]: e for e in examples(tmp_path / "out")}
    assert sorted(records) == [b"1.jpg", b"bare.jpg"]
    for record in records.values():
        np.testing.assert_array_equal(pixels(*value(record, ENCODED)), CLASSED)
        assert value(record, "image/segmentation/class/format") == [b"png"]
    assert value(records[b"bare.jpg"], OF_OBJECTS) == []
    assert value(records[b"1.jpg"], "image/object/class/text") == [b"cat", b"dog", b"owl"]
    masks = [pixels(png) for png in value(records[b"1.jpg"], OF_OBJECTS)]
    np.testing.assert_array_equal(masks, [NUMBERED == 1, NUMBERED == 3, NUMBERED == 4])
    assert manifest["splits"]["train"]["repairs"] == {"mask_empty": 1}
    chosen = [*flags[:-1], "--features", "boxes,semantic", "--max_rejected", 4, "--max_dropped", 8]
    manifest = committed_by(voc.run, tmp_path / "classes", *chosen)
    keys = {feature["key"] for feature in manifest["features"]}
    assert ENCODED in keys and OF_OBJECTS not in keys
    assert manifest["splits"]["train"]["records"] == 5


@pytest.mark.parametrize("drawn_upright", [thorough(False), True])
@pytest.mark.parametrize(
    ("flags", "turns", "part"),
    [
        thorough((), 0, np.s_[:, :]),
        thorough(("--orientation", "upright"), -1, np.s_[:, :]),
        (("--orientation", "upright", "--resize", "24x32"), -1, np.s_[::2, ::2]),
        (("--resize", "24x24", "--resize_mode", "fill"), 0, np.s_[::2, 8:56:2]),
    ],
)
def test_masks_follow_the_image(
    flags: tuple[str, ...], turns: int, part: Any, drawn_upright: bool, tmp_path: Path
) -> None:
    """The photo is to be turned clockwise; masks are drawn as it is stored, or as it is viewed."""
    images, annotations = write_side_files(tmp_path, {"1": voc_xml(voc_object())}, ".xml")
    (images / "1.jpg").write_bytes(oriented(jpeg_bytes(), 6))
    pngs = [palette_png(np.rot90(n, -1) if drawn_upright else n) for n in (CLASSED, NUMBERED)]
    masks = write_masks(tmp_path, {"1": (pngs[0], pngs[1])})
    committed_by(voc.run, tmp_path / "out", *sources((images, annotations)), *masks, *flags)
    (record,) = examples(tmp_path / "out")
    classed, numbered = (np.rot90(n, turns)[part] for n in (CLASSED, NUMBERED))
    np.testing.assert_array_equal(pixels(*value(record, ENCODED)), classed)
    np.testing.assert_array_equal(pixels(*value(record, OF_OBJECTS)), numbered == 1)
