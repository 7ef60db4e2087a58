"""Parse a record to a dict of NumPy values by key, equal to what TensorFlow parses.

| feature | bytes | float | int64 |
|---|---|---|---|
| one value | `bytes` | `numpy.float32` | `numpy.int64` |
| optional and absent | `b""` | `numpy.float32(0)` | `numpy.int64(0)` |
| repeated | `list` of `bytes` | array float32 [n] | array int64 [n] |
| one value a step | `list` of `bytes` | array float32 [steps] | array int64 [steps] |
| repeated, per step | `list` of these | `list` of arrays | `list` of arrays |
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from schemas.features import Feature, FeatureSpec, Kind
from schemas.parse_example import Message, kind_of, read_features, read_sequence

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
