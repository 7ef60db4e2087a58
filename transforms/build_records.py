"""Make the records of a shard: read the images, check and convert them, encode the Examples."""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, ParamSpec, TypeVar

import msgspec
from msgspec import structs

from beam_tfrec.schemas.example import MAX_EXAMPLE_BYTES, encode_example_parts
from beam_tfrec.schemas.faults import FAULTS, Scope, run_fault
from beam_tfrec.schemas.features import BoxForm, Kind, RecordValues, Roles, values_at
from beam_tfrec.schemas.fields import RAW, EncodedImage, ImageInfo
from beam_tfrec.schemas.layouts import Built, Labels, Layout, Unfit, labels_by_category
from beam_tfrec.schemas.manifest import JobPlan
from beam_tfrec.schemas.samples import Blob, Sample, has_own_sizes, is_id_root
from beam_tfrec.schemas.shards import ShardNames
from beam_tfrec.schemas.tensors import read_tensor
from beam_tfrec.schemas.tfrecord import FrameError, frame_record, read_frame, unmasked_crc
from beam_tfrec.transforms.gate import WorkerGate
from beam_tfrec.transforms.images.check_images import Check, check_image, one_line
from beam_tfrec.transforms.images.conversion import NO_CONVERSION, Conversion
from beam_tfrec.transforms.images.findings import BadImage
from beam_tfrec.transforms.shard_index import ReadyRow
from beam_tfrec.transforms.shuffle.run_spool import RunSpool, payload_bytes
from beam_tfrec.transforms.sources.read_blobs import read_blob
from beam_tfrec.transforms.storage import Access, Storage, array_record, is_local, source_changed

# Formats that a conversion decodes less strictly than `Check.DECODE`: Pillow fills up damaged JPEG
# data and reads only the first frame of a GIF. Decoding a PNG always checks all of it.
_UNPROVEN = frozenset({"jpeg", "gif"})

_BYTES_A_RECORD = 1000  # memory of a small row's record; it limits how many rows wait at once
_BYTES_A_COPY = 600
_SPAN_BYTES = 8 << 20  # neighbours in a file that are copied from one read
_LOCAL_GAP_BYTES = 64 << 10  # to read so many bytes takes as long as another call
_REMOTE_GAP_BYTES = 1 << 20
_NUMBERS_A_BOX = 4
_READY_ROW = msgspec.msgpack.Decoder(ReadyRow)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ShardJob:
    """The part of a run's configuration that travels to builder processes.

    The whole configuration imports Beam. With it a builder takes 140 MB and 0.8 s of CPU to
    start, instead of 67 MB and 0.25 s.

    Attributes:
        roots: URIs of the image roots, by root name.
        output: URI of the data set.
        layout: layout of the Examples.
        names: naming scheme of shard files.
        array_record_options: options of ArrayRecord's writer; empty to write TFRecord files.
        check: depth of the image checks.
        access: credentials and limits for stores.
        conversion: changes to pixels and encoding.
        spool: the run's spool, for payloads; samples without one are left as they are. None where
            samples hold their own.
    """

    roots: Mapping[str, str]
    output: str
    layout: Layout
    names: ShardNames = field(default_factory=ShardNames)
    array_record_options: str = ""
    check: Check = Check.HEADER
    access: Access = field(default_factory=Access)
    conversion: Conversion = NO_CONVERSION
    spool: RunSpool | None = None

    def memory_bytes(self, sample: Sample) -> int:
        """Return the estimated memory of a sample until it is written: files, pixels, payload."""
        if self.layout.copies_records:
            return _BYTES_A_COPY + sample.blobs[0].length
        if not (sample.blobs or sample.payload_place or sample.payload):
            return _BYTES_A_RECORD
        files_bytes = [blob.read_bytes for blob in sample.blobs]
        pixels_bytes = sum(map(self.conversion.pixels_bytes, files_bytes))
        return _BYTES_A_RECORD + payload_bytes(sample) + sum(files_bytes) + pixels_bytes


