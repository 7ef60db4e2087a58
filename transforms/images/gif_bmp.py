"""Walk GIFs and BMPs: is the file whole, and does TensorFlow read what viewers show?

`tf.io.decode_image` returns every frame of a GIF at the width of the widest and the height of the
highest, whatever the canvas is. Format: GIF89a specification (1990); decoder: giflib (gif_io.cc).
Of a BMP it looks at the offset of the pixels, width, height and bits only (decode_image_op.cc).
"""

import struct
from dataclasses import dataclass

from schemas.fields import ImageInfo
from transforms.images.findings import damaged, require_size, too_many_pixels, truncated, unreadable

SIGNATURES = (b"GIF87a", b"GIF89a")

MAX_GIF_PIXELS = (2**31 - 1) // 3
"""Of all frames together: TensorFlow counts their bytes as RGB in 31 bits."""

MAX_BMP_PIXELS = (2**31 - 1) // 8 - 1
"""TensorFlow refuses a BMP of more pixels."""

MAX_FRAMES = 10_000

MAX_SUB_BLOCKS = 2**21
"""Bounds the walk to about a second; encoders fill all but the last of a frame with 255 bytes."""

_IMAGE, _EXTENSION, _TRAILER = 0x2C, 0x21, 0x3B
_GRAPHIC_CONTROL = b"\xf9\x04"

_SCREEN = struct.Struct("<HHB").unpack_from
_IMAGE_HEAD = struct.Struct("<HHHHB").unpack_from

_HEADER = struct.Struct("<10xIIiiHHI").unpack_from
_MASKS = struct.Struct("<III").unpack_from
_COLOURS_USED = struct.Struct("<I").unpack_from

# BITMAPINFOHEADER, its versions 2 to 5, and that of OS/2 2.0; the older one has sizes of two bytes.
_HEADER_BYTES = frozenset({40, 52, 56, 64, 108, 124})
_PLAIN, _BIT_FIELDS = 0, 3
_BGRA_MASKS = (0x00FF0000, 0x0000FF00, 0x000000FF)
_KINDS = {8: "gray", 24: "", 32: "alpha"}


@dataclass(frozen=True, slots=True)
class GifFrame:
    """One frame: indices into a colour table, compressed.

    Attributes:
        width_px: columns; at most the canvas's.
        height_px: rows; at most the canvas's.
        interlaced: whether the rows are stored in four passes.
        colours: size of the colour table, 2 to 256.
        transparent: the index that shows the frame before, -1 without one.
        code_bits: LZW minimum code size, 2 to 8.
        start: where its sub-blocks begin in the file.
        end: one past their terminator.
    """

    width_px: int
    height_px: int
    interlaced: bool
    colours: int
    transparent: int
    code_bits: int
    start: int
    end: int


@dataclass(slots=True)
class _Gif:
    """What the walk has found so far; `transparent` is None until a control block says more."""

    data: bytes
    width_px: int
    height_px: int
    colours: int
    frames: list[GifFrame]
    transparent: int | None = None
    sub_blocks: int = 0


def read_gif(data: bytes, max_pixels: int) -> ImageInfo:
    """Return the facts of a GIF that is whole, without decompressing its frames.

    Args:
        data: the file; starts with one of `SIGNATURES`.
        max_pixels: limit on the pixels of all frames together.

    Raises:
        BadImage: where a block is cut off, unknown or impossible, or TensorFlow reads another size.
    """
    gif, end = _walk(data, max_pixels)
    found = {
        "alpha": any(frame.transparent >= 0 for frame in gif.frames),
        "animated": len(gif.frames) > 1,
        "interlaced": any(frame.interlaced for frame in gif.frames),
        "palette": True,
        "trailing_bytes": end != len(data),
    }
    traits = tuple(trait for trait, holds in found.items() if holds)
    return ImageInfo("gif", gif.width_px, gif.height_px, 1, traits)


def gif_frames(data: bytes, max_pixels: int) -> list[GifFrame]:
    """Return all frames of a GIF, in order.

    Raises:
        BadImage: as `read_gif`.
    """
    return _walk(data, max_pixels)[0].frames


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
    require_size(width_px, abs(height_px), min(max_pixels, MAX_BMP_PIXELS))
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


