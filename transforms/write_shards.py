"""Write shards: read a shard's images, build its Examples, and commit its file with a receipt.

The order of a shard's files is the protocol: the receipt claims the content, the index describes
it, and the data file appears last, whole. Each is created only if its name is free; a name that is
taken must hold the same content, left by an earlier run or by a twin of this one.
"""

import contextlib
import functools
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import apache_beam as beam
import msgspec
from apache_beam.io.components.adaptive_throttler import ThrottlingSignaler
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.shared import Shared

from schemas.example import MAX_EXAMPLE_BYTES, encode_example_parts
from schemas.faults import FAULTS, Scope, fault_line, printable
from schemas.feature_roles import roles_of_spec
from schemas.images import RAW, EncodedImage
from schemas.layouts import Built, Labels, Layout, Unfit, labels_by_category
from schemas.manifest import JobPlan, from_json, plan_digest, to_json
from schemas.samples import Sample
from schemas.sequence_example import encode_sequence_example_parts
from schemas.shards import ShardInfo, ShardNames, ShardPlan, index_names, receipt_name
from schemas.statistics import NO_STATISTICS
from schemas.tfrecord import frame_record
from transforms import coders
from transforms.blobs import is_panoptic
from transforms.check_images import MAX_PIXELS, Check, ImageFault, check_image
from transforms.convert_images import NO_CONVERSION, Conversion, convert_along, convert_image
from transforms.foreign_images import FOREIGN_KINDS, check_foreign
from transforms.gate import GateLimits, WorkerGate
from transforms.growing_shard import GrowingShard, Record
from transforms.image_kinds import name_kind
from transforms.npz import UNPACKED
from transforms.output_files import conflict, create_or_compare
from transforms.progress import COUNTERS, PROGRESS
from transforms.quantities import counted, megabytes
from transforms.read_blobs import read_blob
from transforms.run_spool import RunSpool, payload_bytes
from transforms.shard_index import (
    IndexRow,
    index_from_parquet,
    index_to_parquet,
    index_to_text,
    same_but_pins,
)
from transforms.storage import (
    DEFAULT_ACCESS,
    Access,
    Spool,
    Storage,
    is_local,
    join_uri,
    open_storage,
    uploads_in_pieces,
)
from transforms.storage.request_rate import THROTTLED
from transforms.turn_images import Orientation, turn_along, turn_upright

_LOG = logging.getLogger(__name__)
_SIGNAL_S = 10.0  # how often a runner hears of throttling
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # of an object: another one in every run

P = ParamSpec("P")
T = TypeVar("T")

coders.register(JobPlan)


@dataclass(frozen=True)
class ShardJob:
    """What all shards of a run have in common.

    Attributes:
        roots: URI per root name of the samples' blobs.
        output: URI of the data set.
        layout: what an Example holds.
        names: how shard files are called.
        check: how far an image is looked into.
        access: how stores are reached.
        orientation: what is done about EXIF orientations.
        conversion: what else is done to pixels.
        spool: where samples' payloads lie; None where these are in the samples.
    """

    roots: Mapping[str, str]
    output: str
    layout: Layout
    names: ShardNames = field(default_factory=ShardNames)
    check: Check = Check.HEADER
    access: Access = DEFAULT_ACCESS
    orientation: Orientation = Orientation.KEEP
    conversion: Conversion = NO_CONVERSION
    spool: RunSpool | None = None


def write_shard(shard: ShardPlan, job: ShardJob, plan: JobPlan, gate: WorkerGate) -> ShardInfo:
    """Return what was made of a shard: kept when it is there already, else built and committed.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when files of other content have its names, `E-SRC-CHANGED`
            when a source is not what was listed or what the kept shard was made from, `E-ARG` when
            this worker would make other bytes than planned, or a storage fault.
    """
    output = open_storage(job.output, job.access)
    roots = {name: open_storage(uri, job.access) for name, uri in job.roots.items()}
    kept = find_written(shard, output, plan_digest(plan))
    if kept is not None:
        info, rows = kept
        check_sources(shard, rows, roots)
        PROGRESS.add_samples(info.planned, info.planned - info.records, info.bytes)
        _LOG.info("kept %s", _described(info))
    else:
        check_codecs(job, plan)
        info = build_shard(shard, job, plan, gate, output, roots)
        _LOG.info("wrote %s", _described(info))
    PROGRESS.add_shard()
    return info


