"""Image checks: accepted files with their traits, and refused files."""

import struct

import pytest

from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.exif import read_exif
from beam_tfrec.transforms.images.findings import TRAITS
from beam_tfrec.transforms.images.jpeg import MAX_SCANS, MAX_SEGMENTS
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
    gray_with,
    idat,
    ihdr,
    jpeg,
    png,
    segment,
    verdict,
)

ROTATED = entry(0x0112, 3, 1, b"\0\6")
MPF = segment(0xE2, b"MPF\0")
SCAN = segment(0xDA, b"\1\1\0\0\0\0")
Q = QUANTIZATION
BETWEEN_SCANS = b"\x01\xff\x00\xff\xd0" + HUFFMAN + segment(0xFE, b"\xff\xd9")
ARITHMETIC = segment(0xCC, b"\x00\x10\x11\x05")
EXIF = chunk(b"eXIf", b"Exif\0\0" + exif(ROTATED))
PLTE, TEXT = chunk(b"PLTE", b"rgb"), chunk(b"tEXt", b"a\0b")
CONTROL, COMMENT = b"!\xf9\4\1\0\0\7\0", b"!\xfe\3abc\2de\0"
BGRA = struct.pack("<III", 0x00FF0000, 0x0000FF00, 0x000000FF)
OS2 = b"BM" + struct.pack("<IHHIIHHHH", 0, 0, 0, 26, 12, 3, 2, 1, 24) + bytes(40)


def jpeg_of(*components: bytes, scan: bytes = YCBCR_SCAN) -> bytes:
    return jpeg(Q, frame(components=b"".join(components)), scan)


def scan_of(*ids: int) -> bytes:
    return segment(0xDA, bytes([len(ids)]) + b"".join(bytes([i, 0]) for i in ids) + b"\0\x3f\0")


def exif_segment(orientation: int) -> bytes:
    return segment(0xE1, b"Exif\0\0" + exif(entry(0x0112, 3, 1, bytes([0, orientation]))))


# Each with its format and traits; "gray" and "alpha" decide the number of channels.
ACCEPTED = [
    (jpeg(), "jpeg gray"),
    (jpeg_of(YCBCR), "jpeg"),
    # 10 blocks in a unit
    (jpeg_of(b"\1\x22\0\2\x11\0\3\x11\0\4\x22\0", scan=scan_of(1, 2, 3, 4)), "jpeg cmyk"),
    (jpeg_of(b"\1\x11\0" * 3, scan=scan_of(1, 1, 1)), "jpeg"),  # equal ids
    (jpeg_of(YCBCR, scan=b"\0".join(map(scan_of, (1, 2, 3)))), "jpeg"),  # a scan each
    (jpeg(Q, frame(marker=0xC2), SCAN, BETWEEN_SCANS, SCAN), "jpeg gray progressive"),
    # as many as allowed
    (jpeg(Q, frame(marker=0xC2), (SCAN + b"\0") * MAX_SCANS), "jpeg gray progressive"),
    (jpeg(Q, frame(marker=0xC9), ARITHMETIC, GRAY_SCAN), "jpeg arithmetic gray"),
    (gray_with(b"\xff\x01\xff\xd0\xff\xd7"), "jpeg gray"),  # without a length
    (gray_with(b"\xff\xff\xff"), "jpeg gray"),  # fill bytes
    (gray_with(segment(0xFE), b"\xff\x00\xff\xff"), "jpeg gray junk_bytes"),
    (jpeg(end=EOI + b"more"), "jpeg gray trailing_bytes"),
    (jpeg(end=EOI + b"\0" + EOI), "jpeg gray"),  # the trailing bytes are not noticed
    (gray_with(MPF, end=EOI + jpeg()), "jpeg gray multi_picture trailing_bytes"),
    (jpeg(data=b"\x3f\xff\xd0\x3f\xff\xd7\x3f"), "jpeg gray"),  # restarts
    (jpeg(end=segment(0xFE, EOI) + EOI + b"\0"), "jpeg gray trailing_bytes"),
    (gray_with(segment(0xE2, b"ICC_PROFILE\0\1\1")), "jpeg gray icc_profile"),
    # the first counts
    (gray_with(exif_segment(6), exif_segment(3)), "jpeg exif_orientation gray"),
    (png(), "png gray"),
    (png(ihdr(bits=16), idat()), "png 16_bit gray"),
    (png(ihdr(colour_type=4), idat()), "png alpha gray"),
    (png(ihdr(colour_type=2), idat()), "png"),
    (png(ihdr(colour_type=6, interlace=1), idat()), "png alpha interlaced"),
    (png(ihdr(colour_type=3), PLTE, idat()), "png palette"),
    (png(ihdr(), chunk(b"acTL", bytes(8)), idat()), "png animated gray"),
    (png(ihdr(), chunk(b"iCCP", b"bad"), idat()), "png gray icc_profile"),
    (png(ihdr(), idat(), chunk(b"eXIf", exif(ROTATED))), "png exif_orientation gray"),
    (png(ihdr(), EXIF, chunk(b"eXIf", b""), idat()), "png exif_orientation gray"),  # the first
    (png(ihdr(), chunk(b"abCd"), idat()), "png gray"),  # not critical
    (png(ihdr(), chunk(b"PLTE", b"rg"), idat()), "png gray"),
    (png(end=IEND + b"\0"), "png gray trailing_bytes"),
    (png(ihdr(), chunk(b"IDAT"), idat(), idat()), "png gray"),
    (gif(), "gif palette"),
    (gif().replace(b"89a", b"87a"), "gif palette"),
    (gif(GIF_FRAME, GIF_FRAME), "gif animated palette"),
    (gif(CONTROL, GIF_FRAME), "gif alpha palette"),
    (gif(gif_frame([0] * 4, flags=0x40)), "gif interlaced palette"),
    (gif(gif_frame([0] * 4, flags=0x80, palette=bytes(6)), colours=0), "gif palette"),
    (gif(COMMENT, b"!\x00\1\0\0", GIF_FRAME, b"!\xff\3NET\0"), "gif palette"),
    (gif(end=b";;"), "gif palette trailing_bytes"),
    # fill the canvas together
    (gif(gif_frame([0, 0], 2, 1), gif_frame([0, 0], 1, 2, left=1)), "gif animated palette"),
    (bmp(), "bmp"),
    (bmp(height_px=-2), "bmp top_down"),
    (bmp(bits=32), "bmp alpha"),
    (bmp(bits=32, compression=3, after_header=BGRA), "bmp alpha"),
    (bmp(header_bytes=124, after_header=bytes(84)), "bmp"),  # version 5
    (bmp(bits=8, palette=GRAY_PALETTE), "bmp gray"),
    (bmp(bits=8, palette=GRAY_PALETTE[:8], colours_used=2), "bmp gray"),
]
SIZES = {"jpeg": (8, 8), "png": (2, 2), "gif": (2, 2), "bmp": (3, 2)}


