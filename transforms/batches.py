"""Batches: what a bundle has for one key travels as one element.

Runners pay for every element that crosses a group-by, in process some 20 us. Samples are small and
many, so that price is several times that of everything done with them.
"""

import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import apache_beam as beam
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindows

from transforms.coders import StructCoder
from transforms.run_spool import RunSpool

K = TypeVar("K", bound=Hashable)


@dataclass(eq=False)
class GroupBatches(beam.PTransform):
    """Several of (key, batch) -> (key, batches of that key), in any order.

    They are put away before they come together, which FnApiRunner holds copies of as well.
    What is declared is `Iterable[batch]` where they travel. Places are declared as anything, since
    Beam now and then encodes what passes between two steps to know its size.

    Attributes:
        batch: type of the batches, a registered struct.
        spool: where batches wait, of a run in this process; None to let them travel.
    """

    batch: type
    spool: RunSpool | None = None

    def expand(self, sides: Any) -> beam.PCollection:  # Beam warns of a tuple in so many words
        """Group by key."""
        if self.spool is None:
            return _together(sides) | "Travel" >> beam.GroupByKey()
        coder = StructCoder(self.batch)
        put = [
            side | f"Put{place}" >> beam.Map(_put, coder, self.spool)
            for place, side in enumerate(sides)
        ]
        waiting = _together(put) | "Wait" >> beam.GroupByKey()
        return waiting | "Get" >> beam.Map(_get, coder, self.spool)


@dataclass(frozen=True)
class SpooledBatches:
    """Batches that lie in a spool; each is read when it is asked for.

    Attributes:
        places: of the batches.
        coder: that they were encoded with.
        spool: where they lie.
    """

    places: tuple[bytes, ...]
    coder: StructCoder
    spool: RunSpool

    def __iter__(self) -> Iterator[Any]:
        """Read one after the other."""
        return (self.coder.decode(self.spool.get(place)) for place in self.places)


_HELD_PER_GROUP = 32  # more values at once leave the processor's caches
_MAX_HELD = 65_536  # some 100 MB of samples, on a cluster alone
_GROUPS_IN_PROCESS = 128


def num_groups(pipeline: beam.Pipeline, on_a_cluster: int) -> int:
    """Return how many groups a step divides samples into; nothing but speed depends on it.

    A cluster's workers hold one group at a time in memory, so there should be many. In process all
    memory is one, and every group costs some 50 us.
    """
    return _GROUPS_IN_PROCESS if is_in_process(pipeline) else on_a_cluster


def is_in_process(root: beam.Pipeline | beam.pvalue.PBegin) -> bool:
    """Return whether a pipeline runs in this process, one element after the other."""
    pipeline = root.pipeline if isinstance(root, beam.pvalue.PBegin) else root
    return isinstance(pipeline.runner, FnApiRunner)


class MakeBatches(beam.DoFn):
    """Value -> (key, batch). A batch holds values of one bundle, and its size is arbitrary.

    A bounded number of values is held. Nothing may depend on how values fall into batches.
    """

    def __init__(
        self, to_batches: Callable[[list], Iterable[tuple[Hashable, Any]]], groups: int
    ) -> None:
        """Take what makes batches of values, one a key, and how many keys there are."""
        self._to_batches = to_batches
        self._max_held = min(_HELD_PER_GROUP * groups, _MAX_HELD)

    def start_bundle(self) -> None:
        """Hold nothing yet."""
        self._held: list = []

    def process(self, value: Any) -> Iterable[tuple[Hashable, Any]]:
        """Hold a value back, or let all go when they are many."""
        self._held.append(value)
        return () if len(self._held) < self._max_held else self._release()

    def finish_bundle(self) -> Iterator:
        """Let everything go."""
        yield from map(GlobalWindows.windowed_value_at_end_of_window, self._release())

    def _release(self) -> Iterator[tuple[Hashable, Any]]:
        held, self._held = self._held, []
        yield from self._to_batches(held)


class BatchByKey(MakeBatches):
    """Value -> (key, batch), where a batch is made of its values alone."""

    def __init__(
        self,
        keys_of: Callable[[list], Iterable[Hashable]],
        to_batch: Callable[[list], Any],
        groups: int,
    ) -> None:
        """Take what gives the keys of values, what makes a batch, and how many keys there are."""
        super().__init__(functools.partial(_by_key, keys_of=keys_of, to_batch=to_batch), groups)


def _by_key(
    values: list, keys_of: Callable[[list], Iterable[Hashable]], to_batch: Callable[[list], Any]
) -> Iterator[tuple[Hashable, Any]]:
    by_key: dict[Hashable, list] = {}
    for key, value in zip(keys_of(values), values, strict=True):
        by_key.setdefault(key, []).append(value)
    return ((key, to_batch(of_key)) for key, of_key in by_key.items())


def _together(sides: Sequence[beam.PCollection]) -> beam.PCollection:
    return sides[0] if len(sides) == 1 else sides | "Together" >> beam.Flatten()


def _put(keyed: tuple[K, Any], coder: StructCoder, spool: RunSpool) -> tuple[K, bytes]:
    key, batch = keyed
    return key, spool.put(coder.encode(batch))


def _get(grouped: tuple[K, Iterable[bytes]], coder: StructCoder, spool: RunSpool) -> tuple[K, Any]:
    key, places = grouped
    return key, SpooledBatches(tuple(places), coder, spool)
