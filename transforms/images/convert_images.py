"""Convert images: another size, another encoding, other colours, or plain pixels.

Pixels are resampled as `tf.image.resize(antialias=True)` does by its default method, bilinear: each
pixel is the mean of all that it covers. Pure functions of bytes; equal bytes for equal codecs.
"""

import ctypes
import enum
import hashlib
import io
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

import msgspec

from schemas.example import MAX_EXAMPLE_BYTES
from schemas.fields import Crop, EncodedImage, ImageInfo, Window
from schemas.geometry.boxes import (
    MAX_SIDE_PX,
    SWAPPING,
    Resize,
    Resized,
    ResizeMode,
    inverse_orientation,
    resized,
    turn_array,
    turn_size,
    unturn_box,
)
from schemas.layouts import PIXEL_DTYPES
from transforms.images.check_images import Check, check_image, decoding, require_same_size
from transforms.images.decode_images import (
    BoxPx,
    Metadata,
    decode_image,
    over_white,
    pixels_of,
    upper_bits,
)
from transforms.images.exif import upright_exif
from transforms.images.findings import (
    MAX_PIXELS,
    BadImage,
    ImageFault,
    require_size,
    too_many_pixels,
    unreadable,
)
from transforms.images.jpeg import jpeg_for_decoder, jpeg_profiles
from transforms.images.png import SIGNATURE, png_chunk, png_chunks, png_for_decoder

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_QUALITY = 95
"""By libjpeg's scale, of JPEGs that are made; with 4:2:0 subsampling. Output bytes depend on it."""

# What makes an image of the asked format one that decoders treat specially.
_UNUSUAL = frozenset(
    {
        "16_bit",
        "animated",
        "arithmetic",
        "cmyk",
        "interlaced",
        "junk_bytes",
        "multi_picture",
        "palette",
        "progressive",
        "trailing_bytes",
    }
)
_DRAFT_MARGIN = 2  # a JPEG is decoded to no less than so many times the size that is wanted
_PIXELS_PER_FILE_BYTE = 8  # of photos as JPEGs: 3 to 10
_ITEM_BYTES = {"uint8": 1, "uint16": 2, "float16": 2, "float32": 4, "float64": 8}
_PNG_HEAD_BYTES = 33
_RGB_OF_8_BITS = bytes([8, 2])


class Encoding(enum.Enum):
    """What images are encoded as again."""

    JPEG = "jpeg"
    PNG = "png"


class Color(enum.Enum):
    """What colours images have: three channels, one, or those of the file."""

    RGB = "rgb"
    GRAY = "gray"
    KEEP = "keep"


