"""Decode images to plain pixels: in one of few modes, with the colours that are meant.

| in the file | here |
|---|---|
| gray of 1 to 8 bits, with alpha or a transparent gray | `L`, `LA` |
| gray PNG or TIFF of 16 bits | `I;16` |
| colour, palette, with alpha or transparent colours | `RGB`, `RGBA` |
| colour of 16 bits | the upper 8 |
| CMYK, YCCK | `RGB`: by the file's profile, else `(255 - C)(255 - K) / 255` as TensorFlow has it |
| GIF, animated PNG, WebP or AVIF, TIFF of pages | the first picture |

Pure functions of bytes. Limits have been applied to headers before any of these are called.
"""

import io
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

from schemas.fields import EncodedImage, ImageInfo
from transforms.images.check_images import (
    ImageFault,
    check_image,
    decoding,
    open_foreign,
    require_same_size,
)
from transforms.images.exif import upright_exif
from transforms.images.findings import MAX_PIXELS, BadImage, unreadable
from transforms.images.jpeg import jpeg_for_decoder, jpeg_profiles
from transforms.images.png import SIGNATURE, png_chunk, png_chunks, png_for_decoder

if TYPE_CHECKING:
    from PIL import Image

_SAME_CHANNELS = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA", "RGBX": "RGB", "YCbCr": "RGB"}
_SIXTEEN_BITS = frozenset({"I;16", "I;16B", "I;16L"})
_GRAY_TYPE, _RGB_TYPE = 0, 2  # colour types of a PNG


_MAX_PROFILE_BYTES = 4 << 20
_MAX_SEGMENT_BODY_BYTES = 65_533
_EXIF_PREFIX, _ICC_PREFIX = b"Exif\0\0", b"ICC_PROFILE\0"
_APP1, _APP2 = 0xFFE1, 0xFFE2
_SPACE_OF_MODE = {"L": b"GRAY", "LA": b"GRAY", "I;16": b"GRAY", "RGB": b"RGB ", "RGBA": b"RGB "}


class Metadata(NamedTuple):
    """EXIF and a colour profile.

    Attributes:
        exif: the TIFF block from its byte order mark on; empty for none.
        icc: the ICC profile; empty for none.
    """

    exif: bytes = b""
    icc: bytes = b""

    @property
    def colour_space(self) -> bytes:
        """What the profile is of: `RGB `, `GRAY`, `CMYK` (ICC.1:2022, table 19)."""
        return self.icc[16:20]

    def for_mode(self, mode: str) -> Self:
        """Return it without a profile that is of other channels than Pillow's mode has."""
        return self if self.colour_space == _SPACE_OF_MODE.get(mode) else self._replace(icc=b"")

    def upright(self) -> Self:
        """Return it for a picture that was turned upright."""
        return self._replace(exif=upright_exif(self.exif)) if self.exif else self

    def of_pillow(self, image: "Image.Image") -> Self:
        """Return it with the profile that Pillow has found."""
        icc = image.info.get("icc_profile") or b""
        return self._replace(icc=icc if len(icc) <= _MAX_PROFILE_BYTES else b"")

    def jpeg_segments(self) -> bytes:
        """Return the segments of a JPEG that hold it; EXIF too large for one is left out."""
        return b"".join(self._segments())

    def png_chunks(self) -> bytes:
        """Return the PNG chunks that hold it; they come after the header."""
        chunks = []
        if self.icc:
            chunks.append(png_chunk(b"iCCP", b"ICC Profile\0\0" + zlib.compress(self.icc)))
        if self.exif:
            chunks.append(png_chunk(b"eXIf", self.exif))
        return b"".join(chunks)

    def _segments(self) -> Iterator[bytes]:
        if self.exif and len(_EXIF_PREFIX + self.exif) <= _MAX_SEGMENT_BODY_BYTES:
            yield _segment(_APP1, _EXIF_PREFIX + self.exif)
        at_once = _MAX_SEGMENT_BODY_BYTES - len(_ICC_PREFIX) - 2
        pieces = [self.icc[at : at + at_once] for at in range(0, len(self.icc), at_once)]
        for number, piece in enumerate(pieces, start=1):
            yield _segment(_APP2, _ICC_PREFIX + bytes([number, len(pieces)]) + piece)


