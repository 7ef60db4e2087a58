"""Forecast of a run that writes nothing: sizes of shards, counts of splits, files and bytes read.

Each planned shard becomes an outline of bounded size. Where pixels are converted, some records are
built as the writer builds them, to learn their size.
"""

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from schemas.faults import Rejected, Scope, reject_order
from schemas.layouts import Layout, Unfit
from schemas.manifest import JobPlan
from schemas.samples import Sample, is_panoptic_root
from schemas.shards import ShardPlan
from transforms.build_records import ShardJob, bytes_in_flight, record_maker
from transforms.gate import GateLimits, WorkerGate
from transforms.publish_plan import reject_text
from transforms.shard_table import ShardTable
from transforms.sources.list_blobs import PinTally
from transforms.sources.read_samples import SplitSource
from transforms.storage import Access, find_uri, is_local, join_uri, open_storage
from transforms.storage.run_spool import RunSpool

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


RootReads = tuple[int, int]
"""Files, and bytes of them."""


class ShardOutline(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a planned shard.

    Attributes:
        split: its split.
        index: place among the split's shards, from 0.
        records: samples planned.
        record_bytes: of its records by the estimate that number of shards follows from.
        reads: by root name, files and bytes of them.
        tried: samples that stay whole, with their payloads.
    """

    split: str
    index: int
    records: int
    record_bytes: int
    reads: dict[str, RootReads]
    tried: list[Sample]


class GatheredPlan(NamedTuple):
    """Everything that is known before the first shard.

    Attributes:
        table: how many samples the shards get.
        outlines: one a shard, in any order.
        files: what the sources held.
        rejected: rejects so far.
        tallies: what pinning saw, per root name.
    """

    table: ShardTable
    outlines: list[ShardOutline]
    files: list[SplitSource]
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


def choose_tried(samples: Iterable[Sample]) -> list[Sample]:
    """Return those of the smallest digests, at most `MAX_TRIED`, in that order."""
    by_digest = sorted(samples, key=lambda s: (trial_digest(s), s.split, s.key))
    return by_digest[:MAX_TRIED]


@dataclass(frozen=True)
class OutlineShard:
    """Function from a shard's plan to its outline.

    An instance, since Beam would ask of a function's own arguments whether one is a layout.

    Attributes:
        layout: what an Example holds.
        record_bytes: function that returns the estimated size of a sample's record.
        spool: where payloads lie; None if they are in the samples.
    """

    layout: Layout
    record_bytes: Callable[[Sample], int]
    spool: RunSpool | None = None

    def __call__(self, shard: ShardPlan, table: ShardTable) -> ShardOutline:
        """Return the outline of one of the table's shards."""
        spool = self.spool
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
            sum(map(self.record_bytes, shard.samples)),
            {root: (files[root], sizes[root]) for root in sorted(files)},
            tried if spool is None else list(map(spool.give, tried)),
        )


def gather_plan(
    table: ShardTable,
    outlines: list[ShardOutline],
    files: list[SplitSource],
    rejected: list[Rejected],
    tallies: list[tuple[str, PinTally]],
) -> None:
    """Keep all that is known before the first shard for `take_plan` of this process."""
    _GATHERED.append(GatheredPlan(table, outlines, files, rejected, tallies))


def take_plan() -> GatheredPlan:
    """Return the plan that was gathered last, once."""
    return _GATHERED.pop()


Shard = tuple[str, int]
"""Split and index of a shard."""


class Tried(NamedTuple):
    """A sample whose record was built.

    Attributes:
        sample: that was tried.
        bytes: of its framed record, 0 where it is a reject.
        rejected: why it has no record; None where it has one.
    """

    sample: Sample
    bytes: int
    rejected: Rejected | None = None


class Reads(NamedTuple):
    """Files that are read, one request each, and their bytes."""

    files: int = 0
    bytes: int = 0


def needs_images(job: ShardJob, samples: Iterable[Sample]) -> bool:
    """Return whether the size of records depends on pixels."""
    if job.conversion.changes or job.conversion.turns:
        return True
    return any(is_panoptic_root(blob.root) for sample in samples for blob in sample.blobs)


def try_records(
    samples: Sequence[Sample], job: ShardJob, plan: JobPlan, limits: GateLimits
) -> list[Tried]:
    """Read and convert images, and build their records without writing them.

    Args:
        samples: with their payloads.
        job: of the run; its spool is not used.
        plan: of the run.
        limits: of a worker process.

    Raises:
        RuntimeError: `E-SRC-CHANGED` or a storage fault.
    """
    far = not all(map(is_local, job.roots.values()))
    gate = WorkerGate(limits, far=far)
    roots = {name: open_storage(uri, job.access) for name, uri in job.roots.items()}
    size_of = functools.partial(bytes_in_flight, conversion=job.conversion)
    found = gate.in_order(samples, size_of, record_maker(job, plan, gate, roots))
    return [
        Tried(sample, 0, _reject(sample, record))
        if isinstance(record, Unfit)
        else Tried(sample, sum(map(len, record.parts)))
        for sample, record in found
    ]


