"""Gather the report of a data set from its manifest, indexes, rejects and sample records.

Missing and damaged parts become notes. If the store fails, there are no further pictures. Counts
and medians are exact. Sample records are evenly spaced in a split, with the first records of
classes. Shards are shuffled, so the samples are fair. Reports contain no time: equal data sets in
folders of the same name have equal reports.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from beam_tfrec import __version__
from beam_tfrec.schemas.documents.data_card import source_kind
from beam_tfrec.schemas.faults import Rejected, counted, find_fault
from beam_tfrec.schemas.features import Roles, roles_of_spec
from beam_tfrec.schemas.manifest import (
    MANIFEST_NAME,
    REJECTED_NAME,
    Manifest,
    SplitSummary,
    from_json,
    read_manifest,
)
from beam_tfrec.transforms.gate import usable_cores
from beam_tfrec.transforms.report import MAX_PICTURES, PickedRecord, Report, SplitReport
from beam_tfrec.transforms.report.charts import IMAGE_COLUMNS, OBJECTS, RECORD_BYTES
from beam_tfrec.transforms.report.pictures import (
    MAX_JPEG_BYTES,
    Drawn,
    Legend,
    draw_record,
    legend_of,
    pictures_each,
    where_is,
)
from beam_tfrec.transforms.shard_index import INDEX_SCHEMA, index_columns
from beam_tfrec.transforms.storage import Access, Entry, Storage, is_local, join_uri, open_storage
from beam_tfrec.transforms.walk_frames import read_record

_MOST_CLASSES = 20_000  # with a sample record
_MAX_REJECT_BYTES = 16 << 20
_SIZE_DIGITS = 4  # significant digits of record sizes in histograms

MAX_NOTES = 10
_REMOTE_READERS = 16
_AHEAD = 4  # tasks per thread

MAX_RECORD_BYTES = 64 << 20
"""Largest record that is read for a picture."""

T = TypeVar("T")
V = TypeVar("V")


class Sample(NamedTuple):
    """A record to show, with its file.

    Attributes:
        record: record to show, with the file's name in the report.
        storage: storage of the file.
        file: entry of the file; None if it is missing.
        roles: roles of the record's features.
    """

    record: PickedRecord
    storage: Storage
    file: Entry | None
    roles: Roles


class IndexSums:
    """Sums over the indexes of a split.

    Attributes:
        records: number of records.
        report: report of the split.
        spaced: evenly spaced records, as many as a report shows.
        firsts: first record of each class, by label.
    """

    def __init__(self, split: str, summary: SplitSummary) -> None:
        self.records = 0
        self.report = SplitReport(split, summary)
        self.spaced: list[PickedRecord] = []
        self.firsts: dict[int, PickedRecord] = {}

    def add(
        self, place: int, file: str, index: pa.Table, numbers: Sequence[int] | None = None
    ) -> None:
        """Add a shard.

        Args:
            place: number of the shard in its split, from 0.
            file: name of the shard.
            index: columns of the index, from `index_columns`.
            numbers: numbers of the records; None for 0, 1, 2 and so on.
        """
        index = index.append_column("number", pa.array(numbers or range(index.num_rows)))
        self.records += index.num_rows
        self._count(RECORD_BYTES, _rounded(index["size"].to_numpy()))
        for name in {*IMAGE_COLUMNS, OBJECTS} & {*index.column_names}:
            values = index[name].to_numpy()  # floats if some values are missing
            self._count(name, values[~np.isnan(values)].astype(np.int64))
        for target in range(MAX_PICTURES):
            shard, part = divmod(target * self.report.summary.shards, MAX_PICTURES)
            if shard == place and index.num_rows:
                row = part * index.num_rows // MAX_PICTURES
                self.spaced.append(self._picked(file, index, row))
        column = index["labels"].combine_chunks()
        labels = column.flatten().to_numpy(zero_copy_only=False)
        lengths = np.diff(column.offsets.to_numpy(zero_copy_only=False))
        self.report.class_objects.update(_counted(labels))
        pairs = np.unique(np.stack([labels, np.repeat(np.arange(len(column)), lengths)]), axis=1)
        self.report.class_records.update(_counted(pairs[0]))
        found, starts = np.unique(pairs[0], return_index=True)
        for label, row in zip(found.tolist(), pairs[1][starts].tolist(), strict=True):
            if label not in self.firsts and len(self.firsts) < _MOST_CLASSES:
                self.firsts[label] = self._picked(file, index, row)

    def _count(self, name: str, values: np.ndarray) -> None:
        # NumPy, since importing pyarrow.compute crashes the process when memory is short.
        self.report.histograms.setdefault(name, Counter()).update(_counted(values))

    def _picked(self, file: str, index: pa.Table, row: int) -> PickedRecord:
        names = ("number", "offset", "size", "key")
        return PickedRecord(self.report.name, file, *(index[name][row].as_py() for name in names))


def make_report(root: str, access: Access, *, most: int = MAX_PICTURES) -> Report:
    """Return the report of a data set that has a manifest.

    Args:
        root: path or URI of the data set.
        access: settings for reading from its store.
        most: largest number of pictures.

    Raises:
        RuntimeError: The store fails, or the manifest is of another program.
    """
    storage = open_storage(root, access)
    manifest = read_manifest(storage.read(MANIFEST_NAME), join_uri(root, MANIFEST_NAME), "path")
    sums, notes = _add_up(storage, manifest)
    pictures = _pictures(storage, manifest, sums, most)
    rejects, wrong = _first_rejects(storage)
    return Report(
        title=os.path.basename(os.path.abspath(root)) or root,  # also of `.` and of URIs
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
    """Return the versions of this program and of Pillow."""
    return [("beam-tfrec", __version__), ("pillow", version("pillow"))]


def pick_records(splits: Sequence[IndexSums], most: int) -> list[PickedRecord]:
    """Return the records to show: all if they are few, else evenly spaced ones and one per class.

    At least a third is evenly spaced. The rest are first records of classes. If there are too many
    classes, they are evenly spaced from the most frequent to the rarest.
    """
    counts: Counter[int] = Counter()
    firsts: dict[int, PickedRecord] = {}
    for sums in splits:
        counts.update(sums.report.class_records)
        firsts = sums.firsts | firsts
    each = max(most // 3, most - len(counts)) // len(splits) or 1
    if sum(sums.records for sums in splits) <= most:
        each = most
    picked = dict.fromkeys(
        record
        for sums in splits
        for record in evenly_spaced(list(dict.fromkeys(sums.spaced)), each)
    )
    ranked = sorted(firsts, key=lambda label: (-counts[label], label))
    picked |= {firsts[label]: None for label in evenly_spaced(ranked, most - len(picked))}
    return list(picked)[:most]


def evenly_spaced(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, with the first and the last.

    >>> evenly_spaced("abcdefg", 3), evenly_spaced("ab", 3), evenly_spaced("ab", 1)
    (['a', 'd', 'g'], ['a', 'b'], ['a'])
    """
    if len(items) <= most or most < 2:
        return list(items[:most])
    return [items[place * (len(items) - 1) // (most - 1)] for place in range(most)]


def make_pictures(samples: Sequence[Sample], legend: Legend) -> Drawn:
    """Return the pictures of records in their order; stop if a store fails."""
    made = Drawn([], [])
    if not samples:
        return made
    most_bytes = MAX_JPEG_BYTES // sum(pictures_each(sample.roles) for sample in samples)

    def draw(sample: Sample) -> Drawn:
        record = sample.record
        try:
            if record.size > MAX_RECORD_BYTES:
                raise ValueError(f"its {record.size} bytes are too many")
            data = read_record(sample.storage, sample.file, record.offset, record.size)
        except ValueError as error:
            return Drawn([], [f"{where_is(record)} is not shown: {error}"])
        return draw_record(data, record, sample.roles, legend, most_bytes)

    try:
        for drawn in in_order(draw, samples, samples[0].storage.root):
            made.pictures.extend(drawn.pictures)
            made.notes.extend(drawn.notes)
    except RuntimeError as error:
        fault = find_fault(str(error))
        if fault is None:
            raise
        made.notes.append(f"pictures are missing: {fault[1]}")
    return Drawn(made.pictures, first_notes(made.notes))


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the first notes, and a line with the number of further ones."""
    more = len(notes) - MAX_NOTES
    return [*notes[:MAX_NOTES], *([f"and {more} more notes like these"] if more > 0 else [])]


def in_order(work: Callable[[T], V], items: Sequence[T], root: str) -> Iterator[V]:
    """Yield the results of parallel work in the order of items; only a few are held in memory."""
    threads = max(usable_cores(), 1 if is_local(root) else _REMOTE_READERS)
    at_once = _AHEAD * threads
    with ThreadPoolExecutor(threads, "report") as pool:
        for start in range(0, len(items), at_once):
            yield from pool.map(work, items[start : start + at_once])


def _add_up(storage: Storage, manifest: Manifest) -> tuple[dict[str, IndexSums], list[str]]:
    """Return the sums of each split's indexes, and notes on missing parts."""
    sums = {name: IndexSums(name, split) for name, split in manifest.splits.items()}
    notes: list[str] = []
    names = [entry.index_names[0] for entry in manifest.shards]
    indexes = in_order(functools.partial(_read_index, storage), names, storage.root)
    places = Counter[str]()
    for entry, index in zip(manifest.shards, indexes, strict=True):
        if isinstance(index, str):
            notes.append(f"not counted: {entry.file}: {index}")
        else:
            sums[entry.split].add(places[entry.split], entry.file, index)
        places[entry.split] += 1
    if not manifest.has_sums:  # such indexes also lack these columns
        version = f"format version {manifest.format_version} has no such columns"
        notes.append(f"no charts of picture sizes and objects: {version}")
    return sums, first_notes(notes)


def _read_index(storage: Storage, name: str) -> pa.Table | str:
    """Return the columns of an index, or the reason why it cannot be read."""
    try:
        columns = [column for column in INDEX_SCHEMA.names if column not in ("sources", "crc32c")]
        if storage.stat(name) is None:
            raise ValueError(f"{name} is missing")
        return index_columns(storage.read(name), columns)
    except ValueError as error:
        return " ".join(str(error).split())


def _first_rejects(storage: Storage) -> tuple[list[Rejected], list[str]]:
    """Return the first reject of each code, and notes on damage."""
    found: dict[str, Rejected] = {}
    try:
        file = storage.stat(REJECTED_NAME)
        if file is None:
            raise ValueError(f"{REJECTED_NAME} is missing")
        data = storage.read(REJECTED_NAME, file, (0, min(file.size_bytes, _MAX_REJECT_BYTES)))
        for line in data[: data.rfind(b"\n") + 1].splitlines():  # the last line may be cut off
            rejected = from_json(line, Rejected)
            found.setdefault(rejected.code, rejected)
    except ValueError as error:
        return [], [f"no examples of rejects: {error}"]
    return list(found.values()), []


def _pictures(storage: Storage, manifest: Manifest, sums: dict[str, IndexSums], most: int) -> Drawn:
    roles = roles_of_spec(manifest.spec)
    stat = functools.cache(storage.stat)
    picked = pick_records([sums[name] for name in sorted(sums)], most // pictures_each(roles))
    samples = [Sample(record, storage, stat(record.file), roles) for record in picked]
    return make_pictures(samples, legend_of(manifest.plan.labels))


def _sources(manifest: Manifest) -> Iterator[str]:
    """Yield a line on the kind of sources, and lines on the sources of each split."""
    yield from filter(None, [source_kind(manifest)])
    for name, split in sorted(manifest.splits.items()):
        images = "" if split.images is None else f" of {counted(split.images, 'image')}"
        yield f"{name}: {counted(split.listed, 'sample')}{images}"
        for file in split.sources:  # listed only if there are several
            counts = f"{counted(file.images, 'image')}, {counted(file.annotations, 'annotation')}"
            yield f"{name}: {file.kind}, {counts}"


def _counted(labels: np.ndarray) -> dict[int, int]:
    found, counts = np.unique(labels, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _rounded(sizes: np.ndarray) -> np.ndarray:
    """Round sizes down to four digits, so that histograms stay small."""
    digits = np.log10(np.maximum(sizes, 1)).astype(np.int64) + 1
    units = 10 ** np.maximum(digits - _SIZE_DIGITS, 0)
    return sizes // units * units
