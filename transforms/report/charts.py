"""Histograms as geometry: where bars and ticks are in an SVG, which the page's template draws.

Splits are bars side by side, each in percents of itself; more than three splits are one series.
Numbers are in a table as well, for readers who cannot see the chart.
"""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from schemas.faults import bytes_text
from transforms.report import Histogram

IMAGE_COLUMNS = ("image_width", "image_height")
RECORD_BYTES, OBJECTS = "record_bytes", "objects"
"""Names of histograms: columns of indexes."""

WIDTH, HEIGHT = 420, 170
LEFT, RIGHT, TOP, BOTTOM = 48, 412, 12, 132
"""Edges of the plot in units of the SVG; the rest is for ticks and titles."""

MOST_SERIES = 3

_MOST_BARS = 24
_BINS_PER_OCTAVE = 2
_TICK_GAP = 46
_LEAST_BAR = 1.5  # high, so that a small bar stays visible


class Tick(NamedTuple):
    """A mark on an axis."""

    at: float
    text: str


class Bar(NamedTuple):
    """A bar, and its tooltip."""

    x: float
    y: float
    width: float
    height: float
    series: int
    text: str


class Chart(NamedTuple):
    """A histogram and its table.

    Attributes:
        title: title of the chart and of the table's first column.
        x_title: title of the axis.
        x_ticks: ticks from left to right.
        y_ticks: ticks from bottom to top.
        series: names of the splits, each with its median.
        bars: bars to draw.
        rows: rows of the table: a range of values, then the count in each split.
    """

    title: str
    x_title: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    series: Sequence[tuple[str, str]]
    bars: Sequence[Bar]
    rows: Sequence[Sequence[str]]


def count_text(count: int) -> str:
    """Return a count with thousands separated.

    >>> count_text(118287)
    '118,287'
    """
    return f"{count:,}"


def _pixels_text(value: int) -> str:
    return f"{value:,} px"


_TITLES: Mapping[str, tuple[str, str, Callable[[int], str]]] = {
    IMAGE_COLUMNS[0]: ("Picture widths", "width (log scale)", _pixels_text),
    IMAGE_COLUMNS[1]: ("Picture heights", "height (log scale)", _pixels_text),
    RECORD_BYTES: ("Record sizes", "size (log scale)", bytes_text),
    OBJECTS: ("Objects per record", "objects", count_text),
}


def make_charts(splits: Sequence[tuple[str, Mapping[str, Histogram]]]) -> list[Chart]:
    """Return a chart of each column that has values, from the histograms of each split."""
    series = {
        name: [(split, histograms.get(name, {})) for split, histograms in splits]
        for name in _TITLES
    }
    return [make_chart(name, found) for name, found in series.items() if any(h for _, h in found)]


def make_chart(name: str, series: Sequence[tuple[str, Histogram]]) -> Chart:
    """Return the chart of a column, from each split's histogram."""
    if len(series) > MOST_SERIES:
        total: Counter[int] = Counter()
        for _, histogram in series:
            total.update(histogram)
        series = [("all splits", total)]
    title, x_title, text_of = _TITLES[name]
    values = [value for _, histogram in series for value in histogram]
    starts = _bin_starts(min(values), max(values))
    columns = [_binned(histogram, starts) for _, histogram in series]
    shares = [[count / max(1, sum(counts)) for count in counts] for counts in columns]
    steps = nice_steps(max(max(row) for row in shares))
    texts = [
        text_of(start) if end - start == 1 else f"{text_of(start)} – {text_of(end - 1)}"
        for start, end in zip(starts, [*starts[1:], max(values) + 1], strict=True)
    ]
    step = (RIGHT - LEFT) / len(starts)
    return Chart(
        title,
        x_title,
        [
            Tick(round(LEFT + (place + 0.5) * step, 1), text_of(starts[place]))
            for place in range(0, len(starts), math.ceil(_TICK_GAP / step))
        ],
        [Tick(_height_of(part / steps[-1]), f"{100 * part:g} %") for part in steps],
        [(split, f"median {text_of(median(h))}" if h else "none") for split, h in series],
        _bars([split for split, _ in series], shares, texts, steps[-1]),
        [
            [text, *(count_text(counts[place]) for counts in columns)]
            for place, text in enumerate(texts)
            if any(counts[place] for counts in columns)
        ],
    )


def median(histogram: Mapping[int, int]) -> int:
    """Return the lower median; 0 of nothing.

    >>> median({640: 3, 480: 2}), median({})
    (640, 0)
    """
    half, so_far = (sum(histogram.values()) + 1) // 2, 0
    for value, count in sorted(histogram.items()):
        so_far += count
        if so_far >= half:
            return value
    return 0


def nice_steps(most: float) -> list[float]:
    """Return three to six round numbers from 0 on; the last one is `most` or more.

    >>> nice_steps(0.37), nice_steps(90)
    ([0.0, 0.1, 0.2, 0.3, 0.4], [0.0, 20.0, 40.0, 60.0, 80.0, 100.0])
    """
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most))
    step = next(part * power for part in (0.2, 0.5, 1.0, 2.0) if most / (part * power) <= 5)
    return [float(f"{n * step:.12g}") for n in range(math.ceil(most / step - 1e-9) + 1)]


def _bin_starts(low: int, high: int) -> list[int]:
    """Return the first value of each bin: every number if they are few, else half octaves."""
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


def _bars(
    names: Sequence[str], shares: Sequence[Sequence[float]], texts: Sequence[str], most: float
) -> list[Bar]:
    step = (RIGHT - LEFT) / len(texts)
    width = step * 0.86 / len(names)
    bars = []
    for series, row in enumerate(shares):
        for place, share in enumerate(row):
            if share > 0:
                top = min(_height_of(share / most), BOTTOM - _LEAST_BAR)
                x = round(LEFT + (place + 0.07) * step + series * width, 1)
                text = f"{names[series]}, {texts[place]}: {100 * share:.3g} %"
                height = round(BOTTOM - top, 1)
                bars.append(Bar(x, top, round(max(width - 0.6, 0.8), 1), height, series, text))
    return bars


def _height_of(part: float) -> float:
    return round(BOTTOM - part * (BOTTOM - TOP), 1)
