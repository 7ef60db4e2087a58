import dataclasses
import json
import math
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from beam_tfrec.schemas.faults import RejectBudget, Rejected
from beam_tfrec.schemas.layouts.detection import DetectionLayout
from beam_tfrec.schemas.manifest import Annotations, JobPlan, Label, Manifest, PlannedSplit, to_json
from beam_tfrec.schemas.shards import ShardNames
from beam_tfrec.transforms.commit import find_complete
from beam_tfrec.transforms.publish_plan import log_and_check_budget, make_job_plan, publish_plan
from beam_tfrec.transforms.shard_table import ShardTable
from beam_tfrec.transforms.sources.read_samples import SplitTally
from beam_tfrec.transforms.storage import open_storage
from tests.coco_command import grow, shard_paths
from tests.invariants import files_of
from tests.small_runs import (
    SmallJob,
    SmallRun,
    SmallSet,
    build_run,
    build_shards,
    commit_run,
    make_small,
    touch,
)

LABELS = [Label(1, "person"), Label(2, "crowd of people")]
STEMS = ["train-00000-of-00002", "train-00001-of-00002"]


@pytest.fixture
def small(tmp_path: Path) -> SmallSet:
    """Six images in two shards."""
    return make_small(tmp_path, 6, num_shards=2)


def publish(plan: JobPlan, small: SmallSet) -> None:
    publish_plan(plan, open_storage(str(small.out)), ShardNames())


JOB = SmallJob(output="gs://b/out", layout=DetectionLayout(), plan_options={"seed": "0"})
NO_SHARDS = ShardTable({}, "0")


def summary(split: str = "train", images: int = 10) -> SplitTally:
    return SplitTally(split, "9:ff", images, 20, 0, 0, 0, LABELS[:1])


def reject(key: str = "1", code: str = "E-IMG-MISSING", **changes: Any) -> Rejected:
    whole = {"stage": "pin_blobs", "split": "train", "file_name": f"{key}.jpg", "detail": "gone"}
    return Rejected(code=code, key=key, **{**whole, **changes})


def test_a_split_without_images_needs_permission() -> None:
    files = [summary(), SplitTally("val", images=9)]  # photos without objects to write
    roots = {"train": "photos/a", "val": "photos/b", "val/annotations": "texts"}
    job = dataclasses.replace(JOB, roots=roots, files={"val": ["val.json"]})
    for each, places in ((JOB, "its sources"), (job, "photos/b, texts, val.json")):
        line = f"^E-SET-EMPTY split val: no images in {places}; check them, or give --allow_empty$"
        with pytest.raises(RuntimeError, match=line):
            make_job_plan(NO_SHARDS, files, [], each)
    plan = make_job_plan(NO_SHARDS, files, [], dataclasses.replace(JOB, allow_empty=True))
    assert plan.splits == {"train": PlannedSplit(0, 0), "val": PlannedSplit(0, 0)}


def test_rejects_over_budget_stop_before_the_first_shard_and_are_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rejects = [reject(str(number)) for number in range(10, 35)]
    with pytest.raises(RuntimeError, match=r"^E-BUDGET gs://b/out: 25 of 10 samples") as raised:
        make_job_plan(NO_SHARDS, [summary()], rejects[::-1], JOB)
    assert str(raised.value).endswith("; correct them")  # accepting them would leave an empty split
    assert caplog.messages == [
        *(f"E-IMG-MISSING {n}.jpg (key {n}): gone; rejected" for n in range(10, 20)),
        "and 15 more",
    ]


@pytest.mark.parametrize("budget", [{"count": -1}, {"percent": 100.5}, {"percent": math.nan}])
def test_a_bad_budget_is_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^a budget must be a count or 0% to 100%, got "):
        RejectBudget(**budget)


IN_VAL, OTHERWISE = reject("1", split="val"), reject("1", "E-IMG-TYPE")
GROWN = [msgspec.structs.replace(summary(images=1000), earlier_samples=980)]
TWO_SPLITS = [summary(), summary("val")]


