import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.coco import (
    BadAnnotation,
    CocoFile,
    DetectionObject,
    blob_name,
    check_labels,
)
from schemas.faults import find_fault
from schemas.json_sections import nests_deeper

SMALL = (
    b'{"images":[{"id":1,"file_name":"a.jpg","width":64,"height":48}],'
    b'"annotations":[{"id":5,"image_id":1,"category_id":3,"bbox":[1,2,3,4],"area":9.5}],'
    b'"categories":[{"id":3,"name":"cat"}]}'
)
SMALL_OBJECT = (5, DetectionObject(3, (1.0, 2.0, 3.0, 4.0), 9.5, 0))


def small(old: bytes, new: bytes) -> bytes:
    """Return the small file with one edit."""
    assert SMALL.count(old) == 1
    return SMALL.replace(old, new)


def coco(images: list, annotations: list, categories: list | None = None) -> bytes:
    labels = [{"id": 3, "name": "cat"}] if categories is None else categories
    return json.dumps({"images": images, "annotations": annotations, "categories": labels}).encode()


def image(image_id: Any = 1, file_name: Any = "a.jpg", **fields: Any) -> dict:
    return {"id": image_id, "file_name": file_name, "width": 64, "height": 48, **fields}


def annotation(annotation_id: Any = 5, **fields: Any) -> dict:
    usual = {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 9.5}
    return {"id": annotation_id, **usual, **fields}


def parse(data: bytes, **options: Any) -> CocoFile:
    return CocoFile(data, "f.json", **options)


def read(data: bytes, **options: Any) -> list[tuple]:
    """Return (image id, objects, bad annotations) of every image."""
    return [(i.id, objects, bad) for i, objects, bad in parse(data, **options).annotated_images()]


def refused(data: bytes, line: str, **options: Any) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(line)}$") as caught:
        read(data, **options)
    assert find_fault(str(caught.value)) == (line.split()[0], line)


def test_a_small_file() -> None:
    file = parse(SMALL)
    assert read(SMALL) == [(1, [SMALL_OBJECT], [])]
    assert [(c.id, c.name) for c in file.categories] == [(3, "cat")]
    assert [(i.id, i.file_name, i.width, i.height) for i in file.images] == [(1, "a.jpg", 64, 48)]
    assert (file.num_annotations, file.num_repeated_ids, file.orphans) == (1, 0, [])


ACCEPTED = {
    "a byte order mark": b"\xef\xbb\xbf" + SMALL,
    "white space around": b" \r\n\t" + SMALL + b" \r\n\t",
    "an escaped section name": small(b'"images"', rb'"im\u0061ges"'),
    "sections in another order": b'{"categories":[{"id":3,"name":"cat"}],'
    + SMALL[1:].replace(b',"categories":[{"id":3,"name":"cat"}]', b""),
    "other sections and fields": small(
        b'{"images":[{', b'{"info":{"images":[]},"images":[{"x":[1],'
    ),
    "a number that nobody reads beyond float64": small(b'"area"', b'"score":1e999,"area"'),
    "text that nobody reads beyond ASCII": small(b'"area"', '"note":"é€😀","area"'.encode()),
    "a crowd flag": small(b'"area"', b'"iscrowd":0,"area"'),
    "a crowd flag as a boolean": small(b'"area"', b'"iscrowd":false,"area"'),
    "floats in the bbox": small(b"[1,2,3,4]", b"[1.0,2e0,30e-1,4.000]"),
    "the same category twice": small(b'[{"id":3', b'[{"id":3,"name":"cat"},{"id":3'),
}


