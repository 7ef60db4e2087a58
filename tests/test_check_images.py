import io
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image, ImageFile, PngImagePlugin

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
from transforms.images.check_images import TRAITS, Check, ImageFault, ImageInfo, check_image

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


def photos(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(SHARED_DATA.glob(pattern))]


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
class TestOddFiles:
    def test_what_decode_accepts_tensorflow_decodes_to_that_shape(self, tensorflow_shape):
        for name, data in odd_files().items():
            found, shape = check_image(data, Check.DECODE), tensorflow_shape(data)
            if isinstance(found, ImageInfo):
                assert shape is not None, name
                assert shape[-3:] == (found.height_px, found.width_px, found.channels), name

    def test_what_header_accepts_tensorflow_decodes_but_for_what_is_damaged_inside(
        self, tensorflow_shape
    ):
        refused = {
            name
            for name, data in odd_files().items()
            if isinstance(check_image(data), ImageInfo) and tensorflow_shape(data) is None
        }
        assert refused == DAMAGED_INSIDE

    def test_what_tensorflow_decodes_is_accepted_but_for_a_list(self, tensorflow_shape):
        refused = {
            name
            for name, data in odd_files().items()
            if isinstance(check_image(data), ImageFault) and tensorflow_shape(data) is not None
        }
        assert refused == STRICTER_THAN_TENSORFLOW


@needs_shared_data
class TestPhotos:
    def test_every_truncation_is_caught(self):
        draw = random.Random(0)
        for data in photos("coco_*/**/*.jpg"):
            cuts = {1, 2, 3, 4, len(data) - 2, len(data) - 1}
            for cut in cuts | {draw.randrange(5, len(data)) for _ in range(100)}:
                assert check_image(data[:cut]).code == "E-IMG-TRUNCATED", cut

    def test_lost_sectors_are_found_by_decoding(self):
        for data in photos("coco_val/**/*.jpg")[:5]:
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


class TestDispatch:
    @pytest.mark.parametrize(
        ("data", "format_"),
        [(jpeg(), "jpeg"), (png(), "png"), (gif(), "gif"), (bmp(), "bmp")],
    )
    def test_format_is_found_by_content(self, data, format_):
        assert check_image(data).format == format_
        assert check_image(data, Check.DECODE) == check_image(data)

    @pytest.mark.parametrize(
        ("data", "code", "detail"),
        [
            (b"", "E-IMG-EMPTY", "0 bytes"),
            (b"\xff", "E-IMG-TRUNCATED", "1 bytes, a signature takes more"),
            (b"\xff\xd8", "E-IMG-TRUNCATED", "2 bytes, a signature takes more"),
            (b"\x89PNG\r\n", "E-IMG-TRUNCATED", "6 bytes, a signature takes more"),
            (b"GIF89", "E-IMG-TRUNCATED", "5 bytes, a signature takes more"),
            (b"B", "E-IMG-TRUNCATED", "1 bytes, a signature takes more"),
            (b"GIF90a" + gif()[6:], "E-IMG-TYPE", "a GIF of an unknown version"),
            (b"RIFF\0\0\0\0WEBPVP8X", "E-IMG-TYPE", "WebP, which --reencode converts"),
            (b"hello", "E-IMG-TYPE", "text"),
            (b"\x00\x01\x02", "E-IMG-TYPE", "unknown, starts with 000102"),
        ],
    )
    def test_what_is_no_image_is_refused(self, data, code, detail):
        assert check_image(data) == ImageFault(code, detail)
        assert check_image(data, Check.DECODE) == ImageFault(code, detail)

    @pytest.mark.parametrize("name", WHOLE)
    def test_every_truncation_is_caught(self, name):
        data = WHOLE[name]
        for cut in range(1, len(data)):
            for check in Check:
                assert check_image(data[:cut], check).code == "E-IMG-TRUNCATED", (cut, check)

    @pytest.mark.parametrize("name", ["jpeg", "progressive", "png", "gif"])
    def test_cutting_off_trailing_bytes_is_none(self, name):
        whole = check_image(WHOLE[name])
        for trailing in range(1, 20):
            found = check_image(WHOLE[name] + bytes(trailing), Check.DECODE)
            assert set(found.traits) == {*whole.traits, "trailing_bytes"}


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


