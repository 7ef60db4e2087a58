"""Images with an EXIF orientation, and their pixels as Pillow reads them."""

import hashlib
import io
import struct
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from beam_tfrec.schemas.fields import EncodedImage
from beam_tfrec.transforms.images.check_images import check_image
from beam_tfrec.transforms.images.conversion import Conversion
from tests.conftest import TEST_DATA
from tests.small_images import PNG_SIGNATURE, chunk, entry, exif, segment

UPRIGHT = Conversion(turns=True)
_HEAD_END = len(PNG_SIGNATURE) + 25


def oriented(data: bytes, orientation: int) -> bytes:
    """Return a JPEG or PNG with an EXIF block put in front of its other parts."""
    block = exif(entry(0x0112, 3, 1, struct.pack(">H", orientation)), values=bytes(4))
    if data.startswith(PNG_SIGNATURE):
        return data[:_HEAD_END] + chunk(b"eXIf", block) + data[_HEAD_END:]
    return data[:2] + segment(0xE1, b"Exif\0\0" + block) + data[2:]


def encoded(data: bytes, name: str = "a.jpg") -> EncodedImage:
    """Return a file as `check_all` does."""
    info = check_image(data, takes_foreign=True)
    return EncodedImage(name, data, hashlib.sha256(data).hexdigest(), info)


def saved(image: Image.Image | np.ndarray, file_format: str, **save: Any) -> bytes:
    out, image = io.BytesIO(), Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(out, file_format, **save)
    return out.getvalue()


def png_of(pixels: np.ndarray) -> bytes:
    return saved(pixels, "PNG")


def jpeg_of(pixels: np.ndarray, **save: Any) -> bytes:
    return saved(pixels, "JPEG", **save)


def as_viewed(data: bytes) -> np.ndarray:
    """Return a file's pixels as Pillow shows them."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image))


def as_stored(data: bytes) -> np.ndarray:
    """Return a file's pixels as they are stored, whatever its EXIF says."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def every_pixel_another(width_px: int, height_px: int) -> np.ndarray:
    """Return gray pixels that all differ."""
    return np.arange(width_px * height_px, dtype=np.uint8).reshape(height_px, width_px)


def odd_files() -> dict[str, bytes]:
    """Return the odd images of `tests/data` by name."""
    paths = (TEST_DATA / "odd").iterdir()
    return {path.name: path.read_bytes() for path in paths if path.suffix != ".txt"}
