"""`--plan` predicts what the run writes, and writes nothing itself."""

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.pipelines import arrays, coco, table
from beam_tfrec.transforms import forecast
from tests.coco_command import (
    MakeCoco,
    Run,
    Sources,
    check_committed,
    command,
    committed,
    run_coco,
    run_pipeline,
    shard_paths,
    snapshot,
)
from tests.conftest import jpeg_bytes
from tests.gcs_stand_in import SOURCES, GcsStandIn, put_sources

pytestmark = pytest.mark.thorough

Command = Callable[[Sequence[str]], None]
"""A pipeline's `run`."""
Prepare = Callable[[Path, Path, Path], None]
PASSED_THROUGH = 0.1  # photos and items are tiny: a few bytes a record matter
CONVERTED = 0.2


def plan_only(run: Command, folder: Path, *arguments: object) -> tuple[Run, dict[str, Any]]:
    """Run a command with `--plan`, which must not change the folder; return run and plan.

    The plan is empty if the command printed none.
    """
    before = snapshot(folder)
    ended = run_pipeline(run, *arguments, "--plan", "json")
    assert snapshot(folder) == before
    return ended, json.loads(ended.out) if ended.out.startswith("{") else {}


def plan_then_run(
    run: Command, folder: Path, *arguments: object, within: float = PASSED_THROUGH
) -> dict[str, Any]:
    """Plan and run a command to `folder/out`; shard sizes may be off by the share `within`."""
    asked = (*arguments, "--output", folder / "out")
    ended, plan = plan_only(run, folder, *asked)
    assert ended.code == 0, ended.err
    ended = run_pipeline(run, *asked)
    assert ended.code == 0, ended.err
    manifest = check_committed(folder / "out")
    files = [path.name for path in (folder / "out").rglob("*") if path.is_file()]
    assert plan["written_files"] == len({*files} - {"duplicates.jsonl"})  # needs the contents
    assert sorted(plan["splits"]) == sorted(manifest["splits"])
    for name, made in manifest["splits"].items():
        expected = plan["splits"][name]
        shards = [shard for shard in manifest["shards"] if shard["split"] == name]
        assert (expected["listed"], expected["planned"]) == (made["listed"], made["planned"])
        assert [records for records, _ in expected["shards"]] == [s["planned"] for s in shards]
        for (_, size), shard in zip(expected["shards"], shards, strict=True):
            assert size == pytest.approx(shard["bytes"], rel=within)
        early = made["rejected_before_planning"]
        assert sum(known["count"] for known in expected["rejected"].values()) == early
        left_out = made["excluded"] + made.get("earlier", 0) + sum(made.get("skipped", {}).values())
        assert sum(expected["left_out"].values()) == left_out
    return plan


def test_an_array_record_file_has_one_index(make_coco: MakeCoco, tmp_path: Path) -> None:
    images, annotations = make_coco(4)
    flags = ("--images", images, "--annotations", annotations, "--record_format", "array_record")
    ended, plan = plan_only(coco.run, tmp_path, *flags, "--output", tmp_path / "out")
    run_pipeline(coco.run, *flags, "--output", tmp_path / "out")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert (ended.code, plan["written_files"]) == (0, len(files))


def test_coco_in_several_splits(make_coco: MakeCoco, tmp_path: Path) -> None:
    train, val = make_coco(23), make_coco(7, name="val")
    plan = plan_then_run(
        coco.run,
        tmp_path,
        *("--images", f"train={train[0]}", f"val={val[0]}"),
        *("--annotations", f"train={train[1]}", f"val={val[1]}"),
        *("--num_shards", "train=4", "val=3"),
    )
    assert plan["splits"]["train"]["hosts"] == [1, 2, 4]  # of 6, 6, 6 and 5 records
    assert plan["splits"]["val"]["hosts"] == [1, 3]
    assert plan["sampled"] == {"records": 0, "rejected": {}}
    assert plan["read_files"] == 32
    photos = [p.stat().st_size for made in (train, val) for p in [*made[0].iterdir(), made[1]]]
    assert plan["read_bytes"] == sum(photos)


