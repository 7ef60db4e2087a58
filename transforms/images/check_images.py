"""Check that an image's bytes are an image that TensorFlow reads, before they go into an Example.

A pure function of bytes: safe in threads, the same in every run. The header check looks at the
structure only and hands no byte to a native image decoder; the decode check adds libjpeg-turbo and
Pillow.
"""

import contextlib
import enum
import io
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from schemas.fields import ImageInfo
from transforms.images.exif import read_exif
from transforms.images.findings import (
    FOREIGN_KINDS,
    MAX_PIXELS,
    TRAITS,
    BadImage,
    ImageFault,
    damaged,
    name_kind,
    require_size,
    truncated,
    unreadable,
)
from transforms.images.gif_bmp import SIGNATURES as GIF_SIGNATURES
from transforms.images.gif_bmp import GifFrame, gif_frames, read_bmp, read_gif
from transforms.images.jpeg import jpeg_for_decoder, read_jpeg
from transforms.images.png import SIGNATURE as PNG_SIGNATURE
from transforms.images.png import png_for_decoder, read_png

__all__ = [
    "MAX_PIXELS",
    "SAFE_PILLOW_MAJOR",
    "TRAITS",
    "Check",
    "ImageFault",
    "ImageInfo",
    "check_image",
]

SAFE_PILLOW_MAJOR = 13
"""Versions before have a critical JPEG overflow (CVE-2026-112403); see README on security."""

_JPEG_SIGNATURE, _BMP_SIGNATURE = b"\xff\xd8\xff", b"BM"
_READERS = (
    ((_JPEG_SIGNATURE,), read_jpeg),
    ((PNG_SIGNATURE,), read_png),
    (GIF_SIGNATURES, read_gif),
    ((_BMP_SIGNATURE,), read_bmp),
)

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_DETAIL_CHARACTERS = 100


class Check(enum.Enum):
    """How much of an image is looked at."""

    HEADER = "header"
    DECODE = "decode"


def check_image(
    data: bytes, check: Check = Check.HEADER, *, max_pixels: int = MAX_PIXELS
) -> ImageInfo | ImageFault:
    r"""Return what an image is, or why it is refused.

    HEADER proves for some 10 us that `tf.io.decode_image` knows the format, that headers and tables
    are valid, the size is within limits and nothing is missing at the end; of a PNG all checksums.
    It cannot see damage inside compressed pixels. DECODE does, for milliseconds: what it accepts,
    `tf.io.decode_image` decodes. A JPEG that makes libjpeg warn is refused, where TensorFlow fills
    up with gray. A flipped bit that leaves a valid JPEG is beyond both.

    Args:
        data: the whole file.
        check: how much to look at.
        max_pixels: limit on width x height, for a GIF of all frames together; looked at before any
            pixel work.

    Raises:
        MemoryError, RecursionError, OSError: of the machine, not of the image; only by DECODE.
        ValueError: another library has told Pillow to tolerate truncated images; only by DECODE.

    >>> check_image(b"")
    ImageFault(code='E-IMG-EMPTY', detail='0 bytes')
    >>> check_image(b"<html>Not Found</html>")
    ImageFault(code='E-IMG-TYPE', detail='HTML')
    """
    try:
        info = _read_header(data, max_pixels)
        if check is Check.DECODE:
            _decode(data, info, max_pixels)
    except BadImage as error:
        return error.fault
    return info


def _read_header(data: bytes, max_pixels: int) -> ImageInfo:
    if data.startswith(_JPEG_SIGNATURE):
        return read_jpeg(data, max_pixels)
    if not data:
        raise BadImage("E-IMG-EMPTY", "0 bytes")
    for signatures, read in _READERS:
        if data.startswith(signatures):
            return read(data, max_pixels)
        if any(signature.startswith(data) for signature in signatures):
            raise truncated(f"{len(data)} bytes, a signature takes more")
    kind = name_kind(data)
    raise unreadable(f"{kind}, which --reencode converts" if kind in FOREIGN_KINDS else kind)


