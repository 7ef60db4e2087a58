"""One gate per worker process: how many shards, readers and image bytes are in flight.

Whatever the number of bundles a runner gives to a process at once, they share its gate, so that
memory is bounded by the process and not by the data set or by the runner's threads.
"""

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from transforms.storage import DEFAULT_READERS, DEFAULT_REMOTE_READERS

DEFAULT_SHARDS = 2
DEFAULT_BYTES = 256 * 2**20
_PIXELS_A_WORKER = 1 << 25  # decoded at once: 128 MB, and as much again while they are turned
_BATCHES_BYTES = 2 << 20  # what all readers take at a time, together

T = TypeVar("T")
C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True)
class GateLimits:
    """The limits of a worker process, or of several that share them on one machine.

    Attributes:
        shards_in_flight: shards built at once; as many more may be on their way to a store.
        bytes_in_flight: image bytes read or being read; one larger image goes alone.
        readers: images read at once; None for a number that suits where they lie.
        workers: images checked and encoded at once; None for the cores of the worker's machine.
        processes: that build shards side by side; each has its part of all these.
        place: of this process among them, from 0; what is left over goes to the first ones.
    """

    shards_in_flight: int = DEFAULT_SHARDS
    bytes_in_flight: int = DEFAULT_BYTES
    readers: int | None = None
    workers: int | None = None
    processes: int = 1
    place: int = 0

    def __post_init__(self) -> None:
        """Refuse limits under which nothing could run."""
        for name in ("shards_in_flight", "bytes_in_flight", "readers", "workers", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}: give a larger number")

    def part(self, of: int) -> int:
        """Return a process's part of a number, at least one.

        >>> GateLimits(processes=2).part(64), GateLimits(processes=2).part(1)
        (32, 1)
        >>> [GateLimits(processes=3, place=place).part(5) for place in range(3)]
        [2, 2, 1]
        """
        whole, left_over = divmod(of, self.processes)
        return max(1, whole + (self.place < left_over))

    def shards_at_once(self, *, uploads_aside: bool) -> int:
        """Return how many shards may be built or uploaded at once, hence wait in spools."""
        return self.shards_in_flight * (2 if uploads_aside else 1)


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Slots:
    """A fixed number of slots, like `threading.Semaphore`.

    That class is pure Python: taken twice an image, it cost 26,000 more instructions.
    """

    def __init__(self, number: int) -> None:
        """Take how many there are."""
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(number):
            self._free.put(None)

    def __enter__(self) -> None:
        """Wait for a free one."""
        self._free.get()

    def __exit__(self, *_: object) -> None:
        """Give it back."""
        self._free.put(None)


class ByteBudget:
    """A semaphore of bytes, or of pixels; what exceeds the whole budget is let in alone."""

    def __init__(self, limit: int) -> None:
        """Take the limit in bytes."""
        self._limit = limit
        self._used = 0
        self._freed = threading.Condition()

    def acquire(self, size: int, *, wait: bool) -> bool:
        """Reserve bytes; without `wait`, False when they are not free now."""
        with self._freed:
            while self._used and self._used + size > self._limit:
                if not wait:
                    return False
                self._freed.wait()
            self._used += size
            return True

    def release(self, size: int) -> None:
        """Give bytes back."""
        with self._freed:
            self._used -= size
            self._freed.notify_all()


