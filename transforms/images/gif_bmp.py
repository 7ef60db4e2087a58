"""Walk GIFs and BMPs: check that the file is whole, and that TensorFlow reads it as viewers do.

For a GIF, `tf.io.decode_image` returns every frame at the largest width and height of all frames,
and ignores the canvas. Format: GIF89a specification (1990); decoder: giflib (gif_io.cc). For a BMP
it reads only the offset of the pixels, width, height and bits (decode_image_op.cc).
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.transforms.images.findings import (
    damaged,
    require_size,
    too_many_pixels,
    truncated,
    unreadable,
)

MAX_FRAMES = 10_000

MAX_SUB_BLOCKS = 2**21
"""Limit of the walk, about a second. Encoders write full sub-blocks of 255 bytes."""

_IMAGE, _EXTENSION, _TRAILER = 0x2C, 0x21, 0x3B
_GRAPHIC_CONTROL = b"\xf9\x04"

_SCREEN = struct.Struct("<HHB").unpack_from

# BITMAPINFOHEADER, its versions 2 to 5, and OS/2 2.0. OS/2 1.x (12) has sizes of two bytes.
_HEADER_BYTES = frozenset({40, 52, 56, 64, 108, 124})
_PLAIN, _BIT_FIELDS = 0, 3
_BGRA_MASKS = struct.pack("<III", 0x00FF0000, 0x0000FF00, 0x000000FF)
_TRAITS = {8: ["gray"], 24: [], 32: ["alpha"]}


class GifFrame(NamedTuple):
    """One frame: compressed indices into a colour table.

    Attributes:
        width_px: number of columns, at most the canvas's.
        height_px: number of rows, at most the canvas's.
        interlaced: whether the rows are stored in four passes.
        colours: size of the colour table, 2 to 256.
        transparent: index of transparent pixels; -1 for none.
        code_bits: minimum code size of LZW, 2 to 8.
        start: offset of the first sub-block in the file.
        end: offset after the terminator of the sub-blocks.
    """

    width_px: int
    height_px: int
    interlaced: bool
    colours: int
    transparent: int
    code_bits: int
    start: int
    end: int


def read_gif(data: bytes) -> ImageInfo:
    """Return the facts of a whole GIF without decompressing its frames.

    Args:
        data: the file; starts with `GIF87a` or `GIF89a`.

    Raises:
        BadImage: A block is cut off, unknown or impossible, or TensorFlow reads another size.
    """
    frames, end = walk_gif(data)
    width_px, height_px, _ = _SCREEN(data, 6)
    if not frames:
        raise damaged("no frame")
    widest, highest = map(max, zip(*(frame[:2] for frame in frames), strict=True))
    if (widest, highest) != (width_px, height_px):
        what = f"GIF of {width_px} x {height_px}, which TensorFlow reads as {widest} x {highest}"
        raise unreadable(f"{what}, its largest frame")
    require_size(width_px, height_px, frames=len(frames))
    found = {
        "alpha": any(frame.transparent >= 0 for frame in frames),
        "animated": len(frames) > 1,
        "interlaced": any(frame.interlaced for frame in frames),
        "palette": True,
        "trailing_bytes": end != len(data),
    }
    traits = tuple(trait for trait, holds in found.items() if holds)
    return ImageInfo("gif", width_px, height_px, 1, traits)


def read_bmp(data: bytes) -> ImageInfo:
    """Return the facts of a BMP that TensorFlow reads correctly.

    No decode check is needed, since the pixels are not compressed and all present.

    Args:
        data: the file; starts with `BM`.

    Raises:
        BadImage: TensorFlow refuses the file, or reads other pixels.
    """
    if len(data) < 54:
        raise truncated(f"{len(data)} bytes, a BMP's header takes 54")
    header = struct.unpack_from("<10xIIiiHHI", data)
    pixels_start, header_bytes, width_px, height_px, _, bits, compression = header
    if header_bytes not in _HEADER_BYTES:
        raise unreadable(f"BMP with a header of {header_bytes} bytes")
    require_size(width_px, abs(height_px))
    if bits not in _TRAITS:
        raise unreadable(f"BMP of {bits} bits a pixel; TensorFlow reads 8, 24 and 32")
    if compression != _PLAIN and (compression, bits) != (_BIT_FIELDS, 32):
        raise unreadable(f"BMP of compression {compression}, which TensorFlow takes for pixels")
    end = pixels_start + (bits // 8 * width_px + 3) // 4 * 4 * abs(height_px)
    if len(data) < end:
        raise truncated(f"{len(data)} of {end} bytes")
    if len(data) > end:
        what = f"BMP with {len(data) - end} bytes after its pixels"
        raise unreadable(f"{what}, refused by TensorFlow")
    # The masks are at byte 54 for all headers.
    if compression == _BIT_FIELDS and data[54:66] != _BGRA_MASKS:
        raise unreadable("BMP with channel masks other than BGRA, which TensorFlow ignores")
    if bits == 8:  # TensorFlow reads indices as gray values
        start, colours = 14 + header_bytes, int.from_bytes(data[46:50], "little") or 256
        palette, ramp = data[start : start + 4 * colours], bytes(range(256))[:colours]
        if colours > 256 or any(palette[channel::4] != ramp for channel in range(3)):
            raise unreadable("BMP with a palette, whose indices TensorFlow takes for gray values")
    traits = [*_TRAITS[bits], *(["top_down"] if height_px < 0 else [])]
    return ImageInfo("bmp", width_px, abs(height_px), 1, tuple(traits), bits // 8)


def walk_gif(data: bytes) -> tuple[list[GifFrame], int]:
    """Read all blocks; return the frames, and the offset after the trailer.

    Raises:
        BadImage: A block is cut off, unknown or impossible.
    """
    if len(data) < 13:
        raise truncated(f"{len(data)} bytes, a GIF's header takes 13")
    width_px, height_px, flags = _SCREEN(data, 6)
    require_size(width_px, height_px)
    frames: list[GifFrame] = []
    position, transparent, sub_blocks = 13 + 3 * _colours(flags), None, iter(range(MAX_SUB_BLOCKS))
    try:
        while (kind := data[position]) != _TRAILER:
            if kind == _IMAGE:
                frames.append(_read_frame(data, position, len(frames), transparent, sub_blocks))
                position, transparent = frames[-1].end, None
            elif kind == _EXTENSION:
                if data[position + 2] == 0:  # giflib reads the next block as its data
                    what = f"GIF extension without data at byte {position}"
                    raise unreadable(f"{what}, which TensorFlow misreads")
                # giflib uses the first of several control blocks before a frame.
                if data.startswith(_GRAPHIC_CONTROL, position + 1) and transparent is None:
                    transparent = data[position + 6] if data[position + 3] & 1 else -1
                position = _skip_sub_blocks(data, position + 2, sub_blocks)
            else:
                raise damaged(f"block {kind:02x} at byte {position}")
    except (IndexError, struct.error):
        raise truncated(f"no trailer in {len(data)} bytes, {len(frames)} frames") from None
    return frames, position + 1


def _read_frame(
    data: bytes, position: int, number: int, transparent: int | None, sub_blocks: Iterable[int]
) -> GifFrame:
    """Return the frame at a position.

    Raises:
        IndexError, struct.error: The data ends within the frame.
    """
    canvas_width, canvas_height, screen_flags = _SCREEN(data, 6)
    left, top, width_px, height_px, flags = struct.unpack_from("<HHHHB", data, position + 1)
    if number == MAX_FRAMES:
        raise too_many_pixels(f"more than {MAX_FRAMES} frames")
    if not (width_px and height_px):
        raise damaged(f"frame {number} is {width_px} x {height_px}")
    if left + width_px > canvas_width or top + height_px > canvas_height:
        what = f"frame {number} of {width_px} x {height_px} at {left}, {top}"
        raise damaged(f"{what} leaves the canvas of {canvas_width} x {canvas_height}")
    start = position + 11 + 3 * _colours(flags)
    code_bits, colours = data[start - 1], _colours(flags) or _colours(screen_flags)
    if not 2 <= code_bits <= 8:
        raise damaged(f"frame {number} has codes of {code_bits} bits")
    if not colours:
        raise unreadable(f"GIF without a colour table for frame {number}")
    shown, is_interlaced = -1 if transparent is None else transparent, bool(flags & 0x40)
    end = _skip_sub_blocks(data, start, sub_blocks)
    return GifFrame(width_px, height_px, is_interlaced, colours, shown, code_bits, start, end)


def _colours(flags: int) -> int:
    """Return the size of the colour table by the flags of a descriptor.

    >>> _colours(0x80), _colours(0xF7), _colours(0x77)
    (2, 256, 0)
    """
    return 2 << (flags & 7) if flags & 0x80 else 0


def _skip_sub_blocks(data: bytes, position: int, allowed: Iterable[int]) -> int:
    """Return the offset after the sub-blocks at `position`; each takes one of `allowed`."""
    for _ in allowed:
        size = data[position]
        position += size + 1
        if size == 0:
            return position
    raise damaged(f"more than {MAX_SUB_BLOCKS} sub-blocks")
