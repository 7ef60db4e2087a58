"""What `--plan` prints: the shards, bytes and requests of a run that is not made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import apache_beam as beam
import msgspec
from apache_beam.pvalue import AsList, AsSingleton

from pipelines.data_set import (
    DataSetConfig,
    estimated_bytes,
    plan_data_set,
    shard_job_of,
)
from schemas.faults import Scope, printable
from schemas.layouts import labels_by_category
from schemas.manifest import JobPlan
from schemas.run_plan import (
    ClassSizes,
    Known,
    RunPlan,
    Sampled,
    ShardForecast,
    SplitForecast,
    Spread,
    spread_of,
)
from schemas.shown_values import bytes_text, counted, megabytes
from transforms.commit import refuse_empty
from transforms.earlier import check_turn
from transforms.forecast import (
    GatheredPlan,
    OutlineShard,
    PlanSlot,
    Shard,
    ShardOutline,
    Tried,
    choose_tried,
    forecast_reads,
    forecast_shards,
    forecast_split,
    gather_plan,
    known_rejects,
    needs_images,
    try_records,
)
from transforms.publish_plan import (
    COMPLETE,
    REFUSED,
    RejectBudget,
    free_bytes,
    look_at_output,
    make_job_plan,
    warn_of_splits,
)
from transforms.storage import open_storage, read_uri

_ALL = RejectBudget(percent=100)
_FILES_A_SHARD = 4  # data, receipt and two indexes
_OTHER_FILES = 10  # plan, manifest, rejects, note of sources, card, metadata
_OTHER_BYTES = 40_000  # of these, without the manifest's shards
_RECEIPT_BYTES = 750  # and the shard's entry in the manifest
_ROW_BYTES = 40  # of both indexes: key and numbers
_SOURCE_BYTES = 130  # more in there for each source: name, pin and hash
_MAX_HOSTS = 12  # that are listed
_STATES = {
    "free": "nothing of a data set is there",
    "ours": "begun by the same plan, the run goes on",
    "complete": "complete already, the run would end at once",
    "overwritten": "the data set there is deleted first (--overwrite)",
    "refused": "refused, see the last line",
}


@dataclass(frozen=True)
class Asked:
    """What is asked of a plan, besides the run's configuration.

    Attributes:
        overwrite: the run deletes a data set first.
        complete: it would find its data set complete.
        runner: that writes elsewhere; empty where this process does.
    """

    overwrite: bool = False
    complete: bool = False
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
    root: beam.Pipeline, config: DataSetConfig, slot: PlanSlot
) -> beam.PCollection[None]:
    """Build the graph up to the planned shards, and keep only their outlines."""
    planned = plan_data_set(root, config)
    (shards, table), files, rejected, tallies, spool = planned
    outline = OutlineShard(config.layout, estimated_bytes(config), spool)
    outlines = shards | "OutlineShards" >> beam.Map(outline, AsSingleton(table))
    return table | "GatherPlan" >> beam.Map(
        gather_plan,
        AsList(outlines),
        AsList(files),
        AsList(rejected),
        [] if tallies is None else AsList(tallies),
        slot,
    )


def plan_run(config: DataSetConfig, gathered: GatheredPlan, asked: Asked) -> PlannedRun:
    """Return what a run would make.

    Args:
        config: of the run.
        gathered: the planned shards and what their sources held.
        asked: what else is.

    Raises:
        RuntimeError: a fault with which the run would end before it has a plan.
    """
    job_plan, fault = _job_plan(config, gathered)
    state, there, fault = _look(config, gathered, job_plan, asked, fault)
    kept = [sample for outline in gathered.outlines for sample in outline.tried]
    job = shard_job_of(config, None)
    tried: list[Tried] = []
    if needs_images(job, kept):
        tried = try_records(choose_tried(kept), job, job_plan, config.limits)
    sizes = forecast_shards(gathered.outlines, tried, estimated_bytes(config))
    labels = labels_by_category(job_plan.labels)
    files = sorted(gathered.files, key=lambda file: file.split)
    source_files = dict.fromkeys(uri for uris in config.source_files.values() for uri in uris)
    roots = {**config.listed_roots, **config.roots}
    reads = forecast_reads(gathered, roots, [*source_files], config.access)
    written_files, written_bytes = _writes(config, gathered.outlines, sizes)
    plan = RunPlan(
        output=config.output,
        state=state,
        shards_there=there,
        splits={file.split: forecast_split(file, gathered, sizes, labels) for file in files},
        sampled=_sampled(tried),
        read_files=reads.files,
        read_bytes=reads.bytes,
        written_files=written_files,
        written_bytes=written_bytes,
        notes=_notes(config, gathered, written_bytes, state, there, asked.runner),
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
        sampled=Sampled(0, {}),
        read_files=0,
        read_bytes=0,
        written_files=0,
        written_bytes=0,
        notes=["not planned anew: --trust_manifest takes the manifest's word, no source was read"],
    )


def _writes(
    config: DataSetConfig, outlines: Sequence[ShardOutline], sizes: Mapping[Shard, ShardForecast]
) -> tuple[int, int]:
    """Return about how many files are written, and their bytes."""
    shards, records = len(outlines), sum(outline.records for outline in outlines)
    sources = sum(files for outline in outlines for files, _ in outline.reads.values())
    side_bytes = shards * _RECEIPT_BYTES + records * _ROW_BYTES + sources * _SOURCE_BYTES
    record_bytes = sum(size.bytes for size in sizes.values())
    files = _FILES_A_SHARD * shards + _OTHER_FILES + (config.report and records > 0)
    return files, record_bytes + side_bytes + _OTHER_BYTES


def _job_plan(config: DataSetConfig, gathered: GatheredPlan) -> tuple[JobPlan, RuntimeError | None]:
    """Return the run's plan; where there are too many rejects, that without them, and the fault."""
    try:
        plan = _make_plan(gathered, config)
    except RuntimeError as error:
        if not str(error).startswith("E-BUDGET "):
            raise
        return _make_plan(gathered, replace(config, budget=_ALL, drop_budget=_ALL)), error
    warn_of_splits(gathered.files)
    return plan, None


