"""Build shards in parallel: in threads of this process, and in builder processes.

Threads of one process share the interpreter lock; builder processes do not. A builder process does
not import Beam: it starts in 0.25 s with 67 MB, instead of 0.8 s with 140 MB. It starts while
samples are planned, serves one run, and ends when its connection closes.

The run sends a builder its job, plan, limits and log level, then the spool's file descriptor,
then one task per shard. The builder sends counts, log lines, and one result per task.
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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
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
_OURS = logging.getLogger("beam_tfrec")  # builders send its lines to the run

_PROGRAM = "import sys; from beam_tfrec.transforms.builders import serve; serve(int(sys.argv[1]))"
_STARTS_WITHIN_S = 30.0
_COUNTS_EVERY_S = 0.2
_LOWER = "most often it is memory: lower --bytes_in_flight, or give more; run again to resume"
_SHARD = msgspec.msgpack.Decoder(ShardPlan)


_PROCESSES_OF_OUTPUT: dict[str, list["BuilderProcess"]] = {}
"""Builder processes of each run in this process, by the URI of its output.

The command starts them before it gives the graph to its engine. A cluster's workers have none.
"""


_Build = Callable[[ShardPlan, JobPlan], Future[ShardInfo]]
"""Submits a shard to a builder: to threads of this process, or to a builder process."""


class ShardBuilders:
    """All builders of a run's shards: threads of this process, and the processes of its command.

    They share the run's limits.

    Attributes:
        at_once: number of shards built or uploaded at once.
        readers: number of images that this process reads at once, without its builder processes.
    """

    def __init__(self, limits: GateLimits, job: ShardJob) -> None:
        """Store the limits and the job; threads start with the first shard.

        Args:
            limits: limits of all builders together.
            job: job of the run.
        """
        started = _PROCESSES_OF_OUTPUT.get(job.output, ())
        ready = [process for process in started if process.is_ready()]
        if len(ready) < len(started):
            text = "building with fewer processes: only %d of %d builder processes are ready"
            _LOG.info(text, len(ready), len(started))
        gate = gate_for(replace(limits, processes=1 + len(ready)), job)

        def build_here(shard: ShardPlan, plan: JobPlan) -> Future[ShardInfo]:
            return gate.shard_threads.submit(write_shard, shard, job, plan, gate)

        self.readers = gate.readers
        self.at_once = limits.shards_at_once(overlap_uploads=not is_local(job.output))
        submits = (functools.partial(process.submit, job) for process in ready)
        builders: list[_Build] = [build_here, *submits]
        self._building: dict[_Build, set[Future[ShardInfo]]] = {build: set() for build in builders}
        self._choosing = threading.Lock()

    def submit(self, shard: ShardPlan, plan: JobPlan) -> Future[ShardInfo]:
        """Submit a shard to the least busy builder; of equally busy ones, the first."""
        with self._choosing:
            build = min(self._building, key=lambda build: len(self._building[build]))
            built = build(shard, plan)
            self._building[build].add(built)
        built.add_done_callback(self._building[build].discard)
        return built


@contextlib.contextmanager
def builder_processes(limits: GateLimits, output: str) -> Iterator[None]:
    """Run builder processes for the duration of the context.

    Together with this process there is one per core, but at most `shards_in_flight`.

    Args:
        limits: limits of the run, shared by all its processes.
        output: URI of the run's data set.
    """
    if output in _PROCESSES_OF_OUTPUT:  # another run in this process has started them
        yield
        return
    processes = _PROCESSES_OF_OUTPUT[output] = []
    try:
        number = num_processes(limits)
        try:
            for index in range(1, number):
                shared = replace(limits, processes=number, process_index=index)
                processes.append(BuilderProcess(shared))
        except (OSError, RuntimeError, MemoryError) as error:
            _LOG.info("building with fewer processes: %s", error)
        yield
    finally:
        del _PROCESSES_OF_OUTPUT[output]
        for process in processes:
            process.end()


def num_processes(limits: GateLimits) -> int:
    """Return the number of processes that build shards: the smallest of three limits.

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
    """A builder's result for a task: the written shard, or an error."""

    number: int
    result: ShardInfo | BaseException


