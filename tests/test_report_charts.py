"""Charts tell what the statistics say, and every mark is where its number is."""

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.statistics import Statistics
from tests.report_contents import made_shards
from transforms.report.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Bar,
    Chart,
    Series,
    aspect_chart,
    box_chart,
    bytes_chart,
    nice_steps,
    object_chart,
    spread_ticks,
    width_chart,
)
from transforms.report.class_charts import list_classes
from transforms.report.contents import ShardFacts
from transforms.report.shard_charts import shard_size_chart, shuffle_chart

TRAIN = {17: 10, 18: 60, 19: 30}  # 363 to 1023 px
VAL = {18: 1, 20: 3}


def value_at(chart: Chart, y: float) -> float:
    """Return what a height says, by the axis' own ticks, in percents."""
    low, high = chart.y_ticks[0], chart.y_ticks[-1]
    ends = [float(tick.text.removesuffix(" %")) for tick in (low, high)]
    return ends[0] + (low.at - y) / (low.at - high.at) * (ends[1] - ends[0])


def test_rows_have_counts_and_parts_of_every_split() -> None:
    chart = width_chart([Series("train", TRAIN), Series("val", VAL)])

    assert chart.head == ["Picture widths", "train", "train, %", "val", "val, %"]
    assert chart.rows == [
        ["363 – 511 px", "10", "10 %", "0", "0 %"],
        ["512 – 724 px", "60", "60 %", "1", "25 %"],
        ["725 – 1,023 px", "30", "30 %", "0", "0 %"],
        ["1,024 – 1,448 px", "0", "0 %", "3", "75 %"],
    ]
    assert chart.notes == ["median about 609 px", "median about 1218 px"]


def test_bars_are_as_high_as_their_parts() -> None:
    chart = width_chart([Series("train", TRAIN), Series("val", VAL)])

    assert [
        (bar.series, pytest.approx(value_at(chart, bar.y), abs=0.05), bar.text)
        for bar in chart.bars
    ] == [
        (0, 10, "train, 363 – 511 px: 10 = 10 %"),
        (0, 60, "train, 512 – 724 px: 60 = 60 %"),
        (1, 25, "val, 512 – 724 px: 1 = 25 %"),
        (0, 30, "train, 725 – 1,023 px: 30 = 30 %"),
        (1, 75, "val, 1,024 – 1,448 px: 3 = 75 %"),
    ]
    assert all(round(bar.y + bar.height, 1) == BOTTOM for bar in chart.bars)


def test_ticks_are_where_their_bins_begin() -> None:
    chart = width_chart([Series("train", TRAIN), Series("val", VAL)])
    by_text = {tick.text: tick.at for tick in chart.x_ticks}
    step = (RIGHT - LEFT) / 4

    assert by_text == {"512": LEFT + step, "1,024": LEFT + 3 * step}
    (bar,) = (bar for bar in chart.bars if bar.text.startswith("val, 1,024"))
    assert by_text["1,024"] < bar.x < bar.x + bar.width < RIGHT


@pytest.mark.parametrize(
    ("chart", "rows"),
    [
        (
            aspect_chart([Series("a", {-1: 1, 0: 2, 1: 1, 4: 1})]),
            ["0.841 – 1", "1 – 1.19", "1.19 – 1.41", "2 – 2.38"],
        ),
        (
            bytes_chart([Series("a", {34: 1, 39: 1, 0: 1})]),
            ["1 B – 2 B", "131 kB – 185 kB", "741 kB – 1.05 MB"],
        ),
        (
            box_chart([Series("a", {0: 1, -1: 1, -4: 1})]),
            ["25 % – 35.4 %", "70.7 % – 100 %", "100 %"],
        ),
        (
            object_chart([Series("a", {0: 1, 3: 1, 16: 1, 64: 1})]),
            ["0", "3", "16 – 31", "64 – 127"],
        ),
    ],
)
def test_bins_are_called_by_their_values(chart: Chart, rows: list[str]) -> None:
    assert [row[0] for row in chart.rows] == rows


def test_more_than_three_splits_are_lines_and_more_than_eight_are_rows_alone() -> None:
    chart = width_chart([Series(f"split {n}", {18: n + 1}) for n in range(10)])

    assert (len(chart.bars), len(chart.curves), len(chart.series)) == (0, 8, 8)
    assert len(chart.rows[0]) == 1 + 2 * 10
    heights = {float(p.split(",")[1]) for p in chart.curves[3].points.split()}
    assert heights == {TOP, BOTTOM}


@given(st.dictionaries(st.integers(-(10**12), 10**12), st.integers(1, 10**15), min_size=1))
def test_no_count_is_lost_whatever_the_bins(histogram: dict[int, int]) -> None:
    for make in (width_chart, aspect_chart, bytes_chart, box_chart):
        chart = make([Series("a", histogram)])
        counts = [int(row[1].replace(",", "")) for row in chart.rows]

        assert sum(counts) == sum(histogram.values())
        assert len(chart.bars) == len(counts) <= 60
        assert all(inside(bar) for bar in chart.bars)


def inside(bar: Bar) -> bool:
    return LEFT <= bar.x < bar.x + bar.width <= RIGHT + 0.1 and TOP <= bar.y < BOTTOM


@given(st.dictionaries(st.integers(0, 2**63), st.integers(1, 10**15), min_size=1))
def test_no_record_is_lost_whatever_the_numbers_of_objects(histogram: dict[int, int]) -> None:
    chart = object_chart([Series("a", histogram)])

    assert sum(int(row[1].replace(",", "")) for row in chart.rows) == sum(histogram.values())
    assert all(inside(bar) for bar in chart.bars)