def forecast_shards(
    outlines: Sequence[ShardOutline], tried: Sequence[Tried], record_bytes: Callable[[Sample], int]
) -> dict[Shard, ShardForecast]:
    """Return the expected size of every shard.

    It is the planned estimate, scaled by the real size of the tried records.

    Args:
        outlines: of the shards.
        tried: some of their samples.
        record_bytes: estimated size of a sample's record. Outlines hold sums of it.
    """
    estimated = sum(record_bytes(each.sample) for each in tried)
    scale = sum(each.bytes for each in tried) / estimated if estimated else 1.0
    return {
        (outline.split, outline.index): ShardForecast(
            outline.records, round(scale * outline.record_bytes)
        )
        for outline in outlines
    }


def forecast_reads(
    gathered: GatheredPlan, roots: Mapping[str, str], files: Sequence[str], access: Access
) -> Reads:
    """Return what a run reads; a file that serves two samples counts twice.

    Args:
        gathered: the plan.
        roots: URI per root name, listed ones and those of samples.
        files: URIs of other files that are read.
        access: how stores are reached.
    """
    of_samples: dict[str, Reads] = {}
    for outline in gathered.outlines:
        for root, (count, size) in outline.reads.items():
            known = of_samples.get(root, Reads())
            of_samples[root] = Reads(known.files + count, known.bytes + size)
    listed = {root: Reads(tally.read_files, tally.read_bytes) for root, tally in gathered.tallies}
    # A listing counts a file once. Samples count their own files, but not JSON files with them.
    parts = [
        max(listed.get(root, Reads()), of_samples.get(root, Reads()))
        for root in {*listed, *of_samples}
    ]
    tried = (sample for outline in gathered.outlines for sample in outline.tried)
    sampled = {join_uri(roots[blob.root], blob.name) for s in tried for blob in s.blobs}
    # A file of many samples, such as an array, is counted with them.
    parts += [Reads(1, find_uri(u, access)[1].size_bytes) for u in files if u not in sampled]
    return Reads(sum(part.files for part in parts), sum(part.bytes for part in parts))


def forecast_split(
    file: SplitSource,
    gathered: GatheredPlan,
    sizes: Mapping[Shard, ShardForecast],
) -> SplitForecast:
    """Return what is known of a split.

    Args:
        file: what its sources held.
        gathered: all that is known.
        sizes: of shards, by split and index.
    """
    outlines = sorted(
        (o for o in gathered.outlines if o.split == file.split), key=lambda o: o.index
    )
    shards = [sizes[outline.split, outline.index] for outline in outlines]
    planned = sum(shard.records for shard in shards)
    rejected = [reject for reject in gathered.rejected if reject.split == file.split]
    left_out = {
        **file.skipped,
        "excluded": file.excluded_images,
        "earlier": file.earlier_images,
    }
    return SplitForecast(
        listed=file.listed,
        images=file.images,
        planned=planned,
        left_out={name: count for name, count in left_out.items() if count},
        rejected=known_rejects(rejected, Scope.SAMPLE),
        dropped=known_rejects(rejected, Scope.ANNOTATION),
        shards=shards,
        bytes=sum(shard.bytes for shard in shards),
        hosts=served_hosts([shard.records for shard in shards]),
    )


def known_rejects(rejects: Iterable[Rejected], scope: Scope) -> dict[str, Known]:
    """Return how many rejects there are by code, with the first of each."""
    found = sorted((reject for reject in rejects if reject.scope is scope), key=reject_order)
    counts = Counter(reject.code for reject in found)
    firsts: dict[str, Rejected] = {}
    for reject in found:
        firsts.setdefault(reject.code, reject)
    return {
        code: Known(counts[code], reject_text(firsts[code], "rejected")) for code in sorted(counts)
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
    small = [n for n in range(1, int(count**0.5) + 1) if count % n == 0]
    divisors = sorted({*small, *(count // n for n in small)})
    return [hosts for hosts in divisors if _is_alike(records, hosts)]


def _is_alike(records: Sequence[int], hosts: int) -> bool:
    of_hosts = [sum(records[host::hosts]) for host in range(hosts)]
    return max(of_hosts) - min(of_hosts) <= 1
