"""Several simulated runs at once, one step at a time, in an order that a seed decides.

Each run has a thread, but only one of them moves: from one step of the store to the next, where it
waits until the seed picks it again. So every order of their steps can come, and comes again.
"""

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.memory_store import Disturb, Moment, Step, undisturbed

Job = Callable[[Disturb], Any]
"""Runs something in a process that is disturbed as given."""


class Turns:
    """Who may move; every runner is a number from 0."""

    def __init__(self, choose: random.Random, runners: int) -> None:
        self._choose = choose
        self._moving = set(range(runners))
        self._waiting: set[int] = set()
        self._picked: int | None = None
        self._changed = threading.Condition()
        self.order: list[int] = []

    def wait(self, me: int) -> None:
        """Stop at a step until it is this runner's turn."""
        with self._changed:
            self._moving.discard(me)
            self._waiting.add(me)
            self._pick()
            if not self._changed.wait_for(lambda: self._picked == me, timeout=60):
                raise TimeoutError(f"runner {me} waits for a turn that never comes")
            self._picked = None
            self._waiting.discard(me)
            self._moving.add(me)

    def leave(self, me: int) -> None:
        """Take no more turns."""
        with self._changed:
            self._moving.discard(me)
            self._pick()

    def _pick(self) -> None:
        if not self._moving and self._waiting and self._picked is None:
            self._picked = self._choose.choice(sorted(self._waiting))
            self.order.append(self._picked)
            self._changed.notify_all()


def interleave(seed: int, jobs: Sequence[Job], disturb: Sequence[Disturb] = ()) -> list[Any]:
    """Run all jobs, their steps in an order that the seed decides.

    Args:
        seed: of the order.
        jobs: what to run.
        disturb: what happens to each of them besides.

    Returns:
        What each returned, or the exception that ended it.
    """
    turns = Turns(random.Random(seed), len(jobs))
    outcomes: list[Any] = [None] * len(jobs)

    def run(me: int) -> None:
        besides = disturb[me] if disturb else undisturbed

        def at(step: Step, now: Moment) -> None:
            if now is Moment.BEFORE:
                turns.wait(me)
            besides(step, now)

        try:
            outcomes[me] = jobs[me](at)
        except BaseException as error:
            outcomes[me] = error
        finally:
            turns.leave(me)

    threads = [threading.Thread(target=run, args=(me,), daemon=True) for me in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
