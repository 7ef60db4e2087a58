"""Histograms as tables: a row per range of values, with a bar and a count for each split.

Bars show the share of a split's records. More than three splits are merged into one series.
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from beam_tfrec.schemas.faults import bytes_text
from beam_tfrec.transforms.report import Histogram

IMAGE_COLUMNS = ("image_width", "image_height")
RECORD_BYTES, OBJECTS = "record_bytes", "objects"
"""Names of histograms, which are columns of indexes."""

MOST_SERIES = 3

_MOST_BARS = 24
_LEAST_BAR = 0.5  # percent, so that a single record is visible
_BINS_PER_OCTAVE = 2


class Bin(NamedTuple):
    """A range of values, with the count and the bar's length in percent for each series."""

    values: str
    counts: Sequence[int]
    bars: Sequence[float]


class Chart(NamedTuple):
    """A histogram.

    Attributes:
        title: title of the chart.
        values: title of the first column.
        series: name and median of each split.
        bins: rows of the table.
    """

    title: str
    values: str
    series: Sequence[tuple[str, str]]
    bins: Sequence[Bin]


_COUNT, _PIXELS = "{:,}".format, "{:,} px".format
_TITLES: Mapping[str, tuple[str, str, Callable[[int], str]]] = {
    IMAGE_COLUMNS[0]: ("Picture widths", "width", _PIXELS),
    IMAGE_COLUMNS[1]: ("Picture heights", "height", _PIXELS),
    RECORD_BYTES: ("Record sizes", "size", bytes_text),
    OBJECTS: ("Objects per record", "objects", _COUNT),
}


def make_charts(splits: Sequence[tuple[str, Mapping[str, Histogram]]]) -> list[Chart]:
    """Return a chart per column with values, from the histograms of each split."""
    return [
        make_chart(name, [(split, found.get(name, {})) for split, found in splits])
        for name in _TITLES
        if any(found.get(name) for _, found in splits)
    ]


def make_chart(name: str, series: Sequence[tuple[str, Histogram]]) -> Chart:
    """Return the chart of a column from the histogram of each split."""
    if len(series) > MOST_SERIES:
        series = [("all splits", sum((Counter(found) for _, found in series), Counter()))]
    title, values_title, text_of = _TITLES[name]
    values = [value for _, histogram in series for value in histogram]
    starts = _bin_starts(min(values), max(values))
    columns = [_binned(histogram, starts) for _, histogram in series]
    totals = [sum(counts) or 1 for counts in columns]
    most = max(max(counts) / total for counts, total in zip(columns, totals, strict=True)) or 1
    ends = [*starts[1:], max(values) + 1]
    bins = [
        Bin(
            text_of(start) if end - start == 1 else f"{text_of(start)} – {text_of(end - 1)}",
            counts,
            [
                max(round(100 * n / total / most, 1), _LEAST_BAR) if n else 0
                for n, total in zip(counts, totals, strict=True)
            ],
        )
        for start, end, *counts in zip(starts, ends, *columns, strict=True)
    ]
    medians = [(split, f"median {text_of(median(h))}" if h else "none") for split, h in series]
    return Chart(title, values_title, medians, bins)


def median(histogram: Mapping[int, int]) -> int:
    """Return the lower median, or 0 without values.

    >>> median({640: 3, 480: 2}), median({})
    (640, 0)
    """
    values = sorted(histogram)
    so_far = list(itertools.accumulate(histogram[value] for value in values))
    return values[bisect.bisect_left(so_far, (so_far[-1] + 1) // 2)] if values else 0


def _bin_starts(low: int, high: int) -> list[int]:
    """Return the first value of each bin: one bin per number if few, else two per octave."""
    if high - low < _MOST_BARS:
        return list(range(low, high + 1))
    first = math.floor(math.log2(max(1, low)) * _BINS_PER_OCTAVE)
    last = math.floor(math.log2(max(1, high)) * _BINS_PER_OCTAVE)
    merged = math.ceil((last - first + 1) / _MOST_BARS)
    starts = [math.ceil(2 ** (n / _BINS_PER_OCTAVE)) for n in range(first, last + 1, merged)]
    return sorted({*starts, *([0] if low < starts[0] else [])})


def _binned(histogram: Histogram, starts: Sequence[int]) -> list[int]:
    counts = [0] * len(starts)
    for value, count in histogram.items():
        counts[bisect.bisect_right(starts, value) - 1] += count
    return counts