class BuilderProcess:
    """A process that builds shards of one run; it ends on request, or with this process."""

    def __init__(self, limits: GateLimits) -> None:
        """Start the process without waiting until it is ready.

        Args:
            limits: limits of the run, shared by `limits.processes` processes.

        Raises:
            OSError: when the process cannot be started.
            RuntimeError: when the listening thread cannot be started.
            MemoryError: when memory is too small for the process or the thread.
        """
        self._limits = limits
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._has_job = False
        self._tasks: dict[int, Future[ShardInfo]] = {}
        self._has_answered = threading.Event()
        self._ended = ""
        self._connection, theirs = Pipe()
        with theirs:
            self._process = _start_process(theirs.fileno())
        self._listener = threading.Thread(target=self._listen, name="shard-builder", daemon=True)
        self._listener.start()

    def is_ready(self) -> bool:
        """Wait until the builder has started, and return whether it can build shards."""
        return self._has_answered.wait(_STARTS_WITHIN_S) and not self._ended

    def submit(self, job: ShardJob, shard: ShardPlan, plan: JobPlan) -> Future[ShardInfo]:
        """Return the future of a shard; job and plan must be the same in every call."""
        future: Future[ShardInfo] = Future()
        future.set_running_or_notify_cancel()  # a submitted task cannot be cancelled
        with self._lock:
            if self._ended:
                future.set_exception(RuntimeError(self._ended))
                return future
            number = next(self._numbers)
            self._tasks[number] = future
            try:
                if not self._has_job:
                    self._send_job(job, plan)
                # Encoding a plan as MessagePack takes a tenth of the time of pickling it.
                self._connection.send((number, msgspec.msgpack.encode(shard)))
            except ConnectionError:
                pass  # the builder has ended; `_listen` fails its tasks
            except Exception as error:
                del self._tasks[number]
                future.set_exception(error)
        return future

    def end(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._process.kill()  # SIGTERM may be ignored, and a stopped process does not handle it
        self._listener.join()
        self._connection.close()

    def _send_job(self, job: ShardJob, plan: JobPlan) -> None:
        spool = job.spool.written_file() if job.spool is not None else None
        self._connection.send((job, plan, self._limits, _OURS.getEffectiveLevel()))
        self._has_job = True
        if spool is not None:
            send_handle(self._connection, spool, self._process.pid)

    def _listen(self) -> None:
        """Receive the builder's messages until it ends, then fail its unfinished tasks."""
        try:
            while True:
                message = self._connection.recv()
                self._has_answered.set()
                self._take(message)
        except (EOFError, OSError):
            pass
        finally:
            self._process.kill()  # needed if listening failed in this process
            ended = f"a builder process {_described_end(self._process.wait())}"
            with self._lock:
                self._ended = fault_line("E-IO-LIMIT", "processes", ended, _LOWER)
                for future in self._tasks.values():
                    future.set_exception(RuntimeError(self._ended))
            self._has_answered.set()

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
    """Start a builder with this process's interpreter, environment and module path."""
    modules = os.pathsep.join(path for path in sys.path if isinstance(path, str))
    return subprocess.Popen(
        [sys.executable or "", "-P", "-c", _PROGRAM, str(connection)],
        pass_fds=[connection],
        env={**os.environ, "PYTHONPATH": modules},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # builders must not hold a pipe on our output open
        stderr=None if _LOG.isEnabledFor(logging.DEBUG) else subprocess.DEVNULL,
        process_group=0,  # Ctrl-C then reaches only this process, which ends its builders
    )


def _described_end(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    return f"was ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"


class _Messages(logging.Handler):
    """Sends a builder's counts, log lines and results to its run."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, *messages: Counts | Logged | BuilderResult) -> None:
        """Send the counts up to now, then the messages."""
        # Without a run there is no connection: the error is ignored, since `serve` ends then.
        with self._sending, contextlib.suppress(ConnectionError):
            counts = PROGRESS.take()  # a shard's counts must arrive before its result
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
        except BaseException:  # such as MemoryError; otherwise the run would wait forever
            os._exit(1)

    def keep_sending_counts(self) -> None:
        """Send counts five times a second, since a large shard takes long."""
        while True:
            time.sleep(_COUNTS_EVERY_S)
            self.send()


def serve(connection: int) -> None:
    """Build shards for the run at the other end of a connection, then end this process."""
    try:
        _serve(Connection(connection))
    except (EOFError, ConnectionError):
        os._exit(0)  # unfinished shards are not visible in the output
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # without waiting for the threads that build


def _serve(connection: Connection) -> None:
    messages = _Messages(connection)
    messages.send(PROGRESS.take())  # the first message says that the builder has started
    threading.Thread(target=messages.keep_sending_counts, daemon=True).start()
    job, plan, limits, level = connection.recv()
    lock = RunLock(job.output)  # held until this process ends, which may be later than the run
    lock.take(alone=False)
    if job.spool is not None:
        job.spool.adopt(recv_handle(connection))
    _OURS.addHandler(messages)
    _OURS.setLevel(level)
    _OURS.propagate = False
    gate = gate_for(limits, job)
    while True:
        number, shard = connection.recv()
        built: Future[ShardInfo]
        try:
            built = gate.shard_threads.submit(write_shard, _SHARD.decode(shard), job, plan, gate)
        except Exception as error:  # such as a thread that cannot be started
            built = Future()
            built.set_exception(error)
        built.add_done_callback(functools.partial(messages.send_built, number))


def _sendable(error: BaseException) -> BaseException:
    """Return the error with its traceback as a note, or a RuntimeError if it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # some libraries' errors cannot be built from their `args`
        return RuntimeError(f"{type(error).__name__}: {error}")