@dataclass(frozen=True)
class Conversion:
    """What is done to pixels, besides turning them upright; nothing by default.

    Attributes:
        resize: the size that is asked for; None to leave it.
        resize_mode: how another aspect meets it; None for FIT, and STRETCH where plain pixels are
            written.
        reencode: what every image is to be; None to write a changed one in its own format, GIF and
            BMP as PNG.
        quality: of JPEGs, 1 to 100; None for `DEFAULT_QUALITY`, and to let a JPEG pass for which
            `reencode` alone would ask.
        color: None to keep it, and for RGB where plain pixels are written.
        pixels_dtype: what the layout wants plain pixels as; empty for encoded images.
    """

    resize: Resize | None = None
    resize_mode: ResizeMode | None = None
    reencode: Encoding | None = None
    quality: int | None = None
    color: Color | None = None
    pixels_dtype: str = ""

    def __post_init__(self) -> None:
        """Refuse what does not fit together."""
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise ValueError(
                f"quality must be 1 to 100, got {self.quality}: give one such as {DEFAULT_QUALITY}"
            )
        if self.resize_mode is not None and (self.resize is None or self.resize.height_px is None):
            raise ValueError(
                f"resize_mode must be of a box, got {self.resize_mode.value} with resize"
                f" {self.resize}: give --resize 512 or WxH, or leave --resize_mode out"
            )
        if self.quality is not None and self.reencode is Encoding.PNG:
            raise ValueError(
                f"quality must be of JPEGs, got {self.quality} with reencode png: leave one out"
            )
        if self.quality is not None and not self.changes:
            raise ValueError(
                f"quality must be of images that are encoded again, got {self.quality} alone: add"
                " --reencode jpeg, --resize or --color"
            )
        if self.pixels_dtype not in ("", *PIXEL_DTYPES):
            raise ValueError(
                f"pixels_dtype must be of {', '.join(PIXEL_DTYPES)}, got {self.pixels_dtype!r}:"
                " give one of them"
            )
        if self.pixels_dtype and (self.reencode or self.quality):
            raise ValueError(
                "reencode and quality must be left out where plain pixels are written, got"
                f" {'quality' if self.reencode is None else 'reencode'}: leave it out"
            )

    def for_pixels(self, dtype: str) -> "Conversion":
        """Return what is done for a layout that wants plain pixels of a type, if it does."""
        return replace(self, pixels_dtype=dtype) if dtype else self

    @property
    def changes(self) -> bool:
        """Whether anything is asked of images that could change one."""
        keeps = self.color is None or self.color is Color.KEEP  # asked of every image
        return bool(self.resize or self.reencode or self.pixels_dtype) or not keeps

    @property
    def takes_foreign(self) -> bool:
        """Whether no image is written as it is, so that it may be of a format few readers know."""
        return bool(self.reencode or self.pixels_dtype)

    @property
    def mode(self) -> ResizeMode:
        """How another aspect meets the box."""
        default = ResizeMode.STRETCH if self.pixels_dtype else ResizeMode.FIT
        return self.resize_mode or default

    @property
    def channels(self) -> Color:
        """The colours that images get."""
        return self.color or (Color.RGB if self.pixels_dtype else Color.KEEP)

    def pixels_bytes(self, file_bytes: int) -> int:
        """Return about how many bytes a file's plain pixels take; 0 where none are asked for."""
        if not self.pixels_dtype:
            return 0
        pixels = _PIXELS_PER_FILE_BYTE * file_bytes
        if self.resize is not None:
            pixels = self.resize.width_px * (self.resize.height_px or self.resize.width_px)
        return 3 * pixels * _ITEM_BYTES[self.pixels_dtype]

    def options(self) -> dict[str, str]:
        """Return the options that decide bytes; none where nothing is done."""
        if not self.changes:
            return {}
        asked = {"color": self.channels.value, "conversion_codecs": conversion_codecs()}
        if self.resize is not None:
            in_box = self.resize.height_px is not None
            asked["resize"] = f"{self.resize} {self.mode.value}" if in_box else str(self.resize)
        if self.pixels_dtype:
            return {**asked, "pixels": self.pixels_dtype}
        if self.reencode is not None:
            asked["reencode"] = self.reencode.value
        quality = "default" if self.quality is None else str(self.quality)
        return {**asked, "quality": f"{quality}, {DEFAULT_QUALITY} by default"}


NO_CONVERSION = Conversion()


def conversion_codecs() -> str:
    """Return the versions of all that decodes and encodes, which decide converted bytes."""
    from PIL import features

    others = [f"{name} {features.version(name)}" for name in ("webp", "avif", "libtiff")]
    return ", ".join([codec_versions(), *others, f"littlecms2 {features.version('littlecms2')}"])


def convert_image(
    image: EncodedImage, conversion: Conversion, orientation: int = 1
) -> EncodedImage | ImageFault:
    """Return an image converted, or itself where no option changes it, or why it cannot be.

    Args:
        image: checked, and not turned.
        conversion: that changes something.
        orientation: EXIF orientation by which its pixels are turned; 1 to leave them as stored.

    Raises:
        MemoryError, RecursionError, OSError: of the machine, not of the image.
    """
    whole_px = turn_size(image.info.size_px, orientation)
    wanted = resized(whole_px, conversion.resize, conversion.mode)
    if not _is_changed(image, wanted, whole_px, conversion):
        return image
    try:
        with decoding():
            require_size(*wanted.size_px, MAX_PIXELS)
            if conversion.pixels_dtype:
                _require_room(wanted, conversion)
                return _to_pixels(image, wanted, whole_px, conversion, orientation)
            data = _encoded_again(image, wanted, conversion, orientation)
    except BadImage as error:
        return error.fault
    finally:
        give_back_freed_memory(image.info)
    return _as_converted(image, data, Window(whole_px, wanted.crop), orientation)