@pytest.mark.parametrize(
    ("rejects", "files", "budget", "over"),
    [
        ([reject("1"), reject("2"), IN_VAL], TWO_SPLITS, RejectBudget(3), ""),
        ([reject("1"), reject("2"), IN_VAL], TWO_SPLITS, RejectBudget(2), "3 of 20"),
        ([reject("1"), OTHERWISE], [summary()], RejectBudget(1), "2 of 10"),  # parts of a sample
        # Only new samples count: with earlier ones, all new ones could in time be rejected.
        ([reject()], GROWN, RejectBudget(percent=5), ""),
        ([reject()], GROWN, RejectBudget(percent=4), "1 of 20"),
    ],
)
def test_every_reject_of_a_sample_counts(
    rejects: list[Rejected], files: list[SplitTally], budget: RejectBudget, over: str
) -> None:
    job = dataclasses.replace(JOB, budget=budget)
    line = f"^E-BUDGET gs://b/out: {over} samples rejected, at most {budget} allowed "
    with pytest.raises(RuntimeError, match=line) if over else nullcontext():
        log_and_check_budget(rejects, files, job)


@pytest.mark.parametrize(
    ("listed", "budget", "accepted"),
    [
        (1, None, 0),  # never all of them
        (101, None, 2),
        (4, RejectBudget(percent=49), 1),
        (4, RejectBudget(count=0), 0),
    ],
)
def test_dropped_annotations_have_a_budget(
    listed: int, budget: RejectBudget | None, accepted: int
) -> None:
    left_out = {
        "excluded_annotations": 2,
        "earlier_annotations": 3,
        "skipped_annotations": {"a": 4},
    }
    files = [SplitTally("train", "", annotations=listed + 9, **left_out)]
    job = dataclasses.replace(JOB, drop_budget=budget)
    dropped = [reject("1", "E-BOX-EMPTY", annotation_ids=(i,)) for i in range(accepted + 1)]
    of_another_split = [reject("1", "E-BOX-EMPTY", split="val", annotation_ids=(1,))]
    log_and_check_budget([*dropped[1:], *of_another_split], files, job)
    with pytest.raises(RuntimeError) as raised:
        log_and_check_budget(dropped, files, job)
    assert str(raised.value) == (
        f"E-BUDGET gs://b/out: {accepted + 1} of {listed} annotations of train dropped"
        f" ({accepted + 1} E-BOX-EMPTY), at most {accepted} allowed (first id 0 of '1.jpg', gone);"
        f" correct them, or accept with drop_budget=RejectBudget({accepted + 1})"
    )


PLAN = JobPlan(3, {"seed": "0", "order": ""}, LABELS, {"train": PlannedSplit(6, 2)}, "ff")
VAL_WAS_THERE = "splits val was {'samples': 1, 'shards': 1}, is not there now"
CHANGES = [
    ({"options": {"seed": "1", "order": ""}}, "options seed was '1', is '0' now"),
    ({"options": {"seed": "0"}}, "options order was not there, is '' now"),
    ({"splits": PLAN.splits | {"val": PlannedSplit(1, 1)}}, VAL_WAS_THERE),
    ({"labels": LABELS[:1]}, "the output was made with other labels"),
    ({"samples": "fe"}, "the output was made from other images or annotations"),
    # The message names the difference that the user can act on.
    ({"options": {"seed": "1", "order": "x"}, "samples": "fe"}, "options seed was '1', is '0' now"),
    ({"options": {"a": "1", "layout": "x"}}, "options layout was 'x', is not there now"),
    ({"options": {"record_format": "x"}}, "options record_format was 'x', is not there now"),
]


@pytest.mark.parametrize(("changes", "what"), CHANGES)
def test_another_plan_stops_the_run_and_names_the_difference(
    small: SmallSet, changes: dict[str, Any], what: str
) -> None:
    small.put(["_plan.json"], to_json(msgspec.structs.replace(PLAN, **changes)))
    before = files_of(small.out)
    with pytest.raises(RuntimeError) as raised:
        publish(PLAN, small)
    remedy = "give the same options and sources, another --output, or --overwrite"
    assert str(raised.value) == f"E-OUT-PLAN {small.out}: {what}; {remedy}"
    assert files_of(small.out) == before


