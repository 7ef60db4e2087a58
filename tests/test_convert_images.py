"""Converted images against TensorFlow's decoders and resize, and against formulas."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from msgspec.structs import replace
from PIL import Image, ImageOps

from schemas.fields import EncodedImage, ImageInfo, Window
from schemas.geometry.boxes import Resize, ResizeMode
from schemas.layouts import PIXEL_DTYPES, Unfit
from schemas.samples import Blob, Sample
from tests.small_images import EOI, GIF_FRAME, chunk, gif, gif_frame, png
from tests.turned_images import as_stored, as_viewed, encoded, jpeg_of, oriented, png_of
from transforms.build_records import convert_all
from transforms.images.check_images import check_image
from transforms.images.convert_images import (
    NO_CONVERSION,
    Color,
    Conversion,
    Encoding,
    Orientation,
    convert_image,
)
from transforms.images.findings import MAX_PIXELS, ImageFault

PLAIN = Conversion(pixels_dtype="uint8", color=Color.KEEP)
NOISE = np.random.default_rng(6).integers(0, 256, (24, 40, 3), np.uint8)
SMOOTH = np.linspace(0, 255, 64 * 48 * 3).reshape(48, 64, 3).astype(np.uint8)


def converted(
    data: bytes, conversion: Conversion, orientation: Orientation = Orientation.KEEP
) -> EncodedImage:
    found = convert_image(encoded(data), conversion, orientation)
    assert isinstance(found, EncodedImage), found
    return found


def pixels(data: bytes, conversion: Conversion = PLAIN) -> np.ndarray:
    found = converted(data, conversion).pixels
    assert found is not None and found.flags["C_CONTIGUOUS"]
    return found


def check_foreign(data: bytes, max_pixels: int = MAX_PIXELS) -> ImageInfo | ImageFault:
    return check_image(data, max_pixels=max_pixels, takes_foreign=True)


def saved(image: Image.Image, file_format: str, **save: object) -> bytes:
    out = io.BytesIO()
    image.save(out, file_format, **save)
    return out.getvalue()


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found.astype(float) - expected.astype(float)).max())


# --- pixels as TensorFlow decodes them


def decoded_by_tensorflow(data: bytes, file_format: str, channels: int) -> np.ndarray:
    if file_format == "jpeg":
        return tf.io.decode_jpeg(data, channels, dct_method="INTEGER_ACCURATE").numpy()
    if file_format == "gif":
        return tf.io.decode_gif(data).numpy()[0]
    decode = tf.io.decode_png if file_format == "png" else tf.io.decode_bmp
    return decode(data, channels).numpy()


def test_odd_files_have_the_pixels_that_tensorflow_reads(shared_data: Path) -> None:
    """All that pass the check, CMYK and YCCK to one level; alpha as a channel."""
    compared = set[str]()
    for path in sorted((shared_data / "odd").iterdir()):
        data = path.read_bytes()
        info = check_image(data)
        if not isinstance(info, ImageInfo) or path.name == "corrupt.jpg":
            continue  # decoders differ on where its data ends
        found = pixels(data)
        channels = {1: 1, 2: 2, 3: 3, 4: 4}[found.shape[2]]
        if channels == 2:  # which TensorFlow has no name for, unless the file has two
            channels, found = 1, found[:, :, :1]
        if info.format == "gif":  # whose holes TensorFlow paints black
            channels, opaque = 3, found[:, :, 3:] if found.shape[2] == 4 else 255
            found = np.where(opaque, found[:, :, :3], 0).astype(np.uint8)
        expected = decoded_by_tensorflow(data, info.format, channels)
        assert difference(found, expected) <= ("cmyk" in info.traits), path.name
        compared.update({info.format, *info.traits})
    assert {"jpeg", "png", "gif", "bmp", "cmyk", "16_bit", "palette", "alpha", "gray"} <= compared


def test_inks_without_adobe_s_segment_are_not_inverted() -> None:
    data = saved(Image.fromarray(np.full((8, 8, 4), [10, 60, 120, 30], np.uint8), "CMYK"), "JPEG")
    start = data.index(b"\xff\xee")
    bare = data[:start] + data[start + 2 + int.from_bytes(data[start + 2 : start + 4], "big") :]
    for file in (data, bare):
        assert difference(pixels(file), tf.io.decode_jpeg(file, 3).numpy()) <= 1
    assert difference(pixels(data), pixels(bare)) > 50


def ink_profile(colours: dict[int, tuple[int, int, int]]) -> bytes:
    """Return an ICC profile of inks: Lab in 8 bits where each ink is none or all (lut8, ICC.1)."""
    identity = bytes(range(256))
    nodes = b"".join(bytes(colours.get(inks, (0, 128, 128))) for inks in range(16))
    matrix = struct.pack(">9l", *(65536 * (i % 4 == 0) for i in range(9)))
    table = b"mft1\0\0\0\0\4\3\2\0" + matrix + identity * 4 + nodes + identity * 3
    tags = {b"A2B0": table}
    offset, body, directory = 128 + 4 + 12 * len(tags), b"", struct.pack(">L", len(tags))
    for name, content in tags.items():
        directory += name + struct.pack(">LL", offset + len(body), len(content))
        body += content
    size = 128 + len(directory) + len(body)
    head = struct.pack(">L4sL4s4s4s", size, b"none", 0x02400000, b"prtr", b"CMYK", b"Lab ")
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3l", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + directory + body


def test_inks_with_a_profile_have_its_colours() -> None:
    """Of full cyan the profile says L* 50, neutral: by CIE's formula sRGB 119; without it, cyan."""
    profile = ink_profile({0b1000: (128, 128, 128), 0: (255, 128, 128)})
    inks = Image.fromarray(np.full((8, 8, 4), [255, 0, 0, 0], np.uint8), "CMYK")
    with_profile = saved(inks, "JPEG", icc_profile=profile, quality=100)
    assert difference(pixels(with_profile), np.full((8, 8, 3), 119)) <= 2
    assert (
        difference(pixels(saved(inks, "JPEG", quality=100)), np.full((8, 8, 3), [0, 255, 255])) <= 2
    )
    broken = saved(inks, "JPEG", icc_profile=profile[:200], quality=100)
    assert difference(pixels(broken), np.full((8, 8, 3), [0, 255, 255])) <= 2


