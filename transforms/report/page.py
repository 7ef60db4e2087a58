"""Render the page: one HTML file that needs no network.

Texts of data sets are not trusted: the template escapes them, and makes invisible characters
visible. The content policy allows only the embedded pictures, and the script and style sheet by
their digests. Equal reports have equal bytes. Positions on pictures are percentages, so boxes fit
at every size.
"""

import base64
import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from beam_tfrec.schemas.documents.data_card import BLANK_SEAL, sealed, seen, template_environment
from beam_tfrec.schemas.faults import FAULTS, bytes_text, find_fault, printable
from beam_tfrec.schemas.manifest import REPORT_NAME, Annotations, Manifest, SplitSummary
from beam_tfrec.transforms.images.check_images import SAFE_PILLOW_MAJOR
from beam_tfrec.transforms.images.findings import TRAITS
from beam_tfrec.transforms.output_files import is_own_document
from beam_tfrec.transforms.report import (
    MAX_PICTURES,
    Outline,
    Report,
    ShownPicture,
    SplitReport,
    class_color,
    class_name,
)
from beam_tfrec.transforms.report.charts import make_charts
from beam_tfrec.transforms.storage import Access, join_uri, open_storage

if TYPE_CHECKING:
    from jinja2 import Environment

TILE_PX = (232, 174)
"""Largest width and height of a tile's picture."""

_LOG = logging.getLogger(__name__)
_MARKER = f"<!-- {BLANK_SEAL}: made by beam-tfrec; once edited it is yours, and stays -->\n"
_MOST_CHARACTERS = 300  # per text; file names have at most 255 bytes
_MOST_ENLARGED = 6  # times
_SHOWN_IN_ALT = 8
_WHOLE = "all records"  # name of a split without a name
_PRIVATE = {
    "gps": "with GPS positions in the EXIF data",
    "serial": "with serial numbers of cameras or lenses in the EXIF data",
}


class ClassRow(NamedTuple):
    """A class: number of records per split, number of objects, and length of its bar in percent."""

    label: int
    name: str
    records: Sequence[int]
    objects: int
    bar: float


class Mark(NamedTuple):
    """An outline and the position of its text.

    Attributes:
        outline: outline to draw.
        anchor: x and y of the text, as fractions of the picture.
        css: CSS classes of the text: its side, and `below` if there is no room above the box.
    """

    outline: Outline
    anchor: tuple[float, float]
    css: str


class Tile(NamedTuple):
    """A picture on the page.

    Attributes:
        picture: picture to show.
        split: number of the split, from 0.
        size_px: width and height of the tile.
        is_coarse: whether the enlargement makes single pixels visible.
        alt: description of the content.
        marks: outlines to draw.
        labels: id and name of each class.
    """

    picture: ShownPicture
    split: int
    size_px: tuple[int, int]
    is_coarse: bool
    alt: str
    marks: Sequence[Mark]
    labels: Sequence[tuple[int, str]]


def write_report(root: str, access: Access) -> bool:
    """Write the report of a complete data set, unless a file of that name exists.

    The manifest is the commit point, so a failure here does not fail the run. It is logged with the
    command that writes the report later.

    Args:
        root: path or URI of the data set.
        access: settings for the store.

    Returns:
        Whether the output now has an unedited report of this program.
    """
    where = printable(join_uri(root, REPORT_NAME))
    try:
        output = open_storage(root, access)
        if output.stat(REPORT_NAME) is not None:
            _LOG.info("%s exists already, and is not changed", where)
            return is_own_document(output, REPORT_NAME)
        from beam_tfrec.transforms.report.gather import make_report  # pyarrow takes 0.2 s

        pillow = version("pillow")
        is_safe = int(pillow.partition(".")[0]) >= SAFE_PILLOW_MAJOR
        report = make_report(root, access, most=MAX_PICTURES if is_safe else 0)
        if not is_safe:  # no unasked decoding with a known vulnerability
            what = f"no pictures: Pillow {pillow} has a critical JPEG overflow (CVE-2026-112403)"
            remedy = f"install pillow>={SAFE_PILLOW_MAJOR}, then run beam-tfrec report"
            report = replace(report, notes=[*report.notes, f"{what}; {remedy}"])
        output.create(REPORT_NAME, render_page(report))  # False if another run was faster
        return True
    except Exception as error:  # also MemoryError: the data set is complete
        fault = find_fault(str(error))
        # A fault's code is left out, since it would set the exit code.
        what = printable(repr(error) if fault is None else fault[1].partition(" ")[2])
        remedy = f"beam-tfrec report {printable(root)}"
        _LOG.error("no report: %s; the data set is complete; to write it: %s", what, remedy)
        _LOG.debug("no report", exc_info=True)
    return False


