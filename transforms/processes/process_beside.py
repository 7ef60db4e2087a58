"""Start a module of ours in a process beside this one, which no Beam slows down."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import traceback

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


def described_end(exit_code: int) -> str:
    """Return how a process has ended.

    >>> described_end(-9), described_end(1)
    ('was ended by SIGKILL', 'ended with exit code 1')
    >>> described_end(-40)
    'was ended by signal 40'
    """
    if exit_code < 0:
        named = {each.value: each.name for each in signal.Signals}
        return f"was ended by {named.get(-exit_code, f'signal {-exit_code}')}"
    return f"ended with exit code {exit_code}"


def told_error(error: BaseException) -> BaseException:
    """Return an error as it can be told, with the text of what led to it, which does not travel."""
    told = error
    led_to_it = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # as of libraries whose errors take other arguments than they keep
        told = RuntimeError(f"{type(error).__name__}: {error}")
    told.add_note(led_to_it)
    return told
