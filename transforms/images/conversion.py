"""Options of conversion: orientation, size, encoding, colours, and plain pixels."""

import enum
from dataclasses import dataclass, replace
from typing import Self

from beam_tfrec.schemas.geometry.boxes import Resize, ResizeMode
from beam_tfrec.schemas.layouts import PIXEL_DTYPES
from beam_tfrec.schemas.splits import bucket_size_px

DEFAULT_QUALITY = 95
"""Default quality of JPEGs, on libjpeg's scale. JPEGs that are only turned always get it."""

_PIXELS_PER_FILE_BYTE = 8  # JPEG photos have 3 to 10
_OTHER_CODECS = ("webp", "avif", "libtiff", "littlecms2")


class Encoding(enum.Enum):
    """Format to which all images are encoded."""

    JPEG = "jpeg"
    PNG = "png"


class Color(enum.Enum):
    """Channels of written images: three, one, or those of the file."""

    RGB = "rgb"
    GRAY = "gray"
    KEEP = "keep"


@dataclass(frozen=True)
class Conversion:
    """Changes to pixels; none by default.

    Attributes:
        resize: target size; None keeps the size.
        resize_mode: handling of another aspect ratio; None for FIT, or STRETCH for plain pixels.
        reencode: format of all images. With None, changed images keep their format, except that
            GIF and BMP become PNG.
        quality: quality of JPEGs, 1 to 100. None means `DEFAULT_QUALITY`, and leaves a JPEG as it
            is if `reencode` to JPEG is the only change.
        color: channels; None keeps them, or means RGB for plain pixels.
        pixels_dtype: type of plain pixels in the layout; empty for encoded images.
        turns: whether images are turned upright by their EXIF orientation.
        buckets: sizes; each image gets the one with the nearest aspect ratio; empty for
            none. The split of a sample says which (`for_split`).
        min_bucket_px: images with a shorter side below this are left out.
    """

    resize: Resize | None = None
    resize_mode: ResizeMode | None = None
    reencode: Encoding | None = None
    quality: int | None = None
    color: Color | None = None
    pixels_dtype: str = ""
    turns: bool = False
    buckets: tuple[Resize, ...] = ()
    min_bucket_px: int = 0

    def __post_init__(self) -> None:
        """Refuse options that do not fit together."""
        quality, mode = self.quality, self.resize_mode
        wrong = ""
        if quality is not None and not 1 <= quality <= 100:
            wrong = f"quality must be 1 to 100, got {quality}: give one such as 95"
        elif self.buckets and self.resize is not None:
            wrong = f"resize must come without buckets, got {self.resize}: leave one out"
        elif self.buckets and mode is ResizeMode.FIT:
            wrong = "resize_mode must give the bucket's size, got fit: give fill or stretch"
        elif self.min_bucket_px < 0:
            wrong = f"min_bucket must be at least 0, got {self.min_bucket_px}: correct it"
        elif self.min_bucket_px and not self.buckets:
            wrong = f"min_bucket must come with buckets, got {self.min_bucket_px}: add --buckets"
        elif mode is not None and not self.buckets and not (self.resize and self.resize.height_px):
            got = f"{mode.value} with resize {self.resize}"
            wrong = f"resize_mode must come with a box, got {got}: give --resize 512"
        elif quality is not None and self.reencode is Encoding.PNG:
            wrong = f"quality must come with JPEGs, got {quality} with reencode png: leave one out"
        elif quality is not None and not self.changes:
            wrong = f"quality must not be alone, got {quality}: add --reencode jpeg or --resize"
        elif self.pixels_dtype and (self.reencode or quality):
            wrong = "reencode and quality must come with image files, not with pixels: omit them"
        if wrong:
            raise ValueError(wrong)

    @property
    def changes(self) -> bool:
        """Whether an option other than `turns` can change an image."""
        keeps = self.color is None or self.color is Color.KEEP
        return bool(self.resize or self.buckets or self.reencode or self.pixels_dtype) or not keeps

    @property
    def takes_foreign(self) -> bool:
        """Whether WebP, TIFF and AVIF are accepted: only where every image is re-encoded."""
        return bool(self.reencode or self.pixels_dtype)

    @property
    def mode(self) -> ResizeMode:
        """Handling of another aspect ratio."""
        default = ResizeMode.STRETCH if self.pixels_dtype else ResizeMode.FIT
        return self.resize_mode or (ResizeMode.FILL if self.buckets else default)

    @property
    def channels(self) -> Color:
        """Channels of written images."""
        return self.color or (Color.RGB if self.pixels_dtype else Color.KEEP)

    def for_split(self, split: str) -> Self:
        """Return the conversion of a split's images: with buckets, to the bucket's size."""
        if not self.buckets:
            return self
        bucket = Resize(*bucket_size_px(split))
        return replace(self, resize=bucket, resize_mode=self.mode, buckets=(), min_bucket_px=0)

    def pixels_bytes(self, file_bytes: int) -> int:
        """Return the estimated size of plain pixels for a file; 0 for encoded images."""
        if not self.pixels_dtype:
            return 0
        pixels = _PIXELS_PER_FILE_BYTE * file_bytes
        if self.buckets:
            pixels = max(box.width_px * (box.height_px or 0) for box in self.buckets)
        if self.resize is not None:
            pixels = self.resize.width_px * (self.resize.height_px or self.resize.width_px)
        return 3 * pixels * PIXEL_DTYPES[self.pixels_dtype]

    def options(self) -> dict[str, str]:
        """Return the plan's options that decide bytes, with codec versions if pixels change."""
        codecs = codec_versions() if self.turns or self.changes else ""
        asked = {"orientation": f"upright, by {codecs}" if self.turns else "keep"}
        if not self.changes:
            return asked
        asked |= {"color": self.channels.value, "conversion_codecs": codecs}
        if self.resize is not None:
            in_box = self.resize.height_px is not None
            asked["resize"] = f"{self.resize} {self.mode.value}" if in_box else str(self.resize)
        if self.buckets:
            sizes = ",".join(map(str, self.buckets))
            asked |= {"buckets": f"{sizes} {self.mode.value}"}
        if self.min_bucket_px:
            asked["min_bucket"] = str(self.min_bucket_px)
        if self.pixels_dtype:
            return {**asked, "pixels": self.pixels_dtype}
        if self.reencode is not None:
            asked["reencode"] = self.reencode.value
        quality = "default" if self.quality is None else str(self.quality)
        return {**asked, "quality": f"{quality}, {DEFAULT_QUALITY} by default"}


NO_CONVERSION = Conversion()


def codec_versions() -> str:
    """Return the versions of all codecs that decide the bytes of converted images."""
    import PIL
    from PIL import features

    turbo, ng = features.version("libjpeg_turbo"), features.version("zlib_ng")
    jpeg = f"libjpeg-turbo {turbo}" if turbo else f"libjpeg {features.version('jpg')}"
    png = f"zlib-ng {ng}" if ng else f"zlib {features.version('zlib')}"
    others = [f"{name} {features.version(name)}" for name in _OTHER_CODECS]
    return ", ".join([f"Pillow {PIL.__version__}", jpeg, png, *others])
