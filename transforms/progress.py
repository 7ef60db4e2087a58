"""How far the shards of this process are: counts that a display may read while a run blocks.

They are for people. The manifest's sums come from receipts, which no retry can count twice.
"""

import threading
from typing import NamedTuple

COUNTERS = "beam_tfrec"
"""Namespace of a job's counters in Beam, which a runner elsewhere shows."""


class Counts(NamedTuple):
    """What was done in some time; see `Progress`."""

    done: int
    rejected: int
    bytes: int
    shards_done: int
    shards_kept: int = 0


class Progress:
    """Counts of a run in this process.

    Attributes:
        planned: samples planned; 0 until the plan is published.
        done: samples written or rejected, those of kept shards too.
        rejected: of them, rejected.
        bytes: written to shards.
        shards_planned: shards of the run.
        shards_done: shards written or kept.
        shards_kept: of them, kept.
        shards_there: shards that were there when the plan was published.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Go back to zero, for a new run."""
        with self._lock:
            self.planned = self.done = self.rejected = self.bytes = 0
            self.shards_planned = self.shards_done = 0
            self.shards_kept = self.shards_there = 0

    def plan(self, samples: int, shards: int, shards_there: int = 0) -> None:
        """Note what is to be done, and how many shards are there already."""
        with self._lock:
            self.planned, self.shards_planned = samples, shards
            self.shards_there = shards_there

    def shards_finished(self) -> int:
        """Return how many shards are there: those of earlier runs, and those of this one."""
        with self._lock:
            new = self.shards_done - self.shards_kept
            return min(max(self.shards_there, self.shards_kept) + new, self.shards_planned)

    def add_samples(self, done: int, rejected: int, written_bytes: int) -> None:
        """Note samples that were written or rejected."""
        with self._lock:
            self.done += done
            self.rejected += rejected
            self.bytes += written_bytes

    def add_shard(self) -> None:
        """Note a shard that is there."""
        with self._lock:
            self.shards_done += 1

    def keep_shard(self) -> None:
        """Note that the next shard is one of an earlier run."""
        with self._lock:
            self.shards_kept += 1

    def take(self) -> Counts:
        """Return what was done, and count from zero again: another process adds it to its own."""
        with self._lock:
            counts = Counts(
                self.done, self.rejected, self.bytes, self.shards_done, self.shards_kept
            )
            self.done = self.rejected = self.bytes = self.shards_done = self.shards_kept = 0
            return counts

    def add(self, counts: Counts) -> None:
        """Note what another process has done."""
        self.add_samples(counts.done, counts.rejected, counts.bytes)
        with self._lock:
            self.shards_done += counts.shards_done
            self.shards_kept += counts.shards_kept


PROGRESS = Progress()
"""The counts of this process; one in-process run at a time shows them."""
