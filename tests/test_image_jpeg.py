import pytest

from schemas.fields import ImageInfo
from tests.small_images import (
    EOI,
    GRAY_SCAN,
    HUFFMAN,
    QUANTIZATION,
    SOI,
    YCBCR,
    YCBCR_SCAN,
    entry,
    exif,
    frame,
    gray_jpeg_with,
    jpeg,
    segment,
)
from transforms.images.findings import MAX_PIXELS, BadImage, ImageFault
from transforms.images.jpeg import MAX_SCANS, MAX_SEGMENTS, jpeg_for_decoder, read_jpeg

PROGRESSIVE_SCAN = segment(0xDA, b"\1\1\0\0\0\0")


def jpeg_of(*components: bytes, scan: bytes = YCBCR_SCAN, marker: int = 0xC0) -> bytes:
    return jpeg(QUANTIZATION, frame(components=b"".join(components), marker=marker), scan)


def scan_of(*ids: int) -> bytes:
    return segment(0xDA, bytes([len(ids)]) + b"".join(bytes([i, 0]) for i in ids) + b"\0\x3f\0")


def info(*traits: str, orientation: int = 1) -> ImageInfo:
    channels = 1 if "gray" in traits else 3
    return ImageInfo("jpeg", 8, 8, orientation, tuple(traits), channels)


ACCEPTED = [
    ("gray", jpeg(), info("gray")),
    ("YCbCr", jpeg_of(YCBCR), info()),
    ("4:2:0", jpeg_of(b"\1\x22\0\2\x11\0\3\x11\0"), info()),
    ("4:1:1", jpeg_of(b"\1\x41\0\2\x11\0\3\x11\0"), info()),
    ("gray with factors of its own", jpeg_of(b"\1\x33\0", scan=GRAY_SCAN), info("gray")),
    (
        "CMYK, 10 blocks in a unit",
        jpeg_of(b"\1\x22\0\2\x11\0\3\x11\0\4\x22\0", scan=scan_of(1, 2, 3, 4)),
        info("cmyk"),
    ),
    ("components of equal ids", jpeg_of(b"\1\x11\0" * 3, scan=scan_of(1, 1, 1)), info()),
    ("extended sequential", jpeg(QUANTIZATION, frame(marker=0xC1), GRAY_SCAN), info("gray")),
    (
        "one scan a component",
        jpeg_of(YCBCR, scan=scan_of(1) + b"\0" + scan_of(2) + b"\0" + scan_of(3)),
        info(),
    ),
    (
        "components in another order",
        jpeg_of(YCBCR, scan=scan_of(3, 1, 2)),
        info(),
    ),
    (
        "progressive, tables between scans",
        jpeg(
            *(QUANTIZATION, frame(marker=0xC2), PROGRESSIVE_SCAN, b"\x01\xff\x00\xff\xd0"),
            *(HUFFMAN, segment(0xFE, b"\xff\xd9"), PROGRESSIVE_SCAN),
        ),
        info("gray", "progressive"),
    ),
    (
        "arithmetic",
        jpeg(QUANTIZATION, frame(marker=0xC9), segment(0xCC, b"\x00\x10\x11\x05"), GRAY_SCAN),
        info("arithmetic", "gray"),
    ),
    (
        "16-bit quantization, two tables in a segment",
        gray_jpeg_with(segment(0xDB, b"\x11" + b"\0\1" * 64 + b"\2" + b"\1" * 64)),
        info("gray"),
    ),
    (
        "two Huffman tables in a segment",
        gray_jpeg_with(segment(0xC4, HUFFMAN[4:22] + HUFFMAN[26:])),
        info("gray"),
    ),
    ("restart interval", gray_jpeg_with(segment(0xDD, b"\0\1")), info("gray")),
    ("number of lines, skipped", gray_jpeg_with(segment(0xDC, b"\0\1")), info("gray")),
    ("markers without a length", gray_jpeg_with(b"\xff\x01\xff\xd0\xff\xd7"), info("gray")),
    ("segments of length 0 and 1", gray_jpeg_with(b"\xff\xfe\0\0\xff\xe1\0\1"), info("gray")),
    ("fill bytes", gray_jpeg_with(b"\xff\xff\xff"), info("gray")),
    ("junk", gray_jpeg_with(segment(0xFE), b"\x00\x01"), info("gray", "junk_bytes")),
    (
        "stuffed zero",
        gray_jpeg_with(segment(0xFE), b"\xff\x00\xff\xff"),
        info("gray", "junk_bytes"),
    ),
    ("trailing bytes", jpeg(end=EOI + b"more"), info("gray", "trailing_bytes")),
    ("trailing end marker, unnoticed", jpeg(end=EOI + b"\0" + EOI), info("gray")),
    (
        "trailing picture of MPF",
        gray_jpeg_with(segment(0xE2, b"MPF\0"), end=EOI + jpeg()),
        info("gray", "multi_picture", "trailing_bytes"),
    ),
    ("fill bytes before the end", jpeg(data=b"\x3f\xff\xff"), info("gray")),
    ("restart markers in the data", jpeg(data=b"\x3f\xff\xd0\x3f\xff\xd7\x3f"), info("gray")),
    ("comment after the data", jpeg(end=segment(0xFE, b"\xff") + EOI), info("gray")),
    (
        "comment after the data that holds an end marker",
        jpeg(end=segment(0xFE, EOI) + EOI + b"\0"),
        info("gray", "trailing_bytes"),
    ),
    (
        "ICC profile",
        gray_jpeg_with(segment(0xE2, b"ICC_PROFILE\0\1\1")),
        info("gray", "icc_profile"),
    ),
    (
        "the first of two EXIF blocks",
        gray_jpeg_with(
            segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 3, 1, b"\0\x08"))),
            segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 3, 1, b"\0\x03"))),
        ),
        info("exif_orientation", "gray", orientation=8),
    ),
    (
        "XMP, malformed EXIF",
        gray_jpeg_with(segment(0xE1, b"http"), segment(0xE1, b"Exif\0")),
        info("gray"),
    ),
]