class Decoded(NamedTuple):
    """An image's pixels.

    Attributes:
        image: of mode `L`, `LA`, `RGB`, `RGBA` or `I;16`, as stored: not turned.
        metadata: EXIF, and the profile of these colours.
        shown_px: width and height that the picture has on this grid, which may end within its last
            pixels where it was decoded smaller.
    """

    image: "Image.Image"
    metadata: Metadata
    shown_px: tuple[float, float]


def decode_image(source: EncodedImage, least_px: tuple[int, int] | None = None) -> Decoded:
    """Return an image's pixels.

    Args:
        source: checked.
        least_px: width and height that are enough; a JPEG is then decoded to a half, a quarter or
            an eighth where that is no less, which takes a fraction of the time. None for all.

    Raises:
        BadImage: when it is of a kind that is not decoded here.
        Exception: whatever a decoder raises; called within `decoding`.
    """
    metadata = read_metadata(source.data, source.info)
    shown_px: tuple[float, float] = source.info.size_px
    if source.info.format == "jpeg":
        image, shown_px = _decode_jpeg(source.data, source.info, least_px)
    elif source.info.format == "png":
        image = _decode_png(source.data, source.info)
    else:
        image = _decode_other(source.data, source.info)
        metadata = metadata.of_pillow(image)
    if image.mode == "CMYK":
        return Decoded(*_from_inks(image, metadata), shown_px)
    plain = _plain(image)
    return Decoded(plain, metadata.for_mode(plain.mode), shown_px)


def over_white(image: "Image.Image") -> "Image.Image":
    """Return an image without its alpha channel, as it is seen on white."""
    from PIL import Image

    if image.mode not in ("LA", "RGBA"):
        return image
    white = Image.new("RGBA", image.size, "white")
    seen = image if image.mode == "RGBA" else image.convert("RGBA")
    opaque = Image.alpha_composite(white, seen)
    del white, seen  # each of four bytes a pixel
    return opaque.convert("L" if image.mode == "LA" else "RGB")


def upper_bits(image: "Image.Image") -> "Image.Image":
    """Return gray of 16 bits in 8: the upper ones, as TensorFlow decodes it to uint8."""
    import numpy as np
    from PIL import Image

    if image.mode != "I;16":
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _decode_jpeg(
    data: bytes, info: ImageInfo, least_px: tuple[int, int] | None
) -> tuple["Image.Image", tuple[float, float]]:
    from PIL import ImageChops, JpegImagePlugin

    shown_px: tuple[float, float] = info.size_px
    bare = jpeg_for_decoder(data, MAX_PIXELS)
    with JpegImagePlugin.JpegImageFile(io.BytesIO(bare)) as image:
        require_same_size(image.size, info)
        if least_px is not None and (drafted := image.draft(None, least_px)) is not None:
            shown_px = drafted[1][2:]
        image.load()
        if image.mode == "CMYK" and "adobe" not in image.info:  # Pillow takes all for Adobe's
            return ImageChops.invert(image), shown_px
        return image, shown_px


def _decode_png(data: bytes, info: ImageInfo) -> "Image.Image":
    """Decode a PNG with its transparent colours, which are no critical chunk."""
    from PIL import PngImagePlugin

    transparent = next((body for name, body in png_chunks(data) if name == b"tRNS"), None)
    pieces = [SIGNATURE]
    for name, body in png_chunks(png_for_decoder(data, MAX_PIXELS)):
        if name == b"IDAT" and transparent is not None:
            pieces.append(png_chunk(b"tRNS", transparent))
            transparent = None
        pieces.append(png_chunk(name, body))
    with PngImagePlugin.PngImageFile(io.BytesIO(b"".join(pieces))) as image:
        require_same_size(image.size, info)
        image.load()
        bits, colour_type = data[24], data[25]
        found = image.info.get("transparency")
        if found is not None and colour_type in (_GRAY_TYPE, _RGB_TYPE):
            return _with_transparency(image, found, bits)
        return image.convert("LA") if (bits, colour_type) == (16, 4) else image


