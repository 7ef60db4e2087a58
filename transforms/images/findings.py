"""Findings of the image check: traits and faults."""

import functools

MAX_PIXELS = 178_956_970
"""Largest image: Pillow's limit for a decompression bomb, just under 2^29 bytes as RGB."""

TRAITS = {
    "16_bit": "PNG of 16 bits a sample; decoded to 8 bits unless the reader asks for uint16",
    "alpha": "alpha channel or transparent colour; decoded as a further channel, or dropped",
    "animated": "more than one frame; all are decoded of a GIF, only the still image of an APNG",
    "arithmetic": "JPEG with arithmetic coding; libjpeg reads it, browsers and GPUs do not",
    "cmyk": "JPEG of four ink channels (CMYK or YCCK); decoded to RGB without its colour profile",
    "exif_gps": "EXIF has a GPS directory: where the picture was taken",
    "exif_orientation": "EXIF asks for a rotation or mirroring, which TensorFlow does not apply",
    "exif_serial": "EXIF has the serial number of a camera body or lens",
    "gray": "no colour; decoded to one channel, or two with alpha",
    "icc_profile": "colour profile, which TensorFlow does not apply",
    "interlaced": "interlaced PNG or GIF",
    "junk_bytes": "JPEG with bytes between its segments that belong to none; decoders skip them",
    "multi_picture": "JPEG with an index of further pictures (MPF: gain map, depth, burst)",
    "palette": "colours from a palette; decoded to RGB",
    "progressive": "progressive JPEG; takes more time and memory to decode",
    "top_down": "BMP whose rows are stored from the top",
    "trailing_bytes": "bytes after the image's end; decoders ignore them",
}
"""All names in `ImageInfo.traits`, each with its meaning."""


class BadImage(ValueError):
    """Reason why an image is refused: a permanent fact about its bytes.

    Attributes:
        code: `E-IMG-EMPTY`, `E-IMG-TRUNCATED`, `E-IMG-TYPE`, `E-IMG-PIXELS` or `E-IMG-DAMAGED`.
        detail: short line of ASCII that is equal in every run, such as
            `no end marker in 50112 bytes`.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


truncated = functools.partial(BadImage, "E-IMG-TRUNCATED")
"""Fault: the bytes end before the image does."""

damaged = functools.partial(BadImage, "E-IMG-DAMAGED")
"""Fault: the image breaks the rules of its format."""

unreadable = functools.partial(BadImage, "E-IMG-TYPE")
"""Fault: TensorFlow cannot read the image, or reads other pixels than viewers show."""

too_many_pixels = functools.partial(BadImage, "E-IMG-PIXELS")
"""Fault: the image is too large to decode."""


def require_size(
    width_px: int, height_px: int, max_pixels: int = MAX_PIXELS, frames: int = 1
) -> None:
    """Refuse an image without pixels, or with more than `max_pixels` in all frames together.

    Raises:
        BadImage: E-IMG-DAMAGED or E-IMG-PIXELS.
    """
    if width_px <= 0 or height_px <= 0:
        raise damaged(f"size {width_px} x {height_px}")
    pixels, of = width_px * height_px * frames, f"{frames} frames of " if frames > 1 else ""
    if pixels > max_pixels:
        raise too_many_pixels(f"{of}{width_px} x {height_px} = {pixels} pixels, limit {max_pixels}")
