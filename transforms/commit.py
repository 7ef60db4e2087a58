"""Commit the data set after its last shard.

First all sums over the shards are checked, and that a listing shows every receipt, index and shard.
`manifest.json` is written last; its presence says that the data set is complete.
"""

import functools
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.documents.croissant import CROISSANT_NAME, croissant_json
from beam_tfrec.schemas.documents.data_card import CARD_NAME, data_card
from beam_tfrec.schemas.documents.tensorflow_files import metadata_files
from beam_tfrec.schemas.faults import Rejected, Scope, counted, printable, reject_order
from beam_tfrec.schemas.labels import count_licenses
from beam_tfrec.schemas.layouts import Layout
from beam_tfrec.schemas.manifest import (
    DUPLICATES_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    REJECTED_NAME,
    SOURCES_DIR,
    Annotations,
    JobPlan,
    Manifest,
    ShardEntry,
    SplitSummary,
    contradictions,
    plan_digest,
    to_json,
    to_json_lines,
)
from beam_tfrec.schemas.shards import ShardInfo, ShardNames, file_sum, receipt_name
from beam_tfrec.transforms import output_files, publish_plan
from beam_tfrec.transforms.build_shard import read_own_index
from beam_tfrec.transforms.data_set_job import DataSetJob
from beam_tfrec.transforms.find_duplicates import NO_DUPLICATES, Duplicates
from beam_tfrec.transforms.sources.listing import RootTally, listing_digest
from beam_tfrec.transforms.sources.read_samples import SplitTally, add_counts, uri_identity
from beam_tfrec.transforms.storage import Storage, open_storage
from beam_tfrec.transforms.storage.read_data_set import what_differs

_LOG = logging.getLogger(__name__)
_OF_SOURCES = "listed", "repeated_annotation_ids", "skipped", "sources"
_OF_IMAGES = "images", "images_without_samples"
"""Fields of a split's summary that are copied from its `SplitTally`."""


def commit(
    plan: JobPlan,
    infos: Sequence[ShardInfo],
    split_tallies: Sequence[SplitTally],
    rejected: Sequence[Rejected],
    root_tallies: Sequence[tuple[str, RootTally]],
    config: DataSetJob,
    duplicates: Duplicates = NO_DUPLICATES,
) -> Manifest:
    """Check the output, then write the side files and, last, the manifest.

    Args:
        plan: plan as published.
        infos: sizes, sums and counts of all planned shards.
        split_tallies: one `SplitTally` per split.
        rejected: rejects of all steps before the shards.
        root_tallies: counts of listed and pinned files, by root name.
        config: configuration of the run.
        duplicates: sources that several splits share.

    Raises:
        RuntimeError: `E-BUDGET`, `E-OUT-FOREIGN`, `E-OUT-CONFLICT`, or a sum that does not hold.
    """
    for root, tally in root_tallies:
        if tally.unreferenced and not config.earlier.sets:  # earlier samples may use them
            files, name = counted(tally.unreferenced, "file"), printable(tally.first_unreferenced)
            _LOG.info("%s of root %s not used by any sample, such as %s", files, root, name)
    output = open_storage(config.output, config.access)
    digest = plan_digest(plan)
    output_files.check_claim(output, digest)
    shards = sorted(infos, key=lambda info: (info.split, info.index))
    rejects = sorted(
        [*rejected, *(reject for info in shards for reject in info.rejected)], key=reject_order
    )
    layout = config.layout.resolved(plan.found)
    manifest = make_manifest(shards, plan, split_tallies, rejects, layout, duplicates)
    _check_output(shards, output, config.names)
    if "stratify_by" in plan.options:
        manifest = count_classes(manifest, output)
    rejected_lines = to_json_lines(rejects)
    output_files.create_or_compare(output, REJECTED_NAME, rejected_lines)
    publish_plan.log_and_check_budget(rejects, split_tallies, config, f", see {REJECTED_NAME}")
    records = {split: summary.records for split, summary in manifest.splits.items()}
    publish_plan.refuse_none_left(split_tallies, plan, records, config)
    texts = metadata_files(manifest, layout.spec, has_names=layout.first_label_id == 0)
    contents = {name: text.encode() for name, text in texts.items()}
    if duplicates.lines:
        contents[DUPLICATES_NAME] = to_json_lines(duplicates.lines)
    for name, data in contents.items():
        output_files.create_or_compare(output, name, data)
    documents = {CARD_NAME: data_card(manifest), CROISSANT_NAME: croissant_json(manifest)}
    for name, text in documents.items():
        contents[name] = text.encode()
        output_files.create_or_leave(output, name, contents[name])
    known = {tally.split: tally.identity for tally in split_tallies if tally.identity}
    listings = {root: tally.listing for root, tally in root_tallies}
    contents |= {PLAN_NAME: to_json(plan), REJECTED_NAME: rejected_lines}
    sums = {name: file_sum(data) for name, data in contents.items()}
    manifest = msgspec.structs.replace(manifest, files=sums)
    output.create(
        sources_note_name(manifest, known | config.globs, listings), output_files.SOURCES_NOTE
    )
    output_files.check_claim(output, digest)
    output_files.create_or_compare(output, MANIFEST_NAME, to_json(manifest))
    return manifest


