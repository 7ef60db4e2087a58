"""Find near copies of images: hashes of pictures, and clusters of images with near hashes.

Two images are near copies if both of their hashes differ in few bits: the perceptual hash (signs of
a cosine transform) and the difference hash (steps of brightness along rows). Both are those of the
library ImageHash. An image may also be a near copy of another's mirror image.

Images are hashed by all workers. Then one worker holds the keys and hashes of all images, since the
table of images is one sorted file. It compares only hashes with a whole band of bits in common.
"""

import functools
import hashlib
import itertools
import logging
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, ImageOps

from beam_tfrec.schemas.faults import RejectBudget, Rejected, counted, run_fault
from beam_tfrec.schemas.fields import EncodedImage
from beam_tfrec.schemas.geometry.boxes import turn_size
from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.samples import PHOTO, Sample, pack
from beam_tfrec.transforms.build_records import ShardJob, check_all, or_unfit, read_contents
from beam_tfrec.transforms.gate import GateLimits, WorkerGate
from beam_tfrec.transforms.images import convert_images as pictures
from beam_tfrec.transforms.images.check_images import decoding
from beam_tfrec.transforms.pin_blobs import refuse_mostly_missing
from beam_tfrec.transforms.progress import PROGRESS, Counts
from beam_tfrec.transforms.shuffle.elements import spread
from beam_tfrec.transforms.sort_into_buckets import ImageDoFn
from beam_tfrec.transforms.sources.listing import RootTally
from beam_tfrec.transforms.sources.read_samples import RejectedOutput
from beam_tfrec.transforms.storage import Access, Storage, read_uri

MAX_COMPARED = 200
"""Number of following hashes in a band that each hash is compared with: this keeps time linear."""

MAX_DISTANCE = 10
"""Largest distance in bits: with more, bands are so short that most images share one."""

_LOG = logging.getLogger(__name__)
_HASH_BITS = 64
_SMALL_PX = 128  # smallest side of a decoded JPEG: four times what the hashes need
_SIDE_PX, _WAVES = 32, 8
_LANCZOS = Image.Resampling.LANCZOS
_ANGLES = np.outer(np.arange(_WAVES), 2 * np.arange(_SIDE_PX) + 1)
_COSINES = np.cos(np.pi / (2 * _SIDE_PX) * _ANGLES)
_DECIMALS = 6  # equal areas give sums near 0, whose last digits depend on the processor
_COLUMNS = ["split", "key", "cluster", "size", "keep"]
_MOST_AT_ONCE = 1024  # images in a batch

Links = NDArray[np.int32]
"""Pairs of near hashes, a row each: the columns are distance in bits, 1 for a mirror image, and the
numbers of both."""


class Copies(NamedTuple):
    """What a table of near copies says.

    Names are pairs of a split and a key. The split is empty if a run divides one source itself.

    Attributes:
        kept_of: by the name of an image that is not kept: the kept one, as text.
        kept: names of the images that are kept instead of others.
    """

    kept_of: Mapping[tuple[str, str], str]
    kept: frozenset[tuple[str, str]]


