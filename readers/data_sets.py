"""Find the shards of committed data sets: by their manifests, never by a glob."""

import array
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.features import FeatureSpec, Kind
from beam_tfrec.schemas.manifest import (
    MANIFEST_NAME,
    Label,
    Manifest,
    ShardEntry,
    index_names_of,
    order_of,
    read_manifest,
    refuse_contradictions,
    spec_of,
)
from beam_tfrec.schemas.samples import Order
from beam_tfrec.schemas.tfrecord import FRAME_BYTES
from beam_tfrec.transforms.storage import (
    DEFAULT_ACCESS,
    Access,
    Entry,
    Storage,
    is_local,
    join_uri,
    open_storage,
)

if TYPE_CHECKING:
    import pyarrow as pa

Root = str | os.PathLike[str]
"""Path or URI of an output."""


class ShardFile(NamedTuple):
    """A shard of a data set.

    Attributes:
        data_set: place of its data set among those that are read together.
        entry: its entry in the manifest.
        index_name: name of its Parquet index in the data set.
        uri: path or URI of its file.
        listed: its entry in the listing, which pins its bytes; None before it is listed.
    """

    data_set: int
    entry: ShardEntry
    index_name: str
    uri: str
    listed: Entry | None = None


@dataclass(frozen=True)
class DataSets:
    """Committed data sets that are read as one, such as those of several days.

    Attributes:
        roots: path or URI of each; paths are absolute, so that they outlive a change of directory.
        manifests: of each, in the same order.
        access: how their stores are reached.
    """

    roots: tuple[str, ...]
    manifests: tuple[Manifest, ...]
    access: Access = DEFAULT_ACCESS

    @cached_property
    def spec(self) -> FeatureSpec:
        """The features of every record."""
        return spec_of(self.manifests[0])

    @cached_property
    def labels(self) -> tuple[Label, ...]:
        """The class labels of all of them, by id."""
        found = {label.id: label for manifest in self.manifests for label in manifest.plan.labels}
        return tuple(found[number] for number in sorted(found))

    def shards(self, split: str) -> list[ShardFile]:
        """Return the shards of a split in their order, data set by data set.

        Raises:
            ValueError: when none of the data sets has such a split, or a record of it.
        """
        found = [
            ShardFile(place, entry, name, join_uri(self.roots[place], entry.file))
            for place, manifest in enumerate(self.manifests)
            for entry, (name, _) in zip(manifest.shards, index_names_of(manifest), strict=True)
            if entry.split == split
        ]
        if not found:
            names = sorted({shard.split for m in self.manifests for shard in m.shards})
            raise ValueError(f"split must be one of {', '.join(names)}, got {split!r}: give it")
        return found

    def is_in_input_order(self, split: str) -> bool:
        """Return whether records lie in the order of their source, in any of the data sets."""
        plans = [manifest.plan for manifest in self.manifests if split in manifest.splits]
        return any(order_of(plan, split) is Order.INPUT for plan in plans)


def find_data_sets(roots: Root | Sequence[Root], access: Access = DEFAULT_ACCESS) -> DataSets:
    """Return the data sets at these paths or URIs.

    Raises:
        ValueError: when none is given, one has no manifest, or they cannot be read as one.
        RuntimeError: `E-OUT-FOREIGN` when a manifest is none of ours or of a newer format,
            `E-VER-MANIFEST` when it contradicts itself.
    """
    one_or_more = (roots,) if isinstance(roots, str | os.PathLike) else roots
    given = tuple(map(_absolute, one_or_more))
    if not given:
        raise ValueError("data_sets must be at least one path, got none: give an output")
    data_sets = DataSets(given, tuple(_manifest(root, access) for root in given), access)
    _refuse_different(data_sets)
    return data_sets


def _absolute(root: Root) -> str:
    """Return a root that means the same wherever the process goes."""
    text = os.fspath(root)
    if not isinstance(text, str):
        raise ValueError(f"data_sets must be paths or URIs, got {root!r}: give text")
    if not text or not is_local(text) or "://" in text:
        return text
    return os.path.join(os.getcwd(), text)  # `..` behind a link stays what it is


def _manifest(root: str, access: Access) -> Manifest:
    storage = open_storage(root, access)
    if storage.stat(MANIFEST_NAME) is None:
        raise ValueError(
            f"data_sets must have a {MANIFEST_NAME}, got {root!r} without: give an output, or end"
            " its run"
        )
    where = join_uri(root, MANIFEST_NAME)
    manifest = read_manifest(storage.read(MANIFEST_NAME), where, "output")
    refuse_contradictions(manifest, where)
    return manifest