def _walk(data: bytes, max_pixels: int) -> tuple[_Gif, int]:
    """Read the blocks through the trailer; return what they say, and one past the trailer."""
    if len(data) < 13:
        raise truncated(f"{len(data)} bytes, a GIF's header takes 13")
    width_px, height_px, flags = _SCREEN(data, 6)
    require_size(width_px, height_px, max_pixels)
    gif = _Gif(data, width_px, height_px, _colours(flags), [])
    position = 13 + 3 * gif.colours
    try:
        while data[position] != _TRAILER:
            position = _read_block(gif, position)
    except (IndexError, struct.error):
        raise truncated(f"no trailer in {len(data)} bytes, {len(gif.frames)} frames") from None
    _require_frames(gif, max_pixels)
    return gif, position + 1


def _read_block(gif: _Gif, position: int) -> int:
    """Read one extension or frame; return where the next block begins.

    Raises:
        IndexError: where the data ends first; so does struct.error.
    """
    kind = gif.data[position]
    if kind == _EXTENSION:
        if gif.data[position + 2] == 0:  # giflib takes the next block for this one's data
            what = f"GIF extension without data at byte {position}"
            raise unreadable(f"{what}, which TensorFlow misreads")
        # Of several control blocks before a frame giflib takes the first.
        if gif.data.startswith(_GRAPHIC_CONTROL, position + 1) and gif.transparent is None:
            flags, transparent = gif.data[position + 3], gif.data[position + 6]
            gif.transparent = transparent if flags & 1 else -1
        return _skip_sub_blocks(gif, position + 2)
    if kind == _IMAGE:
        return _read_frame(gif, position)
    raise damaged(f"block {kind:02x} at byte {position}")


def _read_frame(gif: _Gif, position: int) -> int:
    left, top, width_px, height_px, flags = _IMAGE_HEAD(gif.data, position + 1)
    number = len(gif.frames)
    if number == MAX_FRAMES:
        raise too_many_pixels(f"more than {MAX_FRAMES} frames")
    if not (width_px and height_px):
        raise damaged(f"frame {number} is {width_px} x {height_px}")
    if left + width_px > gif.width_px or top + height_px > gif.height_px:
        what = f"frame {number} of {width_px} x {height_px} at {left}, {top}"
        raise damaged(f"{what} leaves the canvas of {gif.width_px} x {gif.height_px}")
    colours = _colours(flags)
    position += 10 + 3 * colours
    code_bits = gif.data[position]
    if not 2 <= code_bits <= 8:
        raise damaged(f"frame {number} has codes of {code_bits} bits")
    if not (colours or gif.colours):
        raise unreadable(f"GIF without a colour table for frame {number}")
    end = _skip_sub_blocks(gif, position + 1)
    is_interlaced, table = bool(flags & 0x40), colours or gif.colours
    shown, start = -1 if gif.transparent is None else gif.transparent, position + 1
    gif.frames.append(
        GifFrame(width_px, height_px, is_interlaced, table, shown, code_bits, start, end)
    )
    gif.transparent = None
    return end


def _colours(flags: int) -> int:
    """Return the entries of the colour table that a descriptor's flags announce.

    >>> _colours(0x80), _colours(0xF7), _colours(0x77)
    (2, 256, 0)
    """
    return 2 << (flags & 7) if flags & 0x80 else 0


def _skip_sub_blocks(gif: _Gif, position: int) -> int:
    """Return one past the terminator of the sub-blocks at `position`."""
    data = gif.data
    for count in range(MAX_SUB_BLOCKS - gif.sub_blocks):
        size = data[position]
        position += size + 1
        if size == 0:
            gif.sub_blocks += count + 1
            return position
    raise damaged(f"more than {MAX_SUB_BLOCKS} sub-blocks")


def _require_frames(gif: _Gif, max_pixels: int) -> None:
    """Refuse frames that TensorFlow would not read, or not at the canvas's size."""
    if not gif.frames:
        raise damaged("no frame")
    widest = max(frame.width_px for frame in gif.frames)
    highest = max(frame.height_px for frame in gif.frames)
    if (widest, highest) != (gif.width_px, gif.height_px):
        raise unreadable(
            f"GIF of {gif.width_px} x {gif.height_px}, which TensorFlow reads as "
            f"{widest} x {highest}, its largest frame"
        )
    pixels = widest * highest * len(gif.frames)
    limit = min(max_pixels, MAX_GIF_PIXELS)
    if pixels > limit:
        raise too_many_pixels(
            f"{len(gif.frames)} frames of {widest} x {highest} = {pixels} pixels, limit {limit}"
        )


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
