"""Check that an image's bytes are an image that TensorFlow reads, before they go into an Example.

A pure function of bytes: safe in threads, the same in every run. The header check walks the file's
structure and hands no byte to a native decoder; the decode check adds libjpeg-turbo and Pillow.
"""

import contextlib
import enum
import importlib
import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from beam_tfrec.schemas.faults import printable
from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.transforms.images.exif import read_exif
from beam_tfrec.transforms.images.findings import (
    BadImage,
    damaged,
    require_size,
    truncated,
    unreadable,
)
from beam_tfrec.transforms.images.gif_bmp import GifFrame, read_bmp, read_gif, walk_gif
from beam_tfrec.transforms.images.jpeg import jpeg_for_decoder, read_jpeg
from beam_tfrec.transforms.images.png import SIGNATURE, png_for_decoder, read_png

if TYPE_CHECKING:
    from PIL import ImageFile

SAFE_PILLOW_MAJOR = 13
"""First version without a critical JPEG overflow (CVE-2026-112403); see README on security."""

_READERS = {
    b"\xff\xd8\xff": read_jpeg,
    SIGNATURE: read_png,
    b"GIF87a": read_gif,
    b"GIF89a": read_gif,
    b"BM": read_bmp,
}
# The first that the bytes start with; "." in a signature stands for any byte.
_SIGNATURES = (
    (rb"RIFF....WEBP", "WebP"),
    (rb"....ftyp(avif|avis)", "AVIF"),
    (rb"....ftyp(heic|heix|hevc|heim|heis|mif1|msf1)", "HEIC"),
    (rb"II\*\0|MM\0\*|II\+\0|MM\0\+", "TIFF"),
    (rb"version https://git-lfs", "a Git LFS pointer"),
    (rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body)", "HTML"),
    (rb"\0{16}", "zero bytes"),
    (rb"[\t\n\f\r\x20-\x7e\x80-\xff]+\Z", "text"),
)
_FOREIGN_KINDS = frozenset({"WebP", "TIFF", "AVIF"})  # that can be converted
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_DETAIL_CHARACTERS = 200


class Check(enum.Enum):
    """Depth of the check."""

    HEADER = "header"
    DECODE = "decode"


def check_image(
    data: bytes, check: Check = Check.HEADER, *, takes_foreign: bool = False
) -> ImageInfo:
    r"""Return the facts of an image.

    HEADER proves in some 10 us that `tf.io.decode_image` knows the format, that headers are valid,
    the size is within limits and nothing is missing at the end; of a PNG all checksums. It cannot
    see damage in compressed pixels or in a JPEG's tables. DECODE can, in milliseconds: what it
    accepts, `tf.io.decode_image` decodes. A JPEG that makes libjpeg warn is refused, where
    TensorFlow fills up with gray. A flipped bit that leaves a valid JPEG is beyond both.

    Args:
        data: the whole file.
        check: depth of the check. `MAX_PIXELS` is applied before any pixel work, for a GIF to all
            frames together.
        takes_foreign: accept WebP, TIFF and AVIF too, by their headers as Pillow reads them, and
            without traits.

    Raises:
        BadImage: why it is refused.
        MemoryError, RecursionError, OSError: of the machine, not of the image; only where Pillow
            or libjpeg-turbo reads it.
        ValueError: another library lets Pillow tolerate truncated images.

    >>> check_image(bytes.fromhex("ffd8ffc0000b08000100010100110000ffda0003010000ffd9")).size_px
    (1, 1)
    >>> check_image(b"<html>Not Found</html>")
    Traceback (most recent call last):
    beam_tfrec.transforms.images.findings.BadImage: ('E-IMG-TYPE', 'HTML')
    """
    for signature, read in _READERS.items():
        if data.startswith(signature):
            info = read(data)
            if check is Check.DECODE:
                _decode(data, info)
            return info
    return _read_other(data, takes_foreign)


def looks_like_image(data: bytes) -> bool:
    """Return whether bytes begin as an image file that TensorFlow reads does.

    >>> looks_like_image(b"GIF89a..."), looks_like_image(b"BM is no image")
    (True, False)
    """
    if data.startswith(b"BM"):  # two letters begin many texts, too
        size_bytes, pixels_at = int.from_bytes(data[2:6], "little"), data[10:14]
        return size_bytes in (0, len(data)) and 0 < int.from_bytes(pixels_at, "little") < 4096
    return data.startswith(tuple(_READERS))


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Turn a foreign decoder's exception into a `BadImage`, unless the machine is at its limits.

    Raises:
        BadImage: E-IMG-DAMAGED.
        ValueError: another library lets Pillow tolerate truncated images.
    """
    from PIL import ImageFile

    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise ValueError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES must be False to check images")
    try:
        yield
    except (BadImage, MemoryError, RecursionError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise damaged(one_line(error)) from None


def one_line(error: Exception) -> str:
    """Return an exception's message, fit for an output file that must be the same in every run.

    >>> one_line(OSError("broken data stream\\nin <io.BytesIO object at 0x7f57a494b290>"))
    'OSError: broken data stream in <io.BytesIO object at 0x>'
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return printable(_ADDRESS.sub("0x", text))[:_DETAIL_CHARACTERS]


