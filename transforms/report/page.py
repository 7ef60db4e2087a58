"""The page: one HTML file that needs no network.

Strangers' texts reach it as text only: the template escapes them, and characters that cannot be
seen are made visible. Its policy allows the one script and style sheet in it, by their digests, and
pictures in it. Equal reports have equal bytes.
"""

import base64
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from schemas.documents.markdown import seen
from schemas.documents.seals import BLANK_SEAL, is_sealed, sealed
from schemas.faults import FAULTS, find_fault, printable
from schemas.manifest import REPORT_NAME, Manifest
from schemas.shown_values import bytes_text
from transforms.images.check_images import SAFE_PILLOW_MAJOR
from transforms.images.findings import TRAITS
from transforms.report import (
    MAX_PICTURES,
    Counts,
    Outline,
    Report,
    ShownPicture,
    SplitReport,
    class_color,
)
from transforms.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    count_text,
    make_charts,
)
from transforms.storage import Access, Storage, join_uri, open_storage

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

_LOG = logging.getLogger(__name__)

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


def write_report(root: str, access: Access) -> bool:
    """Make the report of a complete data set, where there is no file of that name.

    Returns whether there is a report now: a file of the user's is none.

    Args:
        root: path or URI of the data set.
        access: how its store is reached.
    """
    where = printable(join_uri(root, REPORT_NAME))
    try:
        output = open_storage(root, access)
        if output.stat(REPORT_NAME) is not None:
            _LOG.info("%s is there already, and is left as it is", where)
            return is_own_report(output, REPORT_NAME)
        most, notes = pictures_of_a_run(version("pillow"))
        from transforms.report.gather import make_report  # pyarrow takes 0.2 s

        report = make_report(root, access, most=most)
        page = report_file(replace(report, notes=[*report.notes, *notes]))
        output.create(REPORT_NAME, page)  # else a twin has made it meanwhile
        return True
    except Exception as error:  # of memory too: the data set is complete, and is not to fail by it
        _LOG.warning(
            "no report: %s; the data set is complete; to make it: beam-tfrec report %s",
            _told(error),
            printable(root),
        )
        _LOG.debug("no report", exc_info=True)
    return False


def pictures_of_a_run(pillow: str) -> tuple[int, tuple[str, ...]]:
    """Return how many records the report of a run shows, and notes for it.

    A run does not hand photos to a decoder with a known hole unless the user asks for it.

    >>> pictures_of_a_run("13.0.0")
    (72, ())
    >>> pictures_of_a_run("12.1.0")[0]
    0
    """
    if int(pillow.partition(".")[0]) >= SAFE_PILLOW_MAJOR:
        return MAX_PICTURES, ()
    what = f"no pictures: Pillow {pillow} has a critical JPEG overflow (CVE-2026-112403)"
    remedy = f"install pillow>={SAFE_PILLOW_MAJOR}, then make it anew"
    return 0, (f"{what}; {remedy} with beam-tfrec report",)


def has_report(root: str, access: Access) -> bool:
    """Return whether a data set has a report of ours; a file of the user's in its place is none."""
    return is_own_report(open_storage(root, access), REPORT_NAME)


def _told(error: Exception) -> str:
    """Return what went wrong, on a line; of a fault its line without the code: it ends no run."""
    fault = find_fault(str(error))
    text = str(error) if fault is None else fault[1].partition(" ")[2]
    named = text if fault is not None else f"{type(error).__name__}: {text}".removesuffix(": ")
    return printable(" ".join(named.split()))


def with_report(manifest: Manifest, output: str, access: Access) -> Manifest:
    """Return the manifest that was written, once there is a report or a warning."""
    write_report(output, access)
    return manifest


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


TILE_PX = (232, 174)
"""Largest width and height of a tile's picture."""

_MOST_ENLARGED = 6  # times
_LABELED = 3  # outlines with a text on the tile; the enlarged picture has all
_MOST_CAPTIONS = 8


@dataclass(frozen=True)
class Mark:
    """An outline in percents of the picture.

    Attributes:
        color: of lines.
        ink: of text on that color.
        text: name to show; may be empty.
        box: left, top, width, height; None for none.
        points: x and y of keypoints.
        anchor: x and y of the text, and whether it starts or ends there.
        is_below: whether the text is below the box's upper edge, for lack of room.
        is_minor: whether only the enlarged picture has the text.
    """

    color: str
    ink: str
    text: str
    box: tuple[str, ...] | None
    points: tuple[tuple[str, str], ...]
    anchor: tuple[str, str, str]
    is_below: bool
    is_minor: bool


