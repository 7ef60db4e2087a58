"""The Flex Template: each flag of each pipeline is a parameter, and parameters become flags."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from beam_tfrec.pipelines import flex_template
from beam_tfrec.pipelines.cli import PIPELINES
from beam_tfrec.pipelines.flex_template import command_of, describe
from tests.coco_command import PROJECT, MakeCoco, digests, run_coco, run_pipeline

METADATA = json.loads((PROJECT / "metadata.json").read_text())


def test_metadata_matches_the_parsers() -> None:
    described = json.dumps(describe(), indent=2) + "\n"
    assert (PROJECT / "metadata.json").read_text() == described, "run make metadata"


def test_gcloud_accepts_the_metadata() -> None:
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
        ("--pipeline=", []),  # left empty in the console
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
    assert command_of([argument]) == ("coco", words)


def test_one_parameter_names_the_pipeline() -> None:
    given = ["--low=gs://b/l", "--images=", "--pipeline=pairs"]
    assert command_of(given) == ("pairs", ["--low", "gs://b/l"])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--pipeline=pairs", "--images=gs://b/i"],
            "pairs has no parameter images, which is for coco, folder, sidecar, voc, openimages;"
            " omit it",
        ),
        (["--low=gs://b/l"], "coco has no parameter low, which is for pairs; omit it"),
        (
            ["--pipeline=video"],
            f"no pipeline is called 'video'; give one of {', '.join(PIPELINES)}",
        ),
        (["--since="], "since must not be empty, got ''; leave the parameter out"),
        (["--overwrite=yes"], "--overwrite must be true or false, got 'yes'; give one of them"),
    ],
)
def test_wrong_parameters_are_refused(arguments: list[str], line: str) -> None:
    run = run_pipeline(flex_template.run, *arguments)
    assert (run.code, run.err) == (2, f"E-ARG command line: {line}\n")


def launch(folder: Path, *parameters: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the program as the launcher does: by its path, in its own folder."""
    main = shutil.copy(PROJECT / "pipelines/flex_template.py", folder / "main.py")
    return subprocess.run(
        [sys.executable, main, *parameters],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.thorough
def test_template_writes_the_same_bytes_as_the_command(make_coco: MakeCoco, tmp_path: Path) -> None:
    train, val = make_coco(5), make_coco(3, name="val")
    images = [f"train={train[0]}", f"val={val[0].rename(tmp_path / 'my val')}"]
    annotations = [f"train={train[1]}", f"val={val[1]}"]
    run = launch(
        tmp_path,
        *(f"--images={shlex.join(images)}", f"--annotations={shlex.join(annotations)}"),
        *("--num_shards=train=2 val=1", "--overwrite=false", f"--output={tmp_path / 'template'}"),
        *("--sdk_container_image=host/image:1", "--of_next_year=1"),
    )
    assert run.returncode == 0, run.stderr
    assert "--of_next_year is not known to this version of Beam: left out" in run.stderr
    words = ("--num_shards", "train=2", "val=1", "--output", tmp_path / "command")
    assert run_coco("--images", *images, "--annotations", *annotations, *words).code == 0
    assert digests(tmp_path / "template") == digests(tmp_path / "command")
