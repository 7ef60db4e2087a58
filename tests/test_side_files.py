"""LabelMe's and SA-1B's files: which are read, and what good and bad ones give."""

import functools
import json
import math
from fractions import Fraction

import pytest
from msgspec import msgpack

from beam_tfrec.schemas.annotations.object_maps import ObjectMap, parse_mapped
from beam_tfrec.schemas.annotations.side_files import (
    SideFormat,
    outline_of,
    parse_side_file,
    value_at,
)
from beam_tfrec.schemas.columns import ColumnType
from beam_tfrec.schemas.faults import Rejected
from beam_tfrec.schemas.features import Kind
from beam_tfrec.schemas.fields import BadAnnotation, ObjectFields, PictureFields, Segmentation
from beam_tfrec.schemas.splits import HASH, Splitting
from beam_tfrec.transforms.sources.join_files import JoinedFiles
from beam_tfrec.transforms.sources.listing import ListedFile
from beam_tfrec.transforms.sources.read_sidecar import (
    SideNames,
    SideReader,
    SideSample,
    named_image,
    read_objects,
    read_values,
)
from beam_tfrec.transforms.storage import Entry
from tests.side_folders import labelme, sa1b, shape

BY_SCENE = Splitting(HASH, {"train": Fraction(1), "test": Fraction(1)}, group_by="scene")
TRIANGLE = [1.0, 2.0, 9.0, 2.0, 9.0, 8.0]
RLE = {"size": [3, 4], "counts": "336"}  # runs of 3, 3, 6
BOTH = "both shapes (LabelMe) and image and annotations (SA-1B): --format says which"
NEITHER = "neither shapes (LabelMe) nor image and annotations (SA-1B)"


def as_bytes(content: object) -> bytes:
    return json.dumps(content).encode()


def objects_of(content: object, *, segmentations: bool = True) -> tuple[list, list, list]:
    """Return (id, object) of each object, its outline, and bad annotations."""
    sample, decode = read_objects(as_bytes(content), segmentations=segmentations), msgpack.decode
    assert isinstance(sample, SideSample), sample
    fields = decode(sample.fields, type=PictureFields).objects
    outlines = decode(sample.payload, type=list[Segmentation]) if segmentations else []
    return list(zip(sample.annotation_ids, fields, strict=True)), outlines, sample.bad


def test_shapes_of_a_group_are_one_object() -> None:
    other = shape("cat", "rectangle", (20, 20), (22, 24), group_id=1)
    content = labelme(shape(group_id=1), shape(), other, shape("dog", group_id=1))
    objects, outlines, bad = objects_of(content)
    assert objects == [
        (0, ObjectFields("cat", (1.0, 2.0, 21.0, 22.0), 24.0 + 8.0, 0)),
        (1, ObjectFields("cat", (1.0, 2.0, 8.0, 6.0), 24.0, 0)),
        (3, ObjectFields("dog", (1.0, 2.0, 8.0, 6.0), 24.0, 0)),
    ]
    assert [len(one.polygons_px) for one in outlines] == [2, 1, 1]
    assert (outlines[1], bad) == (Segmentation([TRIANGLE]), [])


def test_a_circle_becomes_a_polygon_of_nearly_its_area() -> None:
    outline = outline_of("circle", [(10.0, 20.0), (13.0, 24.0)])
    assert len(outline) == 2 * 64
    corners = list(zip(outline[0::2], outline[1::2], strict=True))
    assert all(math.isclose(math.dist(corner, (10, 20)), 5, rel_tol=1e-9) for corner in corners)
    ((_, fields),), _, _ = objects_of(labelme(shape("cat", "circle", (10, 20), (13, 24))))
    assert fields.bbox_xywh_px == (5.0, 15.0, 10.0, 10.0)
    assert abs(fields.area_px2 / (math.pi * 25) - 1) < 1 / 500


