import io
import os
import random
from pathlib import Path

import pytest
from PIL import Image, ImageFile, PngImagePlugin

from schemas.fields import ImageInfo
from tests.fuzz.images import with_right_checksums
from tests.small_images import (
    EOI,
    GIF_FRAME,
    GRAY_PALETTE,
    GRAY_SCAN,
    HUFFMAN,
    QUANTIZATION,
    bmp,
    chunk,
    entry,
    exif,
    frame,
    gif,
    gif_frame,
    gray_jpeg_with,
    idat,
    ihdr,
    jpeg,
    png,
    segment,
)
from transforms.images.check_images import Check, check_image
from transforms.images.findings import TRAITS, ImageFault

ROOT = Path(__file__).parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"
needs_shared_data = pytest.mark.skipif(
    not SHARED_DATA.is_dir(), reason=f"real photos are not there: {SHARED_DATA}"
)

# Their structure is whole, and their pixels do not decode.
DAMAGED_INSIDE = {"corrupt.jpg"}
# TensorFlow decodes these with gray or noise where their data is damaged.
FILLED_UP_BY_TENSORFLOW = {"bad_huffman.jpg", "hopper_bad_exif.jpg"}
# TensorFlow reads formats that the data set is not to hold, ...
STRICTER_THAN_TENSORFLOW = {
    "anim_frame1.webp",
    "flower.webp",
    "hopper.webp",
    "iss634.webp",
    "transparent.webp",
    "rgba32.bmp",  # ... reads these channels in the wrong order,
    "decompression_bomb_extents.gif",  # ... and looks away from what Pillow calls a bomb
    "unknown_compression_method.png",  # and from checksums of metadata.
}


def odd_files() -> dict[str, bytes]:
    folder = SHARED_DATA / "odd"
    notes = {"expected.json", "LICENSE_libjpeg-turbo_testimages.txt"}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in notes}


