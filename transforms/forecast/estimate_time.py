"""Estimate how long a run takes: what planning took, what trying took, and how fast bytes go here.

The constants are of the machine that benchmarks/README.md tells of; how fast bytes are copied and
hashed is measured each time, which scales them.
"""

import hashlib
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import google_crc32c
import msgspec

from schemas.order import pack_rounded, shuffle_keys
from schemas.samples import Sample, pack_each
from transforms.coders import CompressedCoder
from transforms.forecast.try_records import Trial
from transforms.gate import GateLimits, usable_cores
from transforms.payloads import detach_payload
from transforms.plan_shards import BucketBatch, ShardRun
from transforms.report.write_report import MAX_PICTURES_OF_A_RUN
from transforms.shard_table import Tally

_CALIBRATED_BYTES = 4 * 2**20
_ROUNDS = 3
_USUAL_BYTES_PER_S = 6e8  # what `bytes_per_s` is of a core where the constants were measured
_RECORD_S = 130e-6  # to open, read, look through, encode and index a file; of a core
_ROW_S = 45e-6  # the same of a record without a file
_SHARD_S = 0.012  # its files, and waiting for the disk
_END_S = 0.08  # side files and manifest
_REPORT_S, _PICTURE_S = 0.08, 0.004  # of a core: the page, and each of its pictures
_DISK_BYTES_PER_S = 400e6  # that a disk takes; it could not be measured without writing
_REQUEST_S = 0.03  # of a store elsewhere
_NETWORK_BYTES_PER_S = 100e6
_REQUEST_CPU_S = 0.5e-3  # a read from a store elsewhere with its TLS, beyond the bytes
_BATCH = 32
_DIGEST = "f" * 64


@dataclass(frozen=True)
class Work:
    """What is left to be done behind the plan.

    Attributes:
        records: to be written.
        files: to be read for them.
        source_bytes: of them.
        bytes: of the records.
        shards: to be written.
        far_reads: whether sources lie in a store elsewhere.
        far_writes: whether the output does.
    """

    records: int
    files: int
    source_bytes: int
    bytes: int
    shards: int
    far_reads: bool = False
    far_writes: bool = False


@dataclass(frozen=True)
class Speed:
    """How fast this machine is now.

    Attributes:
        bytes_per_s: copied once, and hashed by SHA-256 and CRC-32C twice, by all workers together.
        workers: how many that are.
    """

    bytes_per_s: float
    workers: int

    @property
    def slower(self) -> float:
        """How many times the usual time a worker's Python takes."""
        return self.workers * _USUAL_BYTES_PER_S / self.bytes_per_s


def measure_speed(limits: GateLimits) -> Speed:
    """Measure for some 50 ms how fast bytes go, by as many threads as a run has."""
    workers = min(limits.workers or usable_cores(), usable_cores())
    data = bytes(_CALIBRATED_BYTES)
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(_handle, [data[:4096]] * workers))  # threads start
        started_s = time.perf_counter()
        list(pool.map(_handle, [data] * (workers * _ROUNDS)))
        seconds = time.perf_counter() - started_s
    return Speed(workers * _ROUNDS * len(data) / seconds, workers)


def _handle(data: bytes) -> None:
    copied = bytearray(data)
    for _ in range(2):
        hashlib.sha256(copied)
        google_crc32c.value(data)


def writing_seconds(work: Work, trial: Trial, speed: Speed) -> float:
    """Return about how long the shards and the commit take on this machine, by the clock."""
    fixed_s, waits_s = _END_S + work.shards * _SHARD_S, 0.0
    if work.far_reads:
        requests_s = work.files * _REQUEST_S / 32
        waits_s = max(requests_s, work.source_bytes / _NETWORK_BYTES_PER_S)
    if work.far_writes:
        waits_s += max(work.shards * 4 * _REQUEST_S, work.bytes / _NETWORK_BYTES_PER_S)
    else:
        waits_s = max(waits_s, work.bytes / _DISK_BYTES_PER_S)
    return fixed_s + max(waits_s, _busy_seconds(work, trial, speed))


def cpu_seconds(work: Work, trial: Trial, speed: Speed) -> float:
    """Return about how many seconds of a core the shards take."""
    requests_s = work.files * _REQUEST_CPU_S if work.far_reads else 0.0
    return _busy_seconds(work, trial, speed) * speed.workers + requests_s


def report_seconds(records: int, speed: Speed) -> float:
    """Return about how long a run's report takes, which one core makes; 0 of no records."""
    if not records:
        return 0.0
    return (_REPORT_S + min(records, MAX_PICTURES_OF_A_RUN) * _PICTURE_S) * speed.slower


def _busy_seconds(work: Work, trial: Trial, speed: Speed) -> float:
    if trial.images_read and trial.tried:
        tried_bytes = sum(blob.read_bytes for each in trial.tried for blob in each.sample.blobs)
        share = work.source_bytes / tried_bytes if tried_bytes else 0.0
        return trial.seconds * share + work.bytes / speed.bytes_per_s / 2
    python_s = work.records * (_RECORD_S if work.files else _ROW_S) * speed.slower
    return work.bytes / speed.bytes_per_s + python_s / speed.workers


def shuffled_bytes(samples: Iterable[Sample], total: int, joins: int) -> int:
    """Return about how many bytes go through group-bys, where runners send them.

    Args:
        samples: some, with their payloads.
        total: number of all.
        joins: group-bys of samples before they are ranked, such as with a listing.
    """
    kept = list(samples)
    if not kept:
        return 0
    parts = [detach_payload(msgspec.structs.replace(s, payload_place=b"")) for s in kept]
    light = [sample for sample, _ in parts]
    once = sum(len(payload.compressed) for _, payload in parts if payload)
    batches = [light[start : start + _BATCH] for start in range(0, len(light), _BATCH)]
    bucket, run = CompressedCoder(BucketBatch), CompressedCoder(ShardRun)
    for batch in batches:
        tally = Tally(len(batch), len(batch) * 200_000, _DIGEST)
        packed = pack_each(batch)
        rounded = pack_rounded(shuffle_keys("", [sample.key for sample in batch], 0))
        ranked = bucket.encode(BucketBatch(packed, rounded, tally))
        placed = run.encode(ShardRun(0, packed))
        once += len(ranked) + (1 + joins) * len(placed)
    return round(once * total / len(kept))
