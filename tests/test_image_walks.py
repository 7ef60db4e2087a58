"""Walks of JPEG, PNG, GIF and BMP: what is accepted with which facts, and what is refused."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.fields import ImageInfo
from tests.small_images import (
    EOI,
    GIF_FRAME,
    GRAY_PALETTE,
    GRAY_SCAN,
    HUFFMAN,
    IEND,
    PNG_SIGNATURE,
    QUANTIZATION,
    SOI,
    YCBCR,
    YCBCR_SCAN,
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
from transforms.images import png as png_module
from transforms.images.check_images import Check, check_image
from transforms.images.exif import read_exif
from transforms.images.findings import MAX_PIXELS, BadImage, ImageFault, name_kind
from transforms.images.jpeg import MAX_SCANS, MAX_SEGMENTS, jpeg_for_decoder
from transforms.images.png import png_for_decoder

ROTATED = entry(0x0112, 3, 1, b"\0\6")
PROGRESSIVE_SCAN = segment(0xDA, b"\1\1\0\0\0\0")
PLTE, TEXT = chunk(b"PLTE", b"rgb"), chunk(b"tEXt", b"a\0b")
PIXELS = zlib.compress(bytes(6))
CONTROL, COMMENT = b"!\xf9\4\1\0\0\7\0", b"!\xfe\3abc\2de\0"
BGRA = struct.pack("<III", 0x00FF0000, 0x0000FF00, 0x000000FF)
OS2 = b"BM" + struct.pack("<IHHIIHHHH", 0, 0, 0, 26, 12, 3, 2, 1, 24) + bytes(40)


def jpeg_of(*components: bytes, scan: bytes = YCBCR_SCAN) -> bytes:
    return jpeg(QUANTIZATION, frame(components=b"".join(components)), scan)


def scan_of(*ids: int) -> bytes:
    return segment(0xDA, bytes([len(ids)]) + b"".join(bytes([i, 0]) for i in ids) + b"\0\x3f\0")


def exif_segment(orientation: int) -> bytes:
    return segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 3, 1, bytes([0, orientation]))))


# Each with its traits; "gray" and "alpha" say how many channels there are, palettes have three.
JPEGS = {
    "gray": (jpeg(), "gray"),
    "YCbCr": (jpeg_of(YCBCR), ""),
    "4:2:0": (jpeg_of(b"\1\x22\0\2\x11\0\3\x11\0"), ""),
    "CMYK, 10 blocks in a unit": (
        jpeg_of(b"\1\x22\0\2\x11\0\3\x11\0\4\x22\0", scan=scan_of(1, 2, 3, 4)),
        "cmyk",
    ),
    "components of equal ids": (jpeg_of(b"\1\x11\0" * 3, scan=scan_of(1, 1, 1)), ""),
    "one scan a component": (
        jpeg_of(YCBCR, scan=scan_of(1) + b"\0" + scan_of(2) + b"\0" + scan_of(3)),
        "",
    ),
    "progressive, tables between scans": (
        jpeg(
            *(QUANTIZATION, frame(marker=0xC2), PROGRESSIVE_SCAN, b"\x01\xff\x00\xff\xd0"),
            *(HUFFMAN, segment(0xFE, b"\xff\xd9"), PROGRESSIVE_SCAN),
        ),
        "gray progressive",
    ),
    "as many scans as allowed": (
        jpeg(QUANTIZATION, frame(marker=0xC2), (PROGRESSIVE_SCAN + b"\0") * MAX_SCANS),
        "gray progressive",
    ),
    "arithmetic": (
        jpeg(QUANTIZATION, frame(marker=0xC9), segment(0xCC, b"\x00\x10\x11\x05"), GRAY_SCAN),
        "arithmetic gray",
    ),
    "markers without a length": (gray_jpeg_with(b"\xff\x01\xff\xd0\xff\xd7"), "gray"),
    "fill bytes": (gray_jpeg_with(b"\xff\xff\xff"), "gray"),
    "junk": (gray_jpeg_with(segment(0xFE), b"\xff\x00\xff\xff"), "gray junk_bytes"),
    "trailing bytes": (jpeg(end=EOI + b"more"), "gray trailing_bytes"),
    "trailing end marker, unnoticed": (jpeg(end=EOI + b"\0" + EOI), "gray"),
    "trailing picture of MPF": (
        gray_jpeg_with(segment(0xE2, b"MPF\0"), end=EOI + jpeg()),
        "gray multi_picture trailing_bytes",
    ),
    "restart markers in the data": (jpeg(data=b"\x3f\xff\xd0\x3f\xff\xd7\x3f"), "gray"),
    "comment after the data that holds an end marker": (
        jpeg(end=segment(0xFE, EOI) + EOI + b"\0"),
        "gray trailing_bytes",
    ),
    "ICC profile": (gray_jpeg_with(segment(0xE2, b"ICC_PROFILE\0\1\1")), "gray icc_profile"),
    "the first of two EXIF blocks": (
        gray_jpeg_with(exif_segment(6), exif_segment(3)),
        "exif_orientation gray",
    ),
    "malformed EXIF": (gray_jpeg_with(segment(0xE1, b"Exif\0")), "gray"),
}
PNGS = {
    "gray": (png(), "gray"),
    "gray of 16 bits": (png(ihdr(bits=16), idat()), "16_bit gray"),
    "gray and alpha": (png(ihdr(colour_type=4), idat()), "alpha gray"),
    "RGB": (png(ihdr(colour_type=2), idat()), ""),
    "RGBA": (png(ihdr(colour_type=6, interlace=1), idat()), "alpha interlaced"),
    "palette": (png(ihdr(colour_type=3), PLTE, idat()), "palette"),
    "animated": (png(ihdr(), chunk(b"acTL", bytes(8)), idat()), "animated gray"),
    "profile": (png(ihdr(), chunk(b"iCCP", b"bad"), idat()), "gray icc_profile"),
    "EXIF after the pixels": (
        png(ihdr(), idat(), chunk(b"eXIf", exif(ROTATED))),
        "exif_orientation gray",
    ),
    "EXIF with the prefix of JPEG, the first of two": (
        png(ihdr(), chunk(b"eXIf", b"Exif\0\0" + exif(ROTATED)), chunk(b"eXIf", b""), idat()),
        "exif_orientation gray",
    ),
    "unknown, not critical": (png(ihdr(), chunk(b"abCd"), idat()), "gray"),
    "palette for gray": (png(ihdr(), chunk(b"PLTE", b"rg"), idat()), "gray"),
    "trailing bytes": (png(end=IEND + b"\0"), "gray trailing_bytes"),
    "pixels in pieces": (png(ihdr(), chunk(b"IDAT"), idat(), idat()), "gray"),
}
GIFS = {
    "one frame": (gif(), "palette"),
    "version 87a": (gif().replace(b"89a", b"87a"), "palette"),
    "two frames": (gif(GIF_FRAME, GIF_FRAME), "animated palette"),
    "transparent colour": (gif(CONTROL, GIF_FRAME), "alpha palette"),
    "interlaced": (gif(gif_frame([0] * 4, flags=0x40)), "interlaced palette"),
    "its own colour table only": (
        gif(gif_frame([0] * 4, flags=0x80, palette=bytes(6)), colours=0),
        "palette",
    ),
    "extensions": (gif(COMMENT, b"!\x00\1\0\0", GIF_FRAME, b"!\xff\3NET\0"), "palette"),
    "trailing bytes": (gif(end=b";;"), "palette trailing_bytes"),
    "frames that fill the canvas together": (
        gif(gif_frame([0, 0], 2, 1), gif_frame([0, 0], 1, 2, left=1)),
        "animated palette",
    ),
}
BMPS = {
    "24 bits": (bmp(), ""),
    "rows from the top": (bmp(height_px=-2), "top_down"),
    "32 bits": (bmp(bits=32), "alpha"),
    "32 bits, masks": (bmp(bits=32, compression=3, behind_header=BGRA), "alpha"),
    "version 5": (bmp(header_bytes=124, behind_header=bytes(84)), ""),
    "gray": (bmp(bits=8, palette=GRAY_PALETTE), "gray"),
    "gray of 2 values": (bmp(bits=8, palette=GRAY_PALETTE[:8], colours_used=2), "gray"),
}
SIZES = {"jpeg": (8, 8), "png": (2, 2), "gif": (2, 2), "bmp": (3, 2)}
ACCEPTED = [
    pytest.param(format_, data, tuple(traits.split()), id=f"{format_}: {remark}")
    for format_, rows in zip(SIZES, (JPEGS, PNGS, GIFS, BMPS), strict=True)
    for remark, (data, traits) in rows.items()
]


@pytest.mark.parametrize(("format_", "data", "traits"), ACCEPTED)
def test_accepted(format_: str, data: bytes, traits: tuple[str, ...]) -> None:
    channels = 1 if "gray" in traits else 3
    channels += "alpha" in traits and format_ in ("png", "bmp")
    orientation = 6 if "exif_orientation" in traits else 1
    expected = ImageInfo(format_, *SIZES[format_], orientation, traits, channels)
    assert check_image(data) == expected


DAMAGED, TYPE, SIZE = "E-IMG-DAMAGED: ", "E-IMG-TYPE: ", "E-IMG-PIXELS: "
CUT = "E-IMG-TRUNCATED: "
REFUSED = {
    # JPEG
    "cut in a segment": (jpeg()[:30], CUT + "segment ffdb ends at byte 71 of 30"),
    "cut in the data": (jpeg(end=b""), CUT + "no end marker in 139 bytes"),
    "end marker of a thumbnail only": (
        SOI + segment(0xE1, jpeg()) + jpeg(end=b"")[2:],
        CUT + "no end marker in 284 bytes",
    ),
    "end first": (
        SOI + EOI + b"\0\0",
        DAMAGED + "end marker at byte 2, before the first scan",
    ),
    "second start": (gray_jpeg_with(SOI), DAMAGED + "marker ffd8 at byte 2"),
    "too many segments": (
        gray_jpeg_with(segment(0xFE) * (MAX_SEGMENTS + 1)),
        DAMAGED + "more than 10000 segments before a scan",
    ),
    "lossless": (
        jpeg(QUANTIZATION, frame(marker=0xC3), GRAY_SCAN),
        TYPE + "JPEG process SOF3: lossless or hierarchical",
    ),
    "segment of length 1": (
        gray_jpeg_with(b"\xff\xe1\0\1"),
        DAMAGED + "segment ffe1 without a length at byte 2",
    ),
    "two frames": (gray_jpeg_with(frame()), DAMAGED + "two frame headers"),
    "height 0, to be told later (DNL)": (
        gray_jpeg_with(frame(height_px=0)),
        DAMAGED + "size 8 x 0",
    ),
    "too wide for libjpeg": (
        gray_jpeg_with(frame(width_px=65_501)),
        SIZE + "65501 x 8 pixels, libjpeg's limit 65500",
    ),
    "too many pixels": (
        gray_jpeg_with(frame(13_378, 13_378)),
        SIZE + "13378 x 13378 = 178970884 pixels, limit 178956970",
    ),
    "too many samples, in CMYK": (
        jpeg(frame(13_000, 13_000, b"\1\x11\0\2\x11\0\3\x11\0\4\x11\0")),
        SIZE + "13000 x 13000 x 4 samples, TensorFlow's limit 536870911",
    ),
    "12 bits": (gray_jpeg_with(frame(bits=12)), TYPE + "JPEG of 1 components of 12 bits"),
    "two components": (
        gray_jpeg_with(frame(components=b"\1\x11\0\2\x11\0")),
        TYPE + "JPEG of 2 components of 8 bits",
    ),
    "sampling factor 5": (
        gray_jpeg_with(frame(components=b"\1\x51\0\2\x11\0\3\x11\0")),
        DAMAGED + "sampling factors 51 11 11",
    ),
    "sampling of 3 to 2": (
        gray_jpeg_with(frame(components=b"\1\x31\0\2\x21\0\3\x11\0")),
        TYPE + "JPEG with fractional sampling factors 31 21 11",
    ),
    "scan first": (jpeg(GRAY_SCAN), DAMAGED + "scan before the frame header"),
    "too many scans": (
        jpeg(QUANTIZATION, frame(marker=0xC2), (PROGRESSIVE_SCAN + b"\0") * (MAX_SCANS + 1)),
        DAMAGED + "more than 100 scans",
    ),
    "second scan after a complete one": (
        jpeg(end=GRAY_SCAN + b"\0" + EOI + b"\0"),
        DAMAGED + "second scan at byte 149, the first held all components",
    ),
    # PNG
    "PNG signature only": (PNG_SIGNATURE, CUT + "8 bytes, a PNG's header takes 33"),
    "other first chunk": (
        png(chunk(b"CgBI", b"1234"), ihdr(), idat()),
        DAMAGED + "first chunk is b'CgBI' of 4 bytes",
    ),
    "too wide for libpng": (
        png(ihdr(1_000_001, 1), idat()),
        SIZE + "1000001 x 1 pixels, libpng's limit 1000000",
    ),
    "RGB of 4 bits": (png(ihdr(bits=4, colour_type=2)), DAMAGED + "colour type 2 of 4 bits"),
    "colour type 5": (png(ihdr(colour_type=5)), DAMAGED + "colour type 5 of 8 bits"),
    "filter 64, of MNG": (
        png(ihdr(filtering=64), idat()),
        DAMAGED + "compression 0, filter 64, interlace 0",
    ),
    "no end": (png(end=b""), CUT + "no IEND chunk in 56 bytes"),
    "cut in the pixels": (png()[:50], CUT + "chunk b'IDAT' ends at byte 56 of 50"),
    "altered header": (
        png().replace(b"\x08\0\0\0\0", b"\x10\0\0\0\0"),
        DAMAGED + "wrong checksum of chunk b'IHDR' at byte 8",
    ),
    "chunk name with a line feed": (
        png(ihdr(), chunk(b"ab\nd"), idat()),
        DAMAGED + "chunk name b'ab\\nd' at byte 33",
    ),
    "unknown and critical": (
        png(ihdr(), idat(), chunk(b"ABCD")),
        DAMAGED + "unknown critical chunk b'ABCD'",
    ),
    "second header": (png(ihdr(), ihdr(), idat()), DAMAGED + "two b'IHDR' chunks"),
    "palette after its pixels": (
        png(ihdr(colour_type=3), idat(), PLTE),
        DAMAGED + "no palette before the pixels",
    ),
    "palette of 257 colours": (
        png(ihdr(colour_type=3), chunk(b"PLTE", bytes(771)), idat()),
        DAMAGED + "palette of 771 bytes",
    ),
    "text between the pixels": (
        png(ihdr(), idat(), TEXT, idat()),
        DAMAGED + "other chunks between the pixels",
    ),
    "no pixels": (png(ihdr()), DAMAGED + "no pixels"),
    "only empty IDAT chunks": (png(ihdr(), chunk(b"IDAT"), chunk(b"IDAT")), DAMAGED + "no pixels"),
    # GIF
    "GIF signature only": (b"GIF89a", CUT + "6 bytes, a GIF's header takes 13"),
    "no trailer": (gif(end=b""), CUT + "no trailer in 36 bytes, 1 frames"),
    "no frame": (gif(COMMENT), DAMAGED + "no frame"),
    "control block without data before a larger frame": (  # TensorFlow reads the first alone
        gif(gif_frame([0], 1, 1), b"!\xf9\0", GIF_FRAME),
        TYPE + "GIF extension without data at byte 34, which TensorFlow misreads",
    ),
    "unknown block": (gif(GIF_FRAME, b"\0"), DAMAGED + "block 00 at byte 36"),
    "frame to the right of the canvas": (
        gif(GIF_FRAME, gif_frame([0], 1, 1, left=2)),
        DAMAGED + "frame 1 of 1 x 1 at 2, 0 leaves the canvas of 2 x 2",
    ),
    "codes of 9 bits": (
        gif(gif_frame([0] * 4, code_bits=9)),
        DAMAGED + "frame 0 has codes of 9 bits",
    ),
    "no colour table": (gif(colours=0), TYPE + "GIF without a colour table for frame 0"),
    "frame smaller than the canvas": (
        gif(gif_frame([0, 0], 2, 1)),
        TYPE + "GIF of 2 x 2, which TensorFlow reads as 2 x 1, its largest frame",
    ),
    "frames of too many pixels together": (
        gif(*[gif_frame([], 6000, 6000)] * 5, width_px=6000, height_px=6000),
        SIZE + "5 frames of 6000 x 6000 = 180000000 pixels, limit 178956970",
    ),
    "too many frames": (gif(*[GIF_FRAME] * 10_001), SIZE + "more than 10000 frames"),
    # BMP
    "short BMP": (b"BM" + bytes(51), CUT + "53 bytes, a BMP's header takes 54"),
    "OS/2 1.0": (OS2, TYPE + "BMP with a header of 12 bytes"),
    "negative width": (bmp(width_px=-3, height_px=0), DAMAGED + "width -3"),
    "1 bit": (bmp(bits=1), TYPE + "BMP of 1 bits a pixel; TensorFlow reads 8, 24 and 32"),
    "run-length coded": (
        bmp(bits=8, compression=1),
        TYPE + "BMP of compression 1, which TensorFlow takes for pixels",
    ),
    "masks in another order": (
        bmp(bits=32, compression=3, behind_header=BGRA[::-1]),
        TYPE + "BMP with channel masks other than BGRA, which TensorFlow ignores",
    ),
    "colours": (
        bmp(bits=8, palette=GRAY_PALETTE[::-1]),
        TYPE + "BMP with a palette, whose indices TensorFlow takes for gray values",
    ),
    "cut off": (bmp()[:-1], CUT + "77 of 78 bytes"),
    "trailing bytes": (
        bmp(end=b"\0\0"),
        TYPE + "BMP with 2 bytes behind its pixels, which TensorFlow refuses",
    ),
}


@pytest.mark.parametrize(("data", "fault"), REFUSED.values(), ids=REFUSED)
def test_refused(data: bytes, fault: str) -> None:
    found = check_image(data)
    assert isinstance(found, ImageFault) and f"{found.code}: {found.detail}" == fault


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (png(ihdr(30_000, 20_000), idat()), 536870911),
        (gif(*[gif_frame([], 60_000, 6000)] * 2, width_px=60_000, height_px=6000), 715827882),
        (bmp()[:18] + struct.pack("<ii", 20_000, 20_000) + bmp()[26:], 268435454),
    ],
)
def test_limits_of_tensorflow_hold_above_ours(data: bytes, limit: int) -> None:
    found = check_image(data, max_pixels=10**12)
    assert isinstance(found, ImageFault) and found.detail.endswith(f"limit {limit}")


def test_chunks_and_sub_blocks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png_module, "MAX_CHUNKS", 3)
    monkeypatch.setattr("transforms.images.gif_bmp.MAX_SUB_BLOCKS", 5)
    assert isinstance(check_image(png()), ImageInfo)
    assert isinstance(check_image(gif(COMMENT, GIF_FRAME)), ImageInfo)
    for data, detail in (
        (png(ihdr(), TEXT, idat()), "more than 3 chunks"),
        (gif(COMMENT, COMMENT, GIF_FRAME), "more than 5 sub-blocks"),
    ):
        assert check_image(data) == ImageFault("E-IMG-DAMAGED", detail)


# --- what decoders get


def test_a_jpeg_goes_to_the_decoder_without_metadata() -> None:
    jfif, adobe = segment(0xE0, b"JFIF\0"), segment(0xEE, b"Adobe")
    data = gray_jpeg_with(
        *(jfif, segment(0xE1, b"Exif\0"), b"\xff\xd0\xff", adobe, segment(0xFE, b"hello")),
        end=EOI + b"trailing",
    )
    assert jpeg_for_decoder(data, MAX_PIXELS) == gray_jpeg_with(jfif, adobe)
    with pytest.raises(BadImage, match="second scan"):  # which the header check does not look for
        jpeg_for_decoder(jpeg(end=GRAY_SCAN + EOI), MAX_PIXELS)


def test_a_png_goes_to_the_decoder_without_metadata() -> None:
    head, split = ihdr(colour_type=3), chunk(b"IDAT", PIXELS[:4]) + chunk(b"IDAT", PIXELS[4:])
    data = png(head, chunk(b"gAMA"), PLTE, chunk(b"tRNS"), split, TEXT, end=IEND + b"trailing")
    assert png_for_decoder(data) == png(head, PLTE, split)
    assert png_for_decoder(data, transparency=True) == png(head, PLTE, split)  # it is empty
    fitting = png(head, PLTE, chunk(b"tRNS", b"\7"), split)
    assert png_for_decoder(fitting, transparency=True) == fitting


def test_a_transparent_colour_that_does_not_fit_is_ignored() -> None:
    for colour_type, pixels in ((0, bytes(2)), (2, bytes(4))):
        data = png(ihdr(1, 1, 8, colour_type), chunk(b"tRNS", b"\1"), idat(pixels))
        assert isinstance(check_image(data, Check.DECODE), ImageInfo)


@pytest.mark.parametrize(
    ("pixels", "detail"),
    [
        (zlib.compress(bytes(5)), "compressed pixels end at byte 5 of 6"),
        (PIXELS[:-4], "compressed pixels end at byte 6 of 6"),
        (PIXELS[:-1] + b"?", "compressed pixels break off at byte 0"),
        (b"hello", "compressed pixels break off at byte 0"),
        (zlib.compress(bytes(50_000_000)), "compressed pixels go on behind the 6 bytes needed"),
    ],
)
def test_damaged_pixels_of_a_png_are_refused(pixels: bytes, detail: str) -> None:
    data = png(ihdr(), chunk(b"IDAT", pixels))
    assert isinstance(check_image(data), ImageInfo)
    with pytest.raises(BadImage) as caught:
        png_for_decoder(data)
    assert caught.value.fault == ImageFault("E-IMG-DAMAGED", detail)


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16]))
def test_interlaced_rows_are_those_of_pixels_counted_one_by_one(
    width_px: int, height_px: int, bits: int
) -> None:
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


# --- EXIF and kinds


SERIAL = entry(0xA431, 2, 4, b"123\0")


def with_exif_directory(entries: bytes, order: str = ">") -> bytes:
    """Return a block whose second directory, where photos keep most, has these entries."""
    link = entry(0x8769, 4, 1, struct.pack(order + "L", 22), order)
    return exif(link, order, behind=struct.pack(order + "H", len(entries) // 12) + entries)


EXIF = {
    "upright": (exif(entry(0x0112, 3, 1, b"\0\1")), 1, ""),
    "rotated": (exif(ROTATED), 6, "exif_orientation"),
    "little endian": (exif(entry(0x0112, 3, 1, b"\x08\0", "<"), "<"), 8, "exif_orientation"),
    "as text": (exif(entry(0x0112, 2, 1, b"6")), 1, ""),
    "two of them": (exif(entry(0x0112, 3, 2, b"\0\6\0\6")), 1, ""),
    "9": (exif(entry(0x0112, 3, 1, b"\0\x09")), 1, ""),
    "GPS": (exif(entry(0x8825, 4, 1, b"\0\0\0\x99")), 1, "exif_gps"),
    "DNG's serial number": (exif(entry(0xC62F, 2, 4, b"123\0")), 1, "exif_serial"),
    "body's serial number": (with_exif_directory(SERIAL), 1, "exif_serial"),
    "directory far away": (b"MM\0*" + b"\xff" * 4 + exif(ROTATED)[8:], 1, ""),
    "entries cut off": (exif(ROTATED + SERIAL)[:-1], 6, "exif_orientation"),
    "more entries than there are": (
        exif(ROTATED).replace(b"\0\1", b"\xff\xff", 1),
        6,
        "exif_orientation",
    ),
}


@pytest.mark.parametrize(("tiff", "orientation", "traits"), EXIF.values(), ids=EXIF)
def test_read_exif(tiff: bytes, orientation: int, traits: str) -> None:
    assert read_exif(tiff) == (orientation, traits.split())


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"RIFF\x0a\0\0\0WEBPVP8 ", "WebP"),
        (b"\0\0\0\x20ftypavif", "AVIF"),
        (b"\0\0\0\x0aftypheic", "HEIC"),
        (b"II*\0", "TIFF"),
        (b"MM\0+", "TIFF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"\xef\xbb\xbf \n<HTML>", "HTML"),
        (bytes(16), "zero bytes"),
        ("Gr\u00fc\u00dfe".encode(), "text"),
        (b"text\0", "unknown, starts with 7465787400"),
    ],
)
def test_name_kind(data: bytes, kind: str) -> None:
    assert name_kind(data) == kind


@given(st.binary(min_size=1))
def test_any_bytes_have_a_name_of_one_line(data: bytes) -> None:
    assert name_kind(data).isascii()
    assert name_kind(data).isprintable()