class WorkerGate:
    """The pools and the budget that all shards of a process share.

    Attributes:
        readers: images read at once.
        working: held while an image is checked and encoded.
        shards: built or made durable at once.
        building: held while a shard is built, not while it is uploaded.
        builders: the threads that build shards and make them durable.
    """

    def __init__(
        self, limits: GateLimits, *, far: bool = False, uploads_aside: bool = False
    ) -> None:
        """Start nothing yet; threads come with the first work.

        Args:
            limits: of the run; this process has its part of them.
            far: images lie in a store that answers many requests at once, each of them late.
            uploads_aside: as many shards as are built may be uploaded beside them. Else shards that
                share the readers are finished together, uploaded together, and nobody reads.
        """
        self._workers = workers = limits.part(limits.workers or usable_cores())
        usual = max(workers, limits.part(DEFAULT_REMOTE_READERS if far else DEFAULT_READERS))
        self.readers = limits.part(limits.readers) if limits.readers else usual
        self._bytes = limits.part(limits.bytes_in_flight)
        self.working = Slots(workers)
        self.shards = limits.part(limits.shards_at_once(uploads_aside=uploads_aside))
        self.building = threading.BoundedSemaphore(limits.part(limits.shards_in_flight))
        self.builders = ThreadPoolExecutor(self.shards, "build-shard")
        self._readers = ThreadPoolExecutor(self.readers, "read-image")
        self._reading = Slots(self.readers)  # also by callers for themselves
        self._budget = ByteBudget(self._bytes)
        self._pixels = ByteBudget(workers * _PIXELS_A_WORKER)
        self._consumers = 0
        self._counting = threading.Lock()

    @contextlib.contextmanager
    def decoding(self, pixels: int) -> Iterator[None]:
        """Wait until so many pixels may be decoded; a larger picture goes alone.

        Called with `working` held: whoever holds pixels has that already, and goes on.
        """
        self._pixels.acquire(pixels, wait=True)
        try:
            yield
        finally:
            self._pixels.release(pixels)

    def read_in_order(
        self,
        items: Iterable[T],
        size_of: Callable[[T], int],
        read: Callable[[T], C],
        make: Callable[[T, C], R],
    ) -> Iterator[tuple[T, R]]:
        """Yield every item with what `make` makes of what `read` gives, in order, read ahead.

        Bytes are reserved before they are read and given back when the consumer has moved on. A
        caller waits for bytes only while it holds none, so that two cannot wait for each other.

        There are three modes. With as many shards as readers, each caller reads and makes its own
        images: an image stays on one core, and no more threads than cores want the interpreter.
        With fewer shards than workers, reader threads do both. Else readers read, callers make.
        """
        pending: deque[_Reading[T, R]] = deque()
        ahead = 2 * self.readers
        at_once = min(_BATCHES_BYTES, self._bytes) // self.readers
        with self._consuming():
            try:
                for batch, size in _batches(items, size_of, at_once):
                    while pending and pending[0].begun is None:
                        yield from self._take_first(pending)
                    while len(pending) >= ahead or not self._budget.acquire(size, wait=not pending):
                        yield from self._take_first(pending)
                    pending.append(self._begin(batch, size, read, make))
                while pending:
                    yield from self._take_first(pending)
            finally:
                for reading in pending:  # an error elsewhere ended the shard
                    reading.end()
                    self._budget.release(reading.size)

    def _begin(
        self,
        batch: list[T],
        size: int,
        read: Callable[[T], C],
        make: Callable[[T, C], R],
    ) -> "_Reading[T, R]":
        """Give a batch to the readers, unless the callers are all the readers there may be."""

        def read_in_turn(item: T) -> C:
            with self._reading:
                return read(item)

        def read_and_make(item: T) -> R:
            with self._reading:
                return make(item, read(item))

        if self._consumers == self.readers:
            return _Reading(batch, size, None, lambda: map(read_and_make, batch))
        try:
            if self._consumers < self._workers:
                made = self._readers.submit(_do_all, read_and_make, batch)
                return _Reading(batch, size, made, made.result)
            contents = self._readers.submit(_do_all, read_in_turn, batch)
            return _Reading(batch, size, contents, lambda: map(make, batch, contents.result()))
        except RuntimeError:  # no more threads: the next bundle finds its bytes free
            self._budget.release(size)
            raise

    def _take_first(self, pending: "deque[_Reading[T, R]]") -> Iterator[tuple[T, R]]:
        first = pending[0]
        yield from zip(first.batch, first.results(), strict=True)
        pending.popleft()
        self._budget.release(first.size)

    @contextlib.contextmanager
    def _consuming(self) -> Iterator[None]:
        with self._counting:
            self._consumers += 1
        try:
            yield
        finally:
            with self._counting:
                self._consumers -= 1


@dataclass(frozen=True)
class _Reading(Generic[T, R]):
    """Items that one reader takes in one go, and the bytes reserved for them.

    Attributes:
        batch: the items.
        size: their bytes.
        begun: what a reader does with them; None where the caller does it when their turn has come.
        results: gives what is made of them: waits for the reader, then makes what it has not made.
    """

    batch: list[T]
    size: int
    begun: Future | None
    results: Callable[[], Iterable[R]]

    def end(self) -> None:
        """Wait until no reader is left."""
        if self.begun is not None:
            self.begun.cancel() or self.begun.exception()


def _batches(
    items: Iterable[T], size_of: Callable[[T], int], at_once: int
) -> Iterator[tuple[list[T], int]]:
    """Yield items in runs of so many bytes: handing over each alone costs more than its read.

    Where readers are many, since a read takes long, the runs are short.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and total + size > at_once:
            yield batch, total
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch, total


def _do_all(step: Callable[[T], R], batch: Iterable[T]) -> list[R]:
    return [step(item) for item in batch]
