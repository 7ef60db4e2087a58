"""Run a command to its end; measure wall time, CPU time and the memory of its process tree.

Standard library only, Linux only: memory is read from /proc.
"""

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

SAMPLE_EVERY_S = 0.02
LOOK_FOR_CHILDREN_EVERY = 2
"""Samples between two looks for new processes: walking the tree costs more than reading it."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Run:
    """Cost of one run of a command.

    Attributes:
        wall_s: from start to exit, in seconds.
        cpu_s: user and system time of the process and all descendants it waited for.
        peak_mb: highest sum of the resident sets (RSS) of the process tree, in 10^6 bytes. Pages
            that forked processes share count once for each. At least the kernel's own high-water
            mark of the largest process, so that a process alone is exact.
        exit_code: 0 is success; minus a signal's number; None after the time limit.
        last_line: the last line of its output.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    exit_code: int | None
    last_line: str


def run_measured(command: list[str], cwd: Path, limit_s: float) -> Run:
    """Run a command in its own session; kill all of it after `limit_s` seconds."""
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = threading.Event()
        timer = threading.Timer(limit_s, lambda: (late.set(), kill_session(process.pid)))
        sampler = _PeakSampler(process.pid)
        timer.start()
        sampler.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            kill_session(process.pid)
            process.wait()
            raise
        finally:
            wall_s = time.perf_counter() - start
            timer.cancel()
            sampler.stop()
        process.returncode = os.waitstatus_to_exitcode(status)
        return Run(
            wall_s=wall_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
            peak_mb=max(sampler.peak_bytes, _high_water_bytes(usage)) / 1e6,
            exit_code=None if late.is_set() else process.returncode,
            last_line=_last_line(output),
        )


def environment() -> dict[str, str]:
    """Return this process's environment without the variables PYTHON*.

    PYTHONDONTWRITEBYTECODE would make every run compile its imports again.
    """
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def kill_session(pid: int) -> None:
    """Kill the processes that `run_measured` started."""
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.killpg(pid, signal.SIGKILL)


def _high_water_bytes(usage: resource.struct_rusage) -> int:
    """Return the kernel's mark; 0 if it may be our own, which a child inherits until exec."""
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage.ru_maxrss * 1024 if usage.ru_maxrss > ours else 0


def _last_line(output) -> str:
    """Return the last line that is not empty, of at most the last 64 kB."""
    output.seek(max(0, output.seek(0, os.SEEK_END) - 65536))
    lines = output.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


class _PeakSampler(threading.Thread):
    """Sum the tree's resident sets every SAMPLE_EVERY_S and keep the highest sum."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._root = pid
        self._done = threading.Event()

    def run(self) -> None:
        samples = 0
        pids = [self._root]
        while not self._done.wait(SAMPLE_EVERY_S):
            if samples % LOOK_FOR_CHILDREN_EVERY == 0:
                pids = list(tree(self._root))
            samples += 1
            self.peak_bytes = max(self.peak_bytes, sum(map(resident_bytes, pids)))

    def stop(self) -> None:
        self._done.set()
        self.join()


def tree(pid: int):
    """Yield a process and its descendants."""
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))
    except OSError:
        return  # it has ended


def resident_bytes(pid: int) -> int:
    """Return a process's resident set, 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as stream:
            return int(stream.read().split()[1]) * PAGE_BYTES
    except OSError:
        return 0
