"""Plan a run without doing it: what `--plan` says."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import apache_beam as beam

from pipelines.data_set import (
    DataSetConfig,
    ReadSources,
    commit_job_of,
    estimated_bytes,
    plan_data_set,
    shard_job_of,
)
from pipelines.engines import CloudJob
from schemas.faults import Scope
from schemas.layouts import labels_by_category
from schemas.manifest import JobPlan
from schemas.run_plan import RunPlan, Sampled, ShardForecast
from schemas.samples import Sample
from schemas.workload import Workload
from transforms.commit import refuse_empty, to_have_samples
from transforms.earlier_sets import check_turn
from transforms.forecast.estimate_sizes import Shard, forecast_shards, report_bytes, side_bytes
from transforms.forecast.estimate_time import (
    Work,
    cpu_seconds,
    measure_speed,
    report_seconds,
    shuffled_bytes,
    writing_seconds,
)
from transforms.forecast.outline_shards import (
    GatheredPlan,
    GatherPlan,
    OutlineShards,
    PlanSlot,
    ShardOutline,
    choose_tried,
)
from transforms.forecast.price_plan import N1_STANDARD_1, N2_STANDARD_4, price_lines
from transforms.forecast.price_table import find_locations, load_prices
from transforms.forecast.reads import forecast_reads
from transforms.forecast.splits import forecast_split, known_rejects
from transforms.forecast.try_records import Trial, try_records
from transforms.look_at_output import COMPLETE, REFUSED, free_bytes, look_at_output
from transforms.publish_plan import CommitJob, RejectBudget, make_job_plan, warn_of_splits
from transforms.quantities import counted, megabytes
from transforms.storage import is_local, open_storage, read_uri

_ALL = RejectBudget(percent=100)
_FILES_A_SHARD = 4  # data, receipt and two indexes
_MACHINES = {"": N1_STANDARD_1, **{known.name: known for known in (N1_STANDARD_1, N2_STANDARD_4)}}
_OTHER_FILES = 10  # plan, manifest, rejects, note of sources, card, metadata


C = TypeVar("C", bound=DataSetConfig)


@dataclass(frozen=True)
class Asked:
    """What is asked of a plan, besides the run's configuration.

    Attributes:
        overwrite: the run deletes a data set first.
        complete: it would find its data set complete.
        job: on Dataflow, if it is to be one.
        prices: URI of a file of unit prices; empty for list prices.
        runner: that writes elsewhere; empty where this process does.
    """

    overwrite: bool = False
    complete: bool = False
    job: CloudJob = field(default_factory=CloudJob)
    prices: str = ""
    runner: str = ""


@dataclass(frozen=True)
class PlannedRun:
    """A plan, and how the run would end.

    Attributes:
        plan: to be printed.
        fault: with which the run would end before its first shard; None for none.
    """

    plan: RunPlan
    fault: RuntimeError | None = None


def build_plan(
    root: beam.Pipeline, config: C, read_sources: ReadSources[C], slot: PlanSlot
) -> beam.PCollection[None]:
    """Build the graph up to the planned shards, of which only outlines are kept."""
    planned = plan_data_set(config, read_sources(root, config))
    (shards, table), files, rejected, tallies, spool = planned
    outlines = shards | "OutlineShards" >> OutlineShards(
        config.layout, estimated_bytes(config), table, spool
    )
    return table | "GatherPlan" >> GatherPlan(outlines, files, rejected, tallies, slot)


def plan_run(
    config: DataSetConfig, gathered: GatheredPlan, asked: Asked, planning_s: float
) -> PlannedRun:
    """Return what a run is going to make.

    Args:
        config: of the run.
        gathered: what is known of it.
        asked: what else is.
        planning_s: how long gathering took.

    Raises:
        RuntimeError: a fault with which the run would end before it has a plan.
    """
    planning_cpu_s = time.process_time()
    job_plan, fault = _job_plan(config, gathered)
    state, there, fault = _look(config, gathered, job_plan, asked, fault)
    tried = choose_tried(s for outline in gathered.outlines for s in outline.tried)
    trial = try_records(tried, shard_job_of(config, None), job_plan, config.limits)
    sizes = forecast_shards(gathered.outlines, trial, estimated_bytes(config))
    labels = labels_by_category(job_plan.labels)
    files = sorted(gathered.files, key=lambda file: file.split)
    work, speed = _work(config, gathered.outlines, sizes), measure_speed(config.limits)
    left = _share_of(work, 1 - there / max(work.shards, 1))
    report_s = report_seconds(work.records, speed) if config.report else 0.0
    cpu_s = planning_cpu_s + cpu_seconds(work, trial, speed) + report_s
    workload = _workload(config, gathered, asked.job, work, tried, cpu_s)
    plan = RunPlan(
        output=config.output,
        state=state,
        shards_there=there,
        splits={file.split: forecast_split(file, gathered, sizes, labels) for file in files},
        sampled=_sampled(trial),
        read_files=sum(read.files for read in workload.reads.values()),
        read_bytes=sum(read.bytes for read in workload.reads.values()),
        written_files=workload.written_files,
        written_bytes=workload.written_bytes,
        shuffled_bytes=workload.shuffled_bytes,
        planning_s=planning_s,
        writing_s=0.0 if asked.complete else writing_seconds(left, trial, speed) + report_s,
        cpu_s=cpu_s,
        costs=_costs(config, workload, asked),
        notes=_notes(config, gathered, left, state, asked.runner),
        refused="" if fault is None else str(fault),
    )
    return PlannedRun(plan, fault)


def trusted_plan(output: str) -> RunPlan:
    """Return the plan of a run that ends at once by `--trust_manifest`, its sources not looked at.

    Args:
        output: URI of the data set, which is complete.
    """
    return RunPlan(
        output=output,
        state=COMPLETE,
        shards_there=0,
        splits={},
        sampled=Sampled(0, False, {}),
        read_files=0,
        read_bytes=0,
        written_files=0,
        written_bytes=0,
        shuffled_bytes=0,
        planning_s=0.0,
        writing_s=0.0,
        cpu_s=0.0,
        notes=["not planned anew: --trust_manifest takes the manifest's word, no source was read"],
    )


def _workload(
    config: DataSetConfig,
    gathered: GatheredPlan,
    job: CloudJob,
    work: Work,
    tried: Sequence[Sample],
    cpu_s: float,
) -> Workload:
    files = [uri for uris in config.source_files.values() for uri in uris]
    roots = {**config.listed_roots, **config.roots}
    listed = sum(tally.named - tally.missing + tally.unreferenced for _, tally in gathered.tallies)
    joins = len(config.root_places) + bool(config.earlier.sets)
    report = report_bytes(work.records, work.bytes) if config.report else 0
    return Workload(
        samples=work.records,
        listed_names=max(listed, work.files),
        written_files=_FILES_A_SHARD * work.shards + _OTHER_FILES + bool(report),
        written_bytes=work.bytes + side_bytes(work.records, work.files, work.shards) + report,
        shuffled_bytes=shuffled_bytes(tried, work.records, joins),
        cpu_s=cpu_s,
        output=config.output,
        reads=forecast_reads(gathered, roots, [*dict.fromkeys(files)], config.access),
        region=job.region,
        workers=job.workers,
    )


def _costs(config: DataSetConfig, workload: Workload, asked: Asked) -> list[str]:
    """Return what a run with buckets costs, a line each."""
    uris = {workload.output, *(uri for uri, _ in workload.reads)}
    locations = find_locations(uris, config.access)
    if not locations and not workload.region:
        return []
    prices, name = load_prices(asked.prices, config.access), asked.job.machine_type
    machine = _MACHINES.get(name, N2_STANDARD_4)
    lines = price_lines(workload, prices, locations, machine)
    is_other = workload.region and name not in _MACHINES
    return [*lines, f"assumed: workers as dear as {machine.name}"] if is_other else lines


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


def _look(
    config: DataSetConfig,
    gathered: GatheredPlan,
    plan: JobPlan,
    asked: Asked,
    fault: RuntimeError | None,
) -> tuple[str, int, RuntimeError | None]:
    """Return the output's state, how many shards are there, and the fault that it leads to."""
    if asked.complete:
        return COMPLETE, len(gathered.outlines), fault
    if fault is not None:
        return REFUSED, 0, fault
    output, splits = open_storage(config.output, config.access), config.splits
    try:
        state, there = look_at_output(plan, output, config.names, splits, overwrite=asked.overwrite)
        check_turn(config.earlier, config.output, config.layout.name, config.access)
        _refuse_empty(config, gathered, plan)
    except RuntimeError as error:
        return REFUSED, 0, error
    return state, there, None


