"""Build a shard from its images, and commit its files.

A receipt is a small JSON file with the sizes, checksums and counts of a finished shard.

A shard's files are created in a fixed order: receipt, index, data file. The receipt claims the
content, and the data file appears whole. Each file is created only if its name is free. If the
name is taken, its file must have the same content: an earlier run or a parallel attempt wrote it.
"""

import contextlib
import functools
import hashlib
import logging
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import msgspec

from beam_tfrec.schemas.faults import Rejected, bytes_text, counted, run_fault
from beam_tfrec.schemas.features import Roles, roles_of_spec
from beam_tfrec.schemas.fields import EncodedImage
from beam_tfrec.schemas.layouts import Built, Unfit
from beam_tfrec.schemas.manifest import JobPlan, from_json, plan_digest, to_json
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.shards import ShardInfo, ShardPlan, file_sum, receipt_name
from beam_tfrec.schemas.tfrecord import CRC_BYTES, FRAME_BYTES, HEADER_BYTES, FrameError
from beam_tfrec.transforms import build_records
from beam_tfrec.transforms.gate import GateLimits, WorkerGate, batches
from beam_tfrec.transforms.output_files import check_claim, conflict, create_or_compare
from beam_tfrec.transforms.progress import PROGRESS, Counts
from beam_tfrec.transforms.shard_index import (
    IndexRow,
    Source,
    index_from_parquet,
    index_to_parquet,
    index_to_text,
    same_but_pins,
)
from beam_tfrec.transforms.sources.read_blobs import read_blob
from beam_tfrec.transforms.storage import NewFile, Storage, is_local, join_uri, open_storage
from beam_tfrec.transforms.storage.array_record import GrowingArrayRecord

_LOG = logging.getLogger(__name__)
_STAGE = "write_shards"
_GROUP_BYTES = 4 << 20  # size of a group of records, with some memory for each
_WRITTEN_AT_ONCE_BYTES = 1 << 20  # each write waits for the interpreter lock, so not per record


def gate_for(limits: GateLimits, job: build_records.ShardJob) -> WorkerGate:
    """Return a gate with defaults for local or remote images and output."""
    remote = not all(map(is_local, job.roots.values()))
    return WorkerGate(limits, remote=remote, overlap_uploads=not is_local(job.output))


def write_shard(
    shard: ShardPlan, job: build_records.ShardJob, plan: JobPlan, gate: WorkerGate
) -> ShardInfo:
    """Build and commit a shard, or keep it if an earlier attempt finished it.

    Raises:
        RuntimeError: one of these faults, or a storage fault:
            `E-OUT-CONFLICT` when files with the shard's names have other content;
            `E-SRC-CHANGED` when an image has changed since the listing or the kept shard;
            `E-ARG` when this worker's codecs differ from the plan's.
    """
    output = open_storage(job.output, job.access)
    storages = {name: open_storage(uri, job.access) for name, uri in job.roots.items()}
    kept = find_written(shard, output, plan_digest(plan))
    if kept is not None:
        info, rows = kept
        if not job.layout.copies_records:  # their contents are part of the plan
            check_source_versions(shard, rows, output, storages)
        PROGRESS.add(Counts(info.planned, info.planned - info.records, info.bytes, 1))
    else:
        build_records.check_codecs(job, plan)
        info = build_shard(shard, job, plan, gate, output, storages)
        PROGRESS.add(Counts(shards_done=1))
    verb, records = "kept" if kept else "wrote", counted(info.records, "record")
    _LOG.debug("%s %s (%s, %s)", verb, info.file, records, bytes_text(info.bytes))
    return info