@pytest.mark.parametrize(("data", "facts"), ACCEPTED)
def test_good_images_are_accepted_with_their_traits(data: bytes, facts: str) -> None:
    format_, *traits = facts.split()
    channels = 1 if "gray" in traits else 3
    channels += "alpha" in traits and format_ in ("png", "bmp")
    orientation = 6 if "exif_orientation" in traits else 1
    expected = ImageInfo(format_, *SIZES[format_], orientation, tuple(traits), channels)
    assert verdict(data) == expected


ENDS_IN_THUMBNAIL = SOI + segment(0xE1, jpeg()) + jpeg(end=b"")[2:]
MANY_SEGMENTS = gray_with(segment(0xFE) * (MAX_SEGMENTS + 1))
LARGE_CMYK = jpeg(frame(13_000, 13_000, b"\1\x11\0\2\x11\0\3\x11\0\4\x11\0"))
MANY_SCANS = jpeg(Q, frame(marker=0xC2), (SCAN + b"\0") * (MAX_SCANS + 1))
LARGE_FRAMES = gif(*[gif_frame([], 6000, 6000)] * 5, width_px=6000, height_px=6000)


def sampled(*factors: int) -> bytes:
    components = b"".join(bytes([i, factor, 0]) for i, factor in enumerate(factors, start=1))
    return gray_with(frame(components=components))


