"""Some images of the run, read and made into what it would write of them, by the run's own code."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from schemas.faults import Rejected
from schemas.layouts import Labels, Layout, Unfit
from schemas.samples import Blob, Sample
from schemas.shards import ShardNames
from transforms.blobs import pin_sample
from transforms.build_records import (
    build_record,
    check_images,
    convert_images,
    num_decoded,
    read_images,
)
from transforms.doctor.choose_samples import Chosen, Listed
from transforms.doctor.diagnosis import Diagnosis, fine, warning, wrong
from transforms.images.check_images import Check
from transforms.images.convert_images import NO_CONVERSION, Conversion
from transforms.images.turn_images import Orientation
from transforms.output_files import source_entries
from transforms.publish_plan import RejectBudget
from transforms.quantities import counted
from transforms.sources.read_folder import why_skipped
from transforms.storage import Access, Storage, open_storage

_READERS = 8
_LONGEST_S = 60.0


@dataclass(frozen=True)
class Treatment:
    """What a run does to images.

    Attributes:
        check: how far one is looked into.
        orientation: what is done about EXIF orientations.
        conversion: what else is done to pixels.
        layout: builds records where `labels` are known; None to look at images alone.
        labels: by category.
    """

    check: Check = Check.HEADER
    orientation: Orientation = Orientation.KEEP
    conversion: Conversion = NO_CONVERSION
    layout: Layout | None = None
    labels: Labels | None = None


class Sampled(NamedTuple):
    """Samples that were chosen, and how many there are.

    Attributes:
        samples: chosen by digest.
        listed: of how many.
        is_all: whether that is all there are, or as many as were listed in time.
        source_bytes: of all listed; 0 where no listing was made.
    """

    samples: list[Sample]
    listed: int
    is_all: bool = True
    source_bytes: int = 0


class Looked(NamedTuple):
    """What came of the samples.

    Attributes:
        looked_at: how many there was time for.
        faults: names and details of those that would be rejected, by code.
        source_bytes: of those looked at.
        output_bytes: of what would be written of them.
    """

    looked_at: int
    faults: dict[str, list[tuple[str, str]]]
    source_bytes: int
    output_bytes: int

    @property
    def rejected(self) -> int:
        """How many would be rejected."""
        return sum(map(len, self.faults.values()))


def choose_images(
    roots: Mapping[str, str], output: str, names: ShardNames, access: Access
) -> Sampled:
    """Return samples of one image each, chosen among the files that are called images.

    Args:
        roots: URI per root name.
        output: URI of the data set, whose files are no sources.
        names: how its shards are called.
        access: how stores are reached.
    """
    chosen: Chosen[Sample] = Chosen()
    parts = []
    for root, uri in roots.items():
        listed = Listed()
        parts.append(listed)
        for entry in listed.files(source_entries(uri, output, names, access)):
            if not why_skipped(entry.name):
                blob = Blob(root, entry.name, entry.size_bytes, entry.pin, entry.crc32c)
                chosen.add(f"{root}/{entry.name}", Sample(root, entry.name, -1, (blob,), b""))
    in_all = sum(part.bytes for part in parts)
    return Sampled(chosen.items, chosen.seen, all(part.is_all for part in parts), in_all)


def look_at_images(
    samples: Sequence[Sample], roots: Mapping[str, str], access: Access, treatment: Treatment
) -> Looked:
    """Return what the run would make of samples; those for which there is no time are left out.

    Raises:
        RuntimeError: a fault of the storage, which is none of an image.
    """
    storages = {name: open_storage(uri, access) for name, uri in roots.items()}
    until_s = time.monotonic() + _LONGEST_S

    def look(sample: Sample) -> tuple[Sample, Unfit | int] | None:
        if time.monotonic() > until_s:
            return None
        return _made_of(sample, storages, treatment)

    with ThreadPoolExecutor(_READERS) as pool:
        made = [found for found in pool.map(look, samples) if found is not None]
    faults: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for sample, result in made:
        if isinstance(result, Unfit):
            name = sample.blobs[result.place].name
            faults[result.code].append((name, result.detail))
    good = [(sample, size) for sample, size in made if not isinstance(size, Unfit)]
    return Looked(
        len(made),
        dict(sorted(faults.items())),
        sum(blob.size_bytes for sample, _ in good for blob in sample.blobs),
        sum(size for _, size in good),
    )


def judge_images(sampled: Sampled, looked: Looked, budget: RejectBudget) -> Iterator[Diagnosis]:
    """Yield a line for each reason, and whether the run accepts so many rejects.

    A file that no sample names may be among those listed, so a fault is a warning unless so many
    are certain to be the run's.
    """
    more = "" if sampled.is_all else " or more"
    told = f"{looked.looked_at} sampled of {counted(sampled.listed, 'image')}{more}"
    for code, found in looked.faults.items():
        name, detail = found[0]
        what = f"{len(found)} of {told} would be rejected as {code} (first {name!r}: {detail})"
        yield warning("images", what, "mend them, or accept so many with --max_rejected")
    if looked.rejected > budget.allowed(sampled.listed):
        what = f"{looked.rejected} of {told} would be rejected, --max_rejected is {budget}"
        remedy = "mend them, accept more, or leave them out with --exclude"
        yield wrong("E-BUDGET", "images", what, remedy)
    elif not looked.faults:
        yield fine("images", f"{told}, read and checked: all would be written")


def estimated_bytes(sampled: Sampled, looked: Looked) -> int:
    """Return about how many bytes the run writes of images; at least, where not all are listed.

    >>> estimated_bytes(Sampled([], 1000, True, 0), Looked(10, {}, 500, 600))
    60000
    """
    good = looked.looked_at - looked.rejected
    if not good:
        return 0
    if sampled.source_bytes and looked.source_bytes:
        return sampled.source_bytes * looked.output_bytes // looked.source_bytes
    return sampled.listed * looked.output_bytes // good


def pin(sample: Sample, storages: Mapping[str, Storage]) -> Sample | Unfit:
    """Return a sample with its blobs as the stores hold them now."""
    for place, blob in enumerate(sample.blobs):
        if blob.size_bytes >= 0:
            continue
        pinned = pin_sample(sample, storages[blob.root].stat(blob.name), place)
        if isinstance(pinned, Rejected):
            return Unfit(pinned.code, pinned.detail, place)
        sample = pinned
    return sample


def _made_of(
    sample: Sample, storages: Mapping[str, Storage], treatment: Treatment
) -> tuple[Sample, Unfit | int]:
    """Return a sample as pinned, and what its images' bytes come to or why it has no record."""
    pinned = pin(sample, storages)
    if isinstance(pinned, Unfit):
        return sample, pinned
    images = check_images(
        pinned, read_images(pinned, storages), treatment.check, treatment.conversion
    )
    if not isinstance(images, Unfit) and num_decoded(
        images, treatment.orientation, treatment.conversion
    ):
        images = convert_images(pinned, images, treatment.orientation, treatment.conversion)
    if isinstance(images, Unfit):
        return pinned, images
    if treatment.layout is None or treatment.labels is None:
        return pinned, sum(len(image.data) for image in images)
    record = build_record(pinned, images, treatment.layout, treatment.labels)
    return pinned, record if isinstance(record, Unfit) else sum(map(len, record.parts))
