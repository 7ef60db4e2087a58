"""Size buckets: fixed sizes for images of different shapes, so that batches have static shapes.

Each image goes to the bucket with the nearest aspect ratio. The images of one bucket are a split of
their own, such as `train_1024x768`. So everything that knows splits knows buckets.
"""

import math
import re
from collections.abc import Sequence

from beam_tfrec.schemas.geometry.boxes import Resize

_AUTO = re.compile(r"auto:([1-9][0-9]{0,4})(?::([1-9][0-9]{0,3}))?")
_STEP_PX = 64
_MOST_BUCKETS = 100
_LARGEST_ASPECT = 2  # of `auto`: from 1:2 to 2:1
_SPLIT = re.compile(r"(.+)_([0-9]+)x([0-9]+)")


def parse_buckets(text: str) -> tuple[Resize, ...]:
    """Return the buckets of a flag's text: sizes, or `auto:SIDE:STEP`.

    `auto` gives sizes of at most SIDE x SIDE pixels. Their sides are multiples of STEP px (default
    64), and their aspect ratios lie between 1:2 and 2:1.

    Raises:
        ValueError: when the text has another form, or names a size twice.

    >>> [str(bucket) for bucket in parse_buckets("auto:256:64")]
    ['192x320', '256x256', '320x192']
    """
    if found := _AUTO.fullmatch(text):
        buckets = _auto(int(found[1]), int(found[2] or _STEP_PX))
    else:
        buckets = [Resize.parse(size) for size in text.split(",")]
    if any(bucket.height_px is None for bucket in buckets):
        raise ValueError(f"buckets must be WxH,WxH or auto:SIDE:STEP, got {text!r}: correct it")
    if not 1 <= len({*buckets}) == len(buckets) <= _MOST_BUCKETS:
        what = f"1 to {_MOST_BUCKETS} different sizes, got {len(buckets)} in {text!r}"
        raise ValueError(f"buckets must be {what}: correct it")
    return tuple(buckets)


def _auto(side_px: int, step_px: int) -> list[Resize]:
    """Return buckets from the highest to the widest."""
    by_height: dict[int, int] = {}
    for width in range(step_px, _LARGEST_ASPECT * side_px + 1, step_px):
        height = side_px * side_px // width // step_px * step_px
        if height <= width <= _LARGEST_ASPECT * height:
            by_height[height] = width  # the widest of equal heights
    wide = sorted((width, height) for height, width in by_height.items())
    high = [(height, width) for width, height in reversed(wide) if height < width]
    return [Resize(*size) for size in (*high, *wide)]


def nearest_bucket(width_px: int, height_px: int, buckets: Sequence[Resize]) -> Resize:
    """Return the bucket with the nearest aspect ratio; of several, the first.

    Distances are ratios, so 2:1 is as far from 1:1 as 1:2.

    >>> str(nearest_bucket(640, 480, parse_buckets("512x512,512x384,384x512")))
    '512x384'
    """

    def distance(bucket: Resize) -> float:
        return abs(math.log(width_px * (bucket.height_px or 1) / (height_px * bucket.width_px)))

    return min(buckets, key=distance)


def bucket_split(split: str, bucket: Resize) -> str:
    """Return the split of a bucket's images.

    >>> bucket_split("train", Resize(1024, 768))
    'train_1024x768'
    """
    return f"{split}_{bucket}"


def split_without_bucket(split: str) -> str:
    """Return the split that a bucket's split was made of; any other name unchanged.

    >>> split_without_bucket("train_1024x768"), split_without_bucket("train")
    ('train', 'train')
    """
    found = _SPLIT.fullmatch(split)
    return found[1] if found else split


def bucket_of_split(split: str) -> Resize:
    """Return the bucket of a split that `bucket_split` named.

    Raises:
        ValueError: when the name is not that of a bucket's split.
    """
    found = _SPLIT.fullmatch(split)
    if found is None:
        raise ValueError(f"split must end in a bucket's size, got {split!r}: give such as a_8x8")
    return Resize(int(found[2]), int(found[3]))
