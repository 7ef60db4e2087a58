"""Walk a JPEG's segments: what it is, whether it is whole, and what its decoder needs of it.

The walk follows libjpeg (jdmarker.c, jdinput.c), which TensorFlow and Pillow decode with: what it
refuses, `tf.io.decode_image` refuses too. Format: ITU-T T.81, annex B.
"""

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from schemas.fields import ImageInfo
from transforms.images.exif import read_exif
from transforms.images.findings import damaged, require_size, too_many_pixels, truncated, unreadable

MAX_SIDE_PX = 65_500
"""libjpeg's JPEG_MAX_DIMENSION."""

MAX_SAMPLES = 2**29 - 1
"""TensorFlow refuses a JPEG of more samples (3 a pixel, or 4 with CMYK)."""

MAX_SEGMENTS = 10_000
"""In a row, before a scan. A colour profile takes up to 255 of them, 64 kB of metadata one."""

MAX_SCANS = 100
"""A scan costs the decoder a pass over all pixels, and an attacker 10 bytes. Encoders write 20."""

_END = b"\xff\xd9"
_EOI, _SOS = 0xD9, 0xDA
_FRAMES = {
    0xC0: frozenset(),
    0xC1: frozenset(),
    0xC2: frozenset({"progressive"}),
    0xC9: frozenset({"arithmetic"}),
    0xCA: frozenset({"arithmetic", "progressive"}),
}
_UNREADABLE_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xC8, 0xCB, 0xCD, 0xCE, 0xCF})
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})  # TEM and the restart markers
_SKIPPED = frozenset({0xDC, 0xFE, *range(0xE0, 0xF0)})  # DNL, comments, applications' segments
_HUFFMAN_TABLES = frozenset({0x00, 0x01, 0x02, 0x03, 0x10, 0x11, 0x12, 0x13})  # DC and AC
_JFIF, _ADOBE = 0xE0, 0xEE  # these two decide the colour space
_SEGMENT_HEAD = struct.Struct(">BBH").unpack_from
_FRAME_HEAD = struct.Struct(">BHHB").unpack_from

# 4:2:0, 4:2:2, 4:4:4 and gray: no need to look at their single factors.
_USUAL_SAMPLING = frozenset({b"\x22\x11\x11", b"\x21\x11\x11", b"\x11\x11\x11", b"\x11"})

# A marker is 0xff with a byte that is neither 0x00 (a stuffed 0xff) nor 0xff (a fill byte). Restart
# markers belong to the data of a scan.
_MARKER = re.compile(rb"\xff[\x01-\xfe]")
_MARKER_AFTER_SCAN = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")


@dataclass(slots=True)
class _Jpeg:
    """What the walk has found so far."""

    data: bytes
    max_pixels: int
    size_px: tuple[int, int] = (0, 0)
    component_ids: bytes = b""
    sampling: bytes = b""
    quantization_ids: bytes = b""
    quantization_tables: set[int] = field(default_factory=set)
    has_one_scan: bool = False
    orientation: int = 1
    has_exif: bool = False
    traits: set[str] = field(default_factory=set)
    segments: list[tuple[int, int, int]] = field(default_factory=list)


def read_jpeg(data: bytes, max_pixels: int) -> ImageInfo:
    """Return the facts of a JPEG that is whole, without looking at its pixels.

    A file that ends in an end marker is whole if all of it is one scan: no truncation leaves such a
    file. Only others are searched for the end of their scans, at about 5 GB/s. So bytes after the
    image that end in an end marker themselves are noticed only in progressive files and with MPF.

    Args:
        data: the file; starts with `ff d8 ff`.
        max_pixels: limit on width x height.

    Raises:
        BadImage: where libjpeg would give up on the headers, or the end marker is missing.
    """
    jpeg, scan = _read_to_first_scan(data, max_pixels)
    is_whole = jpeg.has_one_scan and data.endswith(_END, scan)
    is_whole = is_whole and "multi_picture" not in jpeg.traits
    if not is_whole and _read_scans(jpeg, scan) != len(data):
        jpeg.traits.add("trailing_bytes")
    channels = min(len(jpeg.component_ids), 3)  # TensorFlow makes RGB of CMYK
    traits = tuple(sorted(jpeg.traits))
    return ImageInfo("jpeg", *jpeg.size_px, jpeg.orientation, traits, channels)


