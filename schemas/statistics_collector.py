"""Collect a shard's statistics, a record at a time: the same from what is written and what is read.

Only what stands in a record counts, floats as float32, so that who reads a shard finds what its
writer found. Memory is bounded, whatever records hold.
"""

import functools
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from schemas.drawn_records import Drawing
from schemas.example import as_float32
from schemas.feature_roles import BoxForm, ObjectRoles, Roles, corners_of
from schemas.features import Kind
from schemas.shown_values import tensor_shape
from schemas.statistics import (
    ASPECT_BINS_PER_OCTAVE,
    EXACT_OBJECTS,
    MAX_CLASSES,
    NO_STATISTICS,
    SIZE_BINS_PER_OCTAVE,
    Statistics,
    count_bin,
    expected_runs,
    leave_out_classes,
    log_bin,
    share_bin,
    whole_bin,
)

TENSOR_FORMAT, RAW_FORMAT = "tensor", "raw"
"""Formats of pictures that are no image files."""

_COUNTED_AT_ONCE = 512
_BOXES_AT_ONCE = 4096
_CLASS_TABLES = ("class_records", "class_objects")
_COUNTED = (
    *("formats", "widths_px", "heights_px", "aspects", "image_bytes", "objects"),
    *_CLASS_TABLES,
)
_EDGES, _XYWH_PX = BoxForm.EDGES, BoxForm.XYWH_PX
_FLOAT, _INT64 = Kind.FLOAT, Kind.INT64  # an Enum's members are slow to find
_PICTURE_RANKS = (2, 3)

Held = tuple[Kind | None, Sequence]
"""A feature's kind and values."""

_NOTHING: Held = (None, ())

RecordValues = Mapping[str, Held]
"""Per feature its kind and values, as they are encoded or parsed."""


class StoredPicture(NamedTuple):
    """A picture in a record.

    Attributes:
        format: as in `Statistics.formats`.
        width_px: as stored, at least 1.
        height_px: likewise.
        bytes: of its value.
    """

    format: str
    width_px: int
    height_px: int
    bytes: int


