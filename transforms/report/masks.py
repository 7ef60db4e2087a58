"""Draw masks as a layer over a small picture, each in the color of its class.

A mask is an image file as large as the whole picture: of one object (0 is background), of the class
of each pixel, or of segment numbers in three bytes as in COCO's panoptic images. Polygons are drawn
likewise.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from transforms.images.check_images import Check, check_image, decoding
from transforms.images.findings import BadImage, ImageFault
from transforms.report.contents import class_color

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_MASK_PIXELS = 1 << 27
"""Of all masks of a picture together; the rest is not drawn."""

_ALPHA = 128
_FORMATS = ("PNG", "JPEG", "BMP")

Polygon = Sequence[float]
"""x and y in turn, as parts of width and height."""


class MaskLayer:
    """A transparent layer as large as a small picture.

    Attributes:
        labels: of what was drawn, each once.
    """

    def __init__(self, size_px: tuple[int, int]) -> None:
        import numpy as np

        self.labels: dict[int | None, None] = {}
        self._size_px = size_px
        self._pixels = np.zeros((size_px[1], size_px[0], 4), np.uint8)
        self._pixels_left = MAX_MASK_PIXELS

    def add_objects(self, masks: Iterable[tuple[bytes, int | None]]) -> str:
        """Draw a mask for each object, given with its label; return what is wrong with the first.

        An empty text stands for nothing wrong.
        """
        wrong = ""
        for mask, label in masks:
            try:
                self._paint(self._read(mask) > 0, label)
            except BadImage as error:
                wrong = wrong or error.fault.detail
        return wrong

    def add_numbers(self, mask: bytes, labels: Mapping[int, int]) -> None:
        """Draw a mask of several classes, whose numbers stand for labels.

        Raises:
            BadImage: when the mask is damaged.
        """
        import numpy as np

        numbers = self._read(mask)
        for number in np.unique(numbers).tolist():
            if number in labels:
                self._paint(numbers == number, labels[number])

    def add_polygons(self, objects: Iterable[tuple[Sequence[Polygon], int | None]]) -> None:
        """Draw the polygons of each object, given with its label."""
        import numpy as np
        from PIL import Image, ImageDraw

        width, height = self._size_px
        for polygons, label in objects:
            where = Image.new("1", self._size_px)
            for polygon in polygons:
                corners = zip(polygon[::2], polygon[1::2], strict=True)
                points = [(x * width, y * height) for x, y in corners]
                ImageDraw.Draw(where).polygon(points, fill=1)
            self._paint(np.asarray(where), label)

    def png(self, size_px: tuple[int, int], most_bytes: int) -> bytes:
        """Return the layer scaled to a size; nothing if it is empty or would be too large."""
        from PIL import Image

        if not self.labels:
            return b""
        image, out = Image.fromarray(self._pixels, "RGBA"), io.BytesIO()
        image.resize(size_px, Image.Resampling.NEAREST).quantize(255).save(out, "PNG")
        return out.getvalue() if out.tell() <= most_bytes else b""

    def _paint(self, where: "NDArray[np.bool_]", label: int | None) -> None:
        if where.any():
            self.labels[label] = None
            self._pixels[where] = [*bytes.fromhex(class_color(label)[1:]), _ALPHA]

    def _read(self, value: bytes) -> "NDArray[np.int64]":
        """Return the numbers in a mask, as large as the layer.

        Raises:
            BadImage: when it is no image or has too many pixels.
        """
        info = check_image(value, Check.HEADER, max_pixels=self._pixels_left)
        if isinstance(info, ImageFault):
            raise BadImage(info.code, info.detail)
        self._pixels_left -= info.width_px * info.height_px
        with decoding():
            return _numbers(value, self._size_px)


def _numbers(value: bytes, size_px: tuple[int, int]) -> "NDArray[np.int64]":
    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(value), formats=_FORMATS) as image:
        pixels = np.asarray(image)  # of a palette its numbers, not its colors
    if pixels.ndim == 3 and pixels.shape[2] < 3:
        pixels = pixels[:, :, 0]
    width, height = size_px
    rows = np.arange(height) * pixels.shape[0] // height
    columns = np.arange(width) * pixels.shape[1] // width
    small = pixels[rows][:, columns].astype(np.int64)
    if small.ndim == 2:
        return small
    return small[:, :, 0] + 256 * small[:, :, 1] + 65536 * small[:, :, 2]
