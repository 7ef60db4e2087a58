"""What `docs/scheduled-runs.md` shows is run as it stands there, its bucket being a folder."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipelines import coco, flex_template
from tests.coco_command import PROJECT, MakeCoco

METADATA = json.loads((PROJECT / "metadata.json").read_text())
DOC = (PROJECT / "docs" / "scheduled-runs.md").read_text()


def block(language: str, holds: str) -> str:
    """Return the one block of code in this language that holds a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", DOC, re.MULTILINE | re.DOTALL)
    (found,) = (text for text in blocks if holds in text)
    return found


@pytest.fixture
def bucket(make_coco: MakeCoco, tmp_path: Path) -> Path:
    images, annotations = make_coco(6)
    folder = tmp_path / "b"
    folder.mkdir()
    images.rename(folder / "photos")
    annotations.rename(folder / "instances.json")
    return folder


def run_script(bucket: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the script of the day, with the command that a checkout has."""
    script = block("bash", "case $code").replace("gs://b", str(bucket))
    assert script.count("beam-tfrec coco") == 1
    path = bucket / "coco-daily"
    path.write_text(script.replace("beam-tfrec coco", f"{sys.executable} -m pipelines.coco"))
    return subprocess.run(
        ["bash", str(path), *flags], cwd=PROJECT, capture_output=True, text=True, timeout=120
    )


def test_the_script_tells_what_to_do_and_the_reader_reads_all_days(bucket: Path) -> None:
    first, second = ("--date", "2026-11-20"), ("--date", "2026-11-21")
    assert run_script(bucket, *first).returncode == 0
    again = run_script(bucket, *first)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith("already complete")
    assert run_script(bucket, *second).returncode == 0
    names: dict[str, Any] = {}
    exec(block("python", "TFRecordDataset").replace("gs://b", str(bucket)), names)
    assert (len(list(names["dataset"])), len(names["sets"])) == (6, 2)
    (bucket / "instances.json").write_text("{")

    failed = run_script(bucket, "--date", "2026-11-22")

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
    assert config.since is not None
    assert list(config.since.names) == ["gs://b/coco-{date}"]
    assert beams == [f"--sdk_container_image={launch['parameters']['sdk_container_image']}"]


def test_every_exit_code_is_explained() -> None:
    told = re.findall(r"^\| ([0-9, ]+) \|", DOC, re.MULTILINE)
    assert ", ".join(told) == "0, 1, 2, 3, 4, 5, 6, 130, 143"
