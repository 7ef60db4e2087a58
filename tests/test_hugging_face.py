"""Parquet files as Hugging Face's `datasets` writes them: images in cells, classes, objects."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_tfrec.pipelines import coco, table
from beam_tfrec.transforms.sources.hugging_face import StoredFeatures, features_of, open_image
from tests.coco_command import (
    committed_by,
    digests,
    examples,
    manifest_of,
    rejected_of,
    run_pipeline,
    value,
)
from tests.conftest import TEST_DATA, jpeg_bytes, thorough

COCO = TEST_DATA / "coco_val"
PHOTOS = sorted((TEST_DATA / "classes").glob("*/*.jpg"))
CLASSES = ["hat", "pants", "dress", "shoe"]  # neither sorted nor all used
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NUMBERS = {"dtype": "int64", "_type": "Value"}
NAMED = {"names": CLASSES, "_type": "ClassLabel"}
JPG = jpeg_bytes()
Rows = Sequence[Mapping[str, Any]]


def write(
    path: Path, rows: Rows, types: Mapping[str, pa.DataType], features: Any, group: int = 100
) -> Path:
    """Write rows with the metadata of `datasets`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.dumps({"info": {"features": features}})
    schema = pa.schema(types, metadata={"huggingface": known} if features else None)
    pq.write_table(pa.Table.from_pylist([*rows], schema=schema), path, row_group_size=group)
    return path


def photo_rows() -> Rows:
    return [
        {
            "id": number,
            "image": {"bytes": photo.read_bytes(), "path": photo.name},
            "label": CLASSES.index(photo.parent.name),
        }
        for number, photo in enumerate(PHOTOS)
    ]


PHOTO_TYPES = {"id": pa.int64(), "image": IMAGE, "label": pa.int64()}
PHOTO_FEATURES = {"id": NUMBERS, "image": {"_type": "Image"}, "label": NAMED}


def write_photos(path: Path, rows: Rows | None = None, group: int = 4) -> Path:
    return write(path, rows or photo_rows(), PHOTO_TYPES, PHOTO_FEATURES, group)


OBJECT_TYPES = {
    "id": pa.int64(),
    "area": pa.float64(),
    "bbox": pa.list_(pa.float64()),
    "iscrowd": pa.int64(),
    "category": pa.int64(),
}


def write_objects(path: Path, rows: Rows, names: Sequence[str], form: str) -> Path:
    """Write rows in one of the forms that versions of `datasets` give to lists of objects."""
    members: dict[str, Any] = dict.fromkeys(OBJECT_TYPES, NUMBERS)
    members["bbox"] = {"feature": NUMBERS, "length": 4, "_type": "Sequence"}
    members["category"] = {"names": names, "_type": "ClassLabel"}
    stored = pa.list_(pa.struct(OBJECT_TYPES))
    feature: Any = {"feature": members, "_type": "List"}
    if form == "[]":
        feature = [members]
    elif form != "List":
        fixed = {**OBJECT_TYPES, "bbox": pa.list_(pa.float64(), 4)}
        stored = pa.struct({name: pa.list_(of) for name, of in fixed.items()})
        feature["_type"] = "Sequence"
        rows = [
            {**row, "objects": {m: [of[m] for of in row["objects"]] for m in OBJECT_TYPES}}
            for row in rows
        ]
    if form == "dict":
        feature = {name: {"feature": of, "_type": "List"} for name, of in members.items()}
    numbers = dict.fromkeys(("image_id", "width", "height"), pa.int64())
    types = numbers | {"image": IMAGE, "objects": stored}
    features = dict.fromkeys(numbers, NUMBERS) | {"image": {"_type": "Image"}, "objects": feature}
    return write(path, rows, types, features, 7)


@pytest.fixture(scope="module")
def of_coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set of COCO's own files."""
    out = tmp_path_factory.mktemp("coco")
    sources = ("--images", COCO / "images", "--annotations", COCO / "annotations/instances.json")
    flags = ("--category_ids", "contiguous", "--features", "boxes", "--num_shards", 3)
    committed_by(coco.run, out, *sources, *flags)
    return out


@pytest.mark.parametrize("form", ["List", *map(thorough, ("Sequence", "dict", "[]"))])
def test_boxes_are_those_of_coco(form: str, of_coco: Path, tmp_path: Path) -> None:
    spec = json.loads((COCO / "annotations/instances.json").read_text())
    numbers = {of["id"]: place for place, of in enumerate(spec["categories"])}
    rows = {image["id"]: {"image_id": image["id"], "objects": []} for image in spec["images"]}
    for image in spec["images"]:
        name = image["file_name"]
        file = {"bytes": (COCO / "images" / name).read_bytes(), "path": name}
        size = {"width": image["width"], "height": image["height"]}
        rows[image["id"]] |= {"image": file, **size}
    box_format = "yxyx" if form == "dict" else "xywh"
    for one in spec["annotations"]:
        if box_format == "yxyx":
            x, y, width, height = one["bbox"]
            one["bbox"] = [y, x, y + height, x + width]
        one["category"] = numbers[one["category_id"]]
        rows[one["image_id"]]["objects"].append({name: one[name] for name in OBJECT_TYPES})
    names = [of["name"] for of in spec["categories"]]
    path = write_objects(tmp_path / "in/t.parquet", [*rows.values()], names, form)
    flags = ("--key_column", "image_id", "--num_shards", 3, "--box_format", box_format)
    manifest = committed_by(table.run, tmp_path / "out", "--table", path, *flags)
    assert digests(tmp_path / "out", "*.tfrec") == digests(of_coco, "*.tfrec")
    fates = [of["splits"]["train"]["annotations"] for of in (manifest, manifest_of(of_coco))]
    assert fates[0] == fates[1]
    assert not (tmp_path / "out/_staged").exists()


