"""Decode images to plain pixels in one of few modes, with the colours that are meant; convert them.

| in the file | here |
|---|---|
| gray of 1 to 8 bits, with alpha or a transparent gray | `L`, `LA` |
| gray PNG or TIFF of 16 bits | `I;16` |
| colour, palette, with alpha or transparent colours | `RGB`, `RGBA` |
| colour of 16 bits | the upper 8 |
| CMYK, YCCK | `RGB`: by the file's profile, else `(255 - C)(255 - K) / 255` as TensorFlow has it |
| GIF, animated PNG, WebP or AVIF, TIFF of pages | the first picture |

Pixels are resampled as `tf.image.resize(antialias=True)` does by its default method, bilinear: each
pixel is the mean of all that it covers. Pure functions of bytes; equal bytes for equal codecs, see
`codec_versions`. Limits have been applied to headers before.
"""

import contextlib
import hashlib
import io
import math
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageCms, JpegImagePlugin

from beam_tfrec.schemas.example import MAX_EXAMPLE_BYTES
from beam_tfrec.schemas.fields import Crop, EncodedImage, ImageInfo, Window
from beam_tfrec.schemas.geometry.boxes import (
    MAX_SIDE_PX,
    SWAPPING,
    Resized,
    inverse_orientation,
    resized,
    turn_array,
    turn_size,
    unturn_box,
)
from beam_tfrec.schemas.layouts import PIXEL_DTYPES
from beam_tfrec.schemas.layouts.groups import RGB_OF_8_BITS
from beam_tfrec.transforms.images.check_images import check_image, decoding, load, open_image
from beam_tfrec.transforms.images.conversion import DEFAULT_QUALITY, Color, Conversion, Encoding
from beam_tfrec.transforms.images.exif import ORIENTATION, upright_exif
from beam_tfrec.transforms.images.findings import (
    BadImage,
    require_size,
    too_many_pixels,
    unreadable,
)
from beam_tfrec.transforms.images.jpeg import jpeg_for_decoder, jpeg_metadata
from beam_tfrec.transforms.images.png import MAX_PROFILE_BYTES, png_metadata

BoxPx = tuple[float, float, float, float]
"""A part of an image: left, top, right, bottom in px, which may end within pixels."""

# Traits that an image of the asked format may keep; decoders treat others specially.
_USUAL = frozenset({"alpha", "exif_gps", "exif_orientation", "exif_serial", "gray", "icc_profile"})
_DRAFT_MARGIN = 2  # a JPEG is decoded to at least so many times the wanted size
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientations as `Image.Transpose`
_SUBSAMPLING_444, _SUBSAMPLING_422 = 0, 1  # as Pillow numbers them; 2 is 4:2:0
_WHOLE: Crop = (0.0, 0.0, 1.0, 1.0)
_EXIF_PREFIX, _MAX_SEGMENT_BODY_BYTES = b"Exif\0\0", 65_533

# Plain modes, with the colour space that a profile of theirs names (ICC.1:2022, table 19).
_SPACES = {"L": b"GRAY", "LA": b"GRAY", "I;16": b"GRAY", "RGB": b"RGB ", "RGBA": b"RGB "}
_PLAIN_MODES = {
    **{"1": "L", "La": "LA", "P": "RGB", "RGBX": "RGB", "YCbCr": "RGB"},
    **{"PA": "RGBA", "RGBa": "RGBA"},
}
_WITH_ALPHA = {"L": "LA", "RGB": "RGBA"}
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

    image: Image.Image
    exif: bytes
    icc: bytes
    shown_px: tuple[float, float]
    subsampling: int = -1


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
        image, exif = load(data, info), Image.Exif()
        exif[ORIENTATION] = info.orientation
        block = b"" if info.orientation == 1 else exif.tobytes().removeprefix(_EXIF_PREFIX)
        decoded = Decoded(image, block, image.info.get("icc_profile") or b"", info.size_px)
    icc = decoded.icc if len(decoded.icc) <= MAX_PROFILE_BYTES else b""
    plain = _plain(decoded.image, icc)
    return decoded._replace(image=plain, icc=icc if icc[16:20] == _SPACES[plain.mode] else b"")


