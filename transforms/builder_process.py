"""A process that builds shards beside this one, and what the two tell each other.

The threads of a process share one interpreter, for which they wait. A process beside it imports no
Beam (a fifth of a second, 70 MB), starts while samples are planned, and ends with the connection:
whichever way this process ends, the other one learns of it at once.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Pipe
from multiprocessing.reduction import send_handle
from typing import NamedTuple

import msgspec

from schemas.faults import fault_line
from schemas.manifest import JobPlan
from schemas.shards import ShardInfo, ShardPlan
from transforms.gate import GateLimits
from transforms.progress import PROGRESS, Counts
from transforms.shard_job import ShardJob

_LOG = logging.getLogger(__name__)

_MODULE = "transforms.build_beside"
_STARTS_WITHIN_S = 30.0
_LOWER = "most often it is memory: lower --bytes_in_flight, or give more; run again to resume"


class Begin(NamedTuple):
    """What a process is told first; where the job has a spool, its file follows.

    Attributes:
        limits: of the run; its part of them follows.
        logged: from which level on each of its loggers is heard.
        job: what all shards of the run have in common.
        plan: of the run.
    """

    limits: GateLimits
    logged: dict[str, int]
    job: ShardJob
    plan: JobPlan


class Build(NamedTuple):
    """A shard to be built.

    Attributes:
        number: names it in the answer.
        shard: MessagePack of its plan, a tenth of the time of pickling it.
    """

    number: int
    shard: bytes


class Ready(NamedTuple):
    """It has imported what it needs."""


class Made(NamedTuple):
    """What was made of a shard."""

    number: int
    info: ShardInfo


class Failed(NamedTuple):
    """Why there is no shard."""

    number: int
    error: BaseException


class Logged(NamedTuple):
    """A line of the log."""

    logger: str
    level: int
    text: str


Answer = Ready | Made | Failed | Logged | Counts


class BuilderProcess:
    """A process that builds shards of one run; it ends when it is told to, or with this one."""

    def __init__(self, limits: GateLimits, loggers: Sequence[str]) -> None:
        """Start it, and do not wait until it is ready.

        Args:
            limits: of the run; `limits.processes` of them share these.
            loggers: names of those whose lines are to be heard here.

        Raises:
            OSError: when no process can be started.
        """
        self._limits = limits
        self._loggers = loggers
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # the same modules
                stdin=subprocess.DEVNULL,
                stderr=None if _LOG.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for this process, which ends the other
            )
        self._asking = threading.Lock()
        self._asked = 0
        self._running: dict[int, Future[ShardInfo]] = {}
        self._is_ready = False
        self._ended = ""  # the line of that, once it has
        self._begun = threading.Event()  # one or the other
        self._listener = threading.Thread(target=self._listen, name=_MODULE, daemon=True)
        self._listener.start()

    def is_ready(self) -> bool:
        """Return whether it can build shards, once that is known; else it could not start."""
        self._begun.wait(_STARTS_WITHIN_S)
        return self._is_ready

    def submit(self, shard: ShardPlan, job: ShardJob, plan: JobPlan) -> Future[ShardInfo]:
        """Have a shard built.

        Args:
            shard: what to build.
            job: what all shards of the run have in common, the same each time.
            plan: of the run, the same each time.

        Raises:
            RuntimeError: `E-IO-…` when what the job's spool holds cannot be written.
        """
        future: Future[ShardInfo] = Future()
        future.set_running_or_notify_cancel()  # it cannot be taken back
        build = msgspec.msgpack.encode(shard)
        with self._asking:
            if self._ended:
                future.set_exception(RuntimeError(self._ended))
                return future
            with contextlib.suppress(OSError):  # it has ended, as the listener learns, too
                if not self._asked:
                    self._begin(job, plan)
                self._asked += 1
                self._running[self._asked] = future
                self._connection.send(Build(self._asked, build))
        return future

    def end(self) -> None:
        """Have it end, whatever it does, and wait for that."""
        self._process.terminate()
        self._listener.join()
        self._connection.close()

    def _begin(self, job: ShardJob, plan: JobPlan) -> None:
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in self._loggers}
        self._connection.send(Begin(self._limits, levels, job, plan))
        if job.spool is not None:
            send_handle(self._connection, job.spool.written_file(), self._process.pid)

    def _listen(self) -> None:
        """Take what it tells, until it has ended."""
        try:
            while True:
                self._take(self._connection.recv())
        except (EOFError, OSError):
            pass
        finally:
            self._process.terminate()  # if it was this process that could not listen
            ended = _described(self._process.wait())
            with self._asking:
                self._ended = fault_line("E-IO-LIMIT", "processes", ended, _LOWER)
                for future in self._running.values():
                    future.set_exception(RuntimeError(self._ended))
            self._begun.set()

    def _take(self, answer: Answer) -> None:
        match answer:
            case Ready():
                self._is_ready = True
                self._begun.set()
            case Made(number, info):
                self._running.pop(number).set_result(info)
            case Failed(number, error):
                self._running.pop(number).set_exception(error)
            case Logged(logger, level, text):
                logging.getLogger(logger).log(level, "%s", text)
            case Counts():
                PROGRESS.add(answer)


def _described(exit_code: int) -> str:
    """Return how a process that builds shards has ended.

    >>> _described(-9), _described(1)
    ('one that built shards was ended by SIGKILL', 'one that built shards ended with exit code 1')
    """
    if exit_code < 0:
        return f"one that built shards was ended by {signal.Signals(-exit_code).name}"
    return f"one that built shards ended with exit code {exit_code}"
