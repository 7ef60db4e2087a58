"""The command run day by day over sources that grow: `{date}`, --date and --since."""

import datetime
import json
import re
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.coco_command import (
    Run,
    check_visible,
    finish,
    rejected_of,
    run_coco,
    shard_paths,
    snapshot,
    start_coco,
)
from tests.conftest import coco_dict, jpeg_bytes
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.invariants import check_growth, files_of, keyed_records
from transforms import publish_plan
from transforms.earlier_sets import list_days

DAYS = ("2026-11-18", "2026-11-19", "2026-11-20")
SIZES = (20, 45, 60)
KITE = {"id": 7, "name": "kite"}


def spec_of(images: int) -> dict[str, Any]:
    """Return an annotation file; the first 20 images have classes 1 and 2, the others 1 and 7."""
    spec = coco_dict(images)
    for annotation in spec["annotations"]:
        if annotation["image_id"] > SIZES[0] and annotation["category_id"] == 2:
            annotation["category_id"] = KITE["id"]
    if images > SIZES[0]:
        spec["categories"].append(KITE)
    return spec


class Source:
    """A folder of images and its annotation file, which grow."""

    def __init__(self, folder: Path) -> None:
        self.images, self.annotations = folder / "photos", folder / "instances.json"
        self.images.mkdir(parents=True)
        self.out = folder / "coco-{date}"

    def grow(self, images: int) -> None:
        self.write(spec_of(images))

    def write(self, spec: dict[str, Any]) -> None:
        """Write an annotation file, and the images that are new."""
        for image in spec["images"]:
            path = self.images / image["file_name"]
            if not path.exists():
                path.write_bytes(jpeg_bytes(color=image["id"]))
        self.annotations.write_text(json.dumps(spec))

    def arguments(self, *flags: object) -> list[str]:
        """Return the arguments that are the same every day."""
        return [
            *("--images", str(self.images), "--annotations", str(self.annotations)),
            *("--output", str(self.out), "--since", str(self.out)),
            *map(str, flags),
        ]

    def run(self, day: str, *flags: object) -> Run:
        return run_coco(*self.arguments("--date", day, *flags))

    def made(self, day: str, *flags: object) -> Path:
        """Run, which must succeed, and return the data set."""
        run = self.run(day, *flags)
        assert run.code == 0, run.err
        return self.of(day)

    def of(self, day: str) -> Path:
        return Path(str(self.out).replace("{date}", day))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def keys_of(out: Path) -> list[int]:
    return sorted(int(key) for _, key in keyed_records(files_of(out)))


def split_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "manifest.json").read_bytes())["splits"]["train"]


def test_three_days_are_one_conversion_in_three_parts(source: Source, tmp_path: Path) -> None:
    """Whatever becomes of sources once they are converted, and of classes that are not used."""
    whole = Source(tmp_path / "whole")
    whole.grow(SIZES[2])
    everything = whole.made(DAYS[2])
    source.grow(SIZES[0])
    source.made(DAYS[0], "--num_shards", 3)
    first = snapshot(source.of(DAYS[0]))
    source.grow(SIZES[1])
    source.made(DAYS[1], "--seed", 5)

    (source.images / "a002.jpg").unlink()
    (source.images / "a003.jpg").write_bytes(b"<html>")
    (source.images / "a030.jpg").write_bytes(jpeg_bytes(color=99))
    spec = spec_of(SIZES[2])
    spec["images"] = [image for image in spec["images"] if image["id"] not in (5, 6)]
    spec["annotations"] = [a for a in spec["annotations"] if a["image_id"] > SIZES[0]]
    spec["categories"] = [KITE, {"id": 1, "name": "person"}]
    source.write(spec)
    source.made(DAYS[2])

    days = [files_of(source.of(day)) for day in DAYS]
    assert check_growth(days) == keyed_records(files_of(everything))
    assert [keys_of(source.of(day))[0] for day in DAYS] == [1, 21, 46]
    assert snapshot(source.of(DAYS[0])) == first
    last = json.loads(days[2]["manifest.json"])
    assert last["splits"]["train"]["listed"] == 58
    assert last["splits"]["train"]["earlier"] == 43
    assert [label["name"] for label in last["plan"]["labels"]] == [
        *("person", "crowd of people", "kite"),
    ]
    assert days[2]["label_map.pbtxt"] == files_of(everything)["label_map.pbtxt"]
    assert rejected_of(source.of(DAYS[2])) == []


