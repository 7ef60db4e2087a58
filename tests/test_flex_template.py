"""The Flex Template: every flag is a described parameter, and parameters become flags again."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from beam_tfrec.pipelines import coco
from beam_tfrec.pipelines.flex_template import describe, flags_of
from tests.coco_command import PROJECT, MakeCoco, digests, run_coco

METADATA = json.loads((PROJECT / "metadata.json").read_text())


def test_metadata_is_what_the_parser_says() -> None:
    described = json.dumps(describe(coco.COMMAND.parser()), indent=2) + "\n"
    assert (PROJECT / "metadata.json").read_text() == described, "run make metadata"


def test_gcloud_takes_the_description() -> None:
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        pytest.skip("gcloud is not installed")
    build = [gcloud, "dataflow", "flex-template", "build", "gs://b/t.json", "--print-only"]
    options = ["--image=host/image:1", "--sdk-language=PYTHON", "--metadata-file=metadata.json"]
    run = subprocess.run(
        [*build, *options, "--format=json"], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    taken = json.loads(run.stdout)
    taken = json.loads(taken) if isinstance(taken, str) else taken
    assert taken["metadata"] == METADATA


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--images=gs://b/i", ["--images", "gs://b/i"]),
        ("--images=train=gs://b/t val=gs://b/v", ["--images", "train=gs://b/t", "val=gs://b/v"]),
        ("--images='train=gs://b/my t'", ["--images", "train=gs://b/my t"]),
        ("--num_shards=train=2 val=1", ["--num_shards", "train=2", "val=1"]),
        ("--overwrite=true", ["--overwrite"]),
        ("--overwrite=false", []),
        ("--exclude=", []),
        ("--shard_names=file {index:02}", ["--shard_names=file {index:02}"]),
        ("--sdk_container_image=host/i:1", ["--sdk_container_image=host/i:1"]),
        ('--labels={"a": "b"}', ['--labels={"a": "b"}']),
        ("--template_location=gs://b/o", ["--template_location=gs://b/o"]),
        ("--streaming", ["--streaming"]),
    ],
)
def test_parameters_become_flags(argument: str, words: list[str]) -> None:
    assert flags_of([argument], coco.COMMAND.parser()) == words


def test_template_makes_what_the_command_makes(make_coco: MakeCoco, tmp_path: Path) -> None:
    train, val = make_coco(5), make_coco(3, name="val")
    images = [f"train={train[0]}", f"val={val[0].rename(tmp_path / 'my val')}"]
    annotations = [f"train={train[1]}", f"val={val[1]}"]
    main = shutil.copy(PROJECT / "pipelines/flex_template.py", tmp_path / "main.py")
    parameters = (
        *(f"--images={shlex.join(images)}", f"--annotations={shlex.join(annotations)}"),
        *("--num_shards=train=2 val=1", "--overwrite=false", f"--output={tmp_path / 'template'}"),
        *("--sdk_container_image=host/image:1", "--of_next_year=1"),
    )
    run = subprocess.run(
        [sys.executable, main, *parameters],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert "--of_next_year is not known to this version of Beam: left out" in run.stderr
    words = ("--num_shards", "train=2", "val=1", "--output", tmp_path / "command")
    assert run_coco("--images", *images, "--annotations", *annotations, *words).code == 0
    assert digests(tmp_path / "template") == digests(tmp_path / "command")