def make_manifest(
    shards: Sequence[ShardInfo],
    plan: JobPlan,
    split_tallies: Sequence[SplitTally],
    rejects: Sequence[Rejected],
    layout: Layout,
    duplicates: Duplicates = NO_DUPLICATES,
) -> Manifest:
    """Build the manifest, and check its sums.

    Raises:
        RuntimeError: when a sum does not hold.
    """
    splits = {
        tally.split: _summarize(
            tally,
            plan.splits[tally.split].samples,
            [info for info in shards if info.split == tally.split],
            [reject for reject in rejects if reject.split == tally.split],
        )
        for tally in sorted(split_tallies, key=lambda tally: tally.split)
    }
    manifest = Manifest(
        format_version=plan.format_version,
        layout=layout.name,
        plan=plan,
        splits=_with_shares(splits) if "split_by" in plan.options else splits,
        # Attributes of entries are fields of the infos, and the property `index_stem`.
        shards=[msgspec.convert(info, ShardEntry, from_attributes=True) for info in shards],
        features=[*layout.spec.sorted_features],
        duplicates=duplicates.pairs or msgspec.UNSET,
        record_format="array_record" if "record_format" in plan.options else msgspec.UNSET,
    )
    for info in shards:
        rejected = sum(reject.scope is Scope.SAMPLE for reject in info.rejected)
        if info.planned != info.records + rejected:
            what = f"{info.records} records and {rejected} rejects"
            raise RuntimeError(f"{info.name} has {what} for {info.planned} planned samples")
    for what in contradictions(manifest):
        raise RuntimeError(f"the sums do not hold: {what}")
    return manifest


def count_classes(manifest: Manifest, output: Storage) -> Manifest:
    """Return the manifest with the classes of each split, counted in the indexes of its shards."""
    counts = {split: Counter[int]() for split in manifest.splits}
    for shard in manifest.shards:
        for row in read_own_index(shard.index_names[0], output):
            counts[shard.split].update({*row.labels})
    splits = {
        split: msgspec.structs.replace(
            summary, classes={label.name: counts[split][label.id] for label in manifest.plan.labels}
        )
        for split, summary in manifest.splits.items()
    }
    return msgspec.structs.replace(manifest, splits=splits)


def sources_note_name(
    manifest: Manifest, identities: Mapping[str, str], listings: Mapping[str, str]
) -> str:
    """Return the name of a finished run's note: a digest of its manifest and sources.

    A later run finds the note, and then knows that the data set is up to date. The manifest is
    part of the digest, since another one may be there: `--overwrite` may replace the
    data set before a run ends, and sources may have other counts than those of a finished run.

    Args:
        manifest: manifest of the run.
        identities: `uri_identity` of the source files, by split.
        listings: `listing_digest` in hex, by root name; empty roots are left out.
    """
    listed = {root: listing for root, listing in listings.items() if listing != "0"}
    seen = json.dumps([to_json(manifest).decode(), dict(identities), listed], sort_keys=True)
    return f"{SOURCES_DIR}/{hashlib.blake2b(seen.encode(), digest_size=16).hexdigest()}.json"


def find_complete(output: Storage, config: DataSetJob) -> Manifest | None:
    """Return the manifest when the output is complete for this job, else None.

    Lists the roots and the output once, and reads the source files, such as annotations or tables.
    Images and shards are not read.

    If the modification time of a source has changed, the result is None: the run then plans again,
    and keeps every shard. If files of the output are missing, the run builds them again.

    Raises:
        RuntimeError: `E-OUT-PLAN` when the data set was made with other options;
            `E-OUT-CONFLICT` when a shard differs from its entry in the manifest.
    """
    manifest, options = output_files.find_manifest(output), config.options()
    if manifest is None:
        return None
    if manifest.plan.options != options:
        raise publish_plan.other_plan(output, manifest.plan, {"options": options})
    if config.trust_manifest:
        return manifest
    identity = functools.cache(lambda uris: uri_identity(uris, config.exclude, config.access))
    identities = {
        split: identity(tuple(uris))
        for split, uris in config.source_files.items()
        if split in manifest.plan.splits or split not in config.splitting.optional_splits
    }
    listings = {
        root: f"{listing_digest(open_storage(uri, config.access).list()):x}"
        for root, uri in config.listed_roots.items()
    }
    known = {split: found for split, found in identities.items() if found}
    if output.stat(sources_note_name(manifest, known | config.globs, listings)) is None:
        return None
    if missing := output_files.missing_files(output, manifest):
        files, first = counted(len(missing), "file"), printable(missing[0])
        _LOG.warning("%s missing from the data set, such as %s: building again", files, first)
        return None
    return manifest


