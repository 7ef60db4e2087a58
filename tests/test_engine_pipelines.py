"""Every pipeline on Prism, whose workers get all that they hold as bytes: the files are the same.

Two splits each, so that contents are compared between them; `tests/test_engines.py` has COCO.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.array_runs import random_images
from tests.coco_command import (
    PROJECT,
    REPORTED,
    check_committed,
    digests,
    finish,
    start_command,
)
from tests.conftest import jpeg_bytes
from tests.side_folders import labelme, shape, sources, write_side_files
from tests.test_pairs import write_pairs

PRISM = PROJECT / ".tools" / "prism"
BY_HASH = ("--split_by", "hash", "--splits", "train=1,val=1", "--num_shards", "2")

pytestmark = pytest.mark.slow


def of_folder(folder: Path) -> list[object]:
    """Two classes, and one photo several times."""
    for number in range(12):
        path = folder / "images" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_bytes(color=number % 8))
    return ["--images", folder / "images"]


def of_table(folder: Path) -> list[object]:
    """Rows with an image, some of them the same, and a value that is missing."""
    images = folder / "images"
    images.mkdir()
    for number in range(8):
        (images / f"{number}.jpg").write_bytes(jpeg_bytes(color=number))
    rows = [{"file": f"{n % 8}.jpg", "kind": ("a", "b")[n % 2], "size": n / 4} for n in range(12)]
    del rows[3]["size"]
    table = folder / "rows.jsonl"
    table.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    paths = ["--table", table, "--image_column", "file", "--image_root", images]
    return [*paths, "--label_column", "kind"]


def of_pairs(folder: Path) -> list[object]:
    """Pairs, and an image without its partner."""
    low, high = write_pairs(folder, 12)
    (low / "0003.png").unlink()
    return ["--low", low, "--high", high, "--max_rejected", "1"]


def of_sidecar(folder: Path) -> list[object]:
    """LabelMe files with outlines, which are payloads, and one that is none."""
    files: dict[str, object] = {str(n): labelme(shape(), shape("dog")) for n in range(12)}
    written = write_side_files(folder, {**files, "3": b"{"})
    segmented = ("--features", "boxes,masks,polygons")
    return [*sources(written), *segmented, "--max_rejected", "1"]


def of_arrays(folder: Path) -> list[object]:
    """A compressed archive with labels; some items are the same."""
    images = random_images(12)
    images[6:9] = images[:3]
    np.savez_compressed(folder / "a.npz", x=images, y=np.arange(12) % 3)
    return ["--arrays", folder / "a.npz", "--label_array", "y"]


PIPELINES = {
    "folder": of_folder,
    "table": of_table,
    "pairs": of_pairs,
    "sidecar": of_sidecar,
    "arrays": of_arrays,
}
WITH_DUPLICATES = ("folder", "table", "arrays")


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_files_of_a_run_in_process_come_from_prism(pipeline: str, tmp_path: Path) -> None:
    if not PRISM.exists():
        pytest.skip("no .tools/prism; `make engines` builds it, with Go")
    given = [*PIPELINES[pipeline](tmp_path), *BY_HASH]
    here = finish(start_command(pipeline, *given, "--output", tmp_path / "here"))
    assert here.code == 0, here.err

    prism = ("--runner", "PrismRunner", "--prism_location", PRISM)
    elsewhere = (*given, "--output", tmp_path / "there", *REPORTED, *prism)
    there = finish(start_command(pipeline, *elsewhere), timeout_s=120)

    assert there.code == 0, there.err
    manifest = check_committed(tmp_path / "there")
    assert all(split["records"] for split in manifest["splits"].values())
    assert len(manifest["splits"]) == 2
    assert ("duplicates" in manifest) == (pipeline in WITH_DUPLICATES)
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
