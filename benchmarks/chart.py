"""Draw the scale chart: time and memory against the number of photos, as an SVG for light and dark.

Both axes are logarithmic: a line is as steep as the grid's diagonal if ten times the photos take
ten times as long, and level if memory does not grow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from figures import Point

WIDTH, HEIGHT = 1000, 460
PANEL_WIDTH, PANEL_HEIGHT = 290, 340
TOP, LEFT, PANEL_STEP = 64, 62, 490
LABEL_GAP = 15
LABEL_AT = 26

NAMES = {
    "ours": "beam-tfrec",
    "floor": "plain Python",
    "webdataset": "webdataset",
    "keras_loop": "Keras loop",
    "array_record": "ArrayRecord",
    "hugging_face": "HF datasets",
    "tfds": "TFDS",
    "mosaicml_2": "MosaicML, 2 proc.",
    "litdata_2": "LitData, 2 proc.",
    "ray_data": "Ray Data",
    "beam_naive": "WriteToTFRecord",
}
"""Contenders in the chart, each in its better variant, with their names there."""

STYLE = """
  svg { background: #ffffff; font: 12px system-ui, sans-serif; }
  text { fill: #59636e; } .title { fill: #1f2328; font-size: 14px; font-weight: 600; }
  .grid { stroke: #d1d9e0; stroke-width: 1; } .leader { stroke: #afb8c1; stroke-width: 1; }
  .line { stroke: #8b949e; stroke-width: 1.5; fill: none; } .dot { fill: #8b949e; }
  .floor.line { stroke-dasharray: 5 4; }
  .ours.line { stroke: #0969da; stroke-width: 3; } .ours.dot, text.ours { fill: #0969da; }
  text.ours { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; } text { fill: #9198a1; } .title { fill: #f0f6fc; }
    .grid { stroke: #30363d; } .leader { stroke: #484f58; }
    .line { stroke: #7d8590; } .dot { fill: #7d8590; }
    .ours.line { stroke: #58a6ff; } .ours.dot, text.ours { fill: #58a6ff; }
  }
"""


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis from `low` to `high`, at the pixels `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value.

        >>> Axis(1, 100, 0, 50).at(10)
        25.0
        """
        share = log10(value / self.low) / log10(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def decades(self) -> list[float]:
        """Return the powers of ten on the axis.

        >>> Axis(500, 50000, 0, 1).decades()
        [1000, 10000]
        """
        first, last = ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9)
        return [10**power for power in range(first, last + 1)]


def spread(places: list[float], gap: float) -> list[float]:
    """Move sorted places apart until none is nearer than `gap` to the next.

    >>> spread([10, 11, 40], 6)
    [7.5, 13.5, 40.0]
    """
    groups: list[list[float]] = []  # neighbours that touch: [sum of their places, count]
    for place in places:
        groups.append([place, 1])
        while len(groups) > 1 and _first(groups[-1], gap) < _last(groups[-2], gap) + gap:
            total, count = groups.pop()
            groups[-1] = [groups[-1][0] + total, groups[-1][1] + count]
    return [_first(group, gap) + n * gap for group in groups for n in range(int(group[1]))]


def _first(group: list[float], gap: float) -> float:
    return group[0] / group[1] - (group[1] - 1) / 2 * gap


def _last(group: list[float], gap: float) -> float:
    return group[0] / group[1] + (group[1] - 1) / 2 * gap


def draw_chart(points: list[Point]) -> str:
    """Return the chart of the contenders in NAMES.

    Raises:
        ValueError: none of them has a point.
    """
    drawn = [point for point in points if point.contender in NAMES]
    if not drawn:
        raise ValueError(f"no point of {', '.join(NAMES)}")
    panels = (
        _panel(drawn, LEFT, "Whole command, seconds", lambda point: point.wall_s),
        _panel(drawn, LEFT + PANEL_STEP, "Peak memory, MB", lambda point: point.peak_mb),
    )
    about = "Time and memory of beam-tfrec and its peers against the number of photos"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<title>{about}</title>\n<style>{STYLE}</style>\n{''.join(panels)}</svg>\n"
    )


def _panel(points: list[Point], left: float, title: str, value: Callable[[Point], float]) -> str:
    """Return one diagram: grid, lines, and their names at the right."""
    images = [point.images for point in points]
    values = [value(point) for point in points]
    bottom, right = TOP + PANEL_HEIGHT, left + PANEL_WIDTH
    x = Axis(min(images), max(max(images), min(images) * 2), left, right)
    y = Axis(min(values) * 0.8, max(values) * 1.25, bottom, TOP)
    parts = [_text(left, TOP - 24, title, "title"), *_grid(x, y, sorted(set(images)))]
    ends: list[tuple[float, float, str]] = []
    for name in [*(name for name in NAMES if name != "ours"), "ours"]:  # ours above the others
        own = sorted((p for p in points if p.contender == name), key=lambda point: point.images)
        places = [(x.at(point.images), y.at(value(point))) for point in own]
        if not places:
            continue
        kind = name if name in {"ours", "floor"} else "peer"
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        parts.append(f'<polyline class="{kind} line" points="{path}"/>\n')
        parts += [
            f'<circle class="{kind} dot" cx="{px:.1f}" cy="{py:.1f}" r="3"/>\n' for px, py in places
        ]
        ends.append((places[-1][1], places[-1][0], name))
    return "".join(parts + _labels(sorted(ends), right))


def _grid(x: Axis, y: Axis, images: list[int]) -> list[str]:
    """Return lines at the measured numbers of photos and at powers of ten, with their values."""
    parts = []
    for count in images:
        at = x.at(count)
        parts.append(_line(at, y.start, at, y.end, "grid"))
        parts.append(_text(at, y.start + 20, f"{count:,}", anchor="middle"))
    parts.append(_text((x.start + x.end) / 2, y.start + 42, "photos", anchor="middle"))
    for decade in y.decades():
        at = y.at(decade)
        parts.append(_line(x.start, at, x.end, at, "grid"))
        parts.append(_text(x.start - 8, at + 4, f"{decade:,g}", anchor="end"))
    return parts


def _labels(ends: list[tuple[float, float, str]], right: float) -> list[str]:
    """Return the names, apart from each other, each led to the end of its line."""
    parts = []
    for (py, px, name), at in zip(ends, spread([e[0] for e in ends], LABEL_GAP), strict=True):
        parts.append(_line(px + 4, py, right + LABEL_AT - 4, at, "leader"))
        kind = "ours" if name == "ours" else "peer"
        parts.append(_text(right + LABEL_AT, at + 4, NAMES[name], kind))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>\n'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>\n'
