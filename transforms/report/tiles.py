"""Pictures as the page shows them: a tile each, with boxes and keypoints drawn in an SVG.

Places are percents of the picture, so boxes are right at every size.
"""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transforms.report.charts import count_text
from transforms.report.contents import Outline, ShownPicture, class_color

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
