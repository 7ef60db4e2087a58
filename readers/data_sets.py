"""Find the shards of committed data sets: by their manifests, never by a glob."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from schemas.features import FeatureSpec
from schemas.manifest import (
    MANIFEST_NAME,
    Label,
    Manifest,
    ShardEntry,
    index_names_of,
    read_manifest,
    refuse_contradictions,
    spec_of,
)
from transforms.storage import DEFAULT_ACCESS, Access, Storage, is_local, join_uri, open_storage

Root = str | os.PathLike[str]
"""Path or URI of an output."""


class ShardFile(NamedTuple):
    """A shard of a data set.

    Attributes:
        data_set: place of its data set among those that are read together.
        entry: as in the manifest.
        index_name: of its Parquet index, in the data set.
    """

    data_set: int
    entry: ShardEntry
    index_name: str


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
            shard
            for place, manifest in enumerate(self.manifests)
            for shard in _shards_of(place, manifest, split)
        ]
        if not found:
            names = sorted({name for manifest in self.manifests for name in manifest.splits})
            if split in names:
                raise ValueError(f"split must have records, got {split!r} of none: leave it out")
            raise ValueError(f"split must be one of {', '.join(names)}, got {split!r}: give it")
        return found

    def is_in_input_order(self, split: str) -> bool:
        """Return whether records lie in the order of their source, in any of the data sets."""
        orders = [_orders(manifest) for manifest in self.manifests if split in manifest.splits]
        return any(order.get(split, order.get("all")) == "input" for order in orders)

    def uri(self, shard: ShardFile) -> str:
        """Return the path or URI of a shard's file."""
        return join_uri(self.roots[shard.data_set], shard.entry.file)

    def storage(self, shard: ShardFile) -> Storage:
        """Return the storage in which a shard lies."""
        return open_storage(self.roots[shard.data_set], self.access)


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
    is_relative = text and is_local(text) and not text.startswith(("/", "file://"))
    return os.path.join(os.getcwd(), text) if is_relative else text


def _manifest(root: str, access: Access) -> Manifest:
    storage = open_storage(root, access)
    if storage.stat(MANIFEST_NAME) is None:
        raise ValueError(
            f"data_sets must be outputs with a {MANIFEST_NAME}, got {root!r} without one: give"
            " the folder of an output; where its run was not finished, run that command again"
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
        for mine, theirs in zip(_by_key(first), _by_key(manifest), strict=False):
            if mine != theirs:
                keys = " and ".join(sorted({mine[0], theirs[0]}))
                raise ValueError(
                    f"data_sets must hold the same features, got {data_sets.roots[0]!r} and"
                    f" {root!r}, which differ in {keys}: read them apart"
                )
        if len(first.features) != len(manifest.features):
            raise ValueError(
                f"data_sets must hold the same features, got {len(first.features)} of them in"
                f" {data_sets.roots[0]!r} and {len(manifest.features)} in {root!r}: read them apart"
            )
        for label in manifest.plan.labels:
            if names.setdefault(label.id, label.name) != label.name:
                raise ValueError(
                    f"data_sets must have one label map, got label {label.id} as"
                    f" {names[label.id]!r} and, in {root!r}, {label.name!r}: write the later one"
                    " with --since, or read them apart"
                )


def _orders(manifest: Manifest) -> dict[str, str]:
    """Return the order of each split, and under `all` that of the others."""
    pairs = (pair.partition("=") for pair in manifest.plan.options.get("order", "").split())
    return {name: order for name, _, order in pairs}


def _by_key(manifest: Manifest) -> list[tuple[str, str, bool, bool, bool]]:
    return sorted((f.key, f.kind, f.repeated, f.optional, f.per_step) for f in manifest.features)


def _shards_of(place: int, manifest: Manifest, split: str) -> list[ShardFile]:
    names = zip(manifest.shards, index_names_of(manifest), strict=True)
    return [ShardFile(place, entry, name) for entry, (name, _) in names if entry.split == split]