def _with_shares(splits: Mapping[str, SplitSummary]) -> dict[str, SplitSummary]:
    """Return splits with each one's share of all records, rounded to a millionth."""
    records = sum(summary.records for summary in splits.values())
    return {
        split: msgspec.structs.replace(summary, share=round(summary.records / max(records, 1), 6))
        for split, summary in splits.items()
    }


def _check_output(shards: Sequence[ShardInfo], output: Storage, names: ShardNames) -> None:
    """Check that a fresh listing shows exactly the shards of the plan."""
    there = output_files.files_in(output, names.folders(info.split for info in shards))
    found = output_files.files_of_shards(output, names, there)
    planned = {receipt_name(info.name) for info in shards}
    for info in shards:
        planned |= {info.file, *info.index_names}
    for name in sorted(found ^ planned):
        what = "does not belong to this plan" if name in found else "is missing"
        raise output_files.foreign(output, f"{name} {what}")
    for info in shards:
        found_file = there[info.file]
        if what_differs(info, found_file):
            what = f"has {found_file.size_bytes} bytes, its receipt says {info.bytes}"
            raise output_files.foreign(output, f"{info.file} {what}")


def _summarize(
    tally: SplitTally, planned: int, shards: Sequence[ShardInfo], rejects: Sequence[Rejected]
) -> SplitSummary:
    samples = [reject for reject in rejects if reject.scope is Scope.SAMPLE]
    annotations = [reject for reject in rejects if reject.scope is Scope.ANNOTATION]
    return SplitSummary(
        **{name: getattr(tally, name) for name in _OF_SOURCES + _OF_IMAGES},
        excluded=tally.excluded_samples,
        rejected_before_planning=sum(not reject.shard for reject in samples),
        planned=planned,
        rejected_in_shards=sum(bool(reject.shard) for reject in samples),
        records=sum(info.records for info in shards),
        shards=len(shards),
        bytes=sum(info.bytes for info in shards),
        annotations=Annotations(
            listed=tally.annotations,
            written=sum(info.annotations_written for info in shards),
            dropped=add_counts([Counter(reject.code for reject in annotations)]),
            lost=sum(len(reject.annotation_ids) for reject in samples),
            excluded=tally.excluded_annotations,
            earlier=tally.earlier_annotations,
            skipped=tally.skipped_annotations,
        ),
        rejected=add_counts([Counter(reject.code for reject in samples)]),
        repairs=add_counts([tally.repairs, *(info.repairs for info in shards)]),
        traits=add_counts(info.traits for info in shards),
        earlier=tally.earlier_samples,
        licenses=count_licenses((info.licenses for info in shards), tally.licenses),
    )


@dataclass(eq=False)
class Commit(beam.PTransform):
    """Shard infos -> the written manifest, one element.

    Attributes:
        config: configuration of the run.
        plan: plan as published.
        split_tallies: one `SplitTally` per split.
        rejected: rejects of all steps before the shards.
        root_tallies: counts of listed and pinned files, by root name; None where nothing is pinned.
        duplicates: sources that several splits share; None with a single split.
    """

    config: DataSetJob
    plan: beam.PCollection[JobPlan]
    split_tallies: beam.PCollection[SplitTally]
    rejected: beam.PCollection[Rejected]
    root_tallies: beam.PCollection[tuple[str, RootTally]] | None
    duplicates: beam.PCollection[Duplicates] | None = None

    def expand(self, infos: beam.PCollection[ShardInfo]) -> beam.PCollection[Manifest]:
        """Commit once, for the single plan, after all shards."""
        as_list = beam.pvalue.AsList
        sides = as_list(infos), as_list(self.split_tallies), as_list(self.rejected)
        tallies: Any = [] if self.root_tallies is None else as_list(self.root_tallies)
        others = [] if self.duplicates is None else [beam.pvalue.AsSingleton(self.duplicates)]
        step = beam.Map(commit, *sides, tallies, self.config, *others)
        return self.plan | "CommitManifest" >> step
