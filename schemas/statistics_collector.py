"""Collect a shard's statistics, a record at a time: the same from what is written and what is read.

Only what stands in a record counts, floats as float32, so that who reads a shard finds what its
writer found. Memory is bounded, whatever records hold.
"""

import array
import bisect
import functools
import hashlib
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from schemas.feature_roles import BoxForm, ObjectRoles, Roles, corners_of
from schemas.features import Kind
from schemas.shown_values import tensor_shape
from schemas.statistics import (
    ASPECT_BINS_PER_OCTAVE,
    EXACT_OBJECTS,
    MAX_CLASSES,
    MAX_SHARD_SAMPLES,
    NO_STATISTICS,
    SAMPLES_PER_CLASS,
    SAMPLES_PER_SPLIT,
    SIZE_BINS_PER_OCTAVE,
    SPLIT_LABEL,
    SampledRecord,
    Statistics,
    count_bin,
    draw_samples,
    expected_runs,
    leave_out_classes,
    log_bin,
    share_bin,
    whole_bin,
)

TENSOR_FORMAT, RAW_FORMAT = "tensor", "raw"
"""Formats of pictures that are no image files."""

_DRAWN_AT_ONCE = 4 * MAX_SHARD_SAMPLES  # drawn records of classes, before most are let go
_COUNTED_AT_ONCE = 512
_BOXES_AT_ONCE = 4096
_MAX_HASHES = 4096
_FLOAT, _INT64 = Kind.FLOAT, Kind.INT64  # an Enum's members are slow to find
_LARGEST = b"\xff" * 8
_PERSON = b"tfrec-report"
_PICTURE_RANKS = (2, 3)
_NOTHING: tuple[Kind | None, Sequence] = (None, ())

RecordValues = Mapping[str, tuple[Kind | None, Sequence]]
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
        odd_records: records whose boxes lack edges or numbers; none of their boxes counts.
    """

    def __init__(self, split: str, roles: Roles) -> None:
        self.odd_records = 0
        self.roles = roles
        self._objects_of = roles.objects[0] if roles.objects else None
        self._records = 0
        self._formats = _Tally()
        self._widths = _Tally()
        self._heights = _Tally()
        self._aspects = _Tally()
        self._bytes = _Tally()
        self._objects = _Tally()
        self._sides = _Sides()
        self._class_records = _Tally()
        self._class_objects = _Tally()
        self._runs = _Runs()
        self._drawing = _Drawing(split)

    @property
    def odd_boxes(self) -> int:
        """Boxes without an area, or with an edge that is no finite number."""
        self._sides.count()
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
        number = self._records
        self._records = number + 1
        if not pictures and self.roles.pixels:
            pictures = self._plain_pictures(values)
        for picture in pictures:
            self._add_picture(picture)
        if self._objects_of is not None:
            size_px = pictures[0][1:3] if pictures else (0, 0)
            labels = self._add_objects(self._objects_of, values, labels, size_px)
        else:
            labels = _labels(values, self.roles.class_label, labels)
        classes = set(labels)
        self._class_records.pending += classes
        self._runs.pending.append(labels[0] if labels else None)
        self._drawing.add(classes, number, place)
        if self._records % _COUNTED_AT_ONCE == 0 or len(labels) >= _COUNTED_AT_ONCE:
            self._count()

    def statistics(self) -> Statistics:
        """Return those of all records that were added."""
        if not self._records:
            return NO_STATISTICS
        self._count()
        runs, expected = self._runs.counted()
        return Statistics(
            records=self._records,
            formats=self._formats.counted(),
            widths_px=self._widths.counted(),
            heights_px=self._heights.counted(),
            aspects=self._aspects.counted(),
            image_bytes=self._bytes.counted(),
            objects=self._objects.counted(),
            box_sides=self._sides.counted(),
            class_records=self._class_records.counted(),
            class_objects=self._class_objects.counted(),
            runs=runs,
            expected_runs=expected,
            samples=self._drawing.drawn(),
            unlisted_class_records=self._class_records.left_out,
            unlisted_class_objects=self._class_objects.left_out,
        )

    def _count(self) -> None:
        """Count what was gathered."""
        for tally in (self._formats, self._widths, self._heights, self._aspects, self._bytes):
            tally.count()
        for tally in (self._objects, self._class_records, self._class_objects):
            tally.count()
        self._sides.count()
        self._runs.count()

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

    def _add_picture(self, picture: StoredPicture) -> None:
        format, width_px, height_px, size_bytes = picture
        width, height, aspect = _size_bins(width_px, height_px)
        self._formats.pending.append(format)
        self._widths.pending.append(width)
        self._heights.pending.append(height)
        self._aspects.pending.append(aspect)
        self._bytes.pending.append(whole_bin(size_bytes, SIZE_BINS_PER_OCTAVE))

    def _add_objects(
        self,
        objects: ObjectRoles,
        values: RecordValues,
        labels: Sequence[int],
        size_px: tuple[int, int],
    ) -> list[int]:
        """Add a record's objects and return their labels."""
        labels = _labels(values, objects.labels, labels)
        try:
            boxes = self._sides.add(objects, values, size_px)
        except ValueError:
            self.odd_records += 1
            boxes = 0
        count = boxes if boxes >= len(labels) else len(labels)
        self._objects.pending.append(count if count <= EXACT_OBJECTS else count_bin(count))
        self._class_objects.pending += labels
        return labels


def _values(values: RecordValues, key: str, kind: Kind) -> Sequence:
    found, held = values.get(key, _NOTHING)
    return held if found is kind else ()


