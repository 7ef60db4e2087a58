import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.faults import RejectBudget, Rejected
from schemas.layouts.detection import DetectionLayout
from schemas.manifest import (
    Annotations,
    JobPlan,
    Label,
    Manifest,
    PlannedSplit,
    to_json,
)
from schemas.shards import ShardNames
from tests.small_runs import (
    SmallJob,
    SmallRun,
    build_run,
    build_shards,
    commit_run,
    contents,
    plan_run,
    touch,
    write_set,
)
from transforms.commit import find_complete
from transforms.earlier import EarlierSet, EarlierSets
from transforms.publish_plan import (
    check_budget,
    check_drops,
    make_job_plan,
    publish_plan,
)
from transforms.shard_table import ShardTable
from transforms.sources.read_samples import SplitSource
from transforms.storage import Storage, open_storage

LABELS = [Label(1, "person"), Label(2, "crowd of people")]
STEMS = ["train-00000-of-00002", "train-00001-of-00002"]


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    """Six images `a000.jpg` … `a005.jpg` with two objects each."""
    return write_set(tmp_path / "data", 6)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def output(out: Path) -> Storage:
    return open_storage(str(out))


@pytest.fixture
def run(data: tuple[Path, Path], out: Path) -> SmallRun:
    """The run that makes two shards of the six images."""
    return plan_run(*data, out)


def with_budget(run: SmallRun, budget: RejectBudget, drops: RejectBudget | None = None) -> SmallRun:
    job = dataclasses.replace(run.commit_job, budget=budget, drop_budget=drops)
    return dataclasses.replace(run, commit_job=job)


def put(folder: Path, names: list[str], data: bytes = b"of the user") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


# --- planning ---

JOB = SmallJob(
    output="gs://b/out",
    layout=DetectionLayout(),
    plan_options={"seed": "0"},
)


def summary(split: str = "train", images: int = 10) -> SplitSource:
    return SplitSource(split, "9:ff", images, 20, 0, 0, 0, LABELS[:1])


def reject(key: str = "1", code: str = "E-IMG-MISSING", **changes: Any) -> Rejected:
    whole = {"stage": "pin_blobs", "split": "train", "file_name": f"{key}.jpg", "detail": "gone"}
    return Rejected(code=code, key=key, **{**whole, **changes})


def test_a_split_without_images_needs_permission() -> None:
    files = [summary(), summary("val", images=0)]

    with pytest.raises(RuntimeError) as raised:
        make_job_plan(ShardTable({}, "0"), files, [], JOB)
    assert str(raised.value) == (
        "E-SET-EMPTY split val: no images in its sources; check them, or give --allow_empty"
    )
    allowed = dataclasses.replace(JOB, allow_empty=True)
    plan = make_job_plan(ShardTable({}, "0"), files, [], allowed)
    assert plan.splits == {"train": PlannedSplit(0, 0), "val": PlannedSplit(0, 0)}


def test_rejects_over_budget_stop_before_the_first_shard_and_are_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rejects = [reject(str(number)) for number in range(10, 35)]

    with pytest.raises(RuntimeError, match=r"^E-BUDGET gs://b/out: 25 of 10 samples rejected"):
        make_job_plan(ShardTable({}, "0"), [summary()], rejects[::-1], JOB)

    assert [record.getMessage() for record in caplog.records] == [
        f"E-IMG-MISSING {n}.jpg (key {n}): gone; rejected" for n in range(10, 20)
    ]


INHERITED = (Label(1, "person"), Label(7, "kite"))
GROWING = dataclasses.replace(
    JOB, earlier=EarlierSets((EarlierSet("ff", "gs://b/first"),), INHERITED)
)


@pytest.mark.parametrize(("budget", "code"), [("9%", "E-BUDGET"), ("10%", ""), ("1", "")])
def test_the_budget_counts_new_samples_only(budget: str, code: str) -> None:
    """Else a percentage would allow more each day, and in the end all that is new."""
    files = [msgspec.structs.replace(summary(images=1000), earlier_images=990)]
    share = float(budget[:-1]) if budget.endswith("%") else None
    job = dataclasses.replace(GROWING, budget=RejectBudget(1, share))

    if not code:
        check_budget([reject()], files, job)
        return
    with pytest.raises(RuntimeError, match=rf"^{code} gs://b/out: 1 of 10 samples rejected"):
        check_budget([reject()], files, job)