@pytest.mark.parametrize("dtype", PIXEL_DTYPES)
def test_types_are_those_of_convert_image_dtype(dtype: str) -> None:
    wide = np.random.default_rng(1).integers(0, 65536, (9, 7, 1), np.uint16)
    for array in (NOISE, wide):
        data = png_of(array[:, :, 0] if array is wide else array)
        expected = tf.image.convert_image_dtype(array, getattr(tf, dtype)).numpy()
        found = pixels(data, Conversion(pixels_dtype=dtype, color=Color.KEEP))
        assert found.dtype == dtype
        limit = {"float16": 2.0**-11, "float32": 2.0**-23, "float64": 2.0**-50}.get(dtype, 0)
        assert difference(found, expected) <= limit


# --- size


@pytest.mark.parametrize("size", [(16, 16), (224, 160), (90, 301), (1000, 700)])
def test_resampling_is_that_of_tensorflow_with_antialias(
    size: tuple[int, int], shared_data: Path
) -> None:
    for path in sorted((shared_data / "coco_train" / "images").iterdir())[:4]:
        data = path.read_bytes()
        image = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
        image = tf.image.convert_image_dtype(image, tf.float32)
        expected = tf.image.resize(image, size[::-1], antialias=True).numpy()
        found = pixels(data, Conversion(Resize(*size), pixels_dtype="float32"))
        assert difference(found, expected) <= 0.1 / 255
        png_again = converted(
            data, Conversion(Resize(*size), ResizeMode.STRETCH, Encoding.PNG)
        ).data
        whole = as_stored(png_again)
        if max(size) > 200:  # else the JPEG was decoded at a fraction of its size
            assert difference(whole / 255, expected) <= 1.5 / 255
        assert 10 * np.log10(1 / np.mean((whole / 255 - expected) ** 2)) > 40  # dB


