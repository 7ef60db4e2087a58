"""What a record becomes: a dict of NumPy values by key, equal to what TensorFlow parses.

| feature | bytes | float | int64 |
|---|---|---|---|
| one value | `bytes` | `numpy.float32` | `numpy.int64` |
| optional, and not there | `b""` | `numpy.float32(0)` | `numpy.int64(0)` |
| repeated | `list` of `bytes` | array float32 [n] | array int64 [n] |
| one value a step | `list` of `bytes` | array float32 [steps] | array int64 [steps] |
| repeated, per step | `list` of these | `list` of arrays | `list` of arrays |
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from schemas.features import Feature, FeatureSpec, Kind
from schemas.parse_example import NO_VALUES, Values, parse_example, parse_sequence_example

Record = dict[str, Any]
"""A record's values by key; every key of its features is there, and no other."""

RecordParser = Callable[[bytes, int, int], Record]
"""Makes a record of bytes, from where it begins to where it ends in them."""

_DTYPES = {Kind.FLOAT: np.float32, Kind.INT64: np.int64}


def record_parser(spec: FeatureSpec) -> RecordParser:
    """Return what makes records of serialized Examples, or SequenceExamples if such is the spec.

    Arrays are the caller's own, and can be written to. The parser raises `ValueError` where
    `tf.io.parse_single_example` with `parse_spec` would fail: bytes that are no Example, values of
    another kind, and none or several where there must be one.
    """
    whole = [(f.key, f.kind, _converter(f)) for f in spec.features if not f.per_step]
    steps = [(f.key, f.kind, _converter(f), f.repeated) for f in spec.features if f.per_step]

    def of_whole(features: Mapping[str, Values]) -> Record:
        record = {}
        for key, kind, convert in whole:
            values = features.get(key, NO_VALUES)
            if values.kind is not kind:
                _check_kind(key, values, kind)
            record[key] = convert(values)
        return record

    def parse(data: bytes, start: int, end: int) -> Record:
        return of_whole(parse_example(data, start, end))

    def parse_sequence(data: bytes, start: int, end: int) -> Record:
        context, lists = parse_sequence_example(data, start, end)
        record = of_whole(context)
        for key, kind, convert, is_repeated in steps:
            steps_values = lists.get(key, [])
            for values in steps_values:
                _check_kind(key, values, kind)
            per_step = [convert(values) for values in steps_values]
            record[key] = per_step if is_repeated else _as_one(per_step, kind)
        return record

    return parse_sequence if spec.is_sequence else parse


def _check_kind(key: str, values: Values, kind: Kind) -> None:
    if values.kind is not kind and values.kind is not None:
        raise ValueError(f"{key} is of kind {values.kind.value}, not {kind.value}")


def _converter(feature: Feature) -> Callable[[Values], Any]:
    """Return what makes a record's value of a feature's values."""
    key, kind = feature.key, feature.kind
    if feature.repeated:
        return _bytes if kind is Kind.BYTES else _array_of(_DTYPES[kind])
    default = _default(kind) if feature.optional else None

    scalar: Callable[[Any], Any] = bytes if kind is Kind.BYTES else _DTYPES[kind]

    def convert(values: Values) -> Any:
        if len(values.values) == 1:
            return scalar(values.values[0])
        if values.kind is None and default is not None:
            return default
        raise ValueError(f"{key} has {len(values.values)} values, not one")

    return convert


def _default(kind: Kind) -> Any:
    return b"" if kind is Kind.BYTES else _DTYPES[kind](0)


def _bytes(values: Values) -> Any:
    return list(values.values)


def _array_of(dtype: Any) -> Callable[[Values], Any]:
    def convert(values: Values) -> Any:
        """Return numbers as NumPy's array, which has the memory of Python's."""
        numbers = values.values
        return np.frombuffer(numbers, dtype) if numbers else np.empty(0, dtype)  # type: ignore[arg-type]

    return convert


def _as_one(per_step: Sequence[Any], kind: Kind) -> Any:
    return list(per_step) if kind is Kind.BYTES else np.array(per_step, _DTYPES[kind])
