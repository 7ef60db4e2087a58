"""The command run day by day over sources that grow, and what `docs/scheduled-runs.md` shows."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.pipelines import coco, flex_template
from beam_tfrec.transforms import publish_plan
from tests.coco_command import PROJECT, MakeCoco, Run, committed, run_coco, snapshot
from tests.conftest import coco_dict, jpeg_bytes
from tests.gcs_stand_in import GcsStandIn, Kind
from tests.gcs_stand_in.sources import SOURCES, put_sources
from tests.invariants import check_growth, files_of, keyed_records

pytestmark = pytest.mark.thorough

METADATA = json.loads((PROJECT / "metadata.json").read_text())
DOC = (PROJECT / "docs" / "scheduled-runs.md").read_text()
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
    """A folder of images and its annotation file, which grow; and the data sets of days."""

    def __init__(self, folder: Path) -> None:
        self.images, self.annotations = folder / "photos", folder / "instances.json"
        self.images.mkdir(parents=True)
        out = str(folder / "coco-{date}")
        self.arguments = ["--images", str(self.images), "--annotations", str(self.annotations)]
        self.arguments += ["--output", out, "--since", out]

    def grow(self, images: int) -> None:
        self.write(spec_of(images))

    def write(self, spec: dict[str, Any]) -> None:
        """Write an annotation file, and the images that are new."""
        for image in spec["images"]:
            path = self.images / image["file_name"]
            if not path.exists():
                path.write_bytes(jpeg_bytes(color=image["id"]))
        self.annotations.write_text(json.dumps(spec))

    def run(self, day: str, *flags: object) -> Run:
        return run_coco(*self.arguments, "--date", day, *flags)

    def made(self, day: str, *flags: object) -> Path:
        """Run, which must succeed, and return the data set."""
        run = self.run(day, *flags)
        assert run.code == 0, run.err
        return self.of(day)

    def of(self, day: str) -> Path:
        return self.images.parent / f"coco-{day}"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def keys_of(out: Path) -> list[int]:
    return sorted(int(key) for _, key in keyed_records(files_of(out)))


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
    del spec["images"][4:6]
    spec["annotations"] = [a for a in spec["annotations"] if a["image_id"] > SIZES[0]]
    spec["categories"] = [KITE, {"id": 1, "name": "person"}]
    source.write(spec)
    source.made(DAYS[2])
    days = [files_of(source.of(day)) for day in DAYS]
    assert check_growth(days) == keyed_records(files_of(everything))
    assert [keys_of(source.of(day))[0] for day in DAYS] == [1, 21, 46]
    assert snapshot(source.of(DAYS[0])) == first
    last = json.loads(days[2]["manifest.json"])
    split = last["splits"]["train"]
    assert (split["listed"], split["earlier"], split["rejected"]) == (58, 43, {})
    names = [label["name"] for label in last["plan"]["labels"]]
    assert names == ["person", "crowd of people", "kite"]
    assert days[2]["label_map.pbtxt"] == files_of(everything)["label_map.pbtxt"]


def test_a_day_without_anything_new_is_committed_empty(source: Source) -> None:
    source.grow(SIZES[0])
    source.made(DAYS[0])
    run = source.run(DAYS[1])
    assert run.code == 0, run.err
    assert "left out: 20 in earlier data sets\n" in run.out
    assert "nothing is new: the split is empty here\n" in run.out
    source.grow(SIZES[1])
    source.made(DAYS[2])
    days = [files_of(source.of(day)) for day in DAYS]
    assert len(check_growth(days)) == SIZES[1]
    assert source.run(DAYS[2]).out.startswith("already complete")


def test_two_days_that_begin_at_once_see_each_other(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither was there when the other one looked for what is earlier."""
    source.grow(3)
    publish = publish_plan.publish_plan

    def publish_beside_another(*given: Any, **options: Any) -> int:
        publish(*given, **options)
        source.of(DAYS[1]).mkdir()
        (source.of(DAYS[1]) / "_plan.json").write_bytes(b"{}")

    monkeypatch.setattr(publish_plan, "publish_plan", publish_beside_another)
    assert source.run(DAYS[0]).ended == (5, "E-OUT-DATES")
    assert not list(source.of(DAYS[0]).glob("*.tfrec"))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsStandIn]:
    with GcsStandIn() as running:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


def convert(day: str) -> Run:
    out = "gs://out/sets/coco-{date}"
    return run_coco(*SOURCES, "--output", out, "--since", out, "--date", day, "--num_shards", 4)


