"""Find the shards of committed data sets by their manifests, never by a glob."""

import array
import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from beam_tfrec.schemas.faults import fault_line
from beam_tfrec.schemas.features import FeatureSpec, Kind
from beam_tfrec.schemas.manifest import (
    Label,
    Manifest,
    ShardEntry,
    index_names_of,
    order_of,
    spec_of,
)
from beam_tfrec.schemas.samples import Order
from beam_tfrec.schemas.splits import fold_names, split_without_bucket
from beam_tfrec.schemas.tfrecord import FRAME_BYTES, is_array_record
from beam_tfrec.transforms.storage import (
    DEFAULT_ACCESS,
    Access,
    Entry,
    Storage,
    is_local,
    join_uri,
    open_storage,
    read_data_set,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Root = str | os.PathLike[str]
"""Path or URI of an output."""

Splits = str | Sequence[str]
"""Name of a split, or names of several that are read as one."""


class ShardFile(NamedTuple):
    """A shard of a data set.

    Attributes:
        data_set: number of the data set among those that are read together, from 0.
        entry: entry of the shard in the manifest.
        index_name: name of the shard's Parquet index.
        uri: path or URI of the shard.
        listed: entry of the shard in the listing, which pins its bytes; None before the listing.
    """

    data_set: int
    entry: ShardEntry
    index_name: str
    uri: str
    listed: Entry | None = None


@dataclass(frozen=True)
class DataSets:
    """Committed data sets that are read as one, such as the outputs of several days.

    Attributes:
        roots: path or URI of each data set. Paths are absolute and survive a change of directory.
        manifests: manifest of each data set, in the same order.
        access: settings for reading from stores.
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
        """The class labels of all data sets, by id."""
        found = {label.id: label for manifest in self.manifests for label in manifest.plan.labels}
        return tuple(found[number] for number in sorted(found))

    def shards(self, split: Splits) -> list[ShardFile]:
        """Return the shards of splits in their order, one data set after the other.

        Raises:
            ValueError: No data set has records in a split, or a split is named twice.
        """
        wanted = self.expanded(split)
        found = [
            ShardFile(place, entry, name, join_uri(self.roots[place], entry.file))
            for place, manifest in enumerate(self.manifests)
            for entry, (name, *_) in zip(manifest.shards, index_names_of(manifest), strict=True)
            if entry.split in wanted
        ]
        there = {shard.entry.split for shard in found}
        for missing in sorted({*split_names(split)} - there - {*map(split_without_bucket, there)}):
            names = sorted({shard.split for m in self.manifests for shard in m.shards})
            if not names:
                raise ValueError(f"{', '.join(self.roots)}: no records: give another data set")
            raise ValueError(f"split must be one of {', '.join(names)}, got {missing!r}")
        return found

    def expanded(self, split: Splits) -> tuple[str, ...]:
        """Return the names of splits, and those of their size buckets.

        Raises:
            ValueError: No split is named, or one is named twice.
        """
        names = split_names(split)
        bucketed = [of for of in self.manifests if "buckets" in of.plan.options]
        there = sorted({shard.split for manifest in bucketed for shard in manifest.shards})
        return names + tuple(of for of in there if split_without_bucket(of) in {*names} - {of})

    def records_by_bucket(self, split: Splits) -> dict[str, list[int]]:
        """Return the number of records in each shard of splits, by the split of the size bucket.

        Splits without buckets have one key, the empty text.

        Raises:
            ValueError: No data set has records in a split, or a split is named twice.
        """
        names, found = split_names(split), dict[str, list[int]]()
        for shard in self.shards(split):
            key = "" if shard.entry.split in names else shard.entry.split
            found.setdefault(key, []).append(shard.entry.records)
        if "" in found:  # then the shapes of batches differ anyway
            return {"": [records for of_bucket in found.values() for records in of_bucket]}
        return found

    def folds(self, k: int) -> list[tuple[list[str], str]]:
        """Return the training splits and the validation split of each fold, see `readers.folds`."""
        names = fold_names(k)
        there = {split_without_bucket(shard.split) for of in self.manifests for shard in of.shards}
        folds = sorted(split for split in there if re.fullmatch(r"fold[0-9]+", split))
        if folds != sorted(names):
            has = ", ".join(folds) or "none"
            raise ValueError(
                f"k must be the number of folds, got {k}, and folds {has} in"
                f" {', '.join(self.roots)}: write the data set with --splits fold*{k}"
            )
        return [([other for other in names if other != fold], fold) for fold in names]

    def is_in_input_order(self, split: Splits) -> bool:
        """Return whether any of the data sets keeps the records in the order of their source."""
        return any(
            order_of(manifest.plan, name) is Order.INPUT
            for manifest in self.manifests
            for name in self.expanded(split)
            if name in manifest.splits
        )


def split_names(split: Splits) -> tuple[str, ...]:
    """Return the names of one or several splits.

    Raises:
        ValueError: No split is named, or one is named twice.
    """
    names = (split,) if isinstance(split, str) else tuple(split)
    if not names or len({*names}) < len(names):
        raise ValueError(f"split must name each split once, got {split!r}: give such as 'train'")
    return names


def find_data_sets(roots: Root | Sequence[Root], access: Access = DEFAULT_ACCESS) -> DataSets:
    """Return the data sets at these paths or URIs.

    Raises:
        ValueError: No path is given, or features or labels differ.
        RuntimeError: `E-ARG`: a data set has no manifest.
            `E-OUT-FOREIGN`: a manifest is of another program or a newer format.
            `E-VER-MANIFEST`: a manifest contradicts itself.
    """
    if isinstance(roots, Mapping):
        raise ValueError(
            f"data_sets must be paths, got weights for {[*roots]}: only load takes them"
        )
    one_or_more = (roots,) if isinstance(roots, str | os.PathLike) else roots
    given = tuple(map(_absolute, one_or_more))
    if not given:
        raise ValueError("data_sets must be at least one path, got none: give an output")
    found = (read_data_set.read_finished(open_storage(root, access), "path") for root in given)
    data_sets = DataSets(given, tuple(manifest for manifest, _ in found), access)
    _refuse_different(data_sets)
    return data_sets


def _absolute(root: Root) -> str:
    """Return an absolute path, or the URI unchanged."""
    text = os.fspath(root)
    if not isinstance(text, str):
        raise ValueError(f"data_sets must be paths or URIs, got {root!r}: give text")
    if not text or not is_local(text) or "://" in text:
        return text
    return os.path.join(os.getcwd(), text)  # abspath would resolve `link/..` wrongly


def _refuse_different(data_sets: DataSets) -> None:
    """Refuse data sets with different features, or with different names for a label."""
    first = data_sets.manifests[0]
    names = {label.id: label.name for label in first.plan.labels}
    for root, manifest in zip(data_sets.roots[1:], data_sets.manifests[1:], strict=True):
        if different := _features(first) ^ _features(manifest):
            keys = ", ".join(sorted({feature[0] for feature in different}))
            raise ValueError(f"data_sets must be alike, {root!r} differs in {keys}: read it alone")
        for label in manifest.plan.labels:
            if names.setdefault(label.id, label.name) != label.name:
                raise ValueError(
                    f"data_sets must have one label map, label {label.id} is {names[label.id]!r}"
                    f" and, in {root!r}, {label.name!r}: write the later one with --since"
                )


def _features(manifest: Manifest) -> set[tuple[str, Kind, bool, bool, bool]]:
    return {(f.key, f.kind, f.repeated, f.optional, f.per_step) for f in manifest.features}


REMEDY = "copy the data set again from an intact copy, or write it again"


def list_shards(data_sets: DataSets, split: Splits) -> list[ShardFile]:
    """Return the shards of splits in their order, checked against one listing per data set.

    Raises:
        ValueError: No data set has a split.
        RuntimeError: `E-VER-MISSING`, `E-VER-SIZE` or, in a store that lists checksums,
            `E-VER-CRC`: names the first shard that differs from the manifest.
    """
    shards = data_sets.shards(split)
    listed = [
        shard.file
        for place in sorted({shard.data_set for shard in shards})
        for shard in read_data_set.list_shards(
            open_storage(data_sets.roots[place], data_sets.access),
            data_sets.manifests[place],
            REMEDY,
            data_sets.expanded(split),
        )
    ]
    return [shard._replace(listed=file) for shard, file in zip(shards, listed, strict=True)]


def read_offsets(file: ShardFile, storage: Storage) -> array.array:
    """Return the byte offset of each record in a shard, then the end of the last record.

    In an ArrayRecord file these are offsets among the records' own bytes.

    Raises:
        RuntimeError: `E-VER-MISSING`: the index is missing. `E-VER-INDEX`: it does not fit the
            shard.
    """
    import numpy as np

    index = _index_columns(file, storage, ["offset", "size"])
    starts, sizes = (index[name].to_numpy() for name in ("offset", "size"))
    ends = np.append(starts, file.entry.bytes)
    if is_array_record(file.entry.file):
        return array.array("q", np.append(0, np.cumsum(sizes)).tobytes())
    if ends[0] != 0 or (sizes < FRAME_BYTES).any() or (np.diff(ends) != sizes).any():
        what = f"the index's records do not fill the shard's {ends[-1]} bytes"
        where = join_uri(storage.root, file.index_name)
        raise RuntimeError(fault_line("E-VER-INDEX", where, what, REMEDY))
    return array.array("q", ends.tobytes())


def read_keys(file: ShardFile, storage: Storage) -> list[str]:
    """Return the keys of a shard's records.

    Raises:
        RuntimeError: `E-VER-MISSING`: the index is missing. `E-VER-INDEX`: it does not fit the
            shard.
    """
    return _index_columns(file, storage, ["key"])["key"].to_pylist()


def repeat_factors(data_sets: DataSets, split: Splits, threshold: float) -> "np.ndarray":
    """Return the repeat factor of each record of a split; `beam_tfrec.repeat_factors` explains it.

    Raises:
        ValueError: `threshold` is not above 0.
        RuntimeError: `E-VER-MISSING`, `E-VER-INDEX`: an index is missing, or does not fit.
    """
    import numpy as np

    if not threshold > 0:
        raise ValueError(f"threshold must be above 0, got {threshold}: give a share, such as 0.001")
    records, labels = [], []
    first = 0
    for shard in data_sets.shards(split):
        storage = open_storage(data_sets.roots[shard.data_set], data_sets.access)
        column = _index_columns(shard, storage, ["labels"])["labels"].combine_chunks()
        counts = column.value_lengths().to_numpy()
        records.append(np.repeat(np.arange(first, first + len(counts)), counts))
        labels.append(column.flatten().to_numpy())
        first += len(counts)
    pairs = np.unique([np.concatenate(records), np.concatenate(labels)], axis=1)
    _, classes, images = np.unique(pairs[1], return_inverse=True, return_counts=True)
    of_class = np.maximum(1, np.sqrt(threshold * first / images))
    factors = np.ones(first)
    np.maximum.at(factors, pairs[0], of_class[classes])
    return factors


def _index_columns(file: ShardFile, storage: Storage, names: Sequence[str]) -> "pa.Table":
    from beam_tfrec.transforms.shard_index import index_columns  # pyarrow takes 0.2 s

    parse = functools.partial(index_columns, names=names, records=file.entry.records)
    return read_data_set.read_index(storage, file.index_name, REMEDY, parse)


class Part(NamedTuple):
    """Consecutive records of a shard.

    Attributes:
        shard: number of the shard in its split, from 0.
        first: number of the first record, from 0.
        stop: number of the last record plus one.
    """

    shard: int
    first: int
    stop: int

    @property
    def records(self) -> int:
        """The number of records."""
        return self.stop - self.first


def deal(
    records: Sequence[int], host: int = 0, hosts: int = 1, *, drop_remainder: bool = False
) -> list[Part]:
    """Return the parts of shards that a host reads, in the order of the shards.

    Hosts get equal numbers of records (±1). With `drop_remainder` the numbers are equal, and no
    host reads the remaining `sum(records) % hosts` records.

    Args:
        records: number of records in each shard.
        host: number of this host, from 0.
        hosts: number of hosts.
        drop_remainder: give all hosts the same number of records.

    Raises:
        ValueError: `host` is not below `hosts`.

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
    records: Sequence[Sequence[int]],
    global_batch: int,
    hosts: int = 1,
    host: int = 0,
    drop_remainder: bool | None = None,
) -> int:
    """Return the number of batches that a host reads from a split in an epoch.

    Args:
        records: number of records in each shard, by size bucket; one bucket if there are none.
        global_batch: number of records in a batch, summed over all hosts.
        hosts: number of hosts.
        host: number of this host, from 0.
        drop_remainder: as in `drops_remainder`.

    Raises:
        ValueError: `host` is not below `hosts`, `global_batch` is not a multiple of `hosts`, or
            dropping the remainder leaves no batch.

    >>> shards = [[500, 500]]
    >>> steps(shards, 64, 8), steps(shards, 64), steps(shards, 64, drop_remainder=True)
    (15, 16, 15)
    """
    check_host(host, hosts)
    if global_batch < 1 or global_batch % hosts:
        raise ValueError(f"global_batch must be a multiple of hosts={hosts}, got {global_batch}")
    is_dropping = drops_remainder(hosts, drop_remainder)
    count = 0
    for of_bucket in records:
        parts = deal(of_bucket, host, hosts, drop_remainder=is_dropping)
        whole, left = divmod(sum(part.records for part in parts), global_batch // hosts)
        count += whole + (left > 0 and not is_dropping)
    if is_dropping and not count:
        most = max(map(sum, records))
        raise ValueError(f"global_batch must be at most {most} records, got {global_batch}")
    return count


def drops_remainder(hosts: int, drop_remainder: bool | None) -> bool:
    """Return whether hosts read equal numbers of records and only full batches.

    None is the default of `load` and `steps_per_epoch`: only with several hosts.
    """
    return hosts > 1 if drop_remainder is None else drop_remainder


def check_host(host: int, hosts: int) -> None:
    """Check that a host's number is in range.

    Raises:
        ValueError: `host` is not below `hosts`.
    """
    if not 0 <= host < hosts:
        raise ValueError(f"host must be at least 0 and below hosts, got host={host}, hosts={hosts}")


def _due(have: Sequence[int], drop_remainder: bool) -> list[int]:
    """Return the number of records for each host; a remainder goes to the hosts with most."""
    base, extra = divmod(sum(have), len(have))
    if drop_remainder:
        return [base] * len(have)
    richest = sorted(range(len(have)), key=lambda host: (-have[host], host))[:extra]
    return [base + (host in richest) for host in range(len(have))]


def _take_from_end(parts: list[Part], wanted: int) -> list[Part]:
    """Remove up to `wanted` records from the end of parts, and return them."""
    taken: list[Part] = []
    while wanted > 0 and parts:
        shard, first, stop = parts.pop()
        cut = max(first, stop - wanted)
        if cut > first:
            parts.append(Part(shard, first, cut))
        taken.append(Part(shard, cut, stop))
        wanted -= stop - cut
    return taken
