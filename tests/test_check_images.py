import io
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageFile, PngImagePlugin

from tests.drawn_examples import draw
from tests.fuzz.images import with_right_checksums
from tests.small_images import (
    EOI,
    GIF_FRAME,
    GRAY_PALETTE,
    GRAY_SCAN,
    HUFFMAN,
    PNG_SIGNATURE,
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

# What each file is: format, width, height, orientation, traits; or why it is refused.
ODD = {
    "000010_0.png": ("jpeg", 960, 256, 1, ""),  # a JPEG by content
    "00r0_gray_l.jp2": "E-IMG-TYPE",
    "1.JPG": "E-IMG-EMPTY",
    "16_bit_noise.tif": "E-IMG-TYPE",
    "16bit.cropped.tif": "E-IMG-TYPE",
    "65536-uint32-limit.png": "E-IMG-PIXELS",
    "Landscape_6.jpg": ("jpeg", 1200, 1800, 6, "exif_orientation"),
    "Portrait_0.jpg": ("jpeg", 1200, 1800, 1, ""),  # orientation 0 in the file
    "Portrait_1.jpg": ("jpeg", 1200, 1800, 1, ""),
    "Portrait_2.jpg": ("jpeg", 1200, 1800, 2, "exif_orientation"),
    "Portrait_3.jpg": ("jpeg", 1200, 1800, 3, "exif_orientation"),
    "Portrait_4.jpg": ("jpeg", 1200, 1800, 4, "exif_orientation"),
    "Portrait_5.jpg": ("jpeg", 1800, 1200, 5, "exif_orientation"),
    "Portrait_6.jpg": ("jpeg", 1800, 1200, 6, "exif_orientation"),
    "Portrait_7.jpg": ("jpeg", 1800, 1200, 7, "exif_orientation"),
    "Portrait_8.jpg": ("jpeg", 1800, 1200, 8, "exif_orientation"),
    "anim_frame1.webp": "E-IMG-TYPE",
    "bad_huffman.jpg": ("jpeg", 1024, 768, 1, "trailing_bytes"),  # decodes without an error
    "basi2c08.png": ("png", 32, 32, 1, "interlaced"),
    "basn2c16.png": ("png", 32, 32, 1, "16_bit"),
    "basn6a16.png": ("png", 32, 32, 1, "16_bit alpha"),
    "broken.png": "E-IMG-DAMAGED",  # header of random bytes
    "broken_data_stream.png": "E-IMG-DAMAGED",  # checksum
    "broken_exif_dpi.jpg": ("jpeg", 100, 100, 1, "exif_serial"),
    "bw_gradient.png": ("png", 256, 10, 1, "gray"),
    "cat.jpg": ("jpeg", 320, 240, 1, "icc_profile progressive"),
    "chi.gif": ("gif", 320, 240, 1, "alpha animated palette"),
    "corrupt.jpg": ("jpeg", 120, 90, 1, ""),  # DECODE refuses it
    "corrupt34_2.jpg": "E-IMG-TRUNCATED",
    "corrupt34_3.jpg": "E-IMG-TRUNCATED",
    "corrupt34_4.jpg": "E-IMG-TRUNCATED",
    "cross_scan_line.png": ("png", 2, 2, 1, "gray"),
    "decompression_bomb.gif": "E-IMG-DAMAGED",  # frame outside of the canvas
    "decompression_bomb_extents.gif": "E-IMG-DAMAGED",  # TensorFlow clips its frame
    "delay.png": ("png", 128, 64, 1, "alpha animated"),
    "exif.png": ("png", 512, 512, 1, ""),
    "flower.jpg": ("jpeg", 480, 360, 1, ""),
    "flower.webp": "E-IMG-TYPE",
    "hopper.Lab.tif": "E-IMG-TYPE",
    "hopper.avif": "E-IMG-TYPE",
    "hopper.bmp": ("bmp", 128, 128, 1, ""),
    "hopper.gif": ("gif", 128, 128, 1, "palette"),
    "hopper.ico": "E-IMG-TYPE",
    "hopper.jpg": ("jpeg", 128, 128, 1, ""),
    "hopper.png": ("png", 128, 128, 1, ""),
    "hopper.ppm": "E-IMG-TYPE",
    "hopper.webp": "E-IMG-TYPE",
    "hopper_16bit_qtables.jpg": ("jpeg", 128, 128, 1, ""),
    "hopper_bad_exif.jpg": ("jpeg", 500, 500, 1, "gray"),
    "hopper_gray.jpg": ("jpeg", 128, 128, 1, "gray"),
    "hopper_idat_after_image_end.png": ("png", 128, 128, 1, ""),  # a second run of IDAT chunks
    "hopper_rle8_row_overflow.bmp": "E-IMG-TYPE",  # compressed
    "i_trns.png": ("png", 64, 64, 1, "16_bit alpha gray"),
    "invalid-exif.jpg": ("jpeg", 200, 200, 1, ""),
    "iss634.webp": "E-IMG-TYPE",
    "jpeg_ff00_header.jpg": ("jpeg", 300, 225, 1, "icc_profile junk_bytes"),
    "jpeg_merge_test1_cmyk.jpg": ("jpeg", 128, 256, 1, "cmyk"),
    "junk_jpeg_header.jpg": ("jpeg", 1024, 768, 1, "junk_bytes"),
    "l_trns.png": ("png", 64, 64, 1, "alpha gray"),
    "lite_demo.jpg": ("png", 2356, 968, 1, "alpha icc_profile"),  # a PNG by content
    "monkey16.png": ("png", 149, 227, 1, "16_bit icc_profile"),
    "multipage.tiff": "E-IMG-TYPE",
    "multiple_exif.jpg": ("jpeg", 1, 1, 1, "gray"),
    "no_palette.gif": "E-IMG-TYPE",  # TensorFlow wants a colour table
    "p_trns_single.png": ("png", 64, 64, 1, "alpha palette"),
    "padded_idat.png": ("png", 256, 10, 1, "gray"),
    "pal1.bmp": "E-IMG-TYPE",  # 1 bit
    "pal8rle.bmp": "E-IMG-TYPE",  # compressed
    "pil123p.png": ("png", 162, 150, 1, "alpha interlaced palette"),
    "pil123rgba.png": ("png", 162, 150, 1, "alpha interlaced"),
    "pil_sample_cmyk.jpg": ("jpeg", 100, 100, 1, "cmyk"),
    "pil_sample_rgb.jpg": ("jpeg", 100, 100, 1, "icc_profile"),
    "png_decompression_dos.png": ("png", 1, 1, 1, "gray"),  # text chunk that inflates to 64 MB
    "rgb16-565.bmp": "E-IMG-TYPE",  # 16 bits
    "rgb_trns.png": ("png", 64, 64, 1, "alpha"),
    "rgba32.bmp": "E-IMG-TYPE",  # channel masks that TensorFlow ignores
    "rot1mir0.avif": "E-IMG-TYPE",
    "sugarshack_bad_mpo_header.jpg": ("jpeg", 640, 480, 1, "multi_picture trailing_bytes"),
    "tRNS_null_1x1.png": ("png", 1, 1, 1, "alpha palette trailing_bytes"),
    "testimgari.jpg": ("jpeg", 227, 149, 1, "arithmetic"),
    "text_file.jpg": "E-IMG-TYPE",
    "tiff_tiled_cmyk_jpeg.tif": "E-IMG-TYPE",
    "transparent.gif": ("gif", 200, 150, 1, "alpha palette"),
    "transparent.png": ("png", 200, 150, 1, "alpha"),
    "transparent.webp": "E-IMG-TYPE",
    "truncated_app14.jpg": ("jpeg", 100, 100, 1, "icc_profile junk_bytes"),
    "truncated_end_chunk.png": "E-IMG-TRUNCATED",
    "truncated_image.png": "E-IMG-TRUNCATED",
    "truncated_jpeg.jpg": "E-IMG-TRUNCATED",
    "ultrahdr.jpg": "E-IMG-TRUNCATED",  # cut before the end
    "uncompressed_la.png": ("png", 128, 128, 1, "alpha gray"),
    "unknown_compression_method.png": "E-IMG-DAMAGED",  # checksum of its profile
    "xmp_tags_orientation.png": ("png", 326, 268, 1, "alpha icc_profile"),  # XMP has one
    "zero_width.gif": "E-IMG-DAMAGED",
}
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


def verdict(found: ImageInfo | ImageFault) -> tuple[str, int, int, int, str] | str:
    if isinstance(found, ImageFault):
        return found.code
    traits = " ".join(found.traits)
    return found.format, found.width_px, found.height_px, found.orientation, traits


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
    def test_table_holds_every_file(self):
        assert sorted(odd_files()) == sorted(ODD)
        assert len(ODD) == 94

    @pytest.mark.parametrize("name", ODD)
    def test_verdict(self, name):
        data = (SHARED_DATA / "odd" / name).read_bytes()
        decoded = check_image(data, Check.DECODE)
        damaged = DAMAGED_INSIDE | FILLED_UP_BY_TENSORFLOW
        assert verdict(check_image(data)) == ODD[name]
        assert verdict(decoded) == ("E-IMG-DAMAGED" if name in damaged else ODD[name])

    def test_sizes_and_orientations_are_those_that_pillow_and_opencv_were_seen_to_read(self):
        seen = json.loads((SHARED_DATA / "odd" / "expected.json").read_text())["files"]
        for name, facts in ODD.items():
            opened = seen[name]["pillow"]["open"]
            if isinstance(facts, tuple) and opened["ok"]:
                assert [facts[1], facts[2]] == opened["size"], name
                if name not in ("Portrait_0.jpg", "xmp_tags_orientation.png"):
                    assert facts[3] == opened.get("exif_orientation", 1), name

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

    def test_the_bmp_with_other_masks_is_read_wrongly_by_tensorflow(self, tensorflow_shape):
        tensorflow = pytest.importorskip("tensorflow")
        data = (SHARED_DATA / "odd" / "rgba32.bmp").read_bytes()
        as_meant = Image.open(io.BytesIO(data)).tobytes()
        assert tensorflow.io.decode_image(data).numpy().tobytes() != as_meant


@needs_shared_data
class TestPhotos:
    @pytest.mark.parametrize("check", Check)
    @pytest.mark.parametrize(
        ("pattern", "format_", "count"),
        [
            ("coco_*/**/*.jpg", "jpeg", 58),
            ("classes/**/*.jpg", "jpeg", 120),
            ("pairs/**/*.png", "png", 24),
            ("coco_*/**/panoptic/*.png", "png", 26),
        ],
    )
    def test_all_pass_at_the_size_that_pillow_reads(self, pattern, format_, count, check):
        all_photos = photos(pattern)
        assert len(all_photos) == count
        for data in all_photos:
            found = check_image(data, check)
            with Image.open(io.BytesIO(data)) as image:
                assert (found.format, found.width_px, found.height_px) == (format_, *image.size)

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
    def test_max_pixels_is_the_largest_allowed(self, name):
        found = check_image(WHOLE[name])
        frames = 2 if name == "gif by hand" else 1
        pixels = found.width_px * found.height_px * frames
        assert check_image(WHOLE[name], max_pixels=pixels) == found
        assert check_image(WHOLE[name], max_pixels=pixels - 1).code == "E-IMG-PIXELS"

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
    def test_data_that_lasts_is_told_from_data_that_does_not(self, mode, options, size):
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

    def test_details_are_one_short_line_without_addresses(self, monkeypatch):
        def fail(*_):
            raise SyntaxError(f"bad\n\x1b[0m\u202e <object at {hex(id(self))}> " + "x" * 500)

        monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", fail)
        detail = check_image(png(), Check.DECODE).detail
        assert detail.startswith(r"SyntaxError: bad \x1b[0m\u202e <object at 0x> xxx")
        assert len(detail) == 100

    def test_a_decoder_of_another_size_is_not_trusted(self, monkeypatch):
        monkeypatch.setattr(PngImagePlugin.PngImageFile, "size", (9, 9), raising=False)
        assert check_image(png(), Check.DECODE) == ImageFault(
            "E-IMG-DAMAGED", "decoder's size 9 x 9 is not the header's"
        )

    def test_a_process_that_tolerates_truncated_images_is_told(self, monkeypatch):
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
        assert isinstance(check_image(png()), ImageInfo)
        with pytest.raises(ValueError, match="LOAD_TRUNCATED_IMAGES must be False"):
            check_image(png(), Check.DECODE)

    def test_pillows_own_limit_is_not_used(self, monkeypatch, recwarn):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
        for data in WHOLE.values():
            assert isinstance(check_image(data, Check.DECODE), ImageInfo)
        assert list(recwarn) == []


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


def test_threads_find_what_one_thread_finds():
    images = [*WHOLE.values(), b"text", jpeg(data=b"")] * 20
    alone = [check_image(data, Check.DECODE) for data in images]
    ready = threading.Barrier(8)

    def check_all(_: int) -> list[ImageInfo | ImageFault]:
        ready.wait()
        return [check_image(data, Check.DECODE) for data in images]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(check_all, range(8))) == [alone] * 8


