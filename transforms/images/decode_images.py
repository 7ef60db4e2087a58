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
from typing import TYPE_CHECKING, Any, NamedTuple

from schemas.fields import ImageInfo
from transforms.images.check_images import load, open_image
from transforms.images.exif import orientation_block, upright_exif
from transforms.images.findings import unreadable
from transforms.images.jpeg import jpeg_for_decoder, jpeg_metadata
from transforms.images.png import MAX_PROFILE_BYTES, png_metadata

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

BoxPx = tuple[float, float, float, float]
"""A part of an image: left, top, right, bottom in px, which may end within pixels."""


_EXIF_PREFIX, _MAX_SEGMENT_BODY_BYTES = b"Exif\0\0", 65_533

# Plain modes, with the colour space that a profile of theirs names (ICC.1:2022, table 19).
_SPACES = {"L": b"GRAY", "LA": b"GRAY", "I;16": b"GRAY", "RGB": b"RGB ", "RGBA": b"RGB "}
_PLAIN_MODES = {
    **{"1": "L", "La": "LA", "P": "RGB", "RGBX": "RGB", "YCbCr": "RGB"},
    **{"PA": "RGBA", "RGBa": "RGBA"},
}
_WITH_ALPHA = {"L": "LA", "RGB": "RGBA"}
_SIXTEEN_BITS = frozenset({"I;16", "I;16B", "I;16L"})
_PALETTE_TYPE, _GRAY_ALPHA_TYPE = 3, 4  # colour types of a PNG


class Decoded(NamedTuple):
    """An image's pixels, and the metadata that is kept on conversion.

    Attributes:
        image: picture of mode `L`, `LA`, `RGB`, `RGBA` or `I;16`, as stored: not turned.
        exif: TIFF block from its byte order mark on; empty for none.
        icc: colour profile of the image's mode; empty for none.
        shown_px: width and height of the picture on this grid, which may end within its last
            pixels where it was decoded smaller.
        subsampling: chroma subsampling of a JPEG as Pillow numbers it; -1 for others.
    """

    image: "Image.Image"
    exif: bytes
    icc: bytes
    shown_px: tuple[float, float]
    subsampling: int = -1

    def metadata_for(self, mode: str, *, upright: bool) -> dict[str, Any]:
        """Return what Pillow's `save` takes for a picture of a mode that was made of this one.

        A profile of other channels is left out, and so is EXIF that is too large for a JPEG.
        """
        exif = _EXIF_PREFIX + (upright_exif(self.exif) if upright else self.exif)
        fits = self.exif and len(exif) <= _MAX_SEGMENT_BODY_BYTES
        icc = self.icc if self.icc[16:20] == _SPACES[mode] else b""
        return {"exif": exif if fits else b"", "icc_profile": icc}


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
    if info.format == "jpeg":
        decoded = _decode_jpeg(data, info, least_px)
    elif info.format == "png":
        decoded = Decoded(_decode_png(data, info), *png_metadata(data), info.size_px)
    else:
        image, exif = load(data, info), orientation_block(info.orientation)
        decoded = Decoded(image, exif, image.info.get("icc_profile") or b"", info.size_px)
    icc = decoded.icc if len(decoded.icc) <= MAX_PROFILE_BYTES else b""
    plain = _plain(decoded.image, icc)
    fits = icc[16:20] == _SPACES[plain.mode]
    return decoded._replace(image=plain, icc=icc if fits else b"")


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


def _decode_jpeg(data: bytes, info: ImageInfo, least_px: tuple[int, int] | None) -> Decoded:
    from PIL import ImageChops, JpegImagePlugin

    shown_px: tuple[float, float] = info.size_px
    with open_image(jpeg_for_decoder(data), "jpeg") as image:
        subsampling = JpegImagePlugin.get_sampling(image)
        if least_px is not None and (drafted := image.draft(None, least_px)) is not None:
            shown_px = drafted[1][2:]
        image.load()
        is_inverted = image.mode == "CMYK" and "adobe" not in image.info  # Pillow takes Adobe's
        picture = ImageChops.invert(image) if is_inverted else image
        return Decoded(picture, *jpeg_metadata(data), shown_px, subsampling)


def _decode_png(data: bytes, info: ImageInfo) -> "Image.Image":
    """Return a PNG's picture; a transparent gray or colour is given in the picture's 8 bits."""
    import numpy as np
    from PIL import Image

    bits, colour_type = data[24], data[25]
    image: Image.Image = load(data, info, transparency=True)
    if bits == 16 and colour_type == _GRAY_ALPHA_TYPE:
        return image.convert("LA")
    found = image.info.get("transparency")
    if found is None or colour_type == _PALETTE_TYPE:
        return image
    if image.mode == "I;16":  # compared in all bits, as TensorFlow does
        opaque = Image.fromarray((np.asarray(image) != found).astype(np.uint8) * 255)
        return Image.merge("LA", (upper_bits(image), opaque))
    if isinstance(found, tuple):
        image.info["transparency"] = tuple(v >> 8 if bits == 16 else v for v in found)
        return image
    image = image.convert("L")
    image.info["transparency"] = found * 255 // ((1 << bits) - 1)
    return image


def _plain(image: "Image.Image", icc: bytes) -> "Image.Image":
    import numpy as np
    from PIL import Image

    if image.mode == "CMYK":
        return _from_inks(image, icc)
    if image.mode in _SIXTEEN_BITS:
        return Image.fromarray(np.asarray(image).astype("<u2"))
    mode = _PLAIN_MODES.get(image.mode, image.mode)
    if "transparency" in image.info:
        mode = _WITH_ALPHA.get(mode, mode)
    if mode not in _SPACES:
        raise unreadable(f"pixels of Pillow's mode {image.mode}, which are not converted")
    return image if mode == image.mode else image.convert(mode)


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