def _make_plan(gathered: GatheredPlan, job: DataSetConfig) -> JobPlan:
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
        planned = {split: found.samples for split, found in plan.splits.items()}
        refuse_empty(gathered.files, plan, planned, config)
    except RuntimeError as error:
        return REFUSED, 0, error
    return state, there, None


def _sampled(tried: Sequence[Tried]) -> Sampled:
    rejects = [each.rejected for each in tried if each.rejected is not None]
    return Sampled(len(tried), known_rejects(rejects, Scope.SAMPLE))


def _notes(
    config: DataSetConfig,
    gathered: GatheredPlan,
    written_bytes: int,
    state: str,
    there: int,
    runner: str,
) -> list[str]:
    notes: list[str] = []
    if runner:
        notes.append(f"planned in this process; the run will use {runner}")
    for root, tally in sorted(gathered.tallies):
        if tally.unreferenced and not config.earlier.sets:  # else they may be of earlier samples
            files, name = counted(tally.unreferenced, "file"), tally.first_unreferenced
            notes.append(f"no record will hold {files} of root {root}, such as {name}")
    room = free_bytes(open_storage(config.output, config.access))
    needed = round(written_bytes * (1 - there / max(len(gathered.outlines), 1)))
    if room is not None and room < needed and state != COMPLETE:
        notes.append(
            f"{config.output} has room for {megabytes(room)}, but {megabytes(needed)} are needed:"
            " the run would end with E-IO-NOSPACE"
        )
    return notes


def plan_lines(plan: RunPlan, noun: str) -> list[str]:
    """Return a plan for people, a line each.

    Args:
        plan: to print.
        noun: what a sample is, such as `image`.
    """
    state = _STATES[plan.state]
    if plan.state == "ours":
        shards = sum(len(split.shards) for split in plan.splits.values())
        state += f": {plan.shards_there} of {counted(shards, 'shard')} are there"
    lines = [f"plan of {printable(plan.output)}: {state}"]
    for name, split in plan.splits.items():
        lines += _split_lines(name, split, noun)
    lines += _sampled_lines(plan)
    lines.append(
        f"  reads {counted(plan.read_files, 'file')}, {bytes_text(plan.read_bytes)};"
        f" writes {counted(plan.written_files, 'file')}, {bytes_text(plan.written_bytes)}"
    )
    lines += [f"  note: {printable(note)}" for note in plan.notes]
    lines.append("  nothing was written")
    return lines


def plan_json(plan: RunPlan) -> list[str]:
    """Return a plan for programs, as lines of one JSON object in ASCII."""
    return json.dumps(msgspec.to_builtins(plan), indent=2).splitlines()


def _split_lines(name: str, split: SplitForecast, noun: str) -> list[str]:
    what = "object" if split.images is not None else noun
    shards, sizes = split.shards, [shard.bytes for shard in split.shards]
    lines = [
        f"  {name}: {split.planned} of {counted(split.listed, what)} in"
        f" {counted(len(shards), 'shard')}, about {bytes_text(split.bytes)}"
    ]
    records = spread_of([shard.records for shard in shards])
    spread = spread_of(sizes)
    if spread is not None and records is not None:
        lines.append(
            f"    a shard: {_range(records)} records; {bytes_text(spread.least)} to"
            f" {bytes_text(spread.most)}, median {bytes_text(spread.median)}"
        )
        shown = ", ".join(map(str, split.hosts[:_MAX_HOSTS]))
        more = ", ..." if len(split.hosts) > _MAX_HOSTS else ""
        lines.append(f"    hosts served alike by files[h::H]: {shown}{more}")
    if split.copies_per_image is not None:
        lines.append(
            f"    {counted(split.images or 0, 'image')}: a photo is stored once for each object,"
            f" of {split.copies_per_image:.1f} that it has"
        )
    if split.classes is not None:
        lines.append(f"    classes: {_classes(split.classes)}")
    if split.left_out:
        terms = ", ".join(f"{count} {why}" for why, count in split.left_out.items())
        lines.append(f"    left out: {terms}")
    lines += _known_lines(f"rejected already, {what}s", split.rejected)
    lines += _known_lines("annotations dropped already", split.dropped)
    return lines


def _range(spread: Spread) -> str:
    if spread.least == spread.most:
        return str(spread.least)
    return f"{spread.least} to {spread.most}"


def _classes(classes: ClassSizes) -> str:
    if classes.samples is None:
        return str(classes.number)
    spread = classes.samples
    least, most = printable(classes.least_of), printable(classes.most_of)
    return f"{classes.number}; {spread.least} ({least}) to {spread.most} ({most}), median" + (
        f" {spread.median}"
    )


def _known_lines(what: str, known: Mapping[str, Known]) -> list[str]:
    return [
        f"    {what}: {found.count} {code}; the first: {found.first}"
        for code, found in known.items()
    ]


def _sampled_lines(plan: RunPlan) -> list[str]:
    sampled = plan.sampled
    if not sampled.records:
        return ["  sizes: from the listed sizes of files; no image was read"]
    records = counted(sampled.records, "record")
    lines = [f"  sizes: from {records} of images that were read and converted"]
    return lines + _known_lines("of these would be rejects", sampled.rejected)