def check_codecs(job: ShardJob, plan: JobPlan) -> None:
    """Refuse a worker whose codecs are not those of the plan: equal shards would differ in bytes.

    Where codecs decide bytes the options name their versions, those of the process that asks.

    Raises:
        RuntimeError: `E-ARG`, naming both versions.
    """
    decided_here = {
        **job.layout.options(),
        **job.orientation.options(),
        **job.conversion.for_pixels(job.layout.pixels_dtype).options(),
    }
    for name, here in decided_here.items():
        planned = plan.options.get(name, here)
        if planned != here:
            what = f"{name} is {planned!r} in the plan, {here!r} on this worker"
            remedy = "give workers the packages of the machine that plans, best in an image"
            raise RuntimeError(fault_line("E-ARG", job.output, what, remedy))


def _described(info: ShardInfo) -> str:
    return f"{info.file} ({counted(info.records, 'record')}, {megabytes(info.bytes)})"


def find_written(
    shard: ShardPlan, output: Storage, plan: str
) -> tuple[ShardInfo, list[IndexRow]] | None:
    """Return the receipt and index of a shard that an earlier attempt finished, else None.

    A receipt without its file is a claim that was not fulfilled: the shard is built again, and must
    come out the same.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when receipt and file disagree.
    """
    receipt = receipt_name(shard.name)
    if output.stat(receipt) is None:
        return None
    where = join_uri(output.root, receipt)
    try:
        info = from_json(output.read(receipt), ShardInfo)
    except ValueError as error:
        raise conflict(where, f"is no receipt ({error})") from None
    if info.plan != plan:
        raise conflict(where, f"belongs to plan {info.plan}, this run's is {plan}")
    if info.name != shard.name:
        raise conflict(where, f"is the receipt of {info.name}")
    written = output.stat(info.file)
    parquet_name, text_name = index_names(shard.name)
    if written is None or output.stat(parquet_name) is None or output.stat(text_name) is None:
        return None
    if written.size_bytes != info.bytes:
        what = f"has {written.size_bytes} bytes, its receipt says {info.bytes}"
        raise conflict(join_uri(output.root, info.file), what)
    rows = read_index(parquet_name, output, index_from_parquet)
    blobs = {sample.key: len(sample.blobs) for sample in shard.samples}
    found = [len(row.sources) for row in rows]
    if found != [blobs.get(row.key) for row in rows] or len(rows) != info.records:
        raise conflict(join_uri(output.root, parquet_name), "describes other records")
    return info, rows


def check_sources(shard: ShardPlan, rows: Sequence[IndexRow], roots: Mapping[str, Storage]) -> None:
    """Hash again what was touched since a kept shard was made from it.

    Raises:
        RuntimeError: `E-SRC-CHANGED` when its content is another.
    """
    samples = {sample.key: sample for sample in shard.samples}
    for row in rows:
        for source, blob in zip(row.sources, samples[row.key].blobs, strict=True):
            if source.pin == blob.pin:
                continue
            root = roots[blob.root]
            sha256 = hashlib.sha256(read_blob(root, blob)).hexdigest()
            if sha256 != source.sha256:
                what = f"other bytes than when {shard.name} was written"
                remedy = "restore it, or give another --output, or --overwrite"
                where = join_uri(root.root, blob.name)
                raise RuntimeError(fault_line("E-SRC-CHANGED", where, what, remedy))


def build_shard(
    shard: ShardPlan,
    job: ShardJob,
    plan: JobPlan,
    gate: WorkerGate,
    output: Storage,
    roots: Mapping[str, Storage],
) -> ShardInfo:
    """Return what was made of a shard after reading its images and committing its files."""
    conversion = job.conversion.for_pixels(job.layout.pixels_dtype)
    make_record = record_maker(job, plan, gate, roots)
    roles = roles_of_spec(job.layout.resolved(plan.found).spec)
    with contextlib.closing(output.spool()) as spool:
        growing = GrowingShard(shard, spool, conversion, roles)
        size_of = functools.partial(bytes_in_flight, conversion=conversion)
        with gate.building:
            for sample, record in gate.read_in_order(shard.samples, size_of, make_record):
                if isinstance(record, Unfit):
                    growing.reject(sample, record)
                else:
                    growing.append(sample, record)
        info = growing.info(plan_digest(plan), job.names)
        _commit_shard(info, growing.rows, spool, output)
    return info