def open_image(data: bytes, kind: str) -> "ImageFile.ImageFile":
    """Return an image opened by Pillow's plugin of that format alone, not decoded.

    Pillow's own limit of pixels is not used: it is a setting of the whole process, and warns
    through the `warnings` module, which is not safe in threads.
    """
    name = {"webp": "WebP"}.get(kind, kind.title())
    plugin = getattr(importlib.import_module(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
    image: ImageFile.ImageFile = plugin(io.BytesIO(data))
    return image


def load(data: bytes, info: ImageInfo, *, transparency: bool = False) -> "ImageFile.ImageFile":
    """Return the decoded picture of a checked image; a PNG's metadata no decoder sees."""
    bare = png_for_decoder(data, transparency=transparency) if info.format == "png" else data
    with open_image(bare, info.format) as image:
        image.load()
        return image


def _name_kind(data: bytes) -> str:
    r"""Return what the first bytes look like.

    >>> _name_kind(b"RIFF\x24\0\0\0WEBPVP8 ")
    'WebP'
    >>> _name_kind(b"\n<HTML>404")
    'HTML'
    >>> _name_kind(bytes.fromhex("0102030405060708090a"))
    'unknown, starts with 0102030405060708'
    """
    head = data[:256]
    for signature, kind in _SIGNATURES:
        if re.match(signature, head, re.DOTALL | re.IGNORECASE):
            return kind
    return f"unknown, starts with {head[:8].hex()}"


def _read_other(data: bytes, takes_foreign: bool) -> ImageInfo:
    """Return the facts of a foreign image; raise the fault of any other bytes."""
    if not data:
        raise BadImage("E-IMG-EMPTY", "0 bytes")
    if any(signature.startswith(data) for signature in _READERS):
        raise truncated(f"{len(data)} bytes, a signature takes more")
    kind = _name_kind(data)
    if kind not in _FOREIGN_KINDS:
        raise unreadable(kind)
    if not takes_foreign:
        raise unreadable(f"{kind}, which --reencode converts")
    from PIL import features

    if kind != "TIFF" and not features.check(kind.lower()):
        raise ValueError(f"Pillow must be built with {kind}, got one without: install another")
    with decoding(), open_image(data, kind.lower()) as image:
        require_size(*image.size)
        # Pillow gives a TIFF's size and pixels as they are viewed.
        exif = b"" if kind == "TIFF" else image.info.get("exif", b"")
        orientation, _ = read_exif(exif.removeprefix(b"Exif\0\0"))
        return ImageInfo(kind.lower(), *image.size, orientation)


def _decode(data: bytes, info: ImageInfo) -> None:
    """Decode all pixels, or raise."""
    with decoding():
        if info.format == "jpeg":
            _decode_jpeg(jpeg_for_decoder(data), info)
        elif info.format == "png":
            load(data, info)
        elif info.format == "gif":
            for frame in walk_gif(data)[0]:
                _decode_frame(data, frame)


def _decode_jpeg(data: bytes, info: ImageInfo) -> None:
    """Decode a JPEG; a warning of libjpeg is an error, such as of data that runs out.

    All coefficients are decoded, which is where a JPEG can fail, and transformed to an eighth of
    the size. TurboJPEG knows the usual samplings only; others are decoded by Pillow, which does not
    pass warnings on.
    """
    import simplejpeg

    inks = "CMYK" if "cmyk" in info.traits else "GRAY" if "gray" in info.traits else "RGB"
    try:
        simplejpeg.decode_jpeg(data, inks, min_height=1, min_width=1)
    except ValueError as error:
        if "subsampling" not in str(error):
            raise
        load(data, info)


def _decode_frame(data: bytes, frame: GifFrame) -> None:
    """Decode one frame to its indices, which must be in its colour table."""
    from PIL import Image

    size, blocks = (frame.width_px, frame.height_px), data[frame.start : frame.end]
    indices = Image.frombytes("L", size, blocks, "gif", frame.code_bits, int(frame.interlaced), -1)
    counts = indices.histogram()
    for index in range(frame.colours, len(counts)):
        if counts[index] and index != frame.transparent:
            raise damaged(f"colour {index} of {frame.colours} in a frame")
