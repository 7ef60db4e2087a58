"""Decode images to plain pixels, in one of few modes, with the colours that are meant.

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

import contextlib
import io
import zlib
from typing import TYPE_CHECKING, NamedTuple, Self

from schemas.fields import ImageInfo
from transforms.images.check_images import (
    load,
    load_png,
    open_foreign,
    require_same_size,
)
from transforms.images.exif import orientation_block, upright_exif
from transforms.images.findings import MAX_PIXELS, unreadable
from transforms.images.jpeg import jpeg_for_decoder, jpeg_profiles
from transforms.images.png import png_chunks

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

BoxPx = tuple[float, float, float, float]
"""A part of an image: left, top, right, bottom in px, which may end within pixels."""

_MAX_PROFILE_BYTES = 4 << 20
_MAX_SEGMENT_BODY_BYTES = 65_533
_EXIF_PREFIX, _ICC_PREFIX = b"Exif\0\0", b"ICC_PROFILE\0"
_SPACE_OF_MODE = {"L": b"GRAY", "LA": b"GRAY", "I;16": b"GRAY", "RGB": b"RGB ", "RGBA": b"RGB "}
_SAME_CHANNELS = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA", "RGBX": "RGB", "YCbCr": "RGB"}
_SIXTEEN_BITS = frozenset({"I;16", "I;16B", "I;16L"})
_GRAY_TYPE, _RGB_TYPE = 0, 2  # colour types of a PNG


class Metadata(NamedTuple):
    """EXIF and a colour profile, kept when an image is converted.

    Attributes:
        exif: TIFF block from its byte order mark on; empty for none.
        icc: ICC profile; empty for none.
    """

    exif: bytes = b""
    icc: bytes = b""

    def for_mode(self, mode: str) -> Self:
        """Return it without a profile of other channels than Pillow's mode has."""
        space = self.icc[16:20]  # ICC.1:2022, table 19
        return self if space == _SPACE_OF_MODE.get(mode) else self._replace(icc=b"")

    def save_options(self) -> dict[str, bytes]:
        """Return what Pillow's `save` takes; EXIF too large for a segment of JPEG is left out."""
        exif = _EXIF_PREFIX + self.exif
        fits = self.exif and len(exif) <= _MAX_SEGMENT_BODY_BYTES
        return {"exif": exif if fits else b"", "icc_profile": self.icc}

    def upright(self) -> Self:
        """Return it for a picture that was turned upright."""
        return self._replace(exif=upright_exif(self.exif))


NO_METADATA = Metadata()


class Decoded(NamedTuple):
    """An image's pixels.

    Attributes:
        image: picture of mode `L`, `LA`, `RGB`, `RGBA` or `I;16`, as stored: not turned.
        metadata: EXIF, and the profile of these colours.
        shown_px: width and height of the picture on this grid, which may end within its last
            pixels where it was decoded smaller.
    """

    image: "Image.Image"
    metadata: Metadata
    shown_px: tuple[float, float]


def decode_image(data: bytes, info: ImageInfo, least_px: tuple[int, int] | None = None) -> Decoded:
    """Return the pixels of a checked image.

    Args:
        data: the whole file.
        info: its facts.
        least_px: width and height that are enough; a JPEG is then decoded to a half, a quarter or
            an eighth where that is no less, which takes a fraction of the time. None for all.

    Raises:
        BadImage: when it is of a kind that is not decoded here.
        Exception: whatever a decoder raises; call it within `decoding`.
    """
    shown_px: tuple[float, float] = info.size_px
    if info.format == "jpeg":
        metadata = jpeg_metadata(data)
        image, shown_px = _decode_jpeg(data, info, least_px)
    elif info.format == "png":
        metadata, image = _png_metadata(data), _decode_png(data, info)
    else:
        image = _decode_other(data, info)
        metadata = _metadata(orientation_block(info.orientation), image.info.get("icc_profile"))
    if image.mode == "CMYK":
        return Decoded(_from_inks(image, metadata.icc), metadata._replace(icc=b""), shown_px)
    plain = _plain(image)
    return Decoded(plain, metadata.for_mode(plain.mode), shown_px)


