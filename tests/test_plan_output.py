"""`--plan` and what lies in the output: told as the run would find it, and left as it is."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines import coco
from tests.coco_command import (
    MakeCoco,
    Sources,
    command,
    committed,
    run_coco,
    shard_paths,
)
from tests.gcs_stand_in import GcsStandIn
from tests.gcs_stand_in.sources import SOURCES, put_sources
from tests.plan_command import everything_below, plan_only


def planned(made: Sources, out: Path, *flags: object) -> dict:
    """Return the plan of a run, which must be one that can be done."""
    ended, plan = plan_only(coco.run, out.parent, *command(made, out, *flags))
    assert ended.code == 0, ended.err
    return plan


def refused_as_the_run_is(made: Sources, out: Path, *flags: object) -> dict:
    """Return the plan of a run that ends before its first shard, with the same line and code."""
    ended, plan = plan_only(coco.run, out.parent, *command(made, out, *flags))
    before = everything_below(out.parent)
    run = run_coco(*command(made, out, *flags))
    assert everything_below(out.parent).keys() == before.keys() | {"out"}
    assert (ended.code, ended.fault) == (run.code, run.fault)
    assert plan.get("refused", ended.fault) == ended.fault
    return plan


def test_text_for_people(make_coco: MakeCoco, tmp_path: Path) -> None:
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
    assert lines[3:6] == [
        "    hosts served alike by files[h::H]: 1, 2",
        "    6 images: a photo is stored once for each object, of 3.0 that it has",
        "    classes: 2; 6 (crowd of people) to 12 (person), median 6",
    ]
    assert lines[6] == "  sizes: from the listed sizes of files; no image was read"
    assert lines[7].startswith("  reads 19 files, ")
    assert lines[8:] == [
        "  note: no record will hold 1 file of root train, such as z.jpg",
        "  nothing was written",
    ]


def test_a_finished_and_an_unfinished_output(make_coco: MakeCoco, tmp_path: Path) -> None:
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
    assert "begun by the same plan, the run goes on: 2 of 3 shards are there" in run.out


def test_trusted_manifests_are_not_planned_anew(make_coco: MakeCoco, tmp_path: Path) -> None:
    made, out = make_coco(2), tmp_path / "out"
    committed(made, out)
    made[1].unlink()
    run = run_coco(*command(made, out, "--trust_manifest", "--plan"))
    assert (run.code, run.out) == (0, f"already complete: {out}/manifest.json\n")


def test_the_report_counts_where_one_is_made(make_coco: MakeCoco, tmp_path: Path) -> None:
    made, out = make_coco(6), tmp_path / "out"
    without, with_it = (planned(made, out, flag) for flag in ("--no_report", "--report"))
    assert with_it["written_files"] - without["written_files"] == 1
    assert run_coco(*command(made, out, "--report")).code == 0
    files = [path for path in out.rglob("*") if path.is_file()]
    assert with_it["written_files"] == len(files)


def test_another_plan_is_there(make_coco: MakeCoco, tmp_path: Path) -> None:
    made, out = make_coco(6), tmp_path / "out"
    committed(made, out, "--num_shards", 3)
    assert refused_as_the_run_is(made, out, "--num_shards", 2) == {}  # by its manifest, at once
    (out / "manifest.json").unlink()
    plan = refused_as_the_run_is(made, out, "--num_shards", 2)
    assert plan["state"] == "refused"
    assert plan["refused"].startswith("E-OUT-PLAN ")
    assert len(plan["splits"]["train"]["shards"]) == 2
    overwritten = planned(made, out, "--num_shards", 2, "--overwrite")
    assert overwritten["state"] == "overwritten"


def test_files_of_others_are_there(make_coco: MakeCoco, tmp_path: Path) -> None:
    made, out = make_coco(3), tmp_path / "out"
    out.mkdir()
    (out / "val-00007-of-00008.tfrec").write_text("mine")
    assert refused_as_the_run_is(made, out)["refused"].startswith("E-OUT-FOREIGN ")
    assert refused_as_the_run_is(made, out, "--overwrite")["state"] == "refused"
    (out / "val-00007-of-00008.tfrec").unlink()
    committed(made, out)
    (out / "val-00007-of-00008.tfrec").write_text("mine")  # which --overwrite leaves alone
    ended, plan = plan_only(coco.run, tmp_path, *command(made, out, "--overwrite"))
    assert ended.ended == (5, "E-OUT-FOREIGN")
    assert plan["state"] == "refused"
    assert run_coco(*command(made, out, "--overwrite")).fault == ended.fault


@pytest.mark.parametrize("below", ["", "out"])
def test_no_place_for_an_output(below: str, make_coco: MakeCoco, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    made, out = make_coco(2), tmp_path / "file" / below
    ended, plan = plan_only(coco.run, tmp_path, *command(made, out))
    assert (plan, ended.ended) == ({}, (6, "E-IO-READONLY"))
    assert run_coco(*command(made, out)).fault == ended.fault


def break_annotations(images: Path, annotations: Path) -> None:
    annotations.write_text(annotations.read_text()[:-30])


def remove_two(images: Path, annotations: Path) -> None:
    (images / "a001.jpg").unlink()
    (images / "a003.jpg").write_bytes(b"")


def remove_most(images: Path, annotations: Path) -> None:
    for name in ("a000.jpg", "a001.jpg", "a002.jpg", "a003.jpg"):
        (images / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "flags", "ended"),
    [
        (break_annotations, [], (3, "E-ANN-JSON")),
        (remove_two, [], (4, "E-BUDGET")),
        (remove_most, [], (3, "E-SET-MISSING")),
        (None, ["--num_shards", 7], (2, "E-ARG")),
        (None, ["--licenses", "9"], (3, "E-SET-EMPTY")),
    ],
)
def test_what_ends_a_run_before_its_first_shard(
    spoil: Callable[[Path, Path], None] | None,
    flags: list,
    ended: tuple[int, str],
    make_coco: MakeCoco,
    tmp_path: Path,
) -> None:
    made, out = make_coco(6), tmp_path / "out"
    if spoil:
        spoil(*made)
    run = run_coco(*command(made, out, *flags, "--plan", "json"))
    assert (run.code, run.err.splitlines()[-1].split()[0]) == ended
    assert not out.exists()
    again = run_coco(*command(made, out, *flags))  # what ends at the commit says so there
    assert (again.code, again.err.splitlines()[-1]) == (run.code, run.err.splitlines()[-1])


def test_rejects_over_the_budget_are_told_with_the_plan(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    made, out = make_coco(6), tmp_path / "out"
    remove_two(*made)
    run = run_coco(*command(made, out, "--plan"))
    assert (run.code, run.err.splitlines()[-1].split()[0]) == (4, "E-BUDGET")
    assert f"plan of {out}: refused, see the last line" in run.out
    assert "train: 4 of 6 images in 1 shard" in run.out
    known = (
        "    rejected already, images: 1 E-IMG-MISSING; the first: E-IMG-MISSING a001.jpg (key 2):"
    )
    assert known in run.out
    assert "1 E-IMG-EMPTY; the first: E-IMG-EMPTY a003.jpg (key 4): 0 bytes" in run.out
    accepted = planned(made, out, "--max_rejected", 2)["splits"]["train"]["rejected"]
    assert {code: known["count"] for code, known in accepted.items()} == {
        "E-IMG-EMPTY": 1,
        "E-IMG-MISSING": 1,
    }


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch, make_coco: MakeCoco) -> Iterator[GcsStandIn]:
    with GcsStandIn() as stand_in:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stand_in.url)
        put_sources(stand_in, make_coco(5))
        stand_in.forget_requests()
        yield stand_in


def test_buckets_are_only_read(gcs: GcsStandIn) -> None:
    run = run_coco(*SOURCES, "--output", "gs://out/coco", "--max_rejected", 1, "--plan")
    assert run.code == 0, run.err
    assert {request.method for request in gcs.requests} == {"GET"}
    assert gcs.objects("out") == {}


def test_jobs_elsewhere_are_planned_here(gcs: GcsStandIn) -> None:
    job = (
        *("--runner", "DataflowRunner", "--project", "my-project", "--region", "us-central1"),
        *("--temp_location", "gs://staging/temp", "--sdk_container_image", "example.com/tfrec:1"),
        *("--dataflow_endpoint", "http://localhost:1", "--no_auth", "--max_num_workers", 3),
    )
    run = run_coco(*SOURCES, "--output", "gs://out/c", "--max_rejected", 1, *job, "--plan")
    assert run.code == 0, run.err
    assert {request.method for request in gcs.requests} == {"GET"}
    assert "note: planned in this process; the run will use Data" in run.out
    flags = ("--output", "gs://out/c", *job)
    refused = run_coco(*SOURCES, *flags, "--plan", "--dry_run=True")
    assert refused.ended == (2, "E-ARG")
    assert "plan must come without dry_run" in refused.fault