def test_classes_and_images_are_those_of_files(tmp_path: Path) -> None:
    """Images in cells give the records of images in files."""
    images = tmp_path / "images"
    images.mkdir()
    lines = ["id,image,label"]
    for number, photo in enumerate(PHOTOS):
        (images / photo.name).symlink_to(photo)
        lines.append(f"{number},{photo.name},{photo.parent.name}")
    (images / "t.csv").write_text("\n".join([*lines, ""]))
    (tmp_path / "labels.txt").write_text("\n".join(CLASSES))
    flags = ("--resize", "max:64", "--reencode", "png", "--num_shards", 2)
    named = ("--image_column", "image", "--label_column", "label")
    named = (*named, "--label_file", str(tmp_path / "labels.txt"))
    committed_by(table.run, tmp_path / "wanted", "--table", images / "t.csv", *named, *flags)
    path = write_photos(tmp_path / "in/t.parquet", group=3)
    plan = run_pipeline(table.run, "--table", path, *flags, "--output", tmp_path / "out", "--plan")
    assert "note: images in archives or Parquet were not converted" in plan.out
    manifest = committed_by(table.run, tmp_path / "out", "--table", path, *flags)
    assert digests(tmp_path / "out", "*.tfrec", "label_map.pbtxt") == digests(
        tmp_path / "wanted", "*.tfrec", "label_map.pbtxt"
    )
    assert [label["name"] for label in manifest["plan"]["labels"]] == CLASSES


BAD_PHOTOS: Sequence[tuple[Any, Any, str, str]] = [
    (None, 0, "E-IMG-MISSING", "column 'image' has no image"),
    ({}, 0, "E-IMG-MISSING", "column 'image' has no image"),
    ({"path": "/a/b.jpg"}, 0, "E-IMG-MISSING", "column 'image' has the path '/a/b.jpg' without t"),
    ({"bytes": b""}, 0, "E-IMG-EMPTY", "0 bytes"),
    ({"bytes": JPG + bytes(20_000)}, 0, "E-ROW-TOO-LARGE", "a cell has more than 20000 bytes"),
    ({"bytes": JPG}, -1, "E-SRC-LABEL", "class -1 is not one of the 4 that the schema names"),
    ({"bytes": JPG}, 4, "E-SRC-LABEL", "class 4 is not one of the 4 that the schema names"),
    ({"bytes": JPG}, None, "E-SRC-LABEL", "column 'label' names no class"),
    ({"bytes": JPG[:-9], "path": "cut.jpg"}, 0, "E-IMG-TRUNCATED", ""),
    ({"bytes": b"no image at all", "path": "x.jpg"}, 0, "E-IMG-TYPE", ""),
]


def test_each_bad_row_is_one_reject(tmp_path: Path) -> None:
    rows = [
        {"id": number, "image": image, "label": label}
        for number, (image, label, _, _) in enumerate(BAD_PHOTOS)
    ]
    rows += [{"id": 99, "image": {"bytes": JPG}, "label": 3}]
    path = write_photos(tmp_path / "in/t.parquet", rows)
    flags = ("--max_cell_bytes", 20_000, "--max_rejected", len(BAD_PHOTOS))
    committed_by(table.run, tmp_path / "out", "--table", path, *flags)
    found = {int(line["key"]): line for line in rejected_of(tmp_path / "out")}
    for number, (image, _, code, detail) in enumerate(BAD_PHOTOS):
        line = found.pop(number)
        assert (line["code"], detail in line["detail"]) == (code, True), line
        if line["stage"] == "write_shards":
            name = (image or {}).get("path") or f"t.parquet:{number}"
            assert line["file_name"] == name
    assert not found
    (kept,) = examples(tmp_path / "out")
    assert value(kept, "image/filename") == [f"t.parquet:{len(BAD_PHOTOS)}".encode()]
    numbers = ("--types", "label=int64?", "--image_column", "image")
    committed_by(table.run, tmp_path / "bare", "--table", path, *numbers, *flags)
    assert len(rejected_of(tmp_path / "bare")) == len(BAD_PHOTOS) - 3  # of classes


