"""The decode check: pixels, and TensorFlow's verdicts on the same files."""

import os
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, PngImagePlugin

from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.transforms.images.check_images import Check, check_image
from beam_tfrec.transforms.images.findings import BadImage
from beam_tfrec.transforms.images.jpeg import jpeg_for_decoder
from beam_tfrec.transforms.images.png import png_for_decoder
from tests.small_images import (
    EOI,
    GIF_FRAME,
    GRAY_PALETTE,
    GRAY_SCAN,
    HUFFMAN,
    QUANTIZATION,
    YCBCR,
    YCBCR_SCAN,
    bmp,
    chunk,
    frame,
    gif,
    gif_frame,
    gray_with,
    idat,
    ihdr,
    jpeg,
    png,
    segment,
    verdict,
)
from tests.turned_images import odd_files, saved

PIXELS = zlib.compress(bytes(6))


def test_a_jpeg_goes_to_the_decoder_without_metadata() -> None:
    jfif, adobe = segment(0xE0, b"JFIF\0"), segment(0xEE, b"Adobe")
    exif, comment = segment(0xE1, b"Exif\0"), segment(0xFE, b"hello")
    data = gray_with(jfif, exif, b"\xff\xd0\xff", adobe, comment, end=EOI + b"trailing")
    assert jpeg_for_decoder(data) == gray_with(jfif, adobe)


