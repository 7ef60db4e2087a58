"""Several annotation files: the kind of each, and how their contents are joined."""

import json
import re
from typing import Any

import pytest

from beam_tfrec.schemas.annotations.coco_file import Kind
from beam_tfrec.schemas.fields import BadAnnotation, SegmentFields
from beam_tfrec.schemas.manifest import Label
from tests.coco_texts import (
    CAPTION,
    PANOPTIC,
    SEGMENT,
    SMALL_OBJECT,
    annotated,
    annotation,
    coco,
    image,
    join,
    parse,
)

POINTS = [1, 2, 2, 0, 0, 0]
PERSON = {"id": 3, "name": "cat", "keypoints": ["nose", "left_eye"]}


def keypoints(*annotations: dict, images: list | None = None) -> bytes:
    return coco(images or [image()], list(annotations), [PERSON])


def captions(*annotations: dict, images: list | None = None) -> bytes:
    return json.dumps({"images": images or [image()], "annotations": annotations}).encode()


def panoptic(*annotations: dict) -> bytes:
    return coco([image()], list(annotations))


def segments(*segments: dict) -> bytes:
    return panoptic({**PANOPTIC, "segments_info": [*segments]})


KINDS = {
    "instances": (coco([image()], [annotation()]), Kind.INSTANCES),
    "instances without annotations": (coco([image()], []), Kind.INSTANCES),
    "instances, because of the box": (coco([image()], [annotation(caption="x")]), Kind.INSTANCES),
    "keypoints, in the second annotation": (
        keypoints(annotation(), annotation(6, keypoints=POINTS)),
        Kind.KEYPOINTS,
    ),
    "captions with categories": (coco([image()], [CAPTION]), Kind.CAPTIONS),
    "panoptic": (panoptic(PANOPTIC), Kind.PANOPTIC),
}


@pytest.mark.parametrize(("data", "kind"), KINDS.values(), ids=KINDS)
def test_the_kind_follows_from_the_content(data: bytes, kind: Kind) -> None:
    assert parse(data).kind is kind


ALONE = {
    "another id": (annotation(), annotation(6, keypoints=POINTS)),
    "another category": (annotation(category_id=4), annotation(keypoints=POINTS)),
    "another image": (annotation(), annotation(image_id=2, keypoints=POINTS)),
}


@pytest.mark.parametrize(("instance", "person"), ALONE.values(), ids=ALONE)
def test_keypoints_without_an_instance_are_separate_objects(instance: dict, person: dict) -> None:
    images = [image(), image(2, "b.jpg")]
    cats = [{"id": 3, "name": "cat"}, {"id": 4, "name": "dog"}]
    joined = join(coco(images, [instance], cats), keypoints(person, images=images))
    objects = [found for one in joined.annotated_images() for _, found, _ in one.objects]
    assert sorted(len(found.keypoints_px) for found in objects) == [0, 6]
    assert not any(file.joined_annotations for file in joined.sources())


def test_keypoints_with_two_possible_instances_are_a_separate_object() -> None:
    """Otherwise the order of the files would decide which instance gets them."""
    twins = coco([image()], [annotation(area=1), annotation(area=2)])
    joined = join(twins, keypoints(annotation(keypoints=POINTS, area=3)))
    (found,) = joined.annotated_images()
    areas_and_points = [(o.area_px2, len(o.keypoints_px)) for _, o, _ in found.objects]
    assert areas_and_points == [(1.0, 0), (2.0, 0), (3.0, 6)]
    assert joined.count_first_ids(lambda _: "train") == {"train": 1}


def test_two_files_of_a_kind_are_merged() -> None:
    one = coco([image(), image(2, "b.jpg")], [annotation(5), annotation(6, image_id=2)])
    other = coco(
        [image(3, "c.jpg"), image(2, "b.jpg")],
        [annotation(6, image_id=2, area=1), annotation(7, image_id=3)],
        [{"id": 8, "name": "dog"}, {"id": 3, "name": "cat"}],
    )
    joined = join(one, other)
    areas = {
        found.image.id: [(i, o.area_px2) for i, o, _ in found.objects]
        for found in joined.annotated_images()
    }
    assert areas == {1: [(5, 9.5)], 2: [(6, 1.0), (6, 9.5)], 3: [(7, 9.5)]}
    assert joined.count_first_ids(lambda _: "train") == {"train": 3}
    assert joined.labels == [Label(3, "cat"), Label(8, "dog")]


def test_later_files_add_images_and_their_fields() -> None:
    lists = {"neg_category_ids": [3], "not_exhaustive_category_ids": []}
    images = [image(license=4, **lists), image(2, "b.jpg")]
    caption = {**CAPTION, "image_id": 2}
    joined = join(coco([image()], []), captions(caption, images=images))
    (found, _) = joined.images
    assert (found.neg_category_ids, found.not_exhaustive_category_ids) == ([3], [])
    assert joined.found == ["boxes", "captions", "license", "lvis"]
    assert joined.orphans == []
    assert [one.captions for one in joined.annotated_images()] == [[], [(7, "A cat.")]]


