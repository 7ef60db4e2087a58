"""Gather the report of a data set from its manifest, indexes, rejects and sample records.

Indexes are read one at a time. What is missing or damaged becomes a note. Nothing here reads a
clock, so equal data sets in folders of one name have equal reports.
"""

import functools
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from schemas.documents.data_card import source_kind
from schemas.faults import Rejected, find_fault
from schemas.features import roles_of_spec
from schemas.manifest import (
    MANIFEST_NAME,
    REJECTED_NAME,
    Manifest,
    ShardEntry,
    SplitSummary,
    from_json,
    index_names_of,
    read_manifest,
    spec_of,
)
from transforms.quantities import counted
from transforms.report.contents import MAX_PICTURES, Counts, Report, SplitReport
from transforms.report.index_sums import IndexSums, PickedRecord, pick_records
from transforms.report.make_pictures import (
    Pictures,
    Sample,
    first_notes,
    in_order,
    make_pictures,
    pictures_each,
)
from transforms.report.outlines import Legend
from transforms.storage import Access, Storage, join_uri, open_storage

if TYPE_CHECKING:
    import pyarrow as pa

_PIECE_BYTES = 1 << 20
_MAX_LINE_BYTES = 16 << 20  # a reject names all annotations of its sample


@dataclass(frozen=True)
class _Shard:
    """A shard, its place in its split, and the name of its index."""

    entry: ShardEntry
    place: int
    index_name: str


def make_report(root: str, access: Access, *, most: int = MAX_PICTURES) -> Report:
    """Return the report of a data set that has a manifest.

    Args:
        root: its path or URI.
        access: how its store is reached.
        most: pictures to show.

    Raises:
        RuntimeError: when the store fails, or the manifest is not one of ours.
    """
    storage = open_storage(root, access)
    manifest = read_manifest(storage.read(MANIFEST_NAME), join_uri(root, MANIFEST_NAME), "path")
    sums, notes = _add_up(storage, manifest)
    pictures = _pictures(storage, manifest, sums, most)
    rejects, wrong = _rejects(storage, manifest)
    return Report(
        title=posixpath.basename(root.rstrip("/")) or root,
        layout=manifest.layout,
        splits=[
            _split_report(name, split, sums[name])
            for name, split in sorted(manifest.splits.items())
        ],
        class_names={label.id: label.text or label.name for label in manifest.plan.labels},
        pictures=pictures.pictures,
        rejects=rejects,
        options=sorted(manifest.plan.options.items()),
        features=[(f.key, f.kind, f.num_values, f.doc) for f in manifest.features],
        sources=list(_sources(manifest)),
        versions=[("format of the data set", str(manifest.format_version)), *program_versions()],
        notes=[*notes, *wrong, *pictures.notes],
    )


def program_versions() -> list[tuple[str, str]]:
    """Return the versions of the programs that make reports and their pictures."""
    versions = []
    for name in ("beam-tfrec", "pillow"):
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:  # run from its sources
            continue
    return versions


def first_rejects(storage: Storage, codes: set[str]) -> list[Rejected]:
    """Return the first reject of each code, reading no further than the last of them.

    Raises:
        ValueError: when a line is not a reject.
        RuntimeError: when the store fails.
    """
    found: dict[str, Rejected] = {}
    if not codes:
        return []
    for line in _lines(storage):
        rejected = from_json(line, Rejected)
        found.setdefault(rejected.code, rejected)
        if codes <= found.keys():
            break
    return list(found.values())


def _lines(storage: Storage) -> Iterator[bytes]:
    file = storage.stat(REJECTED_NAME)
    if file is None or file.kind != "file":
        raise ValueError("it is not there")
    rest = b""
    for start in range(0, file.size_bytes, _PIECE_BYTES):
        end = min(start + _PIECE_BYTES, file.size_bytes)
        *lines, rest = (rest + storage.read(REJECTED_NAME, file, (start, end))).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE_BYTES:
            raise ValueError(f"a line has more than {_MAX_LINE_BYTES} bytes")
    if rest:
        yield rest


