"""Turn images upright: pixels as a viewer shows them, so that whoever ignores EXIF sees the same.

A PNG is turned without loss. A JPEG is decoded and encoded again: a turn of its coefficients would
be exact only where its sides are multiples of 8 or 16 px, and no maintained library with wheels has
one. Pure functions of bytes; equal bytes for equal codecs, see `codec_versions`.
"""

import ctypes
import enum
import hashlib
import io
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from schemas.geometry.turns import SWAPPING, turn_size
from schemas.images import EncodedImage, ImageInfo
from transforms.images.check_images import Check, check_image, decoding, require_same_size
from transforms.images.encode_jpeg import encode_jpeg
from transforms.images.exif import upright_exif
from transforms.images.findings import MAX_PIXELS, BadImage, ImageFault, unreadable
from transforms.images.jpeg import jpeg_for_decoder, jpeg_profiles
from transforms.images.png import SIGNATURE, png_chunk, png_chunks, png_for_decoder

if TYPE_CHECKING:
    from PIL import Image

JPEG_QUALITY = 95
"""By libjpeg's scale; of the JPEGs that are encoded again. Output bytes depend on it."""

_GIVEN_BACK_PX = 1 << 23  # of a picture whose turn frees 64 MB
_APP1, _APP2, _ADOBE = 0xFFE1, 0xFFE2, 0xFFEE
_SUBSAMPLING_444, _SUBSAMPLING_422 = 0, 1  # as Pillow numbers them; 2 is 4:2:0

# Pillow's names of what each orientation asks for, and of what turns the pixels accordingly.
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}

# Colour type and bit depth of a PNG, and those under which Pillow gives its samples as they are,
# where it would scale or shorten them: of as many bits a pixel, so that all else stays the same.
_RAW_AS = {
    (0, 1): (3, 1),
    (0, 2): (3, 2),
    (0, 4): (3, 4),
    (0, 16): (4, 8),
    (4, 16): (6, 8),
}
_PALETTE_TYPE = 3
_UNREAD_BY_PILLOW = frozenset({(2, 16), (6, 16)})


