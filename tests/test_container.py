"""The workers' image and its lock: the versions that the project is tested with, no TensorFlow."""

import re
from pathlib import Path

import pytest

from tests.coco_command import PROJECT
from tests.fake_programs import FakePrograms

DOCKERFILE = (PROJECT / "Dockerfile").read_text()
FROM = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)


def pins(path: Path) -> dict[str, str]:
    """Return the versions of a lock by name."""
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", path.read_text(), re.MULTILINE))


PINS = pins(PROJECT / "requirements.lock")
WORKER_PINS = pins(PROJECT / "requirements-worker.lock")


def test_image_has_the_beam_that_is_tested() -> None:
    assert FROM[0] == f"apache/beam_python3.11_sdk:{PINS['apache-beam']}"
    assert WORKER_PINS["apache-beam"] == PINS["apache-beam"]


def test_worker_lock_holds_no_tensorflow_and_no_tools() -> None:
    barred = r"tensor|keras|pytest|hypothesis|mypy|ruff|coverage"
    assert [name for name in WORKER_PINS if re.search(barred, name)] == []


def test_worker_lock_holds_what_the_package_needs_and_dataflows_client() -> None:
    (needed,) = re.findall(r"install_requires=\[(.*?)\]", (PROJECT / "setup.py").read_text(), re.S)
    names = set(re.findall(r'"([a-z0-9-]+)', needed)) | {"google-cloud-dataflow-client"}
    assert len(names) > 8 and names - set(WORKER_PINS) == set()


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {Path(source).parts[0] for line in copies for source in line.split()}
    sent = set(re.findall(r"^!(\S+)", (PROJECT / ".dockerignore").read_text(), re.MULTILINE))
    assert sources == sent
    assert [source for source in sources if not (PROJECT / source).exists()] == []


IMAGE = "europe-west4-docker.pkg.dev/p/images/beam-tfrec:1"
BUILD = ["docker", "build", "--platform=linux/amd64", f"--tag={IMAGE}", "."]
TEMPLATE = [
    *("gcloud", "dataflow", "flex-template", "build", "gs://b/coco.json", f"--image={IMAGE}"),
    *("--sdk-language=PYTHON", "--metadata-file=metadata.json"),
]


@pytest.fixture
def programs(tmp_path: Path) -> FakePrograms:
    programs = FakePrograms(tmp_path / "bin", real=("make", "sh", "bash", "sed"))
    programs.add("docker", "gcloud")
    return programs


def test_the_image_is_built_and_pushed_and_the_template_after_it(programs: FakePrograms) -> None:
    words = ("flex_template", f"IMAGE={IMAGE}", "TEMPLATE=gs://b/coco.json")
    run = programs.run("make", "--no-print-directory", *words, cwd=PROJECT)
    calls = [call for call in programs.calls() if call[1] != "info"]
    assert (run.returncode, calls) == (0, [BUILD, ["docker", "push", IMAGE], TEMPLATE])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("container",), "make container: give IMAGE=REGION-docker.pkg.dev/PROJECT/REPO/NAME:TAG"),
        (("flex_template", "IMAGE=i"), "make flex_template: give TEMPLATE=gs://BUCKET/NAME.json"),
    ],
)
def test_what_is_missing_is_named(programs: FakePrograms, words: tuple, said: str) -> None:
    run = programs.run("make", "--no-print-directory", *words, cwd=PROJECT)
    assert (run.returncode, run.stdout, programs.calls()) == (2, f"{said}\n", [])