def find_written(
    shard: ShardPlan, output: Storage, digest_of_plan: str
) -> tuple[ShardInfo, list[IndexRow]] | None:
    """Return counts and index rows of a shard that an earlier attempt finished, else None.

    If a receipt exists without its shard file, an attempt was interrupted. The shard is then built
    again, with the same content.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when receipt and file disagree.
    """
    name = receipt_name(shard.name)
    if output.stat(name) is None:
        return None
    try:
        data = output.read(name)
        info = msgspec.structs.replace(from_json(data, ShardInfo), receipt=file_sum(data))
    except ValueError as error:
        raise conflict(output, name, f"is not a receipt ({error})") from None
    if (info.name, info.plan) != (shard.name, digest_of_plan):
        what = f"is the receipt of {info.name} of plan {info.plan}, this run's is {digest_of_plan}"
        raise conflict(output, name, what)
    parquet_name, *text_names = info.index_names
    if None in (output.stat(name) for name in (info.file, parquet_name, *text_names)):
        return None
    _compare_with_existing(info, output)
    rows = read_own_index(parquet_name, output)
    planned = {sample.key for sample in shard.samples}
    if len(rows) != info.records or not planned.issuperset(row.key for row in rows):
        raise conflict(output, parquet_name, "describes other records")
    return info, rows


def check_source_versions(
    shard: ShardPlan, rows: Sequence[IndexRow], output: Storage, storages: Mapping[str, Storage]
) -> None:
    """Check that images with a new modification time or generation still have the same content.

    Args:
        shard: plan of a kept shard.
        rows: rows of the shard's index, with the sources' pins and sums.
        output: output of the run.
        storages: storages by root name.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when the content has changed; `E-OUT-CONFLICT` when the index
            has another number of sources for a key.
    """
    samples = {sample.key: sample for sample in shard.samples}
    for row in rows:
        blobs = samples[row.key].blobs
        if len(row.sources) != len(blobs):
            what = f"has an index with another number of sources for key {row.key!r}"
            raise conflict(output, receipt_name(shard.name), what)
        for source, blob in zip(row.sources, blobs, strict=True):
            if source.pin == blob.pin or blob.is_staged:  # its content is part of the plan
                continue
            storage = storages[blob.root]
            with contextlib.suppress(FrameError):  # the record that holds it is damaged
                if hashlib.sha256(read_blob(storage, blob)).hexdigest() == source.sha256:
                    continue
            what = f"has changed since {shard.name} was written"
            remedy = "restore it, or give another --output, or --overwrite"
            raise run_fault("E-SRC-CHANGED", join_uri(storage.root, blob.file_name), what, remedy)


def build_shard(
    shard: ShardPlan,
    job: build_records.ShardJob,
    plan: JobPlan,
    gate: WorkerGate,
    output: Storage,
    storages: Mapping[str, Storage],
) -> ShardInfo:
    """Read a shard's images, commit its files, and return their sizes, sums and counts."""
    roles = roles_of_spec(job.layout.resolved(plan.found).spec)
    with contextlib.ExitStack() as stack:
        pending = stack.enter_context(contextlib.closing(output.new_file()))
        array_record = None
        if options := job.array_record_options:
            opened = GrowingArrayRecord(options, job.access.spool_dir)
            array_record = stack.enter_context(contextlib.closing(opened))
        growing = GrowingShard(shard, job, roles, pending, array_record)
        known = {label.id for label in plan.labels}
        with gate.building:
            for sample, record in _records(shard, job, plan, gate, storages):
                growing.annotations_listed += len(sample.annotation_ids)
                if isinstance(record, Unfit):
                    growing.reject(sample, record)
                elif known and record.row and (extra := {*record.row.labels} - known):
                    growing.reject(sample, Unfit("E-SRC-LABEL", f"class {min(extra)} has no name"))
                else:
                    growing.append(sample, record)
        info = growing.finish(plan_digest(plan))
        return _commit_shard(info, growing.rows, pending, output)