def _refuse_different(data_sets: DataSets) -> None:
    """Refuse data sets whose records hold other features, or whose labels mean other classes."""
    first = data_sets.manifests[0]
    names = {label.id: label.name for label in first.plan.labels}
    for root, manifest in zip(data_sets.roots[1:], data_sets.manifests[1:], strict=True):
        if different := _features(first) ^ _features(manifest):
            keys = ", ".join(sorted({feature[0] for feature in different}))
            raise ValueError(
                f"data_sets must hold the same features, got {root!r} with other {keys}: read it"
                " apart"
            )
        for label in manifest.plan.labels:
            if names.setdefault(label.id, label.name) != label.name:
                raise ValueError(
                    f"data_sets must have one label map, got {names[label.id]!r} and, in {root!r},"
                    f" {label.name!r} as label {label.id}: write the later one with --since"
                )


def _features(manifest: Manifest) -> set[tuple[str, Kind, bool, bool, bool]]:
    return {(f.key, f.kind, f.repeated, f.optional, f.per_step) for f in manifest.features}


REMEDY = "copy the data set again from where it is whole, or make it again"


def list_shards(data_sets: DataSets, split: str) -> list[ShardFile]:
    """Return the shards of a split in their order, by one listing of each data set.

    Raises:
        ValueError: when none of the data sets has such a split.
        RuntimeError: `E-VER-MISSING`, `E-VER-SIZE` or, where the store tells checksums,
            `E-VER-CRC`, naming the first shard that is not what was written.
    """
    shards = data_sets.shards(split)
    listed = {
        (place, entry.name): entry
        for place in {shard.data_set for shard in shards}
        for entry in open_storage(data_sets.roots[place], data_sets.access).list(recursive=False)
    }
    return [_checked(shard, listed.get((shard.data_set, shard.entry.file))) for shard in shards]


def _checked(shard: ShardFile, listed: Entry | None) -> ShardFile:
    written = shard.entry
    if listed is None or listed.kind != "file":
        code, what = "E-VER-MISSING", _not_a_file(listed)
    elif listed.size_bytes != written.bytes:
        code, what = "E-VER-SIZE", f"{listed.size_bytes} bytes, of {written.bytes} written ones"
    elif listed.crc32c is not None and f"{listed.crc32c:08x}" != written.crc32c:
        code = "E-VER-CRC"
        what = f"the store's CRC-32C is {listed.crc32c:08x}, {written.crc32c} was written"
    else:
        return shard._replace(listed=listed)
    raise RuntimeError(fault_line(code, shard.uri, what, REMEDY))


def _not_a_file(entry: Entry | None) -> str:
    return "no such file" if entry is None else f"a {entry.kind}, not a file"


def read_offsets(file: ShardFile, storage: Storage) -> array.array:
    """Return where a shard's records begin and, behind them, where the last one ends.

    Raises:
        RuntimeError: `E-VER-MISSING` or `E-VER-INDEX` when there is no index, or it is not that of
            the shard.
    """
    import numpy as np

    index = _index_columns(file, storage, ["offset", "size"])
    starts, sizes = (index[name].to_numpy() for name in ("offset", "size"))
    ends = np.append(starts, file.entry.bytes)
    if ends[0] != 0 or (sizes < FRAME_BYTES).any() or (np.diff(ends) != sizes).any():
        what = f"index must be of records that fill {ends[-1]} bytes, got others"
        where = join_uri(storage.root, file.index_name)
        raise RuntimeError(fault_line("E-VER-INDEX", where, what, REMEDY))
    return array.array("q", ends.tobytes())


def read_keys(file: ShardFile, storage: Storage) -> list[str]:
    """Return the keys of a shard's records.

    Raises:
        RuntimeError: `E-VER-MISSING` or `E-VER-INDEX` when there is no index, or it is not that of
            the shard.
    """
    return _index_columns(file, storage, ["key"])["key"].to_pylist()


def _index_columns(file: ShardFile, storage: Storage, names: Sequence[str]) -> "pa.Table":
    from beam_tfrec.transforms.shard_index import index_columns  # pyarrow takes 0.2 s

    entry = storage.stat(file.index_name)
    where = join_uri(storage.root, file.index_name)
    if entry is None or entry.kind != "file":
        raise RuntimeError(fault_line("E-VER-MISSING", where, _not_a_file(entry), REMEDY))
    try:
        return index_columns(storage.read(file.index_name, entry), names, file.entry.records)
    except ValueError as error:
        raise RuntimeError(fault_line("E-VER-INDEX", where, str(error), REMEDY)) from None