@pytest.mark.parametrize(
    ("pixels", "detail"),
    [
        (zlib.compress(bytes(5)), "compressed pixels end at byte 5 of 6"),
        (PIXELS[:-4], "compressed pixels end at byte 6 of 6"),
        (b"hello", "compressed pixels break off at byte 0"),
        (zlib.compress(bytes(50_000_000)), "compressed pixels go on after the 6 bytes needed"),
    ],
)
def test_damaged_pixels_of_a_png_are_refused(pixels: bytes, detail: str) -> None:
    data = png(ihdr(), chunk(b"IDAT", pixels))
    assert isinstance(verdict(data), ImageInfo)
    assert verdict(data, Check.DECODE) == f"DAMAGED: {detail}"


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16]))
def test_interlaced_rows_need_exact_bytes(width_px: int, height_px: int, bits: int) -> None:
    passes = "1646264677777777565656567777777736463646777777775656565677777777"
    pixels: dict[tuple[str, int], int] = {}
    for y in range(height_px):
        for x in range(width_px):
            row = passes[8 * (y % 8) + x % 8], y
            pixels[row] = pixels.get(row, 0) + 1
    size = sum(1 + (count * bits + 7) // 8 for count in pixels.values())
    head = ihdr(width_px, height_px, bits, interlace=1)
    png_for_decoder(png(head, idat(bytes(size))))
    with pytest.raises(BadImage, match=f"end at byte {size - 1} of {size}"):
        png_for_decoder(png(head, idat(bytes(size - 1))))


Shape = Callable[[bytes], tuple[int, ...] | None]
STRICTER_THAN_TENSORFLOW = {
    # Formats that a data set must not hold.
    "anim_frame1.webp",
    "flower.webp",
    "hopper.webp",
    "transparent.webp",
    "decompression_bomb_extents.gif",  # Pillow calls it a bomb
    "unknown_compression_method.png",  # TensorFlow ignores checksums of metadata
}


@pytest.fixture(scope="module")
def tensorflow_shape() -> Shape:
    """Return the shape of a decoded image, or None if TensorFlow refuses it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")

    def shape(data: bytes) -> tuple[int, ...] | None:
        try:
            return tuple(tensorflow.io.decode_image(data).shape)
        except tensorflow.errors.InvalidArgumentError:
            return None

    return shape


def decodes(data: bytes, tensorflow_shape: Shape) -> bool:
    """Return whether the decode check accepts a file; if so, TensorFlow must read the same."""
    found = verdict(data, Check.DECODE)
    if isinstance(found, str):
        return False
    shape = tensorflow_shape(data)
    assert shape is not None and shape[-3:] == (*found.size_px[::-1], found.channels), data
    return True


def test_verdicts_equal_tensorflow_but_for_listed_files(tensorflow_shape: Shape) -> None:
    files, damaged, stricter = odd_files(), set(), set()
    for name, data in files.items():
        accepted, shape = isinstance(verdict(data), ImageInfo), tensorflow_shape(data)
        if not accepted and shape is not None:
            stricter.add(name)
        if accepted and shape is None:
            damaged.add(name)
        if not decodes(data, tensorflow_shape) and accepted and shape is not None:
            assert name == "bad_huffman.jpg"  # TensorFlow fills up with gray or noise
    assert damaged == {"corrupt.jpg"}  # its structure is valid
    assert stricter == STRICTER_THAN_TENSORFLOW


def noise(mode: str = "RGB", size: tuple[int, int] = (33, 21)) -> Image.Image:
    pixels = random.Random(0).randbytes(3 * size[0] * size[1])
    return Image.frombytes("RGB", size, pixels).convert(mode)


# Small files of every kind, for tests that try every byte.
WHOLE = {
    "jpeg": saved(noise(), "JPEG"),
    "jpeg by hand": jpeg(),
    "progressive": saved(noise(), "JPEG", progressive=True),
    "cmyk": saved(noise("CMYK"), "JPEG", quality=10),
    "png by hand": png(),
    "palette png": saved(noise("P", (9, 7)), "PNG"),
    "gif by hand": gif(GIF_FRAME, gif_frame([1, 1, 1, 1])),
    "gray bmp": bmp(bits=8, palette=GRAY_PALETTE),
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_truncation_is_caught(name: str) -> None:
    data = WHOLE[name]
    assert check_image(data, Check.DECODE) == check_image(data)
    for cut in range(1, len(data)):
        for check in Check:
            assert str(verdict(data[:cut], check)).startswith("TRUNCATED"), (cut, check)


def blank(mode: str, kind: str, **save: Any) -> bytes:
    return saved(Image.new(mode, (5, 4)), kind, **save)


COLOURS = chunk(b"PLTE", bytes(9))
DECODED = [
    *(blank(mode, "JPEG") for mode in ("RGB", "L", "CMYK")),
    *(blank(mode, "PNG") for mode in ("RGB", "L", "1", "I;16", "LA", "RGBA", "P")),
    *(blank(mode, "PNG", transparency=0) for mode in ("P", "L")),
    blank("RGB", "PNG", transparency=(0, 0, 0)),
    blank("P", "GIF"),
    *(blank(mode, "BMP") for mode in ("RGB", "L", "RGBA")),
    # libpng ignores these transparent entries of a palette.
    png(ihdr(colour_type=3), COLOURS, idat(), chunk(b"tRNS", b"\0")),  # after the pixels
    png(ihdr(colour_type=3), chunk(b"tRNS", b"\0"), COLOURS, idat()),  # before the palette
    png(ihdr(colour_type=3, bits=1), COLOURS, chunk(b"tRNS", bytes(3)), idat()),  # too many
    # Rare chroma subsamplings: 4:4:1, and one that TurboJPEG does not know.
    jpeg(QUANTIZATION, frame(8, 32, b"\1\x14" + YCBCR[2:]), HUFFMAN, YCBCR_SCAN, data=b"\0\x0f"),
    jpeg(QUANTIZATION, frame(32, 16, b"\1\x42" + YCBCR[2:]), HUFFMAN, YCBCR_SCAN, data=b"\0\0\x0f"),
    # The transparent colour needs no entry in the table, ...
    gif(b"!\xf9\4\1\0\0\3\0", gif_frame([0, 1, 3, 0])),
    # ... and is ignored where it does not fit.
    png(ihdr(1, 1, 8, 0), chunk(b"tRNS", b"\1"), idat(bytes(2))),
    png(ihdr(1, 1, 8, 2), chunk(b"tRNS", b"\1"), idat(bytes(4))),
    # Pillow refuses such metadata.
    *(png(ihdr(), chunk(name, b"\0"), idat()) for name in (b"gAMA", b"pHYs", b"iCCP", b"acTL")),
]


def test_channels_are_those_of_tensorflow(tensorflow_shape: Shape) -> None:
    for data in DECODED:
        assert decodes(data, tensorflow_shape), data


OUT_OF_DATA = "ValueError: Corrupt JPEG data: premature end of data segment"
THREE_CODES_OF_ONE_BIT = segment(0xC4, b"\0\3" + bytes(18)) + HUFFMAN[21:]
BAD_TABLE = jpeg(QUANTIZATION, frame(), THREE_CODES_OF_ONE_BIT, GRAY_SCAN)
FIRST_BLOCK = WHOLE["jpeg"].index(b"\xff\xda") + 14


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (BAD_TABLE, "ValueError: Bogus Huffman table definition"),
        (WHOLE["jpeg"][:FIRST_BLOCK] + EOI, OUT_OF_DATA),
        (WHOLE["jpeg"][:-400] + EOI + WHOLE["jpeg"][-400:], OUT_OF_DATA),
        (jpeg(end=GRAY_SCAN + EOI), "second scan at byte 149, the first held all components"),
        (
            png(ihdr(), idat(b"\x09\0\0\0\0\0")),  # filter type 9
            "OSError: unrecognized data stream contents when reading image file",
        ),
        (gif(gif_frame([0, 1, 1])), "ValueError: not enough image data"),
        (gif(gif_frame([0, 1, 2, 0])), "colour 2 of 2 in a frame"),
        (gif(GIF_FRAME, gif_frame([3], 1, 1)), "colour 3 of 2 in a frame"),
    ],
)
def test_damaged_pixels_are_found(data: bytes, detail: str, tensorflow_shape: Shape) -> None:
    assert isinstance(verdict(data), ImageInfo)
    assert verdict(data, Check.DECODE) == f"DAMAGED: {detail}"
    if detail != OUT_OF_DATA:  # TensorFlow fills up with gray
        assert tensorflow_shape(data) is None


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        *(("RGB", {"subsampling": kind}) for kind in ("4:4:4", "4:2:2", "4:2:0")),
        *(("RGB", {option: 1}) for option in ("keep_rgb", "progressive", "restart_marker_rows")),
        ("L", {}),
        ("CMYK", {}),
    ],
)
def test_missing_pixel_data_is_found(mode: str, options: dict[str, Any]) -> None:
    for picture in (Image.new(mode, (33, 21), "gray"), noise(mode)):  # libjpeg goes on with gray
        data = saved(picture, "JPEG", **options)
        assert check_image(data, Check.DECODE) == check_image(data)
    fault = str(verdict(data[:-42] + EOI, Check.DECODE))
    assert fault.startswith("DAMAGED") and "Corrupt JPEG data" in fault


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError(), OSError(24, "Too many open files")]
)
def test_errors_of_the_machine_are_not_faults_of_the_image(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(type(error)):
        check_image(png(), Check.DECODE)


def test_load_truncated_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert isinstance(check_image(png()), ImageInfo)
    with pytest.raises(ValueError, match="LOAD_TRUNCATED_IMAGES must be False"):
        check_image(png(), Check.DECODE)
