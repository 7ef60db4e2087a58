"""The same photos and boxes in each format, written by its own tool, give equal records.

`.ci/run` installs the tools in their own environment, and names its Python in FORMATS_PYTHON.
"""

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from beam_tfrec.pipelines import coco, openimages, table, voc, webdataset, yolo
from tests.coco_command import committed_by, examples, rejected_of, value, write_coco
from tests.conftest import TEST_DATA

PYTHON = os.environ.get("FORMATS_PYTHON", "")
WRITE = Path(__file__).parent / "formats" / "write.py"
PHOTOS = 50
RUNS = (openimages.run, table.run, voc.run, webdataset.run, yolo.run)
PIPELINES = {run.name: run for run in RUNS}
OBJECT = "image/object"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PYTHON, reason="FORMATS_PYTHON names no Python; .ci/run installs one"),
]

FIELDS = [
    "image/source_id=bytes",
    f"{OBJECT}/class/label=int64[],{OBJECT}/class/text=bytes[],{OBJECT}/is_crowd=int64[]",
    *(f"{OBJECT}/{key}=float[]" for key in ("area", "bbox/xmin", "bbox/xmax")),
    *(f"{OBJECT}/{key}=float[]" for key in ("bbox/ymin", "bbox/ymax")),
]
CASES = [  # command and flags, features of objects that only this format has
    ("voc --images photos --annotations voc", {"difficult", "truncated", "view"}),
    ("voc --images photos --annotations voc_from_0 --voc_offset 0", set()),
    ("yolo --data data.yaml", set()),
    # A photo without boxes has no row in Open Images' table.
    (
        "openimages --images photos --boxes boxes.csv --classes classes.csv --allow_unannotated",
        set(),
    ),
    ("table --table photos.parquet --key_column image_id", set()),
    (f"webdataset --shards tars/{{000..002}}.tar --fields {','.join(FIELDS)}", set()),
]


def cut_photos(folder: Path) -> Path:
    """Cut photos out of COCO's, and return the annotation file of the boxes that are left."""
    photos, objects, names = [], defaultdict(list), {}
    for source in (TEST_DATA / "coco_train", TEST_DATA / "coco_val"):
        spec = json.loads((source / "annotations/instances.json").read_bytes())
        names |= {one["id"]: one["name"] for one in spec["categories"]}
        photos += [(source / "images" / one["file_name"], one["id"]) for one in spec["images"]]
        for one in spec["annotations"]:
            objects[one["image_id"]].append((names[one["category_id"]], one["bbox"]))
    classes = sorted({name for boxes in objects.values() for name, _ in boxes})
    images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    for number in range(PHOTOS):
        path, source_id = photos[number % len(photos)]
        image_id, left = f"{number:03}", 8 * (number // len(photos))
        with Image.open(path) as photo:
            width, height = photo.width - left, photo.height
            photo.crop((left, 0, photo.width, height)).save(folder / f"photos/{image_id}.jpg")
        size = {"file_name": f"{image_id}.jpg", "width": width, "height": height}
        images.append({"id": image_id, **size})
        for name, (x, *others) in objects[source_id]:
            if x >= left:
                bbox, label = [round(x - left, 2), *others], classes.index(name) + 1
                annotations.append({"image_id": image_id, "category_id": label, "bbox": bbox})
    for number, one in enumerate(annotations):
        one.update(id=number, iscrowd=0)
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, start=1)]
    spec = {"images": images, "annotations": annotations, "categories": categories}
    return write_coco(folder, spec)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, their boxes in each format, and the records of the COCO file."""
    folder = tmp_path_factory.mktemp("formats")
    photos = folder / "photos"
    photos.mkdir()
    instances = cut_photos(folder)
    done = subprocess.run([PYTHON, WRITE, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    given = ("--images", photos, "--annotations", instances, "--string_ids")
    committed_by(coco.run, folder / "coco", *given)
    return folder


def records_of(out: Path) -> dict[bytes, dict[str, list]]:
    """Return the features of each record by its photo, without an extension in its id."""
    records = {}
    for example in examples(out):
        found = {key: value(example, key) for key in example.features.feature}
        found["image/source_id"] = [one.removesuffix(b".jpg") for one in found["image/source_id"]]
        records[found["image/filename"][0]] = found
    return records


@pytest.mark.parametrize(("command", "more"), CASES)
def test_records_are_those_of_coco(
    command: str, more: set[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    name, *flags = command.split()
    out = folder / "out"
    committed_by(PIPELINES[name], out, *flags, "--overwrite")
    assert rejected_of(out) == []
    found, wanted = records_of(out), records_of(folder / "coco")
    assert sorted(found) == sorted(wanted)
    assert len(found) == PHOTOS
    for photo, record in found.items():
        assert {*record} - {*wanted[photo]} == {f"{OBJECT}/{key}" for key in more}
        for key, values in wanted[photo].items():
            is_float = any(isinstance(value, float) for value in values)
            same = pytest.approx(values, rel=1e-6, abs=1e-7) if is_float else values
            assert record[key] == same, (photo, key)
