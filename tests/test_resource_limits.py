"""Disks, permissions, limits: one line with its code, nothing partial, never a reject."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import children
from tests.coco_command import (
    PROJECT,
    MakeCoco,
    Run,
    check_visible,
    command,
    committed,
    convert_on_small_disk,
    digests,
    finish,
    rejected_of,
    run_coco,
    shard_paths,
)
from tests.faulty_sources import failing_reads
from transforms import write_shards
from transforms.check_images import Check


@pytest.fixture(scope="module")
def own_disks() -> None:
    if not children.can_mount():
        pytest.skip("this machine lets no process mount a disk of its own")


@pytest.mark.parametrize("size_kib", [8, 160])
def test_full_disk(size_kib: int, own_disks: None, make_coco: MakeCoco, tmp_path: Path) -> None:
    """Full at the probe, the plan or a shard: nothing partial, and more room resumes."""
    sources = make_coco(60)
    for path in sources[0].iterdir():
        path.write_bytes(path.read_bytes() + bytes(4000))
    disk, reference = tmp_path / "disk", tmp_path / "reference"
    disk.mkdir()
    committed(sources, reference, "--num_shards", 6)
    arguments = command(sources, disk / "out", "--num_shards", 6)
    full, visible, resumed, found = children.outcome_of(
        convert_on_small_disk, arguments, disk, size_kib * 1024
    )
    assert Run(*full).ended == (6, "E-IO-NOSPACE"), full
    assert "run again to resume" in Run(*full).fault
    assert visible < 6
    assert resumed[0] == 0, resumed
    assert found == digests(reference)


def test_read_only_disk(own_disks: None, make_coco: MakeCoco, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    arguments = command(make_coco(2), tmp_path / "disk/out")
    run, *_ = children.outcome_of(convert_on_small_disk, arguments, tmp_path / "disk", 0)
    assert Run(*run).ended == (6, "E-IO-READONLY"), run


def as_ordinary_user(arguments: list[str]) -> subprocess.Popen[str]:
    """Start the command bound by permission bits, which root otherwise is not."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    return subprocess.Popen(
        [*(drop if os.geteuid() == 0 else []), sys.executable, "-m", "pipelines.coco", *arguments],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_no_permission(make_coco: MakeCoco, tmp_path: Path) -> None:
    """To list, to read an image or the annotations, to write: stop, never a reject."""
    if os.geteuid() == 0 and subprocess.run(["which", "setpriv"], capture_output=True).returncode:
        pytest.skip("root is bound by no permissions, and setpriv is not there to change that")
    forbidden: dict[str, Path] = {}
    started = {}
    for name in ("folder", "image", "annotations", "output"):
        images, annotations = make_coco(3, name=name)
        out = tmp_path / f"{name}-out"
        out.mkdir()
        paths = {
            "folder": images,
            "image": images / "a001.jpg",
            "annotations": annotations,
            "output": out,
        }
        forbidden[name] = paths[name]
        paths[name].chmod(0o500 if name == "output" else 0)
        started[name] = as_ordinary_user(command((images, annotations), out))
    for name, process in started.items():
        run = finish(process)
        forbidden[name].chmod(0o700)
        assert run.ended == (6, "E-IO-AUTH"), (name, run.err)
        assert str(forbidden[name]) in run.fault
        assert not (tmp_path / f"{name}-out/manifest.json").exists()


def test_file_size_limit(make_coco: MakeCoco, tmp_path: Path) -> None:
    sources = make_coco(40)
    limited = ["bash", "-c", 'ulimit -f 20; exec "$@"', "bash", sys.executable]
    run = subprocess.run(
        [*limited, "-m", "pipelines.coco", *command(sources, tmp_path / "out")],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert Run(run.returncode, run.stdout, run.stderr).ended == (6, "E-IO-NOSPACE"), run.stderr
    assert check_visible(tmp_path / "out") == 0


def test_out_of_memory_is_never_a_reject(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhaust(data: bytes, check: Check) -> None:
        raise MemoryError

    monkeypatch.setattr(write_shards, "check_image", exhaust)
    run = run_coco(*command(make_coco(3), tmp_path / "out", "--max_rejected", "100%"))
    assert run.ended == (6, "E-IO-LIMIT")
    assert not (tmp_path / "out/rejected.jsonl").exists()


def test_transient_trouble_is_retried(
    make_coco: MakeCoco, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, attempt: int) -> None:
        if attempt < 3:
            raise OSError(5, "Input/output error")

    failing_reads(monkeypatch, fail)
    committed(make_coco(3), tmp_path / "out")
    assert rejected_of(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("number", "code"), [(24, "E-IO-LIMIT"), (13, "E-IO-AUTH"), (28, "E-IO-NOSPACE")]
)
def test_trouble_of_the_machine_is_never_a_reject(
    number: int,
    code: str,
    make_coco: MakeCoco,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str, attempt: int) -> None:
        raise OSError(number, os.strerror(number))

    failing_reads(monkeypatch, fail)
    run = run_coco(*command(make_coco(3), tmp_path / "out", "--max_rejected", "100%"))
    assert run.ended == (6, code)
    assert shard_paths(tmp_path / "out") == []