def test_rejects_are_lines_in_order(small: SmallSet) -> None:
    small.image(4).write_bytes(b"<html>")
    small.image(1).unlink()
    spec = json.loads(small.annotations.read_text())
    spec["annotations"][0]["bbox"] = [64, 0, 5, 5]  # outside
    spec["annotations"][1]["bbox"] = [1, 1, 0.0, 5.0]
    small.annotations.write_text(json.dumps(spec))
    manifest = build_run(small.plan(budget=RejectBudget(2), drop_budget=RejectBudget(2)))
    lines = [json.loads(line) for line in (small.out / "rejected.jsonl").read_text().splitlines()]
    stem = next(line["shard"] for line in lines if line["key"] == "5")
    fields = ["code", "stage", "split", "key", "annotation_ids", "file_name", "detail", "shard"]
    assert [list(line) for line in lines] == [fields] * 4
    outside = "x 64.0 to 69.0, y 0.0 to 5.0 in 64 x 48"
    assert [tuple(line[field] for field in fields if field != "split") for line in lines] == [
        ("E-BOX-EMPTY", "read_coco", "1", [2], "a000.jpg", "width 0.0 and height 5.0", ""),
        ("E-BOX-OUTSIDE", "write_shards", "1", [1], "a000.jpg", outside, lines[1]["shard"]),
        ("E-IMG-MISSING", "pin_blobs", "2", [101, 102], "a001.jpg", "not in the listing", ""),
        ("E-IMG-TYPE", "write_shards", "5", [401, 402], "a004.jpg", "HTML", stem),
    ]
    split = manifest.splits["train"]
    assert (split.listed, split.rejected_before_planning, split.planned) == (6, 1, 5)
    assert (split.records, split.rejected_in_shards) == (4, 1)
    assert split.annotations == Annotations(
        listed=12, written=6, dropped={"E-BOX-EMPTY": 1, "E-BOX-OUTSIDE": 1}, lost=4, excluded=0
    )


def check_uncommitted(small: SmallSet, run: SmallRun, infos: list, fault: str) -> None:
    """Commit, which must fail and change nothing."""
    before = files_of(small.out)
    with pytest.raises(RuntimeError, match=re.escape(fault)):
        commit_run(run, infos)
    assert files_of(small.out) == before


LOST = reject("1", shard=STEMS[0], annotation_ids=(1,))
ONE_LOST = {"records": 2, "rejected": [LOST]}


@pytest.mark.parametrize(
    ("places", "of_shard", "of_file", "wrong"),
    [
        ([0], {}, {}, "planned shards of split train are 1 by its entries, 2"),
        ([0, 1, 0], {}, {}, "planned shards of split train are 3 by its entries, 2"),
        (
            [0, 1],
            {"records": 2},
            {},
            f"{STEMS[0]} has 2 records and 0 rejects for 3 planned samples",
        ),
        ([0, 1], {"planned": 4, "records": 4}, {}, "planned samples of split train are 7 "),
        ([0, 1], ONE_LOST, {}, "listed annotations of split train are 13 by its entries, 12"),
        ([0, 1], {}, {"excluded_samples": 1}, "listed samples of split train are 7 "),
        ([0, 1], {}, {"excluded_annotations": 2}, "listed annotations of split train are 14 "),
    ],
)
def test_a_wrong_sum_prevents_the_manifest(
    small: SmallSet, places: list[int], of_shard: dict, of_file: dict, wrong: str
) -> None:
    run = small.plan(budget=RejectBudget(10))
    first, second = build_shards(run)
    infos = [msgspec.structs.replace(first, **of_shard), second]
    run = dataclasses.replace(run, files=[msgspec.structs.replace(run.files[0], **of_file)])
    check_uncommitted(small, run, [infos[place] for place in places], wrong)


def add(path: Path) -> None:
    path.write_bytes(b"of another run")


OTHER_RECEIPT = "_receipts/train-00002-of-00003.json"


@pytest.mark.parametrize(
    ("name", "edit", "what"),
    [
        (f"{STEMS[0]}-3.tfrec", Path.unlink, "is missing"),
        (f"{STEMS[1]}-3.tfrec", grow, "has 37"),
        (f"_receipts/{STEMS[1]}.json", Path.unlink, "is missing"),
        (OTHER_RECEIPT, add, "does not belong to this plan"),
        (f"index/{STEMS[0]}-3.idx", Path.unlink, "is missing"),
        ("train-00000-of-00002-2.tfrec", add, "does not belong to this plan"),
        ("test-00000-of-00001.tfrec", add, "does not belong to this plan"),
    ],
)
def test_missing_or_foreign_files_prevent_the_manifest(
    small: SmallSet, name: str, edit: Callable[[Path], None], what: str
) -> None:
    run = small.plan()
    infos = build_shards(run)
    edit(small.out / name)
    check_uncommitted(small, run, infos, f"E-OUT-FOREIGN {small.out}: {name} {what}")