def record_maker(
    job: ShardJob, plan: JobPlan, gate: WorkerGate, roots: Mapping[str, Storage]
) -> Callable[[Sample], "Record | Unfit"]:
    """Return what reads a sample's images and makes its record; it is called by many threads."""
    labels = labels_by_category(plan.labels)
    layout = job.layout.resolved(plan.found)
    conversion = job.conversion.for_pixels(layout.pixels_dtype)

    def make_record(sample: Sample) -> Record | Unfit:
        if job.spool is not None:
            sample = job.spool.give(sample)
        contents = read_images(sample, roots)
        with gate.working:
            if not layout.reads_images:
                return build_record(sample, take_as_they_are(sample, contents), layout, labels)
            images = check_images(sample, contents, job.check, conversion)
            if isinstance(images, Unfit):
                return images
            pixels = num_decoded(images, job.orientation, conversion)
            if pixels:
                with gate.decoding(pixels):
                    images = convert_images(sample, images, job.orientation, conversion)
            if isinstance(images, Unfit):
                return images
            return build_record(sample, images, layout, labels)

    return make_record


def read_images(sample: Sample, roots: Mapping[str, Storage]) -> list[bytes]:
    """Return the bytes of a sample's blobs, in their order.

    Reading lies outside the reject boundary: an error of the storage fails the shard.

    Raises:
        RuntimeError: `E-SRC-CHANGED` or a storage fault.
    """
    return [read_blob(roots[blob.root], blob) for blob in sample.blobs]


def check_images(
    sample: Sample,
    contents: Sequence[bytes],
    check: Check,
    conversion: Conversion = NO_CONVERSION,
) -> list[EncodedImage] | Unfit:
    """Return a sample's images in its blobs' order, or the first one's fault.

    Where all are encoded again, those of formats that TensorFlow does not read are welcome.
    """
    images: list[EncodedImage] = []
    for place, (blob, data) in enumerate(zip(sample.blobs, contents, strict=True)):
        info = _or_unfit(check_image, data, check)
        if isinstance(info, ImageFault) and conversion.takes_foreign and not is_panoptic(blob):
            is_foreign = name_kind(data) in FOREIGN_KINDS
            info = _or_unfit(check_foreign, data, MAX_PIXELS) if is_foreign else info
        if isinstance(info, (ImageFault, Unfit)):
            return Unfit(info.code, info.detail, place)
        sha256 = hashlib.sha256(data).hexdigest()
        images.append(EncodedImage(blob.name, data, sha256, info))
    return images


def take_as_they_are(sample: Sample, contents: Sequence[bytes]) -> list[EncodedImage]:
    """Return a sample's blobs that are no image files, in their order."""
    return [
        EncodedImage(blob.name, data, hashlib.sha256(data).hexdigest(), RAW)
        for blob, data in zip(sample.blobs, contents, strict=True)
    ]


def num_decoded(
    images: Sequence[EncodedImage], orientation: Orientation, conversion: Conversion
) -> int:
    """Return how many pixels `convert_images` may decode; 0 where it leaves all as they are."""
    turns = orientation is Orientation.UPRIGHT and any(i.info.orientation != 1 for i in images)
    if not turns and not conversion.changes:
        return 0
    return sum(image.info.width_px * image.info.height_px for image in images)


def convert_images(
    sample: Sample,
    images: Sequence[EncodedImage],
    orientation: Orientation,
    conversion: Conversion,
) -> list[EncodedImage] | Unfit:
    """Return a sample's images as they are to be written, or the first one's fault.

    They are turned upright if that is asked for, and converted; a panoptic one with its photo.
    """
    converted: list[EncodedImage] = []
    for place, (blob, image) in enumerate(zip(sample.blobs, images, strict=True)):
        if is_panoptic(blob):
            found = _or_unfit(_along, image, converted[0])
        else:
            upright = orientation is Orientation.UPRIGHT
            found = _or_unfit(_turned_and_converted, image, upright, conversion)
        if isinstance(found, (ImageFault, Unfit)):
            return Unfit(found.code, found.detail, place)
        converted.append(found)
    return converted


def _along(image: EncodedImage, photo: EncodedImage) -> EncodedImage | ImageFault:
    turned = turn_along(image, photo)
    return turned if isinstance(turned, ImageFault) else convert_along(turned, photo)


def _turned_and_converted(
    image: EncodedImage, upright: bool, conversion: Conversion
) -> EncodedImage | ImageFault:
    """Turn and convert in one go; what is only turned is turned by the means of its format."""
    found: EncodedImage | ImageFault = image
    if conversion.changes:
        found = convert_image(image, conversion, image.info.orientation if upright else 1)
    return turn_upright(image) if found is image and upright else found


