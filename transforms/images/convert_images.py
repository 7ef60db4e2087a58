"""Convert images: turned upright, another size, another encoding, other colours, or plain pixels.

Pixels are resampled as `tf.image.resize(antialias=True)` does by its default method, bilinear: each
pixel is the mean of all that it covers. Pure functions of bytes; equal bytes for equal codecs, see
`codec_versions`.
"""

import enum
import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import structs

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
from schemas.layouts.groups import RGB_OF_8_BITS
from transforms.images.check_images import check_image, decoding, load
from transforms.images.decode_images import BoxPx, decode_image, over_white, pixels_of, upper_bits
from transforms.images.findings import BadImage, require_size, too_many_pixels, unreadable

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_QUALITY = 95
"""Quality of encoded JPEGs by libjpeg's scale, of turned ones always. Output bytes depend on it."""

# Traits that an image of the asked format may keep; decoders treat others specially.
_USUAL = frozenset({"alpha", "exif_gps", "exif_orientation", "exif_serial", "gray", "icc_profile"})
_DRAFT_MARGIN = 2  # a JPEG is decoded to at least so many times the wanted size
_PIXELS_PER_FILE_BYTE = 8  # of photos as JPEGs: 3 to 10
_ITEM_BYTES = {"uint8": 1, "uint16": 2, "float16": 2, "float32": 4, "float64": 8}
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientations as `Image.Transpose`
_SUBSAMPLING_444, _SUBSAMPLING_422 = 0, 1  # as Pillow numbers them; 2 is 4:2:0
_OTHER_CODECS = ("webp", "avif", "libtiff", "littlecms2")
_WHOLE: Crop = (0.0, 0.0, 1.0, 1.0)


class Encoding(enum.Enum):
    """Format that all images are encoded to."""

    JPEG = "jpeg"
    PNG = "png"


class Color(enum.Enum):
    """Colours of the written images: three channels, one, or those of the file."""

    RGB = "rgb"
    GRAY = "gray"
    KEEP = "keep"


@dataclass(frozen=True)
class Conversion:
    """Changes to pixels; none by default.

    Attributes:
        resize: wanted size; None to keep it.
        resize_mode: treatment of another aspect; None for FIT, and STRETCH for plain pixels.
        reencode: format of all images; None to write a changed one in its own format, GIF and BMP
            as PNG.
        quality: quality of JPEGs, 1 to 100. None for `DEFAULT_QUALITY`; then a JPEG passes
            unchanged where only `reencode` asks for JPEG.
        color: colours; None to keep them, and for RGB where plain pixels are written.
        pixels_dtype: type of plain pixels that the layout wants; empty for encoded images.
        turns: whether pictures are turned upright, as EXIF says.
    """

    resize: Resize | None = None
    resize_mode: ResizeMode | None = None
    reencode: Encoding | None = None
    quality: int | None = None
    color: Color | None = None
    pixels_dtype: str = ""
    turns: bool = False

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        quality, mode = self.quality, self.resize_mode
        wrong = ""
        if quality is not None and not 1 <= quality <= 100:
            wrong = f"quality must be 1 to 100, got {quality}: give one such as 95"
        elif mode is not None and (self.resize is None or self.resize.height_px is None):
            wrong = (
                f"resize_mode must be of a box, got {mode.value} with resize {self.resize}: give"
                " --resize 512 or WxH, or leave --resize_mode out"
            )
        elif quality is not None and self.reencode is Encoding.PNG:
            wrong = f"quality must be of JPEGs, got {quality} with reencode png: leave one out"
        elif quality is not None and not self.changes:
            wrong = (
                f"quality must be of images that are encoded again, got {quality} alone: add"
                " --reencode jpeg, --resize or --color"
            )
        elif self.pixels_dtype and (self.reencode or quality):
            wrong = "reencode and quality must be left out where plain pixels are written"
        if wrong:
            raise ValueError(wrong)

    @property
    def changes(self) -> bool:
        """Whether an option could change more of an image than its orientation."""
        keeps = self.color is None or self.color is Color.KEEP
        return bool(self.resize or self.reencode or self.pixels_dtype) or not keeps

    @property
    def takes_foreign(self) -> bool:
        """Whether every image is encoded again, so that formats few readers know are welcome."""
        return bool(self.reencode or self.pixels_dtype)

    @property
    def mode(self) -> ResizeMode:
        """Treatment of another aspect."""
        default = ResizeMode.STRETCH if self.pixels_dtype else ResizeMode.FIT
        return self.resize_mode or default

    @property
    def channels(self) -> Color:
        """Colours that images get."""
        return self.color or (Color.RGB if self.pixels_dtype else Color.KEEP)

    def pixels_bytes(self, file_bytes: int) -> int:
        """Return the estimated size of a file's plain pixels; 0 without plain pixels."""
        if not self.pixels_dtype:
            return 0
        pixels = _PIXELS_PER_FILE_BYTE * file_bytes
        if self.resize is not None:
            pixels = self.resize.width_px * (self.resize.height_px or self.resize.width_px)
        return 3 * pixels * _ITEM_BYTES[self.pixels_dtype]

    def options(self) -> dict[str, str]:
        """Return the plan's options that decide bytes, with the codecs where pixels change."""
        codecs = codec_versions() if self.turns or self.changes else ""
        asked = {"orientation": f"upright, by {codecs}" if self.turns else "keep"}
        if not self.changes:
            return asked
        asked |= {"color": self.channels.value, "conversion_codecs": codecs}
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


