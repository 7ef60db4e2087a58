"""Draw pictures on a terminal with 24-bit colours: two pixels a character, by Pillow."""

import io
from collections.abc import Iterator

from transforms.images.check_images import ImageFault, check_image, decoding
from transforms.images.findings import BadImage

MAX_DRAWN_PIXELS = 33_600_000
"""Larger pictures are not decoded for it."""

_COLUMNS, _ROWS = 64, 48
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_RESET = "\x1b[0m"


def draw(data: bytes) -> Iterator[str]:
    """Yield a picture's lines, or one that says why there is none.

    The structure of the file is checked before Pillow gets it, its formats are named, and large
    pictures are left out.
    """
    info = check_image(data, max_pixels=MAX_DRAWN_PIXELS)
    if isinstance(info, ImageFault):
        yield f"  not drawn: {info.detail}"
        return
    try:
        with decoding():
            lines = list(_lines(data))
    except BadImage as error:
        lines = [f"  not drawn: {error.fault.detail}"]
    yield from lines


def _lines(data: bytes) -> Iterator[str]:
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        image.draft("RGB", (_COLUMNS, _ROWS))
        small = image.convert("RGB")
        small.thumbnail((_COLUMNS, _ROWS))
    pixels = small.tobytes()
    row_bytes = 3 * small.width
    rows = [pixels[at : at + row_bytes] for at in range(0, len(pixels), row_bytes)]
    if len(rows) % 2:
        rows.append(rows[-1])
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{u[0]};{u[1]};{u[2]};48;2;{w[0]};{w[1]};{w[2]}m\u2580"
            for at in range(0, row_bytes, 3)
            for u, w in ((upper[at : at + 3], lower[at : at + 3]),)
        )
        yield f"  {''.join(cells)}{_RESET}"
