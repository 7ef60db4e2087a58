"""Plan a run without doing it: what `--plan` says."""

import enum
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import apache_beam as beam

from pipelines.data_set import (
    DataSetConfig,
    commit_job_of,
    estimated_bytes,
    plan_data_set,
    shard_job_of,
)
from schemas.faults import Rejected, Scope, reject_order
from schemas.layouts import Labels, labels_by_category
from schemas.manifest import JobPlan
from schemas.run_plan import (
    ClassSizes,
    Known,
    RunPlan,
    Sampled,
    ShardForecast,
    SplitForecast,
    class_sizes,
    served_hosts,
)
from schemas.workload import Reads, Workload
from transforms.earlier_sets import check_turn
from transforms.estimate_sizes import Shard, forecast_shards, side_bytes
from transforms.estimate_time import (
    Work,
    cpu_seconds,
    measure_speed,
    shuffled_bytes,
    writing_seconds,
)
from transforms.look_at_output import COMPLETE, REFUSED, free_bytes, look_at_output
from transforms.outline_shards import (
    GatheredPlan,
    GatherPlan,
    OutlineShards,
    PlanSlot,
    ShardOutline,
    choose_tried,
)
from transforms.publish_plan import (
    CommitJob,
    RejectBudget,
    make_job_plan,
    reject_text,
    warn_of_splits,
)
from transforms.quantities import counted, megabytes
from transforms.source_reads import add_reads
from transforms.sources import SourceSamples, SplitSource
from transforms.storage import find_uri, is_local, open_storage, read_uri
from transforms.try_records import Trial, try_records

_ALL = RejectBudget(percent=100)
_FILES_A_SHARD = 4  # data, receipt and two indexes
_OTHER_FILES = 10  # plan, manifest, rejects, note of sources, card, metadata


class PlanFormat(enum.Enum):
    """How a plan is printed."""

    TEXT = "text"
    JSON = "json"


B = TypeVar("B", contravariant=True)
C = TypeVar("C", bound=DataSetConfig)


class ReadSources(Protocol[B]):
    """A pipeline's `read_sources`."""

    def __call__(self, root: beam.Pipeline, config: B) -> SourceSamples:
        """Build the part of the graph before plan and shards."""


@dataclass(frozen=True)
class PlannedRun:
    """A plan, and what else is known of the run.

    Attributes:
        plan: to be printed.
        workload: to be priced.
        fault: with which the run would end before its first shard; None for none.
    """

    plan: RunPlan
    workload: Workload
    fault: RuntimeError | None = None


def build_plan(
    root: beam.Pipeline, config: C, read_sources: ReadSources[C], slot: PlanSlot
) -> beam.PCollection[None]:
    """Build the graph up to the planned shards, of which only outlines are kept."""
    planned = plan_data_set(root, config, read_sources(root, config))
    (shards, table), files, rejected, tallies, spool = planned
    outlines = shards | "OutlineShards" >> OutlineShards(
        config.layout, estimated_bytes(config), table, spool
    )
    return table | "GatherPlan" >> GatherPlan(outlines, files, rejected, tallies, slot)