@pytest.fixture(scope="module")
def tensorflow_shape():
    """Return the shape of a decoded image, or None where TensorFlow refuses it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")

    def shape(data: bytes) -> tuple[int, ...] | None:
        try:
            return tuple(tensorflow.io.decode_image(data).shape)
        except tensorflow.errors.InvalidArgumentError:
            return None

    return shape


@needs_shared_data
def test_odd_files_have_the_verdicts_of_tensorflow_but_for_a_list(tensorflow_shape):
    damaged, stricter = set(), set()
    for name, data in odd_files().items():
        found, shape = check_image(data), tensorflow_shape(data)
        if isinstance(found, ImageFault) and shape is not None:
            stricter.add(name)
        if isinstance(found, ImageInfo) and shape is None:
            damaged.add(name)
        decoded = check_image(data, Check.DECODE)
        if isinstance(decoded, ImageInfo):
            assert shape is not None, name
            assert shape[-3:] == (found.height_px, found.width_px, found.channels), name
        elif isinstance(found, ImageInfo) and shape is not None:
            assert name in FILLED_UP_BY_TENSORFLOW
    assert (damaged, stricter) == (DAMAGED_INSIDE, STRICTER_THAN_TENSORFLOW)


def test_a_lost_sector_is_found():
    for path in sorted((ROOT / "tests/data/coco_val/images").glob("*.jpg"))[:5]:
        data = path.read_bytes()
        middle = len(data) // 2
        damaged = data[:middle] + data[middle + 4096 :]
        assert isinstance(check_image(damaged), ImageInfo)
        assert check_image(damaged, Check.DECODE).code == "E-IMG-DAMAGED"


def encoded(image: Image.Image, format_: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def noise(mode: str = "RGB", size: tuple[int, int] = (33, 21)) -> Image.Image:
    pixels = random.Random(0).randbytes(3 * size[0] * size[1])
    return Image.frombytes("RGB", size, pixels).convert(mode)


# Modes and options of JPEGs whose data is laid out in different ways.
JPEG_KINDS = [
    ("RGB", {"subsampling": "4:4:4"}),
    ("RGB", {"subsampling": "4:2:2"}),
    ("RGB", {"subsampling": "4:2:0"}),
    ("RGB", {"keep_rgb": True}),
    ("RGB", {"restart_marker_rows": 1}),
    ("RGB", {"restart_marker_blocks": 2}),
    ("RGB", {"progressive": True}),
    ("L", {}),
    ("CMYK", {}),
]

# Small files of every kind, for the tests that go through all of their bytes.
WHOLE = {
    "jpeg": encoded(noise(), "JPEG"),
    "jpeg by hand": jpeg(),
    "progressive": encoded(noise(), "JPEG", progressive=True),
    "restarts": encoded(noise("L"), "JPEG", restart_marker_blocks=2),
    "cmyk": encoded(noise("CMYK"), "JPEG", quality=10),
    "png": encoded(noise("RGB", (9, 7)), "PNG"),
    "png by hand": png(),
    "palette png": encoded(noise("P", (9, 7)), "PNG"),
    "gif": encoded(noise("P", (9, 7)), "GIF"),
    "gif by hand": gif(GIF_FRAME, gif_frame([1, 1, 1, 1])),
    "bmp": encoded(noise("RGB", (9, 7)), "BMP"),
    "gray bmp": bmp(bits=8, palette=GRAY_PALETTE),
}


@pytest.mark.parametrize(
    ("data", "code", "detail"),
    [
        (b"", "E-IMG-EMPTY", "0 bytes"),
        (b"\xff\xd8", "E-IMG-TRUNCATED", "2 bytes, a signature takes more"),
        (b"\x89PNG\r\n", "E-IMG-TRUNCATED", "6 bytes, a signature takes more"),
        (b"GIF89", "E-IMG-TRUNCATED", "5 bytes, a signature takes more"),
        (b"B", "E-IMG-TRUNCATED", "1 bytes, a signature takes more"),
        (b"RIFF\0\0\0\0WEBPVP8X", "E-IMG-TYPE", "WebP, which --reencode converts"),
        (b"hello", "E-IMG-TYPE", "text"),
        (b"\x00\x01\x02", "E-IMG-TYPE", "unknown, starts with 000102"),
    ],
)
def test_other_bytes_are_refused(data, code, detail):
    for check in Check:
        assert check_image(data, check) == ImageFault(code, detail)


@pytest.mark.parametrize("name", WHOLE)
def test_every_truncation_is_caught(name):
    data = WHOLE[name]
    assert check_image(data, Check.DECODE) == check_image(data)
    for cut in range(1, len(data)):
        for check in Check:
            assert check_image(data[:cut], check).code == "E-IMG-TRUNCATED", (cut, check)


# Pillow's mode and format, options.
CHANNELS = [
    *(("RGB", "JPEG", {}), ("L", "JPEG", {}), ("CMYK", "JPEG", {})),
    *((mode, "PNG", {}) for mode in ("RGB", "L", "1", "I;16", "LA", "RGBA", "P")),
    *(("P", "PNG", {"transparency": 0}), ("L", "PNG", {"transparency": 0})),
    *(("RGB", "PNG", {"transparency": (0, 0, 0)}), ("P", "GIF", {})),
    *((mode, "BMP", {}) for mode in ("RGB", "L", "RGBA")),
]
PLTE = chunk(b"PLTE", bytes(9))
# libpng ignores these transparent entries of a palette.
OPAQUE_PALETTES = [
    png(ihdr(colour_type=3), PLTE, idat(), chunk(b"tRNS", b"\0")),  # after the pixels
    png(ihdr(colour_type=3), chunk(b"tRNS", b"\0"), PLTE, idat()),  # before the palette
    png(ihdr(colour_type=3, bits=1), PLTE, chunk(b"tRNS", bytes(3)), idat()),  # too many
]


def test_channels_are_those_that_tensorflow_decodes(tensorflow_shape):
    drawn = [encoded(Image.new(mode, (5, 4)), kind, **save) for mode, kind, save in CHANNELS]
    for data in [*drawn, *OPAQUE_PALETTES]:
        found = check_image(data)
        expected = (found.height_px, found.width_px, found.channels)
        assert tensorflow_shape(data)[-3:] == expected


ONE_OF_EACH_TRAIT = [
    png(ihdr(bits=16), idat(bytes(10))),  # 16_bit, gray
    png(ihdr(colour_type=6), chunk(b"acTL", bytes(8)), idat(bytes(18))),  # alpha, animated
    # arithmetic, progressive
    jpeg(QUANTIZATION, frame(marker=0xCA), segment(0xDA, b"\1\1" + bytes(4))),
    encoded(noise("CMYK"), "JPEG", icc_profile=b"profile"),  # cmyk, icc_profile
    gray_jpeg_with(
        segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 3, 1, b"\0\6") + entry(0x8825, 4, 1, b""))),
        segment(0xE2, b"MPF\0"),
    ),  # exif_orientation, exif_gps, multi_picture
    png(ihdr(), chunk(b"eXIf", exif(entry(0xC62F, 2, 4, b"123\0"))), idat()),  # exif_serial
    gif(gif_frame([0, 1, 1, 0], flags=0x40)),  # interlaced, palette
    gray_jpeg_with(segment(0xFE), b"junk") + b"trailing",  # junk_bytes, trailing_bytes
    bmp(height_px=-2),  # top_down
]


def test_every_trait_can_be_found_and_is_explained():
    found = {trait for data in ONE_OF_EACH_TRAIT for trait in check_image(data).traits}
    assert found == set(TRAITS)
    assert list(TRAITS) == sorted(TRAITS)


OUT_OF_DATA = "ValueError: Corrupt JPEG data: premature end of data segment"


@pytest.mark.parametrize(
    ("remark", "data", "detail"),
    [
        (
            "Huffman table of three codes of one bit",
            jpeg(
                *(QUANTIZATION, frame(), GRAY_SCAN),
                data=b"\x3f",
            ).replace(GRAY_SCAN, segment(0xC4, b"\0\3" + bytes(18)) + HUFFMAN[21:] + GRAY_SCAN),
            "ValueError: Bogus Huffman table definition",
        ),
        (
            "data ends before the first block",
            WHOLE["jpeg"][: WHOLE["jpeg"].index(b"\xff\xda") + 14] + EOI,
            OUT_OF_DATA,
        ),
        (
            "end marker in the middle",
            WHOLE["jpeg"][:-400] + EOI + WHOLE["jpeg"][-400:],
            OUT_OF_DATA,
        ),
        (
            "filter type 9",
            png(ihdr(), idat(b"\x09\0\0\0\0\0")),
            "OSError: unrecognized data stream contents when reading image file",
        ),
        (
            "GIF data of one pixel less",
            gif(gif_frame([0, 1, 1])),
            "ValueError: not enough image data",
        ),
        (
            "GIF colour outside of its table",
            gif(gif_frame([0, 1, 2, 0])),
            "colour 2 of 2 in a frame",
        ),
        (
            "the same in the second frame",
            gif(GIF_FRAME, gif_frame([3], 1, 1)),
            "colour 3 of 2 in a frame",
        ),
    ],
)
def test_damage_inside_is_found(remark, data, detail, tensorflow_shape):
    assert isinstance(check_image(data), ImageInfo), remark
    assert check_image(data, Check.DECODE) == ImageFault("E-IMG-DAMAGED", detail)
    if detail != OUT_OF_DATA:  # which TensorFlow fills up with gray
        assert tensorflow_shape(data) is None


@pytest.mark.parametrize("size", [(40, 40), (33, 17), (5, 40)])
@pytest.mark.parametrize(("mode", "options"), JPEG_KINDS)
def test_data_that_runs_out_is_found(mode, options, size):
    gray = Image.new(mode, size, "gray")  # what libjpeg goes on with
    for picture in (noise(mode, size), gray):
        data = encoded(picture, "JPEG", **options)
        assert check_image(data, Check.DECODE) == check_image(data)
    data = encoded(noise(mode, size), "JPEG", **options)
    fault = check_image(data[:-42] + EOI, Check.DECODE)
    assert fault.code == "E-IMG-DAMAGED" and "Corrupt JPEG data" in fault.detail


def test_a_transparent_colour_needs_no_entry_in_the_table(tensorflow_shape):
    control = b"!\xf9\4\1\0\0\3\0"
    data = gif(control, gif_frame([0, 1, 3, 0]))
    assert isinstance(check_image(data, Check.DECODE), ImageInfo)
    assert tensorflow_shape(data) == (1, 2, 2, 3)


def test_metadata_that_pillow_refuses_is_kept_from_it(tensorflow_shape):
    for name in (b"gAMA", b"pHYs", b"iCCP", b"acTL"):
        data = png(ihdr(), chunk(name, b"\0"), idat())
        assert isinstance(check_image(data, Check.DECODE), ImageInfo)
        assert tensorflow_shape(data) == (2, 2, 1)


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError(), OSError(24, "Too many open files")]
)
def test_what_is_wrong_with_the_machine_is_no_fault_of_the_image(error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
    with pytest.raises(type(error)):
        check_image(png(), Check.DECODE)


def test_load_truncated_images_is_refused(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert isinstance(check_image(png()), ImageInfo)
    with pytest.raises(ValueError, match="LOAD_TRUNCATED_IMAGES must be False"):
        check_image(png(), Check.DECODE)


ENDS = {"jpeg": EOI, "png": chunk(b"IEND"), "gif": b"\0;", "bmp": b"\0"}


def mutant(data: bytes, format_: str, draw: random.Random) -> bytes:
    """Return a file with changed, lost, cut off or moved bytes."""
    at, other = draw.randrange(20, len(data)), draw.randrange(20, len(data))
    size = draw.choice((1, 2, 16, 64))
    match draw.choice(("change", "change", "cut", "lost", "move")):
        case "change":
            changed = bytearray(data)
            for _ in range(draw.choice((1, 1, 2, 5))):
                at = draw.randrange(draw.choice((min(200, len(data)), len(data))))
                changed[at] = draw.choice((changed[at] ^ 1 << at % 8, draw.randrange(256)))
            data = bytes(changed)
        case "cut":
            data = data[:at] + draw.choice((b"", ENDS[format_]))
        case "lost":
            data = data[:at] + data[at + size :]
        case "move":
            data = data[:at] + data[other : other + size] + data[at:]
    # Chance does not put checksums right, and a PNG with a wrong one is refused at once.
    return with_right_checksums(data) if format_ == "png" and draw.random() < 0.9 else data


def originals(format_: str) -> list[bytes]:
    """Return small images of all kinds of a format: drawn by Pillow, by hand, and odd files."""
    found = [*WHOLE.values()]
    for picture in (noise(), Image.linear_gradient("L").resize((40, 40))):
        found += [encoded(picture.convert(mode), "JPEG", **kind) for mode, kind in JPEG_KINDS]
        for mode, kind, save in CHANNELS:
            found.append(encoded(picture.convert("L").convert(mode), kind, **save))
    if SHARED_DATA.is_dir():
        found += [data for data in odd_files().values() if len(data) < 20_000]
    return [data for data in found if getattr(check_image(data), "format", "") == format_]


@pytest.mark.slow
@pytest.mark.parametrize("format_", ENDS)
def test_tensorflow_decodes_what_decode_accepts_of_mutants(format_, tensorflow_shape):
    draw, sources, accepted = random.Random(24), originals(format_), 0
    for _ in range(2500):
        data = mutant(draw.choice(sources), format_, draw)
        found, shape = check_image(data, Check.DECODE), tensorflow_shape(data)
        if isinstance(found, ImageInfo):
            assert shape is not None, data
            assert shape[-3:] == (found.height_px, found.width_px, found.channels), data
            accepted += 1
    assert accepted > 100
