"""Parse `tf.train.Example`s and `SequenceExample`s with protobuf's own parser.

An Example has the bytes of a SequenceExample without steps, so one message class reads both.

The message classes are in a private descriptor pool. TensorFlow registers the same names in the
default pool, and one process may need both.

Protobuf accepts more than our encoder writes: fields in any order, lists in several parts or
unpacked, and unknown fields. The last of equal keys counts. A map entry with unknown fields in it
is dropped as a whole, but no known program writes such entries.
Source of the format: tensorflow/core/example/{example,feature}.proto.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from beam_tfrec.schemas.features import Kind

_FIELD = descriptor_pb2.FieldDescriptorProto
_REPEATED = _FIELD.LABEL_REPEATED
_LISTS = {
    "BytesList": _FIELD.TYPE_BYTES,
    "FloatList": _FIELD.TYPE_FLOAT,
    "Int64List": _FIELD.TYPE_INT64,
}
_KINDS = {"bytes_list": Kind.BYTES, "float_list": Kind.FLOAT, "int64_list": Kind.INT64}

Message = Any
"""A protobuf message. It has no static type, since its class is made at run time."""


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
        """Yield key and bytes values of each feature; values of all steps are in one list."""
        features = [(key, [values]) for key, values in self.context.items()]
        for key, steps in (*features, *self.feature_lists.items()):
            yield key, [v for values in steps if values.kind is Kind.BYTES for v in values.values]


def parse_record(data: bytes) -> Sequences | None:
    """Return the features of an Example or SequenceExample, sorted by key; None for other bytes.

    Protobuf parses many short texts as messages of unknown fields. So bytes without any feature
    are not taken for an Example, unless they are at most 4 bytes long (an empty Example).

    >>> parse_record(bytes.fromhex("0a0c0a0a0a016112051a030a0101")).context
    {'a': Values(kind=<Kind.INT64: 'int64'>, values=[1])}
    """
    try:
        context, lists = read_sequence(data)
    except ValueError:
        return None
    if not context and not lists and len(data) > 4:
        return None
    steps = {key: list(map(_values_of, lists[key].feature)) for key in sorted(lists)}
    return Sequences({key: _values_of(context[key]) for key in sorted(context)}, steps)


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
    """Return the kind of a `Feature`'s list; None without a list."""
    return _KINDS.get(feature.WhichOneof("kind"))


def _values_of(feature: Message) -> Values:
    kind = kind_of(feature)
    return Values(kind, [] if kind is None else getattr(feature, f"{kind.value}_list").value)


def _sequence_example_class() -> Message:
    file = descriptor_pb2.FileDescriptorProto(
        name="beam_tfrec/example.proto", package="tensorflow", syntax="proto3"
    )

    def message(name: str, *fields: Mapping[str, Any]) -> Message:
        return file.message_type.add(
            name=name,
            field=[{"number": number, **field} for number, field in enumerate(fields, 1)],
        )

    def message_with_map(name: str, field: str, value: str) -> None:
        entry = f"{field.title().replace('_', '')}Entry"
        found = message(name, {"name": field, "type_name": entry, "label": _REPEATED})
        key = {"name": "key", "number": 1, "type": _FIELD.TYPE_STRING}
        values = {"name": "value", "number": 2, "type_name": value}
        found.nested_type.add(name=entry, field=[key, values], options={"map_entry": True})

    for name, kind in _LISTS.items():
        message(name, {"name": "value", "type": kind, "label": _REPEATED})
    lists = zip(_KINDS, _LISTS, strict=True)
    feature = message("Feature", *({"name": n, "type_name": t, "oneof_index": 0} for n, t in lists))
    feature.oneof_decl.add(name="kind")
    message_with_map("Features", "feature", "Feature")
    message("FeatureList", {"name": "feature", "type_name": "Feature", "label": _REPEATED})
    message_with_map("FeatureLists", "feature_list", "FeatureList")
    context = {"name": "context", "type_name": "Features"}
    feature_lists = {"name": "feature_lists", "type_name": "FeatureLists"}
    message("SequenceExample", context, feature_lists)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName("tensorflow.SequenceExample")
    return message_factory.GetMessageClass(found)


_SEQUENCE_EXAMPLE = _sequence_example_class()
