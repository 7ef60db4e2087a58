"""Committed data sets of given records, written without a pipeline: shards, indexes, manifest."""

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from beam_tfrec.schemas.example import encode_example
from beam_tfrec.schemas.features import FeatureSpec
from beam_tfrec.schemas.manifest import (
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
from beam_tfrec.schemas.shards import ShardNames, file_sum, index_stem
from beam_tfrec.schemas.tfrecord import FRAME_BYTES, frame_record
from beam_tfrec.transforms.shard_index import IndexRow, index_to_parquet, index_to_text

Shards = Sequence[Mapping[str, bytes]]
"""Records by key, for each shard."""

Values = Mapping[str, Any]
"""Values of a record by key; lists of lists for features per step. No key: no feature."""


def write_data_set(
    output: Path,
    spec: FeatureSpec,
    splits: Mapping[str, Shards],
    labels: Sequence[Label] = (),
    options: Mapping[str, str] | None = None,
) -> Path:
    """Write a data set and return its folder; the options are the plan's."""
    entries = {
        split: [_write_shard(output, split, n, len(shards), shards[n]) for n in range(len(shards))]
        for split, shards in splits.items()
    }
    return write_manifest(output, spec, entries, labels, options)


def write_manifest(
    output: Path,
    spec: FeatureSpec,
    entries: Mapping[str, Sequence[ShardEntry]],
    labels: Sequence[Label] = (),
    options: Mapping[str, str] | None = None,
) -> Path:
    """Write the manifest of the shards of each split, and return the data set's folder."""
    planned = {s: PlannedSplit(sum(e.records for e in of), len(of)) for s, of in entries.items()}
    manifest = Manifest(
        layout=spec.name,
        plan=JobPlan(FORMAT_VERSION, dict(options or {}), list(labels), planned, ""),
        splits={split: _summary(found) for split, found in entries.items()},
        shards=[entry for found in entries.values() for entry in found],
        features=[*spec.features],
    )
    output.mkdir(parents=True, exist_ok=True)  # of no shards
    (output / "manifest.json").write_bytes(to_json(manifest))
    return output


def _write_shard(
    output: Path, split: str, index: int, num_shards: int, records: Mapping[str, bytes]
) -> ShardEntry:
    rows: list[IndexRow] = []
    framed: list[bytes] = []
    offset = 0
    for key, record in records.items():
        crc32c = google_crc32c.value(record)
        rows.append(IndexRow(key, offset, len(record) + FRAME_BYTES, [], [], crc32c=crc32c))
        framed += frame_record([record])
        offset += len(record) + FRAME_BYTES
    entry = write_rows(output, split, index, num_shards, rows)
    data = b"".join(framed)
    (output / entry.file).write_bytes(data)
    return msgspec.structs.replace(entry, crc32c=file_sum(data).crc32c)


def write_rows(
    output: Path, split: str, index: int, num_shards: int, rows: Sequence[IndexRow]
) -> ShardEntry:
    """Write a shard of the right size, but of zeros, and its index."""
    (output / "index").mkdir(parents=True, exist_ok=True)
    size_bytes, count = sum(row.size for row in rows), len(rows)
    name = ShardNames().file_name(split, index, num_shards, count)
    (output / name).touch()
    os.truncate(output / name, size_bytes)
    entry = ShardEntry(name, split, count, count, size_bytes, "", "", index_stem=index_stem(name))
    parquet, text = entry.index_names
    (output / parquet).write_bytes(index_to_parquet(rows))
    (output / text).write_bytes(index_to_text(rows))
    return entry


def older_index(data: bytes, version: int = 3) -> bytes:
    """Return an index without the columns of later format versions, and of version 3 the seal."""
    later = ["crc32c", *(["image_height", "image_width", "objects"] if version < 3 else [])]
    table, out, is_sealed = pq.read_table(pa.BufferReader(data)), io.BytesIO(), version == 3
    table = table.drop_columns(later)
    pq.write_table(table if is_sealed else table.replace_schema_metadata(), out)
    head, seal, tail = out.getvalue().rpartition(b"beam-tfrec-crc32c:")
    blank = head + seal + b"0" * 8 + tail[8:]
    crc32c = b"%08x" % google_crc32c.value(blank)
    return head + seal + crc32c + tail[8:] if is_sealed else out.getvalue()


def _summary(entries: Sequence[ShardEntry]) -> SplitSummary:
    records, size_bytes = (sum(getattr(e, what) for e in entries) for what in ("records", "bytes"))
    counts = (records, 0, 0, records, 0, records, len(entries), size_bytes)
    return SplitSummary(*counts, Annotations(0, 0, {}, 0, 0), 0, {}, {}, {})


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
    lists = {key: (kinds[key], values[key]) for key in steps}
    return encode_example(context, lists if spec.is_sequence else None)
