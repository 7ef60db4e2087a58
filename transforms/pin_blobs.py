"""Join samples with what their roots hold: each is pinned to the bytes that the listing saw."""

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from schemas.faults import NO_REJECTS, RejectBudget, Rejected, fault_line
from schemas.samples import Sample, is_panoptic_root
from transforms.sources.elements import Batch, BatchByKey, GroupBatches, num_groups
from transforms.sources.list_blobs import (
    DIGEST_MODULUS,
    BlobName,
    PinTally,
    add_pin_tallies,
    first_name,
    listing_digest,
    pin_sample,
)
from transforms.sources.read_samples import RejectedOutput
from transforms.storage import Entry
from transforms.storage.run_spool import RunSpool

_PARTITIONS = 16_384  # of the join, on a cluster: each is held in memory

_Partition = tuple[str, int]


class _JoinBatch(Batch, frozen=True, array_like=True):
    """Samples that name blobs, or what the listing holds: one type, hence one coder."""

    samples: list[Sample] = msgspec.field(default_factory=list)
    entries: list[Entry] = msgspec.field(default_factory=list)


class PinnedSamples(NamedTuple):
    """What `PinBlobs` returns.

    Attributes:
        samples: those whose blob can be read, with its size and pin.
        rejected: the others.
        tallies: per root name, one a root.
    """

    samples: beam.PCollection[Sample]
    rejected: beam.PCollection[Rejected]
    tallies: beam.PCollection[tuple[str, PinTally]]


def refuse_mostly_missing(
    tallies: Iterable[tuple[str, PinTally]], budget: RejectBudget = NO_REJECTS
) -> None:
    """Stop where more than half of a root's images are not there: the root must be wrong.

    Unless the user accepts so many, and the root has no other file either that would tell of a
    wrong one: then they are rejects like others.

    Args:
        tallies: what pinning saw, per root name.
        budget: how many images may be missing.

    Raises:
        RuntimeError: `E-SET-MISSING`, with a missing name and what listed names look like.
    """
    for root, tally in tallies:
        accepted = tally.missing <= budget.allowed(tally.named) and not tally.unreferenced
        if 2 * tally.missing > tally.named and not accepted:
            flag = "--panoptic_images" if is_panoptic_root(root) else "--images"
            remedy = f"give the folder that file_name is relative to with {flag}"
            listed = "no file is listed"
            if tally.first_unreferenced:
                listed = f"listed names look like {tally.first_unreferenced!r}"
            elif tally.missing < tally.named:
                listed = "all listed files are wanted"
                remedy = "add the missing ones, or accept them with"
                remedy += f" --max_rejected {tally.missing}"
            what = (
                f"{tally.missing} of {tally.named} images are not there, the first"
                f" {tally.first_missing!r}; {listed}"
            )
            raise RuntimeError(fault_line("E-SET-MISSING", f"images of {root}", what, remedy))


@dataclass(eq=False)
class PinBlobs(beam.PTransform):
    """(samples, listing) -> samples pinned to the listed bytes of the blobs that each names.

    A join on (root, name) for each place of a blob: group-by 1 of the flow. A blob may serve
    several samples. Samples come out in any order, each once; they are rejected at the first blob
    that cannot be read.

    Attributes:
        listing: output of `ListBlobs`.
        named: samples per root name that are there without being listed; None for none.
        places: names of the roots of every sample's first blob, of the second ones, and so on,
            which not every sample has; none where there is one blob a sample, in any root.
        spool: where both sides wait at the group-by; None where they travel.
    """

    listing: beam.PCollection[tuple[BlobName, Entry]]
    named: beam.PCollection[tuple[str, PinTally]] | None = None
    places: tuple[frozenset[str], ...] = ()
    spool: RunSpool | None = None

    def expand(self, samples: beam.PCollection[Sample]) -> PinnedSamples:
        """Join samples with the listing."""
        first, *others = self.places or [frozenset()]
        listing = self.listing | "FirstRoots" >> _of_roots(first) if others else self.listing
        pinned = samples | _PinPlace(listing, 0, self.spool)
        rejected, tallies = [pinned.rejected], [pinned.tallies]
        if self.named is not None:
            tallies.append(self.named)
        for place, roots in enumerate(others, start=1):
            listing = self.listing | f"Roots{place}" >> _of_roots(roots)
            pinned = pinned.samples | f"Place{place}" >> _PinFurther(listing, place, self.spool)
            rejected.append(pinned.rejected)
            tallies.append(pinned.tallies)
        return PinnedSamples(
            pinned.samples,
            rejected[0] if len(rejected) == 1 else rejected | "Rejected" >> beam.Flatten(),
            (tallies[0] if len(tallies) == 1 else tallies | "WithNamed" >> beam.Flatten())
            | "AddPinTallies" >> beam.CombinePerKey(add_pin_tallies),
        )


def _of_roots(roots: frozenset[str]) -> beam.PTransform:
    return beam.Filter(_is_of_roots, roots)


def _is_of_roots(listed: tuple[BlobName, Entry], roots: frozenset[str]) -> bool:
    (root, _), _ = listed
    return root in roots


def _has_place(sample: Sample, place: int) -> bool:
    return len(sample.blobs) > place


def _lacks_place(sample: Sample, place: int) -> bool:
    return len(sample.blobs) <= place


