"""`--plan` of every pipeline: what it tells is what the run then makes, and it writes nothing."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipelines import arrays, coco, folder, pairs, table
from schemas.run_plan import served_hosts
from tests.array_runs import npy_bytes, random_images
from tests.coco_command import MakeCoco, Sources
from tests.conftest import jpeg_bytes
from tests.faulty_sources import forbid_image_reads
from tests.pipeline_command import run_pipeline
from tests.plan_command import CONVERTED, plan_only, plan_then_run
from transforms import forecast


def flags_of(made: Sources) -> tuple[object, ...]:
    images, annotations = made
    return "--images", images, "--annotations", annotations


@pytest.mark.parametrize(
    ("records", "hosts"),
    [
        ([7] * 12, [1, 2, 3, 4, 6, 12]),
        ([8, 8, 7, 7], [1, 2, 4]),
        ([8, 7, 7, 7, 7, 7], [1, 2, 3, 6]),
        ([9, 9, 9, 2], [1]),  # filled one by one: the last shard is short
        ([5], [1]),
    ],
)
def test_hosts_that_get_alike(records: list[int], hosts: list[int]) -> None:
    assert served_hosts(records) == hosts


@pytest.fixture
def few_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ten records are tried, so that the size of most is estimated."""
    monkeypatch.setattr(forecast, "MAX_TRIED", 10)


def test_coco_in_several_splits(make_coco: MakeCoco, tmp_path: Path) -> None:
    train, val = make_coco(23), make_coco(7, name="val")
    plan, _ = plan_then_run(
        coco.run,
        tmp_path,
        *("--images", f"train={train[0]}", f"val={val[0]}"),
        *("--annotations", f"train={train[1]}", f"val={val[1]}"),
        *("--num_shards", "train=4", "val=3"),
    )
    told = plan["splits"]["train"]
    assert told["hosts"] == [1, 2, 4]  # of 6, 6, 6 and 5 records
    assert plan["splits"]["val"]["hosts"] == [1, 3]
    assert told["classes"] == {
        "number": 2,
        "samples": {"least": 23, "median": 23, "most": 23},
        "least_of": "crowd of people",
        "most_of": "person",
    }
    assert plan["sampled"] == {"records": 0, "rejected": {}}
    assert plan["read_files"] == 32
    photos = [p.stat().st_size for made in (train, val) for p in [*made[0].iterdir(), made[1]]]
    assert plan["read_bytes"] == sum(photos)


def test_no_image_is_read_where_files_pass_as_they_are(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_coco(4)
    forbid_image_reads(monkeypatch)
    ended, plan = plan_only(coco.run, tmp_path, *flags_of(made), "--output", tmp_path / "out")
    assert ended.code == 0, ended.err
    assert plan["sampled"]["records"] == 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--resize", "32"],
        ["--reencode", "png"],
        ["--orientation", "upright", "--color", "gray"],
    ],
    ids=lambda flags: flags[0],
)
def test_converted_images_are_tried(
    flags: list[str], make_coco: MakeCoco, tmp_path: Path, few_tried: None
) -> None:
    def vary(spec: dict) -> None:
        for place, image in enumerate(spec["images"]):
            image["width"] = 64 + 2 * place
            data = jpeg_bytes(image["width"], 48, color=place)
            (tmp_path / "train-images" / image["file_name"]).write_bytes(data)

    made = make_coco(60, edit=vary)
    arguments = (*flags_of(made), "--num_shards", 3, *flags)
    plan, _ = plan_then_run(coco.run, tmp_path, *arguments, within=CONVERTED)
    assert plan["sampled"] == {"records": 10, "rejected": {}}


def test_a_record_for_each_object(make_coco: MakeCoco, tmp_path: Path) -> None:
    made = make_coco(5, objects=3)
    plan, _ = plan_then_run(coco.run, tmp_path, *flags_of(made), "--layout", "keras")
    assert plan["splits"]["train"]["copies_per_image"] == 3.0
    assert plan["splits"]["train"]["listed"] == 15


def test_folders_as_plain_pixels(tmp_path: Path) -> None:
    for place in range(8):
        photo = tmp_path / "in" / "cat" / f"{place}.jpg"
        photo.parent.mkdir(parents=True, exist_ok=True)
        photo.write_bytes(jpeg_bytes(40 + place, 30, color=place))
    flags = ("--layout", "tensor", "--dtype", "uint8")
    plan, _ = plan_then_run(folder.run, tmp_path, "--images", tmp_path / "in", *flags)
    assert plan["sampled"]["records"] == 8


def test_rows_of_a_table(tmp_path: Path) -> None:
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "kind"])
        rows.writerows([n, "word " * (n % 90), ("cat", "dog")[n % 2]] for n in range(200))
        file.write("201,short\n")
    flags = ("--label_column", "kind", "--num_shards", 4, "--max_rejected", 1)
    plan, _ = plan_then_run(table.run, tmp_path, "--table", tmp_path / "rows.csv", *flags)
    told = plan["splits"]["train"]
    assert told["classes"]["samples"] == {"least": 100, "median": 100, "most": 100}
    assert told["rejected"]["E-ROW-CSV"]["count"] == 1
    assert plan["read_bytes"] == (tmp_path / "rows.csv").stat().st_size


def test_pairs(tmp_path: Path) -> None:
    for side, scale in (("lr", 1), ("hr", 4)):
        (tmp_path / side).mkdir()
        for place in range(5):
            data = jpeg_bytes(16 * scale, 12 * scale, color=place)
            (tmp_path / side / f"{place}.jpg").write_bytes(data)
    flags = ("--low", tmp_path / "lr", "--high", tmp_path / "hr", "--scale", 4)
    plan, _ = plan_then_run(pairs.run, tmp_path, *flags, "--num_shards", 2)
    assert plan["read_files"] == 10


def test_items_of_arrays(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(npy_bytes(random_images(50)))
    (tmp_path / "y.npy").write_bytes(npy_bytes(np.arange(50) % 5))
    flags = ("--arrays", tmp_path / "x.npy", "--label_array", "y", "--num_shards", 3)
    plan, _ = plan_then_run(arrays.run, tmp_path, *flags)
    assert plan["splits"]["train"]["classes"]["samples"] == {
        "least": 10,
        "median": 10,
        "most": 10,
    }


def test_a_disk_without_room_is_told_of(tmp_path: Path) -> None:
    """The array has holes, so that there is room for itself."""
    side = 2**15
    items = 2 * shutil.disk_usage(tmp_path).free // side**2 + 1
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({items}, {side}, {side}), }}"
    head = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"
    with open(tmp_path / "vast.npy", "wb") as file:
        file.write(head)
        file.truncate(len(head) + items * side**2)
    flags = ("--arrays", tmp_path / "vast.npy", "--output", tmp_path / "out", "--num_shards", 9)
    ended = run_pipeline(arrays.run, *flags, "--plan", "json")
    assert ended.code == 0, ended.err
    (note,) = json.loads(ended.out)["notes"]
    assert note.startswith(f"{tmp_path / 'out'} has room for ")
    assert note.endswith("the run would end with E-IO-NOSPACE")
    assert [path.name for path in tmp_path.iterdir()] == ["vast.npy"]
