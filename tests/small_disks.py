"""The command on disks of its own, small or read-only: run by children of `tests.children`.

Each function runs it into trouble, takes the trouble away, and runs the same command again.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.children import make_read_only, make_roomy, mount_disk_of_my_own
from tests.coco_command import Run, check_visible, digests, run_coco
from tests.gcs_stand_in import GcsStandIn
from tests.refused_calls import refuse
from transforms.progress import PROGRESS, Counts

BUCKET_OUTPUT = "gs://out/coco"


class Ended(NamedTuple):
    """How the command ended in trouble and after it, with the digests of all files each time."""

    first: Run
    there: dict[str, str]
    again: Run
    found: dict[str, str]


def convert_on_small_disk(
    arguments: list[str], disk: Path, size_bytes: int, num_files: int = 0
) -> Ended:
    """Run with an output on a disk of so many bytes, or so many files; 0 bytes: read-only."""
    mount_disk_of_my_own(disk, size_bytes or 1 << 20, num_files)
    if not size_bytes:
        make_read_only(disk)
    first, there = run_coco(*arguments), _checked(disk)
    make_roomy(disk)
    return Ended(first, there, run_coco(*arguments), _checked(disk))


def convert_until_read_only(arguments: list[str], disk: Path, shards: int) -> Ended:
    """Run with an output on a disk that becomes read-only after so many shards, built singly."""
    mount_disk_of_my_own(disk, 1 << 20)
    add = PROGRESS.add

    def add_then_close(counts: Counts) -> None:
        add(counts)
        if (
            counts.shards_done and PROGRESS.shards_done == shards
        ):  # between two shards: no file is open for writing
            make_read_only(disk)

    PROGRESS.add = add_then_close  # type: ignore[method-assign]
    first, there = run_coco(*arguments), _checked(disk)
    PROGRESS.add = add  # type: ignore[method-assign]
    make_roomy(disk)
    return Ended(first, there, run_coco(*arguments), _checked(disk))


def convert_by_small_spool(arguments: list[str], disk: Path, size_bytes: int) -> Ended:
    """Run into a bucket with the spools on a disk of so many bytes; 0: a read-only one."""
    mount_disk_of_my_own(disk, size_bytes or 1 << 20)
    if not size_bytes:
        make_read_only(disk)
    with GcsStandIn() as stand_in:
        stand_in.make_bucket("out")
        os.environ["STORAGE_EMULATOR_HOST"] = stand_in.url
        first, there = run_coco(*arguments), _objects(stand_in)
        make_roomy(disk)
        return Ended(first, there, run_coco(*arguments), _objects(stand_in))


def convert_with_small_temporary_folder(arguments: list[str], disk: Path, output: Path) -> Ended:
    """Run with a temporary folder in which a file can be made, but no folder beside it."""
    mount_disk_of_my_own(disk, 1 << 20, num_files=2)
    tempfile.tempdir = str(disk)
    (disk / "another").touch()
    first, there = run_coco(*arguments), digests(output)
    make_roomy(disk)
    return Ended(first, there, run_coco(*arguments), digests(output))


def convert_without(refused: list[list], arguments: list[str], output: Path) -> tuple[Run, dict]:
    """Run where the kernel refuses these calls; return the run and the output's files."""
    refuse(*refused)
    return run_coco(*arguments), digests(output)


def _checked(disk: Path) -> dict[str, str]:
    """Return the output's files, every shard of which must be whole."""
    check_visible(disk / "out")
    return digests(disk / "out")


def _objects(stand_in: GcsStandIn) -> dict[str, str]:
    return {
        name.removeprefix("coco/"): hashlib.sha256(data).hexdigest()
        for name, data in stand_in.objects("out").items()
    }
