"""Make small pictures of what records hold: image files of any kind, and tensors of pixels.

What a record holds is a stranger's. The structure of a file is looked at before Pillow gets it, its
size is limited before a pixel is decoded, and what comes out is encoded anew: without EXIF, profile
or any other byte of the original. Pixels are shown as they are stored, not turned by EXIF, since
that is where boxes are.
"""

import contextlib
import io
import math
import threading
from typing import TYPE_CHECKING, NamedTuple

from beam_tfrec.schemas.tensors import Tensor, is_picture, read_tensor, tensor_values
from beam_tfrec.transforms.images.check_images import check_image, decoding
from beam_tfrec.transforms.images.convert_images import decode_image, over_white, upper_bits
from beam_tfrec.transforms.images.findings import require_size, unreadable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

SIDE_PX = 320
"""The longest side of a picture that is shown; smaller ones stay as they are."""

MAX_PIXELS = 1 << 26
"""Of a picture that is decoded; of a larger one a note tells."""

_LARGE_PIXELS = 1 << 24
_large = threading.Lock()  # one large picture is decoded at a time: 64 Mpx take up to 0.5 GB
_QUALITIES = (75, 55, 35)


class Small(NamedTuple):
    """A picture, scaled down.

    Attributes:
        image: of mode `L` or `RGB`.
        stored_size_px: width and height that it has in the record.
    """

    image: "Image.Image"
    stored_size_px: tuple[int, int]


def small_picture(value: bytes) -> Small:
    """Return the picture of an image file's bytes, or of a tensor of pixels.

    Raises:
        BadImage: where it is neither, damaged or too large.
        MemoryError, RecursionError, OSError: of the machine, not of the picture.
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
    """Return the picture that a tensor is: height, width and 1 to 4 channels.

    Floats are parts of white where all lie in [0, 1]; other numbers than bytes are stretched from
    their least to their largest, those of 16 bits from 0.

    Raises:
        BadImage: where its shape is no picture's, or too large.
    """
    if not is_picture(tensor):
        raise unreadable(f"a tensor of {tensor.dtype} {list(tensor.shape)}, which is no picture")
    height, width = tensor.shape[:2]
    require_size(width, height, MAX_PIXELS)
    from PIL import Image

    planes = _levels(tensor_values(tensor), tensor.dtype).reshape(height, width, -1)
    image = Image.fromarray(planes[:, :, 0] if planes.shape[2] == 1 else planes)
    return Small(_scaled(over_white(image), small_size((width, height))), (width, height))


def small_size(size_px: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a picture whose longest side is at most `SIDE_PX`.

    >>> small_size((640, 480)), small_size((30, 20)), small_size((10_000, 1))
    ((320, 240), (30, 20), (320, 1))
    """
    scale = min(1.0, SIDE_PX / max(size_px))
    width, height = (max(1, int(side * scale)) for side in size_px)
    return width, height


def encode_jpeg(image: "Image.Image", most_bytes: int) -> tuple[bytes, tuple[int, int]]:
    """Return a picture as a JPEG of at most so many bytes, and its size.

    Of lesser quality, and then of half the size, where it would be larger.
    """
    while True:
        for quality in _QUALITIES:
            out = io.BytesIO()
            image.save(out, "JPEG", quality=quality)
            if out.tell() <= most_bytes or max(image.size) == 1:
                return out.getvalue(), image.size
        image = image.resize((max(1, image.width // 2), max(1, image.height // 2)))


def _scaled(image: "Image.Image", size_px: tuple[int, int]) -> "Image.Image":
    """Return a picture of this size, and nothing else of what its file held."""
    from PIL import Image

    image.info.clear()  # Pillow would write comments and profiles again
    return image.resize(size_px, Image.Resampling.BOX, reducing_gap=2.0)


def _levels(values: "NDArray", dtype: str) -> "NDArray[np.uint8]":
    import numpy as np

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
