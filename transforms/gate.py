"""What a worker process shares: its gate, and the counts of its work.

The gate says how many shards, readers and image bytes are in flight.
Whatever the number of bundles a runner gives to a process at once, they share its gate, so that
memory is bounded by the process and not by the data set or by the runner's threads.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from beam_tfrec.transforms.storage import DEFAULT_READERS, DEFAULT_REMOTE_READERS

DEFAULT_SHARDS = 2
DEFAULT_BYTES = 256 * 2**20
_PIXELS_A_WORKER = 1 << 25  # decoded at once: 128 MB, and as much again while they are turned
_BATCHES_BYTES = 2 << 20  # what all readers take at a time, together

T = TypeVar("T")
R = TypeVar("R")
_Batch: TypeAlias = tuple[list[T], int, Future[list[R]] | None]
"""Items, the bytes reserved for them, and their results; None if the caller makes these itself."""


@dataclass(frozen=True)
class GateLimits:
    """The limits of a worker process, or of several that share them on one machine.

    Attributes:
        shards_in_flight: shards built at once; as many more may be on their way to a store.
        bytes_in_flight: image bytes read or being read; one larger image goes alone.
        readers: images read at once; None for a number that suits where they lie.
        workers: images checked and encoded at once; None for the cores of the worker's machine.
        processes: that build shards side by side; each has its part of all these.
        process_index: of this process among them; the first ones get what is left over.
    """

    shards_in_flight: int = DEFAULT_SHARDS
    bytes_in_flight: int = DEFAULT_BYTES
    readers: int | None = None
    workers: int | None = None
    processes: int = 1
    process_index: int = 0

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
        >>> [GateLimits(processes=3, process_index=index).part(5) for index in range(3)]
        [2, 2, 1]
        """
        whole, left_over = divmod(of, self.processes)
        return max(1, whole + (self.process_index < left_over))

    def shards_at_once(self, *, uploads_aside: bool) -> int:
        """Return how many shards may be built or uploaded at once, hence wait in spools."""
        return self.shards_in_flight * (2 if uploads_aside else 1)


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
        shard_threads: the pool whose threads build shards and make them durable.
    """

    def __init__(
        self, limits: GateLimits, *, far: bool = False, uploads_aside: bool = False
    ) -> None:
        """Start nothing yet; threads come with the first work.

        Args:
            limits: of the run; this process has its part of them.
            far: images lie in a store that answers many requests at once, each of them late.
            uploads_aside: as many more shards may be uploaded while others are built. Without it,
                shards that share the readers end at the same time, and readers idle meanwhile.
        """
        workers = limits.part(limits.workers or usable_cores())
        usual = max(workers, limits.part(DEFAULT_REMOTE_READERS if far else DEFAULT_READERS))
        self.readers = limits.part(limits.readers) if limits.readers else usual
        self._bytes = limits.part(limits.bytes_in_flight)
        self.working = threading.BoundedSemaphore(workers)
        self.shards = limits.part(limits.shards_at_once(uploads_aside=uploads_aside))
        self.building = threading.BoundedSemaphore(limits.part(limits.shards_in_flight))
        self.shard_threads = ThreadPoolExecutor(self.shards, "build-shard")
        self._pool = ThreadPoolExecutor(self.readers, "read-image")
        self._reading = threading.BoundedSemaphore(self.readers)  # held by callers that read, too
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

    def in_order(
        self, items: Iterable[T], size_of: Callable[[T], int], make: Callable[[T], R]
    ) -> Iterator[tuple[T, R]]:
        """Yield every item with its result of `make`, in order; threads make results ahead.

        Bytes are reserved before they are read and given back when the consumer has moved on. A
        caller waits for bytes only while it holds none, so that two cannot wait for each other.

        Where as many shards are being built as there are readers, each caller makes its own items,
        which takes a tenth less CPU.
        """

        def make_all(batch: list[T]) -> list[R]:
            with self._reading:
                return [*map(make, batch)]

        pending: deque[_Batch[T, R]] = deque()
        batch_bytes = min(_BATCHES_BYTES, self._bytes) // self.readers
        with self._counting:
            self._consumers += 1
        try:
            for batch, size in _batches(items, size_of, batch_bytes):
                # A batch that the caller makes itself is made before more bytes are reserved.
                while pending and pending[0][2] is None:
                    yield from self._take_first(pending, make)
                while len(pending) >= 2 * self.readers or not self._budget.acquire(
                    size, wait=not pending
                ):
                    yield from self._take_first(pending, make)
                pending.append((batch, size, None))
                if self._consumers != self.readers:  # else as many callers as may read
                    made = self._pool.submit(make_all, batch)
                    pending[-1] = (batch, size, made)
            while pending:
                yield from self._take_first(pending, make)
        finally:
            with self._counting:
                self._consumers -= 1
            for _, size, left in pending:  # an error elsewhere ended the shard
                if left is not None and not left.cancel():
                    left.exception()  # waits until no reader is left
                self._budget.release(size)

    def _take_first(
        self, pending: "deque[_Batch[T, R]]", make: Callable[[T], R]
    ) -> Iterator[tuple[T, R]]:
        items, size, made = pending[0]
        if made is None:
            with self._reading:
                yield from zip(items, map(make, items), strict=True)
        else:
            yield from zip(items, made.result(), strict=True)
        pending.popleft()
        self._budget.release(size)


def _batches(
    items: Iterable[T], size_of: Callable[[T], int], batch_bytes: int
) -> Iterator[tuple[list[T], int]]:
    """Yield items in runs of so many bytes: handing over each alone costs more than its read.

    Where readers are many, since a read takes long, the runs are short.
    """
    batch: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if batch and total + size > batch_bytes:
            yield batch, total
            batch, total = [], 0
        batch.append(item)
        total += size
    if batch:
        yield batch, total
