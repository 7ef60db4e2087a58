"""Limits of a worker process: its gate bounds the shards, readers and image bytes in flight.

All bundles that a runner gives to a process share its gate. So memory does not depend on the size
of the data set or on the runner's threads.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from beam_tfrec.schemas.faults import require_at_least
from beam_tfrec.transforms.storage import DEFAULT_READERS, DEFAULT_REMOTE_READERS

_PIXELS_A_WORKER = 1 << 25  # pixels decoded at once: 128 MB, and twice that while turned
_BATCHES_BYTES = 2 << 20  # size of the batches of all readers together

T = TypeVar("T")
R = TypeVar("R")
_Batch: TypeAlias = tuple[list[T], int, Future[list[R]]]
"""Items, bytes reserved for them, and the future of their results."""


@dataclass(frozen=True)
class GateLimits:
    """Limits of a worker process, or of several processes that share them on one machine.

    Attributes:
        shards_in_flight: shards built at once; the same number may be uploading.
        bytes_in_flight: image bytes held or being read; an image above the limit is read alone.
        readers: images read at once; None for a default, which depends on local or remote images.
        workers: images checked and encoded at once; None for the number of usable cores.
        processes: number of processes that share the limits above.
        process_index: index of this process; the remainder of each division goes to the first.
    """

    shards_in_flight: int = 2
    bytes_in_flight: int = 256 * 2**20
    readers: int | None = None
    workers: int | None = None
    processes: int = 1
    process_index: int = 0

    def __post_init__(self) -> None:
        """Refuse limits below 1."""
        for name in ("shards_in_flight", "bytes_in_flight", "readers", "workers", "processes"):
            require_at_least(1, **{name: getattr(self, name)})

    def part(self, of: int) -> int:
        """Return this process's part of a number, at least one.

        >>> GateLimits(processes=2).part(64), GateLimits(processes=2).part(1)
        (32, 1)
        >>> [GateLimits(processes=3, process_index=index).part(5) for index in range(3)]
        [2, 2, 1]
        """
        whole, left_over = divmod(of, self.processes)
        return max(1, whole + (self.process_index < left_over))

    def shards_at_once(self, *, overlap_uploads: bool) -> int:
        """Return how many shards may be built or uploaded at once; each has a temporary file."""
        return self.shards_in_flight * (2 if overlap_uploads else 1)


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ByteBudget:
    """A semaphore of bytes or pixels; a request above the whole budget is granted alone."""

    def __init__(self, limit: int) -> None:
        """Store the limit, in bytes or pixels."""
        self._limit = limit
        self._used = 0
        self._freed = threading.Condition()

    def acquire(self, size: int, *, wait: bool) -> bool:
        """Reserve bytes, and return True; without `wait`, return False if they are not free."""
        with self._freed:
            while self._used and self._used + size > self._limit:
                if not wait:
                    return False
                self._freed.wait()
            self._used += size
            return True

    def release(self, size: int) -> None:
        """Return reserved bytes to the budget."""
        with self._freed:
            self._used -= size
            self._freed.notify_all()


class WorkerGate:
    """Thread pools, semaphores and budgets that all shards of a process share.

    Attributes:
        readers: number of threads that each read an image and make its record.
        working: semaphore that these threads hold while they check and encode.
        building: semaphore held while a shard is built, but not while it is uploaded.
        shard_threads: pool of threads that build and upload shards.
    """

    def __init__(
        self, limits: GateLimits, *, remote: bool = False, overlap_uploads: bool = False
    ) -> None:
        """Make pools; their threads start with the first work.

        Args:
            limits: limits of the run; this process gets its part.
            remote: whether images are remote: high latency, many requests at once.
            overlap_uploads: whether to build other shards during an upload. Without it,
                readers idle while all shards upload at once.
        """
        workers = limits.part(limits.workers or usable_cores())
        usual = max(workers, limits.part(DEFAULT_REMOTE_READERS if remote else DEFAULT_READERS))
        self.readers = limits.part(limits.readers) if limits.readers else usual
        self._bytes = limits.part(limits.bytes_in_flight)
        self.working = threading.BoundedSemaphore(workers)
        shards = limits.part(limits.shards_at_once(overlap_uploads=overlap_uploads))
        self.building = threading.BoundedSemaphore(limits.part(limits.shards_in_flight))
        self.shard_threads = ThreadPoolExecutor(shards, "build-shard")
        self._pool = ThreadPoolExecutor(self.readers, "make-record")
        self._budget = ByteBudget(self._bytes)
        self._pixels = ByteBudget(workers * _PIXELS_A_WORKER)

    @contextlib.contextmanager
    def decoding(self, pixels: int) -> Iterator[None]:
        """Reserve pixels for the context; an image above the whole budget is decoded alone.

        Callers must hold `working`. Then the threads that hold pixels never wait for `working`.
        """
        self._pixels.acquire(pixels, wait=True)
        try:
            yield
        finally:
            self._pixels.release(pixels)

    def in_order(
        self, items: Iterable[T], size_of: Callable[[T], int], make: Callable[[T], R]
    ) -> Iterator[tuple[T, R]]:
        """Yield every item with its result of `make`, in order; reader threads work ahead.

        Bytes are reserved before an item is read, and released after the consumer has used it. A
        caller waits for bytes only while it holds none, so that two cannot wait for each other.
        """

        pending: deque[_Batch[T, R]] = deque()
        batch_bytes = min(_BATCHES_BYTES, self._bytes) // self.readers
        try:
            for batch, size in batches(items, size_of, batch_bytes):
                while len(pending) >= 2 * self.readers or not self._budget.acquire(
                    size, wait=not pending
                ):
                    yield from self._take_first(pending)
                pending.append((batch, size, self._pool.submit(list, map(make, batch))))
            while pending:
                yield from self._take_first(pending)
        finally:
            for _, size, left in pending:  # not empty only after an error
                if not left.cancel():
                    left.exception()  # wait until the reader has ended
                self._budget.release(size)

    def _take_first(self, pending: "deque[_Batch[T, R]]") -> Iterator[tuple[T, R]]:
        items, size, made = pending[0]
        yield from zip(items, made.result(), strict=True)
        pending.popleft()
        self._budget.release(size)


def batches(
    items: Iterable[T], size_of: Callable[[T], int], batch_bytes: int
) -> Iterator[tuple[list[T], int]]:
    """Yield items in batches of a size; submitting each item alone costs more than reading it."""
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
