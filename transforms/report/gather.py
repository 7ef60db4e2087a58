"""Gather the report of a data set from its manifest, indexes, rejects and sample records.

What is missing or damaged becomes a note. Counts and medians are exact. Sample records are evenly
spaced in a split; a class is represented by its first records. Shards are shuffled, so this is a
fair draw. There is no clock, so equal data sets in folders of one name have equal reports.
"""

import functools
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from typing import TypeVar

import numpy as np
import pyarrow as pa

from schemas.documents.data_card import source_kind
from schemas.faults import Rejected, counted, find_fault
from schemas.features import roles_of_spec
from schemas.manifest import (
    MANIFEST_NAME,
    REJECTED_NAME,
    Manifest,
    SplitSummary,
    from_json,
    index_names_of,
    read_manifest,
    spec_of,
)
from transforms.report import MAX_PICTURES, PickedRecord, Report, SplitReport
from transforms.report.charts import IMAGE_COLUMNS, OBJECTS, RECORD_BYTES
from transforms.report.pictures import (
    Drawn,
    Sample,
    first_notes,
    in_order,
    legend_of,
    make_pictures,
    pictures_each,
)
from transforms.shard_index import INDEX_SCHEMA, index_columns
from transforms.storage import Access, Storage, join_uri, open_storage

_MOST_OF_A_CLASS = 2
_MOST_CLASSES = 20_000  # that sample records are kept of
_SIZE_DIGITS = 4  # of record sizes in histograms
_REJECTS_BYTES = 16 << 20  # of the rejects that are searched for examples

T = TypeVar("T")


