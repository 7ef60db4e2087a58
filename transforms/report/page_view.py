"""What the page's template is given: a report's numbers as tables, charts and sheets.

Texts are still as strangers wrote them; the template escapes them. Lists that may be long are cut
here, and tell how much was left out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from schemas.faults import FAULTS, Rejected
from schemas.statistics import Statistics
from transforms.images.findings import TRAITS
from transforms.quantities import bytes_text
from transforms.report.charts import (
    Chart,
    Series,
    aspect_chart,
    box_chart,
    bytes_chart,
    height_chart,
    object_chart,
    width_chart,
)
from transforms.report.class_charts import Classes, list_classes
from transforms.report.contents import Report, SplitReport
from transforms.report.figures import count_text
from transforms.report.shard_charts import shard_size_chart, shuffle_chart
from transforms.report.tiles import Sheets, make_sheets

T = TypeVar("T")

MOST_SPLITS = 24
MOST_ROWS = 60  # of counts
MOST_FEATURES = 300
MOST_LINES = 100  # sources, options, notes
MOST_EXAMPLES = 8  # of a reason
MOST_REASONS = 40

_WHOLE = "all records"  # what a split without a name is called
_CHARTS: tuple[tuple[Callable[[Sequence[Series]], Chart], str], ...] = (
    (width_chart, "widths_px"),
    (height_chart, "heights_px"),
    (aspect_chart, "aspects"),
    (bytes_chart, "image_bytes"),
    (object_chart, "objects"),
    (box_chart, "box_sides"),
)
_PRIVATE = {
    "gps": "with GPS positions in their EXIF data",
    "serial": "with serial numbers of cameras or lenses in their EXIF data",
}


@dataclass(frozen=True)
class Cut(Generic[T]):
    """The first of many.

    Attributes:
        shown: they.
        more: how many are left out.
    """

    shown: Sequence[T]
    more: int


@dataclass(frozen=True)
class Step:
    """A step on the way from what was listed to what was written.

    Attributes:
        name: of it.
        count: of samples or annotations.
        part: of the largest, 0 to 100.
    """

    name: str
    count: int
    part: float


@dataclass(frozen=True)
class Flow:
    """A split's steps: of samples, and of annotations."""

    split: str
    samples: Sequence[Step]
    annotations: Sequence[Step]


@dataclass(frozen=True)
class CountRow:
    """A name with its counts: in each split, and in all."""

    name: str
    meaning: str
    counts: Sequence[int]
    total: int
    is_private: bool


@dataclass(frozen=True)
class CountTable:
    """Counts by name and split."""

    title: str
    rows: Cut[CountRow]


@dataclass(frozen=True)
class Reason:
    """Examples of what was rejected for a reason."""

    code: str
    meaning: str
    examples: Cut[Rejected]


@dataclass(frozen=True)
class PageView:
    """All that the template shows.

    Attributes:
        title: of the page.
        layout: of the records.
        totals: name, value.
        private: what pictures tell of people, in sentences.
        splits: their names.
        more_splits: those not shown.
        flows: of each split that has any.
        left_out: counts of rejects and drops.
        reasons: examples.
        found: counts of repairs, traits, formats, licenses.
        sheets: pictures.
        charts: histograms.
        classes: None where there are none.
        sizes: charts of shards.
        shuffles: likewise.
        features: key, kind, how many values, and meaning.
        sources, options, versions, notes: as in the report.
    """

    title: str
    layout: str
    totals: Sequence[tuple[str, str]]
    private: Sequence[str]
    splits: Sequence[str]
    more_splits: int
    flows: Sequence[Flow]
    left_out: Sequence[CountTable]
    reasons: Cut[Reason]
    found: Sequence[CountTable]
    sheets: Sheets
    charts: Sequence[Chart]
    classes: Classes | None
    sizes: Sequence[Chart]
    shuffles: Sequence[Chart]
    features: Cut[tuple[str, str, str, str]]
    sources: Cut[str]
    options: Cut[tuple[str, str]]
    versions: Cut[tuple[str, str]]
    notes: Cut[str]