class StatisticsCollector:
    """A shard's statistics while its records are added, in their order.

    What is counted is gathered for some hundred records and then counted in one go, for half of
    what it takes one by one.

    Attributes:
        roles: of the records' features.
    """

    def __init__(self, split: str, roles: Roles) -> None:
        self._odd_records = 0
        self.roles = roles
        self._objects_of = roles.objects[0] if roles.objects else None
        objects = self._objects_of
        self._keys = (roles.class_label,) if objects is None else (objects.labels, *objects.boxes)
        self._pending: list[tuple] = []  # some hundred records, so that the work on them is hot
        self._records = 0
        self._pictures: list[StoredPicture] = []
        self._objects: list[int] = []
        self._object_labels: list[int] = []
        self._record_labels: list[int] = []
        self._counts: dict[str, Counter] = {name: Counter() for name in _COUNTED}
        self._left_out = dict.fromkeys(_CLASS_TABLES, 0)
        self._sides = _Sides()
        self._runs = _Runs()
        self._drawing = Drawing(split)

    @property
    def odd_records(self) -> int:
        """Records whose boxes lack edges or numbers; none of their boxes counts."""
        self._count()
        return self._odd_records

    @property
    def odd_boxes(self) -> int:
        """Boxes without an area, or with an edge that is no finite number."""
        self._count()
        return self._sides.odd

    def add(
        self,
        values: RecordValues,
        pictures: Sequence[StoredPicture],
        labels: Sequence[int],
        place: tuple[int, int, str],
    ) -> None:
        """Add a record.

        Args:
            values: of its features.
            pictures: its image files.
            labels: its classes, by which it is counted where its features hold no class ids.
            place: offset and size of its frame in bytes, and its key.
        """
        if not pictures and self.roles.pixels:
            pictures = self._plain_pictures(values)
        found = [values.get(key, _NOTHING) for key in self._keys]
        self._pending.append((found, pictures, labels, place))
        is_large = max([len(held) for _, held in found]) >= _COUNTED_AT_ONCE
        if is_large or len(self._pending) >= _COUNTED_AT_ONCE:
            self._count()

    def _gather(
        self,
        found: Sequence[Held],
        pictures: Sequence[StoredPicture],
        labels: Sequence[int],
        place: tuple[int, int, str],
    ) -> None:
        """Gather what is to be counted of a record, of which `found` has the values of `_keys`."""
        number = self._records
        self._records = number + 1
        self._pictures += pictures
        label_kind, label_ids = found[0]
        if self._keys[0]:
            labels = label_ids if label_kind is _INT64 else ()
        if (objects := self._objects_of) is not None:
            self._add_objects(objects, found[1:], len(labels), pictures)
            self._object_labels.extend(labels)
        classes = set(labels)
        self._record_labels.extend(classes)
        self._runs.pending.append(labels[0] if len(labels) else None)
        self._drawing.add(classes, number, place)

    def statistics(self) -> Statistics:
        """Return those of all records that were added."""
        self._count()
        if not self._records:
            return NO_STATISTICS
        runs, expected = self._runs.counted()
        for name in _CLASS_TABLES:
            self._leave_out_classes(name)
        counts: dict[str, Any] = {
            name: dict(sorted(counts.items())) for name, counts in self._counts.items()
        }
        for name in _CLASS_TABLES:  # which a layout may give as numbers of NumPy
            counts[name] = {int(label): count for label, count in counts[name].items()}
        return Statistics(
            records=self._records,
            **counts,
            box_sides=self._sides.counted(),
            runs=runs,
            expected_runs=expected,
            samples=self._drawing.drawn(),
            unlisted_class_records=self._left_out["class_records"],
            unlisted_class_objects=self._left_out["class_objects"],
        )

    def _count(self) -> None:
        """Count the records that were added since."""
        for record in self._pending:
            self._gather(*record)
        self._pending.clear()
        counts = self._counts
        if self._pictures:
            formats, widths_px, heights_px, image_bytes = zip(*self._pictures, strict=True)
            sizes = map(_size_bins, widths_px, heights_px)
            widths, heights, aspects = zip(*sizes, strict=True)
            counts["formats"].update(formats)
            counts["image_bytes"].update(whole_bin(n, SIZE_BINS_PER_OCTAVE) for n in image_bytes)
            counts["widths_px"].update(widths)
            counts["heights_px"].update(heights)
            counts["aspects"].update(aspects)
        counts["objects"].update(self._objects)
        counts["class_records"].update(self._record_labels)
        counts["class_objects"].update(self._object_labels)
        for gathered in (self._pictures, self._objects, self._record_labels, self._object_labels):
            gathered.clear()
        for name in _CLASS_TABLES:
            if len(counts[name]) > 2 * MAX_CLASSES:
                self._leave_out_classes(name)
        self._sides.count()
        self._runs.count()

    def _leave_out_classes(self, name: str) -> None:
        self._left_out[name] += leave_out_classes(self._counts[name])

    def _plain_pictures(self, values: RecordValues) -> list[StoredPicture]:
        """Return a record's pictures that are no image files."""
        found = []
        for key in self.roles.pixels:
            for value in _values(values, key, Kind.BYTES)[:1]:
                shape, format = tensor_shape(value), TENSOR_FORMAT
                if shape is None:
                    sizes = (_ints(values, key) for key in (self.roles.height, self.roles.width))
                    shape, format = tuple(sum(size[:1]) for size in sizes), RAW_FORMAT
                height, width = shape[:2] if len(shape) in _PICTURE_RANKS else (0, 0)
                if value and width > 0 and height > 0:
                    found.append(StoredPicture(format, width, height, len(value)))
        return found

    def _add_objects(
        self,
        objects: ObjectRoles,
        found: Sequence[Held],
        labels: int,
        pictures: Sequence[StoredPicture],
    ) -> None:
        """Add a record's boxes, and how many objects it has, by these or by their labels."""
        try:
            boxes = self._sides.add(objects, found, pictures)
        except ValueError:
            self._odd_records += 1
            boxes = 0
        count = boxes if boxes >= labels else labels
        self._objects.append(count if count <= EXACT_OBJECTS else count_bin(count))


def _values(values: RecordValues, key: str, kind: Kind) -> Sequence:
    found, held = values.get(key, _NOTHING)
    return held if found is kind else ()


