"""Publish the plan before the first shard, and commit the data set after the last.

`_plan.json` claims an output for one plan; `manifest.json`, written last, says that the data set is
complete. Between the two, every sum is checked against the receipts.
"""

import functools
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
import msgspec

from schemas.columns import found_of_columns
from schemas.faults import Rejected, Scope, fault_line, printable, reject_order
from schemas.label_files import read_label_file, refuse_unlisted
from schemas.layouts import Layout
from schemas.manifest import (
    DUPLICATES_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    Annotations,
    FeatureEntry,
    JobPlan,
    Label,
    Manifest,
    PlannedSplit,
    ShardEntry,
    SplitSummary,
    from_json,
    plan_digest,
    read_manifest,
    to_json,
)
from schemas.shards import (
    ShardInfo,
    ShardNames,
    receipt_name,
    shard_stem,
)
from schemas.text_protos import label_map_pbtxt, schema_pbtxt
from schemas.tfds_metadata import TfdsSplit, dataset_info_json, features_json, label_files
from transforms import coders
from transforms.blobs import PinTally, listing_digest
from transforms.earlier_sets import (
    NO_EARLIER_SETS,
    EarlierSets,
    add_labels,
    check_turn,
    number_labels,
    number_names,
)
from transforms.find_duplicates import NO_DUPLICATES, Duplicates, duplicates_jsonl
from transforms.output_files import (
    create_or_compare,
    foreign,
    receipts,
    refuse_foreign,
    source_entries,
    sources_name,
    split_of,
    top_level,
)
from transforms.plan_shards import ShardTable
from transforms.progress import PROGRESS
from transforms.quantities import counted
from transforms.sources import SplitSource, merge_labels, uri_identity
from transforms.splits import USUAL_SPLITS
from transforms.storage import DEFAULT_ACCESS, Access, Storage, join_uri, open_storage, read_uri

_LOG = logging.getLogger(__name__)
_SHOWN_REJECTS = 10

coders.register(PlannedSplit)


