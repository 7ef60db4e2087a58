"""Start servers in new processes, on a free port."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TRIES, _TRY_S = 300, 0.1
_LOOK_S = 0.1


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def started(command: Callable[[int], Sequence[str]]) -> Iterator[tuple[int, int]]:
    """Run a server until exit; yield its port and process id once it answers.

    Args:
        command: returns the server's command line for a port of 127.0.0.1.
    """
    port = free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(port), **quiet) as server:
        try:
            for _ in range(_TRIES):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(_TRY_S)
            yield port, server.pid
        finally:
            server.terminate()


def worker_pool(port: int, **environment: str) -> list[str]:
    """Return the command of Beam's worker pool, which starts each worker in a new process.

    It starts the `python` on PATH. The workers get the given variables too.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = [f"{name}={value}" for name, value in {**environment, "PATH": path}.items()]
    module = "apache_beam.runners.worker.worker_pool_main"
    return ["env", *variables, sys.executable, "-m", module, "--service_port", str(port)]


def children_of(parent: int) -> list[int]:
    """Return the process ids of a process's children."""
    listed = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for children in listed for child in text_of(children).split()]


def busiest(pids: Sequence[int]) -> int:
    """Return the process that uses most CPU at the moment."""
    before = {pid: _cpu_ticks(pid) for pid in pids}
    time.sleep(_LOOK_S)
    return max(pids, key=lambda pid: _cpu_ticks(pid) - before[pid])


def _cpu_ticks(pid: int) -> int:
    fields = text_of(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:13]))  # utime and stime, of proc(5)


def text_of(path: Path) -> str:
    """Return the text of a file of `/proc`; empty once its process has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
