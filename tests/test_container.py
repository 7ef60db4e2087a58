"""Both locks and the workers' image: versions that the project is tested with, no TensorFlow."""

import re
from pathlib import Path

from tests.coco_command import PROJECT
from tests.fake_programs import FakePrograms

DOCKERFILE = (PROJECT / "Dockerfile").read_text()
FROM = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)


LOCK, WORKER_LOCK = ((PROJECT / f"requirements{part}.lock").read_text() for part in ("", "-worker"))
PINS, WORKER_PINS = (
    dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE)) for lock in (LOCK, WORKER_LOCK)
)


def test_image_has_the_beam_that_is_tested() -> None:
    assert FROM[0] == f"apache/beam_python3.11_sdk:{PINS['apache-beam']}"
    assert WORKER_PINS["apache-beam"] == PINS["apache-beam"]


def test_lock_pins_every_requirement_with_hashes_and_names_no_host() -> None:
    blocks = re.split(r"^(?=[a-z0-9._-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) > 50
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in LOCK
    assert int(PINS["pillow"].partition(".")[0]) >= 13  # CVE-2026-112403, against Beam's pin


def test_worker_lock_holds_what_the_package_needs_and_dataflows_client_alone() -> None:
    (needed,) = re.findall(r"install_requires=\[(.*?)\]", (PROJECT / "setup.py").read_text(), re.S)
    names = set(re.findall(r'"([a-z0-9-]+)', needed)) | {"google-cloud-dataflow-client"}
    assert len(names) > 8 and names - set(WORKER_PINS) == set()
    barred = r"tensor|keras|pytest|hypothesis|mypy|ruff|coverage"
    assert [name for name in WORKER_PINS if re.search(barred, name)] == []


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


def test_the_image_is_built_and_pushed_and_the_template_after_it(tmp_path: Path) -> None:
    programs = FakePrograms(tmp_path / "bin", real=("make", "sh", "bash", "sed"))
    programs.add("docker", "gcloud")
    words = ("flex_template", f"IMAGE={IMAGE}", "TEMPLATE=gs://b/coco.json")
    run = programs.run("make", "--no-print-directory", *words, cwd=PROJECT)
    calls = [call for call in programs.calls() if call[1] != "info"]
    assert (run.returncode, calls) == (0, [BUILD, ["docker", "push", IMAGE], TEMPLATE])
