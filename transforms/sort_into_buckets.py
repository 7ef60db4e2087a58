"""Sort samples into size buckets: read each image once, before the plan, and look at its size.

Annotations often give no sizes, or sizes before a turn by EXIF. So the image itself decides.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import apache_beam as beam
import msgspec
from apache_beam.utils.shared import Shared

from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.geometry.boxes import SWAPPING, nearest_bucket
from beam_tfrec.schemas.layouts import Unfit
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import bucket_split
from beam_tfrec.transforms.build_records import ShardJob, check_all, read_contents
from beam_tfrec.transforms.build_shard import gate_for
from beam_tfrec.transforms.gate import GateLimits
from beam_tfrec.transforms.images.check_images import Check
from beam_tfrec.transforms.images.conversion import Conversion
from beam_tfrec.transforms.plan_shards import RefuseEqualKeys
from beam_tfrec.transforms.sources.read_samples import SplitTally, SplitTallyOutput
from beam_tfrec.transforms.storage import Storage, open_storage

_HELD_SAMPLES = 256
TOO_SMALL = "smaller_than_min_bucket"


@dataclass(eq=False)
class SortIntoBuckets(beam.PTransform):
    """Pinned samples -> samples in the splits of their buckets.

    A sample whose image cannot be read goes to the first bucket. The shard then rejects it with
    the reason.

    The second output corrects the counts of the splits; it is negative where samples have left.

    Attributes:
        job: places of the images, their buckets, and what images are accepted.
        limits: limits of every worker process.
    """

    job: ShardJob
    limits: GateLimits

    def expand(
        self, samples: beam.PCollection[Sample]
    ) -> tuple[beam.PCollection[Sample], beam.PCollection[SplitTally]]:
        """Read every image."""
        hold = beam.BatchElements(_HELD_SAMPLES, _HELD_SAMPLES, record_metrics=False)
        # Later steps compare keys within a bucket only.
        checked = beam.pvalue.AsList(samples | "RefuseEqualKeys" >> RefuseEqualKeys())
        sort = beam.ParDo(_Sort(self.job, self.limits), checked)
        sorts = sort.with_outputs("split_tallies", main="samples")
        found = samples | "Hold" >> hold | "Sort" >> sorts
        return found.samples, found.split_tallies


class ImageDoFn(beam.DoFn):
    """Base class of steps that read images within the limits of a worker process.

    Attributes:
        job: places of the images, and how they are checked.
        gate: gate of the process.
        storages: storages by root name.
    """

    def __init__(self, job: ShardJob, limits: GateLimits) -> None:
        """Store the arguments; `setup` opens stores and the gate."""
        self.job, self._limits, self._shared = job, limits, Shared()

    def setup(self) -> None:
        """Open the stores, and the one gate of the process, whatever its number of threads."""
        job, limits = self.job, self._limits
        self.storages = {name: open_storage(uri, job.access) for name, uri in job.roots.items()}
        self.gate = self._shared.acquire(lambda: gate_for(limits, job))


class _Sort(ImageDoFn):
    def process(
        self, samples: list[Sample], checked: list[str]
    ) -> Iterator[Sample | SplitTallyOutput]:
        moved: Counter[tuple[str, str]] = Counter()
        annotations: Counter[tuple[str, str]] = Counter()

        measure = functools.partial(size_of, storages=self.storages, conversion=self.job.conversion)
        for sample, size_px in self.gate.in_order(
            samples, lambda s: s.blobs[0].read_bytes, measure
        ):
            split = self._split_of(sample, size_px)
            moved[sample.split, split] += 1
            annotations[sample.split, split] += len(sample.annotation_ids)
            if split:
                yield msgspec.structs.replace(sample, split=split)
        for (old, new), count in moved.items():
            for tally in _counts(old, new, count, annotations[old, new]):
                yield SplitTallyOutput("split_tallies", tally)

    def _split_of(self, sample: Sample, size_px: tuple[int, int] | None) -> str:
        """Return the split of a sample's bucket; empty for an image that is too small."""
        conversion = self.job.conversion
        if size_px is None:
            return bucket_split(sample.split, conversion.buckets[0])
        if min(size_px) < conversion.min_bucket_px:
            return ""
        return bucket_split(sample.split, nearest_bucket(*size_px, conversion.buckets))


def size_of(
    sample: Sample, storages: Mapping[str, Storage], conversion: Conversion
) -> tuple[int, int] | None:
    """Return width and height of a sample's photo in px, turned if it will be; None if it is bad.

    Raises:
        RuntimeError: the store fails, the file has changed, or `E-ARG` if a plan has not staged it.
    """
    photo = msgspec.structs.replace(sample, blobs=sample.blobs[:1])
    if photo.blobs[0].is_staged and not photo.blobs[0].name:
        what = "--buckets needs images in archives and Parquet, which only a run unpacks"
        raise run_fault("E-ARG", "--plan", what, "leave --buckets out")
    try:
        info = check_all(photo, read_contents(photo, storages), Check.HEADER, conversion)[0].info
    except Unfit:
        return None
    is_swapped = conversion.turns and info.orientation in SWAPPING
    return info.size_px[::-1] if is_swapped else info.size_px


def _counts(old: str, new: str, samples: int, annotations: int) -> Iterator[SplitTally]:
    """Yield the changes of counts when samples move, or are left out for an empty `new`."""
    if new:
        yield SplitTally(old, listed=-samples, annotations=-annotations)
        yield SplitTally(new, listed=samples, annotations=annotations)
    else:
        left_out = {TOO_SMALL: samples}
        yield SplitTally(old, skipped=left_out, skipped_annotations={TOO_SMALL: annotations})
