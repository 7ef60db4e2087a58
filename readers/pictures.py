"""Draw a record's picture with its boxes, for a look in a notebook."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from schemas.features import FeatureSpec, ObjectRoles, corners_of, roles_of_spec

if TYPE_CHECKING:
    from PIL import Image

SIDE_PX = 512
"""Longest side of a picture; a larger one is scaled down."""

_MAX_BOXES = 100
_MAX_CHARACTERS = 40
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # all that records hold
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")


def draw_record(
    record: Mapping[str, Any], spec: FeatureSpec, names: Mapping[int, str]
) -> "Image.Image":
    """Return a record's first picture with its boxes and what they are called.

    Args:
        record: values by key.
        spec: features of its data set.
        names: names of the class labels, by id.

    Raises:
        ValueError: when there is no picture, or Pillow cannot decode it.
    """
    from PIL import ImageDraw

    roles = roles_of_spec(spec)
    encoded = [record[key] for key in roles.images if record.get(key)]
    if not encoded:
        raise ValueError(f"record must have an image to show, got none of layout {spec.name!r}")
    image, size_px = _scaled_down(encoded[0])
    draw = ImageDraw.Draw(image)
    colors: dict[str, str] = {}
    for objects in roles.objects:
        corners = list(corners_of(objects, lambda key: _listed(record.get(key, ())), size_px))
        texts = _texts(record, objects, names)
        for place, box in enumerate(corners[:_MAX_BOXES]):
            text = texts[place] if place < len(texts) else ""
            color = colors.setdefault(text, _COLORS[len(colors) % len(_COLORS)])
            x, x_end = sorted(side * image.width for side in box[::2])
            y, y_end = sorted(side * image.height for side in box[1::2])
            draw.rectangle((x, y, x_end, y_end), outline=color, width=2)
            draw.text((x + 4, y + 2), text, "white", stroke_width=2, stroke_fill=color)
    return image


def _texts(record: Mapping[str, Any], objects: ObjectRoles, names: Mapping[int, str]) -> list[str]:
    """Return what boxes are called: as the record says, as the label map does, or their ids."""
    if objects.texts:
        texts = [text.decode(errors="replace") for text in _listed(record[objects.texts])]
    else:
        ids = _listed(record[objects.labels]) if objects.labels else []
        texts = [names.get(number, str(number)) for number in ids]
    return [text[:_MAX_CHARACTERS] for text in texts]


def _scaled_down(data: bytes) -> tuple["Image.Image", tuple[int, int]]:
    """Return an image as RGB for the screen, pixels as stored, and the size that it had."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
            size_px = opened.size
            opened.draft("RGB", (SIDE_PX, SIDE_PX))
            if opened.mode.startswith("I"):  # 16 bits: Pillow's conversion would make them white
                levels = opened.convert("I").point(lambda level: level * (1 / 256))
                image = levels.convert("L").convert("RGB")
            else:
                image = opened.convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"record must have an image that Pillow decodes, got {error}") from error
    image.thumbnail((SIDE_PX, SIDE_PX))
    return image, size_px


def _listed(values: Any) -> list:
    """Return an array, or a list, as a flat list."""
    return values.reshape(-1).tolist() if hasattr(values, "reshape") else list(values)
