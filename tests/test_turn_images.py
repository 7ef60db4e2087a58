import hashlib
import io
import struct

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin, features

from schemas.fields import EncodedImage, ImageInfo
from schemas.geometry.boxes import turn_array
from tests.small_images import chunk, entry, exif, idat, ihdr, png, segment
from tests.turned_images import (
    UPRIGHT,
    as_stored,
    as_viewed,
    encoded,
    every_pixel_another,
    jpeg_of,
    oriented,
    png_of,
)
from transforms.images.conversion import DEFAULT_QUALITY, NO_CONVERSION, codec_versions
from transforms.images.convert_images import convert_image
from transforms.images.findings import BadImage

TURNING = range(2, 9)


def upright(data: bytes) -> bytes:
    return convert_image(encoded(data), UPRIGHT).data


def psnr(pixels: np.ndarray, others: np.ndarray) -> float:
    error = np.square(pixels.astype(float) - others).mean()
    return 10 * np.log10(255**2 / error) if error else np.inf


@pytest.mark.parametrize("orientation", TURNING)
def test_a_turned_image_says_what_it_was_made_of(orientation: int) -> None:
    image = encoded(oriented(png_of(every_pixel_another(5, 3)), orientation), "folder/a.png")
    turned = convert_image(image, UPRIGHT)
    size = (3, 5) if orientation >= 5 else (5, 3)
    assert turned == EncodedImage(
        name="folder/a.png",
        data=turned.data,
        sha256=hashlib.sha256(turned.data).hexdigest(),
        info=ImageInfo("png", *size, 1, ("gray",), 1),
        turned=orientation,
        source_sha256=image.sha256,
    )
    np.testing.assert_array_equal(as_stored(turned.data), as_viewed(image.data))


# Bits and colour type of a PNG, its samples a pixel and chunks before the pixels.
KINDS = {
    "gray, 1 bit": (1, 0, 1, b""),
    "gray, 16 bits": (16, 0, 1, b""),
    "colour": (8, 2, 3, b""),
    "palette, 1 bit": (1, 3, 1, chunk(b"PLTE", bytes(range(6)))),
    "palette, 8 bits": (8, 3, 1, chunk(b"PLTE", bytes(i % 251 for i in range(768)))),
    "with transparency": (2, 3, 1, chunk(b"PLTE", bytes(range(12))) + chunk(b"tRNS", b"\x10\x80")),
    "gray and alpha": (8, 4, 2, b""),
    "colour and alpha": (8, 6, 4, b""),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_png_is_turned_without_loss(kind: tuple[int, int, int, bytes]) -> None:
    """The bits of 5 x 3 pixels are noise."""
    import tensorflow as tf

    bits, colour_type, samples, chunks = kind
    row_bytes = -(-5 * bits * samples // 8)
    noise = np.random.default_rng(0).bytes(3 * row_bytes)
    raw = b"".join(b"\0" + noise[row_bytes * row :][:row_bytes] for row in range(3))
    data = png(ihdr(5, 3, bits, colour_type), chunks, idat(raw))
    pixels = tf.io.decode_png(data, dtype=tf.uint16).numpy()  # of 8 bits and fewer too
    for orientation in TURNING:
        turned = upright(oriented(data, orientation))
        found = tf.io.decode_png(turned, dtype=tf.uint16).numpy()
        np.testing.assert_array_equal(found, turn_array(pixels, orientation))


def test_exif_stays_but_for_the_orientation() -> None:
    copyright_by = entry(0x8298, 2, 4, b"Ann\0")
    block = exif(entry(0x0112, 3, 1, b"\0\6") + copyright_by)
    upright_block = exif(entry(0x0112, 3, 1, b"\0\1") + copyright_by)
    for prefix in (b"", b"Exif\0\0"):  # some writers of PNG copy JPEG's
        turned = upright(png(ihdr(), chunk(b"eXIf", prefix + block), idat()))
        assert chunk(b"eXIf", upright_block) in turned
    photo = jpeg_of(every_pixel_another(5, 3))
    turned = upright(photo[:2] + segment(0xE1, b"Exif\0\0" + block) + photo[2:])
    assert segment(0xE1, b"Exif\0\0" + upright_block) in turned


# Chroma subsampling of the file, as Pillow numbers it, and of what is turned by each orientation.
@pytest.mark.parametrize(
    ("subsampling", "mirrored", "swapped"),
    [("4:4:4", 0, 0), ("4:2:2", 1, 0), ("4:2:0", 2, 2)],  # Pillow writes no 4:4:0
)
def test_jpeg_is_encoded_at_a_stated_quality_with_its_subsampling(
    subsampling: str, mirrored: int, swapped: int
) -> None:
    x, y = np.meshgrid(np.linspace(0, 255, 50), np.linspace(0, 255, 31))
    pixels = np.stack([x, y, 255 - x], axis=-1).astype(np.uint8)
    at_quality = Image.open(io.BytesIO(jpeg_of(pixels, quality=DEFAULT_QUALITY)))
    assert DEFAULT_QUALITY == 95
    for orientation in TURNING:
        data = oriented(jpeg_of(pixels, subsampling=subsampling, quality=80), orientation)
        turned = upright(data)
        assert psnr(as_stored(turned), as_viewed(data)) > 36
        with Image.open(io.BytesIO(turned)) as image:
            assert isinstance(image, JpegImagePlugin.JpegImageFile)
            found = JpegImagePlugin.get_sampling(image)
            assert found == (swapped if orientation >= 5 else mirrored)
            assert image.quantization == at_quality.quantization  # type: ignore[attr-defined]


def test_an_image_that_a_turn_would_damage_is_refused() -> None:
    wide = [png(ihdr(1, 1, 16, colour_type), idat(bytes(9))) for colour_type in (2, 4, 6)]
    wide.append(png(ihdr(1, 1, 16), chunk(b"tRNS", b"\1\2"), idat(bytes(3))))
    animated = png(ihdr(), chunk(b"acTL", struct.pack(">II", 2, 0)), idat())
    for data in (*wide, animated):
        with pytest.raises(BadImage) as caught:
            upright(oriented(data, 3))
        assert caught.value.code == "E-IMG-TYPE"
        assert caught.value.detail.startswith("a turn would lose frames, or bits")


def test_codecs_are_named_where_they_decide_bytes() -> None:
    versions = codec_versions()
    names = ("libjpeg_turbo", "zlib_ng", "webp", "avif", "libtiff", "littlecms2")
    for version in (Image.__version__, *map(features.version, names)):
        assert f" {version}" in versions
    assert NO_CONVERSION.options() == {"orientation": "keep"}
    assert UPRIGHT.options() == {"orientation": f"upright, by {versions}"}
