import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.fields import ImageInfo
from tests.small_images import IEND, PNG_SIGNATURE, chunk, entry, exif, idat, ihdr, png
from transforms.images import png as module
from transforms.images.findings import MAX_PIXELS, BadImage
from transforms.images.png import png_for_decoder, read_png

PLTE, TEXT = chunk(b"PLTE", b"rgb"), chunk(b"tEXt", b"a\0b")
PIXELS = zlib.compress(bytes(6))


def info(*traits: str, orientation: int = 1, size_px: tuple[int, int] = (2, 2)) -> ImageInfo:
    channels = (1 if "gray" in traits else 3) + ("alpha" in traits)
    return ImageInfo("png", *size_px, orientation, tuple(traits), channels)


OPAQUE_PALETTE = ImageInfo("png", 2, 2, 1, ("alpha", "palette"), 3)
PLTE_OF_THREE = chunk(b"PLTE", bytes(9))
ROTATED = exif(entry(0x0112, 3, 1, b"\0\6"))

ACCEPTED = [
    ("gray", png(), info("gray")),
    ("gray of 1 bit", png(ihdr(bits=1), idat()), info("gray")),
    ("gray of 16 bits", png(ihdr(bits=16), idat()), info("16_bit", "gray")),
    ("gray and alpha", png(ihdr(colour_type=4), idat()), info("alpha", "gray")),
    ("RGB", png(ihdr(3, 5, colour_type=2), idat()), info(size_px=(3, 5))),
    ("RGBA", png(ihdr(colour_type=6, interlace=1), idat()), info("alpha", "interlaced")),
    ("palette", png(ihdr(colour_type=3), PLTE, idat()), info("palette")),
    (
        "transparent entries of a palette",
        png(ihdr(colour_type=3), PLTE, chunk(b"tRNS", b"\0"), idat()),
        info("alpha", "palette"),
    ),
    # libpng ignores these, so that TensorFlow decodes three channels.
    (
        "transparent entries after the pixels",
        png(ihdr(colour_type=3), PLTE, idat(), chunk(b"tRNS", b"\0")),
        OPAQUE_PALETTE,
    ),
    (
        "transparent entries before the palette",
        png(ihdr(colour_type=3), chunk(b"tRNS", b"\0"), PLTE, idat()),
        OPAQUE_PALETTE,
    ),
    (
        "more transparent entries than colours of one bit",
        png(ihdr(colour_type=3, bits=1), PLTE_OF_THREE, chunk(b"tRNS", bytes(3)), idat()),
        OPAQUE_PALETTE,
    ),
    ("animated", png(ihdr(), chunk(b"acTL", bytes(8)), idat()), info("animated", "gray")),
    ("profile", png(ihdr(), chunk(b"iCCP", b"bad"), idat()), info("gray", "icc_profile")),
    (
        "EXIF after the pixels",
        png(ihdr(), idat(), chunk(b"eXIf", ROTATED)),
        info("exif_orientation", "gray", orientation=6),
    ),
    (
        "EXIF with the prefix of JPEG, the first of two",
        png(ihdr(), chunk(b"eXIf", b"Exif\0\0" + ROTATED), chunk(b"eXIf", exif(b"")), idat()),
        info("exif_orientation", "gray", orientation=6),
    ),
    ("malformed EXIF", png(ihdr(), chunk(b"eXIf"), idat()), info("gray")),
    ("unknown, not critical", png(ihdr(), chunk(b"abCd"), idat()), info("gray")),
    ("palette for gray", png(ihdr(), chunk(b"PLTE", b"rg"), idat()), info("gray")),
    ("palette after RGB", png(ihdr(colour_type=2), idat(), PLTE), info()),
    ("trailing bytes", png(end=IEND + b"\0"), info("gray", "trailing_bytes")),
    ("pixels in pieces", png(ihdr(), chunk(b"IDAT"), idat(), idat()), info("gray")),
    ("pixels again, once they were all there", png(ihdr(), idat(), TEXT, idat()), info("gray")),
    ("largest side", png(ihdr(1_000_000, 1), idat()), info("gray", size_px=(1_000_000, 1))),
]

