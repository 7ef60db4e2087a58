"""Forecast what a run writes and reads: sizes of shards, counts of splits, files and bytes.

If images are written as they are, the estimate that planned the shards is used: a listing has the
size of every file. If pixels are converted, some records are built as the writer builds them.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from schemas.faults import Rejected, Scope, reject_order
from schemas.layouts import Labels, Unfit
from schemas.manifest import JobPlan
from schemas.run_plan import (
    ClassSizes,
    Known,
    ShardForecast,
    SplitForecast,
    class_sizes,
    served_hosts,
)
from schemas.samples import Sample, is_panoptic
from transforms.build_records import bytes_in_flight, read_images, record_maker
from transforms.forecast.outline_shards import GatheredPlan, ShardOutline
from transforms.gate import GateLimits, WorkerGate
from transforms.images.convert_images import Orientation
from transforms.publish_plan import reject_text
from transforms.shard_job import ShardJob
from transforms.sources.read_samples import SplitSource
from transforms.storage import Access, find_uri, is_local, join_uri, open_storage

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
    conversion = job.conversion.for_pixels(job.layout.pixels_dtype)
    if conversion.changes or job.orientation is Orientation.UPRIGHT:
        return True
    return any(is_panoptic(blob) for sample in samples for blob in sample.blobs)


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
    read = functools.partial(read_images, roots=roots)
    conversion = job.conversion.for_pixels(job.layout.pixels_dtype)
    size_of = functools.partial(bytes_in_flight, conversion=conversion)
    found = gate.read_in_order(samples, size_of, read, record_maker(job, plan, gate))
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
    labels: Labels,
) -> SplitForecast:
    """Return what is known of a split.

    Args:
        file: what its sources held.
        gathered: all that is known.
        sizes: of shards, by split and index.
        labels: of the plan.
    """
    outlines = sorted((o for o in gathered.outlines if o.split == file.split), key=_index)
    shards = [sizes[outline.split, outline.index] for outline in outlines]
    planned = sum(shard.records for shard in shards)
    rejected = [reject for reject in gathered.rejected if reject.split == file.split]
    left_out = {
        **file.skipped,
        "excluded": file.excluded_images,
        "earlier": file.earlier_images,
    }
    of_images = file.images - file.images_without_samples if file.samples is not None else 0
    return SplitForecast(
        listed=file.listed,
        images=None if file.samples is None else file.images,
        planned=planned,
        left_out={name: count for name, count in left_out.items() if count},
        rejected=known_rejects(rejected, Scope.SAMPLE),
        dropped=known_rejects(rejected, Scope.ANNOTATION),
        shards=shards,
        bytes=sum(shard.bytes for shard in shards),
        hosts=served_hosts([shard.records for shard in shards]),
        copies_per_image=file.listed / of_images if of_images else None,
        classes=_class_sizes(outlines, labels),
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


def _index(outline: ShardOutline) -> int:
    return outline.index


def _class_sizes(outlines: Sequence[ShardOutline], labels: Labels) -> ClassSizes | None:
    sizes: Counter[str] = Counter()
    for outline in outlines:
        for found, count in outline.classes:
            # A number without a label stands for itself.
            sizes[labels[found].name if found in labels else str(found)] += count
    return class_sizes(len(labels) or len(sizes), sizes)


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
