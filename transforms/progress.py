"""Counts of finished work in each process, for the progress display."""

import operator
import threading
from typing import NamedTuple

COUNTERS = "beam_tfrec"
"""Namespace of the Beam counters of a run, which a remote runner displays."""


class Counts(NamedTuple):
    """Finished work.

    Attributes:
        done: number of samples written or rejected, including those of kept shards.
        rejected: number of samples rejected.
        bytes: number of bytes written to shards.
        shards_done: number of shards written or kept.
    """

    done: int = 0
    rejected: int = 0
    bytes: int = 0
    shards_done: int = 0


class Progress:
    """Counts of a run in this process.

    The counts are for display only. A retry may count work twice here, but not in the shards'
    receipts, where the manifest's sums come from.

    Attributes:
        counts: work that is finished.
        planned: number of samples planned; 0 until the plan is published.
        shards_planned: number of shards planned.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero, for a new run."""
        self.plan(0, 0)
        self.counts = Counts()

    def plan(self, samples: int, shards: int) -> None:
        """Set the planned numbers."""
        self.planned, self.shards_planned = samples, shards

    def add(self, counts: Counts) -> None:
        """Add work of this or another process."""
        with self._lock:
            self.counts = Counts(*map(operator.add, self.counts, counts))

    def take(self) -> Counts:
        """Return the counts and set them to zero; another process adds them to its own."""
        with self._lock:
            counts, self.counts = self.counts, Counts()
        return counts


PROGRESS = Progress()
"""Counts of this process; only one in-process run at a time displays them."""
