"""Run functions in child processes that are killed or lack resources.

Children are forked from a server process without threads, so they inherit no held lock. What they
run must be in importable modules, not in test functions.
"""

import errno
import itertools
import multiprocessing
import multiprocessing.util
import os
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from beam_tfrec.transforms.storage.disk import DiskFile
from tests.servers import children_of, text_of

KILLED = 77
"""Exit code of a child that `die_at` ended."""

_BUILDERS = "beam_tfrec.transforms.builders"
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.small_runs", "tests.memory_runs"])
# Now, while temporary files have short paths: a socket's path has at most 107 bytes.
multiprocessing.util.get_temp_dir()


def exit_code_of(function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> int:
    """Return the exit code of a child that runs the function; it must end in time."""
    child = start_child(function, *args)
    child.join(timeout_s)
    if child.exitcode is None:
        child.kill()
        raise TimeoutError(f"{function.__name__}{args} still runs after {timeout_s} s")
    return child.exitcode


def outcome_of(function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> Any:
    """Return what the function returns in a child, or the text of the error it raises there."""
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    exit_code = exit_code_of(_send_outcome, sender, function, *args, timeout_s=timeout_s)
    sender.close()
    assert exit_code == 0
    return receiver.recv()


def kill_once_ready(function: Callable[..., Any], *args: Any) -> None:
    """Run the function in a child and SIGKILL it when it has called its first argument."""
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    child = start_child(function, sender, *args)
    assert receiver.poll(30), "the child is not ready after 30 s"
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    assert child.exitcode == -signal.SIGKILL


def start_child(function: Callable[..., Any], *args: Any) -> ForkServerProcess:
    """Start a child that runs the function; the caller may kill it."""
    child = _CONTEXT.Process(target=function, args=args)
    child.start()
    return child


def _send_outcome(sender: Any, function: Callable[..., Any], *args: Any) -> None:
    try:
        sender.send(function(*args))
    except Exception as error:
        sender.send(str(error))


def without_anonymous_files(real_open: Callable[..., int]) -> Callable[..., int]:
    """Return an `os.open` that refuses `O_TMPFILE`, as some filesystems do."""

    def open_no_tmpfile(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), path)
        return real_open(path, flags, *args, **kwargs)

    return open_no_tmpfile


def die_at(nth: int, *, torn: bool = False) -> None:
    """End this process at the n-th call that makes something durable or visible.

    Args:
        nth: counts calls of `DiskFile.write`, `os.fsync` and `os.link`, from 1.
        torn: if that call is a write, write half of the data first.
    """
    count = itertools.count(1)

    def dying(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(count) != nth:
                return real(*args, **kwargs)
            if torn and name == "write":
                data = b"".join(args[1])
                real(args[0], [data[: len(data) // 2]])
            os._exit(KILLED)

        return call

    for owner, name in ((DiskFile, "write"), (os, "fsync"), (os, "link")):
        setattr(owner, name, dying(name, getattr(owner, name)))


def builders_of(pid: int) -> list[int]:
    """Return the shard builders that a process has started."""
    return [child for child in children_of(pid) if _builds(child)]


def wait_until_gone(pids: Iterable[int], timeout_s: float = 10) -> None:
    """Wait until none of these processes runs any more."""
    deadline_s = time.monotonic() + timeout_s
    while left := [pid for pid in pids if _builds(pid)]:
        assert time.monotonic() < deadline_s, f"{left} still run after {timeout_s} s"
        time.sleep(0.01)


def _builds(pid: int) -> bool:
    return _BUILDERS in text_of(Path(f"/proc/{pid}/cmdline"))