@dataclass(eq=False)
class _PinFurther(beam.PTransform):
    """Samples -> pinned as by `_PinPlace`, those that have no such blob as they are."""

    listing: beam.PCollection[tuple[BlobName, Entry]]
    place: int
    spool: RunSpool | None

    def expand(self, samples: beam.PCollection[Sample]) -> PinnedSamples:
        having = samples | "Having" >> beam.Filter(_has_place, self.place)
        lacking = samples | "Lacking" >> beam.Filter(_lacks_place, self.place)
        pinned = having | _PinPlace(self.listing, self.place, self.spool)
        together = (pinned.samples, lacking) | "Together" >> beam.Flatten()
        return PinnedSamples(together, pinned.rejected, pinned.tallies)


@dataclass(eq=False)
class _PinPlace(beam.PTransform):
    """Samples that have a blob at a place -> those that are listed; tallies are not yet added."""

    listing: beam.PCollection[tuple[BlobName, Entry]]
    place: int
    spool: RunSpool | None

    def expand(self, samples: beam.PCollection[Sample]) -> PinnedSamples:
        count = num_groups(samples.pipeline, _PARTITIONS)
        of_sample = functools.partial(_partitions_of_samples, place=self.place, count=count)
        of_entry = functools.partial(_partitions_of_entries, count=count)
        pinned = (
            (
                samples | "BatchSamples" >> _batches(of_sample, _samples_batch, count),
                self.listing | "BatchEntries" >> _batches(of_entry, _entries_batch, count),
            )
            | "JoinOnName" >> GroupBatches(_JoinBatch, self.spool)
            | "Pin"
            >> beam.ParDo(_Pin(self.place)).with_outputs("rejected", "tallies", main="samples")
        )
        return PinnedSamples(pinned.samples, pinned.rejected, pinned.tallies)


def _batches(keys_of: Callable, to_batch: Callable[[list], _JoinBatch], count: int) -> beam.ParDo:
    batch = beam.ParDo(BatchByKey(keys_of, to_batch, count))
    return batch.with_output_types(tuple[_Partition, _JoinBatch])


def _partitions_of_samples(samples: list[Sample], place: int, count: int) -> list[_Partition]:
    blobs = [sample.blobs[place] for sample in samples]
    return [(blob.root, zlib.crc32(blob.name.encode()) % count) for blob in blobs]


def _partitions_of_entries(listed: list[tuple[BlobName, Entry]], count: int) -> list[_Partition]:
    return [(root, zlib.crc32(name.encode()) % count) for (root, name), _ in listed]


def _samples_batch(samples: list[Sample]) -> _JoinBatch:
    return _JoinBatch(samples=samples)


def _entries_batch(listed: list[tuple[BlobName, Entry]]) -> _JoinBatch:
    return _JoinBatch(entries=[entry for _, entry in listed])


class _Pin(beam.DoFn):
    """Pins samples; its tallies leave once a bundle, so that they cost little a sample."""

    def __init__(self, place: int) -> None:
        self._place = place

    def start_bundle(self) -> None:
        self._counts: dict[str, _Counts] = {}

    def process(
        self, element: tuple[_Partition, Iterable[_JoinBatch]]
    ) -> Iterator[
        Sample | RejectedOutput | beam.pvalue.TaggedOutput[Literal["tallies"], tuple[str, PinTally]]
    ]:
        (root, _), batches = element
        samples: list[Sample] = []
        entries: dict[str, Entry] = {}
        for batch in batches:
            samples += batch.samples
            entries |= {entry.name: entry for entry in batch.entries}
        names = [sample.blobs[self._place].name for sample in samples]
        counts = self._counts.setdefault(root, _Counts())
        for sample, name in zip(samples, names, strict=True):
            pinned = pin_sample(sample, entries.get(name), self._place)
            if isinstance(pinned, Rejected):
                yield RejectedOutput("rejected", pinned)
            else:
                counts.add_read(entries[name])
                yield pinned
        counts.add(names, entries)

    def finish_bundle(self) -> Iterator:
        for root, counts in self._counts.items():
            tally = GlobalWindows.windowed_value_at_end_of_window((root, counts.tally()))
            yield beam.pvalue.TaggedOutput("tallies", tally)


class _Counts:
    """The tally of a bundle while it grows."""

    def __init__(self) -> None:
        self._named = 0
        self._listing = 0
        self._num_missing = 0
        self._num_unreferenced = 0
        self._first_missing = ""
        self._first_unreferenced = ""
        self._read_files = 0
        self._read_bytes = 0

    def add(self, names: list[str], entries: Mapping[str, Entry]) -> None:
        self._named += len(names)
        self._listing += listing_digest(entries.values())
        missing = [name for name in names if name not in entries]
        files = {name for name, entry in entries.items() if entry.kind == "file"}
        unreferenced = files.difference(names)
        self._num_missing += len(missing)
        self._num_unreferenced += len(unreferenced)
        self._first_missing = first_name([self._first_missing, *missing])
        self._first_unreferenced = first_name([self._first_unreferenced, *unreferenced])

    def add_read(self, entry: Entry) -> None:
        """Count a blob that a sample is pinned to."""
        self._read_files += 1
        self._read_bytes += entry.size_bytes

    def tally(self) -> PinTally:
        return PinTally(
            named=self._named,
            missing=self._num_missing,
            unreferenced=self._num_unreferenced,
            listing=f"{self._listing % DIGEST_MODULUS:x}",
            first_missing=self._first_missing,
            first_unreferenced=self._first_unreferenced,
            read_files=self._read_files,
            read_bytes=self._read_bytes,
        )
