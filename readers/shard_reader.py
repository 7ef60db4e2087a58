"""Read parts of shards: several at once, in order, and never more than a budget of bytes ahead."""

import array
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from readers.data_sets import DataSets, ListedShard, read_keys, read_offsets
from transforms.storage import Storage, is_local, open_storage

SPAN_BYTES = 4 << 20
"""Of neighbouring records that are read at once; a larger record is read alone."""

LOCAL_SPAN_BYTES = 1 << 20
"""Likewise, of files of this machine: what fits into a processor's cache."""

GAP_BYTES = 64 << 10
"""Between two records that are read at once although nobody asked for what lies between."""

AHEAD_BYTES = 64 << 20
"""Of spans that are being read, or wait for their turn; a larger one is read alone."""

_LOCAL_THREADS = 16
_REMOTE_THREADS = 64  # at 30 ms a request, two thousand of them a second
_SLOW_S = 0.005  # of a span; what comes sooner is handed to a thread in vain
_SLOW_IN_A_ROW = 3  # spans; one alone says that the machine is busy


class Member(NamedTuple):
    """A record to be read.

    Attributes:
        shard: place of its shard.
        number: of the record in the shard.
        position: of the record in what was asked for.
    """

    shard: int
    number: int
    position: int


class Span(NamedTuple):
    """Records of a shard that are read at once.

    Attributes:
        shard: place of the shard.
        start: its first byte in the file.
        end: the byte behind it.
        members: that lie in it.
    """

    shard: int
    start: int
    end: int
    members: list[Member]


class ShardReader:
    """The shards of a split, as one process reads them, with any number of threads."""

    def __init__(self, data_sets: DataSets, shards: Sequence[ListedShard]) -> None:
        """Take the shards; nothing is read yet."""
        self.pid = os.getpid()
        self._shards = shards
        self._storages: list[Storage] = [
            open_storage(root, data_sets.access) for root in data_sets.roots
        ]
        self._is_local = all(map(is_local, data_sets.roots))
        self._threads = _LOCAL_THREADS if self._is_local else _REMOTE_THREADS
        self._span_bytes = LOCAL_SPAN_BYTES if self._is_local else SPAN_BYTES
        self._offsets: dict[int, array.array] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def offsets(self, shard: int) -> array.array:
        """Return where a shard's records begin, and the last one ends; see `read_offsets`."""
        found = self._offsets.get(shard)
        if found is None:
            listed = self._shards[shard]
            found = self._offsets[shard] = read_offsets(listed.file, self._storage(listed))
        return found

    def load_offsets(self, shards: Iterable[int]) -> None:
        """Read the indexes of several shards at once, those that are not known yet."""
        missing = [shard for shard in shards if shard not in self._offsets]
        if len(missing) > 1:
            deque(self._executor().map(self.offsets, missing), maxlen=0)

    def keys(self, shards: Iterable[int]) -> Iterator[list[str]]:
        """Yield the keys of the records of each shard."""
        listed = [self._shards[shard] for shard in shards]
        for start in range(0, len(listed), self._threads):
            part = listed[start : start + self._threads]
            yield from self._executor().map(
                lambda shard: read_keys(shard.file, self._storage(shard)), part
            )

    def read(self, shard: int, start: int, end: int) -> bytes:
        """Return bytes of a shard, as it was listed.

        Raises:
            RuntimeError: `E-SRC-CHANGED` when it is not that one any more.
        """
        listed = self._shards[shard]
        storage = self._storage(listed)
        return storage.read(listed.entry.name, listed.entry, (start, end))

    def spans(self, members: Iterable[Member]) -> Iterator[Span]:
        """Yield what is to be read for records, neighbours together.

        Args:
            members: of which neighbours must come one after the other, by rising number.
        """
        span: Span | None = None
        for member in members:
            offsets = self.offsets(member.shard)
            start, end = offsets[member.number], offsets[member.number + 1]
            if span is not None and self._may_join(span, member.shard, start, end):
                span.members.append(member)
                span = span._replace(end=max(span.end, end))
                continue
            if span is not None:
                yield span
            span = Span(member.shard, start, end, [member])
        if span is not None:
            yield span

    def read_spans(self, spans: Iterable[Span]) -> Iterator[tuple[Span, bytes]]:
        """Yield spans with their bytes, in order.

        Several are read at once, but where files of this machine come from its page cache.
        """
        source = iter(spans)
        slow = 0 if self._is_local else _SLOW_IN_A_ROW
        while slow < _SLOW_IN_A_ROW:
            span = next(source, None)
            if span is None:
                return
            started_s = time.perf_counter()
            data = self.read(span.shard, span.start, span.end)
            slow = slow + 1 if time.perf_counter() - started_s > _SLOW_S else 0
            yield span, data
        yield from self._read_ahead(source)

    def _read_ahead(self, source: Iterator[Span]) -> Iterator[tuple[Span, bytes]]:
        waiting: deque[tuple[Span, Future[bytes]]] = deque()
        ahead_bytes = 0
        upcoming = next(source, None)
        try:
            while waiting or upcoming is not None:
                while upcoming is not None and (
                    not waiting
                    or (
                        len(waiting) < self._threads
                        and ahead_bytes + upcoming.end - upcoming.start <= AHEAD_BYTES
                    )
                ):
                    bounds = upcoming.shard, upcoming.start, upcoming.end
                    waiting.append((upcoming, self._executor().submit(self.read, *bounds)))
                    ahead_bytes += upcoming.end - upcoming.start
                    upcoming = next(source, None)
                span, future = waiting.popleft()
                yield span, future.result()
                ahead_bytes -= span.end - span.start
        finally:
            for _, future in waiting:
                future.cancel()

    def _may_join(self, span: Span, shard: int, start: int, end: int) -> bool:
        """Return whether a record is read together with those before it."""
        return (
            shard == span.shard
            and span.start <= start <= span.end + GAP_BYTES
            and end - span.start <= self._span_bytes
        )

    def _storage(self, shard: ListedShard) -> Storage:
        return self._storages[shard.file.data_set]

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "read-records")
            return self._pool
