"""Look at images that TensorFlow does not read, and that are converted where that is asked for.

WebP, TIFF and AVIF. Only Pillow's plugin of the kind that the first bytes name is given them, once
the header has been found to be within the limits.
"""

import io
import struct
from typing import TYPE_CHECKING

from schemas.images import ImageInfo
from transforms.images.check_images import decoding
from transforms.images.exif import read_exif
from transforms.images.findings import BadImage, ImageFault, require_size, truncated, unreadable
from transforms.images.kinds import name_kind

if TYPE_CHECKING:
    from PIL import Image

_WEBP_HEADER_BYTES = 30
_GRAY_MODES = frozenset({"1", "L", "LA", "I;16", "I;16B", "I;16L"})
_ALPHA_MODES = frozenset({"LA", "PA", "RGBA", "La", "RGBa"})


def check_foreign(data: bytes, max_pixels: int) -> ImageInfo | ImageFault:
    """Return what an image of another format is by its header, or why it is refused.

    Raises:
        MemoryError, RecursionError, OSError: of the machine, not of the image.
    """
    try:
        with decoding(), open_foreign(data, max_pixels) as image:
            return _info(image, name_kind(data).lower())
    except BadImage as error:
        return error.fault


def open_foreign(data: bytes, max_pixels: int) -> "Image.Image":
    """Return an image of another format, none of its pixels decoded.

    Raises:
        BadImage: when it is of no format that is known here, or too large.
    """
    from PIL import AvifImagePlugin, ImageFile, TiffImagePlugin, WebPImagePlugin, features

    kind = name_kind(data)
    plugins: dict[str, tuple[type[ImageFile.ImageFile], str]] = {  # of `FOREIGN_KINDS`
        "WebP": (WebPImagePlugin.WebPImageFile, "webp"),
        "AVIF": (AvifImagePlugin.AvifImageFile, "avif"),
        "TIFF": (TiffImagePlugin.TiffImageFile, "libtiff"),
    }
    plugin, needed = plugins.get(kind, (None, ""))
    if plugin is None:
        raise unreadable(kind)
    if not features.check(needed):
        raise ValueError(f"Pillow must be built with {needed} to convert {kind}, and is not")
    if kind == "WebP":  # the decoder allocates its canvas when it is made
        require_size(*_webp_size(data), max_pixels)
    image = plugin(io.BytesIO(data))
    require_size(*image.size, max_pixels)
    return image


def _info(image: "Image.Image", kind: str) -> ImageInfo:
    traits = set[str]()
    if image.mode in _GRAY_MODES:
        traits.add("gray")
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        traits.add("alpha")
    if image.mode == "CMYK":
        traits.add("cmyk")
    if getattr(image, "n_frames", 1) > 1:
        traits.add("animated")
    return ImageInfo(kind, *image.size, _orientation(image, kind), tuple(sorted(traits)))


def _orientation(image: "Image.Image", kind: str) -> int:
    if kind == "tiff":  # Pillow gives its size and pixels as they are viewed
        return 1
    exif = image.info.get("exif", b"")
    return read_exif(exif.removeprefix(b"Exif\0\0"))[0]


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height by a WebP's first chunk (RFC 9649, sections 2.5 to 2.7)."""
    if len(data) < _WEBP_HEADER_BYTES:
        raise truncated(f"{len(data)} bytes, a WebP header takes {_WEBP_HEADER_BYTES}")
    chunk = data[12:16]
    if chunk == b"VP8X":
        width, height = data[24:27], data[27:30]
        return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    if chunk == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF
