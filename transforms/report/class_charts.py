"""Classes: a row each with bars on a log scale, and how fast frequency falls with rank.

A thousand classes stay readable as a table that scrolls and can be searched; the curve beside it
shows the tail at a glance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from schemas.statistics import Statistics
from transforms.report.charts import (
    BOTTOM,
    LEFT,
    MOST_SERIES,
    RIGHT,
    TOP,
    Chart,
    Curve,
    Tick,
    height_of,
    spread_ticks,
)
from transforms.report.figures import count_text, short_count

FEW_CLASSES = 12
"""With fewer there is no curve: the table says all."""

_MOST_ROWS, _MOST_CELLS = 2000, 8000  # more splits make fewer rows
_RARE = 4  # one in so many rows is of the rarest; those between are counted
_MOST_POINTS = 160  # of a curve
_FLOOR = 0.6  # where the log axis begins, so that a class of one has a bar


@dataclass(frozen=True)
class ClassRow:
    """A class.

    Attributes:
        label: its id.
        name: of it; empty where nobody knows.
        rank: from 1, of the most frequent.
        total: records that hold it, in all splits.
        records: in each split.
        objects: likewise; empty where records have no objects.
        bars: their lengths in each split, in percents of the longest.
    """

    label: int
    name: str
    rank: int
    total: int
    records: tuple[int, ...]
    objects: tuple[int, ...]
    bars: tuple[float, ...]


@dataclass(frozen=True)
class Classes:
    """All classes.

    Attributes:
        frequent: rows from the most frequent on.
        left_out: classes between those and the rare ones.
        rare: rows to the rarest.
        number: of classes that are named or found.
        absent: classes with a name of which there is no record.
        ticks: of the bars' axis, places as parts of their length in percents.
        curve: frequency by rank; None of few classes.
    """

    frequent: Sequence[ClassRow]
    left_out: int
    rare: Sequence[ClassRow]
    number: int
    absent: int
    ticks: Sequence[Tick]
    curve: Chart | None


def list_classes(
    splits: Sequence[tuple[str, Statistics]], class_names: Mapping[int, str]
) -> Classes:
    """Return the classes of splits, the most frequent first; of equals, the lowest id."""
    found = {label for _, s in splits for label in (*s.class_records, *s.class_objects)}
    has_objects = any(s.class_objects for _, s in splits)
    labels = found | class_names.keys()
    counts = {label: tuple(s.class_records.get(label, 0) for _, s in splits) for label in labels}
    most = max((max(row) for row in counts.values()), default=0)
    shown = min(_MOST_ROWS, _MOST_CELLS // (len(splits) + 2))
    rare = shown // _RARE
    order = sorted(labels, key=lambda label: (-sum(counts[label]), label))
    rows = [
        ClassRow(
            label,
            class_names.get(label, ""),
            place + 1,
            sum(counts[label]),
            counts[label],
            tuple(s.class_objects.get(label, 0) for _, s in splits) if has_objects else (),
            tuple(_bar_length(count, most) for count in counts[label][:MOST_SERIES]),
        )
        for place, label in enumerate(order)
        if place < shown - rare or place >= len(order) - rare
    ]
    left_out = len(order) - len(rows)
    return Classes(
        rows[: shown - rare],
        left_out,
        rows[shown - rare :],
        len(order),
        sum(1 for label in order if not any(counts[label])),
        _bar_ticks(most),
        _rank_chart(splits) if len(order) >= FEW_CLASSES and most > 0 else None,
    )


def _bar_length(count: int, most: int) -> float:
    """Return a bar's length on a log scale, in percents.

    >>> _bar_length(0, 1000), _bar_length(1, 1000) > 0, _bar_length(1000, 1000)
    (0.0, True, 100.0)
    """
    if count <= 0:
        return 0.0
    return round(100 * math.log(count / _FLOOR) / math.log(most / _FLOOR), 1)


def _bar_ticks(most: int) -> list[Tick]:
    powers = [10**n for n in range(len(str(most)))] if most > 0 else []
    ticks = [Tick(_bar_length(n, most), short_count(n)) for n in powers]
    return spread_ticks(reversed(ticks), 12)


def _rank_chart(splits: Sequence[tuple[str, Statistics]]) -> Chart:
    """Return how many records hold the class of a rank, both axes logarithmic."""
    ranked = [
        sorted((n for n in s.class_records.values() if n > 0), reverse=True) for _, s in splits
    ]
    longest, most = max(map(len, ranked)), max(row[0] for row in ranked if row)
    x_end, y_end = math.log(max(longest, 2)), math.log(most / _FLOOR)

    def x_of(rank: int) -> float:
        return round(LEFT + math.log(rank) / x_end * (RIGHT - LEFT), 1)

    def y_of(count: int) -> float:
        return height_of(math.log(count / _FLOOR) / y_end)

    ranks = _spread_ranks(longest)
    shown = splits[:MOST_SERIES]
    tens = [10**n for n in range(10)]
    y_ticks = [Tick(y_of(n), short_count(n)) for n in tens if n <= most]
    return Chart(
        "Class frequency by rank",
        "rank of the class (log scale)",
        "records that hold it (log scale)",
        spread_ticks(Tick(x_of(n), short_count(n)) for n in tens if n <= longest),
        [tick for tick in y_ticks if TOP <= tick.at <= BOTTOM],
        [name for name, _ in shown],
        ["rank", *(name for name, _ in splits)],
        [
            [
                count_text(rank),
                *(count_text(r[rank - 1]) if rank <= len(r) else "–" for r in ranked),
            ]
            for rank in ranks
            if rank == longest or _is_round(rank)
        ],
        [f"{count_text(len(row))} classes" for row in ranked][:MOST_SERIES],
        curves=[
            Curve(
                number,
                " ".join(f"{x_of(rank)},{y_of(row[rank - 1])}" for rank in _spread_ranks(len(row))),
            )
            for number, row in enumerate(ranked[:MOST_SERIES])
        ],
    )


def _is_round(rank: int) -> bool:
    """Return whether a number is 1, 2 or 5 of a power of ten."""
    return str(rank).rstrip("0") in {"1", "2", "5"}


def _spread_ranks(most: int) -> list[int]:
    """Return ranks to `most`: 1, 2 and 5 of every power of ten, and as many as can be told apart.

    >>> _spread_ranks(12)
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    """
    if most == 0:
        return []
    ratio = math.log(most) / _MOST_POINTS
    ranks = {min(most, round(math.exp(place * ratio))) for place in range(_MOST_POINTS + 1)}
    round_ones = {digit * 10**power for digit in (1, 2, 5) for power in range(len(str(most)))}
    return sorted(ranks | {rank for rank in round_ones if rank <= most})
