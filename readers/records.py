"""Random access to the records of a split, without TensorFlow, Beam or a mounted bucket.

Where a record lies is known from its shard's index, which is read when a record of the shard is
asked for first. What is read is pinned to the files that were there when the split was opened, and
both checksums of every record are compared, each time.

A record is a dict of NumPy values by key, equal to what TensorFlow parses:

| feature | bytes | float | int64 |
|---|---|---|---|
| one value | `bytes` | `numpy.float32` | `numpy.int64` |
| optional and absent | `b""` | `numpy.float32(0)` | `numpy.int64(0)` |
| repeated | `list` of `bytes` | array float32 [n] | array int64 [n] |
| one value a step | `list` of `bytes` | array float32 [steps] | array int64 [steps] |
| repeated, per step | `list` of these | `list` of arrays | `list` of arrays |
"""

import functools
import io
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from beam_tfrec.readers.data_sets import REMEDY
from beam_tfrec.readers.shard_reader import Member, ShardReader, Span
from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.features import Feature, FeatureSpec, Kind, roles_of_spec
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.parse_example import Message, kind_of, read_sequence
from beam_tfrec.schemas.tfrecord import FrameError, read_frame

if TYPE_CHECKING:
    from PIL import Image

Record = dict[str, Any]
"""A record's values by key: exactly the keys of its features."""

RecordParser = Callable[[bytes], Record]
"""Function from a record's bytes to its values."""

_DTYPES = {Kind.FLOAT: np.float32, Kind.INT64: np.int64}
_DEFAULTS = {Kind.BYTES: b"", Kind.FLOAT: np.float32(0), Kind.INT64: np.int64(0)}


class Records(Sequence[Record]):
    """The records of a split, or of a host's share, as a sequence of dicts.

    It can be a data set of PyTorch (`DataLoader` asks `__getitems__` for a batch at once) and the
    source of Grain's `MapDataset.source`. It can be pickled, used in processes that were forked or
    spawned, and by several threads. Each process opens files and connections of its own.
    """

    def __init__(self, reader: ShardReader, places: range | None = None) -> None:
        """Take the reader of the split, and which of its records belong to the sequence."""
        self._reader = reader
        self._places = range(len(reader)) if places is None else places

    @property
    def reader(self) -> ShardReader:
        """This process's reader of the split."""
        self._reader = self._reader.of_this_process()
        return self._reader

    @property
    def split(self) -> str:
        """The split's name."""
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
        """Return a record; of a slice, a sequence of those records, none of which is read.

        Raises:
            IndexError: when there is no such record.
            RuntimeError: `E-VER-…` with shard, record and byte when it is damaged, `E-SRC-CHANGED`
                when its shard is another than when the split was opened, or `E-IO-…`.
        """
        if isinstance(index, slice):
            return Records(self.reader, self._places[index])
        return self._read(index)[1]

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[Record]:
        """Return several records in the order asked for, read in parallel, neighbours at once.

        The same index may come several times, and gives a record of its own each time.

        Raises:
            IndexError: when there is no such record.
            RuntimeError: as of a single one.
        """
        members = sorted(self._member(index, place) for place, index in enumerate(indices))
        self.reader.load_offsets({member.shard for member in members})
        found: list[tuple[int, Record]] = []
        for span, data in self.reader.read_spans(self.reader.spans(members)):
            positions = (member.position for member in span.members)
            records = (record for _, record in self._parsed(span, data))
            found += zip(positions, records, strict=True)
        return [record for _, record in sorted(found, key=operator.itemgetter(0))]

    def __iter__(self) -> Iterator[Record]:
        """Yield all records in order, reading ahead in large pieces."""
        members = map(self._member, range(len(self)))
        for span, data in self.reader.read_spans(self.reader.spans(members)):
            yield from (record for _, record in self._parsed(span, data))

    def key(self, index: SupportsIndex) -> str:
        """Return the key of a record: the sample's, unique in its split of a data set.

        Raises:
            IndexError: when there is no such record.
        """
        member = self._member(index)
        (keys,) = self.reader.keys([member.shard])
        return keys[member.number]

    def find(self, key: str) -> int:
        """Return the index of the first record with a key; the indexes of shards are searched.

        Raises:
            KeyError: when there is none.
            TypeError: when the key is no text, as all keys are.
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
        raise KeyError(key)

    def show(self, index: SupportsIndex) -> "Image.Image":
        """Return a record's first picture with masks and boxes, at most 320 px; for a notebook.

        Raises:
            IndexError: when there is no such record.
            ValueError: when it has no picture.
            RuntimeError: as of `records[index]`.
        """
        return draw_picture(self._read(index)[0], self.spec, self.labels)

    def __repr__(self) -> str:
        """Return where they are from and how many; the same in each process, as Grain wants it."""
        roots = ", ".join(map(repr, self._reader.data_sets.roots))
        return f"<Records of {self.split} in {roots}: {self._places!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the parser."""
        return Records, (self._reader, self._places)

    @functools.cached_property
    def _parse(self) -> RecordParser:
        return record_parser(self.spec)

    def _member(self, index: SupportsIndex, position: int = 0) -> Member:
        try:
            return self._reader.member(self._places[index], position)
        except IndexError:
            what = f"index must be {-len(self)} to {len(self) - 1}, got {operator.index(index)}"
            raise IndexError(f"{what}: there are {len(self)} records") from None

    def _read(self, index: SupportsIndex) -> tuple[bytes, Record]:
        (span,) = self.reader.spans([self._member(index)])
        return next(self._parsed(span, self.reader.read(span.shard, span.start, span.end)))

    def _parsed(self, span: Span, data: bytes) -> Iterator[tuple[bytes, Record]]:
        """Yield the records of a span, encoded and parsed, whose checksums are right."""
        offsets = self.reader.offsets(span.shard)
        for member in span.members:
            start, end = offsets[member.number], offsets[member.number + 1]
            try:
                encoded = read_frame(data, start - span.start, end - span.start)
                record = self._parse(encoded)
            except FrameError as error:
                raise self._damage(error.code, member, str(error)) from None
            except ValueError as error:
                raise self._damage("E-VER-EXAMPLE", member, str(error)) from None
            yield encoded, record

    def _damage(self, code: str, member: Member, what: str) -> RuntimeError:
        offset = self.reader.offsets(member.shard)[member.number]
        try:
            key = f" (key {next(self.reader.keys([member.shard]))[member.number]})"
        except RuntimeError:  # an index that has no keys is reported when these are asked for
            key = ""
        where = f"record {member.number}{key} at byte {offset}"
        uri = self.reader.shards[member.shard].uri
        return RuntimeError(fault_line(code, uri, f"{where}: {what}", REMEDY))


def draw_picture(data: bytes, spec: FeatureSpec, labels: Sequence[Label]) -> "Image.Image":
    """Return a record's first picture with masks and boxes, drawn as in the report.

    Raises:
        ValueError: when there is no picture, or it cannot be shown.
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


def record_parser(spec: FeatureSpec) -> RecordParser:
    """Return a parser of serialized Examples, or of SequenceExamples if such is the spec.

    Arrays are the caller's own and writable. The parser raises `ValueError` where
    `tf.io.parse_single_example` with `parse_spec` would fail: bytes that are no Example, values of
    another kind, and none or several where there must be one.
    """
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
