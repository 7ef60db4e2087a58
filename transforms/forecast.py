"""Forecast for `--plan`: sizes of shards, counts of splits, and files and bytes to read and write.

Each planned shard becomes an outline of bounded size. If pixels are converted, some records are
built to measure their size. Nothing is written.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from beam_tfrec.schemas.faults import Rejected, Scope, reject_order
from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.manifest import JobPlan
from beam_tfrec.schemas.samples import Sample, is_id_root
from beam_tfrec.schemas.shards import ShardPlan
from beam_tfrec.transforms.build_records import ShardJob, record_bytes, record_maker
from beam_tfrec.transforms.gate import GateLimits, WorkerGate
from beam_tfrec.transforms.shard_table import ShardTable
from beam_tfrec.transforms.shuffle.run_spool import RunSpool
from beam_tfrec.transforms.sources.listing import RootTally
from beam_tfrec.transforms.sources.read_samples import SplitTally
from beam_tfrec.transforms.storage import Access, find_uri, is_local, join_uri, open_storage

MAX_TRIED = 64  # takes seconds, even with images of 24 Mpx
_KEPT_PER_TRIED = 2  # a margin: the number of digests below a bound varies
_DIGEST_BITS = 64


class ShardForecast(msgspec.Struct, frozen=True, array_like=True):
    """One shard: its number of records, and the estimated size of its file."""

    records: int
    bytes: int


class Known(msgspec.Struct, frozen=True):
    """Samples or annotations that will not be written, for one reason.

    Attributes:
        count: number of samples or annotations.
        first: text of the first one, as in the log.
    """

    count: int
    first: str


class SplitForecast(msgspec.Struct, frozen=True):
    """One split of the data set.

    Attributes:
        listed: number of samples in the sources.
        images: number of images in the sources if a sample is one object; else None.
        planned: number of samples that become records in shards.
        left_out: number of samples left out on request, by filter; `excluded`, `earlier`.
        rejected: samples that are already rejected, by code.
        dropped: annotations that are already dropped, by code.
        shards: shards in their order.
        bytes: size of all shards.
        hosts: numbers of hosts that can share the shards by `files[h::hosts]`: each host gets the
            same number of files and of records (±1).
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
    """Records that were built to measure the size of converted images.

    Attributes:
        records: number of samples that were tried.
        rejected: tried samples that would be rejected, by code.
    """

    records: int
    rejected: dict[str, Known]


class RunForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of a run.

    Attributes:
        output: URI of the data set.
        state: state of the output: `free`, `ours` (begun with the same plan), `complete`,
            `overwritten` (another data set would be deleted), or `refused`.
        shards_there: number of finished shards in an output that is ours.
        splits: forecasts of splits by name.
        sampled: records that were built to estimate sizes.
        read_files: number of files to read; a file of two samples counts twice.
        read_bytes: number of bytes to read.
        written_files: number of files to write, with side files.
        written_bytes: number of bytes to write.
        notes: hints before running it, a line each.
        refused: fault that would end the run before its first shard; empty for none.
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
    """Summary of a planned shard.

    Attributes:
        split: split of the shard.
        index: number of the shard in its split, from 0.
        records: number of planned samples.
        record_bytes: estimated size of all records, by the estimate that sets the number of shards.
        reads: number of files and bytes to read, by root name.
        tried: samples that may be built, with their payloads.
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
        table: numbers of samples in the shards.
        outlines: outline of each shard, in any order.
        split_tallies: one `SplitTally` per split.
        rejected: rejects so far.
        root_tallies: listing counts of each root name.
    """

    table: ShardTable
    outlines: list[ShardOutline]
    split_tallies: list[SplitTally]
    rejected: list[Rejected]
    root_tallies: list[tuple[str, RootTally]]


GATHERED: list[GatheredPlan] = []
"""Gathered plans of this process; whoever runs the graph removes its plan."""


def trial_digest(sample: Sample) -> int:
    """Return a number below 2^64 that selects samples, independent of the order of shards.

    Output bytes do not depend on it.
    """
    content = f"{sample.split}\0{sample.key}".encode()
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BITS // 8, person=b"tfrec-plan")
    return int.from_bytes(digest.digest(), "big")


