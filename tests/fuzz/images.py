"""Image walkers: bytes are an image or a fault, and the decoder agrees with the header check."""

import struct
import zlib
from collections.abc import Callable

from beam_tfrec.schemas.faults import FAULTS, Scope, printable
from beam_tfrec.schemas.fields import EncodedImage, ImageInfo
from beam_tfrec.schemas.geometry.boxes import turn_size
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.conversion import Conversion
from beam_tfrec.transforms.images.convert_images import convert_image
from beam_tfrec.transforms.images.exif import read_exif
from beam_tfrec.transforms.images.findings import MAX_PIXELS, TRAITS, BadImage
from tests import small_images as small
from tests.fuzz.target import Target
from tests.small_images import verdict

_FEW_PIXELS = 2**14
"""Limit for decoding, so that thousands of inputs can be decoded each second."""


def check_any(data: bytes) -> None:
    """Check bytes with and without decoding, and compare the verdicts."""
    found = verdict(data)
    _require_form(found)
    if isinstance(found, str):
        return
    _require_last_byte_matters(data, found)
    if found.width_px * found.height_px > _FEW_PIXELS:
        return
    decoded = verdict(data, Check.DECODE)
    _require_form(decoded)
    if isinstance(decoded, ImageInfo):
        assert decoded == found
        _require_upright(data, found)


def _require_form(found: ImageInfo | str) -> None:
    if isinstance(found, str):
        code, _, detail = found.partition(": ")
        assert FAULTS[f"E-IMG-{code}"].scope is Scope.SAMPLE
        assert printable(detail) == detail and 0 < len(detail) <= 200
        return
    assert 1 <= found.width_px * found.height_px <= MAX_PIXELS
    assert min(found.size_px) >= 1 and 1 <= found.orientation <= 8
    assert list(found.traits) == sorted(set(found.traits) & TRAITS.keys())


def _require_upright(data: bytes, info: ImageInfo) -> None:
    """Require that a decodable image is turned upright, or refused with a fault."""
    image, upright = EncodedImage("a", data, "", info), Conversion(turns=True)
    try:
        turned = convert_image(image, upright)
    except BadImage as error:
        assert FAULTS[error.code].scope is Scope.SAMPLE
        return
    assert turned.turned == info.orientation and turned.info.orientation == 1
    assert turned.info.size_px == turn_size(info.size_px, info.orientation)


def _require_last_byte_matters(data: bytes, info: ImageInfo) -> None:
    """Require that an image without its last byte is refused, or has trailing bytes."""
    if "trailing_bytes" in info.traits:
        return
    shorter = verdict(data[:-1])
    if info.format == "jpeg":  # the data of the scan may contain an end marker
        assert isinstance(shorter, str) or "trailing_bytes" in shorter.traits
    else:
        assert str(shorter).startswith("TRUNCATED"), shorter


def walker(signature: bytes) -> Callable[[bytes], None]:
    """Return a function that checks bytes alone, and with a format's signature before them."""

    def run(data: bytes) -> None:
        check_any(data)
        if not data.startswith(signature):
            check_any(signature + data)

    return run


_run_png = walker(small.PNG_SIGNATURE)


def run_png(data: bytes) -> None:
    """Check bytes as they are, and with all checksums corrected, which chance does not do."""
    _run_png(data)
    _run_png(with_right_checksums(data))


def with_right_checksums(data: bytes) -> bytes:
    """Return a PNG with the checksum of each complete chunk corrected."""
    corrected, position = bytearray(data), len(small.PNG_SIGNATURE)
    while position + 12 <= len(corrected):
        end = position + 12 + struct.unpack_from(">I", corrected, position)[0]
        if end > len(corrected):
            break
        struct.pack_into(">I", corrected, end - 4, zlib.crc32(corrected[position + 4 : end - 4]))
        position = end
    return bytes(corrected)


def run_exif(data: bytes) -> None:
    """Require an orientation and known traits from any block, in both byte orders."""
    for block in (data, b"II*\0" + data[4:], b"MM\0*" + data[4:]):
        orientation, traits = read_exif(block)
        assert 1 <= orientation <= 8
        assert traits == sorted(set(traits) & TRAITS.keys())
        assert ("exif_orientation" in traits) == (orientation != 1)


TARGETS = (
    Target("jpeg", walker(b"\xff\xd8\xff"), "jpeg.dict", 1024),
    Target("png", run_png, "png.dict", 1024),
    Target("gif", walker(b"GIF89a"), "gif.dict", 1024),
    Target("bmp", walker(b"BM"), max_bytes=1200),
    Target("exif", run_exif, "exif.dict", 512),
)
