"""Flags of what is asked of images, and of what is done to their pixels."""

import argparse
from typing import Any, TypeVar

from pipelines.options import FlagParser
from schemas.geometry.resizing import Resize, ResizeMode
from transforms.images.check_images import Check
from transforms.images.convert_images import DEFAULT_QUALITY, Color, Conversion, Encoding
from transforms.images.turn_images import JPEG_QUALITY, Orientation


def add_image_flags(parser: FlagParser) -> None:
    """Add the flags about images."""
    group = parser.add_argument_group("images")
    group.add_argument(
        "--check",
        choices=[check.value for check in Check],
        default=Check.HEADER.value,
        help="header: walk through each file's structure; decode: decode its pixels too"
        " (default header)",
    )
    group.add_argument(
        "--orientation",
        choices=[orientation.value for orientation in Orientation],
        default=Orientation.KEEP.value,
        help="pictures that EXIF asks to be turned: keep them as stored, with boxes to match, or"
        " turn pixels, boxes, polygons, masks and keypoints upright; PNG without loss, JPEG encoded"
        f" again at quality {JPEG_QUALITY} with its chroma subsampling (default keep)",
    )
    _add_conversion_flags(parser)


def image_fields(flags: argparse.Namespace) -> dict[str, Any]:
    """Return what the flags say of a `DataSetConfig`."""
    return {
        "check": Check(flags.check),
        "orientation": Orientation(flags.orientation),
        "conversion": Conversion(
            resize=None if flags.resize is None else Resize.parse(flags.resize),
            resize_mode=_given(ResizeMode, flags.resize_mode),
            reencode=_given(Encoding, flags.reencode),
            quality=flags.quality,
            color=_given(Color, flags.color),
        ),
    }


def _add_conversion_flags(parser: FlagParser) -> None:
    group = parser.add_argument_group("conversion of images (docs/images.md)")
    group.add_argument(
        "--resize",
        metavar="N|WxH|max:N",
        help="width and height in px of the box that images are resized to, N for a square; or the"
        " most that the longer side may have, nothing enlarged; annotations follow"
        " (default: sizes stay)",
    )
    group.add_argument(
        "--resize_mode",
        choices=[mode.value for mode in ResizeMode],
        help="fit: the largest size inside the box with the image's aspect; fill: the box, what is"
        " beyond it cut off on both sides; stretch: the box, whatever the aspect (default fit;"
        " stretch where plain pixels are written)",
    )
    group.add_argument(
        "--reencode",
        choices=[encoding.value for encoding in Encoding],
        help="encode every image as this that is not; WebP, TIFF and AVIF are taken too (default:"
        " changed images in their own format, GIF and BMP as PNG, all others byte for byte)",
    )
    group.add_argument(
        "--quality",
        type=int,
        metavar="1..100",
        help="by libjpeg's scale, of JPEGs that are made; with --reencode jpeg every image is"
        f" (default {DEFAULT_QUALITY})",
    )
    group.add_argument(
        "--color",
        choices=[color.value for color in Color],
        help="rgb: three channels; gray: one; keep: those of the file, inks as RGB once they are"
        " decoded; what rgb, gray and JPEG leave out of alpha is laid on white (default keep; rgb"
        " where plain pixels are written)",
    )


_Choice = TypeVar("_Choice", ResizeMode, Encoding, Color)


def _given(choices: type[_Choice], text: str | None) -> _Choice | None:
    return None if text is None else choices(text)
