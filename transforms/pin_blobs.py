"""Join samples that name files with the listing, to pin each blob by `pin_sample`."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import apache_beam as beam
import msgspec

from beam_tfrec.schemas.faults import NO_REJECTS, RejectBudget, Rejected, run_fault
from beam_tfrec.schemas.samples import PANOPTIC_IMAGE, PHOTO, Sample, is_panoptic_root
from beam_tfrec.transforms.shuffle.elements import Batch, BatchByName, GroupBatches, Partition
from beam_tfrec.transforms.sources.listing import (
    ListedFile,
    RootTally,
    RootTallyOutput,
    add_root_tallies,
    first_name,
    pin_sample,
)
from beam_tfrec.transforms.sources.read_samples import RejectedOutput
from beam_tfrec.transforms.storage import Entry

_NO_ROOT = ""  # in place of a root's name, for samples without a blob at an index


class _JoinBatch(Batch, frozen=True, array_like=True):
    """Samples, or listed files; one type for both, so that the join has one coder."""

    samples: list[Sample] = msgspec.field(default_factory=list)
    entries: list[Entry] = msgspec.field(default_factory=list)


class PinnedSamples(NamedTuple):
    """Output of `PinBlobs`.

    Attributes:
        samples: samples with listed blobs, with sizes and pins.
        rejected: rejects of samples with a missing or unreadable blob.
        root_tallies: counts, one tally per root name.
    """

    samples: beam.PCollection[Sample]
    rejected: beam.PCollection[Rejected]
    root_tallies: beam.PCollection[tuple[str, RootTally]]


def refuse_mostly_missing(
    root_tallies: Sequence[tuple[str, RootTally]], budget: RejectBudget = NO_REJECTS
) -> None:
    """Refuse a root if more than half of its images are missing, since the root is probably wrong.

    Missing images are accepted if the budget allows them and samples use every file of the root.

    Args:
        root_tallies: counts of named and listed files, by root name.
        budget: limit of missing images.

    Raises:
        RuntimeError: `E-SET-MISSING`, with examples of a missing and a listed name.
    """
    listed_in = {tally.first_unreferenced: root for root, tally in root_tallies}
    for root, tally in root_tallies:
        accepted = tally.missing <= budget.allowed(tally.named) and not tally.unreferenced
        if 2 * tally.missing <= tally.named or accepted:
            continue
        remedy = "give the folder that file names are relative to (of a table: --image_root)"
        remedy += ", with --panoptic_images" * is_panoptic_root(root)
        listed = "no file is listed"
        if tally.first_unreferenced:
            listed = f"listed names look like {tally.first_unreferenced!r}"
            remedy = _likely_remedy(tally.first_missing, tally.first_unreferenced) or remedy
            if swapped := listed_in.get(tally.first_missing):
                remedy = f"the first lies in the folder of {swapped}: give each split its own"
        elif tally.missing < tally.named:
            listed = "samples name all listed files"
            remedy = f"add the missing ones, or accept them with --max_rejected {tally.missing}"
        what = f"{tally.missing} of {tally.named} images are missing, the first is"
        what += f" {tally.first_missing!r}; {listed}"
        raise run_fault("E-SET-MISSING", f"images of {root}", what, remedy)


def _likely_remedy(missing: str, listed: str) -> str:
    """Return the remedy that the first names of both kinds suggest, or an empty text."""
    name, wanted = listed.rpartition("/")[2], missing.rpartition("/")[2]
    if name != wanted and name.lower() == wanted.lower():
        return "rename the files as the annotations name them: upper and lower case differ"
    if "\\" in missing and "\\" not in listed:  # as programs on Windows write it
        return "write / instead of each backslash in the file names"
    folder = listed.removesuffix(f"/{missing}")
    return "" if folder == listed else f"add /{folder} to the folder that you gave"


@dataclass(eq=False)
class PinBlobs(beam.PTransform):
    """Samples -> samples with the listed sizes and pins of their blobs, in any order.

    One join on (root, name) pins the photos, another one the panoptic images. Several samples may
    use one blob. A sample is rejected at its first blob that cannot be read.

    Attributes:
        listing: output of `ListFiles`.
        more_tallies: tallies of earlier steps: listings, and samples that were skipped; or None.
        panoptic: whether samples may have a panoptic image.
    """

    listing: beam.PCollection[ListedFile]
    more_tallies: Sequence[beam.PCollection[tuple[str, RootTally]] | None] = ()
    panoptic: bool = False

    def expand(self, samples: beam.PCollection[Sample]) -> PinnedSamples:
        """Join samples with the listing."""
        rejected: list[beam.PCollection] = []
        root_tallies = [known for known in self.more_tallies if known is not None]
        for index in (PHOTO, PANOPTIC_IMAGE) if self.panoptic else (PHOTO,):
            listing = self.listing
            if self.panoptic:
                listing |= f"OfPlace{index}" >> beam.Filter(_is_at, index)
            by_name = BatchByName(functools.partial(_name_of, index=index), _JoinBatch)
            listed_by_name = BatchByName(_name_of_listed, _JoinBatch, _entries_batch)
            batches = samples | f"BatchSamples{index}" >> by_name
            entries = listing | f"BatchEntries{index}" >> listed_by_name
            joined = (batches, entries) | f"JoinOnName{index}" >> GroupBatches(_JoinBatch)
            pin = beam.FlatMap(_pin, index).with_outputs("rejected", "root_tallies", main="samples")
            pinned = joined | f"Pin{index}" >> pin
            samples = pinned.samples
            rejected.append(pinned.rejected)
            root_tallies.append(pinned.root_tallies)
        return PinnedSamples(
            samples,
            rejected | "Rejected" >> beam.Flatten(),
            root_tallies | "Tallies" >> beam.Flatten() | beam.CombinePerKey(add_root_tallies),
        )


def _is_at(listed: ListedFile, index: int) -> bool:
    return is_panoptic_root(listed.root) == (index == PANOPTIC_IMAGE)


def _name_of(sample: Sample, index: int) -> tuple[str, str]:
    if index >= len(sample.blobs):
        return _NO_ROOT, sample.key
    return sample.blobs[index].root, sample.blobs[index].name


def _name_of_listed(listed: ListedFile) -> tuple[str, str]:
    return listed.root, listed.entry.name


def _entries_batch(listed: list[ListedFile]) -> _JoinBatch:
    return _JoinBatch(entries=[file.entry for file in listed])


def _pin(
    grouped: tuple[Partition, Iterable[_JoinBatch]], index: int
) -> Iterator[Sample | RejectedOutput | RootTallyOutput]:
    """Pin the blob at an index of each sample in a partition, and count them."""
    (root, _), batches = grouped
    samples: list[Sample] = []
    entries: dict[str, Entry] = {}
    for batch in batches:
        samples += batch.samples
        entries |= {entry.name: entry for entry in batch.entries}
    if root == _NO_ROOT:
        yield from samples
        return
    names = [sample.blobs[index].name for sample in samples]
    for sample, name in zip(samples, names, strict=True):
        pinned = pin_sample(sample, entries.get(name), index)
        if isinstance(pinned, Rejected):
            yield RejectedOutput("rejected", pinned)
        else:
            yield pinned
    yield RootTallyOutput("root_tallies", (root, _tally(names, entries)))


def _tally(names: Sequence[str], entries: Mapping[str, Entry]) -> RootTally:
    missing = [name for name in names if name not in entries]
    unreferenced = {e.name for e in entries.values() if e.kind == "file"}.difference(names)
    return RootTally(
        named=len(names),
        missing=len(missing),
        unreferenced=len(unreferenced),
        first_missing=first_name(missing),
        first_unreferenced=first_name(unreferenced),
    )