class HashedImage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An image with its hashes.

    Attributes:
        split: split of its sample.
        key: key of its sample.
        hashes: perceptual and difference hash, then both of the mirror image, 8 bytes each.
        size_px: width and height as shown.
        blob: place of its file, packed.
    """

    split: str
    key: str
    hashes: bytes
    size_px: tuple[int, int]
    blob: bytes = b""


class HashedBatch(msgspec.Struct, frozen=True, array_like=True):
    """Images with their hashes, and samples whose images cannot be hashed."""

    images: list[HashedImage]
    rejected: list[Rejected]


def hash_image(image: EncodedImage) -> bytes:
    """Return the hashes of an image and of its mirror image, turned upright as EXIF says.

    Raises:
        BadImage: The image cannot be decoded.
        MemoryError, RecursionError, OSError: The machine failed, not the image.
    """
    with decoding():
        decoded = pictures.decode_image(image.data, image.info, (_SMALL_PX, _SMALL_PX)).image
        gray = pictures.over_white(pictures.upper_bits(decoded)).convert("L")
        upright = pictures.transposed(gray, image.info.orientation)
        return hash_picture(upright) + hash_picture(ImageOps.mirror(upright))


def hash_picture(gray: Image.Image) -> bytes:
    """Return the perceptual and the difference hash of a gray picture, 8 bytes each.

    They equal `imagehash.phash` and `imagehash.dhash`. Only where brightness is equal over an area
    may `phash` differ, since `imagehash` compares rounding errors there.
    """
    pixels = np.asarray(gray.resize((_SIDE_PX, _SIDE_PX), _LANCZOS), np.float64)
    waves = np.round(_COSINES @ pixels @ _COSINES.T, _DECIMALS)
    steps = np.asarray(gray.resize((_WAVES + 1, _WAVES), _LANCZOS))
    bits = waves > np.median(waves), steps[:, 1:] > steps[:, :-1]
    return np.packbits(bits).tobytes()


def hash_photo(
    photo: Sample, job: ShardJob, gate: WorkerGate, storages: Mapping[str, Storage]
) -> HashedImage | Rejected:
    """Read, check and hash the photo of a sample that has no other blobs.

    Raises:
        RuntimeError: a storage fault.
    """
    try:
        contents = read_contents(photo, storages)
        with gate.working:
            image = check_all(photo, contents, job.check, job.conversion)[0]
            info = image.info
            with gate.decoding(info.width_px * info.height_px):
                hashed = or_unfit(0, hash_image, image)
    except Unfit as unfit:
        return photo.reject("hash_images", unfit.code, unfit.detail)
    size_px = turn_size(info.size_px, info.orientation)
    return HashedImage(photo.split, photo.key, hashed, size_px, pack(photo.blobs[0]))


def photos_of(sample: Sample) -> list[Sample]:
    """Return a sample with nothing but its photo, if it has one."""
    blobs = sample.blobs[PHOTO : PHOTO + 1]
    return [Sample(sample.split, sample.key, 0, blobs, b"") for _ in blobs]


def find_links(hashes: NDArray[np.uint64], distance: int) -> Links:
    """Return the pairs of near hashes, each pair at least once.

    A hash is cut into bands, one more than the distance. So two near hashes share a whole band,
    of the perceptual and of the difference hash. Only hashes that share both are compared.

    Args:
        hashes: different hashes, a row each, as numbers in the order of `HashedImage.hashes`.
        distance: largest number of bits in which each of both hashes differs.
    """
    found = [np.zeros((0, 4), np.int32)]
    for bands in itertools.product(range(distance + 1), repeat=2):
        found += _links_in_bands(hashes, distance, bands)
    return np.concatenate(found)


def _links_in_bands(
    hashes: NDArray[np.uint64], distance: int, bands: tuple[int, ...]
) -> Iterator[Links]:
    """Yield the near hashes that share these two bands, and no earlier ones."""
    number, shown = len(hashes), np.concatenate([hashes[:, :2], hashes[:, 2:]])
    values = _band_of(shown[:, 0], bands[0], distance) << np.uint64(_HASH_BITS // 2)
    values |= _band_of(shown[:, 1], bands[1], distance)
    order = np.argsort(values, kind="stable")
    values, sorted_hashes = values[order], [shown[order, at] for at in (0, 1)]
    first = np.arange(len(order))
    for step in range(1, MAX_COMPARED + 1):
        first = first[first + step < len(order)]
        first = first[values[first] == values[first + step]]
        if not len(first):
            return
        near = first
        for numbers in sorted_hashes:
            near = near[np.bitwise_count(numbers[near] ^ numbers[near + step]) <= distance]
        one, two = order[near], order[near + step]
        bits = shown[one] ^ shown[two]
        is_wanted = np.minimum(one, two) < number  # not two mirror images
        for at, band in enumerate(bands):
            for earlier in range(band):
                is_wanted &= _band_of(bits[:, at], earlier, distance) != 0
        apart = np.bitwise_count(bits).max(axis=1)
        columns = apart, (one < number) != (two < number), one % number, two % number
        yield np.stack(columns, axis=1, dtype=np.int32, casting="unsafe")[is_wanted]
    _LOG.warning("many hashes are alike: each was compared with %d others", MAX_COMPARED)


def _band_of(numbers: NDArray[np.uint64], band: int, distance: int) -> NDArray[np.uint64]:
    """Return the bits of one of `distance + 1` bands."""
    start, end = (_HASH_BITS * edge // (distance + 1) for edge in (band, band + 1))
    return numbers >> np.uint64(start) & np.uint64((1 << (end - start)) - 1)


def connect(number: int, links: Links) -> NDArray[np.int64]:
    """Return the smallest of the connected numbers, for each number below `number`."""
    names = np.arange(number)
    while True:
        ends = names[links[:, 2:]]
        low = ends.min(axis=1)
        if (ends == low[:, None]).all():
            return names
        np.minimum.at(names, ends, low[:, None])
        while (names != names[names]).any():
            names = names[names]


def make_clusters(
    number: int, links: Links, most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the cluster of each of `number` hashes, and its part without mirror images.

    A cluster of too many hashes is divided: its links must be closer by one bit, until it fits. So
    a chain is cut where neighbours differ most.

    Args:
        number: number of hashes.
        links: pairs of near hashes.
        most: largest number of hashes in a cluster.
    """
    clusters, sides = np.full((2, number), -1)
    for allowed in range(links[:, 0].max(initial=0), -1, -1):
        links = links[links[:, 0] <= allowed]
        names = connect(number, links)
        fits = (np.bincount(names, minlength=number)[names] <= most) | (allowed == 0)
        fits &= clusters < 0
        clusters[fits], sides[fits] = names[fits], connect(number, links[links[:, 1] == 0])[fits]
        if (clusters >= 0).all():
            break
        _LOG.warning("clusters of more than %d hashes at %d bits are divided", most, allowed)
    return clusters, sides


