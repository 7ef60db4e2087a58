"""COCO to records: a moved and shuffled copy gives the same bytes; names are taken literally."""

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.coco_command import (
    DATA,
    PROJECT,
    MakeCoco,
    check_committed,
    committed,
    cut_off,
    digests,
    examples,
    rejected_of,
    run_coco,
    value,
)
from tests.conftest import coco_dict, jpeg_bytes

SPLITS = ("train", "val")


def write_splits(folder: Path) -> None:
    """Write two splits with something to repair, drop and reject."""
    for split, num_images in (("train", 24), ("val", 9)):
        spec = coco_dict(num_images)
        (folder / split).mkdir(parents=True)
        for place, image in enumerate(spec["images"]):
            data = jpeg_bytes(color=place)
            if split == "train" and place == 3:
                data = data[:-20]
            if split == "train" and place == 7:
                data = b""
            (folder / split / image["file_name"]).write_bytes(data)
        spec["annotations"][4]["bbox"] = [60.0, 40.0, 9.0, 9.0]
        spec["annotations"][5]["bbox"] = [60.0, 40.0, 0.0, 9.0]
        spec["annotations"][8]["image_id"] = 999
        spec["annotations"][11]["id"] = spec["annotations"][10]["id"]
        (folder / f"{split}.json").write_text(json.dumps(spec))


def converted(folder: Path, out: Path) -> dict[str, str]:
    """Convert both splits, and return the SHA-256 of the files that every run must write."""
    run = run_coco(
        *("--images", *(f"{split}={folder / split}" for split in SPLITS)),
        *("--annotations", *(f"{split}={folder / split}.json" for split in SPLITS)),
        *("--output", out, "--num_shards", "train=5", "val=2"),
        *("--orphans", "drop", "--max_rejected", "2", "--max_dropped", "2"),
    )
    assert run.code == 0, run.err
    return digests(out, *DATA)


def test_same_bytes_from_a_shuffled_copy_elsewhere(tmp_path: Path) -> None:
    """The copy is written in another order, so it is listed in another; its mtimes differ."""
    given, copy = tmp_path / "given", tmp_path / "a copy, elsewhere"
    write_splits(given)
    for split in SPLITS:
        (copy / split).mkdir(parents=True)
        for number, path in enumerate(sorted((given / split).iterdir(), reverse=True)):
            shutil.copyfile(path, copy / split / path.name)
            os.utime(copy / split / path.name, (10**9, 10**9 + number))
        spec = json.loads((given / f"{split}.json").read_bytes())
        for section in ("images", "annotations", "categories"):
            random.Random(0).shuffle(spec[section])
        (copy / f"{split}.json").write_text(json.dumps(spec))
    found = converted(given, tmp_path / "out")
    assert converted(copy, tmp_path / "copied") == found
    assert len([name for name in found if name.endswith(".tfrec")]) == 7
    check_committed(tmp_path / "out")
    codes = Counter(line["code"] for line in rejected_of(tmp_path / "out"))
    dropped = {"E-ANN-ORPHAN": 2, "E-BOX-EMPTY": 2}
    assert codes == {"E-IMG-TRUNCATED": 1, "E-IMG-EMPTY": 1, **dropped}


NAMES = [
    *("with space.jpg", " lead.jpg", "trail .jpg", "caf\u00e9.jpg", "\U0001f600.jpg"),
    *("new\nline.jpg", "tab\t.jpg", "\u202egpj.jpg", "a[1].jpg", "*.jpg", "q?.jpg", "{x}.jpg"),
    *("-dash.jpg", "%20.jpg", "a&b;$(c).jpg", "con'q\"uote.jpg", "back\\slash.jpg", ".hidden.jpg"),
    *("sub/dir/x.jpg", "sub/x.jpg", "~/x.jpg", "a=b.jpg", "no extension", "x" * 251 + ".jpg"),
]


def test_file_names_are_taken_literally(make_coco: MakeCoco, tmp_path: Path) -> None:
    """Globs, line breaks, dashes and leading dots have no special meaning."""

    def rename(spec: dict) -> None:
        for image, name in zip(spec["images"], NAMES, strict=True):
            path = tmp_path / "train-images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "train-images" / image["file_name"]).rename(path)
            image["file_name"] = name

    sources, out = make_coco(len(NAMES), edit=rename), tmp_path / "out"
    cut_off(sources[0] / "new\nline.jpg")
    committed(sources, out, "--max_rejected", 1)
    expected = {name: (sources[0] / name).read_bytes() for name in NAMES if "\n" not in name}
    found = {
        value(example, "image/filename")[0].decode(): value(example, "image/encoded")[0]
        for example in examples(out)
    }
    assert found == expected
    assert [line["file_name"] for line in rejected_of(out)] == ["new\nline.jpg"]


@pytest.mark.thorough
def test_a_missing_panoptic_image_rejects_its_sample(tmp_path: Path) -> None:
    data = PROJECT / "tests/data/coco_train"
    pngs = shutil.copytree(data / "annotations/panoptic", tmp_path / "pngs")
    (pngs / "000000000030.png").unlink()
    sources = ("--images", data / "images", "--annotations", data / "annotations/panoptic.json")
    given = (*sources, "--panoptic_images", pngs, "--max_rejected")
    run = run_coco(*given, 1, "--output", tmp_path / "out")
    assert run.code == 0, run.err
    (reject,) = rejected_of(tmp_path / "out")
    assert (reject["code"], reject["file_name"]) == ("E-IMG-MISSING", "000000000030.png")
    for path in pngs.iterdir():
        path.rename(path.with_suffix(".gone"))
    run = run_coco(*given, 1, "--output", tmp_path / "none")
    assert run.ended == (3, "E-SET-MISSING")
    assert "images of train/panoptic: " in run.fault and "--panoptic_images" in run.fault
