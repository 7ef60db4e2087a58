"""What a report tells of records: counts and histograms of bounded size, which add up.

A shard's are in its receipt, so that a data set's are a sum over receipts. Numbers are whole but
`expected_runs`, so that equal shards have equal bytes. Bins are of equal width in octaves: a bin
of `per_octave` holds the values from `2 ** (bin / per_octave)` up to the next one's first.
"""

import msgspec

SIZE_BINS_PER_OCTAVE = 2
"""Of `sides_px`, `image_bytes` and `box_sides`."""

ASPECT_BINS_PER_OCTAVE = 4

Histogram = dict[int, int]
"""Count by bin."""


class SampledRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record that was drawn to be shown: those of the smallest digests are.

    Attributes:
        digest: of its split, key and label, by which it was drawn; 0 to 2^63 - 1.
        label: the class that it stands for; -1 for its split.
        number: of the record in its shard, from 0.
        offset: of its frame in the shard's file, in bytes.
        size: of the frame.
        key: of the record.
    """

    digest: int
    label: int
    number: int
    offset: int
    size: int
    key: str


class Statistics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What records hold.

    Attributes:
        records: how many there are.
        formats: pictures by format, `jpeg`.
        widths_px: pictures by width, as stored in the record.
        heights_px: likewise.
        aspects: pictures by width / height, of `ASPECT_BINS_PER_OCTAVE`; may be below 0.
        image_bytes: pictures by their encoded bytes.
        objects: records by objects that they hold; the number itself to 16, beyond it rounded down
            to the next power of two.
        box_sides: objects by the square root of their box's share of the picture, a bin of 0 being
            the whole picture's and all others below.
        class_records: records that hold a class, by label id.
        class_objects: objects of a class, by label id; empty where records have no objects.
        runs: of neighbours of the same leading class, over all shards; 0 where records have none.
        expected_runs: of a uniform shuffle of the same shards, rounded to a thousandth.
        samples: drawn records, by label and digest.
    """

    records: int = 0
    formats: dict[str, int] = {}
    widths_px: Histogram = {}
    heights_px: Histogram = {}
    aspects: Histogram = {}
    image_bytes: Histogram = {}
    objects: Histogram = {}
    box_sides: Histogram = {}
    class_records: dict[int, int] = {}
    class_objects: dict[int, int] = {}
    runs: int = 0
    expected_runs: float = 0.0
    samples: list[SampledRecord] = []