@dataclass(frozen=True)
class Tile:
    """A picture.

    Attributes:
        id: of the HTML element.
        split: place of its split; -1 for none.
        picture: the picture itself.
        uri: its JPEG.
        mask_uri: its masks; empty for none.
        size_px: of the tile.
        is_coarse: whether it is enlarged so much that pixels show.
        alt: its content in words.
        marks: to draw.
        labels: id, name and color of its classes.
        captions: texts.
    """

    id: str
    split: int
    picture: ShownPicture
    uri: str
    mask_uri: str
    size_px: tuple[int, int]
    is_coarse: bool
    alt: str
    marks: Sequence[Mark]
    labels: Sequence[tuple[int, str, str]]
    captions: Sequence[str]


@dataclass(frozen=True)
class Tiles:
    """All pictures.

    Attributes:
        tiles: in order.
        labels: id and name of the classes on them, by name.
    """

    tiles: Sequence[Tile]
    labels: Sequence[tuple[int, str]]

    @property
    def has_boxes(self) -> bool:
        """Whether there is any box."""
        return any(mark.box for tile in self.tiles for mark in tile.marks)

    @property
    def has_points(self) -> bool:
        """Whether there is any keypoint."""
        return any(mark.points for tile in self.tiles for mark in tile.marks)

    @property
    def has_masks(self) -> bool:
        """Whether there is any mask."""
        return any(tile.mask_uri for tile in self.tiles)


def make_tiles(
    pictures: Sequence[ShownPicture], splits: Sequence[str], names: Mapping[int, str]
) -> Tiles:
    """Return the tiles of pictures."""
    shown = [make_tile(n, picture, splits, names) for n, picture in enumerate(pictures)]
    labels = {label[:2] for tile in shown for label in tile.labels}
    by_name = sorted(labels, key=lambda found: (found[1].casefold(), found))
    return Tiles(shown, by_name)


def make_tile(
    number: int, picture: ShownPicture, splits: Sequence[str], names: Mapping[int, str]
) -> Tile:
    """Return the tile of a picture."""
    width, height = picture.size_px
    scale = min(TILE_PX[0] / width, TILE_PX[1] / height, _MOST_ENLARGED)
    drawn = [outline for outline in picture.outlines if outline.box or outline.keypoints]
    areas = sorted((_area(outline) for outline in drawn), reverse=True)
    marks = [
        _mark(outline, height, names, _area(outline) < areas[:_LABELED][-1]) for outline in drawn
    ]
    return Tile(
        f"p{number}",
        splits.index(picture.split) if picture.split in splits else -1,
        picture,
        _data_uri("jpeg", picture.jpeg),
        _data_uri("png", picture.mask) if picture.mask else "",
        (max(1, round(width * scale)), max(1, round(height * scale))),
        scale >= 2,
        _alt(picture, names),
        marks,
        [(label, class_name(label, names), class_color(label)) for label in picture.labels],
        picture.captions[:_MOST_CAPTIONS],
    )


def ink_on(color: str) -> str:
    """Return black or white, whichever is easier to read on a color.

    >>> ink_on("#163d9c"), ink_on("#9be236")
    ('#fff', '#000')
    """
    levels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#fff" if luminance < 0.179 else "#000"


def class_name(label: int, names: Mapping[int, str]) -> str:
    """Return the name of a class, or its number."""
    return names.get(label) or f"class {label}"


def _data_uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _mark(outline: Outline, height_px: int, names: Mapping[int, str], is_minor: bool) -> Mark:
    color = class_color(outline.label)
    box, points = outline.box, outline.keypoints
    x, y = (box[0], box[1]) if box else min(points, key=lambda point: point[1])
    is_right = x > 0.6
    side = box[0] + box[2] if box and is_right else x
    return Mark(
        color,
        ink_on(color),
        _outline_text(outline, names),
        tuple(map(_percents, box)) if box else None,
        tuple((_percents(px), _percents(py)) for px, py in points),
        (_percents(side), _percents(max(y, 0.0)), "end" if is_right else "start"),
        y * height_px < 26,
        is_minor,
    )


def _outline_text(outline: Outline, names: Mapping[int, str]) -> str:
    return outline.text or ("" if outline.label is None else class_name(outline.label, names))


def _area(outline: Outline) -> float:
    return outline.box[2] * outline.box[3] if outline.box else 0.0


def _percents(part: float) -> str:
    """Return a part in percents, to a hundredth.

    >>> _percents(0.125), _percents(1 / 3), _percents(-0.0)
    ('12.5%', '33.33%', '0%')
    """
    return f"{round(100 * part, 2) + 0.0:.9g}%"


def _alt(picture: ShownPicture, names: Mapping[int, str]) -> str:
    """Return the content of a picture: objects by class, else its classes."""
    objects = Counter(_outline_text(outline, names) or "object" for outline in picture.outlines)
    found = [f"{count_text(count)} × {name}" for name, count in sorted(objects.items())]
    what = found or [class_name(label, names) for label in picture.labels]
    more = f" and {len(what) - 8} more" if len(what) > 8 else ""
    return f"{picture.key}: {', '.join(what[:8])}{more}" if what else picture.key
