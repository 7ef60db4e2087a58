"""How far a run is, counted in each process, for people to read."""

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
    """

    done: int = 0
    rejected: int = 0
    bytes: int = 0
    shards_done: int = 0


class Progress:
    """Counts of a run in this process, with the attributes of `Counts`; a display may read them.

    They are for people. The manifest's sums come from receipts, which no retry can count twice.

    Attributes:
        planned: samples planned; 0 until the plan is published.
        shards_planned: shards of the run.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Go back to zero, for a new run."""
        self.plan(0, 0)
        self.take()

    def plan(self, samples: int, shards: int) -> None:
        """Note what is to be done."""
        self.planned, self.shards_planned = samples, shards

    def add(self, counts: Counts) -> None:
        """Add work that this or another process has done."""
        with self._lock:
            self.done += counts.done
            self.rejected += counts.rejected
            self.bytes += counts.bytes
            self.shards_done += counts.shards_done

    def take(self) -> Counts:
        """Return the counts, and count from zero again: another process adds them to its own."""
        with self._lock:
            counts = Counts(*(getattr(self, name, 0) for name in Counts._fields))
            self.done = self.rejected = self.bytes = self.shards_done = 0
            return counts


PROGRESS = Progress()
"""The counts of this process; one in-process run at a time shows them."""
