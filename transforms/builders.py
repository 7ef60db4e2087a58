"""Build shards side by side: in threads of this process, and in builder processes next to it.

The threads of a process wait for one interpreter. A builder process imports no Beam (0.25 s and
67 MB instead of 0.8 s and 140 MB), starts while samples are planned, and serves one run. It ends
with its connection, so that it never outlives a run by more than a moment.

The run sends a builder its job, plan, limits and log levels, then the file of its spool, then one
task a shard. The builder sends counts, log lines, and one result a task.
"""

import contextlib
import functools
import itertools
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import NamedTuple

import msgspec

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.manifest import JobPlan
from beam_tfrec.schemas.shards import ShardInfo, ShardPlan
from beam_tfrec.transforms.build_records import ShardJob
from beam_tfrec.transforms.build_shard import gate_for, write_shard
from beam_tfrec.transforms.gate import GateLimits, usable_cores
from beam_tfrec.transforms.progress import PROGRESS, Counts
from beam_tfrec.transforms.storage import is_local
from beam_tfrec.transforms.storage.disk import RunLock

_LOG = logging.getLogger(__name__)

_PROGRAM = "import sys; from beam_tfrec.transforms.builders import serve; serve(int(sys.argv[1]))"
_STARTS_WITHIN_S = 30.0
_COUNTS_EVERY_S = 0.2
_LOWER = "most often it is memory: lower --bytes_in_flight, or give more; run again to resume"
_SHARD = msgspec.msgpack.Decoder(ShardPlan)


_PROCESSES: dict[str, list["BuilderProcess"]] = {}
"""Builder processes by the URI of the output: each serves one run.

The command starts them before it gives the graph to its engine. A cluster's workers have none.
"""


@dataclass
class _Builder:
    """Who builds shards, this process's threads or a builder process, and the unfinished ones."""

    submit: Callable[[ShardPlan, ShardJob, JobPlan], Future[ShardInfo]]
    building: list[Future[ShardInfo]] = field(default_factory=list)

    def num_building(self) -> int:
        self.building = [shard for shard in self.building if not shard.done()]
        return len(self.building)


class ShardBuilders:
    """All builders of a run's shards in this process, within its limits.

    Attributes:
        at_once: shards that are built or made durable at once.
        readers: images that this process itself reads at once.
    """

    def __init__(self, limits: GateLimits, job: ShardJob) -> None:
        """Take the limits of all builders and the job; threads come with the first shard."""
        started = _PROCESSES.get(job.output, ())
        ready = [process for process in started if process.is_ready()]
        if len(ready) < len(started):
            text = "builds shards in fewer processes: of %d next to this one %d are ready"
            _LOG.info(text, len(started), len(ready))
        gate = gate_for(replace(limits, processes=1 + len(ready)), job)

        def build_here(shard: ShardPlan, of: ShardJob, plan: JobPlan) -> Future[ShardInfo]:
            return gate.shard_threads.submit(write_shard, shard, of, plan, gate)

        self.readers = gate.readers
        self.at_once = limits.shards_at_once(uploads_aside=not is_local(job.output))
        self._job = job
        self._builders = [_Builder(build_here), *(_Builder(process.submit) for process in ready)]
        self._choosing = threading.Lock()

    def submit(self, shard: ShardPlan, plan: JobPlan) -> Future[ShardInfo]:
        """Give a shard to the least busy builder, the first of equals."""
        with self._choosing:
            builder = min(self._builders, key=_Builder.num_building)
            built = builder.submit(shard, self._job, plan)
            builder.building.append(built)
        return built


@contextlib.contextmanager
def builder_processes(limits: GateLimits, output: str, loggers: Sequence[str]) -> Iterator[None]:
    """Run builder processes: with this process one a core, at most `shards_in_flight`.

    Args:
        limits: of the run, shared by all.
        output: URI of the run's data set.
        loggers: names of the loggers whose lines are passed on to this process.
    """
    if output in _PROCESSES:  # another run of this process has them
        yield
        return
    processes = _PROCESSES[output] = []
    try:
        number = num_processes(limits)
        try:
            for index in range(1, number):
                shared = replace(limits, processes=number, process_index=index)
                processes.append(BuilderProcess(shared, loggers))
        except (OSError, RuntimeError, MemoryError) as error:
            _LOG.info("builds shards in fewer processes: %s", error)
        yield
    finally:
        del _PROCESSES[output]
        for process in processes:
            process.end()


def num_processes(limits: GateLimits) -> int:
    """Return how many processes build shards, so that each has a part of every limit.

    >>> num_processes(GateLimits(shards_in_flight=4, workers=3, readers=8))
    3
    >>> num_processes(GateLimits(shards_in_flight=4, workers=3, readers=1))
    1
    """
    workers = limits.workers or usable_cores()
    return min(limits.shards_in_flight, workers, limits.readers or workers)


class Logged(NamedTuple):
    """A line of a builder's log."""

    logger: str
    level: int
    text: str


class BuilderResult(NamedTuple):
    """A builder's result: what was made of a task's shard, or why nothing was."""

    number: int
    result: ShardInfo | BaseException


