"""Charts as geometry: where bars, lines and ticks are in an SVG, which the page's template draws.

All splits are in one chart, as parts of themselves, since splits differ in size. A chart of few
splits has bars side by side; of more it has a line of steps each. What a chart shows is in its
rows too, for those who cannot see it, or want to know exactly.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schemas.statistics import ASPECT_BINS_PER_OCTAVE, SIZE_BINS_PER_OCTAVE, Histogram
from transforms.quantities import bytes_text
from transforms.report.figures import count_text, percent_text

WIDTH, HEIGHT = 420, 246
LEFT, RIGHT, TOP, BOTTOM = 48, 412, 26, 200
"""Of the plot, in the units of the SVG; what is left is for ticks and titles."""

MOST_SERIES = 8
"""Splits in a chart; there are as many colors."""

_MOST_BARS = 3  # side by side; more splits are lines
_MOST_COLUMNS = 60
_MOST_OCTAVES = 64  # either way; no file or picture is larger
_TICK_GAP = 46


class Tick(NamedTuple):
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


class Bar(NamedTuple):
    """A bar, and what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    series: int
    text: str


class Curve(NamedTuple):
    """A line, its points as SVG writes them."""

    series: int
    points: str


class Whisker(NamedTuple):
    """From the least to the largest of what a bar or dot is the mean of."""

    x: float
    low: float
    high: float
    mean: float


@dataclass(frozen=True)
class Chart:
    """A chart, and the table of what it shows.

    Attributes:
        title: what is shown.
        x_title: of the axis, with its unit.
        y_title: likewise.
        x_ticks: from left to right.
        y_ticks: from bottom to top.
        series: what is compared, such as names of splits.
        notes: what is worth saying of each of them, such as a median; or empty.
        bars: drawn first.
        curves: drawn above them.
        whiskers: drawn last.
        has_dots: whether whiskers have dots, where there are no bars.
        rule: height of a line that tells what is ideal; None for none.
        head: of the table.
        rows: of it; the first cell of each is its name.
        more_rows: that are left out.
    """

    title: str
    x_title: str
    y_title: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    series: Sequence[str]
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bars: Sequence[Bar] = ()
    curves: Sequence[Curve] = ()
    whiskers: Sequence[Whisker] = ()
    has_dots: bool = False
    rule: float | None = None
    more_rows: int = 0


class Series(NamedTuple):
    """A split's histogram."""

    name: str
    histogram: Histogram


class _Column(NamedTuple):
    text: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class _LogScale:
    """How bins of equal width in octaves are named.

    Attributes:
        per_octave: bins.
        unit: of values; `bytes` chooses its own.
        ticks: values and their texts, the most important first.
        is_whole: whether values are whole numbers.
    """

    per_octave: int
    unit: str
    ticks: Sequence[tuple[float, str]]
    is_whole: bool

    def text(self, first_bin: int, end_bin: int) -> str:
        """Return the values of bins, the last of which is not among them."""
        low, high = 2.0 ** (first_bin / self.per_octave), 2.0 ** (end_bin / self.per_octave)
        if self.unit == "bytes":
            return f"{bytes_text(math.ceil(low))} – {bytes_text(math.ceil(high))}"
        if self.unit == "%":
            return f"{percent_text(low)} – {percent_text(high)}" if low < 1 else "100 %"
        if self.is_whole:
            low, high = math.ceil(low), max(math.ceil(low), math.ceil(high) - 1)
            return f"{low:,} – {high:,} {self.unit}" if low < high else f"{low:,} {self.unit}"
        return f"{low:.3g} – {high:.3g}"

    def value_text(self, middle: float) -> str:
        """Return about what a value is, from its place in bins."""
        value = 2.0 ** (middle / self.per_octave)
        if self.unit == "bytes":
            return bytes_text(round(value))
        if self.unit == "%":
            return percent_text(min(value, 1.0))
        return f"{value:.0f} {self.unit}" if self.is_whole else f"{value:.2f}"


_PIXELS = _LogScale(
    SIZE_BINS_PER_OCTAVE, "px", [(2.0**n, f"{2**n:,}") for n in range(0, 32)], is_whole=True
)
_BYTES = _LogScale(
    SIZE_BINS_PER_OCTAVE, "bytes", [(10.0**n, bytes_text(10**n)) for n in range(12)], is_whole=True
)
_BOX_SIDES = _LogScale(
    SIZE_BINS_PER_OCTAVE, "%", [(0.5**n, percent_text(0.5**n)) for n in range(16)], is_whole=False
)
_ASPECTS = _LogScale(
    ASPECT_BINS_PER_OCTAVE,
    "",
    [
        *((1.0, "1:1"), (2.0, "2:1"), (0.5, "1:2"), (4 / 3, "4:3"), (3 / 4, "3:4")),
        *((16 / 9, "16:9"), (9 / 16, "9:16"), (4.0, "4:1"), (0.25, "1:4"), (8.0, "8:1")),
        *((0.125, "1:8"), (32.0, "32:1"), (1 / 32, "1:32")),
    ],
    is_whole=False,
)


