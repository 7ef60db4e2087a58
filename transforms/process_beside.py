"""Start a module of ours in a process beside this one, which no Beam slows down."""

import logging
import os
import subprocess
import sys

_LOG = logging.getLogger(__name__)


def start_beside(module: str, connection: int) -> "subprocess.Popen[bytes]":
    """Start a process with this one's interpreter, environment and modules.

    Args:
        module: whose `main` it runs.
        connection: descriptor of its end of a pipe, which is its only argument.

    Raises:
        OSError: when none can be started.
    """
    modules = os.pathsep.join(path for path in sys.path if isinstance(path, str))
    return subprocess.Popen(
        [sys.executable or "", "-P", "-m", module, str(connection)],
        pass_fds=[connection],
        env={**os.environ, "PYTHONPATH": modules},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # whoever reads this process's need not wait for the other one
        stderr=None if _LOG.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for this process, which ends the other
    )