def codec_versions() -> str:
    """Return the versions of all codecs that decide the bytes of turned or converted images."""
    import PIL
    from PIL import features

    turbo, ng = features.version("libjpeg_turbo"), features.version("zlib_ng")
    jpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {features.version('jpg')}"
    png = f"zlib-ng {ng}" if ng else f"zlib {features.version('zlib')}"
    others = [f"{name} {features.version(name)}" for name in _OTHER_CODECS]
    return ", ".join([f"Pillow {PIL.__version__}", jpeg, png, *others])


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
    with decoding():
        if conversion.pixels_dtype:
            return _to_pixels(image, wanted, window, conversion, turn)
        data = _encoded_again(image, wanted, conversion, turn, is_changed)
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
    from PIL import Image

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


def _made(
    image: EncodedImage, data: bytes, turned: int, window: Window | None = None
) -> EncodedImage:
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
    image: EncodedImage, wanted: Resized, window: Window, conversion: Conversion, turn: int
) -> EncodedImage:
    (width_px, height_px), dtype = wanted.size_px, conversion.pixels_dtype
    channels = 3 if conversion.channels is Color.RGB else 1
    size_bytes = width_px * height_px * channels * _ITEM_BYTES[dtype]
    if size_bytes > MAX_EXAMPLE_BYTES:
        what = f"{size_bytes} bytes of pixels, the limit is {MAX_EXAMPLE_BYTES}"
        raise BadImage("E-EX-TOO-LARGE", what)
    stored = _as_stored(wanted, turn)
    picture = _in_colour(decode_image(image.data, image.info).image, conversion.channels)
    pixels = pixels_of(picture, stored.size_px, _box_px(image.info.size_px, stored.crop), dtype)
    if turn != 1:
        pixels = turn_array(pixels, turn)
    left = image.info.orientation if turn == 1 else 1
    info = structs.replace(image.info, width_px=width_px, height_px=height_px, orientation=left)
    shown = None if wanted == Resized(window.whole_size_px) else window
    return structs.replace(image, info=info, turned=turn, pixels=pixels, window=shown)


def _encoded_again(
    image: EncodedImage, wanted: Resized, conversion: Conversion, turn: int, is_changed: bool
) -> bytes:
    own = Encoding.JPEG if image.info.format == "jpeg" else Encoding.PNG
    encoding = conversion.reencode or own
    traits = set(image.info.traits)
    is_wide = "16_bit" in traits and ("gray" not in traits or "alpha" in traits)
    if not is_changed and own is Encoding.PNG and (is_wide or "animated" in traits):
        what = "an animated PNG, or one of 16 bits in colour or with alpha"
        raise unreadable(f"{what}, of which a turn would lose frames or bits")
    if encoding is Encoding.JPEG and max(wanted.size_px) > MAX_SIDE_PX:
        width_px, height_px = wanted.size_px
        what = f"{width_px} x {height_px} px, a JPEG has sides of up to {MAX_SIDE_PX}"
        raise too_many_pixels(what)
    stored = _as_stored(wanted, turn)
    decoded = decode_image(image.data, image.info, _least_px(stored) if is_changed else None)
    picture = _in_colour(decoded.image, conversion.channels)
    if encoding is Encoding.JPEG or conversion.reencode is not None:
        picture = upper_bits(picture)
    if encoding is Encoding.JPEG:
        picture = over_white(picture)
    picture = _resampled(picture, stored, _box_px(decoded.shown_px, stored.crop))
    picture = _transposed(picture, turn)
    picture.info = {}
    options = decoded.metadata_for(picture.mode, upright=turn != 1)
    if encoding is Encoding.PNG:
        return _saved(picture, "PNG", **options)
    if is_changed:
        return _saved(picture, "JPEG", quality=conversion.quality or DEFAULT_QUALITY, **options)
    subsampling = decoded.subsampling
    if subsampling < 0 or (subsampling == _SUBSAMPLING_422 and turn in SWAPPING):
        subsampling = _SUBSAMPLING_444  # Pillow writes no 4:4:0, and none that is rarer
    return _saved(picture, "JPEG", quality=DEFAULT_QUALITY, subsampling=subsampling, **options)


def _saved(picture: "Image.Image", file_format: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, file_format, **options)
    return out.getvalue()


def _as_stored(wanted: Resized, turn: int) -> Resized:
    """Return the size and crop for the picture as stored; it is turned last, when it is small."""
    crop = wanted.crop and unturn_box(*wanted.crop, turn)
    return Resized(turn_size(wanted.size_px, turn), crop)


def _least_px(stored: Resized) -> tuple[int, int]:
    """Return the size of the whole picture that is enough to resize from."""
    left, top, right, bottom = stored.crop or _WHOLE
    width_px, height_px = stored.size_px
    return (
        round(_DRAFT_MARGIN * width_px / (right - left)),
        round(_DRAFT_MARGIN * height_px / (bottom - top)),
    )


def _in_colour(image: "Image.Image", color: Color) -> "Image.Image":
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


def _resampled(image: "Image.Image", wanted: Resized, box_px: BoxPx) -> "Image.Image":
    from PIL import Image

    if image.size == wanted.size_px and wanted.crop is None:
        return image
    if image.mode == "I;16":
        return Image.fromarray(pixels_of(image, wanted.size_px, box_px, "uint16")[:, :, 0])
    return image.resize(wanted.size_px, Image.Resampling.BILINEAR, box_px)


def _transposed(image: "Image.Image", turn: int) -> "Image.Image":
    from PIL import Image

    return image if turn == 1 else image.transpose(Image.Transpose(_TURNS[turn]))