# --- the budget ---


@pytest.mark.parametrize(
    ("budget", "listed", "allowed"),
    [
        (RejectBudget(), 1000, 0),
        (RejectBudget(5), 3, 5),
        (RejectBudget(percent=1), 199, 1),  # rounded down
        (RejectBudget(percent=0.5), 1000, 5),
        (RejectBudget(count=5, percent=0), 1000, 0),  # the percentage, where there is one
    ],
)
def test_a_budget_is_a_count_or_a_share(budget: RejectBudget, listed: int, allowed: int) -> None:
    assert budget.allowed(listed) == allowed


@pytest.mark.parametrize(
    ("budget", "given"),
    [
        ({"count": -1}, "-1"),
        ({"percent": 100.5}, "100.5%"),
        ({"percent": float("nan")}, "nan%"),
    ],
)
def test_a_bad_budget_is_refused(budget: dict[str, Any], given: str) -> None:
    with pytest.raises(ValueError) as raised:
        RejectBudget(**budget)

    assert str(raised.value) == f"a budget must be a count or 0% to 100%, got {given}: correct it"


@pytest.mark.parametrize(
    ("rejects", "count"),
    [
        ([reject("1"), reject("2"), reject("1", split="val")], 3),
        ([reject("1"), reject("1", "E-IMG-TYPE")], 1),  # one sample, whatever is said of it
        ([reject("1", "E-BOX-EMPTY", annotation_ids=(1,))], 0),  # an annotation is no sample
    ],
)
def test_samples_are_counted_once_and_annotations_never(
    rejects: list[Rejected], count: int
) -> None:
    files = [summary(images=10), summary("val", images=10)]
    check_budget(rejects, files, dataclasses.replace(JOB, budget=RejectBudget(count)))
    if count:
        too_small = dataclasses.replace(JOB, budget=RejectBudget(count - 1))
        with pytest.raises(RuntimeError, match=rf"^E-BUDGET gs://b/out: {count} of 20 samples"):
            check_budget(rejects, files, too_small)


def test_over_budget_the_message_has_the_command_that_accepts() -> None:
    job = dataclasses.replace(JOB, budget=RejectBudget(percent=1), command="run")

    with pytest.raises(RuntimeError) as raised:
        check_budget([reject("2"), reject("1", "E-IMG-EMPTY", detail="0 bytes")], [summary()], job)

    assert str(raised.value) == (
        "E-BUDGET gs://b/out: 2 of 10 samples rejected, --max_rejected is 1%"
        " (first '1.jpg', 0 bytes); mend them, or accept with run --max_rejected 2"
    )


@pytest.mark.parametrize(
    ("listed", "budget", "accepted"),
    [
        (1, None, 0),  # never all of them
        (101, None, 2),
        (4, RejectBudget(percent=49), 1),
        (4, RejectBudget(count=0), 0),
    ],
)
def test_the_budget_of_dropped_annotations(
    listed: int, budget: RejectBudget | None, accepted: int
) -> None:
    left_out = {"excluded_annotations": 2, "earlier_annotations": 3}
    file = SplitSource(
        "train", "", annotations=listed + 9, skipped_annotations={"a": 4}, **left_out
    )
    job = dataclasses.replace(JOB, drop_budget=budget)
    dropped = [reject("1", "E-BOX-EMPTY", annotation_ids=(i,)) for i in range(accepted + 1)]
    check_drops(dropped[1:], [file], job)
    of_another_split = [reject("1", "E-BOX-EMPTY", split="val", annotation_ids=(1,))]
    check_drops([*dropped[1:], *of_another_split], [file], job)
    with pytest.raises(RuntimeError) as raised:
        check_drops(dropped, [file], job)

    assert str(raised.value) == (
        f"E-BUDGET gs://b/out: {accepted + 1} of {listed} annotations of train dropped"
        f" ({accepted + 1} E-BOX-EMPTY), {accepted} accepted (first id 0 of '1.jpg', gone);"
        f" mend them, or accept with --max_dropped {accepted + 1}"
    )


# --- publishing the plan ---


