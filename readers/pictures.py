"""Show a record in a notebook: its picture with boxes, and its other features in a table.

What a record holds is a stranger's: texts are escaped, pictures are decoded within a limit of
pixels and encoded anew, and what is shown has bounded size.
"""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.features import Corners, FeatureSpec, ObjectRoles, corners_of, roles_of_spec
from transforms.images.check_images import decoding
from transforms.images.findings import BadImage, require_size

if TYPE_CHECKING:
    from PIL import Image

SIDE_PX = 512
"""The longest side of a picture that is shown; a larger one is scaled down."""

_MAX_PIXELS = 1 << 26  # of a file: 0.2 GB decoded
_MAX_BOXES = 100
_MAX_CHARACTERS = 100  # of a value in the table
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # all that records hold
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")


class Box(NamedTuple):
    """A box on a picture.

    Attributes:
        x, y: its top left corner, as a part of the picture's width and height.
        width, height: likewise.
        text: what it is called; empty where nobody knows.
    """

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class Picture:
    """A record, as a notebook shows it.

    Attributes:
        record: values by key.
        spec: the features of its data set.
        names: of the class labels, by id.
    """

    record: Mapping[str, Any]
    spec: FeatureSpec
    names: Mapping[int, str] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Return its pictures, with boxes on the first, and a table of the other features."""
        keys = roles_of_spec(self.spec).images
        found = [key for key in keys if isinstance(self.record.get(key), bytes)]
        shown = [
            _picture_html(self.record, key, self.spec, self.names if place == 0 else None)
            for place, key in enumerate(found)
        ]
        rows = [
            f"<tr><th>{escape(_short(key))}</th><td>{escape(_text(value))}</td></tr>"
            for key, value in self.record.items()
            if key not in found
        ]
        return f"<div>{''.join(shown)}<table>{''.join(rows)}</table></div>"


def boxes_of(
    record: Mapping[str, Any],
    size_px: tuple[int, int],
    spec: FeatureSpec,
    names: Mapping[int, str] | None = None,
) -> list[Box]:
    """Return the boxes of a record in any layout that has some.

    Args:
        record: values by key.
        size_px: width and height of its picture.
        spec: the features of its data set.
        names: of the class labels, by id.
    """
    boxes: list[Box] = []
    for objects in roles_of_spec(spec).objects:
        corners = _corners(record, objects, size_px)
        texts = _texts(record, objects, names or {}, len(corners))
        boxes += (
            Box(x, y, x_end - x, y_end - y, text)
            for (x, y, x_end, y_end), text in zip(corners, texts, strict=True)
        )
    return boxes


def _corners(
    record: Mapping[str, Any], objects: ObjectRoles, size_px: tuple[int, int]
) -> list[Corners]:
    """Return x and y of each box's top left and bottom right corner."""
    return list(corners_of(objects, lambda key: _listed(record.get(key, ())), size_px))


def _texts(
    record: Mapping[str, Any], objects: ObjectRoles, names: Mapping[int, str], count: int
) -> list[str]:
    """Return what boxes are called: as the record says, as the label map does, or their ids."""
    if objects.texts and len(texts := _listed(record.get(objects.texts, ()))) == count:
        return [_short(text) for text in texts]
    if objects.labels and len(labels := _listed(record.get(objects.labels, ()))) == count:
        return [names.get(label, str(label)) for label in labels]
    return [""] * count


def _picture_html(
    record: Mapping[str, Any], key: str, spec: FeatureSpec, names: Mapping[int, str] | None
) -> str:
    """Return an image as SVG, with its boxes where there are names for them."""
    try:
        image, size_px = _scaled_down(record[key])
        boxes = [] if names is None else boxes_of(record, size_px, spec, names)
    except ValueError as error:
        why = error.fault.detail if isinstance(error, BadImage) else str(error)
        return f"<p>{escape(_short(key))}: not shown, {escape(_short(why))}</p>"
    width, height = image.size
    note = "" if len(boxes) <= _MAX_BOXES else f"<p>{_MAX_BOXES} of {len(boxes)} boxes</p>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}"><title>{escape(_short(key))}</title>'
        f'<image width="{width}" height="{height}" href="{_data_uri(image)}"/>'
        f"{''.join(_boxes_svg(boxes[:_MAX_BOXES], image.size))}</svg>{note}"
    )


def _boxes_svg(boxes: Iterable[Box], size_px: tuple[int, int]) -> Iterator[str]:
    width, height = size_px
    colors: dict[str, str] = {}
    for box in boxes:
        color = colors.setdefault(box.text, _COLORS[len(colors) % len(_COLORS)])
        x, y = box.x * width, box.y * height
        yield (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{box.width * width:.1f}"'
            f' height="{box.height * height:.1f}" fill="none" stroke="{color}" stroke-width="2"/>'
        )
        if box.text:
            baseline = y - 4 if y > 16 else y + 13  # above the box, where there is room
            yield (
                f'<text x="{x + 3:.1f}" y="{baseline:.1f}" font-family="sans-serif" font-size="12"'
                f' fill="white" stroke="{color}" stroke-width="3" paint-order="stroke">'
                f"{escape(_short(box.text))}</text>"
            )


def _scaled_down(data: bytes) -> tuple["Image.Image", tuple[int, int]]:
    """Return an image as RGB for the screen, pixels as stored, and the size that it had."""
    from PIL import Image

    with decoding(), Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
        size_px = opened.size
        require_size(*size_px, _MAX_PIXELS)
        opened.draft("RGB", (SIDE_PX, SIDE_PX))
        image = _of_8_bits(opened).convert("RGB")
    image.thumbnail((SIDE_PX, SIDE_PX))
    return image, size_px


def _of_8_bits(image: "Image.Image") -> "Image.Image":
    """Return an image of 16 bits as one of 8, where Pillow's conversion would make it white."""
    if not image.mode.startswith("I"):
        return image
    return image.convert("I").point(lambda level: level * (1 / 256)).convert("L")


def _data_uri(image: "Image.Image") -> str:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


def _listed(values: Any) -> list:
    """Return one value or an array of them as a flat list."""
    if hasattr(values, "reshape"):
        return values.reshape(-1).tolist()
    return list(values) if isinstance(values, list | tuple) else [values]


def _text(value: Any) -> str:
    """Return a value for the table, in few words."""
    if isinstance(value, bytes):
        return _short(value) if value.isascii() else f"{len(value)} bytes"
    if isinstance(value, float):
        return f"{value:.6g}"
    if not hasattr(value, "reshape") and not isinstance(value, list | tuple):
        return _short(str(value))
    items = _listed(value)
    shown = ", ".join(map(_text, items[:10]))
    return _short(shown + (f", … ({len(items)} values)" if len(items) > 10 else ""))


def _short(text: bytes | str) -> str:
    """Return the beginning of a text, to be escaped: what cannot be printed is replaced."""
    start = text[: 4 * _MAX_CHARACTERS]
    shown = start.decode(errors="replace") if isinstance(start, bytes) else start
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)
    return shown if len(shown) <= _MAX_CHARACTERS else shown[: _MAX_CHARACTERS - 1] + "…"
