"""Build samples of annotated pictures, and their images."""

from collections.abc import Callable, Sequence
from typing import Any

from beam_tfrec.schemas.fields import EncodedImage, ImageInfo, ObjectFields, PictureFields
from beam_tfrec.schemas.layouts import Built, Labels, Unfit
from beam_tfrec.schemas.layouts.pictures import PictureLayout
from beam_tfrec.schemas.manifest import Label
from beam_tfrec.schemas.samples import Blob, Sample, pack

LABELS = {1: Label(1, "person"), 90: Label(90, "Zahnbürste")}


def sample_of(width_px: int, height_px: int, *objects: ObjectFields, **fields: Any) -> Sample:
    """Return the sample of image 42, with annotations numbered from 11."""
    packed = pack(PictureFields(width_px, height_px, list(objects), image_id=42, **fields))
    ids = tuple(range(11, 11 + len(objects)))
    return Sample("train", "42", 0, (Blob("train", "dir/a.jpg", 3),), packed, ids)


def image_of(width_px: int, height_px: int, orientation: int = 1) -> EncodedImage:
    info = ImageInfo("jpeg", width_px, height_px, orientation)
    return EncodedImage("dir/a.jpg", b"\xff\xd8\xff", "ab" * 32, info)


def object_at(
    *bbox_xywh_px: float, category_id: int = 1, keypoints_px: Sequence[float] = ()
) -> ObjectFields:
    x, y, width, height = bbox_xywh_px
    area_px2 = width * height
    return ObjectFields(category_id, (x, y, width, height), area_px2, 0, list(keypoints_px))


def built(
    layout: PictureLayout,
    sample: Sample,
    *images: EncodedImage,
    labels: Labels = LABELS,
    found: Sequence[str] = ("boxes",),
) -> Built:
    """Build a sample with a layout, resolved for the found annotations."""
    return layout.resolved(found).build(sample, images, labels)


def or_unfit(make: Callable[..., Any], *args: Any) -> Any:
    """Return a function's result, or the `Unfit` that it raises."""
    try:
        return make(*args)
    except Unfit as unfit:
        return unfit


def values_of(made: Built) -> dict[str, list]:
    """Return the values of every feature."""
    return {key: list(values) for key, (_, values) in made.features.items()}