def _with_transparency(
    image: "Image.Image", found: int | tuple[int, int, int], bits: int
) -> "Image.Image":
    """Return a PNG's gray or colours with alpha, 0 where they are the transparent one."""
    import numpy as np
    from PIL import Image

    if image.mode == "I;16":  # compared in all bits, as TensorFlow does
        opaque = Image.fromarray((np.asarray(image) != found).astype(np.uint8) * 255)
        return Image.merge("LA", (upper_bits(image), opaque))
    if isinstance(found, tuple):
        red, green, blue = (value >> 8 if bits == 16 else value for value in found)
        found = red, green, blue
    else:
        found = found * 255 // ((1 << bits) - 1)
        image = image.convert("L")
    image.info["transparency"] = found
    return image.convert("RGBA" if image.mode == "RGB" else "LA")


def _decode_other(data: bytes, info: ImageInfo) -> "Image.Image":
    from PIL import BmpImagePlugin, GifImagePlugin

    plugins = {"gif": GifImagePlugin.GifImageFile, "bmp": BmpImagePlugin.BmpImageFile}
    plugin = plugins.get(info.format)
    image = plugin(io.BytesIO(data)) if plugin else open_foreign(data, MAX_PIXELS)
    with image:
        require_same_size(image.size, info)
        image.load()
        return image


def _plain(image: "Image.Image") -> "Image.Image":
    import numpy as np
    from PIL import Image

    mode, transparent = image.mode, "transparency" in image.info
    if mode in ("L", "RGB", "LA", "RGBA") and not transparent:
        return image
    if mode in ("L", "1"):
        return image.convert("LA" if transparent else "L")
    if mode in ("RGB", "P"):
        return image.convert("RGBA" if transparent else "RGB")
    if mode in _SIXTEEN_BITS:
        return Image.fromarray(np.asarray(image).astype("<u2"))
    if mode in _SAME_CHANNELS:
        return image.convert(_SAME_CHANNELS[mode])
    raise unreadable(f"pixels of Pillow's mode {mode}, which are not converted")


def _from_inks(image: "Image.Image", metadata: Metadata) -> tuple["Image.Image", Metadata]:
    """Return four inks as RGB: by the colour profile, if it is one of inks that can be read."""
    from PIL import ImageCms

    without = metadata._replace(icc=b"")
    if metadata.colour_space == b"CMYK":
        try:
            profile = ImageCms.ImageCmsProfile(io.BytesIO(metadata.icc))
            screen = ImageCms.createProfile("sRGB")
            found = ImageCms.profileToProfile(image, profile, screen, outputMode="RGB")
        except (ImageCms.PyCMSError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
        else:
            if found is not None:
                return found, without
    return image.convert("RGB"), without


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

BoxPx = tuple[float, float, float, float]
"""A part of an image: left, top, right, bottom in px, which may end within pixels."""

_MAX_OF_MODE = {"I;16": 65535}
_MAX_OF_BYTE = 255


def pixels_of(
    image: "Image.Image", size_px: tuple[int, int], box_px: BoxPx, dtype: str
) -> "NDArray":
    """Return an image's pixels, C-contiguous: height x width x channels.

    Resampled channel by channel in float32, so that no rounding comes between: within 1/255 of
    `tf.image.resize(antialias=True)`. Types change as by `tf.image.convert_image_dtype`: floats are
    the parts of the largest integer, integers of 16 bits 256 times those of 8.

    Args:
        image: of mode `L`, `LA`, `RGB`, `RGBA` or `I;16`.
        size_px: width and height that are wanted.
        box_px: the part of the image that is shown: left, top, right, bottom.
        dtype: one of `PIXEL_DTYPES`.
    """
    import numpy as np

    largest = _MAX_OF_MODE.get(image.mode, _MAX_OF_BYTE)
    pixels = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, np.newaxis]
    if image.size != size_px or box_px != (0.0, 0.0, *map(float, image.size)):
        pixels = _resampled(pixels, size_px, box_px)
    return np.ascontiguousarray(_of_type(pixels, largest, np.dtype(dtype)))


def _resampled(pixels: "NDArray", size_px: tuple[int, int], box_px: BoxPx) -> "NDArray[np.float32]":
    import numpy as np
    from PIL import Image

    found = np.empty((size_px[1], size_px[0], pixels.shape[2]), np.float32)
    for channel in range(pixels.shape[2]):
        plane = Image.fromarray(pixels[:, :, channel].astype(np.float32))
        scaled = plane.resize(size_px, Image.Resampling.BILINEAR, box_px)
        found[:, :, channel] = np.asarray(scaled)
    return found


