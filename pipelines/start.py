"""A process before it imports Beam, and how a signal ends it.

The modules of the commands do none of this, so importing them as a library changes nothing.
"""

import _thread
import contextlib
import os
import resource
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

PIPELINES = ("coco", "folder", "table", "sidecar", "pairs", "arrays")
"""Those that make data sets, with Beam."""

_LEAST_MEMORY_MB = 400
"""Address space below which importing Beam fails, each time in another way."""
_STDERR = 2
_WRITTEN_WITHIN_S = 1.0


def begin(command: str) -> None:
    """Prepare the process for the import of a command's modules.

    Args:
        command: name of the module of `pipelines` that has the command's `main`.
    """
    _open_closed_streams()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)  # until the command sets its own handler
    if command not in (*PIPELINES, "plan"):
        return
    _check_memory()
    # NumPy's linear algebra, which we do not use, would start threads that spin at full speed.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def begin_module() -> None:
    """Make ready for `python -m pipelines.COMMAND`, if that is how this process was started."""
    if sys.argv[:1] != ["-m"]:
        return
    module = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    if module.startswith("pipelines."):
        begin(module.removeprefix("pipelines."))


def _open_closed_streams() -> None:
    """Lead closed standard streams to nowhere: else a file opened later gets their number.

    What libraries print would then be written into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(descriptor, True)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def _check_memory() -> None:
    from schemas.faults import FAULTS, fault_line  # takes a while, with signals not yet handled

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_MEMORY_MB * 10**6:
        what = f"{limit // 10**6} MB of address space, Beam needs {_LEAST_MEMORY_MB} to be imported"
        print(fault_line("E-IO-LIMIT", "memory", what, "raise ulimit -v"), file=sys.stderr)
        sys.exit(FAULTS["E-IO-LIMIT"].exit_code)


def _interrupted(number: int, _: FrameType | None) -> None:
    end_by_signal(number, "nothing was changed; run again")


def end_by_signal(number: int, how_far: str) -> NoReturn:
    """Say on standard error how far the command is, and end with exit code 128 + `number`.

    Every file that is there is whole, so no clean-up is needed.
    """
    try:
        _write_in_time(f"\ninterrupted; {how_far}\n".encode())  # in one piece: others log too
    finally:
        end_children()
        os._exit(128 + number)


def end_children() -> None:
    """Ask every child of this process to end, such as Prism or a job server.

    Beam ends them when Python does; whoever leaves by `os._exit` has to.
    """
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread, or the child, has ended by itself
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGTERM)


def _write_in_time(text: bytes) -> None:
    """Write to standard error, but give up after a second: it may be a full pipe."""
    written = _thread.allocate_lock()
    written.acquire()

    def write() -> None:
        with contextlib.suppress(OSError):
            os.write(_STDERR, text)
        written.release()

    # Not `threading.Thread`: the signal may have come while this thread held a lock of its module.
    _thread.start_new_thread(write, ())
    written.acquire(timeout=_WRITTEN_WITHIN_S)
