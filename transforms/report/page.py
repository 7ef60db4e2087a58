"""The page: one HTML file that needs no network.

Strangers' texts reach it as text only: the template escapes them, and characters that cannot be
seen are made visible. Its policy allows the one script and style sheet in it, by their digests, and
pictures in it. Equal reports have equal bytes.
"""

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from schemas.documents.markdown import seen
from schemas.documents.seals import BLANK_SEAL, is_sealed, sealed
from schemas.faults import FAULTS
from transforms.images.findings import TRAITS
from transforms.quantities import bytes_text
from transforms.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    count_text,
    make_charts,
)
from transforms.report.contents import Counts, Report, SplitReport
from transforms.report.tiles import class_name, make_tiles
from transforms.storage import Storage

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_REPORT_BYTES = 64 << 20
"""A larger file is not a report of ours, and is not read to find out."""

_PACKAGE = "transforms.report"
_ASSETS = "assets"
_MARKER = f"<!-- {BLANK_SEAL}: made by beam-tfrec; once edited it is yours, and stays -->\n"
_MOST_CHARACTERS = 300  # of any text; file names have 255 bytes
_MOST_SPLITS = 24
_MOST_ROWS = 100
_MOST_CLASSES = 1000
_WHOLE = "all records"  # shown for a split without a name
_PRIVATE = {
    "gps": "with GPS positions in their EXIF data",
    "serial": "with serial numbers of cameras or lenses in their EXIF data",
}
_TABLES = {
    "Samples rejected": "rejected",
    "Annotations dropped": "dropped",
    "Unusual pictures": "traits",
    "Mended": "repairs",
    "Licenses of pictures": "licenses",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Cut(Generic[T]):
    """The first of many, and how many are left out."""

    shown: Sequence[T]
    more: int


@dataclass(frozen=True)
class CountRow:
    """Counts of each split, with a meaning if the name has one."""

    name: str
    meaning: str
    counts: Sequence[int]
    is_private: bool = False


@dataclass(frozen=True)
class CountTable:
    """Counts by name and split."""

    title: str
    rows: Cut[CountRow]


@dataclass(frozen=True)
class ClassRow:
    """A class: records that hold it in each split, objects in all, and the length of its bar."""

    label: int
    name: str
    records: Sequence[int]
    objects: int
    bar: float


def report_file(report: Report) -> bytes:
    """Return the bytes of `report.html`, sealed so that an edited one is known as the user's."""
    return sealed(_MARKER + render_page(report).decode()).encode()


def is_own_report(storage: Storage, name: str) -> bool:
    """Return whether a file is there and is an unedited report of this program."""
    there = storage.stat(name)
    if there is None or there.kind != "file" or there.size_bytes > MAX_REPORT_BYTES:
        return False
    return is_sealed(storage.read(name))


def render_page(report: Report) -> bytes:
    """Return a report as HTML, UTF-8."""
    style, script = _asset("page.css"), _asset("page.js")
    text = (
        _environment()
        .get_template("page.html.j2")
        .render(
            view=make_view(report), style=style, script=script, policy=content_policy(style, script)
        )
    )
    return text.lstrip().encode()


def content_policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy of a page with this style sheet and script alone."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}';"
        f" script-src '{_digest(script)}'; base-uri 'none'; form-action 'none';"
        " require-trusted-types-for 'script'; trusted-types 'none'"
    )


def make_view(report: Report) -> dict[str, Any]:
    """Return the values that the template shows, with long lists cut."""
    splits = report.splits[:_MOST_SPLITS]
    more = len(report.splits) - len(splits)
    classes = _classes(report.splits, report.class_names)
    absent = {*report.class_names}.difference(*(split.class_records for split in report.splits))
    flow = {"Samples": [s.sums for s in splits], "Annotations": [s.annotations for s in splits]}
    found = {title: [getattr(s, name) for s in splits] for title, name in _TABLES.items()}
    return {
        "report": report,
        "totals": _totals(report),
        "private": list(_private(report.splits)),
        "splits": [split.name or _WHOLE for split in splits],
        "tables": [*_tables(flow), *_tables(found)],
        "rejects": _cut([(_meaning(reject.code), reject) for reject in report.rejects]),
        "tiles": make_tiles(report.pictures, [s.name for s in splits], report.class_names),
        "charts": make_charts([(s.name or _WHOLE, s.histograms) for s in splits]),
        "classes": _cut(classes, _MOST_CLASSES),
        "absent": len(absent),
        "features": _cut(report.features),
        "sources": _cut(report.sources),
        "options": _cut(report.options),
        "notes": _cut([*report.notes, *([f"{more} more splits are not shown"] if more else [])]),
    }


