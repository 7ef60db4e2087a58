"""Random access to the records of a split, without TensorFlow, Beam or a mounted bucket.

Where a record lies is known from its shard's index, which is read when a record of the shard is
asked for first. What is read is pinned to the files that were there when the split was opened, and
both checksums of every record are compared, each time.
"""

import bisect
import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, SupportsIndex, overload

import numpy as np

from readers.data_sets import REMEDY, DataSets, ListedShard, Part
from readers.pictures import Picture
from readers.shard_reader import Member, ShardReader, Span
from schemas.faults import fault_line
from schemas.features import Feature, FeatureSpec, Kind
from schemas.manifest import Label
from schemas.parse_example import Message, kind_of, read_features, read_sequence
from schemas.tfrecord import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    FrameError,
    check_frame,
    frame_bytes,
)

SHOWN = 3
"""Records that a notebook shows of a sequence."""


Record = dict[str, Any]
"""A record's values by key: exactly the keys of its features."""

RecordParser = Callable[[bytes], Record]
"""Function from a record's bytes to its values."""

_DTYPES = {Kind.FLOAT: np.float32, Kind.INT64: np.int64}
_DEFAULTS = {Kind.BYTES: b"", Kind.FLOAT: np.float32(0), Kind.INT64: np.int64(0)}


def record_parser(spec: FeatureSpec) -> RecordParser:
    """Return a parser of serialized Examples, or of SequenceExamples if such is the spec.

    Arrays are the caller's own and writable. The parser raises `ValueError` where
    `tf.io.parse_single_example` with `parse_spec` would fail: bytes that are no Example, values of
    another kind, and none or several where there must be one.
    """
    whole = [(f.key, _converter(f)) for f in spec.features if not f.per_step]
    steps = [(f.key, f.kind, _converter(f), f.repeated) for f in spec.features if f.per_step]

    def parse_whole(features: Mapping[str, Message]) -> Record:
        return {key: convert(features.get(key)) for key, convert in whole}

    def parse(data: bytes) -> Record:
        return parse_whole(read_features(data))

    def parse_sequence(data: bytes) -> Record:
        context, lists = read_sequence(data)
        record = parse_whole(context)
        for key, kind, convert, is_repeated in steps:
            values = [convert(step) for step in lists[key].feature] if key in lists else []
            is_array = kind is not Kind.BYTES and not is_repeated
            record[key] = np.array(values, _DTYPES[kind]) if is_array else values
        return record

    return parse_sequence if spec.is_sequence else parse


def _converter(feature: Feature) -> Callable[[Message | None], Any]:
    """Return the function from protobuf's `Feature`, None if absent, to a record's value."""
    key, kind = feature.key, feature.kind
    list_of = operator.attrgetter(f"{kind.value}_list")
    scalar: Callable[[Any], Any] = bytes if kind is Kind.BYTES else _DTYPES[kind]
    to_list = _TO_LIST[kind]

    def convert_one(found: Message | None) -> Any:
        values: Sequence[Any] = () if found is None else list_of(found).value
        if len(values) == 1:
            return scalar(values[0])
        if feature.optional and (found is None or kind_of(found) is None):
            return _DEFAULTS[kind]
        _refuse_other_kind(key, found, kind)
        raise ValueError(f"{key} has {len(values)} values, not one")

    def convert_list(found: Message | None) -> Any:
        if found is None or not list_of(found).value:
            _refuse_other_kind(key, found, kind)
            return [] if kind is Kind.BYTES else np.empty(0, _DTYPES[kind])
        return to_list(list_of(found))

    return convert_list if feature.repeated else convert_one


def _refuse_other_kind(key: str, found: Message | None, kind: Kind) -> None:
    other = None if found is None else kind_of(found)
    if other is not None and other is not kind:
        raise ValueError(f"{key} is of kind {other.value}, not {kind.value}")


def _float_array(floats: Message) -> Any:
    """Return a FloatList's values as a writable array, by its packed bytes: no float is boxed."""
    packed = floats.SerializeToString()
    return np.frombuffer(bytearray(packed[-4 * len(floats.value) :]), "<f4")


def _int64_array(integers: Message) -> Any:
    return np.fromiter(integers.value, np.int64, len(integers.value))


_TO_LIST: dict[Kind, Callable[[Message], Any]] = {
    Kind.BYTES: lambda texts: list(texts.value),
    Kind.FLOAT: _float_array,
    Kind.INT64: _int64_array,
}


class Records(Sequence[Record]):
    """The records of a split, or of a host's share, as a sequence of dicts.

    A record's values are those of `tf.io.parse_single_example`, as `readers.records` says.
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
