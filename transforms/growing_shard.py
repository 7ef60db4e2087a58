"""A shard while it grows: the bytes of its records, its index and its receipt."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c

from schemas.faults import Rejected
from schemas.feature_roles import Roles
from schemas.images import EncodedImage
from schemas.layouts import Built, Unfit
from schemas.samples import Sample
from schemas.shards import ShardInfo, ShardNames, ShardPlan
from transforms.images.convert_images import Conversion
from transforms.progress import PROGRESS
from transforms.record_facts import record_facts
from transforms.shard_index import IndexRow, Source
from transforms.storage import Spool

_STAGE = "write_shards"
_WRITTEN_AT_ONCE_BYTES = 1 << 20  # a write for each record would wait for the interpreter each time


class Record(NamedTuple):
    """A framed record in parts, and what it was built from."""

    parts: list[bytes]
    built: Built
    images: Sequence[EncodedImage]


class GrowingShard:
    """A shard while its records are appended; they are written some at a time."""

    def __init__(
        self, shard: ShardPlan, spool: Spool, conversion: Conversion, roles: Roles
    ) -> None:
        self._converts = conversion.changes
        self._roles = roles
        self.rows: list[IndexRow] = []
        self._shard = shard
        self._spool = spool
        self._bytes = 0
        self._unwritten: list[bytes] = []
        self._crc32c = 0
        self._sha256 = hashlib.sha256()
        self._written = self._written_bytes = 0
        self._annotations_written = 0
        self._rejected: list[Rejected] = []
        self._repairs: Counter[str] = Counter()
        self._traits: Counter[str] = Counter()
        self._licenses: Counter[str] = Counter()

    def append(self, sample: Sample, record: Record) -> None:
        """Append a record and note what it holds."""
        parts, built, images = record
        size = sum(map(len, parts))
        self._unwritten += parts
        sources = [
            Source(blob.name, blob.size_bytes, blob.pin, image.source_sha256 or image.sha256)
            for blob, image in zip(sample.blobs, images, strict=True)
        ]
        facts = record_facts(built.features, self._roles, images)
        self.rows.append(IndexRow(sample.key, self._bytes, size, sources, built.labels, *facts))
        self._bytes += size
        if self._bytes - self._written_bytes >= _WRITTEN_AT_ONCE_BYTES:
            self._write()
        self._annotations_written += len(sample.annotation_ids) - len(built.dropped)
        if built.license_id is not None:
            self._licenses[str(built.license_id)] += 1
        if built.repairs:
            self._repairs.update(built.repairs)
        for image in images:
            if image.info.traits:
                self._traits.update(image.info.traits)
            if image.turned != 1:
                self._repairs["image_turned"] += 1
            if self._converts:
                is_converted = image.window is not None or image.pixels is not None
                self._repairs["image_converted" if is_converted else "image_unchanged"] += 1
        for dropped in built.dropped:
            self._note(sample, dropped.code, dropped.detail, (dropped.annotation_id,))

    def reject(self, sample: Sample, unfit: Unfit) -> None:
        """Note a sample that gets no record."""
        self._note(sample, unfit.code, unfit.detail, sample.annotation_ids, unfit.place)
        PROGRESS.add_samples(1, 1, 0)

    def info(self, plan: str, names: ShardNames) -> ShardInfo:
        """Return what was made of the shard."""
        shard = self._shard
        records = len(self.rows)
        self._write()
        return ShardInfo(
            plan=plan,
            split=shard.split,
            index=shard.index,
            num_shards=shard.num_shards,
            file=names.file_name(shard.split, shard.index, shard.num_shards, records),
            planned=len(shard.samples),
            records=records,
            bytes=self._bytes,
            crc32c=f"{self._crc32c:08x}",
            sha256=self._sha256.hexdigest(),
            annotations_listed=sum(len(sample.annotation_ids) for sample in shard.samples),
            annotations_written=self._annotations_written,
            repairs=dict(sorted(self._repairs.items())),
            traits=dict(sorted(self._traits.items())),
            rejected=self._rejected,
            licenses=dict(sorted(self._licenses.items())),
        )

    def _write(self) -> None:
        self._spool.write(self._unwritten)
        for part in self._unwritten:
            self._crc32c = google_crc32c.extend(self._crc32c, part)
            self._sha256.update(part)
        written = len(self.rows) - self._written
        PROGRESS.add_samples(written, 0, self._bytes - self._written_bytes)
        self._unwritten = []
        self._written, self._written_bytes = len(self.rows), self._bytes

    def _note(
        self,
        sample: Sample,
        code: str,
        detail: str,
        annotation_ids: tuple[int | str, ...],
        place: int = 0,
    ) -> None:
        self._rejected.append(
            Rejected(
                code=code,
                stage=_STAGE,
                split=sample.split,
                key=sample.key,
                annotation_ids=annotation_ids,
                file_name=sample.blobs[place].name if place < len(sample.blobs) else "",
                detail=detail,
                shard=self._shard.name,
            )
        )