@pytest.mark.parametrize("name", ["rejected.jsonl", "features.json"])
def test_another_file_with_a_name_of_ours_is_a_conflict(small: SmallSet, name: str) -> None:
    run = small.plan()
    infos = build_shards(run)
    small.put([name])
    with pytest.raises(RuntimeError, match=rf"^E-OUT-CONFLICT {small.out}/{name}: has other cont"):
        commit_run(run, infos)
    assert (small.out / name).read_bytes() == b"of the user"


def test_data_sets_do_not_depend_on_paths_or_clocks(tmp_path: Path) -> None:
    here = make_small(tmp_path, 6, num_shards=2)
    here.image(2).write_bytes(b"<html>")
    (tmp_path / "far away").mkdir()
    there = SmallSet(*(tmp_path / "far away" / name for name in ("photos", "coco.json", "o")), 2)
    shutil.copytree(here.images, there.images)
    shutil.copy(here.annotations, there.annotations)
    for place, path in enumerate([*there.images.iterdir(), there.annotations]):
        touch(path, 1_500_000_000_000_000_000 + place)
    made = []
    for small in (here, there):
        build_run(small.plan(budget=RejectBudget(1)))
        made.append(files_of(small.out))
    # Pins are in the Parquet index, and in the name of the note on the sources.
    one, other = (
        {name: sha for name, sha in files.items() if not name.startswith("_sources/")}
        for files in made
    )
    pinned = {name for name in one if name.endswith(".parquet")}
    assert {name for name in one if one[name] != other.get(name)} <= pinned
    assert one.keys() == other.keys()
    assert "manifest.json" in one
    assert len([name for name in one if name.endswith((".tfrec", ".idx"))]) == 4


def look(small: SmallSet, *, trust_manifest: bool = False) -> Manifest | None:
    job = dataclasses.replace(small.plan().commit_job, trust_manifest=trust_manifest)
    return find_complete(open_storage(job.output), job)


@pytest.mark.parametrize(
    "edit",
    [
        lambda small: touch(small.image(0)),
        lambda small: shutil.copy(small.image(0), small.images / "spare.jpg"),
        lambda small: small.annotations.write_text(small.annotations.read_text() + " "),
    ],
)
def test_a_data_set_of_changed_sources_is_incomplete(
    small: SmallSet, edit: Callable[[SmallSet], object]
) -> None:
    run = small.plan()
    build_shards(run)
    assert look(small) is None
    manifest = build_run(run)
    assert look(small) == manifest
    edit(small)
    assert look(small) is None
    assert look(small, trust_manifest=True) == manifest


def test_sources_that_make_another_manifest_are_not_complete(small: SmallSet) -> None:
    run = small.plan()
    infos = build_shards(run)
    small.put(
        ["manifest.json"], to_json(msgspec.structs.replace(commit_run(run, infos), splits={}))
    )
    shutil.rmtree(small.out / "_sources")
    with pytest.raises(RuntimeError, match=r"^E-OUT-CONFLICT .*/manifest\.json: has other content"):
        commit_run(run, infos)
    assert look(small) is None


@pytest.mark.parametrize(
    "name", [f"{STEMS[1]}-3.tfrec", f"index/{STEMS[0]}-3.idx", f"_receipts/{STEMS[0]}.json"]
)
def test_a_data_set_with_a_missing_file_is_incomplete(small: SmallSet, name: str) -> None:
    manifest = build_run(small.plan())
    before = files_of(small.out)
    (small.out / name).unlink()
    assert look(small) is None
    assert look(small, trust_manifest=True) == manifest
    assert build_run(small.plan()) == manifest
    assert files_of(small.out) == before


def test_a_data_set_without_records_needs_permission(small: SmallSet) -> None:
    for image in small.images.iterdir():
        image.write_bytes(b"<html>")
    given = {"budget": RejectBudget(percent=100)}
    fault = r"^E-SET-EMPTY split train: none of 6 images is left \(6 rejected\); correct"
    with pytest.raises(RuntimeError, match=fault):
        build_run(small.plan(**given))
    assert not (small.out / "manifest.json").exists()
    assert build_run(small.plan(allow_empty=True, **given)).splits["train"].records == 0
    made = [(path.name, path.read_bytes()) for path in shard_paths(small.out)]
    assert made == [(f"{stem}-0.tfrec", b"") for stem in STEMS]
