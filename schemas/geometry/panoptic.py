"""Panoptic images: from the segment ids in a PNG's colours to masks of classes and instances.

COCO's format gives each pixel the id `R + 256 G + 65536 B` of its segment, 0 for none.
"""

import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.picture_fields import SegmentFields

THING_CLASS = 1
"""Of every countable object, in a semantic mask; what is no segment is 0."""

STUFF_OFFSET = 90
"""What a semantic mask's classes are less than COCO's ids of stuff, 92 to 200."""

_MAX_VALUE = 255
_NUM_IDS = 1 << 24
_STRIP_PX = 1 << 20  # handled at once: their ids take four times the memory of the pixels
_SIGNATURE_BYTES = 8
_NEEDED = frozenset({b"IHDR", b"IDAT", b"IEND"})


class SegmentPlaces(NamedTuple):
    """Where the segments of an image lie.

    Attributes:
        places: uint8 (height, width), of each pixel the place of its segment in the list, from 1;
            0 for none.
        has_unlisted_pixels: whether pixels have an id of no segment.
        num_empty: segments without pixels.
    """

    places: NDArray[np.uint8]
    has_unlisted_pixels: bool
    num_empty: int


class PaintValues(NamedTuple):
    """By a segment's place the values of its pixels: uint8, void's first.

    Attributes:
        semantic: 1 for things, `category_id - 90` for stuff.
        category: the category id.
        instance: the place of things, 0 for stuff.
    """

    semantic: NDArray[np.uint8]
    category: NDArray[np.uint8]
    instance: NDArray[np.uint8]


def is_rgb_png(png: bytes) -> bool:
    """Return whether a PNG, checked to be one, has red, green and blue of 8 bits each."""
    bits, colour_type = png[24], png[25]
    return (bits, colour_type) == (8, 2)


def read_places(
    png: bytes, size_px: tuple[int, int], segments: Sequence[SegmentFields]
) -> SegmentPlaces:
    """Return where segments lie by their panoptic PNG; of those with one id the last counts.

    Args:
        png: checked to be one, of RGB.
        size_px: its width and height, by its header.
        segments: that `paint_values` has values for.

    Raises:
        OSError: when its pixels are damaged.
    """
    place_of = {-1: 0} | {segment.id: place for place, segment in enumerate(segments, start=1)}
    known = np.array(sorted(place_of), np.int32)
    places_of_known = np.array([place_of[segment_id] for segment_id in known.tolist()], np.uint8)
    (width_px, height_px), has_unlisted_pixels = size_px, False
    places = np.empty((height_px, width_px), np.uint8)
    seen = np.zeros(_MAX_VALUE + 1, bool)
    for top, ids in _strips_of_ids(png, size_px):
        starts = np.flatnonzero(np.diff(ids, prepend=-1))  # of runs, far fewer than pixels
        values = ids[starts]
        nearest = np.searchsorted(known, values, side="right") - 1
        found = np.where(known[nearest] == values, places_of_known[nearest], np.uint8(0))
        strip = np.repeat(found, np.diff(starts, append=len(ids)))
        places[top : top + len(strip) // width_px] = strip.reshape(-1, width_px)
        seen[found] = True
        has_unlisted_pixels |= bool(values[found == 0].any())
    num_empty = len(segments) - int(seen[1:].sum())
    return SegmentPlaces(places, has_unlisted_pixels, num_empty)


def paint_values(segments: Sequence[SegmentFields]) -> PaintValues | str:
    """Return the values that masks have where segments lie, or which has none of its own.

    As Model Garden's script paints them: instances are counted by the order of segments, and crowds
    are things like others. Masks are of 8 bits; where a value would be another class's in them, its
    script writes that, or fails.

    >>> sky = SegmentFields(9, 187, (2.0, 0.0, 1.0, 1.0), 1.0, 0, is_thing=0)
    >>> dog = SegmentFields(7, 18, (0.0, 0.0, 2.0, 1.0), 2.0, 0)
    >>> values = paint_values([sky, dog])
    >>> values.semantic.tolist(), values.category.tolist(), values.instance.tolist()
    ([0, 97, 1], [0, 187, 18], [0, 0, 2])
    """
    rows = [(0, 0, 0)]
    for place, segment in enumerate(segments, start=1):
        category, first = segment.category_id, 1 if segment.is_thing else STUFF_OFFSET + 2
        if not first <= category <= _MAX_VALUE:
            kind = "thing" if segment.is_thing else "stuff"
            return f"segment {segment.id} is {kind} of category {category}, not {first} to 255"
        if place > _MAX_VALUE:
            return f"{len(segments)} segments, the limit is {_MAX_VALUE}"
        if not 0 <= segment.id < _NUM_IDS:
            return f"segment {segment.id} has an id that no colour has"
        is_thing = bool(segment.is_thing)
        rows.append(
            (THING_CLASS, category, place) if is_thing else (category - STUFF_OFFSET, category, 0)
        )
    return PaintValues(*np.array(rows, np.uint8).T)


def _strips_of_ids(
    png: bytes, size_px: tuple[int, int]
) -> Iterator[tuple[int, NDArray[np.signedinteger]]]:
    """Yield the segment ids of some rows at a time, flat, and the first row."""
    from PIL import PngImagePlugin

    width_px, height_px = size_px
    rows = max(1, _STRIP_PX // width_px)
    with PngImagePlugin.PngImageFile(io.BytesIO(_needed_chunks(png))) as image:
        for top in range(0, height_px, rows):
            strip = image.crop((0, top, width_px, min(top + rows, height_px)))
            colours = np.frombuffer(strip.tobytes("raw", "RGBX"), "<i4")
            yield top, colours & (_NUM_IDS - 1)


def _needed_chunks(png: bytes) -> bytes:
    """Return a PNG without metadata, which decoders are most often attacked with."""
    view, start = memoryview(png), _SIGNATURE_BYTES
    kept = [view[:start]]
    while start < len(png):
        end = start + 12 + int.from_bytes(view[start : start + 4], "big")
        name = bytes(view[start + 4 : start + 8])
        if name in _NEEDED:
            kept.append(view[start:end])
        if name == b"IEND":
            break
        start = end
    return b"".join(kept)
