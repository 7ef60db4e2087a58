"""Build some records as the writer would, and keep of them what they take.

Where records hold files as they are, no image is read for it: a listing tells the size of a file,
and annotations mostly that of its picture. Where pixels are touched only trying tells.
"""

import functools
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from schemas.example import MAX_EXAMPLE_BYTES
from schemas.faults import FAULTS, Rejected, Scope
from schemas.images import RAW, EncodedImage, ImageInfo
from schemas.layouts import Layout, Unfit, labels_by_category
from schemas.layouts.pairs import PairsLayout
from schemas.layouts.pictures import PictureLayout
from schemas.manifest import JobPlan
from schemas.picture_fields import PictureFields
from schemas.samples import Blob, Sample, is_panoptic
from transforms.build_records import build_record, bytes_in_flight, read_images, record_maker
from transforms.forecast.outline_shards import PICTURE_FIELDS
from transforms.gate import GateLimits, WorkerGate
from transforms.growing_shard import Record
from transforms.images.turn_images import Orientation
from transforms.shard_job import ShardJob
from transforms.storage import is_local, open_storage

MAX_TRYING_S = 10.0
MIN_TRIED = 16
_USUAL_PX = (640, 480)
_FILLED_BYTES = 2**20  # of a larger file no more are made up; the rest is added as a number
_NO_SHA256 = "0" * 64


class Tried(NamedTuple):
    """What came of a sample.

    Attributes:
        sample: that was tried.
        bytes: of its framed record, 0 where there is none; None where only its image will tell.
        rejected: why there is no record; None where there is one.
    """

    sample: Sample
    bytes: int | None
    rejected: Rejected | None = None


class Trial(NamedTuple):
    """What came of some samples.

    Attributes:
        tried: one after the other.
        images_read: whether their images were read.
    """

    tried: list[Tried]
    images_read: bool


def needs_images(job: ShardJob, samples: Iterable[Sample]) -> bool:
    """Return whether records' sizes follow from their images' pixels, not from the listing."""
    conversion = job.conversion.for_pixels(job.layout.pixels_dtype)
    if conversion.changes or job.orientation is Orientation.UPRIGHT:
        return True
    return any(is_panoptic(blob) for sample in samples for blob in sample.blobs)


def try_records(
    samples: Sequence[Sample], job: ShardJob, plan: JobPlan, limits: GateLimits
) -> Trial:
    """Build the records of samples, which have their payloads, without writing them.

    Args:
        samples: in the order in which they are tried.
        job: of the run; its spool is not asked.
        plan: of the run.
        limits: of a worker process.

    Raises:
        RuntimeError: `E-SRC-CHANGED` or a storage fault where images are read.
    """
    if needs_images(job, samples):
        return Trial(_try_with_images(samples, job, plan, limits), images_read=True)
    layout, labels = job.layout.resolved(plan.found), labels_by_category(plan.labels)
    tried = [
        _without_images(sample, build_record(sample, stand_ins(sample, layout), layout, labels))
        for sample in samples
    ]
    return Trial(tried, images_read=False)


def stand_ins(sample: Sample, layout: Layout) -> list[EncodedImage]:
    """Return images of the sizes that are known without reading any, in the blobs' order."""
    if not layout.reads_images:
        return [_stand_in(blob, RAW) for blob in sample.blobs]
    sizes_px = [_USUAL_PX for _ in sample.blobs]
    if isinstance(layout, PictureLayout):
        fields: PictureFields = PICTURE_FIELDS.decode(sample.fields)
        if fields.width_px and fields.height_px:
            sizes_px = [(fields.width_px, fields.height_px) for _ in sample.blobs]
    if isinstance(layout, PairsLayout):
        width_px, height_px = _USUAL_PX
        scale = layout.scale or 1
        sizes_px = [_USUAL_PX, (scale * width_px, scale * height_px)]
    return [
        _stand_in(blob, ImageInfo("jpeg", *size_px))
        for blob, size_px in zip(sample.blobs, sizes_px, strict=True)
    ]


def _stand_in(blob: Blob, info: ImageInfo) -> EncodedImage:
    return EncodedImage(blob.name, bytes(min(blob.read_bytes, _FILLED_BYTES)), _NO_SHA256, info)


def _without_images(sample: Sample, record: Record | Unfit) -> Tried:
    if isinstance(record, Unfit):
        of_image = record.code.startswith(("E-IMG-", "E-EX-FAILED"))  # of which there was none
        return Tried(sample, None) if of_image else Tried(sample, 0, _reject(sample, record))
    left_bytes = sum(max(0, blob.read_bytes - _FILLED_BYTES) for blob in sample.blobs)
    size = sum(map(len, record.parts)) + left_bytes
    if size > MAX_EXAMPLE_BYTES:
        what = f"{size} bytes, the limit is {MAX_EXAMPLE_BYTES}"
        return Tried(sample, 0, _reject(sample, Unfit("E-EX-TOO-LARGE", what)))
    return Tried(sample, size)


def _try_with_images(
    samples: Sequence[Sample], job: ShardJob, plan: JobPlan, limits: GateLimits
) -> list[Tried]:
    """Try samples until it takes too long; at least a few."""
    far = not all(map(is_local, job.roots.values()))
    gate = WorkerGate(limits, far=far)
    roots = {name: open_storage(uri, job.access) for name, uri in job.roots.items()}
    read = functools.partial(read_images, roots=roots)
    make_record = record_maker(job, plan, gate)
    conversion = job.conversion.for_pixels(job.layout.pixels_dtype)
    size_of = functools.partial(bytes_in_flight, conversion=conversion)
    tried: list[Tried] = []
    ends_s = time.perf_counter() + MAX_TRYING_S
    for sample, record in gate.read_in_order(samples, size_of, read, make_record):
        if isinstance(record, Unfit):
            tried.append(Tried(sample, 0, _reject(sample, record)))
        else:
            tried.append(Tried(sample, sum(map(len, record.parts))))
        if len(tried) >= MIN_TRIED and time.perf_counter() > ends_s:
            break
    return tried


def _reject(sample: Sample, unfit: Unfit) -> Rejected:
    assert FAULTS[unfit.code].scope is Scope.SAMPLE
    place = unfit.place
    return Rejected(
        code=unfit.code,
        stage="plan",
        split=sample.split,
        key=sample.key,
        annotation_ids=sample.annotation_ids,
        file_name=sample.blobs[place].name if place < len(sample.blobs) else "",
        detail=unfit.detail,
    )