def over_white(image: Image.Image) -> Image.Image:
    """Return an image without its alpha channel, as it is seen on white."""
    if image.mode not in ("LA", "RGBA"):
        return image
    white = Image.new("RGBA", image.size, "white")
    seen = image if image.mode == "RGBA" else image.convert("RGBA")
    return Image.alpha_composite(white, seen).convert("L" if image.mode == "LA" else "RGB")


def upper_bits(image: Image.Image) -> Image.Image:
    """Return gray of 16 bits in 8: the upper ones, as TensorFlow decodes it to uint8."""
    if image.mode != "I;16":
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def pixels_of(image: Image.Image, size_px: tuple[int, int], box_px: BoxPx, dtype: str) -> NDArray:
    """Return an image's pixels: height x width x channels.

    Resampled channel by channel in float32, so that no rounding comes between: within 1/255 of
    `tf.image.resize(antialias=True)`. Types change as by `tf.image.convert_image_dtype`: floats are
    the parts of the largest integer, integers of 16 bits 256 times those of 8.

    Args:
        image: of mode `L`, `LA`, `RGB`, `RGBA` or `I;16`.
        size_px: wanted width and height.
        box_px: the part of the image that is shown.
        dtype: one of `PIXEL_DTYPES`.
    """
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
    if "float" in dtype:
        wide = np.float64 if dtype == "float64" else np.float32
        return np.divide(pixels, largest, dtype=wide).astype(dtype)
    if pixels.dtype.kind == "f":
        pixels = np.floor(pixels + 0.5).clip(0, largest)
    pixels = pixels.astype(np.uint16)
    if dtype == "uint8":
        return (pixels >> (8 if largest == 65535 else 0)).astype(np.uint8)
    return pixels if largest == 65535 else pixels * np.uint16(256)


def _decode_jpeg(data: bytes, info: ImageInfo, least_px: tuple[int, int] | None) -> Decoded:
    shown_px: tuple[float, float] = info.size_px
    with open_image(jpeg_for_decoder(data), "jpeg") as image:
        subsampling = JpegImagePlugin.get_sampling(image)
        if least_px is not None and (drafted := image.draft(None, least_px)) is not None:
            shown_px = drafted[1][2:]
        image.load()
        is_inverted = image.mode == "CMYK" and "adobe" not in image.info  # Pillow takes Adobe's
        picture = ImageChops.invert(image) if is_inverted else image
        return Decoded(picture, *jpeg_metadata(data), shown_px, subsampling)


def _decode_png(data: bytes, info: ImageInfo) -> Image.Image:
    """Return a PNG's picture; a transparent gray or colour is given in the picture's 8 bits."""
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


def _plain(image: Image.Image, icc: bytes) -> Image.Image:
    if image.mode == "CMYK":
        return _from_inks(image, icc)
    if image.mode.startswith("I;16"):  # in either byte order
        return Image.fromarray(np.asarray(image).astype("<u2"))
    mode = _PLAIN_MODES.get(image.mode, image.mode)
    if "transparency" in image.info:
        mode = _WITH_ALPHA.get(mode, mode)
    if mode not in _SPACES:
        raise unreadable(f"pixels of Pillow's mode {image.mode}, which are not converted")
    return image if mode == image.mode else image.convert(mode)


def _from_inks(image: Image.Image, profile: bytes) -> Image.Image:
    """Return four inks as RGB: by the colour profile, if it is one of inks that can be read."""
    if profile[16:20] == b"CMYK":
        with contextlib.suppress(ImageCms.PyCMSError, OSError):
            inks = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            screen = ImageCms.createProfile("sRGB")
            return ImageCms.buildTransform(inks, screen, "CMYK", "RGB").apply(image)
    return image.convert("RGB")


