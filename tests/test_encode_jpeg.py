"""JPEGs are encoded beside other threads, to the bytes that Pillow gives."""

import errno
import io
import os
import sys

import numpy as np
import pytest
from PIL import Image

from transforms.images import convert_images as module
from transforms.images.convert_images import encode_jpeg


def picture(mode: str, size_px: tuple[int, int]) -> Image.Image:
    width_px, height_px = size_px
    shape = (height_px, width_px) + ((len(mode),) if len(mode) > 1 else ())
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return Image.fromarray(pixels, mode)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("size_px", [(1, 1), (17, 9), (640, 480)])
@pytest.mark.parametrize("options", [{"quality": 90}, {"quality": 95, "subsampling": 0}], ids=str)
def test_bytes_are_those_of_pillow(mode: str, size_px: tuple[int, int], options: dict) -> None:
    image, out = picture(mode, size_px), io.BytesIO()
    image.save(out, "JPEG", **options)

    assert encode_jpeg(image, **options) == out.getvalue()


def test_elsewhere_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    image = picture("RGB", (64, 48))
    here = encode_jpeg(image, quality=80)
    monkeypatch.delattr(os, "memfd_create", raising=False)

    assert encode_jpeg(image, quality=80) == here


def test_where_the_system_refuses_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    image = picture("RGB", (64, 48))
    here = encode_jpeg(image, quality=80)

    def refuse(name: str) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "memfd_create", refuse, raising=False)

    assert encode_jpeg(image, quality=80) == here


@pytest.mark.skipif(sys.platform != "linux", reason="files are counted in /proc")
def test_no_file_stays_open_after_a_fault() -> None:
    open_files = len(os.listdir("/proc/self/fd"))

    with pytest.raises(OSError, match="cannot write mode RGBA as JPEG"):
        encode_jpeg(picture("RGBA", (8, 8)), quality=80)

    assert len(os.listdir("/proc/self/fd")) == open_files


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory are Linux's")
def test_a_jpeg_that_has_no_room_is_no_jpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_END_OF_IMAGE", b"never an end")

    with pytest.raises(MemoryError, match="bytes of a JPEG could be kept, not the rest"):
        encode_jpeg(picture("L", (8, 8)), quality=80)
