"""`--plan`: print the shards, bytes and requests that a run would make."""

import json
from collections.abc import Iterator, Mapping

import apache_beam as beam
import msgspec
from apache_beam.pvalue import AsList, AsSingleton

from beam_tfrec.pipelines.data_set import DataSetConfig, plan_data_set
from beam_tfrec.schemas.documents.tensorflow_files import label_files
from beam_tfrec.schemas.faults import bytes_text, counted, printable
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.samples import STAGED_IMAGES
from beam_tfrec.transforms import forecast, output_files, publish_plan
from beam_tfrec.transforms.earlier import refuse_changed_earlier
from beam_tfrec.transforms.storage import open_storage

_FILES_A_SHARD = 4  # data, receipt and two indexes; an ArrayRecord file has one
_OTHER_FILES = 6  # plan, manifest, rejects, note of sources, two cards
_OTHER_BYTES = 40_000  # size of these files, without the manifest's entries of shards
_RECEIPT_BYTES = 750  # with the shard's entry in the manifest
_ROW_BYTES = 46  # of a record in both indexes: key and numbers
_SOURCE_BYTES = 130  # added for each source of a record: name, pin and hash
_MAX_HOSTS = 12  # most host counts to print
_STATES = {
    publish_plan.FREE: "nothing of a data set is there",
    publish_plan.OURS: "begun by the same plan, the run goes on",
    publish_plan.COMPLETE: "complete already, the run would end at once",
    publish_plan.OVERWRITTEN: "the data set there is deleted first (--overwrite)",
    publish_plan.REFUSED: "refused, see the last line",
}


def build_plan(root: beam.Pipeline, config: DataSetConfig) -> beam.PCollection[None]:
    """Build the graph up to the planned shards, and keep only their outlines."""
    (shards, table), read, spool = plan_data_set(root, config)
    outlines = shards | "OutlineShards" >> beam.Map(
        forecast.outline_shard, AsSingleton(table), config.estimate_record_bytes, spool
    )
    return table | "GatherPlan" >> beam.Map(
        forecast.gather_plan,
        AsList(outlines),
        AsList(read.split_tallies),
        AsList(read.rejected),
        [] if read.root_tallies is None else AsList(read.root_tallies),
    )


def plan_run(
    config: DataSetConfig,
    gathered: forecast.GatheredPlan,
    *,
    complete: bool = False,
    runner: str = "",
) -> tuple[forecast.RunForecast, RuntimeError | None]:
    """Return what a run would make, and the fault that ends it before its first shard, or None.

    Args:
        config: configuration of the run.
        gathered: the planned shards and the contents of the sources.
        complete: whether the data set is complete already.
        runner: name of a runner that writes elsewhere; empty if this process writes.

    Raises:
        RuntimeError: the fault that would end the run before it has a plan.
    """
    # Without rejects, since their budgets are checked below.
    job_plan = publish_plan.make_job_plan(gathered.table, gathered.split_tallies, [], config)
    state, there, fault = publish_plan.COMPLETE, len(gathered.outlines), None
    try:
        publish_plan.log_and_check_budget(gathered.rejected, gathered.split_tallies, config)
        publish_plan.warn_of_sources(gathered.split_tallies, config)
        if not complete:
            output = open_storage(config.output, config.access)
            state, there = publish_plan.look_at_output(
                job_plan, output, config.names, config.splits, overwrite=config.overwrite
            )
            refuse_changed_earlier(config.earlier, config.output, config.layout.name, config.access)
            samples = {split: planned.samples for split, planned in job_plan.splits.items()}
            publish_plan.refuse_none_left(gathered.split_tallies, job_plan, samples, config)
    except RuntimeError as error:
        state, there, fault = publish_plan.REFUSED, 0, error
    sampled, scale = forecast.try_records(gathered, config.shard_job(), job_plan, config.limits)
    tallies = sorted(gathered.split_tallies, key=lambda tally: tally.split)
    splits = {tally.split: forecast.forecast_split(tally, gathered, scale) for tally in tallies}
    roots = {**config.listed_roots, **config.roots}
    read_files, read_bytes = forecast.forecast_reads(
        gathered, roots, config.all_files, config.access
    )
    outlines = gathered.outlines
    shards, records = len(outlines), sum(split.planned for split in splits.values())
    images = sum(n for outline in outlines for n, _ in outline.reads.values())
    side_bytes = shards * _RECEIPT_BYTES + records * _ROW_BYTES + images * _SOURCE_BYTES
    written_bytes = sum(split.bytes for split in splits.values()) + side_bytes + _OTHER_BYTES
    written_files = (_FILES_A_SHARD - bool(config.array_record_options)) * shards
    written_files += _OTHER_FILES + bool(config.report and records)
    written_files += _metadata_files(config.layout.resolved(job_plan.found), bool(job_plan.labels))
    notes = [f"planned in this process; the run will use {runner}"] if runner else []
    if config.conversion.changes and any(outline.reads.get(STAGED_IMAGES) for outline in outlines):
        notes.append("images in archives or Parquet were not converted: sizes are of the originals")
    notes += _notes(config, gathered, round(written_bytes * (1 - there / max(shards, 1))))
    plan = forecast.RunForecast(
        output=config.output,
        state=state,
        shards_there=there,
        splits=splits,
        sampled=sampled,
        read_files=read_files,
        read_bytes=read_bytes,
        written_files=written_files,
        written_bytes=written_bytes,
        notes=notes,
        refused="" if fault is None else str(fault),
    )
    return plan, fault