def build_record(
    sample: Sample,
    images: Sequence[EncodedImage],
    layout: Layout,
    labels: Labels,
) -> Record | Unfit:
    """Return a sample's record, or why there is none."""
    encoded = _or_unfit(_build, sample, images, layout, labels)
    if isinstance(encoded, Unfit):
        return encoded
    parts, built = encoded
    size = sum(map(len, parts))
    if size > MAX_EXAMPLE_BYTES:
        return Unfit("E-EX-TOO-LARGE", f"{size} bytes, the limit is {MAX_EXAMPLE_BYTES}")
    return Record(frame_record(parts), built, images)


def _build(
    sample: Sample, images: Sequence[EncodedImage], layout: Layout, labels: Labels
) -> tuple[list[bytes], Built] | Unfit:
    built = layout.build(sample, images, labels)
    if isinstance(built, Unfit):
        known = built.code in FAULTS and FAULTS[built.code].scope is Scope.SAMPLE
        return built if known else Unfit("E-EX-FAILED", f"{built.code}: {built.detail}")
    if built.feature_lists is not None:
        return encode_sequence_example_parts(built.features, built.feature_lists), built
    return encode_example_parts(built.features), built


def _or_unfit(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Unfit:
    """Return what a pure function of bytes makes, its exception as a reject.

    The one place where that happens. Trouble of the machine passes: it says nothing of the sample.
    """
    try:
        return make(*args, **kwargs)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = (_ADDRESS.sub("0x", str(error)).splitlines() or [""])[0][:200]
        return Unfit("E-EX-FAILED", printable(f"{type(error).__name__}: {reason}"))


def _commit_shard(info: ShardInfo, rows: Sequence[IndexRow], spool: Spool, output: Storage) -> None:
    twin = output.stat(info.file) is not None
    if twin:  # before anything is claimed: a rerun would take a foreign file for the claim's
        _compare_twin(info, output)
    _claim(info, output)
    parquet_name, text_name = index_names(info.name)
    if not output.create(parquet_name, index_to_parquet(rows)) and not same_but_pins(
        rows, read_index(parquet_name, output, index_from_parquet)
    ):
        raise conflict(join_uri(output.root, parquet_name), "describes other records")
    create_or_compare(output, text_name, index_to_text(rows))
    if not twin and not spool.publish(info.file):
        _compare_twin(info, output)


def _claim(info: ShardInfo, output: Storage) -> None:
    """Create a shard's receipt, or find it there; an earlier version's has no statistics."""
    name = receipt_name(info.name)
    if output.create(name, to_json(info)):
        return
    without_statistics = msgspec.structs.replace(info, statistics=NO_STATISTICS)
    if output.read(name) not in (to_json(info), to_json(without_statistics)):
        raise conflict(join_uri(output.root, name), "has other content than this run's")


def read_index(name: str, output: Storage, decode: Callable[[bytes], T]) -> T:
    """Return what `decode` makes of a shard's index.

    Raises:
        RuntimeError: `E-OUT-CONFLICT` when the file is none.
    """
    try:
        return decode(output.read(name))
    except ValueError as error:
        raise conflict(join_uri(output.root, name), str(error)) from None


def _compare_twin(info: ShardInfo, output: Storage) -> None:
    """Accept a file that another attempt at the same shard put there, if it is the same."""
    found = output.stat(info.file)
    crc32c = f"{output.crc32c(info.file):08x}"
    if found is None or (found.size_bytes, crc32c) != (info.bytes, info.crc32c):
        what = f"has CRC-32C {crc32c}, this run made {info.bytes} bytes of {info.crc32c}"
        raise conflict(join_uri(output.root, info.file), what)


def record_bytes(sample: Sample, layout: Layout, conversion: Conversion) -> int:
    """Return about the size of a sample's record; of plain pixels, where the layout wants them."""
    listed_bytes = layout.record_bytes(sample)
    if not layout.pixels_dtype:
        return listed_bytes
    pixels = conversion.for_pixels(layout.pixels_dtype)
    files_bytes = [blob.read_bytes for blob in sample.blobs]
    return listed_bytes - sum(files_bytes) + sum(map(pixels.pixels_bytes, files_bytes))


def bytes_in_flight(sample: Sample, conversion: Conversion) -> int:
    """Return about what a sample takes until it is written: its files, and its plain pixels."""
    files_bytes = [blob.read_bytes for blob in sample.blobs]
    size = payload_bytes(sample) + sum(files_bytes)
    return (
        size + sum(map(conversion.pixels_bytes, files_bytes)) if conversion.pixels_dtype else size
    )


@dataclass(eq=False)
class WriteShards(beam.PTransform):
    """Shard plans -> what was made of them, one `ShardInfo` a shard, in any order.

    They go without their statistics, which receipts have.

    Shards are built by the worker process's gate, at most `limits.shards_in_flight` at once, and
    as many are uploaded beside them; images are read ahead within `limits.bytes_in_flight`. A shard
    that an earlier attempt finished is kept. Rejects travel in the infos, so that a retry cannot
    double or lose them.
    Counters `records`, `rejected`, `bytes` and `shards_done` in the namespace `beam_tfrec` are for
    display; `cumulativeThrottlingSeconds` keeps Dataflow from adding workers to a store that
    throttles.

    Attributes:
        job: what all shards have in common.
        plan: one element, the published plan; no shard is begun before it.
        limits: of every worker process.
    """

    job: ShardJob
    plan: beam.PCollection[JobPlan]
    limits: GateLimits = field(default_factory=GateLimits)

    def expand(self, shards: beam.PCollection[ShardPlan]) -> beam.PCollection[ShardInfo]:
        """Write every shard."""
        write = _WriteShards(self.job, self.limits, Shared())
        return shards | "Write" >> beam.ParDo(write, beam.pvalue.AsSingleton(self.plan))


class _WriteShards(beam.DoFn):
    """Hands shards to the gate and lets their infos out with the bundle.

    A bundle of several shards builds them side by side, and one shard is built while another is
    made durable, whatever number of threads the runner gives.
    """

    def __init__(self, job: ShardJob, limits: GateLimits, shared: Shared) -> None:
        self._job = job
        self._limits = limits
        self._shared = shared

    def setup(self) -> None:
        far = not all(map(is_local, self._job.roots.values()))
        uploads_aside = uploads_in_pieces(self._job.output)
        self._gate = self._shared.acquire(
            lambda: WorkerGate(self._limits, far=far, uploads_aside=uploads_aside)
        )
        UNPACKED.enter(self._job.access.spool_dir)
        self._signaler = ThrottlingSignaler(COUNTERS)
        THROTTLED.take(1)  # what was waited before is no wait of this step

    def teardown(self) -> None:
        UNPACKED.leave()

    def start_bundle(self) -> None:
        self._running: set[Future[ShardInfo]] = set()

    def process(self, shard: ShardPlan, plan: JobPlan) -> Iterator[ShardInfo]:
        if len(self._running) >= self._gate.shards:
            yield from self._take_finished()
        build = self._gate.builders.submit(write_shard, shard, self._job, plan, self._gate)
        self._running.add(build)

    def finish_bundle(self) -> Iterator:
        while self._running:
            infos = self._take_finished()
            yield from map(GlobalWindows.windowed_value_at_end_of_window, infos)

    def _take_finished(self) -> Iterator[ShardInfo]:
        """Wait for a shard, and tell the runner how long a throttling store made readers wait."""
        finished: set[Future[ShardInfo]] = set()
        while not finished:
            finished, self._running = wait(self._running, _SIGNAL_S, FIRST_COMPLETED)
            if throttled_s := THROTTLED.take(self._gate.readers):
                self._signaler.signal_throttled(throttled_s)
        return (_counted(self._info_of(future)) for future in finished)

    def _info_of(self, future: Future[ShardInfo]) -> ShardInfo:
        """Return a shard's info; its fault once no other shard of the bundle is being built.

        Else they would go on beside the bundle's retry, or below the line of the fault.
        """
        try:
            return future.result()
        except BaseException:
            for other in self._running:
                other.cancel()
            wait(self._running)
            raise


def _counted(info: ShardInfo) -> ShardInfo:
    """Count what was made, and return it without its statistics, which its receipt has.

    A step that holds the infos of a million shards would hold 15 GB of them.
    """
    rejected = sum(reject.scope is Scope.SAMPLE for reject in info.rejected)
    counts = {"records": info.records, "rejected": rejected, "bytes": info.bytes, "shards_done": 1}
    for name, count in counts.items():
        Metrics.counter(COUNTERS, name).inc(count)
    return msgspec.structs.replace(info, statistics=NO_STATISTICS)
