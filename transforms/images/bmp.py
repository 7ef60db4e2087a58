"""Read a BMP's header: whether `tf.io.decode_image` reads the pixels that it means.

TensorFlow (decode_image_op.cc, DecodeBmpV2) looks at the offset of the pixels, width, height and
bits, and nothing else: palettes, compression and channel masks are ignored, and a file of any other
length than these four give is refused. Format: BITMAPINFOHEADER and its successors.
"""

import struct

from schemas.images import ImageInfo
from transforms.images.findings import damaged, require_size, truncated, unreadable

MAX_PIXELS = (2**31 - 1) // 8 - 1
"""TensorFlow refuses a BMP of more pixels."""

_HEADER = struct.Struct("<10xIIiiHHI").unpack_from
_MASKS = struct.Struct("<III").unpack_from
_COLOURS_USED = struct.Struct("<I").unpack_from

# BITMAPINFOHEADER, its versions 2 to 5, and that of OS/2 2.0; the older one has sizes of two bytes.
_HEADER_BYTES = frozenset({40, 52, 56, 64, 108, 124})
_PLAIN, _BIT_FIELDS = 0, 3
_BGRA_MASKS = (0x00FF0000, 0x0000FF00, 0x000000FF)
_KINDS = {8: "gray", 24: "", 32: "alpha"}


def read_bmp(data: bytes, max_pixels: int) -> ImageInfo:
    """Return the facts of a BMP whose pixels TensorFlow reads as they are meant.

    Nothing is left for a decoder to find: the pixels are plain, and all there.

    Args:
        data: the file; starts with `BM`.
        max_pixels: limit on width x height.

    Raises:
        BadImage: where TensorFlow refuses the file, or reads other pixels.
    """
    if len(data) < 54:
        raise truncated(f"{len(data)} bytes, a BMP's header takes 54")
    pixels_start, header_bytes, width_px, height_px, _, bits, compression = _HEADER(data)
    if header_bytes not in _HEADER_BYTES:
        raise unreadable(f"BMP with a header of {header_bytes} bytes")
    if width_px < 0:
        raise damaged(f"width {width_px}")
    require_size(width_px, abs(height_px), min(max_pixels, MAX_PIXELS))
    if bits not in _KINDS:
        raise unreadable(f"BMP of {bits} bits a pixel; TensorFlow reads 8, 24 and 32")
    if compression != _PLAIN and (compression, bits) != (_BIT_FIELDS, 32):
        raise unreadable(f"BMP of compression {compression}, which TensorFlow takes for pixels")
    row_bytes = (bits // 8 * width_px + 3) // 4 * 4
    _require_length(data, pixels_start, row_bytes * abs(height_px))
    if compression == _BIT_FIELDS and not _has_bgra_masks(data):
        raise unreadable("BMP with channel masks other than BGRA, which TensorFlow ignores")
    if bits == 8 and not _has_gray_palette(data, header_bytes):
        raise unreadable("BMP with a palette, whose indices TensorFlow takes for gray values")
    traits = [_KINDS[bits]] if _KINDS[bits] else []
    if height_px < 0:
        traits.append("top_down")
    return ImageInfo("bmp", width_px, abs(height_px), 1, tuple(traits), bits // 8)


def _has_bgra_masks(data: bytes) -> bool:
    """Tell whether the masks, at byte 54 with any header, are in TensorFlow's order."""
    return len(data) >= 66 and _MASKS(data, 54) == _BGRA_MASKS


def _has_gray_palette(data: bytes, header_bytes: int) -> bool:
    """Tell whether each index of the palette is its own gray value."""
    (used,) = _COLOURS_USED(data, 46)
    start, colours = 14 + header_bytes, used or 256
    palette = data[start : start + 4 * colours]
    ramp = bytes(range(256))
    return colours <= 256 and all(palette[channel::4] == ramp[:colours] for channel in range(3))


def _require_length(data: bytes, pixels_start: int, pixel_bytes: int) -> None:
    missing = pixels_start + pixel_bytes - len(data)
    if missing > 0:
        raise truncated(f"{len(data)} of {pixels_start + pixel_bytes} bytes")
    if missing < 0:
        raise unreadable(f"BMP with {-missing} bytes behind its pixels, which TensorFlow refuses")
