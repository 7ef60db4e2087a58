"""Image walkers: bytes are an image or a fault, and a decoder sees what the header check saw."""

import struct
import zlib
from collections.abc import Callable

from schemas.faults import FAULTS, Scope, printable
from schemas.fields import EncodedImage
from schemas.geometry.boxes import turn_size
from tests import small_images as small
from tests.fuzz.target import Target
from transforms.images.check_images import (
    MAX_PIXELS,
    TRAITS,
    Check,
    ImageFault,
    ImageInfo,
    check_image,
)
from transforms.images.convert_images import NO_CONVERSION, Orientation, convert_image
from transforms.images.exif import read_exif

_FEW_PIXELS = 2**14
"""What a decode may take, so that thousands of inputs a second can be decoded."""


def check_any(data: bytes) -> None:
    """Look at bytes in every way that `check_image` has; compare what it says."""
    found = check_image(data)
    _require_form(found)
    decoded = check_image(data, Check.DECODE, max_pixels=_FEW_PIXELS)
    _require_form(decoded)
    if isinstance(found, ImageInfo):
        _require_last_byte_matters(data, found)
        if isinstance(decoded, ImageInfo):
            assert decoded == found
            _require_upright(data, found)
    else:
        assert isinstance(decoded, ImageFault), "the decode check takes what the header's refuses"


def _require_form(found: ImageInfo | ImageFault) -> None:
    if isinstance(found, ImageFault):
        assert FAULTS[found.code].scope is Scope.SAMPLE
        assert printable(found.detail) == found.detail and 0 < len(found.detail) <= 200
        return
    assert 1 <= found.width_px * found.height_px <= MAX_PIXELS
    assert min(found.width_px, found.height_px) >= 1 and 1 <= found.orientation <= 8
    assert list(found.traits) == sorted(set(found.traits) & TRAITS.keys())


def _require_upright(data: bytes, info: ImageInfo) -> None:
    """Require that a decodable image is turned, or that it is said why not."""
    image = EncodedImage("a", data, "", info)
    turned = convert_image(image, NO_CONVERSION, Orientation.UPRIGHT)
    if isinstance(turned, ImageFault):
        _require_form(turned)
        return
    assert turned.turned == info.orientation and turned.info.orientation == 1
    size = turn_size((info.width_px, info.height_px), info.orientation)
    assert (turned.info.width_px, turned.info.height_px) == size


def _require_last_byte_matters(data: bytes, info: ImageInfo) -> None:
    """Require that an image without trailing bytes is none, or another, without its last byte."""
    if "trailing_bytes" in info.traits:
        return
    shorter = check_image(data[:-1])
    if info.format == "jpeg":  # what looked like data of the scan may hold an end marker
        assert isinstance(shorter, ImageFault) or "trailing_bytes" in shorter.traits
    else:
        assert isinstance(shorter, ImageFault) and shorter.code == "E-IMG-TRUNCATED", shorter


def walker(signature: bytes) -> Callable[[bytes], None]:
    """Return a run that checks bytes as they are, and after a format's signature."""

    def run(data: bytes) -> None:
        check_any(data)
        if not data.startswith(signature):
            check_any(signature + data)

    return run


_run_png = walker(small.PNG_SIGNATURE)


def run_png(data: bytes) -> None:
    """Run bytes as they are, and with every checksum put right, which chance does not do."""
    _run_png(data)
    _run_png(with_right_checksums(data))


def with_right_checksums(data: bytes) -> bytes:
    """Return a PNG with the checksum of each of its whole chunks put right."""
    mended, position = bytearray(data), len(small.PNG_SIGNATURE)
    while position + 12 <= len(mended):
        end = position + 12 + struct.unpack_from(">I", mended, position)[0]
        if end > len(mended):
            break
        struct.pack_into(">I", mended, end - 4, zlib.crc32(mended[position + 4 : end - 4]))
        position = end
    return bytes(mended)


def run_exif(data: bytes) -> None:
    """Require an orientation and known traits of any block, in both byte orders."""
    for block in (data, b"II*\0" + data[4:], b"MM\0*" + data[4:]):
        orientation, traits = read_exif(block)
        assert 1 <= orientation <= 8
        assert traits == sorted(set(traits) & TRAITS.keys())
        assert ("exif_orientation" in traits) == (orientation != 1)


# The corpus holds what grew of larger seeds.
JPEG_SEEDS = (
    small.jpeg(),
    small.jpeg(
        small.QUANTIZATION, small.frame(components=small.YCBCR), small.HUFFMAN, small.YCBCR_SCAN
    ),
    small.gray_jpeg_with(small.segment(0xE2, b"MPF\0"), end=small.EOI + b"after"),
)
PNG_SEEDS = (
    small.png(end=small.IEND + b"after"),
    small.png(small.ihdr(colour_type=3), small.chunk(b"PLTE", bytes(6)), small.idat(bytes(40))),
    small.png(small.ihdr(interlace=1), small.idat(bytes(12))),
)
GIF_SEEDS = (
    small.gif(b"!\xf9\x04\1\0\0\1\0", small.GIF_FRAME, small.GIF_FRAME, end=b"; after"),
    small.gif(small.gif_frame([0] * 4, flags=0x80, palette=bytes(6)), colours=0),
    small.gif(b"!\xfe\3abc\0", small.gif_frame([0] * 4, flags=0x40)),
)
BMP_SEEDS = (
    small.bmp(),
    small.bmp(bits=8, palette=small.GRAY_PALETTE),
    small.bmp(bits=32, header_bytes=124, behind_header=bytes(84)),
)
EXIF_SEEDS = tuple(
    small.exif(small.entry(tag, kind, 1, value, order), order)
    for order in "<>"
    for tag, kind, value in ((0x0112, 3, b"\6\0"), (0x8769, 4, b"\0\0\0\x16"), (0x8825, 4, b""))
)

TARGETS = (
    Target("jpeg", walker(b"\xff\xd8\xff"), lambda: JPEG_SEEDS, "jpeg.dict", 1024),
    Target("png", run_png, lambda: PNG_SEEDS, "png.dict", 1024),
    Target("gif", walker(b"GIF89a"), lambda: GIF_SEEDS, "gif.dict", 1024),
    Target("bmp", walker(b"BM"), lambda: BMP_SEEDS, "", 1200),
    Target("exif", run_exif, lambda: EXIF_SEEDS, "exif.dict", 512),
)
