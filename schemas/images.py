"""Facts about an image file that its header and metadata give."""

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:  # few layouts need numpy
    from numpy.typing import NDArray

Crop = tuple[float, float, float, float]
"""What is cut out of a picture: `xmin, ymin, xmax, ymax` in [0, 1] of its width and height."""


class ImageInfo(msgspec.Struct, frozen=True, gc=False):
    """What an image file's header says, by its content.

    Attributes:
        format: `jpeg`, `png`, `gif` or `bmp`, never from the extension; `raw` where it is none.
        width_px: width as stored, before any EXIF rotation; at least 1, 0 where it is none.
        height_px: height as stored, likewise.
        orientation: EXIF orientation (1..8), 1 when absent or invalid.
        traits: sorted names of what is unusual, keys of `check_images.TRAITS`.
        channels: samples a pixel (1..4) as `tf.io.decode_image(channels=0)` gives them.
    """

    format: str
    width_px: int
    height_px: int
    orientation: int = 1
    traits: tuple[str, ...] = ()
    channels: int = 3

    @property
    def size_px(self) -> tuple[int, int]:
        """Width and height as stored."""
        return self.width_px, self.height_px


RAW = ImageInfo("raw", 0, 0)
"""What is known of bytes that are no image file, such as an item of an array."""


class Window(NamedTuple):
    """What a converted image shows of the picture that it was made of.

    Attributes:
        whole_size_px: width and height of that picture, once it was turned.
        crop: the part that is shown; None for all of it.
    """

    whole_size_px: tuple[int, int]
    crop: Crop | None = None


class EncodedImage(msgspec.Struct, frozen=True, gc=False):
    """An image that was read and checked, as it is to be written.

    Attributes:
        name: path relative to its root.
        data: the file's bytes, or those of the picture turned upright or converted.
        sha256: of them, lower-case hex.
        info: what their header says.
        turned: EXIF orientation by which pixels were turned; 1 where the bytes are the file's own.
        source_sha256: of the file, where the bytes are not its own; else empty.
        pixels: height x width x channels of `Layout.pixels_dtype`, C-contiguous, where the layout
            asks for them; `info` then has their size, and `data` is the file's own.
        window: what a converted image shows of its file's; None where it was not converted.
    """

    name: str
    data: bytes
    sha256: str
    info: ImageInfo
    turned: int = 1
    source_sha256: str = ""
    pixels: "NDArray | None" = None
    window: Window | None = None

    @property
    def whole_size_px(self) -> tuple[int, int]:
        """Width and height, turned but neither resized nor cropped."""
        return self.info.size_px if self.window is None else self.window.whole_size_px