def _metadata_files(layout: Layout, has_labels: bool) -> int:
    """Return the number of files that `metadata_files` makes."""
    if layout.spec.is_opaque:
        return 0
    if layout.spec.is_sequence:
        return 2
    names_classes = has_labels and layout.first_label_id == 0
    return 4 + (len(label_files(layout.spec, [])) if names_classes else 0)


def _notes(
    config: DataSetConfig, gathered: forecast.GatheredPlan, needed_bytes: int
) -> Iterator[str]:
    room = output_files.free_bytes(open_storage(config.output, config.access))
    if room is not None and room < needed_bytes:
        has, needs = bytes_text(room), bytes_text(needed_bytes)
        what = f"{config.output} has room for {has}, but {needs} are needed"
        yield f"{what}: the run would end with E-IO-NOSPACE"
    for root, tally in sorted(gathered.root_tallies):
        if tally.unreferenced and not config.earlier.sets:  # earlier samples may name them
            files, name = counted(tally.unreferenced, "file"), tally.first_unreferenced
            yield f"no record will hold {files} of root {root}, such as {name}"


def plan_lines(plan: forecast.RunForecast, noun: str) -> Iterator[str]:
    """Yield the lines of a plan for people.

    Args:
        plan: the plan to print.
        noun: word for a sample, such as `image`.
    """
    state = _STATES[plan.state]
    if plan.state == publish_plan.OURS:
        shards = sum(len(split.shards) for split in plan.splits.values())
        state += f": {plan.shards_there} of {counted(shards, 'shard')} finished"
    yield f"plan of {printable(plan.output)}: {state}"
    for name, split in plan.splits.items():
        yield from _split_lines(name, split, noun)
    if plan.sampled.records:
        records = counted(plan.sampled.records, "record")
        yield f"  sizes: from {records} of images that were read and converted"
        yield from _known_lines("of these would be rejects", plan.sampled.rejected)
    else:
        yield "  sizes: from the listed sizes of files; no image was read"
    reads = f"{counted(plan.read_files, 'file')}, {bytes_text(plan.read_bytes)}"
    writes = f"{counted(plan.written_files, 'file')}, {bytes_text(plan.written_bytes)}"
    yield f"  reads {reads}; writes {writes}"
    for note in plan.notes:
        yield f"  note: {printable(note)}"
    yield "  nothing was written"


def plan_json(plan: forecast.RunForecast) -> list[str]:
    """Return a plan for programs: the lines of one JSON object in ASCII."""
    return json.dumps(msgspec.to_builtins(plan), indent=2).splitlines()


def _split_lines(name: str, split: forecast.SplitForecast, noun: str) -> Iterator[str]:
    shards = counted(len(split.shards), "shard")
    planned = f"{split.planned} of {counted(split.listed, noun)}"
    yield f"  {name}: {planned} in {shards}, about {bytes_text(split.bytes)}"
    if split.shards:
        records = [shard.records for shard in split.shards]
        sizes = [shard.bytes for shard in split.shards]
        range_of_sizes = f"{bytes_text(min(sizes))} to {bytes_text(max(sizes))}"
        yield f"    a shard: {min(records)} to {max(records)} records; {range_of_sizes}"
        more = ", ..." if len(split.hosts) > _MAX_HOSTS else ""
        shown = ", ".join(map(str, split.hosts[:_MAX_HOSTS]))
        yield f"    numbers of hosts with equal shares of files[h::H]: {shown}{more}"
    if split.images is not None:
        yield f"    {counted(split.images, 'image')}: a photo is stored once for each object"
    if split.left_out:
        yield f"    left out: {', '.join(f'{n} {why}' for why, n in split.left_out.items())}"
    yield from _known_lines(f"rejected already, {noun}s", split.rejected)
    yield from _known_lines("annotations dropped already", split.dropped)


def _known_lines(what: str, known: Mapping[str, forecast.Known]) -> Iterator[str]:
    for code, found in known.items():
        yield f"    {what}: {found.count} {code}; the first: {found.first}"