def with_report(manifest: Manifest, output: str, access: Access) -> Manifest:
    """Write the report, or log an error; return the manifest."""
    write_report(output, access)
    return manifest


def render_page(report: Report) -> bytes:
    """Return the bytes of `report.html`, with a seal that shows later edits."""
    environment = page_environment()
    assets = resources.files(__package__) / "assets"
    style, script = (assets.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    template = environment.get_template("page.html.j2")
    page = template.render(make_view(report), style=style, script=script)
    return sealed(_MARKER + page.strip() + "\n").encode()


def make_view(report: Report) -> dict[str, Any]:
    """Return the values for the template."""
    splits, names = report.splits, report.class_names
    split_names = [split.name for split in splits]
    tiles = [make_tile(picture, split_names, names) for picture in report.pictures]
    outlines = [outline for picture in report.pictures for outline in picture.outlines]
    labels = {label for tile in tiles for label in tile.labels}
    return {
        "report": report,
        "totals": _totals(report),
        "private": list(_private(splits)),
        "splits": [split.name or _WHOLE for split in splits],
        "tables": list(_tables(splits)),
        "tiles": tiles,
        "labels": sorted(labels, key=lambda found: (found[1].casefold(), found)),
        "has_boxes": any(outline.box for outline in outlines),
        "has_masks": any(picture.mask for picture in report.pictures),
        "has_points": any(outline.keypoints for outline in outlines),
        "charts": make_charts([(s.name or _WHOLE, s.histograms) for s in splits]),
        "classes": _classes(splits, names),
        "absent": len({*names}.difference(*(split.class_records for split in splits))),
    }


def make_tile(picture: ShownPicture, splits: Sequence[str], names: Mapping[int, str]) -> Tile:
    """Return the tile of a picture."""
    width, height = picture.size_px
    scale = min(TILE_PX[0] / width, TILE_PX[1] / height, _MOST_ENLARGED)
    drawn = [outline for outline in picture.outlines if outline.box or outline.keypoints]
    return Tile(
        picture,
        splits.index(picture.record.split),
        (max(1, round(width * scale)), max(1, round(height * scale))),
        scale >= 2,
        _alt(picture, names),
        [_mark(outline, height) for outline in drawn],
        [(label, class_name(label, names)) for label in picture.labels],
    )


def ink_on(color: str) -> str:
    """Return black or white, whichever has more contrast on a color.

    >>> ink_on("#163d9c"), ink_on("#9be236")
    ('#fff', '#000')
    """
    levels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels)
    return "#fff" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179 else "#000"


def _totals(report: Report) -> list[tuple[str, str]]:
    splits = report.splits
    labels = {label for split in splits for label in split.class_records} | set(report.class_names)
    counts = {
        "splits": len(splits) if len(splits) > 1 else 0,
        "classes": len(labels),
        "objects": sum(n * m for s in splits for n, m in s.histograms.get("objects", {}).items()),
        "rejected": sum(n for split in splits for n in split.summary.rejected.values()),
    }
    return [
        ("records", f"{sum(split.summary.records for split in splits):,}"),
        ("shards", f"{sum(split.summary.shards for split in splits):,}"),
        ("size of shards", bytes_text(sum(split.summary.bytes for split in splits))),
        *((name, f"{count:,}") for name, count in counts.items() if count),
    ]


def _private(splits: Sequence[SplitReport]) -> Iterator[str]:
    for part, what in _PRIVATE.items():
        traits = [item for split in splits for item in split.summary.traits.items()]
        if count := sum(number for name, number in traits if part in name):
            yield f"{count:,} {'picture' if count == 1 else 'pictures'} {what}"


def _tables(splits: Sequence[SplitReport]) -> Iterator[tuple[str, dict[str, list[int]]]]:
    """Yield each table with counts: its title, and its counts per split by row name."""
    by_split = [_counts(split.summary) for split in splits]
    for title in by_split[0]:
        tables = [counts[title] for counts in by_split]
        rows = {
            name: [counts.get(name, 0) for counts in tables] for table in tables for name in table
        }
        if rows:
            yield title, rows


