"""What the indexes of a data set add up to, and which records a report shows.

Counts are exact, and so are medians. Sample records are evenly spaced in a split; a class is
represented by its first records. Shards are shuffled, so this is a fair draw, and equal data sets
show equal pictures.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from transforms.report.charts import IMAGE_COLUMNS, OBJECTS, RECORD_BYTES
from transforms.report.contents import MAX_PICTURES

_MOST_OF_A_CLASS = 2
_MOST_CLASSES = 20_000  # that sample records are kept of
_SIZE_DIGITS = 10_000  # larger record sizes are rounded down to four digits: few distinct values

T = TypeVar("T")


class PickedRecord(NamedTuple):
    """A record to show.

    Attributes:
        split: of its shard.
        file: name of the shard.
        number: of the record in the shard, from 0.
        offset: of its frame in the shard, in bytes.
        size: of the frame, in bytes.
        key: of the record.
    """

    split: str
    file: str
    number: int
    offset: int
    size: int
    key: str


class IndexSums:
    """Sums over the indexes of a split.

    Attributes:
        records: number of records.
        histograms: number of records by value, by name of the column.
        class_records: records that hold a class, by label.
        class_objects: objects of a class, by label.
    """

    def __init__(self, split: str, shards: int) -> None:
        self.records = 0
        self.histograms: dict[str, Counter[int]] = {}
        self.class_records: Counter[int] = Counter()
        self.class_objects: Counter[int] = Counter()
        self._split = split
        self._shards = shards
        self._spaced: list[PickedRecord] = []
        self._of_classes: dict[int, list[PickedRecord]] = {}

    def add(
        self, place: int, file: str, index: pa.Table, numbers: Sequence[int] | None = None
    ) -> None:
        """Add a shard.

        Args:
            place: of the shard in its split, from 0.
            file: its name.
            index: its columns, as `report_columns_from_parquet` returns them.
            numbers: of the records; None for 0, 1, 2 and so on.
        """
        index = index.append_column("number", pa.array(numbers or range(index.num_rows)))
        self.records += index.num_rows
        sizes = index["size"].to_numpy()
        self._count(RECORD_BYTES, _rounded(sizes))
        for name in (*IMAGE_COLUMNS, OBJECTS):
            if name in index.column_names:
                values = index[name].to_numpy()  # floats, where some are missing
                self._count(name, values[~np.isnan(values)].astype(np.int64))
        for target in range(MAX_PICTURES):
            shard, part = divmod(target * self._shards, MAX_PICTURES)
            if shard == place and index.num_rows:
                self._spaced.append(
                    self._picked(file, index, part * index.num_rows // MAX_PICTURES)
                )
        self._add_classes(file, index)

    def spaced(self, most: int) -> list[PickedRecord]:
        """Return at most so many records of the split, evenly spaced."""
        return evenly_spaced(list(dict.fromkeys(self._spaced)), most)

    def of_class(self, label: int) -> list[PickedRecord]:
        """Return the first records of a class."""
        return self._of_classes.get(label, [])

    def _count(self, name: str, values: np.ndarray) -> None:
        # Not by pyarrow.compute: its import ends the process where memory is short.
        self.histograms.setdefault(name, Counter()).update(_counted(values))

    def _add_classes(self, file: str, index: pa.Table) -> None:
        column = index["labels"].combine_chunks()
        labels = column.flatten().to_numpy(zero_copy_only=False)
        records = np.repeat(
            np.arange(len(column)), np.diff(column.offsets.to_numpy(zero_copy_only=False))
        )
        self.class_objects.update(_counted(labels))
        order = np.lexsort((records, labels))
        labels, records = labels[order], records[order]
        is_first = np.ones(len(labels), bool)  # of its class in its record
        is_first[1:] = (labels[1:] != labels[:-1]) | (records[1:] != records[:-1])
        labels, records = labels[is_first], records[is_first]
        self.class_records.update(_counted(labels))
        found, starts = np.unique(labels, return_index=True)
        ends = np.append(starts, len(labels))[1:]
        for label, start, end in zip(found.tolist(), starts, ends, strict=True):
            if label in self._of_classes or len(self._of_classes) < _MOST_CLASSES:
                own = self._of_classes.setdefault(label, [])
                for number in records[start:end][: _MOST_OF_A_CLASS - len(own)].tolist():
                    own.append(self._picked(file, index, number))

    def _picked(self, file: str, index: pa.Table, row: int) -> PickedRecord:
        names = ("number", "offset", "size", "key")
        return PickedRecord(self._split, file, *(index[name][row].as_py() for name in names))


def pick_records(splits: Sequence[IndexSums], most: int) -> list[PickedRecord]:
    """Return the records to show: all of few, else a third for splits and the rest for classes.

    Classes that get one are evenly spaced from the most frequent to the rarest.
    """
    counts: Counter[int] = Counter()
    for sums in splits:
        counts.update(sums.class_records)
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
    units = np.ones_like(sizes)
    while (is_long := sizes // units >= _SIZE_DIGITS).any():
        units[is_long] *= 10
    return sizes // units * units
