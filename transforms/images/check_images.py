"""Check that TensorFlow can read an image, before its bytes go into an Example.

The check is a pure function of bytes: thread-safe, and equal in every run. The header check walks
the file's structure in Python, without a native decoder. The decode check adds libjpeg-turbo and
Pillow.
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
from beam_tfrec.transforms.images import findings
from beam_tfrec.transforms.images.exif import read_exif
from beam_tfrec.transforms.images.gif_bmp import GifFrame, read_bmp, read_gif, walk_gif
from beam_tfrec.transforms.images.jpeg import jpeg_for_decoder, read_jpeg
from beam_tfrec.transforms.images.png import SIGNATURE, png_for_decoder, read_png

if TYPE_CHECKING:
    from PIL import ImageFile

SAFE_PILLOW_MAJOR = 13
"""First major version of Pillow without a critical JPEG overflow (CVE-2026-112403)."""

_READERS = {
    b"\xff\xd8\xff": read_jpeg,
    SIGNATURE: read_png,
    b"GIF87a": read_gif,
    b"GIF89a": read_gif,
    b"BM": read_bmp,
}
# The first match wins; "." in a signature matches any byte.
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
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


class Check(enum.Enum):
    """Depth of the check."""

    HEADER = "header"
    DECODE = "decode"


def check_image(
    data: bytes, check: Check = Check.HEADER, *, takes_foreign: bool = False
) -> ImageInfo:
    r"""Return the format, size, orientation and traits of an image, or refuse it.

    HEADER takes some 10 us. It proves that `tf.io.decode_image` knows the format, that headers are
    valid, that the size is within limits, and that the file is not cut off. For a PNG it compares
    all checksums. It misses damage in compressed pixels and in a JPEG's tables.

    DECODE finds that damage, and takes milliseconds. `tf.io.decode_image` decodes every image that
    it accepts. It refuses a JPEG on any libjpeg warning, where TensorFlow would fill in gray. Both
    miss a flipped bit that leaves a valid JPEG.

    Args:
        data: the whole file.
        check: depth of the check. `MAX_PIXELS` applies before any decoding, for a GIF to all
            frames together.
        takes_foreign: accept WebP, TIFF and AVIF too. Pillow reads their headers; they get no
            traits.

    Raises:
        BadImage: The image is refused.
        MemoryError, RecursionError, OSError: The machine failed while Pillow or libjpeg-turbo
            decoded.
        ValueError: Pillow is set to accept truncated images, or lacks a codec.

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
    """Return whether bytes start with the signature of a format that TensorFlow reads.

    >>> looks_like_image(b"GIF89a..."), looks_like_image(b"BM is no image")
    (True, False)
    """
    if data.startswith(b"BM"):  # many texts start with these two letters
        size_bytes, pixels_at = int.from_bytes(data[2:6], "little"), data[10:14]
        return size_bytes in (0, len(data)) and 0 < int.from_bytes(pixels_at, "little") < 4096
    return data.startswith(tuple(_READERS))


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Turn a decoder's exception into a `BadImage`; pass on errors of the machine.

    Raises:
        BadImage: E-IMG-DAMAGED.
        ValueError: Pillow is set to accept truncated images.
    """
    from PIL import ImageFile

    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise ValueError("PIL.ImageFile.LOAD_TRUNCATED_IMAGES must be False to check images")
    try:
        yield
    except (findings.BadImage, MemoryError, RecursionError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise findings.damaged(one_line(error)) from None


def one_line(error: Exception) -> str:
    """Return an exception's message as one printable line, without memory addresses.

    >>> one_line(OSError("broken data stream\\nin <io.BytesIO object at 0x7f57a494b290>"))
    'OSError: broken data stream in <io.BytesIO object at 0x>'
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return printable(_ADDRESS.sub("0x", text))[:200]


def open_image(data: bytes, kind: str) -> "ImageFile.ImageFile":
    """Open an image with Pillow's plugin for one format, without decoding it.

    This bypasses Pillow's limit of pixels. That limit is a setting of the whole process, and it
    uses the `warnings` module, which is not thread-safe.
    """
    name = {"webp": "WebP"}.get(kind, kind.title())
    plugin = getattr(importlib.import_module(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
    image: ImageFile.ImageFile = plugin(io.BytesIO(data))
    return image


def load(data: bytes, info: ImageInfo, *, transparency: bool = False) -> "ImageFile.ImageFile":
    """Decode a checked image; a PNG's metadata is removed first."""
    bare = png_for_decoder(data, transparency=transparency) if info.format == "png" else data
    with open_image(bare, info.format) as image:
        image.load()
        return image


def _name_kind(data: bytes) -> str:
    r"""Return the format that the first bytes suggest.

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
    """Return the facts of a WebP, TIFF or AVIF image; refuse any other bytes."""
    if not data:
        raise findings.BadImage("E-IMG-EMPTY", "0 bytes")
    if any(signature.startswith(data) for signature in _READERS):
        raise findings.truncated(f"{len(data)} bytes, a signature takes more")
    kind = _name_kind(data)
    if kind not in ("WebP", "TIFF", "AVIF"):
        raise findings.unreadable(kind)
    if not takes_foreign:
        raise findings.unreadable(f"{kind}, which --reencode converts")
    from PIL import features

    if kind != "TIFF" and not features.check(kind.lower()):
        raise ValueError(f"Pillow must be built with {kind}, got one without: install another")
    with decoding(), open_image(data, kind.lower()) as image:
        findings.require_size(*image.size)
        # Pillow applies a TIFF's orientation itself.
        exif = b"" if kind == "TIFF" else image.info.get("exif", b"")
        orientation, _ = read_exif(exif.removeprefix(b"Exif\0\0"))
        return ImageInfo(kind.lower(), *image.size, orientation)


def _decode(data: bytes, info: ImageInfo) -> None:
    """Decode all pixels; raise `BadImage` if that fails."""
    with decoding():
        if info.format == "jpeg":
            _decode_jpeg(jpeg_for_decoder(data), info)
        elif info.format == "png":
            load(data, info)
        elif info.format == "gif":
            for frame in walk_gif(data)[0]:
                _decode_frame(data, frame)


def _decode_jpeg(data: bytes, info: ImageInfo) -> None:
    """Decode a JPEG; any libjpeg warning is an error, such as premature end of data.

    All coefficients are decoded, since that is where a JPEG can fail. The picture is scaled to an
    eighth, which saves time. TurboJPEG supports only the usual samplings. Pillow decodes the
    others, but drops warnings.
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
    """Decode a frame to indices; refuse those outside its colour table."""
    from PIL import Image

    size, blocks = (frame.width_px, frame.height_px), data[frame.start : frame.end]
    indices = Image.frombytes("L", size, blocks, "gif", frame.code_bits, int(frame.interlaced), -1)
    counts = indices.histogram()
    for index in range(frame.colours, len(counts)):
        if counts[index] and index != frame.transparent:
            raise findings.damaged(f"colour {index} of {frame.colours} in a frame")
