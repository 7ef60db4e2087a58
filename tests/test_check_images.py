import os
import random
from collections.abc import Callable
from typing import Any

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
    verdict,
)
from tests.turned_images import DATA, odd_files, saved
from transforms.images.check_images import Check, check_image
from transforms.images.findings import TRAITS

Shape = Callable[[bytes], tuple[int, ...] | None]

# Their structure is whole, and their pixels do not decode.
DAMAGED_INSIDE = {"corrupt.jpg"}
# TensorFlow decodes these with gray or noise where their data is damaged.
FILLED_UP_BY_TENSORFLOW = {"bad_huffman.jpg", "hopper_bad_exif.jpg"}
STRICTER_THAN_TENSORFLOW = {
    # Formats that the data set is not to hold.
    *("anim_frame1.webp", "flower.webp", "hopper.webp", "iss634.webp", "transparent.webp"),
    "rgba32.bmp",  # TensorFlow reads its channels in the wrong order
    "decompression_bomb_extents.gif",  # Pillow calls it a bomb
    "unknown_compression_method.png",  # TensorFlow ignores checksums of metadata
}


@pytest.fixture(scope="module")
def tensorflow_shape() -> Shape:
    """Return the shape of a decoded image, or None where TensorFlow refuses it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")

    def shape(data: bytes) -> tuple[int, ...] | None:
        try:
            return tuple(tensorflow.io.decode_image(data).shape)
        except tensorflow.errors.InvalidArgumentError:
            return None

    return shape


def decodes(data: bytes, tensorflow_shape: Shape) -> bool:
    """Return whether the decode check accepts a file, which TensorFlow must then read as it is."""
    found = verdict(data, Check.DECODE)
    if isinstance(found, str):
        return False
    shape = tensorflow_shape(data)
    assert shape is not None and shape[-3:] == (*found.size_px[::-1], found.channels), data
    return True


def test_odd_files_have_the_verdicts_of_tensorflow_but_for_a_list(tensorflow_shape: Shape) -> None:
    files, damaged, stricter = odd_files(), set(), set()
    for name, data in files.items():
        accepted, shape = isinstance(verdict(data), ImageInfo), tensorflow_shape(data)
        if not accepted and shape is not None:
            stricter.add(name)
        if accepted and shape is None:
            damaged.add(name)
        if not decodes(data, tensorflow_shape) and accepted and shape is not None:
            assert name in FILLED_UP_BY_TENSORFLOW
    assert damaged == DAMAGED_INSIDE & files.keys()
    assert stricter == STRICTER_THAN_TENSORFLOW & files.keys()


def test_a_lost_sector_is_found() -> None:
    for path in sorted((DATA / "coco_val" / "images").glob("*.jpg"))[:5]:
        data = path.read_bytes()
        middle = len(data) // 2
        damaged = data[:middle] + data[middle + 4096 :]
        assert isinstance(verdict(damaged), ImageInfo)
        assert str(verdict(damaged, Check.DECODE)).startswith("DAMAGED")


def noise(mode: str = "RGB", size: tuple[int, int] = (33, 21)) -> Image.Image:
    pixels = random.Random(0).randbytes(3 * size[0] * size[1])
    return Image.frombytes("RGB", size, pixels).convert(mode)


# Modes and options of JPEGs whose data is laid out in different ways.
JPEG_KINDS: list[tuple[str, dict[str, Any]]] = [
    *(("RGB", {"subsampling": kind}) for kind in ("4:4:4", "4:2:2", "4:2:0")),
    *(("RGB", {option: True}) for option in ("keep_rgb", "progressive")),
    *(("RGB", {"restart_marker_rows": 1}), ("RGB", {"restart_marker_blocks": 2})),
    *(("L", {}), ("CMYK", {})),
]

# Small files of every kind, for the tests that go through all of their bytes.
WHOLE = {
    "jpeg": saved(noise(), "JPEG"),
    "jpeg by hand": jpeg(),
    "progressive": saved(noise(), "JPEG", progressive=True),
    "restarts": saved(noise("L"), "JPEG", restart_marker_blocks=2),
    "cmyk": saved(noise("CMYK"), "JPEG", quality=10),
    "png": saved(noise("RGB", (9, 7)), "PNG"),
    "png by hand": png(),
    "palette png": saved(noise("P", (9, 7)), "PNG"),
    "gif": saved(noise("P", (9, 7)), "GIF"),
    "gif by hand": gif(GIF_FRAME, gif_frame([1, 1, 1, 1])),
    "bmp": saved(noise("RGB", (9, 7)), "BMP"),
    "gray bmp": bmp(bits=8, palette=GRAY_PALETTE),
}


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "EMPTY: 0 bytes"),
        (b"\xff\xd8", "TRUNCATED: 2 bytes, a signature takes more"),
        (b"\x89PNG\r\n", "TRUNCATED: 6 bytes, a signature takes more"),
        (b"GIF89", "TRUNCATED: 5 bytes, a signature takes more"),
        (b"B", "TRUNCATED: 1 bytes, a signature takes more"),
        (b"RIFF\0\0\0\0WEBPVP8X", "TYPE: WebP, which --reencode converts"),
        (b"hello", "TYPE: text"),
        (b"\x00\x01\x02", "TYPE: unknown, starts with 000102"),
    ],
)
def test_other_bytes_are_refused(data: bytes, fault: str) -> None:
    assert [verdict(data, check) for check in Check] == [fault, fault]


@pytest.mark.parametrize("name", WHOLE)
def test_every_truncation_is_caught(name: str) -> None:
    data = WHOLE[name]
    assert check_image(data, Check.DECODE) == check_image(data)
    for cut in range(1, len(data)):
        for check in Check:
            assert str(verdict(data[:cut], check)).startswith("TRUNCATED"), (cut, check)


# Pillow's mode and format, options.
CHANNELS: list[tuple[str, str, dict[str, Any]]] = [
    *(("RGB", "JPEG", {}), ("L", "JPEG", {}), ("CMYK", "JPEG", {})),
    *((mode, "PNG", {}) for mode in ("RGB", "L", "1", "I;16", "LA", "RGBA", "P")),
    *(("P", "PNG", {"transparency": 0}), ("L", "PNG", {"transparency": 0})),
    *(("RGB", "PNG", {"transparency": (0, 0, 0)}), ("P", "GIF", {})),
    *((mode, "BMP", {}) for mode in ("RGB", "L", "RGBA")),
]
PLTE = chunk(b"PLTE", bytes(9))
DECODED = [
    *(saved(Image.new(mode, (5, 4)), kind, **save) for mode, kind, save in CHANNELS),
    # libpng ignores these transparent entries of a palette.
    png(ihdr(colour_type=3), PLTE, idat(), chunk(b"tRNS", b"\0")),  # after the pixels
    png(ihdr(colour_type=3), chunk(b"tRNS", b"\0"), PLTE, idat()),  # before the palette
    png(ihdr(colour_type=3, bits=1), PLTE, chunk(b"tRNS", bytes(3)), idat()),  # too many
    # The transparent colour needs no entry in the table, ...
    gif(b"!\xf9\4\1\0\0\3\0", gif_frame([0, 1, 3, 0])),
    # ... and is ignored where it does not fit.
    png(ihdr(1, 1, 8, 0), chunk(b"tRNS", b"\1"), idat(bytes(2))),
    png(ihdr(1, 1, 8, 2), chunk(b"tRNS", b"\1"), idat(bytes(4))),
    # Pillow refuses such metadata.
    *(png(ihdr(), chunk(name, b"\0"), idat()) for name in (b"gAMA", b"pHYs", b"iCCP", b"acTL")),
]


def test_channels_are_those_that_tensorflow_decodes(tensorflow_shape: Shape) -> None:
    for data in DECODED:
        assert decodes(data, tensorflow_shape), data


ONE_OF_EACH_TRAIT = [
    png(ihdr(bits=16), idat(bytes(10))),  # 16_bit, gray
    png(ihdr(colour_type=6), chunk(b"acTL", bytes(8)), idat(bytes(18))),  # alpha, animated
    # arithmetic, progressive
    jpeg(QUANTIZATION, frame(marker=0xCA), segment(0xDA, b"\1\1" + bytes(4))),
    saved(noise("CMYK"), "JPEG", icc_profile=b"profile"),  # cmyk, icc_profile
    gray_jpeg_with(
        segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 3, 1, b"\0\6") + entry(0x8825, 4, 1, b""))),
        segment(0xE2, b"MPF\0"),
    ),  # exif_orientation, exif_gps, multi_picture
    png(ihdr(), chunk(b"eXIf", exif(entry(0xC62F, 2, 4, b"123\0"))), idat()),  # exif_serial
    gif(gif_frame([0, 1, 1, 0], flags=0x40)),  # interlaced, palette
    gray_jpeg_with(segment(0xFE), b"junk") + b"trailing",  # junk_bytes, trailing_bytes
    bmp(height_px=-2),  # top_down
]


def test_every_trait_can_be_found_and_is_explained() -> None:
    found = {trait for data in ONE_OF_EACH_TRAIT for trait in check_image(data).traits}
    assert found == set(TRAITS)
    assert list(TRAITS) == sorted(TRAITS)


OUT_OF_DATA = "ValueError: Corrupt JPEG data: premature end of data segment"
THREE_CODES_OF_ONE_BIT = segment(0xC4, b"\0\3" + bytes(18)) + HUFFMAN[21:]
FIRST_BLOCK = WHOLE["jpeg"].index(b"\xff\xda") + 14


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (
            jpeg(QUANTIZATION, frame(), THREE_CODES_OF_ONE_BIT, GRAY_SCAN),
            "ValueError: Bogus Huffman table definition",
        ),
        (WHOLE["jpeg"][:FIRST_BLOCK] + EOI, OUT_OF_DATA),
        (WHOLE["jpeg"][:-400] + EOI + WHOLE["jpeg"][-400:], OUT_OF_DATA),
        (
            png(ihdr(), idat(b"\x09\0\0\0\0\0")),  # filter type 9
            "OSError: unrecognized data stream contents when reading image file",
        ),
        (gif(gif_frame([0, 1, 1])), "ValueError: not enough image data"),
        (gif(gif_frame([0, 1, 2, 0])), "colour 2 of 2 in a frame"),
        (gif(GIF_FRAME, gif_frame([3], 1, 1)), "colour 3 of 2 in a frame"),
    ],
)
def test_damage_inside_is_found(data: bytes, detail: str, tensorflow_shape: Shape) -> None:
    assert isinstance(verdict(data), ImageInfo)
    assert verdict(data, Check.DECODE) == f"DAMAGED: {detail}"
    if detail != OUT_OF_DATA:  # which TensorFlow fills up with gray
        assert tensorflow_shape(data) is None


@pytest.mark.parametrize("size", [(40, 40), (33, 17), (5, 40)])
@pytest.mark.parametrize(("mode", "options"), JPEG_KINDS)
def test_data_that_runs_out_is_found(
    mode: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    gray = Image.new(mode, size, "gray")  # what libjpeg goes on with
    for picture in (gray, noise(mode, size)):
        data = saved(picture, "JPEG", **options)
        assert check_image(data, Check.DECODE) == check_image(data)
    fault = str(verdict(data[:-42] + EOI, Check.DECODE))
    assert fault.startswith("DAMAGED") and "Corrupt JPEG data" in fault


@pytest.mark.parametrize(
    "error", [MemoryError(), RecursionError(), OSError(24, "Too many open files")]
)
def test_what_is_wrong_with_the_machine_is_no_fault_of_the_image(
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
    found = [*WHOLE.values(), *(data for data in odd_files().values() if len(data) < 20_000)]
    for picture in (noise(), Image.linear_gradient("L").resize((40, 40))):
        found += [saved(picture.convert(mode), "JPEG", **kind) for mode, kind in JPEG_KINDS]
        for mode, kind, save in CHANNELS:
            found.append(saved(picture.convert("L").convert(mode), kind, **save))
    return [data for data in found if getattr(verdict(data), "format", "") == format_]


@pytest.mark.slow
@pytest.mark.parametrize("format_", ENDS)
def test_tensorflow_decodes_what_decode_accepts_of_mutants(
    format_: str, tensorflow_shape: Shape
) -> None:
    draw, sources = random.Random(24), originals(format_)
    mutants = [mutant(draw.choice(sources), format_, draw) for _ in range(2500)]
    assert sum(decodes(data, tensorflow_shape) for data in mutants) > 100
