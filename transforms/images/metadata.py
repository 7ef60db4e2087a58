"""EXIF and ICC data that are kept when an image is converted."""

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

from schemas.images import ImageInfo
from transforms.images.exif import upright_exif
from transforms.images.findings import MAX_PIXELS
from transforms.images.jpeg import jpeg_profiles
from transforms.images.png import png_chunk, png_chunks

if TYPE_CHECKING:
    from PIL import Image

_MAX_PROFILE_BYTES = 4 << 20
_MAX_SEGMENT_BODY_BYTES = 65_533
_EXIF_PREFIX, _ICC_PREFIX = b"Exif\0\0", b"ICC_PROFILE\0"
_APP1, _APP2 = 0xFFE1, 0xFFE2
_SPACE_OF_MODE = {"L": b"GRAY", "LA": b"GRAY", "I;16": b"GRAY", "RGB": b"RGB ", "RGBA": b"RGB "}


class Metadata(NamedTuple):
    """EXIF and a colour profile.

    Attributes:
        exif: the TIFF block from its byte order mark on; empty for none.
        icc: the ICC profile; empty for none.
    """

    exif: bytes = b""
    icc: bytes = b""

    @property
    def colour_space(self) -> bytes:
        """What the profile is of: `RGB `, `GRAY`, `CMYK` (ICC.1:2022, table 19)."""
        return self.icc[16:20]

    def for_mode(self, mode: str) -> Self:
        """Return it without a profile that is of other channels than Pillow's mode has."""
        return self if self.colour_space == _SPACE_OF_MODE.get(mode) else self._replace(icc=b"")

    def upright(self) -> Self:
        """Return it for a picture that was turned upright."""
        return self._replace(exif=upright_exif(self.exif)) if self.exif else self

    def of_pillow(self, image: "Image.Image") -> Self:
        """Return it with the profile that Pillow has found."""
        icc = image.info.get("icc_profile") or b""
        return self._replace(icc=icc if len(icc) <= _MAX_PROFILE_BYTES else b"")

    def jpeg_segments(self) -> bytes:
        """Return the segments of a JPEG that hold it; EXIF too large for one is left out."""
        return b"".join(self._segments())

    def png_chunks(self) -> bytes:
        """Return the PNG chunks that hold it; they come after the header."""
        chunks = []
        if self.icc:
            chunks.append(png_chunk(b"iCCP", b"ICC Profile\0\0" + zlib.compress(self.icc)))
        if self.exif:
            chunks.append(png_chunk(b"eXIf", self.exif))
        return b"".join(chunks)

    def _segments(self) -> Iterator[bytes]:
        if self.exif and len(_EXIF_PREFIX + self.exif) <= _MAX_SEGMENT_BODY_BYTES:
            yield _segment(_APP1, _EXIF_PREFIX + self.exif)
        at_once = _MAX_SEGMENT_BODY_BYTES - len(_ICC_PREFIX) - 2
        pieces = [self.icc[at : at + at_once] for at in range(0, len(self.icc), at_once)]
        for number, piece in enumerate(pieces, start=1):
            yield _segment(_APP2, _ICC_PREFIX + bytes([number, len(pieces)]) + piece)


def read_metadata(data: bytes, info: ImageInfo) -> Metadata:
    """Return an image's metadata; of foreign formats and TIFF the orientation alone."""
    if info.format == "jpeg":
        return _read_jpeg(data)
    if info.format == "png":
        return _read_png(data)
    return Metadata(exif=_orientation_block(info.orientation))


def _read_jpeg(data: bytes) -> Metadata:
    exif, pieces = b"", list[bytes]()
    for body in jpeg_profiles(data, MAX_PIXELS):
        if body.startswith(b"Exif\0"):
            exif = body[len(_EXIF_PREFIX) :]
        else:
            pieces.append(body[len(_ICC_PREFIX) :])
    icc = b"".join(piece[2:] for piece in sorted(pieces, key=lambda piece: piece[:1]))
    return Metadata(exif, icc if len(icc) <= _MAX_PROFILE_BYTES else b"")


def _read_png(data: bytes) -> Metadata:
    exif = icc = b""
    for name, body in png_chunks(data):
        if name == b"eXIf" and not exif:
            exif = body.removeprefix(_EXIF_PREFIX)
        elif name == b"iCCP" and not icc:
            icc = _inflated_profile(body)
    return Metadata(exif, icc)


def _inflated_profile(body: bytes) -> bytes:
    """Return the profile of an `iCCP` chunk; empty when it is damaged or too large."""
    _, _, compressed = body.partition(b"\0")
    inflating = zlib.decompressobj()
    try:
        profile = inflating.decompress(compressed[1:], _MAX_PROFILE_BYTES)
    except zlib.error:
        return b""
    return profile if inflating.eof else b""


def _orientation_block(orientation: int) -> bytes:
    """Return an EXIF block that says nothing but an orientation; empty for the usual one."""
    if orientation == 1:
        return b""
    entry = struct.pack(">HHLHH", 0x0112, 3, 1, orientation, 0)
    return b"MM\0*" + struct.pack(">LH", 8, 1) + entry + bytes(4)


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">HH", marker, len(body) + 2) + body