def assert_sound(data: bytes) -> None:
    """Assert what holds for any bytes at all."""
    found, decoded = check_image(data), check_image(data, Check.DECODE)
    assert found == check_image(data)
    if isinstance(found, ImageInfo):
        assert found.width_px > 0 and found.height_px > 0
        assert 1 <= found.orientation <= 8
        assert found.traits == tuple(sorted(set(found.traits) & set(TRAITS)))
        # E-IMG-TYPE: of a frame behind the first scan, where the header check does not look.
        late = ("E-IMG-DAMAGED", "E-IMG-TRUNCATED", "E-IMG-TYPE")
        assert decoded == found or decoded.code in late
    else:
        assert decoded == found
        assert found.detail.isascii() and found.detail.isprintable() and len(found.detail) < 160


class TestHostileBytes:
    @draw(500)
    @given(st.binary(max_size=300))
    @example(b"\xff\xd8\xff")
    @example(b"\xff\xd8" + b"\xff" * 100)
    def test_any_bytes(self, data):
        assert_sound(data)

    @draw(1000)
    @given(
        st.sampled_from([b"\xff\xd8\xff", PNG_SIGNATURE, ihdr(), b"GIF89a", b"BM", gif()[:19]]),
        st.binary(max_size=200),
    )
    def test_any_bytes_behind_a_signature(self, signature, data):
        assert_sound((PNG_SIGNATURE if signature == ihdr() else b"") + signature + data)

    @draw(1000)
    @given(
        st.sampled_from(sorted(WHOLE)),
        st.lists(st.tuples(st.integers(min_value=0), st.integers(0, 255)), min_size=1, max_size=6),
    )
    def test_changed_bytes(self, name, changes):
        data = bytearray(WHOLE[name])
        for position, value in changes:
            data[position % len(data)] = value
        assert_sound(bytes(data))

    @pytest.mark.parametrize("name", ["jpeg by hand", "png by hand", "gif by hand"])
    def test_every_flipped_bit(self, name):
        for bit in range(8 * len(WHOLE[name])):
            data = bytearray(WHOLE[name])
            data[bit // 8] ^= 1 << bit % 8
            assert_sound(bytes(data))


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

# Mutants that `Check.DECODE` accepts and TensorFlow refuses: what is odd about them, and the reason
# why they are accepted. There are none by now.
ACCEPTED_THOUGH_TENSORFLOW_REFUSES: dict[bytes, str] = {}


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
        if isinstance(found, ImageInfo) and data not in ACCEPTED_THOUGH_TENSORFLOW_REFUSES:
            assert shape is not None, data
            assert shape[-3:] == (found.height_px, found.width_px, found.channels), data
    print(f"{format_}: {counts['refused', True]} mutants are refused that TensorFlow decodes")
    assert counts["accepted", True] > 200