def over_white(image: "Image.Image") -> "Image.Image":
    """Return an image without its alpha channel, as it is seen on white."""
    from PIL import Image

    if image.mode not in ("LA", "RGBA"):
        return image
    white = Image.new("RGBA", image.size, "white")
    seen = image if image.mode == "RGBA" else image.convert("RGBA")
    return Image.alpha_composite(white, seen).convert("L" if image.mode == "LA" else "RGB")


def upper_bits(image: "Image.Image") -> "Image.Image":
    """Return gray of 16 bits in 8: the upper ones, as TensorFlow decodes it to uint8."""
    import numpy as np
    from PIL import Image

    if image.mode != "I;16":
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def pixels_of(
    image: "Image.Image", size_px: tuple[int, int], box_px: BoxPx, dtype: str
) -> "NDArray":
    """Return an image's pixels, C-contiguous: height x width x channels.

    Resampled channel by channel in float32, so that no rounding comes between: within 1/255 of
    `tf.image.resize(antialias=True)`. Types change as by `tf.image.convert_image_dtype`: floats are
    the parts of the largest integer, integers of 16 bits 256 times those of 8.

    Args:
        image: of mode `L`, `LA`, `RGB`, `RGBA` or `I;16`.
        size_px: wanted width and height.
        box_px: the part of the image that is shown.
        dtype: one of `PIXEL_DTYPES`.
    """
    import numpy as np
    from PIL import Image

    largest = 65535 if image.mode == "I;16" else 255
    pixels = np.asarray(image)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if image.size != size_px or box_px != (0.0, 0.0, *map(float, image.size)):
        planes = [
            Image.fromarray(plane.astype(np.float32)).resize(
                size_px, Image.Resampling.BILINEAR, box_px
            )
            for plane in np.moveaxis(pixels, 2, 0)
        ]
        pixels = np.stack([np.asarray(plane) for plane in planes], axis=2)
    return np.ascontiguousarray(_of_type(pixels, largest, np.dtype(dtype)))


def _metadata(exif: bytes, icc: bytes | None) -> Metadata:
    return Metadata(exif, icc if icc and len(icc) <= _MAX_PROFILE_BYTES else b"")


def jpeg_metadata(data: bytes) -> Metadata:
    """Return the EXIF and the colour profile of a checked JPEG."""
    bodies = jpeg_profiles(data, MAX_PIXELS)
    exif = [body[len(_EXIF_PREFIX) :] for body in bodies if body.startswith(b"Exif\0")]
    pieces = [body[len(_ICC_PREFIX) :] for body in bodies if body.startswith(_ICC_PREFIX)]
    icc = b"".join(piece[2:] for piece in sorted(pieces, key=lambda piece: piece[:1]))
    return _metadata(b"".join(exif), icc)


def _png_metadata(data: bytes) -> Metadata:
    found: dict[bytes, bytes] = {}
    for name, body in png_chunks(data):
        if name in (b"iCCP", b"eXIf"):
            found.setdefault(name, body)
    _, _, profile = found.get(b"iCCP", b"").partition(b"\0")
    inflating = zlib.decompressobj()
    try:
        icc = inflating.decompress(profile[1:], _MAX_PROFILE_BYTES)
    except zlib.error:
        icc = b""
    exif = found.get(b"eXIf", b"").removeprefix(_EXIF_PREFIX)
    return Metadata(exif, icc if inflating.eof else b"")


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
    image, bits, colour_type = load_png(data, info, transparency=True), data[24], data[25]
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

    if info.format in ("gif", "bmp"):
        is_gif = info.format == "gif"
        plugin = GifImagePlugin.GifImageFile if is_gif else BmpImagePlugin.BmpImageFile
        return load(plugin, data, info)
    with open_foreign(data, MAX_PIXELS) as image:
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


def _from_inks(image: "Image.Image", profile: bytes) -> "Image.Image":
    """Return four inks as RGB: by the colour profile, if it is one of inks that can be read."""
    from PIL import ImageCms

    if profile[16:20] == b"CMYK":
        with contextlib.suppress(ImageCms.PyCMSError, OSError):
            inks = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            screen = ImageCms.createProfile("sRGB")
            found = ImageCms.profileToProfile(image, inks, screen, outputMode="RGB")
            if found is not None:
                return found
    return image.convert("RGB")


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