def _refuse_empty(config: DataSetConfig, gathered: GatheredPlan, plan: JobPlan) -> None:
    """Stop at splits of which nothing is left, as the commit would."""
    job = commit_job_of(config)
    for file in to_have_samples(gathered.files, plan, job):
        refuse_empty(file, plan.splits[file.split].samples, job)


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


def _sampled(trial: Trial) -> Sampled:
    known = [tried for tried in trial.tried if tried.bytes is not None]
    rejects = [tried.rejected for tried in known if tried.rejected is not None]
    return Sampled(len(known), trial.images_read, known_rejects(rejects, Scope.SAMPLE))


def _notes(
    config: DataSetConfig, gathered: GatheredPlan, left: Work, state: str, runner: str
) -> list[str]:
    notes: list[str] = []
    if runner:
        notes.append(f"planned in this process, and timed for it; the run is to be on {runner}")
    for root, tally in sorted(gathered.tallies):
        if tally.unreferenced and not config.earlier.sets:  # else they may be of earlier samples
            files, name = counted(tally.unreferenced, "file"), tally.first_unreferenced
            notes.append(f"no record is to hold {files} of root {root}, such as {name}")
    room = free_bytes(open_storage(config.output, config.access))
    needed = left.bytes + side_bytes(left.records, left.files, left.shards)
    if room is not None and room < needed and state != COMPLETE:
        notes.append(
            f"{config.output} has room for {megabytes(room)}, and {megabytes(needed)} are needed:"
            " the run would end with E-IO-NOSPACE"
        )
    if left.far_reads or left.far_writes:
        notes.append("the time assumes 30 ms a request and 100 MB/s to stores elsewhere")
    return notes
