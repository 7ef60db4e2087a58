"""Build shards for another process: `python -m transforms.build_beside`, with a connection.

`BuilderProcess` starts it; what is asked and answered stands there.
"""

import contextlib
import functools
import logging
import os
import pickle
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import msgspec

from schemas.shards import ShardInfo, ShardPlan
from transforms.build_shard import gate_for, write_shard
from transforms.builder_process import Answer, Begin, Build, Failed, Logged, Made, Ready
from transforms.process_memory import keep_freed_memory
from transforms.progress import PROGRESS

_TOLD_EVERY_S = 0.2

_SHARD = msgspec.msgpack.Decoder(ShardPlan)


class _Teller(logging.Handler):
    """Tells the other process what was made, what was logged, and how far this one is."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._sending = threading.Lock()

    def tell(self, *answers: Answer) -> None:
        """Tell something; when nobody listens any more, `serve` ends."""
        with self._sending, contextlib.suppress(OSError):
            for answer in answers:
                self._connection.send(answer)

    def emit(self, record: logging.LogRecord) -> None:
        """Tell a line of the log."""
        self.tell(Logged(record.name, record.levelno, record.getMessage()))

    def tell_result(self, number: int, built: Future[ShardInfo]) -> None:
        """Tell what was made of a shard, and first what was counted on the way."""
        error = built.exception()
        result = Made(number, built.result()) if error is None else _failed(number, error)
        self.tell(PROGRESS.take(), result)

    def tell_progress(self) -> None:
        """Tell now and then how far this process has come: a large shard takes a while."""
        while True:
            time.sleep(_TOLD_EVERY_S)
            self.tell(PROGRESS.take())


def serve(connection: Connection) -> None:
    """Build what is asked for, until the other process has ended.

    Raises:
        EOFError: then.
    """
    teller = _Teller(connection)
    threading.Thread(target=teller.tell_progress, daemon=True).start()
    teller.tell(Ready())
    begin: Begin = connection.recv()
    job, plan = begin.job, begin.plan
    if job.spool is not None:
        job.spool.adopt(recv_handle(connection))
    for name, level in begin.logged.items():
        logger = logging.getLogger(name)
        logger.addHandler(teller)
        logger.setLevel(level)
        logger.propagate = False
    gate = gate_for(begin.limits, job)
    while True:
        build: Build = connection.recv()
        shard = _SHARD.decode(build.shard)
        built = gate.builders.submit(write_shard, shard, job, plan, gate)
        built.add_done_callback(functools.partial(teller.tell_result, build.number))


def _failed(number: int, error: BaseException) -> Failed:
    """Return an error as it can be told, with its traceback, which does not travel."""
    told = error
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # as of libraries whose errors take other arguments than they keep
        told = RuntimeError(f"{type(error).__name__}: {error}")
    told.add_note("".join(traceback.format_tb(error.__traceback__)))
    return Failed(number, told)


def main() -> None:
    """Serve the process at the other end of the connection whose descriptor is the argument."""
    keep_freed_memory()
    with contextlib.suppress(EOFError, ConnectionError):
        serve(Connection(int(sys.argv[1])))
    os._exit(0)  # whatever is being built: it stays invisible, or is whole


if __name__ == "__main__":
    main()