def make_view(report: Report) -> PageView:
    """Return what the template shows of a report."""
    splits = report.splits[:MOST_SPLITS]
    named = [(split.name or _WHOLE, split.statistics) for split in splits]
    names = [name for name, _ in named]
    has_classes = any(s.class_records or s.class_objects for _, s in named)
    shuffles = [shuffle_chart(split.name or _WHOLE, split.shards) for split in splits]
    return PageView(
        report.title,
        report.layout,
        _totals(report),
        list(_private(report.splits)),
        names,
        len(report.splits) - len(splits),
        [_flow(split) for split in splits if split.sums or split.annotations],
        [*_tables(splits, {"Samples rejected": "rejected", "Annotations dropped": "dropped"})],
        _reasons(report.rejects),
        [*_formats(named), *_tables(splits, _FOUND)],
        make_sheets(report.pictures, [split.name for split in splits], report.class_names),
        [*_charts(named)],
        list_classes(named, report.class_names) if has_classes else None,
        [shard_size_chart(s.name or _WHOLE, s.shards) for s in splits if s.shards],
        [chart for chart in shuffles if chart is not None],
        _cut(report.features, MOST_FEATURES),
        _cut(report.sources, MOST_LINES),
        _cut(report.options, MOST_LINES),
        _cut(report.versions, MOST_LINES),
        _cut(report.notes, MOST_LINES),
    )


_FOUND = {
    "Unusual pictures": "traits",
    "Mended": "repairs",
    "Licenses of pictures": "licenses",
}


def _totals(report: Report) -> list[tuple[str, str]]:
    """Return what a data set is in a few numbers, those of all splits."""
    statistics = [split.statistics for split in report.splits]
    shards = [shard for split in report.splits for shard in split.shards]
    rejected = sum(count for split in report.splits for _, count in split.rejected)
    labels = {label for s in statistics for label in (*s.class_records, *s.class_objects)}
    labels |= report.class_names.keys()
    objects = sum(sum(s.class_objects.values()) + s.unlisted_class_objects for s in statistics)
    more = "+" if any(s.unlisted_class_records for s in statistics) else ""
    totals = [
        ("records", count_text(sum(s.records for s in statistics))),
        ("shards", count_text(len(shards))),
        ("size of shards", bytes_text(sum(shard.bytes for shard in shards))),
    ]
    totals += [("splits", count_text(len(report.splits)))] if len(report.splits) > 1 else []
    totals += [("classes", count_text(len(labels)) + more)] if labels else []
    totals += [("objects", count_text(objects))] if objects else []
    return [*totals, ("rejected", count_text(rejected))] if rejected else totals


def _private(splits: Iterable[SplitReport]) -> Iterable[str]:
    for part, what in _PRIVATE.items():
        count = sum(n for split in splits for name, n in split.traits if part in name)
        if count:
            yield f"{count_text(count)} {'picture' if count == 1 else 'pictures'} {what}"


def _flow(split: SplitReport) -> Flow:
    return Flow(split.name or _WHOLE, _steps(split.sums), _steps(split.annotations))


def _steps(sums: Sequence[tuple[str, int]]) -> list[Step]:
    most = max((count for _, count in sums), default=0)
    return [
        Step(name, count, round(100 * max(count, 0) / most, 2) if most > 0 else 0.0)
        for name, count in sums
    ]


def _tables(splits: Sequence[SplitReport], attributes: Mapping[str, str]) -> Iterable[CountTable]:
    for title, attribute in attributes.items():
        counts = [dict(getattr(split, attribute)) for split in splits]
        if any(counts):
            yield _count_table(title, counts)


def _formats(named: Sequence[tuple[str, Statistics]]) -> Iterable[CountTable]:
    if any(s.formats for _, s in named):
        yield _count_table("Picture formats", [s.formats for _, s in named])


def _count_table(title: str, counts: Sequence[Mapping[str, int]]) -> CountTable:
    """Return counts by name, the largest first; of equals, by name."""
    rows = [
        CountRow(
            name,
            _meaning(name),
            [found.get(name, 0) for found in counts],
            sum(found.get(name, 0) for found in counts),
            title == "Unusual pictures" and any(part in name for part in _PRIVATE),
        )
        for name in sorted({name for found in counts for name in found})
    ]
    rows.sort(key=lambda row: (not row.is_private, -row.total))
    return CountTable(title, _cut(rows, MOST_ROWS))


def _meaning(name: str) -> str:
    return FAULTS[name].meaning if name in FAULTS else TRAITS.get(name, "")


def _reasons(rejects: Sequence[Rejected]) -> Cut[Reason]:
    codes = dict.fromkeys(rejected.code for rejected in rejects)
    reasons = [
        Reason(code, _meaning(code), _cut([r for r in rejects if r.code == code], MOST_EXAMPLES))
        for code in codes
    ]
    return _cut(reasons, MOST_REASONS)


def _charts(named: Sequence[tuple[str, Statistics]]) -> Iterable[Chart]:
    for make, attribute in _CHARTS:
        series = [Series(name, getattr(statistics, attribute)) for name, statistics in named]
        if any(histogram for _, histogram in series):
            yield make(series)


def _cut(items: Sequence[T], most: int) -> Cut[T]:
    return Cut(items[:most], max(0, len(items) - most))