def jpeg_for_decoder(data: bytes, max_pixels: int) -> bytes:
    """Return the JPEG from its start to its end marker, without metadata, its scans walked.

    Profiles, EXIF, MPF and bytes after the end do not touch the pixels, and are what a decoder
    is most often attacked with.

    Args:
        data: the file; starts with `ff d8 ff`.
        max_pixels: limit on width x height.

    Raises:
        BadImage: where libjpeg would give up on the structure between or after the scans.
    """
    jpeg, scan = _read_to_first_scan(data, max_pixels)
    view = memoryview(data)
    kept = [
        view[start:end]
        for marker, start, end in jpeg.segments
        if marker not in _SKIPPED or marker in (_JFIF, _ADOBE)
    ]
    end = _read_scans(jpeg, scan)
    return b"".join([view[:2], *kept, view[scan:end]])


def jpeg_profiles(data: bytes, max_pixels: int) -> list[bytes]:
    """Return the bodies of the segments of its first EXIF block and of its colour profile.

    Args:
        data: the file; starts with `ff d8 ff`.
        max_pixels: limit on width x height.

    Raises:
        BadImage: where libjpeg would give up on the headers.
    """
    jpeg, _ = _read_to_first_scan(data, max_pixels)
    bodies = [data[start + 4 : end] for _, start, end in jpeg.segments]
    exif = [body for body in bodies if body.startswith(b"Exif\0")]
    return exif[:1] + [body for body in bodies if body.startswith(b"ICC_PROFILE\0")]


def _read_to_first_scan(data: bytes, max_pixels: int) -> tuple[_Jpeg, int]:
    """Return what the headers say, and where the first scan's data starts."""
    jpeg = _Jpeg(data, max_pixels)
    marker, end = _read_segments(jpeg, 2)
    if marker == _EOI:
        raise damaged(f"end marker at byte {end - 2}, before the first scan")
    return jpeg, end


def _read_scans(jpeg: _Jpeg, position: int) -> int:
    """Walk from the first scan's data to the end marker; return where the image ends."""
    has_one_scan = jpeg.has_one_scan
    for _ in range(MAX_SCANS):
        found = _MARKER_AFTER_SCAN.search(jpeg.data, position)
        if found is None:
            raise truncated(f"no end marker in {len(jpeg.data)} bytes")
        marker, position = _read_segments(jpeg, found.start())
        if marker == _EOI:
            return position
        if has_one_scan:
            raise damaged(f"second scan at byte {position}, the first held all components")
    raise damaged(f"more than {MAX_SCANS} scans")


def _read_segments(jpeg: _Jpeg, position: int) -> tuple[int, int]:
    """Read segments up to a scan's head (SOS) or the end (EOI); return which, and its end."""
    data = jpeg.data
    for _ in range(MAX_SEGMENTS):
        if position + 4 > len(data):  # only the end marker is left, if any
            found = _MARKER.search(data, position)
            if found is None or found[0] != _END:
                raise truncated(f"no end marker in {len(data)} bytes")
            return _EOI, found.end()
        first, marker, length = _SEGMENT_HEAD(data, position)
        if first == 0xFF and marker == _EOI:
            return _EOI, position + 2
        if first != 0xFF or marker not in _READERS:
            position = _skip_to_marker(jpeg, position)
            continue
        end = position + 2 + length
        if length < 2:  # the length does not even hold itself; libjpeg skips such segments
            if marker not in _SKIPPED:
                raise damaged(f"segment ff{marker:02x} without a length at byte {position}")
            end = position + 4
        if end > len(data):
            raise truncated(f"segment ff{marker:02x} ends at byte {end} of {len(data)}")
        if (read := _READERS[marker]) is not None:
            read(jpeg, marker, data[position + 4 : end])
        jpeg.segments.append((marker, position, end))
        if marker == _SOS:
            return _SOS, end
        position = end
    raise damaged(f"more than {MAX_SEGMENTS} segments before a scan")


