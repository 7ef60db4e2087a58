"""This machine: room for spools, open files, memory and cores, against what a run takes of them."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transforms.doctor.diagnosis import Diagnosis, fine, warning, wrong
from transforms.gate import DEFAULT_BYTES, usable_cores
from transforms.quantities import counted, megabytes

USUAL_SPOOL_BYTES = 10**9
"""What spools take at most where nothing of the run is known: two shards of the usual size, twice,
and the references of 100,000 samples."""

_PROCESS_BYTES = 512 * 2**20  # Beam, its runner and three shards' references
_FEW_FILES, _FAR_TOO_FEW_FILES = 1024, 128
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_SPARE = 2  # so many times what is needed at most


@dataclass(frozen=True)
class Needs:
    """What a run takes of the machine that it runs on.

    Attributes:
        spool_dir: where spools lie; empty for the system's folder.
        spool_bytes: what lies there at once, at most.
        memory_bytes: of image bytes in flight.
        workers: images checked and encoded at once; None for a core each.
    """

    spool_dir: str = ""
    spool_bytes: int = USUAL_SPOOL_BYTES
    memory_bytes: int = DEFAULT_BYTES
    workers: int | None = None


def check_machine(needs: Needs) -> Iterator[Diagnosis]:
    """Yield what is found of disk, open files, memory and cores."""
    yield look_at_spools(needs)
    yield judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield judge_memory(memory_bytes(), needs.memory_bytes + _PROCESS_BYTES)
    yield fine("cores", f"{counted(usable_cores(), 'core')}, {_workers(needs)} at work")


def look_at_spools(needs: Needs) -> Diagnosis:
    """Return whether the folder of spools can be written and has room."""
    try:
        folder = needs.spool_dir or tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder):  # has no name: nothing is left, whatever happens
            pass
    except OSError as error:
        what = error.strerror or str(error)
        remedy = "give --spool_dir, or set TMPDIR, to a folder that can be written"
        return wrong("E-IO-READONLY", needs.spool_dir or "temporary folder", what, remedy)
    return judge_room(folder, shutil.disk_usage(folder).free, needs.spool_bytes, "spools")


def judge_room(where: str, free_bytes: int, needed_bytes: int, of_what: str) -> Diagnosis:
    """Return whether there is room for so many bytes, and some more.

    >>> judge_room("/tmp", 500, 1000, "spools").line
    'wrong    E-IO-NOSPACE /tmp: 0.0 MB free, spools take 0.0 MB; free some, or give another folder'
    """
    told = f"{megabytes(free_bytes)} free, {of_what} take {megabytes(needed_bytes)}"
    remedy = "free some, or give another folder"
    if free_bytes < needed_bytes:
        return wrong("E-IO-NOSPACE", where, told, remedy)
    if free_bytes < _SPARE * needed_bytes:
        return warning(where, told, remedy)
    return fine(where, told)


def judge_open_files(limit: int) -> Diagnosis:
    """Return whether so many files may be open at once as readers and shards take.

    >>> judge_open_files(256).line
    'warning  open files: 256 at once; raise the limit: ulimit -n 4096'
    """
    remedy = "raise the limit: ulimit -n 4096"
    told = "no limit" if limit == resource.RLIM_INFINITY else f"{limit} at once"
    if 0 <= limit < _FAR_TOO_FEW_FILES:
        return wrong("E-IO-LIMIT", "open files", told, remedy)
    if 0 <= limit < _FEW_FILES:
        return warning("open files", told, remedy)
    return fine("open files", told)


def judge_memory(free_bytes: int | None, needed_bytes: int) -> Diagnosis:
    """Return whether there is memory for what is in flight.

    >>> judge_memory(2**30, 2**31).line
    'warning  memory: 1074 MB free, a run takes some 2147 MB; lower --bytes_in_flight, or free some'
    """
    if free_bytes is None:
        return fine("memory", "how much is free, this system does not tell")
    told = f"{megabytes(free_bytes)} free, a run takes some {megabytes(needed_bytes)}"
    if free_bytes < needed_bytes:
        return warning("memory", told, "lower --bytes_in_flight, or free some")
    return fine("memory", told)


def memory_bytes() -> int | None:
    """Return how much memory this process may yet take; None where the system does not tell."""
    limits = [limit for path in _CGROUP_LIMITS if (limit := _number_in(path)) is not None]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (available,) = (line for line in lines if line.startswith("MemAvailable:"))
        limits.append(int(available.split()[1]) * 1024)
    except (OSError, ValueError):
        pass
    return min(limits, default=None)


def nearest_folder(path: str) -> str:
    """Return the deepest folder of a path that is there.

    >>> nearest_folder("/no such folder/a/b")
    '/'
    """
    folder = os.path.abspath(path)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _number_in(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # "max" is no limit
        return None


def _workers(needs: Needs) -> str:
    return counted(needs.workers or usable_cores(), "image")