def convert_along(image: EncodedImage, photo: EncodedImage) -> EncodedImage | ImageFault:
    """Return an image whose pixels are ids on those of a photo, resized and cropped with it.

    Each pixel is the one that lies below its middle, so that ids stay what they are.

    Args:
        image: checked, and turned along with the photo.
        photo: as it is to be written.

    Raises:
        MemoryError, RecursionError, OSError: of the machine, not of the image.
    """
    window, own_px = photo.window, image.info.size_px
    is_rgb_png = image.info.format == "png" and image.data[24:26] == _RGB_OF_8_BITS
    if window is None or not is_rgb_png:
        return image
    size_px, crop, orientation = photo.info.size_px, window.crop, photo.info.orientation
    if own_px != window.whole_size_px:  # made of the picture as viewed, perhaps
        if own_px != turn_size(window.whole_size_px, orientation):
            return image  # no image of this photo: the layout says so
        size_px = turn_size(size_px, orientation)
        crop = crop and unturn_box(*crop, inverse_orientation(orientation))
    try:
        with decoding():
            data = _nearest(image, Resized(size_px, crop))
    except BadImage as error:
        return error.fault
    return _as_converted(image, data, Window(own_px, crop), image.turned)


def _is_changed(
    image: EncodedImage, wanted: Resized, whole_px: tuple[int, int], conversion: Conversion
) -> bool:
    info, traits = image.info, set(image.info.traits)
    if conversion.pixels_dtype or wanted != Resized(whole_px):
        return True
    if conversion.channels is Color.RGB and traits & {"gray", "alpha", "cmyk"}:
        return True
    if conversion.channels is Color.GRAY and ("gray" not in traits or "alpha" in traits):
        return True
    if conversion.reencode is None:
        return False
    is_other = info.format != conversion.reencode.value or bool(traits & _UNUSUAL)
    return is_other or conversion.quality is not None


def _to_pixels(
    image: EncodedImage,
    wanted: Resized,
    whole_px: tuple[int, int],
    conversion: Conversion,
    orientation: int,
) -> EncodedImage:
    stored = _as_stored(wanted, orientation)
    picture = _in_colour(decode_image(image).image, conversion.channels)
    box_px = _box_px(image.info.size_px, stored.crop)
    pixels = pixels_of(picture, stored.size_px, box_px, conversion.pixels_dtype)
    if orientation != 1:
        pixels = turn_array(pixels, orientation)
    info = msgspec.structs.replace(
        image.info,
        width_px=wanted.size_px[0],
        height_px=wanted.size_px[1],
        orientation=image.info.orientation if orientation == 1 else 1,
    )
    window = None if wanted == Resized(whole_px) else Window(whole_px, wanted.crop)
    return msgspec.structs.replace(
        image, info=info, turned=orientation, pixels=pixels, window=window
    )


def _require_room(wanted: Resized, conversion: Conversion) -> None:
    """Refuse, before they are made, pixels of so many channels at least that no Example holds."""
    channels = 3 if conversion.channels is Color.RGB else 1
    width_px, height_px = wanted.size_px
    size_bytes = width_px * height_px * channels * _ITEM_BYTES[conversion.pixels_dtype]
    if size_bytes > MAX_EXAMPLE_BYTES:
        what = f"{size_bytes} bytes of pixels, the limit is {MAX_EXAMPLE_BYTES}"
        raise BadImage("E-EX-TOO-LARGE", what)


def _encoded_again(
    image: EncodedImage, wanted: Resized, conversion: Conversion, orientation: int
) -> bytes:
    encoding = conversion.reencode
    if encoding is None:
        encoding = Encoding.JPEG if image.info.format == "jpeg" else Encoding.PNG
    if encoding is Encoding.JPEG and max(wanted.size_px) > MAX_SIDE_PX:
        width_px, height_px = wanted.size_px
        what = f"{width_px} x {height_px} px, a JPEG has sides of up to {MAX_SIDE_PX}"
        raise too_many_pixels(what)
    stored = _as_stored(wanted, orientation)
    decoded = decode_image(image, _least_px(stored))
    picture = _in_colour(decoded.image, conversion.channels)
    if encoding is Encoding.JPEG or conversion.reencode is not None:
        picture = upper_bits(picture)
    if encoding is Encoding.JPEG:
        picture = over_white(picture)
    picture = _resampled(picture, stored, _box_px(decoded.shown_px, stored.crop))
    picture = transposed(picture, orientation)
    metadata = decoded.metadata if orientation == 1 else decoded.metadata.upright()
    metadata = metadata.for_mode(picture.mode)
    if encoding is Encoding.PNG:
        return _png(picture, metadata)
    return _jpeg(picture, metadata, conversion.quality or DEFAULT_QUALITY)


def _as_stored(wanted: Resized, orientation: int) -> Resized:
    """Return what to make of a picture as stored, to be turned then: less is left to turn."""
    crop = wanted.crop and unturn_box(*wanted.crop, orientation)
    return Resized(turn_size(wanted.size_px, orientation), crop)