class Orientation(enum.Enum):
    """What is done about EXIF orientations: pixels stay as stored, or are turned upright."""

    KEEP = "keep"
    UPRIGHT = "upright"

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes, for the plan: of what encodes too, if it does."""
        if self is Orientation.KEEP:
            return {"orientation": self.value}
        return {"orientation": f"{self.value}, by {codec_versions()}"}


def turn_upright(image: EncodedImage) -> EncodedImage | ImageFault:
    """Return an image as a viewer shows it, or why it cannot be turned.

    Args:
        image: checked; one without an orientation is returned as it is.

    Raises:
        MemoryError, RecursionError, OSError: of the machine, not of the image.
    """
    return _turned(image, image.info.orientation)


def turn_along(image: EncodedImage, photo: EncodedImage) -> EncodedImage | ImageFault:
    """Return an image whose pixels are those of a photo, such as its panoptic one, turned with it.

    It says nothing of its own frame but by its size: what has that of the photo as stored is
    turned, and what does not is as the photo is viewed, or does not belong to it.

    Args:
        image: checked.
        photo: as it is to be written.

    Raises:
        MemoryError, RecursionError, OSError: of the machine, not of the image.
    """
    is_stored = image.info.size_px == turn_size(photo.whole_size_px, photo.turned)
    if photo.turned == 1 or not is_stored:
        return image
    if image.info.format != "png":
        return ImageFault("E-IMG-TYPE", "a panoptic image must be a PNG, to be turned without loss")
    return _turned(image, photo.turned)


def _turned(image: EncodedImage, orientation: int) -> EncodedImage | ImageFault:
    if orientation == 1:
        return image
    try:
        with decoding():
            turn = _turn_png if image.info.format == "png" else _turn_jpeg
            data = turn(image.data, image.info, orientation)
    except BadImage as error:
        return error.fault
    finally:
        give_back_freed_memory(image.info)
    info = check_image(data, Check.HEADER)
    if isinstance(info, ImageFault):
        raise ValueError(f"a turned image must be one, got {info.code} {info.detail}")
    sha256 = hashlib.sha256(data).hexdigest()
    return EncodedImage(image.name, data, sha256, info, orientation, image.sha256)


def give_back_freed_memory(info: ImageInfo) -> None:
    """Return what a large picture has freed to the kernel, where the C library is glibc.

    It keeps what each thread has freed for that thread, 8 bytes for each pixel that was turned; and
    readers are far more than pictures that are turned at once.
    """
    if info.width_px * info.height_px < _GIVEN_BACK_PX:
        return
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def codec_versions() -> str:
    """Return the versions of what decodes and encodes, which decide the bytes of turned images."""
    import PIL
    from PIL import features

    turbo = features.version("libjpeg_turbo")
    jpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {features.version('jpg')}"
    ng = features.version("zlib_ng")
    png = f"zlib-ng {ng}" if ng else f"zlib {features.version('zlib')}"
    return f"Pillow {PIL.__version__}, {jpeg}, {png}"


def transposed(image: "Image.Image", orientation: int) -> "Image.Image":
    """Return pixels turned as an EXIF orientation asks for; themselves for 1."""
    from PIL import Image

    if orientation == 1:
        return image
    return image.transpose(Image.Transpose[_TURNS[orientation]])


def _turn_jpeg(data: bytes, info: ImageInfo, orientation: int) -> bytes:
    """Decode, turn and encode; of the metadata EXIF and the colour profile are kept."""
    from PIL import JpegImagePlugin

    bare = jpeg_for_decoder(data, MAX_PIXELS)
    with JpegImagePlugin.JpegImageFile(io.BytesIO(bare)) as image:
        require_same_size(image.size, info)
        subsampling, is_adobe = JpegImagePlugin.get_sampling(image), "adobe" in image.info
        turned = transposed(image, orientation)
    if subsampling < 0 or (subsampling == _SUBSAMPLING_422 and orientation in SWAPPING):
        subsampling = _SUBSAMPLING_444  # Pillow writes no 4:4:0, and none that is rarer
    encoded = encode_jpeg(turned, quality=JPEG_QUALITY, subsampling=subsampling)
    marker, length = struct.unpack_from(">HH", encoded, 2)  # JFIF, or Adobe where inks are four
    end = 4 + length
    # Without Adobe's segment inks are not inverted: neither those that were decoded nor these.
    head = encoded[:2] if marker == _ADOBE and not is_adobe else encoded[:end]
    return b"".join([head, *_profile_segments(data), encoded[end:]])


def _profile_segments(data: bytes) -> Iterator[bytes]:
    for body in jpeg_profiles(data, MAX_PIXELS):
        is_exif = body.startswith(b"Exif")
        kept = body[:6] + upright_exif(body[6:]) if is_exif else body
        yield struct.pack(">HH", _APP1 if is_exif else _APP2, len(kept) + 2) + kept


def _turn_png(data: bytes, info: ImageInfo, orientation: int) -> bytes:
    """Turn the pixels; samples, palette and what describes them stay as they are."""
    if "animated" in info.traits:
        raise unreadable("an animated PNG, of which one frame would be left once it is turned")
    colour_type, bits = data[25], data[24]
    if (colour_type, bits) in _UNREAD_BY_PILLOW:
        raise unreadable(
            "a PNG in colour of 16 bits a sample, which would lose 8 of them in a turn"
        )
    raw_type, raw_bits = _RAW_AS.get((colour_type, bits), (colour_type, bits))
    turned = transposed(_raw_image(data, info, raw_type, raw_bits), orientation)
    out = io.BytesIO()
    turned.save(out, "PNG", **({"bits": raw_bits} if raw_type == _PALETTE_TYPE else {}))
    pixels = [body for name, body in png_chunks(out.getvalue()) if name == b"IDAT"]
    header = struct.pack(">IIBBBBB", *turned.size, bits, colour_type, 0, 0, 0)
    return b"".join(_with_pixels(data, header, b"".join(pixels), orientation))


def _raw_image(data: bytes, info: ImageInfo, colour_type: int, bits: int) -> "Image.Image":
    """Return a PNG's samples under a colour type of as many bits a pixel."""
    from PIL import PngImagePlugin

    chunks = [SIGNATURE]
    for name, body in png_chunks(png_for_decoder(data, MAX_PIXELS)):
        if name == b"IHDR":
            chunks.append(png_chunk(name, body[:8] + bytes([bits, colour_type]) + body[10:]))
            if colour_type == _PALETTE_TYPE:  # any: indices are all that is wanted
                chunks.append(png_chunk(b"PLTE", bytes(3 << bits)))
        elif name != b"PLTE":
            chunks.append(png_chunk(name, body))
    with PngImagePlugin.PngImageFile(io.BytesIO(b"".join(chunks))) as image:
        require_same_size(image.size, info)
        image.load()
        return image


def _with_pixels(data: bytes, header: bytes, pixels: bytes, orientation: int) -> Iterator[bytes]:
    """Yield the pieces of a PNG with another header and other pixels, up to its end."""
    yield SIGNATURE
    have_pixels = False
    for name, body in png_chunks(data):
        if name == b"IHDR":
            body = header
        elif name == b"eXIf":
            prefix = b"Exif\0\0" if body.startswith(b"Exif\0\0") else b""
            body = prefix + upright_exif(body.removeprefix(prefix))
        elif name == b"pHYs" and orientation in SWAPPING and len(body) == 9:
            body = body[4:8] + body[:4] + body[8:]  # pixels a unit along each axis
        elif name == b"IDAT":
            if have_pixels:
                continue
            have_pixels, body = True, pixels
        yield png_chunk(name, body)
