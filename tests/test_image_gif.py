import pytest

from schemas.fields import ImageInfo
from tests.small_images import GIF_FRAME, gif, gif_frame
from transforms.images.findings import MAX_PIXELS, BadImage
from transforms.images.gif_bmp import GifFrame, gif_frames, read_gif

CONTROL = b"!\xf9\4\1\0\0\7\0"
COMMENT = b"!\xfe\3abc\2de\0"


def info(*traits: str, size_px: tuple[int, int] = (2, 2)) -> ImageInfo:
    return ImageInfo("gif", *size_px, 1, tuple(traits))


ACCEPTED = [
    ("one frame", gif(), info("palette")),
    ("version 87a", gif().replace(b"89a", b"87a"), info("palette")),
    ("two frames", gif(GIF_FRAME, GIF_FRAME), info("animated", "palette")),
    ("transparent colour", gif(CONTROL, GIF_FRAME), info("alpha", "palette")),
    ("interlaced", gif(gif_frame([0] * 4, flags=0x40)), info("interlaced", "palette")),
    (
        "its own colour table only",
        gif(gif_frame([0] * 4, flags=0x80, palette=bytes(6)), colours=0),
        info("palette"),
    ),
    ("extensions", gif(COMMENT, b"!\x00\1\0\0", GIF_FRAME, b"!\xff\3NET\0"), info("palette")),
    ("trailing bytes", gif(end=b";;"), info("palette", "trailing_bytes")),
    (
        "frames that fill the canvas together",
        gif(gif_frame([0, 0], 2, 1), gif_frame([0, 0], 1, 2, left=1)),
        info("animated", "palette"),
    ),
]

REFUSED = [
    ("signature only", b"GIF89a", "E-IMG-TRUNCATED: 6 bytes, a GIF's header takes 13"),
    ("cut in the data", gif()[:33], "E-IMG-TRUNCATED: no trailer in 33 bytes, 0 frames"),
    ("no trailer", gif(end=b""), "E-IMG-TRUNCATED: no trailer in 36 bytes, 1 frames"),
    (
        "canvas of too many pixels",
        gif(width_px=60_000, height_px=60_000),
        "E-IMG-PIXELS: 60000 x 60000 = 3600000000 pixels, limit 178956970",
    ),
    ("no frame", gif(COMMENT), "E-IMG-DAMAGED: no frame"),
    (
        "control block without data before a larger frame",  # TensorFlow reads the first alone
        gif(gif_frame([0], 1, 1), b"!\xf9\0", GIF_FRAME),
        "E-IMG-TYPE: GIF extension without data at byte 34, which TensorFlow misreads",
    ),
    ("unknown block", gif(GIF_FRAME, b"\0"), "E-IMG-DAMAGED: block 00 at byte 36"),
    (
        "frame to the right of the canvas",
        gif(GIF_FRAME, gif_frame([0], 1, 1, left=2)),
        "E-IMG-DAMAGED: frame 1 of 1 x 1 at 2, 0 leaves the canvas of 2 x 2",
    ),
    (
        "codes of 9 bits",
        gif(gif_frame([0] * 4, code_bits=9)),
        "E-IMG-DAMAGED: frame 0 has codes of 9 bits",
    ),
    (
        "no colour table",
        gif(colours=0),
        "E-IMG-TYPE: GIF without a colour table for frame 0",
    ),
    (
        "frame smaller than the canvas",
        gif(gif_frame([0, 0], 2, 1)),
        "E-IMG-TYPE: GIF of 2 x 2, which TensorFlow reads as 2 x 1, its largest frame",
    ),
    (
        "frames of too many pixels together",
        gif(*[gif_frame([], 6000, 6000)] * 5, width_px=6000, height_px=6000),
        "E-IMG-PIXELS: 5 frames of 6000 x 6000 = 180000000 pixels, limit 178956970",
    ),
    (
        "too many frames",
        gif(*[GIF_FRAME] * 10_001),
        "E-IMG-PIXELS: more than 10000 frames",
    ),
]


@pytest.mark.parametrize(("remark", "data", "expected"), ACCEPTED)
def test_read_gif(remark, data, expected):
    assert read_gif(data, MAX_PIXELS) == expected


@pytest.mark.parametrize(("remark", "data", "fault"), REFUSED)
def test_read_gif_refuses(remark, data, fault):
    with pytest.raises(BadImage) as caught:
        read_gif(data, MAX_PIXELS)
    assert f"{caught.value.fault.code}: {caught.value.fault.detail}" == fault


def test_tensorflows_limit_holds_above_ours():
    data = gif(*[gif_frame([], 60_000, 6000)] * 2, width_px=60_000, height_px=6000)
    with pytest.raises(BadImage, match="720000000 pixels, limit 715827882"):
        read_gif(data, 10**12)


def test_number_of_sub_blocks_is_limited_over_the_whole_file(monkeypatch):
    monkeypatch.setattr("transforms.images.gif_bmp.MAX_SUB_BLOCKS", 5)
    assert read_gif(gif(COMMENT, GIF_FRAME), MAX_PIXELS) == info("palette")
    for data in (gif(COMMENT, COMMENT, GIF_FRAME), gif(*[b"!\0\1\0\0"] * 6, GIF_FRAME)):
        with pytest.raises(BadImage, match="more than 5 sub-blocks"):
            read_gif(data, MAX_PIXELS)


def test_gif_frames():
    own_colours = gif_frame([0], 1, 1, 1, 1, flags=0xC1, palette=bytes(12), code_bits=3)
    another_control = CONTROL.replace(b"\7", b"\1")
    without_transparency = b"!\xf9\4\0\0\0\7\0"
    data = gif(
        *(GIF_FRAME, CONTROL, another_control, own_colours, GIF_FRAME),
        *(without_transparency, CONTROL, GIF_FRAME),
    )
    whole, corner = (2, 2, False, 2), (1, 1, True, 4)
    assert gif_frames(data, MAX_PIXELS) == [
        GifFrame(*whole, -1, 2, start=30, end=36),
        GifFrame(*corner, 7, 3, start=75, end=79),
        GifFrame(*whole, -1, 2, start=90, end=96),  # a control block is for one frame,
        GifFrame(*whole, -1, 2, start=123, end=129),  # and the first of two counts
    ]