def _ints(values: RecordValues, key: str) -> list[int]:
    kind, held = values.get(key, _NOTHING)
    return list(map(int, held)) if kind is _INT64 else []


@functools.lru_cache(maxsize=4096)
def _size_bins(width_px: int, height_px: int) -> tuple[int, int, int]:
    width, height = (whole_bin(side, SIZE_BINS_PER_OCTAVE) for side in (width_px, height_px))
    return width, height, log_bin(width_px / height_px, ASPECT_BINS_PER_OCTAVE)


class _Sides:
    """Sides of boxes; see `Statistics.box_sides`.

    Attributes:
        odd: boxes without an area, or with an edge that is no finite number.
    """

    def __init__(self) -> None:
        self.odd = 0
        self._edges: tuple[list[float], ...] = ([], [], [], [])
        self._exponents: Counter[int] = Counter()

    def add(
        self, objects: ObjectRoles, found: Sequence[Held], pictures: Sequence[StoredPicture]
    ) -> int:
        """Add a record's boxes, of which `found` has the values, and return how many there are.

        Raises:
            ValueError: when edges or numbers are missing.
        """
        left, top, right, bottom = self._edges
        if objects.form is _EDGES:
            lefts, tops, rights, bottoms = [held if k is _FLOAT else () for k, held in found]
            count = len(lefts)
            if not count == len(tops) == len(rights) == len(bottoms):
                raise ValueError("boxes have some edges more often than others")
            left.extend(lefts)  # `+=` of a list and an array of NumPy would be a sum
            top.extend(tops)
            right.extend(rights)
            bottom.extend(bottoms)
        else:
            kind, held = found[0]
            numbers = as_float32(held if kind is _FLOAT else ())
            count = len(numbers) // 4
            if objects.form is _XYWH_PX and not pictures and count:
                return count  # of a picture whose size nobody knows
            size_px = pictures[0][1:3] if pictures else (0, 0)
            for corners in corners_of(objects, lambda _: numbers, size_px):
                for gathered, edge in zip(self._edges, corners, strict=True):
                    gathered.append(edge)
        if len(left) >= _BOXES_AT_ONCE:
            self.count()
        return count

    def count(self) -> None:
        """Count what was gathered."""
        corners = zip(*map(as_float32, self._edges), strict=True)
        frexp, largest = math.frexp, math.inf
        exponents = [
            frexp(share)[1]
            for left, top, right, bottom in corners
            if (width := right - left) > 0.0 and 0.0 < (share := width * (bottom - top)) < largest
        ]
        self.odd += len(self._edges[0]) - len(exponents)
        self._exponents.update(exponents)
        for edge in self._edges:
            edge.clear()

    def counted(self) -> dict[int, int]:
        """Return boxes by bin."""
        bins: Counter[int] = Counter()
        for exponent, count in self._exponents.items():
            bins[share_bin(math.ldexp(0.5, exponent))] += count
        return dict(sorted(bins.items()))


class _Runs:
    """Runs of neighbours of one class.

    Where there are more than `MAX_CLASSES`, each record of a class that came later counts as of a
    class of its own in what a shuffle would have; for so many that is nearly so.

    Attributes:
        pending: leading classes of records that were not counted yet, None for none.
    """

    def __init__(self) -> None:
        self.pending: list[int | None] = []
        self._runs = 0
        self._last: int | None = None
        self._counts: Counter[int | None] = Counter()
        self._others = 0

    def count(self) -> None:
        """Count what is pending."""
        if not self.pending:
            return
        self._runs += self._runs == 0 or self.pending[0] != self._last
        self._runs += sum(map(operator.ne, self.pending, self.pending[1:]))
        self._last = self.pending[-1]
        self._counts.update(self.pending)
        self.pending.clear()
        if len(self._counts) > MAX_CLASSES:
            latest = list(self._counts)[MAX_CLASSES:]
            self._others += sum(self._counts.pop(label) for label in latest)

    def counted(self) -> tuple[int, float]:
        """Return how many there are, and would be in a shuffle; 0 where no record has a class."""
        if self._counts.keys() <= {None}:
            return 0, 0.0
        return self._runs, expected_runs([*self._counts.values()], self._others)