def test_a_plan_is_published_and_found_again(run: SmallRun, out: Path, output: Storage) -> None:
    publish_plan(run.plan, output, run.job.names)
    before = contents(out)
    publish_plan(run.plan, output, run.job.names)

    assert (out / "_plan.json").read_bytes() == to_json(run.plan)
    assert contents(out) == before
    assert list(before) == ["_plan.json"]


PLAN = JobPlan(3, {"seed": "0", "order": ""}, LABELS, {"train": PlannedSplit(6, 2)}, "ff")
CHANGES = [
    ({"format_version": 4}, "the output was made with other format_version"),
    ({"options": {"seed": "1", "order": ""}}, "options seed was '1', is '0' now"),
    ({"options": {"seed": "0"}}, "options order was not there, is '' now"),
    (
        {"splits": {"train": PlannedSplit(6, 2), "val": PlannedSplit(1, 1)}},
        "splits val was {'samples': 1, 'shards': 1}, is not there now",
    ),
    ({"labels": LABELS[:1]}, "the output was made with other labels"),
    ({"samples": "fe"}, "the output was made from other images or annotations"),
    # The first difference is what the user can act on.
    ({"options": {"seed": "1", "order": "x"}, "samples": "fe"}, "options seed was '1', is '0' now"),
]


@pytest.mark.parametrize(("changes", "what"), CHANGES)
def test_another_plan_stops_the_run_and_names_the_difference(
    out: Path, output: Storage, changes: dict[str, Any], what: str
) -> None:
    put(out, ["_plan.json"], to_json(msgspec.structs.replace(PLAN, **changes)))
    before = contents(out)

    with pytest.raises(RuntimeError) as raised:
        publish_plan(PLAN, output, ShardNames())

    remedy = "give the same options and sources, another --output, or --overwrite"
    assert str(raised.value) == f"E-OUT-PLAN {out}: {what}; {remedy}"
    assert contents(out) == before


NESTED = b'{"a": ' + b"[" * 10_000  # deeper than a parser follows


NOT_UTF_8 = to_json(PLAN).replace(b'"seed"', b'"see\xff"')


@pytest.mark.parametrize("data", [b"", b"{}", pytest.param(NESTED, id="nested"), NOT_UTF_8])
def test_a_file_that_is_not_a_plan_is_foreign(out: Path, output: Storage, data: bytes) -> None:
    put(out, ["_plan.json"], data)

    with pytest.raises(RuntimeError) as raised:
        publish_plan(PLAN, output, ShardNames())

    what = "_plan.json is no plan of beam-tfrec"
    remedy = "give another --output, move it away, or run with --overwrite if an ended run left it"
    assert str(raised.value) == f"E-OUT-FOREIGN {out}: {what}; {remedy}"
    assert (out / "_plan.json").read_bytes() == data


# --- committing ---