REFUSED = [
    ("signature only", PNG_SIGNATURE, "E-IMG-TRUNCATED: 8 bytes, a PNG's header takes 33"),
    (
        "other first chunk",
        png(chunk(b"CgBI", b"1234"), ihdr(), idat()),
        "E-IMG-DAMAGED: first chunk is b'CgBI' of 4 bytes",
    ),
    (
        "too many pixels",
        png(ihdr(20_000, 10_000), idat()),
        "E-IMG-PIXELS: 20000 x 10000 = 200000000 pixels, limit 178956970",
    ),
    (
        "too wide for libpng",
        png(ihdr(1_000_001, 1), idat()),
        "E-IMG-PIXELS: 1000001 x 1 pixels, libpng's limit 1000000",
    ),
    ("RGB of 4 bits", png(ihdr(bits=4, colour_type=2)), "E-IMG-DAMAGED: colour type 2 of 4 bits"),
    ("colour type 5", png(ihdr(colour_type=5)), "E-IMG-DAMAGED: colour type 5 of 8 bits"),
    (
        "filter 64, of MNG",
        png(ihdr(filtering=64), idat()),
        "E-IMG-DAMAGED: compression 0, filter 64, interlace 0",
    ),
    ("no end", png(end=b""), "E-IMG-TRUNCATED: no IEND chunk in 56 bytes"),
    ("cut in the pixels", png()[:50], "E-IMG-TRUNCATED: chunk b'IDAT' ends at byte 56 of 50"),
    (
        "altered header",
        png().replace(b"\x08\0\0\0\0", b"\x10\0\0\0\0"),
        "E-IMG-DAMAGED: wrong checksum of chunk b'IHDR' at byte 8",
    ),
    (
        "chunk name with a line feed",
        png(ihdr(), chunk(b"ab\nd"), idat()),
        "E-IMG-DAMAGED: chunk name b'ab\\nd' at byte 33",
    ),
    (
        "unknown and critical",
        png(ihdr(), idat(), chunk(b"ABCD")),
        "E-IMG-DAMAGED: unknown critical chunk b'ABCD'",
    ),
    ("second header", png(ihdr(), ihdr(), idat()), "E-IMG-DAMAGED: two b'IHDR' chunks"),
    (
        "palette after its pixels",
        png(ihdr(colour_type=3), idat(), PLTE),
        "E-IMG-DAMAGED: no palette before the pixels",
    ),
    (
        "palette of 257 colours",
        png(ihdr(colour_type=3), chunk(b"PLTE", bytes(771)), idat()),
        "E-IMG-DAMAGED: palette of 771 bytes",
    ),
    ("no pixels", png(ihdr()), "E-IMG-DAMAGED: no pixels"),
    (
        "only empty IDAT chunks",
        png(ihdr(), chunk(b"IDAT"), chunk(b"IDAT")),
        "E-IMG-DAMAGED: compressed pixels end at byte 0 of 6",
    ),
    (
        "text between the pixels",
        png(ihdr(), chunk(b"IDAT", PIXELS[:5]), TEXT, chunk(b"IDAT", PIXELS[5:])),
        "E-IMG-DAMAGED: compressed pixels end at byte 2 of 6",
    ),
]


@pytest.mark.parametrize(("remark", "data", "expected"), ACCEPTED)
def test_read_png(remark, data, expected):
    assert read_png(data, MAX_PIXELS) == expected


@pytest.mark.parametrize(("remark", "data", "fault"), REFUSED)
def test_read_png_refuses(remark, data, fault):
    with pytest.raises(BadImage) as caught:
        read_png(data, MAX_PIXELS)
    assert f"{caught.value.fault.code}: {caught.value.fault.detail}" == fault


def test_tensorflows_limit_holds_above_ours():
    with pytest.raises(BadImage, match="limit 536870911"):
        read_png(png(ihdr(30_000, 20_000), idat()), 10**12)


def test_number_of_chunks_is_limited(monkeypatch):
    monkeypatch.setattr(module, "MAX_CHUNKS", 3)
    assert read_png(png(), MAX_PIXELS) == info("gray")
    with pytest.raises(BadImage, match="more than 3 chunks"):
        read_png(png(ihdr(), chunk(b"tEXt"), idat()), MAX_PIXELS)


class TestPngForDecoder:
    def test_keeps_header_palette_and_the_first_run_of_pixels(self):
        pixels = zlib.compress(bytes(6))
        split = chunk(b"IDAT", pixels[:4]) + chunk(b"IDAT", pixels[4:])
        data = png(
            *(ihdr(colour_type=3), chunk(b"gAMA"), PLTE, chunk(b"tRNS"), split),
            *(chunk(b"tEXt", b"a\0b"), idat()),
            end=IEND + b"trailing",
        )
        expected = png(ihdr(colour_type=3), PLTE, split)
        assert png_for_decoder(data, MAX_PIXELS) == expected

    @pytest.mark.parametrize(
        ("remark", "pixels", "detail"),
        [
            ("a byte less", zlib.compress(bytes(5)), "compressed pixels end at byte 5 of 6"),
            ("no checksum", zlib.compress(bytes(6))[:-4], "compressed pixels end at byte 6 of 6"),
            (
                "wrong checksum",
                zlib.compress(bytes(6))[:-1] + b"?",
                "compressed pixels break off at byte 0",
            ),
            ("no zlib data", b"hello", "compressed pixels break off at byte 0"),
            (
                "a bomb",
                zlib.compress(bytes(50_000_000)),
                "compressed pixels go on behind the 6 bytes needed",
            ),
        ],
    )
    def test_refuses_damaged_pixels(self, remark, pixels, detail):
        data = png(ihdr(), chunk(b"IDAT", pixels))
        assert read_png(data, MAX_PIXELS) == info("gray")
        with pytest.raises(BadImage) as caught:
            png_for_decoder(data, MAX_PIXELS)
        assert (caught.value.fault.code, caught.value.fault.detail) == ("E-IMG-DAMAGED", detail)

    @pytest.mark.parametrize("surplus", [0, 1, 1000, 2**20])
    def test_surplus_pixels_are_ignored(self, surplus):
        data = png(ihdr(), idat(bytes(6 + surplus)), chunk(b"IDAT", b"behind its end"))
        assert png_for_decoder(data, MAX_PIXELS) == data


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 4, 8, 16]))
def test_interlaced_rows_are_those_of_pixels_counted_one_by_one(width_px, height_px, bits):
    passes = "1646264677777777565656567777777736463646777777775656565677777777"
    pixels: dict[tuple[str, int], int] = {}
    for y in range(height_px):
        for x in range(width_px):
            row = passes[8 * (y % 8) + x % 8], y
            pixels[row] = pixels.get(row, 0) + 1
    expected = sum(1 + (count * bits + 7) // 8 for count in pixels.values())
    header = module._Header(width_px, height_px, bits, 0, 0, 0, 1)
    assert module._raw_bytes(header) == expected
