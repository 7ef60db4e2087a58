"""How far the shards of this process are: counts that a display may read while a run blocks.

They are for people. The manifest's sums come from receipts, which no retry can count twice.
"""

import threading
from typing import NamedTuple

COUNTERS = "beam_tfrec"
"""Namespace of a job's counters in Beam, which a runner elsewhere shows."""


class Counts(NamedTuple):
    """Work that was done.

    Attributes:
        done: samples written or rejected, those of kept shards too.
        rejected: samples rejected.
        bytes: bytes written to shards.
        shards_done: shards written or kept.
        shards_kept: shards kept.
    """

    done: int = 0
    rejected: int = 0
    bytes: int = 0
    shards_done: int = 0
    shards_kept: int = 0


class Progress:
    """Counts of a run in this process, with the attributes of `Counts`.

    Attributes:
        planned: samples planned; 0 until the plan is published.
        shards_planned: shards of the run.
        shards_there: shards that were there when the plan was published.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Go back to zero, for a new run."""
        self.plan(0, 0)
        self.take()

    def plan(self, samples: int, shards: int, shards_there: int = 0) -> None:
        """Note what is to be done, and how many shards are there already."""
        self.planned, self.shards_planned, self.shards_there = samples, shards, shards_there

    def shards_finished(self) -> int:
        """Return how many shards are there: those of earlier runs, and those of this one."""
        new = self.shards_done - self.shards_kept
        return min(max(self.shards_there, self.shards_kept) + new, self.shards_planned)

    def add(self, counts: Counts) -> None:
        """Add work that this or another process has done."""
        with self._lock:
            self.done += counts.done
            self.rejected += counts.rejected
            self.bytes += counts.bytes
            self.shards_done += counts.shards_done
            self.shards_kept += counts.shards_kept

    def take(self) -> Counts:
        """Return the counts, and count from zero again: another process adds them to its own."""
        with self._lock:
            counts = Counts(*(getattr(self, name, 0) for name in Counts._fields))
            self.done = self.rejected = self.bytes = self.shards_done = self.shards_kept = 0
            return counts


PROGRESS = Progress()
"""The counts of this process; one in-process run at a time shows them."""
