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

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from beam_tfrec.schemas.features import Kind

_PROTO = """
name: "beam_tfrec/example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList"
  field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List"
  field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: "BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: "FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: "Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 type_name: "FeatureEntry" label: LABEL_REPEATED }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: "Feature" } } }
message_type { name: "FeatureList"
  field { name: "feature" number: 1 type_name: "Feature" label: LABEL_REPEATED } }
message_type { name: "FeatureLists"
  field { name: "feature_list" number: 1 type_name: "FeatureListEntry" label: LABEL_REPEATED }
  nested_type { name: "FeatureListEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: "FeatureList" } } }
message_type { name: "SequenceExample"
  field { name: "context" number: 1 type_name: "Features" }
  field { name: "feature_lists" number: 2 type_name: "FeatureLists" } }
"""
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

    def text(self, key: str) -> str:
        """Return the single value of a feature as text; empty if there is none or several."""
        held = self.context.get(key)
        if held is None or len(held.values) != 1:
            return ""
        value = held.values[0]
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

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
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
    found = pool.FindMessageTypeByName("tensorflow.SequenceExample")
    return message_factory.GetMessageClass(found)


_SEQUENCE_EXAMPLE = _sequence_example_class()
