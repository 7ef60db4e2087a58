"""Walk a JPEG's segments: read its facts, check that it is whole, and strip its metadata.

The walk follows libjpeg (jdmarker.c, jdinput.c), the decoder of TensorFlow and Pillow. It reads the
frame header and finds the end of the scans. Damaged tables and data are left to the decode check.
Format: ITU-T T.81, annex B.
"""

import re
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.schemas.geometry.boxes import MAX_SIDE_PX
from beam_tfrec.transforms.images.exif import read_exif
from beam_tfrec.transforms.images.findings import (
    damaged,
    require_size,
    too_many_pixels,
    truncated,
    unreadable,
)

MAX_SAMPLES = 2**29 - 1
"""Limit of TensorFlow, in samples: 3 per pixel, or 4 with CMYK."""

MAX_SEGMENTS = 10_000
"""Limit before each scan. A colour profile takes up to 255 segments of 64 kB."""

MAX_SCANS = 100
"""Limit of scans; encoders write up to 20. A scan of 10 bytes costs a pass over all pixels."""

_EOI, _SOS = 0xD9, 0xDA
_FRAMES = {
    0xC0: (),
    0xC1: (),
    0xC2: ("progressive",),
    0xC9: ("arithmetic",),
    0xCA: ("arithmetic", "progressive"),
}
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})  # TEM and the restart markers
_SKIPPED = frozenset({0xDC, 0xFE, *range(0xE0, 0xF0)})  # DNL, comments, applications' segments
_TABLES = frozenset({0xC4, 0xCC, 0xDB, 0xDD})  # Huffman, arithmetic, quantization, restarts
_WITH_LENGTH = frozenset({_SOS, *_FRAMES, *_SKIPPED, *_TABLES})
_EXIF, _ICC, _MPF = b"Exif\0", b"ICC_PROFILE\0", b"MPF\0"  # any byte follows Exif\0
_APP_TRAITS = ((_ICC, "icc_profile"), (_MPF, "multi_picture"))
_APP1, _APP2 = 0xE1, 0xE2
_JFIF, _ADOBE = 0xE0, 0xEE  # both decide the colour space

# A marker is 0xff and a byte that is neither 0x00 (a stuffed 0xff) nor 0xff (a fill byte). Restart
# markers are part of a scan's data.
_MARKER = re.compile(rb"\xff[\x01-\xfe]")
_MARKER_AFTER_SCAN = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")


class _Segment(NamedTuple):
    marker: int
    start: int
    end: int


@dataclass(slots=True)
class _Headers:
    """Segments before the first scan's data, and values of the frame header."""

    segments: list[_Segment]
    size_px: tuple[int, int] = (0, 0)
    channels: int = 0
    has_one_scan: bool = False
    traits: set[str] = field(default_factory=set)


def read_jpeg(data: bytes) -> ImageInfo:
    """Return the facts of a whole JPEG without decoding its pixels.

    A file of one scan is whole if it ends in an end marker, since ff d9 cannot occur within a
    scan's data. Other files are searched for the end of their scans, at about 5 GB/s. Trailing
    bytes that end in ff d9 are therefore found only in progressive files and in those with MPF.

    Args:
        data: the file; starts with `ff d8 ff`.

    Raises:
        BadImage: The structure is broken, or the end marker is missing.
    """
    headers = _read_headers(data)
    traits = headers.traits
    orientation, of_exif = read_exif(_first_exif(data, headers))
    traits.update(of_exif)
    traits.update(trait for prefix, trait in _APP_TRAITS if _bodies(data, headers, prefix))
    ends_in_marker = data.endswith(b"\xff\xd9", headers.segments[-1].end)
    is_whole = headers.has_one_scan and ends_in_marker and "multi_picture" not in traits
    if not is_whole and _end_of_scans(data, headers) != len(data):  # raises without an end marker
        traits.add("trailing_bytes")
    channels = min(headers.channels, 3)  # TensorFlow converts CMYK to RGB
    return ImageInfo("jpeg", *headers.size_px, orientation, tuple(sorted(traits)), channels)


def jpeg_for_decoder(data: bytes) -> bytes:
    """Return the JPEG from its start to its end marker, without metadata.

    Profiles, EXIF, MPF and trailing bytes do not affect the pixels, and most attacks on decoders
    use them.

    Raises:
        BadImage: The structure is broken, also between or after the scans.
    """
    headers = _read_headers(data)
    view = memoryview(data)
    kept = [
        view[start:end]
        for marker, start, end in headers.segments
        if marker not in _SKIPPED or marker in (_JFIF, _ADOBE)
    ]
    scans = view[headers.segments[-1].end : _end_of_scans(data, headers)]
    return b"".join([view[:2], *kept, scans])


def jpeg_metadata(data: bytes) -> tuple[bytes, bytes]:
    """Return the first EXIF block and the colour profile of a checked JPEG; empty for none."""
    headers = _read_headers(data)
    pieces = sorted(_bodies(data, headers, _ICC), key=lambda piece: piece[:1])
    return _first_exif(data, headers), b"".join(piece[2:] for piece in pieces)


