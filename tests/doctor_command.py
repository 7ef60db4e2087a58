"""Run `pipelines.doctor` in this process, and read what it found."""

import contextlib
import io
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipelines import doctor
from pipelines.command import guarded
from tests.children import mount_disk_of_my_own
from tests.coco_command import settings_kept
from transforms.doctor.google_identity import find_identity
from transforms.doctor.outputs import check_output
from transforms.storage import Access


class Seen(NamedTuple):
    """How the doctor ended, and the lines that it printed."""

    code: int
    lines: tuple[str, ...]

    def marked(self, mark: str) -> list[str]:
        """Return the lines of a mark, without it."""
        return [line[9:] for line in self.lines[:-1] if line.startswith(f"{mark} ")]

    @property
    def wrong(self) -> list[str]:
        """What would end a run."""
        return self.marked("wrong")

    @property
    def warnings(self) -> list[str]:
        """What would not."""
        return self.marked("warning")


def run_doctor(*arguments: object) -> Seen:
    """Run the command in this process, as if it were a new one."""
    find_identity.cache_clear()
    out, err = io.StringIO(), io.StringIO()
    with settings_kept(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = guarded(doctor.run, [str(argument) for argument in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return Seen(code, (*out.getvalue().splitlines(), *err.getvalue().splitlines()))


def doctor_on_small_disk(arguments: Sequence[str], disk: Path, size_bytes: int) -> Seen:
    """Run where a folder is a disk of so many bytes, for a child of `tests.children`."""
    mount_disk_of_my_own(disk, size_bytes)
    return run_doctor(*arguments)


def doctor_with_small_temporary_folder(
    arguments: Sequence[str], disk: Path, size_bytes: int
) -> Seen:
    """Run where temporary files go to a disk of so many bytes."""
    mount_disk_of_my_own(disk, size_bytes)
    tempfile.tempdir = os.fspath(disk)
    return run_doctor(*arguments)


def probe(output: Path) -> list[str]:
    """Probe an output alone, to be killed meanwhile."""
    return [diagnosis.line for diagnosis in check_output(str(output), Access())]
