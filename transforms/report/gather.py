"""Gather what a report says of a data set: from its manifest, receipts, rejects and pictures.

Nothing is read whole but what is small: statistics are added up from receipts as they come, rejects
are read to the first of each reason, and pictures are made of records drawn by digest. What is
damaged or missing is a note, and the rest is told. No clock and no path is in it, so that equal
data sets have equal reports.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from schemas.documents.data_card import source_kind
from schemas.faults import Rejected, fault_line, find_fault
from schemas.feature_roles import Roles, roles_of_spec
from schemas.manifest import (
    MANIFEST_NAME,
    REJECTED_NAME,
    FeatureEntry,
    Manifest,
    ShardEntry,
    SplitSummary,
    from_json,
    read_manifest,
    spec_of,
)
from schemas.shards import ShardInfo, receipt_name, shard_stems
from schemas.statistics import NO_STATISTICS, Statistics, StatisticsSum
from transforms.quantities import counted
from transforms.report.contents import Report, ShardFacts, SplitReport
from transforms.report.draw_pictures import Drawn, draw_record
from transforms.report.first_rejects import first_rejects
from transforms.report.make_pictures import (
    MAX_NOTES,
    Pictures,
    in_order,
    make_pictures,
    most_bytes_each,
    num_threads,
)
from transforms.report.outlines import Legend
from transforms.report.pick_samples import (
    MAX_PICTURES,
    Candidates,
    PickedRecord,
    pick_samples,
)
from transforms.report.read_samples import read_record
from transforms.report.scan_records import scan_shard
from transforms.storage import Access, Storage, is_local, join_uri, open_storage


class _Shard(NamedTuple):
    """A shard of the manifest.

    Attributes:
        entry: of the manifest.
        receipt: its receipt's name.
        place: among the manifest's shards.
    """

    entry: ShardEntry
    receipt: str
    place: int


def make_report(
    root: str, access: Access, *, scans: bool = True, most: int = MAX_PICTURES
) -> Report:
    """Return the report of a data set that has a manifest.

    Args:
        root: its path or URI.
        access: how its store is reached.
        scans: read shards whose receipts have no statistics, rather than refuse.
        most: records that are shown.

    Raises:
        RuntimeError: where the store fails, the manifest is none of ours, or a shard would have to
            be scanned and must not.
    """
    storage = open_storage(root, access)
    manifest = read_manifest(storage.read(MANIFEST_NAME), join_uri(root, MANIFEST_NAME), "path")
    roles = roles_of_spec(spec_of(manifest))
    gathered = _Gathered()
    shards = list(_shards(manifest))
    read = functools.partial(_statistics_of, storage, access, manifest, scans)
    threads = num_threads(local=is_local(root))
    for shard, (statistics, notes) in zip(shards, in_order(read, shards, threads), strict=True):
        gathered.add(shard.entry, statistics, notes)
    pictures = _pictures(storage, manifest, roles, gathered, most)
    rejects, wrong = _rejects(storage, manifest)
    return Report(
        title=f"TFRecord data set of layout {manifest.layout}",
        layout=manifest.layout,
        splits=[
            _split_report(name, split, gathered) for name, split in sorted(manifest.splits.items())
        ],
        class_names=_class_names(manifest),
        pictures=pictures.pictures,
        rejects=rejects,
        options=sorted(manifest.plan.options.items()),
        features=[_feature_row(feature) for feature in manifest.features],
        sources=list(_sources(manifest)),
        versions=[("format of the data set", str(manifest.format_version)), *program_versions()],
        notes=[*gathered.notes, *wrong, *pictures.notes],
    )


def program_versions() -> list[tuple[str, str]]:
    """Return the versions of what makes reports and their pictures."""
    versions = []
    for name in ("beam-tfrec", "pillow"):
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:  # run from its sources
            continue
    return versions


class _Gathered:
    """What receipts say, while they are read: sums, and the records that may be shown."""

    def __init__(self) -> None:
        self._sums: dict[str, StatisticsSum] = {}
        self.shards: dict[str, list[ShardFacts]] = {}
        self.notes: list[str] = []
        self._candidates = Candidates()

    def add(self, entry: ShardEntry, statistics: Statistics, notes: Sequence[str]) -> None:
        """Add a shard; the drawn records of many are as few as those of one."""
        self.notes += notes[: MAX_NOTES - len(self.notes)]
        self._sums.setdefault(entry.split, StatisticsSum()).add(statistics)
        self.shards.setdefault(entry.split, []).append(
            ShardFacts(
                entry.file, entry.records, entry.bytes, statistics.runs, statistics.expected_runs
            )
        )
        self._candidates.add(entry.split, entry.file, statistics.samples)

    def statistics(self, split: str) -> Statistics:
        """Return those of a split's records, without the drawn ones."""
        return self._sums[split].total() if split in self._sums else NO_STATISTICS

    def picked(self, most: int) -> list[PickedRecord]:
        """Return the records that are to be shown."""
        counts: Counter[int] = Counter()
        for split in self._sums:
            counts.update(self.statistics(split).class_records)
        return pick_samples(self._candidates.kept, counts, most)


def _shards(manifest: Manifest) -> Iterator[_Shard]:
    stems = shard_stems([entry.split for entry in manifest.shards])
    for place, (entry, stem) in enumerate(zip(manifest.shards, stems, strict=True)):
        yield _Shard(entry, receipt_name(stem), place)