def _skip_to_marker(jpeg: _Jpeg, position: int) -> int:
    """Return the place of the next marker; skip other bytes, as libjpeg's next_marker does."""
    first, marker = jpeg.data[position : position + 2]
    if first == 0xFF and marker in _WITHOUT_LENGTH:
        return position + 2
    if first == 0xFF and marker in _UNREADABLE_FRAMES:
        raise unreadable(f"JPEG process SOF{marker - 0xC0}: lossless or hierarchical")
    if first == 0xFF and marker not in (0x00, 0xFF):
        raise damaged(f"marker ff{marker:02x} at byte {position}")
    found = _MARKER.search(jpeg.data, position)
    if found is None:
        raise truncated(f"no marker behind byte {position} of {len(jpeg.data)}")
    if jpeg.data[position : found.start()].strip(b"\xff"):
        jpeg.traits.add("junk_bytes")
    return found.start()


def _read_frame(jpeg: _Jpeg, marker: int, body: bytes) -> None:
    """Read a frame header (T.81 B.2.2): size, components and their sampling factors."""
    if jpeg.component_ids:
        raise damaged("two frame headers")
    if len(body) < 6 or len(body) != 6 + 3 * body[5]:
        raise damaged(f"frame header of {len(body)} bytes")
    precision, height_px, width_px, components = _FRAME_HEAD(body)
    require_size(width_px, height_px, jpeg.max_pixels)
    if width_px > MAX_SIDE_PX or height_px > MAX_SIDE_PX:
        raise too_many_pixels(f"{width_px} x {height_px} pixels, libjpeg's limit {MAX_SIDE_PX}")
    if width_px * height_px * components > MAX_SAMPLES:
        raise too_many_pixels(
            f"{width_px} x {height_px} x {components} samples, TensorFlow's limit {MAX_SAMPLES}"
        )
    if precision != 8 or components not in (1, 3, 4):
        raise unreadable(f"JPEG of {components} components of {precision} bits")
    jpeg.size_px = width_px, height_px
    jpeg.component_ids, jpeg.sampling, jpeg.quantization_ids = body[6::3], body[7::3], body[8::3]
    if jpeg.sampling not in _USUAL_SAMPLING:
        _require_sampling(jpeg.sampling)
    jpeg.traits.update(_FRAMES[marker])
    if components != 3:
        jpeg.traits.add("gray" if components == 1 else "cmyk")


def _require_sampling(sampling: bytes) -> None:
    """Refuse sampling factors outside 1..4 (T.81 B.2.2), and ratios that libjpeg cannot scale."""
    for factors in zip(*(divmod(factor, 16) for factor in sampling), strict=True):
        if not all(1 <= factor <= 4 for factor in factors):
            raise damaged(f"sampling factors {sampling.hex(' ')}")
        if any(max(factors) % factor for factor in factors):
            raise unreadable(f"JPEG with fractional sampling factors {sampling.hex(' ')}")


def _read_scan_head(jpeg: _Jpeg, marker: int, body: bytes) -> None:
    """Read a scan header (T.81 B.2.3): which components follow, and whether they are defined."""
    if not jpeg.component_ids:
        raise damaged("scan before the frame header")
    if not body or not 1 <= body[0] <= 4 or len(body) != 4 + 2 * body[0]:
        raise damaged(f"scan header of {len(body)} bytes")
    wanted = body[1:-3:2]
    is_progressive = "progressive" in jpeg.traits
    jpeg.has_one_scan = len(wanted) == len(jpeg.component_ids) and not is_progressive
    indices = _component_indices(jpeg.component_ids, wanted)
    for index in indices:
        if jpeg.quantization_ids[index] not in jpeg.quantization_tables:
            raise damaged(f"no quantization table {jpeg.quantization_ids[index]}")
    if len(wanted) > 1 and jpeg.sampling not in _USUAL_SAMPLING:
        factors = bytes(jpeg.sampling[index] for index in indices)
        blocks = sum((factor >> 4) * (factor & 15) for factor in factors)
        if blocks > 10:  # T.81 B.2.3
            raise damaged(f"{blocks} blocks in a unit, sampling factors {factors.hex(' ')}")
    if is_progressive:
        _require_progression(len(wanted), body[-3:])


