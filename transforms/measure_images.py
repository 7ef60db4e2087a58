"""Sort samples into size buckets: read each image once, before the plan, and look at its size.

Annotations often give no sizes, or sizes before a turn by EXIF. So the image itself decides.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.utils.shared import Shared

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.geometry.boxes import SWAPPING, nearest_bucket
from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import bucket_split
from beam_tfrec.schemas.tfrecord import FrameError
from beam_tfrec.transforms.build_records import check_all
from beam_tfrec.transforms.gate import GateLimits, WorkerGate
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.conversion import Conversion
from beam_tfrec.transforms.plan_shards import RefuseEqualKeys
from beam_tfrec.transforms.shuffle.run_spool import RunSpool
from beam_tfrec.transforms.sources.read_blobs import read_blob
from beam_tfrec.transforms.sources.read_samples import SplitSource, SplitSourceOutput
from beam_tfrec.transforms.storage import Access, Storage, is_local, open_storage

_HELD_SAMPLES = 256
TOO_SMALL = "smaller_than_min_bucket"


class BucketedSamples(NamedTuple):
    """Output of `SortIntoBuckets`.

    Attributes:
        samples: samples in the splits of their buckets.
        moved: counts to add to those of the splits; negative where samples have left.
    """

    samples: beam.PCollection[Sample]
    moved: beam.PCollection[SplitSource]


@dataclass(eq=False)
class SortIntoBuckets(beam.PTransform):
    """Pinned samples -> samples in the splits of their buckets.

    A sample whose image cannot be read goes to the first bucket. The shard then rejects it with
    the reason.

    Attributes:
        roots: URI per root name of the samples' blobs.
        conversion: buckets, and what images are accepted.
        limits: limits of every worker process.
        access: credentials and limits for stores.
        spool: file of the keys during a group-by; None if steps run in other processes.
    """

    roots: Mapping[str, str]
    conversion: Conversion
    limits: GateLimits
    access: Access
    spool: RunSpool | None = None

    def expand(self, samples: beam.PCollection[Sample]) -> BucketedSamples:
        """Read every image."""
        hold = beam.BatchElements(_HELD_SAMPLES, _HELD_SAMPLES, record_metrics=False)
        sort = _Sort(self.roots, self.conversion, self.limits, self.access, Shared())
        # Later steps compare keys within a bucket only.
        checked = beam.pvalue.AsList(samples | "RefuseEqualKeys" >> RefuseEqualKeys(self.spool))
        sorts = beam.ParDo(sort, checked).with_outputs("sources", main="samples")
        found = samples | "Hold" >> hold | "Sort" >> sorts
        return BucketedSamples(found.samples, found.sources)


class _Sort(beam.DoFn):
    def __init__(
        self,
        roots: Mapping[str, str],
        conversion: Conversion,
        limits: GateLimits,
        access: Access,
        shared: Shared,
    ) -> None:
        self._uris, self._access, self._shared = roots, access, shared
        self._conversion, self._limits = conversion, limits

    def setup(self) -> None:
        self._roots = {name: open_storage(uri, self._access) for name, uri in self._uris.items()}
        far = not all(map(is_local, self._uris.values()))
        # One gate a process, whatever its number of threads, so that memory is bounded.
        self._gate = self._shared.acquire(lambda: WorkerGate(self._limits, far=far))

    def process(
        self, samples: list[Sample], checked: list[str]
    ) -> Iterator[Sample | SplitSourceOutput]:
        moved: Counter[tuple[str, str]] = Counter()
        annotations: Counter[tuple[str, str]] = Counter()

        measure = functools.partial(size_of, roots=self._roots, conversion=self._conversion)
        for sample, size_px in self._gate.in_order(samples, _read_bytes, measure):
            split = self._split_of(sample, size_px)
            moved[sample.split, split] += 1
            annotations[sample.split, split] += len(sample.annotation_ids)
            if split:
                yield msgspec.structs.replace(sample, split=split)
        for (old, new), count in moved.items():
            for source in _counts(old, new, count, annotations[old, new]):
                yield SplitSourceOutput("sources", source)

    def _split_of(self, sample: Sample, size_px: tuple[int, int] | None) -> str:
        """Return the split of a sample's bucket; empty for an image that is too small."""
        buckets = self._conversion.buckets
        if size_px is None:
            return bucket_split(sample.split, buckets[0])
        if min(size_px) < self._conversion.min_bucket_px:
            return ""
        return bucket_split(sample.split, nearest_bucket(*size_px, buckets))


def size_of(
    sample: Sample, roots: Mapping[str, Storage], conversion: Conversion
) -> tuple[int, int] | None:
    """Return width and height of a sample's photo in px, turned if it will be; None if it is bad.

    Raises:
        RuntimeError: the store fails, the file has changed, or `E-ARG` if a plan has not staged it.
    """
    photo = msgspec.structs.replace(sample, blobs=sample.blobs[:1])
    if photo.blobs[0].is_staged and not photo.blobs[0].name:
        what = "--buckets needs images in archives and Parquet, which only a run unpacks"
        raise RuntimeError(fault_line("E-ARG", "--plan", what, "leave --buckets out"))
    try:
        data = read_blob(roots[photo.blobs[0].root], photo.blobs[0])
    except FrameError:
        return None
    found = check_all(photo, [data], Check.HEADER, conversion)
    if isinstance(found, Unfit):
        return None
    info = found[0].info
    is_swapped = conversion.turns and info.orientation in SWAPPING
    return info.size_px[::-1] if is_swapped else info.size_px


def _read_bytes(sample: Sample) -> int:
    return sample.blobs[0].read_bytes


def _counts(old: str, new: str, samples: int, annotations: int) -> Iterator[SplitSource]:
    """Yield the changes of counts when samples move, or are left out for an empty `new`."""
    if new:
        yield SplitSource(old, listed=-samples, annotations=-annotations)
        yield SplitSource(new, listed=samples, annotations=annotations)
    else:
        left_out = {TOO_SMALL: samples}
        yield SplitSource(old, skipped=left_out, skipped_annotations={TOO_SMALL: annotations})