def plan_run(
    config: DataSetConfig,
    gathered: GatheredPlan,
    planning_s: float,
    *,
    overwrite: bool = False,
    complete: bool = False,
    region: str = "",
    workers: int = 0,
) -> PlannedRun:
    """Return what a run is going to make.

    Args:
        config: of the run.
        gathered: what is known of it.
        planning_s: how long that took.
        overwrite: whether the run deletes a data set first.
        complete: whether it would find its data set complete.
        region: of a job elsewhere.
        workers: of a job elsewhere, at most.

    Raises:
        RuntimeError: a fault with which the run would end before it has a plan.
    """
    planning_cpu_s = time.process_time()
    plan, fault = _job_plan(config, gathered)
    state, there = (COMPLETE, len(gathered.outlines)) if complete else (REFUSED, 0)
    if fault is None and not complete:
        try:
            state, there = _look(config, plan, overwrite)
        except RuntimeError as error:
            fault = error
    tried = choose_tried(s for outline in gathered.outlines for s in outline.tried)
    trial = try_records(tried, shard_job_of(config, None), plan, config.limits)
    sizes = forecast_shards(gathered.outlines, trial, estimated_bytes(config))
    splits = {
        file.split: _split_forecast(file, gathered, sizes, labels_by_category(plan.labels))
        for file in sorted(gathered.files, key=lambda file: file.split)
    }
    work = _work(config, gathered.outlines, sizes)
    left = _share_of(work, 1 - there / max(work.shards, 1))
    speed = measure_speed(config.limits)
    reads = _reads(config, gathered)
    written_files = _FILES_A_SHARD * work.shards + _OTHER_FILES
    run_plan = RunPlan(
        output=config.output,
        state=state,
        shards_there=there,
        splits=splits,
        sampled=_sampled(trial),
        read_files=sum(read.files for read in reads.values()),
        read_bytes=sum(read.bytes for read in reads.values()),
        written_files=written_files,
        written_bytes=work.bytes + side_bytes(work.records, work.shards),
        shuffled_bytes=shuffled_bytes(tried, work.records, _joins(config)),
        planning_s=planning_s,
        writing_s=0.0 if complete else writing_seconds(left, trial, speed),
        cpu_s=planning_cpu_s + cpu_seconds(work, trial, speed),
        notes=_notes(config, gathered, left, state),
        refused="" if fault is None else str(fault),
    )
    listed = sum(tally.named - tally.missing + tally.unreferenced for _, tally in gathered.tallies)
    workload = Workload(
        samples=work.records,
        listed_names=max(listed, work.files),
        written_files=written_files,
        written_bytes=run_plan.written_bytes,
        shuffled_bytes=run_plan.shuffled_bytes,
        cpu_s=run_plan.cpu_s,
        output=config.output,
        reads=reads,
        region=region,
        workers=workers,
    )
    return PlannedRun(run_plan, workload, fault)


def _job_plan(config: DataSetConfig, gathered: GatheredPlan) -> tuple[JobPlan, RuntimeError | None]:
    """Return the run's plan; where there are too many rejects, that without them, and the fault."""
    job = commit_job_of(config)
    try:
        plan = _make_plan(gathered, job)
    except RuntimeError as error:
        if not str(error).startswith("E-BUDGET "):
            raise
        return _make_plan(gathered, replace(job, budget=_ALL)), error
    warn_of_splits(gathered.files)
    return plan, None


def _make_plan(gathered: GatheredPlan, job: CommitJob) -> JobPlan:
    label_file = read_uri(job.label_file, job.access) if job.label_file else None
    return make_job_plan(gathered.table, gathered.files, gathered.rejected, job, label_file)


def _look(config: DataSetConfig, plan: JobPlan, overwrite: bool) -> tuple[str, int]:
    output = open_storage(config.output, config.access)
    found = look_at_output(plan, output, config.names, config.splits, overwrite=overwrite)
    check_turn(config.earlier, config.output, config.layout.name, config.access)
    return found


def _split_forecast(
    file: SplitSource,
    gathered: GatheredPlan,
    sizes: Mapping[Shard, ShardForecast],
    labels: Labels,
) -> SplitForecast:
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
        rejected=_known(rejected, Scope.SAMPLE),
        dropped=_known(rejected, Scope.ANNOTATION),
        shards=shards,
        bytes=sum(shard.bytes for shard in shards),
        hosts=served_hosts([shard.records for shard in shards]),
        copies_per_image=file.listed / of_images if of_images else None,
        classes=_class_sizes(outlines, labels),
    )


def _index(outline: ShardOutline) -> int:
    return outline.index


def _known(rejects: Iterable[Rejected], scope: Scope) -> dict[str, Known]:
    """Return how many rejects there are by code, with the first of each."""
    found = sorted((reject for reject in rejects if reject.scope is scope), key=reject_order)
    counts = Counter(reject.code for reject in found)
    firsts: dict[str, Rejected] = {}
    for reject in found:
        firsts.setdefault(reject.code, reject)
    return {
        code: Known(counts[code], reject_text(firsts[code], "rejected")) for code in sorted(counts)
    }


