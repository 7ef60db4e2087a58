"""Tint masks into a small picture, each in the color of its class.

A mask is an image file of the whole picture: of one object, 0 where it is not; of all, the class of
each pixel; or the segment's number in three bytes, as COCO's panoptic images have it. Of each the
pixels are taken that lie under those of the small picture.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from transforms.images.check_images import Check, check_image, decoding
from transforms.images.findings import BadImage, ImageFault
from transforms.report.colors import class_color

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

MAX_MASK_PIXELS = 1 << 27
"""Of all masks of a picture together: what is beyond is not tinted."""

_OPACITY = 0.5
_FORMATS = ("PNG", "JPEG", "BMP")


class MaskReader:
    """Reads masks down to the size of a small picture, within a limit on their pixels."""

    def __init__(self, size_px: tuple[int, int]) -> None:
        self._size_px = size_px
        self._left = MAX_MASK_PIXELS

    def read(self, value: bytes) -> "NDArray[np.int64]":
        """Return the numbers in a mask, height x width of the small picture.

        Raises:
            BadImage: where it is no image, or pixels are too many.
        """
        info = check_image(value, Check.HEADER, max_pixels=self._left)
        if isinstance(info, ImageFault):
            raise BadImage(info.code, info.detail)
        self._left -= info.width_px * info.height_px
        with decoding():
            return self._numbers(value)

    def _numbers(self, value: bytes) -> "NDArray[np.int64]":
        import numpy as np
        from PIL import Image

        with Image.open(io.BytesIO(value), formats=_FORMATS) as image:
            pixels = np.asarray(image)  # of a palette its numbers, not its colors
        if pixels.ndim == 3 and pixels.shape[2] < 3:
            pixels = pixels[:, :, 0]
        width, height = self._size_px
        rows = np.arange(height) * pixels.shape[0] // height
        columns = np.arange(width) * pixels.shape[1] // width
        small = pixels[rows][:, columns].astype(np.int64)
        if small.ndim == 2:
            return small
        return small[:, :, 0] + 256 * small[:, :, 1] + 65536 * small[:, :, 2]


def tint_objects(
    image: "Image.Image", masks: Sequence[bytes], labels: Sequence[int | None]
) -> tuple["Image.Image", list[bool], str]:
    """Return a picture with the masks of its objects, which of them are in it, and what is wrong.

    Args:
        image: small, of mode `RGB`.
        masks: image files, one an object.
        labels: of the objects.
    """
    tinter, reader = _Tinter(image), MaskReader(image.size)
    is_in, wrong = [], ""
    for mask, label in zip(masks, labels, strict=True):
        try:
            where = reader.read(mask) > 0
        except BadImage as error:
            wrong = wrong or error.fault.detail
            where = None
        is_in.append(where is not None and bool(where.any()))
        if where is not None:
            tinter.tint(where, label)
    return tinter.image(), is_in, wrong


def tint_numbers(
    image: "Image.Image", mask: bytes, labels: Mapping[int, int]
) -> tuple["Image.Image", list[int]]:
    """Return a picture with what a mask of several classes shows, and their labels.

    Args:
        image: small, of mode `RGB`.
        mask: an image file of numbers.
        labels: label by the mask's number; other numbers are background.

    Raises:
        BadImage: where the mask is none.
    """
    import numpy as np

    tinter, numbers = _Tinter(image), MaskReader(image.size).read(mask)
    found: dict[int, None] = {}
    for number in np.unique(numbers).tolist():
        if number in labels:
            tinter.tint(numbers == number, labels[number])
            found[labels[number]] = None
    return tinter.image(), list(found)


def tint_polygons(
    image: "Image.Image", polygons: Iterable[tuple[Sequence[Sequence[float]], int | None]]
) -> "Image.Image":
    """Return a picture with the polygons of its objects.

    Args:
        image: small, of mode `RGB`.
        polygons: of each object its polygons, each of x and y in turn as parts of width and height,
            and its label.
    """
    import numpy as np
    from PIL import Image, ImageDraw

    tinter, (width, height) = _Tinter(image), image.size
    for outlines, label in polygons:
        where = Image.new("1", image.size)
        for outline in outlines:
            points = [
                (x * width, y * height) for x, y in zip(outline[::2], outline[1::2], strict=True)
            ]
            ImageDraw.Draw(where).polygon(points, fill=1)
        tinter.tint(np.asarray(where), label)
    return tinter.image()


class _Tinter:
    """Pixels of a picture, some of them mixed with colors."""

    def __init__(self, image: "Image.Image") -> None:
        import numpy as np

        self._pixels = np.asarray(image).astype(np.float32)

    def tint(self, where: "NDArray[np.bool_]", label: int | None) -> None:
        """Mix pixels with the color of a class."""
        color = bytes.fromhex(class_color(label)[1:])
        self._pixels[where] = self._pixels[where] * (1 - _OPACITY) + [_OPACITY * c for c in color]

    def image(self) -> "Image.Image":
        """Return the picture."""
        import numpy as np
        from PIL import Image

        return Image.fromarray(self._pixels.round().astype(np.uint8), "RGB")
