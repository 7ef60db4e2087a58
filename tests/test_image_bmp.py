import struct

import pytest

from schemas.fields import ImageInfo
from tests.small_images import GRAY_PALETTE, bmp
from transforms.images.findings import MAX_PIXELS, BadImage
from transforms.images.gif_bmp import read_bmp

BGRA = struct.pack("<III", 0x00FF0000, 0x0000FF00, 0x000000FF)
OS2 = b"BM" + struct.pack("<IHHIIHHHH", 0, 0, 0, 26, 12, 3, 2, 1, 24) + bytes(40)

ACCEPTED = [
    ("24 bits", bmp(), ()),
    ("rows that need no padding", bmp(width_px=4), ()),
    ("rows from the top", bmp(height_px=-2), ("top_down",)),
    ("32 bits", bmp(bits=32), ("alpha",)),
    ("32 bits, masks", bmp(bits=32, compression=3, behind_header=BGRA), ("alpha",)),
    ("version 5", bmp(header_bytes=124, behind_header=bytes(84)), ()),
    ("gray", bmp(bits=8, palette=GRAY_PALETTE), ("gray",)),
    ("gray of 2 values", bmp(bits=8, palette=GRAY_PALETTE[:8], colours_used=2), ("gray",)),
]

TYPE = "E-IMG-TYPE: BMP "
REFUSED = [
    ("short", b"BM" + bytes(51), "E-IMG-TRUNCATED: 53 bytes, a BMP's header takes 54"),
    ("OS/2 1.0", OS2, TYPE + "with a header of 12 bytes"),
    ("negative width", bmp(width_px=-3, height_px=0), "E-IMG-DAMAGED: width -3"),
    (
        "too many pixels",
        bmp(height_px=0)[:18] + struct.pack("<ii", 20_000, -20_000) + bmp()[26:],
        "E-IMG-PIXELS: 20000 x 20000 = 400000000 pixels, limit 178956970",
    ),
    ("1 bit", bmp(bits=1), TYPE + "of 1 bits a pixel; TensorFlow reads 8, 24 and 32"),
    (
        "run-length coded",
        bmp(bits=8, compression=1),
        TYPE + "of compression 1, which TensorFlow takes for pixels",
    ),
    (
        "masks in another order",
        bmp(bits=32, compression=3, behind_header=BGRA[::-1]),
        TYPE + "with channel masks other than BGRA, which TensorFlow ignores",
    ),
    (
        "colours",
        bmp(bits=8, palette=GRAY_PALETTE[::-1]),
        TYPE + "with a palette, whose indices TensorFlow takes for gray values",
    ),
    ("cut off", bmp()[:-1], "E-IMG-TRUNCATED: 77 of 78 bytes"),
    (
        "trailing bytes",
        bmp(end=b"\0\0"),
        TYPE + "with 2 bytes behind its pixels, which TensorFlow refuses",
    ),
]


@pytest.mark.parametrize(("remark", "data", "traits"), ACCEPTED)
def test_read_bmp(remark, data, traits):
    width_px = 4 if "padding" in remark else 3
    channels = 1 if "gray" in traits else 4 if "alpha" in traits else 3
    assert read_bmp(data, MAX_PIXELS) == ImageInfo("bmp", width_px, 2, 1, traits, channels)


@pytest.mark.parametrize(("remark", "data", "fault"), REFUSED)
def test_read_bmp_refuses(remark, data, fault):
    with pytest.raises(BadImage) as caught:
        read_bmp(data, MAX_PIXELS)
    assert f"{caught.value.fault.code}: {caught.value.fault.detail}" == fault


def test_tensorflows_limit_holds_above_ours():
    data = bmp()[:18] + struct.pack("<ii", 20_000, 20_000) + bmp()[26:]
    with pytest.raises(BadImage, match="limit 268435454"):
        read_bmp(data, 10**12)
