"""The oracle: checksums of every source's and layout's output for `tests/data`.

`python -m tests.oracle` writes each data set and compares it with `tests/data/golden.json`: the
SHA-256 of shards and manifest, and the code of each rejected file. A change of code that should
not change bytes must leave it green. `--write` records what is written now; only an announced
change of bytes or verdicts may do that.
"""

import argparse
import functools
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL
import pyarrow as pa
import pyarrow.parquet as pq

from beam_tfrec.pipelines import (
    arrays,
    coco,
    folder,
    openimages,
    pairs,
    sidecar,
    table,
    voc,
    webdataset,
    yolo,
)
from tests.coco_command import run_pipeline

DATA = Path(__file__).resolve().parent / "data"
GOLDEN = DATA / "golden.json"

Golden = dict[str, dict[str, str]]
"""Per case: SHA-256 by file name, and code by name of a rejected image."""


class Case(NamedTuple):
    """One data set.

    Attributes:
        run: the pipeline.
        flags: of its command, without the output; `DATA` and `MADE` stand for folders.
        codecs: whether its bytes depend on the versions of Pillow or zlib.
    """

    run: Callable[[Sequence[str]], None]
    flags: str
    codecs: bool = False

    def words(self, made: Path) -> list[str]:
        """Return the flags, with the folder of `make_sources`."""
        return self.flags.replace("DATA/", f"{DATA}/").replace("MADE/", f"{made}/").split(" ")


_TRAIN = "--images DATA/coco_train/images --annotations DATA/coco_train/annotations/instances.json"
_PANOPTIC = (
    f"{_TRAIN} DATA/coco_train/annotations/panoptic.json"
    " --panoptic_images DATA/coco_train/annotations/panoptic"
)
_VAL = (
    "--images val=DATA/coco_val/images --annotations val=DATA/coco_val/annotations/instances.json"
    " val=DATA/coco_val/annotations/captions.json"
    " val=DATA/coco_val/annotations/person_keypoints.json"
)
_CLASSES = "--images DATA/classes"
_IMAGES = "--images DATA/coco_val/images"
_PAIRS = "--low DATA/pairs/lr --high DATA/pairs/hr"
_SIDE = "--images DATA/coco_train/images --annotations MADE/labelme --allow_unannotated"
_ODD = "--table MADE/odd.csv --image_column image --image_root DATA/odd --max_rejected 100%"

CASES: Mapping[str, Case] = {
    "coco detection": Case(coco.run, f"{_TRAIN} --num_shards 2"),
    "coco detection, captions and keypoints": Case(coco.run, f"{_VAL} --num_shards 2"),
    "coco detection, panoptic": Case(coco.run, _PANOPTIC, codecs=True),
    "coco detection, masks and polygons": Case(
        coco.run, f"{_TRAIN} --features boxes,masks,polygons,license", codecs=True
    ),
    "coco detection, RLE masks": Case(
        coco.run,
        "--images DATA/coco_train/images --features boxes,masks --layout detection"
        " --annotations DATA/coco_train/annotations/instances_rle_from_panoptic.json",
        codecs=True,
    ),
    "coco detection, in order of the input": Case(coco.run, f"{_TRAIN} --order input"),
    "coco detection, another seed": Case(coco.run, f"{_TRAIN} --num_shards 2 --seed 7"),
    "coco detection, split by hash": Case(
        coco.run, f"{_TRAIN} --split_by hash --splits train=60,val=40"
    ),
    "coco detection, contiguous ids": Case(coco.run, f"{_TRAIN} --category_ids contiguous"),
    "coco detection, resized": Case(
        coco.run, f"{_TRAIN} --features boxes,masks --resize 128 --reencode png", codecs=True
    ),
    "coco detection, folders of splits": Case(
        coco.run, f"{_TRAIN} --num_shards 2 --shard_names maxdiffusion"
    ),
    "coco detection, ArrayRecord": Case(
        coco.run, f"{_TRAIN} --num_shards 2 --record_format array_record"
    ),
    "coco keras": Case(coco.run, f"{_TRAIN} --layout keras --records_per_shard 16"),
    "coco keras, in order of the input": Case(coco.run, f"{_TRAIN} --layout keras --order input"),
    "coco tfds": Case(coco.run, f"{_TRAIN} --layout tfds --shard_names plain"),
    "coco tfds, panoptic": Case(coco.run, f"{_PANOPTIC} --layout tfds --max_rejected 1"),
    "folder classification": Case(folder.run, _CLASSES),
    "folder classification, in size buckets": Case(
        folder.run, f"{_CLASSES} --buckets 48x64,64x48,64x64", codecs=True
    ),
    "folder imagenet": Case(folder.run, f"{_CLASSES} --layout imagenet"),
    "folder tutorial": Case(folder.run, f"{_CLASSES} --layout tutorial", codecs=True),
    "folder raw": Case(folder.run, f"{_CLASSES} --layout raw --resize 16x12", codecs=True),
    "folder tensor": Case(
        folder.run, f"{_CLASSES} --layout tensor --resize 16x16 --dtype float32", codecs=True
    ),
    "table of CSV": Case(table.run, "--table MADE/rows.csv --label_column name"),
    "table of CSV, stratified in groups": Case(
        table.run,
        "--table MADE/rows.csv --label_column name --split_by stratified --splits train=60,val=40"
        " --group_by MADE/groups.csv",
    ),
    "table of JSON Lines, sequences": Case(
        table.run, "--table MADE/rows.jsonl --sequence steps --key_column id"
    ),
    "table of Parquet, with images": Case(
        table.run,
        "--table MADE/rows.parquet --image_column image --image_root DATA/coco_val/images",
    ),
    "table of Parquet, images and boxes in cells": Case(
        table.run, "--table MADE/boxes.parquet --key_column id --num_shards 2"
    ),
    "sidecar of LabelMe": Case(sidecar.run, f"{_SIDE} --features boxes,polygons"),
    "sidecar of LabelMe, masks": Case(sidecar.run, f"{_SIDE} --features boxes,masks", codecs=True),
    "sidecar, fields": Case(sidecar.run, f"{_SIDE} --fields imagePath=bytes imageWidth=int64"),
    "voc": Case(voc.run, f"{_IMAGES} --annotations MADE/voc"),
    "yolo": Case(yolo.run, "--data MADE/yolo/data.yaml"),
    "openimages": Case(
        openimages.run, f"{_IMAGES} --boxes MADE/boxes.csv --classes MADE/classes.csv"
    ),
    "pairs": Case(pairs.run, f"{_PAIRS} --scale 4"),
    "pairs, tensors": Case(pairs.run, f"{_PAIRS} --tensors", codecs=True),
    "arrays of .npy": Case(arrays.run, "--arrays MADE/images.npy --label_array MADE/labels.npy"),
    "arrays of .npz, raw": Case(
        arrays.run, "--arrays MADE/all.npz --label_array labels --encoding raw"
    ),
    "webdataset, fields": Case(
        webdataset.run, "--shards MADE/tars/{0..1}.tar --fields txt=bytes,cls=int64"
    ),
    "odd images, header check": Case(table.run, _ODD),
    "odd images, decode check": Case(table.run, f"{_ODD} --check decode"),
    "odd images, as upright PNG": Case(
        table.run, f"{_ODD} --orientation upright --reencode png", codecs=True
    ),
}