def _records(
    shard: ShardPlan,
    job: build_records.ShardJob,
    plan: JobPlan,
    gate: WorkerGate,
    storages: Mapping[str, Storage],
) -> Iterator[tuple[Sample, build_records.Record | Unfit]]:
    """Yield a shard's samples in order, with their records."""
    make_record = build_records.record_maker(job, plan, gate, storages)
    if storages and not job.layout.copies_records:
        yield from gate.in_order(shard.samples, job.memory_bytes, make_record)
        return
    if job.layout.copies_records:
        make_group = functools.partial(build_records.copy_group, storages=storages)
    else:  # rows without images
        make_group = functools.partial(
            build_records.make_rows, job=job, plan=plan, make_record=make_record
        )
    sized = batches(shard.samples, job.memory_bytes, _GROUP_BYTES)
    made = gate.in_order(sized, operator.itemgetter(1), lambda group: make_group(group[0]))
    for (group, _), records in made:
        yield from zip(group, records, strict=True)


def _commit_shard(
    info: ShardInfo, rows: Sequence[IndexRow], pending: NewFile, output: Storage
) -> ShardInfo:
    """Create a shard's files; return its info with the size and checksum of the receipt."""
    exists = output.stat(info.file) is not None
    if exists:  # before the receipt, which would make a foreign file look like ours to a rerun
        _compare_with_existing(info, output)
    check_claim(output, info.plan)
    receipt = to_json(info)
    create_or_compare(output, receipt_name(info.name), receipt)
    parquet_name, *text_names = info.index_names
    if not output.create(parquet_name, index_to_parquet(rows)) and not same_but_pins(
        rows, read_own_index(parquet_name, output)
    ):
        raise conflict(output, parquet_name, "describes other records")
    for name in text_names:
        create_or_compare(output, name, index_to_text(rows))
    if not exists and not pending.publish(info.file):
        _compare_with_existing(info, output)
    return msgspec.structs.replace(info, receipt=file_sum(receipt))


def read_own_index(name: str, output: Storage) -> list[IndexRow]:
    """Return the rows of a shard's index.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when the file is not an index.
    """
    try:
        return index_from_parquet(output.read(name))
    except ValueError as error:
        raise conflict(output, name, str(error)) from None


def _compare_with_existing(info: ShardInfo, output: Storage) -> None:
    """Check that a shard file of another attempt has the same bytes.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when it has other bytes.
    """
    found = output.stat(info.file)
    crc32c = f"{output.crc32c(info.file):08x}"
    if found is None or (found.size_bytes, crc32c) != (info.bytes, info.crc32c):
        what = f"has CRC-32C {crc32c}, its receipt says {info.bytes} bytes of {info.crc32c}"
        raise conflict(output, info.file, what)


