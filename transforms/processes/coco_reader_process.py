"""A process that reads COCO files beside this one, and what the two tell each other.

A command begins it before Beam is imported (`pipelines/start.py`): by the time there is a graph, a
long file is parsed. Then its samples are made there while they are batched here. It ends with the
connection, whichever way this process ends.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Pipe
from typing import NamedTuple

import msgspec

from schemas.faults import Rejected, fault_line
from schemas.samples import Sample
from transforms.gate import usable_cores
from transforms.processes.process_beside import described_end, start_beside
from transforms.sources.coco_reading import CocoReading, Item
from transforms.sources.split_sources import SplitSource

_LOG = logging.getLogger(__name__)
_MODULE = "transforms.processes.read_coco_beside"
_SAMPLES = msgspec.msgpack.Decoder(list[Sample])
_LOWER = "most often it is memory: give more, then run again to resume"


class Ask(NamedTuple):
    """A split whose files are to be read."""

    split: str
    uris: tuple[str, ...]
    reading: CocoReading


class Begun(NamedTuple):
    """It reads what was asked for."""


class Part(NamedTuple):
    """Some of what it has read.

    Attributes:
        samples: MessagePack of a list of them.
        others: what is no sample.
    """

    samples: bytes
    others: list[Rejected | SplitSource]


class Failed(NamedTuple):
    """Why it reads no further."""

    error: BaseException


class Finished(NamedTuple):
    """It has read what was asked for."""


Answer = Begun | Part | Failed | Finished


class CocoReaderProcess:
    """A process that reads COCO files; it ends when it is told to, or with this one."""

    def __init__(self, uris: Sequence[str]) -> None:
        """Start it, and have it read files ahead of time.

        Raises:
            OSError: when no process can be started.
        """
        with contextlib.ExitStack() as begun:
            self._connection, theirs = Pipe()
            begun.push(self._connection)
            with theirs:
                self._process = start_beside(_MODULE, theirs.fileno())
            begun.callback(self._process.wait)
            begun.callback(self._process.kill)
            self._connection.send(list(uris))
            begun.pop_all()

    def begins(self, ask: Ask) -> bool:
        """Ask it to read files; return whether it does, once that is known."""
        try:
            self._connection.send(ask)
            return isinstance(self._connection.recv(), Begun)
        except (EOFError, OSError) as error:
            _LOG.info("the process beside this one reads nothing: %r", error)
            return False

    def items(self) -> Iterator[Item]:
        """Yield what it reads of the files that it was asked for last.

        Raises:
            RuntimeError: `E-IO-LIMIT` when it has ended before it was through.
            Exception: what was raised there.
        """
        while True:
            match self._answer():
                case Part(samples, others):
                    yield from _SAMPLES.decode(samples)
                    yield from others
                case Failed(error):
                    raise error
                case Finished():
                    return

    def end(self) -> None:
        """Have it end, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def _answer(self) -> Answer:
        try:
            answer: Answer = self._connection.recv()
        except (EOFError, OSError):
            ended = described_end(self._process.wait())
            what = f"one that read annotations {ended}"
            raise RuntimeError(fault_line("E-IO-LIMIT", "processes", what, _LOWER)) from None
        return answer


_BESIDE: list[CocoReaderProcess] = []
"""The one beside this process, if there is one."""


def begin_reading(uris: Sequence[str]) -> None:
    """Have files read beside this process, ahead of time, if there is a core for another one."""
    if usable_cores() < 2:
        return
    try:
        _BESIDE.append(CocoReaderProcess(uris))
    except (OSError, MemoryError) as error:
        _LOG.info("reads in one process: %s", error)


def end_reading() -> None:
    """End the process beside this one, if there is one."""
    while _BESIDE:
        _BESIDE.pop().end()


def read_split(reading: CocoReading, split: str, uris: Sequence[str]) -> Iterator[Item]:
    """Yield what the files of a split hold, read beside this process or, where none is, in it.

    Raises:
        RuntimeError: what `CocoReading.read` raises; `E-IO-LIMIT` when the process has ended.
    """
    if _BESIDE and _BESIDE[0].begins(Ask(split, tuple(uris), reading)):
        yield from _BESIDE[0].items()
    else:
        yield from reading.read(split, uris, {})
