"""COCO files: what is accepted, repaired, set aside, or refused with one line."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_tfrec.schemas.annotations.coco_file import blob_name, name_of_url
from beam_tfrec.schemas.annotations.coco_join import license_of
from beam_tfrec.schemas.fields import BadAnnotation, ObjectFields, Segmentation
from tests.coco_texts import (
    SMALL,
    SMALL_OBJECT,
    annotation,
    coco,
    image,
    join,
    read,
    refused,
    small,
)

ACCEPTED = {
    "a byte order mark": b"\xef\xbb\xbf" + SMALL,
    "other sections and fields": small(
        b'{"images":[{', b'{"info":{"images":[]},"images":[{"x":[1],'
    ),
    "an unread number beyond float64": small(b'"area"', b'"score":1e999,"area"'),
    "unread text that is not UTF-8": small(b'"area"', b'"note":"\xe9","area"'),
    "floats in the bbox": small(b"[1,2,3,4]", b"[1.0,2e0,30e-1,4.000]"),
    "the same category twice": small(b'[{"id":3', b'[{"id":3,"name":"cat"},{"id":3'),
    "null in unread fields, as in TACO": small(
        b'"width"', b'"license":null,"flickr_url":null,"width"'
    ),
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_files(data: bytes) -> None:
    assert read(data) == [(1, [SMALL_OBJECT], [])]


REPAIR = "repair or unpack the file, or give another one"
STRING_IDS = "correct it, or give --string_ids"
COCO_FILE = "give a COCO annotation file"
URL = {"id": 1, "width": 64, "height": 48, "coco_url": "http://host/a/../c.jpg"}
LABELS_REMEDY = "give each class one id and one name in all files and data sets"
# A file, and the line that refuses it, without the file's name.
REFUSED = {
    "empty": (b"", f"JSON: Input data was truncated; {REPAIR}"),
    "NaN": (
        small(b"[1,2,3,4]", b"[1,2,3,NaN]"),
        f"JSON: JSON is malformed: invalid character (byte 130); {REPAIR}",
    ),
    "an array": (
        b"[" + SMALL + b"]",
        f"JSON: not a JSON object (Expected `object`, got `array`); {COCO_FILE}",
    ),
    "too deep": (
        b'{"info":' + b"[" * 100_000,
        f"JSON: maximum recursion depth exceeded while deserializing an object; {REPAIR}",
    ),
    "a name in Latin-1": (
        small(b'"cat"', b'"caf\xe9"'),
        "JSON: $.categories: 'utf-8' codec can't decode byte 0xe9 in position 3: unexpected end of"
        " data; repair the file, or save it as UTF-8",
    ),
    "no images": (
        small(b'"images"', b'"photos"'),
        "SECTION: section 'images' is missing (found photos, annotations, categories);"
        f" {COCO_FILE}",
    ),
    "a section twice, once escaped": (
        rb'{"im\u0061ges":[],' + SMALL[1:],
        "SECTION: section 'images' is twice (found images, images, annotations, categories);"
        f" {COCO_FILE}",
    ),
    "image id, 2^63": (
        coco([image(2**63)], []),
        "TYPE: Expected `int` <= 9223372036854775807 - at `$.images[0].id`; correct the file",
    ),
    "image id, text": (
        coco([image("x")], []),
        f"TYPE: Expected `int`, got `str` - at `$.images[0].id`; {STRING_IDS}",
    ),
    "an annotation's image id, text": (
        coco([image()], [annotation(image_id="1")]),
        f"TYPE: Expected `int`, got `str` - at `$.annotations[0].image_id`; {STRING_IDS}",
    ),
    "no file name": (
        coco([{"id": 1, "width": 1, "height": 1}], []),
        "TYPE: Object missing required field `file_name` - at `$.images[0]`; correct the file",
    ),
    "width 0": (
        coco([image(width=0)], []),
        "TYPE: Expected `int` >= 1 - at `$.images[0].width`; correct the file",
    ),
    "a URL out of the root": (
        coco([URL], []),
        "PATH: $.images[0] (id 1): file_name '../c.jpg' has a folder '..';"
        " give names relative to --images",
    ),
    "a file name twice, once with dots": (
        coco([image(1, "d/a.jpg"), image(2, "b.jpg"), image(3, "./d/./a.jpg")], []),
        "DUPLICATE: $.images[0] and $.images[2] have the same file_name 'd/a.jpg'; remove one",
    ),
    "one name, two ids": (
        coco([image()], [], [{"id": 1, "name": "a"}, {"id": 3, "name": "a"}]),
        f"LABELS: category 1 'a' contradicts category 3 'a'; {LABELS_REMEDY}",
    ),
}


@pytest.mark.parametrize(("data", "line"), REFUSED.values(), ids=REFUSED)
def test_refused_files(data: bytes, line: str) -> None:
    code, _, what = line.partition(": ")
    refused(data, f"E-ANN-{code} f.json: {what}")


@pytest.mark.parametrize("value", [-(2**63), 0, 2**63 - 1])
def test_ids_are_any_int64(value: int) -> None:
    entry = annotation(value, image_id=value, category_id=value)
    data = coco([image(value)], [entry], [{"id": value, "name": "cat"}])
    ((image_id, ((annotation_id, fields, _),), _),) = read(data)
    assert (image_id, annotation_id, fields.category_id) == (value, value, value)


def test_string_ids_sort_after_numbers() -> None:
    ids = ["b", 10, "a", 9, "10"]
    data = coco([image("x")], [annotation(i, image_id="x") for i in ids])
    ((_, objects, _),) = read(data, string_ids=True)
    assert [found[0] for found in objects] == [9, 10, "10", "a", "b"]


def test_a_number_and_its_text_are_different_ids_that_two_images_may_not_have() -> None:
    files = join(coco([image(1)], [annotation(5, image_id="1")]), string_ids=True)
    ((file, orphan),) = files.orphans
    assert (file.path_of(orphan), orphan.id, orphan.image_id) == ("$.annotations[0]", 5, "1")
    line = "E-ANN-DUPLICATE f.json: $.images[0] and $.images[1] have the same id '7'; remove one"
    refused(coco([image(7, "a.jpg"), image("7", "b.jpg")], []), line, string_ids=True)


NOT_FINITE = "bbox holds a number that is not finite"
BAD_BOXES = {
    "text that is not UTF-8": (b'["\xff",1,2,3]', "E-BOX-SHAPE", "bbox is not four numbers"),
    "a float beyond float64": (b"[1,2,1e999,4]", "E-BOX-NOT-FINITE", NOT_FINITE),
    "an integer beyond float64": (b"[1,2,3,1" + b"0" * 400 + b"]", "E-BOX-NOT-FINITE", NOT_FINITE),
    "a width below float64": (b"[1,2,1e-999,4]", "E-BOX-EMPTY", "width 0.0 and height 4"),
}


@pytest.mark.parametrize(("bbox", "code", "detail"), BAD_BOXES.values(), ids=BAD_BOXES)
def test_bad_boxes_are_set_aside(bbox: bytes, code: str, detail: str) -> None:
    assert read(small(b"[1,2,3,4]", bbox)) == [(1, [], [BadAnnotation(5, code, detail)])]


SQUARE = [0, 0, 4, 0, 4, 4, 0, 4]
RLE = {"size": [48, 64], "counts": [10, 5, 48 * 64 - 15]}
# Fields of an annotation, then the area and crowd flag that are written.
AREAS = {
    "area 0 is data": ({"area": 0}, 0.0, 0),
    "crowd, any other number": ({"area": 7, "iscrowd": 2}, 7.0, 1),
    "no segmentation": ({"area": -1}, 12.0, 0),
    "beyond float32": ({"area": 1e39, "segmentation": [SQUARE]}, 16.0, 0),
    "null": ({"area": None, "segmentation": None}, 12.0, 0),
    "two polygons": ({"segmentation": [SQUARE, [9, 9, 11, 9, 11, 12, 9, 12]]}, 22.0, 0),
    "a polygon without area": ({"segmentation": [[1, 1, 2, 2, 3, 3]]}, 12.0, 0),
    "an RLE": ({"segmentation": RLE}, 5.0, 0),
}


@pytest.mark.parametrize(("fields", "area_px2", "is_crowd"), AREAS.values(), ids=AREAS)
def test_areas_and_crowds(fields: dict, area_px2: float, is_crowd: int) -> None:
    """A missing area is computed from a valid segmentation, else from the box."""
    entry = {"id": 5, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], **fields}
    found = ObjectFields(3, (1.0, 2.0, 3.0, 4.0), area_px2, is_crowd)
    assert read(coco([image()], [entry])) == [(1, [(5, found, Segmentation())], [])]


# Four annotations share an id, two of them an image; four are bad.
SHUFFLED = [
    annotation(5),
    annotation(5, area=1),
    annotation(5, bbox=[9, 2, 3, 4]),
    annotation(5, image_id=2),
    annotation(-6, iscrowd=1),
    annotation(10),
    annotation(9, bbox=[1, 2, 0, 4]),
    annotation(9, bbox=None),
    annotation(4, category_id=99),
    annotation(11, image_id=2),
]


@given(st.permutations(SHUFFLED))
def test_objects_are_sorted_in_one_way(annotations: list[dict]) -> None:
    def found(annotation_id: int, x: float = 1.0, area: float = 9.5, crowd: int = 0) -> tuple:
        return annotation_id, ObjectFields(3, (x, 2.0, 3.0, 4.0), area, crowd), Segmentation()

    bad = [
        BadAnnotation(4, "E-ANN-CATEGORY", "category_id 99 is not in categories"),
        BadAnnotation(9, "E-BOX-EMPTY", "width 0 and height 4"),
        BadAnnotation(9, "E-BOX-SHAPE", "bbox is None, not four numbers"),
    ]
    first = [found(-6, crowd=1), found(5, area=1.0), found(5), found(5, x=9.0), found(10)]
    data = coco([image(2, "b.jpg"), image(1)], annotations)
    assert read(data) == [(2, [found(5), found(11)], []), (1, first, bad)]


BAD_NAMES = {
    "empty": ("", "names no file"),
    "a folder": ("b/", "names no file"),
    "absolute": ("/etc/passwd", "is not relative to the image root"),
    "a scheme": ("gs://b/a.jpg", "is not relative to the image root"),
    "a drive": ("C:\\a.jpg", "is not relative to the image root"),
    "up": ("../a.jpg", "has a folder '..'"),
    "up with backslashes": ("b\\..\\..\\a.jpg", "has a folder '..'"),
    "NUL": ("a\0.jpg", "holds a NUL"),
}


@pytest.mark.parametrize(("file_name", "what"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_names_outside_the_root_are_refused(file_name: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what}$"):
        blob_name(file_name)


@pytest.mark.parametrize(
    ("url", "name"), [("http://host/a/b/c.jpg", "b/c.jpg"), ("http://host/c.jpg", "c.jpg")]
)
def test_lvis_images_are_named_by_the_end_of_their_url(url: str, name: str) -> None:
    assert name_of_url(url) == name
    lists = {"neg_category_ids": [3], "not_exhaustive_category_ids": [3, 3]}
    joined = join(coco([{**URL, "coco_url": url, **lists}], []))
    (found,) = joined.images
    assert found.file_name == name
    assert (found.neg_category_ids, found.not_exhaustive_category_ids) == ([3], [3, 3])
    assert joined.found == ["boxes", "lvis"]


LICENSES = [(4, 4), (4.0, 4), (None, None), ("CC BY", None), (4.5, None), ([4], None), (0, 0)]


@pytest.mark.parametrize(("given_as", "license_id"), [*LICENSES, (True, None), (2**60, None)])
def test_a_license_is_a_whole_number_or_nothing(given_as: Any, license_id: int | None) -> None:
    joined = join(coco([image(license=given_as)], []))
    assert [license_of(found) for found in joined.images] == [license_id]
    assert ("license" in joined.found) == (license_id is not None)
