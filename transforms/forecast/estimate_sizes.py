"""Estimate how large shards get, from their outlines and the records that were tried."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from schemas.run_plan import ShardForecast
from schemas.samples import Sample
from transforms.forecast.outline_shards import ShardOutline
from transforms.forecast.try_records import Trial, Tried
from transforms.report.contents import MAX_PICTURES

Shard = tuple[str, int]
_ROW_BYTES = 40  # of the index: key and numbers, as a row of Parquet and a line of text
_SOURCE_BYTES = 130  # more in there for each source: name, pin and hash
_SMALL_FILES_BYTES = 40_000  # manifest without its shards, label map, schema and documents
_PICTURE_BYTES = 20_000  # of a report, at most: a small JPEG in Base64
_PAGE_BYTES = 100_000  # of a report, without its pictures
_RECEIPT_BYTES = 750  # and the shard's entry in the manifest


class Line(NamedTuple):
    """`base + slope * x`, what `y` is of about."""

    base: float
    slope: float

    def sum(self, count: int, total: float) -> float:
        """Return the sum over so many `x` of this total."""
        return self.base * count + self.slope * total


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Return the line of least squares through (x, y); it never falls, and is level for one x.

    >>> fit_line([(0, 10), (2, 14)]), fit_line([(3, 5), (3, 7)]), fit_line([])
    (Line(base=10.0, slope=2.0), Line(base=6.0, slope=0.0), Line(base=0.0, slope=1.0))
    """
    if not points:
        return Line(0.0, 1.0)
    count = len(points)
    mean_x, mean_y = (sum(values) / count for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    common = sum((x - mean_x) * (y - mean_y) for x, y in points)
    slope = max(0.0, common / spread) if spread else 0.0
    return Line(mean_y - slope * mean_x, slope)


def forecast_shards(
    outlines: Sequence[ShardOutline], trial: Trial, record_bytes: Callable[[Sample], int]
) -> dict[Shard, ShardForecast]:
    """Return about how large every shard gets.

    Tried records count as they came out. Of the others, where files pass as they are, what is
    beside the files is taken to depend on its estimate as that of tried ones does; else the whole
    record is. As many as of the tried ones are taken to be rejects.

    Args:
        outlines: of the shards.
        trial: of some of their samples.
        record_bytes: estimated size of a sample's record, which the outlines' are sums of.
    """
    known = [tried for tried in trial.tried if tried.bytes is not None]
    fit = [tried for tried in known if tried.rejected is None]
    beside = not trial.images_read
    line = fit_line([_point(tried, record_bytes, beside=beside) for tried in fit])
    written_share = len(fit) / len(known) if known else 1.0
    of_shard = _by_shard(known, outlines)
    forecasts: dict[Shard, ShardForecast] = {}
    for outline in outlines:
        tried = of_shard.get((outline.split, outline.index), [])
        left_bytes = outline.record_bytes - sum(record_bytes(each.sample) for each in tried)
        files_bytes = outline.source_bytes - sum(_files_bytes(each.sample) for each in tried)
        as_they_are = files_bytes if beside else 0
        others = line.sum(outline.records - len(tried), left_bytes - as_they_are) + as_they_are
        size = sum(each.bytes or 0 for each in tried) + written_share * max(0.0, others)
        forecasts[outline.split, outline.index] = ShardForecast(outline.records, round(size))
    return forecasts


def side_bytes(records: int, files: int, shards: int) -> int:
    """Return about how many bytes an output takes besides its shards: indexes, receipts, others."""
    return (
        records * _ROW_BYTES + files * _SOURCE_BYTES + shards * _RECEIPT_BYTES + _SMALL_FILES_BYTES
    )


def report_bytes(records: int, records_bytes: int) -> int:
    """Return about how large a run's report gets; 0 of no records.

    >>> report_bytes(2, 6_000), report_bytes(1000, 10**9), report_bytes(0, 0)
    (106000, 1540000, 0)
    """
    if not records:
        return 0
    pictures = min(records, MAX_PICTURES)
    return _PAGE_BYTES + pictures * min(records_bytes // records, _PICTURE_BYTES)


def _by_shard(tried: Iterable[Tried], outlines: Iterable[ShardOutline]) -> dict[Shard, list[Tried]]:
    shards = {
        (sample.split, sample.key): (outline.split, outline.index)
        for outline in outlines
        for sample in outline.tried
    }
    found: dict[Shard, list[Tried]] = {}
    for each in tried:
        found.setdefault(shards[each.sample.split, each.sample.key], []).append(each)
    return found


def _files_bytes(sample: Sample) -> int:
    return sum(blob.read_bytes for blob in sample.blobs)


def _point(
    tried: Tried, record_bytes: Callable[[Sample], int], *, beside: bool
) -> tuple[float, float]:
    files_bytes = _files_bytes(tried.sample) if beside else 0
    return record_bytes(tried.sample) - files_bytes, (tried.bytes or 0) - files_bytes