def _add_up(storage: Storage, manifest: Manifest) -> tuple[dict[str, IndexSums], list[str]]:
    """Return the sums of each split's indexes, and notes on what they lack."""
    sums = {name: IndexSums(name, split.shards) for name, split in manifest.splits.items()}
    notes = []
    shards, places = [], dict.fromkeys(sums, 0)
    for entry, (index, _) in zip(manifest.shards, index_names_of(manifest), strict=True):
        shards.append(_Shard(entry, places.setdefault(entry.split, 0), index))
        places[entry.split] += 1
    read = functools.partial(_read_index, storage)
    has_columns = True
    for shard, index in zip(shards, in_order(read, shards, storage.root), strict=True):
        if isinstance(index, str):
            notes.append(index)
        else:
            sums[shard.entry.split].add(shard.place, shard.entry.file, index)
            has_columns = has_columns and "objects" in index.column_names
    if not has_columns:
        notes.append(
            f"No charts of picture sizes and objects: format version {manifest.format_version} has"
            " no such columns in its indexes. Write the data set again to get them."
        )
    return sums, first_notes(notes)


def _read_index(storage: Storage, shard: _Shard) -> "pa.Table | str":
    """Return the columns of a shard's index, or a note on why they cannot be read."""
    from transforms.shard_index import report_columns_from_parquet  # pyarrow takes 0.2 s

    try:
        return report_columns_from_parquet(storage.read(shard.index_name))
    except ValueError as error:
        return f"not counted: {shard.entry.file}: {' '.join(str(error).split())}"
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None or not fault[0].startswith("E-SRC-"):
            raise
        return f"not counted: {shard.entry.file}: its index is not there"


def _pictures(
    storage: Storage, manifest: Manifest, sums: dict[str, IndexSums], most: int
) -> Pictures:
    roles = roles_of_spec(spec_of(manifest))
    stat = functools.cache(storage.stat)

    def sample(picked: PickedRecord) -> Sample:
        return Sample(picked, storage, stat(picked.file), roles)

    legend = Legend(
        {label.id: label.text or label.name for label in manifest.plan.labels},
        {label.annotated_id: label.id for label in manifest.plan.labels},
    )
    splits = [found for _, found in sorted(sums.items())]
    picked = pick_records(splits, most // pictures_each(roles))
    return make_pictures(list(map(sample, picked)), legend)


def _rejects(storage: Storage, manifest: Manifest) -> tuple[list[Rejected], list[str]]:
    splits = manifest.splits.values()
    codes = {code for split in splits for code in (*split.rejected, *split.annotations.dropped)}
    try:
        return first_rejects(storage, codes), []
    except ValueError as error:
        return [], [f"{REJECTED_NAME} cannot be read: {error}"]


def _split_report(name: str, split: SplitSummary, sums: IndexSums) -> SplitReport:
    return SplitReport(
        name=name,
        records=split.records,
        shards=split.shards,
        bytes=split.bytes,
        sums=_sample_sums(split),
        annotations=_annotation_sums(split),
        rejected=sorted(split.rejected.items()),
        dropped=sorted(split.annotations.dropped.items()),
        repairs=sorted(split.repairs.items()),
        traits=sorted(split.traits.items()),
        licenses=[(found.name or f"license {found.id}", found.records) for found in split.licenses],
        histograms=sums.histograms,
        class_records=sums.class_records,
        class_objects=sums.class_objects,
    )


def _sample_sums(split: SplitSummary) -> Counts:
    between = [
        ("excluded", split.excluded),
        ("in earlier data sets", split.earlier),
        *((f"skipped, {name}", count) for name, count in sorted(split.skipped.items())),
        ("rejected before planning", split.rejected_before_planning),
        ("rejected in shards", split.rejected_in_shards),
    ]
    return _steps(("listed", split.listed), between, ("records", split.records))


def _annotation_sums(split: SplitSummary) -> Counts:
    fate = split.annotations
    between = [
        ("excluded", fate.excluded),
        ("in earlier data sets", fate.earlier),
        *((f"skipped, {name}", count) for name, count in sorted(fate.skipped.items())),
        ("dropped", sum(fate.dropped.values())),
        ("lost with images", fate.lost),
    ]
    return _steps(("listed", fate.listed), between, ("written", fate.written))


def _steps(first: tuple[str, int], between: Counts, last: tuple[str, int]) -> Counts:
    """Return the steps that have a count; none if nothing was listed."""
    return [first, *(step for step in between if step[1]), last] if first[1] else []


def _sources(manifest: Manifest) -> Iterator[str]:
    """Yield where samples came from."""
    yield source_kind(manifest)
    for name, split in sorted(manifest.splits.items()):
        if split.images is not None:
            yield f"{name}: {counted(split.listed, 'object')} of {counted(split.images, 'image')}"
        elif not split.sources:  # the manifest names the files only if there are several
            yield f"{name}: {counted(split.listed, 'sample')}"
        for file in split.sources:
            yield (
                f"{name}: {file.kind}, {counted(file.images, 'image')},"
                f" {counted(file.annotations, 'annotation')}"
            )
