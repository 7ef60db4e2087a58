"""Forecast of a run that writes nothing: sizes of shards, counts of splits, files and bytes read.

Each planned shard becomes an outline of bounded size. Where pixels are converted, some records are
built as the writer builds them, to learn their size.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from beam_tfrec.schemas.faults import Rejected, Scope, reject_order
from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.manifest import JobPlan
from beam_tfrec.schemas.samples import Sample, is_panoptic_root
from beam_tfrec.schemas.shards import ShardPlan
from beam_tfrec.transforms.build_records import ShardJob, bytes_in_flight, record_maker
from beam_tfrec.transforms.gate import GateLimits, WorkerGate
from beam_tfrec.transforms.publish_plan import reject_text
from beam_tfrec.transforms.shard_table import ShardTable
from beam_tfrec.transforms.shuffle.run_spool import RunSpool
from beam_tfrec.transforms.sources.list_blobs import PinTally
from beam_tfrec.transforms.sources.read_samples import SplitSource
from beam_tfrec.transforms.storage import Access, find_uri, is_local, join_uri, open_storage

MAX_TRIED = 64  # takes seconds, even of 24 Mpx
_KEPT_PER_TRIED = 2  # so that by far enough are kept, whichever digests there are
_DIGEST_BITS = 64


class ShardForecast(msgspec.Struct, frozen=True, array_like=True):
    """One shard: records as planned, and about how many bytes its file gets."""

    records: int
    bytes: int


class Known(msgspec.Struct, frozen=True):
    """Samples or annotations that are known not to be written, for one reason.

    Attributes:
        count: of them.
        first: the first of them, in the words of the log.
    """

    count: int
    first: str


class SplitForecast(msgspec.Struct, frozen=True):
    """One split of the data set.

    Attributes:
        listed: samples that its sources list.
        images: that they list, where a sample is an object of one; else None.
        planned: samples that go into shards, a record each.
        left_out: samples left out on request, by filter; `excluded`, `earlier`.
        rejected: samples that are rejects already, by code.
        dropped: annotations that are, by code.
        shards: in their order.
        bytes: of them, together.
        hosts: numbers of hosts that `files[h::hosts]` serves alike: as many files each, and records
            that differ by one at most.
    """

    listed: int
    images: int | None
    planned: int
    left_out: dict[str, int]
    rejected: dict[str, Known]
    dropped: dict[str, Known]
    shards: list[ShardForecast]
    bytes: int
    hosts: list[int]


class Sampled(msgspec.Struct, frozen=True):
    """Records that were built of their images, to learn the size of what is converted.

    Attributes:
        records: that were built.
        rejected: of them, samples that would be rejects, by code.
    """

    records: int
    rejected: dict[str, Known]


class RunPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is going to make.

    Attributes:
        output: URI of the data set.
        state: of the output: `free`, `ours` (begun by the same plan), `complete`, `overwritten`
            (another data set is there, and goes), or `refused`.
        shards_there: shards that are finished, in an output that is ours.
        splits: by name.
        sampled: what sizes were estimated from.
        read_files: files that are read; a file that serves two samples counts twice.
        read_bytes: of them.
        written_files: side files included.
        written_bytes: of them.
        notes: what to think of before running it, a line each.
        refused: the line of the fault with which the run would end before its first shard.
    """

    output: str
    state: str
    shards_there: int
    splits: dict[str, SplitForecast]
    sampled: Sampled
    read_files: int
    read_bytes: int
    written_files: int
    written_bytes: int
    notes: list[str] = []
    refused: str = ""


