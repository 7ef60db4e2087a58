"""Decode images to plain pixels in a few modes, with correct colours, and convert them.

| in the file | here |
|---|---|
| gray of 1 to 8 bits, with alpha or a transparent gray | `L`, `LA` |
| gray PNG or TIFF of 16 bits | `I;16` |
| colour, palette, with alpha or transparent colours | `RGB`, `RGBA` |
| colour of 16 bits | the upper 8 bits |
| CMYK, YCCK | `RGB`: by the file's profile, else `(255 - C)(255 - K) / 255` as in TensorFlow |
| GIF, animated PNG, WebP or AVIF, TIFF of pages | the first picture |

Pixels are resampled like `tf.image.resize(antialias=True)` with its default method, bilinear: each
pixel is a weighted mean of the pixels that it covers. All functions are pure. Output bytes depend
only on input bytes and `codec_versions`. Callers have checked headers and sizes before.
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
from beam_tfrec.schemas.geometry import boxes
from beam_tfrec.schemas.layouts import PIXEL_DTYPES
from beam_tfrec.schemas.layouts.groups import NUMBERS_8_BITS, RGB_8_BITS
from beam_tfrec.transforms.images import findings
from beam_tfrec.transforms.images.check_images import check_image, decoding, load, open_image
from beam_tfrec.transforms.images.conversion import DEFAULT_QUALITY, Color, Conversion, Encoding
from beam_tfrec.transforms.images.exif import ORIENTATION, upright_exif
from beam_tfrec.transforms.images.jpeg import jpeg_for_decoder, jpeg_metadata
from beam_tfrec.transforms.images.png import MAX_PROFILE_BYTES, png_metadata

BoxPx = tuple[float, float, float, float]
"""Part of an image: left, top, right, bottom in px, with fractions."""

# Traits that do not require encoding an image of the wanted format again.
_USUAL = frozenset({"alpha", "exif_gps", "exif_orientation", "exif_serial", "gray", "icc_profile"})
_DRAFT_MARGIN = 2  # a JPEG is decoded to at least twice the wanted size
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientations as `Image.Transpose`
_SUBSAMPLING_444, _SUBSAMPLING_422 = 0, 1  # Pillow's numbers; 2 is 4:2:0
_WHOLE: Crop = (0.0, 0.0, 1.0, 1.0)
_EXIF_PREFIX, _MAX_SEGMENT_BODY_BYTES = b"Exif\0\0", 65_533

# Plain modes, and the colour space in a matching ICC profile (ICC.1:2022, table 19).
_SPACES = {"L": b"GRAY", "LA": b"GRAY", "I;16": b"GRAY", "RGB": b"RGB ", "RGBA": b"RGB "}
_PLAIN_MODES = {"1": "L", "La": "LA", "P": "RGB", "RGBX": "RGB", "YCbCr": "RGB", "PA": "RGBA"}
_PALETTE_TYPE, _GRAY_ALPHA_TYPE = 3, 4  # colour types of a PNG


class Decoded(NamedTuple):
    """Pixels of an image, and the metadata kept on conversion.

    Attributes:
        image: picture in mode `L`, `LA`, `RGB`, `RGBA` or `I;16`, as stored (not turned).
        exif: EXIF block that starts with its byte order mark; empty for none.
        icc: colour profile that fits the mode; empty for none.
        shown_px: width and height of the picture in pixels of `image`; fractional if a JPEG was
            decoded at a smaller scale.
        subsampling: chroma subsampling of a JPEG by Pillow's number; -1 for other formats.
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
        info: facts of the image.
        least_px: smallest width and height that suffice; None for the full size. A JPEG is then
            decoded to a half, a quarter or an eighth, in a fraction of the time.

    Raises:
        BadImage: Pixels of this kind are not supported.
        Exception: A decoder failed; call this within `decoding`.
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
    """Return an image on white, without its alpha channel."""
    if image.mode not in ("LA", "RGBA"):
        return image
    white = Image.new("RGBA", image.size, "white")
    seen = Image.alpha_composite(white, image.convert("RGBA"))
    return seen.convert("L" if image.mode == "LA" else "RGB")