def write_case(case: Case, made: Path, output: Path) -> dict[str, str]:
    """Write one data set; return its checksums and reject codes.

    Args:
        case: the data set.
        made: folder of `make_sources`.
        output: folder that does not exist yet.
    """
    ended = run_pipeline(case.run, *case.words(made), "--output", output, "--no_report")
    assert ended.code == 0, ended.err
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(output.glob("*"))
        if path.suffix in (".tfrec", ".array_record") or path.name == "manifest.json"
    }
    lines = (output / "rejected.jsonl").read_text().splitlines()
    rejected = [json.loads(line) for line in lines]
    return found | {line["file_name"]: line["code"] for line in rejected if line["file_name"]}


def make_sources(made: Path) -> None:
    """Write the sources that are made by code: LabelMe's files, tables and arrays."""
    spec = json.loads((DATA / "coco_train/annotations/instances.json").read_text())
    names = {category["id"]: category["name"] for category in spec["categories"]}
    (made / "labelme").mkdir()
    for image in spec["images"]:
        shapes = [
            {
                "label": names[annotation["category_id"]],
                "shape_type": "polygon",
                "points": np.asarray(annotation["segmentation"][0]).reshape(-1, 2).tolist(),
            }
            for annotation in spec["annotations"]
            if annotation["image_id"] == image["id"] and not annotation["iscrowd"]
        ]
        whole = {"imagePath": image["file_name"], "imageWidth": image["width"]}
        whole |= {"imageHeight": image["height"], "shapes": shapes}
        if shapes:
            path = (made / "labelme" / image["file_name"]).with_suffix(".json")
            path.write_text(json.dumps(whole))
    make_boxes(made)
    photos = sorted(path.name for path in (DATA / "coco_val/images").iterdir())
    rows = [
        {"id": 10 * i, "name": f"name {i % 3}", "value": i / 8, "steps": [[i], [i, i + 1]]}
        for i in range(40)
    ]
    lines = ["id,name,value", *(f"{row['id']},{row['name']},{row['value']}" for row in rows)]
    (made / "rows.csv").write_text("\n".join([*lines, ""]))
    groups = ["key,group", *(f"{i},{i % 3} {i // 9}" for i in range(30))]
    (made / "groups.csv").write_text("\n".join([*groups, ""]))
    (made / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with_images = [{"image": name, "score": place / 4} for place, name in enumerate(photos)]
    pq.write_table(pa.Table.from_pylist(with_images), made / "rows.parquet")
    (made / "tars").mkdir()
    for number in range(2):
        with tarfile.open(made / f"tars/{number}.tar", "w") as tar:
            for place, name in enumerate(photos[number::2]):
                data = (DATA / "coco_val/images" / name).read_bytes()
                texts = {"cls": b"%d" % place, "jpg": data, "txt": b"photo %d" % place}
                for extension, content in texts.items():
                    info = tarfile.TarInfo(f"{name.removesuffix('jpg')}{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    odd = sorted(path.name for path in (DATA / "odd").iterdir())
    (made / "odd.csv").write_text("\n".join(["image", *odd, ""]))
    images = np.arange(12 * 4 * 5 * 3, dtype=np.uint16).reshape(12, 4, 5, 3)
    labels = np.arange(12, dtype=np.int64) % 3
    np.save(made / "images.npy", images)
    np.save(made / "labels.npy", labels)
    np.savez_compressed(made / "all.npz", images=images.astype(np.float32), labels=labels)


def make_boxes(made: Path) -> None:
    """Write COCO's boxes in the formats of Pascal VOC, YOLO and Open Images."""
    spec = json.loads((DATA / "coco_val/annotations/instances.json").read_text())
    classes = {category["id"]: category["name"] for category in spec["categories"]}
    numbers = {category_id: number for number, category_id in enumerate(classes)}
    labels = made / "yolo/labels"
    (made / "voc").mkdir()
    labels.mkdir(parents=True)
    shutil.copytree(DATA / "coco_val/images", made / "yolo/images")
    names = json.dumps([*classes.values()])
    (made / "yolo/data.yaml").write_text(f"train: images\nnames: {names}\n")
    stored, names = [], [*classes.values()]
    rows = ["ImageID,LabelName,XMin,XMax,YMin,YMax,IsOccluded,IsGroupOf"]
    for image in spec["images"]:
        stem = image["file_name"].removesuffix(".jpg")
        size = image["width"], image["height"]
        objects, lines, cells = [], [], []
        for annotation in spec["annotations"]:
            if annotation["image_id"] != image["id"]:
                continue
            x, y, width, height = annotation["bbox"]
            name, crowd = classes[annotation["category_id"]], annotation["iscrowd"]
            corners = {"xmin": x + 1, "ymin": y + 1, "xmax": x + width, "ymax": y + height}
            box = "".join(f"<{key}>{value:.2f}</{key}>" for key, value in corners.items())
            truncated = f"<truncated>{crowd}</truncated>"
            objects.append(f"<object><name>{name}</name>{truncated}<bndbox>{box}</bndbox></object>")
            left, right, top, bottom = (
                *(x / size[0], (x + width) / size[0]),
                *(y / size[1], (y + height) / size[1]),
            )
            fractions = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
            lines.append(" ".join(map(str, (numbers[annotation["category_id"]], *fractions))))
            category = numbers[annotation["category_id"]]
            cells.append({"bbox": annotation["bbox"], "iscrowd": crowd, "category": category})
            rows.append(f"{stem},/m/{name},{left},{right},{top},{bottom},0,{crowd}")
        known = f"<size><width>{size[0]}</width><height>{size[1]}</height></size>"
        voc_file = f"<annotation>{known}{''.join(objects)}</annotation>"
        (made / f"voc/{stem}.xml").write_text(voc_file)
        (labels / f"{stem}.txt").write_text("\n".join([*lines, ""]))
        data = (DATA / "coco_val/images" / image["file_name"]).read_bytes()
        stored.append({"id": image["id"], "image": {"bytes": data}, "objects": cells})
    members = {"bbox": {}, "category": {"names": names, "_type": "ClassLabel"}}
    features = {"image": {"_type": "Image"}, "objects": {"feature": members, "_type": "List"}}
    known = json.dumps({"info": {"features": features}})
    stored_table = pa.Table.from_pylist(stored).replace_schema_metadata({"huggingface": known})
    pq.write_table(stored_table, made / "boxes.parquet")
    (made / "boxes.csv").write_text("\n".join([*rows, ""]))
    described = [f"/m/{name},{name}" for name in classes.values()]
    (made / "classes.csv").write_text("\n".join([*described, ""]))


@functools.cache
def golden() -> Golden:
    """Return the content of `tests/data/golden.json`."""
    held: Golden = json.loads(GOLDEN.read_text())
    return held


def codecs() -> dict[str, str]:
    """Return the versions that the bytes of some cases depend on."""
    return {"pillow": PIL.__version__, "zlib": zlib.ZLIB_RUNTIME_VERSION}


def main() -> int:
    """Compare every case, or record it."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record what is written now")
    write = parser.parse_args().write
    found: Golden = {"codecs": codecs()}
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        make_sources(made)
        for place, (name, case) in enumerate(CASES.items()):
            found[name] = write_case(case, made, Path(scratch, str(place)))
    if write:
        GOLDEN.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    different = [
        f"{name}: {file} was {was}, is {found[name].get(file)}"
        for name in found
        for file, was in golden().get(name, {"case": "absent"}).items()
        if found[name].get(file) != was
    ]
    print("\n".join(different) or f"{len(CASES)} data sets are as recorded")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
