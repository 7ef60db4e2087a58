"""Daily runs of the command over growing sources, and the code in `docs/scheduled-runs.md`."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from beam_tfrec.pipelines import coco, flex_template
from beam_tfrec.transforms import publish_plan
from tests.coco_command import PROJECT, MakeCoco, Run, run_coco, snapshot
from tests.conftest import coco_dict, jpeg_bytes
from tests.fake_programs import FakePrograms
from tests.invariants import check_growth, files_of, keyed_records
from tests.test_docs import block_of

pytestmark = pytest.mark.thorough

METADATA = json.loads((PROJECT / "metadata.json").read_text())
DOCS = PROJECT / "docs"
DOC = (DOCS / "scheduled-runs.md").read_text()
block = partial(block_of, "docs/scheduled-runs.md")
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
    """A growing folder of images with its annotation file, and the data set of each day."""

    def __init__(self, folder: Path) -> None:
        self.images, self.annotations = folder / "photos", folder / "instances.json"
        self.images.mkdir(parents=True)
        out = str(folder / "coco-{date}")
        self.arguments = ["--images", str(self.images), "--annotations", str(self.annotations)]
        self.arguments += ["--output", out, "--since", out]

    def write(self, spec: dict[str, Any]) -> None:
        """Write an annotation file, and the new images."""
        for image in spec["images"]:
            path = self.images / image["file_name"]
            if not path.exists():
                path.write_bytes(jpeg_bytes(color=image["id"]))
        self.annotations.write_text(json.dumps(spec))

    def run(self, day: str) -> Run:
        return run_coco(*self.arguments, "--date", day)

    def made(self, day: str, *flags: object) -> Path:
        """Run, which must succeed, and return the data set."""
        run = run_coco(*self.arguments, "--date", day, *flags)
        assert run.code == 0, run.err
        return self.of(day)

    def of(self, day: str) -> Path:
        return self.images.parent / f"coco-{day}"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_three_days_equal_one_conversion_of_everything(source: Source, tmp_path: Path) -> None:
    """Sources may change once they are converted, and unused classes may disappear."""
    whole = Source(tmp_path / "whole")
    whole.write(spec_of(SIZES[2]))
    everything = whole.made(DAYS[2])
    source.write(spec_of(SIZES[0]))
    source.made(DAYS[0], "--num_shards", 3)
    first = snapshot(source.of(DAYS[0]))
    source.write(spec_of(SIZES[1]))
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
    assert [min(int(key) for _, key in keyed_records(of)) for of in days] == [1, 21, 46]
    assert snapshot(source.of(DAYS[0])) == first
    last = json.loads(days[2]["manifest.json"])
    split = last["splits"]["train"]
    assert (split["listed"], split["earlier"], split["rejected"]) == (58, 43, {})
    names = [label["name"] for label in last["plan"]["labels"]]
    assert names == ["person", "crowd of people", "kite"]
    assert days[2]["label_map.pbtxt"] == files_of(everything)["label_map.pbtxt"]


def test_a_day_with_nothing_new_gives_an_empty_data_set(source: Source) -> None:
    source.write(spec_of(SIZES[0]))
    source.made(DAYS[0])
    run = source.run(DAYS[1])
    assert run.code == 0, run.err
    assert "left out: 20 in earlier data sets\n" in run.out
    assert "nothing is new: the split is empty here\n" in run.out
    source.write(spec_of(SIZES[1]))
    source.made(DAYS[2])
    days = [files_of(source.of(day)) for day in DAYS]
    assert len(check_growth(days)) == SIZES[1]
    assert source.run(DAYS[2]).out.startswith("already complete")


def test_two_days_that_begin_at_once_are_refused(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each day's output appears after the other run has looked for earlier data sets."""
    source.write(spec_of(3))
    publish = publish_plan.publish_plan

    def publish_while_another_begins(*given: Any, **options: Any) -> int:
        publish(*given, **options)
        source.of(DAYS[1]).mkdir()
        (source.of(DAYS[1]) / "_plan.json").write_bytes(b"{}")

    monkeypatch.setattr(publish_plan, "publish_plan", publish_while_another_begins)
    assert source.run(DAYS[0]).ended == (5, "E-OUT-DATES")
    assert not list(source.of(DAYS[0]).glob("*.tfrec"))


