"""Publish the plan: create `_plan.json` before the first shard, and so claim the output.

The limits of rejects and dropped annotations are checked here, and again by `commit`. `--plan`
makes the same checks without writing.
"""

import logging
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from apache_beam.metrics import Metrics

from beam_tfrec.schemas import labels
from beam_tfrec.schemas.columns import add_facts
from beam_tfrec.schemas.faults import Rejected, Scope, counted, printable, reject_order, run_fault
from beam_tfrec.schemas.manifest import (
    FORMAT_VERSION,
    NEWEST_VERSION,
    PLAN_NAME,
    JobPlan,
    Label,
    to_json,
)
from beam_tfrec.schemas.shards import ShardNames, split_in_name
from beam_tfrec.schemas.splits import USUAL_SPLITS, split_without_bucket
from beam_tfrec.transforms import output_files
from beam_tfrec.transforms.data_set_job import DataSetJob
from beam_tfrec.transforms.earlier import refuse_changed_earlier
from beam_tfrec.transforms.progress import COUNTERS, PROGRESS
from beam_tfrec.transforms.shard_table import ShardTable
from beam_tfrec.transforms.sources.read_samples import SplitTally, merge_labels
from beam_tfrec.transforms.storage import Storage, join_uri, open_storage, read_uri

_LOG = logging.getLogger(__name__)
_SHOWN_REJECTS = 10
_BUDGET_FIELDS = {"--max_rejected": "budget", "--max_dropped": "drop_budget"}
_DECIDING = ("layout", "record_format")  # plan options on which others depend

FREE, OURS, COMPLETE, OVERWRITTEN, REFUSED = "free", "ours", "complete", "overwritten", "refused"
"""States of an output before a run: see `RunForecast.state`."""


def make_job_plan(
    table: ShardTable,
    tallies: Sequence[SplitTally],
    rejected: Sequence[Rejected],
    config: DataSetJob,
) -> JobPlan:
    """Check samples and rejects, and return the plan of a run; read its label file.

    Args:
        table: numbers of samples and shards.
        tallies: one `SplitTally` per split.
        rejected: rejects of all steps before the shards.
        config: configuration of the run.

    Raises:
        RuntimeError: `E-SET-EMPTY`, `E-BUDGET`, `E-ANN-LABELS`, a storage fault, or `E-ARG` if the
            sources lack features that the layout needs.
    """
    _refuse_empty_sources(tallies, config)
    log_and_check_budget(rejected, tallies, config)
    if rejected and not any(table.planned(tally.split).samples for tally in tallies):
        show_rejects(sorted(rejected, key=reject_order), "rejected")  # no later fault says why
    found = _found(tallies, config)  # after the rejects, which say more if every row is rejected
    numbered = _numbered(tallies, config)
    known_labels, where = [*config.earlier.labels, *numbered], config.label_file or config.output
    return JobPlan(
        format_version=NEWEST_VERSION if config.array_record_options else FORMAT_VERSION,
        options=config.options(),
        labels=labels.unite_labels(known_labels, where),
        splits={tally.split: table.planned(tally.split) for tally in tallies},
        samples=table.digest,
        found=found,
    )


def publish_plan(
    plan: JobPlan, output: Storage, names: ShardNames, *, replaces: bool = False
) -> None:
    """Claim the output for a plan, or check that the same plan has claimed it.

    After `--overwrite` (`replaces`), the plan is created first, and then other files are searched
    for: the run that was replaced may still write some. The next `--overwrite` can delete them only
    if there is a plan.

    Raises:
        RuntimeError: as `is_claimed`.
    """
    if not replaces and is_claimed(plan, output, names):
        return
    if not output.create(PLAN_NAME, to_json(plan)):
        _refuse_other(plan, output)
    if replaces:
        output_files.refuse_foreign(output, output_files.names_of_ours(output, names, plan.splits))


def is_claimed(plan: JobPlan, output: Storage, names: ShardNames) -> bool:
    """Return True if `_plan.json` holds this plan, False if the output is unclaimed.

    Raises:
        RuntimeError: `E-OUT-PLAN` for another plan, naming the first difference; `E-OUT-FOREIGN`
            when the output has files of a run, but no plan.
    """
    if output.stat(PLAN_NAME) is None:
        found = output_files.names_of_ours(output, names, plan.splits)
        if not found:
            return False
        if output.stat(PLAN_NAME) is None:  # else another run has just begun to write
            output_files.refuse_foreign(output, found)
    _refuse_other(plan, output)
    return True