def check_codecs(job: ShardJob, plan: JobPlan) -> None:
    """Check that this worker has the plan's codec versions.

    Other versions would write other bytes for the same shard. Options name the versions of codecs
    that decide bytes, as installed in the current process.

    Raises:
        RuntimeError: `E-ARG`, naming both versions.
    """
    decided_here = job.layout.options() | job.conversion.options()
    decided_here |= array_record.plan_options(job.array_record_options)
    for name, here in decided_here.items():
        planned = plan.options.get(name, here)
        if planned != here:
            what = f"{name} is {planned!r} in the plan, {here!r} on this worker"
            remedy = "give workers the packages of the machine that plans, best in an image"
            raise run_fault("E-ARG", job.output, what, remedy)


NOT_BUILT = Built({}, [], [], [])
"""Example of a record whose index row needs none of its values."""


class Record(NamedTuple):
    """A framed record in parts, its Example and images, and the CRC-32C of its data.

    `row` is the ready index row of a copied record or a table row; Example and images are then
    empty.
    """

    parts: list[bytes]
    built: Built
    images: Sequence[EncodedImage]
    crc32c: int
    row: ReadyRow | None = None


def record_maker(
    job: ShardJob, plan: JobPlan, gate: WorkerGate, storages: Mapping[str, Storage]
) -> Callable[[Sample], Record | Unfit]:
    """Return a thread-safe function that reads a sample's images and makes its record."""
    labels = labels_by_category(plan.labels)
    layout = job.layout.resolved(plan.found)
    conversion_of = functools.cache(job.conversion.for_split)

    def make_fit(sample: Sample) -> Record:
        contents = read_contents(sample, storages)
        if job.spool is not None:
            sample = job.spool.load_payload(sample)
        conversion = conversion_of(sample.split)
        if not contents:  # building a row takes less time than waiting for the gate
            return build_record(sample, (), layout, labels)
        with gate.working:
            if not layout.reads_images:
                files = zip(sample.blobs, contents, strict=True)
                raw = [_image(blob, data, RAW) for blob, data in files]
                return build_record(sample, raw, layout, labels)
            images = check_all(sample, contents, job.check, conversion)
            if pixels := num_decoded(images, conversion):
                with gate.decoding(pixels):
                    images = convert_all(sample, images, conversion, job.check)
            return build_record(sample, images, layout, labels)

    def make_record(sample: Sample) -> Record | Unfit:
        try:
            return make_fit(sample)
        except Unfit as unfit:  # a new one, since a traceback holds the images
            return Unfit(unfit.code, unfit.detail, unfit.place)

    return make_record


def read_contents(sample: Sample, storages: Mapping[str, Storage]) -> list[bytes]:
    """Return the bytes of a sample's blobs.

    Raises:
        Unfit: an image's record cannot be read.
        RuntimeError: a storage fault, which fails the shard instead of rejecting the sample.
    """
    try:
        return [read_blob(storages[blob.root], blob) for blob in sample.blobs]
    except FrameError as error:  # of a record that holds an image
        raise Unfit("E-REC-DAMAGED", str(error)) from None


def make_rows(
    samples: Sequence[Sample],
    job: ShardJob,
    plan: JobPlan,
    make_record: Callable[[Sample], Record | Unfit],
) -> list[Record | Unfit]:
    """Return the records of rows; `make_record` makes them one by one if the layout cannot."""
    layout = job.layout.resolved(plan.found)
    loaded = [*map(job.spool.load_payload, samples)] if job.spool is not None else samples
    with contextlib.suppress(ValueError, OverflowError):  # some row becomes a reject
        if (examples := layout.examples(loaded)) is not None:
            return [*map(_row_record, examples)]
    return [*map(make_record, samples)]


def _row_record(example: bytes) -> Record:
    """Return the record of a row without images."""
    framed = frame_record([example])
    crc32c = unmasked_crc(framed[-1])
    return Record(framed, NOT_BUILT, (), crc32c, ReadyRow(crc32c, [], []))


def copy_group(group: Sequence[Sample], storages: Mapping[str, Storage]) -> list[Record | Unfit]:
    """Return the copies of a group's records, in its order; damaged ones as rejects.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when a file has other records than planned, or a storage
            fault.
    """
    copies: dict[int, Record | Unfit] = {}
    for places in _neighbours(group, storages):
        first, last = group[places[0]].blobs[0], group[places[-1]].blobs[0]
        span = structs.replace(first, length=last.offset + last.length - first.offset)
        data = read_blob(storages[first.root], span)
        for place in places:
            blob = group[place].blobs[0]
            start = blob.offset - first.offset
            copies[place] = _copy(group[place], data[start : start + blob.length])
    return [copies[place] for place in range(len(group))]