def _first_exif(data: bytes, headers: _Headers) -> bytes:
    """Return the first EXIF block without its padding byte; empty for none."""
    return next(iter(_bodies(data, headers, _EXIF)), b"")[1:]


def _bodies(data: bytes, headers: _Headers, prefix: bytes) -> list[bytes]:
    """Return the bytes after a prefix, for each APP1 and APP2 segment that starts with it."""
    return [
        data[start + 4 + len(prefix) : end]
        for marker, start, end in headers.segments
        if marker in (_APP1, _APP2) and data.startswith(prefix, start + 4, end)
    ]


def _read_headers(data: bytes) -> _Headers:
    headers = _Headers([])
    headers.segments = _read_segments(data, 2, headers.traits)
    for marker, start, end in headers.segments:
        if marker in _FRAMES:
            _read_frame(headers, marker, data[start + 4 : end])
    marker, start, end = headers.segments[-1]
    if marker == _EOI:
        raise damaged(f"end marker at byte {start}, before the first scan")
    if not headers.channels:
        raise damaged("scan before the frame header")
    is_complete = data[start + 4 : start + 5] == bytes([headers.channels])
    headers.has_one_scan = is_complete and "progressive" not in headers.traits
    return headers


def _end_of_scans(data: bytes, headers: _Headers) -> int:
    """Walk from the first scan's data to the end marker; return the offset after it."""
    position = headers.segments[-1].end
    for _ in range(MAX_SCANS):
        found = _MARKER_AFTER_SCAN.search(data, position)
        if found is None:
            raise truncated(f"no end marker in {len(data)} bytes")
        marker, _, position = _read_segments(data, found.start(), headers.traits)[-1]
        if marker == _EOI:
            return position
        if headers.has_one_scan:
            raise damaged(f"second scan at byte {position}, the first held all components")
    raise damaged(f"more than {MAX_SCANS} scans")


def _read_segments(data: bytes, position: int, traits: set[str]) -> list[_Segment]:
    """Return the segments up to and including a scan's header (SOS) or the end marker (EOI).

    Bytes between segments are skipped, as in libjpeg's next_marker.
    """
    segments: list[_Segment] = []
    for _ in range(MAX_SEGMENTS):
        found = _MARKER.search(data, position)
        if found is None:
            raise truncated(f"no end marker in {len(data)} bytes")
        start, marker = found.start(), found[0][1]
        if start > position and data[position:start].strip(b"\xff"):
            traits.add("junk_bytes")
        if marker == _EOI:
            return [*segments, _Segment(_EOI, start, start + 2)]
        if marker in _WITHOUT_LENGTH:
            position = start + 2
            continue
        if marker not in _WITH_LENGTH:
            if 0xC0 <= marker <= 0xCF:
                raise unreadable(f"JPEG process SOF{marker - 0xC0}: lossless or hierarchical")
            raise damaged(f"marker ff{marker:02x} at byte {start}")
        if start + 4 > len(data):
            raise truncated(f"no end marker in {len(data)} bytes")
        position = start + 2 + int.from_bytes(data[start + 2 : start + 4], "big")
        if position < start + 4:  # the length field counts itself: at least 2
            raise damaged(f"segment ff{marker:02x} without a length at byte {start}")
        if position > len(data):
            raise truncated(f"segment ff{marker:02x} ends at byte {position} of {len(data)}")
        segments.append(_Segment(marker, start, position))
        if marker == _SOS:
            return segments
    raise damaged(f"more than {MAX_SEGMENTS} segments before a scan")


def _read_frame(headers: _Headers, marker: int, body: bytes) -> None:
    """Read a frame header (T.81 B.2.2): size, components and their sampling factors."""
    if headers.channels:
        raise damaged("two frame headers")
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise damaged(f"frame header of {len(body)} bytes")
    precision, height_px, width_px, components = struct.unpack_from(">BHHB", body)
    require_size(width_px, height_px)
    size = f"{width_px} x {height_px}"
    if max(width_px, height_px) > MAX_SIDE_PX:
        raise too_many_pixels(f"{size} pixels, libjpeg's limit {MAX_SIDE_PX}")
    if width_px * height_px * components > MAX_SAMPLES:
        raise too_many_pixels(f"{size} x {components} samples, TensorFlow's limit {MAX_SAMPLES}")
    if precision != 8 or components not in (1, 3, 4):
        raise unreadable(f"JPEG of {components} components of {precision} bits")
    # Sampling factors of 1 to 4 (T.81 B.2.2), in ratios that libjpeg can scale.
    for factors in zip(*(divmod(factor, 16) for factor in body[7::3]), strict=True):
        if not all(1 <= factor <= 4 for factor in factors):
            raise damaged(f"sampling factors {body[7::3].hex(' ')}")
        if any(max(factors) % factor for factor in factors):
            raise unreadable(f"JPEG with fractional sampling factors {body[7::3].hex(' ')}")
    headers.size_px, headers.channels = (width_px, height_px), components
    headers.traits.update(_FRAMES[marker])
    if components != 3:
        headers.traits.add("gray" if components == 1 else "cmyk")
