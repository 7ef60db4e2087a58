"""Encode a picture as JPEG, beside other threads.

Pillow holds the interpreter's lock while it encodes to an object of Python, and gives it up while
it encodes to a file of the system. So there is one, in memory and without a name.
"""

import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

_END_OF_IMAGE = b"\xff\xd9"


def encode_jpeg(image: "Image.Image", **options: Any) -> bytes:
    """Return a JPEG of a picture, with what Pillow's writer is asked for; the same bytes anywhere.

    Raises:
        MemoryError: where the system has no room for the file.
    """
    if sys.platform != "linux":
        out = io.BytesIO()
        image.save(out, "JPEG", **options)
        return out.getvalue()
    with open(os.memfd_create("jpeg"), "w+b", buffering=0) as file:
        image.save(file, "JPEG", **options)
        file.seek(0)
        encoded = file.readall()
    if not encoded.endswith(_END_OF_IMAGE):  # Pillow does not look at what a write leaves out
        raise MemoryError(f"{len(encoded)} bytes of a JPEG could be kept, not the rest")
    return encoded