# Files, and the line that refuses them.
STOPPED = {
    "an unknown kind": (
        (coco([image()], [{"id": 5, "text": "x"}]),),
        "E-ANN-SECTION f0.json: section 'annotations' is of no known kind: its first has id, text;"
        " give instances, person_keypoints, captions or panoptic files",
    ),
    "panoptic without isthing": (
        (coco([image()], [PANOPTIC], [{"id": 3, "name": "cat"}]),),
        "E-ANN-TYPE f0.json: Object missing required field `isthing` - at `$.categories[0]`;"
        " give each category of a panoptic file isthing: 1 if countable, 0 if stuff",
    ),
    "one id, two names": (
        (coco([image()], []), captions(CAPTION, images=[image(1, "b.jpg")])),
        "E-ANN-JOIN f1.json: image 1 is 'b.jpg', and 'a.jpg' in f0.json;"
        " give files of the same images",
    ),
    "one name, two ids": (
        (coco([image()], []), captions({**CAPTION, "image_id": 2}, images=[image(2)])),
        "E-ANN-DUPLICATE f0.json and 1 more of its split: $.images[0] and $.images[1]"
        " have the same file_name 'a.jpg'; remove one",
    ),
    "keypoint names": (
        (
            keypoints(annotation(keypoints=POINTS)),
            coco([image()], [], [{**PERSON, "keypoints": ["tail"]}]),
        ),
        "E-ANN-LABELS f1.json and f0.json: category 3 'cat' of nose, left_eye contradicts"
        " category 3 'cat' of tail; give each class one id and one name in all files and data sets",
    ),
    "two panoptic entries": (
        (panoptic(PANOPTIC), panoptic({**PANOPTIC, "file_name": "b.png"})),
        "E-ANN-DUPLICATE f1.json: $.annotations[0] is a second one of image 1,"
        " after $.annotations[0] of f0.json; remove one",
    ),
    "segment id beyond a PNG's colours": (
        (segments({**SEGMENT, "id": 2**24}),),
        "E-ANN-TYPE f0.json: Expected `int` <= 16777215"
        " - at `$.annotations[0].segments_info[0].id`; correct the file",
    ),
    "segment id twice": (
        (segments(SEGMENT, SEGMENT),),
        "E-ANN-DUPLICATE f0.json: $.annotations[0] (image 1) has segment 9 twice; remove one",
    ),
    "a name outside the root": (
        (panoptic({**PANOPTIC, "file_name": "../a.png"}),),
        "E-ANN-PATH f0.json: $.annotations[0]: file_name '../a.png' has a folder '..';"
        " give names relative to --panoptic_images",
    ),
}


@pytest.mark.parametrize(("files", "line"), STOPPED.values(), ids=STOPPED)
def test_files_that_stop_the_run(files: tuple[bytes, ...], line: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(line)}$"):
        annotated(*files)


def test_a_panoptic_annotation_with_a_bad_segment_is_set_aside() -> None:
    (found,) = annotated(segments({**SEGMENT, "bbox": [0, 0, 0, 4]}))
    assert found.bad == [BadAnnotation(1, "E-BOX-EMPTY", "segment 9: width 0 and height 4")]
    assert (found.panoptic, found.num_annotations) == (None, 1)


def test_segments_keep_their_order_and_default_to_the_box_area() -> None:
    first = {"id": 2, "category_id": 3, "bbox": [0, 0, 5, 2], "iscrowd": True, "area": -1}
    (found,) = annotated(segments(SEGMENT, first))
    second = SegmentFields(2, 3, (0.0, 0.0, 5.0, 2.0), 10.0, 1)
    assert found.panoptic == ("a.png", [SegmentFields(9, 3, (1.0, 2.0, 3.0, 4.0), 6.0, 0), second])


# Keypoints, and how often they are counted as dropped.
NO_POINTS = {
    "too few for the names": ([1, 2, 2], 1),
    "a visibility of 3": ([1, 2, 3, 0, 0, 0], 1),
    "not a list": ("1,2,2", 1),
    "null": (None, 0),
}


@pytest.mark.parametrize(("points", "dropped"), NO_POINTS.values(), ids=NO_POINTS)
def test_an_object_with_bad_keypoints_is_kept_without_them(points: Any, dropped: int) -> None:
    joined = join(keypoints(annotation(keypoints=points)))
    (found,) = joined.annotated_images()
    assert found.objects == [SMALL_OBJECT]
    assert found.repairs == ({"keypoints_dropped": 1} if dropped else {})