class ShardOutline(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a planned shard.

    Attributes:
        split: its split.
        index: place among the split's shards, from 0.
        records: samples planned.
        record_bytes: of its records by the estimate that the number of shards follows from.
        reads: by root name, files and bytes of them.
        tried: samples that stay whole, with their payloads.
    """

    split: str
    index: int
    records: int
    record_bytes: int
    reads: dict[str, tuple[int, int]]
    tried: list[Sample]


class GatheredPlan(NamedTuple):
    """Everything that is known before the first shard.

    Attributes:
        table: how many samples the shards get.
        outlines: one a shard, in any order.
        sources: what the sources held.
        rejected: rejects so far.
        tallies: what pinning saw, per root name.
    """

    table: ShardTable
    outlines: list[ShardOutline]
    sources: list[SplitSource]
    rejected: list[Rejected]
    tallies: list[tuple[str, PinTally]]


_GATHERED: list[GatheredPlan] = []


def trial_digest(sample: Sample) -> int:
    """Return the number below 2^64 by which samples are chosen, whatever the order of shards.

    Nothing that is written depends on it.
    """
    content = f"{sample.split}\0{sample.key}".encode()
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BITS // 8, person=b"tfrec-plan")
    return int.from_bytes(digest.digest(), "big")


def outline_shard(
    shard: ShardPlan,
    table: ShardTable,
    record_bytes: Callable[[Sample], int],
    spool: RunSpool | None,
) -> ShardOutline:
    """Return the outline of one of the table's shards.

    Args:
        shard: its plan.
        table: numbers of samples.
        record_bytes: function that returns the estimated size of a sample's record.
        spool: where payloads lie; None if they are in the samples.
    """
    total = sum(ranks.planned.samples for ranks in table.splits.values())
    below = min(2**_DIGEST_BITS, _KEPT_PER_TRIED * MAX_TRIED * 2**_DIGEST_BITS // total)
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for sample in shard.samples:
        for blob in sample.blobs:
            files[blob.root] += 1
            sizes[blob.root] += blob.read_bytes
    tried = [sample for sample in shard.samples if trial_digest(sample) < below]
    return ShardOutline(
        shard.split,
        shard.index,
        len(shard.samples),
        sum(map(record_bytes, shard.samples)),
        {root: (files[root], sizes[root]) for root in sorted(files)},
        tried if spool is None else list(map(spool.load_payload, tried)),
    )


def gather_plan(
    table: ShardTable,
    outlines: list[ShardOutline],
    sources: list[SplitSource],
    rejected: list[Rejected],
    tallies: list[tuple[str, PinTally]],
) -> None:
    """Keep all that is known before the first shard for `take_plan` of this process."""
    _GATHERED.append(GatheredPlan(table, outlines, sources, rejected, tallies))


def take_plan() -> GatheredPlan:
    """Return the plan that was gathered last, once."""
    return _GATHERED.pop()


def try_records(
    gathered: GatheredPlan,
    job: ShardJob,
    plan: JobPlan,
    limits: GateLimits,
    record_bytes: Callable[[Sample], int],
) -> tuple[Sampled, float]:
    """Build records without writing them, if their size depends on pixels.

    Args:
        gathered: all that is known.
        job: of the run; its spool is not used.
        plan: of the run.
        limits: of a worker process.
        record_bytes: estimated size of a sample's record.

    Returns:
        What was built, and how many times the estimate it is.

    Raises:
        RuntimeError: `E-SRC-CHANGED` or a storage fault.
    """
    kept = [sample for outline in gathered.outlines for sample in outline.tried]
    is_panoptic_there = any(is_panoptic_root(blob.root) for sample in kept for blob in sample.blobs)
    if not (job.conversion.changes or job.conversion.turns or is_panoptic_there):
        return Sampled(0, {}), 1.0
    samples = sorted(kept, key=lambda s: (trial_digest(s), s.split, s.key))[:MAX_TRIED]
    gate = WorkerGate(limits, far=not all(map(is_local, job.roots.values())))
    roots = {name: open_storage(uri, job.access) for name, uri in job.roots.items()}
    size_of = functools.partial(bytes_in_flight, conversion=job.conversion)
    rejected, made = list[Rejected](), 0
    for sample, record in gate.in_order(samples, size_of, record_maker(job, plan, gate, roots)):
        if isinstance(record, Unfit):
            rejected.append(_reject(sample, record))
        else:
            made += sum(map(len, record.parts))
    estimated = sum(map(record_bytes, samples))
    scale = made / estimated if estimated else 1.0
    return Sampled(len(samples), known_rejects(rejected, Scope.SAMPLE)), scale


def forecast_reads(
    gathered: GatheredPlan, roots: Mapping[str, str], others: Sequence[str], access: Access
) -> tuple[int, int]:
    """Return the files that a run reads, and their bytes; one of two samples counts twice.

    Args:
        gathered: the plan.
        roots: URI per root name, listed ones and those of samples.
        others: URIs of other files that are read.
        access: how stores are reached.
    """
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for outline in gathered.outlines:
        for root, (count, size) in outline.reads.items():
            files[root] += count
            sizes[root] += size
    # A listing counts a file once. Samples count their own files, but not JSON files with them.
    for root, tally in gathered.tallies:
        listed = (tally.read_files, tally.read_bytes)
        files[root], sizes[root] = max(listed, (files[root], sizes[root]))
    tried = (sample for outline in gathered.outlines for sample in outline.tried)
    sampled = {join_uri(roots[blob.root], blob.name) for s in tried for blob in s.blobs}
    # A file of many samples, such as an array, is counted with them.
    found = [find_uri(uri, access)[1].size_bytes for uri in others if uri not in sampled]
    return files.total() + len(found), sizes.total() + sum(found)


def forecast_split(source: SplitSource, gathered: GatheredPlan, scale: float) -> SplitForecast:
    """Return what is known of a split.

    Args:
        source: what its sources held.
        gathered: all that is known.
        scale: by which records are larger than estimated.
    """
    outlines = sorted(
        (o for o in gathered.outlines if o.split == source.split), key=lambda o: o.index
    )
    shards = [ShardForecast(o.records, round(scale * o.record_bytes)) for o in outlines]
    rejected = [reject for reject in gathered.rejected if reject.split == source.split]
    left_out = {
        **source.skipped,
        "excluded": source.excluded_images,
        "earlier": source.earlier_images,
    }
    return SplitForecast(
        listed=source.listed,
        images=source.images,
        planned=sum(shard.records for shard in shards),
        left_out={name: count for name, count in left_out.items() if count},
        rejected=known_rejects(rejected, Scope.SAMPLE),
        dropped=known_rejects(rejected, Scope.ANNOTATION),
        shards=shards,
        bytes=sum(shard.bytes for shard in shards),
        hosts=served_hosts([shard.records for shard in shards]),
    )


def known_rejects(rejects: Iterable[Rejected], scope: Scope) -> dict[str, Known]:
    """Return how many rejects there are by code, with the first of each."""
    firsts: dict[str, Rejected] = {}
    counts: Counter[str] = Counter()
    for reject in sorted((each for each in rejects if each.scope is scope), key=reject_order):
        firsts.setdefault(reject.code, reject)
        counts[reject.code] += 1
    return {
        code: Known(counts[code], reject_text(first, "rejected"))
        for code, first in sorted(firsts.items())
    }


def _reject(sample: Sample, unfit: Unfit) -> Rejected:
    place = unfit.place
    return Rejected(
        code=unfit.code,
        stage="plan",
        split=sample.split,
        key=sample.key,
        annotation_ids=sample.annotation_ids,
        file_name=sample.blobs[place].name if place < len(sample.blobs) else "",
        detail=unfit.detail,
    )


def served_hosts(records: Sequence[int]) -> list[int]:
    """Return the numbers of hosts among which shards can be dealt in turn, alike to all.

    Args:
        records: of each shard.

    >>> served_hosts([3, 3, 3, 2]), served_hosts([4, 4, 1]), served_hosts([])
    ([1, 2, 4], [1], [])
    """
    count = len(records)
    found = []
    for hosts in range(1, count + 1):
        if count % hosts == 0:
            sums = [sum(records[host::hosts]) for host in range(hosts)]
            if max(sums) - min(sums) <= 1:
                found.append(hosts)
    return found
