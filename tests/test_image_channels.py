"""How many channels an image has, against what TensorFlow decodes it to."""

import io
from typing import Any

import pytest
from PIL import Image

from schemas.fields import ImageInfo
from transforms.images.check_images import check_image

# Pillow's mode, the format, how it is saved.
IMAGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "JPEG": ("RGB", "JPEG", {}),
    "gray JPEG": ("L", "JPEG", {}),
    "CMYK JPEG": ("CMYK", "JPEG", {}),
    "progressive JPEG": ("RGB", "JPEG", {"progressive": True}),
    "PNG": ("RGB", "PNG", {}),
    "gray PNG": ("L", "PNG", {}),
    "PNG of 1 bit": ("1", "PNG", {}),
    "PNG of 16 bits": ("I;16", "PNG", {}),
    "gray PNG with alpha": ("LA", "PNG", {}),
    "PNG with alpha": ("RGBA", "PNG", {}),
    "palette": ("P", "PNG", {}),
    "palette with a transparent entry": ("P", "PNG", {"transparency": 0}),
    "gray PNG with a transparent value": ("L", "PNG", {"transparency": 0}),
    "PNG with a transparent colour": ("RGB", "PNG", {"transparency": (0, 0, 0)}),
    "GIF": ("P", "GIF", {}),
    "BMP": ("RGB", "BMP", {}),
    "gray BMP": ("L", "BMP", {}),
    "BMP with alpha": ("RGBA", "BMP", {}),
}


@pytest.mark.parametrize(("mode", "file_format", "save"), IMAGES.values(), ids=IMAGES)
def test_channels_are_those_that_tensorflow_decodes(
    mode: str, file_format: str, save: dict[str, Any]
) -> None:
    tf = pytest.importorskip("tensorflow")
    out = io.BytesIO()
    Image.new(mode, (5, 4)).save(out, file_format, **save)
    info = check_image(out.getvalue())
    assert isinstance(info, ImageInfo)
    decoded = tf.io.decode_image(out.getvalue(), channels=0)
    assert decoded.shape[-3:] == (4, 5, info.channels)