def _counts(split: SplitSummary) -> dict[str, Mapping[str, int]]:
    """Return the counts of a split by table title."""
    fate = split.annotations
    samples = {
        "rejected before planning": split.rejected_before_planning,
        "rejected in shards": split.rejected_in_shards,
        "records": split.records,
    }
    annotations = {
        "dropped": sum(fate.dropped.values()),
        "lost with images": fate.lost,
        "written": fate.written,
    }
    return {
        "Samples": _steps(split, samples),
        "Annotations": _steps(fate, annotations),
        "Samples rejected": dict(sorted(split.rejected.items())),
        "Annotations dropped": dict(sorted(fate.dropped.items())),
        "Unusual pictures": dict(sorted(split.traits.items())),
        "Repaired": dict(sorted(split.repairs.items())),
        "Licenses of pictures": {
            found.name or f"license {found.id}": found.records for found in split.licenses
        },
    }


def _steps(found: SplitSummary | Annotations, last: Mapping[str, int]) -> Mapping[str, int]:
    """Return the counts from listed to written, in order; empty if nothing was listed."""
    gone = {
        "excluded": found.excluded,
        "in earlier data sets": found.earlier,
        **{f"skipped, {name}": count for name, count in sorted(found.skipped.items())},
    }
    steps = {"listed": found.listed, **gone, **last}
    ends = ("listed", "records", "written")
    kept = {name: count for name, count in steps.items() if count or name in ends}
    return kept if found.listed else {}


def _classes(splits: Sequence[SplitReport], names: Mapping[int, str]) -> list[ClassRow]:
    """Return the classes of all splits, sorted by falling number of records, then by label."""
    labels = {label for split in splits for label in split.class_records} | set(names)
    records = {label: [split.class_records[label] for split in splits] for label in labels}
    most = max((sum(row) for row in records.values()), default=0) or 1
    return [
        ClassRow(
            label,
            class_name(label, names),
            records[label],
            sum(split.class_objects[label] for split in splits),
            round(100 * sum(records[label]) / most, 1),
        )
        for label in sorted(labels, key=lambda label: (-sum(records[label]), label))
    ]


def _meaning(name: str) -> str:
    return FAULTS[name].meaning if name in FAULTS else TRAITS.get(name, "")


def _mark(outline: Outline, height_px: int) -> Mark:
    box = outline.box
    x, y = box[:2] if box else min(outline.keypoints, key=lambda point: point[1])
    is_right = x > 0.6
    css = ("end" if is_right else "start") + " below" * (y * height_px < 26)
    return Mark(outline, (box[0] + box[2] if box and is_right else x, max(y, 0.0)), css)


def _alt(picture: ShownPicture, names: Mapping[int, str]) -> str:
    """Describe a picture: its objects by class, or else its classes."""
    objects = Counter(outline.text or "object" for outline in picture.outlines)
    found = [f"{count:,} × {name}" for name, count in sorted(objects.items())]
    what = found or [class_name(label, names) for label in picture.labels]
    more = f" and {len(what) - _SHOWN_IN_ALT} more" if len(what) > _SHOWN_IN_ALT else ""
    key = picture.record.key
    return f"{key}: {', '.join(what[:_SHOWN_IN_ALT])}{more}" if what else key


def _percent(part: float) -> str:
    """Return a fraction as a percentage with two decimals.

    >>> _percent(0.125), _percent(1 / 3), _percent(-0.0)
    ('12.5%', '33.33%', '0%')
    """
    return f"{round(100 * part, 2) + 0.0:.9g}%"


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@cache
def page_environment() -> "Environment":
    """Return the environment of the pages' templates, which escapes all texts."""
    environment = template_environment(
        "beam_tfrec.transforms.report", "assets", autoescape=True, finalize=_finalize
    )
    environment.filters.update(count="{:,}".format, percent=_percent, data_uri=_data_uri)
    environment.filters.update(color=class_color, digest=_digest, ink=ink_on, meaning=_meaning)
    return environment


def _finalize(value: Any) -> Any:
    """Make invisible characters of a text visible before escaping; keep markup."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return seen(value, _MOST_CHARACTERS)
    return f"{value:g}" if isinstance(value, float) else value