def test_an_old_day_is_not_made_again_by_what_came_later(source: Source) -> None:
    for day, images in zip(DAYS, SIZES, strict=True):
        source.grow(images)
        source.made(day)
    before = {day: snapshot(source.of(day)) for day in DAYS}

    again = source.run(DAYS[2])
    older = source.run(DAYS[0])

    assert again.out == f"already complete: {source.of(DAYS[2])}/manifest.json\n"
    assert older.ended == (5, "E-OUT-PLAN")  # the sources are not those of that day
    assert {day: snapshot(source.of(day)) for day in DAYS} == before


def test_a_repeat_is_told_before_a_graph_is_built(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, images in zip(DAYS[:2], SIZES, strict=False):
        source.grow(images)
        source.made(day)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a graph is built")

    monkeypatch.setattr("apache_beam.Pipeline.__init__", refuse)
    run = source.run(DAYS[1])

    assert (run.code, run.err) == (0, "")
    assert run.out == f"already complete: {source.of(DAYS[1])}/manifest.json\n"
    assert source.run(DAYS[1], "--trust_manifest").out == run.out


def test_a_day_without_anything_new_is_committed_empty(source: Source) -> None:
    source.grow(SIZES[0])
    source.made(DAYS[0])

    run = source.run(DAYS[1])

    assert run.code == 0, run.err
    assert run.out.startswith(f"{source.of(DAYS[1])}: 0 records in ")
    assert (
        "  train: 0 of 20 images in 0 shards, 0.0 MB; 0 of 40 annotations\n"
        "    in earlier data sets: 20 images, 40 annotations\n"
        "    nothing is new: the split is empty here\n"
    ) in run.out
    assert "read it" not in run.out
    source.grow(SIZES[1])
    source.made(DAYS[2])
    days = [files_of(source.of(day)) for day in DAYS]
    assert len(check_growth(days)) == SIZES[1]
    assert source.run(DAYS[2]).out.startswith("already complete")


def test_an_empty_annotation_file_needs_permission_on_any_day(source: Source) -> None:
    source.grow(SIZES[0])
    source.made(DAYS[0])
    source.grow(0)

    assert source.run(DAYS[1]).ended == (3, "E-SET-EMPTY")
    assert source.run(DAYS[1], "--allow_empty").code == 0


def test_what_was_rejected_is_tried_again(source: Source) -> None:
    source.grow(SIZES[0])
    (source.images / "a003.jpg").write_bytes(b"<html>")
    source.made(DAYS[0], "--max_rejected", 1)
    (source.images / "a003.jpg").write_bytes(jpeg_bytes(color=4))

    assert keys_of(source.made(DAYS[1])) == [4]
    check_growth([files_of(source.of(day)) for day in DAYS[:2]])


def test_dropped_annotations_of_earlier_samples_are_not_told_again(source: Source) -> None:
    spec = spec_of(SIZES[0])
    spec["annotations"][0]["bbox"][2] = 0.0
    source.write(spec)
    assert len(rejected_of(source.made(DAYS[0]))) == 1
    spec = spec_of(SIZES[1])
    spec["annotations"][0]["bbox"][2] = spec["annotations"][-1]["bbox"][2] = 0.0
    source.write(spec)

    out = source.made(DAYS[1])

    assert [line["key"] for line in rejected_of(out)] == ["45"]
    assert split_of(out)["annotations"] == {
        "listed": 90,
        "written": 49,
        "dropped": {"E-BOX-EMPTY": 1},
        "lost": 0,
        "excluded": 0,
        "earlier": 40,
    }


def test_a_share_of_rejects_is_of_what_is_new(source: Source) -> None:
    source.grow(SIZES[0])
    source.made(DAYS[0])
    source.grow(22)
    for name in ("a020.jpg", "a021.jpg"):
        (source.images / name).write_bytes(b"<html>")

    run = source.run(DAYS[1], "--max_rejected", "50%")

    assert run.code == 4
    assert "2 of 2 samples rejected, --max_rejected is 50%" in run.err.splitlines()[-1]


def test_an_image_that_stays_broken_or_missing_stops_no_day_that_accepts_it(source: Source) -> None:
    source.grow(SIZES[0])
    (source.images / "a003.jpg").write_bytes(b"<html>")
    source.made(DAYS[0], "--max_rejected", 1)
    source.made(DAYS[1], "--max_rejected", 1)
    (source.images / "a003.jpg").unlink()
    quiet = source.made(DAYS[2], "--max_rejected", 1)
    assert split_of(quiet)["rejected"] == {"E-IMG-MISSING": 1}


def test_ids_that_begin_again_stop_the_run(source: Source) -> None:
    source.grow(3)
    source.made(DAYS[0])
    spec = spec_of(3)
    for image in spec["images"]:
        image["file_name"] = f"new-{image['file_name']}"
    source.write(spec)

    assert source.run(DAYS[1]).ended == (3, "E-SET-DUPLICATE")


def test_two_days_that_begin_at_once_see_each_other(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither was there when the other one looked for what is earlier."""
    source.grow(3)
    publish = publish_plan.publish_plan

    def publish_beside_another(*given: Any, **options: Any) -> int:
        shards_there = publish(*given, **options)
        source.of(DAYS[1]).mkdir()
        (source.of(DAYS[1]) / "_plan.json").write_bytes(b"{}")
        return shards_there

    monkeypatch.setattr(publish_plan, "publish_plan", publish_beside_another)
    assert source.run(DAYS[0]).ended == (5, "E-OUT-DATES")
    assert not list(source.of(DAYS[0]).glob("*.tfrec"))


def test_the_same_key_in_another_split_is_another_sample(source: Source, tmp_path: Path) -> None:
    """Images 21 to 45 are of `val` first, then of `train` too."""
    source.grow(SIZES[1])
    few = tmp_path / "few.json"
    few.write_text(json.dumps(spec_of(SIZES[0])))
    records = []
    for day, train in zip(DAYS, (few, source.annotations), strict=False):
        run = run_coco(
            *("--images", f"train={source.images}", f"val={source.images}"),
            *("--annotations", f"train={train}", f"val={source.annotations}"),
            *("--output", source.out, "--since", source.out, "--date", day),
        )
        assert run.code == 0, run.err
        splits = json.loads((source.of(day) / "manifest.json").read_bytes())["splits"]
        records.append({name: split["records"] for name, split in splits.items()})

    assert records == [{"train": 20, "val": 45}, {"train": 25, "val": 0}]
    check_growth([files_of(source.of(day)) for day in DAYS[:2]])


@pytest.mark.parametrize("change", [{"name": "wing"}, {"id": 8}])
def test_a_class_that_is_another_one_than_on_earlier_days_stops_the_run(
    source: Source, change: dict[str, Any]
) -> None:
    source.grow(SIZES[1])
    source.made(DAYS[0])
    spec = spec_of(SIZES[2])
    spec["annotations"] = [a for a in spec["annotations"] if a["category_id"] == 1]
    spec["categories"] = [{"id": 1, "name": "person"}, KITE | change]
    source.write(spec)

    run = source.run(DAYS[1])

    assert run.ended == (3, "E-ANN-LABELS")
    assert str(source.of(DAYS[0])) in run.fault
    assert str(source.of(DAYS[1])) in run.fault
    assert not (source.of(DAYS[1]) / "_plan.json").exists()


def test_another_earlier_data_set_is_another_plan(source: Source, tmp_path: Path) -> None:
    source.grow(SIZES[0])
    named = [tmp_path / "one", tmp_path / "two"]
    sources = ("--images", source.images, "--annotations", source.annotations)
    assert run_coco(*sources, "--output", named[0]).code == 0
    assert run_coco(*sources, "--output", named[1], "--seed", 1).code == 0
    source.grow(SIZES[1])
    out = ("--output", tmp_path / "out", "--since")
    assert run_coco(*sources, *out, named[0]).code == 0
    moved = named[0].rename(tmp_path / "moved")

    assert run_coco(*sources, *out, moved).out.startswith("already complete")
    run = run_coco(*sources, *out, moved, named[1])
    assert run.ended == (5, "E-OUT-PLAN")
    assert re.search("options since was '1 data set [0-9a-f]+', is '2 data sets ", run.fault)


def test_a_day_that_failed_is_accepted_after_midnight(source: Source, tmp_path: Path) -> None:
    """The command that the message gives is of the day on which the run began."""
    source.grow(SIZES[0])
    (source.images / "a003.jpg").write_bytes(b"<html>")
    run = run_coco(*source.arguments())
    assert run.code == 4
    (begun,) = tmp_path.glob("coco-*")
    day = begun.name.removeprefix("coco-")
    tomorrow = datetime.date.fromisoformat(day) + datetime.timedelta(days=1)

    blocked = source.run(tomorrow.isoformat(), "--max_rejected", 1)
    _, _, accepting = run.err.splitlines()[-1].partition(" -m pipelines.coco ")
    accepted = run_coco(*shlex.split(accepting))

    assert blocked.ended == (5, "E-OUT-DATES")
    assert f"finish it with --date {day}" in blocked.fault
    assert f"--date {day}" in accepting
    assert accepted.code == 0, accepted.err
    assert list(tmp_path.glob("coco-*")) == [begun]
    assert len(keys_of(begun)) == SIZES[0] - 1
    assert keys_of(source.made(tomorrow.isoformat(), "--max_rejected", 1)) == []


def test_killed_and_resumed_it_is_an_undisturbed_run(source: Source, tmp_path: Path) -> None:
    source.grow(SIZES[0])
    source.made(DAYS[0])
    source.grow(200)
    many = ("--num_shards", 90)
    undisturbed = files_of(source.made(DAYS[1], *many))
    source.of(DAYS[1]).rename(tmp_path / "undisturbed")
    out = source.of(DAYS[1])

    process = start_coco(*source.arguments("--date", DAYS[1], *many))
    until_s = time.monotonic() + 60
    while len(shard_paths(out)) < 5 and process.poll() is None and time.monotonic() < until_s:
        time.sleep(0.002)
    process.kill()
    assert finish(process).code == -signal.SIGKILL
    done = check_visible(out)
    assert 5 <= done < 90
    assert source.run(DAYS[2]).ended == (5, "E-OUT-DATES")
    run = source.run(DAYS[1], *many)

    assert run.err.count("kept ") == done
    assert files_of(out) == undisturbed


def test_two_runs_of_a_day_at_once_both_succeed(source: Source) -> None:
    source.grow(SIZES[0])
    source.made(DAYS[0])
    source.grow(SIZES[1])

    twins = [start_coco(*source.arguments("--date", DAYS[1])) for _ in range(2)]
    ended = [finish(twin) for twin in twins]

    assert [run.code for run in ended] == [0, 0], [run.err for run in ended]
    assert len(check_growth([files_of(source.of(day)) for day in DAYS[:2]])) == SIZES[1]


# --- on Google Cloud Storage ---


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    with GcsStandIn() as running:
        running.make_bucket("out")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


def put_source(bucket: GcsStandIn, source: Source, names: Sequence[str]) -> None:
    for name in names:
        bucket.put("in", f"photos/{name}", (source.images / name).read_bytes())
    bucket.put("in", "instances.json", source.annotations.read_bytes())


def convert(day: str) -> Run:
    return run_coco(
        *("--images", "gs://in/photos", "--annotations", "gs://in/instances.json"),
        *("--output", "gs://out/sets/coco-{date}", "--since", "gs://out/sets/coco-{date}"),
        *("--date", day, "--num_shards", 4),
    )


def stored(bucket: GcsStandIn, day: str) -> dict[str, bytes]:
    folder = f"sets/coco-{day}/"
    objects = bucket.objects("out").items()
    return {name.removeprefix(folder): data for name, data in objects if name.startswith(folder)}


def test_days_in_a_bucket(bucket: GcsStandIn, source: Source) -> None:
    """A worker reads earlier indexes and nothing else of earlier data sets."""
    bucket.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")
    for day, images in zip(DAYS, SIZES, strict=True):
        source.grow(images)
        put_source(bucket, source, sorted(path.name for path in source.images.iterdir()))
        if day == DAYS[2]:  # converted, and gone
            bucket.remove("in", "photos/a000.jpg")
        bucket.forget_requests()
        run = convert(day)
        assert run.code == 0, run.err

    read = [r.name for r in bucket.requests if r.kind is Kind.READ and "sets/" in r.name]
    earlier = [name for name in read if f"coco-{DAYS[2]}" not in name]
    assert {name.rpartition(".")[2] for name in earlier} == {"json", "parquet"}
    assert len([name for name in earlier if name.endswith(".parquet")]) == 8
    whole = run_coco(
        *("--images", source.images, "--annotations", source.annotations),
        *("--output", source.of("all")),
    )
    assert whole.code == 0, whole.err
    grown = check_growth([stored(bucket, day) for day in DAYS])
    assert grown == keyed_records(files_of(source.of("all")))
    bucket.forget_requests()

    again = convert(DAYS[2])

    assert again.out == f"already complete: gs://out/sets/coco-{DAYS[2]}/manifest.json\n"
    read = sorted(r.name for r in bucket.requests if r.kind is Kind.READ)
    assert read == [f"sets/coco-{day}/manifest.json" for day in DAYS]
    assert bucket.count(Kind.UPLOAD) == 0


def test_days_are_found_beside_any_number_of_other_files(bucket: GcsStandIn) -> None:
    bucket.put_virtual("out", [f"{name}{n:05}.jpg" for name in "ad" for n in range(3000)], 9)
    for day in DAYS:
        bucket.put("out", f"coco-{day}/manifest.json", b"{}")
    bucket.forget_requests()

    found = list_days("gs://out/coco-{date}")

    assert [day.isoformat() for day in found] == list(DAYS)
    assert bucket.count(Kind.LIST) == 1
