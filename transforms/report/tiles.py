"""Pictures as the page shows them: a tile each, with what is drawn on it in parts of its sides.

Places are percents of the picture, in an SVG without a scale of its own that lies on it: boxes are
where they belong at every size, while lines and texts stay as thick and as large as they are.
"""

import base64
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transforms.report.colors import class_color
from transforms.report.contents import Outline, ShownPicture
from transforms.report.figures import count_text

TILE_PX = (232, 174)
"""Width and height that a tile's picture is fitted into."""

MOST_PICTURE_BYTES = 2_900_000
"""Of all JPEGs; as text they are a third more."""

_MOST_ENLARGED = 6  # times; a larger one says nothing more
_MOST_MARKS = 7_000  # on all pictures: boxes count for three, keypoints for one
_MOST_OUTLINES = 100  # on a picture
_MOST_KEYPOINTS = 60  # of an outline
_LABELED = 3  # outlines whose texts are on a tile; the others' are on the enlarged picture
_MOST_CAPTIONS = 8
_BOX_MARKS = 3


@dataclass(frozen=True)
class Mark:
    """What is drawn of an outline, in percents of the picture.

    Attributes:
        color: of lines, as HTML writes it.
        ink: of text on that color.
        text: what it is called; empty for none.
        box: left, top, width, height; None for none.
        points: x and y of keypoints.
        anchor: where the text is, and on which side of that it begins: `start` or `end`.
        is_below: whether the text is below the box's upper edge, as there is no room above.
        is_minor: whether the text is on the enlarged picture alone.
    """

    color: str
    ink: str
    text: str
    box: tuple[str, str, str, str] | None
    points: tuple[tuple[str, str], ...]
    anchor: tuple[str, str, str]
    is_below: bool
    is_minor: bool


@dataclass(frozen=True)
class Tile:
    """A picture.

    Attributes:
        id: of the element.
        split: its place among splits; -1 for none of them.
        picture: itself.
        uri: its bytes.
        size_px: of the tile.
        is_coarse: whether its pixels are enlarged so much that they are to be seen.
        alt: what is on it, in words.
        marks: drawn on it.
        left_out: outlines that are not drawn.
        labels: classes: id, name, color.
        captions: texts, and how many are left out.
    """

    id: str
    split: int
    picture: ShownPicture
    uri: str
    size_px: tuple[int, int]
    is_coarse: bool
    alt: str
    marks: Sequence[Mark]
    left_out: int
    labels: Sequence[tuple[int, str, str]]
    captions: Sequence[str]
    more_captions: int


@dataclass(frozen=True)
class ClassSheet:
    """Pictures that were drawn for a class.

    Attributes:
        label: its id.
        name: of it.
        color: of it.
        tiles: shown here.
        above: those that are shown further up.
    """

    label: int
    name: str
    color: str
    tiles: Sequence[Tile]
    above: Sequence[Tile]


@dataclass(frozen=True)
class Sheets:
    """All pictures, each in one place.

    Attributes:
        splits: tiles by split.
        classes: sheets in the order of ids.
        left_out: pictures for which there was no room.
        labels: id and name of all classes on pictures, by name.
    """

    splits: Sequence[tuple[int, str, Sequence[Tile]]]
    classes: Sequence[ClassSheet]
    left_out: int
    labels: Sequence[tuple[int, str]]

    @property
    def has_boxes(self) -> bool:
        """Whether any box is drawn."""
        return any(mark.box for mark in self._marks())

    @property
    def has_points(self) -> bool:
        """Whether any keypoint is drawn."""
        return any(mark.points for mark in self._marks())

    def _marks(self) -> Iterator[Mark]:
        for group in [*(tiles for _, _, tiles in self.splits), *(c.tiles for c in self.classes)]:
            for tile in group:
                yield from tile.marks


def make_sheets(
    pictures: Sequence[ShownPicture], splits: Sequence[str], names: Mapping[int, str]
) -> Sheets:
    """Return contact sheets, as many pictures as there is room for."""
    shown = _with_room(pictures)
    limit = _outlines_per_picture(shown)
    tiles = [
        make_tile(number, picture, splits, names, limit) for number, picture in enumerate(shown)
    ]
    by_split = [
        (place, name, [t for t in tiles if t.split == place and t.picture.for_split])
        for place, name in [*enumerate(splits), (-1, "other")]
    ]
    placed = {tile.id for _, _, group in by_split for tile in group}
    classes = []
    for label in sorted({label for tile in tiles for label in tile.picture.for_classes}):
        drawn = [tile for tile in tiles if label in tile.picture.for_classes]
        here = [tile for tile in drawn if tile.id not in placed]
        above = [tile for tile in drawn if tile.id in placed]
        placed |= {tile.id for tile in here}
        name = _class_name(label, names)
        classes.append(ClassSheet(label, name, class_color(label), here, above))
    # What was drawn for nothing that we know is shown with its split.
    rest = {
        place: [t for t in tiles if t.id not in placed and t.split == place]
        for place, _, _ in by_split
    }
    return Sheets(
        [
            (place, name, [*group, *rest[place]])
            for place, name, group in by_split
            if group or rest[place]
        ],
        classes,
        len(pictures) - len(shown),
        sorted(
            {label[:2] for tile in tiles for label in tile.labels},
            key=lambda found: (found[1].casefold(), found),
        ),
    )


