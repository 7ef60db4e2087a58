"""Disks that are full: one line, and the same bytes afterwards."""

import hashlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import children
from tests.children import make_roomy, mount_private_disk
from tests.coco_command import Run, check_committed, check_visible, digests, run_coco
from tests.gcs_stand_in import GcsStandIn
from tests.small_runs import write_set

pytestmark = pytest.mark.thorough

PAGE_BYTES = 4096


class Job(NamedTuple):
    """A conversion of 24 images with two rejects, which writes one shard after the other.

    Attributes:
        arguments: without the output.
        undisturbed: digests of all files.
        file_bytes: size on a tmpfs of the largest file, and of all files.
    """

    arguments: list[str]
    undisturbed: dict[str, str]
    file_bytes: tuple[int, int]

    def into(self, output: object, *flags: object) -> list[str]:
        return [*self.arguments, "--output", str(output), *map(str, flags)]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    if not children.can_mount():
        pytest.skip("this machine lets no process mount a disk of its own")
    folder = tmp_path_factory.mktemp("job")
    images, annotations = write_set(folder, 24)
    for path in images.iterdir():
        path.write_bytes(path.read_bytes() + bytes(2000))  # bytes after the end marker are kept
    (images / "a003.jpg").write_bytes(b"")
    (images / "a004.jpg").write_bytes((images / "a004.jpg").read_bytes()[:300])
    arguments = [
        *("--images", str(images), "--annotations", str(annotations), "--max_rejected", "2"),
        *("--no_report", "--num_shards", "3", "--shards_in_flight", "1"),
    ]
    out = folder / "out"
    run = run_coco(*arguments, "--output", out)
    assert run.code == 0, run.err
    check_committed(out)
    found = digests(out)
    pages = [math.ceil((out / name).stat().st_size / PAGE_BYTES) for name in found]
    return Job(arguments, found, (max(pages) * PAGE_BYTES, sum(pages) * PAGE_BYTES))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


# Run in child processes: once on a bad disk, then on a good one.


class Ended(NamedTuple):
    """Both ends of the command, on the bad and the good disk, with digests of all files."""

    first: Run
    there: dict[str, str]
    again: Run
    found: dict[str, str]


def end(arguments: list[str], disk: Path, look: Callable[[], dict[str, str]]) -> Ended:
    first, there = run_coco(*arguments), look()
    make_roomy(disk)
    return Ended(first, there, run_coco(*arguments), look())


def checked(disk: Path) -> dict[str, str]:
    """Return digests of the output's files; every shard must be complete."""
    check_visible(disk / "out")
    return digests(disk / "out")


def convert_on_small_disk(arguments: list[str], disk: Path, size_bytes: int) -> Ended:
    mount_private_disk(disk, size_bytes)
    return end(arguments, disk, lambda: checked(disk))


def convert_by_small_spool(arguments: list[str], disk: Path, size_bytes: int) -> Ended:
    """Run into a bucket, with spools on a disk of this size."""
    mount_private_disk(disk, size_bytes)
    with GcsStandIn() as gcs:
        gcs.make_bucket("out")
        os.environ["STORAGE_EMULATOR_HOST"] = gcs.url
        to_bucket = [*arguments, "--output", "gs://out", "--spool_dir", str(disk)]
        sums = lambda: {n: hashlib.sha256(d).hexdigest() for n, d in gcs.objects("out").items()}  # noqa: E731
        return end(to_bucket, disk, sums)


def check_full(ended: Ended, job: Job) -> None:
    """Check the line, and that the same command completes once there is room."""
    assert ended.first.ended == (6, "E-IO-NOSPACE"), ended.first
    assert "run again" in ended.first.fault
    assert ended.there.items() <= job.undisturbed.items()
    assert "manifest.json" not in ended.there
    assert ended.again.code == 0, ended.again
    assert ended.found == job.undisturbed


@pytest.mark.parametrize("share", [0.1, 0.7, 1])
def test_full_disk(share: float, job: Job, disk: Path) -> None:
    """The disk is full in the first shard, or later; with one page too few, in the last file."""
    size_bytes = int(share * job.file_bytes[1]) // PAGE_BYTES * PAGE_BYTES - PAGE_BYTES
    given = job.into(disk / "out"), disk, size_bytes
    ended = children.outcome_of(convert_on_small_disk, *given)
    check_full(ended, job)
    assert re.search(r" device, \S+ \S+ are free;", ended.first.fault)


@pytest.mark.parametrize("more_pages", [-1, 0], ids=["in a shard", "in its receipt"])
def test_full_spool_disk(more_pages: int, job: Job, disk: Path) -> None:
    """The disk holds only spools: of a shard, and of its receipt at the same time."""
    size_bytes = job.file_bytes[0] + more_pages * PAGE_BYTES
    ended = children.outcome_of(convert_by_small_spool, job.arguments, disk, size_bytes)
    check_full(ended, job)
    assert f"{disk}: " in ended.first.fault
    assert "--spool_dir" in ended.first.fault