@pytest.mark.parametrize(
    ("text", "mode", "size", "expected"),
    [
        ("100", ResizeMode.FIT, (640, 480), (100, 75)),
        ("100", ResizeMode.FIT, (480, 640), (75, 100)),
        ("100x30", ResizeMode.FIT, (640, 480), (40, 30)),
        ("100x30", ResizeMode.FIT, (10, 3), (100, 30)),  # enlarged
        ("7", ResizeMode.FIT, (1000, 3), (7, 1)),  # at least a pixel
        ("100x30", ResizeMode.FILL, (640, 480), (100, 30)),
        ("100x30", ResizeMode.STRETCH, (640, 480), (100, 30)),
        ("max:100", ResizeMode.FIT, (640, 480), (100, 75)),
        ("max:100", ResizeMode.FIT, (99, 100), (99, 100)),
    ],
)
def test_sizes(
    text: str, mode: ResizeMode, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    resize = Resize.parse(text)
    data = png_of(np.zeros((size[1], size[0]), np.uint8))
    image = converted(data, Conversion(resize, mode if resize.height_px else None))
    assert image.info.size_px == expected == as_stored(image.data).shape[::-1]


def test_fill_shows_the_middle() -> None:
    columns = np.repeat(np.arange(30, dtype=np.uint8)[np.newaxis], 10, axis=0)
    image = converted(png_of(columns), Conversion(Resize(10, 10), ResizeMode.FILL))
    assert as_stored(image.data)[0].tolist() == list(range(10, 20))
    assert image.window == Window((30, 10), (pytest.approx(1 / 3), 0.0, pytest.approx(2 / 3), 1.0))


def test_a_result_of_too_many_pixels_is_refused_before_it_is_made() -> None:
    found = convert_image(encoded(png_of(NOISE)), Conversion(Resize(65_500, 65_500)))
    assert isinstance(found, ImageFault) and found.code == "E-IMG-PIXELS"


# --- what is written


def test_an_image_that_no_option_changes_passes_byte_for_byte() -> None:
    photo, gray, drawing = jpeg_of(SMOOTH), jpeg_of(SMOOTH[:, :, 0]), png_of(NOISE)
    for data, conversion in (
        (photo, Conversion(Resize(64, None))),
        (photo, Conversion(Resize(64, 64))),
        (photo, Conversion(Resize(64, 48), ResizeMode.FILL)),
        (photo, Conversion(reencode=Encoding.JPEG)),
        (photo, Conversion(color=Color.RGB)),
        (gray, Conversion(color=Color.GRAY, reencode=Encoding.JPEG)),
        (gray, Conversion(reencode=Encoding.JPEG)),
        (drawing, Conversion(reencode=Encoding.PNG, color=Color.RGB)),
    ):
        image = encoded(data)
        assert convert_image(image, conversion) is image


@pytest.mark.parametrize(
    ("source", "conversion", "file_format"),
    [
        (jpeg_of(SMOOTH), Conversion(Resize(32, 32)), "jpeg"),
        (png_of(NOISE), Conversion(Resize(32, 32)), "png"),
        (saved(Image.fromarray(NOISE), "GIF"), Conversion(Resize(32, 32)), "png"),
        (saved(Image.fromarray(NOISE), "BMP"), Conversion(Resize(32, 32)), "png"),
        (saved(Image.fromarray(NOISE), "GIF"), Conversion(reencode=Encoding.JPEG), "jpeg"),
        (jpeg_of(SMOOTH), Conversion(reencode=Encoding.PNG), "png"),
        (jpeg_of(SMOOTH, progressive=True), Conversion(reencode=Encoding.JPEG), "jpeg"),
    ],
)
def test_formats(source: bytes, conversion: Conversion, file_format: str) -> None:
    image = converted(source, conversion)
    assert image.info.format == file_format and image.data != source
    assert image.source_sha256 == encoded(source).sha256
    assert image.sha256 == encoded(image.data).sha256
    assert "progressive" not in image.info.traits


def test_alpha_is_laid_on_white_where_it_is_left_out() -> None:
    rgba = np.array([[[200, 100, 0, 255], [200, 100, 0, 0], [200, 100, 0, 51]]], np.uint8)
    on_white = [[200, 100, 0], [255, 255, 255], [244, 224, 204]]  # 0.2 of it, 0.8 of white
    found = as_stored(converted(png_of(rgba), Conversion(color=Color.RGB)).data)
    assert difference(found[0], np.array(on_white)) <= 1
    jpeg = converted(png_of(rgba.repeat(8, 0).repeat(8, 1)), Conversion(reencode=Encoding.JPEG))
    assert difference(as_stored(jpeg.data)[4, 4::8], np.array(on_white)) <= 8
    kept = converted(png_of(rgba), Conversion(Resize(6, 2))).data
    assert as_stored(kept).shape == (2, 6, 4)


def test_gray_is_rec_601_s() -> None:
    found = as_stored(converted(png_of(NOISE), Conversion(color=Color.GRAY)).data)
    expected = tf.image.rgb_to_grayscale(NOISE).numpy()[:, :, 0]
    assert found.ndim == 2 and difference(found, expected) <= 1


def test_gray_of_16_bits_stays_where_only_its_size_changes() -> None:
    wide = np.linspace(0, 65535, 80).reshape(8, 10).astype(np.uint16)
    image = converted(png_of(wide), Conversion(Resize(5, 4), ResizeMode.STRETCH))
    expected = tf.image.resize(wide[:, :, np.newaxis], (4, 5), antialias=True).numpy()[:, :, 0]
    assert image.info.traits == ("16_bit", "gray")
    assert difference(as_stored(image.data), expected) <= 1
    again = as_stored(converted(png_of(wide), Conversion(reencode=Encoding.PNG)).data)
    assert (again == wide >> 8).all() and again.dtype == np.uint8


def test_few_bits_and_palettes() -> None:
    one_bit = Image.fromarray(NOISE[:, :, 0] > 99)
    found = as_stored(converted(saved(one_bit, "PNG"), Conversion(color=Color.RGB)).data)
    assert (found == np.where(NOISE[:, :, :1] > 99, 255, 0).repeat(3, 2)).all()
    palette = Image.fromarray(NOISE[:, :, 0] % 4, "P")
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 9, 8, 7])
    data = saved(palette, "PNG", transparency=1)
    colours = np.array([[0, 0, 0, 255], [255, 0, 0, 0], [0, 255, 0, 255], [9, 8, 7, 255]])
    again = as_stored(converted(data, Conversion(reencode=Encoding.PNG)).data)
    assert (again == colours[NOISE[:, :, 0] % 4]).all()


