"""Encode a picture as JPEG, while other threads do the same.

Pillow holds the interpreter's lock while it encodes to an object of Python, and gives it up while
it encodes to a file of the system. So there is one, in memory and without a name.
"""

import io
import os
from typing import IO, TYPE_CHECKING, Any

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