def _labels(values: RecordValues, key: str, others: Sequence[int]) -> list[int]:
    return _ints(values, key) if key else list(map(int, others))


def _ints(values: RecordValues, key: str) -> list[int]:
    kind, held = values.get(key, _NOTHING)
    return list(map(int, held)) if kind is _INT64 else []


@functools.lru_cache(maxsize=4096)
def _size_bins(width_px: int, height_px: int) -> tuple[int, int, int]:
    width, height = (whole_bin(side, SIZE_BINS_PER_OCTAVE) for side in (width_px, height_px))
    return width, height, log_bin(width_px / height_px, ASPECT_BINS_PER_OCTAVE)


class _Tally:
    """Counts by what is counted; of classes those of the smallest labels stay.

    Attributes:
        pending: to be counted.
        left_out: of classes that did not stay.
    """

    def __init__(self) -> None:
        self.pending: list = []
        self.left_out = 0
        self._counts: Counter = Counter()

    def count(self) -> None:
        """Count what is pending."""
        self._counts.update(self.pending)
        self.pending.clear()
        if len(self._counts) > 2 * MAX_CLASSES:
            self.left_out += leave_out_classes(self._counts)

    def counted(self) -> dict:
        """Return the counts in order."""
        self.left_out += leave_out_classes(self._counts)
        return dict(sorted(self._counts.items()))


class _Sides:
    """Sides of boxes; see `Statistics.box_sides`.

    Attributes:
        odd: boxes without an area, or with an edge that is no finite number.
    """

    def __init__(self) -> None:
        self.odd = 0
        self._edges: tuple[list[float], ...] = ([], [], [], [])
        self._exponents: Counter[int] = Counter()

    def add(self, objects: ObjectRoles, values: RecordValues, size_px: tuple[int, int]) -> int:
        """Add a record's boxes and return how many there are.

        Raises:
            ValueError: when edges or numbers are missing.
        """
        left, top, right, bottom = self._edges
        if objects.form is BoxForm.EDGES:
            found = [values.get(key, _NOTHING) for key in objects.boxes]
            lefts, tops, rights, bottoms = [held if k is _FLOAT else () for k, held in found]
            count = len(lefts)
            if not count == len(tops) == len(rights) == len(bottoms):
                raise ValueError("boxes have some edges more often than others")
            left.extend(lefts)  # `+=` of a list and an array of NumPy would be a sum
            top.extend(tops)
            right.extend(rights)
            bottom.extend(bottoms)
        else:
            numbers = array.array("f", iter(_values(values, objects.boxes[0], Kind.FLOAT)))
            count = len(numbers) // 4
            if objects.form is BoxForm.XYWH_PX and not all(size_px) and count:
                return count  # of a picture whose size nobody knows
            for corners in corners_of(objects, lambda _: numbers, size_px):
                for gathered, edge in zip(self._edges, corners, strict=True):
                    gathered.append(edge)
        if len(left) >= _BOXES_AT_ONCE:
            self.count()
        return count

    def count(self) -> None:
        """Count what was gathered."""
        corners = zip(*(array.array("f", edge) for edge in self._edges), strict=True)
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


class _Drawing:
    """Records of the smallest digests, for their split and for each of their classes."""

    def __init__(self, split: str) -> None:
        self._split = split
        self._begun: dict[int, tuple[Callable[[], hashlib.blake2b], bytes]] = {}
        self._drawn: dict[int, list[SampledRecord]] = {}
        self._held = 0

    def add(self, classes: Iterable[int], number: int, place: tuple[int, int, str]) -> None:
        """Draw a record, or do not."""
        key = place[2].encode("utf-8", "surrogatepass")
        begun = self._begun
        for label in (SPLIT_LABEL, *classes):
            copy, last = begun.get(label) or self._begin(label)
            hashed = copy()
            hashed.update(key)
            digest = hashed.digest()
            if digest <= last:
                drawn = int.from_bytes(digest, "big") >> 1
                self._draw(SampledRecord(drawn, label, number, *place))

    def drawn(self) -> list[SampledRecord]:
        """Return the records that were drawn, by label and digest."""
        drawn = (sample for samples in self._drawn.values() for sample in samples)
        return draw_samples(drawn, MAX_SHARD_SAMPLES)

    def _draw(self, sample: SampledRecord) -> None:
        label = sample.label
        most = SAMPLES_PER_SPLIT if label == SPLIT_LABEL else SAMPLES_PER_CLASS
        drawn = self._drawn.setdefault(label, [])
        bisect.insort(drawn, sample)
        self._held += 1
        if len(drawn) > most:
            self._held -= 1
            del drawn[most:]
        if len(drawn) == most:
            last = (drawn[-1].digest << 1 | 1).to_bytes(8, "big")
            self._begun[label] = self._begun[label][0], last
        if self._held > _DRAWN_AT_ONCE:
            self._let_go()

    def _let_go(self) -> None:
        """Keep what can still be drawn, which is what is drawn of those that came."""
        drawn = self.drawn()
        self._drawn, self._begun, self._held = {}, {}, len(drawn)
        for sample in drawn:
            self._drawn.setdefault(sample.label, []).append(sample)

    def _begin(self, label: int) -> tuple[Callable[[], hashlib.blake2b], bytes]:
        """Return what hashes keys for a label, and the largest digest that is drawn still."""
        if len(self._begun) >= _MAX_HASHES:
            self._begun.clear()
        text = f"{self._split}\0{label}\0".encode()
        begun = hashlib.blake2b(text, digest_size=8, person=_PERSON).copy, _LARGEST
        self._begun[label] = begun
        return begun