@pytest.mark.parametrize("data", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_accepted(data: bytes) -> None:
    assert read(data) == [(1, [SMALL_OBJECT], [])]


def malformed(what: str, remedy: str = "repair the file") -> str:
    return f"E-ANN-JSON f.json: {what}; {remedy}"


NOT_JSON = {
    "empty": (b"", malformed("the file ends at byte offset 0 (Input data was truncated)")),
    "a byte order mark alone": (
        b"\xef\xbb\xbf",
        malformed("the file ends at byte offset 3 (Input data was truncated)"),
    ),
    "cut off": (
        SMALL[:100],
        malformed("the file ends at byte offset 100 (Input data was truncated)"),
    ),
    "NaN": (
        small(b"[1,", b"[NaN,"),
        malformed("invalid character at byte offset 124, where 'NaN,2,3,4],\"area\":9.' stands"),
    ),
    "NaN behind a byte order mark": (
        b"\xef\xbb\xbf" + small(b"[1,", b"[NaN,"),
        malformed("invalid character at byte offset 127, where 'NaN,2,3,4],\"area\":9.' stands"),
    ),
    "Infinity": (
        small(b"9.5", b"Infinity"),
        malformed("invalid character at byte offset 140, where 'Infinity}],\"categori' stands"),
    ),
    "-Infinity": (  # the sign is fine
        small(b"9.5", b"-Infinity"),
        malformed("invalid character at byte offset 141, where 'Infinity}],\"categori' stands"),
    ),
    "a comma too many": (
        small(b"4]", b"4,]"),
        malformed(
            'trailing comma in array at byte offset 132, where \'],"area":9.5}],"cate\' stands'
        ),
    ),
    "a comma too few": (
        small(b'1,"file', b'1 "file'),
        malformed("expected ',' or '}' at byte offset 19, where '\"file_name\":\"a.jpg\",' stands"),
    ),
    "single quotes": (
        b"{'images':[]}",
        malformed("object keys must be strings at byte offset 1, where \"'images':[]}\" stands"),
    ),
    "more behind the end": (
        SMALL + b"\n{}",
        malformed("trailing characters at byte offset 184, where '{}' stands"),
    ),
    "a raw newline in text": (
        small(b"a.jpg", b"a\n.jpg"),
        malformed('invalid character at byte offset 33, where \'\\n.jpg","width":64,"h\' stands'),
    ),
    "a control character": (
        small(b"64", b"\x1b[31m"),
        malformed("invalid character at byte offset 47, where '\\x1b[31m,\"height\":48}],' stands"),
    ),
    "a bad escape": (
        small(b"a.jpg", rb"\a.jpg"),
        malformed(
            'invalid escaped character at byte offset 33, where \'a.jpg","width":64,"h\' stands'
        ),
    ),
    "half a surrogate pair": (
        small(b"a.jpg", rb"\ud800.jpg"),
        malformed(
            'unexpected end of hex escape at byte offset 38, where \'.jpg","width":64,"he\' stands'
        ),
    ),
    "text behind the error beyond ASCII": (
        small(b"64", "é€😀".encode()),
        malformed(
            "invalid character at byte offset 47,"
            " where '\\xe9\\u20ac\\U0001f600,\"height\":4' stands"
        ),
    ),
    "no UTF-8": (
        small(b"a.jpg", b"a\xff.jpg"),
        malformed(
            r"no UTF-8 at byte offset 33, where '\\xff.jpg" '","width":64,"h\' stands',
            "save the file as UTF-8",
        ),
    ),
    "no UTF-8 in what nobody reads": (
        small(b'"area"', b'"note":"\xe9","area"'),
        malformed(
            r"no UTF-8 at byte offset 141, where '\\xe9" '","area":9.5}],"cat\' stands',
            "save the file as UTF-8",
        ),
    ),
    "UTF-16 with a byte order mark": (
        SMALL.decode().encode("utf-16"),
        malformed(
            "byte offset 0 holds ff fe 7b 00: UTF-16 or UTF-32, not UTF-8", "save the file as UTF-8"
        ),
    ),
    "UTF-16, big endian": (
        SMALL.decode().encode("utf-16-be"),
        malformed(
            "byte offset 0 holds 00 7b 00 22: UTF-16 or UTF-32, not UTF-8", "save the file as UTF-8"
        ),
    ),
    "UTF-16, little endian": (
        SMALL.decode().encode("utf-16-le"),
        malformed(
            "byte offset 0 holds 7b 00 22 00: UTF-16 or UTF-32, not UTF-8", "save the file as UTF-8"
        ),
    ),
    "gzip": (
        gzip.compress(SMALL),
        malformed("byte offset 0 holds gzip's signature, not JSON", "gunzip the file"),
    ),
    "UTF-32": (
        SMALL.decode().encode("utf-32"),
        malformed(
            "byte offset 0 holds ff fe 00 00: UTF-16 or UTF-32, not UTF-8", "save the file as UTF-8"
        ),
    ),
    "an array": (
        b"[" + SMALL + b"]",
        malformed(
            "the file is no JSON object (Expected `object`, got `array`)",
            "give a COCO annotation file",
        ),
    ),
    "a number": (
        b"1",
        malformed(
            "the file is no JSON object (Expected `object`, got `int`)",
            "give a COCO annotation file",
        ),
    ),
}


@pytest.mark.parametrize(("data", "line"), NOT_JSON.values(), ids=NOT_JSON)
def test_no_json(data: bytes, line: str) -> None:
    refused(data, line)


@pytest.mark.parametrize("start", range(2**20 - 4, 2**20 + 2))
def test_utf8_is_checked_across_the_pieces_that_it_is_decoded_in(start: int) -> None:
    head = b'{"info":"' + b"x" * (start - 9)
    good = head + "€".encode() + b'",' + SMALL[1:]
    assert good.index("€".encode()) == start
    assert read(good) == [(1, [SMALL_OBJECT], [])]
    with pytest.raises(RuntimeError, match=f"no UTF-8 at byte offset {start + 3}, where"):
        parse(good.replace("€".encode(), "€".encode() + b"\xe2\x82"))


SECTIONS = {
    "no images": (
        small(b'"images"', b'"photos"'),
        "section 'images' is missing (found photos, annotations, categories)",
    ),
    "no annotations": (
        b'{"images":[],"categories":[]}',
        "section 'annotations' is missing (found images, categories)",
    ),
    "no categories": (
        b'{"info":{},"images":[],"annotations":[]}',
        "section 'categories' is missing (found info, images, annotations)",
    ),
    "nothing": (b"{}", "section 'images' is missing (found nothing)"),
    "sections one level down": (
        b'{"coco":' + SMALL + b"}",
        "section 'images' is missing (found coco)",
    ),
    "many others": (
        b'{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}',
        "section 'images' is missing (found a, b, c, d, e, f, g, h)",
    ),
    "two images": (
        b'{"images":[],' + SMALL[1:],
        "section 'images' stands at byte offset 1 and again at 13",
    ),
    "two images behind a byte order mark": (
        b'\xef\xbb\xbf{"images":[],' + SMALL[1:],
        "section 'images' stands at byte offset 4 and again at 16",
    ),
    "one of them escaped": (
        rb'{"im\u0061ges":[],' + SMALL[1:],
        "section 'images' stands at byte offset 1 and again at 18",
    ),
    "three categories, and others inside": (
        b'{"a":"categories","b":{"categories":1},"categories":[],"categories":[],' + SMALL[1:],
        "section 'categories' stands at byte offset 39 and again at 55",
    ),
}


@pytest.mark.parametrize(("data", "what"), SECTIONS.values(), ids=SECTIONS)
def test_sections(data: bytes, what: str) -> None:
    refused(data, f"E-ANN-SECTION f.json: {what}; give a COCO instances file")


def nested(levels: int, core: bytes = b"") -> bytes:
    """Return the small file with a value that nests to this level; the file itself is one."""
    inner = b"[" * (levels - 1) + core + b"]" * (levels - 1)
    return b'{"info":' + inner + b"," + SMALL[1:]


NESTING = {
    "63": nested(63),
    "64": nested(64),
    "64, with objects": nested(63, b'{"a":1}'),
    "64, and brackets in text": nested(64, b'"' + b"[" * 99 + b'"'),
    "closing brackets in text": nested(64, b'"]]}}", "}"'),
    "an escaped quote before brackets": nested(64, rb'"\"[[[[\"", "\\", "[[["'),
    "many side by side": nested(63, b"[]" + b",[]" * 200),
}


@pytest.mark.parametrize("data", NESTING.values(), ids=NESTING)
def test_nesting_up_to_64_is_accepted(data: bytes) -> None:
    assert read(data) == [(1, [SMALL_OBJECT], [])]


TOO_DEEP = {
    "65": (nested(65), 71, "[]]]]]]]]]]]]]]]]]]]"),
    "65, an object last": (nested(64, b'{"a":1}'), 71, '{"a":1}]]]]]]]]]]]]]'),
    "65, with text before": (nested(65, b'"]]]]"'), 71, '["]]]]"]]]]]]]]]]]]]'),
    "65 behind closing brackets in text": (nested(64, rb'"\"]]", []'), 79, "[]]]]]]]]]]]]]]]]]]]"),
    "too deep for the parser": (nested(100_000), 71, "[[[[[[[[[[[[[[[[[[[["),
    "too deep and cut off": (b'{"a":' * 100_000, 320, '{"a":{"a":{"a":{"a":'),
}


@pytest.mark.parametrize(("data", "offset", "there"), TOO_DEEP.values(), ids=TOO_DEEP)
def test_nesting_beyond_64_is_refused(data: bytes, offset: int, there: str) -> None:
    what = f"values nest deeper than 64 at byte offset {offset}, where {there!r} stands"
    refused(data, malformed(what, "give a COCO annotation file"))


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


TEXTS = st.text('[]{}"\\a', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(VALUES, st.integers(1, 6))
def test_nests_deeper_counts_levels(value: Any, levels: int) -> None:
    assert nests_deeper(json.dumps(value).encode(), levels) is (depth(value) > levels)


WRONG_TYPES = {
    "image id, fraction": (
        [image(1.5)],
        [],
        "Expected `int | str`, got `float` - at `$.images[0].id`",
    ),
    "image id, integral float": (
        [image(1.0)],
        [],
        "Expected `int | str`, got `float` - at `$.images[0].id`",
    ),
    "image id, boolean": (
        [image(True)],
        [],
        "Expected `int | str`, got `bool` - at `$.images[0].id`",
    ),
    "image id, null": ([image(None)], [], "Expected `int | str`, got `null` - at `$.images[0].id`"),
    "image id, 2^63": (
        [image(2**63)],
        [],
        "Expected `int` <= 9223372036854775807 - at `$.images[0].id`",
    ),
    "image id, 2^64": (
        [image(2**64)],
        [],
        "Expected `int` <= 9223372036854775807 - at `$.images[0].id`",
    ),
    "image id, -2^63-1": (
        [image(-(2**63) - 1)],
        [],
        "Expected `int` >= -9223372036854775808 - at `$.images[0].id`",
    ),
    "annotation id, float": (
        [image()],
        [annotation(), annotation(1.5)],
        "Expected `int | str`, got `float` - at `$.annotations[1].id`",
    ),
    "annotation id, too large": (
        [image()],
        [annotation(2**63)],
        "Expected `int` <= 9223372036854775807 - at `$.annotations[0].id`",
    ),
    "annotation's image id, boolean": (
        [image()],
        [annotation(image_id=True)],
        "Expected `int | str`, got `bool` - at `$.annotations[0].image_id`",
    ),
    "category id, text": (
        [image()],
        [annotation(category_id="3")],
        "Expected `int`, got `str` - at `$.annotations[0].category_id`",
    ),
    "no category id": (
        [image()],
        [{"id": 5, "image_id": 1, "bbox": [1, 2, 3, 4]}],
        "Object missing required field `category_id` - at `$.annotations[0]`",
    ),
    "area, text": (
        [image()],
        [annotation(area="9")],
        "Expected `float | null`, got `str` - at `$.annotations[0].area`",
    ),
    "area, beyond float64": (
        [image()],
        [annotation(area=10**400)],
        "Number out of range - at `$.annotations[0].area`",
    ),
    "crowd flag, float": (
        [image()],
        [annotation(iscrowd=1.0)],
        "Expected `bool | int`, got `float` - at `$.annotations[0].iscrowd`",
    ),
    "file name, number": (
        [image(1, 7)],
        [],
        "Expected `str`, got `int` - at `$.images[0].file_name`",
    ),
    "no file name": (
        [{"id": 1, "width": 1, "height": 1}],
        [],
        "Object missing required field `file_name` - at `$.images[0]`",
    ),
    "no width": (
        [{"id": 1, "file_name": "a.jpg", "height": 1}],
        [],
        "Object missing required field `width` - at `$.images[0]`",
    ),
    "width 0": ([image(width=0)], [], "Expected `int` >= 1 - at `$.images[0].width`"),
    "height, 2^31": (
        [image(height=2**31)],
        [],
        "Expected `int` <= 2147483647 - at `$.images[0].height`",
    ),
    "height, float": (
        [image(height=1.5)],
        [],
        "Expected `int`, got `float` - at `$.images[0].height`",
    ),
    "an image, number": ([image(), 3], [], "Expected `object`, got `int` - at `$.images[1]`"),
    "images, null": (None, [], "Expected `array`, got `null` - at `$.images`"),
    "annotations, an object": (
        [],
        {"5": {}},
        "Expected `array`, got `object` - at `$.annotations`",
    ),
}


@pytest.mark.parametrize(("images", "annotations", "what"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_wrong_types(images: Any, annotations: Any, what: str) -> None:
    refused(coco(images, annotations), f"E-ANN-TYPE f.json: {what}; correct the file")


def test_a_category_of_a_wrong_type() -> None:
    refused(
        coco([image()], [], [{"id": 3, "name": "cat"}, {"id": 4, "name": None}]),
        "E-ANN-TYPE f.json: Expected `str`, got `null` - at `$.categories[1].name`;"
        " correct the file",
    )


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 2**63 - 1])
def test_ids_are_any_int64(value: int) -> None:
    data = coco([image(value)], [annotation(value, image_id=value)])
    assert read(data) == [(value, [(value, SMALL_OBJECT[1])], [])]


STRING_IDS = {
    "image": (
        [image(), image("x", "b.jpg")],
        [annotation()],
        "$.images[1].id is the string 'x', not an int64",
    ),
    "a number as text": ([image("1")], [], "$.images[0].id is the string '1', not an int64"),
    "annotation": (
        [image()],
        [annotation(), annotation("5b")],
        "$.annotations[1].id is the string '5b', not an int64",
    ),
    "annotation's image": (
        [image()],
        [annotation(), annotation(6, image_id="1")],
        "$.annotations[1].image_id is the string '1', not an int64",
    ),
}


@pytest.mark.parametrize(("images", "annotations", "what"), STRING_IDS.values(), ids=STRING_IDS)
def test_string_ids_are_refused_unless_asked_for(
    images: list, annotations: list, what: str
) -> None:
    data = coco(images, annotations)
    refused(data, f"E-ANN-TYPE f.json: {what}; correct it, or give --string_ids")
    assert len(read(data, string_ids=True)) == len(images)


def test_string_ids_sort_behind_numbers() -> None:
    ids = ["b", 10, "a", 9, "10"]
    data = coco([image("x")], [annotation(i, image_id="x") for i in ids])
    ((image_id, objects, _),) = read(data, string_ids=True)
    assert (image_id, [annotation_id for annotation_id, _ in objects]) == (
        "x",
        [9, 10, "10", "a", "b"],
    )


def test_a_number_and_its_text_are_different_images_to_annotations() -> None:
    file = parse(coco([image(1)], [annotation(5, image_id="1")]), string_ids=True)
    assert file.orphans == [(5, "1")]


DUPLICATES = {
    "ids": ([image(7, "a.jpg"), image(8, "b.jpg"), image(7, "c.jpg")], "the same id '7'"),
    "ids, a number and its text": (
        [image(7, "a.jpg"), image(8, "b.jpg"), image("7", "c.jpg")],
        "the same id '7'",
    ),
    "names": (
        [image(1, "a.jpg"), image(2, "b.jpg"), image(3, "a.jpg")],
        "the same file_name 'a.jpg'",
    ),
    "names, one with a dot": (
        [image(1, "d/a.jpg"), image(2, "b.jpg"), image(3, "./d/./a.jpg")],
        "the same file_name 'd/a.jpg'",
    ),
}


@pytest.mark.parametrize(("images", "what"), DUPLICATES.values(), ids=DUPLICATES)
def test_duplicate_images(images: list, what: str) -> None:
    line = f"E-ANN-DUPLICATE f.json: $.images[0] and $.images[2] have {what}; remove one"
    refused(coco(images, []), line, string_ids=True)


def test_names_that_differ_only_in_case_are_two() -> None:
    assert len(read(coco([image(1, "a.jpg"), image(2, "A.jpg")], []))) == 2


def test_annotations_of_one_id_are_kept_and_counted() -> None:
    data = coco(
        [image(1), image(2, "b.jpg")],
        [annotation(5), annotation(5, area=1), annotation(6), annotation(5, image_id=2)],
    )
    file = parse(data)
    assert (file.num_annotations, file.num_repeated_ids) == (4, 2)
    assert [[(i, o.area_px2) for i, o in objects] for _, objects, _ in read(data)] == [
        [(5, 1.0), (5, 9.5), (6, 9.5)],
        [(5, 9.5)],
    ]


def test_orphans_are_set_aside() -> None:
    file = parse(
        coco([image(1)], [annotation(5), annotation(6, image_id=9), annotation(7, image_id=8)])
    )
    assert file.orphans == [(6, 9), (7, 8)]
    assert file.num_annotations == 3
    assert [objects for _, objects, _ in file.annotated_images()] == [[SMALL_OBJECT]]


def test_an_orphan_is_known_whatever_else_is_wrong_with_it() -> None:
    assert parse(coco([], [annotation(6, bbox=None, category_id=4)])).orphans == [(6, 1)]


BEYOND = "bbox holds a number beyond float64"
BAD_BOXES = {
    "three numbers": (b"[1,2,3]", "E-BOX-SHAPE", "bbox is 3 values, not four numbers"),
    "five numbers": (b"[1,2,3,4,5]", "E-BOX-SHAPE", "bbox is 5 values, not four numbers"),
    "none": (b"[]", "E-BOX-SHAPE", "bbox is 0 values, not four numbers"),
    "null": (b"null", "E-BOX-SHAPE", "bbox is NoneType, not four numbers"),
    "an object": (b'{"x":1}', "E-BOX-SHAPE", "bbox is dict, not four numbers"),
    "text": (b'"1234"', "E-BOX-SHAPE", "bbox is str, not four numbers"),
    "text for a number": (b'[1,2,"3",4]', "E-BOX-SHAPE", "bbox holds something that is no number"),
    "a boolean": (b"[1,2,true,4]", "E-BOX-SHAPE", "bbox holds something that is no number"),
    "null for a number": (b"[1,2,null,4]", "E-BOX-SHAPE", "bbox holds something that is no number"),
    "a float beyond float64": (b"[1,2,1e999,4]", "E-BOX-NOT-FINITE", BEYOND),
    "an integer beyond float64": (
        b"[1,2,3,1" + b"0" * 400 + b"]",
        "E-BOX-NOT-FINITE",
        "bbox holds a number that is not finite",
    ),
    "no width": (b"[1,2,0,4]", "E-BOX-EMPTY", "width 0 and height 4"),
    "no height": (b"[1,2,3,0.0]", "E-BOX-EMPTY", "width 3 and height 0.0"),
    "negative width": (b"[1,2,-3.5,4]", "E-BOX-EMPTY", "width -3.5 and height 4"),
    "a width below float64": (b"[1,2,1e-999,4]", "E-BOX-EMPTY", "width 0.0 and height 4"),
}


@pytest.mark.parametrize(("bbox", "code", "detail"), BAD_BOXES.values(), ids=BAD_BOXES)
def test_bad_boxes_are_set_aside(bbox: bytes, code: str, detail: str) -> None:
    assert read(small(b"[1,2,3,4]", bbox)) == [(1, [], [BadAnnotation(5, code, detail)])]


def test_an_annotation_without_a_bbox_is_set_aside() -> None:
    bad = BadAnnotation(5, "E-BOX-SHAPE", "bbox is NoneType, not four numbers")
    assert read(small(b'"bbox":[1,2,3,4],', b"")) == [(1, [], [bad])]


def test_an_unknown_category_is_set_aside() -> None:
    bad = BadAnnotation(5, "E-ANN-CATEGORY", "category_id 4 is not in categories")
    assert read(small(b'"category_id":3', b'"category_id":4')) == [(1, [], [bad])]


FIELDS = {
    "no area": ({}, 12.0, 0),  # width times height
    "area null": ({"area": None}, 12.0, 0),
    "area 0 is data": ({"area": 0}, 0.0, 0),
    "crowd": ({"area": 7, "iscrowd": 1}, 7.0, 1),
    "crowd, boolean": ({"area": 7, "iscrowd": True}, 7.0, 1),
    "no crowd, boolean": ({"area": 7, "iscrowd": False}, 7.0, 0),
    "crowd, any other number": ({"area": 7, "iscrowd": 2}, 7.0, 1),
}


@pytest.mark.parametrize(("fields", "area_px2", "is_crowd"), FIELDS.values(), ids=FIELDS)
def test_areas_and_crowds(fields: dict, area_px2: float, is_crowd: int) -> None:
    entry = {"id": 5, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], **fields}
    found = (5, DetectionObject(3, (1.0, 2.0, 3.0, 4.0), area_px2, is_crowd))
    assert read(coco([image()], [entry])) == [(1, [found], [])]


LABELS = {
    "one id, two names": ([(1, "a"), (1, "b")], "category 1 is both 'a' and 'b'"),
    "one name, two ids": ([(1, "a"), (2, "b"), (3, "a")], "'a' is both category 1 and 3"),
    "above int32": (
        [(2**31, "a")],
        "category id 2147483648 of 'a' does not fit a label map's int32",
    ),
    "below int32": (
        [(-(2**31) - 1, "a")],
        "category id -2147483649 of 'a' does not fit a label map's int32",
    ),
}


@pytest.mark.parametrize(("labels", "what"), LABELS.values(), ids=LABELS)
def test_categories_that_contradict(labels: list[tuple[int, str]], what: str) -> None:
    line = f"E-ANN-LABELS f.json: {what}; give each id one name and each name one id"
    with pytest.raises(RuntimeError, match=f"^{re.escape(line)}$"):
        check_labels(labels, "f.json")
    refused(coco([image()], [], [{"id": i, "name": name} for i, name in labels]), line)


@pytest.mark.parametrize(
    "labels",
    [[], [(0, "a")], [(-1, "a"), (2**31 - 1, "b"), (-(2**31), "")], [(1, "a"), (1, "a")]],
)
def test_categories_that_make_a_label_map(labels: list[tuple[int, str]]) -> None:
    check_labels(labels, "f.json")
    file = parse(coco([image()], [], [{"id": i, "name": name} for i, name in labels]))
    assert [(c.id, c.name) for c in file.categories] == labels


NAMES = {
    "plain": ("a.jpg", "a.jpg"),
    "folders": ("train2017/b/a.jpg", "train2017/b/a.jpg"),
    "a dot": ("./a.jpg", "a.jpg"),
    "dots": ("././b/./a.jpg", "b/a.jpg"),
    "dots in names": ("..a/b../...", "..a/b../..."),
    "hidden": (".a.jpg", ".a.jpg"),
    "glob characters": ("a[1]*?{b}.jpg", "a[1]*?{b}.jpg"),
    "a backslash": ("b\\a.jpg", "b\\a.jpg"),  # a character like others, but for Windows
    "Unicode": ("Straße/图/😀.jpg", "Straße/图/😀.jpg"),
    "decomposed": ("u\u0308.jpg", "u\u0308.jpg"),  # bytes count, not looks
    "white space": (" a b\t\n.jpg ", " a b\t\n.jpg "),
    "percent signs": ("%2e%2e/a.jpg", "%2e%2e/a.jpg"),  # nothing decodes them
    "a colon": ("b:a.jpg", "b:a.jpg"),
    "a tilde": ("~/a.jpg", "~/a.jpg"),
    "two slashes": ("b//a.jpg", "b//a.jpg"),  # an object store knows such names
    "a query": ("a.jpg?x=1#y", "a.jpg?x=1#y"),
}


@pytest.mark.parametrize(("file_name", "name"), NAMES.values(), ids=NAMES)
def test_names_below_the_root(file_name: str, name: str) -> None:
    assert blob_name(file_name) == name
    assert [i.file_name for i in parse(coco([image(1, file_name)], [])).images] == [name]


BAD_NAMES = {
    "empty": ("", "names no file"),
    "a dot": (".", "names no file"),
    "a folder": ("b/", "names no file"),
    "a folder by a dot": ("./", "names no file"),
    "absolute": ("/etc/passwd", "is not relative to the image root"),
    "absolute behind a dot": (".//etc/passwd", "is not relative to the image root"),
    "two slashes": ("//host/a.jpg", "is not relative to the image root"),
    "a scheme": ("gs://b/a.jpg", "is not relative to the image root"),
    "a scheme in capitals": ("HTTP://b/a.jpg", "is not relative to the image root"),
    "a scheme behind a dot": ("./gs://b/a.jpg", "is not relative to the image root"),
    "a drive": ("C:\\a.jpg", "is not relative to the image root"),
    "a drive with a slash": ("c:/a.jpg", "is not relative to the image root"),
    "up": ("../a.jpg", "climbs out of the image root"),
    "up alone": ("..", "climbs out of the image root"),
    "up and down again": ("b/../a.jpg", "climbs out of the image root"),
    "up at the end": ("b/..", "climbs out of the image root"),
    "up with backslashes": ("b\\..\\..\\a.jpg", "climbs out of the image root"),
    "up with both": ("b/..\\a.jpg", "climbs out of the image root"),
    "up behind a dot": ("./../a.jpg", "climbs out of the image root"),
    "NUL": ("a\0.jpg", "holds a NUL"),
}


@pytest.mark.parametrize(("file_name", "what"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_names_that_leave_the_root(file_name: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"^{what}$"):
        blob_name(file_name)
    line = (
        f"E-ANN-PATH f.json: $.images[1] (id 7): file_name {file_name!r} {what};"
        " give names relative to --images"
    )
    refused(coco([image(), image(7, file_name)], []), line)


def test_a_hostile_name_is_escaped_and_brings_no_code_of_its_own() -> None:
    refused(
        coco([image(1, "../\u202e\x1b E-IO-AUTH a: b; c")], []),
        "E-ANN-PATH f.json: $.images[0] (id 1):"
        " file_name '../\\u202e\\x1b E-IO-AUTH a: b; c' climbs out of the image root;"
        " give names relative to --images",
    )


@given(st.text("./\\:ab~", max_size=12))
def test_names_are_relative_or_refused(file_name: str) -> None:
    try:
        name = blob_name(file_name)
    except ValueError:
        return
    root = Path("/root")
    assert (root / name).resolve().is_relative_to(root)
    assert (root / name).resolve() == (root / file_name).resolve() != root
    assert blob_name(name) == name


# Four annotations share an id, two of them an image; three are bad.
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
def test_objects_come_in_one_order_whatever_the_file_s(annotations: list[dict]) -> None:
    def found(annotation_id: int, x: float = 1.0, area: float = 9.5, crowd: int = 0) -> tuple:
        return annotation_id, DetectionObject(3, (x, 2.0, 3.0, 4.0), area, crowd)

    bad = [
        BadAnnotation(4, "E-ANN-CATEGORY", "category_id 99 is not in categories"),
        BadAnnotation(9, "E-BOX-EMPTY", "width 0 and height 4"),
        BadAnnotation(9, "E-BOX-SHAPE", "bbox is NoneType, not four numbers"),
    ]
    first = [found(-6, crowd=1), found(5, area=1.0), found(5), found(5, x=9.0), found(10)]
    data = coco([image(2, "b.jpg"), image(1)], annotations)
    assert read(data) == [(2, [found(5), found(11)], []), (1, first, bad)]


REAL = {
    "annotations_only/taco_annotations.json": (1500, 4784, 60, 2),  # two ids stand twice
    "coco_train/annotations/instances.json": (33, 246, 80, 0),
    "coco_train/annotations/instances_rle_from_panoptic.json": (26, 181, 80, 0),
    "coco_val/annotations/instances.json": (25, 213, 80, 0),
    "coco_val/annotations/person_keypoints.json": (25, 44, 1, 0),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(shared_data: Path, name: str) -> None:
    data = (shared_data / name).read_bytes()
    file = parse(data)
    counts = (len(file.images), file.num_annotations, len(file.categories), file.num_repeated_ids)
    assert counts == REAL[name]
    assert file.orphans == []
    spec = json.loads(data)
    assert read(data) == [
        (
            entry["id"],
            sorted(
                (
                    a["id"],
                    DetectionObject(
                        a["category_id"], tuple(map(float, a["bbox"])), a["area"], a["iscrowd"]
                    ),
                )
                for a in spec["annotations"]
                if a["image_id"] == entry["id"]
            ),
            [],
        )
        for entry in spec["images"]
    ]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "coco_val/annotations/captions.json",
            "E-ANN-SECTION f.json: section 'categories' is missing"
            " (found info, licenses, images, annotations); give a COCO instances file",
        ),
        (
            "coco_train/annotations/panoptic.json",
            "E-ANN-TYPE f.json: Object missing required field `id` - at `$.annotations[0]`;"
            " correct the file",
        ),
    ],
)
def test_real_files_of_other_kinds(shared_data: Path, name: str, line: str) -> None:
    refused((shared_data / name).read_bytes(), line)


def read_or_refuse(data: bytes) -> str:
    """Return the code of the one line that refuses a file, or nothing; other errors pass."""
    try:
        read(data)
    except RuntimeError as error:
        text = str(error)
        code = text.split()[0]
        assert find_fault(text) == (code, text)
        assert code.startswith("E-ANN-")
        assert text.isascii() and text.isprintable()
        return code
    return ""


def test_a_file_cut_off_anywhere_is_refused_with_its_end() -> None:
    for size_bytes in range(len(SMALL)):
        with pytest.raises(RuntimeError, match="E-ANN-JSON") as caught:
            read(SMALL[:size_bytes])
        reason = (
            "invalid number" if SMALL[:size_bytes].endswith(b"9.") else "Input data was truncated"
        )
        ends = f"the file ends at byte offset {size_bytes} ({reason})"
        assert str(caught.value) == malformed(ends)


def test_flipped_bits_are_read_or_refused_in_one_line() -> None:
    codes = set()
    for place in range(len(SMALL)):
        for bit in range(8):
            flipped = bytearray(SMALL)
            flipped[place] ^= 1 << bit
            codes.add(read_or_refuse(bytes(flipped)))
    assert codes == {"", "E-ANN-JSON", "E-ANN-SECTION", "E-ANN-TYPE"}


WORDS = b'[ ] { } " \\ , : null NaN - 1e999 \xff \0 \\ud800 true "images": "a/../b" \xc3'
PIECES = st.sampled_from([*WORDS.split(), b"9" * 25, b"[" * 99, b" "])
SPLICE = st.tuples(st.integers(0, len(SMALL)), st.integers(0, 12), PIECES | st.binary(max_size=4))


@settings(max_examples=500, deadline=None)
@given(st.lists(SPLICE, min_size=1, max_size=4))
def test_spliced_files_are_read_or_refused_in_one_line(
    splices: list[tuple[int, int, bytes]],
) -> None:
    data = SMALL
    for start, length, piece in splices:
        data = data[:start] + piece + data[start + length :]
    read_or_refuse(data)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from([10**400, "../a", 2**63, 1e300, "gs://b/a"])
)
NODES = SCALARS | st.lists(SCALARS, max_size=5) | st.dictionaries(st.text(max_size=3), SCALARS)


def replaced(value: Any, path: list[int], node: Any) -> Any:
    """Return a copy of a JSON value with the node at a path, modulo its lengths, replaced."""
    if not path or not isinstance(value, (dict, list)) or not value:
        return node
    if isinstance(value, dict):
        key = sorted(value)[path[0] % len(value)]
        return {**value, key: replaced(value[key], path[1:], node)}
    place = path[0] % len(value)
    return [*value[:place], replaced(value[place], path[1:], node), *value[place + 1 :]]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), NODES)
@example([1, 0, 4], -1)
def test_files_with_any_value_anywhere_are_read_or_refused_in_one_line(
    path: list[int], node: Any
) -> None:
    spec = json.loads(SMALL)
    read_or_refuse(json.dumps(replaced(spec, path, node)).encode())