def _neighbours(group: Sequence[Sample], storages: Mapping[str, Storage]) -> Iterator[list[int]]:
    """Yield the places of records to read together, in the order of their offsets."""
    ranges = [(b.root, b.name, b.offset, b.length) for b in (sample.blobs[0] for sample in group)]
    gaps = {
        name: _LOCAL_GAP_BYTES if is_local(storage.root) else _REMOTE_GAP_BYTES
        for name, storage in storages.items()
    }
    together: list[int] = []
    file, start, end = ("", ""), 0, 0
    for place in sorted(range(len(group)), key=ranges.__getitem__):
        root, name, offset, length = ranges[place]
        is_near = file == (root, name) and offset - end <= gaps[root]
        if together and not (is_near and offset + length - start <= _SPAN_BYTES):
            yield together
            together = []
        if not together:
            file, start = (root, name), offset
        end = offset + length
        together.append(place)
    if together:
        yield together


def _copy(sample: Sample, frame: bytes) -> Record | Unfit:
    blob, copied = sample.blobs[0], _READY_ROW.decode(sample.fields)
    try:
        read_frame(frame, 0, len(frame))
    except FrameError as error:
        return Unfit("E-REC-DAMAGED", f"{blob.name} at byte {blob.offset}: {error}")
    if unmasked_crc(frame[-4:]) != copied.crc32c:
        raise source_changed(blob.name, f"another record at byte {blob.offset} than was planned")
    return Record([frame], NOT_BUILT, (), copied.crc32c, copied)


def check_all(
    sample: Sample, contents: Sequence[bytes], check: Check, conversion: Conversion = NO_CONVERSION
) -> list[EncodedImage]:
    """Check a sample's images, and return them in its blobs' order.

    Formats that TensorFlow cannot read are accepted if the conversion encodes every image again.

    Raises:
        Unfit: the fault of the first image that has one.
    """
    images: list[EncodedImage] = []
    for blob_index, (blob, data) in enumerate(zip(sample.blobs, contents, strict=True)):
        takes_foreign = conversion.takes_foreign and not is_id_root(blob.root)
        info = or_unfit(blob_index, check_image, data, check, takes_foreign=takes_foreign)
        images.append(_image(blob, data, info))
    return images


def _image(blob: Blob, data: bytes, info: ImageInfo) -> EncodedImage:
    if blob.orientation:
        info = structs.replace(info, orientation=blob.orientation)
    return EncodedImage(blob.image_file[0], data, hashlib.sha256(data).hexdigest(), info)


def num_decoded(images: Sequence[EncodedImage], conversion: Conversion) -> int:
    """Return how many pixels `convert_all` may decode; 0 if it changes no image."""
    turns = conversion.turns and any(i.info.orientation != 1 for i in images)
    decodes = turns or conversion.changes
    return sum(i.info.width_px * i.info.height_px for i in images) if decodes else 0


def convert_all(
    sample: Sample,
    images: Sequence[EncodedImage],
    conversion: Conversion,
    checked: Check = Check.HEADER,
) -> list[EncodedImage]:
    """Turn and convert a sample's images as configured.

    A panoptic image or a PNG of masks gets the same changes as its photo; the layout scales one of
    another size. An image that is decoded for this must pass `Check.DECODE`.

    Args:
        sample: sample of the images.
        images: checked images, in the order of the sample's blobs.
        conversion: changes to make.
        checked: check that the images have passed.

    Raises:
        Unfit: the fault of the first image that has one.
    """
    from beam_tfrec.transforms.images.convert_images import (  # late: Pillow
        convert_along,
        convert_image,
    )

    converted: list[EncodedImage] = []
    for blob_index, (blob, image) in enumerate(zip(sample.blobs, images, strict=True)):
        if has_own_sizes(blob.root):
            result = image
        elif is_id_root(blob.root):
            result = or_unfit(blob_index, convert_along, image, converted[0])
        else:
            result = or_unfit(blob_index, convert_image, image, conversion)
            if result is not image and checked is Check.HEADER and image.info.format in _UNPROVEN:
                or_unfit(blob_index, check_image, image.data, Check.DECODE)
        converted.append(result)
    return converted


