"""Random access to the records of a split, without TensorFlow, Beam or a mounted bucket.

Where a record lies is known from its shard's index, which is read when a record of the shard is
asked for first. What is read is pinned to the files that were there when the split was opened, and
both checksums of every record are compared, each time.
"""

import bisect
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, SupportsIndex, overload

import numpy as np

from readers.data_sets import DataSets
from readers.hosts import Part
from readers.pictures import Picture
from readers.record_values import Record, record_parser
from readers.shard_files import REMEDY, ListedShard
from readers.shard_reader import Member, ShardReader, Span
from schemas.faults import fault_line
from schemas.features import FeatureSpec
from schemas.manifest import Label
from schemas.tfrecord import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    FrameError,
    check_frame,
    frame_bytes,
)

SHOWN = 3
"""Records that a notebook shows of a sequence."""


class Records(Sequence[Record]):
    """The records of a split, or of a host's share, as a sequence of dicts.

    A record's values are those of `tf.io.parse_single_example`, as `readers.record_values` says.
    It can be a data set of PyTorch (`DataLoader` asks `__getitems__` for a batch at once) and the
    source of Grain's `MapDataset.source`; it can be pickled, used in processes that were forked or
    spawned, and by several threads. Each process opens files and connections of its own.

    Attributes:
        split: its name.
        spec: the features of every record.
        labels: the class labels, by id.
    """

    def __init__(
        self,
        data_sets: DataSets,
        split: str,
        shards: Sequence[ListedShard],
        parts: Sequence[Part],
    ) -> None:
        """Take what is read; see `readers.open`.

        Args:
            data_sets: that hold the split.
            split: its name.
            shards: all of the split.
            parts: of them, what belongs to the sequence, in its order.
        """
        self.split = split
        self._data_sets = data_sets
        self._shards = shards
        self._parts = parts
        ends = itertools.accumulate((part.records for part in parts), initial=0)
        *self._firsts, total = ends
        self._places = range(total)  # that this view shows, of all records of the parts
        self._reader: ShardReader | None = None
        self._parse = record_parser(data_sets.spec)

    @property
    def spec(self) -> FeatureSpec:
        """The features of every record."""
        return self._data_sets.spec

    @property
    def labels(self) -> tuple[Label, ...]:
        """The class labels, by id."""
        return self._data_sets.labels

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._places)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> "Records": ...

    def __getitem__(self, index: SupportsIndex | slice) -> "Record | Records":
        """Return a record; of a slice, a sequence of those records, none of which is read.

        Raises:
            IndexError: when there is no such record.
            RuntimeError: `E-VER-…` with shard, record and byte when it is damaged, `E-SRC-CHANGED`
                when its shard is another than when the split was opened, or `E-IO-…`.
        """
        if isinstance(index, slice):
            view = self._copy()
            view._places = self._places[index]
            return view
        member = self._member(index, 0)
        reader = self._own_reader()
        offsets = reader.offsets(member.shard)
        start, end = offsets[member.number], offsets[member.number + 1]
        span = Span(member.shard, start, end, [member])
        return next(self._records(reader, span, reader.read(member.shard, start, end)))

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[Record]:
        """Return several records in the order asked for, read in parallel, neighbours at once.

        The same index may come several times, and gives a record of its own each time.

        Raises:
            IndexError: when there is no such record.
            RuntimeError: as of a single one.
        """
        members = sorted(self._member(index, place) for place, index in enumerate(indices))
        reader = self._own_reader()
        reader.load_offsets({member.shard for member in members})
        found: list[tuple[int, Record]] = []
        for span, data in self._read(reader, members):
            positions = (member.position for member in span.members)
            found += zip(positions, self._records(reader, span, data), strict=True)
        return [record for _, record in sorted(found, key=operator.itemgetter(0))]

    def __iter__(self) -> Iterator[Record]:
        """Yield all records in order, reading ahead in large pieces."""
        reader = self._own_reader()
        members = (self._member(place, place) for place in range(len(self)))
        for span, data in self._read(reader, members):
            yield from self._records(reader, span, data)

    def key(self, index: SupportsIndex) -> str:
        """Return the key of a record: the sample's, unique in its split of a data set.

        Raises:
            IndexError: when there is no such record.
        """
        member = self._member(index, 0)
        (keys,) = self._own_reader().keys([member.shard])
        return keys[member.number]

    def find(self, key: str) -> int:
        """Return the index of the first record with a key; the indexes of shards are searched.

        Raises:
            KeyError: when there is none.
            TypeError: when the key is no text, as all keys are.
        """
        if not isinstance(key, str):
            raise TypeError(f"key must be text, got {key!r}: give {str(key)!r}")
        shards = [part.shard for part in self._parts]
        all_keys = self._own_reader().keys(shards)
        for part, first, keys in zip(self._parts, self._firsts, all_keys, strict=True):
            for number in range(part.first, part.stop):
                place = first + number - part.first
                if keys[number] == key and place in self._places:
                    return self._places.index(place)
        raise KeyError(key)

    def show(self, index: SupportsIndex) -> Picture:
        """Return what a notebook shows of a record: its picture with boxes, and its features.

        Raises:
            IndexError: when there is no such record.
            RuntimeError: as of `records[index]`.
        """
        return Picture(self[index], self.spec, {label.id: label.name for label in self.labels})

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the sequence: its first records."""
        shown = (self.show(index)._repr_html_() for index in range(min(SHOWN, len(self))))
        return f"<p>{escape(repr(self))}</p>{''.join(shown)}"

    def __repr__(self) -> str:
        """Return where they are from and how many; the same in each process, as Grain wants it."""
        roots = ", ".join(map(repr, self._data_sets.roots))
        return f"<Records of {self.split} in {roots}: {self._places!r}>"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to the process."""
        return {**self.__dict__, "_reader": None, "_parse": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make anew what was left out."""
        self.__dict__.update(state)
        self._parse = record_parser(self.spec)

    def _copy(self) -> "Records":
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        return copy

    def _own_reader(self) -> ShardReader:
        """Return this process's reader; threads and connections do not outlive a fork."""
        reader = self._reader
        if reader is None or reader.pid != os.getpid():
            reader = self._reader = ShardReader(self._data_sets, self._shards)
        return reader

    def _member(self, index: SupportsIndex, position: int) -> Member:
        try:
            place = self._places[index]
        except IndexError:
            what = f"index must be {-len(self)} to {len(self) - 1}, got {operator.index(index)}"
            raise IndexError(f"{what}: there are {len(self)} records") from None
        part = bisect.bisect_right(self._firsts, place) - 1
        shard, first, _ = self._parts[part]
        return Member(shard, first + place - self._firsts[part], position)

    def _read(self, reader: ShardReader, members: Iterable[Member]) -> Iterator[tuple[Span, bytes]]:
        return reader.read_spans(reader.spans(members))

    def _records(self, reader: ShardReader, span: Span, data: bytes) -> Iterator[Record]:
        offsets = reader.offsets(span.shard)
        uncopied = np.frombuffer(data, np.uint8)
        for member in span.members:
            offset = offsets[member.number]
            start, end = offset - span.start, offsets[member.number + 1] - span.start
            try:
                check_frame(data, start, end, uncopied)
                record = self._parse(data[start + HEADER_BYTES : end - CHECKSUM_BYTES])
            except FrameError as error:
                code = error.code
                if code == "E-VER-FRAME" and self._is_frame(member, data, start, offset):
                    code = "E-VER-INDEX"
                raise self._damage(code, reader, member, str(error)) from None
            except ValueError as error:
                raise self._damage("E-VER-EXAMPLE", reader, member, str(error)) from None
            yield record

    def _is_frame(self, member: Member, data: bytes, at: int, offset: int) -> bool:
        """Return whether there is a frame, if one that the index does not tell of."""
        try:
            frame_bytes(data, at, self._shards[member.shard].entry.size_bytes - offset)
        except FrameError:
            return False
        return True

    def _damage(self, code: str, reader: ShardReader, member: Member, what: str) -> RuntimeError:
        offset = reader.offsets(member.shard)[member.number]
        try:
            key = f" (key {next(reader.keys([member.shard]))[member.number]})"
        except RuntimeError:  # an index that has no keys is told of when these are asked for
            key = ""
        where = f"record {member.number}{key} at byte {offset}"
        uri = self._shards[member.shard].uri
        return RuntimeError(fault_line(code, uri, f"{where}: {what}", REMEDY))