def _of_type(pixels: "NDArray", largest: int, dtype: "np.dtype") -> "NDArray":
    import numpy as np

    if dtype.kind == "f":
        wide = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
        return np.divide(pixels, largest, dtype=wide).astype(dtype)
    if pixels.dtype.kind == "f":
        pixels = np.floor(pixels + 0.5).clip(0, largest)
    whole = pixels.astype(np.uint16)
    if largest == 65535:
        return (whole >> 8).astype(dtype) if dtype.itemsize == 1 else whole.astype(dtype)
    return whole.astype(dtype) * dtype.type(256 if dtype.itemsize == 2 else 1)


MAX_DRAWN_PIXELS = 33_600_000
"""Larger pictures are not decoded for it."""

_COLUMNS, _ROWS = 64, 48
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")
_RESET = "\x1b[0m"


def draw(data: bytes) -> Iterator[str]:
    """Yield a picture's lines, or one that says why there is none.

    The structure of the file is checked before Pillow gets it, its formats are named, and large
    pictures are left out.
    """
    info = check_image(data, max_pixels=MAX_DRAWN_PIXELS)
    if isinstance(info, ImageFault):
        yield f"  not drawn: {info.detail}"
        return
    try:
        with decoding():
            lines = list(_lines(data))
    except BadImage as error:
        lines = [f"  not drawn: {error.fault.detail}"]
    yield from lines


def _lines(data: bytes) -> Iterator[str]:
    from PIL import Image

    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        image.draft("RGB", (_COLUMNS, _ROWS))
        small = image.convert("RGB")
        small.thumbnail((_COLUMNS, _ROWS))
    pixels = small.tobytes()
    row_bytes = 3 * small.width
    rows = [pixels[at : at + row_bytes] for at in range(0, len(pixels), row_bytes)]
    if len(rows) % 2:
        rows.append(rows[-1])
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        cells = (
            f"\x1b[38;2;{u[0]};{u[1]};{u[2]};48;2;{w[0]};{w[1]};{w[2]}m\u2580"
            for at in range(0, row_bytes, 3)
            for u, w in ((upper[at : at + 3], lower[at : at + 3]),)
        )
        yield f"  {''.join(cells)}{_RESET}"


if TYPE_CHECKING:
    from PIL import Image


def read_metadata(data: bytes, info: ImageInfo) -> Metadata:
    """Return an image's metadata; of foreign formats and TIFF the orientation alone."""
    if info.format == "jpeg":
        return _read_jpeg(data)
    if info.format == "png":
        return _read_png(data)
    return Metadata(exif=_orientation_block(info.orientation))


def _read_jpeg(data: bytes) -> Metadata:
    exif, pieces = b"", list[bytes]()
    for body in jpeg_profiles(data, MAX_PIXELS):
        if body.startswith(b"Exif\0"):
            exif = body[len(_EXIF_PREFIX) :]
        else:
            pieces.append(body[len(_ICC_PREFIX) :])
    icc = b"".join(piece[2:] for piece in sorted(pieces, key=lambda piece: piece[:1]))
    return Metadata(exif, icc if len(icc) <= _MAX_PROFILE_BYTES else b"")


def _read_png(data: bytes) -> Metadata:
    exif = icc = b""
    for name, body in png_chunks(data):
        if name == b"eXIf" and not exif:
            exif = body.removeprefix(_EXIF_PREFIX)
        elif name == b"iCCP" and not icc:
            icc = _inflated_profile(body)
    return Metadata(exif, icc)


def _inflated_profile(body: bytes) -> bytes:
    """Return the profile of an `iCCP` chunk; empty when it is damaged or too large."""
    _, _, compressed = body.partition(b"\0")
    inflating = zlib.decompressobj()
    try:
        profile = inflating.decompress(compressed[1:], _MAX_PROFILE_BYTES)
    except zlib.error:
        return b""
    return profile if inflating.eof else b""


def _orientation_block(orientation: int) -> bytes:
    """Return an EXIF block that says nothing but an orientation; empty for the usual one."""
    if orientation == 1:
        return b""
    entry = struct.pack(">HHLHH", 0x0112, 3, 1, orientation, 0)
    return b"MM\0*" + struct.pack(">LH", 8, 1) + entry + bytes(4)


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">HH", marker, len(body) + 2) + body