def test_some_images_are_converted_for_the_plan(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten are converted; the sizes of the others are estimated."""
    monkeypatch.setattr(forecast, "MAX_TRIED", 10)

    def vary(spec: dict) -> None:
        for place, image in enumerate(spec["images"]):
            image["width"] = 64 + 2 * place
            data = jpeg_bytes(image["width"], 48, color=place)
            (tmp_path / "train-images" / image["file_name"]).write_bytes(data)

    made = make_coco(60, edit=vary)
    flags = ("--images", made[0], "--annotations", made[1], "--num_shards", 3, "--resize", "32")
    plan = plan_then_run(coco.run, tmp_path, *flags, within=CONVERTED)
    assert plan["sampled"] == {"records": 10, "rejected": {}}


def test_rows_of_a_table(tmp_path: Path) -> None:
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "kind"])
        rows.writerows([n, "word " * (n % 90), ("cat", "dog")[n % 2]] for n in range(200))
        file.write("201,short\n")
    flags = ("--label_column", "kind", "--num_shards", 4, "--max_rejected", 1)
    plan = plan_then_run(table.run, tmp_path, "--table", tmp_path / "rows.csv", *flags)
    assert plan["splits"]["train"]["rejected"]["E-ROW-CSV"]["count"] == 1
    assert plan["read_bytes"] == (tmp_path / "rows.csv").stat().st_size


def test_a_disk_without_room_is_noted(tmp_path: Path) -> None:
    """The array is a sparse file, which takes no room itself."""
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


def planned(made: Sources, out: Path, *flags: object) -> dict:
    """Return the plan of a run that is not refused."""
    ended, plan = plan_only(coco.run, out.parent, *command(made, out, *flags))
    assert ended.code == 0, ended.err
    return plan


def test_plan_as_text(make_coco: MakeCoco, tmp_path: Path) -> None:
    made, out = make_coco(6, objects=3), tmp_path / "out"
    extra = made[0] / "z.jpg"
    extra.write_bytes(b"of no sample")
    run = run_coco(*command(made, out, "--plan", "--num_shards", 2, "--layout", "keras"))
    assert run.code == 0, run.err
    assert not out.exists()
    lines = run.out.splitlines()
    assert lines[0] == f"plan of {out}: nothing of a data set is there"
    assert lines[1].startswith("  train: 18 of 18 objects in 2 shards, about ")
    assert lines[2].startswith("    a shard: 9 to 9 records; ")
    assert lines[3:5] == [
        "    numbers of hosts with equal shares of files[h::H]: 1, 2",
        "    6 images: a photo is stored once for each object",
    ]
    assert lines[5] == "  sizes: from the listed sizes of files; no image was read"
    assert lines[6].startswith("  reads 19 files, ")
    assert lines[7:] == [
        "  note: no record will hold 1 file of root train, such as z.jpg",
        "  nothing was written",
    ]


def test_a_plan_shows_the_state_of_the_output(make_coco: MakeCoco, tmp_path: Path) -> None:
    made, out = make_coco(9), tmp_path / "out"
    assert planned(made, out, "--num_shards", 3)["state"] == "free"
    committed(made, out, "--num_shards", 3)
    complete = planned(made, out, "--num_shards", 3)
    assert complete["state"] == "complete"
    (out / "manifest.json").unlink()
    shard_paths(out)[1].unlink()
    begun = planned(made, out, "--num_shards", 3)
    assert (begun["state"], begun["shards_there"]) == ("ours", 2)
    run = run_coco(*command(made, out, "--num_shards", 3, "--plan"))
    assert "begun by the same plan, the run goes on: 2 of 3 shards finished" in run.out
    assert planned(made, out, "--num_shards", 2, "--overwrite")["state"] == "overwritten"


def cut_annotations(images: Path, annotations: Path, out: Path) -> None:
    annotations.write_text(annotations.read_text()[:-30])


def lose_photos(images: Path, annotations: Path, out: Path) -> None:
    for photo in sorted(images.iterdir())[:4]:
        photo.unlink()


def put_shard(images: Path, annotations: Path, out: Path) -> None:
    out.mkdir(parents=True)
    (out / "val-00007-of-00008.tfrec").write_text("mine")


def put_file(images: Path, annotations: Path, out: Path) -> None:
    out.parent.write_text("mine")


def complete(images: Path, annotations: Path, out: Path) -> None:
    committed((images, annotations), out, "--num_shards", 3)


def begin(images: Path, annotations: Path, out: Path) -> None:
    complete(images, annotations, out)
    (out / "manifest.json").unlink()


# What is done first; flags, exit code, fault, and whether there is a plan.
ENDS: list[tuple[Prepare | None, list[object], int, str, bool]] = [
    (cut_annotations, [], 3, "E-ANN-JSON", False),
    (lose_photos, [], 3, "E-SET-MISSING", False),
    (None, ["--num_shards", 7], 2, "E-ARG", False),
    (None, ["--licenses", 9], 3, "E-SET-EMPTY", True),
    (put_file, [], 6, "E-IO-READONLY", False),
    (complete, ["--num_shards", 2], 5, "E-OUT-PLAN", False),  # the manifest alone shows it
    (begin, ["--num_shards", 2], 5, "E-OUT-PLAN", True),
    (put_shard, [], 5, "E-OUT-FOREIGN", True),
    (put_shard, ["--overwrite"], 5, "E-OUT-FOREIGN", True),
]


@pytest.mark.parametrize(("prepare", "flags", "code", "fault", "has_plan"), ENDS)
def test_a_plan_ends_as_its_run_does(
    prepare: Prepare | None,
    flags: list[object],
    code: int,
    fault: str,
    has_plan: bool,
    make_coco: MakeCoco,
    tmp_path: Path,
) -> None:
    made, out = make_coco(6), tmp_path / "there" / "out"
    if prepare is not None:
        prepare(*made, out)
    ended, plan = plan_only(coco.run, tmp_path, *command(made, out, *flags))
    assert ended.ended == (code, fault)
    assert plan.get("refused") == (ended.fault if has_plan else None)
    assert plan.get("state") == ("refused" if has_plan else None)
    run = run_coco(*command(made, out, *flags))
    assert (run.code, run.fault) == (ended.code, ended.fault)


def test_rejects_over_budget_are_shown_with_the_plan(make_coco: MakeCoco, tmp_path: Path) -> None:
    def spoil(spec: dict) -> None:
        spec["annotations"][0]["bbox"] = [0, 0, 0, 9]

    made, out = make_coco(6, edit=spoil), tmp_path / "out"
    (made[0] / "a001.jpg").unlink()
    (made[0] / "a003.jpg").write_bytes(b"")
    run = run_coco(*command(made, out, "--plan"))
    assert (run.code, run.err.splitlines()[-1].split()[0]) == (4, "E-BUDGET")
    assert f"plan of {out}: refused, see the last line" in run.out
    assert "train: 4 of 6 images in 1 shard" in run.out
    known = (
        "    rejected already, images: 1 E-IMG-MISSING; the first: E-IMG-MISSING a001.jpg (key 2):"
    )
    assert known in run.out
    assert "1 E-IMG-EMPTY; the first: E-IMG-EMPTY a003.jpg (key 4): 0 bytes" in run.out
    assert "width 0 and height 9; dropped" in run.out


def test_jobs_of_dataflow_are_planned_in_this_process(
    stand_in: GcsStandIn, make_coco: MakeCoco
) -> None:
    put_sources(stand_in, make_coco(5))
    stand_in.forget_requests()
    job = (
        *("--runner", "DataflowRunner", "--project", "my-project", "--region", "us-central1"),
        *("--temp_location", "gs://staging/temp", "--sdk_container_image", "example.com/tfrec:1"),
        *("--dataflow_endpoint", "http://localhost:1", "--no_auth", "--max_num_workers", 3),
    )
    run = run_coco(*SOURCES, "--output", "gs://out/c", "--max_rejected", 1, *job, "--plan")
    assert run.code == 0, run.err
    assert {request.method for request in stand_in.requests} == {"GET"}
    assert stand_in.objects("out") == {}
    assert "note: planned in this process; the run will use Data" in run.out
    flags = ("--output", "gs://out/c", *job)
    refused = run_coco(*SOURCES, *flags, "--plan", "--dry_run=True")
    assert refused.ended == (2, "E-ARG")
    assert "plan must come without dry_run" in refused.fault