BAD_OBJECTS: Sequence[tuple[dict[str, Any], str]] = [
    ({"bbox": [900, 900, 5, 5]}, "E-BOX-OUTSIDE"),
    ({"bbox": [1, 1, 0, 5]}, "E-BOX-EMPTY"),
    ({"bbox": [1, 1, float("nan"), 5]}, "E-BOX-SHAPE"),
    ({"bbox": None}, "E-BOX-SHAPE"),
    ({"bbox": [1, 1, 5]}, "E-BOX-SHAPE"),
    ({"category": 7}, "E-ANN-CATEGORY"),
    ({"category": None}, "E-ANN-CATEGORY"),
]


def test_each_bad_object_is_dropped(tmp_path: Path) -> None:
    good = {"id": 50, "area": None, "bbox": [1, 1, 5, 5], "iscrowd": None, "category": 1}
    objects = [{**good, "id": n} | of for n, (of, _) in enumerate(BAD_OBJECTS)]
    image = {"bytes": JPG, "path": "a.jpg"}
    row = {"image_id": 7, "image": image, "width": None, "height": None}
    rows = [
        {**row, "objects": [good, *objects]},
        {**row, "image_id": 8, "objects": [{**good, "id": n} for n in (51, 52)], "image": None},
    ]
    path = write_objects(tmp_path / "in/t.parquet", rows, ["cat", "dog"], "List")
    flags = ("--max_dropped", "100%", "--max_rejected", 1, "--key_column", "image_id")
    manifest = committed_by(table.run, tmp_path / "out", "--table", path, *flags)
    found = {line["annotation_ids"][0]: line["code"] for line in rejected_of(tmp_path / "out")}
    assert found == {**{n: code for n, (_, code) in enumerate(BAD_OBJECTS)}, 51: "E-IMG-MISSING"}
    fate = manifest["splits"]["train"]["annotations"]
    assert (fate["listed"], fate["written"], fate["lost"]) == (len(BAD_OBJECTS) + 3, 1, 2)
    (kept,) = examples(tmp_path / "out")
    assert value(kept, "image/object/class/text") == [b"dog"]
    assert value(kept, "image/object/area") == [25.0]


FAULTS = [
    ("cut.parquet", "E-TAB-FORMAT ./cut.parquet: cannot be read as Parquet", 3),
    ("two.parquet", "E-ARG command line: image_column must name one of a, b, got none", 2),
    ("t.parquet --image_root .", "E-ARG command line: image_root must come with image_col", 2),
    ("t.parquet --objects_column x", "E-TAB-HEADER ./t.parquet: has no column 'x'; give", 3),
    ("poses.parquet", "E-ARG command line: objects_column must have one member of classes", 2),
    ("t.parquet --max_dropped 5", "E-ARG command line: max_dropped must come with objects_c", 2),
    ("t.parquet --objects_column label --label_column label", "E-ARG command line: objects_c", 2),
    ("t.parquet --label_file short.txt", "E-ANN-LABELS short.txt: it lacks the sources'", 3),
    ("t.parquet other.parquet", "E-ANN-LABELS train: category 0 'hat' contradicts", 3),
    ("t.parquet z.parquet", "E-ANN-LABELS the sources: some number their classes", 3),
]


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    whole = write_photos(folder / "t.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[:-100])
    both = {"a": {"_type": "Image"}, "b": {"_type": "Image"}}
    write(folder / "two.parquet", [], dict.fromkeys("ab", IMAGE), both)
    posed = {"image": {"_type": "Image"}, "o": [{"bbox": NUMBERS, "a": NAMED, "b": NAMED}]}
    write(folder / "poses.parquet", [], {"image": IMAGE, "o": pa.list_(pa.int64())}, posed)
    features = PHOTO_FEATURES | {"label": {"names": ["x", "y", "z"], "_type": "ClassLabel"}}
    write(folder / "other.parquet", photo_rows(), PHOTO_TYPES, features)
    write(folder / "z.parquet", photo_rows(), PHOTO_TYPES, {})
    (folder / "short.txt").write_text("hat\npants\n")
    return folder


@pytest.mark.parametrize(("flags", "fault", "code"), FAULTS)
def test_faults_of_files_and_flags(
    flags: str,
    fault: str,
    code: int,
    odd_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(odd_files)
    ended = run_pipeline(table.run, "--table", *flags.split(), "--output", tmp_path / "out")
    assert ended.fault.startswith(fault)
    assert ended.code == code


@pytest.mark.parametrize(
    "metadata", ["", "{", "[]", '{"info": {"features": {"a": 7, "b": {"names": 1, "_type": []}}}}']
)
def test_other_metadata_is_ignored(metadata: str) -> None:
    strict = pa.struct([pa.field("bytes", pa.binary(), nullable=False), ("path", pa.string())])
    types = {"a": IMAGE, "b": pa.int64(), "c": pa.large_binary(), "d": pa.list_(pa.binary())}
    types["e"] = strict
    schema = pa.schema(types, metadata={"huggingface": metadata})
    assert open_image(JPG, "c") == (JPG, "")
    assert features_of(schema)._replace(columns=(), members=frozenset()) == StoredFeatures(
        frozenset("ace")
    )
