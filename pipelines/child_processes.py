"""Processes that an engine started for this run."""

import contextlib
import os
import signal
from pathlib import Path


def end_children() -> None:
    """Ask every child of this process to end, such as Prism or a job server.

    Beam ends them when Python does; whoever leaves by `os._exit` has to.
    """
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread, or the child, has ended by itself
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGTERM)
