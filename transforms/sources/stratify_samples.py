"""Assign splits for `--split_by stratified`: list all samples with their classes, then divide them.

This is a pass over the source before the one that makes samples. One step holds a digest and the
classes of every sample.
"""

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import CLASS, DigestValues, Splitting, Unassigned
from beam_tfrec.schemas.stratify import NEW, stratify

MAX_STRATIFIED = 10_000_000
"""Largest number of samples: one step holds them all, with 200 bytes a sample of four classes."""

_BATCH_SAMPLES = 1 << 18
_DIGEST_BYTES, _CLASS_BYTES = 16, 8


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """Samples of a source, as compact columns.

    Attributes:
        digests: 16 bytes a sample: the digest of its group, or of its key.
        classes: 8 bytes for each class of each sample: a digest of the class.
        counts: number of classes of each sample.
    """

    digests: bytes
    classes: bytes
    counts: list[int]


def assign_splits(splitting: Splitting, batches: Iterable[Listed], where: str = "") -> DigestValues:
    """Return the sorted digests of keys or groups, and the number of the split of each.

    Args:
        splitting: rule with the shares.
        batches: all samples of the source, in any order.
        where: name of the source, for messages.

    Raises:
        RuntimeError: `E-ARG` when there are too many samples, or none has a class.
    """
    import numpy as np

    listed = list(batches)
    counts = np.array([count for part in listed for count in part.counts], np.int64)
    what = ""
    if len(counts) > MAX_STRATIFIED:
        what = f"has {len(counts)} samples, more than {MAX_STRATIFIED} for split_by stratified"
    elif len(counts) and not counts.any():
        what = f"has no sample with a {splitting.stratify_by}, which split_by stratified needs"
    if what:
        raise RuntimeError(fault_line("E-ARG", where, what, "give --split_by hash"))
    tokens = np.frombuffer(b"".join(part.classes for part in listed), np.int64)
    return stratify(
        np.frombuffer(b"".join(part.digests for part in listed), f"S{_DIGEST_BYTES}"),
        np.repeat(np.arange(len(counts)), counts),
        np.unique(tokens, return_inverse=True)[1],
        [*splitting.shares.values()],
        np.full(len(counts), NEW),
    )


@functools.lru_cache(maxsize=1 << 16)
def _token(name: int | str) -> bytes:
    return hashlib.blake2b(str(name).encode(), digest_size=_CLASS_BYTES).digest()


@dataclass(eq=False)
class AssignSplits(beam.PTransform):
    """Pieces of a source -> sorted digests and numbers of splits, one element.

    Attributes:
        read: reader of a piece, with a field `splitting`.
        splitting: rule of the reader.
        classes_of: function that returns the classes of a sample.
        tables: table of groups as the side input `groups`; empty without one.
    """

    read: Callable[[Any], Iterable]
    splitting: Splitting
    classes_of: Callable[[Sample], Collection[int | str]]
    tables: dict[str, beam.pvalue.AsSideInput]

    def expand(self, pieces: beam.PCollection) -> beam.PCollection[DigestValues]:
        """List the samples, then divide them."""
        lister = _List(self.read, self.splitting, self.classes_of)
        listed = pieces | "ListSamples" >> beam.ParDo(lister, **self.tables)
        rule = pieces.pipeline | "Rule" >> beam.Create([self.splitting])
        return rule | "Stratify" >> beam.Map(assign_splits, beam.pvalue.AsList(listed))


class _List(beam.DoFn):
    """Runs a reader, and keeps of each sample what decides its split."""

    def __init__(
        self,
        read: Callable[[Any], Iterable],
        splitting: Splitting,
        classes_of: Callable[[Sample], Collection[int | str]],
    ) -> None:
        # Images in tables and records of compressed files are staged once, by the next pass.
        self._unstaged = {"staging": None} if "staging" in vars(read) else {}
        self._read: Any = read
        self._splitting = replace(splitting, lists=True)
        self._classes_of = classes_of
        self._reader: Any = None

    def start_bundle(self) -> None:
        self._digests, self._classes, self._counts = bytearray(), bytearray(), list[int]()

    def process(self, piece: Any, groups: DigestValues | None = None) -> Iterator[Listed]:
        if self._reader is None:
            splitting = self._splitting.with_tables(groups)
            self._reader = replace(self._read, splitting=splitting, **self._unstaged)
        for item in self._reader(piece):
            if isinstance(item, Sample) and isinstance(item.split, Unassigned):
                names: Collection[int | str] = [item.split.value] if item.split.value else []
                if self._splitting.stratify_by == CLASS:
                    names = self._classes_of(item)
                self._digests += item.split.digest
                self._classes += b"".join(map(_token, names))
                self._counts.append(len(names))
                if len(self._counts) == _BATCH_SAMPLES:
                    yield self._take()

    def finish_bundle(self) -> Iterator:
        yield GlobalWindows.windowed_value_at_end_of_window(self._take())

    def _take(self) -> Listed:
        listed = Listed(bytes(self._digests), bytes(self._classes), self._counts)
        self.start_bundle()
        return listed