REFUSED = [
    ("cut in a segment", jpeg()[:30], "E-IMG-TRUNCATED: segment ffdb ends at byte 71 of 30"),
    ("cut in the data", jpeg(end=b""), "E-IMG-TRUNCATED: no end marker in 139 bytes"),
    (
        "end marker of a thumbnail only",
        SOI + segment(0xE1, jpeg()) + jpeg(end=b"")[2:],
        "E-IMG-TRUNCATED: no end marker in 284 bytes",
    ),
    (
        "end first",
        SOI + EOI + b"\0\0",
        "E-IMG-DAMAGED: end marker at byte 2, before the first scan",
    ),
    ("second start", gray_jpeg_with(SOI), "E-IMG-DAMAGED: marker ffd8 at byte 2"),
    ("reserved marker", gray_jpeg_with(segment(0xF0)), "E-IMG-DAMAGED: marker fff0 at byte 2"),
    (
        "too many segments",
        gray_jpeg_with(segment(0xFE) * (MAX_SEGMENTS + 1)),
        "E-IMG-DAMAGED: more than 10000 segments before a scan",
    ),
    (
        "lossless",
        jpeg(QUANTIZATION, frame(marker=0xC3), GRAY_SCAN),
        "E-IMG-TYPE: JPEG process SOF3: lossless or hierarchical",
    ),
    ("two frames", gray_jpeg_with(frame()), "E-IMG-DAMAGED: two frame headers"),
    (
        "height 0, to be told later (DNL)",
        gray_jpeg_with(frame(height_px=0)),
        "E-IMG-DAMAGED: size 8 x 0",
    ),
    (
        "too wide for libjpeg",
        gray_jpeg_with(frame(width_px=65_501)),
        "E-IMG-PIXELS: 65501 x 8 pixels, libjpeg's limit 65500",
    ),
    (
        "too many pixels",
        gray_jpeg_with(frame(13_378, 13_378)),
        "E-IMG-PIXELS: 13378 x 13378 = 178970884 pixels, limit 178956970",
    ),
    (
        "too many samples, in CMYK",
        jpeg(frame(13_000, 13_000, b"\1\x11\0\2\x11\0\3\x11\0\4\x11\0")),
        "E-IMG-PIXELS: 13000 x 13000 x 4 samples, TensorFlow's limit 536870911",
    ),
    ("12 bits", gray_jpeg_with(frame(bits=12)), "E-IMG-TYPE: JPEG of 1 components of 12 bits"),
    (
        "two components",
        gray_jpeg_with(frame(components=b"\1\x11\0\2\x11\0")),
        "E-IMG-TYPE: JPEG of 2 components of 8 bits",
    ),
    (
        "sampling factor 5",
        gray_jpeg_with(frame(components=b"\1\x51\0\2\x11\0\3\x11\0")),
        "E-IMG-DAMAGED: sampling factors 51 11 11",
    ),
    (
        "sampling of 3 to 2",
        gray_jpeg_with(frame(components=b"\1\x31\0\2\x21\0\3\x11\0")),
        "E-IMG-TYPE: JPEG with fractional sampling factors 31 21 11",
    ),
    (
        "unit of 11 blocks",
        jpeg_of(b"\1\x33\0\2\x11\0\3\x11\0"),
        "E-IMG-DAMAGED: 11 blocks in a unit, sampling factors 33 11 11",
    ),
    ("scan first", jpeg(GRAY_SCAN), "E-IMG-DAMAGED: scan before the frame header"),
    (
        "long scan header",
        jpeg(frame(), segment(0xDA, b"\1\1\0\0\x3f\0\0")),
        "E-IMG-DAMAGED: scan header of 7 bytes",
    ),
    (
        "unknown component",
        jpeg_of(YCBCR, scan=scan_of(1, 2, 4)),
        "E-IMG-DAMAGED: scan of component 4, the frame has 01 02 03",
    ),
    ("no quantization", jpeg(frame(), GRAY_SCAN), "E-IMG-DAMAGED: no quantization table 0"),
    (
        "short quantization table",
        gray_jpeg_with(segment(0xDB, b"\0" + bytes(63))),
        "E-IMG-DAMAGED: quantization tables of 64 bytes",
    ),
    (
        "Huffman table of too many symbols",
        gray_jpeg_with(segment(0xC4, b"\0\xff\xff" + bytes(14))),
        "E-IMG-DAMAGED: Huffman table 00 of 510 symbols",
    ),
    (
        "arithmetic bounds in the wrong order",
        gray_jpeg_with(segment(0xCC, b"\x00\x01")),
        "E-IMG-DAMAGED: arithmetic conditioning 00 01",
    ),
    (
        "too many scans",
        jpeg(QUANTIZATION, frame(marker=0xC2), (PROGRESSIVE_SCAN + b"\0") * (MAX_SCANS + 1)),
        "E-IMG-DAMAGED: more than 100 scans",
    ),
    (
        "unknown marker behind the data, followed by others",
        jpeg(end=b"\xff\x02\0\0" + EOI + b"\0"),
        "E-IMG-DAMAGED: marker ff02 at byte 139",
    ),
    (
        "second scan behind a complete one",
        jpeg(end=GRAY_SCAN + b"\0" + EOI + b"\0"),
        "E-IMG-DAMAGED: second scan at byte 149, the first held all components",
    ),
]