def convert_image(image: EncodedImage, conversion: Conversion) -> EncodedImage:
    """Return an image turned and converted, or itself where nothing changes.

    Raises:
        BadImage: where it cannot be converted.
        MemoryError, RecursionError, OSError: of the machine, not of the image.
    """
    turn = image.info.orientation if conversion.turns else 1
    whole_px = turn_size(image.info.size_px, turn)
    wanted = resized(whole_px, conversion.resize, conversion.mode)
    is_changed = _is_changed(image.info, wanted, whole_px, conversion)
    if not is_changed and turn == 1:
        return image
    window = Window(whole_px, wanted.crop)
    require_size(*wanted.size_px)
    # The picture is turned last, when it is small.
    stored = Resized(
        turn_size(wanted.size_px, turn), wanted.crop and unturn_box(*wanted.crop, turn)
    )
    with decoding():
        if conversion.pixels_dtype:
            return _to_pixels(image, stored, window, conversion, turn)
        data = _encoded_again(image, stored, conversion, turn, is_changed)
        return _made(image, data, turn, window if is_changed else None)


def convert_along(image: EncodedImage, photo: EncodedImage) -> EncodedImage:
    """Return an image of ids, such as a panoptic PNG, turned and resized with its photo.

    An id is never mixed with another: each pixel is the one below its middle. An image says nothing
    of its frame but by its size: that of the photo as stored is turned, any other is left alone.

    Args:
        image: checked.
        photo: as it is to be written.

    Raises:
        BadImage: where its pixels are damaged.
        MemoryError, RecursionError, OSError: of the machine, not of the image.
    """
    if image.info.format != "png" or image.data[24:26] != RGB_OF_8_BITS:
        return image  # the layout refuses it
    is_as_stored = image.info.size_px == turn_size(photo.whole_size_px, photo.turned)
    turn = photo.turned if is_as_stored else 1
    own_px = turn_size(image.info.size_px, turn)
    # It fits the photo as stored or as viewed. If it fits neither, the layout refuses it.
    view = 1 if own_px == photo.whole_size_px else photo.info.orientation
    window = photo.window if own_px == turn_size(photo.whole_size_px, view) else None
    if turn == 1 and window is None:
        return image
    with decoding():
        ids = _transposed(load(image.data, image.info), turn)
        if window is not None:
            crop = window.crop and unturn_box(*window.crop, inverse_orientation(view))
            size_px, window = turn_size(photo.info.size_px, view), Window(own_px, crop)
            ids = ids.resize(size_px, Image.Resampling.NEAREST, _box_px(own_px, crop))
        return _made(image, _saved(ids, "PNG"), turn, window)


def _made(image: EncodedImage, data: bytes, turned: int, window: Window | None) -> EncodedImage:
    info, sha256 = check_image(data), hashlib.sha256(data).hexdigest()
    source_sha256 = image.source_sha256 or image.sha256
    return EncodedImage(image.name, data, sha256, info, turned, source_sha256, None, window)


def _is_changed(
    info: ImageInfo, wanted: Resized, whole_px: tuple[int, int], conversion: Conversion
) -> bool:
    traits = set(info.traits)
    if conversion.pixels_dtype or wanted != Resized(whole_px):
        return True
    if conversion.channels is Color.RGB and traits & {"gray", "alpha", "cmyk"}:
        return True
    if conversion.channels is Color.GRAY and ("gray" not in traits or "alpha" in traits):
        return True
    if conversion.reencode is None:
        return False
    is_other = info.format != conversion.reencode.value or bool(traits - _USUAL)
    return is_other or conversion.quality is not None


def _to_pixels(
    image: EncodedImage, stored: Resized, window: Window, conversion: Conversion, turn: int
) -> EncodedImage:
    channels, dtype = 3 if conversion.channels is Color.RGB else 1, conversion.pixels_dtype
    size_bytes = math.prod(stored.size_px) * channels * PIXEL_DTYPES[dtype]
    if size_bytes > MAX_EXAMPLE_BYTES:
        what = f"{size_bytes} bytes of pixels, the limit is {MAX_EXAMPLE_BYTES}"
        raise BadImage("E-EX-TOO-LARGE", what)
    picture = _in_colour(decode_image(image.data, image.info).image, conversion.channels)
    pixels = pixels_of(picture, stored.size_px, _box_px(image.info.size_px, stored.crop), dtype)
    pixels = turn_array(pixels, turn)  # C-contiguous, too
    height_px, width_px, _ = pixels.shape
    left = image.info.orientation if turn == 1 else 1
    info = structs.replace(image.info, width_px=width_px, height_px=height_px, orientation=left)
    shown = None if stored == Resized(image.info.size_px) else window
    return structs.replace(image, info=info, turned=turn, pixels=pixels, window=shown)