def _statistics_of(
    storage: Storage, access: Access, manifest: Manifest, scans: bool, shard: _Shard
) -> tuple[Statistics, list[str]]:
    """Return a shard's statistics, and notes where they are not its receipt's."""
    statistics, wrong = _told_by_receipt(storage, shard)
    if statistics is not None:
        return statistics, []
    if not scans:
        where = join_uri(storage.root, shard.receipt)
        remedy = "make the report with beam-tfrec report, which reads the shards"
        raise RuntimeError(fault_line("E-VER-MISSING", where, wrong, remedy))
    notes = [] if wrong == _NO_STATISTICS else [f"{shard.receipt} {wrong}: its shard was read"]
    try:
        found = scan_shard(storage.root, access, manifest, shard.place)
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None or not fault[0].startswith("E-VER-"):
            raise
        return NO_STATISTICS, [*notes, fault[1]]
    return found.statistics, [*notes, *found.notes]


_NO_STATISTICS = "has no statistics, as of an earlier version"


def _told_by_receipt(storage: Storage, shard: _Shard) -> tuple[Statistics | None, str]:
    try:
        info = from_json(storage.read(shard.receipt), ShardInfo)
    except ValueError as error:
        return None, f"is no receipt ({error})"
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None or not fault[0].startswith("E-SRC-"):
            raise
        return None, "is not there"
    if (info.file, info.sha256) != (shard.entry.file, shard.entry.sha256):
        return None, "is not of the manifest's shard"
    if info.statistics.records != info.records:
        return None, _NO_STATISTICS
    return info.statistics, ""


def _pictures(
    storage: Storage, manifest: Manifest, roles: Roles, gathered: _Gathered, most: int
) -> Pictures:
    """Return the pictures of drawn records, read by ranges of their shards."""
    each = max(1, len(roles.images) + len(roles.pixels))
    picks = gathered.picked(most // each)
    legend = Legend(
        _class_names(manifest),
        {label.annotated_id: label.id for label in manifest.plan.labels},
    )
    most_bytes = most_bytes_each(len(picks), each)
    stat = functools.cache(storage.stat)

    def draw(picked: PickedRecord) -> Drawn:
        return draw_record(
            read_record(storage, stat(picked.file), picked), roles, legend, most_bytes
        )

    return make_pictures(picks, draw, num_threads(local=is_local(storage.root)))


def _class_names(manifest: Manifest) -> dict[int, str]:
    return {label.id: label.text or label.name for label in manifest.plan.labels}


def _rejects(storage: Storage, manifest: Manifest) -> tuple[list[Rejected], list[str]]:
    codes = {
        code
        for split in manifest.splits.values()
        for code in (*split.rejected, *split.annotations.dropped)
    }
    try:
        return first_rejects(storage, codes), []
    except ValueError as error:
        return [], [f"{REJECTED_NAME} cannot be read: {error}"]


def _split_report(name: str, split: SplitSummary, gathered: _Gathered) -> SplitReport:
    return SplitReport(
        name=name,
        statistics=gathered.statistics(name),
        shards=gathered.shards.get(name, []),
        sums=_sample_sums(split),
        annotations=_annotation_sums(split),
        rejected=_counts(split.rejected),
        dropped=_counts(split.annotations.dropped),
        repairs=_counts(split.repairs),
        traits=_counts(split.traits),
        licenses=[(found.name or f"license {found.id}", found.records) for found in split.licenses],
    )


def _sample_sums(split: SplitSummary) -> list[tuple[str, int]]:
    return [
        ("listed", split.listed),
        *_if_any(
            ("excluded", split.excluded),
            ("in earlier data sets", split.earlier),
            *((f"skipped, {name}", count) for name, count in sorted(split.skipped.items())),
        ),
        ("rejected before planning", split.rejected_before_planning),
        ("planned", split.planned),
        ("rejected in shards", split.rejected_in_shards),
        ("records", split.records),
    ]


def _annotation_sums(split: SplitSummary) -> list[tuple[str, int]]:
    fate = split.annotations
    if not fate.listed:
        return []
    return [
        ("listed", fate.listed),
        *_if_any(
            ("excluded", fate.excluded),
            ("in earlier data sets", fate.earlier),
            *((f"skipped, {name}", count) for name, count in sorted(fate.skipped.items())),
        ),
        ("dropped", sum(fate.dropped.values())),
        ("lost with images", fate.lost),
        ("written", fate.written),
    ]


def _if_any(*sums: tuple[str, int]) -> list[tuple[str, int]]:
    return [found for found in sums if found[1]]


def _counts(counts: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    return sorted(counts.items())


def _feature_row(feature: FeatureEntry) -> tuple[str, str, str, str]:
    return feature.key, feature.kind, feature.num_values, feature.doc


def _sources(manifest: Manifest) -> Iterator[str]:
    """Yield where samples came from."""
    yield source_kind(manifest)
    for name, split in sorted(manifest.splits.items()):
        if split.images is not None:
            yield f"{name}: {counted(split.listed, 'object')} of {counted(split.images, 'image')}"
        elif not split.sources:  # the manifest names the files only where there are several
            yield f"{name}: {counted(split.listed, 'sample')}"
        for file in split.sources:
            yield (
                f"{name}: {file.kind}, {counted(file.images, 'image')},"
                f" {counted(file.annotations, 'annotation')}"
            )
