"""Find the shards of committed data sets by their manifests, never by a glob."""

import array
import functools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, NamedTuple

from beam_tfrec.readers.shares import STOPPING_STRATEGIES
from beam_tfrec.schemas.faults import run_fault
from beam_tfrec.schemas.features import FeatureSpec, Kind
from beam_tfrec.schemas.manifest import Label, Manifest, ShardEntry
from beam_tfrec.schemas.samples import Order
from beam_tfrec.schemas.splits import bucket_size_px, fold_names, split_without_bucket
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
        uri: path or URI of the shard.
        listed: entry of the shard in the listing, which pins its bytes; None before the listing.
    """

    data_set: int
    entry: ShardEntry
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
        return self.manifests[0].spec

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
            ShardFile(place, entry, join_uri(self.roots[place], entry.file))
            for place, manifest in enumerate(self.manifests)
            for entry in manifest.shards
            if entry.split in wanted
        ]
        there = {shard.entry.split for shard in found}
        for missing in sorted({*split_names(split)} - there - {*map(split_without_bucket, there)}):
            names = {shard.split for manifest in self.manifests for shard in manifest.shards}
            names.update(map(split_without_bucket, [*names]))
            known = ", ".join(sorted(names)) or "none, as there are no records"
            roots = ", ".join(self.roots)
            raise ValueError(f"split must be one of {known} in {roots}, got {missing!r}")
        return found

    def expanded(self, split: Splits) -> tuple[str, ...]:
        """Return the names of splits, and those of their size buckets.

        Raises:
            ValueError: No split is named, or one is named twice.
        """
        names = split_names(split)
        buckets = set()
        for manifest in self.manifests:
            there = {shard.split for shard in manifest.shards}
            absent = {*names} - there
            buckets |= {of for of in there if split_without_bucket(of) in absent - {of}}
        return names + tuple(sorted(buckets - {*names}))

    def records(self, split: Splits) -> list[int]:
        """Return the number of records in each shard of splits.

        Raises:
            ValueError: No data set has records in a split, or a split is named twice.
        """
        return [shard.entry.records for shard in self.shards(split)]

    def buckets(self, split: Splits) -> list[tuple[str, ...]]:
        """Return the splits of each size bucket of splits; none if records have no bucket.

        Raises:
            ValueError: No data set has records in a split, or a split is named twice.
        """
        found: dict[tuple[int, int], list[str]] = {}
        for name in dict.fromkeys(shard.entry.split for shard in self.shards(split)):
            if name in split_names(split):  # then the shapes of batches differ anyway
                return []
            found.setdefault(bucket_size_px(name), []).append(name)
        return [*map(tuple, found.values())]

    def folds(self, k: int) -> list[tuple[list[str], str]]:
        """Return the training splits and the validation split of each fold, see `readers.folds`."""
        names = fold_names(k)
        there = {split_without_bucket(shard.split) for of in self.manifests for shard in of.shards}
        folds = sorted(split for split in there if re.fullmatch(r"fold[0-9]+", split))
        if folds != sorted(names):
            has = ", ".join(folds) or "none"
            what = f"k must be the number of folds, got {k} for folds {has}"
            raise ValueError(f"{what}: write the data set with --splits fold*{k}")
        return [([other for other in names if other != fold], fold) for fold in names]

    def is_in_input_order(self, split: Splits) -> bool:
        """Return whether any of the data sets keeps the records in the order of their source."""
        return any(
            manifest.plan.order_of(name) is Order.INPUT
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
        raise ValueError(f"data_sets must be paths, got weights for {[*roots]}: give a list")
    one_or_more = (roots,) if isinstance(roots, str | os.PathLike) else roots
    given = tuple(map(_absolute, one_or_more))
    if not given:
        raise ValueError("data_sets must be at least one path, got none: give an output")
    found = (read_data_set.read_finished(open_storage(root, access), "path") for root in given)
    data_sets = DataSets(given, tuple(manifest for manifest, _ in found), access)
    _refuse_different(data_sets)
    return data_sets


def find_mixture(
    roots: Root | Sequence[Root] | Mapping[Root, float],
    stopping_strategy: str | None,
    access: Access = DEFAULT_ACCESS,
) -> tuple[DataSets, list[float]]:
    """Return data sets, and their weights if they are mixed.

    Raises:
        ValueError: A weight is not above 0, or the strategy is unknown or without weights.
    """
    weights = [*roots.values()] if isinstance(roots, Mapping) else []
    if wrong := [w for w in weights if not (isinstance(w, Real) and 0 < w < math.inf)]:
        what = f"weights must be numbers above 0, got {wrong[0]!r}"
        raise ValueError(f"{what}: correct it, or leave the data set out")
    if stopping_strategy is not None and not (weights and stopping_strategy in STOPPING_STRATEGIES):
        what = f"{' or '.join(STOPPING_STRATEGIES)}, for data sets with weights"
        raise ValueError(f"stopping_strategy must be {what}, got {stopping_strategy!r}: correct it")
    return find_data_sets([*roots] if isinstance(roots, Mapping) else roots, access), weights


def _absolute(root: Root) -> str:
    """Return an absolute path, or the URI unchanged."""
    text = os.fspath(root)
    if not isinstance(text, str) or not text:
        raise ValueError(f"data_sets must be paths or URIs, got {root!r}: give text")
    if not is_local(text) or "://" in text:
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
                what = f"{names[label.id]!r} and, in {root!r}, {label.name!r} for {label.id}"
                remedy = "write the later one with --since"
                raise ValueError(f"data_sets must have one label map, got {what}: {remedy}")


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
        where = join_uri(storage.root, file.entry.index_names[0])
        raise run_fault("E-VER-INDEX", where, what, REMEDY)
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
    return read_data_set.read_index(storage, file.entry.index_names[0], REMEDY, parse)
