"""Random access to the records of a split, without TensorFlow, Beam or a mounted bucket.

A shard's index gives the offset of each record. It is read with the first record of its shard.
Reads are pinned to the files that existed when the split was opened. Both checksums of a record are
compared on every read.

A record is a dict of NumPy values by key, equal to the values that TensorFlow parses:

| feature | bytes | float | int64 |
|---|---|---|---|
| one value | `bytes` | `numpy.float32` | `numpy.int64` |
| optional and absent | `b""` | `numpy.float32(0)` | `numpy.int64(0)` |
| repeated | `list` of `bytes` | array float32 [n] | array int64 [n] |
| one value per step | `list` of `bytes` | array float32 [steps] | array int64 [steps] |
| repeated, per step | `list` of lists | `list` of arrays | `list` of arrays |
"""

import contextlib
import functools
import io
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from beam_tfrec.readers.data_sets import REMEDY
from beam_tfrec.readers.shard_reader import Member, ShardReader, Span
from beam_tfrec.schemas.faults import at_record, run_fault
from beam_tfrec.schemas.features import OPAQUE_KEY, Feature, FeatureSpec, Kind, roles_of_spec
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.parse_example import Message, kind_of, read_sequence
from beam_tfrec.schemas.tfrecord import FrameError, read_frame

if TYPE_CHECKING:
    from PIL import Image

_DTYPES = {Kind.FLOAT: np.float32, Kind.INT64: np.int64}
_DEFAULTS = {Kind.BYTES: b"", Kind.FLOAT: np.float32(0), Kind.INT64: np.int64(0)}


Record = dict[str, Any]
"""The values of a record by key; the keys are exactly those of the data set's features."""


class Records(Sequence[Record]):
    """The records of a split, or of a host's share, as a sequence of dicts.

    It works as a PyTorch data set, where `DataLoader` requests a batch through `__getitems__`, and
    as the source of Grain's `MapDataset.source`. It can be pickled and shared by threads. Forked
    and spawned processes may use it: each opens its own files and connections.
    """

    def __init__(self, reader: ShardReader, places: range | None = None) -> None:
        """Take the split's reader, and the places of the records to return; None for all."""
        self._reader = reader
        self._places = range(len(reader)) if places is None else places

    @property
    def reader(self) -> ShardReader:
        """The reader of the split in this process."""
        self._reader = self._reader.of_this_process()
        return self._reader

    @property
    def split(self) -> str:
        """The split's name; several are joined by `+`."""
        return self._reader.split

    @property
    def spec(self) -> FeatureSpec:
        """The features of every record."""
        return self._reader.data_sets.spec

    @property
    def labels(self) -> tuple[Label, ...]:
        """The class labels, by id."""
        return self._reader.data_sets.labels

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._places)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> "Records": ...

    def __getitem__(self, index: SupportsIndex | slice) -> "Record | Records":
        """Return the record at an index. A slice gives a sequence without reading any record.

        Raises:
            IndexError: The index is out of range.
            RuntimeError: `E-VER-…` with shard, record and byte offset: the record is damaged.
                `E-SRC-CHANGED`: the shard changed after the split was opened. `E-IO-…`: it could
                not be read.
        """
        if isinstance(index, slice):
            return Records(self.reader, self._places[index])
        return self._read(index)[1]

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[Record]:
        """Return the records at several indices, in their order.

        Records are read in parallel, and neighbours with one read. A repeated index gives a new
        record each time.

        Raises:
            IndexError: An index is out of range.
            RuntimeError: A record cannot be read, as in `__getitem__`.
        """
        members = sorted(self._member(index, place) for place, index in enumerate(indices))
        self.reader.load_offsets({member.shard for member in members})
        found: dict[int, Record] = {}
        for span, data in self.reader.read_spans(self.reader.spans(members)):
            for member, (_, record) in zip(span.members, self._parsed(span, data), strict=True):
                found[member.position] = record
        return [found[position] for position in range(len(members))]

    def __iter__(self) -> Iterator[Record]:
        """Yield all records in order; large pieces are read ahead."""
        members = map(self._member, range(len(self)))
        for span, data in self.reader.read_spans(self.reader.spans(members)):
            yield from (record for _, record in self._parsed(span, data))

    def key(self, index: SupportsIndex) -> str:
        """Return the key of a record, which is unique within a split of a data set.

        Raises:
            IndexError: The index is out of range.
        """
        member = self._member(index)
        (keys,) = self.reader.keys([member.shard])
        return keys[member.number]

    def find(self, key: str) -> int:
        """Return the index of the first record with a key; this reads the shards' indexes in turn.

        Raises:
            KeyError: No record has the key.
            TypeError: The key is not a `str`.
        """
        if not isinstance(key, str):
            raise TypeError(f"key must be text, got {key!r}: give {str(key)!r}")
        parts = self.reader.parts
        first = 0
        for part, keys in zip(parts, self.reader.keys([p.shard for p in parts]), strict=True):
            for place, found in enumerate(keys[part.first : part.stop], first):
                if found == key and place in self._places:
                    return self._places.index(place)
            first += part.records
        raise KeyError(f"none of {len(self)} records of {self.split} has {key!r}: see key(0)")

    def show(self, index: SupportsIndex) -> "Image.Image":
        """Return a record's first image with its masks and boxes, at most 320 px, for notebooks.

        Raises:
            IndexError: The index is out of range.
            ValueError: The record has no image that can be shown.
            RuntimeError: The record cannot be read, as in `__getitem__`.
        """
        return draw_picture(self._read(index)[0], self.spec, self.labels)

    def damage(self, code: str, member: Member, what: str, remedy: str = REMEDY) -> RuntimeError:
        """Return the fault of a damaged record, with its shard, number, key and byte offset."""
        offset = self.reader.offsets(member.shard)[member.number]
        key = None
        with contextlib.suppress(RuntimeError):  # of an unreadable index
            key = next(self.reader.keys([member.shard]))[member.number]
        where = at_record(self.reader.shards[member.shard].uri, member.number, offset, key)
        return run_fault(code, where, what, remedy)

    def __repr__(self) -> str:
        """Return split, roots and range; equal in all processes, since Grain compares the text."""
        roots = ", ".join(map(repr, self._reader.data_sets.roots))
        return f"<Records of {self.split} in {roots}: {self._places!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the parser, which holds local functions."""
        return Records, (self._reader, self._places)

    @functools.cached_property
    def _parse(self) -> Callable[[bytes], Record]:
        return record_parser(self.spec)

    def _member(self, index: SupportsIndex, position: int = 0) -> Member:
        try:
            return self._reader.member(self._places[index], position)
        except IndexError:
            what = f"index must be {-len(self)} to {len(self) - 1}, got {operator.index(index)}"
            raise IndexError(f"{what}: there are {len(self)} records") from None

    def _read(self, index: SupportsIndex) -> tuple[bytes, Record]:
        (span,) = self.reader.spans([self._member(index)])
        return next(self._parsed(span, self.reader.read(span)))

    def _parsed(self, span: Span, data: bytes | list[bytes]) -> Iterator[tuple[bytes, Record]]:
        """Yield each record of a span, encoded and parsed, after comparing its checksums."""
        offsets = self.reader.offsets(span.shard)
        for place, member in enumerate(span.members):
            start, end = offsets[member.number], offsets[member.number + 1]
            try:
                if isinstance(data, list):
                    encoded = data[place]
                else:
                    encoded = read_frame(data, start - span.start, end - span.start)
                record = self._parse(encoded)
            except FrameError as error:
                raise self.damage(error.code, member, str(error)) from None
            except ValueError as error:
                raise self.damage("E-VER-EXAMPLE", member, str(error)) from None
            yield encoded, record