@pytest.mark.parametrize(("remark", "data", "expected"), ACCEPTED)
def test_read_jpeg(remark, data, expected):
    assert read_jpeg(data, MAX_PIXELS) == expected


@pytest.mark.parametrize(("remark", "data", "fault"), REFUSED)
def test_read_jpeg_refuses(remark, data, fault):
    with pytest.raises(BadImage) as caught:
        read_jpeg(data, MAX_PIXELS)
    assert f"{caught.value.fault.code}: {caught.value.fault.detail}" == fault


# First and last coefficient, then high << 4 | low bit; the scan's components; whether it can be.
PROGRESSIONS = [
    (b"\0\0\0", 3, True),
    (b"\0\1\0", 1, False),  # the first coefficient and others
    (b"\1\x3f\0", 1, True),
    (b"\1\x40\0", 1, False),
    (b"\1\x3f\0", 3, False),
    (b"\5\5\0", 1, True),
    (b"\5\4\0", 1, False),
    (b"\0\0\x0d", 1, True),
    (b"\0\0\x0e", 1, False),
    (b"\0\0\x21", 1, True),  # bit 1 behind bits 2 and up
    (b"\0\0\x20", 1, False),
    (b"\0\0\x12", 1, False),
]


@pytest.mark.parametrize("marker", [0xC2, 0xCA])
@pytest.mark.parametrize(("progression", "components", "can_be"), PROGRESSIONS)
def test_progressive_scans_are_taken_as_tensorflow_does(marker, progression, components, can_be):
    import tensorflow

    ids = {1: b"\1\0", 3: b"\1\0\2\0\3\0"}[components]
    head = frame(components={1: b"\1\x11\0", 3: YCBCR}[components], marker=marker)
    scan = segment(0xDA, bytes([components]) + ids + progression)
    data = jpeg(QUANTIZATION, head, HUFFMAN, scan)
    if can_be:
        assert "progressive" in read_jpeg(data, MAX_PIXELS).traits
        assert tensorflow.io.decode_image(data).shape == (8, 8, components)
        return
    detail = f"progressive scan of {components} components, {progression.hex(' ')}"
    with pytest.raises(BadImage) as caught:
        read_jpeg(data, MAX_PIXELS)
    assert caught.value.fault == ImageFault("E-IMG-DAMAGED", detail)
    with pytest.raises(tensorflow.errors.InvalidArgumentError):
        tensorflow.io.decode_image(data)


def test_as_many_scans_as_allowed():
    data = jpeg(QUANTIZATION, frame(marker=0xC2), (PROGRESSIVE_SCAN + b"\0") * MAX_SCANS)
    assert read_jpeg(data, MAX_PIXELS) == info("gray", "progressive")


class TestJpegForDecoder:
    def test_keeps_what_the_pixels_need(self):
        jfif, adobe = segment(0xE0, b"JFIF\0"), segment(0xEE, b"Adobe")
        data = gray_jpeg_with(
            *(jfif, segment(0xE1, b"Exif\0"), b"\xff\xd0\xff", adobe, segment(0xFE, b"hello")),
            end=EOI + b"trailing",
        )
        assert jpeg_for_decoder(data, MAX_PIXELS) == gray_jpeg_with(jfif, adobe)

    def test_finds_what_the_header_check_does_not_look_for(self):
        data = jpeg(end=GRAY_SCAN + EOI)
        assert read_jpeg(data, MAX_PIXELS) == info("gray")
        with pytest.raises(BadImage, match="second scan"):
            jpeg_for_decoder(data, MAX_PIXELS)