class IndexSums:
    """Sums over the indexes of a split.

    Attributes:
        records: number of records.
        report: what they add up to.
    """

    def __init__(self, split: str, summary: SplitSummary) -> None:
        self.records = 0
        self.report = SplitReport(split, summary)
        self._spaced: list[PickedRecord] = []
        self._of_classes: dict[int, list[PickedRecord]] = {}

    def add(
        self, place: int, file: str, index: pa.Table, numbers: Sequence[int] | None = None
    ) -> None:
        """Add a shard.

        Args:
            place: place of the shard in its split, from 0.
            file: its name.
            index: its columns, as `index_columns` returns them.
            numbers: numbers of the records; None for 0, 1, 2 and so on.
        """
        index = index.append_column("number", pa.array(numbers or range(index.num_rows)))
        self.records += index.num_rows
        self._count(RECORD_BYTES, _rounded(index["size"].to_numpy()))
        for name in {*IMAGE_COLUMNS, OBJECTS} & {*index.column_names}:
            values = index[name].to_numpy()  # floats, if some are missing
            self._count(name, values[~np.isnan(values)].astype(np.int64))
        for target in range(MAX_PICTURES):
            shard, part = divmod(target * self.report.summary.shards, MAX_PICTURES)
            if shard == place and index.num_rows:
                row = part * index.num_rows // MAX_PICTURES
                self._spaced.append(self._picked(file, index, row))
        self._add_classes(file, index)

    def spaced(self, most: int) -> list[PickedRecord]:
        """Return at most so many records of the split, evenly spaced."""
        return evenly_spaced(list(dict.fromkeys(self._spaced)), most)

    def of_class(self, label: int) -> list[PickedRecord]:
        """Return the first records of a class."""
        return self._of_classes.get(label, [])

    def _count(self, name: str, values: np.ndarray) -> None:
        # Not by pyarrow.compute: its import ends the process if memory is short.
        self.report.histograms.setdefault(name, Counter()).update(_counted(values))

    def _add_classes(self, file: str, index: pa.Table) -> None:
        column = index["labels"].combine_chunks()
        labels = column.flatten().to_numpy(zero_copy_only=False)
        lengths = np.diff(column.offsets.to_numpy(zero_copy_only=False))
        self.report.class_objects.update(_counted(labels))
        pairs = np.unique(np.stack([labels, np.repeat(np.arange(len(column)), lengths)]), axis=1)
        self.report.class_records.update(_counted(pairs[0]))
        found, starts = np.unique(pairs[0], return_index=True)
        for label, rows in zip(found.tolist(), np.split(pairs[1], starts[1:]), strict=False):
            if label in self._of_classes or len(self._of_classes) < _MOST_CLASSES:
                own = self._of_classes.setdefault(label, [])
                missing = rows[: _MOST_OF_A_CLASS - len(own)].tolist()
                own += (self._picked(file, index, row) for row in missing)

    def _picked(self, file: str, index: pa.Table, row: int) -> PickedRecord:
        names = ("number", "offset", "size", "key")
        return PickedRecord(self.report.name, file, *(index[name][row].as_py() for name in names))


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
    splits = manifest.splits.values()
    codes = {code for split in splits for code in (*split.rejected, *split.annotations.dropped)}
    rejects, wrong = first_rejects(storage, codes)
    return Report(
        title=posixpath.basename(root.rstrip("/")) or root,
        layout=manifest.layout,
        splits=[sums[name].report for name in sorted(sums)],
        class_names={label.id: label.text or label.name for label in manifest.plan.labels},
        pictures=pictures.pictures,
        rejects=rejects,
        options=sorted(manifest.plan.options.items()),
        features=[(f.key, f.kind.value, f.num_values, f.doc) for f in manifest.features],
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


def pick_records(splits: Sequence[IndexSums], most: int) -> list[PickedRecord]:
    """Return the records to show: all of few, else a third for splits and the rest for classes.

    Classes that get one are evenly spaced from the most frequent to the rarest.
    """
    counts: Counter[int] = Counter()
    for sums in splits:
        counts.update(sums.report.class_records)
    is_small = sum(sums.records for sums in splits) <= most
    of_splits = most // 3 if counts else most
    each = most if is_small else max(1, of_splits // len(splits))
    picked = dict.fromkeys(record for sums in splits for record in sums.spaced(each))
    for record in _for_classes(splits, counts, most - len(picked)):
        if len(picked) < most:
            picked[record] = None
    return list(picked)[:most]


def evenly_spaced(items: Sequence[T], most: int) -> list[T]:
    """Return at most so many items, the first and the last among them.

    >>> evenly_spaced("abcdefg", 3), evenly_spaced("ab", 3), evenly_spaced("ab", 1)
    (['a', 'd', 'g'], ['a', 'b'], ['a'])
    """
    if len(items) <= most or most < 2:
        return list(items[:most])
    return [items[place * (len(items) - 1) // (most - 1)] for place in range(most)]


def first_rejects(storage: Storage, codes: set[str]) -> tuple[list[Rejected], list[str]]:
    """Return the first reject of each code in the first part of the file, and notes on damage.

    Raises:
        RuntimeError: when the store fails.
    """
    file = storage.stat(REJECTED_NAME)
    if not codes or file is None or file.kind != "file":
        return [], [f"{REJECTED_NAME} is not there"] if codes else []
    end = min(file.size_bytes, _REJECTS_BYTES)
    lines = storage.read(REJECTED_NAME, file, (0, end)).splitlines()
    found: dict[str, Rejected] = {}
    try:
        for line in lines if end == file.size_bytes else lines[:-1]:
            rejected = from_json(line, Rejected)
            found.setdefault(rejected.code, rejected)
            if codes <= found.keys():
                break
    except ValueError as error:
        return [], [f"{REJECTED_NAME} cannot be read: {error}"]
    return list(found.values()), []


def _add_up(storage: Storage, manifest: Manifest) -> tuple[dict[str, IndexSums], list[str]]:
    """Return the sums of each split's indexes, and notes on what they lack."""
    sums = {name: IndexSums(name, split) for name, split in manifest.splits.items()}
    notes: list[str] = []
    names = [name for name, _ in index_names_of(manifest)]
    indexes = in_order(functools.partial(_read_index, storage), names, storage.root)
    has_columns, places = True, Counter[str]()
    for entry, index in zip(manifest.shards, indexes, strict=True):
        if isinstance(index, str):
            notes.append(f"not counted: {entry.file}: {index}")
        else:
            sums[entry.split].add(places[entry.split], entry.file, index)
            has_columns = has_columns and OBJECTS in index.column_names
        places[entry.split] += 1
    if not has_columns:
        notes.append(
            f"No charts of picture sizes and objects: format version {manifest.format_version} has"
            " no such columns in its indexes. Write the data set again to get them."
        )
    return sums, first_notes(notes)


def _read_index(storage: Storage, name: str) -> pa.Table | str:
    """Return the columns of an index, or why they cannot be read."""
    try:
        columns = [column for column in INDEX_SCHEMA.names if column != "sources"]
        return index_columns(storage.read(name), columns)
    except ValueError as error:
        return " ".join(str(error).split())
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None or not fault[0].startswith("E-SRC-"):
            raise
        return "its index is not there"


def _pictures(storage: Storage, manifest: Manifest, sums: dict[str, IndexSums], most: int) -> Drawn:
    roles = roles_of_spec(spec_of(manifest))
    stat = functools.cache(storage.stat)
    picked = pick_records([sums[name] for name in sorted(sums)], most // pictures_each(roles))
    samples = [Sample(record, storage, stat(record.file), roles) for record in picked]
    return make_pictures(samples, legend_of(manifest.plan.labels))


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


def _for_classes(
    splits: Sequence[IndexSums], counts: Mapping[int, int], most: int
) -> Iterator[PickedRecord]:
    """Yield a record of each chosen class, then the second of each."""
    ranked = sorted(counts, key=lambda label: (-counts[label], label))
    chosen = [
        [record for sums in splits for record in sums.of_class(label)][:_MOST_OF_A_CLASS]
        for label in evenly_spaced(ranked, most)
    ]
    for turn in zip_longest(*chosen):
        yield from (record for record in turn if record is not None)


def _counted(labels: np.ndarray) -> dict[int, int]:
    found, counts = np.unique(labels, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _rounded(sizes: np.ndarray) -> np.ndarray:
    """Round sizes down to four digits, so that a large data set has few distinct ones."""
    digits = np.log10(np.maximum(sizes, 1)).astype(np.int64) + 1
    units = 10 ** np.maximum(digits - _SIZE_DIGITS, 0)
    return sizes // units * units