@given(st.floats(1e-6, 1e12))
def test_axes_end_at_a_round_number_just_beyond(most: float) -> None:
    steps = nice_steps(most)

    assert 3 <= len(steps) <= 7
    assert steps[0] == 0 and steps[-2] < most * (1 + 1e-9) and steps[-1] >= most * (1 - 1e-9)


def test_ticks_never_lie_on_each_other() -> None:
    chart = width_chart([Series("a", {0: 1, 60: 1})])
    places = [tick.at for tick in chart.x_ticks]

    assert all(b - a >= 46 for a, b in pairwise(places))
    assert spread_ticks([]) == []


def test_classes_are_sorted_and_compared() -> None:
    train = Statistics(class_records={1: 5, 2: 1000, 7: 30}, class_objects={1: 9, 2: 1001, 7: 30})
    val = Statistics(class_records={1: 25, 2: 10}, class_objects={1: 25, 2: 11})
    classes = list_classes([("train", train), ("val", val)], {1: "cat", 2: "dog", 3: "bird"})

    assert [(r.rank, r.label, r.name, r.total, r.records, r.objects) for r in classes.frequent] == [
        (1, 2, "dog", 1010, (1000, 10), (1001, 11)),
        (2, 1, "cat", 30, (5, 25), (9, 25)),
        (3, 7, "", 30, (30, 0), (30, 0)),
        (4, 3, "bird", 0, (0, 0), (0, 0)),
    ]
    assert (classes.number, classes.absent, classes.left_out) == (4, 1, 0)
    assert [row.bars[0] == 100 for row in classes.frequent] == [True, False, False, False]
    assert classes.curve is None


def test_bars_of_classes_and_their_ticks_are_on_one_scale() -> None:
    counts = {n: 10**n for n in range(5)}
    classes = list_classes([("a", Statistics(class_records=counts))], {})
    bars = {row.records[0]: row.bars[0] for row in classes.frequent}

    assert {tick.text for tick in classes.ticks} == {"1", "10", "100", "1k", "10k"}
    for tick, count in zip(classes.ticks, sorted(bars), strict=True):
        assert tick.at == bars[count]


def test_a_long_tail_is_a_curve_by_rank() -> None:
    counts = {n: math.ceil(50_000 / n) for n in range(1, 1204)}
    curve = list_classes([("a", Statistics(class_records=counts))], {}).curve

    assert curve is not None
    points = [tuple(map(float, p.split(","))) for p in curve.curves[0].points.split()]
    assert points[0][0] == LEFT and points[-1][0] == RIGHT
    assert points == sorted(points) and 100 < len(points) < 200
    assert [row[0] for row in curve.rows][-3:] == ["500", "1,000", "1,203"]
    assert dict(curve.rows)["10"] == "5,000"
    tick = next(tick for tick in curve.x_ticks if tick.text == "10")
    (y,) = (y for x, y in points if x == tick.at)
    ticks = {tick.text: tick.at for tick in curve.y_ticks}
    half = ticks["1k"] + (ticks["10k"] - ticks["1k"]) * math.log10(5)
    assert y == pytest.approx(half, abs=0.2)


def test_sixteen_shards_have_a_bar_each() -> None:
    shards = [ShardFacts(f"s{n}", 10, 1000 * (n + 1)) for n in range(16)]
    chart = shard_size_chart("train", shards)

    assert len(chart.bars) == 16 and not chart.whiskers
    assert chart.bars[3].text == "shard 3: 4 kB"
    assert chart.bars[15].height == pytest.approx((BOTTOM - TOP) * 16 / 20, abs=0.1)
    assert chart.rows[0] == ["s0", "10", "1 kB"]
    assert chart.notes == ["1 kB to 16 kB, the largest 88.2 % over the mean"]


def test_of_4096_shards_the_odd_one_is_seen() -> None:
    shards = made_shards("train", 4096, 512)
    shards[1000] = ShardFacts("odd", 512, 10 * shards[0].bytes, 1, 640.0)
    size, shuffle = shard_size_chart("train", shards), shuffle_chart("train", shards)

    assert shuffle is not None
    assert len(size.bars) == len(size.whiskers) == len(shuffle.whiskers) <= 96
    assert min(w.high for w in size.whiskers) == pytest.approx(size.y_ticks[-1].at, abs=40)
    assert sorted(w.low for w in shuffle.whiskers)[-1] == pytest.approx(BOTTOM, abs=1)
    assert (len(size.rows), size.more_rows) == (100, 3996)
    assert size.x_ticks[-1].text == "4,095"


def test_shuffle_is_runs_against_those_of_a_uniform_shuffle() -> None:
    shards = [ShardFacts("a", 9, 9, 50, 100.0), ShardFacts("b", 9, 9, 100, 100.0)]
    chart = shuffle_chart("train", [*shards, ShardFacts("c", 9, 9)])

    assert chart is not None and chart.rule is not None
    assert [row[3] for row in chart.rows] == ["0.500", "1.000"]
    assert chart.notes == ["0.750 over all shards"]
    sorted_one, shuffled = chart.whiskers
    assert shuffled.mean == chart.rule
    assert {tick.text: tick.at for tick in chart.y_ticks}["0.5"] == sorted_one.mean
    assert shuffle_chart("train", [ShardFacts("c", 9, 9)]) is None


def test_made_up_sizes_are_spread() -> None:
    assert len(Counter(shard.bytes for shard in made_shards("train", 64, 512))) == 64