def width_chart(series: Sequence[Series]) -> Chart:
    """Return pictures by their width."""
    return _log_chart("Picture widths", "width, px (log scale)", "% of pictures", _PIXELS, series)


def height_chart(series: Sequence[Series]) -> Chart:
    """Return pictures by their height."""
    return _log_chart("Picture heights", "height, px (log scale)", "% of pictures", _PIXELS, series)


def aspect_chart(series: Sequence[Series]) -> Chart:
    """Return pictures by width / height."""
    x_title = "width : height (log scale)"
    return _log_chart("Aspect ratios", x_title, "% of pictures", _ASPECTS, series)


def bytes_chart(series: Sequence[Series]) -> Chart:
    """Return pictures by their encoded bytes."""
    x_title = "encoded size (log scale)"
    return _log_chart("Picture bytes", x_title, "% of pictures", _BYTES, series)


def box_chart(series: Sequence[Series]) -> Chart:
    """Return boxes by the square root of their share of the picture."""
    x_title = "√(box area ÷ picture area) (log scale)"
    return _log_chart("Box sizes", x_title, "% of boxes", _BOX_SIDES, series)


def object_chart(series: Sequence[Series]) -> Chart:
    """Return records by how many objects they hold."""
    series = [Series(name, _by_first(histogram)) for name, histogram in series]
    most = max((number for _, histogram in series for number in histogram), default=0)
    firsts = [*range(min(most, 16) + 1), *(2**n for n in range(5, most.bit_length()))]
    columns = [
        _Column(_objects_text(first), tuple(h.get(first, 0) for _, h in series)) for first in firsts
    ]
    step = (RIGHT - LEFT) / len(columns)
    candidates = [
        Tick(_round(LEFT + (place + 0.5) * step), str(first) if first < 16 else f"{first}+")
        for place, first in enumerate(firsts)
    ]
    notes = [f"median {_objects_text(_median(h))}" for _, h in series]
    texts = ("Objects per record", "objects", "% of records")
    return _bar_chart(texts, columns, spread_ticks(candidates, 26), series, notes)


def spread_ticks(candidates: Iterable[Tick], gap: float = _TICK_GAP) -> list[Tick]:
    """Return ticks that are a gap apart, those that come first before others, from low to high.

    >>> spread_ticks([Tick(50, "1:1"), Tick(80, "2:1"), Tick(0, "1:2")])
    [Tick(at=0, text='1:2'), Tick(at=50, text='1:1')]
    """
    kept: list[Tick] = []
    for tick in candidates:
        if all(abs(tick.at - other.at) >= gap for other in kept):
            kept.append(tick)
    return sorted(kept)


def nice_steps(most: float) -> list[float]:
    """Return three to six round numbers from 0 on, the last of which is `most` or more.

    >>> nice_steps(0.37), nice_steps(90)
    ([0.0, 0.1, 0.2, 0.3, 0.4], [0.0, 20.0, 40.0, 60.0, 80.0, 100.0])
    """
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(most))
    step = next(part * power for part in (0.2, 0.5, 1.0, 2.0) if most / (part * power) <= 5)
    # Each is the nearest float to what it is called, whatever sums would make of it.
    return [float(f"{n * step:.12g}") for n in range(math.ceil(most / step - 1e-9) + 1)]


def height_of(part: float) -> float:
    """Return where a part of the y axis lies; 0 is its bottom."""
    return _round(BOTTOM - part * (BOTTOM - TOP))


def _log_chart(
    title: str, x_title: str, y_title: str, scale: _LogScale, series: Sequence[Series]
) -> Chart:
    limit = _MOST_OCTAVES * scale.per_octave
    clamped = [Series(name, _clamped(histogram, limit)) for name, histogram in series]
    bins = [number for _, histogram in clamped for number in histogram]
    low, end = min(bins, default=0), max(bins, default=0) + 1
    # A chart of a single bar has neighbours, so that the axis has ticks.
    low, end = (low - 2, end + 2) if end - low < 4 else (low, end)
    merged = math.ceil((end - low) / _MOST_COLUMNS)
    firsts = range(low, end, merged)
    columns = [
        _Column(
            scale.text(first, first + merged),
            tuple(sum(h.get(n, 0) for n in range(first, first + merged)) for _, h in clamped),
        )
        for first in firsts
    ]
    unit = (RIGHT - LEFT) / (merged * len(firsts))
    candidates = (
        Tick(_round(LEFT + (math.log2(value) * scale.per_octave - low) * unit), text)
        for value, text in scale.ticks
    )
    ticks = spread_ticks(tick for tick in candidates if LEFT <= tick.at <= RIGHT)
    notes = [
        f"median about {scale.value_text(_median(h) + 0.5)}" if h else "none" for _, h in clamped
    ]
    return _bar_chart((title, x_title, y_title), columns, ticks, series, notes)