def upper_bits(image: Image.Image) -> Image.Image:
    """Return the upper 8 bits of 16-bit gray, as TensorFlow decodes it to uint8."""
    if image.mode != "I;16":
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def transposed(image: Image.Image, turn: int) -> Image.Image:
    """Return an image turned as an EXIF orientation says."""
    return image if turn == 1 else image.transpose(Image.Transpose(_TURNS[turn]))


def pixels_of(image: Image.Image, size_px: tuple[int, int], box_px: BoxPx, dtype: str) -> NDArray:
    """Return an image's pixels as an array: height x width x channels.

    Channels are resampled in float32, without intermediate rounding. The result is within 1/255 of
    `tf.image.resize(antialias=True)`. Types are converted like `tf.image.convert_image_dtype`:
    floats are integers divided by the largest one, and 8 bits become 16 by a factor of 256.

    Args:
        image: image of mode `L`, `LA`, `RGB`, `RGBA` or `I;16`.
        size_px: wanted width and height.
        box_px: part of the image to show.
        dtype: one of `PIXEL_DTYPES`.
    """
    largest = 65535 if image.mode == "I;16" else 255
    pixels = np.asarray(image)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if image.size != size_px or box_px != (0.0, 0.0, *map(float, image.size)):
        planes = (Image.fromarray(plane.astype(np.float32)) for plane in np.moveaxis(pixels, 2, 0))
        fitted = [plane.resize(size_px, Image.Resampling.BILINEAR, box_px) for plane in planes]
        pixels = np.stack([np.asarray(plane) for plane in fitted], axis=2)
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
        is_inverted = image.mode == "CMYK" and "adobe" not in image.info  # Pillow inverts Adobe's
        picture = ImageChops.invert(image) if is_inverted else image
        return Decoded(picture, *jpeg_metadata(data), shown_px, subsampling)


def _decode_png(data: bytes, info: ImageInfo) -> Image.Image:
    """Return a PNG's picture; transparent gray or colour is scaled to 8 bits."""
    bits, colour_type = data[24], data[25]
    image: Image.Image = load(data, info, transparency=True)
    if bits == 16 and colour_type == _GRAY_ALPHA_TYPE:
        return image.convert("LA")
    found = image.info.get("transparency")
    if found is None or colour_type == _PALETTE_TYPE:
        return image
    if image.mode == "I;16":  # compares all 16 bits, like TensorFlow
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
    if image.mode.startswith("I;16"):  # of either byte order
        return Image.fromarray(np.asarray(image).astype("<u2"))
    mode = _PLAIN_MODES.get(image.mode, image.mode)
    if "transparency" in image.info:
        mode = {"L": "LA", "RGB": "RGBA"}.get(mode, mode)
    if mode not in _SPACES:
        raise findings.unreadable(f"pixels of Pillow's mode {image.mode}, which are not converted")
    return image if mode == image.mode else image.convert(mode)


def _from_inks(image: Image.Image, profile: bytes) -> Image.Image:
    """Convert CMYK to RGB, with the colour profile if it is a valid CMYK profile."""
    if profile[16:20] == b"CMYK":
        with contextlib.suppress(ImageCms.PyCMSError, OSError):
            inks = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            screen = ImageCms.createProfile("sRGB")
            return ImageCms.buildTransform(inks, screen, "CMYK", "RGB").apply(image)
    return image.convert("RGB")


def convert_image(image: EncodedImage, conversion: Conversion) -> EncodedImage:
    """Turn and convert an image; return it unchanged if no option applies.

    Raises:
        BadImage: The image cannot be converted.
        MemoryError, RecursionError, OSError: The machine failed, not the image.
    """
    turn = image.info.orientation if conversion.turns else 1
    whole_px = boxes.turn_size(image.info.size_px, turn)
    wanted = boxes.resized(whole_px, conversion.resize, conversion.mode)
    is_changed = _is_changed(image.info, wanted, whole_px, conversion)
    if not is_changed and turn == 1:
        return image
    window = Window(whole_px, wanted.crop)
    findings.require_size(*wanted.size_px)
    # The picture is turned last, since it is smaller then.
    stored = boxes.Resized(
        boxes.turn_size(wanted.size_px, turn), wanted.crop and boxes.unturn_box(*wanted.crop, turn)
    )
    with decoding():
        if conversion.pixels_dtype:
            return _to_pixels(image, stored, window, conversion, turn)
        data = _encoded_again(image, stored, conversion, turn, is_changed)
        return _made(image, data, turn, window if is_changed else None)