class TestDecode:
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
    def test_damage_inside_is_found(self, remark, data, detail, tensorflow_shape):
        assert isinstance(check_image(data), ImageInfo), remark
        assert check_image(data, Check.DECODE) == ImageFault("E-IMG-DAMAGED", detail)
        if detail != OUT_OF_DATA:  # which TensorFlow fills up with gray
            assert tensorflow_shape(data) is None

    def test_progressive_data_that_runs_out_is_found(self):
        data = WHOLE["progressive"]
        first_scan = data.index(b"\xff\xda") + 14
        assert check_image(data, Check.DECODE) == check_image(data)
        shorter = data[: first_scan + 4] + data[data.index(b"\xff\xc4", first_scan) :]
        assert isinstance(check_image(shorter), ImageInfo)
        assert check_image(shorter, Check.DECODE).code == "E-IMG-DAMAGED"

    @pytest.mark.parametrize("size", [(40, 40), (33, 17), (64, 9), (24, 24), (5, 40)])
    @pytest.mark.parametrize(("mode", "options"), JPEG_KINDS)
    def test_data_that_runs_out_is_found(self, mode, options, size):
        gray = Image.new(mode, size, "gray")  # what libjpeg goes on with
        for picture in (noise(mode, size), gray):
            data = encoded(picture, "JPEG", **options)
            assert check_image(data, Check.DECODE) == check_image(data)
        data = encoded(noise(mode, size), "JPEG", **options)
        fault = check_image(data[:-42] + EOI, Check.DECODE)
        assert fault.code == "E-IMG-DAMAGED" and "Corrupt JPEG data" in fault.detail

    def test_arithmetic_coding_may_leave_out_zeros(self):
        data = jpeg(QUANTIZATION, frame(marker=0xC9), GRAY_SCAN, data=b"")
        assert check_image(data, Check.DECODE).traits == ("arithmetic", "gray")

    def test_a_transparent_colour_needs_no_entry_in_the_table(self, tensorflow_shape):
        control = b"!\xf9\4\1\0\0\3\0"
        data = gif(control, gif_frame([0, 1, 3, 0]))
        assert isinstance(check_image(data, Check.DECODE), ImageInfo)
        assert tensorflow_shape(data) == (1, 2, 2, 3)

    def test_metadata_that_pillow_refuses_is_kept_from_it(self, tensorflow_shape):
        for name in (b"gAMA", b"pHYs", b"iCCP", b"acTL"):
            data = png(ihdr(), chunk(name, b"\0"), idat())
            assert isinstance(check_image(data, Check.DECODE), ImageInfo)
            assert tensorflow_shape(data) == (2, 2, 1)

    @pytest.mark.parametrize(
        "error", [MemoryError(), RecursionError(), OSError(24, "Too many open files")]
    )
    def test_what_is_wrong_with_the_machine_is_no_fault_of_the_image(self, error, monkeypatch):
        def fail(*_):
            raise error

        monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
        with pytest.raises(type(error)):
            check_image(png(), Check.DECODE)

    def test_load_truncated_images_is_refused(self, monkeypatch):
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        assert isinstance(check_image(png()), ImageInfo)
        with pytest.raises(ValueError, match="LOAD_TRUNCATED_IMAGES must be False"):
            check_image(png(), Check.DECODE)


