"""Read parts of shards: several at once, in order, and never more than a budget of bytes ahead."""

import array
import bisect
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from beam_tfrec.readers.data_sets import DataSets, Part, ShardFile, read_keys, read_offsets
from beam_tfrec.transforms.storage import Storage, is_local, open_storage

SPAN_BYTES = 4 << 20
"""Size of neighbouring records that are read at once; a larger record is read alone."""

LOCAL_SPAN_BYTES = 1 << 20
"""The same for files of this machine: what fits into a processor's cache."""

GAP_BYTES = 64 << 10
"""Largest gap between two records that are read at once."""

AHEAD_BYTES = 64 << 20
"""Size of spans that are being read, or wait for their turn; a larger one is read alone."""

_LOCAL_THREADS = 4  # mostly from the page cache
_REMOTE_THREADS = 64  # at 30 ms a request, two thousand of them a second


class Member(NamedTuple):
    """A record to be read.

    Attributes:
        shard: place of its shard.
        number: number of the record in the shard.
        position: place of the record in what was asked for.
    """

    shard: int
    number: int
    position: int


class Span(NamedTuple):
    """Records of a shard that are read at once.

    Attributes:
        shard: place of the shard.
        start: first byte in the file.
        end: end in the file, exclusive.
        members: records in the span.
    """

    shard: int
    start: int
    end: int
    members: list[Member]


class ShardReader:
    """The shards of a split, as one process reads them, with any number of threads.

    Attributes:
        data_sets: data sets that hold the split.
        split: name of the split.
        shards: all shards of the split.
        parts: records of the shards that are read, in their order.
    """

    def __init__(
        self, data_sets: DataSets, split: str, shards: Sequence[ShardFile], parts: Sequence[Part]
    ) -> None:
        """Take the shards; nothing is read yet."""
        self.data_sets, self.split, self.shards, self.parts = data_sets, split, shards, parts
        *self._firsts, self._total = itertools.accumulate(
            (part.records for part in parts), initial=0
        )
        self._pid = os.getpid()
        self._storages: list[Storage] = [
            open_storage(root, data_sets.access) for root in data_sets.roots
        ]
        is_near = all(map(is_local, data_sets.roots))
        self._threads = _LOCAL_THREADS if is_near else _REMOTE_THREADS
        self._span_bytes = LOCAL_SPAN_BYTES if is_near else SPAN_BYTES
        self._offsets: dict[int, array.array] = {}
        self._executor = ThreadPoolExecutor(self._threads, "read-records")  # none runs yet

    def __len__(self) -> int:
        """Return the number of records."""
        return self._total

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out what belongs to the process."""
        return ShardReader, (self.data_sets, self.split, self.shards, self.parts)

    def of_this_process(self) -> "ShardReader":
        """Return this reader; after a fork a new one, since threads do not outlive it."""
        if self._pid == os.getpid():
            return self
        return ShardReader(self.data_sets, self.split, self.shards, self.parts)

    def member(self, place: int, position: int = 0) -> Member:
        """Return the record at a place among all records of the parts."""
        part = bisect.bisect_right(self._firsts, place) - 1
        shard, first, _ = self.parts[part]
        return Member(shard, first + place - self._firsts[part], position)

    def offsets(self, shard: int) -> array.array:
        """Return where a shard's records begin, and the last one ends; see `read_offsets`."""
        if shard not in self._offsets:
            file = self.shards[shard]
            self._offsets[shard] = read_offsets(file, self._storages[file.data_set])
        return self._offsets[shard]

    def load_offsets(self, shards: Iterable[int]) -> None:
        """Read the indexes of several shards at once, those that are not known yet."""
        missing = [shard for shard in shards if shard not in self._offsets]
        deque(self._executor.map(self.offsets, missing), maxlen=0)

    def keys(self, shards: Sequence[int]) -> Iterator[list[str]]:
        """Yield the keys of the records of each shard."""
        for start in range(0, len(shards), self._threads):
            files = [self.shards[shard] for shard in shards[start : start + self._threads]]
            yield from self._executor.map(
                lambda file: read_keys(file, self._storages[file.data_set]), files
            )

    def read(self, shard: int, start: int, end: int) -> bytes:
        """Return bytes of a shard, as it was listed.

        Raises:
            RuntimeError: `E-SRC-CHANGED` when it is not that one any more.
        """
        file = self.shards[shard]
        return self._storages[file.data_set].read(file.entry.file, file.listed, (start, end))

    def spans(self, members: Iterable[Member]) -> Iterator[Span]:
        """Yield spans of records, neighbours together.

        Args:
            members: records; neighbours come one after the other, by rising number.
        """
        span = Span(-1, 0, 0, [])
        for member in members:
            offsets = self.offsets(member.shard)
            start, end = offsets[member.number], offsets[member.number + 1]
            is_near = span.start <= start <= span.end + GAP_BYTES
            if span.shard == member.shard and is_near and end - span.start <= self._span_bytes:
                span.members.append(member)
                span = span._replace(end=max(span.end, end))
                continue
            if span.members:
                yield span
            span = Span(member.shard, start, end, [member])
        if span.members:
            yield span

    def read_spans(self, spans: Iterable[Span]) -> Iterator[tuple[Span, bytes]]:
        """Yield spans with their bytes, in order; several are read at once."""
        waiting: deque[tuple[Span, Future[bytes]]] = deque()
        ahead_bytes = 0
        try:
            for span in spans:
                size_bytes = span.end - span.start
                while waiting and (
                    len(waiting) >= self._threads or ahead_bytes + size_bytes > AHEAD_BYTES
                ):
                    first, future = waiting.popleft()
                    yield first, future.result()
                    ahead_bytes -= first.end - first.start
                read = self._executor.submit(self.read, span.shard, span.start, span.end)
                waiting.append((span, read))
                ahead_bytes += size_bytes
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