# --- EXIF, profiles


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("make", [png_of, jpeg_of])
def test_orientation_is_kept_or_done(orientation: int, make: object) -> None:
    data = oriented(make(SMOOTH), orientation)  # type: ignore[operator]
    viewed = as_viewed(data)
    conversion = Conversion(Resize(32, None), reencode=Encoding.PNG)
    kept = converted(data, conversion)
    assert kept.info.orientation == orientation and kept.turned == 1
    turned = converted(data, conversion, Orientation.UPRIGHT)
    assert turned.info.orientation == 1 and turned.turned == orientation
    expected = Image.fromarray(viewed).resize(turned.info.size_px, Image.Resampling.BILINEAR)
    for image in (kept, turned):
        assert difference(as_viewed(image.data), np.asarray(expected)) <= 3
    plain = converted(data, Conversion(Resize(32, None), pixels_dtype="uint8"), Orientation.UPRIGHT)
    assert plain.pixels is not None and plain.info.orientation == 1
    assert difference(plain.pixels, np.asarray(expected)) <= 3


def test_profiles_of_the_same_colours_are_kept() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    sources = (
        jpeg_of(SMOOTH, icc_profile=profile),
        saved(Image.fromarray(SMOOTH), "PNG", icc_profile=profile),
    )
    for source in sources:
        for encoding in Encoding:
            image = converted(source, Conversion(Resize(20, 20), reencode=encoding)).data
            with Image.open(io.BytesIO(image)) as found:
                assert found.info["icc_profile"] == profile
        gray = converted(source, Conversion(color=Color.GRAY)).data
        with Image.open(io.BytesIO(gray)) as found:
            assert "icc_profile" not in found.info


def test_a_profile_that_inflates_without_end_is_left_out() -> None:
    import zlib

    bomb = chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 24)))
    whole = png_of(NOISE)
    image = converted(whole[:33] + bomb + whole[33:], Conversion(Resize(8, 8)))
    assert b"iCCP" not in image.data and png


# --- formats that pass-through refuses