def convert_along(image: EncodedImage, photo: EncodedImage) -> EncodedImage:
    """Return an image of ids, such as a panoptic PNG, turned and resized with its photo.

    Ids are never mixed: each pixel takes the nearest one. Only the size shows whether an image is
    turned. An image of the photo's stored size is turned with it; others are left as they are.

    Args:
        image: checked image of ids.
        photo: photo after its conversion.

    Raises:
        BadImage: The pixels are damaged.
        MemoryError, RecursionError, OSError: The machine failed, not the image.
    """
    kind = image.data[24:26] if image.info.format == "png" else b""
    if kind not in RGB_8_BITS + NUMBERS_8_BITS:
        return image  # the layout refuses it
    is_as_stored = image.info.size_px == boxes.turn_size(photo.whole_size_px, photo.turned)
    turn = photo.turned if is_as_stored else 1
    own_px = boxes.turn_size(image.info.size_px, turn)
    # It has the size of the photo as stored or as viewed; otherwise the layout refuses it.
    view = 1 if own_px == photo.whole_size_px else photo.info.orientation
    window = photo.window if own_px == boxes.turn_size(photo.whole_size_px, view) else None
    if turn == 1 and window is None:
        return image
    with decoding():
        ids: Image.Image = load(image.data, image.info)
        if ids.mode == "P":  # Pillow would write places beyond the palette with too few bits
            ids = Image.frombytes("L", ids.size, ids.tobytes())
        ids = transposed(ids, turn)
        if window is not None:
            crop = window.crop and boxes.unturn_box(*window.crop, boxes.inverse_orientation(view))
            size_px, window = boxes.turn_size(photo.info.size_px, view), Window(own_px, crop)
            ids = ids.resize(size_px, Image.Resampling.NEAREST, _box_px(own_px, crop))
        return _made(image, _saved(ids, "PNG"), turn, window)


def _made(image: EncodedImage, data: bytes, turned: int, window: Window | None) -> EncodedImage:
    info, sha256 = check_image(data), hashlib.sha256(data).hexdigest()
    source_sha256 = image.source_sha256 or image.sha256
    return EncodedImage(image.name, data, sha256, info, turned, source_sha256, None, window)


def _is_changed(
    info: ImageInfo, wanted: boxes.Resized, whole_px: tuple[int, int], conversion: Conversion
) -> bool:
    traits = set(info.traits)
    if conversion.pixels_dtype or wanted != boxes.Resized(whole_px):
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
    image: EncodedImage, stored: boxes.Resized, window: Window, conversion: Conversion, turn: int
) -> EncodedImage:
    channels, dtype = 3 if conversion.channels is Color.RGB else 1, conversion.pixels_dtype
    size_bytes = math.prod(stored.size_px) * channels * PIXEL_DTYPES[dtype]
    if size_bytes > MAX_EXAMPLE_BYTES:
        what = f"{size_bytes} bytes of pixels, the limit is {MAX_EXAMPLE_BYTES}"
        raise findings.BadImage("E-EX-TOO-LARGE", what)
    picture = _in_colour(decode_image(image.data, image.info).image, conversion.channels)
    pixels = pixels_of(picture, stored.size_px, _box_px(image.info.size_px, stored.crop), dtype)
    pixels = boxes.turn_array(pixels, turn)  # also makes it C-contiguous
    height_px, width_px, _ = pixels.shape
    left = image.info.orientation if turn == 1 else 1
    traits = tuple(t for t in image.info.traits if left != 1 or t != "exif_orientation")
    info = ImageInfo(image.info.format, width_px, height_px, left, traits, image.info.channels)
    shown = None if stored == boxes.Resized(image.info.size_px) else window
    return structs.replace(image, info=info, turned=turn, pixels=pixels, window=shown)


