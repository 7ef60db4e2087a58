"""Build small images by hand, so that a test can set every byte."""

import struct
import zlib
from typing import Any

from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.transforms.images.check_images import check_image
from beam_tfrec.transforms.images.findings import BadImage

SOI, EOI = b"\xff\xd8", b"\xff\xd9"


def segment(marker: int, body: bytes = b"") -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


QUANTIZATION = segment(0xDB, b"\0" + b"\1" * 64)
# One code of one bit in each table: a block of 8 x 8 zeros takes the two bits 00.
HUFFMAN = segment(0xC4, b"\x00\1" + bytes(16)) + segment(0xC4, b"\x10\1" + bytes(16))
GRAY_SCAN = segment(0xDA, b"\1\1\0\0\x3f\0")
YCBCR = b"\1\x11\0\2\x11\0\3\x11\0"
YCBCR_SCAN = segment(0xDA, b"\3\1\0\2\0\3\0\0\x3f\0")


def frame(
    width_px: int = 8,
    height_px: int = 8,
    components: bytes = b"\1\x11\0",
    marker: int = 0xC0,
    bits: int = 8,
) -> bytes:
    head = struct.pack(">BHHB", bits, height_px, width_px, len(components) // 3)
    return segment(marker, head + components)


def jpeg(*segments: bytes, data: bytes = b"\x3f", end: bytes = EOI) -> bytes:
    """Return a JPEG of 8 x 8 gray pixels, or of the given segments."""
    body = segments or (QUANTIZATION, frame(), HUFFMAN, GRAY_SCAN)
    return SOI + b"".join(body) + data + end


def gray_with(*segments: bytes, end: bytes = EOI) -> bytes:
    """Return a JPEG of 8 x 8 gray pixels with further segments at its start."""
    return jpeg(*segments, QUANTIZATION, frame(), HUFFMAN, GRAY_SCAN, end=end)


def exif(entries: bytes, order: str = ">", values: bytes = b"") -> bytes:
    """Return an EXIF block of one directory: `entries`, then the values that they point to."""
    mark = b"MM\0*" if order == ">" else b"II*\0"
    return mark + struct.pack(order + "LH", 8, len(entries) // 12) + entries + values


def entry(tag: int, kind: int, count: int, value: bytes, order: str = ">") -> bytes:
    return struct.pack(order + "HHL", tag, kind, count) + value.ljust(4, b"\0")


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(name: bytes, body: bytes = b"") -> bytes:
    crc = struct.pack(">I", zlib.crc32(name + body))
    return struct.pack(">I", len(body)) + name + body + crc


IEND = chunk(b"IEND")


def ihdr(
    width_px: int = 2,
    height_px: int = 2,
    bits: int = 8,
    colour_type: int = 0,
    compression: int = 0,
    filtering: int = 0,
    interlace: int = 0,
) -> bytes:
    head = (width_px, height_px, bits, colour_type, compression, filtering, interlace)
    return chunk(b"IHDR", struct.pack(">IIBBBBB", *head))


def idat(raw: bytes = bytes(6)) -> bytes:
    return chunk(b"IDAT", zlib.compress(raw))


def png(*chunks: bytes, end: bytes = IEND) -> bytes:
    """Return a PNG of 2 x 2 gray pixels, or of the given chunks."""
    return PNG_SIGNATURE + b"".join(chunks or (ihdr(), idat())) + end


def lzw(indices: list[int], code_bits: int = 2) -> bytes:
    """Return uncompressed GIF data in sub-blocks: a clear code before every index."""
    clear, width = 1 << code_bits, code_bits + 1
    codes = [code for index in indices for code in (clear, index)] + [clear + 1]
    number = sum(code << position * width for position, code in enumerate(codes))
    packed = number.to_bytes((len(codes) * width + 7) // 8, "little")
    blocks = [packed[start : start + 255] for start in range(0, len(packed), 255)]
    return b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"


def gif_frame(
    indices: list[int],
    width_px: int = 2,
    height_px: int = 2,
    left: int = 0,
    top: int = 0,
    flags: int = 0,
    palette: bytes = b"",
    code_bits: int = 2,
) -> bytes:
    head = struct.pack("<BHHHHB", 0x2C, left, top, width_px, height_px, flags)
    return head + palette + bytes([code_bits]) + lzw(indices, code_bits)


GIF_FRAME = gif_frame([0, 1, 1, 0])


def gif(
    *blocks: bytes, width_px: int = 2, height_px: int = 2, colours: int = 2, end: bytes = b";"
) -> bytes:
    """Return a GIF of 2 x 2 pixels, or of the given blocks."""
    flags = 0x80 | (colours.bit_length() - 2) if colours else 0
    screen = struct.pack("<HHBBB", width_px, height_px, flags, 0, 0)
    return b"GIF89a" + screen + bytes(3 * colours) + b"".join(blocks or (GIF_FRAME,)) + end


def bmp(
    width_px: int = 3,
    height_px: int = 2,
    bits: int = 24,
    compression: int = 0,
    header_bytes: int = 40,
    palette: bytes = b"",
    colours_used: int = 0,
    after_header: bytes = b"",
    end: bytes = b"",
) -> bytes:
    """Return a BMP of zeros, with the length that TensorFlow expects."""
    head = struct.pack(
        "<IiiHHIIiiII",
        *(header_bytes, width_px, height_px, 1, bits, compression, 0, 0, 0, colours_used, 0),
    )
    head += after_header + palette
    pixels = bytes((bits // 8 * width_px + 3) // 4 * 4 * abs(height_px))
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 14 + len(head)) + head + pixels + end


GRAY_PALETTE = b"".join(bytes([value, value, value, 0]) for value in range(256))


def verdict(data: bytes, *check: Any, **options: Any) -> ImageInfo | str:
    """Return what `check_image` finds; a fault as `DAMAGED: two frame headers`."""
    try:
        return check_image(data, *check, **options)
    except BadImage as error:
        return f"{error.code.removeprefix('E-IMG-')}: {error.detail}"
