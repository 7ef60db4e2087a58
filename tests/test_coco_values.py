"""COCO's values: types, ids, orphans, boxes, areas, categories, and their order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.fields import BadAnnotation, ObjectFields
from tests.coco_texts import (
    SMALL_OBJECT,
    annotation,
    coco,
    image,
    join,
    parse,
    read,
    refused,
    small,
)

WRITE_INTEGERS = "; write ids as integers (3, not 3.0)"

WRONG_TYPES = {
    "image id, boolean": ([image(True)], [], "Expected `int`, got `bool` - at `$.images[0].id`"),
    "image id, 2^63": (
        [image(2**63)],
        [],
        "Expected `int` <= 9223372036854775807 - at `$.images[0].id`",
    ),
    "annotation id, float": (
        [image()],
        [annotation(), annotation(1.5)],
        "Expected `int`, got `float` - at `$.annotations[1].id`" + WRITE_INTEGERS,
    ),
    "category id, text": (
        [image()],
        [annotation(category_id="3")],
        "Expected `int`, got `str` - at `$.annotations[0].category_id`",
    ),
    "crowd flag, float": (
        [image()],
        [annotation(iscrowd=1.0)],
        "Expected `bool | int`, got `float` - at `$.annotations[0].iscrowd`",
    ),
    "no file name": (
        [{"id": 1, "width": 1, "height": 1}],
        [],
        "Object missing required field `file_name` - at `$.images[0]`",
    ),
    "width 0": ([image(width=0)], [], "Expected `int` >= 1 - at `$.images[0].width`"),
    "height, 2^31": (
        [image(height=2**31)],
        [],
        "Expected `int` <= 2147483647 - at `$.images[0].height`",
    ),
}


@pytest.mark.parametrize(("images", "annotations", "what"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_wrong_types(images: Any, annotations: Any, what: str) -> None:
    remedy = "" if WRITE_INTEGERS in what else "; correct the file"
    refused(coco(images, annotations), f"E-ANN-TYPE f.json: {what}{remedy}")


@pytest.mark.parametrize("value", [-(2**63), -1, 0, 2**63 - 1])
def test_ids_are_any_int64(value: int) -> None:
    data = coco([image(value)], [annotation(value, image_id=value)])
    assert read(data) == [(value, [(value, SMALL_OBJECT[1])], [])]


STRING_IDS = {
    "image": ([image(), image("x", "b.jpg")], [annotation()], "$.images[1].id"),
    "a number as text": ([image("1")], [], "$.images[0].id"),
    "annotation": ([image()], [annotation(), annotation("5b")], "$.annotations[1].id"),
    "annotation's image": (
        [image()],
        [annotation(), annotation(6, image_id="1")],
        "$.annotations[1].image_id",
    ),
}


@pytest.mark.parametrize(("images", "annotations", "path"), STRING_IDS.values(), ids=STRING_IDS)
def test_string_ids_are_refused_unless_asked_for(
    images: list, annotations: list, path: str
) -> None:
    data = coco(images, annotations)
    what = f"Expected `int`, got `str` - at `{path}`"
    refused(data, f"E-ANN-TYPE f.json: {what}; correct it, or give --string_ids")
    assert len(read(data, string_ids=True)) == len(images)


def test_string_ids_sort_after_numbers() -> None:
    ids = ["b", 10, "a", 9, "10"]
    data = coco([image("x")], [annotation(i, image_id="x") for i in ids])
    ((image_id, objects, _),) = read(data, string_ids=True)
    assert (image_id, [annotation_id for annotation_id, _ in objects]) == (
        "x",
        [9, 10, "10", "a", "b"],
    )


def test_a_number_and_its_text_are_different_images_to_annotations() -> None:
    files = join(coco([image(1)], [annotation(5, image_id="1")]), string_ids=True)
    assert files.orphans == [("f0.json", "$.annotations[0]", 5, "1")]


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
    files = join(data)
    assert files.count_first_ids(str) == {"1": 2}
    assert [[(i, o.area_px2) for i, o in objects] for _, objects, _ in read(data)] == [
        [(5, 1.0), (5, 9.5), (6, 9.5)],
        [(5, 9.5)],
    ]


def test_an_orphan_is_found_despite_other_faults() -> None:
    (orphan,) = join(coco([], [annotation(6, bbox=None, category_id=4)])).orphans
    assert (orphan.annotation_id, orphan.image_id) == (6, 1)


NOT_FINITE = "bbox holds a number that is not finite"
BAD_BOXES = {
    "three numbers": (b"[1,2,3]", "E-BOX-SHAPE", "bbox is 3 values, not four numbers"),
    "a float beyond float64": (b"[1,2,1e999,4]", "E-BOX-NOT-FINITE", NOT_FINITE),
    "an integer beyond float64": (b"[1,2,3,1" + b"0" * 400 + b"]", "E-BOX-NOT-FINITE", NOT_FINITE),
    "a width below float64": (b"[1,2,1e-999,4]", "E-BOX-EMPTY", "width 0.0 and height 4"),
}


@pytest.mark.parametrize(("bbox", "code", "detail"), BAD_BOXES.values(), ids=BAD_BOXES)
def test_bad_boxes_are_set_aside(bbox: bytes, code: str, detail: str) -> None:
    assert read(small(b"[1,2,3,4]", bbox)) == [(1, [], [BadAnnotation(5, code, detail)])]


def test_an_annotation_without_a_bbox_is_set_aside() -> None:
    bad = BadAnnotation(5, "E-BOX-SHAPE", "bbox is NoneType, not four numbers")
    assert read(small(b'"bbox":[1,2,3,4],', b"")) == [(1, [], [bad])]


FIELDS = {
    "area 0 is data": ({"area": 0}, 0.0, 0),
    "crowd": ({"area": 7, "iscrowd": 1}, 7.0, 1),
    "crowd, boolean": ({"area": 7, "iscrowd": True}, 7.0, 1),
    "no crowd, boolean": ({"area": 7, "iscrowd": False}, 7.0, 0),
    "crowd, any other number": ({"area": 7, "iscrowd": 2}, 7.0, 1),
}


@pytest.mark.parametrize(("fields", "area_px2", "is_crowd"), FIELDS.values(), ids=FIELDS)
def test_areas_and_crowds(fields: dict, area_px2: float, is_crowd: int) -> None:
    entry = {"id": 5, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], **fields}
    found = (5, ObjectFields(3, (1.0, 2.0, 3.0, 4.0), area_px2, is_crowd))
    assert read(coco([image()], [entry])) == [(1, [found], [])]


LABELS = {
    "one id, two names": ([(1, "a"), (1, "b")], "category 1 'a' contradicts category 1 'b'"),
    "one name, two ids": (
        [(1, "a"), (2, "b"), (3, "a")],
        "category 1 'a' contradicts category 3 'a'",
    ),
}


@pytest.mark.parametrize(("labels", "what"), LABELS.values(), ids=LABELS)
def test_categories_that_contradict(labels: list[tuple[int, str]], what: str) -> None:
    remedy = "give each class one id and one name in all files and data sets"
    line = f"E-ANN-LABELS f.json: {what}; {remedy}"
    refused(coco([image()], [], [{"id": i, "name": name} for i, name in labels]), line)


@pytest.mark.parametrize(
    "labels", [[], [(0, "a")], [(-1, "a"), (2**63 - 1, "b"), (-(2**63), "")], [(1, "a"), (1, "a")]]
)
def test_categories_with_any_int64_id(labels: list[tuple[int, str]]) -> None:
    file = parse(coco([image()], [], [{"id": i, "name": name} for i, name in labels]))
    assert [(c.id, c.name) for c in file.categories] == labels


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
def test_objects_have_one_order(annotations: list[dict]) -> None:
    def found(annotation_id: int, x: float = 1.0, area: float = 9.5, crowd: int = 0) -> tuple:
        return annotation_id, ObjectFields(3, (x, 2.0, 3.0, 4.0), area, crowd)

    bad = [
        BadAnnotation(4, "E-ANN-CATEGORY", "category_id 99 is not in categories"),
        BadAnnotation(9, "E-BOX-EMPTY", "width 0 and height 4"),
        BadAnnotation(9, "E-BOX-SHAPE", "bbox is NoneType, not four numbers"),
    ]
    first = [found(-6, crowd=1), found(5, area=1.0), found(5), found(5, x=9.0), found(10)]
    data = coco([image(2, "b.jpg"), image(1)], annotations)
    assert read(data) == [(2, [found(5), found(11)], []), (1, first, bad)]
