"""What a report tells of records: counts and histograms of bounded size, which add up.

A shard's are in its receipt, so that a data set's are a sum over receipts. Numbers are whole but
`expected_runs`, so that equal shards have equal bytes. Bins are of equal width in octaves: a bin
of `per_octave` holds the values from `2 ** (bin / per_octave)` up to the next one's first.

Adding up is associative and commutative, whatever is left out: what stays is decided by a value's
own rank among all (the smallest labels, the smallest digests), and so it stays in every part.
"""

import bisect
import functools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

SIZE_BINS_PER_OCTAVE = 2
"""Of `sides_px`, `image_bytes` and `box_sides`."""

ASPECT_BINS_PER_OCTAVE = 4

MAX_CLASSES = 65_536
"""Of a table of classes: those of the smallest labels. The others' counts are one number."""

SPLIT_LABEL = -1
"""The label of what was drawn for its split."""

SAMPLES_PER_SPLIT = 24
SAMPLES_PER_CLASS = 4
MAX_SHARD_SAMPLES = 256
"""Of a shard, for its split and its classes together."""

MAX_SAMPLES = 4096
"""Of several shards together."""

EXACT_OBJECTS = 16
"""Numbers of objects up to it have a bin each."""

_ADDED_AT_ONCE = 64  # parts of a sum
_MANTISSA_BITS = 52

Count = Annotated[int, msgspec.Meta(ge=0)]
Bin = Annotated[int, msgspec.Meta(ge=-4096, le=4096)]  # no receipt leads beyond a float's octaves
Histogram = dict[Bin, Count]
"""Count by bin."""


class SampledRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record that was drawn to be shown: those of the smallest digests are.

    Attributes:
        digest: of its split, key and label, by which it was drawn; 0 to 2^63 - 1.
        label: the class that it stands for; -1 for its split.
        number: of the record in its shard, from 0.
        offset: of its frame in the shard's file, in bytes.
        size: of the frame.
        key: of the record.
    """

    digest: int
    label: int
    number: Count
    offset: Count
    size: Count
    key: str


SampleTuple = tuple[int, int, int, int, int, str]
"""The values of a `SampledRecord`."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What records hold.

    Attributes:
        records: how many there are.
        formats: pictures by format: `jpeg`, `png`, `gif`, `bmp`, of a serialized tensor `tensor`,
            of plain values `raw`.
        widths_px: pictures by width, as stored in the record.
        heights_px: likewise.
        aspects: pictures by width / height, of `ASPECT_BINS_PER_OCTAVE`; may be below 0.
        image_bytes: pictures by their encoded bytes.
        objects: records by objects that they hold; the number itself to 16, beyond it rounded down
            to the next power of two.
        box_sides: objects by the square root of their box's share of the picture, a bin of 0 being
            the whole picture's and all others below. Of those alone whose boxes have an area.
        class_records: records that hold a class, by label id; see `MAX_CLASSES`.
        class_objects: objects of a class, by label id; empty where records have no objects.
        runs: of neighbours of the same leading class, over all shards; 0 where records have none.
            A record's leading class is its first; one without any is as of a class of its own.
        expected_runs: of a uniform shuffle of the same shards, rounded to a thousandth.
        samples: drawn records, by label and digest.
        unlisted_class_records: counts of classes beyond `MAX_CLASSES` that `class_records` lacks.
        unlisted_class_objects: likewise.
    """

    records: Count = 0
    formats: dict[str, Count] = {}
    widths_px: Histogram = {}
    heights_px: Histogram = {}
    aspects: Histogram = {}
    image_bytes: Histogram = {}
    objects: dict[Count, Count] = {}
    box_sides: Histogram = {}
    class_records: dict[int, Count] = {}
    class_objects: dict[int, Count] = {}
    runs: Count = 0
    expected_runs: Annotated[float, msgspec.Meta(ge=0, le=1e15)] = 0.0
    samples: list[SampledRecord] = []
    unlisted_class_records: Count = 0
    unlisted_class_objects: Count = 0


NO_STATISTICS = Statistics()
"""Of a shard without records, and of one that was made before there were statistics."""


def log_bin(value: float, per_octave: int) -> int:
    """Return the bin of a value above 0; the same on every machine, since it is only compared.

    >>> log_bin(640, 2), log_bin(724, 2), log_bin(725, 2), log_bin(0.75, 4)
    (18, 18, 19, -2)
    """
    if not 0 < value < math.inf:
        raise ValueError(f"value must be above 0 and finite, got {value}: leave it out")
    mantissa, exponent = math.frexp(value)
    first = bisect.bisect_right(_bounds(per_octave), mantissa) - 1
    return (exponent - 1) * per_octave + first


def whole_bin(value: int, per_octave: int) -> int:
    """Return the bin of a whole number above 0, as `log_bin` does, in a third of the time.

    >>> whole_bin(724, 2), whole_bin(725, 2), whole_bin(1, 2)
    (18, 19, 0)
    """
    return (value**per_octave).bit_length() - 1


def bin_start(bin: int, per_octave: int) -> float:
    """Return the first value of a bin.

    >>> bin_start(18, 2), round(bin_start(19, 2), 3), bin_start(-4, 4)
    (512.0, 724.077, 0.5)
    """
    octave, place = divmod(bin, per_octave)
    return math.ldexp(_bounds(per_octave)[place], octave + 1)


def count_bin(count: int) -> int:
    """Return the bin of a number of objects.

    >>> count_bin(16), count_bin(17), count_bin(63)
    (16, 16, 32)
    """
    return count if count <= EXACT_OBJECTS else 1 << count.bit_length() - 1


def share_bin(share: float) -> int:
    """Return the bin of a box that takes a share above 0 of its picture, by its square root.

    Half an octave of sides is an octave of areas, so that no root is drawn.

    >>> share_bin(1.0), share_bin(0.5), share_bin(0.49), share_bin(7.0)
    (0, -1, -2, 0)
    """
    return min(math.frexp(share)[1] - 1, 0)


def expected_runs(class_counts: Sequence[int], others: int = 0) -> float:
    """Return how many runs of equal classes a uniform shuffle has, rounded to a thousandth.

    Of N records it is `N + 1 - sum(n ** 2) / N`: 1, and 1 for every neighbour of another class.

    Args:
        class_counts: records of each class.
        others: records of a class of their own each.

    >>> expected_runs([2, 2]), expected_runs([3]), expected_runs([], 3), expected_runs([])
    (3.0, 1.0, 3.0, 0.0)
    """
    records = sum(class_counts) + others
    if not records:
        return 0.0
    by_records = records * (records + 1) - sum(n * n for n in class_counts) - others
    return (2000 * by_records + records) // (2 * records) / 1000


def add_statistics(parts: Iterable[Statistics]) -> Statistics:
    """Return the statistics of all records together, of parts in any order."""
    counts: dict[str, dict] = {name: {} for name in _COUNTERS}
    totals: dict[str, Any] = dict.fromkeys(_TOTALS, 0)
    thousandths = 0
    samples: list[SampledRecord] = []
    for part in parts:
        for name, sums in counts.items():
            _add_counts(sums, getattr(part, name))
        for name in totals:
            totals[name] += getattr(part, name)
        thousandths += round(part.expected_runs * 1000)  # floats alone would not add up
        samples += part.samples
        if len(samples) > 4 * MAX_SAMPLES:
            samples = draw_samples(samples, MAX_SAMPLES)
    for name in ("class_records", "class_objects"):
        totals[f"unlisted_{name}"] += leave_out_classes(counts[name])
    fields: dict[str, Any] = {name: dict(sorted(sums.items())) for name, sums in counts.items()}
    drawn = draw_samples(samples, MAX_SAMPLES)
    return Statistics(**fields, **totals, expected_runs=thousandths / 1000, samples=drawn)


class StatisticsSum:
    """A sum of many parts without their drawn records, of which few are held at a time."""

    def __init__(self) -> None:
        self._parts: list[Statistics] = []

    def add(self, part: Statistics) -> None:
        """Add a part."""
        self._parts.append(msgspec.structs.replace(part, samples=[]))
        if len(self._parts) >= _ADDED_AT_ONCE:
            self._parts = [self.total()]

    def total(self) -> Statistics:
        """Return the sum of all parts so far."""
        return add_statistics(self._parts)


def leave_out_classes(counts: dict[int, int]) -> int:
    """Take all but the smallest `MAX_CLASSES` labels out of a table; return what they counted."""
    left_out = sorted(counts)[MAX_CLASSES:] if len(counts) > MAX_CLASSES else []
    return sum(counts.pop(label) for label in left_out)


def draw_samples(samples: Iterable[SampledRecord], most: int) -> list[SampledRecord]:
    """Return the records that are drawn of those that were: the smallest digests', by label.

    There are `SAMPLES_PER_SPLIT` for splits and `SAMPLES_PER_CLASS` a class; where classes are too
    many, one of each goes before a second of any. Drawing again of parts that were drawn by no
    smaller `most` gives what drawing of all would have.
    """
    return draw_tuples({msgspec.structs.astuple(sample) for sample in samples}, most)


def draw_tuples(samples: Iterable[SampleTuple], most: int) -> list[SampledRecord]:
    """Do what `draw_samples` does, of values that are compared ten times as fast."""
    by_label: dict[int, list[SampleTuple]] = {}
    for sample in sorted(samples):
        by_label.setdefault(sample[1], []).append(sample)
    drawn = by_label.pop(SPLIT_LABEL, [])[:SAMPLES_PER_SPLIT]
    left = most - SAMPLES_PER_SPLIT
    for rank in range(SAMPLES_PER_CLASS):
        of_rank = sorted(found[rank] for found in by_label.values() if len(found) > rank)
        drawn += of_rank[:left]
        left -= min(left, len(of_rank))
    drawn.sort(key=operator.itemgetter(1, 0, 2, 3, 4, 5))
    return [SampledRecord(*sample) for sample in drawn]


_COUNTERS = (
    *("formats", "widths_px", "heights_px", "aspects", "image_bytes", "objects", "box_sides"),
    *("class_records", "class_objects"),
)
_TOTALS = ("records", "runs", "unlisted_class_records", "unlisted_class_objects")


def _add_counts(counts: dict, more: dict) -> None:
    for name, count in more.items():
        counts[name] = counts.get(name, 0) + count


@functools.cache
def _bounds(per_octave: int) -> Sequence[float]:
    """Return the first mantissa, in [0.5, 1), of each bin of an octave.

    Each is the smallest double that is not below the power, found in whole numbers: powers and
    logarithms of C libraries differ in their last bit, and receipts must not.
    """
    return [_root(place, per_octave) for place in range(per_octave)]


def _root(place: int, per_octave: int) -> float:
    """Return the smallest double of at least `2 ** (place / per_octave) / 2`."""
    low, high = (1 << _MANTISSA_BITS) - 1, 1 << _MANTISSA_BITS + 1
    power = 1 << _MANTISSA_BITS * per_octave + place
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if middle**per_octave >= power else (middle, high)
    return math.ldexp(high, -_MANTISSA_BITS - 1)
