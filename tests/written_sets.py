"""Data sets of given values, written by the encoder and the manifest's types alone.

No pipeline can be given any values: these have what a test says, in the files of a committed set.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c

from schemas.example import encode_example
from schemas.features import FeatureSpec
from schemas.manifest import (
    MANIFEST_NAME,
    Annotations,
    FeatureEntry,
    JobPlan,
    Label,
    Manifest,
    PlannedSplit,
    ShardEntry,
    SplitSummary,
    to_json,
)
from schemas.sequence_example import encode_sequence_example
from schemas.shards import ShardNames, index_names, shard_stem
from schemas.tfrecord import FRAME_BYTES, frame_record
from transforms.shard_index import IndexRow, index_to_parquet

Values = Mapping[str, Any]
"""Of a record: a list by key, of lists where the feature is per step. No key, no feature."""

Shards = Sequence[Sequence[Values]]


def write_data_set(
    folder: Path,
    spec: FeatureSpec,
    splits: Mapping[str, Shards],
    labels: Sequence[Label] = (),
    options: Mapping[str, str] | None = None,
) -> Path:
    """Write the records of each split's shards, with their indexes and manifest; return `folder`.

    Args:
        folder: of the data set; made if need be.
        spec: of all records.
        splits: the values of the records of the shards of each split.
        labels: the label map.
        options: of the plan.
    """
    entries: list[ShardEntry] = []
    for split, shards in splits.items():
        for index, records in enumerate(shards):
            stem = shard_stem(split, index, len(shards))
            file = ShardNames().file_name(split, index, len(shards), len(records))
            entries.append(_write_shard(folder, split, file, stem, spec, records))
    plan = JobPlan(
        format_version=2,
        options=dict(options or {}),
        labels=list(labels),
        splits={name: PlannedSplit(_count(s), len(s)) for name, s in splits.items()},
        samples="0" * 64,
    )
    manifest = Manifest(
        layout=spec.name,
        plan=plan,
        splits={name: _summary(entries, name) for name in splits},
        shards=entries,
        features=[
            FeatureEntry(
                f.key,
                f.kind.value,
                f.repeated,
                f.doc,
                f.content.value,
                f.optional,
                f.per_step,
            )
            for f in spec.sorted_features
        ],
    )
    (folder / MANIFEST_NAME).write_bytes(to_json(manifest))
    return folder


def encode_values(spec: FeatureSpec, values: Values) -> bytes:
    """Return the record of the values."""
    kinds = {f.key: f.kind for f in spec.features}
    steps = {f.key for f in spec.features if f.per_step}
    given = {key: (kinds[key], value) for key, value in values.items() if key not in steps}
    if not spec.is_sequence:
        return encode_example(given)
    return encode_sequence_example(given, {key: (kinds[key], values[key]) for key in steps})


def _write_shard(
    folder: Path, split: str, file: str, stem: str, spec: FeatureSpec, records: Sequence[Values]
) -> ShardEntry:
    rows: list[IndexRow] = []
    data = b""
    for place, values in enumerate(records):
        record = encode_values(spec, values)
        rows.append(IndexRow(f"{stem} {place}", len(data), len(record) + FRAME_BYTES, [], []))
        data += b"".join(frame_record([record]))
    (folder / index_names(stem)[0]).parent.mkdir(parents=True, exist_ok=True)
    (folder / index_names(stem)[0]).write_bytes(index_to_parquet(rows))
    (folder / file).write_bytes(data)
    crc32c = f"{google_crc32c.value(data):08x}"
    sha256 = hashlib.sha256(data).hexdigest()
    return ShardEntry(file, split, len(records), len(records), len(data), crc32c, sha256)


def _summary(entries: Sequence[ShardEntry], split: str) -> SplitSummary:
    shards = [entry for entry in entries if entry.split == split]
    records = sum(entry.records for entry in shards)
    return SplitSummary(
        listed=records,
        excluded=0,
        rejected_before_planning=0,
        planned=records,
        rejected_in_shards=0,
        records=records,
        shards=len(shards),
        bytes=sum(entry.bytes for entry in shards),
        annotations=Annotations(0, 0, {}, 0, 0),
        repeated_annotation_ids=0,
        rejected={},
        repairs={},
        traits={},
    )


def _count(shards: Shards) -> int:
    return sum(map(len, shards))
