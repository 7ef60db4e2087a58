"""Assign splits for `--split_by stratified`: list all samples with their classes, then divide them.

This is a pass over the source before the one that makes samples. One step holds a digest and the
classes of every sample.
"""

import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import apache_beam as beam
import msgspec
from apache_beam.transforms.window import GlobalWindows

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.manifest import index_names_of
from beam_tfrec.schemas.samples import Sample
from beam_tfrec.schemas.splits import CLASS, DigestValues, Splitting, Unassigned
from beam_tfrec.schemas.stratify import NEW, stratify
from beam_tfrec.transforms.storage import DEFAULT_ACCESS, Access, open_storage
from beam_tfrec.transforms.storage.read_data_set import read_finished, read_rows

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
        keys: digest of each sample's key; empty unless there are earlier data sets.
    """

    digests: bytes
    classes: bytes
    counts: list[int]
    keys: bytes = b""


class EarlierShard(NamedTuple):
    """A shard of an earlier data set.

    Attributes:
        split: number of its split.
        keys: digests of its records' keys.
    """

    split: int
    keys: bytes


def read_earlier(uri: str, splitting: Splitting, access: Access) -> Iterator[EarlierShard]:
    """Yield the shards of an earlier data set; its samples keep their splits.

    Raises:
        RuntimeError: `E-VER-…` when an index is missing, or does not describe its shard.
    """
    storage, splits = open_storage(uri, access), [*splitting.shares]
    manifest, _ = read_finished(storage, "--since")
    for shard, (name, _) in zip(manifest.shards, index_names_of(manifest), strict=True):
        rows = read_rows(storage, name, shard.bytes, "restore index/ of that data set")
        keys = b"".join(splitting.digest_of(row.key) for row in rows)
        yield EarlierShard(splits.index(shard.split), keys)


def assign_splits(
    splitting: Splitting,
    batches: Iterable[Listed],
    earlier: Collection[EarlierShard] = (),
) -> DigestValues:
    """Return the sorted digests of keys or groups, and the number of the split of each.

    Args:
        splitting: rule with the shares.
        batches: all samples of the source, in any order.
        earlier: shards of all earlier data sets.

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
        raise RuntimeError(fault_line("E-ARG", "the source", what, "give --split_by hash"))
    known = np.full(len(counts), NEW)
    if held := b"".join(shard.keys for shard in earlier):
        kept, keys = _digests([held]), _digests(part.keys for part in listed)
        splits = np.repeat(
            [shard.split for shard in earlier],
            [len(shard.keys) // _DIGEST_BYTES for shard in earlier],
        )
        order = np.argsort(kept)
        found = order[np.searchsorted(kept, keys, sorter=order).clip(max=len(kept) - 1)]
        known = np.where(kept[found] == keys, splits[found], NEW)
    tokens = np.frombuffer(b"".join(part.classes for part in listed), np.int64)
    return stratify(
        _digests(part.digests for part in listed),
        np.repeat(np.arange(len(counts)), counts),
        np.unique(tokens, return_inverse=True)[1],
        [*splitting.shares.values()],
        known,
    )


def _digests(parts: Iterable[bytes]) -> Any:
    import numpy as np

    return np.frombuffer(b"".join(parts), f"S{_DIGEST_BYTES}")


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
        earlier: URIs of earlier data sets.
        access: credentials and limits for stores.
    """

    read: Callable[[Any], Iterable]
    splitting: Splitting
    classes_of: Callable[[Sample], Collection[int | str]]
    tables: dict[str, beam.pvalue.AsSideInput]
    earlier: Sequence[str] = ()
    access: Access = DEFAULT_ACCESS

    def expand(self, pieces: beam.PCollection) -> beam.PCollection[DigestValues]:
        """List the samples, then divide them."""
        lister = _List(self.read, self.splitting, self.classes_of, has_earlier=bool(self.earlier))
        listed = pieces | "ListSamples" >> beam.ParDo(lister, **self.tables)
        rule = pieces.pipeline | "Rule" >> beam.Create([self.splitting])
        sets = pieces.pipeline | "EarlierSets" >> beam.Create(self.earlier)
        shards = sets | "ReadEarlier" >> beam.FlatMap(read_earlier, self.splitting, self.access)
        as_list = beam.pvalue.AsList
        return rule | "Stratify" >> beam.Map(assign_splits, as_list(listed), as_list(shards))


class _List(beam.DoFn):
    """Runs a reader, and keeps of each sample what decides its split."""

    def __init__(
        self,
        read: Callable[[Any], Iterable],
        splitting: Splitting,
        classes_of: Callable[[Sample], Collection[int | str]],
        *,
        has_earlier: bool,
    ) -> None:
        # Images in tables and records of compressed files are staged once, by the next pass.
        self._unstaged = {"staging": None} if "staging" in vars(read) else {}
        self._read: Any = read
        self._splitting = replace(splitting, lists=True)
        self._classes_of = classes_of
        self._has_earlier = has_earlier
        self._reader: Any = None

    def start_bundle(self) -> None:
        self._digests, self._classes, self._counts = bytearray(), bytearray(), list[int]()
        self._keys = bytearray()

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
                if self._has_earlier:
                    self._keys += self._splitting.digest_of(item.key)
                if len(self._counts) == _BATCH_SAMPLES:
                    yield self._take()

    def finish_bundle(self) -> Iterator:
        yield GlobalWindows.windowed_value_at_end_of_window(self._take())

    def _take(self) -> Listed:
        columns = bytes(self._digests), bytes(self._classes), self._counts, bytes(self._keys)
        self.start_bundle()
        return Listed(*columns)