def _decode(data: bytes, info: ImageInfo, max_pixels: int) -> None:
    """Decode all pixels, or raise."""
    with decoding():
        if info.format == "jpeg":
            _decode_jpeg(data, info, max_pixels)
        elif info.format == "png":
            _decode_png(png_for_decoder(data, max_pixels), info)
        elif info.format == "gif":
            for frame in gif_frames(data, max_pixels):
                _decode_frame(data, frame)


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Make a `BadImage` of what a foreign decoder raises.

    Wherever one meets the bytes of strangers: what it raises is a fact about the image, but for
    what says that the machine is at its limits.

    Raises:
        BadImage: E-IMG-DAMAGED.
        ValueError: another library has told Pillow to tolerate truncated images.
    """
    _require_strict_pillow()
    try:
        yield
    except (BadImage, MemoryError, RecursionError):
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise damaged(_one_line(error)) from None
    except Exception as error:
        raise damaged(_one_line(error)) from None


def _require_strict_pillow() -> None:
    from PIL import ImageFile

    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise ValueError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES must be False to check images")


def _decode_jpeg(data: bytes, info: ImageInfo, max_pixels: int) -> None:
    """Decode a JPEG; a warning of libjpeg is an error, such as of data that runs out.

    All coefficients are decoded, which is where a JPEG can fail, and transformed to an eighth of
    the size. TurboJPEG knows the usual samplings only; others are decoded by Pillow, which does not
    pass warnings on.
    """
    import simplejpeg

    jpeg = jpeg_for_decoder(data, max_pixels)
    try:
        height_px, width_px, _, _ = simplejpeg.decode_jpeg_header(jpeg)
    except ValueError as error:
        if "subsampling" not in str(error):
            raise
        _decode_with_pillow(jpeg, info)
        return
    require_same_size((width_px, height_px), info)
    inks = "CMYK" if "cmyk" in info.traits else "GRAY" if "gray" in info.traits else "RGB"
    simplejpeg.decode_jpeg(jpeg, inks, min_height=1, min_width=1)


def _decode_with_pillow(data: bytes, info: ImageInfo) -> None:
    from PIL import JpegImagePlugin

    with JpegImagePlugin.JpegImageFile(io.BytesIO(data)) as image:
        require_same_size(image.size, info)
        image.load()


def _decode_png(data: bytes, info: ImageInfo) -> None:
    from PIL import PngImagePlugin

    with PngImagePlugin.PngImageFile(io.BytesIO(data)) as image:
        require_same_size(image.size, info)
        image.load()


def _decode_frame(data: bytes, frame: GifFrame) -> None:
    """Decode one frame to its indices, which must be in its colour table."""
    from PIL import Image

    size, blocks = (frame.width_px, frame.height_px), data[frame.start : frame.end]
    indices = Image.frombytes("L", size, blocks, "gif", frame.code_bits, int(frame.interlaced), -1)
    counts = indices.histogram()
    for index in range(frame.colours, len(counts)):
        if counts[index] and index != frame.transparent:
            raise damaged(f"colour {index} of {frame.colours} in a frame")


def require_same_size(size_px: tuple[int, int], info: ImageInfo) -> None:
    """Make sure that the decoder allocates what the limits were applied to.

    Pillow's own limit is not used: it is a setting of the whole process, and warns through the
    `warnings` module, which is not safe in threads.
    """
    if size_px != (info.width_px, info.height_px):
        raise damaged(f"decoder's size {size_px[0]} x {size_px[1]} is not the header's")


def _one_line(error: Exception) -> str:
    """Return what a decoder said, fit for an output file that must be the same in every run.

    >>> _one_line(OSError("broken data stream\\nin <io.BytesIO object at 0x7f57a494b290>"))
    'OSError: broken data stream in <io.BytesIO object at 0x>'
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ascii(_ADDRESS.sub("0x", text))[1:-1][:_DETAIL_CHARACTERS]


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