@pytest.mark.parametrize(
    ("one", "detail"),
    [
        (shape("a", "point", (1, 2)), "shape_type is 'point'"),
        (shape("a", "polygon", (1, 2), (3, 4)), "polygon of 2 points"),
        (shape("a", "circle", (1, 2)), "circle of 1 points"),
        (shape(""), "label is empty"),
        ({"label": "a"}, "Object missing required field `points`"),
        (shape("a", "polygon", (1, 2, 3)), "Expected `array` of length 2 - at `$.points[0]`"),
    ],
)
def test_shapes_without_an_area_are_dropped(one: object, detail: str) -> None:
    objects, _, bad = objects_of(labelme(shape(), one))
    assert [number for number, _ in objects] == [0]
    assert bad == [BadAnnotation(1, "E-ANN-SHAPE", detail)]


def test_masks_of_sa1b_are_objects_of_one_class_sorted_by_id() -> None:
    first = {"id": 9, "bbox": [1, 0, 1, 3], "area": 3, "segmentation": RLE}
    second = {"id": 4, "bbox": [1, 0, 1, 3], "segmentation": RLE}
    objects, outlines, _ = objects_of(sa1b(first, second))
    fields = ObjectFields("object", (1.0, 0.0, 1.0, 3.0), 3.0, 0)
    assert objects == [(4, fields), (9, fields)]
    assert outlines[0] == Segmentation(rle_counts=[3, 3, 6])


@pytest.mark.parametrize(
    ("one", "bad", "without_outlines"),
    [
        ({"id": 1, "bbox": [0, 0, 1]}, (1, "E-BOX-SHAPE"), 0),
        ({"bbox": [0, 0, 1, 1]}, ("annotations[0]", "E-ANN-SHAPE"), 0),
        ({"id": 1, "bbox": [0, 0, 1, 1], "segmentation": 5}, (1, "E-SEG-SHAPE"), 1),
    ],
)
def test_bad_annotations_of_sa1b_are_dropped(
    one: dict, bad: tuple[object, str], without_outlines: int
) -> None:
    objects, outlines, dropped = objects_of(sa1b(one))
    assert [(b.annotation_id, b.code) for b in dropped] == [bad]
    assert (objects, outlines) == ([], [])
    assert len(objects_of(sa1b(one), segmentations=False)[0]) == without_outlines


@pytest.mark.parametrize(
    ("data", "format", "what"),
    [
        (b"", None, "Input data was truncated"),
        (b'{"shapes": 5}', None, "Expected `array`, got `int` - at `$.shapes`"),
        ('{"shapes": []}'.encode("utf-16"), None, "not UTF-8 (byte 0): save the file as UTF-8"),
        (b'{"images": []}', None, NEITHER),
        (b'{"shapes": [], "image": {}, "annotations": []}', None, BOTH),
        (as_bytes(sa1b()), SideFormat.LABELME, "Object missing required field `shapes`"),
        (as_bytes(labelme()), SideFormat.SA1B, "Object missing required field `image`"),
        (b'{"shapes": ' + b"[" * 100_000, None, "JSON is nested too deeply"),
        (b'{"shapes": [{"label": "a", "label": "b"}]}', None, "a key is there twice"),
    ],
)
def test_bad_files(data: bytes, format: SideFormat | None, what: str) -> None:
    read = read_objects(data, functools.partial(parse_side_file, format=format))
    assert read == ("E-ANN-FILE", what)


def test_sides_and_crowds_may_be_floats() -> None:
    given = [{"category": "a", "iscrowd": crowd} for crowd in (1.0, None, True, 7, "1")]
    text = as_bytes({"width": 640.0, "height": "480", "o": given})
    width, height, entries, bad, *_ = parse_mapped(text, ObjectMap("o"))
    assert (width, height, [entry.iscrowd for entry in entries]) == (640, 480, [1, 0, 1, 2])
    assert bad == [BadAnnotation(4, "E-ANN-SHAPE", "iscrowd is '1', not 0 or 1")]
    with pytest.raises(ValueError, match=r"^height must be a number of pixels, got 0\.5$"):
        parse_mapped(b'{"o": [], "height": 0.5}', ObjectMap("o"))