def _totals(report: Report) -> list[tuple[str, str]]:
    splits = report.splits
    rejected = sum(count for split in splits for _, count in split.rejected)
    labels = {label for split in splits for label in split.class_records} | set(report.class_names)
    objects = sum(n * count for s in splits for n, count in s.histograms.get("objects", {}).items())
    counts = {
        "splits": len(splits) if len(splits) > 1 else 0,
        "classes": len(labels),
        "objects": objects,
        "rejected": rejected,
    }
    return [
        ("records", count_text(sum(split.records for split in splits))),
        ("shards", count_text(sum(split.shards for split in splits))),
        ("size of shards", bytes_text(sum(split.bytes for split in splits))),
        *((name, count_text(count)) for name, count in counts.items() if count),
    ]


def _private(splits: Sequence[SplitReport]) -> Iterator[str]:
    for part, what in _PRIVATE.items():
        count = sum(n for split in splits for name, n in split.traits if part in name)
        if count:
            yield f"{count_text(count)} {'picture' if count == 1 else 'pictures'} {what}"


def _tables(titles: Mapping[str, Sequence[Counts]]) -> Iterator[CountTable]:
    """Yield a table for each title that has counts: steps in their order, all else by name."""
    for title, counts_of_splits in titles.items():
        names = dict.fromkeys(name for counts in counts_of_splits for name, _ in counts)
        by_split = [dict(counts) for counts in counts_of_splits]
        is_unusual = title == "Unusual pictures"
        rows = [
            CountRow(
                name,
                _meaning(name),
                [counts.get(name, 0) for counts in by_split],
                is_unusual and any(part in name for part in _PRIVATE),
            )
            for name in names
        ]
        if rows:
            yield CountTable(title, _cut(sorted(rows, key=lambda row: not row.is_private)))


def _classes(splits: Sequence[SplitReport], names: Mapping[int, str]) -> list[ClassRow]:
    """Return the classes of all splits, the most frequent first; of equals, the lowest label."""
    labels = {label for split in splits for label in split.class_records} | set(names)
    records = {label: [split.class_records.get(label, 0) for split in splits] for label in labels}
    most = max((sum(row) for row in records.values()), default=0) or 1
    return [
        ClassRow(
            label,
            class_name(label, names),
            records[label][:_MOST_SPLITS],
            sum(split.class_objects.get(label, 0) for split in splits),
            round(100 * sum(records[label]) / most, 1),
        )
        for label in sorted(labels, key=lambda label: (-sum(records[label]), label))
    ]


def _meaning(name: str) -> str:
    return FAULTS[name].meaning if name in FAULTS else TRAITS.get(name, "")


def _cut(items: Sequence[T], most: int = _MOST_ROWS) -> Cut[T]:
    return Cut(items[:most], max(0, len(items) - most))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset(name: str) -> str:
    """Return a file of the package, with the line ends that a browser hashes."""
    data = resources.files(_PACKAGE).joinpath(_ASSETS, name).read_bytes()
    return data.decode().replace("\r\n", "\n")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # takes 50 ms

    environment = Environment(
        loader=PackageLoader(_PACKAGE, _ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = count_text
    environment.globals.update(width=WIDTH, height=HEIGHT, left=LEFT, right=RIGHT, bottom=BOTTOM)
    return environment


def _finalize(value: Any) -> Any:
    """Make unseen characters of a text visible, before it is escaped; a template's text stays."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return seen(value, _MOST_CHARACTERS)
    return f"{value:g}" if isinstance(value, float) else value
