"""Build shards for another process, by which this module is started, with a connection.

`BuilderProcess` starts it; what is asked and answered stands there.
"""

import contextlib
import functools
import logging
import os
import sys
import threading
import time
import traceback
from concurrent.futures import Future
from multiprocessing.connection import Connection

import msgspec

from schemas.shards import ShardInfo, ShardPlan
from transforms.build_shard import gate_for, write_shard
from transforms.processes.builder_process import (
    Answer,
    Begin,
    Build,
    Failed,
    Logged,
    Made,
    Ready,
    receive_file,
    told_error,
)
from transforms.progress import PROGRESS
from transforms.storage.disk import RunLock

_TOLD_EVERY_S = 0.2

_SHARD = msgspec.msgpack.Decoder(ShardPlan)


class _Teller(logging.Handler):
    """Tells the other process what was made, what was logged, and how far this one is."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._sending = threading.Lock()

    def tell(self, *answers: Answer) -> None:
        """Send the counts, then the result; without a listener, `serve` ends."""
        with self._sending, contextlib.suppress(ConnectionError):
            counts = PROGRESS.take()  # counts must not come after the shard that they belong to
            for answer in (counts, *answers) if any(counts) else answers:
                self._connection.send(answer)

    def emit(self, record: logging.LogRecord) -> None:
        """Tell a line of the log."""
        try:
            self.tell(Logged(record.name, record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)

    def tell_result(self, number: int, built: Future[ShardInfo]) -> None:
        """Tell what was made of a shard."""
        try:
            error = built.exception()
            self.tell(
                Made(number, built.result()) if error is None else Failed(number, told_error(error))
            )
        except BaseException:  # as for want of memory: the other process would wait for ever
            os._exit(1)

    def tell_progress(self) -> None:
        """Tell now and then how far this process has come: a large shard takes a while."""
        while True:
            time.sleep(_TOLD_EVERY_S)
            self.tell()


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
    lock = RunLock(job.output)  # held until this process ends: it may outlive the other one a bit
    lock.take(alone=False)
    if job.spool is not None:
        job.spool.adopt(receive_file(connection))
    for name, level in begin.logged.items():
        logger = logging.getLogger(name)
        logger.addHandler(teller)
        logger.setLevel(level)
        logger.propagate = False
    gate = gate_for(begin.limits, job)
    while True:
        build: Build = connection.recv()
        built: Future[ShardInfo]
        try:
            shard = _SHARD.decode(build.shard)
            built = gate.builders.submit(write_shard, shard, job, plan, gate)
        except Exception as error:  # as for want of threads
            built = Future()
            built.set_exception(error)
        built.add_done_callback(functools.partial(teller.tell_result, build.number))


def main() -> None:
    """Serve the process at the other end of the connection whose descriptor is the argument."""
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, ConnectionError):
        os._exit(0)  # whatever is being built: it stays invisible, or is whole
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # at once: threads that build would be waited for


if __name__ == "__main__":
    main()
