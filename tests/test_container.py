"""Locks, the workers' image, and packages: tested versions, no TensorFlow, one import name."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.coco_command import PROJECT
from tests.fake_programs import FakePrograms

DOCKERFILE = (PROJECT / "Dockerfile").read_text()
FROM = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
LOCK, WORKER_LOCK = ((PROJECT / f"requirements{part}.lock").read_text() for part in ("", "-worker"))
PINS, WORKER_PINS = (
    dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE)) for lock in (LOCK, WORKER_LOCK)
)


def test_base_images_have_fixed_versions_and_the_tested_beam() -> None:
    assert FROM[0] == f"apache/beam_python3.11_sdk:{PINS['apache-beam']}"
    assert WORKER_PINS["apache-beam"] == PINS["apache-beam"]
    fixed = re.compile(r"packages|.*([:_][0-9]{8}_RC[0-9]+|:[0-9.]+[0-9])")
    assert [base for base in FROM if not fixed.fullmatch(base)] == []


def test_lock_pins_every_requirement_with_hashes_and_names_no_host() -> None:
    blocks = re.split(r"^(?=[a-z0-9._-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) > 50
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in LOCK
    assert int(PINS["pillow"].partition(".")[0]) >= 13  # CVE-2026-112403, despite Beam's pin


def test_worker_lock_has_all_requirements_and_no_test_packages() -> None:
    (needed,) = re.findall(r"install_requires=\[(.*?)\]", (PROJECT / "setup.py").read_text(), re.S)
    names = set(re.findall(r'"([a-z0-9-]+)', needed)) | {"google-cloud-dataflow-client"}
    assert len(names) > 8 and names - set(WORKER_PINS) == set()
    barred = r"tensor|keras|pytest|hypothesis|mypy|ruff|coverage"
    assert [name for name in WORKER_PINS if re.search(barred, name)] == []


def test_copied_files_exist_and_are_sent_to_the_builder() -> None:
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {Path(source).parts[0] for line in copies for source in line.split()}
    sent = set(re.findall(r"^!(\S+)", (PROJECT / ".dockerignore").read_text(), re.MULTILINE))
    assert sources == sent
    assert [source for source in sources if not (PROJECT / source).exists()] == []


@pytest.mark.thorough
def test_wheel_and_source_archive_hold_the_project_under_one_name(tmp_path: Path) -> None:
    """Users install the wheel, also after an older build, and Beam sends workers the archive."""
    folders = ("schemas", "transforms", "pipelines", "readers")
    endings = {".py", ".css", ".js", ".j2"}
    no_caches = shutil.ignore_patterns("__pycache__")
    for name in ("beam_tfrec", *folders):
        shutil.copytree(PROJECT / name, tmp_path / name, symlinks=True, ignore=no_caches)
    for name in ("setup.py", "README.md", "pyproject.toml"):
        shutil.copy(PROJECT / name, tmp_path)
    shutil.copytree(PROJECT / "schemas", tmp_path / "build/lib/transforms")  # of an older version
    words = [sys.executable, "setup.py", "-q", "sdist", "--formats=zip", "bdist_wheel"]
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
    paths = [path for name in folders for path in (PROJECT / name).rglob("*.*")]
    files = {f"beam_tfrec/{p.relative_to(PROJECT)}" for p in paths if p.suffix in endings}
    assert {Path(name).suffix for name in files} == endings
    files.add("beam_tfrec/__init__.py")
    (wheel,), (source,) = tmp_path.glob("dist/*.whl"), tmp_path.glob("dist/*.zip")
    installed = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(installed) == sorted(files)
    assert files <= {name.partition("/")[2] for name in zipfile.ZipFile(source).namelist()}


IMAGE = "europe-west4-docker.pkg.dev/p/images/beam-tfrec:1"
BUILD = ["docker", "build", "--platform=linux/amd64", f"--tag={IMAGE}", "."]
TEMPLATE = [
    *("gcloud", "dataflow", "flex-template", "build", "gs://b/beam-tfrec.json", f"--image={IMAGE}"),
    *("--sdk-language=PYTHON", "--metadata-file=metadata.json"),
]


def test_the_image_is_built_and_pushed_before_the_template(tmp_path: Path) -> None:
    programs = FakePrograms(tmp_path / "bin", real=("make", "sh", "bash", "sed"))
    programs.add("docker", "gcloud")
    words = ("flex_template", f"IMAGE={IMAGE}", "TEMPLATE=gs://b/beam-tfrec.json")
    run = programs.run("make", "--no-print-directory", *words, cwd=PROJECT)
    calls = [call for call in programs.calls() if call[1] != "info"]
    assert (run.returncode, calls) == (0, [BUILD, ["docker", "push", IMAGE], TEMPLATE])