def _encoded_again(
    image: EncodedImage, stored: Resized, conversion: Conversion, turn: int, is_changed: bool
) -> bytes:
    own = Encoding.JPEG if image.info.format == "jpeg" else Encoding.PNG
    encoding = conversion.reencode or own
    traits = set(image.info.traits)
    is_wide = "16_bit" in traits and ("gray" not in traits or "alpha" in traits)
    if not is_changed and own is Encoding.PNG and (is_wide or "animated" in traits):
        raise unreadable("a turn would lose frames, or bits of 16 in colour or with alpha")
    if encoding is Encoding.JPEG and max(stored.size_px) > MAX_SIDE_PX:
        side_px = max(stored.size_px)
        raise too_many_pixels(f"a side of {side_px} px, the longest of a JPEG is {MAX_SIDE_PX}")
    decoded = decode_image(image.data, image.info, _least_px(stored) if is_changed else None)
    picture = _in_colour(decoded.image, conversion.channels)
    if conversion.reencode is not None:
        picture = upper_bits(picture)
    if encoding is Encoding.JPEG:
        picture = over_white(picture)
    picture = _resampled(picture, stored, _box_px(decoded.shown_px, stored.crop))
    picture = _transposed(picture, turn)
    picture.info = {}
    # A profile of other channels is left out, and so is EXIF that is too large for a JPEG.
    exif = _EXIF_PREFIX + (decoded.exif if turn == 1 else upright_exif(decoded.exif))
    fits = decoded.exif and len(exif) <= _MAX_SEGMENT_BODY_BYTES
    icc = decoded.icc if decoded.icc[16:20] == _SPACES[picture.mode] else b""
    options: dict[str, Any] = {"exif": exif if fits else b"", "icc_profile": icc}
    if encoding is Encoding.PNG:
        return _saved(picture, "PNG", **options)
    if is_changed:
        return _saved(picture, "JPEG", quality=conversion.quality or DEFAULT_QUALITY, **options)
    subsampling = decoded.subsampling
    if subsampling < 0 or (subsampling == _SUBSAMPLING_422 and turn in SWAPPING):
        subsampling = _SUBSAMPLING_444  # Pillow writes no 4:4:0, and none that is rarer
    return _saved(picture, "JPEG", quality=DEFAULT_QUALITY, subsampling=subsampling, **options)


def _saved(picture: Image.Image, file_format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, file_format, **options)
    return out.getvalue()


def _least_px(stored: Resized) -> tuple[int, int]:
    """Return the size of the whole picture that is enough to resize from."""
    left, top, right, bottom = stored.crop or _WHOLE
    width_px, height_px = (_DRAFT_MARGIN * side_px for side_px in stored.size_px)
    return round(width_px / (right - left)), round(height_px / (bottom - top))


def _in_colour(image: Image.Image, color: Color) -> Image.Image:
    """Return an image in the asked channels; alpha is kept only with `Color.KEEP`."""
    if color is Color.KEEP:
        return image
    image = over_white(image)
    if color is Color.RGB:
        return image if image.mode == "RGB" else upper_bits(image).convert("RGB")
    return image.convert("L") if image.mode == "RGB" else image


def _box_px(shown_px: tuple[float, float], crop: Crop | None) -> BoxPx:
    (width, height), (left, top, right, bottom) = shown_px, crop or _WHOLE
    return left * width, top * height, right * width, bottom * height


def _resampled(image: Image.Image, wanted: Resized, box_px: BoxPx) -> Image.Image:
    if image.size == wanted.size_px and wanted.crop is None:
        return image
    if image.mode == "I;16":
        return Image.fromarray(pixels_of(image, wanted.size_px, box_px, "uint16")[:, :, 0])
    return image.resize(wanted.size_px, Image.Resampling.BILINEAR, box_px)


def _transposed(image: Image.Image, turn: int) -> Image.Image:
    return image if turn == 1 else image.transpose(Image.Transpose(_TURNS[turn]))