def test_the_manifest_is_the_last_of_the_files(
    run: SmallRun, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked: list[str] = []
    link = os.link

    def link_and_note(source: str, target: str, **kwargs: Any) -> None:
        link(source, target, **kwargs)
        linked.append(os.path.relpath(target, out))

    monkeypatch.setattr(os, "link", link_and_note)

    build_run(run)

    probe, *files = linked
    assert probe.startswith("_spool-probe-")
    assert files[0] == "_plan.json"
    assert files[-1] == "manifest.json"
    assert sorted(files) == sorted(contents(out))
    for stem in STEMS:  # claim, description, data
        shard = [name for name in files if stem in name]
        assert [name.split("/")[0] for name in shard[:3]] == ["_receipts", "index", "index"]
        assert shard[3].endswith(".tfrec")


def test_rejects_are_lines_in_order(data: tuple[Path, Path], out: Path) -> None:
    (data[0] / "a004.jpg").write_bytes(b"<html>")
    (data[0] / "a001.jpg").unlink()
    spec = json.loads(data[1].read_text())
    spec["annotations"][0]["bbox"] = [64, 0, 5, 5]  # outside
    spec["annotations"][1]["bbox"] = [1, 1, 0.0, 5.0]
    data[1].write_text(json.dumps(spec))

    manifest = build_run(with_budget(plan_run(*data, out), RejectBudget(2), RejectBudget(2)))

    lines = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
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


@pytest.mark.parametrize("places", [[0], [0, 1, 0]], ids=str)
def test_lost_and_repeated_shards_mean_no_manifest(
    run: SmallRun, out: Path, places: list[int]
) -> None:
    infos = build_shards(run)

    with pytest.raises(RuntimeError, match=f"^2 shards are planned, {len(places)} came back$"):
        commit_run(run, [infos[place] for place in places])
    assert not (out / "manifest.json").exists()


LOST = reject("1", shard=STEMS[0], annotation_ids=(1,))


@pytest.mark.parametrize(
    ("of_shard", "of_file", "wrong"),
    [
        ({"records": 2}, {}, "train-00000-of-00002: 3 is not 2 + 0"),
        ({"planned": 4, "records": 4}, {}, "plan of train: 6 is not 7 + 0"),
        (
            {"records": 2, "rejected": [LOST]},
            {},
            "annotations of train: 12 is not 12 + 0 + 1 + 0 + 0",
        ),
        ({}, {"excluded_images": 1}, "samples of train: 6 is not 1 + 0 + 6 + 0"),
        ({}, {"excluded_annotations": 2}, "annotations of train: 12 is not 12 + 0 + 0 + 2 + 0"),
    ],
)
def test_a_sum_that_does_not_hold_means_no_manifest(
    run: SmallRun, out: Path, of_shard: dict[str, Any], of_file: dict[str, int], wrong: str
) -> None:
    first, second = build_shards(run)
    infos = [msgspec.structs.replace(first, **of_shard), second]
    files = [msgspec.structs.replace(run.files[0], **of_file)]
    run = dataclasses.replace(run, files=files)

    with pytest.raises(RuntimeError) as raised:
        commit_run(with_budget(run, RejectBudget(10)), infos)

    what, counts = wrong.split(": ")
    assert str(raised.value) == f"the sum of {what} does not hold: {counts}"
    assert not (out / "manifest.json").exists()


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def add(path: Path) -> None:
    path.write_bytes(b"of another run")


@pytest.mark.parametrize(
    ("name", "edit", "what"),
    [
        (
            f"{STEMS[0]}-3.tfrec",
            Path.unlink,
            f"{STEMS[0]}-3.tfrec has no bytes, its receipt says 37",
        ),
        (f"{STEMS[1]}-3.tfrec", grow, f"{STEMS[1]}-3.tfrec has 37"),
        (f"_receipts/{STEMS[1]}.json", Path.unlink, f"_receipts/{STEMS[1]}.json is gone"),
        (
            "_receipts/train-00002-of-00003.json",
            add,
            "_receipts/train-00002-of-00003.json is not of this plan",
        ),
        (f"index/{STEMS[0]}-3.idx", Path.unlink, f"index/{STEMS[0]}-3.idx is gone"),
        ("train-00000-of-00002-2.tfrec", add, "train-00000-of-00002-2.tfrec is no shard of this"),
        ("test-00000-of-00001.tfrec", add, "test-00000-of-00001.tfrec is no shard of this plan"),
    ],
)
def test_without_exactly_the_planned_files_there_is_no_manifest(
    run: SmallRun, out: Path, name: str, edit: Callable[[Path], None], what: str
) -> None:
    infos = build_shards(run)
    edit(out / name)
    before = contents(out)

    with pytest.raises(RuntimeError) as raised:
        commit_run(run, infos)

    assert str(raised.value).startswith(f"E-OUT-FOREIGN {out}: {what}")
    assert contents(out) == before


def test_over_budget_there_are_rejects_and_no_manifest(data: tuple[Path, Path], out: Path) -> None:
    for name in ("a001.jpg", "a004.jpg"):
        (data[0] / name).write_bytes(b"<html>")
    run = plan_run(*data, out, command="run")

    with pytest.raises(RuntimeError) as raised:
        build_run(with_budget(run, RejectBudget(1)))

    assert str(raised.value) == (
        f"E-BUDGET {out}: 2 of 6 samples rejected, --max_rejected is 1"
        " (first 'a001.jpg', HTML);"
        " mend them, or accept with run --max_rejected 2"
    )
    assert len((out / "rejected.jsonl").read_text().splitlines()) == 2
    assert not (out / "manifest.json").exists()
    assert len(list(out.glob("*.tfrec"))) == 2

    # No image is read again: they could not be.
    for image in data[0].iterdir():
        image.unlink()
    manifest = build_run(with_budget(run, RejectBudget(2)))

    assert manifest.splits["train"].records == 4
    assert (out / "manifest.json").is_file()


@pytest.mark.parametrize("name", ["rejected.jsonl", "features.json", "manifest.json"])
def test_another_file_at_a_name_of_ours_is_a_conflict(
    run: SmallRun, out: Path, output: Storage, name: str
) -> None:
    publish_plan(run.plan, output, run.job.names)
    infos = build_shards(run)
    put(out, [name])

    with pytest.raises(RuntimeError, match=rf"^E-OUT-CONFLICT {out}/{name}: has other content"):
        commit_run(run, infos)

    assert (out / name).read_bytes() == b"of the user"


def test_neither_paths_nor_clocks_reach_the_data_set(tmp_path: Path) -> None:
    here = write_set(tmp_path / "here", 6)
    (here[0] / "a002.jpg").write_bytes(b"<html>")
    there = (tmp_path / "far away" / "photos", tmp_path / "far away" / "coco.json")
    shutil.copytree(here[0], there[0])
    shutil.copy(here[1], there[1])
    for place, path in enumerate([*there[0].iterdir(), there[1]]):
        touch(path, 1_500_000_000_000_000_000 + place)
    made = []
    for name, data in (("one", here), ("a/n/other", there)):
        out = tmp_path / name
        build_run(with_budget(plan_run(*data, out), RejectBudget(1)))
        made.append(contents(out))

    # Pins are in the Parquet index, and in the name of the note of what was listed.
    of_sources = [{n for n in files if n.startswith(("_sources/", "index/"))} for files in made]
    one, other = (
        {n: sha for n, sha in files.items() if n not in names or n.endswith(".idx")}
        for files, names in zip(made, of_sources, strict=True)
    )
    assert one == other
    assert "manifest.json" in one
    assert len([name for name in one if name.endswith((".tfrec", ".idx"))]) == 4


# --- finding what is complete ---


def look(run: SmallRun, **changes: Any) -> Manifest | None:
    job = dataclasses.replace(run.commit_job, **changes)
    return find_complete(open_storage(job.output), job)


def test_a_complete_output_is_found(run: SmallRun, output: Storage) -> None:
    assert look(run) is None
    publish_plan(run.plan, output, run.job.names)
    build_shards(run)
    assert look(run) is None

    manifest = build_run(run)

    assert look(run) == manifest


@pytest.mark.parametrize(
    "edit",
    [
        lambda data: touch(data[0] / "a000.jpg"),
        lambda data: shutil.copy(data[0] / "a000.jpg", data[0] / "spare.jpg"),
        lambda data: data[1].write_text(data[1].read_text() + " "),
    ],
)
def test_changed_sources_are_not_found_complete(
    data: tuple[Path, Path], run: SmallRun, edit: Callable[[tuple[Path, Path]], Any]
) -> None:
    manifest = build_run(run)
    edit(data)

    assert look(run) is None
    assert look(run, trust_manifest=True) == manifest


@pytest.mark.parametrize(
    "name", [f"{STEMS[1]}-3.tfrec", f"index/{STEMS[0]}-3.idx", f"_receipts/{STEMS[0]}.json"]
)
def test_without_one_of_its_files_a_data_set_is_incomplete(
    data: tuple[Path, Path], run: SmallRun, out: Path, name: str
) -> None:
    manifest = build_run(run)
    before = contents(out)
    (out / name).unlink()

    assert look(run) is None
    assert look(run, trust_manifest=True) == manifest
    assert build_run(run) == manifest
    assert contents(out) == before


# --- permissions and counts ---


def test_a_data_set_of_rejects_alone_is_committed_only_with_permission(
    data: tuple[Path, Path], out: Path
) -> None:
    for image in data[0].iterdir():
        image.write_bytes(b"<html>")
    run = with_budget(plan_run(*data, out), RejectBudget(percent=100))

    with pytest.raises(
        RuntimeError, match=r"^E-SET-EMPTY split train: none of 6 images is left; mend, exclude"
    ):
        build_run(run)
    assert not (out / "manifest.json").exists()

    allowed = plan_run(*data, out, allow_empty=True, budget=RejectBudget(percent=100))
    assert build_run(allowed).splits["train"].records == 0