def _class_sizes(outlines: Sequence[ShardOutline], labels: Labels) -> ClassSizes | None:
    sizes: Counter[str] = Counter()
    for outline in outlines:
        for found, count in outline.classes:
            sizes[_class_name(found, labels)] += count
    return class_sizes(len(labels) or len(sizes), sizes)


def _class_name(found: int | str, labels: Labels) -> str:
    try:
        return labels[found].name
    except KeyError:  # a number that stands for itself
        return str(found)


def _work(
    config: DataSetConfig,
    outlines: Sequence[ShardOutline],
    sizes: Mapping[Shard, ShardForecast],
) -> Work:
    return Work(
        records=sum(outline.records for outline in outlines),
        files=sum(files for outline in outlines for files, _ in outline.reads.values()),
        source_bytes=sum(outline.source_bytes for outline in outlines),
        bytes=sum(size.bytes for size in sizes.values()),
        shards=len(outlines),
        far_reads=not all(map(is_local, config.roots.values())),
        far_writes=not is_local(config.output),
    )


def _share_of(work: Work, share: float) -> Work:
    return replace(
        work,
        records=round(work.records * share),
        files=round(work.files * share),
        source_bytes=round(work.source_bytes * share),
        bytes=round(work.bytes * share),
        shards=round(work.shards * share),
    )


def _reads(config: DataSetConfig, gathered: GatheredPlan) -> dict[tuple[str, str], Reads]:
    """Return what is read, by URI and storage class."""
    uris = {**config.listed_roots, **config.roots}
    of_samples: dict[str, Reads] = {}
    for outline in gathered.outlines:
        for root, (files, size) in outline.reads.items():
            known = of_samples.get(root, Reads())
            of_samples[root] = Reads(known.files + files, known.bytes + size)
    listed = {root: tally.reads for root, tally in gathered.tallies}
    parts = [
        {(uris[root], name): reads for name, reads in by_class.items()}
        for root in sorted({*listed, *of_samples})
        for by_class in [_by_class(listed.get(root, {}), of_samples.get(root, Reads()))]
    ]
    for uri in dict.fromkeys(uri for uris in config.source_files.values() for uri in uris):
        _, entry = find_uri(uri, config.access)
        parts.append({(uri, entry.storage_class): Reads(1, entry.size_bytes)})
    return add_reads(parts)


def _by_class(listed: Mapping[str, Reads], of_samples: Reads) -> Mapping[str, Reads]:
    """Return what is read of a root, by storage class.

    A listing counts a file once; a sample may be a part of one, or be of a file of others, too.
    """
    files = sum(reads.files for reads in listed.values())
    if not files:
        return {"": of_samples}
    if files >= of_samples.files:
        return listed
    times = of_samples.files / files
    size = sum(reads.bytes for reads in listed.values()) or 1
    return {
        name: Reads(round(times * reads.files), round(of_samples.bytes * reads.bytes / size))
        for name, reads in listed.items()
    }


def _joins(config: DataSetConfig) -> int:
    """Return how many group-bys samples go through before they are ranked."""
    return len(config.root_places) + bool(config.earlier.sets)


def _sampled(trial: Trial) -> Sampled:
    known = [tried for tried in trial.tried if tried.bytes is not None]
    rejects = [tried.rejected for tried in known if tried.rejected is not None]
    return Sampled(len(known), trial.images_read, _known(rejects, Scope.SAMPLE))


def _notes(config: DataSetConfig, gathered: GatheredPlan, left: Work, state: str) -> list[str]:
    notes: list[str] = []
    for root, tally in sorted(gathered.tallies):
        if tally.unreferenced and not config.earlier.sets:  # else they may be of earlier samples
            files, name = counted(tally.unreferenced, "file"), tally.first_unreferenced
            notes.append(f"no record is to hold {files} of root {root}, such as {name}")
    room = free_bytes(open_storage(config.output, config.access))
    needed = left.bytes + side_bytes(left.records, left.shards)
    if room is not None and room < needed and state != COMPLETE:
        notes.append(
            f"{config.output} has room for {megabytes(room)}, and {megabytes(needed)} are needed:"
            " the run would end with E-IO-NOSPACE"
        )
    if left.far_reads or left.far_writes:
        notes.append("the time assumes 30 ms a request and 100 MB/s to stores elsewhere")
    return notes
