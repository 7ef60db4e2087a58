"""A group-by of batches that, in process, holds their places alone.

FnApiRunner keeps a group-by's input, its output and what it hands to the next step in memory. In a
run's spool the batches cost it a few bytes each, whatever they hold.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import apache_beam as beam

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


def _together(sides: Sequence[beam.PCollection]) -> beam.PCollection:
    return sides[0] if len(sides) == 1 else sides | "Together" >> beam.Flatten()


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


def _put(keyed: tuple[K, Any], coder: StructCoder, spool: RunSpool) -> tuple[K, bytes]:
    key, batch = keyed
    return key, spool.put(coder.encode(batch))


def _get(grouped: tuple[K, Iterable[bytes]], coder: StructCoder, spool: RunSpool) -> tuple[K, Any]:
    key, places = grouped
    return key, SpooledBatches(tuple(places), coder, spool)
