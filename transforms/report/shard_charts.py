"""Shards: how large each is, and how well its records are shuffled.

A few shards have a bar or dot each. Of thousands, neighbours share one, which tells their mean,
and a line from the least of them to the largest, so that no odd shard is lost in it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from transforms.quantities import bytes_text
from transforms.report.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    Bar,
    Chart,
    Tick,
    Whisker,
    height_of,
    nice_steps,
    spread_ticks,
)
from transforms.report.contents import ShardFacts
from transforms.report.figures import count_text

MOST_ROWS = 100
"""Shards in a table; the others are counted."""

_MOST_COLUMNS = 96


class _Group(NamedTuple):
    """Neighbouring shards: the first one's place, how many they are, and their values."""

    first: int
    shards: int
    low: float
    mean: float
    high: float


def shard_size_chart(name: str, shards: Sequence[ShardFacts]) -> Chart:
    """Return the bytes of a split's shards, in their order."""
    groups = _grouped(
        [(place, float(shard.bytes)) for place, shard in enumerate(shards)], len(shards)
    )
    most = max((group.high for group in groups), default=0.0)
    steps = nice_steps(most)
    bars, whiskers = [], []
    for group in groups:
        left, right = _span(group, len(shards))
        top = height_of(group.mean / steps[-1])
        said = _said(group, bytes_text(group.low), bytes_text(group.mean), bytes_text(group.high))
        bars.append(Bar(left, top, round(right - left, 1), round(BOTTOM - top, 1), 0, said))
        if group.shards > 1:
            middle = round((left + right) / 2, 1)
            heights = (
                height_of(value / steps[-1]) for value in (group.low, group.high, group.mean)
            )
            whiskers.append(Whisker(middle, *heights))
    return Chart(
        f"Shard sizes, {name}",
        "shard" if len(groups) == len(shards) else "shard (bars: means, lines: least to largest)",
        "size of the file",
        _shard_ticks(len(shards)),
        [Tick(height_of(step / steps[-1]), bytes_text(step)) for step in steps],
        [name],
        ["shard", "records", "size"],
        [[s.file, count_text(s.records), bytes_text(s.bytes)] for s in shards[:MOST_ROWS]],
        [_size_note(shards)],
        bars=bars,
        whiskers=whiskers,
        more_rows=max(0, len(shards) - MOST_ROWS),
    )


def shuffle_chart(name: str, shards: Sequence[ShardFacts]) -> Chart | None:
    """Return runs of shards as parts of those that a uniform shuffle has; None without any."""
    ratios = [
        (place, shard.runs / shard.expected_runs)
        for place, shard in enumerate(shards)
        if shard.expected_runs > 0
    ]
    if not ratios:
        return None
    groups = _grouped(ratios, len(shards))
    low = min(0.9, math.floor(10 * min(group.low for group in groups)) / 10)
    high = max(1.1, math.ceil(10 * max(group.high for group in groups)) / 10)

    def y_of(ratio: float) -> float:
        return height_of((ratio - low) / (high - low))

    whiskers = []
    for group in groups:
        left, right = _span(group, len(shards))
        heights = (y_of(value) for value in (group.low, group.high, group.mean))
        whiskers.append(Whisker(round((left + right) / 2, 1), *heights))
    steps = [low + step for step in nice_steps(high - low)]
    known = [shard for shard in shards if shard.expected_runs > 0]
    return Chart(
        f"Shuffle quality, {name}",
        "shard" if len(groups) == len(ratios) else "shard (dots: means, lines: least to largest)",
        "runs of one class ÷ those of a uniform shuffle",
        _shard_ticks(len(shards)),
        [Tick(y_of(step), f"{step:.4g}") for step in steps if step <= high + 1e-9],
        [name],
        ["shard", "runs", "of a uniform shuffle", "ratio"],
        [
            [
                s.file,
                count_text(s.runs),
                f"{s.expected_runs:,.1f}",
                f"{s.runs / s.expected_runs:.3f}",
            ]
            for s in known[:MOST_ROWS]
        ],
        [f"{sum(s.runs for s in known) / sum(s.expected_runs for s in known):.3f} over all shards"],
        whiskers=whiskers,
        has_dots=True,
        more_rows=max(0, len(known) - MOST_ROWS),
        rule=y_of(1.0),
    )


def _grouped(values: Sequence[tuple[int, float]], shards: int) -> list[_Group]:
    """Return (place, value) of shards in groups of neighbours, each of as many places."""
    size = max(1, math.ceil(shards / _MOST_COLUMNS))
    found: dict[int, list[float]] = {}
    for place, value in values:
        found.setdefault(place // size, []).append(value)
    return [
        _Group(
            number * size,
            min(size, shards - number * size),
            min(group),
            math.fsum(group) / len(group),
            max(group),
        )
        for number, group in found.items()
    ]


def _span(group: _Group, shards: int) -> tuple[float, float]:
    step = (RIGHT - LEFT) / shards
    left, right = LEFT + group.first * step, LEFT + (group.first + group.shards) * step
    gap = min(1.0, 0.04 * (right - left))
    return round(left + gap, 1), round(right - gap, 1)


def _said(group: _Group, low: str, mean: str, high: str) -> str:
    if group.shards == 1:
        return f"shard {group.first}: {mean}"
    return f"shards {group.first} to {group.first + group.shards - 1}: {low} to {high}, mean {mean}"


def _shard_ticks(shards: int) -> list[Tick]:
    """Return ticks in the middle of shards whose places are round numbers, and of the last."""
    step = (RIGHT - LEFT) / max(shards, 1)
    places = [*(round(n) for n in nice_steps(shards - 1) if n < shards), shards - 1]
    ends_first = sorted(set(places), key=lambda place: (place not in (0, shards - 1), place))
    return spread_ticks(
        Tick(round(LEFT + (place + 0.5) * step, 1), count_text(place)) for place in ends_first
    )


def _size_note(shards: Sequence[ShardFacts]) -> str:
    sizes = [shard.bytes for shard in shards]
    if not sizes or not sum(sizes):
        return "none"
    over = max(sizes) * len(sizes) / sum(sizes) - 1
    ends = f"{bytes_text(min(sizes))} to {bytes_text(max(sizes))}"
    return f"{ends}, the largest {100 * over:.1f} % over the mean"
