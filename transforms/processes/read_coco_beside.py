"""Read COCO files for another process, by which this module is started, with a connection.

`CocoReaderProcess` starts it; what is asked and answered stands there.
"""

import contextlib
import os
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from schemas.faults import Rejected
from schemas.samples import Sample
from transforms.processes.coco_reader_process import Ask, Begun, Failed, Finished, Part
from transforms.processes.process_beside import told_error
from transforms.processes.process_memory import keep_freed_memory, spare_the_collector
from transforms.sources.coco_reading import AheadOfTime, Item, read_ahead
from transforms.sources.split_sources import SplitSource

_SAMPLES_AT_ONCE = 256
_PACK = msgspec.msgpack.Encoder().encode


def parts_of(items: Iterable[Item]) -> Iterator[Part]:
    """Yield what was read, many at a time."""
    samples: list[Sample] = []
    others: list[Rejected | SplitSource] = []
    for item in items:
        if isinstance(item, Sample):
            samples.append(item)
        else:
            others.append(item)
        if len(samples) + len(others) == _SAMPLES_AT_ONCE:
            yield Part(_PACK(samples), others)
            samples, others = [], []
    yield Part(_PACK(samples), others)


def serve(connection: Connection) -> None:
    """Read what is asked for, until the other process has ended, and this one with it."""
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, asked), daemon=True).start()
    ahead: dict[str, AheadOfTime] = {}
    files: list[str] = asked.get()
    while True:
        if files and asked.empty():
            uri = files.pop(0)
            with contextlib.suppress(Exception):  # a fault is told when the file is asked for
                ahead[uri] = read_ahead(uri)
            continue
        ask: Ask = asked.get()
        files = [uri for uri in files if uri not in ask.uris]
        connection.send(Begun())
        try:
            for part in parts_of(ask.reading.read(ask.split, ask.uris, ahead)):
                connection.send(part)
        except ConnectionError:
            raise
        except Exception as error:
            connection.send(Failed(told_error(error)))
        else:
            connection.send(Finished())


def _listen(connection: Connection, asked: queue.SimpleQueue[Any]) -> None:
    """Take what is asked for; nobody waits for what a process that has ended asked for."""
    try:
        while True:
            asked.put(connection.recv())
    finally:
        os._exit(0)


def main() -> None:
    """Serve the process at the other end of the connection whose descriptor is the argument."""
    spare_the_collector()
    keep_freed_memory()
    with Connection(int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