class BuilderProcess:
    """A process that builds shards of one run; it ends when asked to, or with this one."""

    def __init__(self, limits: GateLimits, loggers: Sequence[str]) -> None:
        """Start it, and do not wait until it is ready.

        Args:
            limits: of the run; `limits.processes` of them share these.
            loggers: names of the loggers whose lines are passed on to this process.

        Raises:
            OSError: when no process can be started.
            RuntimeError: when no thread can be started that listens to it.
            MemoryError: when there is too little for either.
        """
        self._limits = limits
        self._loggers = loggers
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._has_job = False
        self._tasks: dict[int, Future[ShardInfo]] = {}
        self._is_ready: Future[bool] = Future()
        self._ended = ""
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _start_process(theirs.fileno())
        self._listener = threading.Thread(target=self._listen, name="shard-builder", daemon=True)
        self._listener.start()

    def is_ready(self) -> bool:
        """Return whether it can build shards, as soon as that is known."""
        try:
            return self._is_ready.result(_STARTS_WITHIN_S)
        except TimeoutError:
            return False

    def submit(self, shard: ShardPlan, job: ShardJob, plan: JobPlan) -> Future[ShardInfo]:
        """Return the future of a shard; job and plan are the same each time."""
        future: Future[ShardInfo] = Future()
        future.set_running_or_notify_cancel()  # a task cannot be taken back
        with self._lock:
            if self._ended:
                future.set_exception(RuntimeError(self._ended))
                return future
            number = next(self._numbers)
            self._tasks[number] = future
            try:
                if not self._has_job:
                    self._send_job(job, plan)
                # MessagePack takes a tenth of the time of pickling a plan.
                self._connection.send((number, msgspec.msgpack.encode(shard)))
            except ConnectionError:
                pass  # it has ended, and the listener fails its tasks
            except Exception as error:
                del self._tasks[number]
                future.set_exception(error)
        return future

    def end(self) -> None:
        """End it, whatever it does, and wait for that."""
        self._process.kill()  # a SIGTERM may be ignored, or wait while it is stopped
        self._listener.join()
        self._connection.close()

    def _send_job(self, job: ShardJob, plan: JobPlan) -> None:
        spool = job.spool.written_file() if job.spool is not None else None
        levels = {name: logging.getLogger(name).getEffectiveLevel() for name in self._loggers}
        self._connection.send((job, plan, self._limits, levels))
        self._has_job = True
        if spool is not None:
            send_handle(self._connection, spool, self._process.pid)

    def _listen(self) -> None:
        """Take its messages until it has ended, then fail its unfinished tasks."""
        try:
            while True:
                message = self._connection.recv()
                if not self._is_ready.done():
                    self._is_ready.set_result(True)
                self._take(message)
        except (EOFError, OSError):
            pass
        finally:
            self._process.kill()  # if it was this process that could not listen
            ended = f"one that built shards {_described_end(self._process.wait())}"
            with self._lock:
                self._ended = fault_line("E-IO-LIMIT", "processes", ended, _LOWER)
                for future in self._tasks.values():
                    future.set_exception(RuntimeError(self._ended))
            if not self._is_ready.done():
                self._is_ready.set_result(False)

    def _take(self, message: Counts | Logged | BuilderResult) -> None:
        match message:
            case Counts():
                PROGRESS.add(message)
            case Logged(logger, level, text):
                logging.getLogger(logger).log(level, "%s", text)
            case BuilderResult(number, ShardInfo() as info):
                self._tasks.pop(number).set_result(info)
            case BuilderResult(number, BaseException() as error):
                self._tasks.pop(number).set_exception(error)


def _start_process(connection: int) -> "subprocess.Popen[bytes]":
    """Start a builder with this process's interpreter, environment and modules."""
    modules = os.pathsep.join(path for path in sys.path if isinstance(path, str))
    return subprocess.Popen(
        [sys.executable or "", "-P", "-c", _PROGRAM, str(connection)],
        pass_fds=[connection],
        env={**os.environ, "PYTHONPATH": modules},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a reader of this process's output need not wait for builders
        stderr=None if _LOG.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for this process, which ends its builders
    )


def _described_end(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"


class _Messages(logging.Handler):
    """A builder's messages to its run."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, *messages: Counts | Logged | BuilderResult) -> None:
        """Send messages after the counts up to now; without a run, `serve` ends."""
        with self._sending, contextlib.suppress(ConnectionError):
            counts = PROGRESS.take()  # a shard's counts must not come after its result
            for message in (counts, *messages) if any(counts) else messages:
                self._connection.send(message)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.send(Logged(record.name, record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)

    def send_built(self, number: int, built: Future[ShardInfo]) -> None:
        try:
            error = built.exception()
            self.send(BuilderResult(number, built.result() if error is None else _sendable(error)))
        except BaseException:  # such as too little memory: the run would wait for ever
            os._exit(1)

    def keep_sending_counts(self) -> None:
        """Send counts now and then: a large shard takes a while."""
        while True:
            time.sleep(_COUNTS_EVERY_S)
            self.send()


def serve(connection: int) -> None:
    """Build shards for the run at the other end of a connection, then end this process."""
    try:
        _serve(Connection(connection))
    except (EOFError, ConnectionError):
        os._exit(0)  # unfinished shards stay invisible
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # now, not after the threads that build


def _serve(connection: Connection) -> None:
    messages = _Messages(connection)
    messages.send(PROGRESS.take())  # the first message: it has started
    threading.Thread(target=messages.keep_sending_counts, daemon=True).start()
    job, plan, limits, levels = connection.recv()
    lock = RunLock(job.output)  # held until this process ends, which may be after the run
    lock.take(alone=False)
    if job.spool is not None:
        job.spool.adopt(recv_handle(connection))
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.addHandler(messages)
        logger.setLevel(level)
        logger.propagate = False
    gate = gate_for(limits, job)
    while True:
        number, shard = connection.recv()
        built: Future[ShardInfo]
        try:
            built = gate.shard_threads.submit(write_shard, _SHARD.decode(shard), job, plan, gate)
        except Exception as error:  # such as no more threads
            built = Future()
            built.set_exception(error)
        built.add_done_callback(functools.partial(messages.send_built, number))


def _sendable(error: BaseException) -> BaseException:
    """Return an error that can be pickled, with its traceback as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # some libraries' errors take other arguments than they keep
        return RuntimeError(f"{type(error).__name__}: {error}")
