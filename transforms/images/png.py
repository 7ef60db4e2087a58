"""Walk a PNG's chunks: read its facts, check that it is whole, and strip its metadata.

A PNG is refused for a wrong checksum in any chunk, and for a violation of the PNG specification
(third edition) in a chunk that affects the pixels. It is also refused if libpng, TensorFlow's
decoder, cannot read it.
"""

import itertools
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from beam_tfrec.schemas.fields import ImageInfo
from beam_tfrec.transforms.images.exif import read_exif
from beam_tfrec.transforms.images.findings import damaged, require_size, too_many_pixels, truncated

SIGNATURE = b"\x89PNG\r\n\x1a\n"

MAX_SIDE_PX = 1_000_000
"""Limit on width and height in TensorFlow's build of libpng."""

MAX_CHUNKS = 2**18
"""Limit of the walk's time and memory. Encoders write chunks of 8 kB and more."""

MAX_PROFILE_BYTES = 4 << 20
"""Largest colour profile that is read."""

_SURPLUS_BYTES = 2**20  # decoders ignore bytes after the last row; more is refused as a bomb
_INFLATE_BYTES = 2**20

# By colour type: samples per pixel, allowed bit depths (table 8 of the specification), traits.
_COLOUR_TYPES = {
    0: (1, (1, 2, 4, 8, 16), ("gray",)),
    2: (3, (8, 16), ()),
    3: (1, (1, 2, 4, 8), ("palette",)),
    4: (2, (8, 16), ("alpha", "gray")),
    6: (4, (8, 16), ("alpha",)),
}
_PALETTE_TYPE = 3
_CHUNK_TRAITS = {b"tRNS": "alpha", b"acTL": "animated", b"iCCP": "icc_profile"}
_KNOWN_CRITICAL = frozenset({b"IHDR", b"PLTE", b"IDAT", b"IEND"})

# First column and row of each pass of an interlaced image, and the steps between its pixels.
_FIRST_X, _FIRST_Y = (0, 4, 0, 2, 0, 1, 0), (0, 0, 4, 0, 2, 0, 1)
_STEP_X, _STEP_Y = (8, 8, 4, 4, 2, 2, 1), (8, 8, 8, 4, 4, 2, 2)
_PASSES = tuple(zip(_FIRST_X, _FIRST_Y, _STEP_X, _STEP_Y, strict=True))

_CHUNK_HEAD = struct.Struct(">I4s").unpack_from


class _Chunk(NamedTuple):
    name: bytes
    start: int
    end: int
    length: int

    def body(self, data: bytes) -> bytes:
        return data[self.start + 8 : self.end - 4]


class _Header(NamedTuple):
    width_px: int
    height_px: int
    bit_depth: int
    colour_type: int
    compression: int
    filtering: int
    interlace: int


def read_png(data: bytes) -> ImageInfo:
    """Return the facts of a whole PNG: all chunks exist, and all checksums are right.

    The checksums include the compressed pixels.

    Args:
        data: the file; starts with `SIGNATURE`.

    Raises:
        BadImage: A chunk is cut off, altered, missing, misplaced, or critical and unknown.
    """
    header, chunks = _read_header(data), list(_chunks(data))
    has_palette = header.colour_type == _PALETTE_TYPE
    _require_order(chunks, has_palette)
    first = {chunk.name: chunk for chunk in reversed(chunks)}
    channels, _, of_type = _COLOUR_TYPES[header.colour_type]
    traits = {*of_type, *(trait for name, trait in _CHUNK_TRAITS.items() if name in first)}
    if has_palette:  # TensorFlow adds alpha only for palettes
        channels = 3 + (_transparency(header, chunks) is not None)
    if header.bit_depth == 16:
        traits.add("16_bit")
    if header.interlace:
        traits.add("interlaced")
    if chunks[-1].end != len(data):
        traits.add("trailing_bytes")
    orientation, of_exif = read_exif(_exif(data, first))
    return ImageInfo("png", *header[:2], orientation, tuple(sorted({*traits, *of_exif})), channels)


def png_metadata(data: bytes) -> tuple[bytes, bytes]:
    """Return the EXIF block and the colour profile of a checked PNG; empty for none."""
    first = {chunk.name: chunk for chunk in reversed(list(_chunks(data)))}
    profile = first[b"iCCP"].body(data) if b"iCCP" in first else b""
    inflate = zlib.decompressobj()
    try:
        icc = inflate.decompress(profile.partition(b"\0")[2][1:], MAX_PROFILE_BYTES)
    except zlib.error:
        icc = b""
    return _exif(data, first), icc if inflate.eof else b""


def png_for_decoder(data: bytes, *, transparency: bool = False) -> bytes:
    """Return a checked PNG with header, palette and pixels only.

    Metadata does not affect the pixels, and most attacks on decoders use it. Pillow also refuses
    some metadata that libpng accepts. The number and checksum of the pixels are compared here,
    since Pillow does not read them to the end.

    Args:
        data: the file.
        transparency: keep the tRNS chunk that libpng uses.

    Raises:
        BadImage: The compressed pixels are damaged, or far too many.
    """
    header, chunks = _read_header(data), list(_chunks(data))
    pixels = [chunk.body(data) for chunk in chunks if chunk.name == b"IDAT"]
    _require_pixels(pixels, _raw_bytes(header))
    more = _transparency(header, chunks) if transparency else None
    kept = [chunk for chunk in chunks if chunk.name in _KNOWN_CRITICAL or chunk is more]
    return b"".join([SIGNATURE, *(data[chunk.start : chunk.end] for chunk in kept)])