def outline_shard(
    shard: ShardPlan,
    table: ShardTable,
    estimate: Callable[[Sample], int],
    spool: RunSpool | None,
) -> ShardOutline:
    """Return the outline of one of the table's shards.

    Args:
        shard: plan of the shard.
        table: numbers of samples in the shards.
        estimate: function that returns the estimated size of a sample's record.
        spool: spool with the payloads; None if the samples hold them.
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
        len(shard.packed),
        sum(map(estimate, shard.samples)),
        {root: (files[root], sizes[root]) for root in sorted(files)},
        tried if spool is None else list(map(spool.load_payload, tried)),
    )


def gather_plan(table: ShardTable, *others: Any) -> None:
    """Store the fields of a gathered plan in `GATHERED`."""
    GATHERED.append(GatheredPlan(table, *others))


def try_records(
    gathered: GatheredPlan, job: ShardJob, plan: JobPlan, limits: GateLimits
) -> tuple[Sampled, float]:
    """Build some records without writing them, if their size depends on conversion.

    Images that only a run stages cannot be tried.

    Args:
        gathered: plan of the run, with its samples.
        job: configuration of the run; its spool is not used.
        plan: plan that the run would publish.
        limits: limits of a worker process.

    Returns:
        The tried records, and the ratio of their size to the estimate.

    Raises:
        RuntimeError: `E-SRC-CHANGED` or a storage fault.
    """
    found = [sample for outline in gathered.outlines for sample in outline.tried]
    kept = [sample for sample in found if not any(blob.is_staged for blob in sample.blobs)]
    has_ids = any(is_id_root(blob.root) for sample in kept for blob in sample.blobs)
    if not (job.conversion.changes or job.conversion.turns or has_ids):
        return Sampled(0, {}), 1.0
    samples = sorted(kept, key=lambda s: (trial_digest(s), s.split, s.key))[:MAX_TRIED]
    gate = WorkerGate(limits, remote=not all(map(is_local, job.roots.values())))
    roots = {name: open_storage(uri, job.access) for name, uri in job.roots.items()}
    make = record_maker(job, plan, gate, roots)
    rejected, made = list[Rejected](), 0
    for sample, record in gate.in_order(samples, job.memory_bytes, make):
        if isinstance(record, Unfit):
            rejected.append(sample.reject("plan", record.code, record.detail, record.place))
        else:
            made += sum(map(len, record.parts))
    estimated = sum(record_bytes(s, job.layout, job.conversion) for s in samples)
    scale = made / estimated if estimated else 1.0
    return Sampled(len(samples), known_rejects(rejected, Scope.SAMPLE)), scale


def forecast_reads(
    gathered: GatheredPlan, roots: Mapping[str, str], others: Sequence[str], access: Access
) -> tuple[int, int]:
    """Return the number of files that a run reads, and their bytes.

    A file of two samples counts twice.

    Args:
        gathered: plan of the run.
        roots: URIs of listed roots and of samples' roots, by name.
        others: URIs of other files that are read.
        access: settings for reading from stores.
    """
    reads = [read for outline in gathered.outlines for read in outline.reads.values()]
    held = {root for outline in gathered.outlines for root in outline.reads}
    # Other roots hold files without images, such as JSON files.
    reads += [(t.read_files, t.read_bytes) for root, t in gathered.root_tallies if root not in held]
    tried = (sample for outline in gathered.outlines for sample in outline.tried)
    sampled = {join_uri(roots[blob.root], blob.name) for s in tried for blob in s.blobs}
    # A file of many samples, such as an array, is counted with its samples.
    reads += [(1, find_uri(uri, access)[1].size_bytes) for uri in others if uri not in sampled]
    return sum(files for files, _ in reads), sum(size_bytes for _, size_bytes in reads)


def forecast_split(tally: SplitTally, gathered: GatheredPlan, scale: float) -> SplitForecast:
    """Return the forecast of a split.

    Args:
        tally: counts of the split's sources.
        gathered: plan of the run.
        scale: ratio of records' sizes to their estimates.
    """
    outlines = sorted(
        (o for o in gathered.outlines if o.split == tally.split), key=lambda o: o.index
    )
    shards = [ShardForecast(o.records, round(scale * o.record_bytes)) for o in outlines]
    rejected = [reject for reject in gathered.rejected if reject.split == tally.split]
    return SplitForecast(
        listed=tally.listed,
        images=tally.images,
        planned=sum(shard.records for shard in shards),
        left_out=tally.left_out,
        rejected=known_rejects(rejected, Scope.SAMPLE),
        dropped=known_rejects(rejected, Scope.ANNOTATION),
        shards=shards,
        bytes=sum(shard.bytes for shard in shards),
        hosts=served_hosts([shard.records for shard in shards]),
    )


def known_rejects(rejects: Iterable[Rejected], scope: Scope) -> dict[str, Known]:
    """Return the number of rejects and the first one, by code."""
    fate = "rejected" if scope is Scope.SAMPLE else "dropped"
    of_scope = sorted((each for each in rejects if each.scope is scope), key=reject_order)
    counts = Counter(reject.code for reject in of_scope)
    firsts = {reject.code: reject for reject in reversed(of_scope)}
    return {code: Known(counts[code], first.line(fate)) for code, first in sorted(firsts.items())}


def served_hosts(records: Sequence[int]) -> list[int]:
    """Return the numbers of hosts that get equal shares (±1 record) if shards are dealt in turn.

    Args:
        records: number of records in each shard.

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
