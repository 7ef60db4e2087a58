"""Committed data sets of given records, written without a pipeline: shards, indexes, manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c

from schemas.features import FeatureSpec
from schemas.manifest import (
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
from schemas.shards import ShardNames, index_names, shard_stem
from schemas.tfrecord import FRAME_BYTES, frame_record
from transforms.shard_index import IndexRow, index_to_parquet, index_to_text

Shards = Sequence[Mapping[str, bytes]]
"""Per shard its records by key."""


def write_data_set(
    output: Path, spec: FeatureSpec, splits: Mapping[str, Shards], labels: Sequence[Label] = ()
) -> Path:
    """Write a data set and return its folder."""
    (output / "index").mkdir(parents=True)
    entries: list[ShardEntry] = []
    for split, shards in splits.items():
        for index, records in enumerate(shards):
            entries.append(_write_shard(output, split, index, len(shards), records))
    manifest = Manifest(
        layout=spec.name,
        plan=JobPlan(
            2,
            {},
            list(labels),
            {split: PlannedSplit(sum(map(len, s)), len(s)) for split, s in splits.items()},
            "",
        ),
        splits={split: _summary(shards) for split, shards in splits.items()},
        shards=entries,
        features=[
            FeatureEntry(
                f.key, f.kind.value, f.repeated, f.doc, f.content.value, f.optional, f.per_step
            )
            for f in spec.features
        ],
    )
    (output / "manifest.json").write_bytes(to_json(manifest))
    return output


def _write_shard(
    output: Path, split: str, index: int, num_shards: int, records: Mapping[str, bytes]
) -> ShardEntry:
    rows: list[IndexRow] = []
    framed: list[bytes] = []
    offset = 0
    for key, record in records.items():
        rows.append(IndexRow(key, offset, len(record) + FRAME_BYTES, [], []))
        framed += frame_record([record])
        offset += len(record) + FRAME_BYTES
    data = b"".join(framed)
    name = ShardNames().file_name(split, index, num_shards, len(records))
    (output / name).write_bytes(data)
    parquet, text = index_names(shard_stem(split, index, num_shards))
    (output / parquet).write_bytes(index_to_parquet(rows))
    (output / text).write_bytes(index_to_text(rows))
    crc32c = f"{google_crc32c.value(data):08x}"
    return ShardEntry(name, split, len(records), len(records), len(data), crc32c, "")


def _summary(shards: Shards) -> SplitSummary:
    records = sum(map(len, shards))
    return SplitSummary(
        listed=records,
        excluded=0,
        rejected_before_planning=0,
        planned=records,
        rejected_in_shards=0,
        records=records,
        shards=len(shards),
        bytes=0,
        annotations=Annotations(0, 0, {}, 0, 0),
        repeated_annotation_ids=0,
        rejected={},
        repairs={},
        traits={},
    )
