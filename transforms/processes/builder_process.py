"""A second process that builds shards, and the messages between the two.

The threads of a process share one interpreter, for which they wait. A process beside it imports no
Beam (a fifth of a second, 70 MB), starts while samples are planned, and ends with the connection:
whichever way this process ends, the other one learns of it at once.
"""

import contextlib
import errno
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from typing import NamedTuple

import msgspec

from schemas.faults import fault_line
from schemas.manifest import JobPlan
from schemas.shards import ShardInfo, ShardPlan
from transforms.gate import GateLimits
from transforms.progress import PROGRESS, Counts
from transforms.shard_job import ShardJob

_LOG = logging.getLogger(__name__)

_MODULE = "transforms.processes.build_beside"
_STARTS_WITHIN_S = 30.0
_LOWER = "most often it is memory: lower --bytes_in_flight, or give more; run again to resume"


class Begin(NamedTuple):
    """The first message to a process; if the job has a spool, its file follows.

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
    """A process that builds shards of one run; it ends when asked to, or with this one."""

    def __init__(self, limits: GateLimits, loggers: Sequence[str]) -> None:
        """Start it, and do not wait until it is ready.

        Args:
            limits: of the run; `limits.processes` of them share these.
            loggers: names of those whose lines are to be heard here.

        Raises:
            OSError: when no process can be started.
            RuntimeError: when no thread can be started that listens to it.
            MemoryError: when there is too little for either.
        """
        self._limits = limits
        self._loggers = loggers
        self._asking = threading.Lock()
        self._asked = 0
        self._is_told = False
        self._running: dict[int, Future[ShardInfo]] = {}
        self._is_ready = False
        self._ended = ""  # the line of that, once it has
        self._begun = threading.Event()  # one or the other
        self._listener = threading.Thread(target=self._listen, name=_MODULE, daemon=True)
        self._connection, theirs = Pipe()
        with contextlib.ExitStack() as begun:
            begun.push(self._connection)
            with theirs:
                self._process = start_beside(_MODULE, theirs.fileno())
            begun.callback(self._process.wait)
            begun.callback(self._process.kill)
            self._listener.start()
            begun.pop_all()

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

        Returns:
            What was made of it, or why nothing was.
        """
        future: Future[ShardInfo] = Future()
        future.set_running_or_notify_cancel()  # it cannot be taken back
        with self._asking:
            if self._ended:
                future.set_exception(RuntimeError(self._ended))
                return future
            self._asked += 1
            self._running[self._asked] = future
            try:
                if not self._is_told:
                    self._tell_job(job, plan)
                self._connection.send(Build(self._asked, msgspec.msgpack.encode(shard)))
            except ConnectionError:
                pass  # it has ended, as the listener learns, too
            except Exception as error:
                del self._running[self._asked]
                future.set_exception(error)
        return future

    def end(self) -> None:
        """Have it end, whatever it does, and wait for that."""
        self._process.kill()  # what SIGTERM does may be inherited, or wait until it goes on
        self._listener.join()
        self._connection.close()

    def _tell_job(self, job: ShardJob, plan: JobPlan) -> None:
        spool = job.spool.written_file() if job.spool is not None else None
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in self._loggers}
        self._connection.send(Begin(self._limits, levels, job, plan))
        self._is_told = True
        if spool is not None:
            send_file(self._connection, spool)

    def _listen(self) -> None:
        """Take what it tells, until it has ended."""
        try:
            while True:
                self._take(self._connection.recv())
        except (EOFError, OSError):
            pass
        finally:
            self._process.kill()  # if it was this process that could not listen
            ended = f"one that built shards {described_end(self._process.wait())}"
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


def send_file(connection: Connection, descriptor: int) -> None:
    """Have the process at the other end of a connection open a file, too."""
    with socket.socket(fileno=os.dup(connection.fileno())) as stream:
        socket.send_fds(stream, [b"f"], [descriptor])


def receive_file(connection: Connection) -> int:
    """Return the descriptor of the file that was sent.

    Raises:
        OSError: when it cannot be opened here.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as stream:
        _, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
    if not descriptors:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return descriptors[0]


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
    """Return an error that can be pickled, with its traceback as a note: tracebacks cannot."""
    sent = error
    led_to_it = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # as of libraries whose errors take other arguments than they keep
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(led_to_it)
    return sent
