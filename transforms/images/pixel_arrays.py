"""Plain pixels as arrays, resampled in floats, of the types that layouts ask for."""

from typing import TYPE_CHECKING

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