class Part(NamedTuple):
    """Consecutive records of a shard.

    Attributes:
        shard: its place among the split's shards.
        first: the first record, from 0.
        stop: the one behind the last.
    """

    shard: int
    first: int
    stop: int

    @property
    def records(self) -> int:
        """How many they are."""
        return self.stop - self.first


def deal(
    records: Sequence[int], host: int = 0, hosts: int = 1, *, drop_remainder: bool = False
) -> list[Part]:
    """Return what a host reads, in the order of the shards.

    Counts of two hosts differ by one at most; with `drop_remainder` they do not, and
    the last `sum(records) % hosts` records are read by no host.

    Args:
        records: of each shard.
        host: this host, from 0.
        hosts: their number.
        drop_remainder: whether all hosts get equally many.

    Raises:
        ValueError: when there is no such host.

    >>> deal([3, 3, 3, 2], 0, 2), deal([3, 3, 3, 2], 1, 2)
    ([Part(shard=0, first=0, stop=3), Part(shard=2, first=0, stop=3)], [Part(shard=1, first=0, \
stop=3), Part(shard=3, first=0, stop=2)])
    >>> deal([4, 2], 0, 2), deal([4, 2], 1, 2)
    ([Part(shard=0, first=0, stop=3)], [Part(shard=0, first=3, stop=4), Part(shard=1, first=0, \
stop=2)])
    """
    check_host(host, hosts)
    dealt = [
        [Part(shard, 0, records[shard]) for shard in range(first, len(records), hosts)]
        for first in range(hosts)
    ]
    due = _due([sum(part.records for part in parts) for parts in dealt], drop_remainder)
    spare: list[Part] = []
    for parts, wanted in zip(dealt, due, strict=True):
        spare += _take_from_end(parts, sum(part.records for part in parts) - wanted)
    for parts, wanted in zip(dealt, due, strict=True):
        parts += _take_from_end(spare, wanted - sum(part.records for part in parts))
    return sorted(part for part in dealt[host] if part.records)


def steps(
    records: int, global_batch: int, hosts: int = 1, *, drop_remainder: bool | None = None
) -> int:
    """Return how many batches every host reads of a split in an epoch.

    Args:
        records: of the split.
        global_batch: records of a batch, on all hosts together.
        hosts: their number.
        drop_remainder: by default with several hosts. Without it the last batch may be short, and
            some hosts may have one batch more.

    Raises:
        ValueError: when the hosts cannot share a batch, or a host would have none.

    >>> steps(1000, 64, 8), steps(1000, 64), steps(1000, 64, drop_remainder=True)
    (15, 16, 15)
    """
    check_host(0, hosts)
    if global_batch < 1 or global_batch % hosts:
        raise ValueError(
            f"global_batch must be a multiple of hosts {hosts}, got {global_batch}: give another"
        )
    whole, left = divmod(records // hosts, global_batch // hosts)
    is_dropping = hosts > 1 if drop_remainder is None else drop_remainder
    count = whole + (left > 0 and not is_dropping)
    if not count:
        raise ValueError(
            f"global_batch must be at most {records} records, got {global_batch}: give fewer"
        )
    return count


def check_host(host: int, hosts: int) -> None:
    """Refuse a host that there is not.

    Raises:
        ValueError: with the value and the remedy.
    """
    if not 0 <= host < hosts:
        raise ValueError(f"host must be one of {hosts} hosts, from 0, got {host}: give another")


def _due(have: Sequence[int], drop_remainder: bool) -> list[int]:
    """Return how many records each is to have; those that have most get one more, if any do."""
    base, extra = divmod(sum(have), len(have))
    if drop_remainder:
        return [base] * len(have)
    richest = sorted(range(len(have)), key=lambda host: (-have[host], host))[:extra]
    return [base + (host in richest) for host in range(len(have))]


def _take_from_end(parts: list[Part], wanted: int) -> list[Part]:
    """Remove so many records from the end of parts, and return them."""
    taken: list[Part] = []
    while wanted > 0 and parts:
        shard, first, stop = parts.pop()
        cut = max(first, stop - wanted)
        if cut > first:
            parts.append(Part(shard, first, cut))
        taken.append(Part(shard, cut, stop))
        wanted -= stop - cut
    return taken