def run_script(bucket: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the daily script, with this checkout's command."""
    script = block("case $code", "bash").replace("gs://my-bucket", str(bucket))
    assert script.count("beam-tfrec coco") == 1
    script = script.replace("beam-tfrec coco", f"{sys.executable} -m beam_tfrec.pipelines.coco")
    command = ["bash", "-c", script, "coco-daily", *flags]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120)


def test_the_script_names_the_next_step_and_the_reader_reads_all_days(
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
    exec(block("TFRecordDataset").replace("gs://my-bucket", str(tmp_path)), names)
    assert (len(list(names["dataset"])), len(names["sets"])) == (6, 2)
    (tmp_path / "instances.json").write_text("{")
    failed = run_script(tmp_path, "--date", "2026-11-22")
    assert failed.returncode == 3
    assert "coco: failed, needs a person: E-ANN-JSON " in failed.stderr


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, ""),
        (4, "coco: failed, needs a person: E-BUDGET x\n"),
        (6, "coco: run again to resume: E-BUDGET x\n"),
        (143, "coco: run again to resume: E-BUDGET x\n"),
    ],
)
def test_the_script_on_dataflow_ends_as_the_job_does(tmp_path: Path, code: int, line: str) -> None:
    """Fake Python and gcloud: check the command, its exit code and its line."""
    home = tmp_path / "beam-tfrec"
    home.mkdir()
    shutil.copy(PROJECT / "run_dataflow.sh", home)
    programs = FakePrograms(
        tmp_path / "bin", real=("bash", "cat", "date", "dirname", "mktemp", "rm", "tail")
    )
    programs.add("gcloud", "python3")
    programs.answer("gcloud version", out="528.0.0\n")
    programs.answer("buckets describe", out="EUROPE-WEST4\tregion\t\n")
    programs.answer("-m beam_tfrec.pipelines.coco", err="E-BUDGET x\n", code=code)
    local = re.findall(r"^beam-tfrec coco .*?\n.*\n", block("case $code", "bash"), re.MULTILINE)
    command = block("run_dataflow.sh coco --wait", "bash").replace("/opt/beam-tfrec", str(home))
    command = command.replace("PROJECT", "my-project")
    script = block("case $code", "bash").replace(*local, command)
    run = programs.run("bash", "-c", script, "coco-daily", "--date", "2026-11-20", cwd=tmp_path)
    assert (run.returncode, run.stderr) == (code, line)
    ((_, _, _, *words),) = programs.calls("-m beam_tfrec.pipelines.coco")
    assert "--no_wait" not in words
    config, _ = coco.run.configure(words)
    assert config.output == "gs://my-bucket/coco-2026-11-20"
    assert config.since and [*config.since.names] == ["gs://my-bucket/coco-{date}"]


POLICIES = sorted(DOCS.glob("alert-policy*.json"))


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_alert_policies_are_of_our_jobs(path: Path) -> None:
    policy = json.loads(path.read_text())
    (condition,) = policy["conditions"]
    if "conditionMatchedLog" in condition:  # needs a rate limit, and must be the only condition
        assert policy["alertStrategy"]["notificationRateLimit"]["period"] == "3600s"
    else:
        assert "notificationRateLimit" not in policy["alertStrategy"]
        assert 'resource.type = "dataflow_job"' in condition["conditionThreshold"]["filter"]
    launched = json.loads(block("launchParameter", "json"))["launchParameter"]["jobName"]
    assert launched.startswith("beam-tfrec-") and "beam-tfrec-" in str(condition)


def test_parameters_of_the_request_are_flags() -> None:
    launch = json.loads(block("launchParameter", "json"))["launchParameter"]
    given = [f"--{name}={value}" for name, value in launch["parameters"].items()]
    pipeline, flags = flex_template.command_of(given)
    assert pipeline == "coco"
    needed = {p["name"] for p in METADATA["parameters"] if not p["isOptional"]}
    assert needed <= set(launch["parameters"]) <= {p["name"] for p in METADATA["parameters"]}
    config, beams = coco.run.configure([*flags, "--date", "2026-11-20"])
    assert config.output == "gs://my-bucket/coco-2026-11-20"
    assert config.since and [*config.since.names] == ["gs://my-bucket/coco-{date}"]
    assert beams == [f"--sdk_container_image={launch['parameters']['sdk_container_image']}"]


def test_every_exit_code_is_explained() -> None:
    explained = re.findall(r"^\| ([0-9, ]+) \|", DOC, re.MULTILINE)
    assert ", ".join(explained) == "0, 1, 2, 3, 4, 5, 6, 7, 130, 143"
