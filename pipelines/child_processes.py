"""How a signal ends this process and the processes that an engine started for it."""

import _thread
import contextlib
import os
import signal
from pathlib import Path
from typing import NoReturn

_STDERR = 2
_WRITTEN_WITHIN_S = 1.0


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
