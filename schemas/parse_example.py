"""Read serialized `tf.train.Example`s and `SequenceExample`s with protobuf's own parser.

An Example has the bytes of a SequenceExample without steps, so one message class reads both.

The message classes live in a private descriptor pool. TensorFlow registers the same names in the
default pool, and one process may need both.

Protobuf takes more than `schemas.example` writes: fields in any order, lists in several parts or
unpacked, unknown fields; the last of equal keys counts. Only a map entry that itself holds unknown
fields is dropped as a whole; no known writer makes such entries.
Source of the format: tensorflow/core/example/{example,feature}.proto.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from schemas.features import Kind

_PACKAGE = "tensorflow"
_FIELD = descriptor_pb2.FieldDescriptorProto
_LISTS = {
    "BytesList": _FIELD.TYPE_BYTES,
    "FloatList": _FIELD.TYPE_FLOAT,
    "Int64List": _FIELD.TYPE_INT64,
}
_KINDS = {"bytes_list": Kind.BYTES, "float_list": Kind.FLOAT, "int64_list": Kind.INT64}

Message = Any
"""A message of protobuf's; its classes are made at run time."""


class Values(NamedTuple):
    """The values of one `tf.train.Feature`.

    Attributes:
        kind: kind of its list; None for a feature without a list.
        values: the list's values; empty without a kind.
    """

    kind: Kind | None
    values: Sequence[Any]


class Sequences(NamedTuple):
    """The values of one `tf.train.SequenceExample`.

    Attributes:
        context: values of the whole record, by key.
        feature_lists: values of each step, by key.
    """

    context: dict[str, Values]
    feature_lists: dict[str, list[Values]]

    def byte_values(self) -> Iterator[tuple[str, list[bytes]]]:
        """Yield the key and the bytes of each feature, those of all steps in one list."""
        features = [(key, [values]) for key, values in self.context.items()]
        for key, steps in (*features, *self.feature_lists.items()):
            yield key, [v for values in steps if values.kind is Kind.BYTES for v in values.values]


def parse_example(data: bytes) -> dict[str, Values]:
    """Return the features of a serialized `tf.train.Example`, sorted by key.

    Raises:
        ValueError: when protobuf cannot parse it.

    >>> parse_example(bytes.fromhex("0a0c0a0a0a016112051a030a0101"))
    {'a': Values(kind=<Kind.INT64: 'int64'>, values=[1])}
    """
    return parse_sequence_example(data).context


def parse_sequence_example(data: bytes) -> Sequences:
    """Return context and steps of a serialized `tf.train.SequenceExample`, sorted by key.

    Raises:
        ValueError: when protobuf cannot parse it.
    """
    context, lists = read_sequence(data)
    steps = {key: list(map(values_of, lists[key].feature)) for key in sorted(lists)}
    return Sequences({key: values_of(context[key]) for key in sorted(context)}, steps)


def parse_record(data: bytes) -> Sequences | None:
    """Return an Example's or SequenceExample's features; None if the record is neither.

    Protobuf parses many short texts as a message of unknown fields. So bytes without a feature are
    no Example, unless they are an empty one.
    """
    try:
        found = parse_sequence_example(data)
    except ValueError:
        return None
    return found if found.context or found.feature_lists or len(data) <= 4 else None


def read_sequence(data: bytes) -> tuple[Mapping[str, Message], Mapping[str, Message]]:
    """Return protobuf's `Feature`s and `FeatureList`s of a `tf.train.SequenceExample`, by key.

    Raises:
        ValueError: when protobuf cannot parse it.
    """
    try:
        record = _SEQUENCE_EXAMPLE.FromString(data)
    except DecodeError:
        raise ValueError(f"protobuf cannot parse its {len(data)} bytes") from None
    return record.context.feature, record.feature_lists.feature_list


def kind_of(feature: Message) -> Kind | None:
    """Return the kind of a `Feature`'s list, None where it has no list."""
    name = feature.WhichOneof("kind")
    return None if name is None else _KINDS[name]


def values_of(feature: Message) -> Values:
    """Return the values of a `Feature`."""
    name = feature.WhichOneof("kind")
    return Values(None, []) if name is None else Values(_KINDS[name], getattr(feature, name).value)


def _sequence_example_class() -> Message:
    file = descriptor_pb2.FileDescriptorProto(
        name="beam_tfrec/example.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, kind in _LISTS.items():
        _add_field(file.message_type.add(name=name), 1, "value", kind, is_repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field_name, name) in enumerate(zip(_KINDS, _LISTS, strict=True), 1):
        _add_field(feature, number, field_name, name).oneof_index = 0
    _add_map(file.message_type.add(name="Features"), "feature", "Feature")
    steps = file.message_type.add(name="FeatureList")
    _add_field(steps, 1, "feature", "Feature", is_repeated=True)
    _add_map(file.message_type.add(name="FeatureLists"), "feature_list", "FeatureList")
    sequence = file.message_type.add(name="SequenceExample")
    _add_field(sequence, 1, "context", "Features")
    _add_field(sequence, 2, "feature_lists", "FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName(f"{_PACKAGE}.{sequence.name}")
    return message_factory.GetMessageClass(found)


def _add_field(
    message: Message, number: int, name: str, kind: int | str, *, is_repeated: bool = False
) -> Message:
    """Add a field of a scalar type, or of the message that `kind` names."""
    field = message.field.add(name=name, number=number)
    field.label = _FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL
    if isinstance(kind, int):
        field.type = kind
    else:
        field.type = _FIELD.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    return field


def _add_map(message: Message, name: str, value: str) -> None:
    """Add a map from texts to messages, as field 1."""
    entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _add_field(entry, 1, "key", _FIELD.TYPE_STRING)
    _add_field(entry, 2, "value", value)
    _add_field(message, 1, name, f"{message.name}.{entry.name}", is_repeated=True)


_SEQUENCE_EXAMPLE = _sequence_example_class()