@pytest.mark.parametrize(
    ("file_format", "limit"), [("WEBP", 0), ("TIFF", 0), ("AVIF", 6)], ids=["WebP", "TIFF", "AVIF"]
)
def test_foreign_formats(file_format: str, limit: int) -> None:
    options = {"WEBP": {"lossless": True}, "AVIF": {"quality": 100}}.get(file_format, {})
    data = saved(Image.fromarray(SMOOTH), file_format, **options)
    info = check_foreign(data)
    assert isinstance(info, ImageInfo) and info.size_px == (64, 48)
    image = convert_image(EncodedImage("a", data, "", info), Conversion(reencode=Encoding.PNG))
    assert isinstance(image, EncodedImage) and image.info.format == "png"
    assert difference(as_stored(image.data), SMOOTH) <= limit
    small = check_foreign(data, 64 * 48 - 1)
    assert isinstance(small, ImageFault) and small.code == "E-IMG-PIXELS"
    for cut in (13, len(data) // 2):
        short = check_foreign(data[:cut])
        if isinstance(short, ImageInfo):
            cut_image = EncodedImage("a", data[:cut], "", short)
            short = convert_image(cut_image, Conversion(reencode=Encoding.PNG))
        assert isinstance(short, ImageFault)
        assert short.code in ("E-IMG-DAMAGED", "E-IMG-TRUNCATED", "E-IMG-TYPE")


def test_foreign_orientation_is_kept(shared_data: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for file_format in ("WEBP", "TIFF", "AVIF"):
        data = saved(Image.fromarray(SMOOTH), file_format, exif=exif)
        info = check_foreign(data)
        assert isinstance(info, ImageInfo)
        assert info.orientation == (1 if file_format == "TIFF" else 6)  # Pillow turns TIFF itself
        source = EncodedImage("a", data, "", info)
        kept = convert_image(source, Conversion(reencode=Encoding.JPEG))
        assert isinstance(kept, EncodedImage) and kept.info.orientation == info.orientation
        with Image.open(io.BytesIO(data)) as viewed:
            assert (
                difference(as_viewed(kept.data), np.asarray(ImageOps.exif_transpose(viewed))) < 25
            )
    real = (shared_data / "odd" / "rot1mir0.avif").read_bytes()  # turned by the container
    info = check_foreign(real)
    assert isinstance(info, ImageInfo) and info.orientation == 5


def test_a_transparent_gray_of_16_bits_is_that_one_alone() -> None:
    gray = np.full((8, 8), 0x1234, ">u2")
    gray[0, 0], gray[1, 1] = 0x12FF, 0x5600
    plain = saved(Image.fromarray(gray.astype("<u2")), "PNG")
    behind = plain.index(b"IDAT") - 4
    data = plain[:behind] + chunk(b"tRNS", b"\x12\xff") + plain[behind:]
    expected = tf.io.decode_png(data, 4).numpy()
    assert expected[:2, :2, 3].tolist() == [[0, 255], [255, 255]]
    assert difference(pixels(data), expected[:, :, [0, 3]]) == 0


@pytest.mark.parametrize("size_px", [(65_501, 2), (2, 65_501)])
def test_an_image_too_long_for_a_jpeg_is_rejected(size_px: tuple[int, int]) -> None:
    data = saved(Image.new("L", size_px), "PNG")
    found = convert_image(encoded(data), Conversion(reencode=Encoding.JPEG))
    what = f"{size_px[0]} x {size_px[1]} px, a JPEG has sides of up to 65500"
    assert found == ImageFault("E-IMG-PIXELS", what)
    resized = Conversion(Resize(65_500, None), reencode=Encoding.JPEG)
    assert max(converted(data, resized).info.size_px) == 65_500


def test_pixels_that_no_example_holds_are_refused_before_they_are_made() -> None:
    info = replace(encoded(png_of(NOISE)).info, width_px=10_000, height_px=9_000)
    source = replace(encoded(png_of(NOISE)), info=info)
    found = convert_image(source, Conversion(pixels_dtype="float64"))
    what = "2160000000 bytes of pixels, the limit is 2147483647"
    assert found == ImageFault("E-EX-TOO-LARGE", what)


def test_damage_inside_is_a_fault() -> None:
    whole = png_of(NOISE)
    start = whole.index(b"IDAT")
    length = int.from_bytes(whole[start - 4 : start], "big")
    data = whole[: start - 4] + chunk(b"IDAT", bytes(length)) + whole[start + 8 + length :]
    found = convert_image(encoded(data), Conversion(Resize(8, 8)))
    assert isinstance(found, ImageFault) and found.code == "E-IMG-DAMAGED"


CUT_JPEG = jpeg_of(NOISE)[:-400] + EOI
DAMAGED_SECOND_FRAME = gif(GIF_FRAME, gif_frame([0, 1, 1]))
RUN_OUT = "ValueError: Corrupt JPEG data: premature end of data segment"


@pytest.mark.parametrize(
    ("data", "orientation", "conversion", "detail"),
    [
        (CUT_JPEG, Orientation.KEEP, Conversion(Resize(8, 8), reencode=Encoding.JPEG), RUN_OUT),
        (CUT_JPEG, Orientation.KEEP, Conversion(reencode=Encoding.PNG), RUN_OUT),
        (CUT_JPEG, Orientation.KEEP, PLAIN, RUN_OUT),
        (oriented(CUT_JPEG, 6), Orientation.UPRIGHT, NO_CONVERSION, RUN_OUT),
        (DAMAGED_SECOND_FRAME, Orientation.KEEP, PLAIN, "ValueError: not enough image data"),
        # Nothing is decoded of an image that stays as it is.
        (CUT_JPEG, Orientation.UPRIGHT, Conversion(reencode=Encoding.JPEG), ""),
    ],
)
def test_a_decoded_image_must_pass_the_decode_check(
    data: bytes, orientation: Orientation, conversion: Conversion, detail: str
) -> None:
    sample, image = Sample("train", "1", 0, (Blob("train", "a.jpg"),), b""), encoded(data)
    found = convert_all(sample, [image], orientation, conversion)
    assert found == (Unfit("E-IMG-DAMAGED", detail, 0) if detail else [image])