@dataclass(frozen=True)
class RejectBudget:
    """How many samples may be rejected: a count, or a percentage of the listed samples.

    Attributes:
        count: samples; used when `percent` is None.
        percent: 0 to 100.
    """

    count: int = 0
    percent: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no number of samples."""
        if self.count < 0 or not 0 <= (self.percent or 0) <= 100:
            given = self.count if self.percent is None else f"{self.percent}%"
            raise ValueError(f"max_rejected must be a count or 0% to 100%, got {given}")

    def allowed(self, listed: int) -> int:
        """Return how many of the listed samples may be rejected.

        >>> RejectBudget(percent=1.0).allowed(250)
        2
        """
        return self.count if self.percent is None else int(listed * self.percent / 100)

    def __str__(self) -> str:
        """Return it as the command line takes it."""
        return str(self.count) if self.percent is None else f"{self.percent:g}%"


@dataclass(frozen=True)
class CommitJob:
    """What publishing and committing need to know of a run.

    Attributes:
        output: URI of the data set.
        layout: what an Example holds.
        options: options that decide bytes or membership, by name, beyond the plan's own.
        names: how shard files are called.
        budget: how many samples may be rejected.
        allow_empty: accept a split without images.
        accept_command: the command that accepts `COUNT` rejects, for the message.
        access: how stores are reached.
        earlier: the data sets that this one adds to.
        label_file: URI of the classes in their order; empty to number their names as they sort.
        optional_splits: those that are not there where they have no samples.
    """

    output: str
    layout: Layout
    options: Mapping[str, str] = field(default_factory=dict)
    names: ShardNames = field(default_factory=ShardNames)
    budget: RejectBudget = field(default_factory=RejectBudget)
    allow_empty: bool = False
    accept_command: str = "--max_rejected COUNT"
    access: Access = DEFAULT_ACCESS
    earlier: EarlierSets = NO_EARLIER_SETS
    label_file: str = ""
    optional_splits: Collection[str] = ()


def make_job_plan(
    table: ShardTable,
    files: Sequence[SplitSource],
    rejected: Sequence[Rejected],
    job: CommitJob,
    label_file: bytes | None = None,
) -> JobPlan:
    """Return the plan of a run, when its samples and their rejects so far allow one.

    Args:
        table: how many samples the shards get.
        files: what the sources held.
        rejected: rejects so far.
        job: the run.
        label_file: what `job.label_file` holds; None where there is none.

    Raises:
        RuntimeError: `E-SET-EMPTY`, `E-BUDGET`, `E-ANN-LABELS`, or `E-ARG` where the files do not
            hold what the layout asks for.
    """
    columns = [column for file in files for column in file.columns]
    known = {name for file in files for name in file.found}
    known |= {*found_of_columns(columns, sum(file.rows for file in files))}
    found = sorted(known)
    _refuse_without_samples(files, job)
    _check_budget_aloud(rejected, files, job, "rejected")
    _check_found(found, job)  # where all rows are rejects, nothing is: these tell why
    numbered = _numbered(files, job, label_file)
    labels = add_labels(job.earlier.labels, numbered, job.label_file or job.output)
    return JobPlan(
        format_version=FORMAT_VERSION,
        options=dict(job.options),
        labels=[inherited.label for inherited in labels],
        splits={file.split: table.planned(file.split) for file in files},
        samples=table.digest,
        found=found,
    )


def _refuse_without_samples(files: Sequence[SplitSource], job: CommitJob) -> None:
    if job.allow_empty:
        return
    if not files:
        what, remedy = "no samples in any split", "check the sources, or give --allow_empty"
        raise RuntimeError(fault_line("E-SET-EMPTY", job.output, what, remedy))
    for file in files:
        if not file.images:
            what = f"no {job.layout.sample_noun}s in its sources"
            remedy = "check them, or give --allow_empty"
            if "split_by" in job.options:
                what = f"no sample is of it by {job.options['split_by']}"
                remedy = "give a larger share, correct --splits, or give --allow_empty"
            raise RuntimeError(fault_line("E-SET-EMPTY", f"split {file.split}", what, remedy))


def _numbered(
    files: Sequence[SplitSource], job: CommitJob, label_file: bytes | None
) -> list[Label]:
    """Return the labels: by the label file, by the sources, or by the names of their classes."""
    first_id = job.layout.first_label_id
    names = {name for file in files for name in file.class_names}
    if label_file is not None:
        labels = read_label_file(label_file, 1 if first_id is None else first_id, job.label_file)
        refuse_unlisted(labels, names, job.label_file)
        return labels
    if not names:
        return number_labels(job.earlier.labels, merge_labels(files), first_id)
    return number_names(job.earlier.labels, names, 1 if first_id is None else first_id)


def _check_found(found: Sequence[str], job: CommitJob) -> None:
    try:
        job.layout.resolved(found)
    except ValueError as error:
        what, _, remedy = str(error).rpartition(": ")
        raise RuntimeError(fault_line("E-ARG", job.output, what, remedy)) from None


def publish_plan(plan: JobPlan, output: Storage, names: ShardNames) -> None:
    """Claim an output for a plan, or find it claimed by the same one.

    Raises:
        RuntimeError: `E-OUT-PLAN` naming the first difference to the plan there; `E-OUT-FOREIGN`
            when there is none but files of our names are.
    """
    if output.stat(PLAN_NAME) is None:
        try:
            refuse_foreign(output, names)
        except RuntimeError:
            if output.stat(PLAN_NAME) is None:  # else they are of a run that began just now
                raise
        if output.create(PLAN_NAME, to_json(plan)):
            return
    data = output.read(PLAN_NAME)
    if data != to_json(plan):
        try:
            other = from_json(data, JobPlan)
        except ValueError:
            raise foreign(output, f"{PLAN_NAME} is no plan of beam-tfrec") from None
        raise _other_plan(output, first_difference(other, msgspec.to_builtins(plan)))


def first_difference(plan: JobPlan, wanted: Mapping[str, Any]) -> str:
    """Return in words the first thing in which a plan differs from the wanted parts of one."""
    other, mine = msgspec.to_builtins(plan), wanted
    for part in ("format_version", "options", "splits", "labels"):
        if part not in mine or other[part] == mine[part]:
            continue
        if not isinstance(mine[part], dict):
            return f"the output was made with other {part}"
        names = sorted({*other[part], *mine[part]})
        for name in sorted(names, key=lambda name: not mine[part].get(name)):  # what is asked first
            theirs, ours = other[part].get(name), mine[part].get(name)
            if theirs != ours:
                return f"{part} {name} was {_show(theirs)}, is {_show(ours)} now"
    return "the output was made from other images or annotations"


def commit(
    infos: Sequence[ShardInfo],
    plan: JobPlan,
    files: Sequence[SplitSource],
    rejected: Sequence[Rejected],
    listings: Mapping[str, str],
    job: CommitJob,
    duplicates: Duplicates = NO_DUPLICATES,
) -> Manifest:
    """Write the side files and last the manifest, when everything is there and adds up.

    Args:
        infos: one a planned shard.
        plan: as published.
        files: the annotation files.
        rejected: rejects from before the shards.
        listings: digest of every root's listing, hex.
        job: the run.
        duplicates: what splits have in common.

    Raises:
        RuntimeError: `E-BUDGET`, `E-OUT-FOREIGN`, `E-OUT-CONFLICT`, or a sum that does not hold.
    """
    output = open_storage(job.output, job.access)
    shards = sorted(infos, key=lambda info: (info.split, info.index))
    _check_output(shards, plan, output, job.names)
    rejects = sorted(
        [*rejected, *(reject for info in shards for reject in info.rejected)], key=reject_order
    )
    layout = job.layout.resolved(plan.found)
    manifest = make_manifest(shards, plan, files, rejects, layout, duplicates)
    create_or_compare(output, REJECTED_NAME, b"".join(map(_json_line, rejects)))
    _check_budget_aloud(rejects, files, job, f"rejected, see {REJECTED_NAME}")
    for file in _to_have_samples(files, plan, job):
        refuse_empty(file, manifest.splits[file.split].records, job)
    if duplicates.lines:
        create_or_compare(output, DUPLICATES_NAME, duplicates_jsonl(duplicates.lines))
    for name, text in side_files(manifest, layout).items():
        create_or_compare(output, name, text.encode())
    identities = {file.split: file.identity for file in files}
    output.create(sources_name(job_digest(plan, identities, listings)), b"{}\n")
    create_or_compare(output, MANIFEST_NAME, to_json(manifest))
    return manifest


def make_manifest(
    shards: Sequence[ShardInfo],
    plan: JobPlan,
    files: Sequence[SplitSource],
    rejects: Sequence[Rejected],
    layout: Layout,
    duplicates: Duplicates = NO_DUPLICATES,
) -> Manifest:
    """Return the manifest, its sums checked.

    Raises:
        RuntimeError: when a sum does not hold.
    """
    splits = {
        file.split: _summarize(
            file,
            plan.splits[file.split],
            [info for info in shards if info.split == file.split],
            [reject for reject in rejects if reject.split == file.split],
        )
        for file in sorted(files, key=lambda file: file.split)
    }
    return Manifest(
        layout=layout.name,
        plan=plan,
        splits=_with_shares(splits) if "split_by" in plan.options else splits,
        shards=[
            ShardEntry(
                file=info.file,
                split=info.split,
                planned=info.planned,
                records=info.records,
                bytes=info.bytes,
                crc32c=info.crc32c,
                sha256=info.sha256,
            )
            for info in shards
        ],
        features=[
            FeatureEntry(
                feature.key,
                feature.kind.value,
                feature.repeated,
                feature.doc,
                feature.content.value,
                feature.optional,
                feature.per_step,
            )
            for feature in layout.spec.sorted_features
        ],
        duplicates=duplicates.pairs or msgspec.UNSET,
    )


def _with_shares(splits: Mapping[str, SplitSummary]) -> dict[str, SplitSummary]:
    """Return drawn splits with what each has of all records, to a millionth."""
    records = sum(summary.records for summary in splits.values())
    return {
        split: msgspec.structs.replace(summary, share=round(summary.records / max(records, 1), 6))
        for split, summary in splits.items()
    }


def _to_have_samples(
    files: Sequence[SplitSource], plan: JobPlan, job: CommitJob
) -> list[SplitSource]:
    """Return the files of splits that must not come out empty.

    Not of one that no sample says it is of, and that only counts what cannot say its split.
    """
    planned = {split for split, found in plan.splits.items() if found.samples}
    optional = set(job.optional_splits) - planned if planned else set()
    return [file for file in files if file.split not in optional]


def refuse_empty(file: SplitSource, samples: int, job: CommitJob) -> None:
    """Stop when nothing is left of a split that has images, of which no earlier data set has any.

    Raises:
        RuntimeError: `E-SET-EMPTY`.
    """
    if file.images and not samples and not file.earlier_images and not job.allow_empty:
        what = f"none of {counted(file.images, job.layout.sample_noun)} is left"
        remedy = "mend, exclude or skip fewer, or give --allow_empty"
        raise RuntimeError(fault_line("E-SET-EMPTY", f"split {file.split}", what, remedy))


def check_budget(rejects: Iterable[Rejected], files: Iterable[SplitSource], job: CommitJob) -> None:
    """Stop when more samples are rejected than accepted, of those that earlier data sets lack.

    Raises:
        RuntimeError: `E-BUDGET`, with the command that accepts them.
    """
    samples = sorted((r for r in rejects if r.scope is Scope.SAMPLE), key=reject_order)
    count = len({(reject.split, reject.key) for reject in samples})
    listed = sum(file.listed - file.earlier_images for file in files)
    if count > job.budget.allowed(listed):
        first = samples[0]
        what = (
            f"{count} of {listed} samples rejected, --max_rejected is {job.budget}"
            f" (first {(first.file_name or first.key)!r}, {first.detail})"
        )
        before, _, after = job.accept_command.rpartition("COUNT")
        remedy = f"mend them, or accept with {before}{count}{after}"
        raise RuntimeError(fault_line("E-BUDGET", job.output, what, remedy))


def side_files(manifest: Manifest, layout: Layout) -> dict[str, str]:
    """Return what other tools read beside the shards, by file name."""
    labels = [(label.id, label.name) for label in manifest.plan.labels]
    splits = [
        TfdsSplit(
            name=split,
            shard_lengths=tuple(e.records for e in manifest.shards if e.split == split),
            shards_bytes=summary.bytes,
        )
        for split, summary in manifest.splits.items()
        if summary.shards
    ]
    names = [label.name for label in manifest.plan.labels] if layout.first_label_id == 0 else []
    texts = {"label_map.pbtxt": label_map_pbtxt(labels), "schema.pbtxt": schema_pbtxt(layout.spec)}
    if layout.spec.is_sequence:  # TFDS would take them for Examples, and find the context alone
        return texts
    description = f"{layout.name} Examples written by beam-tfrec; see manifest.json."
    return texts | {
        "features.json": features_json(layout.spec, len(names)),
        "dataset_info.json": dataset_info_json(
            f"beam_tfrec_{layout.name}", f"{FORMAT_VERSION}.0.0", description, splits
        ),
        **(label_files(layout.spec, names) if names else {}),
    }


def job_digest(plan: JobPlan, identities: Mapping[str, str], listings: Mapping[str, str]) -> str:
    """Return the digest by which a finished run recognises itself, hex.

    Args:
        plan: that was made of the sources, so that the note of a run whose data set was
            overwritten before it ended says nothing of the one there.
        identities: of the annotation files, by split.
        listings: `listing_digest` in hex, by root name; an empty root counts as none.
    """
    listed = {root: listing for root, listing in listings.items() if listing != "0"}
    seen = json.dumps([plan_digest(plan), dict(identities), listed], sort_keys=True)
    return hashlib.blake2b(seen.encode(), digest_size=16).hexdigest()


def find_complete(
    output: Storage,
    options: Mapping[str, str],
    annotations: Mapping[str, Sequence[str]],
    roots: Mapping[str, str],
    exclude: str,
    names: ShardNames,
    *,
    trust_manifest: bool,
    access: Access = DEFAULT_ACCESS,
    optional_splits: Collection[str] = (),
) -> Manifest | None:
    """Return the manifest when the output is complete for this job, else None.

    Costs one listing of the roots and a pass over the annotation files; no image is read. A source
    that was only touched is not recognised here: the run then finds every shard kept.

    Args:
        output: of the data set.
        options: options that decide bytes or membership.
        annotations: URIs per split, in any order.
        roots: URI per root name.
        exclude: URI of samples left out, or empty.
        names: how shard files are called.
        trust_manifest: compare the options alone.
        access: how stores are reached.
        optional_splits: those that are not there where they have no samples.

    Raises:
        RuntimeError: `E-OUT-PLAN` when the data set was made with other options.
    """
    if output.stat(MANIFEST_NAME) is None:
        return None
    manifest = read_manifest(output.read(MANIFEST_NAME), join_uri(output.root, MANIFEST_NAME))
    if manifest.plan.options != options:
        raise _other_plan(output, first_difference(manifest.plan, {"options": dict(options)}))
    if trust_manifest:
        return manifest
    identity = functools.cache(lambda uris: uri_identity(uris, exclude, access))
    identities = {
        split: identity(tuple(uris))
        for split, uris in annotations.items()
        if split in manifest.plan.splits or split not in optional_splits
    }
    listings = {
        root: f"{listing_digest(source_entries(uri, output.root, names, access)):x}"
        for root, uri in roots.items()
    }
    note = sources_name(job_digest(manifest.plan, identities, listings))
    return manifest if output.stat(note) is not None else None


def reject_text(reject: Rejected, remedy: str) -> str:
    """Return a reject as a line of the log."""
    of_sample = reject.scope is Scope.SAMPLE
    where = reject.file_name or ("sample" if of_sample else "annotation")
    ids = f"key {reject.key}" if of_sample else f"id {reject.annotation_ids[0]}"
    return fault_line(reject.code, f"{where} ({ids})", reject.detail, remedy)


def _check_output(
    shards: Sequence[ShardInfo], plan: JobPlan, output: Storage, names: ShardNames
) -> None:
    """Check that receipts are exactly the planned shards, and that a fresh listing shows them."""
    planned = {
        shard_stem(split, index, planned.shards)
        for split, planned in plan.splits.items()
        for index in range(planned.shards)
    }
    if sorted(info.name for info in shards) != sorted(planned):
        raise RuntimeError(f"{len(planned)} shards are planned, {len(shards)} came back")
    written = set(receipts(output))
    sizes = top_level(output)
    for name in sorted(written ^ {receipt_name(stem) for stem in planned}):
        raise foreign(output, f"{name} is {'not of this plan' if name in written else 'gone'}")
    for info in shards:
        if sizes.get(info.file) != info.bytes:
            found = sizes.get(info.file, "no")
            raise foreign(output, f"{info.file} has {found} bytes, its receipt says {info.bytes}")
    files = {info.file for info in shards}
    for name in sorted(sizes):
        if name not in files and split_of(name, names) is not None:
            raise foreign(output, f"{name} is no shard of this plan")


def _other_plan(output: Storage, what: str) -> RuntimeError:
    remedy = "give the same options and sources, another --output, or --overwrite"
    return RuntimeError(fault_line("E-OUT-PLAN", output.root, what, remedy))


def _summarize(
    file: SplitSource,
    planned: PlannedSplit,
    shards: Sequence[ShardInfo],
    rejects: Sequence[Rejected],
) -> SplitSummary:
    samples = [reject for reject in rejects if reject.scope is Scope.SAMPLE]
    annotations = [reject for reject in rejects if reject.scope is Scope.ANNOTATION]
    summary = SplitSummary(
        listed=file.listed,
        excluded=file.excluded_images,
        rejected_before_planning=sum(not reject.shard for reject in samples),
        planned=planned.samples,
        rejected_in_shards=sum(bool(reject.shard) for reject in samples),
        records=sum(info.records for info in shards),
        shards=len(shards),
        bytes=sum(info.bytes for info in shards),
        annotations=Annotations(
            listed=file.annotations,
            written=sum(info.annotations_written for info in shards),
            dropped=_count(reject.code for reject in annotations),
            lost=sum(len(reject.annotation_ids) for reject in samples),
            excluded=file.excluded_annotations,
            earlier=file.earlier_annotations,
            skipped=file.skipped_annotations,
        ),
        repeated_annotation_ids=file.repeated_annotation_ids,
        rejected=_count(reject.code for reject in samples),
        repairs=_add([file.repairs, *(info.repairs for info in shards)]),
        traits=_add(info.traits for info in shards),
        earlier=file.earlier_images,
        skipped=file.skipped,
        images=file.images if file.samples is not None else None,
        images_without_samples=file.images_without_samples,
        sources=file.sources,
    )
    for info in shards:
        rejected = sum(reject.scope is Scope.SAMPLE for reject in info.rejected)
        _check_sum(info.name, info.planned, info.records, rejected)
    _check_sum(
        f"samples of {file.split}",
        summary.listed,
        summary.excluded,
        summary.rejected_before_planning,
        summary.planned,
        summary.earlier,
        *summary.skipped.values(),
    )
    _check_sum(
        f"plan of {file.split}", summary.planned, summary.records, summary.rejected_in_shards
    )
    fate = summary.annotations
    _check_sum(
        f"annotations of {file.split}",
        fate.listed,
        fate.written,
        sum(fate.dropped.values()),
        fate.lost,
        fate.excluded,
        fate.earlier,
        *fate.skipped.values(),
    )
    return summary


def _check_budget_aloud(
    rejects: Sequence[Rejected], files: Sequence[SplitSource], job: CommitJob, remedy: str
) -> None:
    try:
        check_budget(rejects, files, job)
    except RuntimeError:
        samples = [reject for reject in rejects if reject.scope is Scope.SAMPLE]
        for reject in sorted(samples, key=reject_order)[:_SHOWN_REJECTS]:
            _LOG.warning("%s", reject_text(reject, remedy))
        raise


def _check_sum(name: str, total: int, *parts: int) -> None:
    if total != sum(parts):
        terms = " + ".join(map(str, parts))
        raise RuntimeError(f"the sum of {name} does not hold: {total} is not {terms}")


def _count(codes: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(codes).items()))


def _add(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return dict(sorted(total.items()))


def _show(value: object) -> str:
    return "not there" if value is None else repr(value)


def _json_line(reject: Rejected) -> bytes:
    return msgspec.json.encode(reject) + b"\n"


@dataclass(eq=False)
class PublishPlan(beam.PTransform):
    """The shard table -> the run's `JobPlan`, one element, once the output is claimed for it.

    Stops the run before its first shard when the samples, their rejects so far or the output do not
    allow it.

    Attributes:
        job: what the run is.
        files: the annotation files.
        rejected: rejects so far.
    """

    job: CommitJob
    files: beam.PCollection[SplitSource]
    rejected: beam.PCollection[Rejected]

    def expand(self, table: beam.PCollection[ShardTable]) -> beam.PCollection[JobPlan]:
        """Publish the plan."""
        files, rejected = beam.pvalue.AsList(self.files), beam.pvalue.AsList(self.rejected)
        return table | "Publish" >> beam.Map(_publish, files, rejected, self.job)


def _publish(
    table: ShardTable, files: list[SplitSource], rejected: list[Rejected], job: CommitJob
) -> JobPlan:
    label_file = read_uri(job.label_file, job.access) if job.label_file else None
    plan = make_job_plan(table, files, rejected, job, label_file)
    _warn_of_splits(files)
    output = open_storage(job.output, job.access)
    output.probe()
    publish_plan(plan, output, job.names)
    check_turn(job.earlier, job.output, job.layout.name, job.access)
    planned = plan.splits.values()
    PROGRESS.plan(sum(split.samples for split in planned), sum(split.shards for split in planned))
    return plan


def _warn_of_splits(files: Sequence[SplitSource]) -> None:
    """Tell of classes that are called like splits: a folder too far up looks like that."""
    names = sorted({name for file in files for name in file.class_names})
    if names and {*names} <= {*USUAL_SPLITS}:
        given = ",".join(names)
        _LOG.warning("the classes are called %s: if these are splits, say --split_folders", given)


@dataclass(eq=False)
class Commit(beam.PTransform):
    """Shard infos -> the manifest, one element, once it is written.

    Attributes:
        job: what the run is.
        plan: as published.
        files: the annotation files.
        rejected: rejects from before the shards.
        tallies: what pinning saw of every root.
        duplicates: what splits have in common; None where there is one split.
    """

    job: CommitJob
    plan: beam.PCollection[JobPlan]
    files: beam.PCollection[SplitSource]
    rejected: beam.PCollection[Rejected]
    tallies: beam.PCollection[tuple[str, PinTally]]
    duplicates: beam.PCollection[Duplicates] | None = None

    def expand(self, infos: beam.PCollection[ShardInfo]) -> beam.PCollection[Manifest]:
        """Check and commit."""
        return self.plan | "CommitManifest" >> beam.Map(
            _commit,
            beam.pvalue.AsList(infos),
            beam.pvalue.AsList(self.files),
            beam.pvalue.AsList(self.rejected),
            beam.pvalue.AsList(self.tallies),
            self.job,
            NO_DUPLICATES if self.duplicates is None else beam.pvalue.AsSingleton(self.duplicates),
        )


def _commit(
    plan: JobPlan,
    infos: list[ShardInfo],
    files: list[SplitSource],
    rejected: list[Rejected],
    tallies: list[tuple[str, PinTally]],
    job: CommitJob,
    duplicates: Duplicates,
) -> Manifest:
    for root, tally in tallies:
        if tally.unreferenced and not job.earlier.sets:  # else they may be of earlier samples
            found, name = counted(tally.unreferenced, "file"), printable(tally.first_unreferenced)
            _LOG.info("no record was to hold %s of root %s, such as %s", found, root, name)
    listings = {root: tally.listing for root, tally in tallies}
    return commit(infos, plan, files, rejected, listings, job, duplicates)