@pytest.mark.parametrize(
    ("path", "value"),
    [("a.b", "x"), ("n", "3"), ("yes", "true"), ("nothing", ""), ("n.x", ""), ("list", "")],
)
def test_values_by_path(path: str, value: str) -> None:
    data = b'{"a": {"b": "x"}, "n": 3, "yes": true, "nothing": null, "list": [1]}'
    assert value_at(data, path) == value


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"a": 1.5}, ("E-ROW-TYPE", "field 'a' is int64 and holds 1.5, not a whole number")),
        ([1], ("E-ANN-FILE", "Expected `object`, got `array`")),
    ],
)
def test_values_of_another_type_are_faults(content: object, fault: tuple[str, str]) -> None:
    assert read_values(as_bytes(content), {"a": ColumnType(Kind.INT64)}) == fault


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("x.jpg", "s/x.jpg"),
        ("/home/a/x.jpg", "s/x.jpg"),
        ("C:\\img\\x.jpg", "s/x.jpg"),
        ("..", "s/.."),
        ("x/", ""),
    ],
)
def test_names_of_images_stay_below_the_root(value: str, name: str) -> None:
    assert named_image("s/1.json", value) == name


def joined(content: object, kind: str = "file", images: int = 1) -> tuple[JoinedFiles, list[bytes]]:
    data = as_bytes(content)
    file = ListedFile("train/annotations", Entry("a.json", len(data), "1", None, kind))
    image = [ListedFile("train", Entry("a.jpg", 9, "2"))] * images
    return JoinedFiles("train", "a", image, [file]), [data]


@pytest.mark.parametrize(
    ("splitting", "split"),
    [(Splitting("flags.part", names=("train", "test")), "test"), (BY_SCENE, BY_SCENE.draw("7"))],
)
def test_a_field_of_the_file_decides_the_split(splitting: Splitting, split: str) -> None:
    content = labelme(shape(), flags={"part": "TEST"}, scene=7)
    sample, note = SideReader(splitting, read_objects)(joined(content))
    assert (sample.split, note.split, note.class_names) == (split, split, ["cat"])


@pytest.mark.parametrize("kind", ["fifo", "directory whose name is not UTF-8"])
def test_an_annotation_that_is_not_a_file_is_a_reject(kind: str) -> None:
    (rejected,) = SideReader(Splitting(), read_objects)(joined(labelme(), kind, images=0))
    assert isinstance(rejected, Rejected)
    assert (rejected.code, rejected.detail) == ("E-ANN-FILE", f"a.json: a {kind}")


JSON = "train/annotations"


def file(name: str, root: str = "train", kind: str = "file") -> ListedFile:
    return ListedFile(root, Entry(name, 1, "", kind=kind))


@pytest.mark.parametrize(
    ("listed", "glob", "is_read"),
    [
        (file("a/1.jpg"), "", True),
        (file("a/1.json"), "", False),  # under the root of images
        (file("a/b\nc.JSON", JSON), "", True),
        (file("a/1.JSON", JSON), "a/*.json", False),  # globs heed case
        (file("a/1.json", JSON), "a/*.json", True),
        (file("a/b/1.json", JSON), "a/*.json", False),
        (file("a/1.jpg", JSON), "", False),
        (file("a/1.txt"), "", False),
        (file("a", kind="directory"), "", False),
        (file("a.jpg", kind="fifo"), "", False),
    ],
)
def test_images_and_their_json_files_are_read(listed: ListedFile, glob: str, is_read: bool) -> None:
    assert SideNames({JSON: glob} if glob else {}).reads(listed) is is_read


def test_a_folder_that_cannot_be_listed_counts_as_an_annotation_file() -> None:
    folder = file("\\xff", JSON, "directory whose name is not UTF-8")
    (named,) = SideNames({JSON: "a/*.json"})(folder)
    assert (named.name, named.second) == ("\\xff", (folder,))
