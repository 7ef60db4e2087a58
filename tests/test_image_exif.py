import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.small_images import entry, exif
from transforms.images.exif import read_exif

ROTATED = entry(0x0112, 3, 1, b"\0\6")
SERIAL = entry(0xA431, 2, 4, b"123\0")


def with_exif_directory(entries: bytes, order: str = ">") -> bytes:
    """Return a block whose second directory, where photos keep most, has these entries."""
    link = entry(0x8769, 4, 1, struct.pack(order + "L", 22), order)
    return exif(link, order, behind=struct.pack(order + "H", len(entries) // 12) + entries)


FOUND = [
    ("upright", exif(entry(0x0112, 3, 1, b"\0\1")), 1, []),
    ("rotated", exif(ROTATED), 6, ["exif_orientation"]),
    (
        "little endian",
        exif(entry(0x0112, 3, 1, b"\x08\0", "<"), "<"),
        8,
        ["exif_orientation"],
    ),
    ("as a byte", exif(entry(0x0112, 1, 1, b"\3")), 3, ["exif_orientation"]),
    ("as a long", exif(entry(0x0112, 4, 1, b"\0\0\0\5")), 5, ["exif_orientation"]),
    ("as text", exif(entry(0x0112, 2, 1, b"6")), 1, []),
    ("two of them", exif(entry(0x0112, 3, 2, b"\0\6\0\6")), 1, []),
    ("0", exif(entry(0x0112, 3, 1, b"\0\0")), 1, []),
    ("9", exif(entry(0x0112, 3, 1, b"\0\x09")), 1, []),
    ("GPS", exif(entry(0x8825, 4, 1, b"\0\0\0\x99")), 1, ["exif_gps"]),
    ("DNG's serial number", exif(entry(0xC62F, 2, 4, b"123\0")), 1, ["exif_serial"]),
    ("body's serial number", with_exif_directory(SERIAL), 1, ["exif_serial"]),
    ("lens's serial number", with_exif_directory(entry(0xA435, 2, 1, b"")), 1, ["exif_serial"]),
    (
        "little endian directory",
        with_exif_directory(entry(0xA431, 2, 4, b"123\0", "<"), "<"),
        1,
        ["exif_serial"],
    ),
    (
        "all",
        exif(ROTATED + entry(0x8825, 4, 1, b"") + SERIAL),
        6,
        ["exif_gps", "exif_orientation", "exif_serial"],
    ),
    ("empty", b"", 1, []),
    ("byte order only", b"MM\0*\0\0\0", 1, []),
    ("BigTIFF", b"MM\0+" + exif(ROTATED)[4:], 1, []),
    ("mixed byte orders", b"MM*\0" + exif(ROTATED)[4:], 1, []),
    ("directory behind the end", exif(ROTATED)[:8], 1, []),
    ("directory far away", b"MM\0*" + b"\xff" * 4 + exif(ROTATED)[8:], 1, []),
    ("entries cut off", exif(ROTATED + SERIAL)[:-1], 6, ["exif_orientation"]),
    (
        "more entries than there are",
        exif(ROTATED).replace(b"\0\1", b"\xff\xff", 1),
        6,
        ["exif_orientation"],
    ),
    ("second directory behind the end", exif(entry(0x8769, 4, 1, b"\xff" * 4)), 1, []),
    ("second directory is the first", exif(entry(0x8769, 4, 1, b"\0\0\0\x08")), 1, []),
]


@pytest.mark.parametrize(("remark", "tiff", "orientation", "traits"), FOUND)
def test_read_exif(remark, tiff, orientation, traits):
    assert read_exif(tiff) == (orientation, traits)


@given(
    st.sampled_from([b"", b"MM\0*", b"II*\0", exif(ROTATED), with_exif_directory(SERIAL)]),
    st.binary(),
)
def test_read_exif_takes_any_bytes(start, rest):
    orientation, traits = read_exif(start + rest)
    assert 1 <= orientation <= 8
    assert ("exif_orientation" in traits) == (orientation != 1)