def make_table(images: Iterable[HashedImage], distance: int, most: int) -> pa.Table:
    """Return the table of all images and their clusters, sorted by split and key.

    A cluster is named by the image to keep: the largest one; among equals, the one whose key has
    the smallest digest.

    Args:
        images: images in any order.
        distance: largest number of bits in which each hash of two near copies differs.
        most: largest number of different hashes in a cluster.
    """
    rows = sorted(images, key=operator.attrgetter("split", "key"))
    packed = np.frombuffer(b"".join(row.hashes for row in rows), ">u8").reshape(-1, 4)
    hashes, places = np.unique(packed.astype(np.uint64), axis=0, return_inverse=True)
    found = make_clusters(len(hashes), find_links(hashes, distance), most)
    clusters, sides = (names[places] for names in found)
    last_kept = sorted(range(len(rows)), key=lambda at: _keeping_order(rows[at]), reverse=True)
    kept = dict(zip(clusters[last_kept].tolist(), last_kept, strict=True))
    keeps = np.array([kept[cluster] for cluster in clusters.tolist()], int)
    return pa.table(
        {
            "split": [row.split for row in rows],
            "key": [row.key for row in rows],
            "phash": [row.hashes[:8].hex() for row in rows],
            "dhash": [row.hashes[8:16].hex() for row in rows],
            "width": [row.size_px[0] for row in rows],
            "height": [row.size_px[1] for row in rows],
            "cluster": [f"{rows[at].split}/{rows[at].key}" for at in keeps],
            "size": np.bincount(clusters)[clusters],
            "mirrored": sides != sides[keeps],
            "keep": keeps == np.arange(len(rows)),
        }
    )


def _keeping_order(image: HashedImage) -> tuple[int, bytes]:
    name = f"{image.split}\0{image.key}".encode()
    return -image.size_px[0] * image.size_px[1], hashlib.blake2b(name, digest_size=16).digest()


def read_copies(uri: str, splits: Sequence[str], access: Access) -> Copies:
    """Return the images of a table that are not kept, and those that are kept instead.

    Args:
        uri: path or URI of the table.
        splits: splits of the run; empty if it divides one source itself. Then only keys are
            compared, and the splits in the result are empty.
        access: settings for the store.

    Raises:
        RuntimeError: `E-ARG` when the file is not such a table or has no split of the run, or when
            a run without splits cannot tell two images of one key apart; or a storage fault.
    """
    remedy = "give a file that beam-tfrec similar made of these sources"
    try:
        table = pq.read_table(pa.BufferReader(read_uri(uri, access)), columns=_COLUMNS)
        copies = table.filter(pc.invert(table["keep"])).to_pydict()
        keeps = table.filter(pc.and_(table["keep"], pc.greater(table["size"], 1))).to_pydict()
    except (pa.ArrowException, ValueError) as error:
        raise run_fault("E-ARG", uri, " ".join(str(error).split())[:200], remedy) from None
    if splits and not {*splits}.intersection(table["split"].unique().to_pylist()):
        raise run_fault("E-ARG", uri, f"has no split {' or '.join(splits)}", remedy)
    if not splits and len(table["key"].unique()) < table.num_rows:
        what = "has a key in two splits, and this run divides one source itself"
        raise run_fault("E-ARG", uri, what, "make it from the source of this run")
    named = zip(copies["split"], copies["key"], copies["cluster"], strict=True)
    kept = zip(keeps["split"], keeps["key"], strict=True)
    return Copies(
        {(split if splits else "", key): kept for split, key, kept in named},
        frozenset((split if splits else "", key) for split, key in kept),
    )


