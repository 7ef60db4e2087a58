"""Read parts of shards in parallel and in order, ahead by at most a budget of bytes."""

import array
import bisect
import functools
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from beam_tfrec.readers.data_sets import REMEDY, DataSets, ShardFile, read_keys, read_offsets
from beam_tfrec.readers.shares import Part
from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.tfrecord import FrameError, is_array_record
from beam_tfrec.transforms.storage import Storage, is_local, open_storage
from beam_tfrec.transforms.storage.array_record import ArrayRecordFile, open_array_record

SPAN_BYTES = 4 << 20
"""Largest read of neighbouring records; a larger record is read alone."""

LOCAL_SPAN_BYTES = 1 << 20
"""Largest read of neighbouring records in local files: it fits into a processor's cache."""

GAP_BYTES = 64 << 10
"""Largest gap between two records of one read."""

AHEAD_BYTES = 64 << 20
"""Budget for spans that are in flight or queued; a larger span is read alone."""

_LOCAL_THREADS = 4  # mostly from the page cache
_REMOTE_THREADS = 64  # two thousand requests a second, at 30 ms each
_OPEN_FILES = 128  # ArrayRecord files; systems usually allow 1,024 files


class Member(NamedTuple):
    """A record to be read.

    Attributes:
        shard: number of the shard in its split, from 0.
        number: number of the record in the shard, from 0.
        position: position of the record among the requested ones.
    """

    shard: int
    number: int
    position: int


class Span(NamedTuple):
    """Records of a shard that are read with one request.

    Attributes:
        shard: number of the shard in its split, from 0.
        start: offset of the first byte.
        end: offset of the last byte plus one.
        members: records in the span.
    """

    shard: int
    start: int
    end: int
    members: list[Member]


class ShardReader:
    """Reader of a split's shards for one process and all its threads.

    Attributes:
        data_sets: data sets that hold the split.
        split: name of the split.
        shards: all shards of the split.
        parts: records of the shards that are read, in their order.
    """

    def __init__(
        self, data_sets: DataSets, split: str, shards: Sequence[ShardFile], parts: Sequence[Part]
    ) -> None:
        """Open the stores without reading anything."""
        self.data_sets, self.split, self.shards, self.parts = data_sets, split, shards, parts
        counts = (part.records for part in parts)
        *self._firsts, self._total = itertools.accumulate(counts, initial=0)
        self._pid = os.getpid()
        self._storages = [open_storage(root, data_sets.access) for root in data_sets.roots]
        is_near = all(map(is_local, data_sets.roots))
        self._threads = _LOCAL_THREADS if is_near else _REMOTE_THREADS
        self._span_bytes = LOCAL_SPAN_BYTES if is_near else SPAN_BYTES
        self._offsets: dict[int, array.array] = {}
        opened = functools.partial(_open, self._storages, shards)  # a method would be a cycle
        self._opened = functools.lru_cache(_OPEN_FILES)(opened)
        self._executor = ThreadPoolExecutor(self._threads, "read-records")  # starts lazily

    def __len__(self) -> int:
        """Return the number of records."""
        return self._total

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without stores, threads and offsets; each process makes its own."""
        return ShardReader, (self.data_sets, self.split, self.shards, self.parts)

    def of_this_process(self) -> "ShardReader":
        """Return this reader, or a new one in a forked process, which has no threads."""
        if self._pid == os.getpid():
            return self
        return ShardReader(self.data_sets, self.split, self.shards, self.parts)

    def member(self, place: int, position: int = 0) -> Member:
        """Return the record at a place among all records of the parts."""
        part = bisect.bisect_right(self._firsts, place) - 1
        shard, first, _ = self.parts[part]
        return Member(shard, first + place - self._firsts[part], position)

    def offsets(self, shard: int) -> array.array:
        """Return the offsets of a shard's records, see `read_offsets`; its index is read once."""
        if shard not in self._offsets:
            file = self.shards[shard]
            self._offsets[shard] = read_offsets(file, self._storages[file.data_set])
        return self._offsets[shard]

    def load_offsets(self, shards: Iterable[int]) -> None:
        """Read the missing indexes of several shards in parallel."""
        missing = [shard for shard in shards if shard not in self._offsets]
        deque(self._executor.map(self.offsets, missing), maxlen=0)

    def keys(self, shards: Sequence[int]) -> Iterator[list[str]]:
        """Yield the keys of the records of each shard."""
        for start in range(0, len(shards), self._threads):
            files = [self.shards[shard] for shard in shards[start : start + self._threads]]
            yield from self._executor.map(
                lambda file: read_keys(file, self._storages[file.data_set]), files
            )

    def read(self, span: Span) -> bytes | list[bytes]:
        """Return the bytes of a span, or the records of one in an ArrayRecord file.

        Raises:
            RuntimeError: `E-SRC-CHANGED`: the shard has changed since it was listed. `E-VER-…`: an
                ArrayRecord file is damaged. `E-ARG`: it is in a store.
        """
        file = self.shards[span.shard]
        if not is_array_record(file.entry.file):
            storage, listed = self._storages[file.data_set], file.listed
            return storage.read(file.entry.file, listed, (span.start, span.end))
        number = 0
        try:
            records = self._opened(span.shard)
            return [records.read(number := member.number) for member in span.members]
        except FrameError as error:
            raise run_fault(error.code, file.uri, f"record {number}: {error}", REMEDY) from None

    def spans(self, members: Iterable[Member]) -> Iterator[Span]:
        """Group neighbouring records into spans.

        Args:
            members: records, where neighbours follow each other by rising number.
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

    def read_spans(self, spans: Iterable[Span]) -> Iterator[tuple[Span, bytes | list[bytes]]]:
        """Yield each span with what `read` returns, in order; spans are read in parallel."""
        waiting: deque[tuple[Span, Future[bytes | list[bytes]]]] = deque()
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
                read = self._executor.submit(self.read, span)
                waiting.append((span, read))
                ahead_bytes += size_bytes
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _open(storages: Sequence[Storage], shards: Sequence[ShardFile], shard: int) -> ArrayRecordFile:
    """Open the ArrayRecord file of a shard."""
    file = shards[shard]
    assert file.listed is not None
    return open_array_record(storages[file.data_set], file.listed)