def _refuse_other(plan: JobPlan, output: Storage) -> None:
    data = output.read(PLAN_NAME)
    if data != to_json(plan):
        raise other_plan(output, output_files.parse_plan(output, data), msgspec.to_builtins(plan))


def first_difference(plan: JobPlan, mine: Mapping[str, Any]) -> str:
    """Describe the first difference between a plan and the given parts of another.

    First come the layout and the record format, which decide other options, then options with a
    value, since these are what the user has given.
    """
    other = msgspec.to_builtins(plan)
    for part in ("format_version", "options", "splits", "labels"):
        if part not in mine or other[part] == mine[part]:
            continue
        if not isinstance(mine[part], dict):
            return f"the output was made with other {part}"
        names = sorted({*other[part], *mine[part]})
        for name in sorted(names, key=lambda n: (n not in _DECIDING, not mine[part].get(n))):
            theirs, ours = other[part].get(name), mine[part].get(name)
            if theirs != ours:
                return f"{part} {name} was {_show(theirs)}, is {_show(ours)} now"
    return "the output was made from other images or annotations"


def log_and_check_budget(
    rejects: Iterable[Rejected], tallies: Sequence[SplitTally], config: DataSetJob, see: str = ""
) -> None:
    """Check the numbers of rejected samples and of dropped annotations against their limits.

    Percentages are of new samples, and of the annotations of new samples that were neither
    excluded nor filtered out. Above a limit, the first rejects are logged; `see` says where the
    others are.

    Raises:
        RuntimeError: `E-BUDGET`, with the command, or a program's field, that accepts these
            rejects. There is none if all samples are rejected, since it would end in
            `E-SET-EMPTY`.
    """
    in_order = sorted(rejects, key=reject_order)
    samples = [reject for reject in in_order if reject.has_budget]
    count = len(samples)
    listed = sum(tally.listed - tally.earlier_samples for tally in tallies)
    if count > config.budget.allowed(listed):
        first = samples[0]
        what = f"{count} of {listed} samples rejected, at most {config.budget} allowed"
        what += f" (first {(first.file_name or first.key)!r}, {first.detail})"
        show_rejects(samples, f"rejected{see}")
        raise _over_budget(config, what, "--max_rejected", count if count < listed else 0)
    dropped = [reject for reject in in_order if reject.scope is Scope.ANNOTATION]
    over: list[tuple[int, str]] = []
    for tally in sorted(tallies, key=lambda tally: tally.split):
        of_split = [reject for reject in dropped if reject.split == tally.split]
        left_out = tally.excluded_annotations + sum(tally.skipped_annotations.values())
        listed = tally.annotations - tally.earlier_annotations - left_out
        if config.drop_budget is None:  # 1 %, rounded up, but never all
            allowed = min(-(-listed // 100), max(listed - 1, 0))
        else:
            allowed = config.drop_budget.allowed(listed)
        if len(of_split) > allowed:
            codes = Counter(reject.code for reject in of_split)
            counts = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
            first = of_split[0]
            what = f"{len(of_split)} of {listed} annotations of {tally.split} dropped ({counts}),"
            what += f" at most {allowed} allowed (first id {first.annotation_ids[0]}"
            what += f" of {first.file_name!r}, {first.detail})"
            over.append((len(of_split), what))
    if over:
        show_rejects(dropped, f"dropped{see}")
        raise _over_budget(config, over[0][1], "--max_dropped", max(over)[0])


def show_rejects(rejects: Sequence[Rejected], fate: str) -> None:
    """Log the first rejects, and the number of the others."""
    for reject in rejects[:_SHOWN_REJECTS]:
        _LOG.warning("%s", reject.line(fate))
    if more := len(rejects[_SHOWN_REJECTS:]):
        _LOG.warning("and %d more", more)


def _over_budget(config: DataSetJob, what: str, flag: str, count: int) -> RuntimeError:
    way = f"{_BUDGET_FIELDS[flag]}=RejectBudget({count})"
    if config.command:
        command = re.sub(rf" {flag}[= ]\S+", "", config.command)  # a flag is given once
        way = f"{command} {flag} {count}"
    remedy = f"correct them, or accept with {way}" if count else "correct them"
    return run_fault("E-BUDGET", config.output, what, remedy)


def other_plan(output: Storage, plan: JobPlan, mine: Mapping[str, Any]) -> RuntimeError:
    """Return the fault of an output with another plan; `mine` holds parts of this run's plan."""
    remedy = "give the same options and sources, another --output, or --overwrite"
    return run_fault("E-OUT-PLAN", output.root, first_difference(plan, mine), remedy)


def _refuse_empty_sources(tallies: Sequence[SplitTally], config: DataSetJob) -> None:
    if config.allow_empty:
        return
    filled = {tally.split for tally in tallies if tally.listed}
    if "buckets" in config.options():  # samples have moved to the splits of their buckets
        filled |= {*map(split_without_bucket, filled)}
    needed = {tally.split for tally in tallies}.difference(config.splitting.optional_splits)
    if not (filled or needed):
        what, remedy = "no samples in any split", "check the sources, or give --allow_empty"
        raise run_fault("E-SET-EMPTY", config.output, what, remedy)
    for split in sorted(needed - filled):
        places = [
            *(uri for root, uri in config.listed_roots.items() if root.split("/")[0] == split),
            *config.source_files.get(split, ()),
        ]
        what = f"no {config.layout.sample_noun}s in {', '.join(places) or 'its sources'}"
        remedy = "check them, or give --allow_empty"
        if not config.splitting.is_given:
            what = f"{config.splitting.by} gives it no sample"
            larger = "give a larger share, " if config.splitting.is_drawn else ""
            remedy = f"{larger}correct --splits, or give --allow_empty"
        raise run_fault("E-SET-EMPTY", f"split {split}", what, remedy)


def refuse_none_left(
    tallies: Sequence[SplitTally], plan: JobPlan, samples: Mapping[str, int], config: DataSetJob
) -> None:
    """Refuse a split that has samples in its sources, but none left to write.

    The split may be empty if earlier data sets hold some of its samples. An optional split may be
    empty if another split has samples, and a size bucket if another bucket of its split has some.

    Args:
        tallies: one `SplitTally` per split.
        plan: plan of the run.
        samples: number of samples by split.
        config: configuration of the run.

    Raises:
        RuntimeError: `E-SET-EMPTY`.
    """
    planned = {split for split, facts in plan.splits.items() if facts.samples}
    optional = set(config.splitting.optional_splits) - planned if planned else set()
    filled = {split_without_bucket(split) for split, count in samples.items() if count}
    if "buckets" in plan.options:
        optional |= {split for split in samples if split_without_bucket(split) in filled}
    for tally in tallies:
        may_be_empty = config.allow_empty or tally.earlier_samples or tally.split in optional
        if tally.listed and not samples[tally.split] and not may_be_empty:
            listed = counted(tally.listed, config.layout.sample_noun)
            remedy = "correct the sources, filter less, or give --allow_empty"
            gone = tally.left_out
            gone["rejected"] = tally.listed - sum(gone.values())
            why = ", ".join(f"{count} {reason}" for reason, count in gone.items() if count)
            what = f"none of {listed} is left{f' ({why})' if why else ''}"
            raise run_fault("E-SET-EMPTY", f"split {tally.split}", what, remedy)


def _numbered(tallies: Sequence[SplitTally], config: DataSetJob) -> list[Label]:
    """Return the labels from the label file, else from the sources' ids or class names."""
    if config.layout.copies_records:
        merged = merge_labels(tallies)
        pairs = (text.split(" ", 1) for tally in tallies for text in tally.named_ids)
        known = {str(label.id): label for label in merged}  # records of others are rejected later
        others = ((known[number], name) for number, name in pairs if number in known)
        named = [msgspec.structs.replace(of, name=name) for of, name in others if name != of.text]
        return labels.unite_labels([*merged, *named], "all records")
    first_id = config.layout.first_label_id
    from_id = 1 if first_id is None else first_id  # of classes that only have names
    names = {name for tally in tallies for name in tally.class_names}
    if config.label_file:
        data = read_uri(config.label_file, config.access)
        listed = labels.read_label_file(data, from_id, config.label_file)
        labels.refuse_unlisted(listed, names, config.label_file)
        return listed
    numbered = merge_labels(tallies)
    if numbered and (unlisted := names - {label.name for label in numbered}):
        what = f"some number their classes, others only name them, as {min(unlisted)!r}"
        remedy = "write all with one schema, or give --label_file"
        raise run_fault("E-ANN-LABELS", "the sources", what, remedy)
    if numbered or not names:
        return labels.number_labels(config.earlier.labels, numbered, first_id)
    return labels.number_names(config.earlier.labels, names, from_id)


def _found(tallies: Sequence[SplitTally], config: DataSetJob) -> list[str]:
    """Return what the sources hold, as later steps resolve it; refuse what the layout cannot."""
    columns = [column for tally in tallies for column in tally.columns]
    known = {name for tally in tallies for name in tally.found}
    try:
        known |= {*config.layout.found_of(columns, sum(tally.rows for tally in tallies))}
        config.layout.resolved(found := sorted(known))
    except ValueError as error:  # a user's own layout may give no remedy
        what, separator, remedy = str(error).rpartition(": ")
        if not separator:
            what, remedy = remedy, "ask for features that the sources hold"
        raise run_fault("E-ARG", f"layout {config.layout.name}", what, remedy) from None
    return found


def _show(value: object) -> str:
    return "not there" if value is None else repr(value)


def look_at_output(
    plan: JobPlan, output: Storage, names: ShardNames, splits: Sequence[str], *, overwrite: bool
) -> tuple[str, int]:
    """Return the state of the output, and the number of finished shards in it.

    Args:
        plan: plan of the run.
        output: output of the run.
        names: naming scheme of shard files.
        splits: splits of the run.
        overwrite: whether the run first deletes a data set in the output.

    Raises:
        RuntimeError: `E-OUT-PLAN` or `E-OUT-FOREIGN`, as `publish_plan` would raise.
    """
    output_files.refuse_others(output, names, splits, overwrite=overwrite)
    if overwrite:
        gone = output_files.removed_names(output, names, splits)
        output_files.refuse_foreign(
            output, output_files.names_of_ours(output, names, splits).difference(gone)
        )
        return (OVERWRITTEN, 0) if gone else (FREE, 0)
    if not is_claimed(plan, output, names):
        return FREE, 0
    claimed = len(output_files.receipts(output))
    there = output_files.files_in(output, names.folders(splits))
    files = sum(split_in_name(name, names) is not None for name in there)
    return OURS, min(claimed, files)  # a shard's receipt is created first, its file last


def publish(
    table: ShardTable, tallies: list[SplitTally], rejected: list[Rejected], config: DataSetJob
) -> JobPlan:
    """Make the plan and publish it, so that a run that must fail stops before its first shard.

    The counters `samples_planned` and `shards_planned` in the namespace `beam_tfrec` are for
    display.

    Raises:
        RuntimeError: as `make_job_plan` and `publish_plan`.
    """
    plan = make_job_plan(table, tallies, rejected, config)
    warn_of_sources(tallies, config)
    if not rejected:  # otherwise `commit` refuses, after it has listed the rejects
        samples_of = {split: planned.samples for split, planned in plan.splits.items()}
        refuse_none_left(tallies, plan, samples_of, config)
    output = open_storage(config.output, config.access)
    output.probe()
    publish_plan(plan, output, config.names, replaces=config.replaces)
    refuse_changed_earlier(config.earlier, config.output, config.layout.name, config.access)
    samples = sum(split.samples for split in plan.splits.values())
    shards = sum(split.shards for split in plan.splits.values())
    PROGRESS.plan(samples, shards)
    Metrics.counter(COUNTERS, "samples_planned").inc(samples)
    Metrics.counter(COUNTERS, "shards_planned").inc(shards)
    return plan


def warn_of_sources(tallies: Sequence[SplitTally], config: DataSetJob) -> None:
    """Warn of one folder, or folders named like splits: `--images` is probably one level too high.

    Warn of columns and fields without a value, too, since their names are probably wrong, of keys
    of a table of groups that no sample has, and of an `exclude` that leaves out none.
    """
    facts = add_facts(column for tally in tallies if tally.rows for column in tally.columns)
    lacking = [column.name for column in facts if not column.cells]
    known = [column.name for column in facts if column.cells]  # a null may stand for an object
    if nameless := [name for name in lacking if not any(n.startswith(f"{name}.") for n in known)]:
        what = "no sample has a value of %s: check the names that you gave"
        _LOG.warning(what, ", ".join(nameless))
    if config.exclude and not any(tally.excluded_samples for tally in tallies):
        _LOG.warning("no sample is in %s: is it of these sources?", printable(config.exclude))
    if unused := sum(tally.unused_keys for tally in tallies):
        what = "%s of the table of --group_by without a sample: check its column key"
        _LOG.warning(what, counted(unused, "key"))
    if not config.classes_are_folders:
        return
    names = sorted({name for tally in tallies for name in tally.class_names})
    if names and {*names} <= {*USUAL_SPLITS}:
        root = next(iter(config.listed_roots.values()), "")
        given = shlex.join(f"{name}={join_uri(root, name)}" for name in names)
        classes = ", ".join(names)
        _LOG.warning("the classes are %s; if these are splits, give --images %s", classes, given)
    elif len(names) == 1:
        folders = {split: join_uri(uri, names[0]) for split, uri in config.listed_roots.items()}
        given = shlex.join(f"{split}={uri}" for split, uri in folders.items() if "/" not in split)
        what = "the only class is %s; if its folders are the classes, give --images %s"
        _LOG.warning(what, printable(names[0]), given)
