"""List what the roots of images hold."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import apache_beam as beam

from transforms.batches import is_in_process
from transforms.blobs import BlobName
from transforms.storage import DEFAULT_ACCESS, Access, Entry, Storage, list_uri, open_storage
from transforms.storage.listing import find_cuts


def list_ranges(
    roots: Mapping[str, str],
    cuts: Mapping[str, Iterable[str]],
    access: Access,
    cut_unknown: Callable[[Storage], list[str]] | None = None,
) -> list[tuple[str, list[str]]]:
    """Return the bounds of every root's listing, by its name, and where it may be divided.

    Args:
        roots: URI per root name.
        cuts: names per root name, in any order.
        access: how stores are reached.
        cut_unknown: finds names in a root without known names; None where one lister lists all.
    """
    bounds = []
    for root, uri in sorted(roots.items()):
        storage = open_storage(uri, access)
        known = sorted(set(cuts.get(root, ()))) if storage.lists_by_name else []
        if not known and cut_unknown is not None and storage.lists_by_name:
            known = cut_unknown(storage)
        bounds.append((root, ["", *known, ""]))
    return bounds


@dataclass(eq=False)
class ListBlobs(beam.PTransform):
    """Root -> everything that the roots hold, as `((root name, name), Entry)`, in any order.

    Attributes:
        roots: URI per root name, such as `{"train": "gs://b/train2017"}`.
        access: how stores are reached.
        cuts: per root name, names at which its listing may be divided; None for none known.
    """

    roots: Mapping[str, str]
    access: Access = DEFAULT_ACCESS
    cuts: beam.PCollection[tuple[str, list[str]]] | None = None

    def expand(self, root: beam.pvalue.PBegin) -> beam.PCollection[tuple[BlobName, Entry]]:
        """List every root: on a cluster its ranges one by one, in process all by one lister."""
        in_process = is_in_process(root.pipeline)
        cuts: Any = [] if self.cuts is None else beam.pvalue.AsList(self.cuts)
        ranges = (
            root
            | "Once" >> beam.Impulse()
            | "Ranges"
            >> beam.FlatMap(
                _list_ranges,
                cuts,
                self.roots,
                self.access,
                None if in_process else find_cuts,
            )
        )
        if not in_process:
            ranges |= "Divide" >> beam.FlatMap(_divide) | "Spread" >> beam.Reshuffle()
        return ranges | "List" >> beam.FlatMap(_list_range, self.roots, self.access)


def _list_ranges(
    _: bytes,
    cuts: list[tuple[str, list[str]]],
    roots: Mapping[str, str],
    access: Access,
    cut_unknown: Callable[[Storage], list[str]] | None,
) -> list[tuple[str, list[str]]]:
    of_root: dict[str, list[str]] = {}
    for root, names in cuts:
        of_root.setdefault(root, []).extend(names)
    return list_ranges(roots, of_root, access, cut_unknown)


def _divide(element: tuple[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    root, bounds = element
    for start, end in pairwise(bounds):
        yield root, [start, end]


def _list_range(
    element: tuple[str, list[str]],
    roots: Mapping[str, str],
    access: Access,
) -> Iterator[tuple[BlobName, Entry]]:
    root, bounds = element
    for entry in list_uri(roots[root], access, bounds):
        yield (root, entry.name), entry