@dataclass(eq=False)
class GrowingShard:
    """A shard while its records are appended; records are written in batches of 1 MiB.

    Attributes:
        shard: plan of the shard.
        job: configuration of the run.
        roles: roles of the records' features, for the index's columns.
        pending: the shard's file until it gets its name.
        array_record: temporary file of an ArrayRecord shard; None for TFRecord.
        rows: index rows of the records.
        annotations_listed: number of annotations of the samples up to now.
    """

    shard: ShardPlan
    job: build_records.ShardJob
    roles: Roles
    pending: NewFile
    array_record: GrowingArrayRecord | None
    rows: list[IndexRow] = field(default_factory=list)
    annotations_listed: int = 0
    _bytes: int = 0
    _unwritten: list[bytes] = field(default_factory=list)
    _crc32c: int = 0
    _sha256: Any = field(default_factory=hashlib.sha256)
    _written: Counts = field(default_factory=Counts)
    _annotations_written: int = 0
    _rejected: list[Rejected] = field(default_factory=list)
    _repairs: Counter[str] = field(default_factory=Counter)
    _traits: Counter[str] = field(default_factory=Counter)
    _licenses: Counter[str] = field(default_factory=Counter)

    def append(self, sample: Sample, record: build_records.Record) -> None:
        """Append a record, and add it to the index and the counts."""
        parts, built, images, crc32c, ready_row = record
        offset, size = self._bytes, sum(map(len, parts))
        if self.array_record is None:
            self._unwritten += parts
        else:
            offset, size = len(self.rows), size - FRAME_BYTES
            is_one = len(parts) == 1  # a copied record has its frame
            data = parts[0][HEADER_BYTES:-CRC_BYTES] if is_one else b"".join(parts[1:-1])
            self.array_record.write(data)
        if ready_row is not None:
            row = ready_row.at(sample.key, offset, size)
        else:
            sources = [
                Source(
                    *blob.image_file,
                    "" if blob.is_staged else blob.pin,
                    image.source_sha256 or image.sha256,
                )
                for blob, image in zip(sample.blobs, images, strict=True)
            ]
            facts = build_records.record_facts(built.features, self.roles, images)
            row = IndexRow(sample.key, offset, size, sources, built.labels, *facts, crc32c)
        self.rows.append(row)
        self._bytes += size
        if self._bytes - self._written.bytes >= _WRITTEN_AT_ONCE_BYTES:
            self._write()
        if ready_row is None:  # of a ready row nothing is counted
            self._count(sample, built, images)

    def _count(self, sample: Sample, built: Built, images: Sequence[EncodedImage]) -> None:
        """Count what a record holds, and note its dropped annotations."""
        self._annotations_written += len(sample.annotation_ids) - len(built.dropped)
        if built.license_id is not None:
            self._licenses[str(built.license_id)] += 1
        self._repairs.update(built.repairs)
        for image in images:
            self._traits.update(image.info.traits)
            if image.turned != 1:
                self._repairs["image_turned"] += 1
            if self.job.conversion.changes:
                is_converted = image.window is not None or image.pixels is not None
                self._repairs["image_converted" if is_converted else "image_unchanged"] += 1
        for dropped in built.dropped:
            reject = sample.reject(_STAGE, dropped.code, dropped.detail)
            self._note(msgspec.structs.replace(reject, annotation_ids=(dropped.annotation_id,)))

    def reject(self, sample: Sample, unfit: Unfit) -> None:
        """Note a sample that is rejected."""
        self._note(sample.reject(_STAGE, unfit.code, unfit.detail, unfit.place))
        PROGRESS.add(Counts(done=1, rejected=1))

    def finish(self, digest_of_plan: str) -> ShardInfo:
        """Write the remaining records; return the shard's sizes, sums and counts."""
        shard, records, names = self.shard, len(self.rows), self.job.names
        self._write()
        if self.array_record is not None:
            self._bytes = 0
            for piece in self.array_record.finish():
                self._unwritten = [piece]
                self._bytes += len(piece)
                self._write()
        return ShardInfo(
            plan=digest_of_plan,
            split=shard.split,
            index=shard.index,
            num_shards=shard.num_shards,
            file=names.file_name(shard.split, shard.index, shard.num_shards, records),
            planned=len(shard.packed),
            records=records,
            bytes=self._bytes,
            crc32c=f"{self._crc32c:08x}",
            sha256=self._sha256.hexdigest(),
            annotations_listed=self.annotations_listed,
            annotations_written=self._annotations_written,
            repairs=dict(sorted(self._repairs.items())),
            traits=dict(sorted(self._traits.items())),
            rejected=self._rejected,
            licenses=dict(sorted(self._licenses.items())),
        )

    def _write(self) -> None:
        self.pending.write(self._unwritten)
        for part in self._unwritten:
            self._crc32c = google_crc32c.extend(self._crc32c, part)
            self._sha256.update(part)
        self._unwritten = []
        before, self._written = self._written, Counts(len(self.rows), bytes=self._bytes)
        done, new_bytes = self._written.done - before.done, self._written.bytes - before.bytes
        PROGRESS.add(Counts(done, bytes=new_bytes))

    def _note(self, reject: Rejected) -> None:
        self._rejected.append(msgspec.structs.replace(reject, shard=self.shard.name))