def build_record(
    sample: Sample, images: Sequence[EncodedImage], layout: Layout, labels: Labels
) -> Record:
    """Return a sample's record; raise `Unfit` if it cannot be built."""
    return or_unfit(0, _build, sample, images, layout, labels)


def _build(
    sample: Sample, images: Sequence[EncodedImage], layout: Layout, labels: Labels
) -> Record:
    built = layout.build(sample, images, labels)
    parts = encode_example_parts(built.features, built.feature_lists)
    size = sum(map(len, parts))
    if size > MAX_EXAMPLE_BYTES:
        raise Unfit("E-EX-TOO-LARGE", f"{size} bytes, the limit is {MAX_EXAMPLE_BYTES}")
    framed = frame_record(parts)
    return Record(framed, built, images, unmasked_crc(framed[-1]))


def or_unfit(place: int, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a pure function of bytes, and raise its exceptions as `Unfit`, which is a reject.

    Errors of the machine are raised as they are, since the sample did not cause them.

    Args:
        place: index of the blob at fault in `Sample.blobs`, unless an `Unfit` says it.
        make: the function.
        *args: its arguments.
        **kwargs: its keyword arguments.
    """
    try:
        return make(*args, **kwargs)
    except (MemoryError, RecursionError):
        raise
    except BadImage as error:
        raise Unfit(error.code, error.detail, place) from None
    except Unfit as unfit:
        known = unfit.code in FAULTS and FAULTS[unfit.code].scope is Scope.SAMPLE
        if known:
            raise
        raise Unfit("E-EX-FAILED", f"{unfit.code}: {unfit.detail}") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Unfit("E-EX-FAILED", one_line(error), place) from None


def record_bytes(sample: Sample, layout: Layout, conversion: Conversion) -> int:
    """Return the estimated size of a sample's record, with plain pixels if the layout has them."""
    size = layout.record_bytes(sample)
    if layout.pixels_dtype:
        files_bytes = [blob.read_bytes for blob in sample.blobs]
        size += sum(map(conversion.pixels_bytes, files_bytes)) - sum(files_bytes)
    return size


def record_facts(
    values: RecordValues, roles: Roles, images: Sequence[EncodedImage] = ()
) -> tuple[int | None, int | None, int | None]:
    """Return image height, image width and objects of a record's index row.

    Args:
        values: the record's features.
        roles: roles of these features.
        images: images that the record was built from, so that their headers are not parsed again.
    """
    if not (roles.images or roles.pixels or roles.objects):
        return None, None, None
    height, width = _picture_size(values, roles, images) or (None, None)
    return height, width, _num_objects(values, roles)


def _picture_size(
    values: RecordValues, roles: Roles, images: Sequence[EncodedImage]
) -> tuple[int, int] | None:
    for key in roles.images:
        for value in values_at(values, key, Kind.BYTES)[:1]:
            # Callers that read finished records have no images.
            info = next((i.info for i in images if i.data is value), None)
            with contextlib.suppress(BadImage):
                return (info or check_image(value)).size_px[::-1]
            return None
    for key in roles.pixels:
        for value in values_at(values, key, Kind.BYTES)[:1]:
            sides, tensor = (roles.height, roles.width), read_tensor(value)
            stated = [int(n) for side in sides for n in values_at(values, side, Kind.INT64)[:1]]
            shape: Sequence[int] = tensor.shape if tensor and tensor.shape else stated
            is_picture = len(shape) in (2, 3) and min(shape) > 0
            return (shape[0], shape[1]) if is_picture else None
    return None


def _num_objects(values: RecordValues, roles: Roles) -> int | None:
    if not roles.objects:
        return None
    objects = roles.objects[0]
    numbers = len(values_at(values, objects.boxes[0], Kind.FLOAT))
    boxes = numbers if objects.form is BoxForm.EDGES else numbers // _NUMBERS_A_BOX
    return max(boxes, len(values_at(values, objects.labels, Kind.INT64)))
