"""The bytes of a `tf.train.SequenceExample`, on the same terms as those of an Example.

Byte-equal to TensorFlow's `SerializeToString(deterministic=True)` where both `context` and
`feature_lists` are set, if to nothing; keys are in the order that `schemas.example` tells. Source
of the format: tensorflow/core/example/{example,feature}.proto.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence

from schemas.example import (
    UNCOPIED_BYTES,
    FeatureValues,
    bytes_list,
    encode_example_parts,
    packed_floats,
    packed_int64s,
    packed_list,
    varint,
)
from schemas.features import Kind

FeatureListValues = Mapping[str, tuple[Kind, Sequence[Sequence]]]
"""Per feature list's key the kind of its values and, step by step, these."""


def encode_sequence_example(context: FeatureValues, feature_lists: FeatureListValues) -> bytes:
    """Return a serialized `tf.train.SequenceExample`.

    >>> encode_sequence_example({}, {"a": (Kind.INT64, [[1], []])}).hex()
    '0a0012120a100a0161120b0a051a030a01010a021a00'
    """
    return b"".join(encode_sequence_example_parts(context, feature_lists))


def encode_sequence_example_parts(
    context: FeatureValues, feature_lists: FeatureListValues
) -> list[bytes]:
    """Return a serialized `tf.train.SequenceExample` in parts; together they are the message.

    Args:
        context: the values of every feature of the whole.
        feature_lists: the values of every step of the others. Floats and integers are as in
            `encode_example_parts`.

    Returns:
        At least two parts; bytes values of 4 kB and more stand among them as they were given.

    Raises:
        OverflowError: when an integer does not fit int64.
        TypeError: when a value does not fit its kind.
    """
    entries: list[bytes] = []
    for key in sorted(feature_lists):
        kind, steps = feature_lists[key]
        entries += _entry(key, _steps(kind, steps))
    # The context has the field number and the type of an Example's features.
    header = b"\x12" + varint(sum(map(len, entries)))
    return [*encode_example_parts(context), *_joined((header, *entries))]


def _steps(kind: Kind, steps: Sequence[Sequence]) -> list[bytes]:
    """Return the content of a `tf.train.FeatureList` in parts."""
    parts: list[bytes] = []
    for values in steps:
        if kind is Kind.BYTES:
            listed = bytes_list(values)
            parts.append(_step_header(b"\x0a", sum(map(len, listed))))
            parts += listed
            continue
        is_float = kind is Kind.FLOAT
        content = packed_list((packed_floats if is_float else packed_int64s)(values))
        parts += (_step_header(b"\x12" if is_float else b"\x1a", len(content)), content)
    return parts


@functools.lru_cache(maxsize=4096)
def _step_header(list_tag: bytes, list_bytes: int) -> bytes:
    """Return a step's Feature up to its values."""
    list_header = list_tag + varint(list_bytes)
    return b"\x0a" + varint(len(list_header) + list_bytes) + list_header


def _entry(key: str, steps: Sequence[bytes]) -> list[bytes]:
    """Return a map's entry in parts: the outer lengths stand first on the wire."""
    name = key.encode()
    steps_bytes = sum(map(len, steps))
    entry = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(steps_bytes)
    return [b"\x0a" + varint(len(entry) + steps_bytes) + entry, *steps]


def _joined(parts: Iterable[bytes]) -> list[bytes]:
    """Return parts with all neighbours joined that cost less to copy than to hand on."""
    joined: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < UNCOPIED_BYTES:
            small.append(part)
            continue
        joined += (b"".join(small), part)  # a header precedes every value
        small = []
    return [*joined, b"".join(small)] if small else joined
