"""Image walkers: bytes are an image or a fault, and a decoder sees what the header check saw."""

import io
import itertools
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator

from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin

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
from transforms.images.findings import BadImage
from transforms.images.gif_bmp import read_bmp, read_gif
from transforms.images.jpeg import read_jpeg
from transforms.images.png import read_png

_FEW_PIXELS = 2**14
"""What a decode may take, so that thousands of inputs a second can be decoded."""

_OPENERS = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "gif": GifImagePlugin.GifImageFile,
    "bmp": BmpImagePlugin.BmpImageFile,
}


def check_any(data: bytes) -> None:
    """Look at bytes in every way that `check_image` has; compare what it says."""
    found = check_image(data)
    _require_form(found)
    decoded = check_image(data, Check.DECODE, max_pixels=_FEW_PIXELS)
    _require_form(decoded)
    if isinstance(found, ImageInfo):
        _require_same_size_by_pillow(data, found)
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


def _require_same_size_by_pillow(data: bytes, info: ImageInfo) -> None:
    """Compare the size with Pillow's, where Pillow has an opinion: it refuses odd metadata."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            size = _OPENERS[info.format](io.BytesIO(data)).size
    except Exception:
        return
    assert size == (info.width_px, info.height_px), f"Pillow says {size}, we {info}"


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


def walker(read: Callable[[bytes, int], ImageInfo], signature: bytes) -> Callable[[bytes], None]:
    """Return a run that gives bytes to a walker, behind its signature, and to `check_image`."""

    def run(data: bytes) -> None:
        signed = data if data.startswith(signature) else signature + data
        try:
            found: ImageInfo | ImageFault = read(signed, MAX_PIXELS)
        except BadImage as error:
            found = error.fault
        assert found == check_image(signed)
        check_any(signed)
        if signed is not data:
            check_any(data)

    return run


_run_png = walker(read_png, small.PNG_SIGNATURE)


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


def jpeg_seeds() -> Iterator[bytes]:
    yield small.jpeg()
    low_bits = small.segment(0xDA, b"\1\1\0\0\0\0")
    for marker in (0xC1, 0xC2, 0xC3, 0xC9, 0xCA):
        scan = low_bits if marker in (0xC2, 0xCA) else small.GRAY_SCAN
        yield small.jpeg(small.QUANTIZATION, small.frame(marker=marker), small.HUFFMAN, scan)
    yield small.jpeg(
        small.QUANTIZATION, small.frame(components=small.YCBCR), small.HUFFMAN, small.YCBCR_SCAN
    )
    restarts = small.segment(0xDD, b"\0\1")
    for extra in (restarts, small.segment(0xFE, b"a"), small.segment(0xCC, b"\0\1"), b"\xff\xff"):
        yield small.gray_jpeg_with(extra)
    for body in (b"ICC_PROFILE\0\1\1", b"MPF\0"):
        yield small.gray_jpeg_with(small.segment(0xE2, body))
    for block in exif_seeds():
        yield small.gray_jpeg_with(small.segment(0xE1, b"Exif\0\0" + block))
    yield small.jpeg(end=b"\xff\xd9 behind")
    later = small.segment(0xDA, b"\1\1\0\1\x3f\0") + b"\x3f"
    start = (small.QUANTIZATION, small.frame(marker=0xC2), small.HUFFMAN)
    yield small.jpeg(*start, low_bits, b"\x3f", later, later)


def png_seeds() -> Iterator[bytes]:
    yield small.png()
    yield small.png(end=small.IEND + b"behind")
    for colour_type, bits in itertools.product((0, 2, 3, 4, 6), (1, 8, 16)):
        palette = small.chunk(b"PLTE", bytes(6))
        raw = small.idat(bytes(40))
        yield small.png(small.ihdr(bits=bits, colour_type=colour_type), palette, raw)
    for name in (b"tRNS", b"acTL", b"iCCP", b"tEXt", b"gAMA", b"ABCD", b"IDAT"):
        yield small.png(small.ihdr(), small.chunk(name, bytes(8)), small.idat())
    for block in exif_seeds():
        yield small.png(small.ihdr(), small.chunk(b"eXIf", block), small.idat())
    yield small.png(small.ihdr(interlace=1), small.idat(bytes(12)))


def gif_seeds() -> Iterator[bytes]:
    yield small.gif()
    yield small.gif(small.GIF_FRAME, small.GIF_FRAME)
    control = b"!\xf9\x04\1\0\0\1\0"
    yield small.gif(control, small.GIF_FRAME, control, small.GIF_FRAME, end=b"; behind")
    yield small.gif(b"!\xfe\3abc\0", small.gif_frame([0] * 4, flags=0x40))
    local = small.gif_frame([0] * 4, flags=0x80, palette=bytes(6))
    yield small.gif(local, colours=0)
    yield small.gif(small.gif_frame([0], 1, 1, 1, 1))


def bmp_seeds() -> Iterator[bytes]:
    yield small.bmp()
    yield small.bmp(height_px=-2)
    yield small.bmp(bits=8, palette=small.GRAY_PALETTE)
    masks = bytes.fromhex("0000ff00 00ff0000 ff000000")
    yield small.bmp(bits=32, compression=3, behind_header=masks)
    for header_bytes in (52, 56, 64, 108, 124):
        yield small.bmp(bits=32, header_bytes=header_bytes, behind_header=bytes(header_bytes - 40))
    yield small.bmp(end=b"\0")


def exif_seeds() -> Iterator[bytes]:
    for order in "<>":
        for kind, value in ((3, struct.pack(order + "H", 6)), (4, struct.pack(order + "L", 8))):
            yield small.exif(small.entry(0x0112, kind, 1, value, order), order)
        to_directory = small.entry(0x8769, 4, 1, struct.pack(order + "L", 22), order)
        serial = struct.pack(order + "H", 1) + small.entry(0xA431, 2, 4, b"123", order)
        yield small.exif(to_directory, order, serial)
        yield small.exif(small.entry(0x8825, 4, 1, b"", order), order)


TARGETS = (
    Target("jpeg", walker(read_jpeg, b"\xff\xd8\xff"), jpeg_seeds, "jpeg.dict", 1024),
    Target("png", run_png, png_seeds, "png.dict", 1024),
    Target("gif", walker(read_gif, b"GIF89a"), gif_seeds, "gif.dict", 1024),
    Target("bmp", walker(read_bmp, b"BM"), bmp_seeds, "", 1200),
    Target("exif", run_exif, exif_seeds, "exif.dict", 512),
)