def test_days_in_a_bucket(bucket: GcsStandIn, source: Source) -> None:
    """A worker reads earlier indexes and nothing else of earlier data sets."""
    bucket.allow("storage.objects.get", "storage.objects.list", "storage.objects.create")
    for day, images in zip(DAYS, SIZES, strict=True):
        source.grow(images)
        put_sources(bucket, (source.images, source.annotations))
        if day == DAYS[2]:  # converted, and gone
            bucket.remove("in", "photos/a000.jpg")
        bucket.forget_requests()
        run = convert(day)
        assert run.code == 0, run.err
    read = [r.name for r in bucket.requests if r.kind is Kind.READ and "sets/" in r.name]
    earlier = [name for name in read if f"coco-{DAYS[2]}" not in name]
    assert {name.rpartition(".")[2] for name in earlier} == {"json", "parquet"}
    assert len([name for name in earlier if name.endswith(".parquet")]) == 8
    committed((source.images, source.annotations), source.of("all"))
    stored = [
        {name.removeprefix(folder): data for name, data in objects.items() if folder in name}
        for objects, folder in ((bucket.objects("out"), f"sets/coco-{day}/") for day in DAYS)
    ]
    assert check_growth(stored) == keyed_records(files_of(source.of("all")))
    bucket.forget_requests()
    again = convert(DAYS[2])
    assert again.out == f"already complete: gs://out/sets/coco-{DAYS[2]}/manifest.json\n"
    read = sorted(r.name for r in bucket.requests if r.kind is Kind.READ)
    assert read == [f"sets/coco-{day}/manifest.json" for day in DAYS]
    assert bucket.count(Kind.UPLOAD) == 0


def block(language: str, holds: str) -> str:
    """Return the one block of code in this language that holds a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
    (found,) = (text for text in blocks if holds in text)
    return found


def run_script(bucket: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the script of the day, with the command that a checkout has."""
    script = block("bash", "case $code").replace("gs://b", str(bucket))
    assert script.count("beam-tfrec coco") == 1
    script = script.replace("beam-tfrec coco", f"{sys.executable} -m beam_tfrec.pipelines.coco")
    command = ["bash", "-c", script, "coco-daily", *flags]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)


def test_the_script_tells_what_to_do_and_the_reader_reads_all_days(
    make_coco: MakeCoco, tmp_path: Path
) -> None:
    images, annotations = make_coco(6)
    images.rename(tmp_path / "photos")
    annotations.rename(tmp_path / "instances.json")
    first = run_script(tmp_path, "--date", "2026-11-20")
    again = run_script(tmp_path, "--date", "2026-11-20")
    assert (first.returncode, again.returncode, again.stderr) == (0, 0, "")
    assert again.stdout.startswith("already complete")
    assert run_script(tmp_path, "--date", "2026-11-21").returncode == 0
    names: dict[str, Any] = {}
    exec(block("python", "TFRecordDataset").replace("gs://b", str(tmp_path)), names)
    assert (len(list(names["dataset"])), len(names["sets"])) == (6, 2)
    (tmp_path / "instances.json").write_text("{")
    failed = run_script(tmp_path, "--date", "2026-11-22")
    assert failed.returncode == 3
    assert "coco: somebody must look: E-ANN-JSON " in failed.stderr


def test_the_request_s_parameters_are_flags() -> None:
    launch = json.loads(block("json", "launchParameter"))["launchParameter"]
    given = [f"--{name}={value}" for name, value in launch["parameters"].items()]
    flags = flex_template.flags_of(given, coco.COMMAND.parser())
    needed = {p["name"] for p in METADATA["parameters"] if not p["isOptional"]}
    assert needed <= set(launch["parameters"]) <= {p["name"] for p in METADATA["parameters"]}
    config, beams = coco.COMMAND.configure([*flags, "--date", "2026-11-20"])
    assert config.output == "gs://b/coco-2026-11-20"
    assert config.since and [*config.since.names] == ["gs://b/coco-{date}"]
    assert beams == [f"--sdk_container_image={launch['parameters']['sdk_container_image']}"]


def test_every_exit_code_is_explained() -> None:
    told = re.findall(r"^\| ([0-9, ]+) \|", DOC, re.MULTILINE)
    assert ", ".join(told) == "0, 1, 2, 3, 4, 5, 6, 130, 143"
