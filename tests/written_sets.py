"""Data sets of given values: what the encoder makes of them, in a committed data set's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schemas.example import encode_example, encode_sequence_example
from schemas.features import FeatureSpec
from schemas.manifest import Label
from tests.small_data_sets import write_data_set

Values = Mapping[str, Any]
"""Of a record: a list by key, of lists where the feature is per step. No key, no feature."""


def write_values(
    folder: Path,
    spec: FeatureSpec,
    splits: Mapping[str, Sequence[Sequence[Values]]],
    labels: Sequence[Label] = (),
    options: Mapping[str, str] | None = None,
) -> Path:
    """Write the records of each split's shards; return the data set's folder."""
    encoded = {
        split: [
            {f"{index} {place}": encode_values(spec, values) for place, values in enumerate(shard)}
            for index, shard in enumerate(shards)
        ]
        for split, shards in splits.items()
    }
    return write_data_set(folder, spec, encoded, labels, options)


def encode_values(spec: FeatureSpec, values: Values) -> bytes:
    """Return the record of the values."""
    kinds = {feature.key: feature.kind for feature in spec.features}
    steps = {feature.key for feature in spec.features if feature.per_step}
    context = {key: (kinds[key], value) for key, value in values.items() if key not in steps}
    if not spec.is_sequence:
        return encode_example(context)
    return encode_sequence_example(context, {key: (kinds[key], values[key]) for key in steps})
