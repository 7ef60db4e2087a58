"""Committed data sets of given records, written without a pipeline: shards, indexes, manifest."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c

from schemas.features import FeatureSpec
from schemas.manifest import (
    FORMAT_VERSION,
    Annotations,
    JobPlan,
    Label,
    Manifest,
    PlannedSplit,
    ShardEntry,
    SplitSummary,
    to_json,
)
from schemas.shards import COUNTED, ShardNames, index_names, index_stem
from schemas.tfrecord import FRAME_BYTES, frame_record
from transforms.shard_index import IndexRow, index_to_parquet, index_to_text

Shards = Sequence[Mapping[str, bytes]]
"""Per shard its records by key."""


def write_data_set(
    output: Path,
    spec: FeatureSpec,
    splits: Mapping[str, Shards],
    labels: Sequence[Label] = (),
    options: Mapping[str, str] | None = None,
) -> Path:
    """Write a data set and return its folder; the options are the plan's."""
    (output / "index").mkdir(parents=True)
    names = ShardNames((options or {}).get("shard_names", COUNTED))
    entries: list[ShardEntry] = []
    for split, shards in splits.items():
        for index, records in enumerate(shards):
            entries.append(_write_shard(output, names, split, index, len(shards), records))
    manifest = Manifest(
        layout=spec.name,
        plan=JobPlan(
            FORMAT_VERSION,
            dict(options or {}),
            list(labels),
            {split: PlannedSplit(sum(map(len, s)), len(s)) for split, s in splits.items()},
            "",
        ),
        splits={
            split: _summary(shards, sum(e.bytes for e in entries if e.split == split))
            for split, shards in splits.items()
        },
        shards=entries,
        features=[*spec.features],
    )
    (output / "manifest.json").write_bytes(to_json(manifest))
    return output


def _write_shard(
    output: Path,
    names: ShardNames,
    split: str,
    index: int,
    num_shards: int,
    records: Mapping[str, bytes],
) -> ShardEntry:
    rows: list[IndexRow] = []
    framed: list[bytes] = []
    offset = 0
    for key, record in records.items():
        rows.append(IndexRow(key, offset, len(record) + FRAME_BYTES, [], []))
        framed += frame_record([record])
        offset += len(record) + FRAME_BYTES
    data = b"".join(framed)
    name = names.file_name(split, index, num_shards, len(records))
    (output / name).write_bytes(data)
    stem = index_stem(name)
    parquet, text = index_names(stem)
    (output / parquet).write_bytes(index_to_parquet(rows))
    (output / text).write_bytes(index_to_text(rows))
    crc32c = f"{google_crc32c.value(data):08x}"
    return ShardEntry(name, split, len(records), len(records), len(data), crc32c, "", stem)


def _summary(shards: Shards, size_bytes: int) -> SplitSummary:
    records = sum(map(len, shards))
    return SplitSummary(
        listed=records,
        excluded=0,
        rejected_before_planning=0,
        planned=records,
        rejected_in_shards=0,
        records=records,
        shards=len(shards),
        bytes=size_bytes,
        annotations=Annotations(0, 0, {}, 0, 0),
        repeated_annotation_ids=0,
        rejected={},
        repairs={},
        traits={},
    )