REFUSED = {
    "TRUNCATED: segment ffdb ends at byte 71 of 30": jpeg()[:30],
    "TRUNCATED: no end marker in 139 bytes": jpeg(end=b""),
    "TRUNCATED: no end marker in 284 bytes": ENDS_IN_THUMBNAIL,
    "DAMAGED: end marker at byte 2, before the first scan": SOI + EOI + b"\0\0",
    "DAMAGED: marker ffd8 at byte 2": gray_with(SOI),
    "DAMAGED: more than 10000 segments before a scan": MANY_SEGMENTS,
    "TYPE: JPEG process SOF3: lossless or hierarchical": jpeg(Q, frame(marker=0xC3), GRAY_SCAN),
    "DAMAGED: segment ffe1 without a length at byte 2": gray_with(b"\xff\xe1\0\1"),
    "DAMAGED: two frame headers": gray_with(frame()),
    "DAMAGED: size 8 x 0": gray_with(frame(height_px=0)),  # DNL may follow
    "PIXELS: 65501 x 8 pixels, libjpeg's limit 65500": gray_with(frame(width_px=65_501)),
    "PIXELS: 13378 x 13378 = 178970884 pixels, limit 178956970": gray_with(frame(13_378, 13_378)),
    "PIXELS: 13000 x 13000 x 4 samples, TensorFlow's limit 536870911": LARGE_CMYK,
    "TYPE: JPEG of 1 components of 12 bits": gray_with(frame(bits=12)),
    "TYPE: JPEG of 2 components of 8 bits": sampled(0x11, 0x11),
    "DAMAGED: sampling factors 51 11 11": sampled(0x51, 0x11, 0x11),
    "TYPE: JPEG with fractional sampling factors 31 21 11": sampled(0x31, 0x21, 0x11),
    "DAMAGED: scan before the frame header": jpeg(GRAY_SCAN),
    "DAMAGED: more than 100 scans": MANY_SCANS,
    "DAMAGED: second scan at byte 149, the first held all components": jpeg(
        end=GRAY_SCAN + b"\0" + EOI + b"\0"
    ),
    "TRUNCATED: 8 bytes, a PNG's header takes 33": PNG_SIGNATURE,
    "DAMAGED: first chunk is b'CgBI' of 4 bytes": png(chunk(b"CgBI", b"1234"), ihdr(), idat()),
    "PIXELS: 1000001 x 1 pixels, libpng's limit 1000000": png(ihdr(1_000_001, 1), idat()),
    "DAMAGED: colour type 2 of 4 bits": png(ihdr(bits=4, colour_type=2)),
    "DAMAGED: colour type 5 of 8 bits": png(ihdr(colour_type=5)),
    "DAMAGED: compression 0, filter 64, interlace 0": png(ihdr(filtering=64), idat()),  # MNG
    "TRUNCATED: no IEND chunk in 56 bytes": png(end=b""),
    "TRUNCATED: chunk b'IDAT' ends at byte 56 of 50": png()[:50],
    "DAMAGED: wrong checksum of chunk b'IHDR' at byte 8": png().replace(
        b"\x08\0\0\0\0", b"\x10\0\0\0\0"
    ),
    "DAMAGED: chunk name b'ab\\nd' at byte 33": png(ihdr(), chunk(b"ab\nd"), idat()),
    "DAMAGED: unknown critical chunk b'ABCD'": png(ihdr(), idat(), chunk(b"ABCD")),
    "DAMAGED: two b'IHDR' chunks": png(ihdr(), ihdr(), idat()),
    "DAMAGED: no palette before the pixels": png(ihdr(colour_type=3), idat(), PLTE),
    "DAMAGED: palette of 771 bytes": png(ihdr(colour_type=3), chunk(b"PLTE", bytes(771)), idat()),
    "DAMAGED: other chunks between the pixels": png(ihdr(), idat(), TEXT, idat()),
    "DAMAGED: no pixels": png(ihdr(), chunk(b"IDAT"), chunk(b"IDAT")),
    "TRUNCATED: 6 bytes, a GIF's header takes 13": b"GIF89a",
    "TRUNCATED: no trailer in 36 bytes, 1 frames": gif(end=b""),
    "DAMAGED: no frame": gif(COMMENT),
    "TYPE: GIF extension without data at byte 34, which TensorFlow misreads": gif(
        gif_frame([0], 1, 1), b"!\xf9\0", GIF_FRAME
    ),
    "DAMAGED: block 00 at byte 36": gif(GIF_FRAME, b"\0"),
    "DAMAGED: frame 1 of 1 x 1 at 2, 0 leaves the canvas of 2 x 2": gif(
        GIF_FRAME, gif_frame([0], 1, 1, left=2)
    ),
    "DAMAGED: frame 0 has codes of 9 bits": gif(gif_frame([0] * 4, code_bits=9)),
    "TYPE: GIF without a colour table for frame 0": gif(colours=0),
    "TYPE: GIF of 2 x 2, which TensorFlow reads as 2 x 1, its largest frame": gif(
        gif_frame([0, 0], 2, 1)
    ),
    "PIXELS: 5 frames of 6000 x 6000 = 180000000 pixels, limit 178956970": LARGE_FRAMES,
    "PIXELS: more than 10000 frames": gif(*[GIF_FRAME] * 10_001),
    "TRUNCATED: 53 bytes, a BMP's header takes 54": b"BM" + bytes(51),
    "TYPE: BMP with a header of 12 bytes": OS2,
    "DAMAGED: size -3 x 0": bmp(width_px=-3, height_px=0),
    "TYPE: BMP of 1 bits a pixel; TensorFlow reads 8, 24 and 32": bmp(bits=1),
    "TYPE: BMP of compression 1, which TensorFlow takes for pixels": bmp(bits=8, compression=1),
    "TYPE: BMP with channel masks other than BGRA, which TensorFlow ignores": bmp(
        bits=32, compression=3, after_header=BGRA[::-1]
    ),
    "TYPE: BMP with a palette, whose indices TensorFlow takes for gray values": bmp(
        bits=8, palette=GRAY_PALETTE[::-1]
    ),
    "TRUNCATED: 77 of 78 bytes": bmp()[:-1],
    "TYPE: BMP with 2 bytes after its pixels, refused by TensorFlow": bmp(end=b"\0\0"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_bad_images_are_refused(fault: str) -> None:
    assert verdict(REFUSED[fault]) == fault


def test_chunks_and_sub_blocks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("beam_tfrec.transforms.images.png.MAX_CHUNKS", 3)
    monkeypatch.setattr("beam_tfrec.transforms.images.gif_bmp.MAX_SUB_BLOCKS", 5)
    assert isinstance(verdict(png()), ImageInfo)
    assert isinstance(verdict(gif(COMMENT, GIF_FRAME)), ImageInfo)
    assert verdict(png(ihdr(), TEXT, idat())) == "DAMAGED: more than 3 chunks"
    assert verdict(gif(COMMENT, COMMENT, GIF_FRAME)) == "DAMAGED: more than 5 sub-blocks"


SERIAL = entry(0xA431, 2, 4, b"123\0")
# To a second directory, where photos keep most.
LINK = entry(0x8769, 4, 1, struct.pack(">L", 22))


@pytest.mark.parametrize(
    ("tiff", "orientation", "traits"),
    [
        (exif(entry(0x0112, 3, 1, b"\0\1")), 1, ""),
        (exif(ROTATED), 6, "exif_orientation"),
        (exif(entry(0x0112, 3, 1, b"\x08\0", "<"), "<"), 8, "exif_orientation"),
        (exif(entry(0x0112, 2, 1, b"6")), 1, ""),  # as text
        (exif(entry(0x0112, 3, 2, b"\0\6\0\6")), 1, ""),  # two of them
        (exif(entry(0x8825, 4, 1, b"\0\0\0\x99")), 1, "exif_gps"),
        (exif(entry(0xC62F, 2, 4, b"123\0")), 1, "exif_serial"),  # DNG's
        (exif(LINK, values=b"\0\1" + SERIAL), 1, "exif_serial"),
        (b"MM\0*" + b"\xff" * 4 + exif(ROTATED)[8:], 1, ""),  # directory far away
        (exif(ROTATED + SERIAL)[:-1], 6, "exif_orientation"),  # entries cut off
        (exif(ROTATED).replace(b"\0\1", b"\xff\xff", 1), 6, "exif_orientation"),  # too many
    ],
)
def test_read_exif(tiff: bytes, orientation: int, traits: str) -> None:
    assert read_exif(tiff) == (orientation, traits.split())


def test_every_trait_is_explained() -> None:
    found = {trait for _, facts in ACCEPTED for trait in facts.split()[1:]}
    assert found | {"exif_gps", "exif_serial"} == set(TRAITS) and list(TRAITS) == sorted(TRAITS)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "EMPTY: 0 bytes"),
        (b"\xff\xd8", "TRUNCATED: 2 bytes, a signature takes more"),
        (b"\0\0\0\x20ftypavif", "TYPE: AVIF, which --reencode converts"),
        (b"\0\0\0\x0aftypheic", "TYPE: HEIC"),
        (b"MM\0+", "TYPE: TIFF, which --reencode converts"),
        (b"version https://git-lfs.github.com/spec/v1\n", "TYPE: a Git LFS pointer"),
        (b"\xef\xbb\xbf \n<HTML>", "TYPE: HTML"),
        (bytes(16), "TYPE: zero bytes"),
        ("Gr\u00fc\u00dfe".encode(), "TYPE: text"),
        (b"text\0", "TYPE: unknown, starts with 7465787400"),
    ],
)
def test_files_that_are_not_images_are_refused(data: bytes, fault: str) -> None:
    assert [verdict(data, check) for check in Check] == [fault, fault]