def _encoded_again(
    image: EncodedImage, stored: boxes.Resized, conversion: Conversion, turn: int, is_changed: bool
) -> bytes:
    own = Encoding.JPEG if image.info.format == "jpeg" else Encoding.PNG
    encoding = conversion.reencode or own
    traits = set(image.info.traits)
    is_wide = "16_bit" in traits and ("gray" not in traits or "alpha" in traits)
    if not is_changed and own is Encoding.PNG and (is_wide or "animated" in traits):
        raise findings.unreadable("a turn would lose frames, or bits of 16 in colour or with alpha")
    if encoding is Encoding.JPEG and max(stored.size_px) > boxes.MAX_SIDE_PX:
        side_px = max(stored.size_px)
        raise findings.too_many_pixels(
            f"a side of {side_px} px, the longest of a JPEG is {boxes.MAX_SIDE_PX}"
        )
    decoded = decode_image(image.data, image.info, _least_px(stored) if is_changed else None)
    picture = _in_colour(decoded.image, conversion.channels)
    if conversion.reencode is not None:
        picture = upper_bits(picture)
    if encoding is Encoding.JPEG:
        picture = over_white(picture)
    picture = _resampled(picture, stored, _box_px(decoded.shown_px, stored.crop))
    picture = transposed(picture, turn)
    picture.info = {}
    # A profile for other channels is dropped, and EXIF that is too large for a JPEG segment.
    exif = _EXIF_PREFIX + (decoded.exif if turn == 1 else upright_exif(decoded.exif))
    fits = decoded.exif and len(exif) <= _MAX_SEGMENT_BODY_BYTES
    icc = decoded.icc if decoded.icc[16:20] == _SPACES[picture.mode] else b""
    options: dict[str, Any] = {"exif": exif if fits else b"", "icc_profile": icc}
    if encoding is Encoding.PNG:
        return _saved(picture, "PNG", **options)
    if is_changed:
        return _saved(picture, "JPEG", quality=conversion.quality or DEFAULT_QUALITY, **options)
    subsampling = decoded.subsampling
    if subsampling < 0 or (subsampling == _SUBSAMPLING_422 and turn in boxes.SWAPPING):
        subsampling = _SUBSAMPLING_444  # Pillow cannot write 4:4:0 and rarer ones
    return _saved(picture, "JPEG", quality=DEFAULT_QUALITY, subsampling=subsampling, **options)


def _saved(picture: Image.Image, file_format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, file_format, **options)
    return out.getvalue()


def _least_px(stored: boxes.Resized) -> tuple[int, int]:
    """Return the smallest size of the whole picture that is precise enough for resizing."""
    left, top, right, bottom = stored.crop or _WHOLE
    width_px, height_px = (_DRAFT_MARGIN * side_px for side_px in stored.size_px)
    return round(width_px / (right - left)), round(height_px / (bottom - top))


def _in_colour(image: Image.Image, color: Color) -> Image.Image:
    """Convert to the wanted channels; only `Color.KEEP` keeps alpha."""
    if color is Color.KEEP:
        return image
    image = over_white(image)
    if color is Color.RGB:
        return image if image.mode == "RGB" else upper_bits(image).convert("RGB")
    return image.convert("L") if image.mode == "RGB" else image


def _box_px(shown_px: tuple[float, float], crop: Crop | None) -> BoxPx:
    (width, height), (left, top, right, bottom) = shown_px, crop or _WHOLE
    return left * width, top * height, right * width, bottom * height


def _resampled(image: Image.Image, wanted: boxes.Resized, box_px: BoxPx) -> Image.Image:
    if image.size == wanted.size_px and wanted.crop is None:
        return image
    if image.mode == "I;16":
        return Image.fromarray(pixels_of(image, wanted.size_px, box_px, "uint16")[:, :, 0])
    return image.resize(wanted.size_px, Image.Resampling.BILINEAR, box_px)