def _bar_chart(
    texts: tuple[str, str, str],
    columns: Sequence[_Column],
    x_ticks: Sequence[Tick],
    series: Sequence[Series],
    notes: Sequence[str],
) -> Chart:
    title, x_title, y_title = texts
    totals = [sum(column.counts[place] for column in columns) for place in range(len(series))]
    parts = [
        [count / total if total else 0.0 for count, total in zip(c.counts, totals, strict=True)]
        for c in columns
    ]
    shown = min(len(series), MOST_SERIES)
    steps = nice_steps(max((p for row in parts for p in row[:shown]), default=0.0))
    is_bars = shown <= _MOST_BARS
    return Chart(
        title,
        x_title,
        y_title,
        x_ticks,
        [Tick(height_of(step / steps[-1]), percent_text(step)) for step in steps],
        [name for name, _ in series[:shown]],
        [title, *(text for name, _ in series for text in (f"{name}", f"{name}, %"))],
        [
            [c.text, *(t for n, p in zip(c.counts, row, strict=True) for t in _cells(n, p))]
            for c, row in zip(columns, parts, strict=True)
            if any(c.counts)
        ],
        notes[:shown],
        bars=list(_bars(columns, parts, shown, steps[-1], series)) if is_bars else (),
        curves=() if is_bars else [_steps(parts, n, steps[-1]) for n in range(shown)],
    )


def _bars(
    columns: Sequence[_Column],
    parts: Sequence[Sequence[float]],
    shown: int,
    most: float,
    series: Sequence[Series],
) -> Iterable[Bar]:
    step = (RIGHT - LEFT) / len(columns)
    width = step * 0.86 / shown
    for place, (column, row) in enumerate(zip(columns, parts, strict=True)):
        for number in range(shown):
            if column.counts[number] <= 0:
                continue
            top = min(height_of(row[number] / most), BOTTOM - 1.5)  # what is there is seen
            x = LEFT + (place + 0.07) * step + number * width
            cells = _cells(column.counts[number], row[number])
            said = f"{series[number].name}, {column.text}: {' = '.join(cells)}"
            bar_width = max(width - 0.6, 0.8)
            yield Bar(_round(x), top, _round(bar_width), _round(BOTTOM - top), number, said)


def _steps(parts: Sequence[Sequence[float]], number: int, most: float) -> Curve:
    step = (RIGHT - LEFT) / len(parts)
    points = [f"{LEFT},{BOTTOM}"]
    for place, row in enumerate(parts):
        y = height_of(row[number] / most)
        points += [
            f"{_round(LEFT + place * step)},{y}",
            f"{_round(LEFT + (place + 1) * step)},{y}",
        ]
    return Curve(number, " ".join([*points, f"{RIGHT},{BOTTOM}"]))


def _cells(count: int, part: float) -> tuple[str, str]:
    return count_text(count), percent_text(part)


def _clamped(histogram: Mapping[int, int], limit: int) -> dict[int, int]:
    """Return a histogram whose bins beyond any file's are at the limit."""
    found: dict[int, int] = {}
    for number, count in sorted(histogram.items()):
        place = max(-limit, min(limit, number))
        found[place] = found.get(place, 0) + count
    return found


def _median(histogram: Mapping[int, int]) -> int:
    """Return the bin of the lower median; 0 of nothing."""
    half, so_far = (sum(histogram.values()) + 1) // 2, 0
    for number, count in sorted(histogram.items()):
        so_far += count
        if so_far >= half:
            return number
    return 0


def _by_first(histogram: Mapping[int, int]) -> dict[int, int]:
    """Return a histogram of objects whose bins are those of statistics, whatever they were.

    >>> _by_first({3: 1, 16: 2, 20: 4, 32: 8})
    {3: 1, 16: 6, 32: 8}
    """
    found: dict[int, int] = {}
    for number, count in sorted(histogram.items()):
        first = number if number <= 16 else 1 << (number.bit_length() - 1)
        found[max(0, first)] = found.get(max(0, first), 0) + count
    return found


def _objects_text(first: int) -> str:
    return str(first) if first < 16 else f"{first:,} – {2 * first - 1:,}"


def _round(value: float) -> float:
    return round(value, 1)