def test_the_header_check_imports_no_decoder():
    code = (
        "import sys\n"
        "from transforms.images.check_images import check_image\n"
        f"check_image({jpeg()!r}), check_image({png()!r})\n"
        "print([name for name in ('PIL', 'tensorflow', 'apache_beam') if name in sys.modules])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout == "[]\n"


# Where a block of each format begins, about: mutants lose, repeat and move whole ones.
BLOCK_STARTS = {
    "jpeg": re.compile(rb"(?=\xff[\xc0-\xfe])"),
    "png": re.compile(rb"(?s)(?=.{4}(?:IHDR|PLTE|tRNS|IDAT|tEXt|acTL|IEND))"),
    "gif": re.compile(rb"(?=![\x00\xf9\xfe\xff]|,\0\0\0\0|;$)"),
    "bmp": re.compile(rb"(?s)(?<=\A.{14})|(?<=\A.{54})"),
}
EMPTY_BLOCKS = {
    "jpeg": [segment(0xFE), EOI, b"\xff\xd0"],
    "png": [chunk(b"IDAT"), chunk(b"tEXt"), chunk(b"tRNS")],
    "gif": [b"!\xfe\0", b"!\xf9\0", b"!\xfe\0\0"],
    "bmp": [bytes(4)],
}
ENDS = {"jpeg": EOI, "png": chunk(b"IEND"), "gif": b"\0;", "bmp": b"\0"}
KINDS_OF_MUTANTS = ["bits", "bytes", "cut", "lost", "drop", "repeat", "move", "empty"]


def mutant(data: bytes, format_: str, draw: random.Random) -> bytes:
    kind, at = draw.choice(KINDS_OF_MUTANTS), draw.randrange(20, len(data))
    blocks = BLOCK_STARTS[format_].split(data)
    place, other = draw.randrange(len(blocks)), draw.randrange(1, len(blocks))
    changed = bytearray(data)
    match kind:
        case "bits" | "bytes":
            for _ in range(draw.choice((1, 1, 2, 5))):
                at = draw.randrange(draw.choice((min(200, len(data)), len(data))))
                changed[at] = changed[at] ^ 1 << at % 8 if kind == "bits" else draw.randrange(256)
            data = bytes(changed)
        case "cut":
            data = data[:at] + draw.choice((b"", ENDS[format_]))
        case "lost":
            data = data[:at] + data[at + draw.choice((1, 2, 16, 64)) :]
        case "drop":
            data = b"".join(blocks[:place] + blocks[place + 1 :])
        case "repeat" | "move":
            moved = blocks[place] if kind == "repeat" else blocks.pop(place)
            data = b"".join([*blocks[:other], moved, *blocks[other:]])
        case "empty":
            block = draw.choice(EMPTY_BLOCKS[format_])
            data = b"".join([*blocks[:other], block, *blocks[other:]])
    # Chance does not put checksums right, and a PNG with a wrong one is refused at once.
    return with_right_checksums(data) if format_ == "png" and draw.random() < 0.9 else data


def originals(format_: str) -> list[bytes]:
    """Return small images of all kinds of a format: drawn by Pillow, by hand, and odd files."""
    found = [data for name, data in WHOLE.items() if check_image(data).format == format_]
    gradient = Image.linear_gradient("L").resize((40, 40))
    for image in (noise(), gradient):
        if format_ == "jpeg":
            found += [encoded(image.convert(mode), "JPEG", **kind) for mode, kind in JPEG_KINDS]
        elif format_ == "png":
            modes = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
            found += [encoded(image.convert("L").convert(mode), "PNG") for mode in modes]
        elif format_ == "bmp":
            found += [encoded(image.convert(mode), "BMP") for mode in ("L", "RGB", "RGBA")]
        else:
            frames = [noise("P", image.size), Image.new("P", image.size, 3)]
            options = {"save_all": True, "append_images": frames, "comment": b"a comment"}
            found += [encoded(image.convert("P"), "GIF", **kind) for kind in ({}, options)]
    if SHARED_DATA.is_dir():
        small = [data for data in odd_files().values() if len(data) < 20_000]
        found += [data for data in small if getattr(check_image(data), "format", "") == format_]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("format_", BLOCK_STARTS)
def test_tensorflow_decodes_what_decode_accepts_of_mutants(format_, tensorflow_shape):
    draw, sources, counts = random.Random(24), originals(format_), Counter()
    for _ in range(2500):
        data = mutant(draw.choice(sources), format_, draw)
        found, shape = check_image(data, Check.DECODE), tensorflow_shape(data)
        counts["accepted" if isinstance(found, ImageInfo) else "refused", shape is not None] += 1
        if isinstance(found, ImageInfo):
            assert shape is not None, data
            assert shape[-3:] == (found.height_px, found.width_px, found.channels), data
    print(f"{format_}: {counts['refused', True]} mutants are refused that TensorFlow decodes")
    assert counts["accepted", True] > 200