def _transparency(header: _Header, chunks: Sequence[_Chunk]) -> _Chunk | None:
    """Return the tRNS chunk that libpng uses: the first of a valid size before the pixels."""
    sizes: Sequence[int] = {0: (2,), 2: (6,)}.get(header.colour_type, ())
    for chunk in itertools.takewhile(lambda chunk: chunk.name != b"IDAT", chunks):
        if chunk.name == b"PLTE" and header.colour_type == _PALETTE_TYPE:
            sizes = range(1, min(chunk.length // 3, 1 << header.bit_depth) + 1)
        if chunk.name == b"tRNS" and chunk.length in sizes:
            return chunk
    return None


def _read_header(data: bytes) -> _Header:
    """Read the IHDR chunk (specification 11.2.1); `_chunks` compares its checksum."""
    if len(data) < 33:
        raise truncated(f"{len(data)} bytes, a PNG's header takes 33")
    length, name = _CHUNK_HEAD(data, 8)
    if length != 13 or name != b"IHDR":
        raise damaged(f"first chunk is {name!r} of {length} bytes")
    header = _Header(*struct.unpack_from(">IIBBBBB", data, 16))
    width_px, height_px, bits, colour_type, compression, filtering, interlace = header
    require_size(width_px, height_px)
    if max(width_px, height_px) > MAX_SIDE_PX:
        raise too_many_pixels(f"{width_px} x {height_px} pixels, libpng's limit {MAX_SIDE_PX}")
    if colour_type not in _COLOUR_TYPES or bits not in _COLOUR_TYPES[colour_type][1]:
        raise damaged(f"colour type {colour_type} of {bits} bits")
    if compression or filtering or interlace > 1:
        raise damaged(f"compression {compression}, filter {filtering}, interlace {interlace}")
    return header


def _chunks(data: bytes) -> Iterator[_Chunk]:
    """Yield every chunk up to and including IEND, after comparing its checksum."""
    view, size, position = memoryview(data), len(data), len(SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if position + 12 > size:
            raise truncated(f"no IEND chunk in {size} bytes")
        length, name = _CHUNK_HEAD(data, position)
        end = position + 12 + length
        if not name.isalpha():
            raise damaged(f"chunk name {name!r} at byte {position}")
        if end > size:
            raise truncated(f"chunk {name!r} ends at byte {end} of {size}")
        if zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise damaged(f"wrong checksum of chunk {name!r} at byte {position}")
        yield _Chunk(name, position, end, length)
        if name == b"IEND":
            return
        position = end
    raise damaged(f"more than {MAX_CHUNKS} chunks")


def _require_order(chunks: Sequence[_Chunk], has_palette: bool) -> None:
    """Refuse critical chunks that are unknown, repeated, missing or misplaced."""
    names = [chunk.name for chunk in chunks]
    for name in names:
        if name[:1].isupper() and name not in _KNOWN_CRITICAL:
            raise damaged(f"unknown critical chunk {name!r}")
        if name in (b"IHDR", b"PLTE") and names.count(name) > 1:
            raise damaged(f"two {name!r} chunks")
    if not any(chunk.length for chunk in chunks if chunk.name == b"IDAT"):
        raise damaged("no pixels")
    start, count = names.index(b"IDAT"), names.count(b"IDAT")
    if names[start : start + count].count(b"IDAT") != count:
        raise damaged("other chunks between the pixels")
    if has_palette and b"PLTE" not in names[:start]:
        raise damaged("no palette before the pixels")
    palette_bytes = chunks[names.index(b"PLTE")].length if has_palette else 3
    if palette_bytes % 3 or not 3 <= palette_bytes <= 768:
        raise damaged(f"palette of {palette_bytes} bytes")


def _exif(data: bytes, first: Mapping[bytes, _Chunk]) -> bytes:
    """Return the EXIF block; some writers include the prefix that JPEG needs."""
    return first[b"eXIf"].body(data).removeprefix(b"Exif\0\0") if b"eXIf" in first else b""


def _raw_bytes(header: _Header) -> int:
    """Return the size of inflated pixels: each row has a filter byte and packed samples.

    >>> _raw_bytes(_Header(5, 2, 1, 0, 0, 0, 0))
    4
    >>> _raw_bytes(_Header(5, 2, 8, 2, 0, 0, 1))  # rows of 1, 1, 1, 2 and 5 pixels
    35
    """
    bits = header.bit_depth * _COLOUR_TYPES[header.colour_type][0]
    total = 0
    for left, top, step_x, step_y in _PASSES if header.interlace else ((0, 0, 1, 1),):
        columns = len(range(left, header.width_px, step_x))
        rows = len(range(top, header.height_px, step_y)) if columns else 0
        total += rows * (1 + -(-columns * bits // 8))
    return total


def _require_pixels(pieces: Sequence[bytes], wanted_bytes: int) -> None:
    """Inflate the pixels in pieces, without keeping them, to check their number and checksum."""
    inflate, inflated_bytes = zlib.decompressobj(), 0
    try:
        for piece in pieces:
            while piece and not inflate.eof:
                inflated_bytes += len(inflate.decompress(piece, _INFLATE_BYTES))
                if inflated_bytes > wanted_bytes + _SURPLUS_BYTES:
                    raise damaged(f"compressed pixels go on after the {wanted_bytes} bytes needed")
                piece = inflate.unconsumed_tail
    except zlib.error:
        raise damaged(f"compressed pixels break off at byte {inflated_bytes}") from None
    if not inflate.eof or inflated_bytes < wanted_bytes:
        raise damaged(f"compressed pixels end at byte {inflated_bytes} of {wanted_bytes}")