def _require_progression(components: int, progression: bytes) -> None:
    """Refuse coefficients and bits that no progressive scan holds (T.81 G.1.1.1), as libjpeg does.

    A scan holds the first coefficient of any components, or others of one; and their high bits, or
    one further bit.
    """
    first, last, bits = progression
    high, low = divmod(bits, 16)
    is_band = last == 0 if first == 0 else first <= last <= 63 and components == 1
    if not is_band or low > 13 or (high and high != low + 1):
        raise damaged(f"progressive scan of {components} components, {progression.hex(' ')}")


def _component_indices(known: bytes, wanted: bytes) -> Sequence[int]:
    """Return which of the frame's components a scan names; equal ids count one by one."""
    if wanted == known:
        return range(len(known))
    left, found = list(enumerate(known)), list[int]()
    for component_id in wanted:
        entry = next((entry for entry in left if entry[1] == component_id), None)
        if entry is None:
            raise damaged(f"scan of component {component_id}, the frame has {known.hex(' ')}")
        left.remove(entry)
        found.append(entry[0])
    return sorted(found)


def _read_quantization(jpeg: _Jpeg, marker: int, body: bytes) -> None:
    """Note which tables a DQT segment defines (T.81 B.2.4.1): 64 values of one or two bytes."""
    position = 0
    while position < len(body):
        wide, table = divmod(body[position], 16)
        if table > 3:
            raise damaged(f"quantization table {table}")
        jpeg.quantization_tables.add(table)
        position += 129 if wide else 65
    if position != len(body):
        raise damaged(f"quantization tables of {len(body)} bytes")


def _read_huffman(jpeg: _Jpeg, marker: int, body: bytes) -> None:
    """Check the lengths in a DHT segment (T.81 B.2.4.2): 16 counts, then as many symbols."""
    position, size = 0, len(body)
    while position + 16 < size:
        symbols = sum(body[position + 1 : position + 17])
        if symbols > 256 or body[position] not in _HUFFMAN_TABLES:
            raise damaged(f"Huffman table {body[position]:02x} of {symbols} symbols")
        position += 17 + symbols
    if position != size:
        raise damaged(f"Huffman tables of {len(body)} bytes")


def _read_arithmetic(jpeg: _Jpeg, marker: int, body: bytes) -> None:
    """Check a DAC segment (T.81 B.2.4.3): pairs of a table and its conditioning value."""
    pairs = zip(body[::2], body[1::2], strict=False)
    is_bad = any(table > 31 or (table < 16 and value & 15 > value >> 4) for table, value in pairs)
    if len(body) % 2 or is_bad:
        raise damaged(f"arithmetic conditioning {body[:16].hex(' ')}")


def _read_restart_interval(jpeg: _Jpeg, marker: int, body: bytes) -> None:
    if len(body) != 2:
        raise damaged(f"restart interval of {len(body)} bytes")


def _read_application(jpeg: _Jpeg, marker: int, body: bytes) -> None:
    """Read the first EXIF block (others are left-overs of editors); note profiles and MPF."""
    if body.startswith(b"Exif\0") and not jpeg.has_exif:
        jpeg.has_exif = True
        jpeg.orientation, traits = read_exif(body[6:])
        jpeg.traits.update(traits)
    elif body.startswith(b"ICC_PROFILE\0"):
        jpeg.traits.add("icc_profile")
    elif body.startswith(b"MPF\0"):
        jpeg.traits.add("multi_picture")


_READERS: dict[int, Callable[[_Jpeg, int, bytes], None] | None] = {
    **dict.fromkeys(_SKIPPED),
    **dict.fromkeys(_FRAMES, _read_frame),
    **dict.fromkeys((0xE1, 0xE2), _read_application),
    _SOS: _read_scan_head,
    0xDB: _read_quantization,
    0xC4: _read_huffman,
    0xCC: _read_arithmetic,
    0xDD: _read_restart_interval,
}
