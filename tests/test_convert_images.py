"""Converted images against TensorFlow's decoders and resize, and against formulas."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from msgspec.structs import replace
from PIL import Image, ImageCms, JpegImagePlugin

from beam_tfrec.schemas.fields import EncodedImage, ImageInfo
from beam_tfrec.schemas.geometry.boxes import Resize, ResizeMode, turn_array
from beam_tfrec.schemas.layouts import PIXEL_DTYPES, Unfit
from beam_tfrec.schemas.samples import Blob, Sample
from beam_tfrec.transforms.build_records import convert_all
from beam_tfrec.transforms.images.conversion import DEFAULT_QUALITY, Color, Conversion, Encoding
from beam_tfrec.transforms.images.convert_images import convert_image
from beam_tfrec.transforms.images.findings import BadImage
from tests import small_images as small
from tests.conftest import thorough
from tests.small_pictures import or_unfit
from tests.turned_images import (
    UPRIGHT,
    as_stored,
    as_viewed,
    encoded,
    every_pixel_another,
    jpeg_of,
    odd_files,
    oriented,
    png_of,
    saved,
)

PLAIN = Conversion(pixels_dtype="uint8", color=Color.KEEP)
TO_JPEG, TO_PNG = Conversion(reencode=Encoding.JPEG), Conversion(reencode=Encoding.PNG)
TO_RGB, TO_GRAY = Conversion(color=Color.RGB), Conversion(color=Color.GRAY)
NOISE = np.random.default_rng(6).integers(0, 256, (24, 40, 3), np.uint8)
SMOOTH = np.linspace(0, 255, 64 * 48 * 3).reshape(48, 64, 3).astype(np.uint8)


def converted(data: bytes, conversion: Conversion) -> EncodedImage:
    return convert_image(encoded(data), conversion)


def pixels(data: bytes, conversion: Conversion = PLAIN) -> np.ndarray:
    found = converted(data, conversion).pixels
    assert found is not None and found.flags["C_CONTIGUOUS"]
    return found


def repainted(data: bytes, conversion: Conversion) -> np.ndarray:
    return as_stored(converted(data, conversion).data)


def refused(image: EncodedImage, conversion: Conversion) -> tuple[str, str]:
    with pytest.raises(BadImage) as caught:
        convert_image(image, conversion)
    return caught.value.code, caught.value.detail


def difference(found: np.ndarray, expected: Any) -> float:
    assert found.shape == np.shape(expected)
    return float(np.abs(found.astype(float) - expected).max())


def decoded_by_tensorflow(data: bytes, file_format: str, channels: int) -> np.ndarray:
    if file_format == "jpeg":
        return tf.io.decode_jpeg(data, channels, dct_method="INTEGER_ACCURATE").numpy()
    if file_format == "gif":
        return tf.io.decode_gif(data).numpy()[0]
    decode = tf.io.decode_png if file_format == "png" else tf.io.decode_bmp
    return decode(data, channels).numpy()


def test_odd_files_have_the_pixels_that_tensorflow_reads() -> None:
    """All that pass the check. CMYK and YCCK may differ by one level; alpha is a channel."""
    compared = set[str]()
    for name, data in {**odd_files(), "noise.bmp": saved(NOISE, "BMP")}.items():
        info = small.verdict(data)
        if not isinstance(info, ImageInfo) or name == "corrupt.jpg":
            continue  # decoders differ on where its data ends
        found = pixels(data)
        channels = found.shape[2]
        if channels == 2:  # TensorFlow cannot ask for two channels unless the file has them
            channels, found = 1, found[:, :, :1]
        if info.format == "gif":  # TensorFlow paints transparent pixels black
            channels, opaque = 3, found[:, :, 3:] if found.shape[2] == 4 else 255
            found = np.where(opaque, found[:, :, :3], 0).astype(np.uint8)
        expected = decoded_by_tensorflow(data, info.format, channels)
        assert difference(found, expected) <= ("cmyk" in info.traits), name
        compared.update({info.format, *info.traits})
    assert {"jpeg", "png", "gif", "bmp", "cmyk", "16_bit", "palette", "alpha", "gray"} <= compared


def inks(*levels: int) -> Image.Image:
    return Image.fromarray(np.full((8, 8, 4), levels, np.uint8), "CMYK")


def test_cmyk_without_an_adobe_segment_is_not_inverted() -> None:
    data = saved(inks(10, 60, 120, 30), "JPEG")
    start = data.index(b"\xff\xee")
    bare = data[:start] + data[start + 2 + int.from_bytes(data[start + 2 : start + 4], "big") :]
    assert difference(pixels(bare), tf.io.decode_jpeg(bare, 3).numpy()) <= 1
    assert difference(pixels(data), pixels(bare)) > 50


def ink_profile(colours: dict[int, tuple[int, int, int]]) -> bytes:
    """Return an ICC profile (lut8, ICC.1) with 8-bit Lab for each ink at 0 and at 100 %."""
    identity = bytes(range(256))
    nodes = b"".join(bytes(colours.get(inks, (0, 128, 128))) for inks in range(16))
    matrix = struct.pack(">9l", *(65536 * (i % 4 == 0) for i in range(9)))
    table = b"mft1\0\0\0\0\4\3\2\0" + matrix + identity * 4 + nodes + identity * 3
    directory = struct.pack(">L4sLL", 1, b"A2B0", 144, len(table))
    head = struct.pack(
        ">L4sL4s4s4s", 144 + len(table), b"none", 0x02400000, b"prtr", b"CMYK", b"Lab "
    )
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3l", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + directory + table


def test_cmyk_with_a_profile_has_its_colours() -> None:
    """The profile maps full cyan to L* 50, which is sRGB 119; without a profile it stays cyan."""
    profile = ink_profile({0b1000: (128, 128, 128), 0: (255, 128, 128)})
    for icc, rgb in ((profile, [119] * 3), (b"", [0, 255, 255]), (profile[:200], [0, 255, 255])):
        data = saved(inks(255, 0, 0, 0), "JPEG", icc_profile=icc, quality=100)
        assert difference(pixels(data), np.full((8, 8, 3), rgb)) <= 2


@pytest.mark.parametrize("dtype", PIXEL_DTYPES)
def test_dtypes_are_converted_as_by_convert_image_dtype(dtype: str) -> None:
    wide = np.random.default_rng(1).integers(0, 65536, (9, 7, 1), np.uint16)
    for array in (NOISE, wide):
        data = png_of(array[:, :, 0] if array is wide else array)
        expected = tf.image.convert_image_dtype(array, getattr(tf, dtype)).numpy()
        found = pixels(data, Conversion(pixels_dtype=dtype, color=Color.KEEP))
        assert found.dtype == dtype
        limit = {"float16": 2.0**-11, "float32": 2.0**-23, "float64": 2.0**-50}.get(dtype, 0)
        assert difference(found, expected) <= limit


@pytest.mark.parametrize("size", [(16, 16), (224, 160), thorough((90, 301)), thorough((1000, 700))])
def test_resampling_equals_tensorflow_with_antialias(size: tuple[int, int]) -> None:
    photos = Path(__file__).parent / "data" / "coco_train" / "images"
    for path in sorted(photos.iterdir())[:4]:
        data = path.read_bytes()
        image = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
        image = tf.image.convert_image_dtype(image, tf.float32)
        expected = tf.image.resize(image, size[::-1], antialias=True).numpy()
        found = pixels(data, Conversion(Resize(*size), pixels_dtype="float32"))
        assert difference(found, expected) <= 0.1 / 255
        whole = repainted(data, Conversion(Resize(*size), ResizeMode.STRETCH, Encoding.PNG))
        if max(size) > 200:  # else the JPEG was decoded at a fraction of its size
            assert difference(whole / 255, expected) <= 1.5 / 255
        assert psnr(whole, expected) > 40  # dB


@pytest.mark.parametrize(
    ("text", "mode", "size", "expected"),
    [
        ("100", ResizeMode.FIT, (480, 640), (75, 100)),
        ("100x30", ResizeMode.FIT, (10, 3), (100, 30)),  # enlarged
        ("7", ResizeMode.FIT, (1000, 3), (7, 1)),  # at least a pixel
        ("100x30", ResizeMode.STRETCH, (640, 480), (100, 30)),
        ("max:100", None, (640, 480), (100, 75)),
        ("max:100", None, (99, 100), (99, 100)),
    ],
)
def test_size_after_resize(
    text: str, mode: ResizeMode | None, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    image = converted(saved(Image.new("L", size), "PNG"), Conversion(Resize.parse(text), mode))
    assert image.info.size_px == expected == as_stored(image.data).shape[::-1]


PHOTO, GRAY_PHOTO, DRAWING = jpeg_of(SMOOTH), jpeg_of(SMOOTH[:, :, 0]), png_of(NOISE)


@pytest.mark.parametrize(
    ("data", "conversion"),
    [
        (PHOTO, Conversion(Resize(64, None))),
        (PHOTO, Conversion(Resize(64, 64))),
        (PHOTO, Conversion(Resize(64, 48), ResizeMode.FILL)),
        (PHOTO, TO_JPEG),
        (PHOTO, TO_RGB),
        (GRAY_PHOTO, Conversion(color=Color.GRAY, reencode=Encoding.JPEG)),
        (DRAWING, Conversion(reencode=Encoding.PNG, color=Color.RGB)),
    ],
)
def test_an_image_that_no_option_changes_is_passed_on(data: bytes, conversion: Conversion) -> None:
    image = encoded(data)
    assert convert_image(image, conversion) is image


@pytest.mark.parametrize(
    ("source", "conversion", "file_format"),
    [
        (PHOTO, Conversion(Resize(32, 32)), "jpeg"),
        (DRAWING, Conversion(Resize(32, 32)), "png"),
        (saved(NOISE, "GIF"), Conversion(Resize(32, 32)), "png"),
        (saved(NOISE, "BMP"), Conversion(Resize(32, 32)), "png"),
        (saved(NOISE, "GIF"), TO_JPEG, "jpeg"),
        (PHOTO, TO_PNG, "png"),
        (jpeg_of(SMOOTH, progressive=True), TO_JPEG, "jpeg"),
    ],
)
def test_format_after_conversion(source: bytes, conversion: Conversion, file_format: str) -> None:
    image = converted(source, conversion)
    assert image.info.format == file_format and image.data != source
    assert image.source_sha256 == encoded(source).sha256
    assert image.sha256 == encoded(image.data).sha256
    assert "progressive" not in image.info.traits


def test_dropped_alpha_is_blended_with_white() -> None:
    rgba = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]]], np.uint8)
    on_white = [[200, 100, 0], [255, 255, 255], [244, 224, 204]]  # 0.2 of it, 0.8 of white
    assert difference(repainted(png_of(rgba), TO_RGB)[0], on_white) <= 1
    large = png_of(rgba.repeat(8, 0).repeat(8, 1))
    assert difference(repainted(large, TO_JPEG)[4, 4::8], on_white) <= 8
    assert repainted(png_of(rgba), Conversion(Resize(6, 2))).shape == (2, 6, 4)


def test_gray_follows_rec_601() -> None:
    expected = tf.image.rgb_to_grayscale(NOISE).numpy()[:, :, 0]
    assert difference(repainted(DRAWING, TO_GRAY), expected) <= 1


def test_resize_keeps_16_bit_gray() -> None:
    wide = np.linspace(0, 65535, 80).reshape(8, 10).astype(np.uint16)
    image = converted(png_of(wide), Conversion(Resize(5, 4), ResizeMode.STRETCH))
    expected = tf.image.resize(wide[:, :, np.newaxis], (4, 5), antialias=True).numpy()[:, :, 0]
    assert image.info.traits == ("16_bit", "gray")
    assert difference(as_stored(image.data), expected) <= 1
    again = repainted(png_of(wide), TO_PNG)
    assert (again == wide >> 8).all() and again.dtype == np.uint8


def test_only_one_16_bit_gray_value_is_transparent() -> None:
    gray = np.full((8, 8), 0x1234, "<u2")
    gray[0, 0], gray[1, 1] = 0x12FF, 0x5600
    plain = png_of(gray)
    start = plain.index(b"IDAT") - 4
    data = plain[:start] + small.chunk(b"tRNS", b"\x12\xff") + plain[start:]
    expected = tf.io.decode_png(data, 4).numpy()
    assert expected[:2, :2, 3].tolist() == [[0, 255], [255, 255]]
    assert difference(pixels(data), expected[:, :, [0, 3]]) == 0


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
def test_profiles_are_kept_if_the_colours_stay(file_format: str) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    source = saved(SMOOTH, file_format, icc_profile=profile)
    to_jpeg = converted(source, Conversion(Resize(20, 20), reencode=Encoding.JPEG))
    assert profile in to_jpeg.data
    traits = [converted(source, asked).info.traits for asked in (TO_PNG, TO_GRAY)]
    assert traits == [("icc_profile",), ("gray",)]


def test_a_profile_that_inflates_to_megabytes_is_left_out() -> None:
    bomb = small.chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 24)))
    image = converted(DRAWING[:33] + bomb + DRAWING[33:], Conversion(Resize(8, 8)))
    assert b"iCCP" not in image.data


@pytest.mark.parametrize(
    ("file_format", "limit", "save", "orientation"),
    [
        ("WEBP", 0, {"lossless": True}, 6),
        ("TIFF", 0, {}, 1),  # Pillow turns it when it decodes
        ("AVIF", 6, {"quality": 100}, 6),
    ],
)
def test_formats_that_only_conversion_reads(
    file_format: str, limit: int, save: dict[str, Any], orientation: int
) -> None:
    data = saved(SMOOTH, file_format, **save)
    assert difference(repainted(data, TO_PNG), SMOOTH) <= limit
    for cut in (13, len(data) // 2):
        with pytest.raises(BadImage):
            converted(data[:cut], TO_PNG)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = saved(SMOOTH, file_format, exif=exif, **save)
    again = converted(turned, TO_PNG)
    assert encoded(turned).info.orientation == again.info.orientation == orientation
    assert difference(as_viewed(again.data), np.rot90(SMOOTH, -1)) <= limit


# --- turned upright

TURNING = range(2, 9)


def upright(data: bytes) -> bytes:
    return converted(data, UPRIGHT).data


def psnr(pixels: np.ndarray, others: np.ndarray) -> float:
    return float(10 * np.log10(1 / np.mean((pixels / 255 - others) ** 2)))


FOUR_COLOURS = small.chunk(b"PLTE", bytes(range(12)))
# Bits and colour type of a PNG, its samples a pixel and chunks before the pixels.
KINDS = {
    "gray, 1 bit": (1, 0, 1, b""),
    "gray, 16 bits": (16, 0, 1, b""),
    "colour": (8, 2, 3, b""),
    "palette, 8 bits": (8, 3, 1, small.chunk(b"PLTE", bytes(i % 251 for i in range(768)))),
    "with transparency": (2, 3, 1, FOUR_COLOURS + small.chunk(b"tRNS", b"\x10\x80")),
    "gray and alpha": (8, 4, 2, b""),
    "colour and alpha": (8, 6, 4, b""),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_png_is_turned_without_loss(kind: tuple[int, int, int, bytes]) -> None:
    """The image has 5 x 3 pixels of noise."""
    bits, colour_type, samples, chunks = kind
    row_bytes = -(-5 * bits * samples // 8)
    noise = np.random.default_rng(0).bytes(3 * row_bytes)
    raw = b"".join(b"\0" + noise[row_bytes * row :][:row_bytes] for row in range(3))
    data = small.png(small.ihdr(5, 3, bits, colour_type), chunks, small.idat(raw))
    expected = tf.io.decode_png(data, dtype=tf.uint16).numpy()  # also for 8 bits and fewer
    for orientation in TURNING:
        turned = upright(oriented(data, orientation))
        found = tf.io.decode_png(turned, dtype=tf.uint16).numpy()
        np.testing.assert_array_equal(found, turn_array(expected, orientation))


def test_exif_is_kept_but_for_the_orientation() -> None:
    copyright_by = small.entry(0x8298, 2, 4, b"Ann\0")
    block = small.exif(small.entry(0x0112, 3, 1, b"\0\6") + copyright_by)
    upright_block = small.exif(small.entry(0x0112, 3, 1, b"\0\1") + copyright_by)
    png = small.png(small.ihdr(), small.chunk(b"eXIf", block), small.idat())
    assert small.chunk(b"eXIf", upright_block) in upright(png)
    jpeg = jpeg_of(every_pixel_another(5, 3), exif=b"Exif\0\0" + block)
    assert small.segment(0xE1, b"Exif\0\0" + upright_block) in upright(jpeg)


# Chroma subsampling of the file, then Pillow's number of it after a turn without and with a swap.
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
        assert psnr(as_stored(turned), as_viewed(data) / 255) > 36
        with Image.open(io.BytesIO(turned)) as image:
            assert isinstance(image, JpegImagePlugin.JpegImageFile)
            found = JpegImagePlugin.get_sampling(image)
            assert found == (swapped if orientation >= 5 else mirrored)
            assert image.quantization == at_quality.quantization  # type: ignore[attr-defined]


def test_an_image_that_a_turn_would_damage_is_refused() -> None:
    chunks = {2: b"", 4: b"", 6: b"", 0: small.chunk(b"tRNS", b"\1\2")}  # by colour type
    heads = [small.ihdr(1, 1, 16, colour_type) + more for colour_type, more in chunks.items()]
    for head in (*heads, small.ihdr() + small.chunk(b"acTL", bytes(8))):
        data = small.png(head, small.idat(bytes(9)))
        with pytest.raises(BadImage) as caught:
            upright(oriented(data, 3))
        assert caught.value.code == "E-IMG-TYPE"
        assert caught.value.detail.startswith("a turn would lose frames, or bits")


@pytest.mark.parametrize("size_px", [(65_501, 2), (2, 65_501)])
def test_an_image_too_long_for_a_jpeg_is_rejected(size_px: tuple[int, int]) -> None:
    data = saved(Image.new("L", size_px), "PNG")
    what = "a side of 65501 px, the longest of a JPEG is 65500"
    assert refused(encoded(data), TO_JPEG) == ("E-IMG-PIXELS", what)
    resized = Conversion(Resize(65_500, None), reencode=Encoding.JPEG)
    assert max(converted(data, resized).info.size_px) == 65_500


def test_too_large_results_are_refused_before_conversion() -> None:
    code, _ = refused(encoded(DRAWING), Conversion(Resize(65_500, 65_500)))
    assert code == "E-IMG-PIXELS"
    info = replace(encoded(DRAWING).info, width_px=10_000, height_px=9_000)
    source = replace(encoded(DRAWING), info=info)
    what = "2160000000 bytes of pixels, the limit is 2147483647"
    assert refused(source, Conversion(pixels_dtype="float64")) == ("E-EX-TOO-LARGE", what)


CUT_JPEG = jpeg_of(NOISE)[:-400] + small.EOI
DAMAGED_SECOND_FRAME = small.gif(small.GIF_FRAME, small.gif_frame([0, 1, 1]))
NO_PIXELS = small.png(small.ihdr(), small.chunk(b"IDAT", b"?"))
RUN_OUT = "ValueError: Corrupt JPEG data: premature end of data segment"


@pytest.mark.parametrize(
    ("data", "conversion", "detail"),
    [
        (CUT_JPEG, Conversion(Resize(8, 8), reencode=Encoding.JPEG), RUN_OUT),
        (CUT_JPEG, TO_PNG, RUN_OUT),
        (CUT_JPEG, PLAIN, RUN_OUT),
        (oriented(CUT_JPEG, 6), UPRIGHT, RUN_OUT),
        (DAMAGED_SECOND_FRAME, PLAIN, "ValueError: not enough image data"),
        (NO_PIXELS, TO_RGB, "compressed pixels end at byte 0 of 6"),
        # An image that does not change is not decoded.
        (CUT_JPEG, Conversion(reencode=Encoding.JPEG, turns=True), ""),
    ],
)
def test_a_decoded_image_must_pass_the_decode_check(
    data: bytes, conversion: Conversion, detail: str
) -> None:
    sample, image = Sample("train", "1", 0, (Blob("train", "a.jpg"),), b""), encoded(data)
    found = or_unfit(convert_all, sample, [image], conversion)
    assert found == (Unfit("E-IMG-DAMAGED", detail, 0) if detail else [image])
