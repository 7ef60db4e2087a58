"""Sizes of resized images: which size a picture gets, and which part of it is shown."""

import enum
import re
from dataclasses import dataclass
from typing import NamedTuple, Self

from schemas.images import Crop

MAX_SIDE_PX = 65_500
"""The longest side that libjpeg writes."""

_BOX = re.compile(r"([1-9][0-9]{0,4})(?:x([1-9][0-9]{0,4}))?")
_LONGEST = re.compile(r"max:([1-9][0-9]{0,4})")


class ResizeMode(enum.Enum):
    """How a picture of another aspect meets a box.

    FIT gives the largest size inside the box with the picture's aspect, never padded. FILL covers
    the box and cuts its middle out. STRETCH gives the box's size, whatever the aspect.
    """

    FIT = "fit"
    FILL = "fill"
    STRETCH = "stretch"


class Resized(NamedTuple):
    """What a resize makes of a picture.

    Attributes:
        size_px: width and height that it gets.
        crop: the part of it that is shown; None for all of it.
    """

    size_px: tuple[int, int]
    crop: Crop | None = None


@dataclass(frozen=True)
class Resize:
    """The size that is asked for.

    Attributes:
        width_px: of the box; of the longer side, where only that is limited.
        height_px: of the box; None where only the longer side is limited, and nothing enlarged.
    """

    width_px: int
    height_px: int | None

    def __post_init__(self) -> None:
        """Refuse sides that no image has."""
        for side in (self.width_px, self.width_px if self.height_px is None else self.height_px):
            if not 1 <= side <= MAX_SIDE_PX:
                raise ValueError(
                    f"resize must have sides of 1 to {MAX_SIDE_PX} px, got {side}: give another"
                )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the resize that a flag asks for.

        Raises:
            ValueError: with the forms that there are.

        >>> Resize.parse("512"), Resize.parse("max:1024")
        (Resize(width_px=512, height_px=512), Resize(width_px=1024, height_px=None))
        """
        if found := _LONGEST.fullmatch(text):
            return cls(int(found[1]), None)
        if found := _BOX.fullmatch(text):
            return cls(int(found[1]), int(found[2] or found[1]))
        raise ValueError(
            f"resize must be N, WxH or max:N in px, got {text!r}: give one such as 512, 640x480 or"
            " max:1024"
        )

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        if self.height_px is None:
            return f"max:{self.width_px}"
        return f"{self.width_px}x{self.height_px}"


def resized(size_px: tuple[int, int], resize: Resize | None, mode: ResizeMode) -> Resized:
    """Return what a resize makes of a picture of that width and height.

    Sides are rounded to the nearest px, halves up, and are at least 1. Output bytes depend on it.

    >>> resized((640, 427), Resize(512, 512), ResizeMode.FIT).size_px
    (512, 342)
    >>> resized((640, 480), Resize(512, 512), ResizeMode.FILL)
    Resized(size_px=(512, 512), crop=(0.125, 0.0, 0.875, 1.0))
    >>> resized((640, 480), Resize(1024, None), ResizeMode.FIT)
    Resized(size_px=(640, 480), crop=None)
    """
    width, height = size_px
    if resize is None:
        return Resized(size_px)
    if resize.height_px is None:
        if max(size_px) <= resize.width_px:
            return Resized(size_px)
        return Resized(_fit(size_px, (resize.width_px, resize.width_px)))
    box = box_width, box_height = resize.width_px, resize.height_px
    if mode is ResizeMode.FIT:
        return Resized(_fit(size_px, box))
    if mode is ResizeMode.STRETCH or box_width * height == box_height * width:
        return Resized(box)
    if box_width * height < box_height * width:  # the picture is too wide
        left = (1.0 - box_width * height / (box_height * width)) / 2.0
        return Resized(box, (left, 0.0, 1.0 - left, 1.0))
    top = (1.0 - box_height * width / (box_width * height)) / 2.0
    return Resized(box, (0.0, top, 1.0, 1.0 - top))


def _fit(size_px: tuple[int, int], box_px: tuple[int, int]) -> tuple[int, int]:
    (width, height), (box_width, box_height) = size_px, box_px
    if box_width * height <= box_height * width:
        return box_width, max(1, (2 * height * box_width + width) // (2 * width))
    return max(1, (2 * width * box_height + height) // (2 * height)), box_height