def make_tile(
    number: int,
    picture: ShownPicture,
    splits: Sequence[str],
    names: Mapping[int, str],
    most_outlines: int = _MOST_OUTLINES,
) -> Tile:
    """Return the tile of a picture; the largest outlines are drawn, in their order."""
    width, height = (max(side, 1) for side in picture.size_px)
    scale = min(TILE_PX[0] / width, TILE_PX[1] / height, _MOST_ENLARGED)
    by_area = sorted(range(len(picture.outlines)), key=lambda n: -_area(picture.outlines[n]))
    largest = {place: rank for rank, place in enumerate(by_area)}
    marks = [
        _mark(outline, picture.size_px[1], names, largest[place] >= _LABELED)
        for place, outline in enumerate(picture.outlines)
        if largest[place] < most_outlines and (_usable_box(outline) or _usable_points(outline))
    ]
    return Tile(
        f"p{number}",
        splits.index(picture.split) if picture.split in splits else -1,
        picture,
        "data:image/jpeg;base64," + base64.b64encode(picture.jpeg).decode(),
        (max(1, round(width * scale)), max(1, round(height * scale))),
        scale >= 2,
        _alt(picture, names),
        marks,
        sum(1 for o in picture.outlines if o.box is not None or o.keypoints) - len(marks),
        [
            (label, _class_name(label, names), class_color(label))
            for label in sorted(set(picture.labels))
        ],
        picture.captions[:_MOST_CAPTIONS],
        max(0, len(picture.captions) - _MOST_CAPTIONS),
    )


def ink_on(color: str) -> str:
    """Return black or white, whichever is better read on a color.

    >>> ink_on("#163d9c"), ink_on("#9be236")
    ('#fff', '#000')
    """
    levels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#fff" if luminance < 0.179 else "#000"


def _mark(outline: Outline, height_px: int, names: Mapping[int, str], is_minor: bool) -> Mark:
    color = class_color(outline.label)
    text = outline.text or ("" if outline.label is None else _class_name(outline.label, names))
    box = _usable_box(outline)
    points = _usable_points(outline)[:_MOST_KEYPOINTS]
    x, y = (box[0], box[1]) if box else min(points, key=lambda point: point[1])
    is_right = x > 0.6
    side = box[0] + box[2] if box and is_right else x
    is_below = y * height_px < 26
    return Mark(
        color,
        ink_on(color),
        text,
        None if box is None else _percents_of(box),
        tuple((_percents(px), _percents(py)) for px, py in points),
        (_percents(side), _percents(max(y, 0.0)), "end" if is_right else "start"),
        is_below,
        is_minor,
    )


def _usable_box(outline: Outline) -> tuple[float, float, float, float] | None:
    """Return a box that can be drawn: finite, with sides, not far beyond the picture."""
    if outline.box is None or not all(map(math.isfinite, outline.box)):
        return None
    left, top, width, height = outline.box
    if width < 0 or height < 0 or max(map(abs, outline.box)) > 100:
        return None
    return left, top, width, height


def _usable_points(outline: Outline) -> list[tuple[float, float]]:
    return [(x, y) for x, y in outline.keypoints if -100 < x < 100 and -100 < y < 100]


def _area(outline: Outline) -> float:
    box = _usable_box(outline)
    return box[2] * box[3] if box else 0.0


def _percents_of(box: tuple[float, float, float, float]) -> tuple[str, str, str, str]:
    left, top, width, height = map(_percents, box)
    return left, top, width, height


def _percents(part: float) -> str:
    """Return a part in percents, to a hundredth: 0.1 px of a thousand.

    >>> _percents(0.125), _percents(1 / 3), _percents(-0.0)
    ('12.5%', '33.33%', '0%')
    """
    return f"{round(100 * part, 2) + 0.0:.9g}%"


def _with_room(pictures: Sequence[ShownPicture]) -> list[ShownPicture]:
    shown, size = [], 0
    for picture in pictures:
        size += len(picture.jpeg)
        if size > MOST_PICTURE_BYTES:
            break
        shown.append(picture)
    return shown


def _outlines_per_picture(pictures: Sequence[ShownPicture]) -> int:
    """Return the largest number of outlines of a picture with which all pictures are light."""
    weights = [
        [_BOX_MARKS + len(outline.keypoints) for outline in picture.outlines]
        for picture in pictures
    ]
    limit, marks = 0, 0
    while limit < _MOST_OUTLINES:
        marks += sum(row[limit] for row in weights if limit < len(row))
        if marks > _MOST_MARKS:
            break
        limit += 1
    return max(limit, 1)


def _alt(picture: ShownPicture, names: Mapping[int, str]) -> str:
    """Return what is on a picture: objects by class, else its classes."""
    objects = Counter(
        outline.text or ("object" if outline.label is None else _class_name(outline.label, names))
        for outline in picture.outlines
    )
    found = [f"{count_text(count)} × {name}" for name, count in sorted(objects.items())]
    what = found or [_class_name(label, names) for label in picture.labels]
    more = f" and {len(what) - 8} more" if len(what) > 8 else ""
    return f"{picture.key}: {', '.join(what[:8])}{more}" if what else picture.key


def _class_name(label: int, names: Mapping[int, str]) -> str:
    return names.get(label) or f"class {label}"