def draw_picture(data: bytes, spec: FeatureSpec, labels: Sequence[Label]) -> "Image.Image":
    """Return a record's first image with its masks and boxes, drawn as in the report.

    Raises:
        ValueError: The record has no image, or it cannot be shown.
    """
    from PIL import Image, ImageDraw

    from beam_tfrec.transforms.report import PickedRecord, class_color
    from beam_tfrec.transforms.report.pictures import MAX_JPEG_BYTES, draw_record, legend_of

    place = PickedRecord("", "", 0, 0, len(data), "")
    drawn = draw_record(data, place, roles_of_spec(spec), legend_of(labels), MAX_JPEG_BYTES)
    if not drawn.pictures:
        wrong = (note.partition(": ")[2] for note in drawn.notes)
        what = "; ".join(wrong) or f"none of layout {spec.name!r}"
        raise ValueError(f"record must have an image to show, got {what}")
    shown = drawn.pictures[0]
    image = Image.open(io.BytesIO(shown.jpeg)).convert("RGB")
    if shown.mask:
        mask = Image.open(io.BytesIO(shown.mask)).convert("RGBA")
        image.paste(mask, mask=mask)
    draw = ImageDraw.Draw(image)
    for outline in shown.outlines:
        if outline.box:
            color = class_color(outline.label)
            x, y, width, height = outline.box
            x, x_end = x * image.width, (x + width) * image.width
            y, y_end = y * image.height, (y + height) * image.height
            draw.rectangle((x, y, x_end, y_end), outline=color, width=2)
            draw.text((x + 4, y + 2), outline.text, "white", stroke_width=2, stroke_fill=color)
    return image


def record_parser(spec: FeatureSpec) -> Callable[[bytes], Record]:
    """Return a parser of serialized Examples, or of SequenceExamples for a sequence spec.

    Returned arrays are writable and never shared. The parser raises `ValueError` where
    `tf.io.parse_single_example` with `parse_spec` would fail: bytes that are not an Example, values
    of another kind, and zero or several values for a feature of one value.
    """
    if spec.is_opaque:
        return lambda data: {OPAQUE_KEY: data}
    whole = [(f.key, _converter(f)) for f in spec.features if not f.per_step]
    steps = [(f.key, f.kind, _converter(f), f.repeated) for f in spec.features if f.per_step]

    def parse(data: bytes) -> Record:
        context, lists = read_sequence(data)
        record = {key: convert(context.get(key)) for key, convert in whole}
        for key, kind, convert, is_repeated in steps:
            values = [convert(step) for step in lists[key].feature] if key in lists else []
            is_array = kind is not Kind.BYTES and not is_repeated
            record[key] = np.array(values, _DTYPES[kind]) if is_array else values
        return record

    return parse


def _converter(feature: Feature) -> Callable[[Message | None], Any]:
    """Return the function that converts protobuf's `Feature`, or None, to a record's value."""
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
    """Return a FloatList as a writable array, copied from its packed bytes without boxing."""
    packed = floats.SerializeToString()
    return np.frombuffer(bytearray(packed[-4 * len(floats.value) :]), "<f4")


_TO_LIST: dict[Kind, Callable[[Message], Any]] = {
    Kind.BYTES: lambda texts: list(texts.value),
    Kind.FLOAT: _float_array,
    Kind.INT64: lambda integers: np.fromiter(integers.value, np.int64, len(integers.value)),
}