def drop_similar(
    sample: Sample, copies: Copies
) -> Iterator[Sample | RejectedOutput | beam.pvalue.TaggedOutput]:
    """Yield a sample, or its reject if it is a near copy of a kept one; and names of kept ones."""
    names = (sample.split, sample.key), ("", sample.key)
    for kept in filter(None, map(copies.kept_of.get, names)):
        reject = sample.reject("drop_similar", "E-IMG-SIMILAR", f"near copy of {kept}")
        yield RejectedOutput("rejected", reject)
        return
    yield sample
    for name in copies.kept.intersection(names):
        yield beam.pvalue.TaggedOutput("kept", name)


def check_kept(
    copies: Copies,
    kept: Iterable[tuple[str, str]],
    root_tallies: Sequence[tuple[str, RootTally]],
    uri: str,
    splits: Collection[str],
    budget: RejectBudget,
) -> list[Rejected]:
    """Check that every image is there whose copies are left out; return an empty list.

    Raises:
        RuntimeError: `E-ARG`, since without the kept image a whole cluster would be lost;
            `E-SET-MISSING` if most images are missing, since their folder is probably wrong.
    """
    refuse_mostly_missing(root_tallies, budget)
    expected = {name for name in copies.kept if not splits or name[0] in splits}
    if missing := sorted(expected.difference(kept)):
        lost = f"{counted(len(missing), 'image')} that this run does not have"
        what = f"keeps {lost}, such as {missing[0][1]!r}"
        raise run_fault("E-ARG", uri, what, "make it again from the run's sources")
    return []


@dataclass(eq=False)
class DropSimilar(beam.PTransform):
    """Samples -> the samples to keep, and rejects of the near copies.

    Each worker holds the names of all images that are not kept.

    Attributes:
        uri: path or URI of the table of near copies.
        splits: splits of the run; none if it divides one source itself.
        access: settings for the store.
        budget: limit of missing images.
        root_tallies: counts of named and listed files, by root; None if the reader listed them.
    """

    uri: str
    splits: Sequence[str]
    access: Access
    budget: RejectBudget
    root_tallies: beam.PCollection[tuple[str, RootTally]] | None

    def expand(
        self, samples: beam.PCollection[Sample]
    ) -> tuple[beam.PCollection[Sample], beam.PCollection[Rejected]]:
        """Read the table, and drop the copies."""
        uris = samples.pipeline | "Table" >> beam.Create([self.uri], reshuffle=False)
        copies = uris | "ReadCopies" >> beam.Map(read_copies, self.splits, self.access)
        drop = beam.FlatMap(drop_similar, beam.pvalue.AsSingleton(copies))
        found = samples | "Drop" >> drop.with_outputs("rejected", "kept", main="samples")
        kept = beam.pvalue.AsList(found.kept)
        # The empty result makes the plan wait for the check.
        tallies: Any = [] if self.root_tallies is None else beam.pvalue.AsList(self.root_tallies)
        given = self.uri, self.splits, self.budget
        checked = copies | "CheckKept" >> beam.FlatMap(check_kept, kept, tallies, *given)
        rejected = (found.rejected, checked) | "Rejected" >> beam.Flatten()
        return found.samples, rejected


@dataclass(eq=False)
class HashImages(beam.PTransform):
    """Samples -> `HashedBatch`es. Each photo is read and decoded once, at a small size.

    Attributes:
        job: places of the images, and how they are checked.
        limits: limits of each worker process.
    """

    job: ShardJob
    limits: GateLimits

    def expand(self, samples: beam.PCollection[Sample]) -> beam.PCollection[HashedBatch]:
        """Hash the photos."""
        photos = samples | "TakePhotos" >> beam.FlatMap(photos_of).with_output_types(Sample)
        batches = spread(photos) | "Batch" >> beam.BatchElements(_MOST_AT_ONCE // 4, _MOST_AT_ONCE)
        return batches | "Hash" >> beam.ParDo(_HashPhotos(self.job, self.limits))


class _HashPhotos(ImageDoFn):
    """Hashes photos in the threads of the process's gate."""

    def process(self, photos: Sequence[Sample]) -> Iterator[HashedBatch]:
        make = functools.partial(hash_photo, job=self.job, gate=self.gate, storages=self.storages)
        made = [each for _, each in self.gate.in_order(photos, self.job.memory_bytes, make)]
        rejected = [each for each in made if isinstance(each, Rejected)]
        PROGRESS.add(Counts(len(made), len(rejected)))
        yield HashedBatch([each for each in made if isinstance(each, HashedImage)], rejected)
