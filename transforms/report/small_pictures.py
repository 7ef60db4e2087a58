"""Make small pictures of image files and of tensors of pixels in records.

Records are not trusted. The structure of a file is checked before Pillow reads it, and its size is
limited before pixels are decoded. Pictures are encoded again, without EXIF, profile or any other
byte of the original. They are shown as stored, not turned by EXIF, since boxes refer to stored
pixels.
"""

import contextlib
import io
import math
import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from beam_tfrec.schemas.tensors import Tensor, is_picture, read_tensor, tensor_values
from beam_tfrec.transforms.images.check_images import check_image, decoding
from beam_tfrec.transforms.images.convert_images import decode_image, over_white, upper_bits
from beam_tfrec.transforms.images.findings import require_size, unreadable

SIDE_PX = 320
"""Longest side of a shown picture; smaller pictures keep their size."""

MAX_PIXELS = 1 << 26
"""Largest picture that is decoded; a larger one becomes a note."""

_LARGE_PIXELS = 1 << 24
_large = threading.Lock()  # one large picture is decoded at a time: 64 Mpx take up to 0.5 GB
_QUALITIES = (75, 55, 35)


class Small(NamedTuple):
    """A picture, scaled down.

    Attributes:
        image: picture in mode `L` or `RGB`.
        stored_size_px: width and height in the record.
    """

    image: Image.Image
    stored_size_px: tuple[int, int]


def small_picture(value: bytes) -> Small:
    """Return the picture of an image file, or of a serialized tensor of pixels.

    Raises:
        BadImage: The bytes are neither, damaged, or too large.
        MemoryError, RecursionError, OSError: The machine failed, not the picture.
    """
    tensor = read_tensor(value)
    if tensor is not None:
        return small_tensor(tensor)
    info = check_image(value, takes_foreign=True)
    require_size(*info.size_px, MAX_PIXELS)
    least_px = small_size(info.size_px)
    is_large = info.width_px * info.height_px > _LARGE_PIXELS
    with _large if is_large else contextlib.nullcontext(), decoding():
        image = upper_bits(decode_image(value, info, least_px).image)
        return Small(_scaled(over_white(image), least_px), info.size_px)


def small_tensor(tensor: Tensor) -> Small:
    """Return the picture of a tensor of shape [height, width] or [height, width, 1 to 4].

    Types are mapped to black and white: uint8 as it is, uint16 by its whole range, and floats by
    [0, 1] if all lie within. Other values are stretched from the smallest to the largest.

    Raises:
        BadImage: The shape is not a picture's, or too large.
    """
    if not is_picture(tensor):
        raise unreadable(f"a tensor of {tensor.dtype} {list(tensor.shape)}, which is not a picture")
    height, width = tensor.shape[:2]
    require_size(width, height, MAX_PIXELS)
    planes = _levels(tensor_values(tensor), tensor.dtype).reshape(height, width, -1)
    image = Image.fromarray(planes[:, :, 0] if planes.shape[2] == 1 else planes)
    return Small(_scaled(over_white(image), small_size((width, height))), (width, height))


def small_size(size_px: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a picture, scaled so that no side is longer than `SIDE_PX`.

    >>> small_size((640, 480)), small_size((30, 20)), small_size((10_000, 1))
    ((320, 240), (30, 20), (320, 1))
    """
    scale = min(1.0, SIDE_PX / max(size_px))
    width, height = (max(1, int(side * scale)) for side in size_px)
    return width, height


def encode_jpeg(image: Image.Image, most_bytes: int) -> tuple[bytes, tuple[int, int]]:
    """Return a picture as a JPEG of at most `most_bytes`, and its size in px.

    The quality, and then the size, is reduced until it fits.
    """
    while True:
        for quality in _QUALITIES:
            out = io.BytesIO()
            image.save(out, "JPEG", quality=quality)
            if out.tell() <= most_bytes or max(image.size) == 1:
                return out.getvalue(), image.size
        image = image.resize((max(1, image.width // 2), max(1, image.height // 2)))


def _scaled(image: Image.Image, size_px: tuple[int, int]) -> Image.Image:
    """Resize a picture, and drop all metadata."""
    image.info.clear()  # else Pillow would write comments and profiles
    return image.resize(size_px, Image.Resampling.BOX, reducing_gap=2.0)


def _levels(values: NDArray, dtype: str) -> NDArray[np.uint8]:
    if dtype == "uint8":
        return values.astype(np.uint8)
    numbers = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(numbers.min()), float(numbers.max())
    if dtype == "uint16":
        low, high = 0.0, 65535.0
    elif "float" in dtype and low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    span = high - low
    if not math.isfinite(span) or span == 0.0:
        return np.zeros(numbers.shape, np.uint8)
    return ((numbers - low) * (255 / span)).round().astype(np.uint8)