def _least_px(stored: Resized) -> tuple[int, int]:
    """Return the size that is enough of a whole picture, to be resized from."""
    left, top, right, bottom = stored.crop or (0.0, 0.0, 1.0, 1.0)
    width_px, height_px = stored.size_px
    return (
        round(_DRAFT_MARGIN * width_px / (right - left)),
        round(_DRAFT_MARGIN * height_px / (bottom - top)),
    )


def _in_colour(image: "Image.Image", color: Color) -> "Image.Image":
    """Return an image in the channels that are asked for; alpha is kept with all, or with none."""
    if color is Color.KEEP:
        return image
    image = over_white(image)
    if color is Color.RGB:
        return image if image.mode == "RGB" else upper_bits(image).convert("RGB")
    return image.convert("L") if image.mode == "RGB" else image


def _box_px(shown_px: tuple[float, float], crop: Crop | None) -> BoxPx:
    width, height = shown_px
    left, top, right, bottom = crop or (0.0, 0.0, 1.0, 1.0)
    return left * width, top * height, right * width, bottom * height


def _resampled(image: "Image.Image", wanted: Resized, box_px: BoxPx) -> "Image.Image":
    import numpy as np
    from PIL import Image

    if image.size == wanted.size_px and wanted.crop is None:
        return image
    if image.mode != "I;16":
        return image.resize(wanted.size_px, Image.Resampling.BILINEAR, box_px)
    found = image.convert("F").resize(wanted.size_px, Image.Resampling.BILINEAR, box_px)
    return Image.fromarray(np.floor(np.asarray(found) + 0.5).clip(0, 65535).astype("<u2"))


def _jpeg(image: "Image.Image", metadata: Metadata, quality: int) -> bytes:
    image.info = {}
    encoded = encode_jpeg(image, quality=quality)
    end = 4 + int.from_bytes(encoded[4:6], "big")  # the JFIF segment
    return b"".join([encoded[:end], metadata.jpeg_segments(), encoded[end:]])


def _png(image: "Image.Image", metadata: Metadata) -> bytes:
    out = io.BytesIO()
    image.info = {}
    image.save(out, "PNG")
    encoded = out.getvalue()
    head, rest = encoded[:_PNG_HEAD_BYTES], encoded[_PNG_HEAD_BYTES:]
    return b"".join([head, metadata.png_chunks(), rest])


def _nearest(image: EncodedImage, wanted: Resized) -> bytes:
    from PIL import Image, PngImagePlugin

    data = png_for_decoder(image.data, MAX_PIXELS)
    with PngImagePlugin.PngImageFile(io.BytesIO(data)) as ids:
        box_px = _box_px(ids.size, wanted.crop)
        found = ids.resize(wanted.size_px, Image.Resampling.NEAREST, box_px)
    return _png(found, Metadata())


def _as_converted(
    image: EncodedImage, data: bytes, window: Window, orientation: int
) -> EncodedImage:
    info = check_image(data, Check.HEADER)
    if isinstance(info, ImageFault):
        raise ValueError(f"a converted image must be one, got {info.code} {info.detail}")
    sha256 = hashlib.sha256(data).hexdigest()
    source_sha256 = image.source_sha256 or image.sha256
    return EncodedImage(image.name, data, sha256, info, orientation, source_sha256, None, window)


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


if TYPE_CHECKING:
    from PIL import Image

_END_OF_IMAGE = b"\xff\xd9"


def encode_jpeg(image: "Image.Image", **options: Any) -> bytes:
    """Return a JPEG of a picture, with what Pillow's writer is asked for; the same bytes anywhere.

    Raises:
        MemoryError: where the system has no room for the file.
    """
    with _file_in_memory() as file:
        image.save(file, "JPEG", **options)
        file.seek(0)
        encoded = file.read()
    if not encoded.endswith(_END_OF_IMAGE):  # Pillow does not look at what a write leaves out
        raise MemoryError(f"{len(encoded)} bytes of a JPEG could be kept, not the rest")
    return encoded


def _file_in_memory() -> IO[bytes]:
    """Return a file of the system, or an object of Python where there is none to be had.

    macOS has none, nor has a Python that was built for an old Linux; a sandbox may forbid it.
    """
    try:
        return open(os.memfd_create("jpeg"), "w+b", buffering=0)
    except (AttributeError, OSError):
        return io.BytesIO()
