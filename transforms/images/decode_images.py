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
from typing import TYPE_CHECKING, NamedTuple

from schemas.images import EncodedImage, ImageInfo
from transforms.images.check_images import require_same_size
from transforms.images.findings import MAX_PIXELS, unreadable
from transforms.images.foreign_images import open_foreign
from transforms.images.jpeg import jpeg_for_decoder
from transforms.images.metadata import Metadata, read_metadata
from transforms.images.png import SIGNATURE, png_chunk, png_chunks, png_for_decoder

if TYPE_CHECKING:
    from PIL import Image

_SAME_CHANNELS = {"La": "LA", "RGBa": "RGBA", "PA": "RGBA", "RGBX": "RGB", "YCbCr": "RGB"}
_SIXTEEN_BITS = frozenset({"I;16", "I;16B", "I;16L"})
_GRAY_TYPE, _RGB_TYPE = 0, 2  # colour types of a PNG


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
